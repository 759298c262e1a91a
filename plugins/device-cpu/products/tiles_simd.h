/* Fp32 micro-kernels for one instruction set. Included by tiles.c with LANES, ROWS (mr), DEPTH, TARGET, TITLE
 * NAME(x), HALF_WIDEN(x) and HALF_ROUND(x) defined, and FMA where the set has an instruction for it; nr is two
 * vectors. bf16 and fp16 are widened when packed. */
#include "products/transpose.h"

#define WORD_TERMS 1
#include "products/tiles_kernel.h"

#define INLINE TARGET static inline __attribute__((always_inline))

typedef uint16_t NAME(halves) __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

/* ---- packing: panels of `width` steps, each [k][width] */

TARGET static inline NAME(words) NAME(widen)(const uint16_t *src)
{
    return __builtin_convertvector(*(const NAME(halves) *)src, NAME(words)) << 16;
}

TARGET static inline NAME(words) NAME(widen_half)(const uint16_t *src)
{
    return (NAME(words))HALF_WIDEN(*(const NAME(halves) *)src);
}

TARGET static inline NAME(words) NAME(load)(const void *src, uint32_t dtype, int64_t index)
{
    if (dtype == HD_F16)
        return NAME(widen_half)((const uint16_t *)src + index);
    return dtype == HD_F32 ? *(const NAME(words) *)((const uint32_t *)src + index)
                           : NAME(widen)((const uint16_t *)src + index);
}

static inline uint32_t NAME(load_one)(const void *src, uint32_t dtype, int64_t index)
{
    if (dtype == HD_F16)
        return cpu_half_widen(((const uint16_t *)src)[index]);
    return dtype == HD_F32 ? ((const uint32_t *)src)[index] : (uint32_t)((const uint16_t *)src)[index] << 16;
}

/* Any strides, `have` of `width` steps; the rest is zero. */
TARGET static void NAME(pack_edge)(uint32_t *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step,
                                   int64_t have, int64_t width, int64_t k)
{
    for (int64_t p = 0; p < k; p++, dst += width)
        for (int64_t i = 0; i < width; i++)
            dst[i] = i < have ? NAME(load_one)(src, dtype, i * step + p * k_step) : 0;
}

INLINE void NAME(pack_half_row)(uint32_t *to, const uint16_t *src, int64_t width)
{
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        *(NAME(words) *)(to + i) = NAME(widen_half)(src + i);
    for (; i < width; i++)
        to[i] = cpu_half_widen(src[i]);
}

/* Steps lie side by side: panels of whole rows, row by row so that the source is read in long runs. */
INLINE void NAME(pack_rows)(uint32_t *dst, const void *src, uint32_t dtype, int64_t k_step, int64_t panels,
                            int64_t width, int64_t k)
{
    for (int64_t p = 0; p < k; p++)
        for (int64_t panel = 0; panel < panels; panel++) {
            uint32_t *to = dst + (panel * k + p) * width;
            int64_t from = p * k_step + panel * width;
            if (dtype == HD_F32)
                memcpy(to, (const uint32_t *)src + from, (size_t)width * 4); /* width is a constant here */
            else if (dtype == HD_F16)
                NAME(pack_half_row)(to, (const uint16_t *)src + from, width);
            else
                for (int64_t i = 0; i < width; i++)
                    to[i] = (uint32_t)((const uint16_t *)src)[from + i] << 16;
        }
}

/* Terms lie side by side: up to LANES steps of a panel, transposed LANES terms at a time. */
INLINE void NAME(pack_columns)(uint32_t *dst, const void *src, uint32_t dtype, int64_t step, int64_t steps,
                               int64_t width, int64_t k)
{
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES) {
        NAME(words) r[LANES];
        for (int64_t i = 0; i < LANES; i++)
            r[i] = i < steps ? NAME(load)(src, dtype, i * step + p) : (NAME(words)){0};
        NAME(transpose)(r);
        for (int64_t i = 0; i < LANES; i++)
            if (steps == LANES)
                *(NAME(words) *)(dst + (p + i) * width) = r[i];
            else
                memcpy(dst + (p + i) * width, &r[i], (size_t)steps * 4);
    }
    for (; p < k; p++)
        for (int64_t i = 0; i < steps; i++)
            dst[p * width + i] = NAME(load_one)(src, dtype, i * step + p);
}

/* Whole panels; dtype and width are constants, so that loads have no branch. */
INLINE void NAME(pack_panels)(uint32_t *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step,
                              int64_t panels, int64_t width, int64_t k)
{
    int64_t size = dtype == HD_F32 ? 4 : 2;
    if (step == 1) {
        NAME(pack_rows)(dst, src, dtype, k_step, panels, width, k);
        return;
    }
    for (int64_t panel = 0; panel < panels; panel++) {
        uint32_t *to = dst + panel * width * k;
        const char *from = (const char *)src + panel * width * step * size;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES)
            NAME(pack_columns)(to + i, from + i * step * size, dtype, step, LANES, width, k);
        if (i < width)
            NAME(pack_columns)(to + i, from + i * step * size, dtype, step, width % LANES, width, k);
    }
}

