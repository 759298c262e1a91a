/* Obligations by abstract interpretation. A weight gradient comes out as a partial sum over some axes; each
 * must be summed over exactly once before the optimizer reads it, and every micro-batch must have added what it was
 * lowered to add (value_numbers.c). So every buffer that holds gradients is a list of pieces (grad_intervals.c): which parameter, the
 * axes still owed, and the value of the sum. Matrices that travel as products: grad_lowrank.c. */
#include <stdlib.h>

#include "core/verify/grad_reduce.h"

/* Where ranks are apart each keeps its own. */
static uint32_t obligation(const struct hd_program *p, const struct hd__param *param)
{
    int tied = __builtin_popcount(param->stages) > 1;
    return (param->obligation & ~p->apart) | (tied ? HD_AXIS_BIT(HD_AXIS_PP) : 0);
}

/* A gradient joins its flat buffer. */
static void contribute(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i, uint32_t k)
{
    hd_tensor out = i->out[k];
    uint32_t param = hd__tc(o->p, out)->param - 1;
    struct hd__owed_range r = hd__owed_range_of(o->p, out);
    struct hd__owed_piece x = {.lo = r.lo, .hi = r.hi, .param = param, .owed = obligation(o->p, &o->p->params.at[param]), .value = f->gains[k]};
    if (i->op == HD_OP_ACCUM && hd__tc(o->p, i->in[0])->place.partial != o->p->params.at[param].obligation) {
        char has[64], owes[64];
        hd__axes_text(hd__tc(o->p, i->in[0])->place.partial, has);
        hd__axes_text(o->p->params.at[param].obligation, owes);
        hd__fault(f, "the contribution to %s is partial over [%s], its obligation is [%s]",
                  hd__tc(o->p, o->p->params.at[param].tensor)->name, has, owes);
    }
    if (hd__reads_output(i, k))
        hd__owed_add(o, f, out, x);
    else
        hd__owed_set(hd__owed_list(o, out, 1), x);
}

/* Axes over which an instruction sums x. */
static uint32_t summed(const struct hd__instr *i, const struct hd__owed_piece *x)
{
    if (i->op == HD_OP_DECODE)
        return x->brought;
    return i->op == HD_OP_ALL_REDUCE || i->op == HD_OP_REDUCE_SCATTER ? i->axes : 0;
}

/* What a reduction leaves of what x owes. */
static uint32_t reduced(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i,
                        const struct hd__owed_piece *x)
{
    uint32_t axes = x->form == HD__OWED_CLEARED ? 0 : summed(i, x);
    char twice[64];
    if (axes & ~x->owed) {
        hd__axes_text(axes & ~x->owed, twice);
        hd__fault(f, "%s is summed twice over %s", hd__owed_name(o, x->param),
                  twice);
    }
    return x->owed & ~axes;
}

/* Bytes of codes have no elements of their own: a buffer of codes stands for what was encoded into it. */
static struct hd__owed_range span_of(const struct hd_program *p, hd_tensor t)
{
    return hd__tc(p, t)->dtype == HD_U8 ? (struct hd__owed_range){0, INT64_MAX} : hd__owed_range_of(p, t);
}

/* Gradients go from one buffer into another, or back into the same. */
static void move(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    struct hd__owed_range from = span_of(o->p, i->in[0]), to = span_of(o->p, i->out[0]);
    hd__owed_pieces taken = {0}, *source;
    if (!hd__owed_list(o, i->in[0], 0))
        return;
    hd__owed_list(o, i->out[0], 1); /* may move the lists */
    source = hd__owed_list(o, i->in[0], 0);
    hd__owed_cut(source, from.lo);
    hd__owed_cut(source, from.hi);
    for (uint32_t n = hd__owed_first(source, from.lo); n < source->count && source->at[n].lo < from.hi; n++) {
        struct hd__owed_piece x = source->at[n];
        x.owed = reduced(o, f, i, &x);
        x.brought = i->op == HD_OP_ALL_TO_ALL ? i->axes : i->op == HD_OP_DECODE ? 0 : x.brought;
        if (i->op != HD_OP_ENCODE && i->op != HD_OP_DECODE) {
            x.lo += to.lo - from.lo;
            x.hi += to.lo - from.lo;
        }
        hd__push(&taken, x);
    }
    if (i->op != HD_OP_ACCUM)
        hd__owed_erase(hd__owed_list(o, i->out[0], 0), to);
    for (uint32_t n = 0; n < taken.count; n++)
        if (i->op == HD_OP_ACCUM)
            hd__owed_add(o, f, i->out[0], taken.at[n]);
        else
            hd__owed_set(hd__owed_list(o, i->out[0], 0), taken.at[n]);
    hd__free_array(&taken);
}

