/* Stochastic rounding of weights in bf16 (HD_ATTR_STOCHASTIC): heddle/reference.h's random numbers to the bit on every
 * device and for every way to cut a buffer, and no bias. Gradients are zero and factors powers of two, so that what
 * is rounded is exact. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { N = 5003, FIRST = 70, SEED = 41 };

static const struct hd_range decays[] = {{0, 1000000, 1}};

/* p := p (1 - 2^-shrink), of elements [first, first + n) of a buffer. */
static struct h_instr *update_of(int64_t first, int64_t n, double step, int shrink, uint32_t flags)
{
    char dims[64];
    snprintf(dims, sizeof dims, "n=%lld@%lld y=8", (long long)n, (long long)first);
    struct h_case c = {
        "adamw",
        HD_OP_ADAMW,
        "f:n d: d:y",
        "n f:n f:n n",
        dims,
        {.ranges = decays, .n_ranges = 1, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.95, .flags = flags, .index = SEED}};
    struct h_instr *i = h_make(&c, HD_BF16, 1);
    double hyper[HD_HYPER_COUNT] = {ldexp(1, -shrink), step, 1};
    for (int j = 0; j < HD_HYPER_COUNT; j++)
        h_set(&i->in[2], j, hyper[j]);
    h_set(&i->in[1], 0, 1);
    for (int64_t j = 0; j < n; j++) {
        uint64_t state = (uint64_t)(first + j);
        h_random(&state);
        h_set(&i->in[0], j, 0);
        h_set(&i->out[0], j, 4 * h_random(&state));
        h_set(&i->out[1], j, 0);
        h_set(&i->out[2], j, 0);
    }
    return i;
}

static struct h_device *device_of(int which)
{
    return which == 0 ? h_open(1, H_FAST) : which == 1 ? h_open(3, H_FAST) : h_open(1, H_REFERENCE);
}

START_TEST(lots_are_the_same_everywhere)
{
    struct h_device *d = device_of(_i);
    struct h_instr *i = update_of(FIRST, N, 7, 6, HD_ATTR_STOCHASTIC);
    double *want = malloc(N * sizeof *want);
    uint64_t key = hd_round_stochastic_key(SEED, 7);
    int64_t up = 0;
    for (int64_t j = 0; j < N; j++) {
        double exact = h_get(&i->out[0], j) * (1 - ldexp(1, -6));
        want[j] = hd_round_stochastic_bf16((float)exact, key, FIRST + j);
        up += fabs(want[j]) > fabs(exact);
    }
    h_run(d, i);
    for (int64_t j = 0; j < N; j++) {
        ck_assert_msg(h_get(&i->out[0], j) == want[j], "element %lld is %.9g, not %.9g", (long long)j,
                      h_get(&i->out[0], j), want[j]);
        ck_assert_double_eq(h_get(&i->out[3], j), want[j]); /* the copy is the weight's */
    }
    ck_assert_int_gt(up, N / 4); /* both neighbours are taken */
    ck_assert_int_lt(up, 3 * N / 4);
    free(want);
    h_free(i);
    h_close(d);
}
END_TEST

START_TEST(shards_draw_the_lots_of_the_whole)
{
    static const int64_t cuts[] = {0, 1, 1000, 1003, 4096, N};
    struct h_device *d = device_of(_i);
    struct h_instr *whole = update_of(0, N, 3, 6, HD_ATTR_STOCHASTIC);
    h_run(d, whole);
    for (size_t c = 0; c + 1 < sizeof cuts / sizeof cuts[0]; c++) {
        struct h_instr *part = update_of(cuts[c], cuts[c + 1] - cuts[c], 3, 6, HD_ATTR_STOCHASTIC);
        h_run(d, part);
        for (int64_t j = cuts[c]; j < cuts[c + 1]; j++)
            ck_assert_double_eq(h_get(&part->out[0], j - cuts[c]), h_get(&whole->out[0], j));
        h_free(part);
    }
    h_free(whole);
    h_close(d);
}
END_TEST

static double mean(const struct hd_operand *o)
{
    double sum = 0;
    for (int64_t j = 0; j < N; j++)
        sum += h_get(o, j);
    return sum / N;
}

