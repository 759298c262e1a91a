/* The model: a word becomes symbols, and the pair of the lowest rank is merged until none is left, the leftmost first
 * of equals. Short words are scanned; long ones have a heap, so that a word of a megabyte takes n log n. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "internal.h"

#define NONE UINT32_MAX
enum { SHORT = 32 }; /* symbols that are scanned */

/* ---- pairs */

bool bpe_pairs_reserve(struct bpe_model *m, size_t pairs, size_t ranks)
{
    m->pair_bits = 4;
    while ((UINT64_C(1) << m->pair_bits) < 2 * pairs)
        m->pair_bits++;
    m->pairs = calloc((size_t)1 << m->pair_bits, sizeof *m->pairs);
    m->merged = calloc(ranks + 1, sizeof *m->merged);
    return m->pairs && m->merged;
}

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)((uint32_t)left + 1) << 32 | (uint32_t)right;
}

static inline struct bpe_pair *pair_slot(const struct bpe_model *m, uint64_t key)
{
    uint64_t mask = (UINT64_C(1) << m->pair_bits) - 1;
    uint64_t i = (key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - m->pair_bits);
    while (m->pairs[i].key && m->pairs[i].key != key)
        i = (i + 1) & mask;
    return &m->pairs[i];
}

void bpe_pairs_put(struct bpe_model *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t key = pair_key(left, right);
    *pair_slot(m, key) = (struct bpe_pair){key, rank, id};
    m->merged[rank] = id;
}

/* The rank of a pair; NONE: it is not merged. */
static inline uint32_t rank_of(const struct bpe_model *m, int32_t left, int32_t right)
{
    const struct bpe_pair *p = pair_slot(m, pair_key(left, right));
    return p->key ? p->rank : NONE;
}

void bpe_model_free(struct bpe_model *m)
{
    bpe_map_free(&m->words);
    free(m->pairs);
    free(m->merged);
}

/* ---- symbols */

/* Characters, or bytes, that have no token. */
static int32_t no_token(struct bpe_context *c, const char *text, size_t bytes)
{
    char hex[13] = "";
    for (size_t i = 0; i < bytes; i++)
        snprintf(hex + 3 * i, sizeof hex - 3 * i, " %02x", (uint8_t)text[i]);
    return hd_fail(c->err, HD_E_INVALID,
                   "%s: the bytes%s of the text have no token, and the file has no unk_token: it cannot be written in "
                   "this tokenizer's ids",
                   c->t->path, hex);
}

/* Bytes by the tokens <0x00> ... <0xFF>; false where one of them is missing. */
static bool fall_back(const struct bpe_model *m, const char *text, size_t bytes, int32_t *out, uint32_t *n)
{
    for (size_t i = 0; i < bytes; i++)
        if (m->byte_id[(uint8_t)text[i]] < 0)
            return false;
    for (size_t i = 0; i < bytes; i++)
        out[(*n)++] = m->byte_id[(uint8_t)text[i]];
    return true;
}

/* The symbols of a word before any merge, in `out`, which has room for one a byte. */
static int32_t split_symbols(struct bpe_context *c, const char *text, size_t bytes, int32_t *out, uint32_t *n)
{
    const struct bpe_model *m = &c->t->model;
    bool unknown = false;
    *n = 0;
    for (size_t i = 0, k; i < bytes; i += k) {
        int32_t id;
        k = m->byte_level ? 1 : bpe_utf8_length((const uint8_t *)text + i, bytes - i);
        k = k ? k : 1;
        id = m->byte_level ? m->byte_id[(uint8_t)text[i]] : bpe_map_find(&m->words, text + i, k);
        if (id < 0 && m->byte_fallback && fall_back(m, text + i, k, out, n))
            continue;
        if (id < 0 && m->unk < 0)
            return no_token(c, text + i, k);
        if (id >= 0 || !unknown || !m->fuse_unk)
            out[(*n)++] = id >= 0 ? id : m->unk;
        unknown = id < 0;
    }
    return HD_OK;
}

/* ---- short words */

