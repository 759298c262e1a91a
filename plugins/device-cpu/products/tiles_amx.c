/* Bf16 micro-kernel on AMX tiles: 32 x 32 sums from 2 x 2 tiles of 16 x 16.
 *
 * A word is a pair of bf16 of neighbouring k. A tile of a is 16 rows of 16 words (32 terms); a tile of b is
 * 16 words of k by 16 columns: the instruction multiplies word by word. A panel is, for every 32 terms, two
 * tiles side by side. fp32 sources are rounded to nearest even; subnormal fp32 become zero, as AVX512-BF16
 * does it. */
#include "products/tiles.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "products/tiles_pairs.h"
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

enum { SIDE = 16, TERMS = 32, PANEL = 32, TILE = SIDE * SIDE }; /* TILE in words */

/* ---- packing */

/* A whole tile. `rows_are_k`: rows of the tile are words of k (b); else they are steps (a). */
AVX512 static inline __attribute__((always_inline)) void tile_full(uint32_t *dst, const void *src, uint32_t dtype,
                                                                   int64_t step, int64_t k_step, int rows_are_k)
{
    pair_words r[SIDE];
    int source_rows_are_k = k_step != 1;
    if (source_rows_are_k)
        _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++) r[i] = two_rows(src, dtype, 2 * i * k_step, k_step);
    else
        _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++) r[i] = along_k(src, dtype, i * step);
    if (source_rows_are_k != rows_are_k)
        pair_transpose(r);
    _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++)((pair_words *)dst)[i] = r[i];
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

/* The two tiles of a panel for one range of 32 terms. */
AVX512 static inline __attribute__((always_inline)) void pair(uint32_t *to, const char *from, uint32_t dtype,
                                                              int64_t step, int64_t k_step, int64_t have, int64_t terms,
                                                              int rows_are_k)
{
    int64_t size = dtype == HD_F32 ? 4 : 2;
    for (int64_t t = 0; t < PANEL; t += SIDE, to += TILE)
        if ((step == 1 || k_step == 1) && have - t >= SIDE && terms >= TERMS)
            tile_full(to, from + t * step * size, dtype, step, k_step, rows_are_k);
        else
            tile_edge(to, from + t * step * size, dtype, step, k_step, rows_are_k, have - t, terms);
}

/* Goes through the source in the order in which it lies. */
AVX512 static inline __attribute__((always_inline)) void pack(void *dst, const char *src, uint32_t dtype, int64_t step,
                                                              int64_t k_step, int64_t count, int64_t k, int rows_are_k)
{
    int64_t size = dtype == HD_F32 ? 4 : 2, panels = (count + PANEL - 1) / PANEL, ranges = (k + TERMS - 1) / TERMS;
    for (int64_t n = 0; n < panels * ranges; n++) {
        int64_t panel = step == 1 ? n % panels : n / ranges, range = step == 1 ? n / panels : n % ranges;
        int64_t i = panel * PANEL, p = range * TERMS;
        pair((uint32_t *)dst + (panel * ranges + range) * 2 * TILE, src + (i * step + p * k_step) * size, dtype, step,
             k_step, count - i, k - p, rows_are_k);
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

/* Tiles 0-3 hold the sums, 4 and 5 a, 6 and 7 b. The tile of a below lies `below` bytes
 * further, the next one along k `next`, rows `ld`. */
AMX static inline __attribute__((always_inline)) void multiply(int64_t k, const char *a, int64_t ld, int64_t below,
                                                               int64_t next, const uint32_t *b, float *c, int64_t ldc,
                                                               int add)
{
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
    for (int64_t p = 0; p < k; p += TERMS, a += next, b += 2 * TILE) {
        _tile_loadd(4, a, ld);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + below, ld);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + SIDE, row);
    _tile_stored(2, c1, row);
    _tile_stored(3, c1 + SIDE, row);
}

AMX static void amx_kernel(int64_t k, const void *a, const void *b, float *c, int64_t ldc, int add)
{
    multiply(k, a, 64, TILE * 4, 2 * TILE * 4, b, c, ldc, add);
}

AMX static void amx_kernel_rows(int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, float *c, int64_t ldc,
                                int add)
{
    (void)cs;
    multiply(k, a, rs, SIDE * rs, 64, b, c, ldc, add);
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
    .kernel_rows = amx_kernel_rows,
    .store = pair_store,
};

const struct cpu_tiles *cpu_tiles_amx(void)
{
    return cpu_isa() >= CPU_ISA_AMX ? &tiles : NULL;
}

#else

const struct cpu_tiles *cpu_tiles_amx(void)
{
    return NULL;
}

#endif
