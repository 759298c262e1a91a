/* check --numerics: what it compares passes as it is, and a fault that is planted into the compiled program of the
 * mesh, or only into the one that runs behind a warm-up, is found. Whole jobs go through hd__numerics_text, which
 * chooses what runs instead of what no rank alone can do. */
#include <check.h>
#include <math.h>

#include "analysis/numerics.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/plugins.h"

/* A llama of two layers; `more`: further lines of the job. */
static const char *text_of(const char *mesh, const char *strategies, const char *more)
{
    static char text[1024];
    snprintf(text, sizeof text,
             "job: {name: small, steps: 8, deterministic: %s}\nmesh: {%s}\nstrategies: [%s]\n"
             "model: {use: transformer, family: llama, layers: 2, hidden: 8, heads: 4, ffn: 8, vocab: 16, max_seq_len: "
             "4}\ndata: {train: none, seq_len: 4, batch: 8, micro_batch: 1}\n%s",
             strstr(more, "# exact") ? "exact" : "normal", mesh, strategies, more);
    return text;
}

#define ADAMW "optimizer: {use: adamw, lr: 1e-2, clip: 1.0}\n"
#define SGD "optimizer: {use: sgd, lr: 0.1}\n"
#define DP2 "dp: 2"

/* ---- jobs as they are */

START_TEST(jobs_agree)
{
    static const struct {
        const char *mesh, *strategies, *more, *instead;
        double limit; /* of all differences */
        int32_t steps;
        const char *shares; /* data.micro_batches, in place of the same number */
    } rows[] = {
        {DP2, "{use: zero, stage: 1}", ADAMW, "", 1e-11, 3, "[5, 3]"},
        {DP2, "{use: zero, stage: 0}, {use: ema, decay: 0.9}", SGD, "", 1e-11, 3, "[3, 5]"},
        {"dp: 2, tp: 2", "{use: zero, stage: 1}", ADAMW "recompute: full\n", "", 1e-11, 3, "[5, 3]"},
        {"dp: {replicate: 2, shard: 1}", "{use: zero, stage: 0}", ADAMW "precision: {compute: fp16}\n", "", 1e-11, 3,
         "[3, 5]"},
        {"dp: 2, cp: 2", "{use: 3d}, {use: zero, stage: 1}", ADAMW, "", 1e-11, 3, "[5, 3]"},
        {DP2, "{use: zero, stage: 2}", ADAMW, "", 1e-11, 3},
        /* what travels wider than it is kept is no loss */
        {DP2, "{use: zero, stage: 1}", ADAMW "precision: {compute: bf16, grad: bf16}\n", "", 1e-11, 3},
        {DP2, "{use: zero, stage: 1}", ADAMW "precision: {compute: bf16, reduce: bf16}\n", "not as bf16", 1e-11, 3},
        {"dp: 4", "{use: zero, stage: 3}", ADAMW "precision: {reduce: fp16}\n", "not as fp16", 1e-11, 3},
        {DP2, "{use: zero, compress: {kind: bf16}}", ADAMW, "not as bf16", 1e-11, 3},
        {DP2, "{use: zero, compress: {kind: int8}}", ADAMW, "not as int8", 1e-11, 3},
        {"dp: 4", "{use: zero, stage: 1, compress: {kind: int4, block: 16}}", ADAMW, "not as int4", 1e-11, 3},
        {DP2, "{use: zero, compress: {kind: powersgd, rank: 1}}", ADAMW, "powersgd has full rank", 1e-11, 3},
        /* behind the warm-up */
        {DP2, "{use: zero, compress: {kind: int8, warmup: 20}}", ADAMW, "not as int8", 1e-11, 5},
        {DP2, "{use: zero, stage: 1}, {use: ema, decay: 0.9, every: 7}", ADAMW, "", 1e-11, 5},
        {DP2, "{use: zero}, {use: localsgd, every: 5}", ADAMW, "one step of sgd", 1e-11, 3},
        {"dp: {replicate: 2, shard: 2}",
         "{use: zero, stage: 3}, {use: localsgd, axes: [dp_replicate], nesterov: false}", ADAMW, "one step of sgd",
         1e-11, 3},
        {DP2, "{use: zero, stage: 2}", ADAMW "precision: {compute: fp16}\n", "", 1e-11, 3},
        {DP2, "{use: zero, stage: 1, offload: {optimizer: host}}",
         ADAMW "precision: {compute: bf16, optimizer: bf16}\n", "", 1e-11, 3},
        {DP2, "{use: zero, stage: 2}", ADAMW "# exact\n", "", 0, 3},
    };
    struct hd_error err = HD_ERROR_INIT;
    struct hd__numerics r;
    const char *text = text_of(rows[_i].mesh, rows[_i].strategies, rows[_i].more);
    char shares[64] = "";
    const char *override = shares;
    snprintf(shares, sizeof shares, "data.micro_batches=%s", rows[_i].shares ? rows[_i].shares : "auto");
    ck_assert_msg(!hd__numerics_text(text, &override, 1, plugins, 3, 1, &r, &err), "%s\n%s", err.message, text);
    ck_assert_msg(!r.failed[0], "%s\n%s", r.failed, text);
    ck_assert_msg(fmax(fmax(r.loss, r.norm), fmax(r.gradient, fmax(r.parameter, r.average))) <= rows[_i].limit,
                  "%s: %g\n%s", r.where, r.worst, text);
    ck_assert_msg(rows[_i].instead[0] ? strstr(r.instead, rows[_i].instead) != NULL : !r.instead[0], "'%s'\n%s",
                  r.instead, text);
    ck_assert_int_eq(r.steps, rows[_i].steps);
    ck_assert_int_eq(r.limit == 0, strstr(rows[_i].more, "# exact") != NULL);
}
END_TEST
enum { JOBS = 20 };

