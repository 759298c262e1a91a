/* GPT-2: LayerNorm with bias, learned positions, GELU in the tanh form, biases everywhere (Radford et al.,
 * 2019). */
#include "internal.h"

enum {
    WTE,
    WPE,
    NORM1,
    NORM1_BIAS,
    WQ,
    WK,
    WV,
    BQ,
    BK,
    BV,
    WO,
    BO,
    NORM2,
    NORM2_BIAS,
    FC,
    FC_BIAS,
    PROJ,
    PROJ_BIAS,
    NORM,
    NORM_BIAS,
    HEAD,
    N_PARAMS
};

#define LAYER "transformer.h.*."
#define FUSED LAYER "attn.c_attn."

/* Conv1D's weights lie as [in, out]; queries, keys and values are thirds of one tensor. */
static const struct tf_param params[N_PARAMS] = {
    [WTE] = {"transformer.wte.weight", "vh", "01", TF_NORMAL},
    [WPE] = {"transformer.wpe.weight", "ph", "01", TF_NORMAL},
    [NORM1] = {LAYER "ln_1.weight", "h", "0", TF_ONES},
    [NORM1_BIAS] = {LAYER "ln_1.bias", "h", "0", TF_ZEROS},
    [WQ] = {FUSED "q.weight", "hkgd", "0111", TF_NORMAL, FUSED "weight", 0, 3, 1},
    [WK] = {FUSED "k.weight", "hkd", "011", TF_NORMAL, FUSED "weight", 1, 3, 1},
    [WV] = {FUSED "v.weight", "hkd", "011", TF_NORMAL, FUSED "weight", 2, 3, 1},
    [BQ] = {FUSED "q.bias", "kgd", "000", TF_ZEROS, FUSED "bias", 0, 3, 0},
    [BK] = {FUSED "k.bias", "kd", "00", TF_ZEROS, FUSED "bias", 1, 3, 0},
    [BV] = {FUSED "v.bias", "kd", "00", TF_ZEROS, FUSED "bias", 2, 3, 0},
    [WO] = {LAYER "attn.c_proj.weight", "kgdh", "0001", TF_RESIDUAL},
    [BO] = {LAYER "attn.c_proj.bias", "h", "0", TF_ZEROS},
    [NORM2] = {LAYER "ln_2.weight", "h", "0", TF_ONES},
    [NORM2_BIAS] = {LAYER "ln_2.bias", "h", "0", TF_ZEROS},
    [FC] = {LAYER "mlp.c_fc.weight", "hf", "01", TF_NORMAL},
    [FC_BIAS] = {LAYER "mlp.c_fc.bias", "f", "0", TF_ZEROS},
    [PROJ] = {LAYER "mlp.c_proj.weight", "fh", "01", TF_RESIDUAL},
    [PROJ_BIAS] = {LAYER "mlp.c_proj.bias", "h", "0", TF_ZEROS},
    [NORM] = {"transformer.ln_f.weight", "h", "0", TF_ONES},
    [NORM_BIAS] = {"transformer.ln_f.bias", "h", "0", TF_ZEROS},
    [HEAD] = {"lm_head.weight", "vh", "01", TF_NORMAL},
};

static hd_tensor norm(struct tf_emit *e, hd_tensor x, int weight, int bias)
{
    hd_tensor w = tf_param(e, &params[weight]);
    return TF_OP(e, HD_OP_LAYERNORM, &e->norm, "bsh", x, w, tf_param(e, &params[bias]));
}

static hd_tensor linear(struct tf_emit *e, const char *dims, hd_tensor x, int weight, int bias)
{
    hd_tensor y = TF_OP(e, HD_OP_EINSUM, NULL, dims, x, tf_param(e, &params[weight]));
    return TF_OP(e, HD_OP_BIAS, NULL, dims, y, tf_param(e, &params[bias]));
}

static hd_tensor attention(struct tf_emit *e, hd_tensor x)
{
    hd_tensor q = linear(e, "bskgd", x, WQ, BQ);
    hd_tensor k = linear(e, "bskd", x, WK, BK);
    hd_tensor v = linear(e, "bskd", x, WV, BV);
    return linear(e, "bsh", tf_attention(e, q, k, v), WO, BO);
}

static hd_tensor feed_forward(struct tf_emit *e, hd_tensor x)
{
    hd_tensor y = TF_OP(e, HD_OP_GELU, NULL, "bsf", linear(e, "bsf", x, FC, FC_BIAS));
    return linear(e, "bsh", y, PROJ, PROJ_BIAS);
}

static hd_tensor add(struct tf_emit *e, hd_tensor x, hd_tensor y)
{
    return tf_residual(e, TF_OP(e, HD_OP_ADD, NULL, "bsh", x, y));
}

/* Positions that begin anew in each document are looked up like tokens. */
static hd_tensor place(struct tf_emit *e, hd_tensor tokens, hd_tensor table)
{
    hd_tensor positions = e->api->input(e->program, "positions");
    if (positions)
        return add(e, tokens, tf_residual(e, TF_OP(e, HD_OP_EMBED, NULL, "bsh", positions, table)));
    return tf_residual(e, TF_OP(e, HD_OP_POSITION, NULL, "bsh", tokens, table));
}

void tf_gpt2_build(struct tf_emit *e)
{
    tf_block(e, "embed");
    hd_tensor ids = e->api->input(e->program, "ids");
    hd_tensor wte = tf_param(e, &params[WTE]);
    hd_tensor tokens = tf_residual(e, TF_OP(e, HD_OP_EMBED, NULL, "bsh", ids, wte));
    hd_tensor x = place(e, tokens, tf_param(e, &params[WPE]));

    for (int64_t layer = 0; layer < e->model->shape.layers; layer++) {
        tf_layer_block(e, layer);
        x = add(e, x, attention(e, norm(e, x, NORM1, NORM1_BIAS)));
        x = add(e, x, feed_forward(e, norm(e, x, NORM2, NORM2_BIAS)));
    }

    tf_block(e, "head");
    hd_tensor last = norm(e, x, NORM, NORM_BIAS);
    tf_head(e, last, e->model->shape.tied ? wte : tf_param(e, &params[HEAD]));
}
