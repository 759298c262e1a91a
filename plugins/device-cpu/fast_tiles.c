/* The fp32 micro-kernels of each instruction set, and the choice among them. The plain one is whatever
 * 128-bit vectors the compiler's target has. */
#include "fast_tiles.h"

#include <string.h>

#include "heddle/types.h"

static void nothing(void)
{
}

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

#define LANES 4
#define ROWS 4
#define TARGET
#define TITLE "128-bit"
#define NAME(x) plain_##x
#include "fast_tiles_simd.h"

#ifdef __x86_64__

#define LANES 8
#define ROWS 6
#define TARGET __attribute__((target("avx2,fma")))
#define TITLE "avx2"
#define NAME(x) avx2_##x
#include "fast_tiles_simd.h"

#define LANES 16
#define ROWS 12
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define TITLE "avx512"
#define NAME(x) avx512_##x
#include "fast_tiles_simd.h"

void cpu_tiles_store_avx512(void *dst, uint32_t dtype, int64_t ld, const float *src, int64_t src_ld,
                            int64_t rows, int64_t cols, int add)
{
    avx512_store(dst, dtype, ld, src, src_ld, rows, cols, add);
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

int cpu_vectors(void)
{
    return has_avx512() ? CPU_AVX512 : has_avx2() ? CPU_AVX2 : CPU_PLAIN;
}

static const struct cpu_tiles *const of_vectors[CPU_VECTORS] = {&plain_tiles, &avx2_tiles, &avx512_tiles};

#else

int cpu_vectors(void)
{
    return CPU_PLAIN;
}

static const struct cpu_tiles *const of_vectors[CPU_VECTORS] = {&plain_tiles};

#endif

const struct cpu_tiles *cpu_tiles_at(int index)
{
    int most = cpu_vectors();
    if (index <= most)
        return of_vectors[index];
    return index == most + 1 && most == CPU_AVX512 ? cpu_tiles_amx() : NULL;
}

const struct cpu_tiles *cpu_tiles_choose(uint32_t dtype)
{
    const struct cpu_tiles *best = NULL;
    for (int i = 0; cpu_tiles_at(i); i++)
        if (cpu_tiles_at(i)->bytes == 4 || dtype == HD_BF16)
            best = cpu_tiles_at(i);
    return best;
}
