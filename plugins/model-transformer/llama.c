/* Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU (arXiv:2302.13971, 2307.09288).
 * Mistral is the same; Qwen2 adds biases to the query, key and value projections;
 * Qwen3 an RMSNorm over each head's query and key (arXiv:2505.09388); Mixtral experts in place of the feed-forward. */
#include "internal.h"

enum { EMBED, NORM1, WQ, WK, WV, WO, BQ, BK, BV, BO, NORM_Q, NORM_K, NORM2, GATE, UP, DOWN, NORM, HEAD, N_PARAMS };

#define LAYER "model.layers.*."

/* Linear's weights lie as [out, in]. */
static const struct tf_param params[N_PARAMS] = {
    [EMBED] = {"model.embed_tokens.weight", "vh", "01", TF_NORMAL},
    [NORM1] = {LAYER "input_layernorm.weight", "h", "0", TF_ONES},
    [WQ] = {LAYER "self_attn.q_proj.weight", "kgdh", "0001", TF_NORMAL},
    [WK] = {LAYER "self_attn.k_proj.weight", "kdh", "001", TF_NORMAL},
    [WV] = {LAYER "self_attn.v_proj.weight", "kdh", "001", TF_NORMAL},
    [WO] = {LAYER "self_attn.o_proj.weight", "hkgd", "0111", TF_RESIDUAL},
    [BQ] = {LAYER "self_attn.q_proj.bias", "kgd", "000", TF_ZEROS},
    [BK] = {LAYER "self_attn.k_proj.bias", "kd", "00", TF_ZEROS},
    [BV] = {LAYER "self_attn.v_proj.bias", "kd", "00", TF_ZEROS},
    [BO] = {LAYER "self_attn.o_proj.bias", "h", "0", TF_ZEROS},
    [NORM_Q] = {LAYER "self_attn.q_norm.weight", "d", "0", TF_ONES},
    [NORM_K] = {LAYER "self_attn.k_norm.weight", "d", "0", TF_ONES},
    [NORM2] = {LAYER "post_attention_layernorm.weight", "h", "0", TF_ONES},
    [GATE] = {LAYER "mlp.gate_proj.weight", "fh", "01", TF_NORMAL},
    [UP] = {LAYER "mlp.up_proj.weight", "fh", "01", TF_NORMAL},
    [DOWN] = {LAYER "mlp.down_proj.weight", "hf", "01", TF_RESIDUAL},
    [NORM] = {"model.norm.weight", "h", "0", TF_ONES},
    [HEAD] = {"lm_head.weight", "vh", "01", TF_NORMAL},
};

static hd_tensor norm_of(struct tf_emit *e, const char *dims, hd_tensor x, int row)
{
    return TF_OP(e, HD_OP_RMSNORM, &e->norm, dims, x, tf_param(e, &params[row]));
}

static hd_tensor norm(struct tf_emit *e, hd_tensor x, int row)
{
    return norm_of(e, "bsh", x, row);
}

static hd_tensor linear(struct tf_emit *e, const char *dims, hd_tensor x, int row)
{
    return TF_OP(e, HD_OP_EINSUM, NULL, dims, x, tf_param(e, &params[row]));
}

/* A projection of the attention, with its bias where the model has one. */
static hd_tensor project(struct tf_emit *e, const char *dims, hd_tensor x, int weight, int bias, int has_bias)
{
    hd_tensor y = linear(e, dims, x, weight);
    return has_bias ? TF_OP(e, HD_OP_BIAS, NULL, dims, y, tf_param(e, &params[bias])) : y;
}

static hd_tensor attention(struct tf_emit *e, hd_tensor x)
{
    const struct tf_shape *shape = &e->model->shape;
    hd_tensor q = project(e, "bskgd", x, WQ, BQ, shape->qkv_bias);
    hd_tensor k = project(e, "bskd", x, WK, BK, shape->qkv_bias);
    hd_tensor v = project(e, "bskd", x, WV, BV, shape->qkv_bias);
    if (shape->qk_norm) {
        q = norm_of(e, "bskgd", q, NORM_Q);
        k = norm_of(e, "bskd", k, NORM_K);
    }
    q = TF_OP(e, HD_OP_ROPE, &e->rope, "bskgd", q);
    k = TF_OP(e, HD_OP_ROPE, &e->rope, "bskd", k);
    return project(e, "bsh", tf_attention(e, q, k, v), WO, BO, shape->out_bias);
}

static hd_tensor feed_forward(struct tf_emit *e, hd_tensor x)
{
    if (e->model->shape.experts)
        return tf_experts(e, x);
    hd_tensor gate = linear(e, "bsf", x, GATE);
    hd_tensor up = linear(e, "bsf", x, UP);
    return linear(e, "bsh", TF_OP(e, HD_OP_SWIGLU, NULL, "bsf", gate, up), DOWN);
}

static hd_tensor add(struct tf_emit *e, hd_tensor x, hd_tensor y)
{
    return tf_residual(e, TF_OP(e, HD_OP_ADD, NULL, "bsh", x, y));
}

void tf_llama_build(struct tf_emit *e)
{
    tf_block(e, "embed");
    hd_tensor ids = e->api->input(e->program, "ids");
    hd_tensor embedding = tf_param(e, &params[EMBED]);
    hd_tensor x = tf_residual(e, TF_OP(e, HD_OP_EMBED, NULL, "bsh", ids, embedding));

    for (int64_t layer = 0; layer < e->model->shape.layers; layer++) {
        tf_layer_block(e, layer);
        x = add(e, x, attention(e, norm(e, x, NORM1)));
        x = add(e, x, feed_forward(e, norm(e, x, NORM2)));
    }

    tf_block(e, "head");
    hd_tensor last = norm(e, x, NORM);
    tf_head(e, last, e->model->shape.tied ? embedding : tf_param(e, &params[HEAD]));
}
