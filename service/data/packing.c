/* Best-fit decreasing over bounded lengths: sequences of equal room form a stack, and a tree says which rooms have
 * any. */
#include "service/data/packing.h"

#include <stdlib.h>

enum { NONE = UINT32_MAX };

struct rooms {
    uint32_t *top, *next; /* of each room the last sequence, of each sequence the one below; NONE: none */
    uint8_t *tree;        /* binary, over the rooms: is there any? */
    uint32_t leaves;
};

static void rooms_mark(struct rooms *r, uint32_t room)
{
    uint32_t i = r->leaves + room;
    for (r->tree[i] = r->top[room] != NONE; i > 1; i /= 2)
        r->tree[i / 2] = r->tree[i] | r->tree[i ^ 1];
}

static void rooms_push(struct rooms *r, uint32_t room, uint32_t sequence)
{
    r->next[sequence] = r->top[room];
    r->top[room] = sequence;
    if (r->next[sequence] == NONE)
        rooms_mark(r, room);
}

static uint32_t rooms_pop(struct rooms *r, uint32_t room)
{
    uint32_t sequence = r->top[room];
    r->top[room] = r->next[sequence];
    if (r->top[room] == NONE)
        rooms_mark(r, room);
    return sequence;
}

/* The smallest room of `least` or more that some sequence has; NONE. */
static uint32_t rooms_find(const struct rooms *r, uint32_t least)
{
    uint32_t i = r->leaves + least;
    if (r->tree[i])
        return least;
    while (i > 1 && (i & 1 || !r->tree[i + 1]))
        i /= 2;
    if (i <= 1)
        return NONE;
    for (i++; i < r->leaves;)
        i = 2 * i + !r->tree[2 * i];
    return i - r->leaves;
}

static void rooms_open(struct rooms *r, uint32_t room, uint32_t n)
{
    for (r->leaves = 1; r->leaves <= room; r->leaves *= 2) {
    }
    r->tree = hd__alloc(2 * (size_t)r->leaves);
    r->top = hd__alloc(((size_t)room + 1) * sizeof *r->top);
    r->next = hd__alloc(((size_t)n + 1) * sizeof *r->next);
    memset(r->top, 0xff, ((size_t)room + 1) * sizeof *r->top);
}

/* Counting sort: the longest first, those of one length in their order. */
static uint32_t *sort_by_length(const struct hd__piece *pieces, uint32_t n, uint32_t room)
{
    uint32_t *order = hd__alloc(((size_t)n + 1) * sizeof *order), *at = hd__alloc(((size_t)room + 2) * sizeof *at);
    for (uint32_t k = 0; k < n; k++)
        at[room - pieces[k].length + 1]++;
    for (uint32_t l = 1; l <= room; l++)
        at[l] += at[l - 1];
    for (uint32_t k = 0; k < n; k++)
        order[at[room - pieces[k].length]++] = k;
    free(at);
    return order;
}

/* Chooses the sequence of each piece; returns how many there are. */
static uint32_t choose_sequences(const struct hd__piece *pieces, const uint32_t *order, uint32_t n, uint32_t room,
                                 uint32_t *sequence)
{
    struct rooms r;
    uint32_t sequences = 0;
    rooms_open(&r, room, n);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t length = pieces[order[k]].length, found = rooms_find(&r, length);
        sequence[order[k]] = found == NONE ? sequences++ : rooms_pop(&r, found);
        rooms_push(&r, (found == NONE ? room : found) - length, sequence[order[k]]);
    }
    free(r.tree);
    free(r.top);
    free(r.next);
    return sequences;
}

void hd__pack(const struct hd__piece *pieces, uint32_t n, uint32_t room, struct hd__packing *packing)
{
    uint32_t *order = sort_by_length(pieces, n, room), *sequence = hd__alloc(((size_t)n + 1) * sizeof *sequence);
    uint32_t sequences = choose_sequences(pieces, order, n, room, sequence);
    *packing = (struct hd__packing){.piece = hd__alloc(((size_t)n + 1) * sizeof *packing->piece),
                                    .begins = hd__alloc(((size_t)sequences + 2) * sizeof *packing->begins),
                                    .sequences = sequences,
                                    .pieces = n};
    for (uint32_t k = 0; k < n; k++) {
        packing->begins[sequence[k] + 2]++;
        packing->tokens += pieces[k].length;
    }
    for (uint32_t s = 2; s <= sequences; s++)
        packing->begins[s] += packing->begins[s - 1];
    for (uint32_t k = 0; k < n; k++) /* leaves in begins[s + 1] where sequence s ends */
        packing->piece[packing->begins[sequence[order[k]] + 1]++] = pieces[order[k]].first;
    free(sequence);
    free(order);
}

void hd__packing_free(struct hd__packing *packing)
{
    free(packing->piece);
    free(packing->begins);
    *packing = (struct hd__packing){0};
}
