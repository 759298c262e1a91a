/* plugins/device-cpu/fast_tiles_amx.c: bf16 micro-kernel on AMX tiles: 32 x 32 sums from 2 x 2 tiles of 16 x 16.
 *
 * A word is a pair of bf16 of neighbouring k. A tile of a is 16 rows of 16 words (32 terms); a tile of b is 16 words
 * of k by 16 columns: the instruction multiplies word by word. A panel is, for every 32 terms, two tiles side by
 * side. fp32 sources are rounded to nearest even; subnormal fp32 become zero, as AVX512-BF16 does it. */
#include "fast_tiles.h"

#include "heddle/types.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

#define LANES 16
#define TARGET AVX512
#define NAME(x) amx_##x
#include "fast_transpose.h"

enum { SIDE = 16, TERMS = 32, PANEL = 32, TILE = SIDE * SIDE }; /* TILE in words */

/* ---- packing */

AVX512 static inline __m256i round16(const float *src)
{
    return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(src));
}

/* 32 neighbouring values as 16 words. */
AVX512 static inline amx_words along_k(const void *src, uint32_t dtype, int64_t index)
{
    if (dtype == HD_BF16)
        return *(const amx_words *)((const uint16_t *)src + index);
    const float *f = (const float *)src + index;
    return (amx_words)_mm512_inserti64x4(_mm512_castsi256_si512(round16(f)), round16(f + SIDE), 1);
}

/* 16 neighbouring values, each in the low half of a word. */
AVX512 static inline __m512i halves(const void *src, uint32_t dtype, int64_t index)
{
    __m256i h = dtype == HD_BF16 ? _mm256_loadu_si256((const __m256i *)((const uint16_t *)src + index))
                                 : round16((const float *)src + index);
    return _mm512_cvtepu16_epi32(h);
}

/* Word i pairs value i of this row and of the next. */
AVX512 static inline amx_words two_rows(const void *src, uint32_t dtype, int64_t index, int64_t k_step)
{
    __m512i low = halves(src, dtype, index), high = halves(src, dtype, index + k_step);
    return (amx_words)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* A whole tile. `rows_are_k`: rows of the tile are words of k (b); else they are steps (a). */
AVX512 static inline __attribute__((always_inline)) void tile_full(uint32_t *dst, const void *src, uint32_t dtype,
                                                                   int64_t step, int64_t k_step, int rows_are_k)
{
    amx_words r[SIDE];
    int source_rows_are_k = k_step != 1;
    if (source_rows_are_k)
        _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++) r[i] = two_rows(src, dtype, 2 * i * k_step, k_step);
    else
        _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++) r[i] = along_k(src, dtype, i * step);
    if (source_rows_are_k != rows_are_k)
        amx_transpose(r);
    _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++)((amx_words *)dst)[i] = r[i];
}

AVX512 static uint32_t one_half(const void *src, uint32_t dtype, int64_t index)
{
    if (dtype == HD_BF16)
        return ((const uint16_t *)src)[index];
    return (uint16_t)_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(((const float *)src)[index])), 0);
}

/* Any strides; `have` of 16 steps and `terms` of 32 terms are there, the rest is zero. */
AVX512 static void tile_edge(uint32_t *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step,
                             int rows_are_k, int64_t have, int64_t terms)
{
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t j = 0; j < SIDE; j++) {
            uint32_t low = 0, high = 0;
            if (i < have && 2 * j < terms)
                low = one_half(src, dtype, i * step + 2 * j * k_step);
            if (i < have && 2 * j + 1 < terms)
                high = one_half(src, dtype, i * step + (2 * j + 1) * k_step);
            dst[rows_are_k ? j * SIDE + i : i * SIDE + j] = low | high << 16;
        }
}

