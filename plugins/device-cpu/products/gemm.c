/* Matrix products by our own micro-kernels.
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication". c is cut into parts, one a thread.
 * A thread packs what its part needs of b, a chunk of a few MB at a time, and of a, a block of rows at a time
 * that stays in its second cache, or reads a as it lies where the micro-kernel can. No thread reads what another one
 * packed: packing some of a or b twice is cheaper than lines that go from core to core, and nobody waits before the
 * end. Range of terms after range of terms (depth), a panel of b stays in the first cache while all panels of a pass
 * by. Each element of c is summed in the same order whatever the threads: results are bit-identical from run to run.
 *
 * A wide c, of few rows and many columns as logits are, is cut otherwise: a part has all rows and is one block. Its
 * panels of b are read once: each is packed when its turn comes, into the first cache.
 *
 * Sums are in fp32: in c itself, or, where c is bf16 or is added to once and at c's edges, in the thread's
 * scratch, where each kernel block is contiguous. A bf16 c is rounded once: where a chunk does not hold
 * all terms, sums of the whole c are kept in scratch. */
#include "products/products.h"
#include "products/tiles.h"

#include <stdlib.h>
#include <string.h>

/* Packed b; a block's rows of a, which stay in the second cache; terms, where more chunks would want memory for bf16's
 * sums. */
enum { CHUNK_BYTES = 4 << 20, ROWS_BYTES = 512 << 10, MOST_TERMS = 4096 };
/* A wide c: rows at most, bytes of their a at most, columns a row at least; its parts, for each thread. */
enum { WIDE_ROWS = 512, WIDE_BYTES = 1 << 20, WIDE_RATIO = 16, WIDE_PARTS = 4 };
enum { BLOCK_ROWS = 128, STRIP = 256, GROUP = 8, ALIGN = 64 };
enum { PACKING = 24 }; /* packing an element takes as long as so many products */

struct driver {
    const struct cpu_tiles *tiles;
    int64_t part_m, part_n;   /* of c, a task; multiples of mr, nr */
    int64_t chunk_n, chunk_k; /* of b, packed at a time; multiples of nr, kr */
    int64_t block_m;          /* rows of a, packed at a time; a multiple of mr */
    int64_t strip;    /* columns of a block that are made before the next ones: their sums stay in the second cache */
    int64_t in_place; /* a is read as it lies */
    int64_t depth;    /* terms of one kernel call */
    int64_t wide;     /* see above */
    /* Scratch, offsets in bytes. */
    int64_t at_sums, at_threads, thread_bytes, thread_b, thread_sums;
    int64_t whole;  /* sums of the whole c, not of a strip */
    int64_t direct; /* whole kernel blocks are summed in c itself */
};

/* A product, shared by all threads. */
struct product {
    const struct cpu_gemm *g;
    const struct driver *s;
    char *scratch;
    const char *a, *b;
    char *c;
    int64_t next; /* part */
};

