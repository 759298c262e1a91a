/* The rows. See fusion.h for the columns.
 *
 *     t = einsum(a, b); y = bias(t, w)             y = einsum_bias(a, b, w)
 *     z = einsum_bias(a, b, w); y = gelu(z)        y, z = einsum_gelu(a, b, w); no z if nothing else reads it
 *     t = einsum(a, b); dz = gelu_grad(z, t)       dz = einsum_gelu_grad(a, b, z)
 *     db = bias_dw(dy); dw = einsum(dy, x)         dw, db = einsum_bias_dw(dy, x)
 *     t = add(x0, x1); y = rmsnorm(t, w)           t, y = add_rmsnorm(x0, x1, w)
 *     t = add(x0, x1); y = layernorm(t, w, c)      t, y = add_layernorm(x0, x1, w, c)
 *     g = rmsnorm_dx(x, w, dy); dx = add(r, g)     dx = rmsnorm_dx_add(r, x, w, dy)
 *     g = layernorm_dx(x, w, dy); dx = add(r, g)   dx = layernorm_dx_add(r, x, w, dy)
 *     dx = rmsnorm_dx_add(r, x, w, dy); dw = rmsnorm_dw(x, dy)           dx, dw = rmsnorm_grad_add(r, x, w, dy)
 *     dx = layernorm_dx_add(r, x, w, dy); dw, dc = layernorm_dw(x, dy)   dx, dw, dc = layernorm_grad_add(r, x, w, dy)
 *
 * In the forward pass the sum beside a norm is the residual stream, which is read again later: both are written. In the
 * backward pass it is the stream's gradient, and nothing else reads g. Of 13 passes over memory for a layer's norm and
 * sum 8 remain: x and dy are read once for dx and dw. The last sum of a block is fused with the next block's norm. */
#include "core/program/fusion.h"

#include "core/program/access.h"

/* ---- conditions */

/* The second's weight has the last dims of its output. */
static int fits_bias(const struct hd_program *p, const struct hd__instr *product, const struct hd__instr *bias)
{
    const struct hd__tensor *y = hd__tensor_const(p, bias->out[0]), *w = hd__tensor_const(p, bias->in[1]);
    (void)product;
    return w->ndim && w->ndim <= y->ndim && !memcmp(y->dim + y->ndim - w->ndim, w->dim, w->ndim * sizeof *w->dim);
}

/* dw keeps those dims of dy that db has, and no other. */
static int fits_bias_dw(const struct hd_program *p, const struct hd__instr *product, const struct hd__instr *sum)
{
    const struct hd__tensor *dy = hd__tensor_const(p, sum->in[0]), *dw = hd__tensor_const(p, product->out[0]),
                            *db = hd__tensor_const(p, sum->out[0]);
    for (int32_t d = 0; d < dy->ndim; d++)
        if ((hd__dim_index(dw, dy->dim[d]) >= 0) != (hd__dim_index(db, dy->dim[d]) >= 0))
            return 0;
    return db->ndim > 0;
}

/* The add has two terms of its output's shape, dtype and placement, with no pending reduction. */
static int fits_sum(const struct hd_program *p, const struct hd__instr *first, const struct hd__instr *second)
{
    const struct hd__instr *add = first->op == HD_OP_ADD ? first : second;
    const struct hd__tensor *sum = hd__tensor_const(p, add->out[0]);
    if (add->n_in != 2 || sum->placement.partial)
        return 0;
    for (uint32_t n = 0; n < 2; n++) {
        const struct hd__tensor *t = hd__tensor_const(p, add->in[n]);
        if (t->ndim != sum->ndim || memcmp(t->dim, sum->dim, t->ndim * sizeof *t->dim) || t->dtype != sum->dtype ||
            memcmp(t->placement.shard, sum->placement.shard, sizeof t->placement.shard) || t->placement.partial)
            return 0;
    }
    return 1;
}

static int fits_norm_dw(const struct hd_program *p, const struct hd__instr *dx, const struct hd__instr *dw)
{
    (void)p;
    return dx->attrs && dw->attrs && dx->attrs->eps == dw->attrs->eps;
}

/* ---- rows */