INLINE void NAME(pack)(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t count,
                       int64_t k, int64_t width)
{
    int64_t whole = step == 1 || k_step == 1 ? count / width : 0, size = dtype == HD_F32 ? 4 : 2;
    if (dtype == HD_F32)
        NAME(pack_panels)(dst, src, HD_F32, step, k_step, whole, width, k);
    else if (dtype == HD_F16)
        NAME(pack_panels)(dst, src, HD_F16, step, k_step, whole, width, k);
    else
        NAME(pack_panels)(dst, src, HD_BF16, step, k_step, whole, width, k);
    for (int64_t i = whole * width; i < count; i += width) {
        uint32_t *to = (uint32_t *)dst + i * k;
        const char *from = (const char *)src + i * step * size;
        int64_t have = count - i < width ? count - i : width;
        NAME(pack_edge)(to, from, dtype, step, k_step, have, width, k);
    }
}

TARGET static void NAME(pack_a)(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t rows,
                                int64_t k)
{
    NAME(pack)(dst, src, dtype, step, k_step, rows, k, ROWS);
}

TARGET static void NAME(pack_b)(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t cols,
                                int64_t k)
{
    NAME(pack)(dst, src, dtype, step, k_step, cols, k, NAME(cols));
}

/* ---- storing */

/* To nearest even; a NaN stays one. */
TARGET static inline NAME(halves) NAME(round)(NAME(floats) value)
{
    NAME(words) x = (NAME(words))value;
    NAME(words) nan = (NAME(words))((x & 0x7fffffff) > 0x7f800000);
    NAME(words) y = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
    return __builtin_convertvector((nan & ((x >> 16) | 0x40)) | (~nan & y), NAME(halves));
}

TARGET static inline void NAME(store_f32)(float *dst, const float *src, int64_t n, int add)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        NAME(floats) x = *(const NAME(floats) *)(src + i);
        if (add)
            x += *(NAME(floats) *)(dst + i);
        *(NAME(floats) *)(dst + i) = x;
    }
    for (; i < n; i++)
        dst[i] = add ? dst[i] + src[i] : src[i];
}

TARGET static inline void NAME(store_bf16)(uint16_t *dst, const float *src, int64_t n, int add)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        NAME(floats) x = *(const NAME(floats) *)(src + i);
        if (add)
            x += (NAME(floats))NAME(widen)(dst + i);
        *(NAME(halves) *)(dst + i) = NAME(round)(x);
    }
    for (; i < n; i++)
        dst[i] = bf16_round(src[i] + (add ? bf16_widen(dst[i]) : 0));
}

TARGET static inline void NAME(store_half)(uint16_t *dst, const float *src, int64_t n, int add)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        NAME(floats) x = *(const NAME(floats) *)(src + i);
        if (add)
            x += (NAME(floats))NAME(widen_half)(dst + i);
        *(NAME(halves) *)(dst + i) = (NAME(halves))HALF_ROUND(x);
    }
    for (; i < n; i++)
        dst[i] = cpu_half_round(src[i] + (add ? cpu_half_float(dst[i]) : 0));
}

TARGET static void NAME(store)(void *dst, uint32_t dtype, int64_t ld, const float *src, int64_t src_ld, int64_t rows,
                               int64_t cols, int add)
{
    for (int64_t i = 0; i < rows; i++)
        if (dtype == HD_F32)
            NAME(store_f32)((float *)dst + i * ld, src + i * src_ld, cols, add);
        else if (dtype == HD_F16)
            NAME(store_half)((uint16_t *)dst + i * ld, src + i * src_ld, cols, add);
        else
            NAME(store_bf16)((uint16_t *)dst + i * ld, src + i * src_ld, cols, add);
}

static const struct cpu_tiles NAME(tiles) = {
    .name = TITLE,
    .mr = ROWS,
    .nr = NAME(cols),
    .kr = 1,
    .bytes = 4,
    .depth = DEPTH,
    .adds_last = 1,
    .any_order = 1,
    .alias = 4096,
    .begin = NAME(nothing),
    .end = NAME(nothing),
    .pack_a = NAME(pack_a),
    .pack_b = NAME(pack_b),
    .kernel = NAME(kernel),
    .kernel_rows = NAME(kernel_rows),
    .store = NAME(store),
};

#undef DEPTH
#undef FMA
#undef HALF_ROUND
#undef HALF_WIDEN
#undef INLINE
#undef LANES
#undef ROWS
#undef TARGET
#undef WORD_TERMS
#undef TITLE
#undef NAME
