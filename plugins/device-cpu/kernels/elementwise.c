/* Ops whose element i depends on element i of the inputs alone: one driver, an inner loop each. */
#include "kernels/rows.h"
#include "reference/reference.h"

typedef void (*chunk_fn)(const void *const *x, float *const *y, int64_t n, int half);
typedef void (*scaled_fn)(const void *const *x, float *const *y, int64_t n, int half, float scale);

/* Chunks that are worth a thread. */
enum { GRAIN = 32, ALL = 7 };

struct elementwise {
    chunk_fn fn;
    scaled_fn scaled; /* takes attrs.scale; either is there */
};

static void run_chunk(struct hd_kernel *k, const struct elementwise *e, int64_t at, int64_t n, int half)
{
    float in_buf[3][CPU_CHUNK], out_buf[2][CPU_CHUNK];
    const void *x[3];
    float *y[2];
    for (uint32_t i = 0; i < k->d.n_in; i++) {
        cpu_ahead(&k->in[i], at, n);
        x[i] = cpu_in(k, i, at, n, in_buf[i], half);
    }
    for (uint32_t i = 0; i < k->d.n_out; i++)
        y[i] = cpu_begin(k, i, at, out_buf[i]);
    if (e->fn)
        e->fn(x, y, n, half);
    else
        e->scaled(x, y, n, half, (float)k->d.attrs.scale);
    for (uint32_t i = 0; i < k->d.n_out; i++)
        cpu_end(k, i, at, n, y[i]);
}

static void run_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct elementwise *e = k->state;
    int64_t count = hd_operand_count(&k->out[0]);
    int half = cpu_half(k, ALL);
    for (int64_t c = first; c < last; c++)
        run_chunk(k, e, c * CPU_CHUNK, cpu_min(CPU_CHUNK, count - c * CPU_CHUNK), half);
}

static void run(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, run_chunks, k);
}

static int32_t prepare_either(struct hd_kernel *k, struct elementwise e, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 0, err);
    if (!rc)
        rc = cpu_kernel_state(k, sizeof(struct elementwise), err);
    if (!rc) {
        *(struct elementwise *)k->state = e;
        k->run = run;
    }
    return rc;
}

static int32_t prepare(struct hd_kernel *k, chunk_fn fn, struct hd_error *err)
{
    return prepare_either(k, (struct elementwise){.fn = fn}, err);
}

static int32_t prepare_scaled(struct hd_kernel *k, scaled_fn fn, struct hd_error *err)
{
    return prepare_either(k, (struct elementwise){.scaled = fn}, err);
}

/* ---- gates. GELU's 0.5 x (1 + tanh u) is x sigmoid(2u). */

static const float two_a = 1.59576912f, cubic = 0.044715f; /* 2 sqrt(2/pi) */

/* name(x, y, n, half) from name_of, for each instruction set and dtype. */
#define CHUNK_FN(name)                                                                                    \
    CPU_CLONES(void, name, (const void *const *x, float *const *y, int64_t n, int half), (x, y, n, half)) \
    {                                                                                                     \
        CPU_EITHER(half, name##_of, x, y, n);                                                             \
    }

CPU_INLINE void swiglu_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *gates = x[0], *up = x[1];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = cpu_get(gates, i, half);
        out[i] = g / (1.0f + cpu_exp(-g)) * cpu_get(up, i, half);
    }
}
CHUNK_FN(swiglu)

CPU_INLINE void swiglu_grad_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *gates = x[0], *up = x[1], *dy = x[2];
    float *dg = y[0], *du = y[1];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = cpu_get(gates, i, half), u = cpu_get(up, i, half), d = cpu_get(dy, i, half);
        float e = cpu_exp(-g), s = 1.0f / (1.0f + e);
        dg[i] = d * u * (s + g * (e * s) * s);
        du[i] = d * g * s;
    }
}
CHUNK_FN(swiglu_grad)

