/* Reductions of local buffers, for the algorithms over send and recv. */
#include "runtime/comm/algorithms/plan.h"

#pragma GCC optimize("O3") /* vectors */

static float bf16_load(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint16_t bf16_store(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float f16_load(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exp = x >> 10 & 31, man = x & 0x3ff, u;
    float f = (float)man * 0x1p-24f; /* subnormal: exact */
    if (exp) {
        u = exp == 31 ? 0x7f800000 | man << 13 : (exp + 112) << 23 | man << 13;
        memcpy(&f, &u, 4);
    }
    memcpy(&u, &f, 4);
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}

static uint16_t f16_store(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: adding 0.5 leaves the value in units of 2^-24, rounded to even */
        float g;
        memcpy(&g, &a, 4);
        g += 0.5f;
        memcpy(&a, &g, 4);
        return (uint16_t)(sign | (a - 0x3f000000));
    }
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

#define SAME(x) (x)
enum { BLOCK = 256, DEPTH = 32 /* the tree of 2^31 sources */ };

/* T: element; A: accumulator, wide enough for the exact integer sum; store: the conversion of the result. Works
 * block by block in loops that vectorize. Pending subtrees form a stack, like the bits of a counter, until their
 * other half is computed. */
#define REDUCE(name, T, A, load, store)                                                                       \
    static inline void name##_join(A *a, const A *b, uint64_t k, uint32_t redop)                              \
    {                                                                                                         \
        if (redop != HD_MAX)                                                                                  \
            for (uint64_t i = 0; i < k; i++)                                                                  \
                a[i] = a[i] + b[i];                                                                           \
        else                                                                                                  \
            for (uint64_t i = 0; i < k; i++)                                                                  \
                a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i]; /* a NaN wins */                            \
    }                                                                                                         \
    static inline void name##_load(A *to, const void *from, uint64_t at, uint64_t k)                          \
    {                                                                                                         \
        for (uint64_t i = 0; i < k; i++)                                                                      \
            to[i] = load(((const T *)from)[at + i]);                                                          \
    }                                                                                                         \
    static void name(T *dst, const void *const *src, int32_t n, int32_t over, uint64_t count, uint32_t redop) \
    {                                                                                                         \
        A half[DEPTH][BLOCK];                                                                                 \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                                      \
            uint64_t k = count - at < BLOCK ? count - at : BLOCK;                                             \
            int32_t top = 0;                                                                                  \
            for (int32_t j = 0; j < n; j++, top++) {                                                          \
                name##_load(half[top], src[j], at, k);                                                        \
                for (int32_t bits = j; bits & 1; bits >>= 1, top--)                                           \
                    name##_join(half[top - 1], half[top], k, redop);                                          \
            }                                                                                                 \
            for (top--; top; top--)                                                                           \
                name##_join(half[top - 1], half[top], k, redop);                                              \
            for (uint64_t i = 0; i < k; i++)                                                                  \
                dst[at + i] = (T)store(redop == HD_AVG ? half[0][i] / (A)over : half[0][i]);                  \
        }                                                                                                     \
    }

REDUCE(reduce_f32, float, float, SAME, SAME)
REDUCE(reduce_f64, double, double, SAME, SAME)
REDUCE(reduce_bf16, uint16_t, float, bf16_load, bf16_store)
REDUCE(reduce_f16, uint16_t, float, f16_load, f16_store)
REDUCE(reduce_i32, int32_t, int64_t, SAME, (uint32_t))
REDUCE(reduce_u8, uint8_t, uint64_t, SAME, SAME)

void hd__comm_reduce(void *dst, const void *const *src, int32_t n, int32_t over, uint64_t count, uint32_t dtype,
                     uint32_t redop)
{
    switch (dtype) {
    case HD_F32:
        reduce_f32(dst, src, n, over, count, redop);
        break;
    case HD_F64:
        reduce_f64(dst, src, n, over, count, redop);
        break;
    case HD_BF16:
        reduce_bf16(dst, src, n, over, count, redop);
        break;
    case HD_F16:
        reduce_f16(dst, src, n, over, count, redop);
        break;
    case HD_I32:
        reduce_i32(dst, src, n, over, count, redop);
        break;
    default:
        reduce_u8(dst, src, n, over, count, redop);
    }
}

void hd__comm_widen(float *dst, const void *src, uint64_t count, uint32_t dtype)
{
    const uint16_t *from = src;
    for (uint64_t i = 0; i < count; i++)
        dst[i] = dtype == HD_BF16 ? bf16_load(from[i]) : f16_load(from[i]);
}

void hd__comm_narrow(void *dst, const float *src, uint64_t count, uint32_t dtype)
{
    uint16_t *to = dst;
    for (uint64_t i = 0; i < count; i++)
        to[i] = dtype == HD_BF16 ? bf16_store(src[i]) : f16_store(src[i]);
}
