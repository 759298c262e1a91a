/* Attention forward on tiles of queries x keys: a query's scores are a row.
 *
 *     s = q k'        p = exp(scale s - m)        o += p v
 */
#include "attention/attention.h"

#include <math.h>

/* The keys at hand that a panel of queries sees, rows i.. of the tile. */
static struct cpu_span keys_seen(const struct cpu_attention *x, const struct cpu_attention_tile *t, int64_t i)
{
    return cpu_span_within(cpu_keys_seen(x, t->q0 + i, cpu_least(x->tiles->mr, t->rows - i)), t->k0, t->keys);
}

/* Scores of row r become weights; the row's maximum and sum move on, and its o so far shrinks. */
static void softmax_row(const struct cpu_attention *x, const struct cpu_attention_tile *t, int64_t r)
{
    float *row = t->scores + r * x->tile_k, scale = (float)x->scale;
    char *weights = (char *)t->weights + cpu_weights_bytes(x, r * x->tile_k);
    struct cpu_span seen = cpu_span_within(cpu_keys_seen(x, t->q0 + r, 1), t->k0, t->keys);
    struct cpu_visible_span visible = {seen.first, seen.last, cpu_round_up(t->keys, x->tiles->nr)};
    if (visible.first >= visible.last) {
        memset(weights, 0, (size_t)cpu_weights_bytes(x, visible.total));
        return;
    }
    if (x->cap > 0)
        x->rows->cap(row, NULL, &visible, (float)(x->scale / x->cap));
    float here = scale * x->rows->most(row, &visible), before = t->most[r];
    if (!(here <= before)) {
        t->most[r] = here;
        if (before > -INFINITY) {
            float shrink = expf(before - here);
            t->total[r] *= shrink;
            x->rows->scale(t->sums + r * x->d_room, x->d_room, shrink);
        }
    }
    t->total[r] += x->rows->exp[x->row_kind](row, weights, &visible, scale, t->most[r]);
}

static void add(const struct cpu_attention *x, const struct cpu_attention_tile *t)
{
    const struct cpu_span d = {0, x->h.d};
    struct cpu_panels p = cpu_tiles_left(x->tiles, t->weights, x->tile_k, 1, t->rows, t->keys, NULL);
    for (int64_t i = 0; i < t->rows; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, keys_seen(x, t, i), d, &t->q, &t->k, t->scores, x->tile_k, 0);
    for (int64_t r = 0; r < t->rows; r++)
        softmax_row(x, t, r);
    for (int64_t i = 0; i < t->rows; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, d, keys_seen(x, t, i), &p, &t->v, t->sums, x->d_room, t->k0 > t->seen.first);
}

static const float *finish(const struct cpu_attention *x, const struct cpu_attention_tile *t)
{
    for (int64_t r = 0; r < t->rows; r++)
        x->rows->scale(t->sums + r * x->d_room, x->h.d, t->total[r] > 0 ? 1 / t->total[r] : 0);
    return t->sums;
}

const struct cpu_forward cpu_forward_rows = {.tile_q = 36, .tile_k = 256, .add = add, .finish = finish};
