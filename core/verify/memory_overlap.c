/* The plan itself, proved: persistent buffers of a memory lie one behind another in its arena, and arenas too.
 * Temporaries that are alive at the same time share no byte, and none lies in the persistent part: a sweep over list
 * positions with the buffers alive sorted by offset: each newcomer looks at its neighbours. */
#include <stdlib.h>

#include "core/verify/verify.h"

struct alive {
    int64_t lo, hi;
    uint32_t buffer;
};

typedef HD__ARRAY(struct alive) alive_set; /* sorted by lo */

static uint32_t first_behind(const alive_set *s, int64_t lo)
{
    uint32_t a = 0, z = s->count;
    while (a < z) {
        uint32_t mid = (a + z) / 2;
        if (s->at[mid].lo < lo)
            a = mid + 1;
        else
            z = mid;
    }
    return a;
}

static void insert_alive(alive_set *s, struct hd__walk *w, struct alive x)
{
    const struct hd__buffer *b = w->p->buffers.at;
    uint32_t at = first_behind(s, x.lo);
    const struct alive *meets = at < s->count && s->at[at].lo < x.hi ? &s->at[at]
                                : at && s->at[at - 1].hi > x.lo      ? &s->at[at - 1]
                                                                     : NULL;
    if (meets)
        hd__diag(w, "%s at [%lld, %lld) overlaps %s at [%lld, %lld), which is live", b[x.buffer].name, (long long)x.lo,
                 (long long)x.hi, b[meets->buffer].name, (long long)meets->lo, (long long)meets->hi);
    hd__push(s, x);
    memmove(s->at + at + 1, s->at + at, (s->count - 1 - at) * sizeof *s->at);
    s->at[at] = x;
}

static void remove_alive(alive_set *s, const struct hd__buffer *b, uint32_t buffer)
{
    uint32_t at = first_behind(s, b->offset);
    while (at < s->count && s->at[at].lo == b->offset && s->at[at].buffer != buffer)
        at++;
    if (at == s->count || s->at[at].buffer != buffer)
        return; /* it lies outside the arena: begin() */
    memmove(s->at + at, s->at + at + 1, (s->count - at - 1) * sizeof *s->at);
    s->count--;
}

static void begin_life(alive_set *s, struct hd__walk *w, uint32_t buffer)
{
    const struct hd__buffer *b = &w->p->buffers.at[buffer];
    if (b->offset < w->p->persistent_bytes || b->offset + b->bytes > w->p->arena_bytes)
        hd__diag(w, "%s lies at [%lld, %lld), outside the arena's temporary region", b->name, (long long)b->offset,
                 (long long)(b->offset + b->bytes));
    else
        insert_alive(s, w, (struct alive){b->offset, b->offset + b->bytes, buffer});
}

/* Buffers that live for a step are live from their first access to the step's end; in a repeated section, all the
 * time. */
static void begin_carried(alive_set *set, struct hd__walk *w, const uint32_t *last)
{
    const struct hd__code_section *section = w->section;
    const struct hd_program *p = w->p;
    w->position = 0;
    for (uint32_t b = 1; b < p->buffers.count && section->repeat; b++) {
        if (p->buffers.at[b].life == HD__LIFE_STEP && section->repeat > 1)
            w->buffer[b].carried |= last[b] > 0;
        if (w->buffer[b].carried)
            begin_life(set, w, b);
    }
}

void hd__check_temporaries(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    const hd__code *code = &w->section->code;
    uint32_t *last = hd__alloc(p->buffers.count * sizeof *last); /* position + 1 */
    uint8_t *seen = hd__alloc(p->buffers.count);
    uint32_t t[HD__MAX_ACCESSES];
    alive_set set = {0};
    for (uint32_t n = 0; n < code->count; n++)
        for (uint32_t k = hd__live_buffers(p, code, w->instr_at, n, t); k-- > 0;)
            last[t[k]] = n + 1;
    begin_carried(&set, w, last);
    for (w->position = 0; w->position < code->count; w->position++) {
        uint32_t touches = hd__live_buffers(p, code, w->instr_at, w->position, t);
        for (uint32_t k = 0; k < touches; k++) {
            uint32_t b = t[k];
            int step = p->buffers.at[b].life == HD__LIFE_STEP;
            if (seen[b] || p->buffers.at[b].life == HD__LIFE_PERSISTENT || (step && w->buffer[b].carried))
                continue;
            seen[b] = 1;
            w->buffer[b].carried = (uint8_t)step;
            begin_life(&set, w, b);
        }
        for (uint32_t k = 0; k < touches; k++)
            if (last[t[k]] == w->position + 1 && p->buffers.at[t[k]].life == HD__LIFE_TEMP)
                remove_alive(&set, &p->buffers.at[t[k]], t[k]);
    }
    hd__free_array(&set);
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
