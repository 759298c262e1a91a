/* Grouped-query attention: what its passes share, and the forward pass (Dao, arXiv 2307.08691, algorithm 1).
 *
 * For a tile of queries, key tile after key tile: scores s = q k, row maxima, p = exp(scale s - m), o = o + p
 * v; where a later tile raises a row's maximum, its sums so far shrink by the difference. Key tiles that no
 * query of the tile sees are skipped. This file goes from tile to tile; attention_rows.c, or attention_amx.c, computes
 * each. */
#include "attention/attention.h"

#include <math.h>
#include <stdlib.h>

/* ---- shared with the backward pass */

struct cpu_panels cpu_tiles_left(const struct cpu_tiles *t, const void *weights, int64_t step, int64_t k_step,
                                 int64_t rows, int64_t k, void *room)
{
    int64_t size = t->bytes;
    if (t->any_order || k_step == 1)
        return (struct cpu_panels){weights, t->mr * step * size, step * size, k_step * size};
    t->pack_a(room, weights, HD_BF16, step, k_step, rows, k);
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
    x->rows = cpu_softmax_of(cpu_isa());
    x->row_kind = x->tiles->bytes == 2 ? CPU_ROWS_BF16 : CPU_ROWS_F32;
    if (!all_float(k) || lse_dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "attention: fast kernels are for fp32, bf16 and fp16, with lse in fp32");
    if (x->h.s != x->h.t)
        return hd_fail(err, HD_E_UNSUPPORTED, "attention: fast kernels want as many keys as queries");
    if (x->h.s == 0 || x->h.d == 0 || !(x->scale > 0))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "attention: fast kernels want operands that are not empty, and a scale above 0");
    return HD_OK;
}

void cpu_attention_lay(struct cpu_attention *x, const int64_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x->at[i] = x->thread_bytes;
        x->thread_bytes += cpu_round_up(bytes[i], 64);
    }
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
enum { GROUP = 8 }; /* tiles of queries that pass by a tile of keys and values while it is in the caches */

static int64_t panel_bytes(const struct cpu_attention *x, const struct cpu_side *side, int64_t terms)
{
    return cpu_tiles_pad(x->tiles, terms) * side->lines * x->tiles->bytes;
}

/* The panels of a side that was packed across d, from line i on. */
static struct cpu_panels panels_across(const struct cpu_attention *x, const struct cpu_side *side, const char *packed,
                                       int64_t i)
{
    int64_t one = panel_bytes(x, side, x->h.d);
    return (struct cpu_panels){packed + i / side->lines * one, one, 0, 0};
}

/* The values of the key tile from k0 on. */
static char *value_tile(const struct cpu_attention *x, char *scratch, int64_t k0)
{
    return scratch + x->at[VALUES] + k0 / x->tile_k * x->panels_d * panel_bytes(x, &x->keys, x->tile_k);
}

static void pack_head(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    const struct hd_operand *k = &x->kernel->in[1], *v = &x->kernel->in[2];
    int64_t step = cpu_key_step(x);
    x->keys.pack(scratch + x->at[KEYS], cpu_element(k, cpu_key_at(x, b, kv, 0)), k->dtype, step, 1, x->h.t, x->h.d);
    for (int64_t k0 = 0; k0 < x->h.t; k0 += x->tile_k)
        x->keys.pack(value_tile(x, scratch, k0), cpu_element(v, cpu_key_at(x, b, kv, k0)), v->dtype, 1, step, x->h.d,
                     cpu_least(x->tile_k, x->h.t - k0));
}

/* The tile at query `at` of the group from q0 on, nothing seen yet. */
static struct cpu_attention_tile begin(const struct cpu_attention *x, char *scratch, int64_t q0, int64_t at)
{
    struct cpu_attention_tile t = {
        .q0 = q0 + at,
        .rows = cpu_least(x->tile_q, x->h.s - q0 - at),
        .q = panels_across(x, &x->queries, scratch + x->at[QUERIES], at),
        .scores = (float *)(scratch + x->at[SCORES]),
        .weights = scratch + x->at[WEIGHTS],
        .sums = (float *)(scratch + x->at[SUMS]) + at * x->d_room,
        .most = (float *)(scratch + x->at[MOST]) + at,
        .total = (float *)(scratch + x->at[TOTAL]) + at,
    };
    t.seen = cpu_keys_seen(x, t.q0, t.rows);
    t.seen.first = t.seen.first / x->keys.lines * x->keys.lines;
    for (int64_t i = 0; i < x->tile_q; i++) {
        t.most[i] = -INFINITY;
        t.total[i] = 0;
    }
    if (t.seen.first >= t.seen.last)
        memset(t.sums, 0, (size_t)(x->tile_q * x->d_room) * sizeof(float));
    return t;
}

