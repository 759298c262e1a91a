/* The fp32 micro-kernels of each instruction set, and the choice among them. The plain one is whatever
 * 128-bit vectors the compiler's target has. */
#include "products/tiles.h"

#include <string.h>

#include "heddle/types.h"
#include "kernels/half.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

static inline uint16_t bf16_round(float value)
{
    uint32_t x;
    memcpy(&x, &value, 4);
    if ((x & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

static inline float bf16_widen(uint16_t half)
{
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

typedef uint16_t four_halves __attribute__((vector_size(8), aligned(2), may_alias));
typedef uint32_t four_words __attribute__((vector_size(16), aligned(4), may_alias));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

static inline four_words widen_four(four_halves x)
{
    four_words y;
    for (int i = 0; i < 4; i++)
        y[i] = cpu_half_widen(x[i]);
    return y;
}

static inline four_halves round_four(four_floats x)
{
    four_halves y;
    for (int i = 0; i < 4; i++)
        y[i] = cpu_half_round(x[i]);
    return y;
}

#define LANES 4
#define ROWS 4
#define DEPTH 256
#define TARGET
#define TITLE "128-bit"
#define NAME(x) plain_##x
#define HALF_WIDEN(x) widen_four(x)
#define HALF_ROUND(x) round_four(x)
#include "products/tiles_simd.h"

#ifdef __x86_64__

#define LANES 8
#define ROWS 6
#define DEPTH 256
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define TITLE "avx2"
#define FMA "vfmadd231ps %2, %1, %0"
#define NAME(x) avx2_##x
#define HALF_WIDEN(x) _mm256_cvtph_ps((__m128i)(x))
#define HALF_ROUND(x) _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT)
#include "products/tiles_simd.h"

#define LANES 16
#define ROWS 12
#define DEPTH 512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define TITLE "avx512"
#define FMA "vfmadd231ps %2, %1, %0"
#define NAME(x) avx512_##x
#define HALF_WIDEN(x) _mm512_cvtph_ps((__m256i)(x))
#define HALF_ROUND(x) _mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT)
#include "products/tiles_simd.h"

void cpu_tiles_store_avx512(void *dst, uint32_t dtype, int64_t ld, const float *src, int64_t src_ld, int64_t rows,
                            int64_t cols, int add)
{
    avx512_store(dst, dtype, ld, src, src_ld, rows, cols, add);
}

static const struct cpu_tiles *const of_vectors[CPU_VECTORS] = {&plain_tiles, &avx2_tiles, &avx512_tiles};

#else

static const struct cpu_tiles *const of_vectors[CPU_VECTORS] = {&plain_tiles};

#endif

const struct cpu_tiles *cpu_tiles_at(int index)
{
    const struct cpu_tiles *of_bf16[] = {cpu_tiles_dots(), cpu_tiles_amx()};
    index -= cpu_vectors() + 1;
    if (index < 0)
        return of_vectors[index + cpu_vectors() + 1];
    for (int i = 0; i < 2; i++)
        if (of_bf16[i] && index-- == 0)
            return of_bf16[i];
    return NULL;
}

const struct cpu_tiles *cpu_tiles_choose(uint32_t dtype)
{
    if (dtype == HD_BF16 && cpu_tiles_amx())
        return cpu_tiles_amx();
    if (dtype == HD_BF16 && cpu_tiles_dots() && cpu_tiles_dots_fast())
        return cpu_tiles_dots();
    return of_vectors[cpu_vectors()];
}
