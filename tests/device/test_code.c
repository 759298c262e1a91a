/* Gradients in few bits: what is decoded and what is left over make the gradient again; fast and reference agree;
 * what is not finite shows, and does not stay. */
#include "conformance/device/harness.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { MOST = 5100 };

struct code_case {
    int64_t n, parts, block;
    uint32_t bits;
};

/* One part or more, parts that do not divide, blocks that do not divide parts, one element. */
static const struct code_case cases[] = {
    {1024, 1, 256, 8}, {1024, 2, 256, 4}, {1000, 3, 64, 8},   {4999, 4, 1024, 4},
    {1, 2, 16, 8},     {17, 2, 16, 4},    {3000, 2, 4096, 8},
};

struct round { /* one gradient on its way */
    struct code_case c;
    int64_t part, bytes;
    float g[MOST], e[MOST], y[MOST];
    uint8_t *code;
};

static struct hd_operand vector(void *data, uint32_t dtype, int64_t n)
{
    return (struct hd_operand){.data = data, .dtype = dtype, .ndim = 1, .dim = {1}, .extent = {n}};
}

static void run(struct h_device *d, struct round *r, uint32_t op, uint32_t flags, struct hd_operand in,
                struct hd_operand out, struct hd_operand error, const struct hd_range *ranges, uint64_t n_ranges)
{
    struct h_instr i = {
        .d = {.struct_size = sizeof i.d, .op = op, .n_in = 1, .n_out = op == HD_OP_ENCODE ? 2 : 1, .label = "code"},
        .in = {in},
        .out = {out, error}};
    i.d.in = i.in;
    i.d.out = i.out;
    i.d.attrs = (struct hd_attrs){.struct_size = sizeof i.d.attrs,
                                  .index = r->c.bits,
                                  .window = r->c.block,
                                  .parts = (uint32_t)r->c.parts,
                                  .flags = flags,
                                  .ranges = ranges,
                                  .n_ranges = n_ranges};
    h_run(d, &i);
}

static struct round *round_new(const struct code_case *c, uint64_t seed)
{
    struct round *r = calloc(1, sizeof *r);
    r->c = *c;
    r->part = hd_code_part(c->n, c->parts);
    r->bytes = hd_code_bytes(r->part, c->block, c->bits);
    r->code = aligned_alloc(64, (size_t)(c->parts * r->bytes + 63) / 64 * 64);
    for (int64_t i = 0; i < c->n; i++) {
        r->g[i] = (float)(h_random(&seed) * exp(4 * h_random(&seed)));
        r->e[i] = (float)(0.01 * h_random(&seed));
    }
    return r;
}

static void round_free(struct round *r)
{
    free(r->code);
    free(r);
}

/* All but a gap of three elements, where there is room for one. */
static void encode(struct h_device *d, struct round *r)
{
    struct hd_range ranges[2] = {{0, r->c.n, 1}};
    uint64_t n = 1;
    if (r->c.n > 20) {
        ranges[0].count = 10;
        ranges[1] = (struct hd_range){13, r->c.n - 13, 1};
        n = 2;
    }
    run(d, r, HD_OP_ENCODE, HD_ATTR_ACCUMULATE, vector(r->g, HD_F32, r->c.n),
        vector(r->code, HD_U8, r->c.parts * r->bytes), vector(r->e, HD_F32, r->c.n), ranges, n);
}

static void decode(struct h_device *d, struct round *r)
{
    run(d, r, HD_OP_DECODE, HD_ATTR_CONCAT, vector(r->code, HD_U8, r->c.parts * r->bytes), vector(r->y, HD_F32, r->c.n),
        (struct hd_operand){0}, NULL, 0);
}

static int in_gap(const struct round *r, int64_t i)
{
    return r->c.n > 20 && i >= 10 && i < 13;
}

START_TEST(what_is_left_out_is_carried_over)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(2, kernels);
        struct round *r = round_new(&cases[_i], 5);
        float before[MOST];
        memcpy(before, r->e, sizeof before);
        encode(d, r);
        decode(d, r);
        for (int64_t i = 0; i < r->c.n; i++) {
            double x = (double)r->g[i] + before[i], most = 0;
            int64_t first = i / r->part * r->part + i % r->part / r->c.block * r->c.block;
            for (int64_t j = first; j < first + r->c.block && j < r->c.n && j < (i / r->part + 1) * r->part; j++)
                most = fmax(most, in_gap(r, j) ? 0 : fabs((double)r->g[j] + before[j]));
            if (in_gap(r, i)) {
                ck_assert(r->y[i] == 0);
                continue;
            }
            ck_assert_double_le(fabs(r->y[i] - x), most / (r->c.bits == 8 ? 127 : 7) * 0.5001);
            ck_assert_double_le(fabs(r->y[i] + (double)r->e[i] - x), 1e-6 * most);
        }
        round_free(r);
        h_close(d);
    }
}
END_TEST

