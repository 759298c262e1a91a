/* Facts that strategies declare (passes/replicas.c) of parameters and of tensors of their own.
 *
 * A section of a strategy's own is walked by abstract interpretation: for every value, the axes along which ranks that
 * are apart hold different ones; the axes over which it is a share of a mean, still to be summed; and, since copies,
 * weighted sums, means and shifts are linear and the same on all ranks, its weights: of the parameters that the rank so
 * many further back has trained, and of averages that ranks have in common. Where the section ends, parameters and
 * states are what was declared of them, and follow from what was trained alone: so what a rank did is neither lost nor
 * counted twice, and ranks which have trained nothing change nothing. Other sections write none of these states, and
 * nothing crosses ranks that are apart there. */
#include <math.h>
#include <stdlib.h>

#include "core/verify/verify.h"

enum { DECLARED = 1, READ = 2, WRITTEN = 4, USED = 8 }; /* of error feedback, in this step; USED: in any */

static void begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT, &t);)
        if (!hd__fact_of(p, t.tensor)->what)
            hd__push(&w->followed, t.tensor);
    w->n_params = w->followed.count;
    for (uint32_t n = 0; n < p->facts.count; n++) {
        struct hd__buffer_state *b = &w->buffer[hd__tensor_const(p, p->facts.at[n].tensor)->buffer];
        b->fact = n + 1;
        b->known = 1;
        b->zero_init = !(p->facts.at[n].what & HD_FACT_AVERAGE);
        if (p->facts.at[n].what & HD_FACT_FEEDBACK)
            b->feedback = DECLARED;
        else
            hd__push(&w->followed, p->facts.at[n].tensor);
    }
    for (uint32_t n = 0; n < w->followed.count; n++)
        w->tensor[w->followed.at[n]].followed = 1;
    for (uint32_t n = 0; n < p->flats.count * HD__FLAT_ROLES; n++)
        w->buffer[hd__tensor_const(p, p->flats.at[n / HD__FLAT_ROLES].tensor[n % HD__FLAT_ROLES])->buffer].known = 1;
}

/* ---- weights: one for each rank, by how far back it is along the axes */

static double *weights_new(struct hd__walk *w)
{
    return hd__arena_alloc(&w->arena, (size_t)hd__replicas(w->p) * sizeof(double));
}

/* The ranks that are apart, as a mesh. */
static struct hd__mesh ranks_apart(const struct hd_program *p)
{
    int32_t size[HD_AXIS_COUNT];
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = p->independent_axes & HD_AXIS_BIT(a) ? p->mesh.size[a] : 1;
    return hd__mesh_make(size);
}

/* As far behind rank `at` as `to` is behind `from`. */
static int32_t further(const struct hd__mesh *m, int32_t at, int32_t from, int32_t to)
{
    int32_t x[HD_AXIS_COUNT], y[HD_AXIS_COUNT], z[HD_AXIS_COUNT];
    hd__mesh_coord(m, at, x);
    hd__mesh_coord(m, from, y);
    hd__mesh_coord(m, to, z);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        x[a] = (x[a] + z[a] - y[a] + m->size[a]) % m->size[a];
    return hd__mesh_rank(m, x);
}

/* Averaged over the axes; or moved on by so many ranks along one. */
static double *weights_along(struct hd__walk *w, const double *from, uint32_t axes, int64_t shift)
{
    struct hd__mesh m = ranks_apart(w->p);
    double *to = weights_new(w);
    int32_t *group = hd__alloc((size_t)m.ranks * sizeof *group);
    for (int32_t at = 0; at < m.ranks; at++) {
        int32_t n = hd__mesh_group(&m, at, axes, 0, group), me = 0;
        while (group[me] != at)
            me++;
        for (int32_t k = 0; k < n; k++)
            to[group[k]] += shift && k != (me + shift) % n ? 0 : shift ? from[at] : from[at] / n;
    }
    free(group);
    return to;
}

/* How many ranks come closer to each other where this is repeated: those that differ by as much as ranks with a part in
 * one rank's parameters do. */
