/* Grouped-query attention, forward (Dao, arXiv 2307.08691, algorithm 1).
 *
 * For a tile of queries, key tile after key tile: scores s = q k, row maxima, p = exp(scale s - m), o = o + p
 * v; where a later tile raises a row's maximum, its sums so far shrink by the difference. Key tiles that no
 * query of the tile sees are skipped. */
#include "attention/attention.h"

#include <math.h>
#include <stdlib.h>

/* ---- shared with the backward kernel */

struct cpu_panels cpu_tiles_left(const struct cpu_tiles *t, const float *scores, int64_t step, int64_t k_step,
                                 int64_t rows, int64_t k, void *room)
{
    int64_t size = sizeof *scores, row = cpu_tiles_pad(t, k), all = cpu_round_up(rows, t->mr);
    if (t->any_order && t->bytes == size)
        return (struct cpu_panels){(const char *)scores, t->mr * step * size, step * size, k_step * size};
    if (k_step == 1 && t->bytes == 2 && t->kernel_rows) {
        t->store(room, HD_BF16, row, scores, step, rows, row, 0);
        memset((uint16_t *)room + rows * row, 0, (size_t)((all - rows) * row) * 2);
        return (struct cpu_panels){room, t->mr * row * 2, row * 2, 2};
    }
    t->pack_a(room, scores, HD_F32, step, k_step, rows, k);
    return (struct cpu_panels){room, cpu_tiles_panel_a(t, k), 0, 0};
}

void cpu_tiles_product(const struct cpu_tiles *t, int64_t i, struct cpu_span cols, struct cpu_span terms,
                       const struct cpu_panels *a, const struct cpu_panels *b, float *c, int64_t ldc, int add)
{
    int64_t first = terms.first / t->nr * t->nr, k = cpu_most(0, terms.last - first);
    const char *row = a->at + i / t->mr * a->step + first * (a->rs ? a->cs : t->mr * t->bytes);
    for (int64_t j = cols.first / t->nr * t->nr; j < cols.last; j += t->nr) {
        const char *panel = b->at + j / t->nr * b->step + first * t->nr * t->bytes;
        if (a->rs)
            t->kernel_rows(cpu_tiles_pad(t, k), row, a->rs, a->cs, panel, c + i * ldc + j, ldc, add);
        else
            t->kernel(k, row, panel, c + i * ldc + j, ldc, add);
    }
}

struct cpu_span cpu_keys_seen(const struct cpu_attention *x, int64_t query, int64_t end, int64_t k0, int64_t keys)
{
    int64_t last = cpu_least(query + x->tiles->mr, end) - 1, unused;
    struct cpu_span s;
    cpu_visible(&x->h, query, &s.first, &unused);
    cpu_visible(&x->h, last, &unused, &s.last);
    return (struct cpu_span){cpu_most(0, s.first - k0), cpu_least(s.last - k0, keys)};
}

void cpu_attention_store(const struct cpu_attention *x, uint32_t output, int64_t to, int64_t step, const float *from,
                         int64_t rows)
{
    const struct hd_operand *o = &x->kernel->out[output];
    x->tiles->store((char *)o->data + to * (int64_t)hd_dtype_size(o->dtype), o->dtype, step, from, x->d_room, rows,
                    x->h.d, cpu_accumulates(x->kernel));
}

static int all_float(const struct hd_kernel *k)
{
    int ok = 1;
    for (uint32_t i = 0; i < k->d.n_in; i++)
        ok &= cpu_fast_dtype(k->in[i].dtype) || k->in[i].dtype == HD_I32; /* positions in documents */
    for (uint32_t i = 0; i < k->d.n_out; i++)
        ok &= cpu_fast_dtype(k->out[i].dtype);
    return ok;
}

