#include "service/train/data/passages.h"

#include <stdlib.h>

/* Tokens of a passage, and of these that differ, at least; one in EVERY places is chosen. */
enum { PASSAGE = 64, DIFFERENT = 16, EVERY = 32 };

/* The last tokens that were read, and their hash: sum of token i times FACTOR to the power of how far it is back. */
struct window {
    int32_t tokens[PASSAGE];
    uint64_t read, hash, oldest; /* oldest: the factor of the token that leaves */
};

#define FACTOR UINT64_C(0x9e3779b97f4a7c15)

static int is_varied(const struct window *w)
{
    int32_t different[DIFFERENT];
    int n = 1;
    for (int k = 0; k < DIFFERENT; k++)
        different[k] = w->tokens[0];
    for (int i = 1; i < PASSAGE && n < DIFFERENT; i++) {
        int known = 0;
        for (int k = 0; k < DIFFERENT; k++) /* all of them, so that the compiler makes vectors of it */
            known |= different[k] == w->tokens[i];
        different[n] = w->tokens[i];
        n += !known;
    }
    return n >= DIFFERENT;
}

static void add(struct hd__passages *p, struct window *w, int32_t token)
{
    int32_t *place = &w->tokens[w->read++ % PASSAGE];
    w->hash = w->hash * FACTOR + (uint64_t)token + 1;
    if (w->read > PASSAGE)
        w->hash -= ((uint64_t)*place + 1) * w->oldest;
    *place = token;
    uint64_t mixed = hd__hash(&w->hash, sizeof w->hash, 0);
    if (w->read >= PASSAGE && mixed % EVERY == 0 && is_varied(w))
        hd__push(&p->hashes, mixed);
}

static int by_hash(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort(struct hd__passages *p, int single)
{
    uint32_t kept = 0;
    hd__sort(&p->hashes, by_hash);
    for (uint32_t i = 0, next; i < p->hashes.count; i = next) {
        for (next = i + 1; next < p->hashes.count && p->hashes.at[next] == p->hashes.at[i];)
            next++;
        p->repeated += next > i + 1;
        if (next == i + 1 || !single)
            p->hashes.at[kept++] = p->hashes.at[i];
    }
    p->hashes.count = kept;
}

struct hd__passages hd__passages_of(const struct hd__data *data, int64_t seq_len, uint64_t tokens, int single)
{
    struct hd__passages p = {0};
    struct window w = {.oldest = 1};
    struct hd_error unused = HD_ERROR_INIT;
    int32_t *ids = hd__alloc((size_t)(2 * seq_len) * sizeof *ids);
    for (int i = 0; i < PASSAGE; i++)
        w.oldest *= FACTOR;
    for (uint64_t n = 0; n < hd__data_sequences(data) && w.read < tokens; n++) {
        if (hd__data_read(data, n, ids, ids + seq_len, 0, seq_len, &unused))
            break;
        for (int64_t i = 0; i < seq_len; i++)
            add(&p, &w, ids[i]);
    }
    free(ids);
    sort(&p, single);
    return p;
}

void hd__passages_free(struct hd__passages *p)
{
    hd__free_array(&p->hashes);
}

uint64_t hd__passages_common(const struct hd__passages *a, const struct hd__passages *b)
{
    uint64_t common = 0;
    for (uint32_t i = 0, k = 0; i < a->hashes.count && k < b->hashes.count;) {
        common += a->hashes.at[i] == b->hashes.at[k];
        if (a->hashes.at[i] <= b->hashes.at[k])
            i++;
        else
            k++;
    }
    return common;
}
