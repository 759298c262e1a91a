/* Sums beside norms, in whole jobs: where they are made with them, what stays, and the numbers with and without. */
#include "analysis/numerics.h"
#include "core/program/fusion.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

static void job_text(const char *family, const char *deterministic, const char *more, char out[2048])
{
    snprintf(
        out, 2048,
        "job: {name: norms, steps: 2, deterministic: %s}\n"
        "optimizer: {use: adamw, lr: 1e-2, weight_decay: 0.1, clip: 1.0}\n"
        "model: {use: transformer, family: %s, layers: 2, hidden: 16, heads: 4, ffn: 24, vocab: 32, max_seq_len: 8}\n"
        "precision: {compute: fp64}\ndevice: {use: cpu, kernels: reference, threads: 1}\n%s",
        deterministic, family, more);
}

#define DATA(micro_batch) "data: {train: none, seq_len: 8, batch: 8, micro_batch: " micro_batch "}\n"

static uint32_t count(const struct hd_program *p, const char *section, uint16_t op)
{
    const struct hd__code_section *s = hd__program_section((struct hd_program *)p, section);
    uint32_t n = 0;
    for (uint32_t k = 0; s && k < s->code.count; k++)
        n += s->code.at[k].op == op;
    return n;
}

static const struct {
    const char *family;
    uint16_t norm, sum_norm, dx, dw, grad_sum;
} families[] = {
    {"llama", HD_OP_RMSNORM, HD_OP_ADD_RMSNORM, HD_OP_RMSNORM_DX, HD_OP_RMSNORM_DW, HD_OP_RMSNORM_GRAD_ADD},
    {"gpt2", HD_OP_LAYERNORM, HD_OP_ADD_LAYERNORM, HD_OP_LAYERNORM_DX, HD_OP_LAYERNORM_DW, HD_OP_LAYERNORM_GRAD_ADD},
};

/* Two layers have five norms: the first is of what is embedded, and behind the gradient of the last is no sum. */
START_TEST(all_but_the_ends_have_their_sum)
{
    struct compiled c;
    char text[2048];
    job_text(families[_i].family, "normal", DATA("8"), text);
    compile_flags(&c, text, 0);
    const struct hd_program *p = c.c->stage[0];
    ck_assert_uint_eq(count(p, "micro_last", families[_i].norm), 1);
    ck_assert_uint_eq(count(p, "micro_last", families[_i].sum_norm), 4);
    ck_assert_uint_eq(count(p, "micro_last", families[_i].dx), 1);
    ck_assert_uint_eq(count(p, "micro_last", families[_i].dw), 1);
    ck_assert_uint_eq(count(p, "micro_last", families[_i].grad_sum), 4);
    ck_assert_uint_eq(count(p, "micro_last", HD_OP_ADD), 0);
    ck_assert_uint_eq(count(p, "eval", families[_i].sum_norm), 4);
    compiled_free(&c);
}
END_TEST

START_TEST(only_where_the_device_has_them)
{
    struct compiled c;
    char text[2048];
    job_text(families[_i].family, "normal", DATA("8"), text);
    compile_flags(&c, text, HD__COMPILE_NO_FUSE(HD__FUSE_NORM_SUMS));
    const struct hd_program *p = c.c->stage[0];
    ck_assert_uint_eq(count(p, "micro_last", families[_i].norm), 5);
    ck_assert_uint_eq(count(p, "micro_last", families[_i].dx), 5);
    ck_assert_uint_eq(count(p, "micro_last", families[_i].dw), 5);
    ck_assert_uint_eq(count(p, "micro_last", HD_OP_ADD), 4 + 4);
    compiled_free(&c);
}
END_TEST

/* What a layer makes is summed over the ranks before it joins the stream: in between is no norm. */
START_TEST(sums_over_ranks_come_before_the_stream)
{
    struct compiled c;
    char text[2048];
    job_text(families[_i].family, "normal", "mesh: {tp: 2}\nstrategies: [{use: 3d}, {use: zero, stage: 0}]\n" DATA("8"),
             text);
    compile_flags(&c, text, 0);
    ck_assert_uint_eq(count(c.c->stage[0], "micro_last", families[_i].sum_norm), 4);
    ck_assert_uint_eq(count(c.c->stage[0], "micro_last", families[_i].grad_sum), 4);
    compiled_free(&c);
}
END_TEST

