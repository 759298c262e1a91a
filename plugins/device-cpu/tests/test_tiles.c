/* The micro-kernels of every instruction set that this machine has, not only the best: packing from any
 * strides and dtype, products of panels, storing, and the rows of softmax, against plain loops in double. */
#include "attention/softmax.h"
#include "heddle/types.h"
#include "kernels/half.h"
#include "products/tiles.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_K = 80, ROOM = 4096 };

static float uniform(void)
{
    static uint32_t state = 12345;
    state = state * 1664525 + 1013904223;
    return (float)(state >> 8) / 8388608.0f - 1;
}

static uint16_t half_of(float value)
{
    uint32_t x;
    memcpy(&x, &value, 4);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

static float from_half(uint16_t half)
{
    uint32_t x = (uint32_t)half << 16;
    float value;
    memcpy(&value, &x, 4);
    return value;
}

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    ck_assert_ptr_nonnull(p);
    memset(p, 0xff, bytes); /* NaN: what packing does not write shows */
    return p;
}

/* A matrix of steps x terms in fp32, bf16 or fp16, and its values: bf16 near 1 fits into fp16 too. */
struct matrix {
    uint32_t dtype;
    int64_t step, k_step;
    void *data;
    double *value; /* [steps][MOST_K] */
};

/* layout 0: terms side by side; 1: steps side by side; 2: neither. */
static struct matrix matrix_make(uint32_t dtype, int layout, int64_t steps, int64_t k)
{
    struct matrix x = {.dtype = dtype, .data = room(ROOM * 8), .value = calloc((size_t)(steps * MOST_K), 8)};
    x.step = layout == 0 ? k + 3 : layout == 1 ? 1 : 2;
    x.k_step = layout == 0 ? 1 : layout == 1 ? steps + 5 : 2 * steps;
    for (int64_t i = 0; i < steps; i++)
        for (int64_t p = 0; p < k; p++) {
            float v = from_half(half_of(uniform()));
            if (dtype == HD_F32)
                ((float *)x.data)[i * x.step + p * x.k_step] = v;
            else if (dtype == HD_F16)
                ((_Float16 *)x.data)[i * x.step + p * x.k_step] = (_Float16)v;
            else
                ((uint16_t *)x.data)[i * x.step + p * x.k_step] = half_of(v);
            x.value[i * MOST_K + p] = v;
        }
    return x;
}

static void matrix_free(struct matrix *x)
{
    free(x->data);
    free(x->value);
}

static void product_check(const struct cpu_tiles *t, uint32_t dtype, int layout, int64_t rows, int64_t cols, int64_t k)
{
    struct matrix a = matrix_make(dtype, layout, rows, k), b = matrix_make(dtype, (layout + 1) % 3, cols, k);
    void *pa = room((size_t)cpu_tiles_panel_a(t, k)), *pb = room((size_t)cpu_tiles_panel_b(t, k));
    float *c = room((size_t)(t->mr * t->nr) * 4);
    t->begin();
    t->pack_a(pa, a.data, dtype, a.step, a.k_step, rows, k);
    t->pack_b(pb, b.data, dtype, b.step, b.k_step, cols, k);
    t->kernel(k, pa, pb, c, t->nr, 0);
    t->kernel(k, pa, pb, c, t->nr, 1);
    t->end();
    for (int64_t i = 0; i < t->mr; i++)
        for (int64_t j = 0; j < t->nr; j++) {
            double want = 0;
            for (int64_t p = 0; p < k && i < rows && j < cols; p++)
                want += 2 * a.value[i * MOST_K + p] * b.value[j * MOST_K + p];
            ck_assert_msg(fabs(c[i * t->nr + j] - want) <= 1e-5, "%s, layout %d, %d x %d x %d at %d %d: %g, not %g",
                          t->name, layout, (int)rows, (int)cols, (int)k, (int)i, (int)j, c[i * t->nr + j], want);
        }
    matrix_free(&a);
    matrix_free(&b);
    free(pa);
    free(pb);
    free(c);
}

