/* Rings: keys, values and their gradients go from member to member, so a tensor may hold the pieces of the rank that is some
 * members back. What attention works on must have come as many as it says, what is computed with one another as many as each
 * other, and gradients must be at home when they are accumulated. */
#include <stdlib.h>

#include "core/verify/verify.h"

struct turned {
    const struct hd_program *p;
    uint32_t *by_tensor; /* TURN(axes, members); 0: at home */
};

#define TURN(axes, members) ((members) ? (axes) << 16 | (members) : 0)

static void *create(const struct hd_program *p)
{
    struct turned *t = hd__alloc(sizeof *t);
    t->p = p;
    t->by_tensor = hd__alloc(p->tensors.count * sizeof *t->by_tensor);
    return t;
}

static void destroy(void *state)
{
    struct turned *t = state;
    free(t->by_tensor);
    free(t);
}

static int cuts_the_sequence(const struct hd_program *p, hd_tensor t, uint32_t axes)
{
    int32_t s = hd__dim_index(hd__tc(p, t), p->letter['s']), minor = s < 0 ? -1 : hd__shard_minor(hd__tc(p, t)->place.shard[s]);
    return minor >= 0 && axes == HD_AXIS_BIT(minor);
}

static void shift(struct turned *t, struct hd__faults *f, const struct hd__instr *i)
{
    uint32_t ways = (uint32_t)hd__mesh_ways(&t->p->mesh, i->axes), was = t->by_tensor[i->in[0]] & 0xffff;
    if (!cuts_the_sequence(t->p, i->in[0], i->axes))
        hd__fault(f, "the sequence of %s is not cut around this ring", hd__tc(t->p, i->in[0])->name);
    t->by_tensor[i->out[0]] = TURN(i->axes, (was + 1) % ways);
}

/* How far the operands 1 and 2 of a piece of attention have come: keys and values, and their gradients. */
static uint32_t says(const struct hd__instr *i)
{
    return i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD ? TURN(i->axes, (uint32_t)i->tag) : 0;
}

static void step(void *state, struct hd__faults *f, const struct hd__instr *i)
{
    struct turned *t = state;
    uint32_t keys = says(i), all = keys || !i->n_in ? 0 : t->by_tensor[i->in[0]];
    if (i->op == HD_OP_SHIFT) {
        shift(t, f, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_in; k++) {
        uint32_t is = t->by_tensor[i->in[k]], wanted = keys && (k == 1 || k == 2) ? keys : all;
        if (is != wanted)
            hd__fault(f, "%s has come %u members around its ring, not %u", hd__tc(t->p, i->in[k])->name, is & 0xffff,
                      wanted & 0xffff);
    }
    for (uint32_t k = 0; k < i->n_out; k++) {
        t->by_tensor[i->out[k]] = keys && (k == 1 || k == 2) && i->op == HD_OP_ATTENTION_GRAD ? keys : all;
        if (i->op == HD_OP_ACCUM && t->by_tensor[i->out[k]])
            hd__fault(f, "%s is not brought home around its ring", hd__tc(t->p, i->in[0])->name);
    }
}

const struct hd__proof hd__proof_turned = {.create = create, .destroy = destroy, .step = step};
