/* One row an op: operands (least and most inputs, least and most outputs), dtypes, prepare. To add an op: its .cu file
 * with cu_prepare_NAME, a row here, the file in meson.build. */
#include "op_table.h"

#define CU_ROWS(X)                                                      \
    X(HD_OP_EINSUM, 2, 2, 1, 1, CU_ALL, einsum)                         \
    X(HD_OP_EINSUM_BIAS, 3, 3, 1, 1, CU_ALL, epilogue)                  \
    X(HD_OP_EINSUM_GELU, 3, 3, 1, 2, CU_ALL, epilogue)                  \
    X(HD_OP_EINSUM_GELU_GRAD, 3, 3, 1, 1, CU_ALL, epilogue)             \
    X(HD_OP_EINSUM_BIAS_DW, 2, 2, 2, 2, CU_ALL, epilogue)               \
    X(HD_OP_GROUPED, 3, 3, 1, 1, CU_FLOATS, grouped)                    \
    X(HD_OP_GROUPED_DW, 3, 3, 1, 1, CU_FLOATS, grouped_dw)              \
    X(HD_OP_XENT_HEAD, 3, 4, 1, 3, CU_FLOATS, xent_head)                \
    X(HD_OP_ADD, 1, 8, 1, 1, CU_ALL, add)                               \
    X(HD_OP_BIAS, 2, 2, 1, 1, CU_ALL, bias)                             \
    X(HD_OP_BIAS_DW, 1, 1, 1, 1, CU_ALL, bias_dw)                       \
    X(HD_OP_RMSNORM, 2, 2, 1, 1, CU_ALL, rmsnorm)                       \
    X(HD_OP_RMSNORM_DX, 3, 3, 1, 1, CU_ALL, rmsnorm_dx)                 \
    X(HD_OP_RMSNORM_DW, 2, 2, 1, 1, CU_ALL, rmsnorm_dw)                 \
    X(HD_OP_LAYERNORM, 3, 3, 1, 1, CU_ALL, layernorm)                   \
    X(HD_OP_LAYERNORM_DX, 3, 3, 1, 1, CU_ALL, layernorm_dx)             \
    X(HD_OP_LAYERNORM_DW, 2, 2, 2, 2, CU_ALL, layernorm_dw)             \
    X(HD_OP_ADD_RMSNORM, 3, 3, 2, 2, CU_ALL, add_rmsnorm)               \
    X(HD_OP_ADD_LAYERNORM, 4, 4, 2, 2, CU_ALL, add_layernorm)           \
    X(HD_OP_RMSNORM_DX_ADD, 4, 4, 1, 1, CU_ALL, rmsnorm_dx_add)         \
    X(HD_OP_LAYERNORM_DX_ADD, 4, 4, 1, 1, CU_ALL, layernorm_dx_add)     \
    X(HD_OP_RMSNORM_GRAD_ADD, 4, 4, 2, 2, CU_ALL, rmsnorm_grad_add)     \
    X(HD_OP_LAYERNORM_GRAD_ADD, 4, 4, 3, 3, CU_ALL, layernorm_grad_add) \
    X(HD_OP_ROPE, 1, 1, 1, 1, CU_ALL, rope)                             \
    X(HD_OP_ROPE_AT, 2, 2, 1, 1, CU_ALL, rope_at)                       \
    X(HD_OP_SWIGLU, 2, 2, 1, 1, CU_ALL, swiglu)                         \
    X(HD_OP_SWIGLU_GRAD, 3, 3, 2, 2, CU_ALL, swiglu_grad)               \
    X(HD_OP_GELU, 1, 1, 1, 1, CU_ALL, gelu)                             \
    X(HD_OP_GELU_GRAD, 2, 2, 1, 1, CU_ALL, gelu_grad)                   \
    X(HD_OP_GELU_ERF, 1, 1, 1, 1, CU_ALL, gelu_erf)                     \
    X(HD_OP_GELU_ERF_GRAD, 2, 2, 1, 1, CU_ALL, gelu_erf_grad)           \
    X(HD_OP_RELU2, 1, 1, 1, 1, CU_ALL, relu2)                           \
    X(HD_OP_RELU2_GRAD, 2, 2, 1, 1, CU_ALL, relu2_grad)                 \
    X(HD_OP_SOFTCAP, 1, 1, 1, 1, CU_ALL, softcap)                       \
    X(HD_OP_SOFTCAP_GRAD, 2, 2, 1, 1, CU_ALL, softcap_grad)             \
    X(HD_OP_SCALE, 1, 1, 1, 1, CU_ALL, scale)                           \
    X(HD_OP_EMBED, 2, 2, 1, 1, CU_ALL, embed)                           \
    X(HD_OP_EMBED_DW, 2, 2, 1, 1, CU_ALL, embed_dw)                     \
    X(HD_OP_POSITION, 2, 2, 1, 1, CU_ALL, position)                     \
    X(HD_OP_POSITION_DW, 1, 1, 1, 1, CU_ALL, position_dw)               \
    X(HD_OP_ROWMAX, 1, 1, 1, 1, CU_ALL, rowmax)                         \
    X(HD_OP_XENT_LOCAL, 3, 3, 2, 2, CU_ALL, xent_local)                 \
    X(HD_OP_NLL, 3, 3, 1, 1, CU_ALL, nll)                               \
    X(HD_OP_NLL_GRAD, 2, 2, 2, 2, CU_ALL, nll_grad)                     \
    X(HD_OP_XENT_GRAD, 5, 5, 1, 1, CU_ALL, xent_grad)                   \
    X(HD_OP_TOTAL, 1, 1, 1, 1, CU_ALL, total)                           \
    X(HD_OP_SPREAD, 0, 1, 1, 1, CU_ALL, spread)                         \
    X(HD_OP_SLICE, 1, 1, 1, 1, CU_ALL, slice)                           \
    X(HD_OP_MASK, 1, 1, 1, 1, CU_ALL, mask)                             \
    X(HD_OP_PAD, 1, 1, 1, 1, CU_ALL, pad)                               \
    X(HD_OP_FILL0, 0, 0, 1, 1, CU_ALL, fill0)                           \
    X(HD_OP_ACCUM, 1, 1, 1, 1, CU_ALL, accum)                           \
    X(HD_OP_COPY, 1, 1, 1, 1, CU_ALL, copy)                             \
    X(HD_OP_BLEND, 1, 4, 1, 1, CU_ALL, blend)                           \
    X(HD_OP_ENCODE, 1, 1, 2, 2, CU_ALL, encode)                         \
    X(HD_OP_DECODE, 1, 1, 1, 1, CU_ALL, decode)                         \
    X(HD_OP_ORTHOGONALISE, 1, 1, 1, 1, CU_ALL, orthogonalise)           \
    X(HD_OP_CUSTOM, 0, HD_MAX_IN, 1, HD_MAX_OUT, CU_ALL, custom)        \
    X(HD_OP_SUMSQ, 1, 1, 1, 1, CU_ALL, sumsq)                           \
    X(HD_OP_ADAMW, 3, 3, 3, 4, CU_ALL, adamw)                           \
    X(HD_OP_SGD, 3, 3, 1, 3, CU_ALL, sgd)                               \
    X(HD_OP_GATE, 1, 1, 1, 1, CU_ALL, gate)                             \
    X(HD_OP_GATE_GRAD, 2, 2, 1, 1, CU_ALL, gate_grad)                   \
    X(HD_OP_ROUTE, 1, 1, 1, 1, CU_ALL, route)                           \
    X(HD_OP_DISPATCH, 2, 2, 1, 1, CU_ALL, dispatch)                     \
    X(HD_OP_DISPATCH_DX, 2, 2, 1, 1, CU_ALL, dispatch_dx)               \
    X(HD_OP_COMBINE, 3, 3, 1, 1, CU_ALL, combine)                       \
    X(HD_OP_COMBINE_DZ, 3, 3, 1, 1, CU_ALL, combine_dz)                 \
    X(HD_OP_COMBINE_DG, 3, 3, 1, 1, CU_ALL, combine_dg)                 \
    X(HD_OP_EXPERT_COUNT, 1, 1, 1, 1, CU_ALL, expert_count)             \
    X(HD_OP_ROUTER_LOSS, 2, 2, 1, 1, CU_ALL, router_loss)               \
    X(HD_OP_ROUTER_LOSS_DZ, 3, 3, 1, 1, CU_ALL, router_loss_dz)         \
    X(HD_OP_ATTENTION, 3, 4, 2, 2, CU_ALL, attention)                   \
    X(HD_OP_ATTENTION_GRAD, 6, 7, 3, 3, CU_ALL, attention_grad)         \
    X(HD_OP_ATTENTION_CACHED, 6, 6, 3, 3, CU_ALL, attention_cached)     \
    X(HD_OP_ATTENTION_MERGE, 4, 4, 2, 2, CU_FLOATS, attention_merge)

#define CU_DECLARE(op, min_in, max_in, min_out, max_out, dtypes, name) CU_PREPARE(name);
CU_ROWS(CU_DECLARE)
#undef CU_DECLARE

static const struct cu_op_row rows[HD_OP_LIMIT] = {
#define CU_ROW(op, min_in, max_in, min_out, max_out, dtypes, name) \
    [op] = {min_in, max_in, min_out, max_out, dtypes, cu_prepare_##name},
    CU_ROWS(CU_ROW)
#undef CU_ROW
};

const struct cu_op_row *cu_op_row(uint32_t op)
{
    return op < HD_OP_LIMIT && rows[op].prepare ? &rows[op] : NULL;
}
