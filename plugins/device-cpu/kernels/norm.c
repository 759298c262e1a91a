/* RMSNorm and LayerNorm, row by row; formulas in reference/norm.c. RMSNorm is LayerNorm without the means. */
#include "kernels/rows.h"

enum { ROW_GRAIN = 16384, BLOCKS = 32 }; /* elements that are worth a thread; blocks of rows in sums over rows */

struct row {
    float mean, r;
};

CPU_INLINE float square_sum_of(const void *x, float mean, int64_t n, int half)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(x, i, half) - mean;
        sum += v * v;
    }
    return sum;
}

CPU_CLONES(float, square_sum, (const void *x, float mean, int64_t n, int half), (x, mean, n, half))
{
    return CPU_EITHER(half, square_sum_of, x, mean, n);
}

/* cpu_in of any operand. */
static const void *read_of(const struct hd_operand *o, int64_t at, int64_t n, float *buf, int half)
{
    return half ? (const void *)((const uint16_t *)o->data + at) : cpu_read(o, at, n, buf);
}

/* Is all that is read bf16? The sum before a norm is. */
static int all_half(const struct hd_kernel *k, const struct cpu_norm *o)
{
    return cpu_half(k, (1u << k->d.n_in) - 1) && o->x->dtype == HD_BF16;
}

static struct row row_of(const struct hd_kernel *k, const struct hd_operand *x, int64_t at, int64_t h, int centred,
                         int half)
{
    float buf[CPU_CHUNK];
    double sum = 0, square = 0;
    cpu_ahead(x, at, h);
    for (int64_t j = 0; centred && j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        sum += cpu_sum(read_of(x, at + j, n, buf, half), n, half);
    }
    struct row row = {.mean = (float)(sum / (double)h)};
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        square += square_sum(read_of(x, at + j, n, buf, half), row.mean, n, half);
    }
    row.r = (float)(1 / sqrt(square / (double)h + k->d.attrs.eps));
    return row;
}

static int64_t grain(int64_t h)
{
    return 1 + ROW_GRAIN / (h + 1);
}

/* ---- forward */

CPU_INLINE void scale_rms_of(float *y, const void *x, const void *w, float r, int64_t n, int half)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = cpu_get(x, i, half) * r * cpu_get(w, i, half);
}

CPU_CLONES(void, scale_rms, (float *y, const void *x, const void *w, float r, int64_t n, int half),
           (y, x, w, r, n, half))
{
    CPU_EITHER(half, scale_rms_of, y, x, w, r, n);
}

CPU_INLINE void scale_shift_of(float *y, const void *x, const void *w, const void *c, struct row row, int64_t n,
                               int half)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float unit = (cpu_get(x, i, half) - row.mean) * row.r;
        y[i] = unit * cpu_get(w, i, half) + cpu_get(c, i, half);
    }
}

CPU_CLONES(void, scale_shift,
           (float *y, const void *x, const void *w, const void *c, struct row row, int64_t n, int half),
           (y, x, w, c, row, n, half))
{
    CPU_EITHER(half, scale_shift_of, y, x, w, c, row, n);
}

/* t = x0 + x1, which the norm reads as it is written. t may lie where x0 does. */
static void sum_row(struct hd_kernel *k, int64_t at, int64_t h, int half)
{
    float sum[CPU_CHUNK], b[CPU_CHUNK];
    cpu_ahead(&k->in[1], at, h);
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        const float *x = cpu_read(&k->in[0], at + j, n, sum);
        if (x != sum)
            memcpy(sum, x, (size_t)n * sizeof *sum);
        cpu_add_to(sum, cpu_in(k, 1, at + j, n, b, half), n, half);
        cpu_write(&k->out[0], at + j, n, sum);
    }
}

static void forward_row(struct hd_kernel *k, const struct cpu_norm *o, int64_t at, int64_t h, int half)
{
    float xb[CPU_CHUNK], wb[CPU_CHUNK], cb[CPU_CHUNK], yb[CPU_CHUNK];
    if (o->sum_before)
        sum_row(k, at, h, half);
    struct row row = row_of(k, o->x, at, h, o->centred, half);
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        const void *x = read_of(o->x, at + j, n, xb, half), *w = read_of(o->w, j, n, wb, half);
        float *y = cpu_begin(k, o->sum_before, at + j, yb);
        if (o->centred)
            scale_shift(y, x, w, read_of(o->c, j, n, cb, half), row, n, half);
        else
            scale_rms(y, x, w, row.r, n, half);
        cpu_end(k, o->sum_before, at + j, n, y);
    }
}

