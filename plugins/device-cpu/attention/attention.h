/* Shared by the kernels of attention, forward and backward.
 *
 * Work is cut by (b, kv head), one at a time a thread. Inside, products of tiles run on the panels and
 * micro-kernels of products/tiles.h, scores in fp32. Memory is O(sequence) a thread; a tile of scores is never
 * more than tile_q x tile_k. */
#ifndef HD_DEVICE_CPU_ATTENTION_ATTENTION_H
#define HD_DEVICE_CPU_ATTENTION_ATTENTION_H

#include "attention/softmax.h"
#include "products/products.h"
#include "products/tiles.h"
#include "reference/reference.h"

/* An operand of products of tiles, by its side: panels are rows on the left, columns on the right. */
struct cpu_side {
    int64_t lines; /* of a panel: mr or nr */
    void (*pack)(void *to, const void *from, uint32_t dtype, int64_t step, int64_t k_step, int64_t lines, int64_t k);
};

struct cpu_attention {
    const struct cpu_tiles *tiles;
    const struct cpu_softmax *rows;
    struct hd_kernel *kernel;
    struct cpu_heads h;
    double scale, cap;              /* cap: of scores, 0: none */
    int64_t row_kind;               /* of weights: CPU_ROWS_.., the element type of the tiles */
    int64_t tile_q, tile_k, d_room; /* d_room: d in whole panels */
    int64_t thread_bytes, panels_d; /* panels_d: how many these are */
    int64_t at[14];                 /* offsets of a thread's buffers, by the kernel's own names */
    struct cpu_side queries, keys;  /* of the forward pass; values are packed like keys */
    const struct cpu_forward *forward;
    void (*unit)(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv);
};

/* Shapes, tiles and row kernels; declines what the fast kernels do not cover. */
int32_t cpu_attention_init(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err);
/* Reserves scratch, and makes `x` the kernel's state, to be run over all units. */
int32_t cpu_attention_ready(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err);
/* Offsets of n buffers of a thread. */
void cpu_attention_lay(struct cpu_attention *x, const int64_t *bytes, size_t n);

static inline int64_t cpu_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static inline int64_t cpu_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t cpu_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Element 0 of position i of a query head (q, o, do, dq) or a kv head (k, v, dk, dv), in elements. */
static inline int64_t cpu_query_at(const struct cpu_attention *x, int64_t b, int64_t kv, int64_t g, int64_t i)
{
    return (((b * x->h.s + i) * x->h.k + kv) * x->h.g + g) * x->h.d;
}

static inline int64_t cpu_key_at(const struct cpu_attention *x, int64_t b, int64_t kv, int64_t j)
{
    return ((b * x->h.t + j) * x->h.k + kv) * x->h.d;
}

static inline const char *cpu_element(const struct hd_operand *o, int64_t i)
{
    return (const char *)o->data + i * (int64_t)hd_dtype_size(o->dtype);
}

/* Elements between neighbouring positions of one head. */
static inline int64_t cpu_query_step(const struct cpu_attention *x)
{
    return x->h.k * x->h.g * x->h.d;
}

static inline int64_t cpu_key_step(const struct cpu_attention *x)
{
    return x->h.k * x->h.d;
}

/* Bytes of n weights. */
static inline int64_t cpu_weights_bytes(const struct cpu_attention *x, int64_t n)
{
    return n * x->tiles->bytes;
}

/* Panels, `step` bytes apart: packed, or (rs not 0) rows of a as they lie, strides of rows and terms in bytes. */
struct cpu_panels {
    const char *at;
    int64_t step, rs, cs;
};

/* From the first key that query q0 sees to the last one that query q0 + n - 1 sees; may be empty. */
static inline struct cpu_span cpu_keys_seen(const struct cpu_attention *x, int64_t q0, int64_t n)
{
    struct cpu_span s;
    int64_t unused;
    cpu_visible(&x->h, q0, &s.first, &s.last);
    if (n > 1)
        cpu_visible(&x->h, q0 + n - 1, &unused, &s.last);
    return s;
}

/* The part of a span among n from `from` on, counted from there. */
static inline struct cpu_span cpu_span_within(struct cpu_span s, int64_t from, int64_t n)
{
    return (struct cpu_span){cpu_most(0, s.first - from), cpu_least(s.last - from, n)};
}

/* Rows of weights, of the tiles' element type, as the left operand: as they lie where the kernel reads them so, else
 * packed into `room`. Rows go on with zeros to a multiple of kr terms. */
struct cpu_panels cpu_tiles_left(const struct cpu_tiles *t, const void *weights, int64_t step, int64_t k_step,
                                 int64_t rows, int64_t k, void *room);
/* A panel of rows, from row i of a and c on: c[mr, cols] (+)= a b over `terms`. Spans are widened to whole panels of b
 * and, at their beginning, to multiples of nr; c has room for whole panels. */
void cpu_tiles_product(const struct cpu_tiles *t, int64_t i, struct cpu_span cols, struct cpu_span terms,
                       const struct cpu_panels *a, const struct cpu_panels *b, float *c, int64_t ldc, int add);

/* Writes (or adds, with HD_ATTR_ACCUMULATE) rows of d values, d_room apart, to an output from element `to` on, `step`
 * elements apart. */
void cpu_attention_store(const struct cpu_attention *x, uint32_t output, int64_t to, int64_t step, const float *from,
                         int64_t rows);

/* ---- forward: attention.c goes from tile to tile, one of two kernels computes each */

/* A tile of queries of one head, and the keys at hand: those of one key tile that its queries see, from the beginning
 * of a panel of keys. */
struct cpu_attention_tile {
    int64_t q0, rows;       /* queries */
    int64_t k0, keys;       /* keys at hand */
    struct cpu_span seen;   /* all keys that its queries see; at the first, sums hold nothing yet */
    struct cpu_panels q;    /* the queries */
    struct cpu_panels k, v; /* the keys at hand and their values; v's panels are across d */
    float *scores;          /* room for tile_q x tile_k, and for tile_q x d_room */
    void *weights;          /* room for tile_q x tile_k of the tiles' element type; that of scores if it is fp32 */
    float *sums;            /* tile_q x d_room, or turned: o so far, not divided by `total` */
    float *most, *total;    /* of each query so far: the shift of its weights, -INFINITY: it saw none; their sum */
};

struct cpu_forward {
    int64_t tile_q, tile_k; /* queries of a tile at most, keys of one */
    int64_t keys_left;      /* keys are the left operand: scores are keys x queries, and o is turned too */
    /* Adds the keys at hand to sums, most and total. */
    void (*add)(const struct cpu_attention *x, const struct cpu_attention_tile *t);
    /* Returns o, rows d_room apart, and brings `most` to units of lse. */
    const float *(*finish)(const struct cpu_attention *x, const struct cpu_attention_tile *t);
};

extern const struct cpu_forward cpu_forward_rows; /* for any tiles */
extern const struct cpu_forward cpu_forward_amx;  /* for those of AMX */

#endif
