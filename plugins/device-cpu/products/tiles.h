/* Micro-kernels: the product of two packed panels, for each instruction set.
 *
 * A panel of a holds mr rows, a panel of b nr columns, both over the same k terms, k padded with zeros to a
 * multiple of kr; in which order is the instruction set's own affair. Panel i of a starts at panel_a(k) * i
 * bytes. The kernel makes a full block of mr x nr sums in fp32. Sums run over k in order: results depend on
 * nothing else. */
#ifndef HD_DEVICE_CPU_PRODUCTS_TILES_H
#define HD_DEVICE_CPU_PRODUCTS_TILES_H

#include <stddef.h>
#include <stdint.h>

#include "isa.h"

enum { CPU_TILES_MAX_MR = 32, CPU_TILES_MAX_NR = 32 };

typedef void (*cpu_tiles_store_fn)(void *dst, uint32_t dtype, int64_t ld, const float *src, int64_t src_ld,
                                   int64_t rows, int64_t cols, int add);

struct cpu_tiles {
    const char *name;
    int64_t mr, nr, kr;
    int64_t bytes;     /* of a packed element */
    int64_t depth;     /* terms that suit the caches */
    int64_t any_order; /* see kernel_rows */
    int64_t alias; /* rows a multiple of so many bytes apart would push each other out of the first cache, 0: never */
    int64_t adds_last; /* kernel() adds what c holds to whole sums; else it begins with it */
    /* Around a thread's use of kernel(). */
    void (*begin)(void);
    void (*end)(void);
    /* Packs rows x k of a (k x cols of b) where element (i, p) lies at src + i * step + p * k_step, as fp32,
     * bf16 or fp16 by `dtype`. */
    void (*pack_a)(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t rows, int64_t k);
    void (*pack_b)(void *dst, const void *src, uint32_t dtype, int64_t step, int64_t k_step, int64_t cols, int64_t k);
    /* c[mr, nr] (+)= a b; rows of c are ldc apart. */
    void (*kernel)(int64_t k, const void *a, const void *b, float *c, int64_t ldc, int add);
    /* The same with rows of a that are not packed: of the kernel's element type, rs bytes apart, terms cs bytes apart:
     * one element without `any_order`. Whole multiples of kr terms. NULL: cannot. */
    void (*kernel_rows)(int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, float *c, int64_t ldc,
                        int add);
    /* dst[rows, cols] (+)= src, as fp32 or rounded to bf16 or fp16; rows lie ld and src_ld elements apart. */
    cpu_tiles_store_fn store;
};

/* The best one for inputs of this dtype with the instruction set in use. fp32 is never rounded; bf16 may be computed in
 * fp32, fp16 always is. */
const struct cpu_tiles *cpu_tiles_choose(uint32_t dtype);

/* All that the instruction set in use has, for tests and benchmarks; NULL beyond the last. */
const struct cpu_tiles *cpu_tiles_at(int index);

/* NULL where the instruction set in use has no AMX; no AVX512-BF16. */
const struct cpu_tiles *cpu_tiles_amx(void);
const struct cpu_tiles *cpu_tiles_dots(void);
void cpu_tiles_store_avx512(void *dst, uint32_t dtype, int64_t ld, const float *src, int64_t src_ld, int64_t rows,
                            int64_t cols, int add);

static inline int cpu_is_amd(void)
{
#ifdef __x86_64__
    return __builtin_cpu_is("amd") != 0;
#else
    return 0;
#endif
}

/* Are AVX512-BF16's pairs faster here than fp32, as measured? Or asked for by name. */
static inline int cpu_tiles_dots_fast(void)
{
    return cpu_is_amd() || cpu_isa_asked() == CPU_ISA_AVX512_BF16;
}

/* Do products keep their pace while terms of a lie rows apart, each on a line of its own? As measured: on AMD's
 * processors, where packing them first costs more; not on Intel's, where a gradient of weights takes a tenth to a half
 * longer than with packing. */
static inline int cpu_tiles_reach(void)
{
    return cpu_is_amd();
}

static inline int64_t cpu_tiles_pad(const struct cpu_tiles *t, int64_t k)
{
    return (k + t->kr - 1) / t->kr * t->kr;
}

static inline int64_t cpu_tiles_panel_a(const struct cpu_tiles *t, int64_t k)
{
    return cpu_tiles_pad(t, k) * t->mr * t->bytes;
}

static inline int64_t cpu_tiles_panel_b(const struct cpu_tiles *t, int64_t k)
{
    return cpu_tiles_pad(t, k) * t->nr * t->bytes;
}

#endif