START_TEST(fast_codes_are_the_reference_codes)
{
    struct h_device *fast = h_open(3, H_FAST), *one = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct round *a = round_new(&cases[_i], 9), *b = round_new(&cases[_i], 9), *c = round_new(&cases[_i], 9);
    int64_t apart = 0;
    memset(a->code, 1, (size_t)(a->c.parts * a->bytes)); /* all of it is written */
    encode(fast, a);
    encode(one, b);
    encode(plain, c);
    ck_assert(!memcmp(a->code, b->code, (size_t)(a->c.parts * a->bytes)));
    decode(fast, a);
    decode(plain, c);
    for (int64_t i = 0; i < a->c.n; i++) /* g + e is rounded to fp32 in one and not in the other: ties may differ */
        apart += fabsf(a->y[i] - c->y[i]) > 1e-5f * (1 + fabsf(c->y[i]));
    ck_assert_int_le(apart, a->c.n / 500);
    round_free(a);
    round_free(b);
    round_free(c);
    h_close(fast);
    h_close(one);
    h_close(plain);
}
END_TEST

/* Parts of several members of one shard: decoding adds them up. */
START_TEST(parts_are_summed)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct code_case whole = cases[_i];
        whole.n = hd_code_part(whole.n, whole.parts) * whole.parts;
        struct round *r = round_new(&whole, 3);
        float sum[MOST] = {0};
        encode(d, r);
        decode(d, r);
        run(d, r, HD_OP_DECODE, 0, vector(r->code, HD_U8, r->c.parts * r->bytes), vector(sum, HD_F32, r->part),
            (struct hd_operand){0}, NULL, 0);
        for (int64_t i = 0; i < r->part; i++) {
            double want = 0;
            for (int64_t p = 0; p < r->c.parts; p++)
                want += r->y[p * r->part + i];
            ck_assert_double_le(fabs(sum[i] - want), 1e-5 * (1 + fabs(want)));
        }
        round_free(r);
        h_close(d);
    }
}
END_TEST

START_TEST(not_a_number_shows_and_does_not_stay)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (int b = 0; b < 3; b++) {
            struct h_device *d = h_open(1, kernels);
            struct round *r = round_new(&cases[0], 1);
            float before[MOST];
            memcpy(before, r->e, sizeof before);
            r->g[300] = bad[b]; /* in the second block of four */
            encode(d, r);
            decode(d, r);
            for (int64_t i = 0; i < r->c.n; i++) {
                int block = i >= 256 && i < 512;
                ck_assert(block ? isnan(r->y[i]) && r->e[i] == before[i] : isfinite(r->y[i]) && isfinite(r->e[i]));
            }
            round_free(r);
            h_close(d);
        }
}
END_TEST

START_TEST(codes_that_do_not_fit_are_refused)
{
    static const struct {
        uint32_t bits;
        int64_t block;
        int64_t more; /* bytes beyond what fits */
        int64_t part; /* decoded: as many elements; their scales would lie anywhere, or on the last code */
    } bad[] = {{5, 64, 0, 0},   {8, 60, 0, 0},  {8, 0, 0, 0},  {8, 64, 16, 0},
               {4, 64, -16, 0}, {8, 64, 0, 21}, {4, 64, 0, 21}};
    struct h_device *d = h_open(1, H_FAST);
    static float g[64], e[64];
    static uint8_t code[1024];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t bytes = bad[i].part                        ? hd_code_bytes(bad[i].part, bad[i].block, bad[i].bits)
                        : bad[i].block && bad[i].bits != 5 ? hd_code_bytes(64, bad[i].block, bad[i].bits) + bad[i].more
                                                           : 64;
        struct hd_operand in = vector(g, HD_F32, 64), out[2] = {vector(code, HD_U8, bytes), vector(e, HD_F32, 64)},
                          sum = vector(g, HD_F32, bad[i].part);
        struct hd_instr_desc desc = {
            .struct_size = sizeof desc, .op = HD_OP_ENCODE, .n_in = 1, .n_out = 2, .in = &in, .out = out};
        if (bad[i].part) {
            desc.op = HD_OP_DECODE;
            desc.n_out = 1;
            desc.in = out;
            desc.out = &sum;
        }
        struct hd_error err = HD_ERROR_INIT;
        struct hd_kernel *k;
        desc.attrs = (struct hd_attrs){
            .struct_size = sizeof desc.attrs, .index = bad[i].bits, .window = bad[i].block, .parts = 1};
        ck_assert_int_eq(d->ops->prepare(d->device, &desc, &k, &err), HD_E_INVALID);
    }
    h_close(d);
}
END_TEST

int main(void)
{
    const int n = sizeof cases / sizeof cases[0];
    TCase *t = tcase_create("code");
    tcase_add_loop_test(t, what_is_left_out_is_carried_over, 0, n);
    tcase_add_loop_test(t, fast_codes_are_the_reference_codes, 0, n);
    tcase_add_loop_test(t, parts_are_summed, 0, n);
    tcase_add_test(t, not_a_number_shows_and_does_not_stay);
    tcase_add_test(t, codes_that_do_not_fit_are_refused);
    return suite_run_case("code", t);
}