static uint32_t merge_short(const struct bpe_model *m, int32_t *ids, uint32_t n)
{
    uint32_t rank[SHORT], at;
    for (uint32_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(m, ids[i], ids[i + 1]);
    for (; n > 1; n--) {
        at = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            at = rank[i] < rank[at] ? i : at;
        if (rank[at] == NONE)
            break;
        ids[at] = m->merged[rank[at]];
        memmove(&ids[at + 1], &ids[at + 2], (n - at - 2) * sizeof *ids);
        memmove(&rank[at], &rank[at + 1], (n - at - 2) * sizeof *rank);
        if (at + 2 < n)
            rank[at] = rank_of(m, ids[at], ids[at + 1]);
        if (at > 0)
            rank[at - 1] = rank_of(m, ids[at - 1], ids[at]);
    }
    return n;
}

/* ---- long words: a heap of rank in the upper half, position in the lower */

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    for (; i && heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        child += child + 1 < *n && heap[child + 1] < heap[child];
        if (last <= heap[child])
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

static void push_pair(const struct bpe_model *m, const struct bpe_symbol *s, uint32_t at, uint64_t *heap, size_t *n)
{
    uint32_t rank = s[at].next == NONE ? NONE : rank_of(m, s[at].id, s[s[at].next].id);
    if (rank != NONE)
        heap_push(heap, n, (uint64_t)rank << 32 | at);
}

/* A pair that was pushed may be gone: what it would become now is asked again, as Hugging Face's does. */
static void merge_heap(const struct bpe_model *m, struct bpe_symbol *s, uint64_t *heap, size_t n)
{
    while (n) {
        uint64_t top = heap_pop(heap, &n);
        uint32_t at = (uint32_t)top, right = s[at].next, rank;
        if (s[at].id < 0 || right == NONE || (rank = rank_of(m, s[at].id, s[right].id)) == NONE ||
            m->merged[rank] != m->merged[top >> 32])
            continue;
        s[at].id = m->merged[rank];
        s[at].next = s[right].next;
        s[right].id = -1;
        if (s[at].next != NONE)
            s[s[at].next].prev = at;
        if (s[at].prev != NONE)
            push_pair(m, s, s[at].prev, heap, &n);
        push_pair(m, s, at, heap, &n);
    }
}

/* Room for n symbols. Each merge takes one entry and adds two at most, so 3 n entries are enough. */
static bool reserve(struct bpe_context *c, size_t n)
{
    if (n <= c->symbol_room)
        return true;
    free(c->symbols);
    free(c->heap);
    c->symbol_room = n + n / 2;
    c->symbols = malloc(c->symbol_room * sizeof *c->symbols);
    c->heap = malloc(3 * c->symbol_room * sizeof *c->heap);
    if (c->symbols && c->heap)
        return true;
    c->symbol_room = 0;
    return false;
}

static int32_t merge_long(struct bpe_context *c, int32_t *ids, uint32_t *count)
{
    uint32_t n = *count;
    size_t in_heap = 0;
    if (!reserve(c, n))
        return bpe_no_memory(c);
    struct bpe_symbol *s = c->symbols;
    for (uint32_t i = 0; i < n; i++)
        s[i] = (struct bpe_symbol){ids[i], i ? i - 1 : NONE, i + 1 < n ? i + 1 : NONE};
    for (uint32_t i = 0; i + 1 < n; i++)
        push_pair(&c->t->model, s, i, c->heap, &in_heap);
    merge_heap(&c->t->model, s, c->heap, in_heap);
    *count = 0;
    for (uint32_t i = 0; i != NONE; i = s[i].next)
        ids[(*count)++] = s[i].id;
    return HD_OK;
}

/* ---- a word */

static int32_t long_word(struct bpe_context *c, const char *text, size_t bytes)
{
    uint32_t n;
    int32_t rc, *ids;
    if (bytes >= UINT32_MAX / 4)
        return hd_fail(c->err, HD_E_INVALID, "%s: a word of %zu bytes: cut the text into documents below 1 GB",
                       c->t->path, bytes);
    if (!(ids = malloc((bytes + 1) * sizeof *ids)))
        return bpe_no_memory(c);
    rc = split_symbols(c, text, bytes, ids, &n);
    if (!rc && n > SHORT)
        rc = merge_long(c, ids, &n);
    else if (!rc)
        n = merge_short(&c->t->model, ids, n);
    if (!rc)
        bpe_emit_ids(c, ids, n);
    free(ids);
    return rc;
}

static int32_t short_word(struct bpe_context *c, const char *text, size_t bytes, struct bpe_cached *keep)
{
    int32_t ids[SHORT], rc;
    uint32_t n;
    if ((rc = split_symbols(c, text, bytes, ids, &n)))
        return rc;
    n = merge_short(&c->t->model, ids, n);
    bpe_emit_ids(c, ids, n);
    if (keep && n <= BPE_CACHED_IDS) {
        keep->length = (uint8_t)bytes;
        keep->count = (uint8_t)n;
        memcpy(keep->bytes, text, bytes);
        memcpy(keep->ids, ids, n * sizeof *ids);
    }
    return HD_OK;
}

int32_t bpe_word(struct bpe_context *c, const char *text, size_t bytes)
{
    const struct bpe_model *m = &c->t->model;
    struct bpe_cached *cached = NULL;
    if (!bytes)
        return HD_OK;
    if (bytes <= BPE_CACHED_BYTES) {
        cached = &c->cache[XXH3_64bits(text, bytes) >> (64 - BPE_CACHE_BITS)];
        if (cached->length == bytes && !memcmp(cached->bytes, text, bytes)) {
            bpe_emit_ids(c, cached->ids, cached->count);
            return HD_OK;
        }
    }
    if (m->ignore_merges) {
        int32_t id = bpe_map_find(&m->words, text, bytes);
        if (id >= 0) {
            bpe_emit_ids(c, &id, 1);
            return HD_OK;
        }
    }
    return bytes <= SHORT ? short_word(c, text, bytes, cached) : long_word(c, text, bytes);
}
