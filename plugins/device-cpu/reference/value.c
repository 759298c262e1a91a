/* IEEE half precision in plain integers: not every compiler has the type. */
#include "reference/value.h"

float cpu_from_f16(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = mantissa * 0x1p-24;
    if (exponent == 31)
        v = mantissa ? NAN : INFINITY;
    else if (exponent)
        v = (1024 + mantissa) * (double)(1u << exponent) * 0x1p-25;
    return (float)(h & 0x8000 ? -v : v);
}

uint16_t cpu_to_f16(float f)
{
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    float v = fabsf(f);
    if (isnan(v))
        return sign | 0x7e00;
    if (v >= 65520.0f)
        return sign | 0x7c00;
    if (v < 0x1p-14f) /* subnormal: steps of 2^-24; 1024 of them carry into the smallest normal */
        return (uint16_t)(sign | (uint16_t)nearbyintf(v * 0x1p24f));
    int exponent;
    float mantissa = frexpf(v, &exponent); /* in [0.5, 1) */
    /* 1024..2048; the overflow to 2048 carries into the exponent as it should. */
    uint32_t steps = (uint32_t)nearbyintf(mantissa * 2048.0f) - 1024;
    return (uint16_t)(sign | (((uint32_t)(exponent + 14) << 10) + steps));
}
