/* Matrix products by our own micro-kernels.
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication": a and b are packed in
 * pieces of a few MB (a chunk), threads take blocks of c from a common counter, and each block is made term
 * range by term range (depth) so that a panel of b stays in the first cache and the block's panels of a in
 * the second. Each element of c is summed in the same order whatever the threads: results are bit-identical
 * from run to run.
 *
 * Sums are in fp32: in c itself, or, where c is bf16 and at c's edges, in the thread's scratch, where each
 * kernel block is one piece of memory. A bf16 c is rounded once: where a chunk does not hold all terms, sums
 * of the whole c are kept in scratch. */
#include "fast.h"
#include "fast_tiles.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 6 << 20, BLOCK_ROWS = 512, BLOCK_COLS = 256, GROUP = 8, ALIGN = 64 };

struct driver {
    const struct cpu_tiles *tiles;
    int64_t chunk_m, chunk_n, chunk_k; /* packed at a time; multiples of mr, nr, kr */
    int64_t block_m, block_n;          /* of c, a task; multiples of mr, nr */
    int64_t depth;                     /* terms of one kernel call */
    int64_t ahead;                     /* fetch panels before they are needed */
    /* Scratch, offsets in bytes. */
    int64_t at_b, at_sums, at_threads, thread_bytes;
    int64_t whole; /* sums of the whole c, not of a block */
};

/* What the threads of one phase share. */
struct phase {
    const struct cpu_gemm *g;
    const struct driver *s;
    char *scratch;
    const char *a, *b;
    char *c;
    int64_t m0, n0, k0, m, n, k; /* the chunk: origin and extent */
    int64_t next;                /* task */
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t unit)
{
    return ceil_div(a, unit) * unit;
}

/* ---- packing: for each range of terms all panels of the chunk, one after another */

/* Piece `i` of a chunk of a or b: a few panels over one range of terms. */
struct piece {
    int64_t first, count, k0, k; /* steps and terms, within the chunk */
    int64_t offset;              /* bytes, in the packed chunk */
};

static struct piece piece_at(const struct driver *s, int64_t i, int64_t steps, int64_t width, int64_t k)
{
    int64_t groups = ceil_div(steps, GROUP * width), range = i / groups;
    struct piece p = {.first = i % groups * GROUP * width, .k0 = range * s->depth};
    p.count = min64(GROUP * width, steps - p.first);
    p.k = min64(s->depth, k - p.k0);
    p.offset = (round_up(steps, width) * p.k0 + p.first * cpu_tiles_pad(s->tiles, p.k)) * s->tiles->bytes;
    return p;
}

static int64_t pieces(const struct driver *s, int64_t steps, int64_t width, int64_t k)
{
    return ceil_div(steps, GROUP * width) * ceil_div(k, s->depth);
}

static void pack_a(void *context, int64_t first, int64_t last)
{
    const struct phase *f = context;
    const struct cpu_matrix *a = &f->g->a;
    for (int64_t i = first; i < last; i++) {
        struct piece p = piece_at(f->s, i, f->m, f->s->tiles->mr, f->k);
        int64_t at = (f->m0 + p.first) * a->rs + (f->k0 + p.k0) * a->cs;
        f->s->tiles->pack_a(f->scratch + p.offset, f->a + at * (int64_t)hd_dtype_size(a->dtype), a->dtype,
                            a->rs, a->cs, p.count, p.k);
    }
}

static void pack_b(void *context, int64_t first, int64_t last)
{
    const struct phase *f = context;
    const struct cpu_matrix *b = &f->g->b;
    for (int64_t i = first; i < last; i++) {
        struct piece p = piece_at(f->s, i, f->n, f->s->tiles->nr, f->k);
        int64_t at = (f->n0 + p.first) * b->cs + (f->k0 + p.k0) * b->rs;
        f->s->tiles->pack_b(f->scratch + f->s->at_b + p.offset, f->b + at * (int64_t)hd_dtype_size(b->dtype),
                            b->dtype, b->cs, b->rs, p.count, p.k);
    }
}

/* ---- blocks of c */

/* Kernel block (i, j), in units of mr and nr, lies at at + (i * across + j) * mr * nr. */
struct sums {
    float *at;
    int64_t across;
};

struct block {
    int64_t i0, j0, rows, cols; /* within the chunk */
};

static float *sums_at(const struct sums *c, const struct cpu_tiles *t, int64_t i, int64_t j)
{
    return c->at + (i / t->mr * c->across + j / t->nr) * t->mr * t->nr;
}

/* Where the sums of a block go, in this chunk of terms. */
struct target {
    struct sums sums;
    int32_t add;       /* sums hold terms of earlier chunks */
    int32_t store;     /* to c, after the chunk's last terms */
    int32_t store_add; /* to what c holds */
    int32_t direct;    /* whole kernel blocks are summed in c itself */
};