AVX512 static inline __attribute__((always_inline)) void pack(void *dst, const void *src, uint32_t dtype,
                                                              int64_t step, int64_t k_step, int64_t count, int64_t k,
                                                              int rows_are_k)
{
    uint32_t *to = dst;
    int64_t size = dtype == HD_F32 ? 4 : 2, usual = step == 1 || k_step == 1;
    for (int64_t i = 0; i < count; i += PANEL)
        for (int64_t p = 0; p < k; p += TERMS)
            for (int64_t t = i; t < i + PANEL; t += SIDE, to += TILE) {
                const char *from = (const char *)src + (t * step + p * k_step) * size;
                if (usual && count - t >= SIDE && k - p >= TERMS)
                    tile_full(to, from, dtype, step, k_step, rows_are_k);
                else
                    tile_edge(to, from, dtype, step, k_step, rows_are_k, count - t, k - p);
            }
}

AVX512 static void amx_pack_a(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t rows,
                              int64_t k)
{
    if (dtype == HD_BF16)
        pack(dst, src, HD_BF16, step, k_step, rows, k, 0);
    else
        pack(dst, src, HD_F32, step, k_step, rows, k, 0);
}

AVX512 static void amx_pack_b(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t cols,
                              int64_t k)
{
    if (dtype == HD_BF16)
        pack(dst, src, HD_BF16, step, k_step, cols, k, 1);
    else
        pack(dst, src, HD_F32, step, k_step, cols, k, 1);
}

AVX512 static void amx_to_bf16(uint16_t *dst, const float *src, int64_t n)
{
    int64_t i = 0;
    for (; i + SIDE <= n; i += SIDE)
        _mm256_storeu_si256((__m256i *)(dst + i), round16(src + i));
    for (; i < n; i++)
        dst[i] = (uint16_t)one_half(src, HD_F32, i);
}

/* ---- the product */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Static: gcc's _tile_loadconfig reads all 64 bytes but tells the compiler of 8. */
static const struct tile_config config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE},
};

AMX static void amx_begin(void)
{
    _tile_loadconfig(&config);
}

AMX static void amx_end(void)
{
    _tile_release();
}

/* Tiles 0-3 hold the sums, 4 and 5 a, 6 and 7 b. */
AMX static void amx_kernel(int64_t k, const void *pa, const void *pb, float *c, int64_t ldc, int add)
{
    const uint32_t *a = pa, *b = pb;
    float *c1 = c + SIDE * ldc;
    size_t row = (size_t)ldc * 4;
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + SIDE, row);
        _tile_loadd(2, c1, row);
        _tile_loadd(3, c1 + SIDE, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < k; p += TERMS, a += 2 * TILE, b += 2 * TILE) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + SIDE, row);
    _tile_stored(2, c1, row);
    _tile_stored(3, c1 + SIDE, row);
}

/* ---- is it there: CPUID leaf 7 says AMX-TILE and AMX-BF16, leaf 7.1 AVX512-BF16; the kernel grants the state */

static int supported(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) */
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & (1u << 22)) || !(edx & (1u << 24)))
        return 0;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & (1u << 5)))
        return 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static const struct cpu_tiles tiles = {
    .name = "amx-bf16",
    .mr = PANEL,
    .nr = PANEL,
    .kr = TERMS,
    .bytes = 2,
    .depth = 256,
    .begin = amx_begin,
    .end = amx_end,
    .pack_a = amx_pack_a,
    .pack_b = amx_pack_b,
    .kernel = amx_kernel,
    .to_bf16 = amx_to_bf16,
};

const struct cpu_tiles *cpu_tiles_amx(void)
{
    static int state; /* 1: yes, 2: no; the same answer whoever asks first */
    int known = __atomic_load_n(&state, __ATOMIC_RELAXED);
    if (!known) {
        known = supported() ? 1 : 2;
        __atomic_store_n(&state, known, __ATOMIC_RELAXED);
    }
    return known == 1 ? &tiles : NULL;
}

#else

const struct cpu_tiles *cpu_tiles_amx(void)
{
    return NULL;
}

#endif
