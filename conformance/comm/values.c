#include "conformance/comm/values.h"

#include <math.h>
#include <string.h>

#include "heddle/types.h"

/* Elements are made, reduced and compared by so many: what they are is asked once a block, not of each. */
enum { BLOCK = 256 };

union block { /* of a dtype */
    float f32[BLOCK];
    uint16_t bf16[BLOCK];
    _Float16 f16[BLOCK];
    double f64[BLOCK];
    int32_t i32[BLOCK];
    uint8_t u8[BLOCK];
};

static int is_integer(uint32_t dtype)
{
    return dtype == HD_I32 || dtype == HD_U8;
}

/* ---- what members contribute */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static void make_bits(uint64_t *bits, uint64_t seed, int m, uint64_t first, size_t n)
{
    uint64_t operation = (seed & ~VALUES_KIND) * 1000003 + (uint64_t)m * 7919;
    for (size_t i = 0; i < n; i++)
        bits[i] = mix(operation + (first + i) * UINT64_C(0x9e3779b97f4a7c15));
}

/* Halves of the least, ties, what overflows in one dtype and not in another: every third value. */
static double special(uint64_t h, double v)
{
    static const double table[] = {0.0,       -0.0,     INFINITY, -INFINITY, NAN,     0x1.fffffep127, -0x1.fffffep127,
                                   65504,     65519,    -65520,   0x1p-24,   0x1p-25, -0x1.8p-24,     0x1p-126,
                                   -0x1p-149, 0x1.01p0, 0x1.03p0, 1};
    return h % 3 ? v : table[h / 3 % (sizeof table / sizeof *table)];
}

/* Not yet rounded to the dtype; but for HD_F64 all are numbers of 24 bits, which float has. */
static void make_numbers(double *v, uint32_t dtype, uint64_t seed, int m, uint64_t first, size_t n)
{
    uint64_t bits[BLOCK];
    make_bits(bits, seed, m, first, n);
    if (seed & VALUES_WHOLE)
        for (size_t i = 0; i < n; i++)
            v[i] = (int32_t)(bits[i] >> 50 & 7) - 4;
    else if (dtype == HD_F64)
        for (size_t i = 0; i < n; i++)
            v[i] = (double)(int64_t)bits[i] * 0x1p-60;
    else
        for (size_t i = 0; i < n; i++) /* -16 to 16 */
            v[i] = ((double)(int32_t)(bits[i] >> 40) / (1 << 22) - 2) * (1 << (bits[i] & 3));
    for (size_t i = 0; seed & VALUES_SPECIAL && i < n; i++)
        v[i] = special(bits[i] >> 8, v[i]);
}

/* ---- dtypes */

static float bf16_value(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The nearest of the two neighbours, which are 2^16 apart here; the even one of two equally near. Above the largest
 * number lies 2^128, which is infinity; and nothing is beyond that. */
static uint16_t bf16_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t below = u >> 16, beyond = u & 0xffff;
    uint32_t nearest = below + ((beyond > 0x8000) | ((beyond == 0x8000) & below));
    return (uint16_t)(isnan(f) ? 0x7fc0 : nearest);
}

static void round_numbers(union block *out, uint32_t dtype, const double *v, size_t n)
{
    if (dtype == HD_F32)
        for (size_t i = 0; i < n; i++)
            out->f32[i] = (float)v[i];
    else if (dtype == HD_BF16)
        for (size_t i = 0; i < n; i++)
            out->bf16[i] = bf16_round((float)v[i]);
    else if (dtype == HD_F16)
        for (size_t i = 0; i < n; i++)
            out->f16[i] = (_Float16)(float)v[i];
    else
        memcpy(out->f64, v, n * sizeof *v);
}

static void widen_numbers(double *v, uint32_t dtype, const union block *in, size_t n)
{
    if (dtype == HD_F32)
        for (size_t i = 0; i < n; i++)
            v[i] = in->f32[i];
    else if (dtype == HD_BF16)
        for (size_t i = 0; i < n; i++)
            v[i] = bf16_value(in->bf16[i]);
    else if (dtype == HD_F16)
        for (size_t i = 0; i < n; i++)
            v[i] = (double)in->f16[i];
    else
        memcpy(v, in->f64, n * sizeof *v);
}

static void cut_integers(union block *out, uint32_t dtype, const int64_t *v, size_t n)
{
    if (dtype == HD_I32)
        for (size_t i = 0; i < n; i++)
            out->i32[i] = (int32_t)v[i];
    else
        for (size_t i = 0; i < n; i++)
            out->u8[i] = (uint8_t)v[i];
}

static void fill_block(union block *out, uint32_t dtype, uint64_t seed, int m, uint64_t first, size_t n)
{
    double v[BLOCK];
    uint64_t bits[BLOCK];
    if (is_integer(dtype)) {
        make_bits(bits, seed, m, first, n);
        cut_integers(out, dtype, (const int64_t *)bits, n);
    } else {
        make_numbers(v, dtype, seed, m, first, n);
        round_numbers(out, dtype, v, n);
    }
}

/* ---- reductions */

static void reduce_integers(union block *out, uint32_t dtype, uint32_t redop, uint64_t seed, int members,
                            uint64_t first, size_t n)
{
    int64_t all[BLOCK] = {0};
    for (int m = 0; m < members; m++) {
        union block one;
        fill_block(&one, dtype, seed, m, first, n);
        for (size_t i = 0; i < n; i++) {
            int64_t v = dtype == HD_I32 ? one.i32[i] : one.u8[i];
            all[i] = redop != HD_MAX ? all[i] + v : m == 0 || v > all[i] ? v : all[i];
        }
    }
    for (size_t i = 0; redop == HD_AVG && i < n; i++)
        all[i] /= members;
    cut_integers(out, dtype, all, n);
}

