/* The plain kernels: every dtype and redop, a block at a time so that the accumulators stay in a cache. They
 * define the results; the vector kernels are tested against them. */
#include "kernels.h"

#include <string.h>

#include "heddle/types.h"

enum { BLOCK = 256, DEPTH = 16 /* the tree of 32,768 sources */ };

static inline float f32_load(float x)
{
    return x;
}
static inline float f32_store(float x)
{
    return x;
}
static inline double f64_load(double x)
{
    return x;
}
static inline double f64_store(double x)
{
    return x;
}

static inline float bf16_load(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t bf16_store(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* a quiet NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f16_load(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exp = x >> 10 & 31, man = x & 0x3ff, u;
    if (exp == 31) {
        u = sign | 0x7f800000 | man << 13 | (man ? 0x400000 : 0); /* as the hardware does: NaNs come out quiet */
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else { /* subnormal: man * 2^-24, exact */
        float f = (float)man * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t f16_store(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
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

static inline int64_t i32_load(int32_t x)
{
    return x;
}
static inline int32_t i32_store(int64_t x)
{
    return (int32_t)(uint32_t)(uint64_t)x;
}
static inline uint64_t u8_load(uint8_t x)
{
    return x;
}
static inline uint8_t u8_store(uint64_t x)
{
    return (uint8_t)x;
}

#define ADD(a, b) ((a) + (b))
#define MAX(a, b) ((b) > (a) || (b) != (b) ? (b) : (a)) /* NaN if either is */
#define SAME(x, n) (x)
#define SHARE(x, n) ((x) / (n))

/* T: element, A: accumulator. Sums that are ready wait, as the bits of a counter do, until their other half is
 * there. */
#define REDUCE(name, T, A, load, store, OP, END)                                                             \
    static inline void name##_join(A *a, const A *b, size_t k)                                               \
    {                                                                                                        \
        for (size_t i = 0; i < k; i++)                                                                       \
            a[i] = OP(a[i], b[i]);                                                                           \
    }                                                                                                        \
    static void name(uint8_t *const *dst, int m, const uint8_t *const *src, int n, size_t count, int stream) \
    {                                                                                                        \
        (void)stream;                                                                                        \
        for (size_t at = 0; at < count; at += BLOCK) {                                                       \
            size_t k = count - at < BLOCK ? count - at : BLOCK;                                              \
            A acc[DEPTH][BLOCK];                                                                             \
            T out[BLOCK];                                                                                    \
            int top = 0;                                                                                     \
            for (int j = 0; j < n; j++) {                                                                    \
                const T *next = (const T *)src[j] + at;                                                      \
                for (size_t i = 0; i < k; i++)                                                               \
                    acc[top][i] = load(next[i]);                                                             \
                for (int bits = j; bits & 1; bits >>= 1, top--)                                              \
                    name##_join(acc[top - 1], acc[top], k);                                                  \
                top++;                                                                                       \
            }                                                                                                \
            for (top--; top; top--)                                                                          \
                name##_join(acc[top - 1], acc[top], k);                                                      \
            for (size_t i = 0; i < k; i++)                                                                   \
                out[i] = store(END(acc[0][i], (A)n));                                                        \
            for (int j = 0; j < m; j++)                                                                      \
                memcpy(dst[j] + at * sizeof(T), out, k * sizeof(T));                                         \
        }                                                                                                    \
    }

#define REDUCE_ALL(type, T, A)                                     \
    REDUCE(type##_sum, T, A, type##_load, type##_store, ADD, SAME) \
    REDUCE(type##_max, T, A, type##_load, type##_store, MAX, SAME) \
    REDUCE(type##_avg, T, A, type##_load, type##_store, ADD, SHARE)

REDUCE_ALL(f32, float, float)
REDUCE_ALL(bf16, uint16_t, float)
REDUCE_ALL(f16, uint16_t, float)
REDUCE_ALL(f64, double, double)
REDUCE_ALL(i32, int32_t, int64_t)
REDUCE_ALL(u8, uint8_t, uint64_t)

static void plain_copy(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

static void no_fence(void)
{
}

#define ROW(type)                                                           \
    {                                                                       \
        [HD_SUM] = type##_sum, [HD_MAX] = type##_max, [HD_AVG] = type##_avg \
    }

const struct shm_kernels shm_kernels_reference = {
    .name = "reference",
    .reduce = {[HD_F32] = ROW(f32),
               [HD_BF16] = ROW(bf16),
               [HD_F16] = ROW(f16),
               [HD_F64] = ROW(f64),
               [HD_I32] = ROW(i32),
               [HD_U8] = ROW(u8)},
    .copy_stream = plain_copy,
    .fence = no_fence,
};
