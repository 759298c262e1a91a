/* The router of a mixture of experts: gates, which token lies in which slot, and its losses. Rows of e experts. */
#include "kernels/moe.h"
#include "kernels/rows.h"

enum { GRAIN = 4096 };

static int64_t experts_of(const struct hd_kernel *k)
{
    return k->in[0].extent[k->in[0].ndim - 1];
}

static void rows(struct hd_kernel *k, cpu_range_fn fn)
{
    int64_t e = experts_of(k);
    cpu_parallel(k->device, hd_operand_count(&k->in[0]) / e, 1 + GRAIN / e, fn, k);
}

/* Marks the top_k largest of z; of equal ones the first. Returns the largest. */
static float choose(const float *z, int64_t e, int64_t top_k, uint8_t *chosen)
{
    float most = z[0];
    memset(chosen, 0, (size_t)e);
    for (int64_t n = 0; n < top_k && n < e; n++) {
        int64_t best = 0;
        while (chosen[best]) /* fewer than e are */
            best++;
        for (int64_t j = best + 1; j < e; j++)
            if (!chosen[j] && z[j] > z[best])
                best = j;
        chosen[best] = 1;
        if (n == 0)
            most = z[best];
    }
    return most;
}

static void gate_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float in[CPU_CHUNK], out[CPU_CHUNK];
    uint8_t chosen[CPU_CHUNK];
    int64_t e = experts_of(k);
    for (int64_t row = first; row < last; row++) {
        const float *z = cpu_read(&k->in[0], row * e, e, in);
        float most = choose(z, e, k->d.attrs.top_k, chosen), sum = 0, *g = cpu_begin(k, 0, row * e, out);
        for (int64_t j = 0; j < e; j++)
            sum += g[j] = chosen[j] ? expf(z[j] - most) : 0;
        for (int64_t j = 0; j < e; j++)
            g[j] /= sum;
        cpu_end(k, 0, row * e, e, g);
    }
}

static void gate_grad_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float a[CPU_CHUNK], b[CPU_CHUNK], out[CPU_CHUNK];
    int64_t e = experts_of(k);
    for (int64_t row = first; row < last; row++) {
        const float *g = cpu_read(&k->in[0], row * e, e, a), *dg = cpu_read(&k->in[1], row * e, e, b);
        float dot = 0, *dz = cpu_begin(k, 0, row * e, out);
        for (int64_t j = 0; j < e; j++)
            dot += g[j] * dg[j];
        for (int64_t j = 0; j < e; j++)
            dz[j] = g[j] * (dg[j] - dot);
        cpu_end(k, 0, row * e, e, dz);
    }
}

/* p: softmax of a row. Returns log sum exp. */
static float softmax(const float *z, int64_t e, float *p)
{
    float most = z[0], sum = 0;
    for (int64_t j = 1; j < e; j++)
        most = z[j] > most ? z[j] : most;
    for (int64_t j = 0; j < e; j++)
        sum += p[j] = expf(z[j] - most);
    for (int64_t j = 0; j < e; j++)
        p[j] /= sum;
    return most + logf(sum);
}

static void loss_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float a[CPU_CHUNK], b[CPU_CHUNK], p[CPU_CHUNK];
    int64_t e = experts_of(k), s = k->in[0].extent[1];
    const struct hd_attrs *c = &k->d.attrs;
    for (int64_t row = first; row < last; row++) {
        const float *n = cpu_read(&k->in[1], row / s * e, e, b);
        float lse = softmax(cpu_read(&k->in[0], row * e, e, a), e, p), balance = 0, loss;
        for (int64_t j = 0; j < e; j++)
            balance += n[j] * p[j];
        loss = (float)(c->scale * balance + c->z_scale * lse * lse);
        cpu_end(k, 0, row, 1, &loss);
    }
}

