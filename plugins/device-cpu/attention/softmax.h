/* Row kernels of attention, for each vector instruction set.
 *
 * Rows of scratch have room for a multiple of 16 values. `visible` is [first, last) of a row, the positions that a
 * query sees; the others up to `total` are written as zeros. It is passed by address: a copy on the stack is read by
 * wider loads than the stores that wrote it, and each row would wait for that (no store forwarding). */
#ifndef HD_DEVICE_CPU_ATTENTION_SOFTMAX_H
#define HD_DEVICE_CPU_ATTENTION_SOFTMAX_H

#include <stdint.h>

struct cpu_span {
    int64_t first, last;
};

struct cpu_visible_span {
    int64_t first, last, total;
};

/* A row of the backward pass: scores and dp, the gradient of their weights, over the positions that lse and delta are
 * of. */
struct cpu_softmax_row {
    const float *scores, *dp;
    const float *lse, *delta;
    const float *slopes; /* of capped scores; NULL: they have no cap */
};

/* A tile of scores, keys x 32 queries, for AMX, and the state of each query. */
struct cpu_columns {
    int64_t keys;        /* a multiple of 32 */
    struct cpu_span all; /* of these keys none has a score of -INFINITY, which says that the query does not see it */
    float *most2;        /* the shift of its weights so far, / ln 2: about its greatest score; -INFINITY: it saw none */
    float *total;        /* the sum of its weights so far */
    float *shrink;       /* what weights so far are to be multiplied by, where the shift moves */
};

enum { CPU_ROWS_F32, CPU_ROWS_BF16, CPU_ROWS };

struct cpu_softmax {
    /* The largest visible value. */
    float (*most)(const float *x, const struct cpu_visible_span *visible);
    /* to = exp(scale x - shift); returns the sum, of what is not rounded. `to`, here and below, is written as
     * CPU_ROWS_.. says; NULL where no instruction rounds to bf16. It may be x where that is fp32. */
    float (*exp[CPU_ROWS])(const float *x, void *to, const struct cpu_visible_span *visible, float scale, float shift);
    /* p = exp(scale scores - lse), ds = scale p (dp - delta) slopes. */
    void (*grad[CPU_ROWS])(const struct cpu_softmax_row *row, void *p, void *ds, const struct cpu_visible_span *visible,
                           float scale);
    /* to = exp(scale s - shift), a panel of b of products/tiles_amx.c; returns whether shifts moved, and has then set
     * shrink. NULL without instructions for bf16. */
    int (*columns)(const float *s, const struct cpu_columns *c, void *to, float scale);
    /* x = tanh(scale x) / scale; slopes = 1 - tanh^2, unless NULL. Elements beside the visible ones may change. */
    void (*cap)(float *x, float *slopes, const struct cpu_visible_span *visible, float scale);
    /* Dot product of n values, fp32, bf16 or fp16. */
    float (*dot)(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype, int64_t n);
    void (*scale)(float *x, int64_t n, float factor);
};

/* For the instruction set `isa`, CPU_ISA_..; only what the machine has may be called. */
const struct cpu_softmax *cpu_softmax_of(int isa);

#endif
