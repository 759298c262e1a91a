/* Matrix products of experts, over rows that hold tokens alone. Buffers have room for the worst case; how many rows are
 * real is data. The rows of one expert, from all sequences, are brought together in scratch; one product makes them,
 * and its sizes are set when it runs. Rows are taken in the order of slots, so results do not depend on the number of
 * threads. */
#include "kernels/moe.h"
#include "kernels/rows.h"
#include "products/products.h"

#include <stdlib.h>

enum { ROW_GRAIN = 16 };

struct grouped {
    struct cpu_experts x;
    struct cpu_gemm gemm;
    const struct hd_operand *a, *b; /* grouped: x and y; grouped_dw: dy and x. [b e # width] */
    int64_t rows;                   /* of the expert at hand */
    int64_t at_b;                   /* bytes, in scratch */
    int32_t *slot;                  /* of each row */
    int64_t expert;
};

static size_t row_bytes(const struct hd_operand *o)
{
    return (size_t)o->extent[3] * hd_dtype_size(o->dtype);
}

static char *slot_at(const struct hd_operand *o, int64_t slot)
{
    return (char *)o->data + (size_t)slot * row_bytes(o);
}

/* ---- rows of one expert */

static void list_rows(struct hd_kernel *k, struct grouped *g)
{
    const int32_t *token = k->in[2].data;
    g->rows = 0;
    for (int64_t b = 0; b < g->x.b; b++) {
        int64_t first = (b * g->x.e + g->expert) * g->x.slots;
        for (int64_t slot = first; slot < first + g->x.slots; slot++)
            if (token[slot] > 0)
                g->slot[g->rows++] = (int32_t)slot;
    }
}

static void pack(const struct grouped *g, const struct hd_operand *o, char *to, int64_t first, int64_t last)
{
    size_t bytes = row_bytes(o);
    for (int64_t row = first; row < last; row++)
        memcpy(to + (size_t)row * bytes, slot_at(o, g->slot[row]), bytes);
}

static void pack_a(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct grouped *g = k->state;
    pack(g, g->a, cpu_rows(k->device), first, last);
}

static void pack_b(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct grouped *g = k->state;
    pack(g, g->b, (char *)cpu_rows(k->device) + g->at_b, first, last);
}

/* ---- y = x w */

/* Rows of the product go to their slots. */
static void unpack(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct grouped *g = k->state;
    struct hd_operand scratch = *g->b;
    float buf[CPU_CHUNK];
    int64_t width = g->x.n;
    scratch.data = (char *)cpu_rows(k->device) + g->at_b;
    for (int64_t row = first; row < last; row++)
        for (int64_t j = 0; j < width; j += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, width - j);
            cpu_end(k, 0, g->slot[row] * width + j, n, cpu_read(&scratch, row * width + j, n, buf));
        }
}

static void clear(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const int32_t *token = k->in[2].data;
    for (int64_t slot = first; slot < last; slot++)
        if (token[slot] <= 0)
            memset(slot_at(&k->out[0], slot), 0, row_bytes(&k->out[0]));
}

static void run_grouped(struct hd_kernel *k)
{
    struct grouped *g = k->state;
    size_t expert = (size_t)(g->x.m * g->x.n) * hd_dtype_size(k->in[1].dtype);
    char *scratch = cpu_rows(k->device);
    if (!cpu_accumulates(k))
        cpu_parallel(k->device, hd_operand_count(&k->in[2]), ROW_GRAIN, clear, k);
    for (g->expert = 0; g->expert < g->x.e; g->expert++) {
        list_rows(k, g);
        if (!g->rows)
            continue;
        cpu_parallel(k->device, g->rows, ROW_GRAIN, pack_a, k);
        g->gemm.m = g->rows;
        g->gemm.run(&g->gemm, scratch, (char *)k->in[1].data + (size_t)g->expert * expert, scratch + g->at_b);
        cpu_parallel(k->device, g->rows, ROW_GRAIN, unpack, k);
    }
}

/* ---- dw = dy^T x */

static void run_dw(struct hd_kernel *k)
{
    struct grouped *g = k->state;
    size_t expert = (size_t)(g->x.m * g->x.n) * hd_dtype_size(k->out[0].dtype);
    char *scratch = cpu_rows(k->device);
    for (g->expert = 0; g->expert < g->x.e; g->expert++) {
        char *dw = (char *)k->out[0].data + (size_t)g->expert * expert;
        list_rows(k, g);
        if (!g->rows && !cpu_accumulates(k))
            memset(dw, 0, expert);
        if (!g->rows)
            continue;
        cpu_parallel(k->device, g->rows, ROW_GRAIN, pack_a, k);
        cpu_parallel(k->device, g->rows, ROW_GRAIN, pack_b, k);
        g->gemm.k = g->rows;
        g->gemm.run(&g->gemm, scratch, scratch + g->at_b, dw);
    }
}

