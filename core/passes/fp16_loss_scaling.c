/* Loss scaling: every seed of the backward program is multiplied by one scalar, and so are all gradients. The update
 * divides by it (HD_HYPER_INV_SCALE): the loss itself and evaluation are not scaled. */
#include "core/passes/passes.h"
#include "core/program/program.h"

void hd__scale_loss(struct hd_program *p)
{
    struct hd__tensor t = {.name = "loss_scale", .role = HD__ROLE_STATE, .dtype = HD_F64, .placement.redop = HD_SUM};
    t.buffer = hd__buffer_new(p, t.name, 64, HD__LIFE_PERSISTENT);
    p->scale = hd__tensor_new(p, &t);
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            struct hd__instr *i = &p->sections.at[s].code.at[k];
            if (i->op == HD_OP_SPREAD)
                i->in[i->n_in++] = p->scale;
        }
}
