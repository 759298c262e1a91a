/* Sums of squares in digits: the same bits in any order, cut anywhere, from fast and reference kernels; with the
 * value of the plain sum; and what is no number shows. */
#include "conformance/device/harness.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { N = 20011 };

static float x[N];
static const struct hd_range ranges[] = {{0, 7000, 1}, {7000, 9000, 0.25}, {16000, N - 16000, 0}};
static const struct hd_range all[] = {{0, N, 1}};

/* Adds the squares of elements first to last to y. */
static void sum(struct h_device *d, const struct hd_range *r, uint64_t n, int64_t first, int64_t last, double *y,
                int64_t digits)
{
    struct h_instr i = {.d = {.struct_size = sizeof i.d, .op = HD_OP_SUMSQ, .n_in = 1, .n_out = 1, .label = "sumsq"}};
    i.in[0] = (struct hd_operand){
        .data = x + first, .dtype = HD_F32, .ndim = 1, .dim = {1}, .extent = {last - first}, .start = {first}};
    i.out[0] = (struct hd_operand){.data = y, .dtype = HD_F64, .ndim = digits > 1, .dim = {2}, .extent = {digits}};
    i.d.attrs = (struct hd_attrs){.struct_size = sizeof i.d.attrs, .ranges = r, .n_ranges = n};
    i.d.in = i.in;
    i.d.out = i.out;
    h_run(d, &i);
}

static double total(const double *y)
{
    double t = 0;
    for (int k = 0; k < HD_SUM_DIGITS; k++)
        t += y[k];
    return t;
}

/* Gradients of 100 orders of magnitude, and zeros. */
static void fill(void)
{
    uint64_t seed = 5;
    for (int i = 0; i < N; i++)
        x[i] = i % 100 ? (float)(h_random(&seed) * pow(10, 25 * h_random(&seed) - 8)) : 0;
}

static void reverse(void)
{
    for (int i = 0; i < N / 2; i++) {
        float t = x[i];
        x[i] = x[N - 1 - i];
        x[N - 1 - i] = t;
    }
}

START_TEST(no_order_changes_a_bit)
{
    struct h_device *fast[] = {h_open(1, H_FAST), h_open(3, H_FAST)};
    struct h_device *reference = h_open(1, H_REFERENCE);
    double want[HD_SUM_DIGITS] = {0}, got[HD_SUM_DIGITS];
    fill();
    sum(reference, all, 1, 0, N, want, HD_SUM_DIGITS);
    for (int d = 0; d < 3; d++) {
        struct h_device *device = d < 2 ? fast[d] : reference;
        for (int cut = 0; cut < N; cut += cut < 5 ? 1 : 3331) {
            memset(got, 0, sizeof got);
            sum(device, all, 1, cut, N, got, HD_SUM_DIGITS);
            if (cut)
                sum(device, all, 1, 0, cut, got, HD_SUM_DIGITS);
            ck_assert(!memcmp(got, want, sizeof got));
        }
        reverse();
        memset(got, 0, sizeof got);
        sum(device, all, 1, 0, N, got, HD_SUM_DIGITS);
        ck_assert(!memcmp(got, want, sizeof got));
        reverse();
    }
    h_close(fast[0]);
    h_close(fast[1]);
    h_close(reference);
}
END_TEST

/* Where two ranks have a piece, each counts half of it. */
START_TEST(halves_make_a_whole)
{
    static const struct hd_range half[] = {{0, N, 0.5}};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *device = h_open(2, kernels);
        double want[HD_SUM_DIGITS] = {0}, got[HD_SUM_DIGITS] = {0};
        fill();
        sum(device, all, 1, 0, N, want, HD_SUM_DIGITS);
        sum(device, half, 1, 0, N, got, HD_SUM_DIGITS);
        sum(device, half, 1, 0, N, got, HD_SUM_DIGITS);
        ck_assert(!memcmp(got, want, sizeof got));
        h_close(device);
    }
}
END_TEST

START_TEST(digits_add_up_to_the_sum)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *device = h_open(2, kernels);
        double y[HD_SUM_DIGITS] = {0}, plain = 0, want = 0;
        fill();
        for (int r = 0; r < 3; r++)
            for (int64_t i = 0; i < ranges[r].count; i++)
                want += ranges[r].value * ((double)x[ranges[r].first + i] * (double)x[ranges[r].first + i]);
        sum(device, ranges, 3, 0, N, y, HD_SUM_DIGITS);
        sum(device, ranges, 3, 0, N, &plain, 1);
        ck_assert_double_gt(want, 0);
        ck_assert_double_le(fabs(total(y) / want - 1), 1e-12);
        ck_assert_double_le(fabs(plain / want - 1), 1e-6);
        h_close(device);
    }
}
END_TEST

START_TEST(what_is_no_number_shows)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 1e30f};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *device = h_open(2, kernels);
        for (int k = 0; k < 4; k++) {
            double y[HD_SUM_DIGITS] = {0};
            fill();
            x[777] = odd[k];
            sum(device, all, 1, 0, N, y, HD_SUM_DIGITS);
            ck_assert(isnan(odd[k]) ? isnan(total(y)) : total(y) == (double)INFINITY);
        }
        h_close(device);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("sumsq");
    tcase_set_timeout(c, 30);
    tcase_add_test(c, no_order_changes_a_bit);
    tcase_add_test(c, halves_make_a_whole);
    tcase_add_test(c, digits_add_up_to_the_sum);
    tcase_add_test(c, what_is_no_number_shows);
    return suite_run_case("sumsq", c);
}
