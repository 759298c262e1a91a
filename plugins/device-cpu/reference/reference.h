/* Reference kernels, by file. Each is the definition of its op; heddle/ops.h says what it computes. */
#ifndef HD_DEVICE_CPU_REFERENCE_REFERENCE_H
#define HD_DEVICE_CPU_REFERENCE_REFERENCE_H

#include "reference/value.h"

/* clang-format off */
#define CPU_REFERENCES(X) \
    X(einsum) X(add) X(bias) X(bias_dw) X(rmsnorm) X(rmsnorm_dx) X(rmsnorm_dw) X(layernorm) X(layernorm_dx) \
    X(layernorm_dw) X(rope) X(attention) X(attention_grad) X(attention_merge) X(attention_cached) \
    X(swiglu) X(swiglu_grad) X(gelu) \
    X(gelu_grad) X(embed) X(embed_dw) X(position) X(position_dw) X(rowmax) X(xent_local) X(nll) X(nll_grad) \
    X(xent_grad) X(xent_head) X(total) X(spread) X(slice) X(mask) X(pad) X(fill0) X(accum) X(copy) X(sumsq) X(adamw) \
    X(sgd) X(optim_step) X(custom) X(gate) X(gate_grad) X(route) X(dispatch) X(dispatch_dx) X(grouped) X(grouped_dw) \
    X(combine) X(combine_dz) X(combine_dg) X(expert_count) X(router_loss) X(router_loss_dz) X(encode) X(decode) \
    X(blend) X(orthogonalise) X(add_rmsnorm) X(add_layernorm) X(rmsnorm_dx_add) X(layernorm_dx_add) X(einsum_bias) \
    X(rmsnorm_grad_add) X(layernorm_grad_add) \
    X(einsum_gelu) X(einsum_gelu_grad) X(einsum_bias_dw) X(gelu_erf) X(gelu_erf_grad) X(relu2) X(relu2_grad) \
    X(softcap) X(softcap_grad) X(scale)
/* clang-format on */

#define CPU_REFERENCE(name) void cpu_ref_##name(struct hd_kernel *k);
CPU_REFERENCES(CPU_REFERENCE)
#undef CPU_REFERENCE

/* Checks of operands' shapes: check.c. */
/* clang-format off */
#define CPU_CHECKS(X) \
    X(same) X(einsum) X(bias) X(bias_dw) X(norm) X(norm_sum) X(norm_dw) X(rope) X(attention) X(attention_grad) \
    X(norm_grad) \
    X(attention_merge) X(attention_cached) \
    X(embed) X(embed_dw) X(position) X(position_dw) X(rowmax) X(xent_local) X(xent_grad) \
    X(xent_head) X(scalar_out) X(spread) X(parts) X(update) X(optim_step) X(custom) X(moe) X(code) X(blend) \
    X(orthogonalise) X(einsum_bias) X(einsum_gelu_grad) X(einsum_bias_dw) X(softcap)
/* clang-format on */

#define CPU_CHECK(name) int32_t cpu_check_##name(struct hd_kernel *k, struct hd_error *err);
CPU_CHECKS(CPU_CHECK)
#undef CPU_CHECK

/* Which positions of the sequence the local elements of dim s are: two rising runs of neighbours, or one. */
struct cpu_order {
    int64_t at[2], first, n; /* n elements, `first` of them in the first run */
};
struct cpu_order cpu_order(const struct hd_operand *o, uint32_t dim, const struct hd_attrs *attrs);

static inline int64_t cpu_position(const struct cpu_order *o, int64_t i)
{
    return i < o->first ? o->at[0] + i : o->at[1] + i - o->first;
}

/* How many elements lie before a position. */
static inline int64_t cpu_before(const struct cpu_order *o, int64_t position)
{
    int64_t a = position - o->at[0], b = position - o->at[1], rest = o->n - o->first;
    return (a < 0 ? 0 : a < o->first ? a : o->first) + (b < 0 ? 0 : b < rest ? b : rest);
}

/* Attention's view of q and k: leading dims merged into b. */
struct cpu_heads {
    int64_t b, s, t, k, g, d; /* s queries, t keys; k kv heads with g query heads each */
    int64_t window, prefix;   /* 0: none */
    int64_t causal;
    struct cpu_order queries, keys;
    const int32_t *in_document; /* queries' indices in their documents, of the b at hand; NULL: there is one document */
};
struct cpu_heads cpu_heads(const struct hd_operand *q, const struct hd_operand *k, const struct hd_attrs *attrs);
/* Sets in_document of row b from the last input of an attention or its gradient. */
static inline void cpu_heads_row(struct cpu_heads *h, const struct hd_kernel *k, int64_t b)
{
    uint32_t n = k->d.op == HD_OP_ATTENTION ? 3 : 6;
    h->in_document = k->d.n_in > n ? (const int32_t *)k->in[n].data + b * h->s : NULL;
}

