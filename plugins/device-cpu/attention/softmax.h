/* Row kernels of attention, for each vector instruction set.
 *
 * Rows of fp32 scratch have room for a multiple of 16 values. `visible` is [first, last) of a row, the positions that a
 * query sees; the others up to `total` are written as zeros. It is passed by address: a copy on the stack is read by
 * wider loads than the stores that wrote it, and each row would wait for that (no store forwarding). */
#ifndef HD_DEVICE_CPU_ATTENTION_SOFTMAX_H
#define HD_DEVICE_CPU_ATTENTION_SOFTMAX_H

#include <stdint.h>

struct cpu_visible_span {
    int64_t first, last, total;
};

struct cpu_softmax {
    /* The largest visible value. */
    float (*most)(const float *x, const struct cpu_visible_span *visible);
    /* x = exp(scale x - shift); returns the sum. */
    float (*exp)(float *x, const struct cpu_visible_span *visible, float scale, float shift);
    /* x = p = exp(scale x - lse), dp = scale p (dp - delta); lse and delta are rows too. */
    void (*grad)(float *x, float *dp, const float *lse, const float *delta, const struct cpu_visible_span *visible,
                 float scale);
    /* x = tanh(scale x) / scale; slopes = 1 - tanh^2, unless NULL. Elements beside the visible ones may change. */
    void (*cap)(float *x, float *slopes, const struct cpu_visible_span *visible, float scale);
    /* Dot product of n values, fp32, bf16 or fp16. */
    float (*dot)(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype, int64_t n);
    void (*scale)(float *x, int64_t n, float factor);
};

/* By CPU_PLAIN.. of products/tiles.h; only what the machine has may be called. */
const struct cpu_softmax *cpu_softmax_at(int vectors);

#endif