CPU_INLINE void gelu_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *in = x[0];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(in, i, half);
        out[i] = v / (1.0f + cpu_exp(-two_a * (v + cubic * v * v * v)));
    }
}
CHUNK_FN(gelu)

CPU_INLINE void gelu_grad_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *in = x[0], *dy = x[1];
    float *dx = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(in, i, half), e = cpu_exp(-two_a * (v + cubic * v * v * v)), s = 1.0f / (1.0f + e);
        float slope = s + v * (e * s) * s * two_a * (1.0f + 3.0f * cubic * v * v);
        dx[i] = cpu_get(dy, i, half) * slope;
    }
}
CHUNK_FN(gelu_grad)

CPU_INLINE void mul_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *a = x[0], *b = x[1];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = cpu_get(a, i, half) * cpu_get(b, i, half);
}
CHUNK_FN(mul)

int32_t cpu_fast_mul(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, mul, err);
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

/* ---- GELU by the normal distribution */

/* P(X <= x) for a normal X, and *peak = exp(-x^2 / 2): erfc by Abramowitz and Stegun, 7.1.26, within 1.5e-7. */
CPU_INLINE float normal_share(float x, float *peak)
{
    float z = 0.707106781f * (x < 0 ? -x : x), t = 1.0f / (1.0f + 0.3275911f * z), e = cpu_exp(-z * z);
    float tail = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float half = 0.5f * tail * e;
    *peak = e;
    return x < 0 ? half : 1.0f - half;
}

CPU_INLINE void gelu_erf_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *in = x[0];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(in, i, half), peak;
        out[i] = v * normal_share(v, &peak);
    }
}
CHUNK_FN(gelu_erf)

CPU_INLINE void gelu_erf_grad_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *in = x[0], *dy = x[1];
    float *dx = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(in, i, half), peak, share = normal_share(v, &peak);
        dx[i] = cpu_get(dy, i, half) * (share + 0.398942280f * v * peak);
    }
}
CHUNK_FN(gelu_erf_grad)

CPU_INLINE void relu2_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *in = x[0];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(in, i, half);
        out[i] = v < 0 ? 0 : v * v;
    }
}
CHUNK_FN(relu2)

CPU_INLINE void relu2_grad_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *in = x[0], *dy = x[1];
    float *dx = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = cpu_get(in, i, half);
        dx[i] = v < 0 ? 0 : 2.0f * v * cpu_get(dy, i, half);
    }
}
CHUNK_FN(relu2_grad)

int32_t cpu_fast_gelu_erf(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, gelu_erf, err);
}

int32_t cpu_fast_gelu_erf_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, gelu_erf_grad, err);
}

int32_t cpu_fast_relu2(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, relu2, err);
}

int32_t cpu_fast_relu2_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, relu2_grad, err);
}

/* ---- with a constant, attrs.scale */

#define SCALED_FN(name)                                                                               \
    CPU_CLONES(void, name, (const void *const *x, float *const *y, int64_t n, int half, float scale), \
               (x, y, n, half, scale))                                                                \
    {                                                                                                 \
        CPU_EITHER(half, name##_of, x, y, n, scale);                                                  \
    }

CPU_INLINE void scale_of(const void *const *x, float *const *y, int64_t n, float scale, int half)
{
    const void *in = x[0];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = scale * cpu_get(in, i, half);
}
SCALED_FN(scale)

/* tanh from exp(-2 |u|), and by its series where that would cancel. */
CPU_INLINE void softcap_of(const void *const *x, float *const *y, int64_t n, float scale, int half)
{
    const void *in = x[0];
    float *out = y[0], inverse = 1.0f / scale;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float u = cpu_get(in, i, half) * inverse, size = u < 0 ? -u : u, square = u * u, e = cpu_exp(-2.0f * size);
        float far = (1.0f - e) / (1.0f + e);
        float near = u * (1.0f - square * (0.333333333f - square * (0.133333333f - square * 0.0539682540f)));
        out[i] = scale * (size < 0.15f ? near : u < 0 ? -far : far);
    }
}
SCALED_FN(softcap)