START_TEST(products_of_panels)
{
    static const int64_t terms[] = {1, 2, 31, 32, 33, 64, 77};
    for (int i = 0; cpu_tiles_at(i); i++)
        for (int layout = 0; layout < 3; layout++)
            for (size_t k = 0; k < sizeof terms / sizeof terms[0]; k++)
                for (uint32_t dtype = HD_F32; dtype <= HD_F16; dtype++) {
                    const struct cpu_tiles *t = cpu_tiles_at(i);
                    if (dtype == HD_F16 && t->bytes == 2) /* never chosen for fp16, which it would round */
                        continue;
                    product_check(t, dtype, layout, t->mr, t->nr, terms[k]);
                    product_check(t, dtype, layout, t->mr - 1, t->nr / 2 + 1, terms[k]);
                    product_check(t, dtype, layout, 1, 1, terms[k]);
                }
}
END_TEST

/* A panel of a as it lies gives the bits of the packed one. */
static void lying_check(const struct cpu_tiles *t, int layout, int64_t k)
{
    uint32_t dtype = t->bytes == 4 ? HD_F32 : HD_BF16;
    struct matrix a = matrix_make(dtype, layout, t->mr, k), b = matrix_make(dtype, 0, t->nr, k);
    void *pa = room((size_t)cpu_tiles_panel_a(t, k)), *pb = room((size_t)cpu_tiles_panel_b(t, k));
    size_t bytes = (size_t)(t->mr * t->nr) * 4;
    float *packed = room(bytes), *lying = room(bytes);
    t->begin();
    t->pack_a(pa, a.data, dtype, a.step, a.k_step, t->mr, k);
    t->pack_b(pb, b.data, dtype, b.step, b.k_step, t->nr, k);
    for (int add = 0; add < 2; add++) {
        t->kernel(k, pa, pb, packed, t->nr, add);
        t->kernel_rows(k, a.data, a.step * t->bytes, a.k_step * t->bytes, pb, lying, t->nr, add);
    }
    t->end();
    ck_assert_msg(memcmp(packed, lying, bytes) == 0, "%s, layout %d, %d terms", t->name, layout, (int)k);
    matrix_free(&a);
    matrix_free(&b);
    free(pa);
    free(pb);
    free(packed);
    free(lying);
}

START_TEST(rows_as_they_lie)
{
    const struct cpu_tiles *t;
    for (int i = 0; (t = cpu_tiles_at(i)); i++)
        for (int layout = 0; layout < (t->any_order ? 3 : 1) && t->kernel_rows; layout++)
            for (int64_t k = t->kr; k <= MOST_K; k += t->kr)
                lying_check(t, layout, k);
}
END_TEST

/* The second of two panels lies where products.h says. */
START_TEST(panels_follow_each_other)
{
    enum { K = 40 };
    for (int i = 0; cpu_tiles_at(i); i++)
        for (int layout = 0; layout < 3; layout++) {
            const struct cpu_tiles *t = cpu_tiles_at(i);
            struct matrix a = matrix_make(HD_BF16, layout, t->mr + 1, K),
                          b = matrix_make(HD_BF16, layout, t->nr + 1, K);
            char *pa = room((size_t)cpu_tiles_panel_a(t, K) * 2), *pb = room((size_t)cpu_tiles_panel_b(t, K) * 2);
            float *c = room((size_t)(t->mr * t->nr) * 4);
            double want = 0;
            t->begin();
            t->pack_a(pa, a.data, HD_BF16, a.step, a.k_step, t->mr + 1, K);
            t->pack_b(pb, b.data, HD_BF16, b.step, b.k_step, t->nr + 1, K);
            t->kernel(K, pa + cpu_tiles_panel_a(t, K), pb + cpu_tiles_panel_b(t, K), c, t->nr, 0);
            t->end();
            for (int64_t p = 0; p < K; p++)
                want += a.value[t->mr * MOST_K + p] * b.value[t->nr * MOST_K + p];
            ck_assert_float_eq_tol(c[0], (float)want, 1e-5);
            ck_assert_float_eq(c[1], 0);
            matrix_free(&a);
            matrix_free(&b);
            free(pa);
            free(pb);
            free(c);
        }
}
END_TEST

