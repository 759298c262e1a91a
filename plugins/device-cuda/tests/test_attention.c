/* Attention on the emulated device against the reference on the CPU: the kernels for tensor cores for each of their
 * head sizes, with lengths that are no multiple of a tile, groups, windows, sequences in zig-zag order and outputs of
 * another dtype; the plain ones in fp64, their gradient also by finite differences. Threads run in another order each
 * time (plugins/device-cuda/tests/emulate), and the bits stay. The whole suites of tests/device take minutes:
 * tests/long/cuda-attention.sh. */
#include "conformance/device/harness.h"
#include "plugins/device-cuda/attention/attention_autotune.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

#define FORWARD HD_OP_ATTENTION, "bskgd btkd btkd", "bskgd f:bskg"
#define BACKWARD HD_OP_ATTENTION_GRAD, "bskgd btkd btkd bskgd f:bskg bskgd", "bskgd btkd btkd"
/* As a ring has it: outputs in fp32. */
#define FORWARD_WIDE HD_OP_ATTENTION, "bskgd btkd btkd", "f:bskgd f:bskg"
#define BACKWARD_WIDE HD_OP_ATTENTION_GRAD, "bskgd btkd btkd bskgd f:bskg bskgd", "f:bskgd f:btkd f:btkd"

/* Of documents, whose queries lie with their keys. */
#define FORWARD_DOCUMENTS HD_OP_ATTENTION, "bskgd btkd btkd n:bs", "bskgd f:bskg"
#define BACKWARD_DOCUMENTS HD_OP_ATTENTION_GRAD, "bskgd btkd btkd bskgd f:bskg bskgd n:bs", "bskgd btkd btkd"

/* Distances in units of the norm: operands are the same numbers, so what differs is weights and slopes in 16 bits
 * (bf16: 2^-9 a number, fp16: 2^-12) and the rounding of results. */
static const double near_bf16 = 1e-2, near_f16 = 2e-3;

