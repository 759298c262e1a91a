/* Obligations by abstract interpretation. A weight gradient comes out as a partial sum over some axes; each must be
 * summed over exactly once before the optimizer reads it, and every micro-batch must have added what it was lowered
 * to add (value_numbers.c). So every buffer that holds gradients is a list of pieces (grad_intervals.c): which
 * parameter, the axes still owed, and the value of the sum. Matrices that travel as products: grad_lowrank.c. */
#include <stdlib.h>

#include "core/base/dtype.h"
#include "core/verify/verify.h"

/* A gradient joins its flat buffer. Independent replicas keep their own: it is not pending over their axes. */
static void contribute(struct hd__walk *w, const struct hd__instr *i, uint32_t k)
{
    hd_tensor out = i->out[k];
    uint32_t param = hd__tensor_const(w->p, out)->param - 1, owed = w->p->params.at[param].unreduced_axes,
             tied = __builtin_popcountll(w->p->params.at[param].stages) > 1 ? HD_AXIS_BIT(HD_AXIS_PP) : 0;
    struct hd__range r = hd__range_of(w->p, out);
    struct hd__gradient x = {.lo = r.lo,
                             .hi = r.hi,
                             .param = param,
                             .unreduced_axes = (owed & ~w->p->independent_axes) | tied,
                             .value = w->contribution[k]};
    if (i->op == HD_OP_ACCUM && hd__tensor_const(w->p, i->in[0])->placement.partial != owed)
        hd__diag(w, "contribution to %s is partial over [%s], but its gradient must be partial over [%s]",
                 hd__name_of(w, w->p->params.at[param].tensor),
                 hd__axes(hd__tensor_const(w->p, i->in[0])->placement.partial), hd__axes(owed));
    if (hd__reads_output(i, k))
        hd__gradient_add(w, out, x);
    else
        hd__gradient_set(hd__gradients_of(w, out, 1), x);
}

/* Bytes of codes have no elements of their own: a buffer of codes stands for what was encoded into it. */
static struct hd__range interval_span(const struct hd_program *p, hd_tensor t)
{
    return hd__dtype(hd__tensor_const(p, t)->dtype)->class == HD__CLASS_CODE ? (struct hd__range){0, INT64_MAX}
                                                                             : hd__range_of(p, t);
}

static uint32_t code_parts(const struct hd__instr *i)
{
    return i->attrs && i->attrs->parts ? i->attrs->parts : 1;
}

/* Encoded gradients: an all_to_all gives each member its part of everybody's, an all_gather all of everybody's; either
 * way a decoder adds up what the members have, or joins what is already summed. */
static void exchange_codes(struct hd__walk *w, const struct hd__instr *i, struct hd__gradient *x)
{
    uint32_t ways = (uint32_t)hd__mesh_ways(&w->p->mesh, i->axes), parts = hd__op_splits(i->op) ? ways : 1;
    if (x->parts != parts)
        hd__diag(w, "%s: encoded in %u parts, and this exchange among %u members takes %u",
                 hd__gradient_name(w, x->param), x->parts, ways, parts);
    x->decode_axes = i->axes;
    x->cut_axes = hd__op_splits(i->op) ? i->axes : 0;
}

/* Axes over which decoding sums. */
static uint32_t decode(struct hd__walk *w, const struct hd__instr *i, struct hd__gradient *x)
{
    uint32_t ways = (uint32_t)hd__mesh_ways(&w->p->mesh, x->decode_axes), parts = code_parts(i);
    uint32_t axes = x->decode_axes, joins = i->attrs && i->attrs->flags & HD_ATTR_CONCAT, cut = x->cut_axes;
    x->decode_axes = x->cut_axes = 0;
    if (parts != ways)
        hd__diag(w, "%s: codes of %u members are decoded as %u parts", hd__gradient_name(w, x->param), ways, parts);
    if (cut & ~hd__shard_mask(hd__tensor_const(w->p, i->out[0])->placement.shard[0]))
        hd__diag(w, "%s: a member has the codes of its part alone, over %s, and decodes them into all of %s",
                 hd__gradient_name(w, x->param), hd__axes(cut), hd__name_of(w, i->out[0]));
    if (joins && axes & x->unreduced_axes)
        hd__diag(w, "%s: codes are joined and not summed over %s", hd__gradient_name(w, x->param),
                 hd__axes(axes & x->unreduced_axes));
    return joins ? 0 : axes;
}