static struct target target_of(const struct phase *f, const struct block *b, int64_t thread)
{
    const struct driver *s = f->s;
    int first = f->k0 == 0, last = f->k0 + f->k == f->g->k;
    struct target t = {
        .sums = {(float *)(f->scratch + s->at_threads + thread * s->thread_bytes), s->block_n / s->tiles->nr},
        .add = s->whole && !first,
        .store = last || !s->whole,
        .store_add = f->g->accumulate || (!s->whole && !first),
        .direct = f->g->c.dtype == HD_F32};
    if (s->whole) {
        t.sums = (struct sums){(float *)(f->scratch + s->at_sums), ceil_div(f->g->n, s->tiles->nr)};
        t.sums.at = sums_at(&t.sums, s->tiles, f->m0 + b->i0, f->n0 + b->j0);
    }
    return t;
}

/* One kernel call, terms k0.. of the chunk; after the last terms the sums go to c while they are in the first
 * cache. */
static void kernel_at(const struct phase *f, const struct target *to, const struct block *b, int64_t i,
                      int64_t j, int64_t k0, int64_t k, const void *pa, const void *pb)
{
    const struct cpu_tiles *t = f->s->tiles;
    const struct cpu_matrix *c = &f->g->c;
    int64_t at = (f->m0 + b->i0 + i) * c->rs + f->n0 + b->j0 + j;
    int64_t rows = min64(t->mr, b->rows - i), cols = min64(t->nr, b->cols - j);
    if (to->direct && rows == t->mr && cols == t->nr) {
        t->kernel(k, pa, pb, (float *)f->c + at, c->rs, to->store_add || k0 > 0);
        return;
    }
    float *sums = sums_at(&to->sums, t, i, j);
    t->kernel(k, pa, pb, sums, t->nr, to->add || k0 > 0);
    if (to->store && k0 + k == f->k)
        t->store(f->c + at * (int64_t)hd_dtype_size(c->dtype), c->dtype, c->rs, sums, t->nr, rows, cols,
                 to->store_add);
}

/* Asks for part `i` of `n` of packed memory that is used soon, into the second cache. */
static inline void fetch(const char *at, int64_t bytes, int64_t i, int64_t n)
{
    int64_t part = round_up(ceil_div(bytes, n), ALIGN);
    for (const char *p = at + i * part; p < at + (i + 1) * part; p += ALIGN)
        __builtin_prefetch(p, 0, 2);
}

/* The terms k0.. of a block; meanwhile, where it pays, the next panel of b comes, and little by little the
 * block's panels of a for the terms after these. */
static void block_range(const struct phase *f, const struct target *to, const struct block *b, int64_t k0,
                        int64_t k)
{
    const struct cpu_tiles *t = f->s->tiles;
    int64_t one_a = cpu_tiles_panel_a(t, k), one_b = cpu_tiles_panel_b(t, k);
    int64_t rows = ceil_div(b->rows, t->mr), cols = ceil_div(b->cols, t->nr);
    const char *pa = f->scratch + round_up(f->m, t->mr) * k0 * t->bytes + b->i0 / t->mr * one_a;
    const char *pb = f->scratch + f->s->at_b + round_up(f->n, t->nr) * k0 * t->bytes + b->j0 / t->nr * one_b;
    const char *next_a = pa + ceil_div(f->m, t->mr) * one_a;
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            if (f->s->ahead)
                fetch(pb + (j + 1) * one_b, one_b, i, rows);
            if (f->s->ahead && k0 + k < f->k)
                fetch(next_a, rows * one_a, j * rows + i, rows * cols);
            kernel_at(f, to, b, i * t->mr, j * t->nr, k0, k, pa + i * one_a, pb + j * one_b);
        }
}

static void block_make(const struct phase *f, const struct block *b, int64_t thread)
{
    struct target to = target_of(f, b, thread);
    for (int64_t k0 = 0; k0 < f->k; k0 += f->s->depth)
        block_range(f, &to, b, k0, min64(f->s->depth, f->k - k0));
}

/* One thread: takes blocks until none is left. */
static void blocks_run(void *context, int64_t first, int64_t last)
{
    struct phase *f = context;
    const struct driver *s = f->s;
    int64_t across = ceil_div(f->n, s->block_n), count = across * ceil_div(f->m, s->block_m);
    (void)last;
    s->tiles->begin();
    for (;;) {
        int64_t task = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED);
        if (task >= count)
            break;
        struct block b = {.i0 = task / across * s->block_m, .j0 = task % across * s->block_n};
        b.rows = min64(s->block_m, f->m - b.i0);
        b.cols = min64(s->block_n, f->n - b.j0);
        block_make(f, &b, first);
    }
    s->tiles->end();
}

/* ---- running */

static void chunk_a(struct phase *f)
{
    cpu_parallel(f->g->device, pieces(f->s, f->m, f->s->tiles->mr, f->k), 1, pack_a, f);
}

