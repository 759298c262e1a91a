/* Ranks that are apart, brought together (replicas.c). By abstract interpretation of the section that says it
 * does so, for every value: the axes along which ranks hold different ones; the axes over which it is a share of a
 * mean, still to be summed; and whether it follows from the parameters that the ranks have trained. Behind the
 * section, every flat's parameters, wherever they lie, and every state that the strategy keeps, are equal along the
 * axes, no share, and follow from them: so what a rank did is neither lost nor counted twice. Blends are linear, so
 * it is known too how much of parameters each value is: in the end parameters and averages of them are once
 * themselves, and other states nothing of them, so that ranks which have trained nothing change nothing; and they
 * have moved to where the ranks went, not away. In other sections nothing writes what ranks have in common.
 *
 * Where ranks are not apart, a section of a strategy's own is walked in the same way, for what the strategy keeps. */
#include <math.h>

#include "core/verify/verify.h"

static void begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    if (!p->independent_axes && !p->strategy_states.count)
        return;
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT, &t);)
        hd__push(&w->must_match, t.tensor);
    w->n_params = w->must_match.count;
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_STRATEGY_STATE | HD__FLAT_IS_PERSISTENT, &t);)
        hd__push(&w->must_match, t.tensor);
    for (uint32_t n = 0; n < w->must_match.count; n++)
        w->buffer[hd__tensor_const(p, w->must_match.at[n])->buffer].global_copy |=
            hd__tensor_const(p, w->must_match.at[n])->global_copy;
}

static void section_begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    w->syncs = w->section->equal_axes || (w->section->every && !p->independent_axes && p->strategy_states.count);
    for (hd_tensor t = 1; t < p->tensors.count && w->syncs; t++) {
        int own = hd__tensor_const(p, t)->role == HD__ROLE_FLAT || t == p->norm2;
        w->tensor[t].mean = (struct hd__mean){.varying_axes = own ? hd__independent_axes_of(p, t) : 0};
    }
    for (uint32_t n = 0; n < w->must_match.count && w->syncs; n++) {
        struct hd__mean *v = &w->tensor[w->must_match.at[n]].mean;
        v->from_trained = !hd__tensor_const(p, w->must_match.at[n])->global_copy;
        v->param_weight = n < w->n_params;
        v->trained_weight = v->param_weight * v->from_trained;
    }
}

/* ---- one instruction */

static void diag_axes(struct hd__walk *w, hd_tensor t, const char *what, uint32_t axes)
{
    hd__diag(w, "%s %s %s", hd__name_of(w, t), what, hd__axes(axes));
}

static struct hd__mean transfer(struct hd__walk *w, const struct hd__instr *i)
{
    int blends = hd__op(i->op)->sum == HD__SUM_BLENDED;
    struct hd__mean v = {0};
    for (uint32_t k = 0; k < i->n_in; k++) {
        const struct hd__mean *x = &w->tensor[i->in[k]].mean;
        double factor = !blends ? 1 : i->attrs && k < i->attrs->n_table ? i->attrs->table[k] : 0;
        if (x->unreduced_axes && i->op != HD_OP_ALL_REDUCE && i->op != HD_OP_COPY)
            diag_axes(w, i->in[k], "is read while still partial, its mean not reduced over", x->unreduced_axes);
        v.varying_axes |= x->varying_axes;
        v.unreduced_axes |= x->unreduced_axes;
        v.from_trained |= x->from_trained;
        v.param_weight += factor * x->param_weight;
        v.trained_weight += factor * x->trained_weight;
    }
    if (blends) { /* for a mean over its axes, of which the values are shares from now on */
        if (i->axes & ~w->p->independent_axes)
            diag_axes(w, i->out[0], "is divided for a mean over an axis that is not a local-SGD axis:",
                      i->axes & ~w->p->independent_axes);
        v.unreduced_axes = i->axes;
    } else if (i->op == HD_OP_ALL_REDUCE) {
        if (i->axes & ~v.unreduced_axes)
            diag_axes(w, i->in[0], "is reduced, but it is not a partial mean over", i->axes & ~v.unreduced_axes);
        v.varying_axes &= ~i->axes;
        v.unreduced_axes &= ~i->axes;
    } else if (i->op != HD_OP_COPY && (i->op != HD_OP_ALL_GATHER || i->axes & w->p->independent_axes)) {
        v = (struct hd__mean){.varying_axes = w->p->independent_axes}; /* nothing is known of it */
    }
    return v;
}

