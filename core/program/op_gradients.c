/* The gradient of each op, as instructions. */
#include "core/program/op_gradients.h"

/* One instruction of an op's gradient. Letters are tensors: a b c the forward op's inputs, y z its outputs, Y Z the
 * gradients of these. An instruction that makes one gradient is left out where that is not needed. */
static const struct rule {
    uint16_t of, op;   /* the forward op, the instruction; no instruction: Y is the gradient already */
    const char *makes; /* the inputs whose gradients are its outputs; NULL: all */
    const char *takes;
    int attrs; /* 1: those of the forward op; -1: with the opposite sign */
} rules[] = {{HD_OP_EINSUM, HD_OP_EINSUM, "a", "Yb"},
             {HD_OP_EINSUM, HD_OP_EINSUM, "b", "Ya"},
             {HD_OP_ADD, 0},
             {HD_OP_BIAS, 0, "a"},
             {HD_OP_BIAS, HD_OP_BIAS_DW, "b", "Y"},
             {HD_OP_RMSNORM, HD_OP_RMSNORM_DX, "a", "abY", 1},
             {HD_OP_RMSNORM, HD_OP_RMSNORM_DW, "b", "aY", 1},
             {HD_OP_LAYERNORM, HD_OP_LAYERNORM_DX, "a", "abY", 1},
             {HD_OP_LAYERNORM, HD_OP_LAYERNORM_DW, "bc", "aY", 1},
             {HD_OP_ROPE, HD_OP_ROPE, "a", "Y", -1}, /* a rotation: its transpose turns back */
             {HD_OP_ATTENTION, HD_OP_ATTENTION_GRAD, "abc", "abcyzYd", 1},
             {HD_OP_SWIGLU, HD_OP_SWIGLU_GRAD, "ab", "abY"},
             {HD_OP_GELU, HD_OP_GELU_GRAD, "a", "aY"},
             {HD_OP_GELU_ERF, HD_OP_GELU_ERF_GRAD, "a", "aY"},
             {HD_OP_RELU2, HD_OP_RELU2_GRAD, "a", "aY"},
             {HD_OP_SOFTCAP, HD_OP_SOFTCAP_GRAD, "a", "yY", 1},
             {HD_OP_SCALE, HD_OP_SCALE, "a", "Y", 1},
             {HD_OP_EMBED, HD_OP_EMBED_DW, "b", "aY"},
             {HD_OP_POSITION, 0, "a"},
             {HD_OP_POSITION, HD_OP_POSITION_DW, "b", "Y"},
             /* l = sum_v exp(z - m), c = z[label]: the maximum m counts as a constant, its two gradients cancel */
             {HD_OP_XENT_LOCAL, HD_OP_XENT_GRAD, "a", "abcYZ"},
             {HD_OP_NLL, HD_OP_NLL_GRAD, "ac", "aY"},
             {HD_OP_TOTAL, HD_OP_SPREAD, "a", "", 1}, /* the seed, d loss / d loss = 1, is folded in */
             /* mixtures of experts: which slot holds which token is a constant */
             {HD_OP_GATE, HD_OP_GATE_GRAD, "a", "yY"},
             {HD_OP_DISPATCH, HD_OP_DISPATCH_DX, "a", "Yb"},
             {HD_OP_GROUPED, HD_OP_GROUPED, "a", "Ybc", 1},
             {HD_OP_GROUPED, HD_OP_GROUPED_DW, "b", "Yac", 1},
             {HD_OP_COMBINE, HD_OP_COMBINE_DZ, "a", "Ybc"},
             {HD_OP_COMBINE, HD_OP_COMBINE_DG, "b", "aYc"},
             /* the number of tokens of each expert is not differentiable in z (arXiv 2101.03961, section 2.2) */
             {HD_OP_ROUTER_LOSS, HD_OP_ROUTER_LOSS_DZ, "a", "abY", 1}};

int hd__has_gradient(uint16_t op)
{
    for (size_t k = 0; k < HD__COUNT(rules); k++)
        if (rules[k].of == op)
            return 1;
    return 0;
}

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

static void emit_rule(struct hd__grad *g, const struct rule *rule)
{
    struct hd_program *p = g->p;
    p->phase = hd__tensor_const(p, g->i->in[rule->makes[0] - 'a'])->role == HD__ROLE_PARAM ? HD__PHASE_W : HD__PHASE_B;
    struct hd__instr i = hd__instr_new(p, rule->op);
    if (rule->attrs && g->i->attrs) {
        struct hd_attrs attrs = *g->i->attrs;
        attrs.sign *= rule->attrs;
        i.attrs = hd__attrs_new(p, &attrs);
    }
    for (const char *c = rule->takes; *c; c++)
        if (*c < 'a' || *c >= 'y' || *c - 'a' < g->i->n_in) /* an optional input may be left out */
            i.in[i.n_in++] = *c >= 'y' ? g->i->out[*c - 'y'] : *c >= 'a' ? g->i->in[*c - 'a'] : g->dy[*c - 'Y'];
    for (const char *c = rule->makes; *c; c++)
        i.out[i.n_out++] = g->dx[*c - 'a'] = hd__grad_like(p, g->i->in[*c - 'a'], hd__op(rule->op)->name);
    p->phase = HD__PHASE_B;
    hd__push(&p->logical, i);
}

void hd__grad_emit(struct hd__grad *g)
{
    for (size_t k = 0; k < HD__COUNT(rules); k++) {
        const struct rule *rule = &rules[k];
        if (rule->of != g->i->op)
            continue;
        for (uint32_t n = 0; n < g->i->n_in && !rule->op; n++)
            if (!rule->makes || strchr(rule->makes, 'a' + (int)n))
                g->dx[n] = g->dy[0];
        if (rule->op && (rule->makes[1] || g->needed[rule->makes[0] - 'a']))
            emit_rule(g, rule);
    }
}