START_TEST(sums_are_stored)
{
    enum { ROWS = 3, LD = 50, SRC_LD = 32 };
    for (int i = 0; cpu_tiles_at(i); i++)
        for (int64_t cols = 1; cols <= 32; cols++)
            for (int add = 0; add < 2; add++) {
                float src[ROWS * SRC_LD], fp32[ROWS * LD];
                uint16_t bf16[ROWS * LD];
                uint16_t fp16[ROWS * LD];
                for (int j = 0; j < ROWS * SRC_LD; j++)
                    src[j] = uniform();
                for (int j = 0; j < ROWS * LD; j++) {
                    fp32[j] = 0.5f;
                    bf16[j] = half_of(0.5f);
                    fp16[j] = cpu_half_round(0.5f);
                }
                cpu_tiles_at(i)->store(fp32, HD_F32, LD, src, SRC_LD, ROWS, cols, add);
                cpu_tiles_at(i)->store(bf16, HD_BF16, LD, src, SRC_LD, ROWS, cols, add);
                cpu_tiles_at(i)->store(fp16, HD_F16, LD, src, SRC_LD, ROWS, cols, add);
                for (int r = 0; r < ROWS; r++)
                    for (int j = 0; j < LD; j++) {
                        float want = j < cols ? src[r * SRC_LD + j] + (add ? 0.5f : 0) : 0.5f;
                        ck_assert_float_eq(fp32[r * LD + j], want);
                        ck_assert_uint_eq(bf16[r * LD + j], half_of(want));
                        ck_assert_uint_eq(fp16[r * LD + j], cpu_half_round(want)); /* which is tested below */
                    }
            }
}
END_TEST

/* ---- rows of scores */

/* Is a value that was written as `kind` what it should be? */
static int close_to(const void *row, int kind, int i, double want, double within)
{
    double got = kind == CPU_ROWS_F32 ? ((const float *)row)[i] : from_half(((const uint16_t *)row)[i]);
    return fabs(got - want) <= within + (kind == CPU_ROWS_BF16 ? 0.00391 * fabs(want) : 0);
}

static void row_check(const struct cpu_softmax *s, struct cpu_visible_span visible, int kind)
{
    float x[96], p[96], ds[96], dp[96], lse[96], delta[96], slopes[96], most = -INFINITY;
    double sum = 0;
    for (int i = 0; i < 96; i++) {
        x[i] = 20 * uniform();
        dp[i] = uniform();
        lse[i] = 20;
        delta[i] = uniform();
        slopes[i] = uniform();
        if (i >= visible.first && i < visible.last)
            most = fmaxf(most, x[i]);
    }
    ck_assert_float_eq(s->most(x, &visible), most);
    float got = s->exp[kind](x, p, &visible, 0.7f, 0.7f * most);
    for (int i = 0; i < visible.total; i++) {
        double want = i >= visible.first && i < visible.last ? exp(0.7 * x[i] - 0.7 * most) : 0;
        ck_assert_msg(close_to(p, kind, i, want, 4e-6 * want), "exp at %d, not %g", i, want);
        sum += want;
    }
    ck_assert_msg(fabs(got - sum) <= 4e-6 * sum, "sum %g, not %g", got, sum);
    for (int capped = 0; capped < 2; capped++) {
        struct cpu_softmax_row row = {x, dp, lse, delta, capped ? slopes : NULL};
        s->grad[kind](&row, p, ds, &visible, 0.7f);
        for (int i = 0; i < visible.total; i++) {
            double want = i >= visible.first && i < visible.last ? exp(0.7 * x[i] - 20) : 0;
            double slope = 0.7 * want * ((double)dp[i] - delta[i]) * (capped ? slopes[i] : 1);
            ck_assert_msg(close_to(p, kind, i, want, 4e-6 * want), "weight at %d, not %g", i, want);
            ck_assert_msg(close_to(ds, kind, i, slope, 1e-5 * want), "slope at %d, not %g", i, slope);
        }
    }
}

