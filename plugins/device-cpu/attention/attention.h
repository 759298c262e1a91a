/* Shared by the forward and the backward kernel of attention.
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

struct cpu_attention {
    const struct cpu_tiles *tiles;
    const struct cpu_softmax *rows;
    struct hd_kernel *kernel;
    struct cpu_heads h;
    double scale, cap;              /* cap: of scores, 0: none */
    int64_t row_kind;               /* of weights: CPU_ROWS_.., the element type of the tiles */
    int64_t tile_q, tile_k, d_room; /* d_room: d in whole panels */
    int64_t group;                  /* tiles that pass by one of the other operand while it is in the caches */
    int64_t thread_bytes, panels_d; /* of b, across d */
    int64_t at[14];                 /* offsets of a thread's buffers, by the kernel's own names */
    void (*unit)(const struct cpu_attention *x, char *scratch, int64_t b, int64_t kv);
};

/* Shapes, tiles and row kernels; declines what the fast kernels do not cover. */
int32_t cpu_attention_init(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err);
/* Reserves scratch, and makes `x` the kernel's state, to be run over all units. */
int32_t cpu_attention_ready(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err);

/* The forward kernel in bf16 on AMX. */
int32_t cpu_attention_amx(struct cpu_attention *x, struct hd_kernel *k, struct hd_error *err);
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

/* The keys among k0 .. k0 + keys - 1 that a panel of queries sees: from `query` on, before `end`. Counted from k0. */
struct cpu_span cpu_keys_seen(const struct cpu_attention *x, int64_t query, int64_t end, int64_t k0, int64_t keys);
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

#endif