/* Sets a tensor's value, and that of tensors in the same memory: all of them, or a part. */
static void set_value(struct hd__walk *w, hd_tensor t, struct hd__mean v)
{
    struct hd__access a, b;
    w->tensor[t].mean = v;
    a = hd__access_of(w->p, t);
    for (uint32_t n = 0; n < w->must_match.count; n++) {
        struct hd__mean *x = &w->tensor[w->must_match.at[n]].mean;
        b = hd__access_of(w->p, w->must_match.at[n]);
        if (w->must_match.at[n] == t || a.buffer != b.buffer || a.hi <= b.lo || b.hi <= a.lo)
            continue;
        if (hd__covers(w->p, t, w->must_match.at[n])) {
            *x = v;
        } else {
            x->varying_axes |= v.varying_axes;
            x->unreduced_axes |= v.unreduced_axes;
            x->from_trained &= v.from_trained;
            x->param_weight = v.param_weight;
            x->trained_weight = v.trained_weight;
        }
    }
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    if ((!w->p->independent_axes && !w->p->strategy_states.count) || i->op == HD_OP_RELEASE)
        return;
    if (w->syncs) {
        struct hd__mean v = transfer(w, i);
        for (uint32_t k = 0; k < i->n_out; k++)
            set_value(w, i->out[k], v);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (w->buffer[hd__tensor_const(w->p, i->out[k])->buffer].global_copy)
            hd__diag(w,
                     w->p->independent_axes
                         ? "%s is the global copy of local-SGD replicas: only their sync section may write it"
                         : "%s is strategy state: only the strategy's own section may write it",
                     hd__name_of(w, i->out[k]));
}

static void section_end(struct hd__walk *w)
{
    for (uint32_t n = 0; n < w->must_match.count && w->syncs; n++) {
        hd_tensor t = w->must_match.at[n];
        const struct hd__mean *x = &w->tensor[t].mean;
        if (x->unreduced_axes)
            diag_axes(w, t, "is left partial, its mean not reduced over", x->unreduced_axes);
        else if (x->varying_axes & w->section->equal_axes)
            diag_axes(w, t, "differs between replicas along", x->varying_axes & w->section->equal_axes);
        else if (!x->from_trained)
            hd__diag(w, "%s does not depend on the trained parameters: what was trained is lost", hd__name_of(w, t));
        else if (!(fabs(x->param_weight - (n < w->n_params)) < 1e-9))
            hd__diag(w, "%s: weights of the parameters in it sum to %g, not %d", hd__name_of(w, t), x->param_weight,
                     n < w->n_params);
        else if (n < w->n_params && x->trained_weight < 0)
            hd__diag(w, "%s: sync applies the outer gradient with the wrong sign", hd__name_of(w, t));
    }
}

/* Somewhere in a step the ranks meet again. */
static void finish(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    uint32_t missing = p->independent_axes;
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (p->sections.at[s].equal_axes == p->independent_axes && p->sections.at[s].repeat &&
            p->sections.at[s].code.count)
            missing = 0;
    if (missing && p->flats.count)
        hd__diag(w, "no section synchronises the local-SGD replicas along %s", hd__axes(missing));
}

const struct hd__rules hd__rules_replica_sync = {
    .begin = begin, .section_begin = section_begin, .visit = visit, .section_end = section_end, .finish = finish};
