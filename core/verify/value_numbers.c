/* Value numbers as a proof: what the template said of its tensors (core/program/value_number.h) is what they still are
 * behind all passes. Sharding is not seen here: placement.c has what a rank's piece is. */
#include "core/verify/verify.h"

/* ---- what came of it */

/* A parameter, in place or as a view of its flat: is that what its memory has? */
static void check_weight(struct hd__walk *w, hd_tensor t)
{
    const struct hd__tensor *view = hd__tensor_const(w->p, t);
    uint32_t param = view->param - 1, flat = w->values->flat_of[param];
    const struct hd__flat *of = flat ? &w->p->flats.at[flat - 1] : NULL;
    int64_t at = -1;
    for (uint32_t k = 0; of && k < of->n_params; k++)
        if (of->params[k] == param)
            at = of->offset[k];
    if (of && view->role == HD__ROLE_PARAM)
        hd__diag(w, "reads %s itself, which no update changes: replace it by a view of flat %s", view->name, of->name);
    else if (of && (w->values->buffer_value[view->buffer] != hd__value_number_of_flat(flat - 1, 0) ||
                    view->offset - w->values->buffer_offset[view->buffer] != at))
        hd__diag(w, "reads %s, whose memory holds a different value", view->name);
}

/* Weights and states in a place that they share: others may have taken it. */
static void check_resident(struct hd__walk *w, hd_tensor t)
{
    if (w->values->pinned[t] && w->values->buffer_value[hd__tensor_const(w->p, t)->buffer] != w->values->pinned[t])
        hd__diag(w, "use of %s before it was copied from its offloaded home", hd__name_of(w, t));
}

static void check_update(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t flat = i->n_in ? w->tensor[i->in[0]].shard_of : 0, states = flat ? w->p->flats.at[flat - 1].n_states : 0;
    if (!flat)
        return;
    if (i->n_in > 1 && w->p->norm2 && i->in[1] != w->p->norm2)
        hd__diag(w, "%s is not the gradient norm", hd__name_of(w, i->in[1]));
    for (uint32_t k = 0; k < i->n_out; k++)
        if (!hd__is_scratch(i, k) &&
            w->values->value[i->out[k]] != hd__value_number_of_flat(flat - 1, k > 0 && k <= states ? k : 0))
            hd__diag(w, "%s does not belong to gradient %s", hd__name_of(w, i->out[k]), hd__name_of(w, i->in[0]));
}

static void check_reads(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__value_numbers *m = w->values;
    for (uint32_t n = 0; n < i->n_in; n++)
        if (hd__value_number_reads_weight(m, i, n))
            check_weight(w, i->in[n]);
        else
            check_resident(w, i->in[n]);
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__reads_output(i, k))
            check_resident(w, i->out[k]);
    if (hd__is_update(i))
        check_update(w, i);
}

/* Weights and states that are moved or blended stay what they are; in a strategy's own section facts.c has what
 * parameters of one flat are made of. */
static void check_moved(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__value_numbers *m = w->values;
    if (!i->n_in || !i->n_out || !(i->op == HD_OP_COPY || i->op == HD_OP_BLEND || hd__is_collective(i->op)))
        return;
    hd_tensor in = i->in[0], out = i->out[0];
    if (w->own_section && w->tensor[out].followed &&
        hd__tensor_const(w->p, in)->dim[0] == hd__tensor_const(w->p, out)->dim[0])
        return;
    if (m->pinned[out] && w->contribution[0] != m->pinned[out])
        hd__diag(w, "%s is computed from %s, which holds a different value", hd__name_of(w, out), hd__name_of(w, in));
}

static void check_output(struct hd__walk *w, hd_tensor out)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, out);
    if (!t->value_number || w->tensor[out].terms < t->n_terms || w->values->value[out] == t->value_number)
        return;
    hd__diag(w, "%s differs from the model: wrong operand, micro-batch or op", t->name);
    w->values->value[out] = t->value_number; /* once is enough */
}

static void section_begin(struct hd__walk *w)
{
    w->values->sends_value = 0;
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    check_reads(w, i);
    hd__value_number_outputs(w->values, i, w->contribution);
    check_moved(w, i);
    for (uint32_t k = 0; k < i->n_out; k++)
        check_output(w, i->out[k]);
}

static void section_end(struct hd__walk *w)
{
    if (w->values->sends_value != w->section->sends_value)
        hd__diag(w, "pipeline send mismatch: the tensors sent are not those that cross to other stages");
}

const struct hd__rules hd__rules_value_numbers = {
    .section_begin = section_begin, .visit = visit, .section_end = section_end};
