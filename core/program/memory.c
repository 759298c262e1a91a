/* Lifetimes -> offsets in one arena.
 *
 * Persistent buffers come first. The temporaries of every section are planned anew over the memory behind them, those of a
 * step's sections together where something lives in several of them (HD__LIFE_STEP): each buffer lives from its first touch
 * to its last, in list positions, and gets the lowest offset that is free during that time, the largest first. What is taken
 * during [first, last] is answered by a tree over the positions whose nodes hold sorted, merged intervals of the arena:
 * n log n, where a scan of all placed buffers would be quadratic. */
#include <stdlib.h>

#include "core/program/touch.h"

#define ALIGN 64
#define PAGE 4096
#define HEAVY 64    /* a buffer is heavy from this part of the bound on */
#define EFFORT 8000 /* heavy buffers placed in search of a better order */

static int64_t align(int64_t bytes)
{
    return (bytes + ALIGN - 1) & ~(int64_t)(ALIGN - 1);
}

static int64_t page(int64_t bytes)
{
    return (bytes + PAGE - 1) & ~(int64_t)(PAGE - 1);
}

/* ---- sets of bytes: sorted, disjoint, merged intervals */

struct interval {
    int64_t lo, hi;
};

typedef HD__ARRAY(struct interval) taken;

/* Index of the first interval that ends at or behind `at`. */
static uint32_t first_ending(const taken *s, int64_t at)
{
    uint32_t lo = 0, hi = s->count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->at[mid].hi < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void take(taken *s, struct interval x)
{
    uint32_t from = first_ending(s, x.lo), to = from;
    while (to < s->count && s->at[to].lo <= x.hi) {
        x.lo = HD__MIN(x.lo, s->at[to].lo);
        x.hi = HD__MAX(x.hi, s->at[to].hi);
        to++;
    }
    if (to == from)
        hd__push(s, x); /* makes room for one more; moved into place below */
    else
        s->count -= to - from - 1;
    uint32_t old_tail = to == from ? from : to;
    uint32_t new_tail = from + 1;
    if (old_tail != new_tail)
        memmove(s->at + new_tail, s->at + old_tail, (s->count - new_tail) * sizeof *s->at);
    s->at[from] = x;
}

/* ---- the tree: leaf n is list position n
 * `all`: taken at some time of the node's span. `through`: taken during all of it, by a buffer put at this
 * node. */

struct node {
    taken all, through;
};

struct tree {
    struct node *nodes;
    uint32_t leaves;
};

#define MAX_SETS 160 /* four a level */

static void tree_put(struct tree *t, uint32_t first, uint32_t last, struct interval x)
{
    uint32_t l = first + t->leaves, r = last + t->leaves;
    for (uint32_t a = l, z = r; a; a /= 2, z /= 2) {
        take(&t->nodes[a].all, x);
        if (z != a)
            take(&t->nodes[z].all, x);
    }
    for (r++; l < r; l /= 2, r /= 2) {
        if (l & 1) {
            take(&t->nodes[l].all, x);
            take(&t->nodes[l++].through, x);
        }
        if (r & 1) {
            take(&t->nodes[--r].all, x);
            take(&t->nodes[r].through, x);
        }
    }
}

static uint32_t add_set(const taken **sets, uint32_t n, const taken *s)
{
    if (s->count)
        sets[n++] = s;
    return n;
}

/* The sets whose union is what is taken during [first, last]. */
static uint32_t tree_sets(const struct tree *t, uint32_t first, uint32_t last, const taken *sets[MAX_SETS])
{
    uint32_t l = first + t->leaves, r = last + t->leaves, n = 0;
    for (uint32_t a = l, z = r; a; a /= 2, z /= 2) {
        n = add_set(sets, n, &t->nodes[a].through);
        if (z != a)
            n = add_set(sets, n, &t->nodes[z].through);
    }
    for (r++; l < r; l /= 2, r /= 2) {
        if (l & 1)
            n = add_set(sets, n, &t->nodes[l++].all);
        if (r & 1)
            n = add_set(sets, n, &t->nodes[--r].all);
    }
    return n;
}

/* The lowest offset at which `bytes` are free during [first, last]; at a page if asked. */
static int64_t tree_find(const struct tree *t, uint32_t first, uint32_t last, int64_t bytes, int paged)
{
    const taken *sets[MAX_SETS];
    uint32_t n = tree_sets(t, first, last, sets), cursor[MAX_SETS] = {0};
    int64_t at = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (uint32_t k = 0; k < n; k++) {
            const taken *s = sets[k];
            while (cursor[k] < s->count && s->at[cursor[k]].lo < at + bytes) {
                if (s->at[cursor[k]].hi > at) {
                    at = paged ? page(s->at[cursor[k]].hi) : s->at[cursor[k]].hi;
                    moved = 1;
                }
                cursor[k]++;
            }
        }
    }
    return at;
}