START_TEST(rows_of_softmax)
{
    for (int isa = 0; isa <= cpu_isa_best(); isa++)
        for (int kind = 0; kind < CPU_ROWS && cpu_softmax_of(isa)->exp[kind]; kind++)
            for (int64_t first = 0; first < 40; first += 3)
                for (int64_t last = first + 1; last < 80; last += 5)
                    row_check(cpu_softmax_of(isa), (struct cpu_visible_span){first, last, (last + 15) / 16 * 16}, kind);
}
END_TEST

START_TEST(exp_far_below_zero_is_small_and_nan_stays)
{
    for (int isa = 0; isa <= cpu_isa_best(); isa++) {
        float x[16] = {-1e30f, -INFINITY, -100, NAN, 0};
        uint32_t odd_nan = 0x7f800001; /* the payload of a NaN takes no part */
        struct cpu_visible_span visible = {0, 6, 16};
        memcpy(&x[5], &odd_nan, sizeof odd_nan);
        ck_assert(isnan(cpu_softmax_of(isa)->exp[CPU_ROWS_F32](x, x, &visible, 1, 0)));
        for (int i = 0; i < 3; i++)
            ck_assert(x[i] >= 0 && x[i] < 1e-37f);
        ck_assert(isnan(x[3]) && isnan(x[5]));
        ck_assert_float_eq(x[4], 1);
    }
}
END_TEST

START_TEST(exp_of_small_numbers_is_within_two_ulp)
{
    struct cpu_visible_span visible = {0, 16, 16};
    for (int isa = 0; isa <= cpu_isa_best(); isa++)
        for (int at = 0; at < 16384; at += 16) {
            float x[16], y[16];
            for (int i = 0; i < 16; i++)
                x[i] = -(float)(at + i) / 8192;
            cpu_softmax_of(isa)->exp[CPU_ROWS_F32](x, y, &visible, 1, 0);
            for (int i = 0; i < 16; i++)
                ck_assert_msg(fabs(y[i] / exp(x[i]) - 1) <= 2 * 1.2e-7, "exp(%g) is %g", x[i], y[i]);
        }
}
END_TEST

enum { KEYS = 96, COLS = 32, ALL = 40, UNSEEN = 5 };

/* Key `key` of column `column` in a panel of b of tiles_amx.c. */
static float in_panel(const uint16_t *panel, int key, int column)
{
    int pair = key / 2;
    return from_half(panel[2 * (pair / 16 * 512 + column / 16 * 256 + pair % 16 * 16 + column % 16) + key % 2]);
}

/* Column i sees keys 0 .. ALL + i, column UNSEEN none while `whole` is 0. Scores are about 2 `raise`. */
static void columns_check(const struct cpu_softmax *s, float most2[COLS], float total[COLS], float raise, int moves,
                          int whole)
{
    static float scores[KEYS * COLS];
    static uint16_t panel[KEYS * COLS];
    float shrink[COLS], before[COLS], sums[COLS];
    for (int i = 0; i < KEYS * COLS; i++)
        scores[i] = i / COLS > ALL + i % COLS || (!whole && i % COLS == UNSEEN) ? -INFINITY : 3 * uniform() + 2 * raise;
    struct cpu_columns c = {KEYS, {0, whole ? ALL : 0}, most2, total, shrink};
    memcpy(before, most2, sizeof before);
    memcpy(sums, total, sizeof sums);
    ck_assert_int_eq(s->columns(scores, &c, panel, 0.5f), moves);
    for (int j = 0; j < COLS; j++) {
        double sum = before[j] > -INFINITY ? sums[j] * exp2((double)before[j] - most2[j]) : 0;
        ck_assert(moves || before[j] == most2[j]);
        for (int k = 0; k < KEYS; k++) {
            double x = scores[k * COLS + j], want = x > -INFINITY ? exp(0.5 * x - most2[j] * M_LN2) : 0;
            sum += want;
            ck_assert_msg(fabs(in_panel(panel, k, j) - want) <= 0.00391 * want, "key %d of column %d", k, j);
        }
        ck_assert_msg(fabs(total[j] - sum) <= 1e-5 * sum, "column %d: sum %g, not %g", j, total[j], sum);
        if (moves && before[j] > -INFINITY)
            ck_assert_float_eq_tol(shrink[j], exp2((double)before[j] - most2[j]), 1e-6);
    }
    ck_assert(whole || (total[UNSEEN] == 0 && most2[UNSEEN] == -INFINITY));
}

