/* The row kernels of attention for each set of vectors, and the choice. */
#include "attention/softmax.h"

#include <math.h>
#include <string.h>

#include "heddle/types.h"
#include "kernels/half.h"
#include "products/tiles.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* 2^f is about 1 + f (EXP2_1 + f (EXP2_2 + ...)) on [-1/2, 1/2]: the polynomial of degree 5 with the least relative
 * error, 9.2e-8; 1.6e-7 with its sums in fp32. */
#define LOG2_E 1.44269504f
#define EXP2_1 0.693146978f
#define EXP2_2 0.240222421f
#define EXP2_3 0.0555073373f
#define EXP2_4 0.00967151272f
#define EXP2_5 0.00132647273f

static const int32_t count_up[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline float load_one(const void *x, uint32_t dtype, int64_t i)
{
    uint32_t word = dtype == HD_F16   ? cpu_half_widen(((const uint16_t *)x)[i])
                    : dtype == HD_F32 ? ((const uint32_t *)x)[i]
                                      : (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

typedef uint16_t four_halves __attribute__((vector_size(8), aligned(2), may_alias));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

static inline four_floats widen_four(four_halves x)
{
    return (four_floats){cpu_half_float(x[0]), cpu_half_float(x[1]), cpu_half_float(x[2]), cpu_half_float(x[3])};
}

static inline four_floats larger_four(four_floats x, four_floats y)
{
    four_floats z;
    for (int i = 0; i < 4; i++)
        z[i] = x[i] > y[i] ? x[i] : y[i];
    return z;
}

#define LANES 4
#define LARGER(x, y) larger_four(x, y)
#define HALF_WIDEN(x) widen_four(x)
#define TARGET
#define NAME(x) plain_##x
#ifdef __x86_64__
#define NO_FMA
#endif
#include "attention/softmax_simd.h"

#ifdef __x86_64__

#define LANES 8
#define LARGER(x, y) _mm256_max_ps(x, y)
#define HALF_WIDEN(x) _mm256_cvtph_ps((__m128i)(x))
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define NAME(x) avx2_##x
#include "attention/softmax_simd.h"

#define LANES 16
#define LARGER(x, y) _mm512_max_ps(x, y)
#define HALF_WIDEN(x) _mm512_cvtph_ps((__m256i)(x))
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define NAME(x) avx512_##x
#include "attention/softmax_simd.h"

#define LANES 16
#define LARGER(x, y) _mm512_max_ps(x, y)
#define HALF_WIDEN(x) _mm512_cvtph_ps((__m256i)(x))
#define BF16_ROUND(x) _mm512_cvtneps_pbh(x)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define NAME(x) bf16_##x
#include "attention/softmax_simd.h"

const struct cpu_softmax *cpu_softmax_of(int isa)
{
    static const struct cpu_softmax *const all[CPU_ISA_COUNT] = {
        [CPU_ISA_BASELINE] = &plain_softmax,   [CPU_ISA_AVX2] = &avx2_softmax, [CPU_ISA_AVX512] = &avx512_softmax,
        [CPU_ISA_AVX512_BF16] = &bf16_softmax, [CPU_ISA_AMX] = &bf16_softmax,
    };
    return all[isa];
}

#else

const struct cpu_softmax *cpu_softmax_of(int isa)
{
    (void)isa;
    return &plain_softmax;
}

#endif
