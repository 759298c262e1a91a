/* Orthonormal columns: spanning what the matrix spans; fast and reference agree; a column that adds nothing gets the
 * fixed directions; what is not finite shows. */
#include "conformance/device/harness.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { MOST = 20000 };

static const struct shape {
    int64_t rows, columns;
} shapes[] = {{1, 1}, {5, 5}, {64, 4}, {3000, 6}, {500, 40}};

static float a[MOST], q[MOST], other[MOST];

static struct hd_operand matrix(void *data, uint32_t dtype, struct shape s)
{
    return (struct hd_operand){.data = data, .dtype = dtype, .ndim = 2, .dim = {1, 2}, .extent = {s.rows, s.columns}};
}

static int32_t prepare(struct h_device *d, struct hd_operand *in, struct hd_operand *out, struct hd_kernel **k)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_instr_desc desc = {.struct_size = sizeof desc,
                                 .op = HD_OP_ORTHOGONALISE,
                                 .n_in = 1,
                                 .n_out = 1,
                                 .in = in,
                                 .out = out,
                                 .label = "orthogonalise"};
    desc.attrs.struct_size = sizeof desc.attrs;
    return d->ops->prepare(d->device, &desc, k, &err);
}

static void run(struct h_device *d, uint32_t dtype, struct shape s, void *from, void *to)
{
    struct h_instr i = {
        .d = {.struct_size = sizeof i.d, .op = HD_OP_ORTHOGONALISE, .n_in = 1, .n_out = 1, .label = "orthogonalise"},
        .in = {matrix(from, dtype, s)},
        .out = {matrix(to, dtype, s)}};
    i.d.attrs.struct_size = sizeof i.d.attrs;
    i.d.in = i.in;
    i.d.out = i.out;
    h_run(d, &i);
}

static void fill(struct shape s)
{
    uint64_t seed = 7;
    for (int64_t i = 0; i < s.rows * s.columns; i++)
        a[i] = (float)(h_random(&seed) * exp(3 * h_random(&seed)));
}

static double dot(const float *x, int64_t i, const float *y, int64_t j, struct shape s)
{
    double sum = 0;
    for (int64_t row = 0; row < s.rows; row++)
        sum += (double)x[row * s.columns + i] * (double)y[row * s.columns + j];
    return sum;
}

static void expect_right_angles(const float *x, struct shape s)
{
    for (int64_t i = 0; i < s.columns; i++)
        for (int64_t j = 0; j <= i; j++)
            ck_assert_double_le(fabs(dot(x, i, x, j, s) - (i == j)), 2e-6);
}

/* Column j of a is what its products with the columns of q make. */
static void expect_span(const float *x, const float *basis, struct shape s)
{
    for (int64_t j = 0; j < s.columns; j++) {
        double whole = dot(x, j, x, j, s), in = 0;
        for (int64_t i = 0; i < s.columns; i++)
            in += pow(dot(x, j, basis, i, s), 2);
        ck_assert_double_le(fabs(in - whole), 1e-5 * whole);
    }
}

START_TEST(columns_span_what_they_did)
{
    struct shape s = shapes[_i];
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        fill(s);
        run(d, HD_F32, s, a, q);
        expect_right_angles(q, s);
        expect_span(a, q, s);
        run(d, HD_F32, s, a, a); /* in place */
        ck_assert(!memcmp(a, q, (size_t)(s.rows * s.columns) * sizeof *a));
        h_close(d);
    }
}
END_TEST

START_TEST(fast_is_the_reference)
{
    struct shape s = shapes[_i];
    struct h_device *one = h_open(1, H_FAST), *three = h_open(3, H_FAST), *plain = h_open(1, H_REFERENCE);
    size_t bytes = (size_t)(s.rows * s.columns) * sizeof *a;
    fill(s);
    run(one, HD_F32, s, a, q);
    run(three, HD_F32, s, a, other);
    ck_assert(!memcmp(q, other, bytes));
    run(plain, HD_F32, s, a, other);
    for (int64_t i = 0; i < s.rows * s.columns; i++)
        ck_assert_double_le(fabs((double)q[i] - (double)other[i]), 2e-4);
    h_close(one);
    h_close(three);
    h_close(plain);
}
END_TEST

/* Zeros, and a column that is the sum of two others. */
START_TEST(what_adds_nothing_gets_a_direction)
{
    struct shape s = {300, 6};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        memset(a, 0, sizeof a);
        run(d, HD_F32, s, a, q);
        expect_right_angles(q, s);
        for (int64_t row = 1; row < s.rows; row++) /* the first has nothing before it */
            ck_assert_double_le(
                fabs((double)q[row * s.columns] * hd_direction(0, 0, 0) - hd_direction(row, 0, 0) * (double)q[0]),
                1e-6);
        fill(s);
        for (int64_t row = 0; row < s.rows; row++)
            a[row * s.columns + 3] = a[row * s.columns] + a[row * s.columns + 1];
        run(d, HD_F32, s, a, q);
        expect_right_angles(q, s);
        expect_span(a, q, s);
        h_close(d);
    }
}
END_TEST

START_TEST(what_is_not_finite_shows)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct shape s = {100, 3};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (int b = 0; b < 3; b++) {
            struct h_device *d = h_open(1, kernels);
            fill(s);
            a[200] = bad[b];
            run(d, HD_F32, s, a, q);
            for (int64_t i = 0; i < s.rows * s.columns; i++)
                ck_assert(isnan(q[i]));
            h_close(d);
        }
}
END_TEST

START_TEST(more_columns_than_rows_are_refused)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct hd_operand wide = matrix(a, HD_F32, (struct shape){3, 4}),
                          tall = matrix(q, HD_F32, (struct shape){4, 3});
        struct hd_kernel *k;
        ck_assert_int_eq(prepare(d, &wide, &wide, &k), HD_E_INVALID);
        ck_assert_int_eq(prepare(d, &wide, &tall, &k), HD_E_INVALID);
        h_close(d);
    }
}
END_TEST

int main(void)
{
    const int n = sizeof shapes / sizeof shapes[0];
    TCase *t = tcase_create("orthogonalise");
    tcase_add_loop_test(t, columns_span_what_they_did, 0, n);
    tcase_add_loop_test(t, fast_is_the_reference, 0, n);
    tcase_add_test(t, what_adds_nothing_gets_a_direction);
    tcase_add_test(t, what_is_not_finite_shows);
    tcase_add_test(t, more_columns_than_rows_are_refused);
    return suite_run_case("orthogonalise", t);
}