START_TEST(columns_of_softmax)
{
    for (int isa = 0; isa <= cpu_isa_best(); isa++) {
        float most2[COLS], total[COLS] = {0};
        if (!cpu_softmax_of(isa)->columns)
            continue;
        for (int i = 0; i < COLS; i++)
            most2[i] = -INFINITY;
        columns_check(cpu_softmax_of(isa), most2, total, 0, 1, 0);
        columns_check(cpu_softmax_of(isa), most2, total, 2, 0, 0); /* 2 / ln 2 higher: less than 8 */
        columns_check(cpu_softmax_of(isa), most2, total, 20, 1, 0);
        columns_check(cpu_softmax_of(isa), most2, total, 20, 1, 1); /* one more column sees keys */
        columns_check(cpu_softmax_of(isa), most2, total, -20, 0, 1);
    }
}
END_TEST

START_TEST(dots)
{
    uint16_t half[70];
    float full[70];
    double want = 0;
    for (int i = 0; i < 70; i++) {
        full[i] = uniform();
        half[i] = half_of(uniform());
        want += (double)full[i] * from_half(half[i]);
        for (int isa = 0; isa <= cpu_isa_best(); isa++)
            ck_assert_float_eq_tol(cpu_softmax_of(isa)->dot(full, HD_F32, half, HD_BF16, i + 1), (float)want, 1e-5);
    }
}
END_TEST

/* ---- half precision, against the compiler's */

static int is_nan(uint16_t h)
{
    return (h & 0x7c00) == 0x7c00 && h & 0x3ff;
}