/* Members m .. m + members - 1, in the tree of heddle/comm.h: sums in float, but for HD_F64. */
static void reduce_numbers(double *v, uint32_t dtype, uint32_t redop, uint64_t seed, int m, int members, uint64_t first,
                           size_t n)
{
    int left = 1;
    if (members == 1) {
        union block one;
        fill_block(&one, dtype, seed, m, first, n);
        widen_numbers(v, dtype, &one, n);
        return;
    }
    while (2 * left < members)
        left *= 2;
    double right[BLOCK];
    reduce_numbers(v, dtype, redop, seed, m, left, first, n);
    reduce_numbers(right, dtype, redop, seed, m + left, members - left, first, n);
    if (redop == HD_MAX)
        for (size_t i = 0; i < n; i++)
            v[i] = isnan(v[i]) || v[i] > right[i] ? v[i] : right[i];
    else if (dtype == HD_F64)
        for (size_t i = 0; i < n; i++)
            v[i] += right[i];
    else
        for (size_t i = 0; i < n; i++)
            v[i] = (float)v[i] + (float)right[i];
}

static void reduce_block(union block *out, uint32_t dtype, uint32_t redop, uint64_t seed, int members, uint64_t first,
                         size_t n)
{
    double v[BLOCK];
    if (is_integer(dtype)) {
        reduce_integers(out, dtype, redop, seed, members, first, n);
        return;
    }
    reduce_numbers(v, dtype, redop, seed, 0, members, first, n);
    for (size_t i = 0; redop == HD_AVG && i < n; i++)
        v[i] = dtype == HD_F64 ? v[i] / members : (float)v[i] / (float)members;
    round_numbers(out, dtype, v, n);
}

/* ---- any number of them */

static size_t block_size(uint64_t left)
{
    return left < BLOCK ? (size_t)left : BLOCK;
}

void values_fill(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count)
{
    size_t esize = hd_dtype_size(dtype);
    for (uint64_t i = 0; i < count; i += BLOCK) {
        union block b;
        fill_block(&b, dtype, seed, m, first + i, block_size(count - i));
        memcpy((uint8_t *)out + i * esize, &b, block_size(count - i) * esize);
    }
}

/* The first element that differs; n: none. */
static size_t differ(const union block *want, const uint8_t *got, size_t esize, size_t n)
{
    if (memcmp(want, got, n * esize) == 0)
        return n;
    for (size_t i = 0;; i++)
        if (memcmp((const uint8_t *)want + i * esize, got + i * esize, esize) != 0)
            return i;
}

uint64_t values_differ(const void *got, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count)
{
    size_t esize = hd_dtype_size(dtype);
    for (uint64_t i = 0; i < count; i += BLOCK) {
        union block want;
        size_t n = block_size(count - i), at;
        fill_block(&want, dtype, seed, m, first + i, n);
        if ((at = differ(&want, (const uint8_t *)got + i * esize, esize, n)) < n)
            return i + at;
    }
    return count;
}

static size_t reduced_differ(const union block *want, const uint8_t *got, uint32_t dtype, uint32_t redop, size_t n)
{
    size_t esize = hd_dtype_size(dtype), at = differ(want, got, esize, n);
    double x[BLOCK], y[BLOCK];
    union block other;
    if (at == n || is_integer(dtype))
        return at;
    memcpy(&other, got, n * esize);
    widen_numbers(x, dtype, want, n);
    widen_numbers(y, dtype, &other, n);
    for (; at < n; at++)
        if (memcmp((const uint8_t *)want + at * esize, got + at * esize, esize) != 0 &&
            !(isnan(x[at]) && isnan(y[at])) && !(redop == HD_MAX && x[at] == 0 && y[at] == 0))
            return at;
    return n;
}

uint64_t values_wrong(const void *got, const struct hd_comm_call *call, uint64_t seed, int n, int me)
{
    size_t esize = hd_dtype_size(call->dtype);
    int scattered = call->coll == HD_COLL_REDUCE_SCATTER, exchanged = call->coll == HD_COLL_ALL_TO_ALL;
    uint64_t count = call->count, first = scattered || exchanged ? (uint64_t)me * count : 0, at;
    if (call->coll == HD_COLL_BROADCAST)
        return values_differ(got, call->dtype, seed, call->root, 0, count);
    if (call->coll == HD_COLL_ALL_GATHER || exchanged) {
        for (int m = 0; m < n; m++)
            if ((at = values_differ((const uint8_t *)got + (uint64_t)m * count * esize, call->dtype, seed, m, first,
                                    count)) < count)
                return (uint64_t)m * count + at;
        return (uint64_t)n * count;
    }
    for (uint64_t i = 0; i < count; i += BLOCK) {
        union block want;
        size_t some = block_size(count - i);
        reduce_block(&want, call->dtype, call->redop, seed, n, first + i, some);
        if ((at = reduced_differ(&want, (const uint8_t *)got + i * esize, call->dtype, call->redop, some)) < some)
            return i + at;
    }
    return count;
}

/* ---- chance */

uint64_t value_draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t value_below(uint64_t *state, uint64_t n)
{
    return value_draw(state) % n;
}
