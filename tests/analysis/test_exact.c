/* Exact sums: meshes, stages of sharding, pipelines and recomputation give the bits of one rank. All ranks are
 * emulated in fp64; the job on one rank has the same micro-batches. */
#include <check.h>

#include "analysis/numerics.h"
#include "tests/suite.h"
#include "tests/support/plugins.h"

static void emulate_steps(int32_t steps, const char *family, const char *deterministic, const char *const *overrides,
                          size_t n, struct hd__numerics *result)
{
    struct hd_error err = HD_ERROR_INIT;
    char text[1024];
    snprintf(
        text, sizeof text,
        "job: {name: exact, steps: 100, deterministic: %s}\n"
        "strategies: [{use: 3d}, {use: zero, stage: 0, bucket: 4000}]\n"
        "optimizer: {use: adamw, lr: 1e-2, weight_decay: 0.1, clip: 0.1}\n"
        "model: {use: transformer, family: %s, layers: 2, hidden: 16, heads: 4, ffn: 32, vocab: 32, max_seq_len: 8}\n"
        "data: {train: none, seq_len: 8, batch: 16, micro_batch: 2}\n",
        deterministic, family);
    ck_assert_msg(!hd__numerics_text(text, overrides, n, plugins, steps, 1, result, &err), "%s", err.message);
}

/* The second step begins with states that the first one left. */
static void emulate(const char *family, const char *deterministic, const char *const *overrides, size_t n,
                    struct hd__numerics *result)
{
    emulate_steps(2, family, deterministic, overrides, n, result);
}

/* Training is exact; the losses of an evaluation are added rank by rank. */
static int same_bits(const struct hd__numerics *r)
{
    return r->loss == 0 && r->norm == 0 && r->gradient == 0 && r->parameter == 0 && r->evaluation < 1e-12;
}

static const char *const data[] = {
    "mesh.dp=1", "mesh.dp=2", "mesh.dp={\"replicate\":2,\"shard\":1}", "mesh.dp={\"replicate\":2,\"shard\":2}",
    "mesh.dp=4", "mesh.dp=8"};

START_TEST(data_ranks_and_stages)
{
    static const char *const stages[] = {"strategies.zero.stage=0", "strategies.zero.stage=1",
                                         "strategies.zero.stage=2", "strategies.zero.stage=3"};
    static const char *const recompute[] = {"recompute=none", "recompute=selective", "recompute=full"};
    /* A factor that is no power of two rounds, on one rank, too. */
    static const char *const scales[] = {"precision.loss_scale=none", "precision.loss_scale=1000",
                                         "precision.loss_scale=dynamic"};
    for (size_t d = 0; d < HD__COUNT(data); d++)
        for (size_t r = 0; r < HD__COUNT(recompute); r++) {
            const char *overrides[] = {data[d], stages[_i], recompute[r], scales[r]};
            struct hd__numerics result;
            if (d == 2 && _i) /* refused: it would shard nothing */
                continue;
            emulate(r == 1 ? "gpt2" : "llama", "exact", overrides, HD__COUNT(overrides), &result);
            ck_assert_msg(same_bits(&result), "%s %s %s %s: %s differs by %g", data[d], stages[_i], recompute[r],
                          scales[r], result.where, result.worst);
        }
}
END_TEST

START_TEST(pipelines)
{
    static const char *const schedules[] = {"strategies.3d.schedule=gpipe", "strategies.3d.schedule=1f1b",
                                            "strategies.3d.schedule=zb-h1"};
    for (size_t s = 0; s < HD__COUNT(schedules); s++)
        for (size_t d = 0; d < HD__COUNT(data) - 1; d++) {
            if (d == 2) /* refused: it would shard nothing */
                continue;
            const char *overrides[] = {
                schedules[s], data[d], "mesh.pp=2", "model.tied=false", "strategies.zero.stage=2", "recompute=full"};
            struct hd__numerics result;
            emulate("gpt2", "exact", overrides, HD__COUNT(overrides), &result);
            ck_assert_msg(same_bits(&result), "%s %s: %s differs by %g", schedules[s], data[d], result.where,
                          result.worst);
        }
}
END_TEST

