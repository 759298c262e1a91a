/* The gradient of each op, as instructions. */
#include "core/program/op_gradients.h"

hd_tensor hd__grad_like(struct hd_program *p, hd_tensor of, const char *op)
{
    const struct hd__tensor *f = hd__tensor_const(p, of);
    struct hd__tensor t = {
        .ndim = f->ndim, .dtype = f->dtype, .block = p->block, .grad_of = of, .placement.redop = HD_SUM};
    memcpy(t.dim, f->dim, sizeof t.dim);
    if (f->role == HD__ROLE_PARAM) {
        t.role = HD__ROLE_GRAD;
        t.dtype = p->precision.grad;
    }
    t.name = hd__arena_format(&p->arena, "%s.%u", op, p->tensors.count);
    return hd__tensor_new(p, &t);
}

hd_tensor hd__grad_emit(struct hd__grad *g, uint32_t n, uint16_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                        uint32_t n_in)
{
    if (!g->needed[n])
        return 0;
    hd__grad_emit_all(g, op, attrs, ins, n_in, (uint8_t[]){(uint8_t)n}, 1);
    return g->dx[n];
}

void hd__grad_emit_all(struct hd__grad *g, uint16_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                       uint32_t n_in, const uint8_t *n, uint32_t count)
{
    struct hd_program *p = g->p;
    struct hd__instr i;
    p->phase = hd__tensor_const(p, g->i->in[n[0]])->role == HD__ROLE_PARAM ? HD__PHASE_W : HD__PHASE_B;
    i = hd__instr_new(p, op);
    i.attrs = attrs ? hd__attrs_new(p, attrs) : NULL;
    i.n_in = (uint8_t)n_in;
    if (n_in)
        memcpy(i.in, ins, n_in * sizeof *ins);
    for (uint32_t k = 0; k < count; k++)
        i.out[i.n_out++] = g->dx[n[k]] = hd__grad_like(p, g->i->in[n[k]], hd__op(op)->name);
    p->phase = HD__PHASE_B;
    hd__push(&p->logical, i);
}

static hd_tensor in(const struct hd__grad *g, int n)
{
    return g->i->in[n];
}

int32_t hd__grad_einsum(struct hd__grad *g)
{
    hd_tensor a = in(g, 0), b = in(g, 1), dy = g->dy[0];
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_EINSUM, NULL, (hd_tensor[]){dy, b}, 2);
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_EINSUM, NULL, (hd_tensor[]){dy, a}, 2);
    return HD_OK;
}

int32_t hd__grad_add(struct hd__grad *g)
{
    for (uint32_t n = 0; n < g->i->n_in; n++)
        g->dx[n] = g->dy[0];
    return HD_OK;
}

int32_t hd__grad_bias(struct hd__grad *g)
{
    g->dx[0] = g->dy[0];
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_BIAS_DW, NULL, g->dy, 1);
    return HD_OK;
}

int32_t hd__grad_rmsnorm(struct hd__grad *g)
{
    const struct hd_attrs *a = g->i->attrs;
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_RMSNORM_DX, a, (hd_tensor[]){in(g, 0), in(g, 1), g->dy[0]}, 3);
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_RMSNORM_DW, a, (hd_tensor[]){in(g, 0), g->dy[0]}, 2);
    return HD_OK;
}

int32_t hd__grad_layernorm(struct hd__grad *g)
{
    const struct hd_attrs *a = g->i->attrs;
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_LAYERNORM_DX, a, (hd_tensor[]){in(g, 0), in(g, 1), g->dy[0]}, 3);
    hd__grad_emit_all(g, HD_OP_LAYERNORM_DW, a, (hd_tensor[]){in(g, 0), g->dy[0]}, 2, (uint8_t[]){1, 2}, 2);
    return HD_OK;
}

int32_t hd__grad_rope(struct hd__grad *g) /* a rotation: its transpose turns back */
{
    struct hd_attrs a = *g->i->attrs;
    a.sign = -a.sign;
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_ROPE, &a, g->dy, 1);
    return HD_OK;
}

