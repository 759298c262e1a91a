/* Products of experts of which few slots hold tokens (attrs.share), on tensor cores: against the reference, with
 * more and fewer rows, columns and depth than a tile, with experts that have no token, a few, or all; sums, and
 * outputs in fp32. What lies in empty slots is not read, and their results are zeros. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>

static const struct {
    const char *name, *in, *out;
    uint32_t op;
    const char *dims;
    uint32_t dtype;
    int adds;
} cases[] = {
    {"rows", "bech ehf i:bec", "becf", HD_OP_GROUPED, "b=2 e=5 c=90 h=72 f=136 v=1", HD_BF16, 0},
    {"turned", "bech efh i:bec", "becf", HD_OP_GROUPED, "b=2 e=5 c=90 h=136 f=72 v=1", HD_BF16, 0},
    {"rows, fp16, added", "bech ehf i:bec", "becf", HD_OP_GROUPED, "b=1 e=4 c=150 h=200 f=8 v=1", HD_F16, 1},
    {"turned, to fp32", "bech efh i:bec", "f:becf", HD_OP_GROUPED, "b=3 e=4 c=20 h=8 f=264 v=1", HD_BF16, 0},
    {"turned, added to fp32", "bech efh i:bec", "f:becf", HD_OP_GROUPED, "b=1 e=4 c=33 h=80 f=40 v=1", HD_F16, 1},
    {"sums", "becf bech i:bec", "f:ehf", HD_OP_GROUPED_DW, "b=2 e=5 c=90 h=72 f=136 v=1", HD_BF16, 0},
    {"sums, turned", "becf bech i:bec", "f:efh", HD_OP_GROUPED_DW, "b=2 e=5 c=90 h=72 f=136 v=1", HD_BF16, 1},
    {"sums, fp16, narrow", "becf bech i:bec", "ehf", HD_OP_GROUPED_DW, "b=1 e=4 c=140 h=8 f=16 v=1", HD_F16, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Expert 0 has no token, 1 has one in every slot, the others in some. Empty slots hold NaN. */
static void spread(struct h_instr *i, uint64_t seed)
{
    const struct hd_operand *token = &i->in[2];
    int64_t experts = token->extent[1], slots = token->extent[2];
    for (int64_t at = 0; at < hd_operand_count(token); at++) {
        int64_t e = at / slots % experts;
        int there = e == 1 || (e > 1 && h_random(&seed) > 0.4);
        h_set(token, at, there ? (double)(at % slots + 1) : 0);
        for (int n = 0; n < 2 && !there; n++)
            for (int64_t j = 0; i->in[n].ndim == 4 && j < i->in[n].extent[3]; j++)
                h_set(&i->in[n], at * i->in[n].extent[3] + j, NAN);
    }
}

static struct h_instr *made(int n, double share)
{
    struct h_case c = {cases[n].name, cases[n].op,   cases[n].in,
                       cases[n].out,  cases[n].dims, {.share = share, .flags = cases[n].adds ? HD_ATTR_ACCUMULATE : 0}};
    struct h_instr *i = h_make(&c, cases[n].dtype, 17);
    spread(i, 5);
    return i;
}

/* Twice, each time in another order of threads and blocks. */
START_TEST(few_slots_are_near_the_reference)
{
    struct h_device *d = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *a = made(_i, 0.25), *b = made(_i, 0.25), *want = h_as(a, HD_F64);
    h_run(d, a);
    h_run(d, b);
    h_run(plain, want);
    h_near(cases[_i].name, a, want, a->out[0].dtype == HD_F32 ? 1e-5 : cases[_i].dtype == HD_BF16 ? 5e-3 : 1e-3);
    h_equal(cases[_i].name, a, b);
    h_free(a);
    h_free(b);
    h_free(want);
    h_close(plain);
    h_close(d);
}
END_TEST

/* By cuBLASLt with zeros in empty slots. */
START_TEST(many_slots_are_the_same_product)
{
    struct h_device *d = h_open(1, H_FAST);
    struct h_instr *few = made(_i, 0.25), *many = made(_i, 0.9);
    h_run(d, few);
    h_run(d, many);
    h_near(cases[_i].name, few, many, few->out[0].dtype == HD_F32 ? 1e-5 : cases[_i].dtype == HD_BF16 ? 5e-3 : 1e-3);
    h_free(few);
    h_free(many);
    h_close(d);
}
END_TEST

/* What the kernel is not for goes the other way: widths, dtypes, alignment. */
START_TEST(others_are_multiplied_whole)
{
    static const struct {
        const char *dims;
        uint32_t dtype;
    } others[] = {{"b=1 e=3 c=9 h=12 f=16 v=1", HD_BF16},
                  {"b=1 e=3 c=9 h=16 f=16 v=1", HD_F32},
                  {"b=1 e=3 c=9 h=16 f=20 v=1", HD_F16}};
    struct h_device *d = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    for (size_t n = 0; n < sizeof others / sizeof others[0]; n++) {
        struct h_case c = {"others", HD_OP_GROUPED, "bech ehf i:bec", "becf", others[n].dims, {.share = 0.2}};
        struct h_instr *i = h_make(&c, others[n].dtype, 3), *want;
        spread(i, 9);
        want = h_as(i, HD_F64);
        h_run(d, i);
        h_run(plain, want);
        h_near(others[n].dims, i, want, others[n].dtype == HD_F32 ? 1e-6 : 5e-3);
        h_free(i);
        h_free(want);
    }
    h_close(plain);
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("grouped");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, few_slots_are_near_the_reference, 0, CASES);
    tcase_add_loop_test(t, many_slots_are_the_same_product, 0, CASES);
    tcase_add_test(t, others_are_multiplied_whole);
    return suite_run_case("grouped", t);
}