static void forward_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct cpu_norm o = cpu_norm(k);
    int64_t h = o.w->extent[0];
    int half = all_half(k, &o);
    for (int64_t row = first; row < last; row++)
        forward_row(k, &o, row * h, h, half);
}

static void run_forward(struct hd_kernel *k)
{
    int64_t h = cpu_norm(k).w->extent[0];
    cpu_parallel(k->device, hd_operand_count(&k->out[0]) / h, grain(h), forward_rows, k);
}

/* ---- sums of a row for the gradient of the weights */

CPU_INLINE void weight_sums_of(float *dw, float *dc, const void *x, const void *dy, struct row row, int64_t n, int half)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = cpu_get(dy, i, half);
        dw[i] += d * ((cpu_get(x, i, half) - row.mean) * row.r);
        dc[i] += d;
    }
}

CPU_CLONES(void, weight_sums,
           (float *dw, float *dc, const void *x, const void *dy, struct row row, int64_t n, int half),
           (dw, dc, x, dy, row, n, half))
{
    CPU_EITHER(half, weight_sums_of, dw, dc, x, dy, row, n);
}

/* ---- gradient of the input */

struct means {
    double a, ax;
};

/* Sums of a = w dy and of a xhat. */
CPU_INLINE void gradient_sums_of(const void *x, const void *w, const void *dy, struct row row, int64_t n,
                                 struct means *sums, int half)
{
    float a_sum = 0, ax_sum = 0;
#pragma omp simd reduction(+ : a_sum, ax_sum)
    for (int64_t i = 0; i < n; i++) {
        float a = cpu_get(w, i, half) * cpu_get(dy, i, half);
        a_sum += a;
        ax_sum += a * ((cpu_get(x, i, half) - row.mean) * row.r);
    }
    sums->a += a_sum;
    sums->ax += ax_sum;
}

CPU_CLONES(void, gradient_sums,
           (const void *x, const void *w, const void *dy, struct row row, int64_t n, struct means *sums, int half),
           (x, w, dy, row, n, sums, half))
{
    CPU_EITHER(half, gradient_sums_of, x, w, dy, row, n, sums);
}

CPU_INLINE void gradient_out_of(float *dx, const void *x, const void *w, const void *dy, struct row row, float mean_a,
                                float mean_ax, int64_t n, int half)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float unit = (cpu_get(x, i, half) - row.mean) * row.r;
        dx[i] = row.r * (cpu_get(w, i, half) * cpu_get(dy, i, half) - mean_a - unit * mean_ax);
    }
}

CPU_CLONES(void, gradient_out,
           (float *dx, const void *x, const void *w, const void *dy, struct row row, float mean_a, float mean_ax,
            int64_t n, int half),
           (dx, x, w, dy, row, mean_a, mean_ax, n, half))
{
    CPU_EITHER(half, gradient_out_of, dx, x, w, dy, row, mean_a, mean_ax, n);
}

/* dx as it would be written, plus r, which may lie where dx is going. */
static void end_sum(struct hd_kernel *k, int64_t at, int64_t n, float *dx)
{
    float r[CPU_CHUNK];
    uint16_t bits[CPU_CHUNK];
    struct hd_operand rounded = {.data = bits, .dtype = k->out[0].dtype};
    if (rounded.dtype != HD_F32) {
        cpu_write(&rounded, 0, n, dx);
        cpu_read(&rounded, 0, n, dx);
    }
    cpu_add_to(dx, cpu_read(&k->in[0], at, n, r), n, 0);
    if (cpu_norm(k).dw) /* only gradients of weights are added */
        cpu_write(&k->out[0], at, n, dx);
    else
        cpu_end(k, 0, at, n, dx);
}

/* `weights`: the sums of dw and dc, to which the row is added; NULL: neither. */
static void gradient_row(struct hd_kernel *k, const struct cpu_norm *o, int64_t at, int64_t h, int half, float *weights)
{
    float xb[CPU_CHUNK], wb[CPU_CHUNK], db[CPU_CHUNK], out[CPU_CHUNK];
    struct row row = row_of(k, o->x, at, h, o->centred, half);
    struct means sums = {0, 0};
    cpu_ahead(o->c, at, h);
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        const void *x = read_of(o->x, at + j, n, xb, half), *dy = read_of(o->c, at + j, n, db, half);
        gradient_sums(x, read_of(o->w, j, n, wb, half), dy, row, n, &sums, half);
        if (weights)
            weight_sums(weights + j, weights + h + j, x, dy, row, n, half);
    }
    float mean_a = o->centred ? (float)(sums.a / (double)h) : 0, mean_ax = (float)(sums.ax / (double)h);
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        float *dx = o->sum_behind ? out : cpu_begin(k, 0, at + j, out);
        gradient_out(dx, read_of(o->x, at + j, n, xb, half), read_of(o->w, j, n, wb, half),
                     read_of(o->c, at + j, n, db, half), row, mean_a, mean_ax, n, half);
        if (o->sum_behind)
            end_sum(k, at + j, n, dx);
        else
            cpu_end(k, 0, at + j, n, dx);
    }
}

