/* The plan itself, proved: persistent buffers of a memory lie one behind another in its arena, and arenas too.
 * Temporaries that are alive at the same time share no byte, and none lies in the persistent part: a sweep over list
 * positions with a bit for each buffer, in the order of offsets: each newcomer looks at its neighbour. */
#include <stdlib.h>

#include "core/verify/verify.h"

struct place {
    int64_t lo, hi;
    uint32_t buffer;
};

/* The temporaries of a section. */
struct sweep {
    HD__ARRAY(struct place) places; /* sorted by lo */
    uint32_t *rank;                 /* by buffer: its index there */
    uint64_t *alive;                /* bits, by rank */
};

static int by_lo(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static struct sweep open_sweep(const struct hd__walk *w, const uint32_t *last)
{
    struct sweep s = {.rank = hd__alloc(w->p->buffers.count * sizeof *s.rank)};
    for (uint32_t n = 1; n < w->p->buffers.count; n++) {
        const struct hd__buffer *b = &w->p->buffers.at[n];
        if (b->life != HD__LIFE_PERSISTENT && (last[n] || w->buffer[n].carried))
            hd__push(&s.places, ((struct place){b->offset, b->offset + b->bytes, n}));
    }
    hd__sort(&s.places, by_lo);
    for (uint32_t n = 0; n < s.places.count; n++)
        s.rank[s.places.at[n].buffer] = n;
    s.alive = hd__alloc((s.places.count / 64 + 1) * sizeof *s.alive);
    return s;
}

/* The last that is alive of those that begin before `hi`: as these share no byte, no other reaches further. */
static const struct place *last_before(const struct sweep *s, int64_t hi)
{
    uint32_t a = 0, z = s->places.count;
    while (a < z) {
        uint32_t mid = (a + z) / 2;
        if (s->places.at[mid].lo < hi)
            a = mid + 1;
        else
            z = mid;
    }
    uint64_t bits = s->alive[a / 64] & ((UINT64_C(1) << a % 64) - 1);
    for (a /= 64; !bits && a; bits = s->alive[a])
        a--;
    return bits ? &s->places.at[a * 64 + 63 - (uint32_t)__builtin_clzll(bits)] : NULL;
}

static void begin_life(struct sweep *s, struct hd__walk *w, uint32_t buffer)
{
    const struct hd__buffer *b = w->p->buffers.at, *x = &b[buffer];
    const struct place *meets = last_before(s, x->offset + x->bytes);
    if (x->offset < w->p->persistent_bytes || x->offset + x->bytes > w->p->arena_bytes) {
        hd__diag(w, "%s lies at [%lld, %lld), outside the arena's temporary region", x->name, (long long)x->offset,
                 (long long)(x->offset + x->bytes));
        return;
    }
    if (meets && meets->hi > x->offset)
        hd__diag(w, "%s at [%lld, %lld) overlaps %s at [%lld, %lld), which is live", x->name, (long long)x->offset,
                 (long long)(x->offset + x->bytes), b[meets->buffer].name, (long long)meets->lo, (long long)meets->hi);
    s->alive[s->rank[buffer] / 64] |= UINT64_C(1) << s->rank[buffer] % 64;
}

/* Buffers that live for a step are live from their first access to the step's end; in a repeated section, all the
 * time. */
static void begin_carried(struct sweep *s, struct hd__walk *w, const uint32_t *last)
{
    const struct hd__code_section *section = w->section;
    const struct hd_program *p = w->p;
    w->position = 0;
    for (uint32_t b = 1; b < p->buffers.count && section->repeat; b++) {
        if (p->buffers.at[b].life == HD__LIFE_STEP && section->repeat > 1)
            w->buffer[b].carried |= last[b] > 0;
        if (w->buffer[b].carried)
            begin_life(s, w, b);
    }
}

void hd__check_temporaries(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    const hd__code *code = &w->section->code;
    uint32_t *last = hd__alloc(p->buffers.count * sizeof *last); /* position + 1 */
    uint8_t *seen = hd__alloc(p->buffers.count);
    uint32_t t[HD__MAX_ACCESSES];
    for (uint32_t n = 0; n < code->count; n++)
        for (uint32_t k = hd__live_buffers(p, code, w->instr_at, n, t); k-- > 0;)
            last[t[k]] = n + 1;
    struct sweep s = open_sweep(w, last);
    begin_carried(&s, w, last);
    for (w->position = 0; w->position < code->count; w->position++) {
        uint32_t touches = hd__live_buffers(p, code, w->instr_at, w->position, t);
        for (uint32_t k = 0; k < touches; k++) {
            uint32_t b = t[k];
            int step = p->buffers.at[b].life == HD__LIFE_STEP;
            if (seen[b] || p->buffers.at[b].life == HD__LIFE_PERSISTENT || (step && w->buffer[b].carried))
                continue;
            seen[b] = 1;
            w->buffer[b].carried = (uint8_t)step;
            begin_life(&s, w, b);
        }
        for (uint32_t k = 0; k < touches; k++)
            if (last[t[k]] == w->position + 1 && p->buffers.at[t[k]].life == HD__LIFE_TEMP)
                s.alive[s.rank[t[k]] / 64] &= ~(UINT64_C(1) << s.rank[t[k]] % 64);
    }
    hd__free_array(&s.places);
    free(s.rank);
    free(s.alive);
    free(last);
    free(seen);
}

/* ---- what is persistent */

static int by_place(const void *a, const void *b)
{
    const struct hd__buffer *x = *(const struct hd__buffer *const *)a, *y = *(const struct hd__buffer *const *)b;
    return x->memory != y->memory ? x->memory - y->memory : (x->offset > y->offset) - (x->offset < y->offset);
}

void hd__check_arenas(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    const struct hd__buffer **at = hd__alloc(p->buffers.count * sizeof *at);
    uint32_t n = 0;
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life == HD__LIFE_PERSISTENT)
            at[n++] = &p->buffers.at[b];
    qsort(at, n, sizeof *at, by_place);
    for (uint32_t k = 0; k < n; k++) {
        const struct hd__buffer *x = at[k], *next = k + 1 < n && at[k + 1]->memory == x->memory ? at[k + 1] : NULL;
        int64_t end = next ? next->offset : x->memory == HD__MEM_MAIN ? p->persistent_bytes : p->bytes[x->memory];
        if (x->offset < 0 || x->offset + x->bytes > end)
            hd__diag(w, "persistent %s at [%lld, %lld) reaches %s, which %s at %lld", x->name, (long long)x->offset,
                     (long long)(x->offset + x->bytes), next ? next->name : "the end of its region",
                     next ? "begins" : "is", (long long)end);
    }
    if (p->bytes[HD__MEM_MAIN] != p->arena_bytes || p->persistent_bytes > p->arena_bytes)
        hd__diag(w, "the arena has %lld bytes, not %lld", (long long)p->bytes[HD__MEM_MAIN], (long long)p->arena_bytes);
    for (int m = 1; m < HD__MEM_COUNT; m++)
        if (p->arena_base[m] < p->arena_base[m - 1] + p->bytes[m - 1])
            hd__diag(w, "arena %d begins at %lld, inside the one before it, which ends at %lld", m,
                     (long long)p->arena_base[m], (long long)(p->arena_base[m - 1] + p->bytes[m - 1]));
    free(at);
}
