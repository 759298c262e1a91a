/* Grouped-query attention, backward (Dao, arXiv 2307.08691, algorithm 2), on transposed tiles (keys x
 * queries), so that every product but one finds its operands as they lie:
 *
 *     s' = k q'        p' = exp(scale s' - lse)             dv += p' do
 *     dp' = v do'      ds' = scale p' (dp' - delta)         dk += ds' q      dq += ds k
 *
 * with delta = rowsum(do o). dk and dv are summed over the query heads of a kv head, dq over the key tiles,
 * in fp32 scratch of O(sequence). */
#include "attention/attention.h"

enum {
    KEYS_A,    /* k, rows of s' */
    VALUES_A,  /* v, rows of dp' */
    KEYS_B,    /* k, by key tile, columns of dq */
    QUERIES_T, /* q', columns of s' */
    GRADS_T,   /* do', columns of dp' */
    QUERIES_B, /* q, by query tile, columns of dk */
    GRADS_B,   /* do, by query tile, columns of dv */
    SCORES,    /* s' */
    SLOPES,    /* dp' */
    P,         /* p', in place of s' where it is fp32 */
    DS,        /* ds', in place of dp' likewise */
    LEFT,      /* ds, packed */
    SUMS,      /* dk, dv, dq */
    ROWS,      /* lse, delta */
};
enum { TILE = 128, KEY_TILE = 64, KEY_GROUP = 4, SLOPES_MOST = 1024 };

/* A tile: keys k0.. by queries q0.., both within one key tile and one query tile. */
struct tile {
    char *scratch;
    int64_t k0, keys;
    int64_t q0, queries; /* q0 is a multiple of nr within its query tile */
    int64_t from;        /* where the query tile begins */
};

static int64_t room_s(const struct cpu_attention *x)
{
    return cpu_round_up(x->h.s, x->tile_q) + cpu_round_up(TILE, x->tiles->mr);
}

static float *sums(const struct cpu_attention *x, char *scratch, int which)
{
    return (float *)(scratch + x->at[SUMS]) + which * room_s(x) * x->d_room;
}

static float *rows(const struct cpu_attention *x, char *scratch, int which)
{
    return (float *)(scratch + x->at[ROWS]) + which * room_s(x);
}

/* From the first query that sees key k0 to the last one that sees key k0 + n - 1. */
static struct cpu_span seeing(const struct cpu_attention *x, int64_t k0, int64_t n)
{
    struct cpu_span s;
    int64_t unused;
    cpu_seen_by(&x->h, k0, &s.first, &s.last);
    if (n > 1)
        cpu_seen_by(&x->h, k0 + n - 1, &unused, &s.last);
    return s;
}

/* ---- packing */

/* A head's positions as panels across d, tile by tile; each tile's panels take the room of a full one. */
static void pack_by_tile(const struct cpu_attention *x, char *to, const struct hd_operand *o, int64_t at, int64_t step,
                         int64_t tile)
{
    int64_t room = x->panels_d * cpu_tiles_panel_b(x->tiles, tile);
    for (int64_t i = 0; i < x->h.s; i += tile, to += room)
        x->tiles->pack_b(to, cpu_element(o, at + i * step), o->dtype, 1, step, x->h.d, cpu_least(tile, x->h.s - i));
}

static void pack_keys(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    const struct hd_operand *k = &x->kernel->in[1], *v = &x->kernel->in[2];
    int64_t step = cpu_key_step(x), at = cpu_key_at(x, b, kv, 0), tile = x->tile_k / x->tiles->mr;
    for (int64_t k0 = 0; k0 < x->h.t; k0 += x->tile_k) {
        int64_t keys = cpu_least(x->tile_k, x->h.t - k0);
        int64_t to = k0 / x->tile_k * tile * cpu_tiles_panel_a(x->tiles, x->h.d);
        x->tiles->pack_a(scratch + x->at[KEYS_A] + to, cpu_element(k, at + k0 * step), k->dtype, step, 1, keys, x->h.d);
        x->tiles->pack_a(scratch + x->at[VALUES_A] + to, cpu_element(v, at + k0 * step), v->dtype, step, 1, keys,
                         x->h.d);
    }
    pack_by_tile(x, scratch + x->at[KEYS_B], k, at, step, x->tile_k);
}

