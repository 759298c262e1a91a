/* Full weights that the model reads are as new as their master weights. An update makes them stale; a gather or a copy
 * that overwrites them makes them fresh. A strategy may defer that to the next step: then they are stale where a step
 * begins, and nothing may read them before they are gathered. Between steps `restore` refreshes all of them, also after
 * a load. */
#include "core/verify/verify.h"

int hd__covers(const struct hd_program *p, hd_tensor a, hd_tensor b)
{
    const struct hd__tensor *x = hd__tensor_const(p, a), *y = hd__tensor_const(p, b);
    int64_t size = (int64_t)hd_dtype_size(x->dtype);
    return x->buffer == y->buffer && !x->shard_view &&
           x->offset * size <= y->offset * (int64_t)hd_dtype_size(y->dtype) &&
           x->offset * size + hd__tensor_bytes(p, x) >=
               y->offset * (int64_t)hd_dtype_size(y->dtype) + hd__tensor_bytes(p, y);
}

/* Are there full weights, which live from step to step? */
static int has_full(const struct hd__walk *w, uint32_t flat)
{
    hd_tensor full = w->p->flats.at[flat].tensor[HD__FLAT_FULL];
    return full && w->buffer[hd__tensor_const(w->p, full)->buffer].full_of;
}

static void track_writes(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t flat = hd__is_update(i) && i->n_in ? w->tensor[i->in[0]].shard_of : 0;
    if (flat)
        w->flat[flat - 1].stale = has_full(w, flat - 1);
    for (uint32_t k = 0; k < i->n_out; k++) {
        flat = w->buffer[hd__tensor_const(w->p, i->out[k])->buffer].full_of;
        if (flat && w->flat[flat - 1].stale)
            w->flat[flat - 1].stale = !hd__covers(w->p, i->out[k], w->p->flats.at[flat - 1].tensor[HD__FLAT_FULL]);
    }
}

/* One step, with the sections that every one has. */
static void begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (uint32_t f = 0; f < p->flats.count; f++) {
        hd_tensor full = p->flats.at[f].tensor[HD__FLAT_FULL];
        uint32_t buffer = full ? hd__tensor_const(p, full)->buffer : 0;
        if (buffer && p->buffers.at[buffer].life == HD__LIFE_PERSISTENT)
            w->buffer[buffer].full_of = f + 1;
    }
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        for (uint32_t n = 0; x->repeat && x->every <= 1 && n < x->code.count; n++)
            track_writes(w, &x->code.at[n]);
    }
    for (uint32_t f = 0; f < p->flats.count; f++)
        w->stale_at_end |= w->flat[f].stale_at_end = w->flat[f].stale;
}

/* A section outside a step runs after restore, which begins with master weights that were loaded. */
static void section_begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    const struct hd__code_section *section = w->section;
    for (uint32_t n = 0; n < p->flats.count; n++) {
        const struct hd__flat *flat = &p->flats.at[n];
        uint8_t *stale = &w->flat[n].stale;
        if (section->kind == HD__SECTION_BEGIN || section->every > 1)
            *stale = w->flat[n].stale_at_end;
        if (!section->repeat)
            *stale = 0;
        if (section->kind == HD__SECTION_RESTORE)
            *stale = has_full(w, n) && !hd__covers(p, flat->tensor[HD__FLAT_MASTER], flat->tensor[HD__FLAT_FULL]);
    }
}

/* A window is this rank's own piece, which the optimizer writes: only the others' are old. */
static void check_reads(struct hd__walk *w)
{
    const struct hd__access *t = w->access;
    for (uint32_t k = 0; k < w->n_accesses; k++) {
        uint32_t flat = w->buffer[t[k].buffer].full_of;
        if (!flat || !w->flat[flat - 1].stale || !t[k].reads || hd__tensor_const(w->p, t[k].tensor)->shard_view)
            continue;
        hd__diag(w,
                 "use of %s, which is stale: the master weights of parameters %s have not been gathered "
                 "since their update",
                 hd__name_of(w, t[k].tensor), w->p->flats.at[flat - 1].name);
        w->flat[flat - 1].stale = 0; /* once is enough */
    }
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    if (i->op == HD_OP_RELEASE)
        return;
    check_reads(w);
    track_writes(w, i);
}

static void section_end(struct hd__walk *w)
{
    int restore = w->section->kind == HD__SECTION_RESTORE, update = w->section->kind == HD__SECTION_UPDATE,
        has_restore = hd__program_section_of((struct hd_program *)w->p, HD__SECTION_RESTORE) != NULL;
    for (uint32_t k = 0; k < w->p->flats.count; k++)
        if (w->flat[k].stale && (restore || (update && !has_restore))) {
            hd__diag(w, "parameters %s are %s, but the copy that the model reads is not refreshed",
                     w->p->flats.at[k].name, restore ? "loaded" : "updated");
            w->flat[k].stale = 0;
        }
}

const struct hd__rules hd__rules_staleness = {
    .begin = begin, .section_begin = section_begin, .visit = visit, .section_end = section_end};