/* ---- faults in the mesh's program */

static void compile(const char *text, const char *const *overrides, size_t n, struct hd__job **job,
                    struct hd__compiled **compiled)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(!hd__job_parse("job", text, strlen(text), overrides, n, job, &err) &&
                      !hd__job_resolve(*job, 0, &err) &&
                      !hd__exec_compile_with(*job, plugins, HD__COMPILE_WIDEN, compiled, &err),
                  "%s\n%s", err.message, text);
}

typedef void fault(struct hd_program *p, struct hd__instr *i);

/* Runs the job on its mesh with every instruction of the op changed, against one rank. */
static int32_t planted(const char *mesh, const char *strategies, const char *more, uint16_t op, fault *change,
                       struct hd__numerics *r, struct hd_error *err)
{
    static const char *const wide[] = {
        "device.kernels=reference",      "precision.compute=fp64", "mesh={dp: 1}",
        "precision.loss_scale=none",     "data.micro_batch=8",     "strategies.localsgd.outer_lr=1",
        "strategies.localsgd.momentum=0"}; /* as one replica has to have them */
    const char *text = text_of(mesh, strategies, more);
    int exact = strstr(more, "# exact") != NULL;
    struct hd__job *jobs[2];
    struct hd__compiled *one, *many;
    uint32_t changed = 0;
    int32_t rc;
    compile(text, wide, 1, &jobs[0], &many);
    compile(text, wide, exact ? 4 : strstr(strategies, "localsgd") ? 7 : 5, &jobs[1], &one);
    for (uint32_t s = 0; s < many->stage[0]->sections.count; s++)
        for (uint32_t k = 0; k < many->stage[0]->sections.at[s].code.count; k++) {
            struct hd__instr *i = &many->stage[0]->sections.at[s].code.at[k];
            if (i->op != op)
                continue;
            i->attrs = hd__attrs_new(many->stage[0], i->attrs);
            change(many->stage[0], i);
            changed++;
        }
    ck_assert_uint_gt(changed, 0);
    rc = hd__numerics(one, many, 3, 1, r, err);
    hd__exec_compiled_free(many);
    hd__exec_compiled_free(one);
    hd__job_free(jobs[0]);
    hd__job_free(jobs[1]);
    return rc;
}

static struct hd_attrs *attrs_of(struct hd__instr *i)
{
    return (struct hd_attrs *)(uintptr_t)i->attrs;
}

static void a_bit_more(struct hd_program *p, struct hd__instr *i)
{
    (void)p;
    attrs_of(i)->scale = nextafter(attrs_of(i)->scale, 1);
}

static void a_millionth_more(struct hd_program *p, struct hd__instr *i)
{
    (void)p;
    attrs_of(i)->scale *= 1 + 1e-6;
}

static void in_a_place(struct hd_program *p, struct hd__instr *i, uint32_t at, double factor)
{
    double *table = hd__arena_copy(&p->arena, i->attrs->table, i->attrs->n_table * sizeof *table);
    table[at] *= factor;
    attrs_of(i)->table = table;
}

