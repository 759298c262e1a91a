/* Fast attention and its gradient against the reference: heads, groups, windows, masks, lengths around the sizes
 * of tiles. fp32 to 1e-5 of the norm, bf16 to 1e-2; the same bits for any number of threads. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

#define FORWARD HD_OP_ATTENTION, "bskgd bskd bskd", "bskgd f:bskg"
#define BACKWARD HD_OP_ATTENTION_GRAD, "bskgd bskd bskd bskgd f:bskg bskgd", "bskgd bskd bskd"
#define FORWARD_DOCUMENTS HD_OP_ATTENTION, "bskgd bskd bskd n:bs", "bskgd f:bskg"
#define BACKWARD_DOCUMENTS HD_OP_ATTENTION_GRAD, "bskgd bskd bskd bskgd f:bskg bskgd n:bs", "bskgd bskd bskd"

static const struct {
    const char *name, *dims;
    int64_t window, prefix;
    uint32_t mask; /* HD_ATTR_NOT_CAUSAL */
    double soft_cap;
    int documents;
} shapes[] = {
    {"one position", "b=2 s=1 k=1 g=1 d=8", 0},
    {"one head", "b=1 s=7 k=1 g=1 d=8", 0},
    {"groups", "b=2 s=19 k=2 g=3 d=16", 0},
    {"odd head size", "b=2 s=33 k=2 g=2 d=40", 0},
    {"head size of no vector", "b=1 s=37 k=2 g=1 d=6", 0},
    {"a tile", "b=1 s=128 k=1 g=1 d=64", 0},
    {"more than a tile", "b=1 s=131 k=1 g=2 d=64", 0},
    {"several tiles", "b=2 s=300 k=2 g=1 d=32", 0},
    {"large heads", "b=1 s=70 k=1 g=2 d=128", 0},
    {"later positions", "b=2 s=65@195 k=1 g=2 d=32", 0},
    {"window", "b=2 s=150 k=1 g=2 d=32", 20},
    {"window across tiles", "b=1 s=610 k=1 g=1 d=16", 270},
    {"window of one", "b=1 s=70 k=2 g=1 d=16", 1},
    {"window of all", "b=1 s=70 k=2 g=1 d=16", 1000},
    {"no mask", "b=2 s=150 k=1 g=2 d=32", 0, 0, HD_ATTR_NOT_CAUSAL},
    {"no mask, several tiles", "b=1 s=600 k=2 g=1 d=16", 0, 0, HD_ATTR_NOT_CAUSAL},
    {"window on both sides", "b=1 s=310 k=1 g=2 d=16", 40, 0, HD_ATTR_NOT_CAUSAL},
    {"window on both sides across tiles", "b=1 s=610 k=1 g=1 d=16", 270, 0, HD_ATTR_NOT_CAUSAL},
    {"prefix", "b=2 s=150 k=1 g=2 d=32", 0, 50},
    {"prefix of most", "b=1 s=300 k=2 g=1 d=16", 0, 299},
    {"prefix beyond", "b=1 s=70 k=1 g=1 d=16", 0, 1000},
    {"soft cap", "b=2 s=150 k=1 g=2 d=32", 0, 0, 0, 1.5},
    {"soft cap, no mask, a window", "b=1 s=300 k=1 g=1 d=40", 70, 0, HD_ATTR_NOT_CAUSAL, 3},
    {"documents", "b=2 s=19 k=2 g=3 d=16", 0, 0, 0, 0, 1},
    {"documents across tiles", "b=2 s=610 k=1 g=1 d=16", 0, 0, 0, 0, 1},
    {"documents, later positions", "b=2 s=65@195 k=1 g=2 d=32", 0, 0, 0, 0, 1},
    {"documents, a window and a soft cap", "b=2 s=310 k=2 g=1 d=40", 30, 0, 0, 2, 1},
};

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};

static struct hd_attrs attrs(int i)
{
    return (struct hd_attrs){.scale = 0.7,
                             .window = shapes[i].window,
                             .top_k = shapes[i].prefix,
                             .flags = shapes[i].mask,
                             .clip = shapes[i].soft_cap};
}

