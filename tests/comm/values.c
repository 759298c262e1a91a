#include "tests/comm/values.h"

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

/* The nearest of the two neighbours, the even one of two equally near. */
static uint16_t bf16_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint16_t below = (uint16_t)(u >> 16), above = (uint16_t)(below + 1);
    double under = fabs((double)f - bf16_value(below)), over = fabs(bf16_value(above) - (double)f);
    if (under == over)
        return below & 1 ? above : below;
    return under < over ? below : above;
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
    uint16_t bits = bf16_round(v);
    _Float16 half = (_Float16)v;
    if (dtype == HD_F32)
        memcpy(at, &v, 4);
    else if (dtype == HD_BF16)
        memcpy(at, &bits, 2);
    else
        memcpy(at, &half, 2);
}

void value_make(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t i)
{
    uint64_t h = mix(seed * 1000003 + (uint64_t)m * 7919 + i * UINT64_C(0x9e3779b97f4a7c15));
    float f = (float)((double)(h >> 40) / (1 << 22) - 2.0) * (float)(1 << (h & 3)); /* -16 to 16, 24 bits */
    double d = (double)(int64_t)h * 0x1p-60;
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

void value_reduce(void *out, uint32_t dtype, uint32_t redop, uint64_t seed, int n, uint64_t i)
{
    double d = 0;
    float f = 0;
    if (dtype == HD_I32 || dtype == HD_U8) {
        reduce_integer(out, dtype, redop, seed, n, i);
        return;
    }
    for (int m = 0; m < n; m++) {
        uint8_t raw[8];
        value_make(raw, dtype, seed, m, i);
        double v = get(raw, dtype);
        d = m == 0 ? v : redop == HD_MAX ? fmax(d, v) : d + v;
        f = m == 0 ? (float)v : redop == HD_MAX ? fmaxf(f, (float)v) : f + (float)v;
    }
    d = redop == HD_AVG ? d / n : d;
    f = redop == HD_AVG ? f / (float)n : f;
    if (dtype == HD_F64)
        memcpy(out, &d, 8);
    else
        put_float(out, dtype, f);
}