static void pack_queries(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv, int64_t g)
{
    const struct hd_operand *q = &x->kernel->in[0], *o = &x->kernel->in[3], *grad = &x->kernel->in[5];
    const float *lse = x->kernel->in[4].data;
    int64_t step = cpu_query_step(x), at = cpu_query_at(x, b, kv, g, 0);
    x->tiles->pack_b(scratch + x->at[QUERIES_T], cpu_element(q, at), q->dtype, step, 1, x->h.s, x->h.d);
    x->tiles->pack_b(scratch + x->at[GRADS_T], cpu_element(grad, at), grad->dtype, step, 1, x->h.s, x->h.d);
    pack_by_tile(x, scratch + x->at[QUERIES_B], q, at, step, x->tile_q);
    pack_by_tile(x, scratch + x->at[GRADS_B], grad, at, step, x->tile_q);
    for (int64_t i = 0; i < x->h.s; i++) {
        rows(x, scratch, 0)[i] = lse[at / x->h.d + i * x->h.k * x->h.g];
        rows(x, scratch, 1)[i] = x->rows->dot(cpu_element(grad, at + i * step), grad->dtype,
                                              cpu_element(o, at + i * step), o->dtype, x->h.d);
    }
}

/* ---- products */

/* The queries of the tile that see a panel of keys, keys i.. of the tile. */
static struct cpu_span queries_seeing(const struct cpu_attention *x, const struct tile *t, int64_t i)
{
    return cpu_span_within(seeing(x, t->k0 + i, cpu_least(x->tiles->mr, t->keys - i)), t->q0, t->queries);
}

/* s' or dp' of a tile: `left` by key tile, `right` across the queries. */
static void scores(const struct cpu_attention *x, const struct tile *t, int left, int right, int to)
{
    int64_t d = x->h.d, one_a = cpu_tiles_panel_a(x->tiles, d), one_b = cpu_tiles_panel_b(x->tiles, d);
    struct cpu_panels a = {t->scratch + x->at[left] + t->k0 / x->tiles->mr * one_a, one_a, 0, 0};
    struct cpu_panels b = {t->scratch + x->at[right] + t->q0 / x->tiles->nr * one_b, one_b, 0, 0};
    for (int64_t i = 0; i < t->keys; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, queries_seeing(x, t, i), (struct cpu_span){0, d}, &a, &b,
                          (float *)(t->scratch + x->at[to]), x->tile_q, 0);
}

static void weights(const struct cpu_attention *x, const struct tile *t)
{
    float slopes[SLOPES_MOST + 16];
    struct cpu_softmax_row row = {.lse = rows(x, t->scratch, 0) + t->q0,
                                  .delta = rows(x, t->scratch, 1) + t->q0,
                                  .slopes = x->cap > 0 ? slopes : NULL};
    /* Queries are columns here and rows of dq's product: zeros to the end of the last panel of either. */
    int64_t total = cpu_round_up(cpu_round_up(t->queries, x->tiles->mr), x->tiles->nr);
    for (int64_t r = 0; r < t->keys; r++) {
        struct cpu_span seen = cpu_span_within(seeing(x, t->k0 + r, 1), t->q0, t->queries);
        struct cpu_visible_span visible = {seen.first, seen.last, total};
        int64_t at = r * x->tile_q;
        float *scores = (float *)(t->scratch + x->at[SCORES]) + at;
        void *p = t->scratch + x->at[P] + cpu_weights_bytes(x, at);
        void *ds = t->scratch + x->at[DS] + cpu_weights_bytes(x, at);
        row.scores = scores;
        row.dp = (float *)(t->scratch + x->at[SLOPES]) + at;
        if (visible.first < visible.last) {
            if (x->cap > 0)
                x->rows->cap(scores, slopes, &visible, (float)(x->scale / x->cap));
            x->rows->grad[x->row_kind](&row, p, ds, &visible, (float)x->scale);
        } else {
            memset(p, 0, (size_t)cpu_weights_bytes(x, total));
            memset(ds, 0, (size_t)cpu_weights_bytes(x, total));
        }
    }
}

