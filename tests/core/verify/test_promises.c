/* Values are promised from the template: a mesh, a pipeline, recomputation and ring attention change how a gradient is
 * made, and not what it is. What passes make of the template is held to that. */
#include "analysis/sim/machine.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/compiled.h"

#define PIPELINE(schedule) "{use: 3d, schedule: " schedule "}, {use: zero}"

/* Values that one micro-batch adds to the loss and to each gradient, over all stages. */
static uint64_t meaning(const struct job *j)
{
    uint64_t all = 0;
    for (uint32_t k = 0; k < j->c->stage[0]->params.count; k++) {
        uint64_t gradient = 0;
        for (int32_t s = 0; s < j->c->n_stages; s++)
            gradient += j->c->stage[s]->params.at[k].gradient_value;
        ck_assert_uint_ne(gradient, 0);
        all = hd__hash(&gradient, sizeof gradient, all);
    }
    for (int32_t s = 0; s < j->c->n_stages; s++)
        all += j->c->stage[s]->loss_value;
    return all;
}

static const struct {
    const char *mesh, *strategies, *more;
} rows[] = {
    {"dp: 2", "{use: zero, stage: 3}", ""},
    {"tp: 2", "{use: 3d, sequence_parallel: true}, {use: zero}", ""},
    {"dp: 2", "{use: zero, stage: 1}", "recompute=full"},
    {"dp: 2", "{use: zero}", "recompute=selective"},
    {"cp: 2", "{use: 3d, context: ring}, {use: zero}", ""},
    {"cp: 2", "{use: 3d, context: ring}, {use: zero}", "recompute=full"},
    {"cp: 2", "{use: 3d, context: ulysses}, {use: zero}", ""},
    {"pp: 2", PIPELINE("1f1b"), ""},
    {"pp: 2", PIPELINE("zb-h1"), "recompute=full"},
    {"pp: 2, dp: 2", PIPELINE("gpipe"), "job.deterministic=exact"},
};

START_TEST(a_mesh_changes_no_value)
{
    struct hd_error err = HD_ERROR_INIT;
    struct job plain, other;
    expect_job(&plain, "dp: 1", "{use: zero}");
    ck_assert_msg(!open_job(&other, rows[_i].mesh, rows[_i].strategies, rows[_i].more, &err), "%s", err.message);
    ck_assert_msg(meaning(&plain) == meaning(&other), "%s, %s, %s", rows[_i].mesh, rows[_i].strategies, rows[_i].more);
    close_job(&plain);
    close_job(&other);
}
END_TEST

/* ---- what passes may get wrong */

static void is_found(struct hd_program *p, const char *says)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_ne(hd__verify(p, &err), HD_OK);
    ck_assert_msg(strstr(err.message, says) != NULL, "%s", err.message);
}

typedef int chooser(const struct hd__instr *i);

static struct hd__instr *first(struct hd_program *p, chooser *is)
{
    hd__code *code = NULL;
    uint32_t k = 0;
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (code = &p->sections.at[s].code, k = 0; k < code->count && p->sections.at[s].repeat; k++)
            if (is(&code->at[k]))
                return &code->at[k];
    ck_abort_msg("no such instruction");
}

static int is_second_feed(const struct hd__instr *i)
{
    return i->op == HD_OP_FEED && i->micro == 1;
}

static int is_norm_again(const struct hd__instr *i)
{
    return i->phase == HD__PHASE_R && (i->op == HD_OP_RMSNORM || i->op == HD_OP_ADD_RMSNORM);
}

static int is_second_send(const struct hd__instr *i)
{
    return i->op == HD_OP_SEND && i->micro == 1;
}

static int is_first_send(const struct hd__instr *i)
{
    return i->op == HD_OP_SEND && i->micro == 0;
}

static int is_receive(const struct hd__instr *i)
{
    return i->op == HD_OP_RECV;
}

static int is_merge(const struct hd__instr *i)
{
    return i->op == HD_OP_ATTENTION_MERGE;
}

START_TEST(another_micro_batch)
{
    struct job j;
    struct hd_program *p = expect_job(&j, "pp: 2", PIPELINE("1f1b"));
    first(p, is_second_feed)->micro = 0;
    is_found(p, "differs from");
    close_job(&j);
}
END_TEST

START_TEST(made_again_otherwise)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_attrs *attrs;
    struct hd__instr *i;
    struct job j;
    ck_assert_msg(!open_job(&j, "dp: 2", "{use: zero}", "recompute=full", &err), "%s", err.message);
    i = first(j.c->stage[0], is_norm_again);
    attrs = hd__attrs_new(j.c->stage[0], i->attrs);
    attrs->eps *= 1000;
    i->attrs = attrs;
    is_found(j.c->stage[0], "differs from");
    close_job(&j);
}
END_TEST

/* A merge of one part with its own output, not with the other part's, or with another's statistics. */
START_TEST(a_ring_with_the_wrong_part)
{
    for (uint32_t operand = 0; operand < 2; operand++) {
        struct job j;
        struct hd_program *p = expect_job(&j, "cp: 2", "{use: 3d, context: ring}, {use: zero}");
        struct hd__instr *i = first(p, is_merge);
        i->in[operand] = i->in[2 + operand];
        is_found(p, "differs from");
        close_job(&j);
    }
}
END_TEST

START_TEST(another_is_sent)
{
    struct job j;
    struct hd_program *p = expect_job(&j, "pp: 2", PIPELINE("gpipe"));
    first(p, is_second_send)->in[0] = first(p, is_first_send)->in[0];
    is_found(p, "pipeline send mismatch");
    close_job(&j);
}
END_TEST

/* A message has the value on the receiving stage that it has on the sending one. */
START_TEST(another_is_received)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd_program *programs[2];
    struct hd__sim *machine;
    struct job j;
    expect_job(&j, "pp: 2", PIPELINE("1f1b"));
    hd__tensor_at(j.c->stage[1], first(j.c->stage[1], is_receive)->out[0])->value_number++;
    for (int32_t r = 0; r < 2; r++)
        programs[r] = j.c->stage[r];
    machine = hd__sim_create(&j.c->mesh, programs, &(struct hd__sim_options){0});
    ck_assert_int_ne(hd__sim_verify(machine, &err), HD_OK);
    ck_assert_msg(strstr(hd__sim_report(machine), "another tensor, or another micro-batch's"), "%s",
                  hd__sim_report(machine));
    hd__sim_destroy(machine);
    close_job(&j);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("promises");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, a_mesh_changes_no_value, 0, (int)HD__COUNT(rows));
    tcase_add_test(c, another_micro_batch);
    tcase_add_test(c, made_again_otherwise);
    tcase_add_test(c, a_ring_with_the_wrong_part);
    tcase_add_test(c, another_is_sent);
    tcase_add_test(c, another_is_received);
    return suite_run_case("promises", c);
}
