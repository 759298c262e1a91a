/* Ranks that are apart, brought together (local_replicas.c). By abstract interpretation of the section that says it does so, for
 * every value: the axes along which ranks hold different ones; the axes over which it is a share of a mean, still to be
 * summed; and whether it follows from the parameters that the ranks have trained. Behind the section, every flat's
 * parameters, wherever they lie, and every state that the strategy keeps, are equal along the axes, no share, and
 * follow from them: so what a rank did is neither lost nor counted twice. Blends are linear, so it is known too how much
 * of parameters each value is: in the end parameters and averages of them are once themselves, and other states nothing of them,
 * so that ranks which have trained nothing change nothing; and they have moved to where the ranks went, not away. In other
 * sections nothing writes what ranks have in common.
 *
 * Where ranks are not apart, a section of a strategy's own is walked in the same way, for what the strategy keeps. */
#include <math.h>
#include <stdlib.h>

#include "core/verify/verify.h"

struct value {
    uint32_t apart, owed; /* axes */
    uint32_t trained;
    double whole, moved; /* how often parameters are in it; those of them that the ranks have trained */
};

struct together {
    const struct hd_program *p;
    struct value *of;             /* by tensor */
    uint8_t *common;              /* by buffer: something lies there that ranks have in common */
    HD__ARRAY(hd_tensor) settled; /* what must be equal behind the section: parameters and averages of them, then what else is kept */
    uint32_t parameters;          /* of them */
    uint32_t axes;                /* of the section */
    int walks;                    /* this section: it brings ranks together, or is a strategy's own where they are not apart */
};

static void must_settle(struct together *g, hd_tensor t)
{
    if (!t || g->p->buffers.at[hd__tc(g->p, t)->buffer].life != HD__LIFE_PERSISTENT)
        return;
    for (uint32_t n = 0; n < g->settled.count; n++) /* the master may be the whole */
        if (g->settled.at[n] == t)
            return;
    hd__push(&g->settled, t);
    if (hd__tc(g->p, t)->common)
        g->common[hd__tc(g->p, t)->buffer] = 1;
}

static void *create(const struct hd_program *p)
{
    struct together *g = hd__alloc(sizeof *g);
    g->p = p;
    g->of = hd__alloc(p->tensors.count * sizeof *g->of);
    g->common = hd__alloc(p->buffers.count);
    for (uint32_t n = 0; n < p->flats.count && (p->apart || p->kept.count); n++) {
        const struct hd__flat *f = &p->flats.at[n];
        must_settle(g, f->whole);
        must_settle(g, f->master);
        must_settle(g, f->low);
        must_settle(g, f->common);
    }
    for (uint32_t n = 0; n < p->kept.count; n++)
        if (hd__is_average(p, &p->kept.at[n]))
            must_settle(g, p->kept.at[n].tensor);
    g->parameters = g->settled.count;
    for (uint32_t n = 0; n < p->kept.count; n++)
        must_settle(g, p->kept.at[n].tensor);
    return g;
}

static void destroy(void *state)
{
    struct together *g = state;
    hd__free_array(&g->settled);
    free(g->common);
    free(g->of);
    free(g);
}

static void enter(void *state, struct hd__faults *f)
{
    struct together *g = state;
    const struct hd_program *p = g->p;
    g->axes = f->section->together;
    g->walks = g->axes || (f->section->predicate && !p->apart && p->kept.count);
    for (hd_tensor t = 1; t < p->tensors.count && g->walks; t++) {
        int own = hd__tc(p, t)->role == HD__ROLE_FLAT || t == p->norm2;
        g->of[t] = (struct value){.apart = own ? hd__apart_of(p, t) : 0};
    }
    for (uint32_t n = 0; n < g->settled.count && g->walks; n++) {
        struct value *v = &g->of[g->settled.at[n]];
        v->trained = !hd__tc(p, g->settled.at[n])->common;
        v->whole = n < g->parameters;
        v->moved = v->whole * v->trained;
    }
}

/* ---- one instruction */

static const char *name_of(const struct together *g, hd_tensor t)
{
    return hd__tc(g->p, t)->name;
}

static void fault_axes(struct together *g, struct hd__faults *f, hd_tensor t, const char *what, uint32_t axes)
{
    char text[64];
    hd__axes_text(axes, text);
    hd__fault(f, "%s %s %s", name_of(g, t), what, text);
}

static struct value mean_share(struct together *g, struct hd__faults *f, const struct hd__instr *i, struct value v)
{
    if (i->axes & ~g->p->apart)
        fault_axes(g, f, i->out[0],
                   "is a share of a mean over an axis on which ranks are not apart:", i->axes & ~g->p->apart);
    v.owed = i->axes;
    return v;
}

