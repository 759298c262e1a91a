/* Attention forward in bf16 on AMX, on tiles of keys x queries: the softmax of a query runs down a lane, and its
 * weights are written as the panel of pairs that the next product multiplies.
 *
 *     s' = k q'        p' = exp(scale s' - m)        o' += v' p'
 */
#include "attention/attention.h"

#ifdef __x86_64__

#include "products/tiles_pairs.h"

#include <math.h>

enum { COLS = 32 }; /* of a panel: the queries of a tile */

static void scores(const struct cpu_attention *x, const struct cpu_attention_tile *t)
{
    for (int64_t i = 0; i < t->keys; i += x->tiles->mr)
        x->tiles->kernel(x->h.d, t->k.at + i / x->tiles->mr * t->k.step, t->q.at, t->scores + i * COLS, COLS, 0);
    for (int64_t r = 0; r < t->keys && x->cap > 0; r++)
        x->rows->cap(t->scores + r * COLS, NULL, &(struct cpu_visible_span){0, COLS, COLS}, (float)(x->scale / x->cap));
}

/* Scores of keys that a query does not see, up to a multiple of kr keys, become -INFINITY; returns the keys that all of
 * the tile's queries see. */
static struct cpu_span mask(const struct cpu_attention *x, const struct cpu_attention_tile *t)
{
    int64_t from = cpu_keys_seen(x, t->q0 + t->rows - 1, 1).first, to = cpu_keys_seen(x, t->q0, 1).last;
    struct cpu_span all = cpu_span_within((struct cpu_span){from, to}, t->k0, t->keys);
    for (int64_t r = 0; r < cpu_tiles_pad(x->tiles, t->keys); r++) {
        float *row = t->scores + r * COLS;
        int64_t first = COLS, end = COLS;
        if (r >= all.first && r < all.last)
            continue;
        if (r < t->keys) {
            cpu_seen_by(&x->h, t->k0 + r, &first, &end);
            first = cpu_least(cpu_most(first - t->q0, 0), COLS);
            end = cpu_most(end - t->q0, first);
        }
        for (int64_t i = 0; i < first; i++)
            row[i] = -INFINITY;
        for (int64_t i = end; i < COLS; i++)
            row[i] = -INFINITY;
    }
    return all;
}

AVX512 static void shrink_sums(const struct cpu_attention *x, const struct cpu_attention_tile *t, const float *by)
{
    __m512 left = _mm512_loadu_ps(by), right = _mm512_loadu_ps(by + PAIR_LANES);
    float *at = t->sums;
    for (int64_t e = 0; e < x->h.d; e++, at += COLS) {
        _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), left));
        _mm512_storeu_ps(at + PAIR_LANES, _mm512_mul_ps(_mm512_loadu_ps(at + PAIR_LANES), right));
    }
}

static void add(const struct cpu_attention *x, const struct cpu_attention_tile *t)
{
    const struct cpu_tiles *k = x->tiles;
    float shrink[COLS];
    struct cpu_columns c = {.most2 = t->most, .total = t->total, .shrink = shrink};
    int later = t->k0 > t->seen.first;
    scores(x, t);
    c.keys = cpu_tiles_pad(k, t->keys);
    c.all = mask(x, t);
    if (x->rows->columns(t->scores, &c, t->weights, (float)x->scale) && later)
        shrink_sums(x, t, shrink);
    for (int64_t j = 0; j < x->panels_d; j++)
        k->kernel(c.keys, t->v.at + j * t->v.step, t->weights, t->sums + j * k->mr * COLS, COLS, later);
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

static const float *finish(const struct cpu_attention *x, const struct cpu_attention_tile *t)
{
    const float ln_2 = 0.693147181f;
    float part[COLS];
    for (int64_t i = 0; i < COLS; i++) {
        part[i] = t->total[i] == 0 ? 0 : 1 / t->total[i];
        t->most[i] *= ln_2;
    }
    turn(x, t->sums, part, t->scores);
    return t->scores;
}

const struct cpu_forward cpu_forward_amx = {.tile_q = COLS, .tile_k = 64, .keys_left = 1, .add = add, .finish = finish};

#else

const struct cpu_forward cpu_forward_amx = {0}; /* never chosen: cpu_tiles_amx() is NULL */

#endif
