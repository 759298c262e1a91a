/* The program of a job, in fp64: for emulations. It keeps the instructions that mixed precision, compressed gradients
 * and low-precision copies need; casts become copies, and codes the numbers that they stand for, an element each where
 * 8 bits were. So what is compared with one rank is the program that was proved, and every difference is a fault. A
 * collective that would have to convert is refused, as the executor does: afterwards there is one dtype. */
#include <stdlib.h>

#include "core/base/dtype.h"
#include "core/passes/passes.h"
#include "core/program/access.h"

/* A strategy's own op has kernels for the dtypes that it names. */
static int32_t check_custom(const struct hd_custom_op *op, struct hd_error *err)
{
    if (!op || (!strpbrk(op->in, "fu") && !strpbrk(op->out, "fu")))
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "%s, an op of a strategy, takes or gives fp32 or codes ('f' or 'u' of '%s' to '%s'), and this "
                   "comparison computes in fp64: leave its strategy out, or let all its operands be of any "
                   "floating-point dtype ('*')",
                   op->name, op->in, op->out);
}

static int32_t check_instrs(const struct hd_program *p, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count && !rc; k++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[k];
            rc = hd__is_collective(i->op) ? hd__collective_dtype(p, i, err) : check_custom(i->custom, err);
        }
    return rc;
}

int32_t hd__widen(struct hd_program *p, struct hd_error *err)
{
    size_t *size = hd__alloc(p->buffers.count * sizeof *size); /* by buffer: of an element before; 0: as it was */
    int32_t rc = check_instrs(p, err);
    uint32_t changed = 0;
    for (hd_tensor n = 1; n < p->tensors.count; n++) {
        struct hd__tensor *t = hd__tensor_at(p, n);
        if (t->dtype == HD_F64 || (!hd__is_float(t->dtype) && hd__dtype(t->dtype)->class != HD__CLASS_CODE))
            continue;
        size[t->buffer] = hd_dtype_size(t->dtype);
        t->dtype = HD_F64;
        changed++;
    }
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (size[b])
            p->buffers.at[b].bytes *= (int64_t)(sizeof(double) / size[b]);
    for (uint32_t n = 0; n < p->params.count; n++)
        for (uint32_t k = 0; k < p->params.at[n].n_states; k++)
            if (hd__is_float(p->params.at[n].state[k].dtype))
                p->params.at[n].state[k].dtype = HD_F64;
    p->precision = (struct hd__precision){HD_F64, HD_F64, HD_F64, HD_F64, HD_F64, HD_F64, {0, 0}};
    free(size);
    return rc || !changed ? rc : hd__memory_plan(p, err);
}
