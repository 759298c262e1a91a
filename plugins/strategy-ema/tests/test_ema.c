/* An average of the weights (plugins/strategy-ema): it follows from them on any mesh, what is planted into its
 * section is found,
 * and what makes no sense is refused. Its numbers: tests/system/test_ema.c. */
#include <stdlib.h>

#include "conformance/edits.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/compiled.h"

static hd__code *code_of(struct hd_program *p)
{
    return &hd__program_section(p, "ema")->code;
}

/* ---- every flat has one, a master's size */

START_TEST(a_shard_beside_every_shard)
{
    static const char *const rows[][2] = {
        {"dp: 1", "{use: zero}, {use: ema}"},
        {"dp: 4", "{use: zero, stage: 1}, {use: ema}"},
        {"dp: {replicate: 2, shard: 2}", "{use: zero, stage: 3}, {use: ema}"},
        {"dp: 2, tp: 2", "{use: 3d}, {use: zero, stage: 2, offload: {optimizer: host}}, {use: ema}"},
        {"dp: 2, pp: 2", "{use: 3d}, {use: zero, stage: 3, offload: {optimizer: host, params: host}}, {use: ema}"},
    };
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        struct job j;
        struct hd_program *p = expect_job(&j, rows[n][0], rows[n][1]);
        ck_assert_uint_eq(p->strategy_states.count, 1);
        for (uint32_t f = 0; f < p->flats.count; f++) {
            const struct hd__tensor *e = hd__tensor_const(p, p->flats.at[f].tensor[HD__FLAT_STRATEGY]),
                                    *master = hd__tensor_const(p, p->flats.at[f].tensor[HD__FLAT_MASTER]);
            ck_assert_int_eq(hd__numel(p, e), hd__numel(p, master));
            ck_assert_uint_eq(e->dtype, HD_F32);
            struct hd__flat_tensor t = {.next = f * HD__FLAT_ROLES + HD__FLAT_STRATEGY}; /* an average of parameters */
            ck_assert(hd__flat_next(p, HD__FLAT_IS_PARAM, &t) && t.tensor == p->flats.at[f].tensor[HD__FLAT_STRATEGY]);
        }
        close_job(&j);
    }
}
END_TEST

START_TEST(every_so_many_steps)
{
    struct job j;
    struct hd_program *p = expect_job(&j, "dp: 2", "{use: zero, stage: 2}, {use: ema, every: 4}");
    const struct hd__code_section *s = hd__program_section(p, "ema");
    for (int64_t step = 1; step <= 8; step++)
        ck_assert_int_eq(hd__section_due(s, step), step % 4 == 0);
    close_job(&j);
}
END_TEST

/* ---- what is planted is found */

static void expect_fault(struct job *j, const char *message)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(hd__verify(j->c->stage[0], &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, message), "%s", err.message);
    close_job(j);
}

static void set_factors(struct hd_program *p, struct hd__instr *i, double a, double b)
{
    struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
    double *table = hd__arena_alloc(&p->arena, 2 * sizeof *table);
    table[0] = a;
    table[1] = b;
    attrs->table = table;
    i->attrs = attrs;
}

#define TWO_FLATS "{use: zero, stage: 1, bucket: 0}, {use: ema}"

START_TEST(faults_are_found)
{
    struct job j;
    struct hd_program *p = expect_job(&j, "dp: 2", TWO_FLATS);
    hd__code *code = code_of(p);
    ck_assert_uint_gt(code->count, 1);
    set_factors(p, &code->at[0], 0.9, 0.2);
    expect_fault(&j, "weights of the parameters in it sum to 1.1, not 1");

    p = expect_job(&j, "dp: 2", TWO_FLATS);
    set_factors(p, &code_of(p)->at[0], 1.5, -0.5);
    expect_fault(&j, "moves away from what the ranks have trained: wrong sign");

    p = expect_job(&j, "dp: 2", TWO_FLATS);
    erase(code_of(p), 0);
    expect_fault(&j, "does not depend on the trained parameters");

    p = expect_job(&j, "dp: 2", TWO_FLATS);
    code_of(p)->at[0].in[1] = p->flats.at[0].tensor[HD__FLAT_STRATEGY];
    expect_fault(&j, "does not depend on the trained parameters");

    p = expect_job(&j, "dp: 2", TWO_FLATS);
    hd__push(&hd__program_section(p, "update")->code, code_of(p)->at[0]);
    erase(code_of(p), 0);
    expect_fault(&j, "is declared of section ema: only that section may write it");

    p = expect_job(&j, "dp: 2", TWO_FLATS); /* into the weights instead of out of them */
    code_of(p)->at[0].out[0] = p->flats.at[0].tensor[HD__FLAT_MASTER];
    expect_fault(&j, "does not depend on the trained parameters");
}
END_TEST

/* The weights of another flat. */
START_TEST(of_its_own_weights)
{
    struct job j;
    struct hd_program *p = expect_job(&j, "dp: 2", TWO_FLATS);
    hd__code *code = code_of(p);
    hd_tensor first = code->at[0].in[1];
    code->at[0].in[1] = code->at[1].in[1];
    code->at[1].in[1] = first;
    expect_fault(&j, "are not the same shard of one tensor");
}
END_TEST

/* ---- refusals */

START_TEST(refused_by_name)
{
    static const struct {
        const char *strategies, *more, *message;
    } rows[] = {
        {"{use: ema}, {use: zero}", "", "a strategy that holds and updates parameters must stand before it"},
        {"{use: zero}, {use: localsgd}, {use: ema}", "", "local-SGD replicas have no common weights to average"},
        {"{use: zero}, {use: ema}", "precision.master=bf16", "use precision.master fp32"},
        {"{use: zero}, {use: ema, decay: 1.5}", "", "decay"},
        {"{use: zero}, {use: ema, every: 0}", "", "every"},
    };
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        struct hd_error err = HD_ERROR_INIT;
        struct job j;
        ck_assert_int_ne(open_job(&j, "dp: 2", rows[n].strategies, rows[n].more, &err), HD_OK);
        ck_assert_msg(strstr(err.message, rows[n].message) && strstr(err.message, "ema"), "%s: %s", rows[n].strategies,
                      err.message);
        hd__job_free(j.job);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_shard_beside_every_shard, every_so_many_steps, faults_are_found, of_its_own_weights,
                                  refused_by_name};
    TCase *c = tcase_create("ema");
    tcase_add_checked_fixture(c, setup, teardown);
    for (uint32_t n = 0; n < HD__COUNT(tests); n++)
        tcase_add_test(c, tests[n]);
    return suite_run_case("ema", c);
}
