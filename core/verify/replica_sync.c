/* Ranks that are apart, brought together (local_replicas.c). By abstract interpretation of the section that says it
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
#include <stdlib.h>

#include "core/verify/verify.h"

struct sync_value {
    uint32_t varying_axes, unreduced_axes; /* axes */
    uint32_t from_trained;
    double param_weight, trained_weight; /* how often parameters are in it; those of them that the ranks have trained */
};

struct replica_sync {
    const struct hd_program *p;
    struct sync_value *value_of; /* by tensor */
    uint8_t *is_global_copy;     /* by buffer: something lies there that ranks have in common */
    /* what must be equal behind the section: parameters and averages of them, then what else is kept */
    HD__ARRAY(hd_tensor) must_match;
    uint32_t n_params;  /* of them */
    uint32_t sync_axes; /* of the section */
    int active;         /* this section: it brings ranks together, or is a strategy's own where they are not apart */
};

static void require_match(struct replica_sync *g, hd_tensor t)
{
    hd__push(&g->must_match, t);
    if (hd__tensor_const(g->p, t)->global_copy)
        g->is_global_copy[hd__tensor_const(g->p, t)->buffer] = 1;
}

static void *create(const struct hd_program *p)
{
    struct replica_sync *g = hd__alloc(sizeof *g);
    g->p = p;
    g->value_of = hd__alloc(p->tensors.count * sizeof *g->value_of);
    g->is_global_copy = hd__alloc(p->buffers.count);
    if (!p->local_axes && !p->strategy_states.count)
        return g;
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT, &t);)
        require_match(g, t.tensor);
    g->n_params = g->must_match.count;
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_STRATEGY_STATE | HD__FLAT_IS_PERSISTENT, &t);)
        require_match(g, t.tensor);
    return g;
}

static void destroy(void *state)
{
    struct replica_sync *g = state;
    hd__free_array(&g->must_match);
    free(g->is_global_copy);
    free(g->value_of);
    free(g);
}

static void section_begin(void *state, struct hd__verify_diags *f)
{
    struct replica_sync *g = state;
    const struct hd_program *p = g->p;
    g->sync_axes = f->section->sync_axes;
    g->active = g->sync_axes || (f->section->every && !p->local_axes && p->strategy_states.count);
    for (hd_tensor t = 1; t < p->tensors.count && g->active; t++) {
        int own = hd__tensor_const(p, t)->role == HD__ROLE_FLAT || t == p->norm2;
        g->value_of[t] = (struct sync_value){.varying_axes = own ? hd__local_axes_of(p, t) : 0};
    }
    for (uint32_t n = 0; n < g->must_match.count && g->active; n++) {
        struct sync_value *v = &g->value_of[g->must_match.at[n]];
        v->from_trained = !hd__tensor_const(p, g->must_match.at[n])->global_copy;
        v->param_weight = n < g->n_params;
        v->trained_weight = v->param_weight * v->from_trained;
    }
}

/* ---- one instruction */

static const char *name_of(const struct replica_sync *g, hd_tensor t)
{
    return hd__tensor_const(g->p, t)->name;
}

static void diag_axes(struct replica_sync *g, struct hd__verify_diags *f, hd_tensor t, const char *what, uint32_t axes)
{
    char text[64];
    hd__axes_text(axes, text);
    hd__verify_diag(f, "%s %s %s", name_of(g, t), what, text);
}

static struct sync_value begin_mean(struct replica_sync *g, struct hd__verify_diags *f, const struct hd__instr *i,
                                    struct sync_value v)
{
    if (i->axes & ~g->p->local_axes)
        diag_axes(g, f, i->out[0],
                  "is divided for a mean over an axis that is not a local-SGD axis:", i->axes & ~g->p->local_axes);
    v.unreduced_axes = i->axes;
    return v;
}

static struct sync_value reduce_mean(struct replica_sync *g, struct hd__verify_diags *f, const struct hd__instr *i,
                                     struct sync_value v)
{
    if (i->axes & ~v.unreduced_axes)
        diag_axes(g, f, i->in[0], "is reduced, but it is not a partial mean over", i->axes & ~v.unreduced_axes);
    v.varying_axes &= ~i->axes;
    v.unreduced_axes &= ~i->axes;
    return v;
}