static int32_t reached(const struct hd__walk *w, const double *weight)
{
    struct hd__mesh m = ranks_apart(w->p);
    int32_t *list = hd__alloc((size_t)m.ranks * sizeof *list), n = 1, first = 0;
    uint8_t *seen = hd__alloc((size_t)m.ranks);
    while (first < m.ranks - 1 && !(weight[first] > 0))
        first++;
    seen[0] = 1;
    for (int32_t at = 0; at < n; at++)
        for (int32_t k = 0; k < m.ranks; k++) {
            int32_t to = weight[k] > 0 ? further(&m, list[at], first, k) : 0;
            if (!seen[to])
                list[n++] = to;
            seen[to] = 1;
        }
    free(list);
    free(seen);
    return n;
}

/* ---- a section of a strategy's own */

static void section_begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    w->own_section = w->section->every != 0;
    for (hd_tensor t = 1; t < p->tensors.count && w->own_section; t++) {
        int own = hd__tensor_const(p, t)->role == HD__ROLE_FLAT || t == p->norm2;
        w->tensor[t].mean = (struct hd__mean){.varying_axes = own ? hd__independent_axes_of(p, t) : 0, .other = t};
    }
    for (uint32_t n = 0; n < w->followed.count && w->own_section; n++) {
        struct hd__mean *v = &w->tensor[w->followed.at[n]].mean;
        v->common = (hd__fact_of(p, w->followed.at[n])->what & HD_FACT_AVERAGE) != 0;
        v->trained = weights_new(w);
        v->trained[0] = n < w->n_params;
        v->other = 0;
    }
}

static void diag_axes(struct hd__walk *w, hd_tensor t, const char *what, uint32_t axes)
{
    hd__diag(w, "%s %s %s", hd__name_of(w, t), what, hd__axes(axes));
}

static struct hd__mean transfer(struct hd__walk *w, const struct hd__instr *i)
{
    int blends = i->op == HD_OP_BLEND, passes = hd__is_assignment(i) || i->op == HD_OP_ALL_REDUCE;
    uint32_t apart = w->p->independent_axes;
    struct hd__mean v = {.trained = weights_new(w)};
    for (uint32_t k = 0; k < i->n_in; k++) {
        const struct hd__mean *x = &w->tensor[i->in[k]].mean;
        double factor = !blends ? 1 : i->attrs && k < i->attrs->n_table ? i->attrs->table[k] : 0;
        if (x->unreduced_axes && !passes)
            diag_axes(w, i->in[k], "is read while still partial, its mean not reduced over", x->unreduced_axes);
        v.varying_axes |= x->varying_axes;
        v.unreduced_axes |= x->unreduced_axes;
        v.other = v.other || !(fabs(factor) > 0) ? v.other : x->other;
        v.common += factor * x->common;
        for (int64_t r = 0; x->trained && r < hd__replicas(w->p); r++)
            v.trained[r] += factor * x->trained[r];
    }
    if (blends && !passes) { /* for a mean over its axes, of which the values are shares from now on */
        if (i->axes & ~apart)
            diag_axes(w, i->out[0],
                      "is divided for a mean over an axis along which ranks are not apart:", i->axes & ~apart);
        v.unreduced_axes = i->axes;
    } else if (i->op == HD_OP_ALL_REDUCE) {
        if (i->axes & ~v.unreduced_axes)
            diag_axes(w, i->in[0], "is reduced, but it is not a partial mean over", i->axes & ~v.unreduced_axes);
        v.varying_axes &= ~i->axes;
        v.unreduced_axes &= ~i->axes;
        v.trained = weights_along(w, v.trained, i->axes, 0);
    } else if (i->op == HD_OP_SHIFT) {
        v.trained = weights_along(w, v.trained, i->axes, hd__shift_steps(w->p, i));
    } else if (!passes && (i->op != HD_OP_ALL_GATHER || i->axes & apart)) {
        v = (struct hd__mean){.varying_axes = apart, .other = i->n_in ? i->in[0] : 0}; /* nothing is known of it */
    }
    return v;
}

/* Sets a tensor's value, and that of tensors in the same memory: all of them, or a part; then of each weight the part
 * is known of which both have at least as much. */
