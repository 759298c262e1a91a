/* Vectors of 8 floats: AVX2 and F16C. */
#include "kernels.h"

#include <string.h>

#include "heddle/types.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,f16c")
#include <immintrin.h>

#define KERNELS shm_kernels_avx2
#define KERNELS_NAME "avx2"
#define VEC __m256
#define LANES 8
#define STREAM_ALIGN 32

/* The first k of 8: of floats by a mask, of halves, which have none, by a copy. */
static inline __m256i some(size_t k)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m128i load16_some(const uint8_t *p, size_t k)
{
    uint16_t x[8] = {0};
    memcpy(x, p, k * sizeof *x);
    return _mm_loadu_si128((const void *)x);
}

static inline void store16_some(uint8_t *p, size_t k, __m128i v)
{
    uint16_t x[8];
    _mm_storeu_si128((void *)x, v);
    memcpy(p, x, k * sizeof *x);
}

static inline __m256 bf16_widen(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* To nearest even; NaNs stay NaNs, made quiet. As bf16_store of kernels_reference.c. */
static inline __m128i bf16_narrow(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    up = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan));
    up = _mm256_srli_epi32(up, 16);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(up, up), 0x08));
}

/* max_ps(b, a) is b > a ? b : a, also for NaNs; a NaN in b is put back. */
static inline __m256 nan_max(__m256 a, __m256 b)
{
    return _mm256_blendv_ps(_mm256_max_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
}

#define VSET(x) _mm256_set1_ps(x)
#define VADD(a, b) _mm256_add_ps(a, b)
#define VDIV(a, b) _mm256_div_ps(a, b)
#define VMAX(a, b) nan_max(a, b)
#define F16_NARROW(v) _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define LOAD16(p) _mm_loadu_si128((const void *)(p))
#define STORE16(p, x) _mm_storeu_si128((void *)(p), x)

#define F32_LOAD(p, k) _mm256_loadu_ps((const void *)(p))
#define F32_LOAD_SOME(p, k) _mm256_maskload_ps((const void *)(p), some(k))
#define F32_STORE(p, v) _mm256_storeu_ps((void *)(p), v)
#define F32_STORE_SOME(p, k, v) _mm256_maskstore_ps((void *)(p), some(k), v)
#define F32_STREAM(p, v) _mm256_stream_ps((void *)(p), v)
#define BF16_LOAD(p, k) bf16_widen(LOAD16(p))
#define BF16_LOAD_SOME(p, k) bf16_widen(load16_some(p, k))
#define BF16_STORE(p, v) STORE16(p, bf16_narrow(v))
#define BF16_STORE_SOME(p, k, v) store16_some(p, k, bf16_narrow(v))
#define F16_LOAD(p, k) _mm256_cvtph_ps(LOAD16(p))
#define F16_LOAD_SOME(p, k) _mm256_cvtph_ps(load16_some(p, k))
#define F16_STORE(p, v) STORE16(p, F16_NARROW(v))
#define F16_STORE_SOME(p, k, v) store16_some(p, k, F16_NARROW(v))

#include "kernels_vector.inc"
#else
const struct shm_kernels shm_kernels_avx2 = {.name = "avx2"};
#endif