/* The row of a cache that query i of [b, t] is at, from the last input of attention_cached; -1: none. */
static inline int64_t cpu_cache_row(const struct hd_kernel *k, int64_t i)
{
    int64_t at = ((const int32_t *)k->in[5].data)[i];
    return at < k->in[3].extent[1] ? at : -1;
}
/* Writes keys and values of a step to their rows. */
void cpu_cache_put(const struct hd_kernel *k);

/* Keys first .. end - 1 are what query i sees, hd_attends as a run; may be empty. Neither falls as i rises. */
static inline void cpu_visible(const struct cpu_heads *h, int64_t i, int64_t *first, int64_t *end)
{
    int64_t at = cpu_position(&h->queries, i);
    if (h->causal)
        *end = cpu_before(&h->keys, at < h->prefix ? h->prefix : at + 1);
    else
        *end = h->window > 0 ? cpu_before(&h->keys, at + h->window) : h->t;
    *first = h->window > 0 ? cpu_before(&h->keys, at - h->window + 1) : 0;
    if (h->in_document) {
        int64_t document = cpu_before(&h->keys, at - h->in_document[i]);
        *first = document > *first ? document : *first;
    }
}

/* The first query whose document begins behind a position: beginnings never fall as i rises. */
static inline int64_t cpu_document_end(const struct cpu_heads *h, int64_t position)
{
    int64_t first = 0, end = h->s;
    while (first < end) {
        int64_t i = first + (end - first) / 2;
        if (cpu_position(&h->queries, i) - h->in_document[i] > position)
            end = i;
        else
            first = i + 1;
    }
    return end;
}

/* Queries first .. end - 1 are those that see key j; may be empty. */
static inline void cpu_seen_by(const struct cpu_heads *h, int64_t j, int64_t *first, int64_t *end)
{
    int64_t at = cpu_position(&h->keys, j);
    if (h->causal)
        *first = at < h->prefix ? 0 : cpu_before(&h->queries, at);
    else
        *first = h->window > 0 ? cpu_before(&h->queries, at - h->window + 1) : 0;
    *end = h->window > 0 ? cpu_before(&h->queries, at + h->window) : h->s;
    if (h->in_document) {
        int64_t document = cpu_document_end(h, at);
        *end = document < *end ? document : *end;
    }
}

/* The pairs of elements that rope turns in each head: n of them, i's at i step and i step + apart. */
struct cpu_pairs {
    int64_t n, step, apart;
};
static inline struct cpu_pairs cpu_pairs(const struct hd_kernel *k)
{
    const struct hd_operand *x = &k->in[0];
    int64_t most = x->extent[x->ndim - 1] / 2, n = (int64_t)k->d.attrs.n_table;
    n = n < most ? n : most;
    return k->d.attrs.flags & HD_ATTR_INTERLEAVED ? (struct cpu_pairs){n, 2, 1} : (struct cpu_pairs){n, 1, n};
}

/* Is the row of cross-entropy left out? */
static inline int cpu_ignored(const struct hd_operand *labels, int64_t row)
{
    return ((const int32_t *)labels->data)[row] < 0;
}

/* xent_local's outputs for a row that is left out: nll, log(l) + (m - c) over all shards, is 0. */
static inline void cpu_xent_ignored(const struct hd_operand *z, double m, double *l, double *c)
{
    int first = z->start[z->ndim - 1] == 0;
    *l = first;
    *c = first ? m : 0;
}

/* einsum.c: calls put for each element of output 0, with the product of inputs 0 and 1 there. */
void cpu_each_product(struct hd_kernel *k, void (*put)(const struct hd_kernel *k, int64_t i, double v));
/* Several sums side by side: element i of sum s is at + i * by + s * step. */
enum { CPU_SUMS = 4 };
struct cpu_walk {
    const struct hd_operand *of;
    int64_t at, by, step;
};
/* Adds a b of n elements to each sum, CPU_SUMS at most: one after the other, whatever the dtypes are. */
void cpu_add_products(double total[CPU_SUMS], int64_t sums, int64_t n, const struct cpu_walk *a,
                      const struct cpu_walk *b);

/* elementwise.c: index into w of element i of x, where w has a subset of x's dims. */
int64_t cpu_subset_index(const struct hd_operand *x, const struct hd_operand *w, int64_t i);
/* Puts the sums of input 0 over the dims that the output lacks; the kernel's state has room for them. */
void cpu_sum_subset(struct hd_kernel *k, uint32_t output);
/* GELU and its slope. */
double cpu_gelu(double x);
double cpu_gelu_slope(double x);

/* An optimizer's own step, with the device's services. */
void cpu_optim_step(struct hd_kernel *k, const struct hd_optim_host *host);
/* Checks the operands of hd_optim_host.product: HD_E_INVALID. */
int32_t cpu_check_product(uint32_t dtype, const struct hd_optim_matrix *a, const struct hd_optim_matrix *b,
                          const struct hd_optim_matrix *c, struct hd_error *err);

/* Value of the range that holds element `at` of the whole flat buffer; `fallback` outside all. */
double cpu_range_value(const struct hd_attrs *a, int64_t at, double fallback);

#endif
