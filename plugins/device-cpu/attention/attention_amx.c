/* Grouped-query attention, forward, in bf16, on AMX.
 *
 * As attention.c does it, but on transposed tiles (keys x queries): the softmax of a query runs down a lane, and its
 * weights are written as the panel of pairs that the next product multiplies.
 *
 *     s' = k q'        p' = exp(scale s' - m)        o' += v' p'
 */
#include "attention/attention.h"

#ifdef __x86_64__

#include "products/tiles_pairs.h"

#include <math.h>

enum { KEYS, VALUES, QUERIES, SCORES, WEIGHTS, SUMS, MOST, TOTAL, ROWS };
enum { COLS = 32, TILE_K = 64, GROUP = 8 };

/* A tile of queries of one head, one of a group that passes by a tile of keys while it is in the caches. */
struct tile {
    char *scratch;
    int64_t q0, rows; /* queries, the columns of a panel */
    int64_t at;       /* in the group */
    int64_t k0, keys; /* the part that they see of the key tile at hand */
};

static void *buffer(const struct cpu_attention *x, const struct tile *t, int name)
{
    return t->scratch + x->at[name];
}

static float *state(const struct cpu_attention *x, const struct tile *t, int name)
{
    return (float *)buffer(x, t, name) + t->at * COLS;
}

static float *sums(const struct cpu_attention *x, const struct tile *t)
{
    return (float *)buffer(x, t, SUMS) + t->at * x->d_room * COLS;
}

static char *queries(const struct cpu_attention *x, const struct tile *t)
{
    return (char *)buffer(x, t, QUERIES) + t->at * cpu_tiles_panel_b(x->tiles, x->h.d);
}

/* The panels across d of the key tile from k0 on. */
static char *values(const struct cpu_attention *x, char *scratch, int64_t k0)
{
    return scratch + x->at[VALUES] + k0 / x->tile_k * x->panels_d * cpu_tiles_panel_a(x->tiles, x->tile_k);
}

static void pack_head(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    const struct hd_operand *k = &x->kernel->in[1], *v = &x->kernel->in[2];
    int64_t step = cpu_key_step(x);
    x->tiles->pack_a(scratch + x->at[KEYS], cpu_element(k, cpu_key_at(x, b, kv, 0)), k->dtype, step, 1, x->h.t, x->h.d);
    for (int64_t k0 = 0; k0 < x->h.t; k0 += x->tile_k)
        x->tiles->pack_a(values(x, scratch, k0), cpu_element(v, cpu_key_at(x, b, kv, k0)), v->dtype, 1, step, x->h.d,
                         cpu_least(x->tile_k, x->h.t - k0));
}

static void scores(const struct cpu_attention *x, const struct tile *t)
{
    const char *keys = (char *)buffer(x, t, KEYS) + t->k0 / x->tiles->mr * cpu_tiles_panel_a(x->tiles, x->h.d);
    float *to = buffer(x, t, SCORES);
    for (int64_t i = 0; i < t->keys; i += x->tiles->mr)
        x->tiles->kernel(x->h.d, keys + i / x->tiles->mr * cpu_tiles_panel_a(x->tiles, x->h.d), queries(x, t),
                         to + i * COLS, COLS, 0);
    for (int64_t r = 0; r < t->keys && x->cap > 0; r++)
        x->rows->cap(to + r * COLS, NULL, &(struct cpu_visible_span){0, COLS, COLS}, (float)(x->scale / x->cap));
}

/* Scores of keys that a query does not see, up to a multiple of kr keys, become -INFINITY; returns the keys that all of
 * the tile's queries see. */
static struct cpu_span mask(const struct cpu_attention *x, float *scores, int64_t q0, int64_t rows, int64_t k0,
                            int64_t keys)
{
    struct cpu_span all, unused;
    cpu_visible(&x->h, q0, &unused.first, &all.last);
    cpu_visible(&x->h, q0 + rows - 1, &all.first, &unused.last);
    all = (struct cpu_span){all.first - k0, cpu_least(all.last - k0, keys)};
    for (int64_t r = 0; r < cpu_tiles_pad(x->tiles, keys); r++) {
        float *row = scores + r * COLS;
        int64_t first = COLS, end = COLS;
        if (r >= all.first && r < all.last)
            continue;
        if (r < keys) {
            cpu_seen_by(&x->h, k0 + r, &first, &end);
            first = cpu_least(cpu_most(first - q0, 0), COLS);
            end = cpu_most(end - q0, first);
        }
        for (int64_t i = 0; i < first; i++)
            row[i] = -INFINITY;
        for (int64_t i = end; i < COLS; i++)
            row[i] = -INFINITY;
    }
    return all;
}

