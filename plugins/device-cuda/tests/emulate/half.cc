/* 16-bit floats in plain integers and doubles: rounded to nearest, ties to even. What codes of fp8 stand for. */
#include "cuda_runtime.h"

uint16_t emulate_to_bfloat(float x)
{
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float emulate_from_half(uint16_t h)
{
    unsigned exponent = h >> 10 & 31, mantissa = h & 1023;
    float v = (float)mantissa * 0x1p-24f; /* exact */
    if (exponent == 31)
        v = mantissa ? NAN : INFINITY;
    else if (exponent) /* of bias 15 here, and 127 there */
        v = __uint_as_float((exponent + 112) << 23 | mantissa << 13);
    return h & 0x8000 ? -v : v;
}

uint16_t emulate_to_half(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float v = fabsf(x);
    if (isnan(v))
        return sign | 0x7e00;
    if (v >= 65520.0f)
        return sign | 0x7c00;
    if (v < 0x1p-14f) /* steps of 2^-24; 1024 of them carry into the smallest normal */
        return (uint16_t)(sign | (int)nearbyintf(v * 0x1p24f));
    int exponent;
    float mantissa = frexpf(v, &exponent);
    unsigned steps = (unsigned)nearbyintf(mantissa * 2048.0f) - 1024;
    return (uint16_t)(sign | (((unsigned)(exponent + 14) << 10) + steps));
}

/* Open Compute Project, OFP8: e4m3 has no Inf, and NaN alone where all bits are set; e5m2 is as IEEE 754's formats
 * are. */
double emulate_from_fp8(uint8_t code, int mantissa_bits)
{
    int bias = (1 << (6 - mantissa_bits)) - 1;
    int mantissa = code & ((1 << mantissa_bits) - 1), exponent = (code & 0x7f) >> mantissa_bits;
    double v =
        ldexp(exponent ? (1 << mantissa_bits) + mantissa : mantissa, (exponent ? exponent : 1) - bias - mantissa_bits);
    if (mantissa_bits == 3 && (code & 0x7f) == 0x7f)
        v = NAN;
    if (mantissa_bits == 2 && exponent == 31)
        v = mantissa ? NAN : INFINITY;
    return code & 0x80 ? -v : v;
}