int32_t cpu_attention_init(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err)
{
    uint32_t lse_dtype = k->d.op == HD_OP_ATTENTION ? k->out[1].dtype : k->in[4].dtype;
    uint32_t dtype = HD_BF16;
    x->kernel = k;
    x->h = cpu_heads(&k->in[0], &k->in[1], &k->d.attrs);
    x->scale = k->d.attrs.scale;
    x->cap = k->d.attrs.clip;
    for (uint32_t i = 0; i < k->d.n_in; i++)
        if (k->in[i].dtype == HD_F16 || (i < 3 && k->in[i].dtype != HD_BF16))
            dtype = HD_F32;
    x->tiles = cpu_tiles_choose(dtype);
    x->rows = cpu_softmax_at(cpu_vectors());
    if (!all_float(k) || lse_dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "attention: fast kernels are for fp32, bf16 and fp16, with lse in fp32");
    if (x->h.s != x->h.t)
        return hd_fail(err, HD_E_UNSUPPORTED, "attention: fast kernels want as many keys as queries");
    if (x->h.s == 0 || x->h.d == 0 || !(x->scale > 0))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "attention: fast kernels want operands that are not empty, and a scale above 0");
    x->d_room = cpu_round_up(x->h.d, x->tiles->nr);
    x->panels_d = x->d_room / x->tiles->nr;
    return HD_OK;
}

struct units {
    const struct cpu_attention *x;
    int64_t next; /* (b, kv head) to take */
};

/* One thread: takes units until none is left. */
static void units_run(void *context, int64_t first, int64_t last)
{
    struct units *u = context;
    struct cpu_attention x = *u->x;
    char *scratch = (char *)cpu_scratch(x.kernel->device) + first * x.thread_bytes;
    (void)last;
    x.tiles->begin();
    for (;;) {
        int64_t unit = __atomic_fetch_add(&u->next, 1, __ATOMIC_RELAXED);
        if (unit >= x.h.b * x.h.k)
            break;
        cpu_heads_row(&x.h, x.kernel, unit / x.h.k);
        x.unit(&x, scratch, unit / x.h.k, unit % x.h.k);
    }
    x.tiles->end();
}

static void attention_run(struct hd_kernel *k)
{
    struct units u = {.x = k->state};
    cpu_parallel(k->device, k->device->threads, 1, units_run, &u);
}

static void attention_release(struct hd_kernel *k)
{
    free(k->state);
    k->state = NULL;
}

int32_t cpu_attention_ready(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err)
{
    struct cpu_attention *state;
    int32_t status = cpu_scratch_reserve(k->device, (size_t)(x->thread_bytes * k->device->threads), err);
    if (status)
        return status;
    state = malloc(sizeof *state);
    if (!state)
        return hd_fail(err, HD_E_NOMEM, "no memory for an attention kernel");
    *state = *x;
    k->state = state;
    k->run = attention_run;
    k->release = attention_release;
    return HD_OK;
}

/* ---- forward */

enum { KEYS, VALUES, QUERIES, SCORES, WEIGHTS, SUMS, MOST, TOTAL };
enum { TILE_K = 256, TILE_Q = 36 };

/* One tile of queries of one head. */
struct tile {
    char *scratch;
    int64_t q0, rows; /* queries */
    int64_t k0, keys; /* the key tile at hand */
};

static void *buffer(const struct cpu_attention *x, const struct tile *t, int name)
{
    return t->scratch + x->at[name];
}

static void pack_head(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    const struct hd_operand *k = &x->kernel->in[1], *v = &x->kernel->in[2];
    int64_t step = cpu_key_step(x), tile = x->panels_d * cpu_tiles_panel_b(x->tiles, x->tile_k);
    x->tiles->pack_b(scratch + x->at[KEYS], cpu_element(k, cpu_key_at(x, b, kv, 0)), k->dtype, step, 1, x->h.t, x->h.d);
    for (int64_t k0 = 0; k0 < x->h.t; k0 += x->tile_k)
        x->tiles->pack_b(scratch + x->at[VALUES] + k0 / x->tile_k * tile, cpu_element(v, cpu_key_at(x, b, kv, k0)),
                         v->dtype, 1, step, x->h.d, cpu_least(x->tile_k, x->h.t - k0));
}

