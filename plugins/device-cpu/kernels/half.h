/* IEEE half precision in integers, to nearest even: what machines and compilers without it use, and the ends of
 * vectors. Plain selections, so that loops over them vectorise. */
#ifndef HD_DEVICE_CPU_KERNELS_HALF_H
#define HD_DEVICE_CPU_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

union cpu_float_bits {
    float f;
    uint32_t u;
};

static inline uint32_t cpu_half_widen(uint16_t h)
{
    /* The exponent moves by a product, which is exact for subnormals too. */
    union cpu_float_bits x = {.u = (uint32_t)(h & 0x7fff) << 13};
    x.f *= 0x1p112f;
    x.u |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return x.u | (uint32_t)(h & 0x8000) << 16;
}

static inline float cpu_half_float(uint16_t h)
{
    union cpu_float_bits x = {.u = cpu_half_widen(h)};
    return x.f;
}

static inline uint16_t cpu_half_round(float value)
{
    union cpu_float_bits x = {.f = value}, small;
    uint32_t sign = x.u >> 16 & 0x8000, a = x.u & 0x7fffffff;
    uint32_t normal = (a + ((UINT32_C(15) - 127) << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    x.u = a;
    small.f = x.f + 0.5f; /* a subnormal half is a multiple of 2^-24: the last place of numbers from 0.5 to 1 */
    uint32_t large = a > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t h = a < 0x38800000 ? small.u - 0x3f000000 : normal;
    return (uint16_t)(sign | (a >= 0x47800000 ? large : h));
}

/* ---- half.c: n of them, by the machine's own conversions where it has them */
void cpu_half_to_float(float *y, const uint16_t *x, int64_t n);
void cpu_half_from_float(uint16_t *y, const float *x, int64_t n);

#endif