static const struct {
    const char *name, *dims;
    uint32_t dtype;
    int64_t window;
    int wide;
    int64_t parts, length; /* zig-zag */
    uint32_t mask;         /* HD_ATTR_NOT_CAUSAL */
    int64_t prefix;
    int documents;
} shapes[] = {
    {"head size 64, groups", "b=1 s=135 t=135 k=1 g=2 d=64", HD_BF16, 0, 0, 0, 0},
    {"head size 96", "b=1 s=70 t=70 k=2 g=1 d=96", HD_BF16, 0, 0, 0, 0},
    {"head size 128", "b=1 s=67 t=67 k=1 g=2 d=128", HD_BF16, 0, 0, 0, 0},
    {"head size 128, fp16", "b=1 s=33 t=33 k=1 g=1 d=128", HD_F16, 0, 0, 0, 0},
    {"a part of a tile's columns, fp16", "b=2 s=29 t=29 k=1 g=3 d=24", HD_F16, 0, 0, 0, 0},
    {"a window across tiles", "b=1 s=200 t=200 k=1 g=1 d=40", HD_BF16, 110, 0, 0, 0},
    {"queries after their keys", "b=1 s=40@100 t=140 k=1 g=1 d=64", HD_BF16, 0, 0, 0, 0},
    {"queries before their keys", "b=1 s=20 t=20@10 k=1 g=1 d=64", HD_BF16, 0, 1, 0, 0},
    {"queries before all keys", "b=1 s=70 t=70@70 k=1 g=1 d=32", HD_BF16, 0, 1, 0, 0},
    {"a window that ends before all queries", "b=1 s=70@140 t=70 k=1 g=1 d=64", HD_BF16, 10, 1, 0, 0},
    {"the same of head size 128", "b=1 s=70@140 t=70 k=1 g=1 d=128", HD_F16, 10, 1, 0, 0},
    {"a window that some queries see through", "b=1 s=200@70 t=70 k=1 g=2 d=64", HD_BF16, 30, 1, 0, 0},
    {"the second part of a ring on the first", "b=1 s=70@70 t=70 k=1 g=1 d=32", HD_BF16, 0, 1, 2, 140},
    {"the first part of a ring on the second", "b=1 s=70 t=70@70 k=1 g=1 d=32", HD_BF16, 0, 1, 2, 140},
    {"no mask", "b=1 s=135 t=135 k=1 g=2 d=64", HD_BF16, 0, 0, 0, 0, HD_ATTR_NOT_CAUSAL},
    {"a window on both sides", "b=1 s=200 t=200 k=1 g=1 d=40", HD_BF16, 60, 0, 0, 0, HD_ATTR_NOT_CAUSAL},
    {"no mask, part of a ring", "b=1 s=70 t=70@70 k=1 g=1 d=32", HD_BF16, 0, 1, 2, 140, HD_ATTR_NOT_CAUSAL},
    {"a prefix", "b=1 s=200 t=200 k=1 g=1 d=128", HD_F16, 0, 0, 0, 0, 0, 140},
    {"documents", "b=2 s=135 t=135 k=1 g=2 d=64", HD_BF16, 0, 0, 0, 0, 0, 0, 1},
    {"documents and a window", "b=2 s=200 t=200 k=1 g=1 d=128", HD_F16, 60, 0, 0, 0, 0, 0, 1},
    {"documents, part of a ring on another", "b=2 s=70@70 t=70 k=1 g=1 d=32", HD_BF16, 0, 0, 2, 140, 0, 0, 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* The device option: whose kernels. */
static int64_t attention = CU_ATTENTION_OWN;

static struct h_device *open_asked(void)
{
    h_log[0] = 0;
    return h_open_with(1, H_FAST, "attention", attention);
}

static double allowed(int i)
{
    return shapes[i].dtype == HD_BF16 ? near_bf16 : near_f16;
}

static struct h_case shape_case(int i, int back)
{
    struct h_case f = {shapes[i].name, FORWARD, shapes[i].dims, {0}},
                  b = {shapes[i].name, BACKWARD, shapes[i].dims, {0}};
    struct h_case fw = {shapes[i].name, FORWARD_WIDE, shapes[i].dims, {0}},
                  bw = {shapes[i].name, BACKWARD_WIDE, shapes[i].dims, {0}};
    if (shapes[i].documents) {
        f = (struct h_case){shapes[i].name, FORWARD_DOCUMENTS, shapes[i].dims, {0}};
        b = (struct h_case){shapes[i].name, BACKWARD_DOCUMENTS, shapes[i].dims, {0}};
    }
    struct h_case c = shapes[i].wide ? (back ? bw : fw) : back ? b : f;
    c.attrs = (struct hd_attrs){.scale = 0.3,
                                .window = shapes[i].window,
                                .zigzag_parts = shapes[i].parts,
                                .zigzag_length = shapes[i].length,
                                .flags = shapes[i].mask,
                                .top_k = shapes[i].prefix};
    return c;
}

/* lse is -inf in both where a query sees nothing. */
static double distance(const struct hd_operand *got, const struct hd_operand *want)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < hd_operand_count(want); i++) {
        double a = h_get(got, i), b = h_get(want, i);
        if (isinf(b) && a == b)
            continue;
        sum += (a - b) * (a - b);
        all += b * b;
    }
    return all > 0 ? sqrt(sum / all) : sqrt(sum);
}

static void check_near(const char *name, const struct h_instr *got, const struct h_instr *want, double tolerance)
{
    for (uint32_t o = 0; o < want->d.n_out; o++) {
        double far = distance(&got->out[o], &want->out[o]);
        ck_assert_msg(far <= tolerance, "%s, output %u: off by %g of the norm, at most %g is allowed", name, o, far,
                      tolerance);
    }
}

/* Twice on the emulated device, each time in another order of threads and blocks: the same bits, near `want`. */
static void check_instr(const char *name, struct h_instr *a, struct h_instr *b, double tolerance)
{
    struct h_device *d = open_asked(), *plain = h_open(1, H_REFERENCE);
    struct h_instr *want = h_as(a, HD_F64);
    int64_t size = a->in[0].extent[a->in[0].ndim - 1];
    int wide = a->in[0].dtype == HD_F64 || (size > 64 && size <= 96);
    h_warnings = 0;
    h_run(d, a);
    h_run(d, b);
    h_run(plain, want);
    ck_assert_msg(h_warnings == 0, "%s: %s", name, h_last_log);
    ck_assert_msg((attention == CU_ATTENTION_WGMMA && !wide) == (strstr(h_log, "by wgmma is used") != NULL), "%s: %s",
                  name, h_log);
    check_near(name, a, want, tolerance);
    h_equal(name, a, b);
    h_free(a);
    h_free(b);
    h_free(want);
    h_close(plain);
    h_close(d);
}

