/* Matrix products by our own micro-kernels.
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication". b is packed in pieces of a
 * few MB (a chunk) that all threads read from the third cache. Threads take blocks of c from a common counter;
 * a block's rows of a are packed by its thread into memory that stays in its second cache, or are read as they
 * lie where the micro-kernel can. Range of terms after range of terms (depth), a panel of b stays in the first
 * cache while all panels of a pass by. Each element of c is summed in the same order whatever the threads:
 * results are bit-identical from run to run.
 *
 * Where c is wide, of few rows and many columns as logits are, a block has all rows. No other block wants its panels
 * of b: its thread packs each when it comes to it, into its first cache.
 *
 * Sums are in fp32: in c itself, or, where c is bf16 or is added to once and at c's edges, in the thread's
 * scratch, where each kernel block is one piece of memory. A bf16 c is rounded once: where a chunk does not hold
 * all terms, sums of the whole c are kept in scratch. */
#include "fast.h"
#include "fast_tiles.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 12 << 20, ROWS_BYTES = 512 << 10, MOST_TERMS = 4096 }; /* packed b, a block's packed rows of a */
/* What is wide: rows at most, bytes of their a at most, columns a row at least. Its blocks, for each thread. */
enum { WIDE_ROWS = 512, WIDE_BYTES = 1 << 20, WIDE_RATIO = 16, WIDE_BLOCKS = 4 };
enum { BLOCK_ROWS = 128, STRIP = 256, LEAST_PANELS = 2, GROUP = 8, ALIGN = 64 };

struct driver {
    const struct cpu_tiles *tiles;
    int64_t chunk_n, chunk_k; /* of b, packed at a time; multiples of nr, kr */
    int64_t block_m, block_n; /* of c, a task; multiples of mr, nr */
    int64_t strip;            /* columns of a block that are made before the next ones: their sums stay in the second cache */
    int64_t in_place;         /* a is read as it lies */
    int64_t depth;            /* terms of one kernel call */
    int64_t wide;             /* see above */
    /* Scratch, offsets in bytes. */
    int64_t at_b, at_sums, at_threads, thread_bytes, thread_sums, thread_panel;
    int64_t whole; /* sums of the whole c, not of a strip */
    int64_t direct; /* whole kernel blocks are summed in c itself */
};

