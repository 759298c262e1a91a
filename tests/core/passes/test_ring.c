/* A ring with a sliding window: steps whose keys no member's queries see are left out, and keys go no further than
 * they are seen. The sequence of 64 lies on four members in runs of 8. */
#include <stdlib.h>

#include "tests/suite.h"
#include "tests/support/compile.h"

static uint32_t count(const struct hd_program *p, uint16_t op)
{
    const hd__code *code = &hd__program_section((struct hd_program *)p, "micro_last")->code;
    uint32_t n = 0;
    for (uint32_t k = 0; k < code->count; k++)
        n += code->at[k].op == op;
    return n;
}

START_TEST(steps_that_nobody_sees_are_left_out)
{
    static const struct {
        int window;
        uint32_t tiles, shifts; /* of keys and values twice, of their gradients once */
    } rows[] = {{0, 4, 20}, {1, 1, 8}, {2, 3, 20}, {9, 3, 20}, {10, 4, 20}, {63, 4, 20}};
    for (size_t i = 0; i < 2 * HD__COUNT(rows); i++) {
        struct compiled c;
        char text[512];
        snprintf(text, sizeof text,
                 "precision: {compute: %s}\n"
                 "job: {name: ring, steps: 1}\nmesh: {cp: 4}\nstrategies: [{use: 3d, context: ring}, {use: zero}]\n"
                 "optimizer: {use: adamw, lr: 1e-3}\n"
                 "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 2, ffn: 8, vocab: 16, "
                 "sliding_window: %d}\n"
                 "data: {train: none, seq_len: 64, batch: 2}\n",
                 i < HD__COUNT(rows) ? "fp32" : "bf16", rows[i % HD__COUNT(rows)].window);
        compile_text(&c, text, NULL, 0, 4);
        ck_assert_uint_eq(count(c.c->stage[0], HD_OP_ATTENTION), rows[i % HD__COUNT(rows)].tiles);
        ck_assert_uint_eq(count(c.c->stage[0], HD_OP_ATTENTION_GRAD), rows[i % HD__COUNT(rows)].tiles);
        ck_assert_uint_eq(count(c.c->stage[0], HD_OP_ATTENTION_MERGE), rows[i % HD__COUNT(rows)].tiles - 1);
        ck_assert_uint_eq(count(c.c->stage[0], HD_OP_SHIFT), rows[i % HD__COUNT(rows)].shifts);
        compiled_free(&c);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("ring");
    tcase_add_test(c, steps_that_nobody_sees_are_left_out);
    return suite_run_case("compile-ring", c);
}
