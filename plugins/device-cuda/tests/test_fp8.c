/* Products with operands in fp8: roundings against torch's, products against the reference of rounded operands and
 * against the reference of the operands as they were, and the products that keep their dtype. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { OFF = 0, E4M3 = 1, HYBRID = 2 };

/* Arithmetic of the two types, from their definition: arXiv 2209.05433, table 1. */
static const struct type {
    const char *name;
    int mantissa, least; /* bits; the smallest normal's exponent */
    double most;
} types[] = {{"e4m3", 3, -6, 448}, {"e5m2", 2, -14, 57344}};

static double round_to(const struct type *t, double v)
{
    int exponent;
    if (v == 0 || !isfinite(v))
        return v;
    frexp(v, &exponent);
    double step = ldexp(1, (exponent - 1 > t->least ? exponent - 1 : t->least) - t->mantissa);
    double r = nearbyint(v / step) * step;
    return fabs(r) > t->most ? copysign(t->most, v) : r;
}

static double largest(const struct hd_operand *o)
{
    double most = 0;
    for (int64_t i = 0; i < hd_operand_count(o); i++)
        if (isfinite(h_get(o, i)) && fabs(h_get(o, i)) > most)
            most = fabs(h_get(o, i));
    return most;
}

/* The power of two that the operand is multiplied by before it is rounded. */
static int exponent_of(const struct type *t, const struct hd_operand *o)
{
    double most = largest(o);
    int e = 0;
    while (most > 0 && ldexp(most, e + 1) <= t->most)
        e++;
    while (ldexp(most, e) > t->most)
        e--;
    return e;
}

static void round_operand(const struct type *t, const struct hd_operand *o)
{
    int e = exponent_of(t, o);
    for (int64_t i = 0; i < hd_operand_count(o); i++)
        h_set(o, i, ldexp(round_to(t, ldexp(h_get(o, i), e)), -e));
}

static const struct type *type_of(int option, uint32_t grads, uint32_t n)
{
    return &types[option == HYBRID && grads == 1u << n];
}

static void run(int option, struct h_instr *i)
{
    struct h_device *d = h_open_with(1, H_FAST, "fp8", option);
    h_run(d, i);
    h_close(d);
}

static void run_reference(struct h_instr *i)
{
    struct h_device *d = h_open(1, H_REFERENCE);
    h_run(d, i);
    h_close(d);
}

/* ---- roundings: a product with ones on the diagonal is what was multiplied */

enum { WIDE = 16, MOST = 1600 };

static double golden_from[MOST], golden_to[MOST];

/* How many lines the file has of this type. */
static int read_golden(const char *type)
{
    FILE *f = fopen(GOLDEN, "r");
    if (!f) /* built elsewhere: tests/gpu/pack */
        f = fopen("tests/golden/data/fp8.txt", "r");
    char line[128], name[16];
    int n = 0;
    ck_assert_msg(f != NULL, "%s", GOLDEN);
    while (fgets(line, sizeof line, f))
        if (*line != '#' && sscanf(line, "%15s %lf %lf", name, &golden_from[n], &golden_to[n]) == 3 &&
            !strcmp(name, type))
            n++;
    fclose(f);
    return n;
}

/* [m k] [k n], the first a gradient, with the largest number of the type in it so that the scale is 1 (times 2^-up). */
static void check_roundings(const struct type *t, const char *in, int numbers, int up)
{
    char dims[64];
    int rows = (numbers + 1 + WIDE - 1) / WIDE;
    rows = (rows + 15) / 16 * 16;
    snprintf(dims, sizeof dims, "m=%d k=%d n=%d", rows, WIDE, WIDE);
    const struct h_case c = {t->name, HD_OP_EINSUM, in, "f:mn", dims, {0}};
    struct h_instr *i = h_make(&c, HD_BF16, 1);
    int turned = i->in[0].dim[0] == 'k';
    for (int j = 0; j < rows * WIDE; j++)
        h_set(&i->in[0], turned ? j % WIDE * rows + j / WIDE : j, ldexp(j < numbers ? golden_from[j] : t->most, up));
    for (int j = 0; j < WIDE * WIDE; j++)
        h_set(&i->in[1], j, j / WIDE == j % WIDE);
    i->d.grads = 1;
    run(t == types ? E4M3 : HYBRID, i);
    for (int j = 0; j < numbers; j++)
        ck_assert_msg(h_get(&i->out[0], j) == ldexp(golden_to[j], up), "%s %s: %a became %a, not %a", t->name, in,
                      ldexp(golden_from[j], up), h_get(&i->out[0], j), ldexp(golden_to[j], up));
    h_free(i);
}