START_TEST(forward_is_near_its_reference)
{
    struct h_case c = shape_case(_i, 0);
    check_instr(c.name, h_make(&c, shapes[_i].dtype, 3), h_make(&c, shapes[_i].dtype, 3), allowed(_i));
}
END_TEST

/* A gradient instruction with the o and lse of the reference's forward. */
static struct h_instr *backward_made(int i)
{
    struct h_case f = shape_case(i, 0), c = shape_case(i, 1);
    struct h_device *plain = h_open(1, H_REFERENCE);
    struct h_instr *back = h_make(&c, shapes[i].dtype, 11), *forward = h_make(&f, shapes[i].dtype, 12);
    for (int j = 0; j < 3; j++)
        h_copy(&forward->in[j], &back->in[j]);
    if (shapes[i].documents)
        h_copy(&forward->in[3], &back->in[6]);
    h_run(plain, forward);
    h_copy(&back->in[3], &forward->out[0]);
    h_copy(&back->in[4], &forward->out[1]);
    h_free(forward);
    h_close(plain);
    return back;
}

START_TEST(backward_is_near_its_reference)
{
    struct h_instr *a = backward_made(_i), *b = backward_made(_i);
    if (_i % 2)
        a->d.attrs.flags = b->d.attrs.flags = a->d.attrs.flags | HD_ATTR_ACCUMULATE;
    check_instr(shapes[_i].name, a, b, allowed(_i));
}
END_TEST

/* Scores up to 300: maxima move from tile to tile, nothing overflows. fp32 sums, so their rounding is what differs. */
START_TEST(large_scores_do_not_overflow)
{
    struct h_case c = {"large scores", FORWARD, "b=1 s=200 t=200 k=1 g=1 d=8", {.scale = 60}};
    check_instr(c.name, h_make(&c, HD_BF16, 4), h_make(&c, HD_BF16, 4), near_bf16);
}
END_TEST

/* By the clock one of two is taken, whose bits differ: with deterministic: exact none is tried. Alone nothing needs
 * to be. */
START_TEST(a_clock_decides_nothing_exact)
{
    struct h_case c = {"exact", FORWARD, "b=1 s=40 t=40 k=1 g=1 d=64", {.scale = 0.3}},
                  one = {"one query", FORWARD, "b=1 s=1 t=1 k=1 g=1 d=64", {.scale = 0.3}};
    for (int exact = 0; exact < 3; exact++) {
        struct h_device *d = h_open_with(1, H_FAST, "attention", CU_ATTENTION_AUTO);
        struct h_instr *i = h_make(exact == 2 ? &one : &c, HD_BF16, 9);
        h_log[0] = 0;
        i->d.flags |= exact == 1 ? HD_INSTR_EXACT : 0;
        h_run(d, i);
        ck_assert_msg(!exact == (strstr(h_log, " ms, ours ") != NULL), "%d: %s", exact, h_log);
        h_free(i);
        h_close(d);
    }
}
END_TEST

/* ---- the plain kernels */

static const struct h_case plain_cases[] = {
    {"plain", BACKWARD, "b=1 s=9 t=9 k=2 g=2 d=5", {.scale = 0.7, .window = 6}},
    {"plain, capped, no mask",
     BACKWARD,
     "b=1 s=9 t=9 k=2 g=2 d=5",
     {.scale = 0.7, .clip = 0.9, .flags = HD_ATTR_NOT_CAUSAL}},
    {"plain, documents", BACKWARD_DOCUMENTS, "b=2 s=19 t=19 k=2 g=2 d=5", {.scale = 0.7}},
};
enum { PLAIN_CASES = sizeof plain_cases / sizeof plain_cases[0] };

static struct h_case plain_forward(int i)
{
    struct h_case f = {"plain", FORWARD, plain_cases[i].dims, plain_cases[i].attrs},
                  n = {"plain", FORWARD_DOCUMENTS, plain_cases[i].dims, plain_cases[i].attrs};
    return strstr(plain_cases[i].in, "n:bs") ? n : f;
}