/* What is wrong with the piece that the optimizer finds where a parameter's gradient should be; NULL is no piece. */
static void blame(const struct hd__owed *o, struct hd__faults *f, const struct hd__param *param, const struct hd__owed_piece *x)
{
    const char *name = hd__tc(o->p, param->tensor)->name;
    char axes[64];
    if (!x || x->form == HD__OWED_CLEARED) {
        hd__fault(f, "%s has no gradient", name);
    } else if (x->owed) {
        hd__axes_text(x->owed, axes);
        hd__fault(f, "%s still owes a sum over %s", name, axes);
    } else {
        hd__fault(f, "the gradient of %s is not the sum that its micro-batches make: a term is missing, doubled or another", name);
    }
}

/* The optimizer reads: all of every parameter must be there, with nothing owed. */
static void update(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    const struct hd__flat *flat = &o->p->flats.at[o->flat_of[i->in[0]] - 1];
    const hd__owed_pieces *l = hd__owed_list(o, i->in[0], 0);
    int64_t base = hd__owed_range_of(o->p, i->in[0]).lo;
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &o->p->params.at[flat->params[k]];
        int64_t at = base + flat->offset[k], end = at + hd__numel(o->p, hd__tc(o->p, param->tensor));
        const struct hd__owed_piece *x = l && l->count ? l->at + hd__owed_first(l, at) : NULL, *past = x ? l->at + l->count : NULL;
        while (at < end && x < past && x->lo <= at && x->form != HD__OWED_CLEARED && !x->owed && x->value == param->gradient)
            at = x++->hi;
        if (at < end)
            blame(o, f, param, x < past && x->lo <= at ? x : NULL);
    }
}

static void step(void *state, struct hd__faults *f, const struct hd__instr *i)
{
    struct hd__owed *o = state;
    if (i->op == HD_OP_FILL0) {
        struct hd__owed_range r = hd__owed_range_of(o->p, i->out[0]);
        hd__owed_set(hd__owed_list(o, i->out[0], 1),
                     (struct hd__owed_piece){.lo = r.lo, .hi = r.hi, .param = HD__OWED_NO_PARAM, .form = HD__OWED_CLEARED});
        return;
    }
    if (i->op == HD_OP_RELEASE) {
        hd_tensor t = hd__instr_tensor(i);
        if (hd__owed_list(o, t, 0))
            hd__owed_erase(hd__owed_list(o, t, 0), hd__owed_range_of(o->p, t));
        return;
    }
    if (hd__op(i->op)->class == HD__CLASS_UPDATE) {
        if (i->n_in && o->flat_of[i->in[0]])
            update(o, f, i);
        hd__owed_check_kept(o, f);
        return;
    }
    if (i->op == HD_OP_BLEND) {
        hd__owed_blend(o, f, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__tc(o->p, i->out[k])->param)
            contribute(o, f, i, k);
        else if (i->op == HD_OP_ORTHOGONALISE)
            hd__owed_orthogonalise(o, f, i);
        else if (i->op == HD_OP_EINSUM)
            hd__owed_multiply(o, f, i);
        else if (k == 0 && i->n_in)
            move(o, f, i);
}

const struct hd__proof hd__proof_owed = {.create = hd__owed_create, .destroy = hd__owed_destroy, .step = step};
