/* Words that are pairs of bf16 of neighbouring k, which is what products of bf16 multiply: read from bf16 or from fp32,
 * which is rounded to nearest even; subnormal fp32 become zero, as AVX512-BF16 does it. And sums stored as bf16. */
#ifndef HD_DEVICE_CPU_PRODUCTS_TILES_PAIRS_H
#define HD_DEVICE_CPU_PRODUCTS_TILES_PAIRS_H

#include "products/tiles.h"

#include "heddle/types.h"

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

#define LANES 16
#define TARGET AVX512
#define NAME(x) pair_##x
#include "products/transpose.h"
#undef NAME
#undef TARGET
#undef LANES

enum { PAIR_LANES = 16 };

AVX512 static inline __m256i round16(const float *src)
{
    return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(src));
}

/* 32 neighbouring values as 16 words. */
AVX512 static inline pair_words along_k(const void *src, uint32_t dtype, int64_t index)
{
    if (dtype == HD_BF16)
        return (pair_words)_mm512_loadu_si512((const uint16_t *)src + index);
    const float *f = (const float *)src + index;
    return (pair_words)_mm512_inserti64x4(_mm512_castsi256_si512(round16(f)), round16(f + PAIR_LANES), 1);
}

/* 16 neighbouring values, each in the low half of a word. */
AVX512 static inline __m512i halves(const void *src, uint32_t dtype, int64_t index)
{
    __m256i h = dtype == HD_BF16 ? _mm256_loadu_si256((const __m256i *)((const uint16_t *)src + index))
                                 : round16((const float *)src + index);
    return _mm512_cvtepu16_epi32(h);
}

/* Word i pairs value i of this row and of the next. */
AVX512 static inline pair_words two_rows(const void *src, uint32_t dtype, int64_t index, int64_t k_step)
{
    __m512i low = halves(src, dtype, index), high = halves(src, dtype, index + k_step);
    return (pair_words)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

AVX512 static inline uint32_t one_half(const void *src, uint32_t dtype, int64_t index)
{
    if (dtype == HD_BF16)
        return ((const uint16_t *)src)[index];
    return (uint16_t)_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(((const float *)src)[index])), 0);
}

/* 16 sums (and what a row of bf16 holds, where `add`) as bf16. */
AVX512 static inline __m256i half_row(__m256i old, __m512 x, int add)
{
    if (add)
        x = _mm512_add_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(old), 16)));
    return (__m256i)_mm512_cvtneps_pbh(x);
}

AVX512 static inline __attribute__((always_inline)) void half_rows(uint16_t *to, int64_t ld, const float *src,
                                                                   int64_t src_ld, int64_t rows, int64_t cols, int add)
{
    for (int64_t i = 0; i < rows; i++, to += ld, src += src_ld) {
        int64_t j = 0;
        for (; j + PAIR_LANES <= cols; j += PAIR_LANES) {
            __m256i old = add ? _mm256_loadu_si256((const __m256i *)(to + j)) : _mm256_setzero_si256();
            _mm256_storeu_si256((__m256i *)(to + j), half_row(old, _mm512_loadu_ps(src + j), add));
        }
        if (j < cols) {
            __mmask16 mask = (__mmask16)((1u << (cols - j)) - 1);
            __m256i old = add ? _mm256_maskz_loadu_epi16(mask, to + j) : _mm256_setzero_si256();
            _mm256_mask_storeu_epi16(to + j, mask, half_row(old, _mm512_maskz_loadu_ps(mask, src + j), add));
        }
    }
}

AVX512 static inline void pair_store(void *dst, uint32_t dtype, int64_t ld, const float *src, int64_t src_ld,
                                     int64_t rows, int64_t cols, int add)
{
    if (dtype != HD_BF16)
        cpu_tiles_store_avx512(dst, dtype, ld, src, src_ld, rows, cols, add);
    else if (add)
        half_rows(dst, ld, src, src_ld, rows, cols, 1);
    else
        half_rows(dst, ld, src, src_ld, rows, cols, 0);
}

#endif
