/* The row kernels of attention for each set of vectors, and the choice. */
#include "fast_softmax.h"

#include <math.h>
#include <string.h>

#include "fast_tiles.h"
#include "heddle/types.h"

static const int32_t count_up[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline float load_one(const void *x, uint32_t dtype, int64_t i)
{
    uint32_t word = dtype == HD_F32 ? ((const uint32_t *)x)[i] : (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

#define LANES 4
#define TARGET
#define NAME(x) plain_##x
#include "fast_softmax_simd.h"

#ifdef __x86_64__

#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) avx2_##x
#include "fast_softmax_simd.h"

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define NAME(x) avx512_##x
#include "fast_softmax_simd.h"

static const struct cpu_softmax *const of_vectors[CPU_VECTORS] = {&plain_softmax, &avx2_softmax,
                                                                  &avx512_softmax};

#else

static const struct cpu_softmax *const of_vectors[CPU_VECTORS] = {&plain_softmax};

#endif

const struct cpu_softmax *cpu_softmax_at(int vectors)
{
    return of_vectors[vectors];
}