static struct value sum(struct together *g, struct hd__faults *f, const struct hd__instr *i, struct value v)
{
    if (i->axes & ~v.owed)
        fault_axes(g, f, i->in[0], "is summed, but it is no share of a mean over", i->axes & ~v.owed);
    v.apart &= ~i->axes;
    v.owed &= ~i->axes;
    return v;
}

static struct value value_after(struct together *g, struct hd__faults *f, const struct hd__instr *i)
{
    struct value v = {0};
    for (uint32_t k = 0; k < i->n_in; k++) {
        const struct value *x = &g->of[i->in[k]];
        double factor = i->op != HD_OP_BLEND ? 1 : i->attrs && k < i->attrs->n_table ? i->attrs->table[k] : 0;
        if (x->owed && i->op != HD_OP_ALL_REDUCE && i->op != HD_OP_COPY)
            fault_axes(g, f, i->in[k], "is read, a share of a mean that is still to be summed over", x->owed);
        v.apart |= x->apart;
        v.owed |= x->owed;
        v.trained |= x->trained;
        v.whole += factor * x->whole;
        v.moved += factor * x->moved;
    }
    if (i->op == HD_OP_BLEND)
        return mean_share(g, f, i, v);
    if (i->op == HD_OP_ALL_REDUCE)
        return sum(g, f, i, v);
    if (i->op != HD_OP_COPY && (i->op != HD_OP_ALL_GATHER || i->axes & g->p->apart))
        v = (struct value){.apart = g->p->apart}; /* nothing is known of it */
    return v;
}

/* What lies in the same memory changes too: all of it, or a part. */
static void set(struct together *g, hd_tensor t, struct value v)
{
    struct hd__touch a, b;
    g->of[t] = v;
    a = hd__touch_of(g->p, t);
    for (uint32_t n = 0; n < g->settled.count; n++) {
        struct value *x = &g->of[g->settled.at[n]];
        b = hd__touch_of(g->p, g->settled.at[n]);
        if (g->settled.at[n] == t || a.buffer != b.buffer || a.hi <= b.lo || b.hi <= a.lo)
            continue;
        if (hd__covers(g->p, t, g->settled.at[n])) {
            *x = v;
        } else {
            x->apart |= v.apart;
            x->owed |= v.owed;
            x->trained &= v.trained;
            x->whole = v.whole;
            x->moved = v.moved;
        }
    }
}

static void step(void *state, struct hd__faults *f, const struct hd__instr *i)
{
    struct together *g = state;
    if ((!g->p->apart && !g->p->kept.count) || i->op == HD_OP_RELEASE)
        return;
    if (g->walks) {
        struct value v = value_after(g, f, i);
        for (uint32_t k = 0; k < i->n_out; k++)
            set(g, i->out[k], v);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (g->common[hd__tc(g->p, i->out[k])->buffer])
            hd__fault(f, g->p->apart ? "%s is common to ranks that are apart: only the section that brings them together writes it"
                                     : "%s is what a strategy keeps: only a section of its own writes it", name_of(g, i->out[k]));
}

static void leave(void *state, struct hd__faults *f)
{
    struct together *g = state;
    for (uint32_t n = 0; n < g->settled.count && g->walks; n++) {
        hd_tensor t = g->settled.at[n];
        const struct value *x = &g->of[t];
        if (x->owed)
            fault_axes(g, f, t, "is left a share of a mean over", x->owed);
        else if (x->apart & g->axes)
            fault_axes(g, f, t, "is not the same on all ranks along", x->apart & g->axes);
        else if (!x->trained)
            hd__fault(f, "%s does not follow from the parameters that the ranks have trained: their steps are lost",
                      name_of(g, t));
        else if (!(fabs(x->whole - (n < g->parameters)) < 1e-9))
            hd__fault(f, "%s is made of %g times the parameters: it should be %d", name_of(g, t), x->whole, n < g->parameters);
        else if (n < g->parameters && x->moved < 0)
            hd__fault(f, "%s moves away from what the ranks have trained", name_of(g, t));
    }
}

/* Somewhere in a step the ranks meet again. */
static void finish(void *state, struct hd__faults *f)
{
    const struct hd_program *p = f->p;
    uint32_t left = p->apart;
    char axes[64];
    (void)state;
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (p->sections.at[s].together == p->apart && p->sections.at[s].repeat && p->sections.at[s].code.count)
            left = 0;
    if (!left || !p->flats.count)
        return;
    hd__axes_text(left, axes);
    f->section = &p->sections.at[p->sections.count - 1];
    f->n = 0;
    hd__text_add(&f->text, "%sno section brings the ranks together that are apart along %s", f->text.length ? "\n" : "",
                 axes);
    f->count++;
}

const struct hd__proof hd__proof_together = {
    .create = create, .destroy = destroy, .enter = enter, .step = step, .leave = leave, .finish = finish};