/* The key tile from `base` on. */
static void add_keys(const struct cpu_attention *x, char *scratch, struct cpu_attention_tile *t, int64_t base)
{
    t->k0 = cpu_most(base, t->seen.first);
    t->keys = cpu_least(base + x->tile_k, t->seen.last) - t->k0;
    if (t->keys <= 0)
        return;
    t->k = panels_across(x, &x->keys, scratch + x->at[KEYS], t->k0);
    t->v.at = value_tile(x, scratch, base) + (t->k0 - base) * x->keys.lines * x->tiles->bytes;
    t->v.step = panel_bytes(x, &x->keys, cpu_least(x->tile_k, x->h.t - base));
    x->forward->add(x, t);
}

static void finish(const struct cpu_attention *x, const struct cpu_attention_tile *t, int64_t to)
{
    int64_t step = cpu_query_step(x);
    float *lse = x->kernel->out[1].data;
    cpu_attention_store(x, 0, to, step, x->forward->finish(x, t), t->rows);
    for (int64_t r = 0; r < t->rows; r++)
        lse[(to + r * step) / x->h.d] = t->most[r] + logf(t->total[r]);
}

/* Queries from q0 on, whose first element is at `at`. */
static void forward_group(const struct cpu_attention *x, char *scratch, int64_t q0, int64_t at)
{
    const struct hd_operand *q = &x->kernel->in[0];
    int64_t rows = cpu_least(GROUP * x->tile_q, x->h.s - q0), step = cpu_query_step(x), n = 0;
    struct cpu_attention_tile tiles[GROUP];
    struct cpu_span seen = cpu_keys_seen(x, q0, rows);
    x->queries.pack(scratch + x->at[QUERIES], cpu_element(q, at), q->dtype, step, 1, rows, x->h.d);
    for (int64_t i = 0; i < rows; i += x->tile_q)
        tiles[n++] = begin(x, scratch, q0, i);
    for (int64_t k0 = seen.first / x->tile_k * x->tile_k; k0 < seen.last; k0 += x->tile_k)
        for (int64_t i = 0; i < n; i++)
            add_keys(x, scratch, &tiles[i], k0);
    for (int64_t i = 0; i < n; i++)
        finish(x, &tiles[i], at + i * x->tile_q * step);
}

static void forward_unit(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    pack_head(x, scratch, b, kv);
    for (int64_t g = 0; g < x->h.g; g++)
        for (int64_t q0 = 0; q0 < x->h.s; q0 += GROUP * x->tile_q)
            forward_group(x, scratch, q0, cpu_query_at(x, b, kv, g, q0));
}

static void forward_layout(struct cpu_attention *x, const struct cpu_forward *forward)
{
    const struct cpu_tiles *t = x->tiles;
    const struct cpu_side left = {t->mr, t->pack_a}, right = {t->nr, t->pack_b};
    x->forward = forward;
    x->queries = forward->keys_left ? right : left;
    x->keys = forward->keys_left ? left : right;
    x->tile_q = cpu_most(forward->tile_q / x->queries.lines, 1) * x->queries.lines;
    x->tile_k = forward->tile_k;
    x->d_room = cpu_round_up(x->h.d, x->keys.lines);
    x->panels_d = x->d_room / x->keys.lines;
    int64_t rows = GROUP * x->tile_q, tiles_k = (x->h.t + x->tile_k - 1) / x->tile_k;
    const int64_t bytes[] = {
        [KEYS] = cpu_round_up(x->h.t, x->keys.lines) / x->keys.lines * panel_bytes(x, &x->keys, x->h.d),
        [VALUES] = tiles_k * x->panels_d * panel_bytes(x, &x->keys, x->tile_k),
        [QUERIES] = rows / x->queries.lines * panel_bytes(x, &x->queries, x->h.d),
        [SCORES] = x->tile_q * cpu_most(x->tile_k, x->d_room) * 4,
        [WEIGHTS] = x->row_kind == CPU_ROWS_F32 ? 0 : cpu_weights_bytes(x, x->tile_q * x->tile_k),
        [SUMS] = rows * x->d_room * 4,
        [MOST] = rows * 4,
        [TOTAL] = rows * 4,
    };
    cpu_attention_lay(x, bytes, sizeof bytes / sizeof bytes[0]);
    if (x->row_kind == CPU_ROWS_F32)
        x->at[WEIGHTS] = x->at[SCORES]; /* in place */
}

int32_t cpu_fast_attention(struct hd_kernel *k, struct hd_error *err)
{
    struct cpu_attention x = {.unit = forward_unit};
    int32_t status = cpu_attention_init(&x, k, err);
    if (status)
        return status;
    forward_layout(&x, x.tiles == cpu_tiles_amx() ? &cpu_forward_amx : &cpu_forward_rows);
    return cpu_attention_ready(&x, k, err);
}
