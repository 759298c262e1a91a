/* Lifetimes -> offsets in one arena.
 *
 * Persistent buffers come first. Temporaries are planned for each section over the same memory behind them, or for all
 * sections of a step together if some live in several of them (HD__LIFE_STEP) and the plan is smaller: each buffer
 * lives from its first access to its last, in list positions, and gets the lowest offset that is free during that time
 * (interval_alloc.h), the largest first. */
#include <stdlib.h>

#include "core/passes/interval_alloc.h"
#include "core/passes/passes.h"
#include "core/program/access.h"

#define ALIGN 64
#define PAGE 4096
#define HEAVY 64    /* a buffer is heavy if it is this fraction of the bound or more */
#define EFFORT 8000 /* heavy buffers that a search for a better order may place */

static int64_t align(int64_t bytes)
{
    return (bytes + ALIGN - 1) & ~(int64_t)(ALIGN - 1);
}

static int64_t page_align(int64_t bytes)
{
    return (bytes + PAGE - 1) & ~(int64_t)(PAGE - 1);
}

/* ---- lifetimes */

struct life {
    int64_t bytes, offset;
    double weight; /* the heaviest is placed first: bytes, unless a better order was found */
    uint32_t first, last, buffer, index;
    uint8_t paged, step;
};

typedef HD__ARRAY(struct life) lives;

/* `end`: the last position of a step; 0: the section is in none. */
static void extend_life(const struct hd_program *p, lives *out, uint32_t *slot, uint32_t buffer, uint32_t n,
                        uint32_t end)
{
    const struct hd__buffer *b = &p->buffers.at[buffer];
    if (b->life == HD__LIFE_PERSISTENT || (b->life == HD__LIFE_STEP && !end))
        return;
    if (!slot[buffer]) {
        struct life new = {.bytes = b->paged ? page_align(b->bytes) : align(b->bytes),
                           .paged = b->paged != 0,
                           .step = b->life == HD__LIFE_STEP,
                           .weight = (double)b->bytes,
                           .first = n,
                           .buffer = buffer,
                           .index = out->count};
        hd__push(out, new);
        slot[buffer] = out->count;
    }
    out->at[slot[buffer] - 1].last = b->life == HD__LIFE_STEP ? end : n;
}

/* Sections that are planned together, at consecutive positions. */
struct group {
    uint32_t first, end; /* of those sections in between that belong to a step if `step`, all if not */
    uint32_t step;
    uint32_t positions;
};

static int belongs(const struct hd_program *p, const struct group *g, uint32_t section)
{
    return !g->step || p->sections.at[section].repeat > 0;
}

static lives find_lives(const struct hd_program *p, const struct group *g, const uint32_t *position)
{
    lives out = {0};
    uint32_t t[HD__MAX_ACCESSES];
    uint32_t *slot = hd__alloc(p->buffers.count * sizeof *slot), base = 0;
    for (uint32_t s = g->first; s < g->end; s++) {
        const hd__code *code = &p->sections.at[s].code;
        for (uint32_t n = 0; belongs(p, g, s) && n < code->count; n++)
            for (uint32_t k = hd__live_buffers(p, code, position, n, t); k-- > 0;)
                extend_life(p, &out, slot, t[k], base + n, g->step ? g->positions - 1 : 0);
        base += belongs(p, g, s) ? code->count : 0;
    }
    free(slot);
    return out;
}

/* A lower bound of every plan: peak bytes of live buffers. `temp`: of those that live in one section only. */
static int64_t lower_bound(const lives *l, uint32_t positions, int temp)
{
    int64_t *delta = hd__alloc((positions + 1) * sizeof *delta), live = 0, bound = 0;
    for (uint32_t n = 0; n < l->count; n++) {
        if (temp && l->at[n].step)
            continue;
        delta[l->at[n].first] += l->at[n].bytes;
        delta[l->at[n].last + 1] -= l->at[n].bytes;
    }
    for (uint32_t n = 0; n < positions; n++) {
        live += delta[n];
        bound = HD__MAX(bound, live);
    }
    free(delta);
    return bound;
}

