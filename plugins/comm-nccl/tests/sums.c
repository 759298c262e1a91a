#include <math.h>
#include <string.h>

#include "fake.h"

static float load_bf16(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint16_t store_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (isnan(f))
        return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#define WORD(x) (x)
#define HALF(x) ((float)(x))
#define TO_HALF(x) ((_Float16)(x))

/* A maximum loses a NaN, as NCCL's does. */
#define ADD(T, load, store)                                                                \
    do {                                                                                   \
        T *a = into;                                                                       \
        const T *b = from;                                                                 \
        for (size_t i = 0; i < count; i++)                                                 \
            if (op == NC_MAX)                                                              \
                a[i] = load(a[i]) >= load(b[i]) || load(b[i]) != load(b[i]) ? a[i] : b[i]; \
            else                                                                           \
                a[i] = store(load(a[i]) + load(b[i]));                                     \
    } while (0)

void sum_into(void *into, const void *from, size_t count, int type, int op)
{
    switch (type) {
    case NC_F32:
        ADD(float, WORD, WORD);
        break;
    case NC_F64:
        ADD(double, WORD, WORD);
        break;
    case NC_F16:
        ADD(_Float16, HALF, TO_HALF);
        break;
    case NC_BF16:
        ADD(uint16_t, load_bf16, store_bf16);
        break;
    case NC_I32:
        if (op == NC_MAX)
            ADD(int32_t, WORD, WORD);
        else
            ADD(uint32_t, WORD, WORD);
        break;
    default:
        ADD(uint8_t, WORD, (uint8_t));
    }
}

#define SCALE(T, load, store)                  \
    do {                                       \
        T *a = x;                              \
        for (size_t i = 0; i < count; i++)     \
            a[i] = store(load(a[i]) * factor); \
    } while (0)

void sum_before(void *x, size_t count, int type, int op, int n)
{
    float factor = 1 / (float)n;
    if (op != NC_AVG)
        return;
    if (type == NC_F32)
        SCALE(float, WORD, WORD);
    if (type == NC_F64)
        for (size_t i = 0; i < count; i++)
            ((double *)x)[i] *= 1.0 / n;
    if (type == NC_F16)
        SCALE(_Float16, HALF, TO_HALF);
    if (type == NC_BF16)
        SCALE(uint16_t, load_bf16, store_bf16);
}

void sum_after(void *x, size_t count, int type, int op, int n)
{
    if (op != NC_AVG)
        return;
    for (size_t i = 0; i < count && type == NC_I32; i++)
        ((int32_t *)x)[i] /= n;
    for (size_t i = 0; i < count && type == NC_U8; i++)
        ((uint8_t *)x)[i] = (uint8_t)(((uint8_t *)x)[i] / n);
}
