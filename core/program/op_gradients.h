/* core/program/op_gradients: the gradient rules of ops (op_gradients.c), which autodiff.c calls. All on logical
 * tensors: a conversion is the identity on the logical value, so gradients never see placement. */
#ifndef HD_CORE_PROGRAM_OP_GRADIENTS_H
#define HD_CORE_PROGRAM_OP_GRADIENTS_H

#include "core/program/ops.h"

struct hd__grad {
    struct hd_program *p;
    const struct hd__instr *i; /* the forward instruction */
    hd_tensor dy[HD_MAX_OUT];  /* gradients of its outputs; 0: none flows */
    hd_tensor dx[HD_MAX_IN];   /* results: gradients of its inputs; 0: none */
    uint8_t needed[HD_MAX_IN]; /* is the gradient of this input wanted at all? */
};

/* A gradient tensor looks like the tensor that it is the gradient of. */
hd_tensor hd__grad_like(struct hd_program *p, hd_tensor of, const char *op);
/* Emits an instruction whose output 0 is the gradient of input n: dims, phase (W for parameters) and dtype follow. */
hd_tensor hd__grad_emit(struct hd__grad *g, uint32_t n, uint16_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                        uint32_t n_in);
/* One instruction that makes the gradients of inputs n[0..count) at once, into g->dx. */
void hd__grad_emit_all(struct hd__grad *g, uint16_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                       uint32_t n_in, const uint8_t *n, uint32_t count);

/* One rule an operation: emits the gradients of its inputs. HD_OK, or the program's sticky code. */
int32_t hd__grad_einsum(struct hd__grad *g);
int32_t hd__grad_add(struct hd__grad *g);
int32_t hd__grad_bias(struct hd__grad *g);
int32_t hd__grad_rmsnorm(struct hd__grad *g);
int32_t hd__grad_layernorm(struct hd__grad *g);
int32_t hd__grad_rope(struct hd__grad *g);
int32_t hd__grad_attention(struct hd__grad *g);
int32_t hd__grad_swiglu(struct hd__grad *g);
int32_t hd__grad_gelu(struct hd__grad *g);
int32_t hd__grad_embed(struct hd__grad *g);
int32_t hd__grad_position(struct hd__grad *g);
int32_t hd__grad_xent_local(struct hd__grad *g);
int32_t hd__grad_nll(struct hd__grad *g);
int32_t hd__grad_total(struct hd__grad *g);
int32_t hd__grad_gate(struct hd__grad *g);
int32_t hd__grad_dispatch(struct hd__grad *g);
int32_t hd__grad_grouped(struct hd__grad *g);
int32_t hd__grad_combine(struct hd__grad *g);
int32_t hd__grad_router_loss(struct hd__grad *g);

#endif