/* A layer a stage: what is sent is a sum without its norm, what comes is normed without a sum. */
START_TEST(a_stage_sends_sums)
{
    struct compiled c;
    char text[2048];
    job_text(families[_i].family, "normal",
             "mesh: {pp: 2}\nstrategies: [{use: 3d, schedule: 1f1b}, {use: zero, stage: 0}]\n" DATA("8"), text);
    compile_flags(&c, text, 0);
    ck_assert_uint_eq(count(c.c->stage[0], "step", families[_i].sum_norm), 1);
    ck_assert_uint_eq(count(c.c->stage[0], "step", HD_OP_ADD), 1);
    ck_assert_uint_eq(count(c.c->stage[0], "step", families[_i].grad_sum), 2);
    ck_assert_uint_eq(count(c.c->stage[1], "step", families[_i].norm), 1);
    ck_assert_uint_eq(count(c.c->stage[1], "step", families[_i].sum_norm), 2);
    ck_assert_uint_eq(count(c.c->stage[1], "step", families[_i].grad_sum), 2);
    compiled_free(&c);
}
END_TEST

/* ---- they train like the instructions that they stand for */

static void compare(const char *plain, const char *text, struct hd__numerics *result)
{
    struct compiled one, many;
    struct hd_error err = HD_ERROR_INIT;
    compile_flags(&one, plain, HD__COMPILE_NO_FUSE(HD__FUSE_NORM_SUMS));
    compile_flags(&many, text, 0);
    ck_assert_msg(!hd__numerics(one.c, many.c, 2, 7, result, &err), "%s\n%s", err.message, text);
    compiled_free(&one);
    compiled_free(&many);
}

START_TEST(bits_are_those_of_the_parts)
{
    char text[2048];
    struct hd__numerics result;
    job_text(families[_i].family, "normal", "recompute: selective\n" DATA("2"), text);
    compare(text, text, &result);
    ck_assert_msg(result.worst == 0, "%s differs by %g\n%s", result.where, result.worst, text);
}
END_TEST

static const struct {
    const char *family, *deterministic, *more;
} trained[] = {
    {"llama", "normal", DATA("4")},
    {"gpt2", "normal", "recompute: full\n" DATA("2")},
    {"llama", "normal",
     "mesh: {dp: 2, tp: 2}\nstrategies: [{use: 3d, sequence_parallel: true}, {use: zero, stage: 3}]\n"
     "recompute: selective\n" DATA("2")},
    {"llama", "normal", "mesh: {pp: 2}\nstrategies: [{use: 3d, schedule: zb-h1}, {use: zero, stage: 0}]\n" DATA("2")},
    {"gpt2", "normal", "mesh: {cp: 2}\nstrategies: [{use: 3d}, {use: zero, stage: 2}]\n" DATA("4")},
    {"gpt2", "exact", "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 1}]\n" DATA("1")},
};

START_TEST(numbers_are_those_of_the_parts)
{
    char text[2048], plain[2048];
    struct hd__numerics result;
    job_text(trained[_i].family, trained[_i].deterministic, trained[_i].more, text);
    job_text(trained[_i].family, trained[_i].deterministic, DATA("8"), plain);
    compare(plain, text, &result);
    ck_assert_msg(result.worst < 1e-12, "%s differs by %g\n%s", result.where, result.worst, text);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("norms");
    int n = (int)HD__COUNT(families);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, all_but_the_ends_have_their_sum, 0, n);
    tcase_add_loop_test(c, only_where_the_device_has_them, 0, n);
    tcase_add_loop_test(c, sums_over_ranks_come_before_the_stream, 0, n);
    tcase_add_loop_test(c, a_stage_sends_sums, 0, n);
    tcase_add_loop_test(c, bits_are_those_of_the_parts, 0, n);
    tcase_add_loop_test(c, numbers_are_those_of_the_parts, 0, (int)HD__COUNT(trained));
    return suite_run_case("norms", c);
}
