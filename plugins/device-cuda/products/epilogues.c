/* Products with a bias, a GELU or their gradients behind them: one cuBLASLt product with an epilogue where the shapes
 * are one product's and cuBLASLt has it, else the instructions that they stand for, one after another. Where the one
 * product is known to be slow it is those, too; with the option `tune` whichever is faster. cuBLASLt's GELU is the tanh
 * form, as heddle's is. Its gradients of biases are written, never added to: what is to be added goes through scratch.
 * Products in fp8 have no epilogue: they run as those instructions, too. */
#include <math.h>

#include "op_table.h"
#include "products/blas.h"
#include "products/fp8.h"

enum { MOST_PARTS = 3, MOST_OPERANDS = 5 };

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

/* ---- which of both: as one product or apart */

enum { UNKNOWN, FUSED, APART };

/* Epilogues that cost more than the kernels in their place, mostly: on an H100 cuBLASLt 13.1 took 1.5 times as long for
 * the gradient of a 768 x 768 weight with that of its bias as without. */
static const struct {
    int32_t major, minor;
    uint32_t op, dtype;
} slow[] = {{9, 0, HD_OP_EINSUM_BIAS_DW, HD_BF16}};

static int is_slow(const struct hd_device *d, const struct hd_instr_desc *i)
{
    int found = 0;
    for (size_t n = 0; n < sizeof slow / sizeof slow[0]; n++)
        found |= slow[n].major == d->major && slow[n].minor == d->minor && slow[n].op == i->op &&
                 slow[n].dtype == i->in[0].dtype;
    return found;
}

/* An instruction on memory of its own, which is as aligned as the original's. */
struct trial {
    struct hd_instr_desc i;
    struct hd_operand operand[MOST_OPERANDS]; /* inputs, outputs */
    void *memory[MOST_OPERANDS];
};

static int32_t trial_open(struct trial *t, struct hd_device *d, const struct hd_instr_desc *i, struct hd_error *err)
{
    const size_t unit = 256;
    cudaError_t rc = cudaSuccess;
    *t = (struct trial){.i = *i};
    t->i.in = t->operand;
    t->i.out = t->operand + i->n_in;
    for (uint32_t n = 0; n < i->n_in + i->n_out && !rc; n++) {
        struct hd_operand *o = &t->operand[n];
        *o = n < i->n_in ? i->in[n] : i->out[n - i->n_in];
        rc = cudaMalloc(&t->memory[n], (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype) + unit);
        o->data = (char *)t->memory[n] + (uintptr_t)o->data % unit;
        if (!rc)
            rc = cu_fill_random(o->data, o->dtype, hd_operand_count(o), n + 1, 1, d->stream[HD_STREAM_COMPUTE]);
    }
    return cu_fail(err, rc, NULL, "device memory to try a product");
}

static void drop(struct hd_kernel *k)
{
    if (k->release)
        k->release(k);
    else
        k->device->host->free(k->state);
    k->release = NULL;
    k->state = NULL;
}

static int32_t time_form(struct hd_device *d, const struct hd_instr_desc *i, cu_prepare_fn prepare, float *ms,
                         struct hd_error *err)
{
    struct hd_kernel k = {.device = d, .op = i->op};
    int32_t rc = prepare(d, i, &k, err);
    rc = rc ? rc : cu_time_kernel(d, &k, ms, err);
    cudaStreamSynchronize(d->stream[HD_STREAM_COMPUTE]);
    drop(&k);
    return rc;
}

/* By their times; by what is known where there is no memory for that. */
static int32_t faster(struct hd_device *d, const struct hd_instr_desc *i, const char *label)
{
    struct trial t;
    struct hd_error err = HD_ERROR_INIT;
    float fused = INFINITY, apart = INFINITY;
    int32_t rc = trial_open(&t, d, i, &err);
    rc = rc ? rc : time_form(d, &t.i, prepare_product, &fused, &err);
    rc = rc ? rc : time_form(d, &t.i, prepare_parts, &apart, &err);
    for (uint32_t n = 0; n < MOST_OPERANDS; n++)
        cudaFree(t.memory[n]);
    (void)cudaGetLastError(); /* too little memory for it is no failure */
    int32_t form = (rc ? is_slow(d, i) : apart < fused) ? APART : FUSED;
    if (rc)
        d->host->log(HD_LOG_INFO, "device-cuda", "%s was not timed: %s", label, err.message);
    else
        d->host->log(HD_LOG_INFO, "device-cuda", "%s: one product %.3f ms, kernels behind a product %.3f ms", label,
                     (double)fused, (double)apart);
    return form;
}

static int is_apart(struct hd_device *d, const struct hd_instr_desc *i, const struct hd_kernel *k)
{
    int32_t *form = cu_gemm_note(((const struct product *)k->state)->gemm); /* once a shape */
    if (*form == UNKNOWN)
        *form = faster(d, i, k->label);
    return *form == APART;
}

/* ---- the ops */

int32_t cu_prepare_epilogue(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                            struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    if (cu_fp8_takes(d, i))
        return prepare_parts(d, i, k, err);
    int32_t rc = !d->settings->tune && is_slow(d, i)
                     ? hd_fail(&why, HD_E_UNSUPPORTED, "cuBLASLt is slow with the two at once")
                     : prepare_product(d, i, k, &why);
    if (rc && rc != HD_E_UNSUPPORTED)
        hd_error_copy(err, &why);
    if (rc ? rc != HD_E_UNSUPPORTED : !d->settings->tune || !is_apart(d, i, k))
        return rc;
    drop(k);
    if (rc && !d->plain_epilogues++) /* said once */
        d->host->log(HD_LOG_INFO, "device-cuda", "%s is a product and kernels behind it: %s", k->label, why.message);
    return prepare_parts(d, i, k, err);
}