/* What the threads of one phase share. */
struct phase {
    const struct cpu_gemm *g;
    const struct driver *s;
    char *scratch;
    const char *a, *b;
    char *c;
    int64_t n0, k0, n, k; /* the chunk: origin and extent */
    int64_t next;         /* task */
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

/* ---- packing: for each range of terms all panels, one after another */

/* Piece `i` of the chunk of b: a few panels over one range of terms. */
static void pack_piece(const struct phase *f, int64_t i)
{
    const struct driver *s = f->s;
    const struct cpu_matrix *b = &f->g->b;
    int64_t width = GROUP * s->tiles->nr, groups = ceil_div(f->n, width);
    int64_t j = i % groups * width, p = i / groups * s->depth, k = min64(s->depth, f->k - p);
    char *to = f->scratch + s->at_b + (round_up(f->n, s->tiles->nr) * p + j * cpu_tiles_pad(s->tiles, k)) * s->tiles->bytes;
    int64_t at = (f->n0 + j) * b->cs + (f->k0 + p) * b->rs;
    s->tiles->pack_b(to, f->b + at * (int64_t)hd_dtype_size(b->dtype), b->dtype, b->cs, b->rs, min64(width, f->n - j), k);
}

static void pack_b(void *context, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        pack_piece(context, i);
}

/* ---- blocks of c */

/* Kernel block (i, j), in units of mr and nr, lies at at + (i * across + j) * mr * nr. */
struct sums {
    float *at;
    int64_t across;
};

struct block {
    int64_t i0, j0, rows, cols; /* within the chunk */
    char *left;                 /* its rows of a, packed */
    char *panel;                /* a panel of b, where c is wide */
    struct sums sums;
};

/* Panels of a for one range of terms: packed, or rows as they lie, `ld` bytes apart. */
struct left {
    const char *at;
    int64_t step, ld;
};

static float *sums_at(const struct sums *c, const struct cpu_tiles *t, int64_t i, int64_t j)
{
    return c->at + (i / t->mr * c->across + j / t->nr) * t->mr * t->nr;
}

/* What becomes of a kernel block's sums. */
struct target {
    int32_t add;       /* scratch holds earlier terms */
    int32_t store;     /* to c, after the chunk's last terms */
    int32_t store_add; /* to what c holds */
    int32_t direct;    /* whole kernel blocks are summed in c itself */
};

static struct target target_of(const struct phase *f)
{
    int first = f->k0 == 0, last = f->k0 + f->k == f->g->k, whole = f->s->whole != 0;
    return (struct target){.add = whole && !first,
                           .store = last || !whole,
                           .store_add = f->g->accumulate || (!whole && !first),
                           .direct = (int32_t)f->s->direct};
}

static struct sums sums_of(const struct phase *f, const struct block *b, int64_t thread)
{
    const struct driver *s = f->s;
    struct sums sums = {(float *)(f->scratch + s->at_threads + thread * s->thread_bytes + s->thread_sums),
                        s->strip / s->tiles->nr};
    if (s->whole) {
        sums = (struct sums){(float *)(f->scratch + s->at_sums), ceil_div(f->g->n, s->tiles->nr)};
        sums.at = sums_at(&sums, s->tiles, b->i0, f->n0 + b->j0);
    }
    return sums;
}

/* One kernel call, terms k0.. of the chunk; after the last terms the sums go to c while they are in the first cache. */
static void kernel_at(const struct phase *f, const struct target *to, const struct block *b, int64_t i, int64_t j, int64_t k0,
                      int64_t k, const struct left *a, const char *pb)
{
    const struct cpu_tiles *t = f->s->tiles;
    const struct cpu_matrix *c = &f->g->c;
    int64_t at = (b->i0 + i) * c->rs + f->n0 + b->j0 + j;
    int64_t rows = min64(t->mr, b->rows - i), cols = min64(t->nr, b->cols - j);
    int whole = to->direct && rows == t->mr && cols == t->nr;
    float *sums = whole ? (float *)f->c + at : sums_at(&b->sums, t, i, f->s->whole ? j : j % f->s->strip);
    int64_t ld = whole ? c->rs : t->nr;
    int add = (whole ? to->store_add : to->add) || k0 > 0;
    const char *pa = a->at + i / t->mr * a->step;
    if (a->ld)
        t->kernel_rows(k, pa, a->ld, pb, sums, ld, add);
    else
        t->kernel(k, pa, pb, sums, ld, add);
    if (!whole && to->store && k0 + k == f->k)
        t->store(f->c + at * (int64_t)hd_dtype_size(c->dtype), c->dtype, c->rs, sums, t->nr, rows, cols, to->store_add);
}

/* The panel of b at column j of a block, terms k0.. of the chunk. */
static const char *panel_at(const struct phase *f, const struct block *b, int64_t j, int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = f->s->tiles;
    const struct cpu_matrix *m = &f->g->b;
    int64_t at = (f->n0 + b->j0 + j) * m->cs + (f->k0 + k0) * m->rs, cols = min64(t->nr, b->cols - j);
    if (!f->s->wide)
        return f->scratch + f->s->at_b + (round_up(f->n, t->nr) * k0 + (b->j0 + j) * cpu_tiles_pad(t, k)) * t->bytes;
    t->pack_b(b->panel, f->b + at * (int64_t)hd_dtype_size(m->dtype), m->dtype, m->cs, m->rs, cols, k);
    return b->panel;
}

/* The terms k0.. of columns j0.. of a block. */
static void block_range(const struct phase *f, const struct target *to, const struct block *b, const struct left *a, int64_t j0,
                        int64_t cols, int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = f->s->tiles;
    int64_t panels = ceil_div(b->rows, t->mr);
    for (int64_t j = j0; j < j0 + cols; j += t->nr) {
        const char *pb = panel_at(f, b, j, k0, k);
        for (int64_t i = 0; i < panels; i++)
            kernel_at(f, to, b, i * t->mr, j, k0, k, a, pb);
    }
}

/* The block's rows of a: where the terms k0.. of them lie, packed before or in place. */
static struct left left_of(const struct phase *f, const struct block *b, int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = f->s->tiles;
    const struct cpu_matrix *a = &f->g->a;
    if (!f->s->in_place)
        return (struct left){b->left + round_up(b->rows, t->mr) * k0 * t->bytes, cpu_tiles_panel_a(t, k), 0};
    return (struct left){f->a + (b->i0 * a->rs + f->k0 + k0) * t->bytes, t->mr * a->rs * t->bytes, a->rs * t->bytes};
}

static void pack_rows(const struct phase *f, const struct block *b)
{
    const struct cpu_tiles *t = f->s->tiles;
    const struct cpu_matrix *a = &f->g->a;
    for (int64_t p = 0; p < f->k; p += f->s->depth) {
        int64_t at = b->i0 * a->rs + (f->k0 + p) * a->cs;
        t->pack_a(b->left + round_up(b->rows, t->mr) * p * t->bytes, f->a + at * (int64_t)hd_dtype_size(a->dtype), a->dtype,
                  a->rs, a->cs, b->rows, min64(f->s->depth, f->k - p));
    }
}

static void block_make(const struct phase *f, const struct block *b)
{
    const struct driver *s = f->s;
    struct target to = target_of(f);
    if (!s->in_place)
        pack_rows(f, b);
    for (int64_t j = 0; j < b->cols; j += s->strip)
        for (int64_t k0 = 0; k0 < f->k; k0 += s->depth) {
            int64_t k = min64(s->depth, f->k - k0);
            struct left a = left_of(f, b, k0, k);
            block_range(f, &to, b, &a, j, min64(s->strip, b->cols - j), k0, k);
        }
}

/* One thread: takes blocks until none is left. */
static void blocks_run(void *context, int64_t first, int64_t last)
{
    struct phase *f = context;
    const struct driver *s = f->s;
    int64_t across = ceil_div(f->n, s->block_n), count = across * ceil_div(f->g->m, s->block_m);
    (void)last;
    s->tiles->begin();
    for (;;) {
        int64_t task = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED);
        if (task >= count)
            break;
        struct block b = {.i0 = task / across * s->block_m, .j0 = task % across * s->block_n,
                          .left = f->scratch + s->at_threads + first * s->thread_bytes};
        b.panel = b.left + s->thread_panel;
        b.rows = min64(s->block_m, f->g->m - b.i0);
        b.cols = min64(s->block_n, f->n - b.j0);
        b.sums = sums_of(f, &b, first);
        block_make(f, &b);
    }
    s->tiles->end();
}

