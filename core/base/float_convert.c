#include "core/base/float_convert.h"

#include <string.h>

#include "heddle/types.h"

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static uint16_t to_bf16(float x)
{
    uint32_t u = bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* stays a NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) /* subnormal: a multiple of 2^-24 */
        return from_bits(sign | bits((float)fraction * 0x1p-24f));
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t to_f16(float x)
{
    uint32_t u = bits(x), sign = u >> 16 & 0x8000, abs = u & 0x7fffffff;
    if (abs > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (abs >= 0x477ff000) /* 65520: from here on rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (abs < 0x38800000) /* below 2^-14: a multiple of 2^-24, rounded by adding 2^-1 whose last bit that is */
        return (uint16_t)(sign | (bits(from_bits(abs) + 0.5f) - bits(0.5f)));
    return (uint16_t)(sign | ((abs - (112u << 23) + 0xfff + (abs >> 13 & 1)) >> 13));
}

int hd__to_f32(uint32_t dtype, const void *in, float *out, uint64_t count)
{
    const uint16_t *h = in;
    const double *d = in;
    switch (dtype) {
    case HD_F32:
        memcpy(out, in, count * sizeof *out);
        return 0;
    case HD_BF16:
        for (uint64_t i = 0; i < count; i++)
            out[i] = from_bits((uint32_t)h[i] << 16);
        return 0;
    case HD_F16:
        for (uint64_t i = 0; i < count; i++)
            out[i] = from_f16(h[i]);
        return 0;
    case HD_F64:
        for (uint64_t i = 0; i < count; i++)
            out[i] = (float)d[i];
        return 0;
    default:
        return -1;
    }
}

int hd__from_f32(uint32_t dtype, const float *in, void *out, uint64_t count)
{
    uint16_t *h = out;
    double *d = out;
    switch (dtype) {
    case HD_F32:
        memcpy(out, in, count * sizeof *in);
        return 0;
    case HD_BF16:
        for (uint64_t i = 0; i < count; i++)
            h[i] = to_bf16(in[i]);
        return 0;
    case HD_F16:
        for (uint64_t i = 0; i < count; i++)
            h[i] = to_f16(in[i]);
        return 0;
    case HD_F64:
        for (uint64_t i = 0; i < count; i++)
            d[i] = in[i];
        return 0;
    default:
        return -1;
    }
}
