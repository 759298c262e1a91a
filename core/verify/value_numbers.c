/* Value numbers as a proof: what the template said of its tensors (core/program/value_number.h) is what they still are
 * behind all passes. Sharding is not seen here: placement.c has what a rank's piece is. */
#include "core/verify/verify.h"

static void *create(const struct hd_program *p)
{
    return hd__value_numbers_create(p);
}

static void destroy(void *state)
{
    hd__value_numbers_destroy(state);
}

/* ---- what came of it */

/* A view of a parameter: is that what its memory has? */
static void check_weight(const struct hd__value_numbers *m, struct hd__verify_diags *f, hd_tensor t)
{
    const struct hd__tensor *view = hd__tensor_const(m->p, t);
    uint32_t param = view->param - 1, flat = m->flat_of[param];
    const struct hd__flat *of = flat ? &m->p->flats.at[flat - 1] : NULL;
    int64_t at = -1;
    for (uint32_t k = 0; of && k < of->n_params; k++)
        if (of->params[k] == param)
            at = of->offset[k];
    if (of && (m->buffer_value[view->buffer] != hd__value_number_of_flat(flat - 1, 0) ||
               view->offset - m->buffer_offset[view->buffer] != at))
        hd__verify_diag(f, "reads %s, whose memory holds a different value", view->name);
}

/* Of weights and states: others may have taken a place that they share. */
static void check_resident(const struct hd__value_numbers *m, struct hd__verify_diags *f, hd_tensor t)
{
    if (m->pinned[t] && m->buffer_value[hd__tensor_const(m->p, t)->buffer] != m->pinned[t])
        hd__verify_diag(f, "use of %s before it was copied from its offloaded home", hd__tensor_const(m->p, t)->name);
}

/* Weights and states go to where they belong. */
static void check_copy(const struct hd__value_numbers *m, struct hd__verify_diags *f, const struct hd__instr *i)
{
    if (m->pinned[i->out[0]] && m->value[i->in[0]] != m->pinned[i->out[0]])
        hd__verify_diag(f, "%s is computed from %s, which holds a different value",
                        hd__tensor_const(m->p, i->out[0])->name, hd__tensor_const(m->p, i->in[0])->name);
}

static void check_update(const struct hd__value_numbers *m, struct hd__verify_diags *f, const struct hd__instr *i)
{
    uint32_t flat = i->n_in ? m->shard_of[i->in[0]] : 0, states = flat ? m->p->flats.at[flat - 1].n_states : 0;
    if (!flat)
        return;
    if (i->n_in > 1 && m->p->norm2 && i->in[1] != m->p->norm2)
        hd__verify_diag(f, "%s is not the gradient norm", hd__tensor_const(m->p, i->in[1])->name);
    for (uint32_t k = 0; k < i->n_out; k++)
        if (!hd__is_scratch(i, k) &&
            m->value[i->out[k]] != hd__value_number_of_flat(flat - 1, k > 0 && k <= states ? k : 0))
            hd__verify_diag(f, "%s does not belong to gradient %s", hd__tensor_const(m->p, i->out[k])->name,
                            hd__tensor_const(m->p, i->in[0])->name);
}

static void check_reads(const struct hd__value_numbers *m, struct hd__verify_diags *f, const struct hd__instr *i)
{
    for (uint32_t n = 0; n < i->n_in; n++)
        if (hd__value_number_reads_weight(m, i, n) && hd__tensor_const(m->p, i->in[n])->role == HD__ROLE_FLAT)
            check_weight(m, f, i->in[n]);
        else
            check_resident(m, f, i->in[n]);
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__reads_output(i, k))
            check_resident(m, f, i->out[k]);
    if (hd__is_update(i))
        check_update(m, f, i);
    else if (i->n_in && i->n_out && (i->op == HD_OP_COPY || hd__is_collective(i->op)))
        check_copy(m, f, i);
}

static void check_output(struct hd__value_numbers *m, struct hd__verify_diags *f, hd_tensor out, uint32_t terms)
{
    const struct hd__tensor *t = hd__tensor_const(m->p, out);
    if (!t->value_number || terms < t->n_terms || m->value[out] == t->value_number)
        return;
    hd__verify_diag(f, "%s differs from the model: wrong operand, micro-batch or op", t->name);
    m->value[out] = t->value_number; /* once is enough */
}

static void section_begin(void *state, struct hd__verify_diags *f)
{
    struct hd__value_numbers *m = state;
    (void)f;
    m->sends_value = 0;
}

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct hd__value_numbers *m = state;
    check_reads(m, f, i);
    hd__value_number_outputs(m, i, f->contribution);
    for (uint32_t k = 0; k < i->n_out; k++)
        check_output(m, f, i->out[k], f->terms[i->out[k]]);
}

static void section_end(void *state, struct hd__verify_diags *f)
{
    const struct hd__value_numbers *m = state;
    if (m->sends_value != f->section->sends_value)
        hd__verify_diag(f, "pipeline send mismatch: the tensors sent are not those that cross to other stages");
}

const struct hd__verify_analysis hd__verify_value_numbers = {
    .create = create, .destroy = destroy, .section_begin = section_begin, .visit = visit, .section_end = section_end};
