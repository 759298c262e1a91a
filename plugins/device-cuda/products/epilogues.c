/* Products with a bias, a GELU or their gradients behind them: one cuBLASLt product with an epilogue where the shapes
 * are one product's and cuBLASLt has it, else the instructions that they stand for, one after another. cuBLASLt's GELU
 * is the tanh form, as heddle's is. Its gradients of biases are written, never added to: what is to be added goes
 * through scratch. Products in fp8 have no epilogue: they run as those instructions, too. */
#include "op_table.h"
#include "products/blas.h"
#include "products/fp8.h"

enum { MOST_PARTS = 3 };

struct product {
    const struct cu_gemm *gemm;
    const void *a, *b;
    void *d;
    struct cu_beside beside;
    struct hd_operand db; /* what scratch is added to; no memory: nothing is */
};

struct parts {
    struct hd_kernel kernel[MOST_PARTS];
    int64_t count;
};

/* ---- one product */

static int32_t run_product(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct product *x = k->state;
    struct cu_beside beside = x->beside;
    if (x->db.data)
        beside.bias = cu_scratch(k->device);
    int32_t rc = cu_gemm_run(x->gemm, x->a, x->b, x->d, &beside, stream, err);
    return rc || !x->db.data ? rc : cu_scratch_add(k, &x->db, stream, err);
}

/* Extra operands of the epilogue; reserves scratch for those that are added later. */
static int32_t reserve_extra(struct hd_device *d, const struct hd_instr_desc *i, struct product *x,
                             struct hd_error *err)
{
    if (i->op == HD_OP_EINSUM_BIAS || i->op == HD_OP_EINSUM_GELU)
        x->beside = (struct cu_beside){i->in[2].data, i->n_out > 1 ? i->out[1].data : NULL};
    else if (i->op == HD_OP_EINSUM_GELU_GRAD)
        x->beside.aux = i->in[2].data;
    else if (!cu_accumulates(i))
        x->beside.bias = i->out[1].data;
    else {
        x->db = i->out[1];
        x->beside.bias = CU_SCRATCH_LATER;
        return cu_scratch_reserve(d, (size_t)hd_operand_count(&x->db) * hd_dtype_size(x->db.dtype), err);
    }
    return HD_OK;
}

static int32_t prepare_product(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                               struct hd_error *err)
{
    struct cu_plan plan;
    const char *why = cu_plan(&plan, i->in, &i->out[0], i->op == HD_OP_EINSUM_BIAS_DW && cu_accumulates(i));
    if (!why)
        why = cu_plan_epilogue(&plan, i->op, i->in, i->out, i->n_out);
    if (why)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s", why);
    struct product *x = d->host->alloc(sizeof *x);
    if (!x)
        return hd_fail(err, HD_E_NOMEM, "no memory for a product");
    k->state = x;
    k->run = run_product;
    x->a = i->in[!plan.swapped].data;
    x->b = i->in[plan.swapped].data;
    x->d = i->out[0].data;
    int32_t rc = reserve_extra(d, i, x, err);
    return rc ? rc : cu_gemm_prepare(d, &plan.product, x->a, x->b, x->d, &x->beside, &x->gemm, err);
}

/* ---- what it stands for */

static int32_t run_parts(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    struct parts *x = k->state;
    int32_t rc = HD_OK;
    for (int64_t n = 0; n < x->count && rc == HD_OK; n++)
        rc = x->kernel[n].run(&x->kernel[n], stream, err);
    return rc;
}

static void release_parts(struct hd_kernel *k)
{
    struct parts *x = k->state;
    for (int64_t n = 0; x && n < MOST_PARTS; n++)
        if (x->kernel[n].release)
            x->kernel[n].release(&x->kernel[n]);
        else
            k->device->host->free(x->kernel[n].state);
    k->device->host->free(x);
}

static int32_t add_part(struct hd_kernel *k, const struct hd_instr_desc *like, uint32_t op, const struct hd_operand *in,
                        uint32_t n_in, const struct hd_operand *out, struct hd_error *err)
{
    struct parts *x = k->state;
    struct hd_kernel *part = &x->kernel[x->count++];
    struct hd_instr_desc i = *like;
    i.op = op;
    i.in = in;
    i.n_in = n_in;
    i.out = out;
    i.n_out = 1;
    part->device = k->device;
    part->op = op;
    memcpy(part->label, k->label, sizeof part->label);
    return cu_op_row(op)->prepare(k->device, &i, part, err);
}

static int32_t add_parts(struct hd_kernel *k, const struct hd_instr_desc *i, struct hd_error *err)
{
    const struct hd_operand *out = &i->out[0], *z = i->op == HD_OP_EINSUM_GELU && i->n_out > 1 ? &i->out[1] : out;
    const struct hd_operand biased[] = {*z, i->in[2 % i->n_in]}, sloped[] = {i->in[2 % i->n_in], *out};
    int32_t rc = add_part(k, i, HD_OP_EINSUM, i->in, 2, z, err);
    if (!rc && i->op == HD_OP_EINSUM_BIAS_DW)
        return add_part(k, i, HD_OP_BIAS_DW, i->in, 1, &i->out[1], err);
    if (!rc && i->op == HD_OP_EINSUM_GELU_GRAD)
        return add_part(k, i, HD_OP_GELU_GRAD, sloped, 2, out, err);
    if (!rc)
        rc = add_part(k, i, HD_OP_BIAS, biased, 2, z, err);
    return rc || i->op == HD_OP_EINSUM_BIAS ? rc : add_part(k, i, HD_OP_GELU, z, 1, out, err);
}

static int32_t prepare_parts(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                             struct hd_error *err)
{
    k->state = d->host->alloc(sizeof(struct parts));
    if (!k->state)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for the parts of a product");
    k->run = run_parts;
    k->release = release_parts;
    return add_parts(k, i, err);
}

/* ---- the ops */

int32_t cu_prepare_epilogue(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                            struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    if (cu_fp8_takes(d, i))
        return prepare_parts(d, i, k, err);
    int32_t rc = prepare_product(d, i, k, &why);
    if (rc && rc != HD_E_UNSUPPORTED)
        hd_error_copy(err, &why);
    if (rc != HD_E_UNSUPPORTED)
        return rc;
    d->host->free(k->state);
    k->state = NULL;
    if (!d->plain_epilogues++) /* said once */
        d->host->log(HD_LOG_INFO, "device-cuda", "%s is a product and kernels behind it: %s", k->label, why.message);
    return prepare_parts(d, i, k, err);
}