/* o' += v' p'; `first`: there was none. */
static void weigh(const struct cpu_attention *x, const struct tile *t, int64_t keys, int first)
{
    const struct cpu_tiles *k = x->tiles;
    int64_t base = t->k0 / x->tile_k * x->tile_k, one = cpu_tiles_panel_a(k, cpu_least(x->tile_k, x->h.t - base));
    const char *v = values(x, t->scratch, base) + (t->k0 - base) * k->mr * k->bytes;
    for (int64_t j = 0; j < x->panels_d; j++)
        k->kernel(keys, v + j * one, buffer(x, t, WEIGHTS), sums(x, t) + j * k->mr * COLS, COLS, !first);
}

AVX512 static void shrink_sums(const struct cpu_attention *x, const struct tile *t, const float *by)
{
    __m512 left = _mm512_loadu_ps(by), right = _mm512_loadu_ps(by + PAIR_LANES);
    float *at = sums(x, t);
    for (int64_t e = 0; e < x->h.d; e++, at += COLS) {
        _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), left));
        _mm512_storeu_ps(at + PAIR_LANES, _mm512_mul_ps(_mm512_loadu_ps(at + PAIR_LANES), right));
    }
}

/* The keys that queries q0 .. q0 + rows - 1 see, from the start of a panel of keys. */
static struct cpu_span key_range(const struct cpu_attention *x, int64_t q0, int64_t rows)
{
    struct cpu_span s;
    int64_t unused;
    cpu_visible(&x->h, q0, &s.first, &unused);
    cpu_visible(&x->h, q0 + rows - 1, &unused, &s.last);
    s.first = s.first / x->tiles->mr * x->tiles->mr;
    return s;
}

/* The key tile from `base` on. */
static void add_keys(const struct cpu_attention *x, struct tile *t, int64_t base)
{
    struct cpu_span seen = key_range(x, t->q0, t->rows);
    float shrink[COLS];
    struct cpu_columns c = {.most2 = state(x, t, MOST), .total = state(x, t, TOTAL), .shrink = shrink};
    t->k0 = cpu_most(base, seen.first);
    t->keys = cpu_least(base + x->tile_k, seen.last) - t->k0;
    if (t->keys <= 0)
        return;
    scores(x, t);
    c.keys = cpu_tiles_pad(x->tiles, t->keys);
    c.all = mask(x, buffer(x, t, SCORES), t->q0, t->rows, t->k0, t->keys);
    int moved = x->rows->columns(buffer(x, t, SCORES), &c, buffer(x, t, WEIGHTS), (float)x->scale);
    int first = t->k0 == seen.first;
    if (moved && !first)
        shrink_sums(x, t, shrink);
    weigh(x, t, c.keys, first);
}

static void begin(const struct cpu_attention *x, const struct tile *t, int64_t at)
{
    const struct hd_operand *q = &x->kernel->in[0];
    struct cpu_span seen = key_range(x, t->q0, t->rows);
    for (int64_t i = 0; i < COLS; i++) {
        state(x, t, MOST)[i] = -INFINITY;
        state(x, t, TOTAL)[i] = 0;
    }
    x->tiles->pack_b(queries(x, t), cpu_element(q, at), q->dtype, cpu_query_step(x), 1, t->rows, x->h.d);
    if (seen.first >= seen.last)
        memset(sums(x, t), 0, (size_t)(x->d_room * COLS) * sizeof(float));
}

/* rows[32, d_room] from columns[d, 32], each times its factor. */
AVX512 static void turn(const struct cpu_attention *x, const float *columns, const float *factor, float *rows)
{
    for (int64_t i = 0; i < COLS; i += PAIR_LANES) {
        __m512 by = _mm512_loadu_ps(factor + i);
        for (int64_t e = 0; e < x->h.d; e += PAIR_LANES) {
            const float *from = columns + e * COLS + i;
            pair_words r[PAIR_LANES];
            _Pragma("GCC unroll 16") for (int n = 0; n < PAIR_LANES; n++) r[n] =
                (pair_words)_mm512_mul_ps(_mm512_loadu_ps(from + n * COLS), by);
            pair_transpose(r);
            _Pragma("GCC unroll 16") for (int n = 0; n < PAIR_LANES; n++) *
                (pair_words *)(rows + (i + n) * x->d_room + e) = r[n];
        }
    }
}