/* A thread's part of c, the chunk of b and the block of rows at hand: origins and extents. */
struct part {
    const struct product *f;
    char *left, *right; /* packed: rows of a; the chunk of b, or a panel of it where c is wide */
    float *sums;
    int64_t i0, rows;
    int64_t j0, cols;
    int64_t k0, terms;
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

/* `cols` columns of the chunk from its column j on, terms k0.. of it. */
static void pack_panels(const struct part *x, char *to, int64_t j, int64_t cols, int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = x->f->s->tiles;
    const struct cpu_matrix *b = &x->f->g->b;
    int64_t at = (x->j0 + j) * b->cs + (x->k0 + k0) * b->rs;
    t->pack_b(to, x->f->b + at * (int64_t)hd_dtype_size(b->dtype), b->dtype, b->cs, b->rs, cols, k);
}

/* The panel of column j, terms k0.. of the chunk. */
static char *panel_in(const struct part *x, int64_t j, int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = x->f->s->tiles;
    return x->right + (round_up(x->cols, t->nr) * k0 + j * cpu_tiles_pad(t, k)) * t->bytes;
}

static void pack_chunk(const struct part *x)
{
    const struct driver *s = x->f->s;
    int64_t width = GROUP * s->tiles->nr;
    for (int64_t k0 = 0; k0 < x->terms; k0 += s->depth)
        for (int64_t j = 0; j < x->cols; j += width) {
            int64_t k = min64(s->depth, x->terms - k0);
            pack_panels(x, panel_in(x, j, k0, k), j, min64(width, x->cols - j), k0, k);
        }
}

/* Rows of a block that are read as they lie; the others are packed. */
static int64_t rows_in_place(const struct part *x)
{
    return x->f->s->in_place ? x->rows / x->f->s->tiles->mr * x->f->s->tiles->mr : 0;
}

static void pack_rows(const struct part *x)
{
    const struct driver *s = x->f->s;
    const struct cpu_tiles *t = s->tiles;
    const struct cpu_matrix *a = &x->f->g->a;
    int64_t first = rows_in_place(x), rows = x->rows - first;
    for (int64_t p = 0; p < x->terms && rows; p += s->depth) {
        int64_t at = (x->i0 + first) * a->rs + (x->k0 + p) * a->cs;
        t->pack_a(x->left + round_up(rows, t->mr) * p * t->bytes, x->f->a + at * (int64_t)hd_dtype_size(a->dtype),
                  a->dtype, a->rs, a->cs, rows, min64(s->depth, x->terms - p));
    }
}

/* ---- a block: rows of a times the chunk of b */

/* Kernel block (i, j), in units of mr and nr, lies at at + (i * across + j) * mr * nr. */
struct sums {
    float *at;
    int64_t across;
};

/* A block's rows of a for one range of terms: the first `in_place` as they lie, strides in bytes, the others packed. */
struct left {
    const char *lying, *packed;
    int64_t in_place, rs, cs;
    int64_t panel; /* bytes of a packed one */
};

/* The destination of a kernel block's sums. */
struct target {
    struct sums sums;
    int32_t add;       /* scratch holds earlier terms */
    int32_t store;     /* to c, after the chunk's last terms */
    int32_t store_add; /* to what c holds */
    int32_t direct;    /* whole kernel blocks are summed in c itself */
    int64_t carry;     /* the others, in scratch, go on from the sums that c holds, as those do */
};

static float *sums_at(const struct sums *c, const struct cpu_tiles *t, int64_t i, int64_t j)
{
    return c->at + (i / t->mr * c->across + j / t->nr) * t->mr * t->nr;
}

static struct target target_of(const struct part *x)
{
    const struct driver *s = x->f->s;
    const struct cpu_gemm *g = x->f->g;
    int first = x->k0 == 0, last = x->k0 + x->terms == g->k, whole = s->whole != 0;
    struct sums sums = {x->sums, s->strip / s->tiles->nr};
    if (whole) {
        sums = (struct sums){(float *)(x->f->scratch + s->at_sums), ceil_div(g->n, s->tiles->nr)};
        sums.at = sums_at(&sums, s->tiles, x->i0, x->j0);
    }
    return (struct target){.sums = sums,
                           .add = whole && !first,
                           .store = last || !whole,
                           .store_add = g->accumulate || (!whole && !first),
                           .direct = (int32_t)s->direct,
                           .carry = !whole && !first};
}

static void carry_sums(float *sums, int64_t ld, const float *c, int64_t c_ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(sums + i * ld, c + i * c_ld, (size_t)cols * sizeof *c);
}

/* One kernel call, terms k0.. of the chunk; after the last terms the sums go to c while they are in the first cache. */
static void kernel_at(const struct part *x, const struct target *to, int64_t i, int64_t j, int64_t k0, int64_t k,
                      const struct left *a, const char *pb)
{
    const struct driver *s = x->f->s;
    const struct cpu_tiles *t = s->tiles;
    const struct cpu_matrix *c = &x->f->g->c;
    int64_t at = (x->i0 + i) * c->rs + x->j0 + j;
    int64_t rows = min64(t->mr, x->rows - i), cols = min64(t->nr, x->cols - j);
    int whole = to->direct && rows == t->mr && cols == t->nr;
    float *sums = whole ? (float *)x->f->c + at : sums_at(&to->sums, t, i, s->whole ? j : j % s->strip);
    int64_t ld = whole ? c->rs : t->nr;
    int carry = !whole && to->carry, add = (whole ? to->store_add : to->add || carry) || k0 > 0;
    if (carry && k0 == 0)
        carry_sums(sums, ld, (const float *)x->f->c + at, c->rs, rows, cols);
    if (i < a->in_place)
        t->kernel_rows(k, a->lying + i * a->rs, a->rs, a->cs, pb, sums, ld, add);
    else
        t->kernel(k, a->packed + (i - a->in_place) / t->mr * a->panel, pb, sums, ld, add);
    if (!whole && to->store && k0 + k == x->terms)
        t->store(x->f->c + at * (int64_t)hd_dtype_size(c->dtype), c->dtype, c->rs, sums, t->nr, rows, cols,
                 to->store_add && !carry);
}

/* The panel of b at column j, terms k0.. of the chunk. */
static const char *panel_at(const struct part *x, int64_t j, int64_t k0, int64_t k)
{
    if (!x->f->s->wide)
        return panel_in(x, j, k0, k);
    pack_panels(x, x->right, j, min64(x->f->s->tiles->nr, x->cols - j), k0, k);
    return x->right;
}

/* The terms k0.. of columns j0.. of a block. */
static void block_range(const struct part *x, const struct target *to, const struct left *a, int64_t j0, int64_t cols,
                        int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = x->f->s->tiles;
    for (int64_t j = j0; j < j0 + cols; j += t->nr) {
        const char *pb = panel_at(x, j, k0, k);
        for (int64_t i = 0; i < x->rows; i += t->mr)
            kernel_at(x, to, i, j, k0, k, a, pb);
    }
}

static struct left left_of(const struct part *x, int64_t k0, int64_t k)
{
    const struct cpu_tiles *t = x->f->s->tiles;
    const struct cpu_matrix *a = &x->f->g->a;
    int64_t in_place = rows_in_place(x);
    return (struct left){.lying = x->f->a + (x->i0 * a->rs + (x->k0 + k0) * a->cs) * t->bytes,
                         .packed = x->left + round_up(x->rows - in_place, t->mr) * k0 * t->bytes,
                         .in_place = in_place,
                         .rs = a->rs * t->bytes,
                         .cs = a->cs * t->bytes,
                         .panel = cpu_tiles_panel_a(t, k)};
}

static void block_make(const struct part *x)
{
    const struct driver *s = x->f->s;
    struct target to = target_of(x);
    pack_rows(x);
    for (int64_t j = 0; j < x->cols; j += s->strip)
        for (int64_t k0 = 0; k0 < x->terms; k0 += s->depth) {
            int64_t k = min64(s->depth, x->terms - k0);
            struct left a = left_of(x, k0, k);
            block_range(x, &to, &a, j, min64(s->strip, x->cols - j), k0, k);
        }
}

/* ---- parts */

static void chunk_make(struct part *x, int64_t i0, int64_t rows)
{
    const struct driver *s = x->f->s;
    if (!s->wide)
        pack_chunk(x);
    for (x->i0 = i0; x->i0 < i0 + rows; x->i0 += x->rows) {
        x->rows = min64(s->block_m, i0 + rows - x->i0);
        block_make(x);
    }
}

static void part_make(struct part *x, int64_t i0, int64_t j0)
{
    const struct driver *s = x->f->s;
    const struct cpu_gemm *g = x->f->g;
    int64_t rows = min64(s->part_m, g->m - i0), end = min64(j0 + s->part_n, g->n);
    for (x->j0 = j0; x->j0 < end; x->j0 += x->cols) {
        x->cols = min64(s->chunk_n, end - x->j0);
        for (x->k0 = 0; x->k0 < g->k; x->k0 += x->terms) {
            x->terms = min64(s->chunk_k, g->k - x->k0);
            chunk_make(x, i0, rows);
        }
    }
}

/* One thread: its own part, and then, where there are more, the next that nobody has. */
static void parts_run(void *context, int64_t first, int64_t last)
{
    struct product *f = context;
    const struct driver *s = f->s;
    int64_t across = ceil_div(f->g->n, s->part_n), count = across * ceil_div(f->g->m, s->part_m);
    char *own = f->scratch + s->at_threads + first * s->thread_bytes;
    struct part x = {.f = f, .left = own, .right = own + s->thread_b, .sums = (float *)(own + s->thread_sums)};
    (void)last;
    s->tiles->begin();
    for (int64_t i = first; i < count; i = f->g->device->threads + __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED))
        part_make(&x, i / across * s->part_m, i % across * s->part_n);
    s->tiles->end();
}