/* The keys of the tile that a panel of queries sees, rows i.. of the tile. */
static struct cpu_span keys_seen(const struct cpu_attention *x, const struct tile *t, int64_t i)
{
    return cpu_keys_seen(x, t->q0 + i, t->q0 + t->rows, t->k0, t->keys);
}

static void scores(const struct cpu_attention *x, const struct tile *t)
{
    int64_t d = x->h.d, one = cpu_tiles_panel_b(x->tiles, d);
    struct cpu_panels q = {buffer(x, t, QUERIES), cpu_tiles_panel_a(x->tiles, d), 0, 0};
    struct cpu_panels k = {(char *)buffer(x, t, KEYS) + t->k0 / x->tiles->nr * one, one, 0, 0};
    for (int64_t i = 0; i < t->rows; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, keys_seen(x, t, i), (struct cpu_span){0, d}, &q, &k, buffer(x, t, SCORES),
                          x->tile_k, 0);
}

/* Scores of row r become weights; the row's maximum and sum move on, and its o so far shrinks. */
static void softmax_row(const struct cpu_attention *x, const struct tile *t, int64_t r)
{
    float *most = (float *)buffer(x, t, MOST) + r, *total = (float *)buffer(x, t, TOTAL) + r;
    float *row = (float *)buffer(x, t, SCORES) + r * x->tile_k, scale = (float)x->scale;
    struct cpu_visible_span visible = {.total = cpu_round_up(t->keys, x->tiles->nr)};
    cpu_visible(&x->h, t->q0 + r, &visible.first, &visible.last);
    visible.first = cpu_most(0, visible.first - t->k0);
    visible.last = cpu_least(visible.last - t->k0, t->keys);
    if (visible.first >= visible.last) {
        memset(row, 0, (size_t)visible.total * sizeof *row);
        return;
    }
    if (x->cap > 0)
        x->rows->cap(row, NULL, &visible, (float)(x->scale / x->cap));
    float here = scale * x->rows->most(row, &visible), now = here > *most ? here : *most;
    float shrink = *most == -INFINITY ? 0 : expf(*most - now);
    *total = *total * shrink + x->rows->exp(row, &visible, scale, now);
    *most = now;
    if (shrink != 1 && shrink != 0)
        x->rows->scale((float *)buffer(x, t, SUMS) + r * x->d_room, x->d_room, shrink);
}

static void weigh(const struct cpu_attention *x, const struct tile *t, int add)
{
    int64_t full = cpu_least(x->tile_k, x->h.t - t->k0), one = cpu_tiles_panel_b(x->tiles, full);
    int64_t tile = x->panels_d * cpu_tiles_panel_b(x->tiles, x->tile_k);
    struct cpu_panels v = {(char *)buffer(x, t, VALUES) + t->k0 / x->tile_k * tile, one, 0, 0};
    struct cpu_panels p =
        cpu_tiles_left(x->tiles, buffer(x, t, SCORES), x->tile_k, 1, t->rows, t->keys, buffer(x, t, WEIGHTS));
    for (int64_t i = 0; i < t->rows; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, (struct cpu_span){0, x->h.d}, keys_seen(x, t, i), &p, &v, buffer(x, t, SUMS),
                          x->d_room, add);
}

static void finish(const struct cpu_attention *x, const struct tile *t, int64_t b, int64_t kv, int64_t g)
{
    const float *most = buffer(x, t, MOST), *total = buffer(x, t, TOTAL);
    float *lse = x->kernel->out[1].data, *sums = buffer(x, t, SUMS);
    int64_t to = cpu_query_at(x, b, kv, g, t->q0), step = cpu_query_step(x);
    for (int64_t r = 0; r < t->rows; r++) {
        x->rows->scale(sums + r * x->d_room, x->h.d, total[r] > 0 ? 1 / total[r] : 0);
        lse[(to + r * step) / x->h.d] = most[r] + logf(total[r]);
    }
    cpu_attention_store(x, 0, to, step, sums, t->rows);
}