static struct h_case forward_case(int i)
{
    if (shapes[i].documents)
        return (struct h_case){shapes[i].name, FORWARD_DOCUMENTS, shapes[i].dims, attrs(i)};
    return (struct h_case){shapes[i].name, FORWARD, shapes[i].dims, attrs(i)};
}

static struct h_case backward_case(int i)
{
    if (shapes[i].documents)
        return (struct h_case){shapes[i].name, BACKWARD_DOCUMENTS, shapes[i].dims, attrs(i)};
    return (struct h_case){shapes[i].name, BACKWARD, shapes[i].dims, attrs(i)};
}

START_TEST(forward_is_near_its_reference)
{
    struct h_case c = forward_case(_i);
    for (int d = 0; d < 3; d++)
        h_fast_case(&c, dtypes[d].dtype, dtypes[d].tolerance, 0);
}
END_TEST

/* By up to 100 and more: all that was summed before is worth nothing. */
START_TEST(a_row_may_rise_far_from_one_tile_of_keys_to_the_next)
{
    struct h_case c = {"rise", FORWARD, "b=1 s=900 k=2 g=1 d=64", {.scale = 30}};
    for (int d = 0; d < 3; d++)
        h_fast_case(&c, dtypes[d].dtype, dtypes[d].tolerance, 0);
}
END_TEST