/* ---- preparing */

static void release(struct hd_kernel *k)
{
    struct grouped *g = k->state;
    if (!g)
        return;
    if (g->gemm.release)
        g->gemm.release(&g->gemm);
    free(g->slot);
    free(g);
    k->state = NULL;
}

/* `most` rows: all slots of one expert. Our own products take other sizes when they run; oneDNN's do not. */
static int32_t prepare(struct hd_kernel *k, struct grouped *g, int64_t most, struct hd_error *err)
{
    int32_t rc;
    g->at_b = (int64_t)(((size_t)most * row_bytes(g->a) + 63) & ~(size_t)63);
    g->slot = calloc((size_t)most, sizeof *g->slot);
    rc = g->slot ? cpu_gemm_own(&g->gemm, err) : hd_fail(err, HD_E_NOMEM, "no memory for the rows of an expert");
    if (!rc)
        rc = cpu_rows_reserve(k->device, (size_t)g->at_b + (size_t)most * row_bytes(g->b), err);
    if (rc)
        release(k);
    else
        k->release = release;
    return rc;
}

static struct grouped *begin(struct hd_kernel *k, const struct hd_operand *x, const struct hd_operand *w,
                             const struct hd_operand *y, struct hd_error *err)
{
    struct grouped *g;
    if (x->dtype != y->dtype || !cpu_fast_dtype(x->dtype) || !cpu_fast_dtype(w->dtype) ||
        hd_operand_count(&k->in[2]) > INT32_MAX || !hd_operand_count(x) || !hd_operand_count(w)) {
        hd_fail(err, HD_E_UNSUPPORTED, "grouped: no fast kernel for these dtypes");
        return NULL;
    }
    g = calloc(1, sizeof *g);
    if (!g) {
        hd_fail(err, HD_E_NOMEM, "no memory for products of experts");
        return NULL;
    }
    k->state = g;
    g->x = cpu_experts(x, w, y);
    g->gemm.device = k->device;
    return g;
}

int32_t cpu_fast_grouped(struct hd_kernel *k, struct hd_error *err)
{
    struct grouped *g;
    if (k->in[0].dtype != k->in[1].dtype)
        return hd_fail(err, HD_E_UNSUPPORTED, "grouped: no fast kernel for these dtypes");
    if (!(g = begin(k, &k->in[0], &k->in[1], &k->out[0], err)))
        return err->code;
    g->a = &k->in[0];
    g->b = &k->out[0];
    g->gemm.m = g->x.b * g->x.slots;
    g->gemm.n = g->x.n;
    g->gemm.k = g->x.m;
    g->gemm.a = (struct cpu_matrix){.dtype = g->a->dtype, .rs = g->x.m, .cs = 1};
    g->gemm.b = (struct cpu_matrix){.dtype = k->in[1].dtype, .rs = g->x.stride_m, .cs = g->x.stride_n};
    g->gemm.c = (struct cpu_matrix){.dtype = g->b->dtype, .rs = g->x.n, .cs = 1};
    k->run = run_grouped;
    return prepare(k, g, g->gemm.m, err);
}

/* dw lies as [e n m] or as [e m n]: the product is dy^T x, or x^T dy. */
int32_t cpu_fast_grouped_dw(struct hd_kernel *k, struct hd_error *err)
{
    struct grouped *g = begin(k, &k->in[1], &k->out[0], &k->in[0], err);
    int m_last = g && g->x.stride_m == 1;
    if (!g)
        return err->code;
    g->a = m_last ? &k->in[0] : &k->in[1];
    g->b = m_last ? &k->in[1] : &k->in[0];
    g->gemm.m = g->a->extent[3];
    g->gemm.n = g->b->extent[3];
    g->gemm.k = g->x.b * g->x.slots;
    g->gemm.a = (struct cpu_matrix){.dtype = g->a->dtype, .rs = 1, .cs = g->gemm.m};
    g->gemm.b = (struct cpu_matrix){.dtype = g->b->dtype, .rs = g->gemm.n, .cs = 1};
    g->gemm.c = (struct cpu_matrix){.dtype = k->out[0].dtype, .rs = g->gemm.n, .cs = 1};
    g->gemm.accumulate = cpu_accumulates(k);
    k->run = run_dw;
    return prepare(k, g, g->gemm.k, err);
}