static void loss_grad_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float a[CPU_CHUNK], b[CPU_CHUNK], p[CPU_CHUNK], out[CPU_CHUNK], one;
    int64_t e = experts_of(k), s = k->in[0].extent[1];
    float scale = (float)k->d.attrs.scale, z_scale = (float)(2 * k->d.attrs.z_scale);
    for (int64_t row = first; row < last; row++) {
        const float *n = cpu_read(&k->in[1], row / s * e, e, b);
        float lse = softmax(cpu_read(&k->in[0], row * e, e, a), e, p), mean = 0;
        float dl = *cpu_read(&k->in[2], row, 1, &one), *dz = cpu_begin(k, 0, row * e, out);
        for (int64_t j = 0; j < e; j++)
            mean += n[j] * p[j];
        for (int64_t j = 0; j < e; j++)
            dz[j] = dl * p[j] * (scale * (n[j] - mean) + z_scale * lse);
        cpu_end(k, 0, row * e, e, dz);
    }
}

static void run_gate(struct hd_kernel *k)
{
    rows(k, gate_rows);
}

static void run_gate_grad(struct hd_kernel *k)
{
    rows(k, gate_grad_rows);
}

static void run_loss(struct hd_kernel *k)
{
    rows(k, loss_rows);
}

static void run_loss_grad(struct hd_kernel *k)
{
    rows(k, loss_grad_rows);
}

static int32_t prepare(struct hd_kernel *k, void (*run)(struct hd_kernel *), struct hd_error *err)
{
    k->run = run;
    if (experts_of(k) > CPU_CHUNK)
        return hd_fail(err, HD_E_UNSUPPORTED, "more than %d experts", CPU_CHUNK);
    return cpu_fast_dtypes(k, 0, err);
}

int32_t cpu_fast_gate(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_gate, err);
}

int32_t cpu_fast_gate_grad(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_gate_grad, err);
}

int32_t cpu_fast_router_loss(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_loss, err);
}

int32_t cpu_fast_router_loss_dz(struct hd_kernel *k, struct hd_error *err)
{
    return prepare(k, run_loss_grad, err);
}

/* ---- slots: sequences are independent */

static void route_sequences(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *g = &k->in[0], *out = &k->out[0];
    const float *gates = g->data;
    int64_t s = g->extent[1], e = g->extent[2], slots = out->extent[2];
    int each = out->dim[2] == g->dim[1];
    for (int64_t b = first; b < last; b++) {
        int32_t *at = (int32_t *)out->data + b * e * slots;
        memset(at, 0, (size_t)(e * slots) * sizeof *at);
        for (int64_t j = 0; j < e; j++)
            for (int64_t position = 0, used = 0; position < s && used < slots; position++) {
                int64_t i = each ? position : cpu_index_of(k, position);
                if (gates[(b * s + i) * e + j] > 0) {
                    at[j * slots + (each ? i : used)] = (int32_t)(g->start[1] + i + 1);
                    used++;
                }
            }
    }
}

static void run_route(struct hd_kernel *k)
{
    cpu_parallel(k->device, k->in[0].extent[0], 1, route_sequences, k);
}

int32_t cpu_fast_route(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_route;
    return k->in[0].dtype == HD_F32 && k->out[0].dtype == HD_I32 ? HD_OK
                                                                 : hd_fail(err, HD_E_UNSUPPORTED, "gates must be fp32");
}

static void run_count(struct hd_kernel *k)
{
    const struct hd_operand *g = &k->in[0];
    const float *gates = g->data;
    int64_t s = g->extent[1], e = g->extent[2];
    float n[CPU_CHUNK];
    for (int64_t b = 0; b < g->extent[0]; b++) {
        memset(n, 0, sizeof n);
        for (int64_t i = b * s; i < (b + 1) * s; i++)
            for (int64_t j = 0; j < e; j++)
                n[j] += gates[i * e + j] > 0;
        cpu_end(k, 0, b * e, e, n);
    }
}

int32_t cpu_fast_expert_count(struct hd_kernel *k, struct hd_error *err)
{
    return k->in[0].dtype == HD_F32 ? prepare(k, run_count, err) : hd_fail(err, HD_E_UNSUPPORTED, "gates must be fp32");
}
