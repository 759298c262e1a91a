/* Obligations by abstract interpretation. A weight gradient comes out as a partial sum over some axes; each must be
 * summed over exactly once before the optimizer reads it, and every micro-batch must have added what it was lowered
 * to add (value_numbers.c). So every buffer that holds gradients is a list of pieces (grad_intervals.c): which
 * parameter, the axes still owed, and the value of the sum. Matrices that travel as products: grad_lowrank.c. */
#include <stdlib.h>

#include "core/base/dtype.h"
#include "core/verify/grad_reduce_internal.h"

/* Independent replicas keep their own gradients: nothing is pending over local_axes. */
static uint32_t initial_unreduced(const struct hd_program *p, const struct hd__param *param)
{
    int tied = __builtin_popcount(param->stages) > 1;
    return (param->unreduced_axes & ~p->local_axes) | (tied ? HD_AXIS_BIT(HD_AXIS_PP) : 0);
}

/* A gradient joins its flat buffer. */
static void contribute(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i, uint32_t k)
{
    hd_tensor out = i->out[k];
    uint32_t param = hd__tensor_const(o->p, out)->param - 1;
    struct hd__verify_range r = hd__verify_range_of(o->p, out);
    struct hd__verify_interval x = {.lo = r.lo,
                                    .hi = r.hi,
                                    .param = param,
                                    .unreduced_axes = initial_unreduced(o->p, &o->p->params.at[param]),
                                    .value = f->contribution[k]};
    if (i->op == HD_OP_ACCUM &&
        hd__tensor_const(o->p, i->in[0])->placement.partial != o->p->params.at[param].unreduced_axes) {
        char has[64], owes[64];
        hd__axes_text(hd__tensor_const(o->p, i->in[0])->placement.partial, has);
        hd__axes_text(o->p->params.at[param].unreduced_axes, owes);
        hd__verify_diag(f, "contribution to %s is partial over [%s], but its gradient must be partial over [%s]",
                        hd__tensor_const(o->p, o->p->params.at[param].tensor)->name, has, owes);
    }
    if (hd__reads_output(i, k))
        hd__verify_interval_add(o, f, out, x);
    else
        hd__verify_interval_set(hd__verify_intervals_of(o, out, 1), x);
}

/* Axes over which an instruction sums x. */
static uint32_t axes_summed(const struct hd__instr *i, const struct hd__verify_interval *x)
{
    if (i->op == HD_OP_DECODE)
        return x->decode_axes;
    return i->op == HD_OP_ALL_REDUCE || i->op == HD_OP_REDUCE_SCATTER ? i->axes : 0;
}

/* Axes over which x is still unreduced after this instruction. */
static uint32_t axes_left(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i,
                          const struct hd__verify_interval *x)
{
    uint32_t axes = x->form == HD__INTERVAL_ZERO ? 0 : axes_summed(i, x);
    char twice[64];
    if (axes & ~x->unreduced_axes) {
        hd__axes_text(axes & ~x->unreduced_axes, twice);
        hd__verify_diag(f, "%s: reduced twice over %s", hd__verify_grad_name(o, x->param), twice);
    }
    return x->unreduced_axes & ~axes;
}

/* Bytes of codes have no elements of their own: a buffer of codes stands for what was encoded into it. */
static struct hd__verify_range interval_span(const struct hd_program *p, hd_tensor t)
{
    return hd__dtype(hd__tensor_const(p, t)->dtype)->class == HD__CLASS_CODE ? (struct hd__verify_range){0, INT64_MAX}
                                                                             : hd__verify_range_of(p, t);
}