static void set_value(struct hd__walk *w, hd_tensor t, struct hd__mean v)
{
    struct hd__access a = hd__access_of(w->p, t), b;
    w->tensor[t].mean = v;
    for (uint32_t n = 0; n < w->followed.count; n++) {
        struct hd__mean *x = &w->tensor[w->followed.at[n]].mean;
        const double *had = x->trained;
        b = hd__access_of(w->p, w->followed.at[n]);
        if (w->followed.at[n] == t || a.buffer != b.buffer || a.hi <= b.lo || b.hi <= a.lo)
            continue;
        if (hd__covers(w->p, t, w->followed.at[n])) {
            *x = v;
            continue;
        }
        x->varying_axes |= v.varying_axes;
        x->unreduced_axes |= v.unreduced_axes;
        x->other = x->other ? x->other : v.other;
        x->common = fmin(x->common, v.common);
        x->trained = weights_new(w);
        for (int64_t r = 0; v.trained && had && r < hd__replicas(w->p); r++)
            x->trained[r] = fmin(had[r], v.trained[r]);
    }
}

/* Error feedback: read before it is written. */
static void visit_feedback(struct hd__walk *w)
{
    const struct hd__access *t = w->access;
    for (uint32_t k = 0; k < w->n_accesses; k++) {
        uint8_t *state = &w->buffer[t[k].buffer].feedback;
        if (!*state)
            continue;
        if (t[k].writes && !t[k].reads && !(*state & READ))
            hd__diag(w, "%s is error feedback, and overwritten before the error of the step before is added",
                     hd__name_of(w, t[k].tensor));
        *state |= (uint8_t)(USED | (t[k].reads ? READ : 0) | (t[k].writes ? WRITTEN : 0));
    }
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    if (i->op == HD_OP_RELEASE)
        return;
    if (p->facts.count)
        visit_feedback(w);
    if (hd__is_collective(i->op) && i->axes & p->independent_axes && !w->own_section && i->out[0] != p->loss_sum)
        diag_axes(w, i->in[0], "crosses ranks that are apart, in a section that brings none together:",
                  i->axes & p->independent_axes);
    if (w->own_section) {
        struct hd__mean v = transfer(w, i);
        for (uint32_t k = 0; k < i->n_out; k++)
            set_value(w, i->out[k], v);
    }
    for (uint32_t k = 0; k < i->n_out; k++) {
        uint32_t fact = w->buffer[hd__tensor_const(p, i->out[k])->buffer].fact;
        const char *section = fact ? p->facts.at[fact - 1].section : NULL;
        if (section && strcmp(section, w->section->name) != 0)
            hd__diag(w, "%s is declared of section %s: only that section may write it", hd__name_of(w, i->out[k]),
                     section);
    }
}

/* ---- where a section ends */

static void check_mix(struct hd__walk *w, hd_tensor t, const struct hd__mean *x)
{
    uint32_t axes = w->section->mixed_axes | w->section->equal_axes;
    double ways = (double)hd__mesh_ways(&w->p->mesh, axes), least = x->common,
           inside = weights_along(w, x->trained, axes, 0)[0] * ways;
    for (int64_t r = 0; r < hd__replicas(w->p); r++)
        least = fmin(least, x->trained[r]);
    if (least < -1e-9)
        hd__diag(w, "%s is no mean of what ranks trained: a weight is %g", hd__name_of(w, t), least);
    else if (inside + x->common < 1 - 1e-9)
        diag_axes(w, t, "is mixed along other axes than", axes);
    else if (x->common < 1e-9 && (double)reached(w, x->trained) < ways)
        diag_axes(w, t, "is mixed, and never comes closer to what some ranks trained along", axes);
}

static void check_value(struct hd__walk *w, uint32_t n, const struct hd__mean *x)
{
    const struct hd__fact *f = hd__fact_of(w->p, w->followed.at[n]);
    const struct hd__code_section *s = w->section;
    hd_tensor t = w->followed.at[n];
    uint32_t equal = n < w->n_params ? s->equal_axes : f->axes;
    double trained = 0, all = 0, wanted = !(f->what & HD_FACT_ZERO_SUM);
    for (int64_t r = 0; x->trained && r < hd__replicas(w->p); r++) {
        trained += x->trained[r];
        all += fabs(x->trained[r]);
    }
    if (x->unreduced_axes)
        diag_axes(w, t, "is left partial, its mean not reduced over", x->unreduced_axes);
    else if (x->varying_axes & equal)
        diag_axes(w, t, "differs between ranks along", x->varying_axes & equal);
    else if (!(all > 0)) /* however small: an average may be slow */
        hd__diag(w, "%s does not depend on the trained parameters: what was trained is lost", hd__name_of(w, t));
    else if (x->other)
        hd__diag(w, "%s depends on %s, which is neither parameters nor declared of them", hd__name_of(w, t),
                 hd__name_of(w, x->other));
    else if (!(fabs(x->common + trained - wanted) < 1e-9))
        hd__diag(w, "%s: weights of the parameters in it sum to %g, not %g", hd__name_of(w, t), x->common + trained,
                 wanted);
    else if (wanted > 0 && trained < 0)
        hd__diag(w, "%s: moves away from what the ranks have trained: wrong sign", hd__name_of(w, t));
    else if (n < w->n_params && !s->declares && !(fabs(x->trained[0] - 1) < 1e-9))
        hd__diag(w, "%s is changed, and nothing is declared of the parameters: HD_FACT_EQUAL or HD_FACT_MIX",
                 hd__name_of(w, t));
    else if (n < w->n_params && s->declares & HD_FACT_MIX)
        check_mix(w, t, x);
}