START_TEST(every_half_is_widened)
{
    static uint16_t half[65536];
    static float fast[65536];
    for (int i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    cpu_half_to_float(fast, half, 65536);
    for (int i = 0; i < 65536; i++) {
        _Float16 h;
        memcpy(&h, &half[i], 2);
        float want = h, plain = cpu_half_float(half[i]);
        ck_assert(is_nan(half[i]) ? isnan(plain) && isnan(fast[i])
                                  : !memcmp(&plain, &want, 4) && !memcmp(&fast[i], &want, 4));
    }
}
END_TEST

static void round_check(const float *x, int n)
{
    uint16_t fast[512], want;
    cpu_half_from_float(fast, x, n);
    for (int i = 0; i < n; i++) {
        _Float16 h = (_Float16)x[i];
        uint16_t plain = cpu_half_round(x[i]);
        memcpy(&want, &h, 2);
        ck_assert_msg(is_nan(want) ? is_nan(plain) && is_nan(fast[i]) : plain == want && fast[i] == want,
                      "%a: %04x by integers, %04x by the machine, not %04x", x[i], plain, fast[i], want);
    }
}

/* Every exponent and sign with the bits of the mantissa that decide: ties, just above and below, carries. */
START_TEST(floats_are_rounded_to_half)
{
    static const uint32_t tails[] = {0,      1,      0xfff,    0x1000,   0x1001,   0x1fff,   0x2000,  0x2fff,
                                     0x3000, 0x3001, 0x3fffff, 0x400000, 0x7fefff, 0x7ff000, 0x7fffff};
    float x[512];
    int n = 0;
    for (uint32_t top = 0; top < 512; top++)
        for (size_t t = 0; t < sizeof tails / sizeof tails[0]; t++) {
            uint32_t bits = top << 23 | tails[t];
            memcpy(&x[n++], &bits, 4);
            if (n == 512) {
                round_check(x, n);
                n = 0;
            }
        }
    round_check(x, n);
    for (uint32_t i = 0; i < 1u << 20; i += 512) { /* subnormal halves, in steps of a part of their last place */
        for (n = 0; n < 512; n++)
            x[n] = (float)(i + (uint32_t)n) * 0x1p-34f * (n & 1 ? -1 : 1);
        round_check(x, 511);
    }
}
END_TEST

/* ---- device.isa */

START_TEST(each_instruction_set_chooses_its_own)
{
    static const struct {
        int vectors;
        const char *fp32, *bf16;
    } want[CPU_ISA_COUNT] = {[CPU_ISA_AVX2] = {CPU_AVX2, "avx2", "avx2"},
                             [CPU_ISA_AVX512] = {CPU_AVX512, "avx512", "avx512"},
                             [CPU_ISA_AVX512_BF16] = {CPU_AVX512, "avx512", "avx512-bf16"},
                             [CPU_ISA_AMX] = {CPU_AVX512, "avx512", "amx-bf16"}};
    struct hd_error err = HD_ERROR_INIT;
    int best = cpu_isa();
    ck_assert_int_eq(best, cpu_isa_best());
    for (int isa = CPU_ISA_AVX2; isa <= best; isa++) {
        int other = isa == CPU_ISA_AVX2 ? CPU_ISA_AUTO : CPU_ISA_AVX2;
        ck_assert_msg(cpu_isa_open(isa, &err) == HD_OK, "%s", err.message);
        ck_assert_int_eq(cpu_isa(), isa);
        ck_assert_int_eq(cpu_vectors(), want[isa].vectors);
        ck_assert_str_eq(cpu_tiles_choose(HD_F32)->name, want[isa].fp32);
        ck_assert_str_eq(cpu_tiles_choose(HD_BF16)->name, want[isa].bf16);
        ck_assert(!cpu_tiles_amx() == (isa < CPU_ISA_AMX) && !cpu_tiles_dots() == (isa < CPU_ISA_AVX512_BF16));
        ck_assert_int_eq(cpu_isa_open(isa, &err), HD_OK); /* two devices may share one */
        ck_assert_int_eq(cpu_isa_open(other, &err), HD_E_INVALID);
        ck_assert_msg(strstr(err.message, "another device of this process is open with") != NULL, "%s", err.message);
        cpu_isa_close();
        cpu_isa_close();
    }
    for (int isa = best + 1; isa < CPU_ISA_COUNT; isa++) {
        ck_assert_int_eq(cpu_isa_open(isa, &err), HD_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, cpu_isa_name(isa)) != NULL, "%s", err.message);
    }
    ck_assert_int_eq(cpu_isa_open(CPU_ISA_AUTO, &err), HD_OK);
    ck_assert_int_eq(cpu_isa(), best);
    cpu_isa_close();
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("tiles");
    tcase_add_test(t, products_of_panels);
    tcase_add_test(t, rows_as_they_lie);
    tcase_add_test(t, panels_follow_each_other);
    tcase_add_test(t, sums_are_stored);
    tcase_add_test(t, rows_of_softmax);
    tcase_add_test(t, exp_of_small_numbers_is_within_two_ulp);
    tcase_add_test(t, columns_of_softmax);
    tcase_add_test(t, exp_far_below_zero_is_small_and_nan_stays);
    tcase_add_test(t, dots);
    tcase_add_test(t, every_half_is_widened);
    tcase_add_test(t, floats_are_rounded_to_half);
    tcase_add_test(t, each_instruction_set_chooses_its_own);
    return suite_run_case("tiles", t);
}