static void gradient_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct cpu_norm o = cpu_norm(k);
    int64_t h = o.w->extent[0];
    int half = all_half(k, &o);
    for (int64_t row = first; row < last; row++)
        gradient_row(k, &o, row * h, h, half, NULL);
}

static void run_gradient(struct hd_kernel *k)
{
    int64_t h = cpu_norm(k).w->extent[0];
    cpu_parallel(k->device, hd_operand_count(&k->out[0]) / h, grain(h), gradient_rows, k);
}

/* ---- gradient of the weights: a sum for each block of rows, then the sum of those, in order */

static int64_t rows_in_block(const struct hd_kernel *k, int64_t h)
{
    int64_t rows = hd_operand_count(cpu_norm(k).x) / h;
    return (rows + BLOCKS - 1) / BLOCKS;
}

static void weight_row(struct hd_kernel *k, const struct cpu_norm *o, int64_t at, int64_t h, int half, float *weights)
{
    float xb[CPU_CHUNK], db[CPU_CHUNK];
    cpu_ahead(o->c, at, h);
    struct row row = row_of(k, o->x, at, h, o->centred, half);
    for (int64_t j = 0; j < h; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, h - j);
        weight_sums(weights + j, weights + h + j, read_of(o->x, at + j, n, xb, half),
                    read_of(o->c, at + j, n, db, half), row, n, half);
    }
}

static void weight_blocks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct cpu_norm o = cpu_norm(k);
    int64_t h = k->out[o.dw].extent[0], rows = hd_operand_count(o.x) / h, step = rows_in_block(k, h);
    int half = cpu_half(k, (1u << k->d.n_in) - 1);
    for (int64_t block = first; block < last; block++) {
        float *weights = (float *)k->state + 2 * h * block;
        memset(weights, 0, 2 * (size_t)h * sizeof *weights);
        for (int64_t row = block * step; row < cpu_min(rows, (block + 1) * step); row++)
            if (o.dw)
                gradient_row(k, &o, row * h, h, half, weights);
            else
                weight_row(k, &o, row * h, h, half, weights);
    }
}

/* With the gradient of the input, where that is an output too. */
static void run_weights(struct hd_kernel *k)
{
    float *sums = k->state;
    uint32_t dw = cpu_norm(k).dw;
    int64_t h = k->out[dw].extent[0], step = rows_in_block(k, h);
    cpu_parallel(k->device, BLOCKS, 1 + ROW_GRAIN / (step * h + 1), weight_blocks, k);
    for (int64_t block = 1; block < BLOCKS; block++)
        cpu_add_to(sums, sums + 2 * h * block, 2 * h, 0);
    for (uint32_t out = dw; out < k->d.n_out; out++)
        for (int64_t j = 0; j < h; j += CPU_CHUNK)
            cpu_end(k, out, j, cpu_min(CPU_CHUNK, h - j), sums + (out - dw) * h + j);
}

static int32_t prepare(struct hd_kernel *k, void (*run)(struct hd_kernel *k), struct hd_error *err)
{
    k->run = run;
    return cpu_fast_dtypes(k, 0, err);
}

static int32_t prepare_weights(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = prepare(k, run_weights, err);
    return rc ? rc : cpu_kernel_state(k, 2 * BLOCKS * (size_t)k->out[cpu_norm(k).dw].extent[0] * sizeof(float), err);
}

int32_t cpu_fast_rmsnorm(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_forward, err);
}

int32_t cpu_fast_layernorm(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_forward, err);
}

int32_t cpu_fast_rmsnorm_dx(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_gradient, err);
}

int32_t cpu_fast_layernorm_dx(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_gradient, err);
}

int32_t cpu_fast_add_rmsnorm(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_forward, err);
}

int32_t cpu_fast_add_layernorm(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_forward, err);
}

int32_t cpu_fast_rmsnorm_dx_add(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_gradient, err);
}

int32_t cpu_fast_layernorm_dx_add(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_gradient, err);
}

int32_t cpu_fast_rmsnorm_dw(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_weights(k, err);
}

int32_t cpu_fast_layernorm_dw(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_weights(k, err);
}

int32_t cpu_fast_rmsnorm_grad_add(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_weights(k, err);
}

int32_t cpu_fast_layernorm_grad_add(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_weights(k, err);
}
