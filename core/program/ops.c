/* The rows. See ops.h for the columns and heddle/ops.h for the operands. */
#include "core/program/ops.h"

#include "core/base/dtype.h"

/* ---- FLOPs, on local extents */

static double flops_einsum(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *a = hd__tensor_const(p, i->in[0]), *b = hd__tensor_const(p, i->in[1]);
    double n = 2.0 * (double)hd__numel(p, a);
    for (int32_t d = 0; d < b->ndim; d++)
        if (hd__dim_index(a, b->dim[d]) < 0)
            n *= (double)hd__local_extent(p, b, d);
    return n;
}

double hd__mask_share(const struct hd_program *p, const struct hd__instr *attention)
{
    double s = (double)p->dims.at[p->letter['s']].extent, w = s, prefix = 0;
    int not_causal = 0;
    if (attention->attrs) {
        w = attention->attrs->window > 0 ? HD__MIN((double)attention->attrs->window, s) : s;
        prefix = HD__MIN((double)attention->attrs->top_k, s);
        not_causal = (attention->attrs->flags & HD_ATTR_NOT_CAUSAL) != 0;
    }
    double causal = w * (2 * s - w + 1); /* twice the pairs of which the query is not before the key */
    if (not_causal)
        return w < s ? 2 * (causal - s) / (s * (s + 1)) : 2;
    return (causal + prefix * (prefix - 1)) / (s * (s + 1));
}

/* Two matmuls of [s, d] x [d, s] per head, of which the causal half is computed; times the mask's share of that. */
static double flops_attention(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *q = hd__tensor_const(p, i->in[0]), *k = hd__tensor_const(p, i->in[1]);
    return 2.0 * 2.0 * (double)hd__numel(p, q) * (double)hd__local_extent(p, k, 1) / 2.0 * hd__mask_share(p, i);
}

static double flops_attention_grad(const struct hd_program *p, const struct hd__instr *i)
{
    return 2.5 * flops_attention(p, i); /* five matmuls instead of two */
}

/* Every row of the cache counts: how many a query sees is data. */
static double flops_attention_cached(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *q = hd__tensor_const(p, i->in[0]), *cache = hd__tensor_const(p, i->in[3]);
    return 2.0 * 2.0 * (double)hd__numel(p, q) * (double)hd__local_extent(p, cache, 1);
}

/* The logits and, in training, the gradients of both their factors. */
static double flops_xent_head(const struct hd_program *p, const struct hd__instr *i)
{
    return i->n_out * flops_einsum(p, i);
}

/* FLOPs of the slots that hold tokens. The output (or dw) of [b e # n] (or [e n m]) says n. */
static double flops_grouped(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *x = hd__tensor_const(p, i->in[0]),
                            *w = hd__tensor_const(p, i->op == HD_OP_GROUPED ? i->in[1] : i->out[0]);
    double n = 2.0 * (double)hd__numel(p, x) * (i->attrs && i->attrs->share > 0 ? i->attrs->share : 1);
    for (int32_t d = 0; d < w->ndim; d++)
        if (hd__dim_index(x, w->dim[d]) < 0)
            n *= (double)hd__local_extent(p, w, d);
    return n;
}

/* Each column against those before it, twice. */
static double flops_orthogonalise(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *q = hd__tensor_const(p, i->out[0]);
    return 4.0 * (double)hd__numel(p, q) * (double)hd__local_extent(p, q, q->ndim - 1);
}