static int by_start(const struct life *x, const struct life *y)
{
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->last != y->last)
        return x->last > y->last ? -1 : 1;
    return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

static int by_weight(const void *a, const void *b)
{
    const struct life *x = a, *y = b;
    return x->weight != y->weight ? (x->weight > y->weight ? -1 : 1) : by_start(x, y);
}

static int64_t place_in_order(lives *l, uint32_t positions)
{
    struct hd__interval_alloc *space = hd__interval_alloc_new(positions);
    int64_t top = 0;
    hd__sort(l, by_weight);
    for (uint32_t n = 0; n < l->count; n++) {
        struct life *x = &l->at[n];
        x->offset = hd__interval_alloc_take(space, x->first, x->last, x->bytes, x->paged ? PAGE : ALIGN);
        top = HD__MAX(top, x->offset + x->bytes);
    }
    hd__interval_alloc_free(space);
    return top;
}

static void store_offsets(struct hd_program *p, const lives *l, int64_t base)
{
    for (uint32_t n = 0; n < l->count; n++)
        p->buffers.at[l->at[n].buffer].offset = base + l->at[n].offset;
}

/* Finds a good order of the few buffers that make up most of the memory; weights of `all` follow it. */
static void order_heavy(lives *all, uint32_t positions, int64_t low)
{
    lives heavy = {0};
    for (uint32_t n = 0; n < all->count; n++)
        if (all->at[n].bytes >= low / HEAVY)
            hd__push(&heavy, all->at[n]);
    int64_t best = INT64_MAX, bound = lower_bound(&heavy, positions, 0);
    double *weight = hd__alloc(all->count * sizeof *weight);
    for (uint32_t round = 0; round < EFFORT / (heavy.count + 1) && best > bound; round++) {
        int64_t top = place_in_order(&heavy, positions);
        for (uint32_t n = 0; n < heavy.count && top < best; n++)
            weight[heavy.at[n].index] = heavy.at[n].weight;
        best = HD__MIN(best, top);
        for (uint32_t n = 0; n < heavy.count; n++) /* what lies above the bound comes first in the next attempt */
            if (heavy.at[n].offset + heavy.at[n].bytes > bound)
                heavy.at[n].weight *= 1.5;
    }
    for (uint32_t n = 0; n < all->count; n++)
        if (weight[all->at[n].index] > 0)
            all->at[n].weight = weight[all->at[n].index];
    free(weight);
    hd__free_array(&heavy);
}

/* The maximum over all groups. */
struct sizes {
    int64_t bytes, bound; /* of the plan; the lower bound of any plan */
    int64_t alone;        /* lower bound where each section is planned alone, without buffers that live for a step */
};

/* Largest first is nearly always best; if it is not within half a percent of the bound, a better order is searched. */
static void plan_group(struct hd_program *p, const struct group *g, const uint32_t *position, struct sizes *sizes)
{
    lives l = find_lives(p, g, position);
    int64_t base = p->persistent_bytes;
    int64_t low = lower_bound(&l, g->positions, 0), best = low;
    if (!p->no_offsets) {
        best = place_in_order(&l, g->positions);
        store_offsets(p, &l, base);
    }
    if (best > low + low / 200) {
        order_heavy(&l, g->positions, low);
        int64_t top = place_in_order(&l, g->positions);
        if (top < best)
            store_offsets(p, &l, base);
        best = HD__MIN(best, top);
    }
    sizes->bytes = HD__MAX(sizes->bytes, best);
    sizes->bound = HD__MAX(sizes->bound, low);
    sizes->alone = HD__MAX(sizes->alone, lower_bound(&l, g->positions, 1));
    hd__free_array(&l);
}

/* Buffers that a step clears in `begin`, or first writes in a repeated section, live for nearly all of it: they become
 * persistent. Returns whether any others live from section to section. */