CPU_INLINE void softcap_grad_of(const void *const *x, float *const *y, int64_t n, float scale, int half)
{
    const void *capped = x[0], *dy = x[1];
    float *dx = y[0], inverse = 1.0f / scale;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float t = cpu_get(capped, i, half) * inverse;
        dx[i] = cpu_get(dy, i, half) * (1.0f - t * t);
    }
}
SCALED_FN(softcap_grad)

int32_t cpu_fast_scale(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_scaled(k, scale, err);
}

int32_t cpu_fast_softcap(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_scaled(k, softcap, err);
}

int32_t cpu_fast_softcap_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_scaled(k, softcap_grad, err);
}

/* ---- one element a row: small next to the logits */

CPU_INLINE void nll_grad_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *l = x[0], *dn = x[1];
    float *dl = y[0], *dc = y[1];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = cpu_get(dn, i, half);
        dl[i] = d / cpu_get(l, i, half);
        dc[i] = -d;
    }
}
CHUNK_FN(nll_grad)

static void nll(const void *const *x, float *const *y, int64_t n, int half)
{
    for (int64_t i = 0; i < n; i++)
        y[0][i] = logf(cpu_get(x[0], i, half)) + (cpu_get(x[1], i, half) - cpu_get(x[2], i, half));
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

CPU_INLINE void add2_of(const void *const *x, float *const *y, int64_t n, int half)
{
    const void *a = x[0], *b = x[1];
    float *out = y[0];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = cpu_get(a, i, half) + cpu_get(b, i, half);
}
CHUNK_FN(add2)

static void add_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float a[CPU_CHUNK], b[CPU_CHUNK], buf[CPU_CHUNK];
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t c = first; c < last; c++) {
        int64_t at = c * CPU_CHUNK, n = cpu_min(CPU_CHUNK, count - at);
        const float *sum = cpu_read(&k->in[0], at, n, a);
        /* The output may be the memory of an input that is still to come: sums grow in the buffer. */
        for (uint32_t i = 1; i < k->d.n_in; i++, sum = buf)
            add2((const void *[]){sum, cpu_read(&k->in[i], at, n, b)}, (float *[]){buf}, n, 0);
        cpu_end(k, 0, at, n, sum);
    }
}

static void run_add(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, add_chunks, k);
}

int32_t cpu_fast_add(struct hd_kernel *k, struct hd_error *err)
{
    if (k->d.n_in == 2)
        return prepare(k, add2, err);
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
        add2((const void *[]){cpu_read(&k->out[0], at, n, a), cpu_read(&k->in[0], at, n, b)}, (float *[]){y}, n, 0);
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

CPU_CLONES(void, add_times, (const float *x, float factor, float *y, int64_t n), (x, factor, y, n))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

static void blend_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t c = first; c < last; c++) {
        int64_t at = c * CPU_CHUNK, n = cpu_min(CPU_CHUNK, count - at);
        float buf[CPU_CHUNK], sum[CPU_CHUNK] = {0}; /* the output may be the memory of any input */
        for (uint32_t i = 0; i < k->d.n_in; i++)
            add_times(cpu_read(&k->in[i], at, n, buf), (float)cpu_blend_factor(k, i), sum, n);
        cpu_write(&k->out[0], at, n, sum);
    }
}

static void run_blend(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, blend_chunks, k);
}

int32_t cpu_fast_blend(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_blend;
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
        sum += cpu_sum(cpu_read(&k->in[0], at, n, buf), n, 0);
    }
    buf[0] = (float)(k->d.attrs.scale * sum);
    cpu_end(k, 0, 0, 1, buf);
}

int32_t cpu_fast_total(struct hd_kernel *k, struct hd_error *err)
{
    if (k->in[0].dtype == HD_F64 && k->out[0].dtype == HD_F64) { /* a few parts of a norm */
        k->run = cpu_ref_total;
        return HD_OK;
    }
    k->run = run_total;
    return cpu_fast_dtypes(k, 0, err);
}