static void finish(const struct cpu_attention *x, const struct tile *t, int64_t to)
{
    const float ln_2 = 0.693147181f;
    int64_t step = cpu_query_step(x);
    float *lse = x->kernel->out[1].data, *rows = buffer(x, t, ROWS), part[COLS];
    for (int64_t i = 0; i < COLS; i++)
        part[i] = state(x, t, TOTAL)[i] == 0 ? 0 : 1 / state(x, t, TOTAL)[i];
    turn(x, sums(x, t), part, rows);
    cpu_attention_store(x, 0, to, step, rows, t->rows);
    for (int64_t r = 0; r < t->rows; r++)
        lse[(to + r * step) / x->h.d] = state(x, t, MOST)[r] * ln_2 + logf(state(x, t, TOTAL)[r]);
}

static struct tile tile_of(const struct cpu_attention *x, char *scratch, int64_t q0, int64_t at)
{
    int64_t first = q0 + at * COLS;
    return (struct tile){.scratch = scratch, .q0 = first, .rows = cpu_least(COLS, x->h.s - first), .at = at};
}

static void forward_group(const struct cpu_attention *x, char *scratch, int64_t q0, int64_t to)
{
    int64_t rows = cpu_least(GROUP * COLS, x->h.s - q0), tiles = (rows + COLS - 1) / COLS;
    int64_t step = COLS * cpu_query_step(x);
    struct cpu_span seen = key_range(x, q0, rows);
    for (int64_t at = 0; at < tiles; at++) {
        struct tile t = tile_of(x, scratch, q0, at);
        begin(x, &t, to + at * step);
    }
    for (int64_t k0 = seen.first / x->tile_k * x->tile_k; k0 < seen.last; k0 += x->tile_k)
        for (int64_t at = 0; at < tiles; at++) {
            struct tile t = tile_of(x, scratch, q0, at);
            add_keys(x, &t, k0);
        }
    for (int64_t at = 0; at < tiles; at++) {
        struct tile t = tile_of(x, scratch, q0, at);
        finish(x, &t, to + at * step);
    }
}

static void forward_unit(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    pack_head(x, scratch, b, kv);
    for (int64_t g = 0; g < x->h.g; g++)
        for (int64_t q0 = 0; q0 < x->h.s; q0 += GROUP * COLS)
            forward_group(x, scratch, q0, cpu_query_at(x, b, kv, g, q0));
}

int32_t cpu_attention_amx(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err)
{
    const struct cpu_tiles *t = x->tiles;
    x->unit = forward_unit;
    x->tile_k = TILE_K;
    x->d_room = cpu_round_up(cpu_round_up(x->h.d, t->mr), PAIR_LANES);
    x->panels_d = (x->h.d + t->mr - 1) / t->mr;
    int64_t tiles_k = (x->h.t + x->tile_k - 1) / x->tile_k;
    const int64_t bytes[] = {
        [KEYS] = (x->h.t + t->mr - 1) / t->mr * cpu_tiles_panel_a(t, x->h.d),
        [VALUES] = tiles_k * x->panels_d * cpu_tiles_panel_a(t, x->tile_k),
        [QUERIES] = GROUP * cpu_tiles_panel_b(t, x->h.d),
        [SCORES] = x->tile_k * COLS * 4,
        [WEIGHTS] = cpu_tiles_panel_b(t, x->tile_k),
        [SUMS] = GROUP * x->d_room * COLS * 4,
        [MOST] = GROUP * COLS * 4,
        [TOTAL] = GROUP * COLS * 4,
        [ROWS] = COLS * x->d_room * 4,
    };
    cpu_attention_lay(x, bytes, sizeof bytes / sizeof bytes[0]);
    return cpu_attention_ready(x, k, err);
}

#else

int32_t cpu_attention_amx(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err)
{
    (void)x;
    (void)k;
    return hd_fail(err, HD_E_UNSUPPORTED, "attention: this machine has no AMX");
}

#endif