/* Gradients go from one buffer into another, or back into the same. */
static void move_intervals(struct hd__walk *w, const struct hd__instr *i)
{
    struct hd__range from = interval_span(w->p, i->in[0]), to = interval_span(w->p, i->out[0]);
    uint8_t rule = hd__instr_sum(i);
    int codes = hd__dtype(hd__tensor_const(w->p, i->in[0])->dtype)->class == HD__CLASS_CODE;
    hd__gradients taken = {0}, *source = hd__gradients_of(w, i->in[0], 0), *target;
    if (!source)
        return;
    target = hd__gradients_of(w, i->out[0], 1);
    hd__gradient_split(source, from.lo);
    hd__gradient_split(source, from.hi);
    for (uint32_t n = hd__gradient_find(source, from.lo); n < source->count && source->at[n].lo < from.hi; n++) {
        struct hd__gradient x = source->at[n];
        uint32_t axes = x.form == HD__GRADIENT_ZERO ? 0
                        : rule == HD__SUM_DECODED   ? decode(w, i, &x)
                        : hd__op_sums(i->op)        ? i->axes
                                                    : 0;
        if (axes & ~x.unreduced_axes)
            hd__diag(w, "%s: reduced twice over %s", hd__gradient_name(w, x.param), hd__axes(axes & ~x.unreduced_axes));
        x.unreduced_axes &= ~axes;
        if (rule == HD__SUM_ENCODED)
            x.parts = code_parts(i);
        if (rule == HD__SUM_MAPPED && x.unreduced_axes)
            hd__diag(w, "%s: %s is no sum of what it makes of partial sums: it goes behind the reduction over %s",
                     hd__gradient_name(w, x.param), hd__instr_name(i), hd__axes(x.unreduced_axes));
        if (codes && hd__op_joins(i->op))
            exchange_codes(w, i, &x);
        if (rule != HD__SUM_ENCODED && rule != HD__SUM_DECODED) {
            x.lo += to.lo - from.lo;
            x.hi += to.lo - from.lo;
        }
        hd__push(&taken, x);
    }
    if (rule != HD__SUM_ADDED)
        hd__gradient_erase(target, to);
    for (uint32_t n = 0; n < taken.count; n++)
        if (rule == HD__SUM_ADDED)
            hd__gradient_add(w, i->out[0], taken.at[n]);
        else
            hd__gradient_set(target, taken.at[n]);
    hd__free_array(&taken);
}

/* Reports the defect of the interval that the optimizer reads as a parameter's gradient; NULL: there is no interval. */
static void report_gradient(struct hd__walk *w, const struct hd__param *param, const struct hd__gradient *x)
{
    const char *name = hd__name_of(w, param->tensor);
    if (!x || x->form == HD__GRADIENT_ZERO)
        hd__diag(w, "%s has no gradient", name);
    else if (x->unreduced_axes)
        hd__diag(w, "%s: not reduced over %s", name, hd__axes(x->unreduced_axes));
    else
        hd__diag(w, "gradient of %s is not the sum over its micro-batches: a term is missing, doubled or wrong", name);
}

/* The optimizer reads: all of every parameter must be there, with nothing owed. */
static void check_update(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__flat *flat = &w->p->flats.at[w->tensor[i->in[0]].shard_of - 1];
    const hd__gradients *l = hd__gradients_of(w, i->in[0], 0);
    int64_t base = hd__range_of(w->p, i->in[0]).lo;
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &w->p->params.at[flat->params[k]];
        int64_t at = base + flat->offset[k], end = at + hd__numel(w->p, hd__tensor_const(w->p, param->tensor));
        const struct hd__gradient *x = l && l->count ? l->at + hd__gradient_find(l, at) : NULL,
                                  *past = x ? l->at + l->count : NULL;
        while (at < end && x < past && x->lo <= at && x->form != HD__GRADIENT_ZERO && !x->unreduced_axes &&
               x->value == param->gradient_value * w->p->micro_factors)
            at = x++->hi;
        if (at < end)
            report_gradient(w, param, x < past && x->lo <= at ? x : NULL);
    }
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    uint8_t rule = hd__instr_sum(i);
    struct hd__range r = hd__instr_tensor(i) ? hd__range_of(w->p, hd__instr_tensor(i)) : (struct hd__range){0, 0};
    switch (rule) {
    case HD__SUM_ZEROED:
        hd__gradient_set(
            hd__gradients_of(w, i->out[0], 1),
            (struct hd__gradient){.lo = r.lo, .hi = r.hi, .param = HD__NO_PARAM, .form = HD__GRADIENT_ZERO});
        return;
    case HD__SUM_ENDED:
        hd__gradient_erase(&w->buffer[hd__tensor_const(w->p, i->in[0])->buffer].gradients, r);
        return;
    case HD__SUM_READ:
        if (i->n_in && w->tensor[i->in[0]].shard_of)
            check_update(w, i);
        hd__lowrank_check_state(w);
        return;
    case HD__SUM_BLENDED:
        hd__lowrank_blend(w, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__tensor_const(w->p, i->out[k])->param)
            contribute(w, i, k);
        else if (rule == HD__SUM_ORTHOGONALISED)
            hd__lowrank_orthogonalise(w, i);
        else if (rule == HD__SUM_MULTIPLIED)
            hd__lowrank_multiply(w, i);
        else if (k == 0 && i->n_in && rule != HD__SUM_NONE)
            move_intervals(w, i);
        else if (i->custom && !(i->custom->state >> k & 1))
            hd__gradient_erase(&w->buffer[hd__tensor_const(w->p, i->out[k])->buffer].gradients,
                               hd__range_of(w->p, i->out[k]));
}

const struct hd__rules hd__rules_grad_reduce = {.visit = visit};