START_TEST(roundings_are_those_of_torch)
{
    const struct type *t = &types[_i];
    int n = read_golden(t->name);
    ck_assert_int_ge(n, 3 * (_i ? 124 : 127));
    for (int j = 0; j < n; j++)
        ck_assert_msg(round_to(t, golden_from[j]) == golden_to[j], "this test's own %s of %a", t->name, golden_from[j]);
    check_roundings(t, "mk kn", n, 0);
    check_roundings(t, "km kn", n, 0);
    check_roundings(t, "mk nk", n, -20);
    check_roundings(t, "km nk", n, 40);
}
END_TEST

/* ---- products */

static const struct {
    struct h_case c;
    uint32_t grads;
} products[] = {
    {{"projection", HD_OP_EINSUM, "bsh fh", "bsf", "b=2 s=16 h=48 f=80", {0}}, 0},
    {{"projection, the other order", HD_OP_EINSUM, "bsh hf", "bsf", "b=2 s=8 h=144 f=208", {0}}, 0},
    {{"projection to heads", HD_OP_EINSUM, "bsh kgdh", "bskgd", "b=2 s=24 h=64 k=2 g=3 d=16", {0}}, 0},
    {{"gradient of x", HD_OP_EINSUM, "bskgd kgdh", "bsh", "b=2 s=24 h=64 k=2 g=3 d=16", {0}}, 1},
    {{"gradient of w", HD_OP_EINSUM, "bsf bsh", "f:fh", "b=2 s=40 h=80 f=112", {0}}, 1},
    {{"gradient of w, the other order", HD_OP_EINSUM, "bsf bsh", "f:hf", "b=2 s=40 h=80 f=112", {0}}, 1},
    {{"the second is a gradient", HD_OP_EINSUM, "bsh bsf", "f:fh", "b=2 s=40 h=80 f=112", {0}}, 2},
    {{"batch", HD_OP_EINSUM, "ebh efh", "ebf", "e=3 b=16 h=80 f=96", {0}}, 0},
    {{"batch, turned", HD_OP_EINSUM, "ehb ehf", "ebf", "e=3 b=80 h=96 f=16", {0}}, 1},
    {{"batch of one operand", HD_OP_EINSUM, "ebh fh", "ebf", "e=3 b=16 h=32 f=48", {0}}, 0},
    {{"both are gradients", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=48 n=32", {0}}, 3},
    {{"long sums", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=2064 n=32", {0}}, 1},
    {{"more tiles to turn than blocks", HD_OP_EINSUM, "km kn", "mn", "m=16 k=1040 n=16", {0}}, 0},
};
enum { PRODUCTS = sizeof products / sizeof products[0] };

/* Numbers over many powers of two: random ones are all near 1. */
static void spread(const struct hd_operand *o, uint64_t seed)
{
    for (int64_t i = 0; i < hd_operand_count(o); i++)
        h_set(o, i, h_get(o, i) * exp2(10 * h_random(&seed) - 4));
}

static struct h_instr *product(int n, uint32_t dtype, int option, uint32_t accumulate, struct h_instr **rounded)
{
    struct h_case c = products[n].c;
    c.attrs.flags = accumulate ? HD_ATTR_ACCUMULATE : 0;
    struct h_instr *i = h_make(&c, dtype, (uint64_t)n + 1);
    i->d.grads = products[n].grads;
    for (uint32_t k = 0; k < 2; k++)
        spread(&i->in[k], k + 3);
    *rounded = h_as(i, HD_F64);
    for (uint32_t k = 0; k < 2; k++)
        round_operand(type_of(option, i->d.grads, k), &(*rounded)->in[k]);
    return i;
}

/* Against operands that are rounded the same way: as near as a product of 16-bit operands is. Outputs in fp32 see sums
 * as the device has them: the emulator's are in fp32; Hopper's tensor cores keep about 14 bits of a sum of fp8 products
 * (DeepSeek-V3, arXiv 2412.19437, section 3.5.2). */
START_TEST(products_are_those_of_rounded_operands)
{
    static const uint32_t dtypes[] = {HD_BF16, HD_F16};
    const double sums = strstr(getenv("HEDDLE_TEST_DEVICE"), "emulated") ? 2e-6 : 0x1p-12;
    for (uint32_t k = 0; k < 8; k++) {
        struct h_instr *want, *got = product(_i, dtypes[k & 1], k & 2 ? HYBRID : E4M3, k & 4, &want);
        run(k & 2 ? HYBRID : E4M3, got);
        run_reference(want);
        uint32_t out = got->out[0].dtype;
        h_near(products[_i].c.name, got, want, out == HD_F32 ? sums : out == HD_BF16 ? 4e-3 : 5e-4);
        h_free(got);
        h_free(want);
    }
}
END_TEST

static struct h_instr *absolute(const struct h_instr *i)
{
    struct h_instr *a = h_as(i, HD_F64);
    for (uint32_t k = 0; k < 2; k++)
        for (int64_t j = 0; j < hd_operand_count(&a->in[k]); j++)
            h_set(&a->in[k], j, fabs(h_get(&a->in[k], j)));
    return a;
}

/* Against operands as they were. A normal number is off by u = 2^-4 (e4m3) or 2^-3 (e5m2) of itself at most, so a sum
 * of products by (1 + ua)(1 + ub) - 1 of the sum of their absolute values; what is subnormal is off by half a step,
 * 2^-10 or 2^-17, over a scale that brings the largest above 224 or 28672: by less than u times 2^-17 / u of the
 * largest, which is added. The output's rounding: 2^-8. */
START_TEST(products_are_near_those_of_the_operands)
{
    for (int option = E4M3; option <= HYBRID; option++) {
        struct h_instr *rounded, *got = product(_i, HD_BF16, option, 0, &rounded), *want = h_as(got, HD_F64),
                                 *bound = absolute(got);
        double u[2], far = 0;
        for (uint32_t k = 0; k < 2; k++) {
            u[k] = ldexp(1, -1 - type_of(option, got->d.grads, k)->mantissa);
            double least = largest(&got->in[k]) * 0x1p-17 / u[k];
            for (int64_t j = 0; j < hd_operand_count(&bound->in[k]); j++)
                h_set(&bound->in[k], j, h_get(&bound->in[k], j) + least);
        }
        run(option, got);
        run_reference(want);
        run_reference(bound);
        for (int64_t j = 0; j < hd_operand_count(&got->out[0]); j++) {
            double apart = fabs(h_get(&got->out[0], j) - h_get(&want->out[0], j)), sum = h_get(&bound->out[0], j);
            ck_assert_msg(apart <= ((1 + u[0]) * (1 + u[1]) - 1 + 0x1p-8) * sum, "%s: %g apart, of %g",
                          products[_i].c.name, apart, sum);
            far = fmax(far, apart / sum);
        }
        ck_assert_double_ge(far, 1e-3); /* it was in fp8 */
        ck_assert_double_le(h_distance(&got->out[0], &want->out[0]), option == HYBRID && got->d.grads ? 0.13 : 0.065);
        h_free(got);
        h_free(rounded);
        h_free(want);
        h_free(bound);
    }
}
END_TEST

/* ---- numbers that are none */

static const struct h_case square = {"square", HD_OP_EINSUM, "mk nk", "f:mn", "m=32 k=32 n=32", {0}};

/* What is not finite spoils the sums that have it, and no others. */
static void spoil(int option, double with, int64_t row)
{
    struct h_instr *i = h_make(&square, HD_BF16, 7), *clean = h_make(&square, HD_BF16, 7);
    h_set(&i->in[0], row * 32 + 5, with);
    h_set(&clean->in[0], row * 32 + 5, 0);
    i->d.grads = clean->d.grads = 1;
    run(option, i);
    run(option, clean);
    for (int64_t m = 0; m < 32; m++)
        for (int64_t n = 0; n < 32; n++) {
            double got = h_get(&i->out[0], m * 32 + n);
            if (m == row)
                ck_assert_msg(!isfinite(got), "%g gave %g", with, got);
            else
                ck_assert_double_eq(got, h_get(&clean->out[0], m * 32 + n));
        }
    h_free(i);
    h_free(clean);
}

START_TEST(nan_and_infinity_are_not_lost)
{
    for (int option = E4M3; option <= HYBRID; option++) {
        spoil(option, NAN, 3);
        spoil(option, INFINITY, 30);
        spoil(option, -INFINITY, 0);
    }
}
END_TEST

START_TEST(zeros_stay_zeros)
{
    for (uint32_t k = 0; k < 3; k++) {
        struct h_instr *i = h_make(&square, HD_BF16, 7);
        for (int64_t j = 0; j < 32 * 32; j++) {
            if (k != 1)
                h_set(&i->in[0], j, 0);
            if (k != 0)
                h_set(&i->in[1], j, 0);
        }
        run(HYBRID, i);
        for (int64_t j = 0; j < 32 * 32; j++)
            ck_assert_double_eq(h_get(&i->out[0], j), 0);
        h_free(i);
    }
}
END_TEST

/* Scales are powers of two, so operands that are 2^-100 as large give products that are, too. The last: a subnormal,
 * whose scale would itself not be normal. */
START_TEST(scales_reach_far)
{
    static const int up[][2] = {{-100, 0}, {0, 100}, {-105, 90}, {100, -100}};
    struct h_instr *one = h_make(&square, HD_BF16, 7);
    run(E4M3, one);
    for (int n = 0; n < 4; n++) {
        struct h_instr *i = h_make(&square, HD_BF16, 7);
        for (int64_t j = 0; j < 32 * 32; j++)
            for (int k = 0; k < 2; k++)
                h_set(&i->in[k], j, ldexp(h_get(&i->in[k], j), up[n][k]));
        run(E4M3, i);
        for (int64_t j = 0; j < 32 * 32; j++)
            ck_assert_double_eq(h_get(&i->out[0], j), ldexp(h_get(&one->out[0], j), up[n][0] + up[n][1]));
        h_free(i);
    }
    for (int64_t j = 0; j < 32 * 32; j++) {
        h_set(&one->in[0], j, 0x1p-130);
        h_set(&one->in[1], j, 0x1p100);
    }
    run(E4M3, one);
    for (int64_t j = 0; j < 32 * 32; j++)
        ck_assert_double_eq(h_get(&one->out[0], j), 0x1p-25);
    h_free(one);
}
END_TEST

/* ---- what keeps its dtype: the same bits as without the option */

static int same_as_off(const struct h_case *c, uint32_t dtype, uint32_t logits)
{
    struct h_instr *on = h_make(c, dtype, 3), *off = h_as(on, dtype);
    int same;
    on->d.flags = off->d.flags = logits ? HD_INSTR_LOGITS : 0;
    run(E4M3, on);
    run(OFF, off);
    same = h_distance(&on->out[0], &off->out[0]) == 0;
    h_free(on);
    h_free(off);
    return same;
}

START_TEST(which_products_are_cast)
{
    static const struct {
        struct h_case c;
        uint32_t dtype, logits;
        int cast;
    } all[] = {
        {{"16s", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=32 n=48", {0}}, HD_BF16, 0, 1},
        {{"fp16", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=32 n=48", {0}}, HD_F16, 0, 1},
        {{"logits", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=32 n=48", {0}}, HD_BF16, 1, 0},
        {{"fp32", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=32 n=48", {0}}, HD_F32, 0, 0},
        {{"m", HD_OP_EINSUM, "mk nk", "mn", "m=24 k=32 n=48", {0}}, HD_BF16, 0, 0},
        {{"k", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=40 n=48", {0}}, HD_BF16, 0, 0},
        {{"n", HD_OP_EINSUM, "mk nk", "mn", "m=16 k=32 n=8", {0}}, HD_BF16, 0, 0},
        {{"several products", HD_OP_EINSUM, "aebh aefh", "aebf", "a=2 e=3 b=16 h=16 f=16", {0}}, HD_BF16, 0, 1},
        {{"bias", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=16 h=48 f=80", {0}}, HD_BF16, 0, 1},
        {{"gelu", HD_OP_EINSUM_GELU, "bsh hf f", "bsf bsf", "b=2 s=16 h=48 f=80", {0}}, HD_BF16, 0, 1},
        {{"bias of an odd width", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=16 h=48 f=24", {0}}, HD_BF16, 0, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        ck_assert_msg(same_as_off(&all[i].c, all[i].dtype, all[i].logits) == !all[i].cast, "%s", all[i].c.name);
}
END_TEST

START_TEST(exact_jobs_are_refused)
{
    struct h_device *d = h_open_with(1, H_FAST, "fp8", E4M3);
    struct h_instr *i = h_make(&square, HD_BF16, 1);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    i->d.flags = HD_INSTR_EXACT;
    ck_assert_int_eq(h_prepare(d, i, &k, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "device.fp8=off, or job.deterministic=normal"));
    h_free(i);
    h_close(d);
}
END_TEST

/* ---- what stands behind a product */

static const struct h_case behind[] = {
    {"bias", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=16 h=48 f=80", {0}},
    {"gelu", HD_OP_EINSUM_GELU, "bsh hf f", "bsf bsf", "b=2 s=16 h=48 f=80", {0}},
    {"gelu alone", HD_OP_EINSUM_GELU, "bsh hf f", "bsf", "b=2 s=16 h=48 f=80", {0}},
    {"gelu_grad", HD_OP_EINSUM_GELU_GRAD, "bsh fh bsf", "bsf", "b=2 s=16 h=48 f=80", {0}},
    {"bias_dw", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "f:fh f:f", "b=2 s=16 h=48 f=80", {0}},
    {"bias_dw, added",
     HD_OP_EINSUM_BIAS_DW,
     "bsf bsh",
     "f:fh f:f",
     "b=2 s=16 h=48 f=80",
     {.flags = HD_ATTR_ACCUMULATE}},
};

/* Products of rounded operands; the bias's gradient is the sum of unrounded ones. */
START_TEST(epilogues_run_behind_products_in_fp8)
{
    for (int option = E4M3; option <= HYBRID; option++) {
        struct h_instr *got = h_make(&behind[_i], HD_BF16, 5), *want = h_as(got, HD_F64), *plain = h_as(got, HD_F64);
        got->d.grads = got->d.op >= HD_OP_EINSUM_GELU_GRAD;
        for (uint32_t k = 0; k < 2; k++)
            round_operand(type_of(option, got->d.grads, k), &want->in[k]);
        run(option, got);
        run_reference(want);
        run_reference(plain);
        if (got->d.op == HD_OP_EINSUM_BIAS_DW)
            h_copy(&want->out[1], &plain->out[1]);
        h_near(behind[_i].name, got, want, 1e-2);
        ck_assert_double_ge(h_distance(&got->out[0], &plain->out[0]), 1.5e-2);
        h_free(got);
        h_free(want);
        h_free(plain);
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("fp8");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, roundings_are_those_of_torch, 0, 2);
    tcase_add_loop_test(t, products_are_those_of_rounded_operands, 0, PRODUCTS);
    tcase_add_loop_test(t, products_are_near_those_of_the_operands, 0, PRODUCTS);
    tcase_add_test(t, nan_and_infinity_are_not_lost);
    tcase_add_test(t, zeros_stay_zeros);
    tcase_add_test(t, scales_reach_far);
    tcase_add_test(t, which_products_are_cast);
    tcase_add_test(t, exact_jobs_are_refused);
    tcase_add_loop_test(t, epilogues_run_behind_products_in_fp8, 0, sizeof behind / sizeof behind[0]);
    return suite_run_case("fp8", t);
}