static int find_steps(struct hd_program *p)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint8_t *seen = hd__alloc(p->buffers.count);
    int any = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        for (uint32_t n = 0; n < x->code.count; n++)
            for (uint32_t k = hd__accesses(p, &x->code.at[n], t); k-- > 0;) {
                struct hd__buffer *b = &p->buffers.at[t[k].buffer];
                if (b->life != HD__LIFE_STEP || seen[t[k].buffer])
                    continue;
                seen[t[k].buffer] = 1;
                b->section = s;
                if (x->repeat != 1 || x->kind == HD__SECTION_BEGIN)
                    b->life = HD__LIFE_PERSISTENT;
                any |= b->life == HD__LIFE_STEP;
            }
    }
    free(seen);
    return any;
}

/* Lays out persistent buffers one after another, in the arena of their memory. */
static int32_t place_persistent(struct hd_program *p, struct hd_error *err)
{
    int paged = 0;
    memset(p->bytes, 0, sizeof p->bytes);
    for (uint32_t b = 1; b < p->buffers.count; b++) {
        struct hd__buffer *x = &p->buffers.at[b];
        int64_t *end = &p->bytes[x->memory];
        if (x->bytes <= 0)
            return hd_fail(err, HD_E_INTERNAL, "buffer %s has %lld bytes", x->name, (long long)x->bytes);
        paged |= x->life != HD__LIFE_PERSISTENT && x->paged;
        x->offset = -1;
        if (x->life != HD__LIFE_PERSISTENT && x->memory != HD__MEM_MAIN)
            return hd_fail(err, HD_E_INTERNAL, "temporary %s does not lie in the main memory", x->name);
        if (x->life != HD__LIFE_PERSISTENT)
            continue;
        x->offset = x->paged ? page_align(*end) : *end;
        *end = x->offset + (x->paged ? page_align(x->bytes) : align(x->bytes));
    }
    if (paged)
        p->bytes[HD__MEM_MAIN] = page_align(p->bytes[HD__MEM_MAIN]); /* temporaries are counted from here */
    return HD_OK;
}

static struct sizes plan_temporaries(struct hd_program *p, int steps)
{
    struct group step = {.end = p->sections.count, .step = 1};
    uint32_t *position = hd__instr_positions(p);
    struct sizes sizes = {0};
    for (uint32_t s = 0; s < p->sections.count; s++) {
        struct group alone = {.first = s, .end = s + 1, .positions = p->sections.at[s].code.count};
        if (steps && p->sections.at[s].repeat)
            step.positions += alone.positions;
        else
            plan_group(p, &alone, position, &sizes);
    }
    if (step.positions)
        plan_group(p, &step, position, &sizes);
    free(position);
    return sizes;
}

static int32_t plan(struct hd_program *p, int steps, struct sizes *sizes, struct hd_error *err)
{
    if (place_persistent(p, err))
        return err->code;
    p->persistent_bytes = p->bytes[HD__MEM_MAIN];
    *sizes = plan_temporaries(p, steps);
    p->temp_bytes = sizes->bytes;
    p->temp_bound = sizes->bound;
    p->arena_bytes = p->bytes[HD__MEM_MAIN] = p->persistent_bytes + p->temp_bytes;
    return HD_OK;
}

static int64_t bytes_of_steps(const struct hd_program *p)
{
    int64_t bytes = 0;
    for (uint32_t b = 1; b < p->buffers.count; b++)
        bytes += p->buffers.at[b].life == HD__LIFE_STEP ? align(p->buffers.at[b].bytes) : 0;
    return bytes;
}

/* Plans each section alone: buffers that live for a step become persistent. */
static int32_t plan_alone(struct hd_program *p, struct hd_error *err)
{
    struct sizes sizes;
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life == HD__LIFE_STEP)
            p->buffers.at[b].life = HD__LIFE_PERSISTENT;
    return plan(p, 0, &sizes, err);
}

/* Plans the sections of a step together, or each alone, whichever is smaller. A section is easier to plan than a step:
 * that may save more than it costs that buffers that live for a step are in use all the time. */