#define MODEL HD__CLASS_MODEL
#define ACC HD__OP_ACCUMULATES
#define INP HD__OP_IN_PLACE
#define SUM HD__OP_IN_PLACE | HD__OP_COMMUTES
#define TOK HD__OP_TOKENWISE
#define PADS HD__OP_PADS
#define RANK HD__OP_RANKED
#define MADE_OF(a, b, c) 1 << (a) | 1 << (b) | 1 << (c)
#define VALUE(rule) .value = HD__VALUE_##rule
#define SUMS(rule) .sum = HD__SUM_##rule
#define LOCAL(how) .class = HD__CLASS_LOCAL, VALUE(INPUT), .dtypes = "=", .n_in = 1, .n_out = 1, .converts = how
#define COLLECTIVE(how) \
    .class = HD__CLASS_COLLECTIVE, VALUE(INPUT), .dtypes = "=", .n_in = 1, .n_out = 1, .converts = how
#define STRUCTURE .class = HD__CLASS_STRUCTURE
#define UPDATE .class = HD__CLASS_UPDATE, VALUE(NONE), SUMS(READ)

/* FLOPs on the rank that has most to do; parameters that ranks share are shared evenly. */
static double update_flops(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__flat *f = hd__flat_of_update(p, i);
    int64_t ways = f ? hd__mesh_ways(&p->mesh, f->axes) : 1;
    double most = 0;
    for (int64_t s = 0; f && s < ways; s++) {
        double flops = 0;
        for (uint32_t k = 0; k < f->n_params; k++) {
            const struct hd__param *param = &p->params.at[f->params[k]];
            if (!param->whole)
                flops += param->update_flops / (double)ways;
            else if (f->offset[k] / (f->count / ways) == s)
                flops += param->update_flops;
        }
        most = HD__MAX(most, flops);
    }
    return most;
}

/* ---- attributes */

static const char *wrong_rope(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *x = hd__tensor_const(p, i->in[0]);
    int64_t d = x->ndim ? p->dims.at[x->dim[x->ndim - 1]].extent : 0;
    if (!i->attrs || !i->attrs->table || !i->attrs->n_table)
        return "has no attrs.table: it must have d/2 inverse frequencies, or fewer for partial rotary";
    return (int64_t)i->attrs->n_table > d / 2 ? "has more inverse frequencies in attrs.table than d/2" : NULL;
}

static const char *wrong_attention(const struct hd_program *p, const struct hd__instr *i)
{
    if (!i->attrs || !(i->attrs->scale > 0))
        return "has no attrs.scale above 0, as 1 / sqrt(d)";
    if (i->attrs->top_k > 0 && (i->attrs->window > 0 || i->attrs->flags & HD_ATTR_NOT_CAUSAL))
        return "has attrs.top_k, a prefix, which is for causal attention without a window";
    if (i->n_in > 3 && hd__tensor_const(p, i->in[3])->dtype != HD_I32)
        return "has positions in documents that are not int32: they are the input \"positions\"";
    if (i->n_in > 3 && (i->attrs->top_k > 0 || i->attrs->flags & HD_ATTR_NOT_CAUSAL))
        return "has positions in documents, which are for causal attention without a prefix";
    return i->attrs->top_k < 0 || !(i->attrs->clip >= 0)
               ? "has an attrs.top_k (the prefix) or attrs.clip (the soft cap) below 0"
               : NULL;
}

static const char *wrong_position(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *x = hd__tensor_const(p, i->in[0]), *rows = hd__tensor_const(p, i->in[1]);
    return x->ndim == 3 && rows->ndim == 2 && p->dims.at[x->dim[1]].extent > p->dims.at[rows->dim[0]].extent
               ? "has a table with fewer rows than the sequence has tokens: use a smaller data.seq_len"
               : NULL;
}

static const char *wrong_scale(const struct hd_program *p, const struct hd__instr *i)
{
    (void)p;
    return i->attrs && i->attrs->scale != 0 ? NULL : "has no attrs.scale";
}

static const char *wrong_softcap(const struct hd_program *p, const struct hd__instr *i)
{
    (void)p;
    return i->attrs && i->attrs->scale > 0 ? NULL : "has no attrs.scale above 0, the cap";
}