#define F(n) HD__FUSION_FIRST(n)
#define S(n) HD__FUSION_SECOND(n)
#define EPILOGUE .set = HD__FUSE_EPILOGUES
#define NORM .set = HD__FUSE_NORM_SUMS, .fits = fits_sum
#define FORWARD .flags = HD__FUSION_ACROSS_BLOCKS
#define BACKWARD .flags = HD__FUSION_ACROSS_BLOCKS | HD__FUSION_AS_FIRST | HD__FUSION_EITHER_INPUT
#define SIBLINGS .flags = HD__FUSION_SIBLINGS | HD__FUSION_AS_FIRST
#define NORM_DW                                       \
    .set = HD__FUSE_NORM_GRADS, .fits = fits_norm_dw, \
    .flags = HD__FUSION_SIBLINGS | HD__FUSION_AS_FIRST | HD__FUSION_ACROSS_PHASES

/* clang-format off */
const struct hd__fusion hd__fusions[] = {
    {HD_OP_XENT_HEAD, .set = HD__FUSE_LOSS_HEAD}, /* fuse_loss_head.c */
    {HD_OP_EINSUM, .set = HD__FUSE_ADDS_ONCE, .grads = 1u << HD_F32 | 1u << HD_F64}, /* fuse.c */
    {HD_OP_EINSUM_BIAS, HD_OP_EINSUM, HD_OP_BIAS, EPILOGUE,
     .link = 0, .in = {F(0), F(1), S(1)}, .out = {S(0)}, .fits = fits_bias},
    {HD_OP_EINSUM_GELU, HD_OP_EINSUM_BIAS, HD_OP_GELU, EPILOGUE, .flags = HD__FUSION_MAY_DROP,
     .link = 0, .in = {F(0), F(1), F(2)}, .out = {S(0), F(0)}},
    {HD_OP_EINSUM_GELU_GRAD, HD_OP_EINSUM, HD_OP_GELU_GRAD, EPILOGUE,
     .link = 1, .in = {F(0), F(1), S(0)}, .out = {S(0)}},
    {HD_OP_EINSUM_BIAS_DW, HD_OP_EINSUM, HD_OP_BIAS_DW, EPILOGUE, SIBLINGS,
     .same = {F(0)}, .in = {F(0), F(1)}, .out = {F(0), S(0)}, .fits = fits_bias_dw},
    {HD_OP_ADD_RMSNORM, HD_OP_ADD, HD_OP_RMSNORM, NORM, FORWARD,
     .link = 0, .in = {F(0), F(1), S(1)}, .out = {F(0), S(0)}},
    {HD_OP_ADD_LAYERNORM, HD_OP_ADD, HD_OP_LAYERNORM, NORM, FORWARD,
     .link = 0, .in = {F(0), F(1), S(1), S(2)}, .out = {F(0), S(0)}},
    {HD_OP_RMSNORM_DX_ADD, HD_OP_RMSNORM_DX, HD_OP_ADD, NORM, BACKWARD,
     .link = 1, .in = {S(0), F(0), F(1), F(2)}, .out = {S(0)}},
    {HD_OP_LAYERNORM_DX_ADD, HD_OP_LAYERNORM_DX, HD_OP_ADD, NORM, BACKWARD,
     .link = 1, .in = {S(0), F(0), F(1), F(2)}, .out = {S(0)}},
    {HD_OP_RMSNORM_GRAD_ADD, HD_OP_RMSNORM_DX_ADD, HD_OP_RMSNORM_DW, NORM_DW,
     .same = {F(1), F(3)}, .in = {F(0), F(1), F(2), F(3)}, .out = {F(0), S(0)}},
    {HD_OP_LAYERNORM_GRAD_ADD, HD_OP_LAYERNORM_DX_ADD, HD_OP_LAYERNORM_DW, NORM_DW,
     .same = {F(1), F(3)}, .in = {F(0), F(1), F(2), F(3)}, .out = {F(0), S(0), S(1)}},
};
/* clang-format on */

const uint32_t hd__n_fusions = HD__COUNT(hd__fusions);
_Static_assert(HD__COUNT(hd__fusions) <= 32, "hd_program.fusions has a bit a row");

const struct hd__fusion *hd__fusion_of(uint16_t op)
{
    for (uint32_t k = 0; k < HD__COUNT(hd__fusions); k++)
        if (hd__fusions[k].op == op && hd__fusions[k].first)
            return &hd__fusions[k];
    return NULL;
}

uint32_t hd__fusion_rows(uint32_t sets)
{
    uint32_t rows = 0;
    for (uint32_t k = 0; k < HD__COUNT(hd__fusions); k++)
        if (hd__fusions[k].set & sets)
            rows |= UINT32_C(1) << k;
    return rows;
}
