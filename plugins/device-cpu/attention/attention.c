/* Grouped-query attention, forward (Dao, arXiv 2307.08691, algorithm 1).
 *
 * For a tile of queries, key tile after key tile: scores s = q k, row maxima, p = exp(scale s - m), o = o + p
 * v; where a later tile raises a row's maximum, its sums so far shrink by the difference. Key tiles that no
 * query of the tile sees are skipped. */
#include "attention/attention.h"

#include <math.h>
#include <stdlib.h>

/* ---- shared with the backward kernel */

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
    x->rows = cpu_softmax_of(cpu_isa());
    x->row_kind = x->tiles->bytes == 2 ? CPU_ROWS_BF16 : CPU_ROWS_F32;
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
enum { TILE_K = 256, TILE_Q = 36, GROUP_Q = 256 };

/* One tile of queries of one head. A group of them passes by a tile of keys and values while it is in the caches. */
struct tile {
    char *scratch;
    int64_t q0, rows; /* queries */
    int64_t at;       /* in the group, a multiple of tile_q */
    int64_t start;    /* the first key tile that its queries see */
    int64_t k0, keys; /* the key tile at hand */
};

static void *buffer(const struct cpu_attention *x, const struct tile *t, int name)
{
    return t->scratch + x->at[name];
}

static float *sums(const struct cpu_attention *x, const struct tile *t, int64_t r)
{
    return (float *)buffer(x, t, SUMS) + (t->at + r) * x->d_room;
}

static char *queries(const struct cpu_attention *x, const struct tile *t)
{
    return (char *)buffer(x, t, QUERIES) + t->at / x->tiles->mr * cpu_tiles_panel_a(x->tiles, x->h.d);
}

/* The greatest score of row r so far (MOST), or the sum of its weights (TOTAL). */
static float *so_far(const struct cpu_attention *x, const struct tile *t, int name, int64_t r)
{
    return (float *)buffer(x, t, name) + t->at + r;
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
    struct cpu_panels q = {queries(x, t), cpu_tiles_panel_a(x->tiles, d), 0, 0};
    struct cpu_panels k = {(char *)buffer(x, t, KEYS) + t->k0 / x->tiles->nr * one, one, 0, 0};
    for (int64_t i = 0; i < t->rows; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, keys_seen(x, t, i), (struct cpu_span){0, d}, &q, &k, buffer(x, t, SCORES),
                          x->tile_k, 0);
}

/* Scores of row r become weights; the row's maximum and sum move on, and its o so far shrinks. */
static void softmax_row(const struct cpu_attention *x, const struct tile *t, int64_t r)
{
    float *most = so_far(x, t, MOST, r), *total = so_far(x, t, TOTAL, r);
    float *row = (float *)buffer(x, t, SCORES) + r * x->tile_k, scale = (float)x->scale;
    char *weights = (char *)buffer(x, t, WEIGHTS) + cpu_weights_bytes(x, r * x->tile_k);
    struct cpu_visible_span visible = {.total = cpu_round_up(t->keys, x->tiles->nr)};
    cpu_visible(&x->h, t->q0 + r, &visible.first, &visible.last);
    visible.first = cpu_most(0, visible.first - t->k0);
    visible.last = cpu_least(visible.last - t->k0, t->keys);
    if (visible.first >= visible.last) {
        memset(weights, 0, (size_t)cpu_weights_bytes(x, visible.total));
        return;
    }
    if (x->cap > 0)
        x->rows->cap(row, NULL, &visible, (float)(x->scale / x->cap));
    float here = scale * x->rows->most(row, &visible), before = *most;
    if (!(here <= before)) {
        *most = here;
        if (before > -INFINITY) {
            float shrink = expf(before - here);
            *total *= shrink;
            x->rows->scale(sums(x, t, r), x->d_room, shrink);
        }
    }
    *total += x->rows->exp[x->row_kind](row, weights, &visible, scale, *most);
}

static void weigh(const struct cpu_attention *x, const struct tile *t)
{
    int64_t full = cpu_least(x->tile_k, x->h.t - t->k0), one = cpu_tiles_panel_b(x->tiles, full);
    int64_t tile = x->panels_d * cpu_tiles_panel_b(x->tiles, x->tile_k);
    struct cpu_panels v = {(char *)buffer(x, t, VALUES) + t->k0 / x->tile_k * tile, one, 0, 0};
    struct cpu_panels p = cpu_tiles_left(x->tiles, buffer(x, t, WEIGHTS), x->tile_k, 1, t->rows, t->keys, NULL);
    for (int64_t i = 0; i < t->rows; i += x->tiles->mr)
        cpu_tiles_product(x->tiles, i, (struct cpu_span){0, x->h.d}, keys_seen(x, t, i), &p, &v, sums(x, t, 0),
                          x->d_room, t->k0 > t->start);
}

