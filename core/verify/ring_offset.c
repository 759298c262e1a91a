/* Rings: keys, values and their gradients go from member to member, so a tensor may hold the pieces of the rank that
 * is some members back. What attention works on must have come as many as it says, what is computed with one another
 * as many as each other, and gradients must be at home when they are accumulated. */
#include "core/verify/verify.h"

#define RING_OFFSET(axes, members) ((members) ? (axes) << 16 | (members) : 0)

static int is_sequence_axis(const struct hd_program *p, hd_tensor t, uint32_t axes)
{
    int32_t s = hd__dim_index(hd__tensor_const(p, t), p->letter['s']),
            minor = s < 0 ? -1 : hd__shard_minor(hd__tensor_const(p, t)->placement.shard[s]);
    return minor >= 0 && axes == HD_AXIS_BIT(minor);
}

static void visit_shift(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t ways = (uint32_t)hd__mesh_ways(&w->p->mesh, i->axes), offset = w->tensor[i->in[0]].ring_offset & 0xffff;
    if (!is_sequence_axis(w->p, i->in[0], i->axes))
        hd__diag(w, "%s: its sequence is not sharded along this ring", hd__name_of(w, i->in[0]));
    w->tensor[i->out[0]].ring_offset = RING_OFFSET(i->axes, (offset + 1) % ways);
}

/* How far the operands 1 and 2 of a piece of attention have come: keys and values, and their gradients. */
static uint32_t operand_offset(const struct hd__instr *i)
{
    return i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD ? RING_OFFSET(i->axes, (uint32_t)i->tag) : 0;
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t keys = operand_offset(i), all = keys || !i->n_in ? 0 : w->tensor[i->in[0]].ring_offset;
    if (i->op == HD_OP_SHIFT) {
        visit_shift(w, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_in; k++) {
        uint32_t is = w->tensor[i->in[k]].ring_offset, expected = keys && (k == 1 || k == 2) ? keys : all;
        if (is != expected)
            hd__diag(w, "%s: ring offset is %u, not %u", hd__name_of(w, i->in[k]), is & 0xffff, expected & 0xffff);
    }
    for (uint32_t k = 0; k < i->n_out; k++) {
        w->tensor[i->out[k]].ring_offset = keys && (k == 1 || k == 2) && i->op == HD_OP_ATTENTION_GRAD ? keys : all;
        if (i->op == HD_OP_ACCUM && w->tensor[i->out[k]].ring_offset)
            hd__diag(w, "%s: ring does not return it to its owner", hd__name_of(w, i->in[0]));
    }
}

const struct hd__rules hd__rules_ring_offset = {.visit = visit};
