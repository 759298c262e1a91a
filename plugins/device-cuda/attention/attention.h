/* Grouped-query attention on CUDA: what the kernels and their prepare functions share.
 *
 * q, o, do, dq are [b, s, k, g, d], k, v, dk, dv are [b, t, k, d], lse is [b, s, k, g]: k kv heads with g query heads
 * each. Which keys a query sees follows from positions, which rise along s and along t in at most two runs
 * (hd_position), so they are always a run of keys. */
#ifndef HD_DEVICE_CUDA_ATTENTION_ATTENTION_H
#define HD_DEVICE_CUDA_ATTENTION_ATTENTION_H

#include "internal.h"

#ifdef __CUDACC__
#define CU_BOTH __host__ __device__ __forceinline__
#else
#define CU_BOTH static inline
#endif

/* Positions of the elements of one dim: `first` of them from at[0], the others from at[1]. */
struct cu_order {
    int32_t at[2], first, n;
};

struct cu_heads {
    int32_t b, s, t, k, g, d;
    int32_t window, prefix; /* 0: none */
    int32_t causal, reserved;
    struct cu_order queries, keys;
    const int32_t *in_document; /* [b, s]: queries' indices in their documents; NULL: a sequence is one */
};

/* A run of indices, [first, end). */
struct cu_run {
    int32_t first, end;
};

CU_BOTH int32_t cu_position(const struct cu_order *o, int32_t i)
{
    return i < o->first ? o->at[0] + i : o->at[1] + i - o->first;
}

/* How many elements lie before a position. */
CU_BOTH int32_t cu_before(const struct cu_order *o, int32_t position)
{
    int32_t a = position - o->at[0], b = position - o->at[1], rest = o->n - o->first;
    return (a < 0 ? 0 : a < o->first ? a : o->first) + (b < 0 ? 0 : b < rest ? b : rest);
}

/* The first position of the document of query i of row b. */
CU_BOTH int32_t cu_document(const struct cu_heads *h, int32_t b, int32_t i)
{
    return cu_position(&h->queries, i) - h->in_document[(int64_t)b * h->s + i];
}

/* The keys that query i of row b sees; may be empty. */
CU_BOTH struct cu_run cu_visible(const struct cu_heads *h, int32_t b, int32_t i)
{
    int32_t at = cu_position(&h->queries, i), document;
    struct cu_run r = {h->window > 0 ? cu_before(&h->keys, at - h->window + 1) : 0, h->t};
    if (h->causal)
        r.end = cu_before(&h->keys, at < h->prefix ? h->prefix : at + 1);
    else if (h->window > 0)
        r.end = cu_before(&h->keys, at + h->window);
    if (h->in_document) {
        document = cu_before(&h->keys, cu_document(h, b, i));
        r.first = document > r.first ? document : r.first;
    }
    return r;
}

/* The queries that see key j; may be empty. Those of later documents do not: their beginnings never fall. */
CU_BOTH struct cu_run cu_seen_by(const struct cu_heads *h, int32_t b, int32_t j)
{
    int32_t at = cu_position(&h->keys, j), low;
    struct cu_run r = {0, h->window > 0 ? cu_before(&h->queries, at + h->window) : h->s};
    if (h->causal)
        r.first = at < h->prefix ? 0 : cu_before(&h->queries, at);
    else if (h->window > 0)
        r.first = cu_before(&h->queries, at - h->window + 1);
    for (low = r.first; h->in_document && low < r.end;) {
        int32_t i = low + (r.end - low) / 2;
        if (cu_document(h, b, i) > at)
            r.end = i;
        else
            low = i + 1;
    }
    return r;
}

/* Operands of the kernels for tensor cores; fields that one has no use for are 0. All operands but lse are of one
 * dtype, bf16 or fp16, outputs perhaps of fp32. d is a multiple of 8 and at most 128. */
struct cu_attention {
    const void *q, *k, *v, *o, *grad; /* grad: do */
    const float *lse;
    const float *rows; /* [2][b][k g][s_room]: lse in powers of two, and rowsum(do o) */
    void *out[3];      /* o; or dq, dk, dv */
    float *out_lse;
    float *out_rows;
    uint32_t dtype, out_dtype[3];
    int32_t add; /* to out */
    float scale;
    int32_t s_room;         /* s in whole tiles */
    int32_t tiles, section; /* tiles a head; heads whose tiles run side by side */
    int32_t wgmma; /* by products of warpgroups, attention_wgmma.cu; the GPU and the head size are right for it */
    struct cu_heads h;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Make a kernel ready: attention_forward.cu, attention_backward.cu (HD_E_UNSUPPORTED: not on this GPU),
 * attention_plain.cu. The plain ones take any head size and dtype and compute in fp64 where q is fp64. */
int32_t cu_attention_forward(const struct cu_attention *a, struct hd_kernel *k, struct hd_error *err);
int32_t cu_attention_backward(const struct cu_attention *a, struct hd_kernel *k, struct hd_error *err);
int32_t cu_attention_plain(const struct hd_instr_desc *i, const struct cu_heads *h, struct hd_kernel *k,
                           struct hd_error *err);
/* attention.c: the kernels that every GPU has: for tensor cores, else the plain ones. */
int32_t cu_attention_own(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                         struct hd_kernel *k, struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