static struct tree tree_new(uint32_t positions)
{
    struct tree t = {.leaves = 1};
    while (t.leaves < positions)
        t.leaves *= 2;
    t.nodes = hd__alloc(2 * (size_t)t.leaves * sizeof *t.nodes);
    return t;
}

static void tree_free(struct tree *t)
{
    for (uint32_t n = 0; n < 2 * t->leaves; n++) {
        free(t->nodes[n].all.at);
        free(t->nodes[n].through.at);
    }
    free(t->nodes);
}

/* ---- one section */

struct life {
    int64_t bytes, offset;
    double weight; /* the heaviest is placed first: bytes, unless a better order was found */
    uint32_t first, last, buffer, index, paged;
};

typedef HD__ARRAY(struct life) lives;

/* `end`: the last position of a step; 0: the section is in none. */
static void touch_life(const struct hd_program *p, lives *out, uint32_t *slot, uint32_t buffer, uint32_t n, uint32_t end)
{
    const struct hd__buffer *b = &p->buffers.at[buffer];
    if (b->life == HD__LIFE_PERSISTENT || (b->life == HD__LIFE_STEP && !end))
        return;
    if (!slot[buffer]) {
        struct life new = {.bytes = b->paged ? page(b->bytes) : align(b->bytes),
                           .paged = b->paged,
                           .weight = (double)b->bytes,
                           .first = n,
                           .buffer = buffer,
                           .index = out->count};
        hd__push(out, new);
        slot[buffer] = out->count;
    }
    out->at[slot[buffer] - 1].last = b->life == HD__LIFE_STEP ? end : n;
}

/* Sections that are planned together, one behind another in positions. */
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
    struct hd__touch t[HD__MAX_TOUCH];
    uint32_t *slot = hd__alloc(p->buffers.count * sizeof *slot), base = 0;
    for (uint32_t s = g->first; s < g->end; s++) {
        const hd__code *code = &p->sections.at[s].code;
        for (uint32_t n = 0; belongs(p, g, s) && n < code->count; n++)
            for (uint32_t k = hd__lives_on(p, code, position, n, t); k-- > 0;)
                touch_life(p, &out, slot, t[k].buffer, base + n, g->step ? g->positions - 1 : 0);
        base += belongs(p, g, s) ? code->count : 0;
    }
    free(slot);
    return out;
}