static void exchanged(struct hd_program *p, struct hd__instr *i)
{
    double decay = i->attrs->table[0];
    in_a_place(p, i, 0, (1 - decay) / decay);
    in_a_place(p, i, 1, decay / (1 - decay));
}

/* Nesterov's step has three terms, momentum's two of which none is subtracted. */
static void without_lr(struct hd_program *p, struct hd__instr *i)
{
    if (i->attrs->n_table == 3)
        in_a_place(p, i, 2, 1 / 0.7);
}

static void dampened(struct hd_program *p, struct hd__instr *i)
{
    if (i->attrs->n_table == 2 && i->attrs->table[0] == 0.9)
        in_a_place(p, i, 1, 0.1);
}

static void summed(struct hd_program *p, struct hd__instr *i)
{
    (void)p;
    i->axes = 0; /* blend divides by the replicas of its axes */
}

static void unscaled(struct hd_program *p, struct hd__instr *i)
{
    (void)p;
    i->n_in = 3;
}

static void of_nothing(struct hd_program *p, struct hd__instr *i)
{
    (void)p;
    attrs_of(i)->n_ranges = 0;
}

START_TEST(faults_are_found)
{
    static const struct {
        const char *what, *mesh, *strategies, *more;
        uint16_t op;
        fault *change;
        const char *says;
    } rows[] = {
        {"another last bit", DP2, "{use: zero}", ADAMW "# exact\n", HD_OP_XENT_HEAD, a_bit_more, "the bits differ"},
        {"a gradient that is a millionth too large", DP2, "{use: zero}", ADAMW, HD_OP_XENT_HEAD, a_millionth_more,
         "gradient norm: the difference is 1e-06"},
        {"the same, where it travels in bf16", DP2, "{use: zero}", ADAMW "precision: {reduce: bf16}\n", HD_OP_XENT_HEAD,
         a_millionth_more, "gradient norm: the difference is 1e-06"},
        {"ema: factors exchanged, every 9 steps", DP2, "{use: zero}, {use: ema, decay: 0.9, every: 9}", ADAMW,
         HD_OP_BLEND, exchanged, "step 9, rank 0, average of "},
        {"localsgd: no lr on the momentum", DP2, "{use: zero}, {use: localsgd, every: 1}", SGD, HD_OP_BLEND, without_lr,
         "rank 0, parameter "},
        {"localsgd: dampened momentum", DP2, "{use: zero}, {use: localsgd, every: 1}", SGD, HD_OP_BLEND, dampened,
         "rank 0, parameter "},
        {"localsgd: the sum, not the mean", DP2, "{use: zero}, {use: localsgd, every: 1}", SGD, HD_OP_BLEND, summed,
         "rank 0, parameter "},
        {"a loss scale that reaches no seed", DP2, "{use: zero}", ADAMW "precision: {loss_scale: 64}\n",
         HD_OP_XENT_HEAD, unscaled, "gradient norm"},
        {"codes of nothing, behind a warm-up", DP2, "{use: zero, compress: {kind: int8, warmup: 6}}", ADAMW,
         HD_OP_ENCODE, of_nothing, "step 7, rank 0"},
    };
    struct hd_error err = HD_ERROR_INIT;
    struct hd__numerics r = {0};
    int32_t rc = planted(rows[_i].mesh, rows[_i].strategies, rows[_i].more, rows[_i].op, rows[_i].change, &r, &err);
    ck_assert_msg(!rc, "%s: %s", rows[_i].what, err.message);
    ck_assert_msg(strstr(r.failed, rows[_i].says), "%s: '%s'; the worst is %g, %s", rows[_i].what, r.failed, r.worst,
                  r.where);
}
END_TEST
enum { FAULTS = 9 };

static void other_dtype(struct hd_program *p, struct hd__instr *i)
{
    hd__tensor_at(p, i->out[0])->dtype = HD_F32;
}

/* A transport has one dtype for both sides. */
START_TEST(a_collective_converts_nothing)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__numerics r;
    int32_t rc = planted(DP2, "{use: zero, stage: 1}", ADAMW, HD_OP_REDUCE_SCATTER, other_dtype, &r, &err);
    ck_assert_int_eq(rc, HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "a collective converts nothing"), "%s", err.message);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("numerics");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, jobs_agree, 0, JOBS);
    tcase_add_loop_test(c, faults_are_found, 0, FAULTS);
    tcase_add_test(c, a_collective_converts_nothing);
    return suite_run_case("numerics", c);
}