static struct sync_value transfer(struct replica_sync *g, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct sync_value v = {0};
    for (uint32_t k = 0; k < i->n_in; k++) {
        const struct sync_value *x = &g->value_of[i->in[k]];
        double factor = i->op != HD_OP_BLEND ? 1 : i->attrs && k < i->attrs->n_table ? i->attrs->table[k] : 0;
        if (x->unreduced_axes && i->op != HD_OP_ALL_REDUCE && i->op != HD_OP_COPY)
            diag_axes(g, f, i->in[k], "is read while still partial, its mean not reduced over", x->unreduced_axes);
        v.varying_axes |= x->varying_axes;
        v.unreduced_axes |= x->unreduced_axes;
        v.from_trained |= x->from_trained;
        v.param_weight += factor * x->param_weight;
        v.trained_weight += factor * x->trained_weight;
    }
    if (i->op == HD_OP_BLEND)
        return begin_mean(g, f, i, v);
    if (i->op == HD_OP_ALL_REDUCE)
        return reduce_mean(g, f, i, v);
    if (i->op != HD_OP_COPY && (i->op != HD_OP_ALL_GATHER || i->axes & g->p->local_axes))
        v = (struct sync_value){.varying_axes = g->p->local_axes}; /* nothing is known of it */
    return v;
}

/* Sets a tensor's value, and that of tensors in the same memory: all of them, or a part. */
static void set_value(struct replica_sync *g, hd_tensor t, struct sync_value v)
{
    struct hd__access a, b;
    g->value_of[t] = v;
    a = hd__access_of(g->p, t);
    for (uint32_t n = 0; n < g->must_match.count; n++) {
        struct sync_value *x = &g->value_of[g->must_match.at[n]];
        b = hd__access_of(g->p, g->must_match.at[n]);
        if (g->must_match.at[n] == t || a.buffer != b.buffer || a.hi <= b.lo || b.hi <= a.lo)
            continue;
        if (hd__verify_covers(g->p, t, g->must_match.at[n])) {
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

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct replica_sync *g = state;
    if ((!g->p->local_axes && !g->p->strategy_states.count) || i->op == HD_OP_RELEASE)
        return;
    if (g->active) {
        struct sync_value v = transfer(g, f, i);
        for (uint32_t k = 0; k < i->n_out; k++)
            set_value(g, i->out[k], v);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (g->is_global_copy[hd__tensor_const(g->p, i->out[k])->buffer])
            hd__verify_diag(f,
                            g->p->local_axes
                                ? "%s is the global copy of local-SGD replicas: only their sync section may write it"
                                : "%s is strategy state: only the strategy's own section may write it",
                            name_of(g, i->out[k]));
}

static void section_end(void *state, struct hd__verify_diags *f)
{
    struct replica_sync *g = state;
    for (uint32_t n = 0; n < g->must_match.count && g->active; n++) {
        hd_tensor t = g->must_match.at[n];
        const struct sync_value *x = &g->value_of[t];
        if (x->unreduced_axes)
            diag_axes(g, f, t, "is left partial, its mean not reduced over", x->unreduced_axes);
        else if (x->varying_axes & g->sync_axes)
            diag_axes(g, f, t, "differs between replicas along", x->varying_axes & g->sync_axes);
        else if (!x->from_trained)
            hd__verify_diag(f, "%s does not depend on the trained parameters: what was trained is lost", name_of(g, t));
        else if (!(fabs(x->param_weight - (n < g->n_params)) < 1e-9))
            hd__verify_diag(f, "%s: weights of the parameters in it sum to %g, not %d", name_of(g, t), x->param_weight,
                            n < g->n_params);
        else if (n < g->n_params && x->trained_weight < 0)
            hd__verify_diag(f, "%s: sync applies the outer gradient with the wrong sign", name_of(g, t));
    }
}

/* Somewhere in a step the ranks meet again. */
static void finish(void *state, struct hd__verify_diags *f)
{
    const struct hd_program *p = f->p;
    uint32_t missing = p->local_axes;
    char axes[64];
    (void)state;
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (p->sections.at[s].sync_axes == p->local_axes && p->sections.at[s].repeat && p->sections.at[s].code.count)
            missing = 0;
    if (!missing || !p->flats.count)
        return;
    hd__axes_text(missing, axes);
    hd__verify_diag(f, "no section synchronises the local-SGD replicas along %s", axes);
}

const struct hd__verify_analysis hd__verify_replica_sync = {.create = create,
                                                            .destroy = destroy,
                                                            .section_begin = section_begin,
                                                            .visit = visit,
                                                            .section_end = section_end,
                                                            .finish = finish};