/* A strategy says what its op costs. */
static double flops_custom(const struct hd_program *p, const struct hd__instr *i)
{
    return i->custom->flops * (double)hd__numel(p, hd__tensor_const(p, i->n_in ? i->in[0] : i->out[0]));
}

/* clang-format off */
static const struct hd__op table[HD_OP_LIMIT] = {
    [HD_OP_EINSUM] = {"einsum", .partial = {"*"}, .linear = HD__LINEAR_ONE, .dtypes = "a", .flops = flops_einsum,
                      .n_in = 2, .n_out = 1, SUMS(MULTIPLIED), .flags = ACC | PADS},
    [HD_OP_ADD] = {"add", .linear = HD__LINEAR_ALL, .dtypes = "=", VALUE(SUM), .n_in = -1, .n_out = 1,
                   .flags = SUM | PADS, .form = "*,=>="},
    [HD_OP_BIAS] = {"bias", .dtypes = "a", .n_in = 2, .n_out = 1, .flags = INP, .form = "*,*>="},
    [HD_OP_BIAS_DW] = {"bias_dw", .partial = {"*"}, .dtypes = "a", .n_in = 1, .n_out = 1, .flags = ACC},
    [HD_OP_RMSNORM] = {"rmsnorm", .unsharded = "$", .dtypes = "a", .n_in = 2, .n_out = 1, .form = "*,$>="},
    [HD_OP_RMSNORM_DX] = {"rmsnorm_dx", .unsharded = "$", .dtypes = "a", .n_in = 3, .n_out = 1},
    [HD_OP_RMSNORM_DW] = {"rmsnorm_dw", .unsharded = "$", .partial = {"*"}, .dtypes = "a", .n_in = 2, .n_out = 1,
                          .flags = ACC},
    [HD_OP_LAYERNORM] = {"layernorm", .unsharded = "$", .dtypes = "a", .n_in = 3, .n_out = 1, .form = "*,$>="},
    [HD_OP_LAYERNORM_DX] = {"layernorm_dx", .unsharded = "$", .dtypes = "a", .n_in = 3, .n_out = 1},
    [HD_OP_LAYERNORM_DW] = {"layernorm_dw", .unsharded = "$", .partial = {"*", "*"}, .dtypes = "aa", .n_in = 2,
                            .n_out = 2, .flags = ACC},
    [HD_OP_ROPE] = {"rope", .unsharded = "d", .linear = HD__LINEAR_FIRST, .dtypes = "a", .n_in = 1, .n_out = 1,
                    .flags = INP | RANK, .form = "bs*d>=", .wrong = wrong_rope},
    /* emitted by decode.c alone, so their arity is no model's */
    [HD_OP_ROPE_AT] = {"rope_at", .unsharded = "d", .dtypes = "a", VALUE(ROPE_AT), .n_in = 2, .n_out = -1,
                       .flags = INP},
    [HD_OP_ATTENTION_CACHED] = {"attention_cached", .unsharded = "sd", .from = {0, MADE_OF(1, 3, 5), MADE_OF(2, 4, 5)},
                                .prefer = "kgb", .dtypes = "aaa", VALUE(ATTENTION), .flops = flops_attention_cached,
                                .n_in = 6, .n_out = -1},
    [HD_OP_ATTENTION] = {"attention", .unsharded = "sd", .prefer = "kgb", VALUE(ATTENTION), .dtypes = "af",
                         .flops = flops_attention, .n_in = 3, .n_optional = 1, .n_out = 2, .flags = RANK,
                         .form = "bskgd,bskd,bskd,bs>=,bskg", .wrong = wrong_attention},
    [HD_OP_ATTENTION_GRAD] = {"attention_grad", .unsharded = "sd", .partial = {NULL, "g", "g"}, .prefer = "kgb",
                              VALUE(ATTENTION), .dtypes = "aaa", .flops = flops_attention_grad, .n_in = 6,
                              .n_optional = 1, .n_out = 3, .flags = RANK},
    [HD_OP_ATTENTION_MERGE] = {"attention_merge", .unsharded = "d", VALUE(ATTENTION), .dtypes = "af", .n_in = 4,
                               .n_out = 2, .flags = INP},
    [HD_OP_SWIGLU] = {"swiglu", .dtypes = "a", .n_in = 2, .n_out = 1, .flags = INP, .form = "*,=>="},
    [HD_OP_SWIGLU_GRAD] = {"swiglu_grad", .dtypes = "aa", .n_in = 3, .n_out = 2, .flags = INP},
    [HD_OP_GELU] = {"gelu", .dtypes = "a", .n_in = 1, .n_out = 1, .flags = INP, .form = "*>="},
    [HD_OP_GELU_GRAD] = {"gelu_grad", .dtypes = "a", .n_in = 2, .n_out = 1, .flags = INP},
    [HD_OP_GELU_ERF] = {"gelu_erf", .dtypes = "a", .n_in = 1, .n_out = 1, .flags = INP, .form = "*>="},
    [HD_OP_GELU_ERF_GRAD] = {"gelu_erf_grad", .dtypes = "a", .n_in = 2, .n_out = 1, .flags = INP},
    [HD_OP_RELU2] = {"relu2", .dtypes = "a", .n_in = 1, .n_out = 1, .flags = INP, .form = "*>="},
    [HD_OP_RELU2_GRAD] = {"relu2_grad", .dtypes = "a", .n_in = 2, .n_out = 1, .flags = INP},
    [HD_OP_SOFTCAP] = {"softcap", .dtypes = "a", .n_in = 1, .n_out = 1, .flags = INP | PADS,
                       .form = "*>=", .wrong = wrong_softcap},
    [HD_OP_SOFTCAP_GRAD] = {"softcap_grad", .dtypes = "a", .n_in = 2, .n_out = 1, .flags = INP | PADS},
    [HD_OP_SCALE] = {"scale", .linear = HD__LINEAR_FIRST, .dtypes = "a", .n_in = 1, .n_out = 1, .flags = INP | PADS,
                      .form = "*>=", .wrong = wrong_scale},
    [HD_OP_EINSUM_BIAS] = {"einsum_bias", .dtypes = "a", .flops = flops_einsum, .n_in = 3, .n_out = 1},
    [HD_OP_EINSUM_GELU] = {"einsum_gelu", .dtypes = "aa", .flops = flops_einsum, .n_in = 3, .n_out = -1},
    [HD_OP_EINSUM_GELU_GRAD] = {"einsum_gelu_grad", .dtypes = "a", .flops = flops_einsum, .n_in = 3, .n_out = 1},
    [HD_OP_EINSUM_BIAS_DW] = {"einsum_bias_dw", .partial = {"*", "*"}, .from = {0, 1 << 0}, .dtypes = "aa",
                              .flops = flops_einsum, .n_in = 2, .n_out = 2, .flags = ACC},
    [HD_OP_ADD_RMSNORM] = {"add_rmsnorm", .unsharded = "$", .dtypes = "aa", .n_in = 3, .n_out = 2, .flags = SUM},
    [HD_OP_ADD_LAYERNORM] = {"add_layernorm", .unsharded = "$", .dtypes = "aa", .n_in = 4, .n_out = 2, .flags = SUM},
    [HD_OP_RMSNORM_DX_ADD] = {"rmsnorm_dx_add", .unsharded = "$", .dtypes = "a", .n_in = 4, .n_out = 1, .flags = INP},
    [HD_OP_LAYERNORM_DX_ADD] = {"layernorm_dx_add", .unsharded = "$", .dtypes = "a", .n_in = 4, .n_out = 1,
                                .flags = INP},
    [HD_OP_RMSNORM_GRAD_ADD] = {"rmsnorm_grad_add", .unsharded = "$", .partial = {NULL, "*"}, .dtypes = "aa",
                                .n_in = 4, .n_out = 2, .flags = INP | ACC, .adds = 1 << 1},
    [HD_OP_LAYERNORM_GRAD_ADD] = {"layernorm_grad_add", .unsharded = "$", .partial = {NULL, "*", "*"}, .dtypes = "aaa",
                                  .n_in = 4, .n_out = 3, .flags = INP | ACC, .adds = 1 << 1 | 1 << 2},
    [HD_OP_EMBED] = {"embed", .unsharded = "h", .partial = {"v"}, .dtypes = "a", .n_in = 2, .n_out = 1, .flags = PADS,
                     .form = "bs,?h>bsh"},
    [HD_OP_EMBED_DW] = {"embed_dw", .unsharded = "h", .partial = {"bs"}, .dtypes = "a", .n_in = 2, .n_out = 1,
                        .flags = ACC | PADS},
    [HD_OP_POSITION] = {"position", .unsharded = "ph", VALUE(POSITION), .dtypes = "a", .n_in = 2, .n_out = 1,
                        .flags = INP | RANK, .form = "bsh,ph>=", .wrong = wrong_position},
    [HD_OP_POSITION_DW] = {"position_dw", .unsharded = "ph", .partial = {"bs"}, .dtypes = "a", .n_in = 1, .n_out = 1,
                           .flags = ACC | RANK},
    [HD_OP_ROWMAX] = {"rowmax", .partial = {"v"}, .redop = HD_MAX, .dtypes = "f", .n_in = 1, .n_out = 1, .flags = PADS,
                      .form = "bsv>bs"},
    [HD_OP_XENT_LOCAL] = {"xent_local", .partial = {"v", "v"}, .dtypes = "ff", .n_in = 3, .n_out = 2, .flags = PADS,
                          .form = "bsv,bs,bs>bs,bs"},
    [HD_OP_NLL] = {"nll", .dtypes = "f", .n_in = 3, .n_out = 1, .flags = INP, .form = "bs,=>="},
    [HD_OP_NLL_GRAD] = {"nll_grad", .dtypes = "ff", .n_in = 2, .n_out = 2, .flags = INP},
    [HD_OP_XENT_GRAD] = {"xent_grad", .dtypes = "a", .n_in = 5, .n_out = 1, .flags = INP | PADS},
    [HD_OP_TOTAL] = {"total", .partial = {"bs"}, .dtypes = "f", .n_in = 1, .n_out = 1, .form = "*>"},
    [HD_OP_SPREAD] = {"spread", VALUE(ATTRS), .dtypes = "f", .n_in = -1, .n_out = 1},
    [HD_OP_XENT_HEAD] = {"xent_head", .unsharded = "vh", .partial = {NULL, NULL, "bs"}, .dtypes = "faa",
                         VALUE(LOSS_HEAD), .flops = flops_xent_head, .n_in = -1, .n_out = -1, .flags = ACC,
                         .adds = 1 << 2},

    [HD_OP_GATE] = {"gate", .unsharded = "e", .dtypes = "f", .n_in = 1, .n_out = 1, .flags = TOK},
    [HD_OP_GATE_GRAD] = {"gate_grad", .unsharded = "e", .dtypes = "a", .n_in = 2, .n_out = 1},
    [HD_OP_ROUTE] = {"route", .unsharded = "c", .prefer = "b", .dtypes = "i", .n_in = 1, .n_out = 1,
                     .flags = HD__OP_NEW_DIMS},
    [HD_OP_DISPATCH] = {"dispatch", .unsharded = "c", .linear = HD__LINEAR_FIRST, .prefer = "b", .dtypes = "a",
                        .n_in = 2, .n_out = 1, .flags = TOK},
    [HD_OP_DISPATCH_DX] = {"dispatch_dx", .unsharded = "ec", .linear = HD__LINEAR_FIRST, .prefer = "b", .dtypes = "a",
                           .n_in = 2, .n_out = 1},
    [HD_OP_GROUPED] = {"grouped", .partial = {"*"}, .linear = HD__LINEAR_FIRST, .dtypes = "a", .flops = flops_grouped,
                       .n_in = 3, .n_out = 1, .flags = ACC},
    [HD_OP_GROUPED_DW] = {"grouped_dw", .partial = {"*"}, .linear = HD__LINEAR_FIRST, .dtypes = "a",
                          .flops = flops_grouped, .n_in = 3, .n_out = 1, .flags = ACC},
    /* e may not be sharded: outputs of experts come back by all_to_all, not as a partial sum */
    [HD_OP_COMBINE] = {"combine", .unsharded = "ec", .linear = HD__LINEAR_FIRST, .prefer = "b", .dtypes = "a",
                       .n_in = 3, .n_out = 1},
    [HD_OP_COMBINE_DZ] = {"combine_dz", .unsharded = "c", .linear = HD__LINEAR_FIRST, .prefer = "b", .dtypes = "a",
                          .n_in = 3, .n_out = 1, .flags = TOK},
    [HD_OP_COMBINE_DG] = {"combine_dg", .unsharded = "ec", .partial = {"h"}, .linear = HD__LINEAR_FIRST, .prefer = "b",
                          .dtypes = "f", .n_in = 3, .n_out = 1},
    [HD_OP_EXPERT_COUNT] = {"expert_count", .unsharded = "e", .partial = {"s"}, .dtypes = "f", .n_in = 1, .n_out = 1},
    [HD_OP_ROUTER_LOSS] = {"router_loss", .unsharded = "e", .dtypes = "f", .n_in = 2, .n_out = 1},
    [HD_OP_ROUTER_LOSS_DZ] = {"router_loss_dz", .unsharded = "e", .dtypes = "a", .n_in = 3, .n_out = 1},

    [HD_OP_SLICE] = {"slice", LOCAL("RS"), .flags = RANK},
    [HD_OP_MASK] = {"mask", LOCAL("RP"), .flags = INP | RANK},
    [HD_OP_PAD] = {"pad", LOCAL("SP"), .flags = RANK},

    [HD_OP_ALL_REDUCE] = {"all_reduce", COLLECTIVE("PR"), .flags = INP},
    [HD_OP_ALL_GATHER] = {"all_gather", COLLECTIVE("SR")},
    [HD_OP_REDUCE_SCATTER] = {"reduce_scatter", COLLECTIVE("PS")},
    [HD_OP_ALL_TO_ALL] = {"all_to_all", COLLECTIVE("SS")},
    [HD_OP_BROADCAST] = {"broadcast", COLLECTIVE("")},
    [HD_OP_SHIFT] = {"shift", COLLECTIVE("")},
    [HD_OP_SEND] = {"send", .class = HD__CLASS_P2P, .n_in = 1, .n_out = 0},
    [HD_OP_RECV] = {"recv", .class = HD__CLASS_P2P, VALUE(PROMISED), .n_in = 0, .n_out = 1},

    [HD_OP_ENCODE] = {"encode", STRUCTURE, SUMS(ENCODED), .dtypes = "u*", .n_in = 1, .n_out = 2, .flags = ACC,
                      .adds = 1 << 1},
    [HD_OP_DECODE] = {"decode", STRUCTURE, SUMS(DECODED), .dtypes = "*", .n_in = 1, .n_out = 1},

    [HD_OP_ORTHOGONALISE] = {"orthogonalise", STRUCTURE, SUMS(ORTHOGONALISED), .dtypes = "=",
                             .flops = flops_orthogonalise, .n_in = 1, .n_out = 1, .flags = INP},

    [HD_OP_CUSTOM] = {"custom", STRUCTURE, .flops = flops_custom, .n_in = -1, .n_out = -1},

    [HD_OP_FEED] = {"feed", STRUCTURE, VALUE(FED), .dtypes = "i", .n_in = 0, .n_out = 1},
    [HD_OP_FILL0] = {"fill0", STRUCTURE, VALUE(NONE), SUMS(ZEROED), .n_in = 0, .n_out = 1},
    [HD_OP_ACCUM] = {"accum", STRUCTURE, VALUE(INPUT), SUMS(ADDED), .dtypes = "*", .n_in = 1, .n_out = 1,
                     .flags = PADS},
    [HD_OP_COPY] = {"copy", STRUCTURE, VALUE(INPUT), .dtypes = "*", .n_in = 1, .n_out = 1},
    [HD_OP_BLEND] = {"blend", STRUCTURE, VALUE(BLEND), SUMS(BLENDED), .dtypes = "*", .n_in = -1, .n_out = 1,
                     .flags = INP | RANK},
    [HD_OP_RELEASE] = {"release", STRUCTURE, SUMS(ENDED), .n_in = 1, .n_out = 0},
    [HD_OP_WAIT] = {"wait", STRUCTURE, .n_in = 0, .n_out = 0},

    [HD_OP_SUMSQ] = {"sumsq", UPDATE, .dtypes = "d", .n_in = 1, .n_out = 1},
    [HD_OP_ADAMW] = {"adamw", UPDATE, .n_in = 3, .n_out = -1},
    [HD_OP_SGD] = {"sgd", UPDATE, .n_in = 3, .n_out = -1},
    [HD_OP_OPTIM_STEP] = {"optim_step", UPDATE, .flops = update_flops, .n_in = 3, .n_out = -1},
};
/* clang-format on */

