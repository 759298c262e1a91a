/* HD_OP_EINSUM, and products of experts: cuBLASLt where the shapes are a product's, else a plain kernel. */
#include "blas.h"
#include "slots.h"

struct einsum {
    const struct cu_gemm *first, *more; /* `more` adds: later terms of a loop that is summed */
    struct labels outer;
    const char *in[2];
    char *out;
    int64_t size[LABELS_OPERANDS];
    uint64_t swapped;
};

/* All products of loops `depth` and on; `add`: out has terms of a summed loop. */
static int32_t run_loops(const struct einsum *e, int64_t depth, const char *a, const char *b, char *c, int add, cudaStream_t stream,
                         struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (depth == e->outer.count)
        return cu_gemm_run(add ? e->more : e->first, e->swapped ? a : b, e->swapped ? b : a, c, stream, err);
    const struct label *x = &e->outer.at[depth];
    for (int64_t i = 0; i < x->extent && rc == HD_OK; i++)
        rc = run_loops(e, depth + 1, a + i * x->stride[LABELS_A] * e->size[LABELS_A],
                       b + i * x->stride[LABELS_B] * e->size[LABELS_B], c + i * x->stride[LABELS_C] * e->size[LABELS_C],
                       add || (x->where == LABEL_K && i > 0), stream, err);
    return rc;
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct einsum *e = k->state;
    return run_loops(e, 0, e->in[0], e->in[1], e->out, 0, stream, err);
}

/* Loops move the operands: an address that all of them are as aligned as. */
static const void *least_aligned(const void *p, const struct labels *outer, int which, int64_t size)
{
    uintptr_t all = (uintptr_t)p;
    for (int64_t i = 0; i < outer->count; i++)
        all |= (uintptr_t)(outer->at[i].stride[which] * size);
    return (const void *)all;
}

static int32_t prepare_products(struct hd_device *d, const struct cu_plan *plan, struct einsum *e, struct hd_error *err)
{
    struct cu_product product = plan->product;
    const void *a = least_aligned(e->in[0], &plan->outer, LABELS_A, e->size[LABELS_A]);
    const void *b = least_aligned(e->in[1], &plan->outer, LABELS_B, e->size[LABELS_B]);
    const void *c = least_aligned(e->out, &plan->outer, LABELS_C, e->size[LABELS_C]);
    int32_t rc = cu_gemm_prepare(d, &product, plan->swapped ? a : b, plan->swapped ? b : a, c, &e->first, err);
    product.accumulate = 1;
    if (rc == HD_OK && plan->sums)
        rc = cu_gemm_prepare(d, &product, plan->swapped ? a : b, plan->swapped ? b : a, c, &e->more, err);
    return rc;
}

static int32_t prepare_blas(struct hd_device *d, const struct cu_plan *plan, const struct hd_instr_desc *i, struct hd_kernel *k,
                            struct hd_error *err)
{
    struct einsum *e = d->host->alloc(sizeof *e);
    if (!e)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for an einsum");
    e->outer = plan->outer;
    e->swapped = plan->swapped;
    for (int n = 0; n < 2; n++) {
        e->in[n] = i->in[n].data;
        e->size[n] = (int64_t)hd_dtype_size(i->in[n].dtype);
    }
    e->out = i->out[0].data;
    e->size[LABELS_C] = (int64_t)hd_dtype_size(i->out[0].dtype);
    int32_t rc = prepare_products(d, plan, e, err);
    if (rc) {
        d->host->free(e);
        return rc;
    }
    k->state = e;
    k->run = run;
    return HD_OK;
}

int32_t cu_prepare_einsum(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct cu_plan plan;
    const char *not_a_product = cu_plan(&plan, i->in, &i->out[0], cu_accumulates(i));
    int32_t rc = not_a_product ? hd_fail(&why, HD_E_UNSUPPORTED, "%s", not_a_product) : prepare_blas(d, &plan, i, k, &why);
    if (rc == HD_OK || rc != HD_E_UNSUPPORTED) {
        if (rc)
            hd_error_copy(err, &why);
        return rc;
    }
    if (!d->plain_einsums++) /* said once */
        d->host->log(HD_LOG_WARN, "device-cuda", "%s runs on the slow plain kernel: %s", k->label, why.message);
    return cu_prepare_einsum_plain(d, i, k, err);
}
