/* Runs of half precision numbers. F16C and AVX-512 round to nearest even, as the plain loop does. */
#include "kernels/half.h"

#include "products/tiles.h"

typedef void (*widen_fn)(float *y, const uint16_t *x, int64_t n);
typedef void (*round_fn)(uint16_t *y, const float *x, int64_t n);

static void plain_widen(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = cpu_half_float(x[i]);
}

static void plain_round(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = cpu_half_round(x[i]);
}

#ifdef __x86_64__
#include <immintrin.h>

__attribute__((target("avx2,f16c"))) static void avx2_widen(float *y, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    plain_widen(y + i, x + i, n - i);
}

__attribute__((target("avx2,f16c"))) static void avx2_round(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    plain_round(y + i, x + i, n - i);
}

__attribute__((target("avx512f"))) static void avx512_widen(float *y, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i))));
    plain_widen(y + i, x + i, n - i);
}

__attribute__((target("avx512f"))) static void avx512_round(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(y + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    plain_round(y + i, x + i, n - i);
}

static const widen_fn wideners[CPU_VECTORS] = {plain_widen, avx2_widen, avx512_widen};
static const round_fn rounders[CPU_VECTORS] = {plain_round, avx2_round, avx512_round};
#else
static const widen_fn wideners[CPU_VECTORS] = {plain_widen};
static const round_fn rounders[CPU_VECTORS] = {plain_round};
#endif

void cpu_half_to_float(float *y, const uint16_t *x, int64_t n)
{
    wideners[cpu_vectors()](y, x, n);
}

void cpu_half_from_float(uint16_t *y, const float *x, int64_t n)
{
    rounders[cpu_vectors()](y, x, n);
}
