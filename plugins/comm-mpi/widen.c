/* Between a dtype and the wider one in which its sums are formed: bf16 and fp16 in fp32 where they are to be rounded
 * once only, integers in 64 bits where the mean is asked for. */
#include "internal.h"

float cm_bf16_load(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t cm_bf16_store(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float cm_f16_load(uint16_t x)
{
    _Float16 h;
    memcpy(&h, &x, 2);
    return (float)h;
}

uint16_t cm_f16_store(float f)
{
    _Float16 h = (_Float16)f;
    uint16_t x;
    memcpy(&x, &h, 2);
    return x;
}

uint32_t cm_wider(uint32_t dtype, uint32_t redop, int32_t halves)
{
    if ((dtype == HD_I32 || dtype == HD_U8) && redop == HD_AVG)
        return CM_I64;
    return (dtype == HD_BF16 || dtype == HD_F16) && redop != HD_MAX && halves == CM_HALVES_WIDE ? HD_F32 : 0;
}

/* A case of a switch over dtypes: to[i] = value, of all elements. */
#define CASE(dtype, type, value)             \
    case dtype:                              \
        for (uint64_t i = 0; i < count; i++) \
            ((type *)to)[i] = (type)value;   \
        break;

void cm_widen(void *to, const void *from, uint32_t dtype, uint64_t count)
{
    switch (dtype) {
#define WIDEN(dtype, T, wide, type, load, store) CASE(dtype, wide, load(((const T *)from)[i]))
        CM_DTYPES(WIDEN)
    }
}

void cm_narrow(void *to, const void *from, uint32_t dtype, uint64_t count, int32_t divide_by)
{
    switch (dtype) {
#define NARROW(dtype, T, wide, type, load, store) CASE(dtype, T, store(((const wide *)from)[i] / (wide)divide_by))
        CM_DTYPES(NARROW)
    }
}

void cm_divide(void *to, uint32_t dtype, uint64_t count, int32_t n)
{
    switch (dtype) {
#define DIVIDE(dtype, T, wide, type, load, store) CASE(dtype, T, store(load(((const T *)to)[i]) / (wide)n))
        CM_DTYPES(DIVIDE)
    }
}
