/* What the model reads of parameters is as new as their master weights. The optimizer makes a whole old; what is written over
 * it, a gather or a copy, makes it new. A strategy may leave that to the next step: then wholes are old where a step begins,
 * and nothing may read them before they are gathered. Between steps `restore` makes all of them new, also after a load. */
#include <stdlib.h>

#include "core/verify/verify.h"

struct gathered {
    const struct hd_program *p;
    uint32_t *shard_of, *whole_in; /* by tensor, by buffer: the flat, index + 1 */
    uint8_t *old;                  /* by flat */
    uint8_t *late;                 /* by flat: old when a step ends */
    uint32_t restores;             /* there is a section that makes them new between steps */
};

int hd__covers(const struct hd_program *p, hd_tensor a, hd_tensor b)
{
    const struct hd__tensor *x = hd__tc(p, a), *y = hd__tc(p, b);
    int64_t size = (int64_t)hd_dtype_size(x->dtype);
    return x->buffer == y->buffer && !x->window && x->offset * size <= y->offset * (int64_t)hd_dtype_size(y->dtype) &&
           x->offset * size + hd__tensor_bytes(p, x) >=
               y->offset * (int64_t)hd_dtype_size(y->dtype) + hd__tensor_bytes(p, y);
}

static void follow(struct gathered *g, const struct hd__instr *i)
{
    uint32_t flat = hd__is_update(i) && i->n_in ? g->shard_of[i->in[0]] : 0;
    if (flat)
        g->old[flat - 1] = g->p->flats.at[flat - 1].whole && g->whole_in[hd__tc(g->p, g->p->flats.at[flat - 1].whole)->buffer];
    for (uint32_t k = 0; k < i->n_out; k++) {
        flat = g->whole_in[hd__tc(g->p, i->out[k])->buffer];
        if (flat && g->old[flat - 1])
            g->old[flat - 1] = !hd__covers(g->p, i->out[k], g->p->flats.at[flat - 1].whole);
    }
}

/* One step, with the sections that every one has. */
static void find_late(struct gathered *g)
{
    for (uint32_t s = 0; s < g->p->sections.count; s++) {
        const struct hd__code_section *x = &g->p->sections.at[s];
        g->restores |= !strcmp(x->name, "restore");
        for (uint32_t n = 0; x->repeat && x->predicate <= 1 && n < x->code.count; n++)
            follow(g, &x->code.at[n]);
    }
    memcpy(g->late, g->old, g->p->flats.count);
}

static void *create(const struct hd_program *p)
{
    struct gathered *g = hd__alloc(sizeof *g);
    g->p = p;
    g->shard_of = hd__flats_by_shard(p);
    g->whole_in = hd__alloc(p->buffers.count * sizeof *g->whole_in);
    g->old = hd__alloc(p->flats.count + 1);
    g->late = hd__alloc(p->flats.count + 1);
    for (uint32_t f = 0; f < p->flats.count; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        uint32_t buffer = flat->whole ? hd__tc(p, flat->whole)->buffer : 0;
        if (buffer && p->buffers.at[buffer].life == HD__LIFE_PERSISTENT)
            g->whole_in[buffer] = f + 1;
    }
    find_late(g);
    return g;
}

static void destroy(void *state)
{
    struct gathered *g = state;
    free(g->shard_of);
    free(g->whole_in);
    free(g->old);
    free(g->late);
    free(g);
}

int hd__gathers_late(const struct hd_program *p)
{
    struct gathered *g = create(p);
    int late = memchr(g->late, 1, p->flats.count) != NULL;
    destroy(g);
    return late;
}

/* Who runs a section outside a step has run restore, which begins with master weights that were loaded. */
static void enter(void *state, struct hd__faults *f)
{
    struct gathered *g = state;
    const struct hd_program *p = g->p;
    const struct hd__code_section *section = f->section;
    if (!strcmp(section->name, "begin") || section->predicate > 1)
        memcpy(g->old, g->late, p->flats.count);
    if (!section->repeat)
        memset(g->old, 0, p->flats.count);
    for (uint32_t n = 0; n < p->flats.count && !strcmp(section->name, "restore"); n++) {
        const struct hd__flat *flat = &p->flats.at[n];
        g->old[n] = flat->whole && g->whole_in[hd__tc(p, flat->whole)->buffer] && !hd__covers(p, flat->master, flat->whole);
    }
}

/* A window is this rank's own piece, which the optimizer writes: only the others' are old. */
static void check_reads(struct gathered *g, struct hd__faults *f, const struct hd__instr *i)
{
    struct hd__touch t[HD__MAX_TOUCH];
    uint32_t n = hd__touches(g->p, i, t);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t flat = g->whole_in[t[k].buffer];
        if (!flat || !g->old[flat - 1] || !t[k].reads || hd__tc(g->p, t[k].tensor)->window)
            continue;
        hd__fault(f, "use of %s, which is older than the master weights of parameters %s: nothing has gathered them since their update",
                  hd__tc(g->p, t[k].tensor)->name, g->p->flats.at[flat - 1].name);
        g->old[flat - 1] = 0; /* once is enough */
    }
}

static void step(void *state, struct hd__faults *f, const struct hd__instr *i)
{
    struct gathered *g = state;
    if (i->op == HD_OP_RELEASE)
        return;
    check_reads(g, f, i);
    follow(g, i);
}

static void leave(void *state, struct hd__faults *f)
{
    struct gathered *g = state;
    int restore = !strcmp(f->section->name, "restore"), update = !strcmp(f->section->name, "update");
    for (uint32_t k = 0; k < g->p->flats.count; k++)
        if (g->old[k] && (restore || (update && !g->restores))) {
            hd__fault(f, "parameters %s are %s, but what the model reads of them is not made anew", g->p->flats.at[k].name,
                      restore ? "loaded" : "updated");
            g->old[k] = 0;
        }
}

const struct hd__proof hd__proof_gathered = {.create = create, .destroy = destroy, .enter = enter, .step = step, .leave = leave};
