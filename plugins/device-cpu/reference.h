/* Reference kernels, by file. Each is the definition of its op; heddle/ops.h says what it computes. */
#ifndef HD_DEVICE_CPU_REFERENCE_H
#define HD_DEVICE_CPU_REFERENCE_H

#include "value.h"

#define CPU_REFERENCES(X)                                                                                       \
    X(einsum) X(add) X(bias) X(bias_dw) X(rmsnorm) X(rmsnorm_dx) X(rmsnorm_dw) X(layernorm) X(layernorm_dx)     \
    X(layernorm_dw) X(rope) X(attention) X(attention_grad) X(swiglu) X(swiglu_grad) X(gelu) X(gelu_grad)        \
    X(embed) X(embed_dw) X(position) X(position_dw) X(rowmax) X(xent_local) X(nll) X(nll_grad) X(xent_grad)     \
    X(xent_head) X(total) X(spread) X(slice) X(mask) X(pad) X(fill0) X(accum) X(copy) X(sumsq) X(adamw) X(sgd) X(optim_step)

#define CPU_REFERENCE(name) void cpu_ref_##name(struct hd_kernel *k);
CPU_REFERENCES(CPU_REFERENCE)
#undef CPU_REFERENCE

/* What ops demand of their operands' shapes: check.c. */
#define CPU_CHECKS(X)                                                                                           \
    X(same) X(einsum) X(bias) X(bias_dw) X(norm) X(norm_dw) X(rope) X(attention) X(attention_grad) X(embed)     \
    X(embed_dw) X(position) X(position_dw) X(rowmax) X(xent_local) X(xent_grad) X(xent_head) X(scalar_out) X(spread) \
    X(parts)                                                                                                    \
    X(update) X(optim_step)

#define CPU_CHECK(name) int32_t cpu_check_##name(struct hd_kernel *k, struct hd_error *err);
CPU_CHECKS(CPU_CHECK)
#undef CPU_CHECK

/* Attention's view of q and k: leading dims merged into b. */
struct cpu_heads {
    int64_t b, s, t, k, g, d; /* s queries, t keys; k kv heads with g query heads each */
    int64_t q0, k0;           /* global positions of query 0 and key 0 */
};
struct cpu_heads cpu_heads(const struct hd_operand *q, const struct hd_operand *k);

/* Key positions first..last (inclusive, may be empty) that query i sees, as local indices. */
static inline void cpu_visible(const struct cpu_heads *h, int64_t window, int64_t i, int64_t *first, int64_t *last)
{
    int64_t at = h->q0 + i - h->k0;
    *last = at < h->t ? at : h->t - 1;
    *first = window > 0 && at - window + 1 > 0 ? at - window + 1 : 0;
}

/* Value of the range that holds element `at` of the whole flat buffer; `fallback` outside all. */
double cpu_range_value(const struct hd_attrs *a, int64_t at, double fallback);

#endif