/* A backward instruction with the o and lse that the reference's forward gives, rounded to its dtype. */
static struct h_instr *backward_made(int i, uint32_t dtype)
{
    struct h_case f = forward_case(i), c = backward_case(i);
    struct h_device *plain = h_open(1, H_REFERENCE);
    struct h_instr *back = h_make(&c, dtype, 11), *forward = h_make(&f, dtype, 12);
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

static double norm(const struct hd_operand *o)
{
    double sum = 0;
    for (int64_t i = 0; i < hd_operand_count(o); i++)
        sum += h_get(o, i) * h_get(o, i);
    return sqrt(sum);
}

/* As h_near; but a gradient that is zero (a query that sees one key has a constant weight) is measured by
 * do. */
static void backward_near(const char *name, const struct h_instr *got, const struct h_instr *want, double tolerance)
{
    double scale = norm(&want->in[5]);
    for (uint32_t o = 0; o < want->d.n_out; o++)
        if (norm(&want->out[o]) > 1e-9 * scale)
            ck_assert_msg(h_distance(&got->out[o], &want->out[o]) <= tolerance, "%s, output %u: off by %g", name, o,
                          h_distance(&got->out[o], &want->out[o]));
        else
            ck_assert_msg(norm(&got->out[o]) <= tolerance * scale, "%s, output %u: %g, not 0", name, o,
                          norm(&got->out[o]));
}

static void backward_check(int i, uint32_t dtype, double tolerance, uint32_t flags)
{
    struct h_device *one = h_open(1, H_FAST), *three = h_open(3, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *a = backward_made(i, dtype), *b = backward_made(i, dtype), *want = h_as(a, HD_F64);
    a->d.attrs.flags = b->d.attrs.flags = want->d.attrs.flags = flags | shapes[i].mask;
    h_warnings = 0;
    h_run(one, a);
    h_run(three, b);
    h_run(plain, want);
    ck_assert_msg(h_warnings == 0, "%s: %s", shapes[i].name, h_last_log);
    backward_near(shapes[i].name, a, want, tolerance);
    h_equal(shapes[i].name, a, b);
    h_free(a);
    h_free(b);
    h_free(want);
    h_close(one);
    h_close(three);
    h_close(plain);
}

START_TEST(backward_is_near_its_reference)
{
    for (int d = 0; d < 3; d++)
        for (uint32_t flags = 0; flags <= HD_ATTR_ACCUMULATE; flags += HD_ATTR_ACCUMULATE)
            backward_check(_i, dtypes[d].dtype, dtypes[d].tolerance, flags);
}
END_TEST

/* Scores far apart: the maximum moves from tile to tile, weights underflow, nothing overflows. */
START_TEST(forward_is_right_for_large_scores)
{
    struct h_case c = {"large scores", FORWARD, "b=1 s=600 k=1 g=1 d=8", {.scale = 60}};
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *a = h_make(&c, HD_F32, 4), *want = h_as(a, HD_F64);
    h_run(fast, a);
    h_run(plain, want);
    h_near(c.name, a, want, 1e-4); /* scores up to 300 in fp32: their rounding is all there is */
    h_free(a);
    h_free(want);
    h_close(fast);
    h_close(plain);
}
END_TEST

START_TEST(not_a_number_is_kept)
{
    struct h_case c = {"NaN", FORWARD, "b=1 s=40 k=1 g=1 d=8", {.scale = 1}};
    for (int d = 0; d < 3; d++) {
        struct h_device *fast = h_open(1, H_FAST);
        struct h_instr *i = h_make(&c, dtypes[d].dtype, 4);
        h_set(&i->in[0], 9 * 8 + 3, NAN); /* query 9 */
        h_run(fast, i);
        ck_assert(isnan(h_get(&i->out[0], 9 * 8)));
        ck_assert(isnan(h_get(&i->out[1], 9)));
        ck_assert(!isnan(h_get(&i->out[0], 10 * 8)));
        h_free(i);
        h_close(fast);
    }
}
END_TEST

/* Queries that lie after their keys are left to the reference: right, though slower. */
START_TEST(shifted_queries_are_left_to_the_reference)
{
    struct h_case c = {"shifted",     HD_OP_ATTENTION, "bskgd btkd btkd", "bskgd f:bskg", "b=1 s=5@5 t=10 k=1 g=2 d=8",
                       {.scale = 0.5}};
    struct h_device *fast = h_open(2, H_FAST);
    struct h_instr *a = h_make(&c, HD_F32, 4);
    h_check(fast, a, h_as(a, HD_F64), 1e-5);
    h_close(fast);
}
END_TEST

static void copy_rows(const struct hd_operand *to, const struct hd_operand *from, int64_t first, int64_t n)
{
    int64_t row = hd_operand_count(from) / from->extent[1];
    for (int64_t e = 0; e < n * row; e++)
        h_set(to, e, h_get(from, first * row + e));
}

/* A sequence of documents, kernels of both kinds: each document as if it were alone. */
START_TEST(documents_are_apart)
{
    static const int lengths[] = {5, 1, 29, 64, 31};
    struct h_case c = {"together", FORWARD_DOCUMENTS, "b=1 s=130 k=1 g=2 d=16", {.scale = 0.5}};
    struct h_device *d = h_open(1, _i);
    struct h_instr *all = h_make(&c, HD_F32, 3);
    for (int n = 0, at = 0; n < 5; at += lengths[n++])
        for (int i = 0; i < lengths[n]; i++)
            h_set(&all->in[3], at + i, i);
    h_run(d, all);
    for (int n = 0, at = 0; n < 5; at += lengths[n++]) {
        char dims[64];
        snprintf(dims, sizeof dims, "b=1 s=%d k=1 g=2 d=16", lengths[n]);
        struct h_instr *alone = h_make(&(struct h_case){"alone", FORWARD, dims, c.attrs}, HD_F32, 4),
                       *want = h_make(&(struct h_case){"alone", FORWARD, dims, c.attrs}, HD_F32, 4);
        for (int o = 0; o < 3; o++)
            copy_rows(&alone->in[o], &all->in[o], at, lengths[n]);
        h_run(d, alone);
        for (int o = 0; o < 2; o++)
            copy_rows(&want->out[o], &all->out[o], at, lengths[n]);
        h_near("a document", alone, want, 1e-6);
        h_free(alone);
        h_free(want);
    }
    h_free(all);
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("attention");
    int n = (int)(sizeof shapes / sizeof shapes[0]);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_row_may_rise_far_from_one_tile_of_keys_to_the_next);
    tcase_add_loop_test(t, forward_is_near_its_reference, 0, n);
    tcase_add_loop_test(t, backward_is_near_its_reference, 0, n);
    tcase_add_loop_test(t, documents_are_apart, H_FAST, H_REFERENCE + 1);
    tcase_add_test(t, forward_is_right_for_large_scores);
    tcase_add_test(t, not_a_number_is_kept);
    tcase_add_test(t, shifted_queries_are_left_to_the_reference);
    return suite_run_case("attention", t);
}