/* The keys that a tile of queries sees, from the start of a key tile. */
static void key_range(const struct cpu_attention *x, const struct tile *t, int64_t *first, int64_t *end)
{
    int64_t unused;
    cpu_visible(&x->h, t->q0, first, &unused);
    cpu_visible(&x->h, t->q0 + t->rows - 1, &unused, end);
    *first = *first / x->tile_k * x->tile_k;
}

static void forward_tile(const struct cpu_attention *x, struct tile *t, int64_t b, int64_t kv, int64_t g)
{
    const struct hd_operand *q = &x->kernel->in[0];
    float *most = buffer(x, t, MOST), *total = buffer(x, t, TOTAL);
    int64_t start, end;
    key_range(x, t, &start, &end);
    for (int64_t r = 0; r < t->rows; r++) {
        most[r] = -INFINITY;
        total[r] = 0;
    }
    x->tiles->pack_a(buffer(x, t, QUERIES), cpu_element(q, cpu_query_at(x, b, kv, g, t->q0)), q->dtype,
                     cpu_query_step(x), 1, t->rows, x->h.d);
    if (start >= end)
        memset(buffer(x, t, SUMS), 0, (size_t)(t->rows * x->d_room) * sizeof(float));
    for (t->k0 = start; t->k0 < end; t->k0 += x->tile_k) {
        t->keys = cpu_least(x->tile_k, end - t->k0);
        scores(x, t);
        for (int64_t r = 0; r < t->rows; r++)
            softmax_row(x, t, r);
        weigh(x, t, t->k0 > start);
    }
    finish(x, t, b, kv, g);
}

static void forward_unit(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    struct tile t = {.scratch = scratch};
    pack_head(x, scratch, b, kv);
    for (int64_t g = 0; g < x->h.g; g++)
        for (t.q0 = 0; t.q0 < x->h.s; t.q0 += x->tile_q) {
            t.rows = cpu_least(x->tile_q, x->h.s - t.q0);
            forward_tile(x, &t, b, kv, g);
        }
}

static void forward_layout(struct cpu_attention *x)
{
    const struct cpu_tiles *t = x->tiles;
    x->tile_q = cpu_most(TILE_Q / t->mr, 1) * t->mr;
    x->tile_k = TILE_K;
    int64_t panels_q = x->tile_q / t->mr, tiles_k = (x->h.t + x->tile_k - 1) / x->tile_k;
    const int64_t bytes[] = {
        [KEYS] = cpu_round_up(x->h.t, t->nr) / t->nr * cpu_tiles_panel_b(t, x->h.d),
        [VALUES] = tiles_k * x->panels_d * cpu_tiles_panel_b(t, x->tile_k),
        [QUERIES] = panels_q * cpu_tiles_panel_a(t, x->h.d),
        [SCORES] = x->tile_q * x->tile_k * 4,
        [WEIGHTS] = panels_q * cpu_tiles_panel_a(t, x->tile_k),
        [SUMS] = x->tile_q * x->d_room * 4,
        [MOST] = x->tile_q * 4,
        [TOTAL] = x->tile_q * 4,
    };
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        x->at[i] = x->thread_bytes;
        x->thread_bytes += cpu_round_up(bytes[i], 64);
    }
}

int32_t cpu_fast_attention(struct hd_kernel *k, struct hd_error *err)
{
    struct cpu_attention x = {.unit = forward_unit};
    int32_t status = cpu_attention_init(&x, k, err);
    if (status)
        return status;
    forward_layout(&x);
    return cpu_attention_ready(&x, k, err);
}
