/* Bf16 micro-kernel on AVX512-BF16: 12 x 32 sums by the instruction that adds the products of pairs.
 *
 * A panel holds words, pairs of bf16 of neighbouring k: [k / 2][12] of a, [k / 2][32] of b; the word beyond an odd k is
 * half zero. Cores of AMD do it at twice the rate of fp32; those of Intel at half of it, and they have AMX. */
#include "products/tiles.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "products/tiles_pairs.h"

#define LANES 16
#define ROWS 12
#define WORD_TERMS 2
#define TARGET AVX512
#define FMA "vdpbf16ps %2, %1, %0"
#define NAME(x) dots_##x
#include "products/tiles_kernel.h"

#define INLINE AVX512 static inline __attribute__((always_inline))

enum { TERMS = 2 * PAIR_LANES, LINES = 8 };

/* ---- packing: `width` steps a panel, up to PAIR_LANES of them at a time; `have` of `lanes` are there, the rest is
 * zero */

struct source {
    const char *at;
    uint32_t dtype, reserved;
    int64_t step, k_step, k;
};

INLINE __mmask16 first(int64_t n)
{
    return (__mmask16)((1u << n) - 1);
}

/* Terms p.. of any strides. */
AVX512 static void pack_edge(uint32_t *to, const struct source *s, int64_t p, int64_t have, int64_t lanes,
                             int64_t width)
{
    for (; p < s->k; p += 2)
        for (int64_t i = 0; i < lanes; i++) {
            int64_t at = i * s->step + p * s->k_step;
            uint32_t low = i < have ? one_half(s->at, s->dtype, at) : 0;
            uint32_t high = i < have && p + 1 < s->k ? one_half(s->at, s->dtype, at + s->k_step) : 0;
            to[p / 2 * width + i] = low | high << 16;
        }
}

/* Terms lie side by side: TERMS of them of each step, transposed. */
INLINE void pack_columns(uint32_t *to, const struct source *s, uint32_t dtype, int64_t have, int64_t lanes,
                         int64_t width)
{
    int64_t p = 0;
    for (; p + TERMS <= s->k; p += TERMS) {
        pair_words r[PAIR_LANES];
        _Pragma("GCC unroll 16") for (int64_t i = 0; i < PAIR_LANES; i++) r[i] =
            i < have ? along_k(s->at, dtype, i * s->step + p) : (pair_words){0};
        pair_transpose(r);
        _Pragma("GCC unroll 16") for (int64_t i = 0; i < PAIR_LANES; i++)
            _mm512_mask_storeu_epi32(to + (p / 2 + i) * width, first(lanes), (__m512i)r[i]);
    }
    pack_edge(to, s, p, have, lanes, width);
}

INLINE void pack_lanes(uint32_t *to, const struct source *s, uint32_t dtype, int64_t have, int64_t lanes, int64_t width)
{
    if (s->k_step != 1)
        pack_edge(to, s, 0, have, lanes, width);
    else if (have == lanes && lanes == PAIR_LANES)
        pack_columns(to, s, dtype, PAIR_LANES, PAIR_LANES, width);
    else if (have == lanes && lanes == ROWS)
        pack_columns(to, s, dtype, ROWS, ROWS, width);
    else
        pack_columns(to, s, dtype, have, lanes, width);
}

INLINE __m512i some_halves(const void *src, uint32_t dtype, int64_t index, __mmask16 mask)
{
    if (dtype == HD_BF16)
        return _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)src + index));
    return _mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, (const float *)src + index)));
}

/* Word i pairs value i of row `at` and, where `paired`, of the next. */
INLINE void pack_pair(uint32_t *to, const struct source *s, uint32_t dtype, int64_t at, int paired, __mmask16 have,
                      __mmask16 lanes)
{
    const __m512i zip = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    __m512i low = some_halves(s->at, dtype, at, have);
    __m512i high = some_halves(s->at, dtype, at + s->k_step, paired ? have : 0);
    _mm512_mask_storeu_epi32(to, lanes, _mm512_permutex2var_epi16(low, zip, high));
}