static void chunk_b(struct phase *f)
{
    cpu_parallel(f->g->device, pieces(f->s, f->n, f->s->tiles->nr, f->k), 1, pack_b, f);
}

static void chunk_product(struct phase *f)
{
    f->next = 0;
    cpu_parallel(f->g->device, f->g->device->threads, 1, blocks_run, f);
}

static void own_run(struct cpu_gemm *g, const void *a, const void *b, void *c)
{
    const struct driver *s = g->state;
    struct phase f = {.g = g, .s = s, .scratch = cpu_scratch(g->device), .a = a, .b = b, .c = c};
    int b_stays = s->chunk_n >= g->n;
    for (f.k0 = 0; f.k0 < g->k; f.k0 += f.k) {
        f.k = min64(s->chunk_k, g->k - f.k0);
        for (f.m0 = 0; f.m0 < g->m; f.m0 += f.m) {
            f.m = min64(s->chunk_m, g->m - f.m0);
            chunk_a(&f);
            for (f.n0 = 0; f.n0 < g->n; f.n0 += f.n) {
                f.n = min64(s->chunk_n, g->n - f.n0);
                if (!b_stays || f.m0 == 0)
                    chunk_b(&f);
                chunk_product(&f);
            }
        }
    }
}

static void own_release(struct cpu_gemm *g)
{
    free(g->state);
    g->state = NULL;
}

/* ---- preparing */

/* Equal ranges of at most about `most`, multiples of unit. */
static int64_t even(int64_t n, int64_t most, int64_t unit)
{
    return round_up(ceil_div(n, ceil_div(n, max64(most, unit))), unit);
}

static void choose_chunks(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t elements = CHUNK_BYTES / t->bytes;
    s->depth = even(g->k, t->depth, t->kr);
    /* Measured: AMX gains a tenth on long sums; short ones and fp32 lose a little. */
    s->ahead = t->bytes == 2 && g->k > 4 * s->depth;
    s->chunk_k = even(g->k, 4096, s->depth);
    s->chunk_m = even(g->m, elements / s->chunk_k, t->mr);
    s->chunk_n = even(g->n, elements / s->chunk_k, t->nr);
}

/* Blocks small enough that each thread gets several. */
static void choose_blocks(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t m = min64(g->m, s->chunk_m), n = min64(g->n, s->chunk_n), want = 4 * (int64_t)g->device->threads;
    s->block_m = even(m, BLOCK_ROWS, t->mr);
    s->block_n = even(n, BLOCK_COLS, t->nr);
    while (g->device->threads > 1 && ceil_div(m, s->block_m) * ceil_div(n, s->block_n) < want &&
           (s->block_m > 2 * t->mr || s->block_n > 2 * t->nr))
        if (s->block_n > 2 * t->nr && s->block_n >= s->block_m)
            s->block_n = round_up(s->block_n / 2, t->nr);
        else
            s->block_m = round_up(s->block_m / 2, t->mr);
}

static int64_t choose_scratch(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t k = round_up(min64(s->chunk_k, g->k), t->kr);
    s->at_b = round_up(round_up(min64(s->chunk_m, g->m), t->mr) * k * t->bytes, ALIGN);
    s->at_sums = round_up(s->at_b + round_up(min64(s->chunk_n, g->n), t->nr) * k * t->bytes, ALIGN);
    s->at_threads = s->at_sums;
    s->whole = g->c.dtype != HD_F32 && s->chunk_k < g->k;
    if (s->whole)
        s->at_threads += round_up(round_up(g->m, t->mr) * round_up(g->n, t->nr) * 4, ALIGN);
    else
        s->thread_bytes = round_up(s->block_m * s->block_n * 4, ALIGN);
    return s->at_threads + s->thread_bytes * g->device->threads;
}

int32_t cpu_gemm_own(struct cpu_gemm *g, struct hd_error *err)
{
    struct driver *s = calloc(1, sizeof *s);
    int32_t status;
    if (!s)
        return hd_fail(err, HD_E_NOMEM, "no memory for a matrix product");
    s->tiles = cpu_tiles_choose(g->a.dtype);
    choose_chunks(s, g);
    choose_blocks(s, g);
    status = cpu_scratch_reserve(g->device, (size_t)choose_scratch(s, g), err);
    if (status) {
        free(s);
        return status;
    }
    g->state = s;
    g->run = own_run;
    g->release = own_release;
    return HD_OK;
}

int32_t cpu_gemm_prepare(struct cpu_gemm *g, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t status;
    if (g->device->settings->products != CPU_PRODUCTS_ONEDNN)
        return cpu_gemm_own(g, err);
    status = cpu_gemm_onednn(g, &why);
    if (status)
        return hd_fail(err, status == HD_E_UNSUPPORTED ? HD_E_INVALID : status,
                       "device option products: onednn cannot be used: %s; use products: own", why.message);
    return HD_OK;
}
