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
int hd__has_gradient(uint16_t op);
/* Emits the gradients of the inputs of g->i into g->dx: dims, phase (W for parameters) and dtype follow from these. */
void hd__grad_emit(struct hd__grad *g);

#endif
