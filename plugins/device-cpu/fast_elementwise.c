/* Ops whose element i depends on element i of the inputs alone: one driver, an inner loop each. */
#include "fast_rows.h"

typedef void (*chunk_fn)(const float *const *x, float *const *y, int64_t n);

/* Chunks that are worth a thread. */
enum { GRAIN = 32 };

static void run_chunk(struct hd_kernel *k, chunk_fn fn, int64_t at, int64_t n)
{
    float in_buf[3][CPU_CHUNK], out_buf[2][CPU_CHUNK];
    const float *x[3];
    float *y[2];
    for (uint32_t i = 0; i < k->d.n_in; i++)
        x[i] = cpu_read(&k->in[i], at, n, in_buf[i]);
    for (uint32_t i = 0; i < k->d.n_out; i++)
        y[i] = cpu_begin(k, i, at, out_buf[i]);
    fn(x, y, n);
    for (uint32_t i = 0; i < k->d.n_out; i++)
        cpu_end(k, i, at, n, y[i]);
}

struct elementwise {
    chunk_fn fn;
};

static void run_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct elementwise *e = k->state;
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t c = first; c < last; c++)
        run_chunk(k, e->fn, c * CPU_CHUNK, cpu_min(CPU_CHUNK, count - c * CPU_CHUNK));
}

static void run(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, run_chunks, k);
}

static int32_t prepare(struct hd_kernel *k, chunk_fn fn, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 0, err);
    if (!rc)
        rc = cpu_kernel_state(k, sizeof(struct elementwise), err);
    if (!rc) {
        ((struct elementwise *)k->state)->fn = fn;
        k->run = run;
    }
    return rc;
}

/* ---- gates. GELU's 0.5 x (1 + tanh u) is x sigmoid(2u). */

static const float two_a = 1.59576912f, cubic = 0.044715f; /* 2 sqrt(2/pi) */

CPU_CLONES static void swiglu(const float *const *x, float *const *y, int64_t n)
{
    const float *g = x[0], *u = x[1];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = g[i] / (1.0f + cpu_exp(-g[i])) * u[i];
}

CPU_CLONES static void swiglu_grad(const float *const *x, float *const *y, int64_t n)
{
    const float *g = x[0], *u = x[1], *dy = x[2];
    float *dg = y[0], *du = y[1];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float e = cpu_exp(-g[i]), s = 1.0f / (1.0f + e), d = dy[i], gate = g[i];
        dg[i] = d * u[i] * (s + gate * (e * s) * s);
        du[i] = d * gate * s;
    }
}

CPU_CLONES static void gelu(const float *const *x, float *const *y, int64_t n)
{
    const float *in = x[0];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = in[i];
        out[i] = v / (1.0f + cpu_exp(-two_a * (v + cubic * v * v * v)));
    }
}

CPU_CLONES static void gelu_grad(const float *const *x, float *const *y, int64_t n)
{
    const float *in = x[0], *dy = x[1];
    float *dx = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = in[i], e = cpu_exp(-two_a * (v + cubic * v * v * v)), s = 1.0f / (1.0f + e);
        dx[i] = dy[i] * (s + v * (e * s) * s * two_a * (1.0f + 3.0f * cubic * v * v));
    }
}

int32_t cpu_fast_swiglu(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, swiglu, err);
}

int32_t cpu_fast_swiglu_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, swiglu_grad, err);
}

int32_t cpu_fast_gelu(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, gelu, err);
}

int32_t cpu_fast_gelu_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, gelu_grad, err);
}

/* ---- one element a row: small next to the logits */

CPU_CLONES static void nll_grad(const float *const *x, float *const *y, int64_t n)
{
    const float *l = x[0], *dn = x[1];
    float *dl = y[0], *dc = y[1];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = dn[i];
        dl[i] = d / l[i];
        dc[i] = -d;
    }
}

static void nll(const float *const *x, float *const *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[0][i] = logf(x[0][i]) + x[1][i] - x[2][i];
}

int32_t cpu_fast_nll(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, nll, err);
}

int32_t cpu_fast_nll_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, nll_grad, err);
}

/* ---- sums of tensors: the inputs one after the other, so that eight need no eight buffers */

CPU_CLONES static void add2(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void add_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float a[CPU_CHUNK], b[CPU_CHUNK], buf[CPU_CHUNK];
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t c = first; c < last; c++) {
        int64_t at = c * CPU_CHUNK, n = cpu_min(CPU_CHUNK, count - at);
        const float *sum = cpu_read(&k->in[0], at, n, a);
        /* The output may be the memory of an input that is still to come: sums grow in the buffer. */
        float *y = k->d.n_in == 2 ? cpu_begin(k, 0, at, buf) : buf;
        for (uint32_t i = 1; i < k->d.n_in; i++, sum = y)
            add2(y, sum, cpu_read(&k->in[i], at, n, b), n);
        cpu_end(k, 0, at, n, sum);
    }
}

static void run_add(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, add_chunks, k);
}

int32_t cpu_fast_add(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_add;
    return cpu_fast_dtypes(k, 0, err);
}

static void accum_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float a[CPU_CHUNK], b[CPU_CHUNK], buf[CPU_CHUNK];
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t c = first; c < last; c++) {
        int64_t at = c * CPU_CHUNK, n = cpu_min(CPU_CHUNK, count - at);
        float *y = k->out[0].dtype == HD_F32 ? (float *)k->out[0].data + at : buf;
        add2(y, cpu_read(&k->out[0], at, n, a), cpu_read(&k->in[0], at, n, b), n);
        cpu_write(&k->out[0], at, n, y);
    }
}

static void run_accum(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, accum_chunks, k);
}

int32_t cpu_fast_accum(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_accum;
    return cpu_fast_dtypes(k, 0, err);
}

/* ---- a scalar from all: chunk by chunk, in double */

static void run_total(struct hd_kernel *k)
{
    float buf[CPU_CHUNK];
    int64_t count = hd_operand_count(&k->in[0]);
    double sum = 0;
    for (int64_t at = 0; at < count; at += CPU_CHUNK) {
        int64_t n = cpu_min(CPU_CHUNK, count - at);
        sum += cpu_sum(cpu_read(&k->in[0], at, n, buf), n);
    }
    buf[0] = (float)(k->d.attrs.scale * sum);
    cpu_end(k, 0, 0, 1, buf);
}

int32_t cpu_fast_total(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_total;
    return cpu_fast_dtypes(k, 0, err);
}