/* The keys that queries q0 .. q0 + rows - 1 see, from the start of a key tile. */
static struct cpu_span key_range(const struct cpu_attention *x, int64_t q0, int64_t rows)
{
    struct cpu_span s;
    int64_t unused;
    cpu_visible(&x->h, q0, &s.first, &unused);
    cpu_visible(&x->h, q0 + rows - 1, &unused, &s.last);
    s.first = s.first / x->tile_k * x->tile_k;
    return s;
}

static void begin(const struct cpu_attention *x, const struct tile *t, int64_t at)
{
    const struct hd_operand *q = &x->kernel->in[0];
    struct cpu_span seen = key_range(x, t->q0, t->rows);
    for (int64_t r = 0; r < t->rows; r++) {
        *so_far(x, t, MOST, r) = -INFINITY;
        *so_far(x, t, TOTAL, r) = 0;
    }
    x->tiles->pack_a(queries(x, t), cpu_element(q, at), q->dtype, cpu_query_step(x), 1, t->rows, x->h.d);
    if (seen.first >= seen.last)
        memset(sums(x, t, 0), 0, (size_t)(t->rows * x->d_room) * sizeof(float));
}

static void add_keys(const struct cpu_attention *x, struct tile *t, int64_t k0)
{
    struct cpu_span seen = key_range(x, t->q0, t->rows);
    if (k0 < seen.first || k0 >= seen.last)
        return;
    t->start = seen.first;
    t->k0 = k0;
    t->keys = cpu_least(x->tile_k, seen.last - k0);
    scores(x, t);
    for (int64_t r = 0; r < t->rows; r++)
        softmax_row(x, t, r);
    weigh(x, t);
}

static void finish(const struct cpu_attention *x, const struct tile *t, int64_t to)
{
    int64_t step = cpu_query_step(x);
    float *lse = x->kernel->out[1].data;
    for (int64_t r = 0; r < t->rows; r++) {
        float total = *so_far(x, t, TOTAL, r);
        x->rows->scale(sums(x, t, r), x->h.d, total > 0 ? 1 / total : 0);
        lse[(to + r * step) / x->h.d] = *so_far(x, t, MOST, r) + logf(total);
    }
    cpu_attention_store(x, 0, to, step, sums(x, t, 0), t->rows);
}

static struct tile tile_of(const struct cpu_attention *x, char *scratch, int64_t q0, int64_t at)
{
    return (struct tile){.scratch = scratch, .q0 = q0 + at, .rows = cpu_least(x->tile_q, x->h.s - q0 - at), .at = at};
}

static void forward_group(const struct cpu_attention *x, char *scratch, int64_t q0, int64_t to)
{
    int64_t rows = cpu_least(x->group * x->tile_q, x->h.s - q0), step = cpu_query_step(x);
    struct cpu_span seen = key_range(x, q0, rows);
    for (int64_t at = 0; at < rows; at += x->tile_q) {
        struct tile t = tile_of(x, scratch, q0, at);
        begin(x, &t, to + at * step);
    }
    for (int64_t k0 = seen.first; k0 < seen.last; k0 += x->tile_k)
        for (int64_t at = 0; at < rows; at += x->tile_q) {
            struct tile t = tile_of(x, scratch, q0, at);
            add_keys(x, &t, k0);
        }
    for (int64_t at = 0; at < rows; at += x->tile_q) {
        struct tile t = tile_of(x, scratch, q0, at);
        finish(x, &t, to + at * step);
    }
}

static void forward_unit(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv)
{
    pack_head(x, scratch, b, kv);
    for (int64_t g = 0; g < x->h.g; g++)
        for (int64_t q0 = 0; q0 < x->h.s; q0 += x->group * x->tile_q)
            forward_group(x, scratch, q0, cpu_query_at(x, b, kv, g, q0));
}

static void forward_layout(struct cpu_attention *x)
{
    const struct cpu_tiles *t = x->tiles;
    x->tile_q = cpu_most(TILE_Q / t->mr, 1) * t->mr;
    x->tile_k = TILE_K;
    x->group = GROUP_Q / x->tile_q;
    int64_t rows = x->group * x->tile_q, tiles_k = (x->h.t + x->tile_k - 1) / x->tile_k;
    const int64_t bytes[] = {
        [KEYS] = cpu_round_up(x->h.t, t->nr) / t->nr * cpu_tiles_panel_b(t, x->h.d),
        [VALUES] = tiles_k * x->panels_d * cpu_tiles_panel_b(t, x->tile_k),
        [QUERIES] = rows / t->mr * cpu_tiles_panel_a(t, x->h.d),
        [SCORES] = x->tile_q * x->tile_k * 4,
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
    if (x.tiles == cpu_tiles_amx())
        return cpu_attention_amx(&x, k, err);
    forward_layout(&x);
    return cpu_attention_ready(&x, k, err);
}
