/* Full weights that the model reads are as new as their master weights. An update makes them stale; a gather or a copy
 * that overwrites them makes them fresh. A strategy may defer that to the next step: then they are stale where a step
 * begins, and nothing may read them before they are gathered. Between steps `restore` refreshes all of them, also after
 * a load. */
#include <stdlib.h>

#include "core/verify/verify.h"

struct staleness {
    const struct hd_program *p;
    uint32_t *shard_of, *full_in; /* by tensor, by buffer: the flat, index + 1 */
    uint8_t *stale;               /* by flat */
    uint8_t *stale_at_end;        /* by flat: old when a step ends */
    uint32_t has_restore;         /* there is a section that makes them new between steps */
};

int hd__verify_covers(const struct hd_program *p, hd_tensor a, hd_tensor b)
{
    const struct hd__tensor *x = hd__tensor_const(p, a), *y = hd__tensor_const(p, b);
    int64_t size = (int64_t)hd_dtype_size(x->dtype);
    return x->buffer == y->buffer && !x->shard_view &&
           x->offset * size <= y->offset * (int64_t)hd_dtype_size(y->dtype) &&
           x->offset * size + hd__tensor_bytes(p, x) >=
               y->offset * (int64_t)hd_dtype_size(y->dtype) + hd__tensor_bytes(p, y);
}

static void track_writes(struct staleness *g, const struct hd__instr *i)
{
    uint32_t flat = hd__is_update(i) && i->n_in ? g->shard_of[i->in[0]] : 0;
    if (flat)
        g->stale[flat - 1] = g->p->flats.at[flat - 1].tensor[HD__FLAT_FULL] &&
                             g->full_in[hd__tensor_const(g->p, g->p->flats.at[flat - 1].tensor[HD__FLAT_FULL])->buffer];
    for (uint32_t k = 0; k < i->n_out; k++) {
        flat = g->full_in[hd__tensor_const(g->p, i->out[k])->buffer];
        if (flat && g->stale[flat - 1])
            g->stale[flat - 1] = !hd__verify_covers(g->p, i->out[k], g->p->flats.at[flat - 1].tensor[HD__FLAT_FULL]);
    }
}

/* One step, with the sections that every one has. */
static void find_deferred(struct staleness *g)
{
    for (uint32_t s = 0; s < g->p->sections.count; s++) {
        const struct hd__code_section *x = &g->p->sections.at[s];
        g->has_restore |= x->kind == HD__SECTION_RESTORE;
        for (uint32_t n = 0; x->repeat && x->every <= 1 && n < x->code.count; n++)
            track_writes(g, &x->code.at[n]);
    }
    memcpy(g->stale_at_end, g->stale, g->p->flats.count);
}

static void *create(const struct hd_program *p)
{
    struct staleness *g = hd__alloc(sizeof *g);
    g->p = p;
    g->shard_of = hd__flats_by_shard(p);
    g->full_in = hd__alloc(p->buffers.count * sizeof *g->full_in);
    g->stale = hd__alloc(p->flats.count + 1);
    g->stale_at_end = hd__alloc(p->flats.count + 1);
    for (uint32_t f = 0; f < p->flats.count; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        uint32_t buffer = flat->tensor[HD__FLAT_FULL] ? hd__tensor_const(p, flat->tensor[HD__FLAT_FULL])->buffer : 0;
        if (buffer && p->buffers.at[buffer].life == HD__LIFE_PERSISTENT)
            g->full_in[buffer] = f + 1;
    }
    find_deferred(g);
    return g;
}

static void destroy(void *state)
{
    struct staleness *g = state;
    free(g->shard_of);
    free(g->full_in);
    free(g->stale);
    free(g->stale_at_end);
    free(g);
}

int hd__verify_gather_deferred(const struct hd_program *p)
{
    struct staleness *g = create(p);
    int late = memchr(g->stale_at_end, 1, p->flats.count) != NULL;
    destroy(g);
    return late;
}

/* A section outside a step runs after restore, which begins with master weights that were loaded. */
static void section_begin(void *state, struct hd__verify_diags *f)
{
    struct staleness *g = state;
    const struct hd_program *p = g->p;
    const struct hd__code_section *section = f->section;
    if (section->kind == HD__SECTION_BEGIN || section->every > 1)
        memcpy(g->stale, g->stale_at_end, p->flats.count);
    if (!section->repeat)
        memset(g->stale, 0, p->flats.count);
    for (uint32_t n = 0; n < p->flats.count && section->kind == HD__SECTION_RESTORE; n++) {
        const struct hd__flat *flat = &p->flats.at[n];
        g->stale[n] = flat->tensor[HD__FLAT_FULL] &&
                      g->full_in[hd__tensor_const(p, flat->tensor[HD__FLAT_FULL])->buffer] &&
                      !hd__verify_covers(p, flat->tensor[HD__FLAT_MASTER], flat->tensor[HD__FLAT_FULL]);
    }
}

/* A window is this rank's own piece, which the optimizer writes: only the others' are old. */
static void check_reads(struct staleness *g, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint32_t n = hd__accesses(g->p, i, t);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t flat = g->full_in[t[k].buffer];
        if (!flat || !g->stale[flat - 1] || !t[k].reads || hd__tensor_const(g->p, t[k].tensor)->shard_view)
            continue;
        hd__verify_diag(f,
                        "use of %s, which is stale: the master weights of parameters %s have not been gathered "
                        "since their update",
                        hd__tensor_const(g->p, t[k].tensor)->name, g->p->flats.at[flat - 1].name);
        g->stale[flat - 1] = 0; /* once is enough */
    }
}

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct staleness *g = state;
    if (i->op == HD_OP_RELEASE)
        return;
    check_reads(g, f, i);
    track_writes(g, i);
}

static void section_end(void *state, struct hd__verify_diags *f)
{
    struct staleness *g = state;
    int restore = f->section->kind == HD__SECTION_RESTORE, update = f->section->kind == HD__SECTION_UPDATE;
    for (uint32_t k = 0; k < g->p->flats.count; k++)
        if (g->stale[k] && (restore || (update && !g->has_restore))) {
            hd__verify_diag(f, "parameters %s are %s, but the copy that the model reads is not refreshed",
                            g->p->flats.at[k].name, restore ? "loaded" : "updated");
            g->stale[k] = 0;
        }
}

const struct hd__verify_analysis hd__verify_staleness = {
    .create = create, .destroy = destroy, .section_begin = section_begin, .visit = visit, .section_end = section_end};