/* dv += p' do, or dk += ds' q. */
static void add_to_keys(const struct cpu_attention *x, const struct tile *t, int left, int right, float *to)
{
    int64_t full = cpu_least(x->tile_q, x->h.s - t->from), tile = x->panels_d * cpu_tiles_panel_b(x->tiles, x->tile_q);
    struct cpu_panels a = cpu_tiles_left(x->tiles, t->scratch + x->at[left], x->tile_q, 1, t->keys, t->queries, NULL);
    struct cpu_panels b = {t->scratch + x->at[right] + t->from / x->tile_q * tile +
                               (t->q0 - t->from) * x->tiles->nr * x->tiles->bytes,
                           cpu_tiles_panel_b(x->tiles, full), 0, 0};
    for (int64_t i = 0; i < t->keys; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, (struct cpu_span){0, x->h.d}, queries_seeing(x, t, i), &a, &b,
                          to + t->k0 * x->d_room, x->d_room, 1);
}

/* dq += ds k. */
static void add_to_queries(const struct cpu_attention *x, const struct tile *t)
{
    struct cpu_panels a =
        cpu_tiles_left(x->tiles, t->scratch + x->at[DS], 1, x->tile_q, t->queries, t->keys, t->scratch + x->at[LEFT]);
    struct cpu_panels b = {t->scratch + x->at[KEYS_B] +
                               t->k0 / x->tile_k * x->panels_d * cpu_tiles_panel_b(x->tiles, x->tile_k),
                           cpu_tiles_panel_b(x->tiles, t->keys), 0, 0};
    for (int64_t i = 0; i < t->queries; i += x->tiles->mr) {
        struct cpu_span seen = cpu_keys_seen(x, t->q0 + i, cpu_least(x->tiles->mr, t->queries - i));
        cpu_tiles_product(x->tiles, i, (struct cpu_span){0, x->h.d}, cpu_span_within(seen, t->k0, t->keys), &a, &b,
                          sums(x, t->scratch, 2) + t->q0 * x->d_room, x->d_room, 1);
    }
}

static void backward_tile(const struct cpu_attention *x, const struct tile *t)
{
    scores(x, t, KEYS_A, QUERIES_T, SCORES);
    scores(x, t, VALUES_A, GRADS_T, SLOPES);
    weights(x, t);
    add_to_keys(x, t, P, GRADS_B, sums(x, t->scratch, 1));
    add_to_keys(x, t, DS, QUERIES_B, sums(x, t->scratch, 0));
    add_to_queries(x, t);
}

/* The tile of keys k0.. and the queries from.. that see one of them. */
static void backward_pair(const struct cpu_attention *x, char *scratch, int64_t k0, int64_t from)
{
    struct tile t = {.scratch = scratch, .k0 = k0, .keys = cpu_least(x->tile_k, x->h.t - k0), .from = from};
    struct cpu_span seen = seeing(x, k0, t.keys);
    int64_t skip = cpu_most(0, seen.first - from) / x->tiles->nr * x->tiles->nr;
    t.q0 = from + skip;
    t.queries = cpu_least(x->tile_q, x->h.s - from) - skip;
    if (t.queries > 0 && from < seen.last)
        backward_tile(x, &t);
}

/* A group of key tiles passes by a tile of queries while that is in the caches. */
static void backward_keys(const struct cpu_attention *x, char *scratch, int64_t k0)
{
    int64_t end = cpu_least(k0 + KEY_GROUP * x->tile_k, x->h.t);
    struct cpu_span seen = seeing(x, k0, end - k0);
    for (int64_t from = seen.first / x->tile_q * x->tile_q; from < seen.last; from += x->tile_q)
        for (int64_t k = k0; k < end; k += x->tile_k)
            backward_pair(x, scratch, k, from);
}

