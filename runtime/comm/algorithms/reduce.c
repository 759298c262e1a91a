/* Reductions of local buffers, for the algorithms over send and recv. */
#pragma GCC optimize("O3") /* vectorises inline functions of headers too */

#include "core/base/dtype.h"
#include "runtime/comm/algorithms/plan.h"

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

#define KERNEL(constant, name, class, sum, T, A, load, store, ...) REDUCE(reduce_##constant, T, A, load, store)
#define KERNEL_ROW(constant, value, name, bytes) HD__DTYPE_COLUMNS(KERNEL, constant, name)
HD_DTYPES(KERNEL_ROW)

void hd__comm_reduce(void *dst, const void *const *src, int32_t n, int32_t over, uint64_t count, uint32_t dtype,
                     uint32_t redop)
{
    switch (dtype) {
#define CASE(constant, value, name, bytes)                  \
    case constant:                                          \
        reduce_##constant(dst, src, n, over, count, redop); \
        break;
        HD_DTYPES(CASE)
    }
}
