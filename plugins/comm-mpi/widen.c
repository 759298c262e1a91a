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

#define WIDEN(wide, type, load)          \
    for (uint64_t i = 0; i < count; i++) \
        ((wide *)to)[i] = (wide)load(((const type *)from)[i]);
#define NARROW(wide, type, store)        \
    for (uint64_t i = 0; i < count; i++) \
        ((type *)to)[i] = (type)store(((const wide *)from)[i] / (wide)divide_by);
#define SAME(x) (x)

void cm_widen(void *to, const void *from, uint32_t dtype, uint64_t count)
{
    if (dtype == HD_BF16)
        WIDEN(float, uint16_t, cm_bf16_load)
    else if (dtype == HD_F16)
        WIDEN(float, uint16_t, cm_f16_load)
    else if (dtype == HD_I32)
        WIDEN(int64_t, int32_t, SAME)
    else
        WIDEN(int64_t, uint8_t, SAME)
}

void cm_narrow(void *to, const void *from, uint32_t dtype, uint64_t count, int32_t divide_by)
{
    if (dtype == HD_BF16)
        NARROW(float, uint16_t, cm_bf16_store)
    else if (dtype == HD_F16)
        NARROW(float, uint16_t, cm_f16_store)
    else if (dtype == HD_I32)
        NARROW(int64_t, int32_t, SAME)
    else
        NARROW(int64_t, uint8_t, SAME)
}