static void backward_unit(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    size_t head = (size_t)(room_s(x) * x->d_room) * sizeof(float);
    int64_t key = cpu_key_at(x, b, kv, 0);
    pack_keys(x, scratch, b, kv);
    memset(sums(x, scratch, 0), 0, 2 * head);
    for (int64_t g = 0; g < x->h.g; g++) {
        pack_queries(x, scratch, b, kv, g);
        memset(sums(x, scratch, 2), 0, head);
        for (int64_t k0 = 0; k0 < x->h.t; k0 += KEY_GROUP * x->tile_k)
            backward_keys(x, scratch, k0);
        cpu_attention_store(x, 0, cpu_query_at(x, b, kv, g, 0), cpu_query_step(x), sums(x, scratch, 2), x->h.s);
    }
    cpu_attention_store(x, 1, key, cpu_key_step(x), sums(x, scratch, 0), x->h.t);
    cpu_attention_store(x, 2, key, cpu_key_step(x), sums(x, scratch, 1), x->h.t);
}

/* ---- preparing */

/* A multiple of nr is what columns want, a multiple of mr what rows want. */
static int64_t query_tile(const struct cpu_tiles *t)
{
    int64_t both = t->nr;
    while (both % t->mr)
        both += t->nr;
    return cpu_most(TILE / both, 1) * both;
}

static void backward_layout(struct cpu_attention *x)
{
    const struct cpu_tiles *t = x->tiles;
    x->tile_q = query_tile(t);
    x->tile_k = KEY_TILE / t->mr * t->mr;
    x->d_room = cpu_round_up(x->h.d, t->nr);
    x->panels_d = x->d_room / t->nr;
    int64_t d = x->h.d, n_k = (x->h.t + x->tile_k - 1) / x->tile_k, n_q = (x->h.s + x->tile_q - 1) / x->tile_q;
    int64_t keys_a = n_k * (x->tile_k / t->mr) * cpu_tiles_panel_a(t, d);
    int64_t across = cpu_round_up(x->h.s, t->nr) / t->nr * cpu_tiles_panel_b(t, d);
    int64_t queries_b = n_q * x->panels_d * cpu_tiles_panel_b(t, x->tile_q);
    int64_t weights = x->row_kind == CPU_ROWS_F32 ? 0 : cpu_weights_bytes(x, x->tile_k * x->tile_q);
    const int64_t bytes[] = {
        [KEYS_A] = keys_a,
        [VALUES_A] = keys_a,
        [KEYS_B] = n_k * x->panels_d * cpu_tiles_panel_b(t, x->tile_k),
        [QUERIES_T] = across,
        [GRADS_T] = across,
        [QUERIES_B] = queries_b,
        [GRADS_B] = queries_b,
        [SCORES] = x->tile_k * x->tile_q * 4,
        [SLOPES] = x->tile_k * x->tile_q * 4,
        [P] = weights,
        [DS] = weights,
        [LEFT] = (x->tile_q / t->mr + 1) * cpu_tiles_panel_a(t, x->tile_k),
        [SUMS] = 3 * room_s(x) * x->d_room * 4,
        [ROWS] = 2 * room_s(x) * 4,
    };
    cpu_attention_lay(x, bytes, sizeof bytes / sizeof bytes[0]);
    if (!weights) {
        x->at[P] = x->at[SCORES];
        x->at[DS] = x->at[SLOPES];
    }
}

int32_t cpu_fast_attention_grad(struct hd_kernel *k, struct hd_error *err)
{
    struct cpu_attention x = {.unit = backward_unit};
    int32_t status = cpu_attention_init(&x, k, err);
    if (status)
        return status;
    backward_layout(&x);
    if (x.cap > 0 && x.tile_q > SLOPES_MOST)
        return hd_fail(err, HD_E_UNSUPPORTED, "attention: tiles of more than %d queries have no soft cap", SLOPES_MOST);
    return cpu_attention_ready(&x, k, err);
}