/* Two rows' words of a panel of which `have` columns are there. */
INLINE void pack_panel(uint32_t *to, const struct source *s, uint32_t dtype, int64_t at, int paired, int64_t have,
                       int64_t width)
{
    _Pragma("GCC unroll 2") for (int64_t j = 0; j < width; j += PAIR_LANES)
    {
        int64_t lanes = width - j < PAIR_LANES ? width - j : PAIR_LANES;
        int64_t here = have - j < 0 ? 0 : have - j < lanes ? have - j : lanes;
        pack_pair(to + j, s, dtype, at + j, paired, first(here), first(lanes));
    }
}

/* Steps lie side by side: two rows make a row of words of every panel. A few such rows of a panel before the next
 * panel: whole lines are written, though a row of words is no whole line. */
INLINE void pack_rows(uint32_t *to, const struct source *s, uint32_t dtype, int64_t count, int64_t width)
{
    int64_t words = (s->k + 1) / 2, pairs = s->k / 2, two = 2 * s->k_step;
    for (int64_t first = 0; first < words; first += LINES)
        for (int64_t i = 0; i < count; i += width) {
            int64_t have = count - i < width ? count - i : width, p = first, end = first + LINES;
            uint32_t *panel = to + i * words;
            if (have == width)
                for (; p < end && p < pairs; p++)
                    pack_panel(panel + p * width, s, dtype, p * two + i, 1, width, width);
            for (; p < end && p < words; p++)
                pack_panel(panel + p * width, s, dtype, p * two + i, p < pairs, have, width);
        }
}

INLINE void pack(uint32_t *to, struct source s, uint32_t dtype, int64_t count, int64_t width)
{
    int64_t words = (s.k + 1) / 2, size = dtype == HD_F32 ? 4 : 2;
    if (s.step == 1) {
        pack_rows(to, &s, dtype, count, width);
        return;
    }
    for (int64_t i = 0; i < count; i += width)
        for (int64_t j = 0; j < width; j += PAIR_LANES) {
            int64_t lanes = width - j < PAIR_LANES ? width - j : PAIR_LANES, left = count - i - j;
            struct source part = s;
            part.at += (i + j) * s.step * size;
            pack_lanes(to + i * words + j, &part, dtype, left < 0 ? 0 : left < lanes ? left : lanes, lanes, width);
        }
}

AVX512 static void dots_pack_a(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t rows,
                               int64_t k)
{
    struct source s = {.at = src, .dtype = dtype, .step = step, .k_step = k_step, .k = k};
    if (dtype == HD_BF16)
        pack(dst, s, HD_BF16, rows, ROWS);
    else
        pack(dst, s, HD_F32, rows, ROWS);
}

AVX512 static void dots_pack_b(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t cols,
                               int64_t k)
{
    struct source s = {.at = src, .dtype = dtype, .step = step, .k_step = k_step, .k = k};
    if (dtype == HD_BF16)
        pack(dst, s, HD_BF16, cols, dots_cols);
    else
        pack(dst, s, HD_F32, cols, dots_cols);
}

static const struct cpu_tiles tiles = {
    .name = "avx512-bf16",
    .mr = ROWS,
    .nr = dots_cols,
    .kr = 2,
    .bytes = 2,
    .depth = 512,
    .adds_last = 1,
    .alias = 4096,
    .begin = dots_nothing,
    .end = dots_nothing,
    .pack_a = dots_pack_a,
    .pack_b = dots_pack_b,
    .kernel = dots_kernel,
    .kernel_rows = dots_kernel_rows,
    .store = pair_store,
};

const struct cpu_tiles *cpu_tiles_dots(void)
{
    return cpu_isa() >= CPU_ISA_AVX512_BF16 ? &tiles : NULL;
}

#else

const struct cpu_tiles *cpu_tiles_dots(void)
{
    return NULL;
}

#endif