/* The head's gradient and the embedding's are one parameter's, and are made on two stages, or on one (zb-v). */
START_TEST(tied_embeddings)
{
    static const char *const stages[] = {"strategies.zero.stage=0", "strategies.zero.stage=1",
                                         "strategies.zero.stage=2", "strategies.zero.stage=3"};
    static const char *const schedules[] = {"strategies.3d.schedule=1f1b", "strategies.3d.schedule=interleaved",
                                            "strategies.3d.schedule=zb-v"};
    static const char *const ranks[] = {"mesh.dp=1", "mesh.dp=2", "mesh.dp={\"replicate\":2,\"shard\":2}"};
    for (size_t s = 0; s < HD__COUNT(schedules); s++)
        for (size_t d = 0; d < HD__COUNT(ranks); d++) {
            const char *overrides[] = {schedules[s], ranks[d],          stages[_i],
                                       "mesh.pp=2",  "model.tied=true", "model.layers=4"};
            struct hd__numerics result;
            emulate(s == 1 ? "gpt2" : "llama", "exact", overrides, HD__COUNT(overrides), &result);
            ck_assert_msg(same_bits(&result), "%s %s %s: %s differs by %g", schedules[s], ranks[d], stages[_i],
                          result.where, result.worst);
        }
}
END_TEST

START_TEST(a_hundred_steps)
{
    static const char *const rows[][4] = {
        {"mesh.pp=2", "mesh.dp=1", "strategies.zero.stage=0", "strategies.3d.schedule=zb-h1"},
        {"mesh.pp=2", "mesh.dp=2", "strategies.zero.stage=1", "strategies.3d.schedule=1f1b"},
        {"mesh.pp=1", "mesh.dp=4", "strategies.zero.stage=3", "strategies.3d.schedule=1f1b"}};
    struct hd__numerics result;
    emulate_steps(100, "gpt2", "exact", rows[_i], 4, &result);
    ck_assert_msg(same_bits(&result), "%s %s: %s differs by %g", rows[_i][0], rows[_i][1], result.where, result.worst);
}
END_TEST

/* These axes cut sums within a micro-batch: the last bits differ, and no more. */
START_TEST(other_axes)
{
    static const char *const axes[] = {"mesh.tp=2", "mesh.cp=2"};
    for (size_t i = 0; i < HD__COUNT(axes); i++) {
        const char *overrides[] = {axes[i], "mesh.dp=4", "strategies.zero.stage=3"};
        struct hd__numerics result;
        emulate("llama", "exact", overrides, HD__COUNT(overrides), &result);
        ck_assert_msg(result.worst < 1e-12, "%s: %s differs by %g", axes[i], result.where, result.worst);
    }
}
END_TEST

/* Else the tests above would hold for sums in any order. */
START_TEST(other_sums_are_not_exact)
{
    struct hd__numerics result;
    emulate("llama", "normal", data + 1, 1, &result);
    ck_assert(!same_bits(&result));
    ck_assert_double_lt(result.worst, 1e-12);
}
END_TEST

START_TEST(what_cannot_be_exact_is_refused)
{
    static const struct {
        const char *override[4];
        uint32_t n;
        const char *says;
    } rows[] = {
        {{"data.batch=12", "mesh.tp=1"}, 2, "must be a power of two"},
        {{"precision.reduce=bf16", "mesh.dp=2"}, 2, "precision.reduce must be precision.grad"},
        {{"precision.grad=bf16", "precision.reduce=bf16", "mesh.dp=2"}, 3, "precision.grad must be fp32: sums of 16"},
        {{"precision.grad=bf16"}, 1, "precision.grad must be fp32"},
        {{"precision.compute=bf16", "precision.master=bf16", "optimizer={use: adamw, rounding: stochastic}"},
         3,
         "optimizer.rounding must not be stochastic"},
        {{"mesh={pp: 2, dp: 2}", "strategies.3d.schedule=gpipe", "strategies.zero.stage=3"},
         3,
         "the weights of the head are gathered for the loss and again for its gradient"},
        {{"mesh.tp=3", "model.heads=6", "model.hidden=24", "model.vocab=33"}, 4, "3 ranks have copies of a parameter"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd__numerics result;
        const char *text =
            "job: {name: exact, steps: 3, deterministic: exact}\n"
            "model: {use: transformer, family: gpt2, layers: 2, hidden: 16, heads: 4, vocab: 32, max_seq_len: 8}\n"
            "strategies: [{use: 3d}, {use: zero}]\n"
            "optimizer: {use: adamw, lr: 1e-2}\n"
            "data: {train: none, seq_len: 8, batch: 16, micro_batch: 2}\n";
        ck_assert_int_eq(hd__numerics_text(text, rows[i].override, rows[i].n, plugins, 1, 1, &result, &err),
                         HD_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, "job.deterministic: exact: ") && strstr(err.message, rows[i].says), "%s",
                      err.message);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("exact");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, data_ranks_and_stages, 0, 4);
    tcase_add_test(c, pipelines);
    tcase_add_loop_test(c, tied_embeddings, 0, 4);
    tcase_add_loop_test(c, a_hundred_steps, 0, 3);
    tcase_add_test(c, other_axes);
    tcase_add_test(c, other_sums_are_not_exact);
    tcase_add_test(c, what_cannot_be_exact_is_refused);
    return suite_run_case("exact", c);
}