/* A decay of 2^-12, too small for bf16: rounded to nearest, the weights stay; rounded stochastically, their mean moves
 * as it should. */
START_TEST(small_updates_are_not_lost)
{
    struct h_device *d = device_of(_i);
    struct h_instr *nearest = update_of(0, N, 1, 12, 0);
    for (int64_t j = 0; j < N; j++)
        h_set(&nearest->out[0], j, 1.5);
    h_run(d, nearest);
    ck_assert_double_eq(mean(&nearest->out[0]), 1.5);
    for (int step = 1; step <= 20; step++) {
        struct h_instr *lot = update_of(0, N, step, 12, HD_ATTR_STOCHASTIC);
        for (int64_t j = 0; j < N; j++)
            h_set(&lot->out[0], j, 1.5);
        h_run(d, lot);
        /* neighbours are 2^-7 apart: the deviation of a mean of N is at most half of that over sqrt(N) */
        ck_assert_double_eq_tol(mean(&lot->out[0]), 1.5 * (1 - ldexp(1, -12)), 5 * ldexp(1, -8) / sqrt(N));
        h_free(lot);
    }
    h_free(nearest);
    h_close(d);
}
END_TEST

/* ---- the rule itself */

START_TEST(lots_have_no_bias)
{
    static const float values[] = {1.001f, -1.001f, 3.14159f, 1e-30f, -2.5e20f, 1.00390625f};
    enum { DRAWS = 1 << 18 };
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++)
        for (int by_step = 0; by_step < 2; by_step++) { /* lots of one step, and of one element */
            double sum = 0, gap = fabs(ldexp(1, ilogb(values[v]) - 7));
            for (int64_t j = 0; j < DRAWS; j++)
                sum += (double)hd_round_stochastic_bf16(
                           values[v], hd_round_stochastic_key(SEED, by_step ? (double)j : 9), by_step ? 77 : j) -
                       values[v];
            ck_assert_msg(fabs(sum / DRAWS) < 4 * 0.5 * gap / sqrt(DRAWS), "%g is off by %g of a gap of %g",
                          (double)values[v], sum / DRAWS, gap);
        }
}
END_TEST

START_TEST(what_is_exact_stays)
{
    static const float values[] = {0.0f, -0.0f, 1.0f, -1.0078125f, 0x1.fep127f, INFINITY, -INFINITY};
    for (int64_t j = 0; j < 1000; j++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            float got = hd_round_stochastic_bf16(values[v], hd_round_stochastic_key(1, 2), j);
            ck_assert(!memcmp(&got, &values[v], sizeof got));
        }
    ck_assert(isnan(hd_round_stochastic_bf16(NAN, hd_round_stochastic_key(1, 2), 3)));
}
END_TEST

START_TEST(seeds_and_steps_draw_other_lots)
{
    int64_t same_seed = 0, same_step = 0;
    enum { DRAWS = 20000 };
    for (int64_t j = 0; j < DRAWS; j++) {
        /* half way: two equal neighbours */
        float x = hd_round_stochastic_bf16(1.00390625f, hd_round_stochastic_key(1, 5), j);
        same_seed += x == hd_round_stochastic_bf16(1.00390625f, hd_round_stochastic_key(2, 5), j);
        same_step += x == hd_round_stochastic_bf16(1.00390625f, hd_round_stochastic_key(1, 6), j);
    }
    ck_assert_int_lt(llabs(same_seed - DRAWS / 2), 4 * 71); /* four deviations of DRAWS coins */
    ck_assert_int_lt(llabs(same_step - DRAWS / 2), 4 * 71);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("rounding");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, lots_are_the_same_everywhere, 0, 3);
    tcase_add_loop_test(t, shards_draw_the_lots_of_the_whole, 0, 3);
    tcase_add_loop_test(t, small_updates_are_not_lost, 0, 3);
    tcase_add_test(t, lots_have_no_bias);
    tcase_add_test(t, what_is_exact_stays);
    tcase_add_test(t, seeds_and_steps_draw_other_lots);
    return suite_run_case("rounding", t);
}
