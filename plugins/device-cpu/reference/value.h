/* One element at a time, any dtype, in double: what reference kernels are written in. */
#ifndef HD_DEVICE_CPU_REFERENCE_VALUE_H
#define HD_DEVICE_CPU_REFERENCE_VALUE_H

#include "internal.h"
#include <math.h>

static inline float cpu_from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t cpu_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float cpu_from_f16(uint16_t h);
uint16_t cpu_to_f16(float f); /* round to nearest, ties to even */

static inline double cpu_load(const struct hd_operand *o, int64_t i)
{
    switch (o->dtype) {
    case HD_F32:
        return ((const float *)o->data)[i];
    case HD_F64:
        return ((const double *)o->data)[i];
    case HD_BF16:
        return cpu_from_bf16(((const uint16_t *)o->data)[i]);
    case HD_F16:
        return cpu_from_f16(((const uint16_t *)o->data)[i]);
    case HD_I32:
        return ((const int32_t *)o->data)[i];
    default:
        return ((const uint8_t *)o->data)[i];
    }
}

static inline void cpu_store(const struct hd_operand *o, int64_t i, double v)
{
    switch (o->dtype) {
    case HD_F32:
        ((float *)o->data)[i] = (float)v;
        break;
    case HD_F64:
        ((double *)o->data)[i] = v;
        break;
    case HD_BF16:
        ((uint16_t *)o->data)[i] = cpu_to_bf16((float)v);
        break;
    case HD_F16:
        ((uint16_t *)o->data)[i] = cpu_to_f16((float)v);
        break;
    case HD_I32:
        ((int32_t *)o->data)[i] = (int32_t)v;
        break;
    default:
        ((uint8_t *)o->data)[i] = (uint8_t)v;
    }
}

/* Writes element i of an output, or adds to it where the instruction accumulates. */
static inline void cpu_put(const struct hd_kernel *k, uint32_t out, int64_t i, double v)
{
    if (k->d.attrs.flags & HD_ATTR_ONCE && k->out[out].dtype == HD_F32)
        v = (float)v;
    if (cpu_accumulates(k))
        v += cpu_load(&k->out[out], i);
    cpu_store(&k->out[out], i, v);
}

/* Relative rounding error of a sum: a smaller difference may be rounding alone. */
static inline double cpu_rounding(uint32_t dtype)
{
    return dtype == HD_F64 ? 0x1p-48 : dtype == HD_F32 ? 0x1p-19 : dtype == HD_F16 ? 0x1p-7 : 0x1p-4;
}

#endif