/* ---- running */

static void own_run(struct cpu_gemm *g, const void *a, const void *b, void *c)
{
    const struct driver *s = g->state;
    struct phase f = {.g = g, .s = s, .scratch = cpu_scratch(g->device), .a = a, .b = b, .c = c};
    for (f.n0 = 0; f.n0 < g->n; f.n0 += f.n) {
        f.n = min64(s->chunk_n, g->n - f.n0);
        for (f.k0 = 0; f.k0 < g->k; f.k0 += f.k) {
            f.k = min64(s->chunk_k, g->k - f.k0);
            f.next = 0;
            if (!s->wide)
                cpu_parallel(g->device, ceil_div(f.n, GROUP * s->tiles->nr) * ceil_div(f.k, s->depth), 1, pack_b, &f);
            cpu_parallel(g->device, g->device->threads, 1, blocks_run, &f);
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

/* Can the micro-kernel read rows of a where they lie? */
static int lies_well(const struct cpu_gemm *g, const struct cpu_tiles *t)
{
    return t->kernel_rows && g->a.cs == 1 && (int64_t)hd_dtype_size(g->a.dtype) == t->bytes && g->m % t->mr == 0 &&
           g->k % t->kr == 0;
}

/* Terms of b that lie side by side are packed as well one panel at a time; rows of n are not. */
static int is_wide(const struct cpu_gemm *g, const struct driver *s)
{
    return g->b.rs == 1 && g->m <= WIDE_ROWS && g->n >= WIDE_RATIO * g->m &&
           g->m * min64(s->chunk_k, g->k) * s->tiles->bytes <= WIDE_BYTES;
}

/* A chunk has no more terms than a block's rows of a may have in packed form. */
static void choose_chunks(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t elements = CHUNK_BYTES / t->bytes;
    s->depth = even(g->k, t->depth, t->kr);
    s->chunk_k = even(g->k, s->in_place ? MOST_TERMS : ROWS_BYTES / t->bytes / BLOCK_ROWS, s->depth);
    s->wide = is_wide(g, s);
    s->chunk_n = s->wide ? round_up(g->n, t->nr) : even(g->n, elements / s->chunk_k, t->nr);
}

/* Rows of a block: as many blocks as make the threads finish together. */
static int64_t choose_rows(const struct cpu_gemm *g, const struct cpu_tiles *t)
{
    int64_t blocks = round_up(ceil_div(g->m, BLOCK_ROWS), g->device->threads);
    return round_up(max64(ceil_div(g->m, blocks), min64(LEAST_PANELS * t->mr, g->m)), t->mr);
}

/* Blocks small enough that each thread gets several: the longer side is cut. */
static void choose_blocks(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t n = min64(g->n, s->chunk_n), want = 2 * (int64_t)g->device->threads;
    if (s->wide) {
        s->block_m = round_up(g->m, t->mr);
        s->block_n = even(n, ceil_div(n, WIDE_BLOCKS * g->device->threads), t->nr);
        s->strip = min64(STRIP / t->nr * t->nr, s->block_n);
        return;
    }
    s->block_m = choose_rows(g, t);
    s->block_n = round_up(n, t->nr);
    while (g->device->threads > 1 && ceil_div(g->m, s->block_m) * ceil_div(n, s->block_n) < want)
        if (s->block_n > LEAST_PANELS * t->nr && s->block_n > 2 * s->block_m)
            s->block_n = round_up(s->block_n / 2, t->nr);
        else if (s->block_m > LEAST_PANELS * t->mr)
            s->block_m = round_up(s->block_m / 2, t->mr);
        else
            break;
    s->strip = min64(STRIP / t->nr * t->nr, s->block_n);
}

static int64_t choose_scratch(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t k = round_up(min64(s->chunk_k, g->k), t->kr);
    s->at_sums = s->wide ? 0 : round_up(round_up(min64(s->chunk_n, g->n), t->nr) * k * t->bytes, ALIGN);
    s->at_threads = s->at_sums;
    s->thread_sums = s->in_place ? 0 : round_up(s->block_m * k * t->bytes, ALIGN);
    s->thread_bytes = s->thread_sums;
    s->direct = g->c.dtype == HD_F32 && !(g->once && (s->depth < g->k || !t->adds_last));
    s->whole = g->c.dtype != HD_F32 && s->chunk_k < g->k;
    if (s->whole)
        s->at_threads += round_up(round_up(g->m, t->mr) * round_up(g->n, t->nr) * 4, ALIGN);
    else
        s->thread_bytes += round_up(s->block_m * s->strip * 4, ALIGN);
    s->thread_panel = s->thread_bytes;
    s->thread_bytes += s->wide ? round_up(cpu_tiles_panel_b(t, s->depth), ALIGN) : 0;
    return s->at_threads + s->thread_bytes * g->device->threads;
}

int32_t cpu_gemm_own(struct cpu_gemm *g, struct hd_error *err)
{
    struct driver *s = calloc(1, sizeof *s);
    int32_t status;
    if (!s)
        return hd_fail(err, HD_E_NOMEM, "no memory for a matrix product");
    s->tiles = cpu_tiles_choose(g->a.dtype);
    s->in_place = lies_well(g, s->tiles);
    choose_chunks(s, g);
    if (g->once && s->chunk_k < g->k) {
        free(s);
        return hd_fail(err, HD_E_UNSUPPORTED, "a product of %lld terms is not added at once", (long long)g->k);
    }
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
    if (g->once)
        return hd_fail(err, HD_E_UNSUPPORTED, "oneDNN does not say when it adds");
    status = cpu_gemm_onednn(g, &why);
    if (status)
        return hd_fail(err, status == HD_E_UNSUPPORTED ? HD_E_INVALID : status,
                       "device option products: onednn cannot be used: %s; use products: own", why.message);
    return HD_OK;
}