static void section_end(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (uint32_t n = 0; n < w->followed.count && w->own_section; n++) {
        const struct hd__fact *f = hd__fact_of(p, w->followed.at[n]);
        if (!f->section || !strcmp(f->section, w->section->name))
            check_value(w, n, &w->tensor[w->followed.at[n]].mean);
    }
    for (uint32_t n = 0; n < p->facts.count && w->section->kind == HD__SECTION_UPDATE; n++) {
        uint8_t *state = &w->buffer[hd__tensor_const(p, p->facts.at[n].tensor)->buffer].feedback;
        if (*state & READ && !(*state & WRITTEN))
            hd__diag(w, "%s is error feedback, and what this step leaves is not written",
                     hd__name_of(w, p->facts.at[n].tensor));
        *state &= DECLARED | USED;
    }
}

/* ---- the program as a whole */

/* A checkpoint has one of what is kept, and a model. */
static void check_saved(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (uint32_t n = 0; n < p->flats.count; n++) {
        const hd_tensor *of = p->flats.at[n].tensor;
        if (p->independent_axes && !of[HD__FLAT_GLOBAL_COPY])
            hd__diag(w, "parameters %s: ranks along %s are apart, and a checkpoint has no model: HD_FLAT_COMMON",
                     p->flats.at[n].name, hd__axes(p->independent_axes));
        for (uint32_t role = HD__FLAT_GLOBAL_COPY; role < HD__FLAT_ROLES; role++) {
            const struct hd__fact *f = hd__fact_of(p, of[role]);
            if (of[role] && (!f->section || p->independent_axes & ~f->axes ||
                             (role == HD__FLAT_GLOBAL_COPY && !(f->what & HD_FACT_AVERAGE))))
                hd__diag(w, "%s is saved, and checkpoints have one of it: declare it %s%s", hd__name_of(w, of[role]),
                         role == HD__FLAT_GLOBAL_COPY ? "HD_FACT_AVERAGE" : "HD_FACT_AVERAGE or HD_FACT_ZERO_SUM",
                         p->independent_axes ? ", and HD_FACT_EQUAL along all axes of `apart`" : "");
        }
    }
}

static void finish(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    uint32_t missing = p->independent_axes;
    check_saved(w);
    for (hd_tensor t = 1; t < p->tensors.count; t++) {
        uint32_t buffer = hd__tensor_const(p, t)->buffer;
        if (hd__tensor_const(p, t)->role != HD__ROLE_FLAT || p->buffers.at[buffer].life != HD__LIFE_PERSISTENT ||
            w->buffer[buffer].known)
            continue;
        hd__diag(w, "%s lives from step to step, and has no role and no fact: nothing initialises or saves it",
                 hd__name_of(w, t));
        w->buffer[buffer].known = 1; /* once is enough */
    }
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        if (x->repeat && x->code.count && (x->mixed_axes || x->equal_axes == p->independent_axes))
            missing &= ~(x->mixed_axes | x->equal_axes);
    }
    if (missing && p->flats.count)
        hd__diag(w, "no section brings ranks together that are apart along %s", hd__axes(missing));
    for (uint32_t n = 0; n < p->facts.count && !w->count; n++)
        if (w->buffer[hd__tensor_const(p, p->facts.at[n].tensor)->buffer].feedback == DECLARED)
            hd__diag(w, "%s is error feedback, and no step uses it", hd__name_of(w, p->facts.at[n].tensor));
}

const struct hd__rules hd__rules_facts = {
    .begin = begin, .section_begin = section_begin, .visit = visit, .section_end = section_end, .finish = finish};
