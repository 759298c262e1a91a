/* HD_OP_EINSUM: cuBLASLt where the shapes are a product's, else a plain kernel. What is added once (HD_ATTR_ONCE) is
 * made in scratch: cuBLASLt promises nothing of when it adds to what is there. The plain kernel adds a whole sum
 * anyhow. */
#include "products/einsum.h"
#include "op_table.h"
#include "products/fp8.h"

/* ---- products */

/* All products of loops `depth` and on; `add`: c has terms of a summed loop. */
static int32_t run_loops(const struct cu_einsum *e, int64_t depth, const char *a, const char *b, char *c, int add,
                         cudaStream_t stream, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (depth == e->outer.count)
        return cu_gemm_run(add ? e->more : e->first, e->swapped ? a : b, e->swapped ? b : a, c, NULL, stream, err);
    const struct label *x = &e->outer.at[depth];
    for (int64_t i = 0; i < x->extent && rc == HD_OK; i++)
        rc = run_loops(e, depth + 1, a + i * x->stride[LABELS_A] * e->size[LABELS_A],
                       b + i * x->stride[LABELS_B] * e->size[LABELS_B], c + i * x->stride[LABELS_C] * e->size[LABELS_C],
                       add || (x->where == LABEL_K && i > 0), stream, err);
    return rc;
}

int32_t cu_einsum_run(const struct cu_einsum *e, const void *a, const void *b, void *c, cudaStream_t stream,
                      struct hd_error *err)
{
    return run_loops(e, 0, a, b, c, 0, stream, err);
}

/* Loops move the operands: an address that all of them are as aligned as. */
static const void *least_aligned(const struct cu_einsum *e, const struct hd_operand *o, int which)
{
    uintptr_t all = (uintptr_t)o->data;
    for (int64_t i = 0; i < e->outer.count; i++)
        all |= (uintptr_t)(e->outer.at[i].stride[which] * e->size[which]);
    return (const void *)all;
}

int32_t cu_einsum_prepare(struct hd_device *d, const struct hd_operand *in, const struct hd_operand *out,
                          uint32_t accumulate, struct cu_einsum *e, struct hd_error *err)
{
    struct cu_plan plan;
    const char *why = cu_plan(&plan, in, out, accumulate);
    if (why)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s", why);
    *e = (struct cu_einsum){.outer = plan.outer, .swapped = plan.swapped};
    e->size[LABELS_A] = (int64_t)hd_dtype_size(in[0].dtype);
    e->size[LABELS_B] = (int64_t)hd_dtype_size(in[1].dtype);
    e->size[LABELS_C] = (int64_t)hd_dtype_size(out->dtype);
    const void *a = least_aligned(e, &in[0], LABELS_A), *b = least_aligned(e, &in[1], LABELS_B);
    const void *c = least_aligned(e, out, LABELS_C), *first = plan.swapped ? a : b, *second = plan.swapped ? b : a;
    int32_t rc = cu_gemm_prepare(d, &plan.product, first, second, c, NULL, &e->first, err);
    plan.product.accumulate = 1;
    return rc || !plan.sums ? rc : cu_gemm_prepare(d, &plan.product, first, second, c, NULL, &e->more, err);
}

/* ---- the op */

struct einsum {
    struct cu_einsum of;
    struct cu_fp8 fp8; /* instead, where it has a product */
    const void *in[2];
    struct hd_operand out;
    int64_t once; /* out is added to, from scratch */
};

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct einsum *e = k->state;
    if (e->fp8.gemm)
        return cu_fp8_run(k, &e->fp8, e->out.data, stream, err);
    int32_t rc = cu_einsum_run(&e->of, e->in[0], e->in[1], e->once ? cu_scratch(k->device) : e->out.data, stream, err);
    return rc || !e->once ? rc : cu_scratch_add(k, &e->out, stream, err);
}

static int32_t prepare_product(struct hd_device *d, const struct hd_instr_desc *i, struct einsum *e,
                               struct hd_error *err)
{
    struct hd_operand scratch_out = e->out;
    e->once = cu_accumulates(i) && i->attrs.flags & HD_ATTR_ONCE;
    if (!e->once)
        return cu_einsum_prepare(d, i->in, &e->out, cu_accumulates(i), &e->of, err);
    scratch_out.data = CU_SCRATCH_LATER;
    int32_t rc = cu_einsum_prepare(d, i->in, &scratch_out, 0, &e->of, err);
    return rc ? rc
              : cu_scratch_reserve(d, (size_t)hd_operand_count(&scratch_out) * hd_dtype_size(scratch_out.dtype), err);
}

/* HD_E_UNSUPPORTED where the product keeps its dtype. */
static int32_t prepare_fp8(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct einsum *e,
                           struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = d->settings->fp8 ? cu_fp8_prepare(d, i, &e->fp8, &why) : HD_E_UNSUPPORTED;
    if (rc && rc != HD_E_UNSUPPORTED)
        hd_error_copy(err, &why);
    if (rc == HD_E_UNSUPPORTED && d->settings->fp8 && !d->plain_fp8++) /* said once */
        d->host->log(HD_LOG_INFO, "device-cuda", "%s stays out of fp8: %s", k->label, why.message);
    return rc;
}

int32_t cu_prepare_einsum(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct einsum *e;
    if (i->attrs.flags & HD_ATTR_ONCE && i->out[0].dtype != HD_F32 && i->out[0].dtype != HD_F64)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "sums that are added once are fp32 or fp64");
    e = d->host->alloc(sizeof *e);
    if (!e)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for an einsum");
    e->in[0] = i->in[0].data;
    e->in[1] = i->in[1].data;
    e->out = i->out[0];
    k->state = e;
    k->run = run;
    int32_t rc = prepare_fp8(d, i, k, e, err);
    if (rc != HD_E_UNSUPPORTED)
        return rc;
    rc = prepare_product(d, i, e, &why);
    if (rc && rc != HD_E_UNSUPPORTED)
        hd_error_copy(err, &why);
    if (rc != HD_E_UNSUPPORTED)
        return rc;
    if (!d->plain_einsums++) /* said once */
        d->host->log(HD_LOG_WARN, "device-cuda", "%s runs on the slow plain kernel: %s", k->label, why.message);
    return cu_prepare_einsum_plain(d, i, k, err);
}