START_TEST(plain_is_its_reference_in_fp64)
{
    struct h_case f = plain_forward(_i);
    check_instr("plain forward", h_make(&f, HD_F64, 5), h_make(&f, HD_F64, 5), 1e-13);
    check_instr("plain backward", h_make(&plain_cases[_i], HD_F64, 5), h_make(&plain_cases[_i], HD_F64, 5), 1e-13);
}
END_TEST

/* sum(o do) of attention as the emulated device computes it. */
static double weighted(struct h_device *d, struct h_instr *forward, const struct hd_operand *grad)
{
    double sum = 0;
    h_run(d, forward);
    for (int64_t i = 0; i < hd_operand_count(grad); i++)
        sum += h_get(&forward->out[0], i) * h_get(grad, i);
    return sum;
}

START_TEST(plain_gradient_is_the_finite_difference)
{
    struct h_case f = plain_forward(_i);
    struct h_device *d = h_open(1, H_FAST);
    struct h_instr *forward = h_make(&f, HD_F64, 5), *back = h_make(&plain_cases[_i], HD_F64, 5);
    for (int n = 0; n < 3; n++)
        h_copy(&back->in[n], &forward->in[n]);
    if (forward->d.n_in > 3)
        h_copy(&back->in[6], &forward->in[3]);
    h_run(d, forward);
    h_copy(&back->in[3], &forward->out[0]);
    h_copy(&back->in[4], &forward->out[1]);
    h_run(d, back);
    for (int n = 0; n < 3; n++)
        for (int64_t e = n; e < hd_operand_count(&forward->in[n]); e += 7) {
            double x = h_get(&forward->in[n], e), h = 1e-5, up, down;
            h_set(&forward->in[n], e, x + h);
            up = weighted(d, forward, &back->in[5]);
            h_set(&forward->in[n], e, x - h);
            down = weighted(d, forward, &back->in[5]);
            h_set(&forward->in[n], e, x);
            ck_assert_double_eq_tol(h_get(&back->out[n], e), (up - down) / (2 * h), 1e-8);
        }
    h_free(forward);
    h_free(back);
    h_close(d);
}
END_TEST

START_TEST(what_makes_no_sense_is_refused)
{
    static const struct {
        struct h_case c;
        const char *says;
    } wrong[] = {
        {{"heads", HD_OP_ATTENTION, "bskgd bsKd bsKd", "bskgd f:bskg", "b=1 s=2 k=2 K=3 g=1 d=2", {.scale = 1}},
         "differ in heads"},
        {{"dims", HD_OP_ATTENTION, "skd sd sd", "skd f:sk", "s=2 k=2 d=2", {.scale = 1}}, "attention wants q"},
        {{"lse", HD_OP_ATTENTION, "bskgd bskd bskd", "bskgd f:bsk", "b=1 s=2 k=2 g=2 d=2", {.scale = 1}},
         "lse has 3 dims, not 4"},
        {{"heads of lse", HD_OP_ATTENTION, "bskgd bskd bskd", "bskgd f:bskG", "b=1 s=2 k=2 g=2 G=1 d=2", {.scale = 1}},
         "lse has 4 elements, not 8"},
    };
    struct h_device *d = h_open(1, H_FAST);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        h_refused(d, &wrong[i].c, HD_BF16, HD_E_INVALID, wrong[i].says);
    h_close(d);
}
END_TEST

/* wgmma: the kernels for Hopper, which the emulated device is. */
int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "wgmma"))
        attention = CU_ATTENTION_WGMMA;
    TCase *t = tcase_create("cuda attention");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, forward_is_near_its_reference, 0, SHAPES);
    tcase_add_loop_test(t, backward_is_near_its_reference, 0, SHAPES);
    tcase_add_test(t, large_scores_do_not_overflow);
    if (attention == CU_ATTENTION_WGMMA)
        tcase_add_test(t, a_clock_decides_nothing_exact);
    tcase_add_loop_test(t, plain_is_its_reference_in_fp64, 0, PLAIN_CASES);
    tcase_add_loop_test(t, plain_gradient_is_the_finite_difference, 0, PLAIN_CASES);
    tcase_add_test(t, what_makes_no_sense_is_refused);
    return suite_run_case("cuda attention", t);
}
