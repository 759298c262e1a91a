/* One row an op: how many operands, the reference kernel and what it demands, the fast kernel. */
#include "internal.h"
#include "reference/reference.h"

#define ROW(min_i, max_i, min_o, max_o, name, check, fast)         \
    {                                                              \
        min_i, max_i, min_o, max_o, 0, cpu_ref_##name, check, fast \
    }
#define SLOWER(min_i, max_i, min_o, max_o, name, check)            \
    {                                                              \
        min_i, max_i, min_o, max_o, 1, cpu_ref_##name, check, NULL \
    }

static const struct cpu_op rows[HD_OP_LIMIT] = {
    [HD_OP_EINSUM] = ROW(2, 2, 1, 1, einsum, cpu_check_einsum, cpu_fast_einsum),
    [HD_OP_ADD] = ROW(1, 8, 1, 1, add, cpu_check_same, cpu_fast_add),
    [HD_OP_BIAS] = ROW(2, 2, 1, 1, bias, cpu_check_bias, cpu_fast_bias),
    [HD_OP_BIAS_DW] = ROW(1, 1, 1, 1, bias_dw, cpu_check_bias_dw, cpu_fast_bias_dw),
    [HD_OP_RMSNORM] = ROW(2, 2, 1, 1, rmsnorm, cpu_check_norm, cpu_fast_rmsnorm),
    [HD_OP_RMSNORM_DX] = ROW(3, 3, 1, 1, rmsnorm_dx, cpu_check_norm, cpu_fast_rmsnorm_dx),
    [HD_OP_RMSNORM_DW] = ROW(2, 2, 1, 1, rmsnorm_dw, cpu_check_norm_dw, cpu_fast_rmsnorm_dw),
    [HD_OP_LAYERNORM] = ROW(3, 3, 1, 1, layernorm, cpu_check_norm, cpu_fast_layernorm),
    [HD_OP_LAYERNORM_DX] = ROW(3, 3, 1, 1, layernorm_dx, cpu_check_norm, cpu_fast_layernorm_dx),
    [HD_OP_LAYERNORM_DW] = ROW(2, 2, 2, 2, layernorm_dw, cpu_check_norm_dw, cpu_fast_layernorm_dw),
    [HD_OP_ADD_RMSNORM] = ROW(3, 3, 2, 2, add_rmsnorm, cpu_check_norm_sum, cpu_fast_add_rmsnorm),
    [HD_OP_ADD_LAYERNORM] = ROW(4, 4, 2, 2, add_layernorm, cpu_check_norm_sum, cpu_fast_add_layernorm),
    [HD_OP_RMSNORM_DX_ADD] = ROW(4, 4, 1, 1, rmsnorm_dx_add, cpu_check_norm_sum, cpu_fast_rmsnorm_dx_add),
    [HD_OP_LAYERNORM_DX_ADD] = ROW(4, 4, 1, 1, layernorm_dx_add, cpu_check_norm_sum, cpu_fast_layernorm_dx_add),
    [HD_OP_RMSNORM_GRAD_ADD] = ROW(4, 4, 2, 2, rmsnorm_grad_add, cpu_check_norm_grad, cpu_fast_rmsnorm_grad_add),
    [HD_OP_LAYERNORM_GRAD_ADD] = ROW(4, 4, 3, 3, layernorm_grad_add, cpu_check_norm_grad, cpu_fast_layernorm_grad_add),
    [HD_OP_ROPE] = ROW(1, 1, 1, 1, rope, cpu_check_rope, cpu_fast_rope),
    [HD_OP_ROPE_AT] = ROW(2, 2, 1, 1, rope, cpu_check_rope, cpu_fast_rope),
    [HD_OP_ATTENTION_CACHED] = ROW(6, 6, 3, 3, attention_cached, cpu_check_attention_cached, cpu_fast_attention_cached),
    [HD_OP_ATTENTION] = ROW(3, 4, 2, 2, attention, cpu_check_attention, cpu_fast_attention),
    [HD_OP_ATTENTION_GRAD] = ROW(6, 7, 3, 3, attention_grad, cpu_check_attention_grad, cpu_fast_attention_grad),
    [HD_OP_ATTENTION_MERGE] = ROW(4, 4, 2, 2, attention_merge, cpu_check_attention_merge, cpu_fast_attention_merge),
    [HD_OP_SWIGLU] = ROW(2, 2, 1, 1, swiglu, cpu_check_same, cpu_fast_swiglu),
    [HD_OP_SWIGLU_GRAD] = ROW(3, 3, 2, 2, swiglu_grad, cpu_check_same, cpu_fast_swiglu_grad),
    [HD_OP_GELU] = ROW(1, 1, 1, 1, gelu, cpu_check_same, cpu_fast_gelu),
    [HD_OP_GELU_GRAD] = ROW(2, 2, 1, 1, gelu_grad, cpu_check_same, cpu_fast_gelu_grad),
    [HD_OP_GELU_ERF] = ROW(1, 1, 1, 1, gelu_erf, cpu_check_same, cpu_fast_gelu_erf),
    [HD_OP_GELU_ERF_GRAD] = ROW(2, 2, 1, 1, gelu_erf_grad, cpu_check_same, cpu_fast_gelu_erf_grad),
    [HD_OP_RELU2] = ROW(1, 1, 1, 1, relu2, cpu_check_same, cpu_fast_relu2),
    [HD_OP_RELU2_GRAD] = ROW(2, 2, 1, 1, relu2_grad, cpu_check_same, cpu_fast_relu2_grad),
    [HD_OP_SOFTCAP] = ROW(1, 1, 1, 1, softcap, cpu_check_softcap, cpu_fast_softcap),
    [HD_OP_SOFTCAP_GRAD] = ROW(2, 2, 1, 1, softcap_grad, cpu_check_softcap, cpu_fast_softcap_grad),
    [HD_OP_SCALE] = ROW(1, 1, 1, 1, scale, cpu_check_same, cpu_fast_scale),
    [HD_OP_EMBED] = ROW(2, 2, 1, 1, embed, cpu_check_embed, cpu_fast_embed),
    [HD_OP_EMBED_DW] = ROW(2, 2, 1, 1, embed_dw, cpu_check_embed_dw, cpu_fast_embed_dw),
    [HD_OP_POSITION] = ROW(2, 2, 1, 1, position, cpu_check_position, cpu_fast_position),
    [HD_OP_POSITION_DW] = ROW(1, 1, 1, 1, position_dw, cpu_check_position_dw, cpu_fast_position_dw),
    [HD_OP_ROWMAX] = ROW(1, 1, 1, 1, rowmax, cpu_check_rowmax, cpu_fast_rowmax),
    [HD_OP_XENT_LOCAL] = ROW(3, 3, 2, 2, xent_local, cpu_check_xent_local, cpu_fast_xent_local),
    [HD_OP_NLL] = ROW(3, 3, 1, 1, nll, cpu_check_same, cpu_fast_nll),
    [HD_OP_NLL_GRAD] = ROW(2, 2, 2, 2, nll_grad, cpu_check_same, cpu_fast_nll_grad),
    [HD_OP_XENT_GRAD] = ROW(5, 5, 1, 1, xent_grad, cpu_check_xent_grad, cpu_fast_xent_grad),
    [HD_OP_XENT_HEAD] = ROW(3, 4, 1, 3, xent_head, cpu_check_xent_head, cpu_fast_xent_head),
    [HD_OP_TOTAL] = ROW(1, 1, 1, 1, total, cpu_check_scalar_out, cpu_fast_total),
    [HD_OP_SPREAD] = ROW(0, 1, 1, 1, spread, cpu_check_spread, cpu_fast_spread),
    [HD_OP_SLICE] = ROW(1, 1, 1, 1, slice, cpu_check_parts, cpu_fast_slice),
    [HD_OP_MASK] = ROW(1, 1, 1, 1, mask, cpu_check_same, cpu_fast_mask),
    [HD_OP_PAD] = ROW(1, 1, 1, 1, pad, cpu_check_parts, cpu_fast_pad),
    [HD_OP_FILL0] = ROW(0, 0, 1, 1, fill0, NULL, cpu_fast_fill0),
    [HD_OP_ACCUM] = ROW(1, 1, 1, 1, accum, cpu_check_same, cpu_fast_accum),
    [HD_OP_COPY] = ROW(1, 1, 1, 1, copy, cpu_check_same, cpu_fast_copy),
    [HD_OP_BLEND] = ROW(1, 4, 1, 1, blend, cpu_check_blend, cpu_fast_blend),
    [HD_OP_ENCODE] = ROW(1, 1, 2, 2, encode, cpu_check_code, cpu_fast_encode),
    [HD_OP_DECODE] = ROW(1, 1, 1, 1, decode, cpu_check_code, cpu_fast_decode),
    [HD_OP_ORTHOGONALISE] = ROW(1, 1, 1, 1, orthogonalise, cpu_check_orthogonalise, cpu_fast_orthogonalise),
    [HD_OP_CUSTOM] = ROW(0, HD_MAX_IN, 1, HD_MAX_OUT, custom, cpu_check_custom, NULL),
    [HD_OP_SUMSQ] = ROW(1, 1, 1, 1, sumsq, cpu_check_scalar_out, cpu_fast_sumsq),
    [HD_OP_ADAMW] = ROW(3, 3, 3, 4, adamw, cpu_check_update, cpu_fast_adamw),
    [HD_OP_SGD] = ROW(3, 3, 1, 3, sgd, cpu_check_update, cpu_fast_sgd),
    [HD_OP_GATE] = ROW(1, 1, 1, 1, gate, cpu_check_moe, cpu_fast_gate),
    [HD_OP_GATE_GRAD] = ROW(2, 2, 1, 1, gate_grad, cpu_check_moe, cpu_fast_gate_grad),
    [HD_OP_ROUTE] = ROW(1, 1, 1, 1, route, cpu_check_moe, cpu_fast_route),
    [HD_OP_DISPATCH] = ROW(2, 2, 1, 1, dispatch, cpu_check_moe, cpu_fast_dispatch),
    [HD_OP_DISPATCH_DX] = ROW(2, 2, 1, 1, dispatch_dx, cpu_check_moe, cpu_fast_dispatch_dx),
    [HD_OP_GROUPED] = ROW(3, 3, 1, 1, grouped, cpu_check_moe, cpu_fast_grouped),
    [HD_OP_GROUPED_DW] = ROW(3, 3, 1, 1, grouped_dw, cpu_check_moe, cpu_fast_grouped_dw),
    [HD_OP_COMBINE] = ROW(3, 3, 1, 1, combine, cpu_check_moe, cpu_fast_combine),
    [HD_OP_COMBINE_DZ] = ROW(3, 3, 1, 1, combine_dz, cpu_check_moe, cpu_fast_combine_dz),
    [HD_OP_COMBINE_DG] = ROW(3, 3, 1, 1, combine_dg, cpu_check_moe, cpu_fast_combine_dg),
    [HD_OP_EXPERT_COUNT] = ROW(1, 1, 1, 1, expert_count, cpu_check_moe, cpu_fast_expert_count),
    [HD_OP_ROUTER_LOSS] = ROW(2, 2, 1, 1, router_loss, cpu_check_moe, cpu_fast_router_loss),
    [HD_OP_ROUTER_LOSS_DZ] = ROW(3, 3, 1, 1, router_loss_dz, cpu_check_moe, cpu_fast_router_loss_dz),
    /* References alone, for other devices' tests. */
    [HD_OP_EINSUM_BIAS] = SLOWER(3, 3, 1, 1, einsum_bias, cpu_check_einsum_bias),
    [HD_OP_EINSUM_GELU] = SLOWER(3, 3, 1, 2, einsum_gelu, cpu_check_einsum_bias),
    [HD_OP_EINSUM_GELU_GRAD] = SLOWER(3, 3, 1, 1, einsum_gelu_grad, cpu_check_einsum_gelu_grad),
    [HD_OP_EINSUM_BIAS_DW] = SLOWER(2, 2, 2, 2, einsum_bias_dw, cpu_check_einsum_bias_dw),
    [HD_OP_OPTIM_STEP] = ROW(3, 3, 1, HD_MAX_OUT, optim_step, cpu_check_optim_step, cpu_fast_optim_step),
};

const struct cpu_op *cpu_op(uint32_t op)
{
    return op < HD_OP_LIMIT && rows[op].reference ? &rows[op] : NULL;
}

static int32_t prepare_reference(struct hd_kernel *k, struct hd_error *err)
{
    const struct cpu_op *op = cpu_op(k->d.op);
    k->run = op->reference;
    return op->check ? op->check(k, err) : HD_OK;
}

cpu_prepare_fn cpu_reference(uint32_t op)
{
    return cpu_op(op) ? prepare_reference : NULL;
}

cpu_prepare_fn cpu_fast(uint32_t op)
{
    return cpu_op(op) ? cpu_op(op)->fast : NULL;
}
