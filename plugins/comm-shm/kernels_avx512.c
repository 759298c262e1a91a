/* Vectors of 16 floats: AVX-512 F, BW, VL. */
#include "kernels.h"

#include <string.h>

#include "heddle/types.h"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,f16c,prefer-vector-width=512")
#include <immintrin.h>

#define KERNELS shm_kernels_avx512
#define KERNELS_NAME "avx512"
#define VEC __m512
#define LANES 16
#define STREAM_ALIGN 64

/* The first k of 16. */
static inline __mmask16 some(size_t k)
{
    return (__mmask16)((1u << k) - 1);
}

static inline __m512 bf16_widen(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* To nearest even; NaNs stay NaNs, made quiet. As bf16_store of kernels_reference.c. */
static inline __m256i bf16_narrow(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/* max_ps(b, a) is b > a ? b : a, also for NaNs; a NaN in b is put back. */
static inline __m512 nan_max(__m512 a, __m512 b)
{
    return _mm512_mask_mov_ps(_mm512_max_ps(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
}

#define VSET(x) _mm512_set1_ps(x)
#define VADD(a, b) _mm512_add_ps(a, b)
#define VDIV(a, b) _mm512_div_ps(a, b)
#define VMAX(a, b) nan_max(a, b)
#define F16_NARROW(v) _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define LOAD16(p) _mm256_loadu_si256((const void *)(p))
#define LOAD16_SOME(p, k) _mm256_maskz_loadu_epi16(some(k), (const void *)(p))
#define STORE16(p, x) _mm256_storeu_si256((void *)(p), x)
#define STORE16_SOME(p, k, x) _mm256_mask_storeu_epi16((void *)(p), some(k), x)

#define F32_LOAD(p, k) _mm512_loadu_ps((const void *)(p))
#define F32_LOAD_SOME(p, k) _mm512_maskz_loadu_ps(some(k), (const void *)(p))
#define F32_STORE(p, v) _mm512_storeu_ps((void *)(p), v)
#define F32_STORE_SOME(p, k, v) _mm512_mask_storeu_ps((void *)(p), some(k), v)
#define F32_STREAM(p, v) _mm512_stream_ps((void *)(p), v)
#define BF16_LOAD(p, k) bf16_widen(LOAD16(p))
#define BF16_LOAD_SOME(p, k) bf16_widen(LOAD16_SOME(p, k))
#define BF16_STORE(p, v) STORE16(p, bf16_narrow(v))
#define BF16_STORE_SOME(p, k, v) STORE16_SOME(p, k, bf16_narrow(v))
#define F16_LOAD(p, k) _mm512_cvtph_ps(LOAD16(p))
#define F16_LOAD_SOME(p, k) _mm512_cvtph_ps(LOAD16_SOME(p, k))
#define F16_STORE(p, v) STORE16(p, F16_NARROW(v))
#define F16_STORE_SOME(p, k, v) STORE16_SOME(p, k, F16_NARROW(v))

#include "kernels_vector.inc"
#else
const struct shm_kernels shm_kernels_avx512 = {.name = "avx512"};
#endif
