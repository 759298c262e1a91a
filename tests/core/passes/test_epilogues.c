/* What stands behind products, in whole jobs: where it is made with them, what stays, and the numbers with and
 * without. */
#include <stdlib.h>

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

static void job_text(const char *deterministic, const char *more, char out[2048])
{
    snprintf(
        out, 2048,
        "job: {name: epilogues, steps: 2, deterministic: %s}\n"
        "optimizer: {use: adamw, lr: 1e-2, weight_decay: 0.1, clip: 1.0}\n"
        "model: {use: transformer, family: gpt2, layers: 2, hidden: 16, heads: 4, ffn: 24, vocab: 32, max_seq_len: 8}\n"
        "precision: {compute: fp64}\ndevice: {use: cpu, kernels: reference, threads: 1}\n%s",
        deterministic, more);
}

#define DATA(micro_batch) "data: {train: none, seq_len: 8, batch: 8, micro_batch: " micro_batch "}\n"

static uint32_t count(const struct hd_program *p, const char *section, uint16_t op, uint32_t outputs)
{
    const struct hd__code_section *s = hd__program_section((struct hd_program *)p, section);
    uint32_t n = 0;
    for (uint32_t k = 0; s && k < s->code.count; k++)
        n += s->code.at[k].op == op && (!outputs || s->code.at[k].n_out == outputs);
    return n;
}

/* Two layers: q, k, v, the output and the second product of the feed-forward have a bias, the first a GELU as well. */
START_TEST(gpt2_has_no_bias_and_no_gelu_of_its_own)
{
    static const uint16_t gone[] = {HD_OP_BIAS, HD_OP_BIAS_DW, HD_OP_GELU, HD_OP_GELU_GRAD};
    struct compiled c;
    char text[2048];
    job_text("normal", DATA("8"), text);
    compile_flags(&c, text, HD__COMPILE_FUSE(HD__FUSE_EPILOGUES));
    const struct hd_program *p = c.c->stage[0];
    for (size_t i = 0; i < HD__COUNT(gone); i++) {
        ck_assert_uint_eq(count(p, "micro_last", gone[i], 0), 0);
        ck_assert_uint_eq(count(p, "eval", gone[i], 0), 0);
    }
    ck_assert_uint_eq(count(p, "micro_last", HD_OP_EINSUM_BIAS, 1), 2 * 5);
    ck_assert_uint_eq(count(p, "micro_last", HD_OP_EINSUM_GELU, 2), 2);
    ck_assert_uint_eq(count(p, "micro_last", HD_OP_EINSUM_GELU_GRAD, 1), 2);
    ck_assert_uint_eq(count(p, "micro_last", HD_OP_EINSUM_BIAS_DW, 2), 2 * 6);
    ck_assert_uint_eq(count(p, "eval", HD_OP_EINSUM_GELU, 1), 2); /* nobody reads what GELU is of */
    ck_assert_uint_eq(count(p, "eval", HD_OP_EINSUM_BIAS, 1), 2 * 5);
    compiled_free(&c);
}
END_TEST

/* Without the flag, which device cpu does not have. */
START_TEST(only_where_the_device_has_them)
{
    static const uint16_t made[] = {HD_OP_EINSUM_BIAS, HD_OP_EINSUM_GELU, HD_OP_EINSUM_GELU_GRAD, HD_OP_EINSUM_BIAS_DW};
    struct compiled c;
    char text[2048];
    job_text("normal", DATA("8"), text);
    compile_flags(&c, text, 0);
    for (size_t i = 0; i < HD__COUNT(made); i++)
        ck_assert_uint_eq(count(c.c->stage[0], "micro_last", made[i], 0), 0);
    ck_assert_uint_eq(count(c.c->stage[0], "micro_last", HD_OP_BIAS, 0), 2 * 6);
    compiled_free(&c);
}
END_TEST

/* A product whose sum is owed is added up before its bias: it stays alone. */
START_TEST(sums_over_ranks_come_before_the_bias)
{
    struct compiled c;
    char text[2048];
    job_text("normal", "mesh: {tp: 2}\nstrategies: [{use: 3d}, {use: zero, stage: 0}]\n" DATA("8"), text);
    compile_flags(&c, text, HD__COMPILE_FUSE(HD__FUSE_EPILOGUES));
    ck_assert_uint_eq(count(c.c->stage[0], "micro_last", HD_OP_EINSUM_BIAS, 1), 2 * 3);
    ck_assert_uint_eq(count(c.c->stage[0], "micro_last", HD_OP_BIAS, 0), 2 * 2);
    ck_assert_uint_eq(count(c.c->stage[0], "micro_last", HD_OP_EINSUM_GELU, 2), 2);
    compiled_free(&c);
}
END_TEST

/* ---- they train like the instructions that they stand for */

static const struct {
    const char *deterministic, *more;
} trained[] = {
    {"normal", DATA("4")},
    {"normal", "recompute: selective\n" DATA("2")},
    {"normal", "mesh: {dp: 2, tp: 2}\nstrategies: [{use: 3d, sequence_parallel: true}, {use: zero, stage: 3}]\n"
               "recompute: full\n" DATA("2")},
    {"normal", "mesh: {pp: 2}\nstrategies: [{use: 3d, schedule: zb-h1}, {use: zero, stage: 0}]\n" DATA("2")},
    {"normal", "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 2, bucket: 2000}]\n" DATA("1")},
    {"exact", "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 1}]\n" DATA("1")},
};

START_TEST(numbers_are_those_of_the_parts)
{
    char text[2048], plain[2048];
    struct compiled one, many;
    struct hd__numerics result;
    struct hd_error err = HD_ERROR_INIT;
    uint32_t made = 0;
    job_text(trained[_i].deterministic, trained[_i].more, text);
    job_text(trained[_i].deterministic, DATA("8"), plain);
    compile_flags(&one, plain, 0);
    compile_flags(&many, text, HD__COMPILE_FUSE(HD__FUSE_EPILOGUES));
    for (int32_t s = 0; s < many.c->n_stages; s++)
        for (uint32_t k = 0; k < many.c->stage[s]->sections.count; k++)
            made += count(many.c->stage[s], many.c->stage[s]->sections.at[k].name, HD_OP_EINSUM_GELU, 0);
    ck_assert_uint_gt(made, 0);
    ck_assert_msg(!hd__numerics(one.c, many.c, 2, 7, &result, &err), "%s\n%s", err.message, text);
    ck_assert_msg(result.worst < 1e-12, "%s differs by %g\n%s", result.where, result.worst, text);
    compiled_free(&one);
    compiled_free(&many);
}
END_TEST

START_TEST(flops_are_those_of_the_parts)
{
    double flops[2];
    char text[2048];
    job_text("normal", DATA("8"), text);
    for (uint32_t fused = 0; fused < 2; fused++) {
        struct compiled c;
        compile_flags(&c, text, fused ? HD__COMPILE_FUSE(HD__FUSE_EPILOGUES) : 0);
        flops[fused] = flops_of(&c, "micro_last");
        compiled_free(&c);
    }
    ck_assert_double_eq(flops[0], flops[1]);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("epilogues");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, gpt2_has_no_bias_and_no_gelu_of_its_own);
    tcase_add_test(c, only_where_the_device_has_them);
    tcase_add_test(c, sums_over_ranks_come_before_the_bias);
    tcase_add_loop_test(c, numbers_are_those_of_the_parts, 0, (int)HD__COUNT(trained));
    tcase_add_test(c, flops_are_those_of_the_parts);
    return suite_run_case("epilogues", c);
}
