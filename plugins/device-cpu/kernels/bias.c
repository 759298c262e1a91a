/* Additions of a row to every row: biases and learned positions, and the sums over rows that are their gradients. */
#include "kernels/rows.h"
#include "reference/reference.h"

enum { ROW_GRAIN = 16384, BLOCKS = 32 };

static int64_t grain(int64_t row)
{
    return 1 + ROW_GRAIN / (row + 1);
}

/* w's dims are the last ones of x: then w is a row, and x is rows. */
static int32_t is_row(const struct hd_operand *x, const struct hd_operand *w, struct hd_error *err)
{
    for (uint32_t i = 0; i < w->ndim; i++)
        if (w->dim[w->ndim - 1 - i] != x->dim[x->ndim - 1 - i])
            return hd_fail(err, HD_E_UNSUPPORTED, "the bias is not along the last dims");
    if (hd_operand_count(w) < 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "the bias is empty");
    return HD_OK;
}

CPU_INLINE void add2_of(float *y, const void *a, const void *b, int64_t n, int half)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = cpu_get(a, i, half) + cpu_get(b, i, half);
}

CPU_CLONES(void, add2, (float *y, const void *a, const void *b, int64_t n, int half), (y, a, b, n, half))
{
    CPU_EITHER(half, add2_of, y, a, b, n);
}

enum { ALL = 3 };

/* y[at..] = x[at..] + w[from..], one row of h. */
static void add_row(struct hd_kernel *k, int64_t at, int64_t from, int64_t h, int half)
{
    float xb[CPU_CHUNK], wb[CPU_CHUNK], yb[CPU_CHUNK];
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        float *y = cpu_begin(k, 0, at + j, yb);
        cpu_ahead(&k->in[0], at + j, n);
        add2(y, cpu_in(k, 0, at + j, n, xb, half), cpu_in(k, 1, from + j, n, wb, half), n, half);
        cpu_end(k, 0, at + j, n, y);
    }
}

static void copy_row(struct hd_kernel *k, int64_t at, int64_t h)
{
    float xb[CPU_CHUNK];
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        cpu_end(k, 0, at + j, n, cpu_read(&k->in[0], at + j, n, xb));
    }
}

/* ---- bias */

static void bias_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    int64_t h = hd_operand_count(&k->in[1]);
    int half = cpu_half(k, ALL);
    for (int64_t row = first; row < last; row++)
        add_row(k, row * h, 0, h, half);
}

static void run_bias(struct hd_kernel *k)
{
    int64_t h = hd_operand_count(&k->in[1]);
    cpu_parallel(k->device, hd_operand_count(&k->in[0]) / h, grain(h), bias_rows, k);
}

int32_t cpu_fast_bias(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 0, err);
    k->run = run_bias;
    return rc ? rc : is_row(&k->in[0], &k->in[1], err);
}

/* ---- its gradient: a sum for each block of rows, then the sum of those, in order */

static void bias_blocks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float buf[CPU_CHUNK];
    int64_t h = hd_operand_count(&k->out[0]), rows = hd_operand_count(&k->in[0]) / h;
    int64_t step = (rows + BLOCKS - 1) / BLOCKS;
    int half = cpu_half(k, 1);
    for (int64_t block = first; block < last; block++) {
        float *sum = (float *)k->state + h * block;
        memset(sum, 0, (size_t)h * sizeof *sum);
        for (int64_t row = block * step; row < cpu_min(rows, (block + 1) * step); row++)
            for (int64_t j = 0; j < h; j += CPU_CHUNK) {
                int64_t n = cpu_min(CPU_CHUNK, h - j);
                cpu_ahead(&k->in[0], row * h + j, n);
                cpu_add_to(sum + j, cpu_in(k, 0, row * h + j, n, buf, half), n, half);
            }
    }
}

static void run_bias_dw(struct hd_kernel *k)
{
    float *sum = k->state;
    int64_t h = hd_operand_count(&k->out[0]);
    cpu_parallel(k->device, BLOCKS, 1 + ROW_GRAIN * BLOCKS / (hd_operand_count(&k->in[0]) + 1), bias_blocks, k);
    for (int64_t block = 1; block < BLOCKS; block++)
        cpu_add_to(sum, sum + h * block, h, 0);
    for (int64_t j = 0; j < h; j += CPU_CHUNK)
        cpu_end(k, 0, j, cpu_min(CPU_CHUNK, h - j), sum + j);
}

int32_t cpu_fast_bias_dw(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 0, err);
    k->run = run_bias_dw;
    if (!rc)
        rc = is_row(&k->in[0], &k->out[0], err);
    return rc ? rc : cpu_kernel_state(k, BLOCKS * (size_t)hd_operand_count(&k->out[0]) * sizeof(float), err);
}

/* ---- positions: each row of a sequence takes its position's row of the table; beyond the table there is nothing */

static void position_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *x = &k->in[0], *w = &k->in[1];
    uint32_t s = x->ndim - 2;
    int64_t h = w->extent[1];
    int half = cpu_half(k, ALL);
    for (int64_t row = first; row < last; row++) {
        int64_t from = hd_position(&k->d.attrs, x->start[s] + row % x->extent[s]) - w->start[0];
        if (from >= 0 && from < w->extent[0])
            add_row(k, row * h, from * h, h, half);
        else
            copy_row(k, row * h, h);
    }
}

static void run_position(struct hd_kernel *k)
{
    int64_t h = k->in[1].extent[1];
    cpu_parallel(k->device, hd_operand_count(&k->in[0]) / (h ? h : 1), grain(h), position_rows, k);
}

int32_t cpu_fast_position(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_position;
    return cpu_fast_dtypes(k, 0, err);
}

/* Rows of the table: each sums over the batch, in order. */
static void position_dw_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *dy = &k->in[0], *dw = &k->out[0];
    float buf[CPU_CHUNK], sum[CPU_CHUNK];
    uint32_t s = dy->ndim - 2;
    struct cpu_order order = cpu_order(dy, s, &k->d.attrs);
    int64_t h = dw->extent[1], length = dy->extent[s], batch = cpu_span(dy, 0, s);
    for (int64_t row = first; row < last; row++) {
        int64_t position = dw->start[0] + row, i = cpu_before(&order, position);
        int here = i < length && cpu_position(&order, i) == position;
        for (int64_t j = 0; j < h; j += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, h - j);
            memset(sum, 0, sizeof sum);
            for (int64_t b = 0; b < batch && here; b++)
                cpu_add_to(sum, cpu_read(dy, (b * length + i) * h + j, n, buf), n, 0);
            cpu_end(k, 0, row * h + j, n, sum);
        }
    }
}

static void run_position_dw(struct hd_kernel *k)
{
    cpu_parallel(k->device, k->out[0].extent[0], grain(k->out[0].extent[1]), position_dw_rows, k);
}

int32_t cpu_fast_position_dw(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_position_dw;
    return cpu_fast_dtypes(k, 0, err);
}
