/* The sparse feed-forward of Mixtral (arXiv:2401.04088): a router chooses experts_per_token of the experts for each
 * token; their outputs, weighted by the softmax of their logits, are added up.
 *
 * Shapes are static: every sequence has slots at every expert, and which of them hold a token is data. Dropless, that
 * is as many slots as tokens; with a capacity factor c, c times the fair share of experts_per_token * tokens / experts,
 * and what finds no slot is dropped, in the order of tokens. Counting by sequence makes the numbers independent of the
 * mesh. */
#include "internal.h"

#include <math.h>

#define LAYER "model.layers.*.block_sparse_moe."
#define FUSED "model.layers.*.mlp."

enum { ROUTER, GATE, UP, DOWN, N_PARAMS };

/* Names of tensors: each expert with tensors of its own; and one tensor for all experts, gate and up in one. */
static const struct tf_param params[2][N_PARAMS] = {
    {
        [ROUTER] = {LAYER "gate.weight", "eh", "01", TF_NORMAL, .flags = HD_PARAM_WHOLE},
        [GATE] = {LAYER "experts.w1.weight", "efh", "*01", TF_NORMAL, LAYER "experts.#.w1.weight"},
        [UP] = {LAYER "experts.w3.weight", "efh", "*01", TF_NORMAL, LAYER "experts.#.w3.weight"},
        [DOWN] = {LAYER "experts.w2.weight", "ehf", "*01", TF_RESIDUAL, LAYER "experts.#.w2.weight"},
    },
    {
        [ROUTER] = {LAYER "gate.weight", "eh", "01", TF_NORMAL, FUSED "gate.weight", .flags = HD_PARAM_WHOLE},
        [GATE] = {LAYER "experts.w1.weight", "efh", "012", TF_NORMAL, FUSED "experts.gate_up_proj", 0, 2, 1},
        [UP] = {LAYER "experts.w3.weight", "efh", "012", TF_NORMAL, FUSED "experts.gate_up_proj", 1, 2, 1},
        [DOWN] = {LAYER "experts.w2.weight", "ehf", "012", TF_RESIDUAL, FUSED "experts.down_proj"},
    },
};

static int64_t slots_of(const struct tf_shape *shape, int64_t tokens)
{
    double share = (double)(tokens * shape->experts_per_token) / (double)shape->experts;
    int64_t slots = (int64_t)ceil(shape->capacity * share - 1e-9);
    return slots < 1 ? 1 : slots < tokens ? slots : tokens;
}

void tf_experts_begin(struct tf_emit *e)
{
    const struct tf_shape *shape = &e->model->shape;
    if (!shape->experts)
        return;
    e->api->dim(e->program, 'e', "experts", shape->experts);
    e->slots = shape->capacity > 0 ? 'c' : 's';
    if (e->slots == 'c')
        e->api->dim(e->program, 'c', "slots", slots_of(shape, e->api->extent(e->program, 's')));
}

/* "be#h" with the dim of slots for #. */
static const char *with_slots(const struct tf_emit *e, const char *dims, char out[8])
{
    snprintf(out, 8, "%s", dims);
    for (char *c = out; *c; c++)
        if (*c == '#')
            *c = e->slots;
    return out;
}

/* The share of slots that can hold a token: the cost of products. */
static double filled(const struct tf_emit *e)
{
    const struct tf_shape *shape = &e->model->shape;
    double slots = (double)e->api->extent(e->program, e->slots) * (double)shape->experts;
    double tokens = (double)e->api->extent(e->program, 's') * (double)shape->experts_per_token;
    return tokens < slots ? tokens / slots : 1;
}

/* The balance of Switch Transformers (arXiv:2101.03961, equations 4 to 6), for each sequence: experts * sum over e of
 * (fraction of tokens that chose e) * (mean probability of e); and ST-MoE's z loss (arXiv:2202.08906, equation 5). Both
 * are means over tokens and layers. */
static void add_losses(struct tf_emit *e, hd_tensor logits, hd_tensor gates)
{
    const struct tf_shape *shape = &e->model->shape;
    double tokens = (double)e->api->extent(e->program, 's');
    struct hd_attrs loss = {.struct_size = sizeof loss,
                            .scale = shape->aux_loss_coef * (double)shape->experts / tokens / (double)shape->layers,
                            .z_scale = shape->z_loss_coef / (double)shape->layers};
    struct hd_attrs mean = {.struct_size = sizeof mean, .scale = e->api->loss_scale(e->program)};
    if (!(shape->aux_loss_coef > 0) && !(shape->z_loss_coef > 0))
        return;
    hd_tensor count = TF_OP(e, HD_OP_EXPERT_COUNT, NULL, "be", gates);
    hd_tensor each = TF_OP(e, HD_OP_ROUTER_LOSS, &loss, "bs", logits, count);
    e->api->auxiliary(e->program, TF_OP(e, HD_OP_TOTAL, &mean, "", each));
}

hd_tensor tf_experts(struct tf_emit *e, hd_tensor x)
{
    const struct tf_shape *shape = &e->model->shape;
    const struct tf_param *row = params[shape->fused_experts];
    struct hd_attrs top = {.struct_size = sizeof top, .top_k = shape->experts_per_token};
    struct hd_attrs share = {.struct_size = sizeof share, .share = filled(e)};
    char narrow[8], wide[8], slots[8];
    with_slots(e, "be#h", narrow);
    with_slots(e, "be#f", wide);
    hd_tensor logits = TF_OP(e, HD_OP_EINSUM, NULL, "bse", x, tf_param(e, &row[ROUTER]));
    hd_tensor gates = TF_OP(e, HD_OP_GATE, &top, "bse", logits);
    hd_tensor tokens = TF_OP(e, HD_OP_ROUTE, NULL, with_slots(e, "be#", slots), gates);
    add_losses(e, logits, gates);

    hd_tensor y = TF_OP(e, HD_OP_DISPATCH, NULL, narrow, x, tokens);
    hd_tensor gate = TF_OP(e, HD_OP_GROUPED, &share, wide, y, tf_param(e, &row[GATE]), tokens);
    hd_tensor up = TF_OP(e, HD_OP_GROUPED, &share, wide, y, tf_param(e, &row[UP]), tokens);
    hd_tensor z = TF_OP(e, HD_OP_SWIGLU, NULL, wide, gate, up);
    z = TF_OP(e, HD_OP_GROUPED, &share, narrow, z, tf_param(e, &row[DOWN]), tokens);
    return TF_OP(e, HD_OP_COMBINE, NULL, "bsh", z, gates, tokens);
}