static void own_run(struct cpu_gemm *g, const void *a, const void *b, void *c)
{
    struct product f = {.g = g, .s = g->state, .scratch = cpu_scratch(g->device), .a = a, .b = b, .c = c};
    cpu_parallel(g->device, g->device->threads, 1, parts_run, &f);
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

/* Can the micro-kernel read rows of a where they lie, and well? */
static int lies_well(const struct cpu_gemm *g, const struct cpu_tiles *t)
{
    int aliases = g->a.cs == 1 && t->alias && g->a.rs * t->bytes % t->alias == 0;
    return t->kernel_rows && (g->a.cs == 1 || (t->any_order && cpu_tiles_reach())) && !aliases &&
           g->a.dtype == (t->bytes == 4 ? HD_F32 : HD_BF16) && g->k % t->kr == 0;
}

/* Terms of b that lie side by side are packed as well one panel at a time; rows of n are not. */
static int is_wide(const struct cpu_gemm *g, const struct driver *s)
{
    return g->b.rs == 1 && g->m <= WIDE_ROWS && g->n >= WIDE_RATIO * g->m &&
           g->m * min64(s->chunk_k, g->k) * s->tiles->bytes <= WIDE_BYTES;
}

/* Terms do not depend on threads: sums would. Where sums are kept in c itself and a is packed, a chunk has the terms of
 * one kernel call: what is packed is used while the second cache has it. Else it has no more than a block's rows of a
 * may have. */
static void choose_terms(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    s->depth = even(g->k, t->depth, t->kr);
    s->chunk_k = s->depth;
    if (g->c.dtype == HD_F32 && !g->once && !s->in_place)
        return;
    s->chunk_k = even(g->k, s->in_place && t->bytes == 2 ? MOST_TERMS : ROWS_BYTES / t->bytes / BLOCK_ROWS, s->depth);
}

/* How long a thread takes for its part, in products a term. */
static int64_t part_time(const struct driver *s)
{
    return s->part_m * s->part_n + PACKING * (s->part_n + (s->in_place ? 0 : s->part_m));
}

/* A grid of one part a thread, the quickest; where two are alike, the one with whole rows. */
static void choose_parts(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    struct driver best = *s;
    int64_t least = INT64_MAX, threads = g->device->threads;
    for (int64_t across = 1; across <= threads; across++) {
        if (threads % across)
            continue;
        s->part_m = round_up(ceil_div(g->m, threads / across), t->mr);
        s->part_n = round_up(ceil_div(g->n, across), t->nr);
        if (part_time(s) < least) {
            best = *s;
            least = part_time(s);
        }
    }
    *s = best;
}

static void choose_blocks(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    s->wide = is_wide(g, s);
    if (s->wide) {
        s->part_m = s->block_m = round_up(g->m, t->mr);
        s->part_n = s->chunk_n = even(g->n, ceil_div(g->n, WIDE_PARTS * g->device->threads), t->nr);
    } else {
        choose_parts(s, g);
        s->chunk_n = even(s->part_n, CHUNK_BYTES / t->bytes / s->chunk_k, t->nr);
        s->block_m = even(s->part_m, BLOCK_ROWS, t->mr);
    }
    s->strip = min64(STRIP / t->nr * t->nr, s->chunk_n);
}

static int64_t choose_scratch(struct driver *s, const struct cpu_gemm *g)
{
    const struct cpu_tiles *t = s->tiles;
    int64_t k = round_up(min64(s->chunk_k, g->k), t->kr);
    s->direct = g->c.dtype == HD_F32 && !(g->once && (s->depth < g->k || !t->adds_last));
    s->whole = g->c.dtype != HD_F32 && s->chunk_k < g->k;
    s->at_threads = s->whole ? round_up(round_up(g->m, t->mr) * round_up(g->n, t->nr) * 4, ALIGN) : 0;
    s->thread_b = round_up((s->in_place ? t->mr : s->block_m) * k * t->bytes, ALIGN);
    s->thread_sums =
        s->thread_b + round_up(s->wide ? cpu_tiles_panel_b(t, s->depth) : s->chunk_n * k * t->bytes, ALIGN);
    s->thread_bytes = s->thread_sums + (s->whole ? 0 : round_up(s->block_m * s->strip * 4, ALIGN));
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
    choose_terms(s, g);
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
