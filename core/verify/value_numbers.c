/* Value numbers as a proof: what the program said of its tensors as it was lowered (core/program/value_number.h) is what they still are
 * behind all passes. Sharding is not seen here: placement.c has what a rank's piece is. */
#include "core/verify/verify.h"

static void *create(const struct hd_program *p)
{
    return hd__meaning_create(p);
}

static void destroy(void *state)
{
    hd__meaning_destroy(state);
}

/* ---- what came of it */

/* A view of a parameter: is that what its memory has? */
static void check_weight(const struct hd__meaning *m, struct hd__faults *f, hd_tensor t)
{
    const struct hd__tensor *view = hd__tc(m->p, t);
    uint32_t param = view->param - 1, flat = m->flat_of[param];
    const struct hd__flat *of = flat ? &m->p->flats.at[flat - 1] : NULL;
    int64_t at = -1;
    for (uint32_t k = 0; of && k < of->n_params; k++)
        if (of->params[k] == param)
            at = of->offset[k];
    if (of && (m->holds[view->buffer] != hd__meaning_of_flat(flat - 1, 0) || view->offset - m->begins[view->buffer] != at))
        hd__fault(f, "reads %s where something else is", view->name);
}

/* Of weights and states: others may have taken a place that they share. */
static void check_place(const struct hd__meaning *m, struct hd__faults *f, hd_tensor t)
{
    if (m->kept[t] && m->holds[hd__tc(m->p, t)->buffer] != m->kept[t])
        hd__fault(f, "use of %s, which was not brought into its place", hd__tc(m->p, t)->name);
}

/* Weights and states go to where they belong. */
static void check_copy(const struct hd__meaning *m, struct hd__faults *f, const struct hd__instr *i)
{
    if (m->kept[i->out[0]] && m->value[i->in[0]] != m->kept[i->out[0]])
        hd__fault(f, "%s is made of %s, which is something else", hd__tc(m->p, i->out[0])->name, hd__tc(m->p, i->in[0])->name);
}

static void check_update(const struct hd__meaning *m, struct hd__faults *f, const struct hd__instr *i)
{
    uint32_t flat = i->n_in ? m->shard_of[i->in[0]] : 0, states = flat ? m->p->flats.at[flat - 1].n_states : 0;
    if (!flat)
        return;
    if (i->n_in > 1 && m->p->norm2 && i->in[1] != m->p->norm2)
        hd__fault(f, "%s is not the gradient's norm", hd__tc(m->p, i->in[1])->name);
    for (uint32_t k = 0; k < i->n_out; k++)
        if (m->value[i->out[k]] != hd__meaning_of_flat(flat - 1, k > 0 && k <= states ? k : 0))
            hd__fault(f, "%s does not belong to the gradient %s", hd__tc(m->p, i->out[k])->name, hd__tc(m->p, i->in[0])->name);
}

static void check_reads(const struct hd__meaning *m, struct hd__faults *f, const struct hd__instr *i)
{
    for (uint32_t n = 0; n < i->n_in; n++)
        if (hd__meaning_reads_weight(m, i, n) && hd__tc(m->p, i->in[n])->role == HD__ROLE_FLAT)
            check_weight(m, f, i->in[n]);
        else
            check_place(m, f, i->in[n]);
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__reads_output(i, k))
            check_place(m, f, i->out[k]);
    if (hd__is_update(i))
        check_update(m, f, i);
    else if (i->n_in && i->n_out && (i->op == HD_OP_COPY || hd__is_collective(i->op)))
        check_copy(m, f, i);
}

static void check_makes(struct hd__meaning *m, struct hd__faults *f, hd_tensor out, uint32_t terms)
{
    const struct hd__tensor *t = hd__tc(m->p, out);
    if (!t->meaning || terms < t->sums || m->value[out] == t->meaning)
        return;
    hd__fault(f, "%s is not what the model makes it: an operand is another, or its op", t->name);
    m->value[out] = t->meaning; /* once is enough */
}

static void enter(void *state, struct hd__faults *f)
{
    struct hd__meaning *m = state;
    (void)f;
    m->sends = 0;
}

static void step(void *state, struct hd__faults *f, const struct hd__instr *i)
{
    struct hd__meaning *m = state;
    check_reads(m, f, i);
    hd__meaning_outputs(m, i, f->gains);
    for (uint32_t k = 0; k < i->n_out; k++)
        check_makes(m, f, i->out[k], f->terms[i->out[k]]);
}

static void leave(void *state, struct hd__faults *f)
{
    const struct hd__meaning *m = state;
    if (m->sends != f->section->sends)
        hd__fault(f, "what is sent to other stages is not what they are to have");
}

const struct hd__proof hd__proof_meaning = {.create = create, .destroy = destroy, .enter = enter, .step = step, .leave = leave};
