/* Cross-entropy over rows of logits; bf16 logits are widened a chunk at a time, never all of them. */
#include "kernels/rows.h"
#include "reference/reference.h"

enum { ROW_GRAIN = 16384 };

static int64_t vocabulary(const struct hd_operand *z)
{
    return z->extent[z->ndim - 1];
}

static int64_t label_at(const struct hd_kernel *k, int64_t row)
{
    const struct hd_operand *z = &k->in[0];
    int64_t at = ((const int32_t *)k->in[2].data)[row] - z->start[z->ndim - 1];
    return at >= 0 && at < vocabulary(z) ? at : -1;
}

static float scalar(const struct hd_operand *o, int64_t at)
{
    float buf[1];
    return *cpu_read(o, at, 1, buf);
}

static void run_rows(struct hd_kernel *k, cpu_range_fn fn)
{
    int64_t v = vocabulary(&k->in[0]);
    cpu_parallel(k->device, cpu_span(&k->in[0], 0, k->in[0].ndim - 1), 1 + ROW_GRAIN / (v + 1), fn, k);
}

/* ---- the largest; a NaN wins, so that it shows */

CPU_CLONES(float, largest, (const float *x, int64_t n), (x, n))
{
    float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most) reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        most = x[i] > most ? x[i] : most;
        sum += x[i] * 0.0f;
    }
    /* 0 * x is NaN for a NaN, but for an infinity too: those are looked at again. */
    for (int64_t i = 0; sum != sum && i < n; i++)
        if (x[i] != x[i])
            return x[i];
    return most;
}

/* The largest of the first `used` of the row; sums are over these too. */
static float row_most(const struct hd_operand *z, int64_t row, int64_t used)
{
    float buf[CPU_CHUNK], most = -INFINITY;
    int64_t v = vocabulary(z);
    for (int64_t j = 0; j < used; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, used - j);
        float m = largest(cpu_read(z, row * v + j, n, buf), n);
        most = m > most || m != m ? m : most;
    }
    return most;
}

static void rowmax_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    for (int64_t row = first; row < last; row++) {
        float most = row_most(&k->in[0], row, hd_vocabulary(&k->d.attrs, &k->in[0]));
        cpu_write(&k->out[0], row, 1, &most);
    }
}

static void run_rowmax(struct hd_kernel *k)
{
    run_rows(k, rowmax_rows);
}

int32_t cpu_fast_rowmax(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_rowmax;
    return cpu_fast_dtypes(k, 0, err);
}

/* ---- sums of exponentials */

CPU_CLONES(float, exp_sum, (const float *z, float m, int64_t n), (z, m, n))
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += cpu_exp(z[i] - m);
    return sum;
}

static double row_sum(const struct hd_operand *z, int64_t row, float m, int64_t used)
{
    double sum = 0;
    float buf[CPU_CHUNK];
    int64_t v = vocabulary(z);
    for (int64_t j = 0; j < used; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, used - j);
        sum += exp_sum(cpu_read(z, row * v + j, n, buf), m, n);
    }
    return sum;
}

static void xent_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *z = &k->in[0];
    for (int64_t row = first; row < last; row++) {
        float m = scalar(&k->in[1], row);
        int64_t label = label_at(k, row);
        float l = (float)row_sum(z, row, m, hd_vocabulary(&k->d.attrs, z)),
              c = label < 0 ? 0 : scalar(z, row * vocabulary(z) + label);
        if (cpu_ignored(&k->in[2], row)) {
            double none, most;
            cpu_xent_ignored(z, m, &none, &most);
            l = (float)none;
            c = (float)most;
        }
        cpu_end(k, 0, row, 1, &l);
        cpu_end(k, 1, row, 1, &c);
    }
}

static void run_xent_local(struct hd_kernel *k)
{
    run_rows(k, xent_rows);
}

int32_t cpu_fast_xent_local(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_xent_local;
    return cpu_fast_dtypes(k, 4, err);
}

/* ---- the gradient; dz may be z: a chunk is read before it is written, the label's logit is used before that */

CPU_CLONES(void, exp_scaled, (float *y, const float *z, float m, float dl, int64_t n), (y, z, m, dl, n))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = cpu_exp(z[i] - m) * dl;
}

static void gradient_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *z = &k->in[0];
    float in[CPU_CHUNK], out[CPU_CHUNK];
    int64_t v = vocabulary(z), real = hd_vocabulary(&k->d.attrs, z);
    for (int64_t row = first; row < last; row++) {
        int64_t used = cpu_ignored(&k->in[2], row) ? 0 : real;
        float m = scalar(&k->in[1], row), dl = scalar(&k->in[3], row), dc = scalar(&k->in[4], row);
        int64_t label = label_at(k, row);
        for (int64_t j = 0; j < v; j += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, v - j), some = cpu_min(n, used > j ? used - j : 0);
            float *dz = cpu_begin(k, 0, row * v + j, out);
            exp_scaled(dz, cpu_read(z, row * v + j, n, in), m, dl, some);
            memset(dz + some, 0, (size_t)(n - some) * sizeof *dz);
            if (label >= j && label < j + some)
                dz[label - j] += dc;
            cpu_end(k, 0, row * v + j, n, dz);
        }
    }
}

static void run_xent_grad(struct hd_kernel *k)
{
    run_rows(k, gradient_rows);
}

int32_t cpu_fast_xent_grad(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_xent_grad;
    return cpu_fast_dtypes(k, 4, err);
}

/* ---- both at once, in place */

float cpu_xent_loss(const struct hd_operand *z, int64_t row, int64_t label)
{
    if (label == CPU_IGNORED)
        return 0;
    float m = row_most(z, row, vocabulary(z));
    return (float)(log(row_sum(z, row, m, vocabulary(z))) +
                   (m - (label < 0 ? 0 : scalar(z, row * vocabulary(z) + label))));
}

float cpu_xent_row(const struct hd_operand *z, int64_t row, int64_t label, double scale)
{
    int64_t v = vocabulary(z);
    if (label == CPU_IGNORED) {
        memset((char *)z->data + row * v * (int64_t)hd_dtype_size(z->dtype), 0, (size_t)v * hd_dtype_size(z->dtype));
        return 0;
    }
    float in[CPU_CHUNK], out[CPU_CHUNK], m = row_most(z, row, v);
    double sum = row_sum(z, row, m, v), nll = log(sum) + (m - (label < 0 ? 0 : scalar(z, row * v + label)));
    for (int64_t j = 0; j < v; j += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, v - j);
        exp_scaled(out, cpu_read(z, row * v + j, n, in), m, (float)(scale / sum), n);
        if (label >= j && label < j + n)
            out[label - j] -= (float)scale;
        cpu_write(z, row * v + j, n, out);
    }
    return (float)nll;
}
