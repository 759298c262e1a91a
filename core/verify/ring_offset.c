/* Rings: keys, values and their gradients go from member to member, so a tensor may hold the pieces of the rank that
 * is some members back. What attention works on must have come as many as it says, what is computed with one another
 * as many as each other, and gradients must be at home when they are accumulated. */
#include "core/verify/verify.h"

#define RING_OFFSET(axes, members) ((members) ? (axes) << 16 | (members) : 0)

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    /* attention's operands 1 and 2, keys and values, and their gradients, have come as far as its tag says */
    int tile = i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD;
    uint32_t keys = tile ? RING_OFFSET(i->axes, (uint32_t)i->tag) : 0,
             all = keys || !i->n_in ? 0 : w->tensor[i->in[0]].ring_offset;
    if (i->op == HD_OP_SHIFT) {
        const struct hd__tensor *t = hd__tensor_const(w->p, i->in[0]);
        int32_t s = hd__dim_index(t, w->p->letter['s']), minor = s < 0 ? -1 : hd__shard_minor(t->placement.shard[s]);
        if (!hd__shift_steps(w->p, i) || __builtin_popcount(i->axes) != 1 || i->members ||
            (w->own_section && i->axes & ~w->p->independent_axes))
            hd__diag(w, "%s is to come from another rank along one axis%s", t->name,
                     w->own_section ? ", along which ranks are apart" : "");
        if (w->own_section) /* facts.c follows it */
            return;
        if (minor < 0 || i->axes != HD_AXIS_BIT(minor))
            hd__diag(w, "%s: its sequence is not sharded along this ring", t->name);
        w->tensor[i->out[0]].ring_offset = RING_OFFSET(i->axes, ((all & 0xffff) + (uint32_t)hd__shift_steps(w->p, i)) %
                                                                    (uint32_t)hd__mesh_ways(&w->p->mesh, i->axes));
        return;
    }
    for (uint32_t k = 0; k < i->n_in; k++) {
        uint32_t is = w->tensor[i->in[k]].ring_offset, expected = keys && (k == 1 || k == 2) ? keys : all;
        if (is != expected)
            hd__diag(w, "%s: ring offset is %u, not %u", hd__name_of(w, i->in[k]), is & 0xffff, expected & 0xffff);
    }
    for (uint32_t k = 0; k < i->n_out; k++) {
        uint32_t *offset = &w->tensor[i->out[k]].ring_offset;
        *offset = keys && (k == 1 || k == 2) && i->op == HD_OP_ATTENTION_GRAD ? keys : all;
        if (i->op == HD_OP_ACCUM && *offset)
            hd__diag(w, "%s: ring does not return it to its owner", hd__name_of(w, i->in[0]));
    }
}

const struct hd__rules hd__rules_ring_offset = {.visit = visit};
