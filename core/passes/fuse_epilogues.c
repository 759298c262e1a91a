/* What stands behind a product, made where the product is:
 *
 *     t = einsum(a, b); y = bias(t, w)             y = einsum_bias(a, b, w)
 *     z = einsum_bias(a, b, w); y = gelu(z)        y, z = einsum_gelu(a, b, w); no z where nobody else reads it
 *     t = einsum(a, b); dz = gelu_grad(z, t)       dz = einsum_gelu_grad(a, b, z)
 *     db = bias_dw(dy); dw = einsum(dy, x)         dw, db = einsum_bias_dw(dy, x)
 *
 * The earlier of two instructions moves to the later one, so nothing between them may touch what it reads or writes. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"

struct fusion {
    struct hd_program *p;
    hd__code *code;
    struct hd__tensor_use *use;
};

/* ---- do they belong together? */

static uint32_t flags_of(const struct hd__instr *i)
{
    return i->attrs ? i->attrs->flags & (HD_ATTR_ACCUMULATE | HD_ATTR_ONCE) : 0;
}

static int same_schedule(const struct hd__instr *a, const struct hd__instr *b)
{
    return a->phase == b->phase && a->micro == b->micro && a->block == b->block && a->chunk == b->chunk;
}

/* The instruction of this op that makes t for instruction k, and for it alone where `alone`; -1 where it has to stay. */
static int64_t find_producer(const struct fusion *f, hd_tensor t, uint16_t op, uint32_t k, int alone)
{
    uint32_t m = f->use[t].maker;
    const struct hd__instr *i = m ? &f->code->at[m - 1] : NULL;
    if (!i || m > k || i->op != op || i->out[0] != t || flags_of(i) || !same_schedule(i, &f->code->at[k]) ||
        hd__tensor_const(f->p, t)->buffer)
        return -1;
    if (alone && f->use[t].count != 1)
        return -1;
    return hd__can_move(f->p, f->code, m - 1, k) ? (int64_t)m - 1 : -1;
}

/* w has the last dims of y. */
static int has_suffix_dims(const struct hd__tensor *y, const struct hd__tensor *w)
{
    return w->ndim && w->ndim <= y->ndim && !memcmp(y->dim + y->ndim - w->ndim, w->dim, w->ndim * sizeof *w->dim);
}

/* ---- the four */

/* Input `made` of instruction k is a product: its inputs, the other input behind them. */
static void fuse_product(struct fusion *f, uint32_t k, int made, uint16_t op)
{
    struct hd__instr *i = &f->code->at[k];
    int64_t m = find_producer(f, i->in[made], HD_OP_EINSUM, k, 1);
    if (m < 0 || flags_of(i) || !hd__may_fuse(f->p, op))
        return;
    struct hd__instr *product = &f->code->at[m];
    i->in[2] = i->in[!made];
    memcpy(i->in, product->in, 2 * sizeof *i->in);
    i->n_in = 3;
    i->op = op;
    product->op = 0;
}

static void fuse_bias(struct fusion *f, uint32_t k)
{
    const struct hd__instr *bias = &f->code->at[k];
    if (has_suffix_dims(hd__tensor_const(f->p, bias->out[0]), hd__tensor_const(f->p, bias->in[1])))
        fuse_product(f, k, 0, HD_OP_EINSUM_BIAS);
}

static void fuse_gelu(struct fusion *f, uint32_t k)
{
    struct hd__instr *gelu = &f->code->at[k];
    hd_tensor z = gelu->in[0];
    int64_t m = find_producer(f, z, HD_OP_EINSUM_BIAS, k, 0);
    if (m < 0 || flags_of(gelu) || !hd__may_fuse(f->p, HD_OP_EINSUM_GELU))
        return;
    struct hd__instr *product = &f->code->at[m];
    memcpy(gelu->in, product->in, 3 * sizeof *gelu->in);
    gelu->n_in = 3;
    gelu->out[1] = z;
    gelu->n_out = f->use[z].count > 1 ? 2 : 1;
    gelu->op = HD_OP_EINSUM_GELU;
    product->op = 0;
}

static void fuse_gelu_grad(struct fusion *f, uint32_t k)
{
    const struct hd__instr *grad = &f->code->at[k];
    if (grad->in[0] != grad->in[1])
        fuse_product(f, k, 1, HD_OP_EINSUM_GELU_GRAD);
}

/* dw keeps those dims of dy that db has, and no other. */
static int same_rows(const struct hd_program *p, const struct hd__instr *product, const struct hd__instr *sum)
{
    const struct hd__tensor *dy = hd__tensor_const(p, sum->in[0]), *dw = hd__tensor_const(p, product->out[0]),
                            *db = hd__tensor_const(p, sum->out[0]);
    for (int32_t d = 0; d < dy->ndim; d++)
        if ((hd__dim_index(dw, dy->dim[d]) >= 0) != (hd__dim_index(db, dy->dim[d]) >= 0))
            return 0;
    return db->ndim > 0;
}

static int is_product(const struct fusion *f, uint32_t n, uint32_t sum)
{
    const struct hd__instr *product = &f->code->at[n], *of = &f->code->at[sum];
    return product->op == HD_OP_EINSUM && product->in[0] == of->in[0] && flags_of(product) == flags_of(of) &&
           same_schedule(product, of) && same_rows(f->p, product, of) && hd__can_move(f->p, f->code, sum, n);
}

static void fuse_bias_dw(struct fusion *f, uint32_t k)
{
    struct hd__instr *sum = &f->code->at[k], *product = NULL;
    uint32_t count = f->code->count;
    for (uint32_t n = 1; n < count && !product && !(flags_of(sum) & HD_ATTR_ONCE); n++) /* the nearest first */
        if (k + n < count && is_product(f, k + n, k))
            product = sum + n;
        else if (n <= k && is_product(f, k - n, k))
            product = sum - n;
    if (!product || !hd__may_fuse(f->p, HD_OP_EINSUM_BIAS_DW))
        return;
    product->op = HD_OP_EINSUM_BIAS_DW;
    product->out[1] = sum->out[0];
    product->n_out = 2;
    sum->op = 0;
}

void hd__fuse_epilogues(struct hd_program *p, hd__code *code)
{
    static void (*const fuse[])(struct fusion *, uint32_t) = {[HD_OP_BIAS] = fuse_bias,
                                                              [HD_OP_GELU] = fuse_gelu,
                                                              [HD_OP_GELU_GRAD] = fuse_gelu_grad,
                                                              [HD_OP_BIAS_DW] = fuse_bias_dw};
    struct fusion f = {p, code, hd__count_uses(p, code)};
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op < HD__COUNT(fuse) && fuse[code->at[k].op])
            fuse[code->at[k].op](&f, k);
    hd__code_compact(code);
    free(f.use);
}
