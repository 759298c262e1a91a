/* Rings: keys, values and their gradients go from member to member, so a tensor may hold the pieces of the rank that
 * is some members back. What attention works on must have come as many as it says, what is computed with one another
 * as many as each other, and gradients must be at home when they are accumulated. */
#include <stdlib.h>

#include "core/verify/verify.h"

struct ring_offset {
    const struct hd_program *p;
    uint32_t *offset; /* TURN(axes, members); 0: at home */
};

#define RING_OFFSET(axes, members) ((members) ? (axes) << 16 | (members) : 0)

static void *create(const struct hd_program *p)
{
    struct ring_offset *t = hd__alloc(sizeof *t);
    t->p = p;
    t->offset = hd__alloc(p->tensors.count * sizeof *t->offset);
    return t;
}

static void destroy(void *state)
{
    struct ring_offset *t = state;
    free(t->offset);
    free(t);
}

static int is_sequence_axis(const struct hd_program *p, hd_tensor t, uint32_t axes)
{
    int32_t s = hd__dim_index(hd__tensor_const(p, t), p->letter['s']),
            minor = s < 0 ? -1 : hd__shard_minor(hd__tensor_const(p, t)->placement.shard[s]);
    return minor >= 0 && axes == HD_AXIS_BIT(minor);
}

static void visit_shift(struct ring_offset *t, struct hd__verify_diags *f, const struct hd__instr *i)
{
    uint32_t ways = (uint32_t)hd__mesh_ways(&t->p->mesh, i->axes), offset = t->offset[i->in[0]] & 0xffff;
    if (!is_sequence_axis(t->p, i->in[0], i->axes))
        hd__verify_diag(f, "%s: its sequence is not sharded along this ring", hd__tensor_const(t->p, i->in[0])->name);
    t->offset[i->out[0]] = RING_OFFSET(i->axes, (offset + 1) % ways);
}

/* How far the operands 1 and 2 of a piece of attention have come: keys and values, and their gradients. */
static uint32_t operand_offset(const struct hd__instr *i)
{
    return i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD ? RING_OFFSET(i->axes, (uint32_t)i->tag) : 0;
}

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct ring_offset *t = state;
    uint32_t keys = operand_offset(i), all = keys || !i->n_in ? 0 : t->offset[i->in[0]];
    if (i->op == HD_OP_SHIFT) {
        visit_shift(t, f, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_in; k++) {
        uint32_t is = t->offset[i->in[k]], expected = keys && (k == 1 || k == 2) ? keys : all;
        if (is != expected)
            hd__verify_diag(f, "%s: ring offset is %u, not %u", hd__tensor_const(t->p, i->in[k])->name, is & 0xffff,
                            expected & 0xffff);
    }
    for (uint32_t k = 0; k < i->n_out; k++) {
        t->offset[i->out[k]] = keys && (k == 1 || k == 2) && i->op == HD_OP_ATTENTION_GRAD ? keys : all;
        if (i->op == HD_OP_ACCUM && t->offset[i->out[k]])
            hd__verify_diag(f, "%s: ring does not return it to its owner", hd__tensor_const(t->p, i->in[0])->name);
    }
}

const struct hd__verify_analysis hd__verify_ring_offset = {.create = create, .destroy = destroy, .visit = visit};