const struct hd__op *hd__op(uint16_t op)
{
    return &table[op < HD_OP_LIMIT ? op : 0];
}

int hd__custom_takes(char letter, uint32_t dtype)
{
    return letter == 'f'   ? dtype == HD_F32
           : letter == 'd' ? dtype == HD_F64
           : letter == 'i' ? dtype == HD_I32
           : letter == 'u' ? dtype == HD_U8
                           : hd__is_float(dtype);
}

uint8_t hd__instr_sum(const struct hd__instr *i)
{
    static const uint8_t custom[] = {[HD_CUSTOM_OTHER] = HD__SUM_NONE,
                                     [HD_CUSTOM_LINEAR] = HD__SUM_MOVED,
                                     [HD_CUSTOM_MAP] = HD__SUM_MAPPED,
                                     [HD_CUSTOM_ENCODE] = HD__SUM_ENCODED,
                                     [HD_CUSTOM_DECODE] = HD__SUM_DECODED};
    return i->custom ? custom[i->custom->proof] : hd__op(i->op)->sum;
}

double hd__instr_flops(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__op *row = hd__op(i->op);
    return row->flops ? row->flops(p, i) : 0;
}

double hd__instr_bytes(const struct hd_program *p, const struct hd__instr *i)
{
    double bytes = 0;
    if (i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE)
        return 0;
    for (uint32_t n = 0; n < i->n_in; n++)
        bytes += (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[n]));
    for (uint32_t n = 0; n < i->n_out; n++)
        bytes += (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[n]));
    return bytes;
}

double hd__instr_traffic(const struct hd_program *p, const struct hd__instr *i)
{
    double n = (double)(i->members ? __builtin_popcountll(i->members) : hd__mesh_ways(&p->mesh, i->axes));
    double in = i->n_in ? (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0])) : 0;
    const char *converts = hd__op(i->op)->converts;
    if (!hd__is_collective(i->op) || !*converts)
        return hd__is_collective(i->op) || i->op == HD_OP_SEND ? in : 0;
    in *= n - 1;
    return hd__op_joins(i->op) && !hd__op_splits(i->op) ? in
                                                        : (hd__op_sums(i->op) && converts[1] == 'R' ? 2 : 1) * in / n;
}
