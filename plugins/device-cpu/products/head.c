/* plugins/device-cpu/products/head.c: the loss and its gradients from the last activations, in chunks of rows.
 *
 * Only a chunk of the logits exists at a time, in scratch, in the dtype of x: a product fills it, each row becomes its
 * gradient in place (fp32 sums), and two more products use it. How many rows a chunk has depends on shapes
 * alone, chunks follow one another, and products sum in a fixed order: results are the same bits for any
 * number of threads. With one output the loss is all that is asked for: one product, and no gradient. */
#include "kernels/rows.h"
#include "products/products.h"
#include "reference/reference.h"

#include <stdlib.h>

enum { LEAST_ROWS = 64, ROWS_UNIT = 32 };
enum { FIRST, MIDDLE, LAST, CHUNKS }; /* dw is written by the first at most; the last may be shorter */
enum { LOGITS, DX, DW, PRODUCTS };

struct head {
    int64_t rows, v, h;
    int64_t chunk; /* rows of all chunks but the last */
    struct cpu_gemm product[CHUNKS][PRODUCTS];
    struct hd_operand z; /* the chunk's logits */
    int64_t done;        /* rows before this chunk */
    int32_t trains, reserved;
};

/* ---- running */

static void softmax_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct head *a = k->state;
    for (int64_t row = first; row < last; row++) {
        int64_t label = ((const int32_t *)k->in[2].data)[a->done + row] - k->in[1].start[0];
        label = cpu_ignored(&k->in[2], a->done + row) ? CPU_IGNORED : label >= 0 && label < a->v ? label : -1;
        float nll = a->trains ? cpu_xent_row(&a->z, row, label, cpu_seed(k, 3)) : cpu_xent_loss(&a->z, row, label);
        cpu_write(&k->out[0], a->done + row, 1, &nll);
    }
}

static void *row_of(const struct hd_operand *o, int64_t row, int64_t width)
{
    return (char *)o->data + row * width * (int64_t)hd_dtype_size(o->dtype);
}

static void head_run(struct hd_kernel *k)
{
    struct head *a = k->state;
    a->z.data = cpu_rows(k->device);
    for (a->done = 0; a->done < a->rows; a->done += a->chunk) {
        int64_t rows = cpu_min(a->chunk, a->rows - a->done);
        struct cpu_gemm *g = a->product[!a->done ? FIRST : a->done + a->chunk < a->rows ? MIDDLE : LAST];
        const void *x = row_of(&k->in[0], a->done, a->h), *w = k->in[1].data;
        g[LOGITS].run(&g[LOGITS], x, w, a->z.data);
        cpu_parallel(k->device, rows, 1, softmax_rows, k);
        if (!a->trains)
            continue;
        g[DX].run(&g[DX], a->z.data, w, row_of(&k->out[1], a->done, a->h));
        g[DW].run(&g[DW], a->z.data, x, k->out[2].data);
    }
}

static void head_release(struct hd_kernel *k)
{
    struct head *a = k->state;
    for (int i = 0; i < CHUNKS; i++)
        for (int j = 0; j < PRODUCTS; j++)
            if (a->product[i][j].release)
                a->product[i][j].release(&a->product[i][j]);
    free(a);
    k->state = NULL;
}

/* ---- preparing */

static int64_t round_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Equal chunks of about the size that the option allows; not so few rows that reading all of w is dear. */
static int64_t chunk_rows(const struct hd_kernel *k, const struct head *a)
{
    int64_t row = a->v * (int64_t)hd_dtype_size(k->in[0].dtype);
    int64_t most = k->device->settings->logits / row / ROWS_UNIT * ROWS_UNIT;
    most = most < LEAST_ROWS ? LEAST_ROWS : most;
    int64_t chunks = (a->rows + most - 1) / most;
    return cpu_min(a->rows, round_to((a->rows + chunks - 1) / chunks, ROWS_UNIT));
}

static struct cpu_matrix matrix(uint32_t dtype, int64_t rs, int64_t cs)
{
    return (struct cpu_matrix){.dtype = dtype, .rs = rs, .cs = cs};
}

static int32_t products_prepare(struct hd_kernel *k, int which, int64_t rows, struct hd_error *err)
{
    struct head *a = k->state;
    struct cpu_gemm *g = a->product[which];
    uint32_t dtype = k->in[0].dtype;
    struct cpu_matrix x = matrix(dtype, a->h, 1), w = matrix(dtype, a->h, 1), z = matrix(dtype, a->v, 1);
    struct cpu_matrix dx = matrix(k->out[1].dtype, a->h, 1), dw = matrix(k->out[2].dtype, a->h, 1);
    struct cpu_matrix wt = matrix(dtype, 1, a->h), zt = matrix(dtype, 1, a->v);
    int n = a->trains ? PRODUCTS : LOGITS + 1;
    g[LOGITS] = (struct cpu_gemm){.m = rows, .n = a->v, .k = a->h, .a = x, .b = wt, .c = z};
    g[DX] = (struct cpu_gemm){.m = rows, .n = a->h, .k = a->v, .a = z, .b = w, .c = dx};
    g[DW] = (struct cpu_gemm){.m = a->v, .n = a->h, .k = rows, .a = zt, .b = x, .c = dw};
    g[DW].accumulate = which != FIRST || cpu_accumulates(k);
    for (int i = 0; i < n; i++) {
        g[i].device = k->device;
        int32_t rc = cpu_gemm_prepare(&g[i], err);
        if (rc)
            return rc;
    }
    return HD_OK;
}

static int32_t chunks_prepare(struct hd_kernel *k, struct hd_error *err)
{
    struct head *a = k->state;
    int64_t chunks = (a->rows + a->chunk - 1) / a->chunk;
    int32_t rc = cpu_rows_reserve(k->device, (size_t)(a->chunk * a->v) * hd_dtype_size(a->z.dtype), err);
    if (!rc)
        rc = products_prepare(k, FIRST, a->chunk, err);
    if (!rc && chunks > 2)
        rc = products_prepare(k, MIDDLE, a->chunk, err);
    if (!rc && chunks > 1)
        rc = products_prepare(k, LAST, a->rows - (chunks - 1) * a->chunk, err);
    return rc;
}

int32_t cpu_fast_xent_head(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &k->in[0], *w = &k->in[1];
    int32_t rc = cpu_fast_dtypes(k, 1 << 2 | 1 << 3, err);
    if (rc)
        return rc;
    if (x->dtype != w->dtype)
        return hd_fail(err, HD_E_UNSUPPORTED, "x is %s and w %s", hd_dtype_name(x->dtype), hd_dtype_name(w->dtype));
    if (!hd_operand_count(x) || !hd_operand_count(w))
        return hd_fail(err, HD_E_UNSUPPORTED, "there is nothing to multiply");
    struct head *a = calloc(1, sizeof *a);
    if (!a)
        return hd_fail(err, HD_E_NOMEM, "no memory for a fused head");
    k->state = a;
    k->run = head_run;
    k->release = head_release;
    a->trains = k->d.n_out == 3;
    a->rows = cpu_span(x, 0, x->ndim - 1);
    a->v = w->extent[0];
    a->h = w->extent[1];
    a->chunk = chunk_rows(k, a);
    a->z = (struct hd_operand){.dtype = x->dtype, .ndim = 2, .extent = {a->chunk, a->v}};
    return chunks_prepare(k, err); /* who calls releases where this fails */
}
