/* Stochastic rounding in whole jobs: which optimizers ask for it, the seed of each buffer, and refusals. */
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

#define JOB(master, ranks)                                                                                            \
    "job: {name: rounding, steps: 2}\nmesh: {dp: " ranks "}\nstrategies: [{use: zero, stage: 3}]\n"                   \
    "optimizer: {use: adamw, rounding: stochastic, rounding_seed: 5}\nprecision: {compute: bf16, master: " master     \
    "}\n"                                                                                                             \
    "model: {use: transformer, family: llama, layers: 2, hidden: 16, heads: 4, ffn: 24, vocab: 32, max_seq_len: 8}\n" \
    "data: {train: none, seq_len: 8, batch: 8, micro_batch: 2}\n"

enum { MOST = 64 };

/* The seeds of all updates, in order. */
static uint32_t seeds_of(const char *text, uint32_t *seeds)
{
    struct compiled c;
    uint32_t n = 0;
    compile_flags(&c, text, 0);
    const hd__code *code = &hd__program_section(c.c->stage[0], "update")->code;
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op == HD_OP_ADAMW) {
            ck_assert(n < MOST && code->at[k].attrs->flags & HD_ATTR_STOCHASTIC);
            seeds[n++] = code->at[k].attrs->index;
        }
    compiled_free(&c);
    return n;
}

START_TEST(buffers_draw_lots_of_their_own)
{
    uint32_t one[MOST], two[MOST], n = seeds_of(JOB("bf16", "1"), one);
    ck_assert_uint_gt(n, 1);
    ck_assert_uint_eq(seeds_of(JOB("bf16", "2"), two), n);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(one[i], two[i]); /* however many ranks share them */
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(one[i], one[j]);
    }
}
END_TEST

START_TEST(weights_in_fp32_are_not_rounded)
{
    struct compiled c;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(try_compile_text(&c, JOB("fp32", "1"), NULL, 0, 0, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "precision.master=bf16") != NULL, "%s", err.message);
    compiled_free(&c);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("rounding");
    tcase_add_test(c, buffers_draw_lots_of_their_own);
    tcase_add_test(c, weights_in_fp32_are_not_rounded);
    return suite_run_case("rounding", c);
}