static int32_t plan_step(struct hd_program *p, struct hd_error *err)
{
    struct sizes sizes;
    int32_t rc = plan(p, 1, &sizes, err);
    if (rc || p->persistent_bytes + bytes_of_steps(p) + sizes.alone >= p->arena_bytes)
        return rc;
    const struct hd_program together = *p;
    size_t bytes = p->buffers.count * sizeof *p->buffers.at;
    struct hd__buffer *buffers = memcpy(hd__alloc(bytes), p->buffers.at, bytes);
    rc = plan_alone(p, err);
    if (!rc && p->arena_bytes >= together.arena_bytes) {
        *p = together;
        memcpy(p->buffers.at, buffers, bytes);
    }
    free(buffers);
    return rc;
}

int32_t hd__memory_offsets(struct hd_program *p, struct hd_error *err)
{
    struct sizes sizes;
    int steps = find_steps(p);
    int32_t rc = steps && !p->no_offsets ? plan_step(p, err) : plan(p, steps, &sizes, err);
    for (int memory = 1; memory < HD__MEM_COUNT; memory++)
        p->arena_base[memory] = page_align(p->arena_base[memory - 1] + p->bytes[memory - 1]);
    return rc;
}

int32_t hd__memory_plan(struct hd_program *p, struct hd_error *err)
{
    hd__inplace(p);
    return hd__memory_offsets(p, err);
}

/* ---- evaluations alone */

static int evaluates(const struct hd__code_section *s)
{
    return s->kind == HD__SECTION_EVAL || s->kind == HD__SECTION_EVAL_END || s->kind == HD__SECTION_DECODE ||
           s->kind == HD__SECTION_RESTORE;
}

/* Marks buffers from the last instruction to the first. `all` 0: instructions that write no marked one leave, unless
 * they are asynchronous: others take part, and they are waited for. */
static void mark_used(struct hd_program *p, hd__code *code, int all, uint8_t *used)
{
    struct hd__access t[HD__MAX_ACCESSES];
    for (uint32_t n = code->count; n-- > 0;) {
        struct hd__instr *i = &code->at[n];
        uint32_t count = hd__accesses(p, i, t), wanted = all || hd__is_async(i) || i->op == HD_OP_WAIT;
        for (uint32_t k = 0; k < count; k++)
            wanted |= t[k].writes && used[t[k].buffer];
        for (uint32_t k = 0; k < count && wanted; k++)
            used[t[k].buffer] = 1;
        i->op = wanted ? i->op : 0;
    }
    hd__code_compact(code);
}

int32_t hd__memory_evaluation(struct hd_program *p, struct hd_error *err)
{
    const hd_tensor scalars[] = {p->loss_sum, p->norm2, p->hyper, p->scale, p->auxiliary_scale};
    uint8_t *used = hd__alloc(p->buffers.count);
    for (size_t k = 0; k < HD__COUNT(scalars); k++)
        used[hd__tensor_const(p, scalars[k])->buffer] = 1;
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (evaluates(&p->sections.at[s]))
            mark_used(p, &p->sections.at[s].code, 1, used);
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t role = 0; role < HD__FLAT_ROLES; role++) {
            hd_tensor *t = &p->flats.at[f].tensor[role];
            if (role == HD__FLAT_MASTER)
                used[hd__tensor_const(p, *t)->buffer] = 1;
            else if (!used[hd__tensor_const(p, *t)->buffer])
                *t = 0;
        }
    for (uint32_t s = 0; s < p->sections.count; s++) {
        struct hd__code_section *x = &p->sections.at[s];
        if (x->kind == HD__SECTION_BEGIN)
            mark_used(p, &x->code, 0, used);
        else if (!evaluates(x))
            x->code.count = 0;
    }
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (!used[b]) { /* a temporary of no section: it gets no memory */
            p->buffers.at[b].life = HD__LIFE_TEMP;
            p->buffers.at[b].memory = HD__MEM_MAIN;
        }
    p->facts.count = 0; /* states of strategies, which are proved */
    free(used);
    return hd__memory_offsets(p, err);
}