/* No plan can be smaller than what is alive at once. */
static int64_t lower_bound(const lives *l, uint32_t positions)
{
    int64_t *delta = hd__alloc((positions + 1) * sizeof *delta), live = 0, bound = 0;
    for (uint32_t n = 0; n < l->count; n++) {
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
    struct tree tree = tree_new(positions);
    int64_t top = 0;
    if (l->count)
        qsort(l->at, l->count, sizeof *l->at, by_weight);
    for (uint32_t n = 0; n < l->count; n++) {
        struct life *x = &l->at[n];
        x->offset = tree_find(&tree, x->first, x->last, x->bytes, (int)x->paged);
        tree_put(&tree, x->first, x->last, (struct interval){x->offset, x->offset + x->bytes});
        top = HD__MAX(top, x->offset + x->bytes);
    }
    tree_free(&tree);
    return top;
}

static void keep(struct hd_program *p, const lives *l, int64_t base)
{
    for (uint32_t n = 0; n < l->count; n++)
        p->buffers.at[l->at[n].buffer].offset = base + l->at[n].offset;
}

/* Those that lie above the bound come earlier next time. */
static void promote(lives *l, int64_t low)
{
    for (uint32_t n = 0; n < l->count; n++)
        if (l->at[n].offset + l->at[n].bytes > low)
            l->at[n].weight *= 1.5;
}

/* A good order of the few buffers that make up most of the memory; weights of `all` follow it. */
static void order_heavy(lives *all, uint32_t positions, int64_t low)
{
    lives heavy = {0};
    for (uint32_t n = 0; n < all->count; n++)
        if (all->at[n].bytes >= low / HEAVY)
            hd__push(&heavy, all->at[n]);
    int64_t best = INT64_MAX, bound = lower_bound(&heavy, positions);
    double *weight = hd__alloc(all->count * sizeof *weight);
    for (uint32_t round = 0; round < EFFORT / (heavy.count + 1) && best > bound; round++) {
        int64_t top = place_in_order(&heavy, positions);
        for (uint32_t n = 0; n < heavy.count && top < best; n++)
            weight[heavy.at[n].index] = heavy.at[n].weight;
        best = HD__MIN(best, top);
        promote(&heavy, bound);
    }
    for (uint32_t n = 0; n < all->count; n++)
        if (weight[all->at[n].index] > 0)
            all->at[n].weight = weight[all->at[n].index];
    free(weight);
    hd__free_array(&heavy);
}

/* Largest first is nearly always best; where it is not within half a percent of the bound, a better order is
 * searched. */
static int64_t plan_group(struct hd_program *p, const struct group *g, const uint32_t *position, int64_t base, int64_t *bound)
{
    lives l = find_lives(p, g, position);
    int64_t low = lower_bound(&l, g->positions), best = place_in_order(&l, g->positions);
    keep(p, &l, base);
    if (best > low + low / 200) {
        order_heavy(&l, g->positions, low);
        int64_t top = place_in_order(&l, g->positions);
        if (top < best)
            keep(p, &l, base);
        best = HD__MIN(best, top);
    }
    *bound = HD__MAX(*bound, low);
    hd__free_array(&l);
    return best;
}

/* What a step clears in `begin`, or first writes where a section is repeated, lives for nearly all of it: that is as good as
 * persistent, and each section can be planned alone. Returns whether any other lives from section to section. */
static int find_steps(struct hd_program *p)
{
    struct hd__touch t[HD__MAX_TOUCH];
    uint8_t *seen = hd__alloc(p->buffers.count);
    int any = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        for (uint32_t n = 0; n < x->code.count; n++)
            for (uint32_t k = hd__touches(p, &x->code.at[n], t); k-- > 0;) {
                struct hd__buffer *b = &p->buffers.at[t[k].buffer];
                if (b->life != HD__LIFE_STEP || seen[t[k].buffer])
                    continue;
                seen[t[k].buffer] = 1;
                b->section = s;
                if (x->repeat != 1 || !strcmp(x->name, "begin"))
                    b->life = HD__LIFE_PERSISTENT;
                any |= b->life == HD__LIFE_STEP;
            }
    }
    free(seen);
    return any;
}

/* What is persistent lies one behind another, in the arena of its memory. */
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
        x->offset = x->paged ? page(*end) : *end;
        *end = x->offset + (x->paged ? page(x->bytes) : align(x->bytes));
    }
    if (paged)
        p->bytes[HD__MEM_MAIN] = page(p->bytes[HD__MEM_MAIN]); /* temporaries are counted from here */
    return HD_OK;
}

static void place_arenas(struct hd_program *p)
{
    for (int memory = 1; memory < HD__MEM_COUNT; memory++)
        p->shift[memory] = page(p->shift[memory - 1] + p->bytes[memory - 1]);
}

int64_t hd__all_arenas(const struct hd_program *p)
{
    return p->shift[HD__MEM_COUNT - 1] + p->bytes[HD__MEM_COUNT - 1];
}

static int64_t plan_temporaries(struct hd_program *p, int steps, int64_t *bound)
{
    struct group step = {.end = p->sections.count, .step = 1};
    uint32_t *position = hd__positions(p);
    int64_t base = p->bytes[HD__MEM_MAIN], temp = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        struct group alone = {.first = s, .end = s + 1, .positions = p->sections.at[s].code.count};
        if (steps && p->sections.at[s].repeat)
            step.positions += alone.positions;
        else
            temp = HD__MAX(temp, plan_group(p, &alone, position, base, bound));
    }
    if (step.positions)
        temp = HD__MAX(temp, plan_group(p, &step, position, base, bound));
    free(position);
    return temp;
}

int32_t hd__memory(struct hd_program *p, struct hd_error *err)
{
    int steps = find_steps(p);
    if (place_persistent(p, err))
        return err->code;
    hd__alias(p);
    p->temp_bound = 0;
    p->persistent_bytes = p->bytes[HD__MEM_MAIN];
    p->temp_bytes = plan_temporaries(p, steps, &p->temp_bound);
    p->arena_bytes = p->bytes[HD__MEM_MAIN] = p->persistent_bytes + p->temp_bytes;
    place_arenas(p);
    return HD_OK;
}
