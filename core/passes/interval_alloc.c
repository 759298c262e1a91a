/* The allocator. See interval_alloc.h. */
#include "core/passes/interval_alloc.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"

struct interval {
    int64_t lo, hi;
};

/* A set of bytes: disjoint intervals that do not touch, sorted. */
struct set {
    struct interval *at; /* in the space's arena */
    uint32_t count, room;
};

/* Leaf n is list position n. `all`: bytes in use at some position below the node. `through`: bytes in use at all of
 * them, by lifetimes stored at this node. */
struct node {
    struct set all, through;
};

struct hd__interval_alloc {
    struct hd__arena arena;
    struct node *nodes;
    uint32_t leaves;
};

#define MAX_SETS 160 /* four a level */

struct hd__interval_alloc *hd__interval_alloc_new(uint32_t positions)
{
    struct hd__interval_alloc *s = hd__alloc(sizeof *s);
    s->leaves = 1;
    while (s->leaves < positions)
        s->leaves *= 2;
    s->nodes = hd__alloc(2 * (size_t)s->leaves * sizeof *s->nodes);
    return s;
}

void hd__interval_alloc_free(struct hd__interval_alloc *s)
{
    hd__arena_free(&s->arena);
    free(s->nodes);
    free(s);
}

/* ---- sets */

/* Index of the first interval that ends at or behind `at`. */
static uint32_t first_ending(const struct set *s, int64_t at)
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

static void make_room(struct hd__interval_alloc *space, struct set *s)
{
    struct interval *at = s->at;
    if (s->count < s->room)
        return;
    s->room = HD__MAX(4, 2 * s->room);
    s->at = hd__arena_alloc(&space->arena, s->room * sizeof *at);
    if (s->count)
        memcpy(s->at, at, s->count * sizeof *at);
}

/* Merges x with the intervals that it overlaps or touches. Returns whether the set has changed. */
static int insert_interval(struct hd__interval_alloc *space, struct set *s, struct interval x)
{
    uint32_t from = first_ending(s, x.lo), to = from;
    if (from < s->count && s->at[from].lo <= x.lo && s->at[from].hi >= x.hi)
        return 0;
    while (to < s->count && s->at[to].lo <= x.hi) {
        x.lo = HD__MIN(x.lo, s->at[to].lo);
        x.hi = HD__MAX(x.hi, s->at[to].hi);
        to++;
    }
    if (to == from)
        make_room(space, s);
    if (to != from + 1)
        memmove(s->at + from + 1, s->at + to, (s->count - to) * sizeof *s->at);
    s->count = s->count + from + 1 - to;
    s->at[from] = x;
    return 1;
}

/* ---- the tree */

/* Marks a leaf and the nodes above it: these have all that is in use below them, so a node that has x already is the
 * last. */
static void mark_path(struct hd__interval_alloc *s, uint32_t node, struct interval x)
{
    while (node && insert_interval(s, &s->nodes[node].all, x))
        node /= 2;
}

static void mark_used(struct hd__interval_alloc *s, uint32_t first, uint32_t last, struct interval x)
{
    uint32_t l = first + s->leaves, r = last + s->leaves;
    mark_path(s, l, x);
    mark_path(s, r, x);
    for (r++; l < r; l /= 2, r /= 2) {
        if (l & 1) {
            insert_interval(s, &s->nodes[l].all, x);
            insert_interval(s, &s->nodes[l++].through, x);
        }
        if (r & 1) {
            insert_interval(s, &s->nodes[--r].all, x);
            insert_interval(s, &s->nodes[r].through, x);
        }
    }
}

static uint32_t list(const struct set **sets, uint32_t n, const struct set *s)
{
    if (s->count)
        sets[n++] = s;
    return n;
}

/* The sets whose union is in use from `first` to `last`. */
static uint32_t list_sets(const struct hd__interval_alloc *s, uint32_t first, uint32_t last,
                          const struct set *sets[MAX_SETS])
{
    uint32_t l = first + s->leaves, r = last + s->leaves, n = 0;
    for (uint32_t a = l, z = r; a; a /= 2, z /= 2) {
        n = list(sets, n, &s->nodes[a].through);
        if (z != a)
            n = list(sets, n, &s->nodes[z].through);
    }
    for (r++; l < r; l /= 2, r /= 2) {
        if (l & 1)
            n = list(sets, n, &s->nodes[l++].all);
        if (r & 1)
            n = list(sets, n, &s->nodes[--r].all);
    }
    return n;
}

/* The intervals of a set behind the offset that is tried. */
struct rest {
    const struct interval *at, *end;
};

/* Walks all sets at once, in turn, each up to the offset that is tried, until none of them moves it. */
static int64_t find_gap(const struct hd__interval_alloc *space, uint32_t first, uint32_t last, int64_t bytes,
                        int64_t step)
{
    const struct set *sets[MAX_SETS];
    struct rest rest[MAX_SETS];
    uint32_t n = list_sets(space, first, last, sets);
    int64_t at = 0;
    for (uint32_t k = 0; k < n; k++)
        rest[k] = (struct rest){sets[k]->at, sets[k]->at + sets[k]->count};
    for (uint32_t k = 0, still = 0; still < n;) {
        struct rest *r = &rest[k];
        int64_t before = at;
        for (; r->at < r->end && r->at->lo < at + bytes; r->at++)
            if (r->at->hi > at)
                at = (r->at->hi + step - 1) & -step;
        still = at == before ? still + 1 : 1;
        if (r->at < r->end) {
            k++;
        } else { /* it cannot move anything any more */
            memmove(r, r + 1, (--n - k) * sizeof *r);
            still--;
        }
        k = k < n ? k : 0;
    }
    return at;
}

int64_t hd__interval_alloc_take(struct hd__interval_alloc *s, uint32_t first, uint32_t last, int64_t bytes,
                                int64_t step)
{
    int64_t at = find_gap(s, first, last, bytes, step);
    mark_used(s, first, last, (struct interval){at, at + bytes});
    return at;
}