/* Gradients go from one buffer into another, or back into the same. */
static void move_intervals(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct hd__verify_range from = interval_span(o->p, i->in[0]), to = interval_span(o->p, i->out[0]);
    hd__verify_intervals taken = {0}, *source;
    if (!hd__verify_intervals_of(o, i->in[0], 0))
        return;
    hd__verify_intervals_of(o, i->out[0], 1); /* may move the lists */
    source = hd__verify_intervals_of(o, i->in[0], 0);
    hd__verify_interval_split(source, from.lo);
    hd__verify_interval_split(source, from.hi);
    for (uint32_t n = hd__verify_interval_find(source, from.lo); n < source->count && source->at[n].lo < from.hi; n++) {
        struct hd__verify_interval x = source->at[n];
        x.unreduced_axes = axes_left(o, f, i, &x);
        x.decode_axes = i->op == HD_OP_ALL_TO_ALL ? i->axes : i->op == HD_OP_DECODE ? 0 : x.decode_axes;
        if (i->op != HD_OP_ENCODE && i->op != HD_OP_DECODE) {
            x.lo += to.lo - from.lo;
            x.hi += to.lo - from.lo;
        }
        hd__push(&taken, x);
    }
    if (i->op != HD_OP_ACCUM)
        hd__verify_interval_erase(hd__verify_intervals_of(o, i->out[0], 0), to);
    for (uint32_t n = 0; n < taken.count; n++)
        if (i->op == HD_OP_ACCUM)
            hd__verify_interval_add(o, f, i->out[0], taken.at[n]);
        else
            hd__verify_interval_set(hd__verify_intervals_of(o, i->out[0], 0), taken.at[n]);
    hd__free_array(&taken);
}

/* Reports the defect of the interval that the optimizer reads as a parameter's gradient; NULL: there is no interval. */
static void report_gradient(const struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__param *param,
                            const struct hd__verify_interval *x)
{
    const char *name = hd__tensor_const(o->p, param->tensor)->name;
    char axes[64];
    if (!x || x->form == HD__INTERVAL_ZERO) {
        hd__verify_diag(f, "%s has no gradient", name);
    } else if (x->unreduced_axes) {
        hd__axes_text(x->unreduced_axes, axes);
        hd__verify_diag(f, "%s: not reduced over %s", name, axes);
    } else {
        hd__verify_diag(f, "gradient of %s is not the sum over its micro-batches: a term is missing, doubled or wrong",
                        name);
    }
}

/* The optimizer reads: all of every parameter must be there, with nothing owed. */
static void check_update(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i)
{
    const struct hd__flat *flat = &o->p->flats.at[o->flat_of[i->in[0]] - 1];
    const hd__verify_intervals *l = hd__verify_intervals_of(o, i->in[0], 0);
    int64_t base = hd__verify_range_of(o->p, i->in[0]).lo;
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &o->p->params.at[flat->params[k]];
        int64_t at = base + flat->offset[k], end = at + hd__numel(o->p, hd__tensor_const(o->p, param->tensor));
        const struct hd__verify_interval *x = l && l->count ? l->at + hd__verify_interval_find(l, at) : NULL,
                                         *past = x ? l->at + l->count : NULL;
        while (at < end && x < past && x->lo <= at && x->form != HD__INTERVAL_ZERO && !x->unreduced_axes &&
               x->value == param->gradient_value * o->p->micro_factors)
            at = x++->hi;
        if (at < end)
            report_gradient(o, f, param, x < past && x->lo <= at ? x : NULL);
    }
}

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct hd__verify_grads *o = state;
    if (i->op == HD_OP_FILL0) {
        struct hd__verify_range r = hd__verify_range_of(o->p, i->out[0]);
        hd__verify_interval_set(hd__verify_intervals_of(o, i->out[0], 1),
                                (struct hd__verify_interval){
                                    .lo = r.lo, .hi = r.hi, .param = HD__INTERVAL_NO_PARAM, .form = HD__INTERVAL_ZERO});
        return;
    }
    if (i->op == HD_OP_RELEASE) {
        hd_tensor t = hd__instr_tensor(i);
        if (hd__verify_intervals_of(o, t, 0))
            hd__verify_interval_erase(hd__verify_intervals_of(o, t, 0), hd__verify_range_of(o->p, t));
        return;
    }
    if (hd__op(i->op)->class == HD__CLASS_UPDATE) {
        if (i->n_in && o->flat_of[i->in[0]])
            check_update(o, f, i);
        hd__verify_lowrank_check_state(o, f);
        return;
    }
    if (i->op == HD_OP_BLEND) {
        hd__verify_lowrank_blend(o, f, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__tensor_const(o->p, i->out[k])->param)
            contribute(o, f, i, k);
        else if (i->op == HD_OP_ORTHOGONALISE)
            hd__verify_lowrank_orthogonalise(o, f, i);
        else if (i->op == HD_OP_EINSUM)
            hd__verify_lowrank_multiply(o, f, i);
        else if (k == 0 && i->n_in)
            move_intervals(o, f, i);
}

const struct hd__verify_analysis hd__verify_grad_reduce = {
    .create = hd__verify_grads_create, .destroy = hd__verify_grads_destroy, .visit = visit};
