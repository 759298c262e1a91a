#include "conformance/comm/values.h"

#include <math.h>
#include <string.h>

#include "heddle/types.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static double bf16_value(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The nearest of the two neighbours, which are 2^16 apart here; the even one of two equally near. Above the largest
 * number lies 2^128, which is infinity. */
static uint16_t bf16_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (isnan(f))
        return 0x7fc0;
    if (isinf(f))
        return (uint16_t)(u >> 16);
    uint32_t below = u >> 16, beyond = u & 0xffff;
    return (uint16_t)(beyond < 0x8000 || (beyond == 0x8000 && !(below & 1)) ? below : below + 1);
}

static double get(const void *at, uint32_t dtype)
{
    switch (dtype) {
    case HD_F32:
        return *(const float *)at;
    case HD_BF16:
        return bf16_value(*(const uint16_t *)at);
    case HD_F16:
        return (double)*(const _Float16 *)at;
    case HD_F64:
        return *(const double *)at;
    case HD_I32:
        return *(const int32_t *)at;
    default:
        return *(const uint8_t *)at;
    }
}

static void put_float(void *at, uint32_t dtype, float v)
{
    if (dtype == HD_F32) { /* every element of a result is made from all members': nothing is converted in vain */
        memcpy(at, &v, 4);
    } else if (dtype == HD_BF16) {
        uint16_t bits = bf16_round(v);
        memcpy(at, &bits, 2);
    } else {
        _Float16 half = (_Float16)v;
        memcpy(at, &half, 2);
    }
}

/* Halves of the least, ties, what overflows in one dtype and not in another: every third value. */
static double special(uint64_t h, double v)
{
    static const double table[] = {0.0,       -0.0,     INFINITY, -INFINITY, NAN,     0x1.fffffep127, -0x1.fffffep127,
                                   65504,     65519,    -65520,   0x1p-24,   0x1p-25, -0x1.8p-24,     0x1p-126,
                                   -0x1p-149, 0x1.01p0, 0x1.03p0, 1};
    return h % 3 ? v : table[h / 3 % (sizeof table / sizeof *table)];
}

void value_make(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t i)
{
    uint64_t h = mix((seed & ~VALUES_KIND) * 1000003 + (uint64_t)m * 7919 + i * UINT64_C(0x9e3779b97f4a7c15));
    float f = (float)((double)(h >> 40) / (1 << 22) - 2.0) * (float)(1 << (h & 3)); /* -16 to 16, 24 bits */
    double d = (double)(int64_t)h * 0x1p-60;
    if (seed & VALUES_WHOLE)
        f = (float)(h >> 50 & 7) - 4, d = f;
    if (seed & VALUES_SPECIAL)
        f = (float)special(h >> 8, f), d = special(h >> 8, d);
    if (dtype == HD_F64)
        memcpy(out, &d, 8);
    else if (dtype == HD_I32 || dtype == HD_U8)
        memcpy(out, &h, dtype == HD_I32 ? 4 : 1);
    else
        put_float(out, dtype, f);
}

void values_fill(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count)
{
    size_t esize = hd_dtype_size(dtype);
    for (uint64_t i = 0; i < count; i++)
        value_make((uint8_t *)out + i * esize, dtype, seed, m, first + i);
}

static void reduce_integer(void *out, uint32_t dtype, uint32_t redop, uint64_t seed, int n, uint64_t i)
{
    int64_t sum = 0, most = INT64_MIN;
    for (int m = 0; m < n; m++) {
        uint8_t raw[8];
        value_make(raw, dtype, seed, m, i);
        int64_t v = (int64_t)get(raw, dtype);
        sum += v;
        most = v > most ? v : most;
    }
    int64_t r = redop == HD_MAX ? most : redop == HD_AVG ? sum / n : sum;
    memcpy(out, &r, hd_dtype_size(dtype));
}

static double larger(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

int value_same_bits(const void *a, const void *b, size_t size)
{
    switch (size) { /* no call */
    case 1:
        return memcmp(a, b, 1) == 0;
    case 2:
        return memcmp(a, b, 2) == 0;
    case 4:
        return memcmp(a, b, 4) == 0;
    default:
        return memcmp(a, b, 8) == 0;
    }
}

int value_same(const void *a, const void *b, uint32_t dtype, uint32_t redop)
{
    if (value_same_bits(a, b, hd_dtype_size(dtype)))
        return 1;
    if (dtype == HD_I32 || dtype == HD_U8)
        return 0;
    double x = get(a, dtype), y = get(b, dtype);
    return (isnan(x) && isnan(y)) || (redop == HD_MAX && x == 0 && y == 0);
}

struct sum {
    double d;
    float f;
};

/* Members first .. first + n - 1, in the tree of heddle/comm.h. */
static struct sum reduce_float(uint32_t dtype, int max, uint64_t seed, int first, int n, uint64_t i)
{
    uint8_t raw[8];
    int left = 1;
    if (n == 1) {
        value_make(raw, dtype, seed, first, i);
        double v = get(raw, dtype);
        return (struct sum){v, (float)v};
    }
    while (2 * left < n)
        left *= 2;
    struct sum a = reduce_float(dtype, max, seed, first, left, i),
               b = reduce_float(dtype, max, seed, first + left, n - left, i);
    return max ? (struct sum){larger(a.d, b.d), (float)larger(a.f, b.f)} : (struct sum){a.d + b.d, a.f + b.f};
}

void value_reduce(void *out, uint32_t dtype, uint32_t redop, uint64_t seed, int n, uint64_t i)
{
    if (dtype == HD_I32 || dtype == HD_U8) {
        reduce_integer(out, dtype, redop, seed, n, i);
        return;
    }
    struct sum sum = reduce_float(dtype, redop == HD_MAX, seed, 0, n, i);
    sum.d = redop == HD_AVG ? sum.d / n : sum.d;
    sum.f = redop == HD_AVG ? sum.f / (float)n : sum.f;
    if (dtype == HD_F64)
        memcpy(out, &sum.d, 8);
    else
        put_float(out, dtype, sum.f);
}

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