int32_t hd__grad_attention(struct hd__grad *g)
{
    const struct hd__instr *i = g->i;
    hd_tensor ins[] = {i->in[0], i->in[1], i->in[2], i->out[0], i->out[1], g->dy[0]};
    hd__grad_emit_all(g, HD_OP_ATTENTION_GRAD, i->attrs, ins, 6, (uint8_t[]){0, 1, 2}, 3);
    return HD_OK;
}

int32_t hd__grad_swiglu(struct hd__grad *g)
{
    hd__grad_emit_all(g, HD_OP_SWIGLU_GRAD, NULL, (hd_tensor[]){in(g, 0), in(g, 1), g->dy[0]}, 3, (uint8_t[]){0, 1}, 2);
    return HD_OK;
}

int32_t hd__grad_gelu(struct hd__grad *g)
{
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_GELU_GRAD, NULL, (hd_tensor[]){in(g, 0), g->dy[0]}, 2);
    return HD_OK;
}

int32_t hd__grad_embed(struct hd__grad *g)
{
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_EMBED_DW, NULL, (hd_tensor[]){in(g, 0), g->dy[0]}, 2);
    return HD_OK;
}

int32_t hd__grad_position(struct hd__grad *g)
{
    g->dx[0] = g->dy[0];
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_POSITION_DW, NULL, g->dy, 1);
    return HD_OK;
}

/* l = sum_v exp(z - m), c = z[label]: the maximum m counts as a constant, its two gradients cancel. */
int32_t hd__grad_xent_local(struct hd__grad *g)
{
    hd_tensor ins[] = {in(g, 0), in(g, 1), in(g, 2), g->dy[0], g->dy[1]};
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_XENT_GRAD, NULL, ins, 5);
    return HD_OK;
}

int32_t hd__grad_nll(struct hd__grad *g)
{
    hd__grad_emit_all(g, HD_OP_NLL_GRAD, NULL, (hd_tensor[]){in(g, 0), g->dy[0]}, 2, (uint8_t[]){0, 2}, 2);
    return HD_OK;
}

int32_t hd__grad_total(struct hd__grad *g) /* the seed, d loss / d loss = 1, is folded in */
{
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_SPREAD, g->i->attrs, NULL, 0);
    return HD_OK;
}

/* ---- mixtures of experts. Which slot holds which token is a constant. */

int32_t hd__grad_gate(struct hd__grad *g)
{
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_GATE_GRAD, NULL, (hd_tensor[]){g->i->out[0], g->dy[0]}, 2);
    return HD_OK;
}

int32_t hd__grad_dispatch(struct hd__grad *g)
{
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_DISPATCH_DX, NULL, (hd_tensor[]){g->dy[0], in(g, 1)}, 2);
    return HD_OK;
}

int32_t hd__grad_grouped(struct hd__grad *g)
{
    const struct hd_attrs *a = g->i->attrs;
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_GROUPED, a, (hd_tensor[]){g->dy[0], in(g, 1), in(g, 2)}, 3);
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_GROUPED_DW, a, (hd_tensor[]){g->dy[0], in(g, 0), in(g, 2)}, 3);
    return HD_OK;
}

int32_t hd__grad_combine(struct hd__grad *g)
{
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_COMBINE_DZ, NULL, (hd_tensor[]){g->dy[0], in(g, 1), in(g, 2)}, 3);
    g->dx[1] = hd__grad_emit(g, 1, HD_OP_COMBINE_DG, NULL, (hd_tensor[]){in(g, 0), g->dy[0], in(g, 2)}, 3);
    return HD_OK;
}

/* n, the number of tokens of each expert, is not differentiable in z (arXiv 2101.03961, section 2.2). */
int32_t hd__grad_router_loss(struct hd__grad *g)
{
    g->dx[0] = hd__grad_emit(g, 0, HD_OP_ROUTER_LOSS_DZ, g->i->attrs, (hd_tensor[]){in(g, 0), in(g, 1), g->dy[0]}, 3);
    return HD_OK;
}
