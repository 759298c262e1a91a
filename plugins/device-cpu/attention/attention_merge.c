/* Two attentions over different keys become one over all of them (ring attention). */
#include "kernels/rows.h"

enum { ROW_GRAIN = 16384 };

CPU_CLONES(void, mix, (float *o, const float *a, const float *b, float wa, float wb, int64_t n), (o, a, b, wa, wb, n))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        o[i] = wa * a[i] + wb * b[i];
}

/* A query that sees no keys on one side has lse -inf and weight 0 there. */
static void merge_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const float *lse_a = k->in[1].data, *lse_b = k->in[3].data;
    float *lse = k->out[1].data, in_a[CPU_CHUNK], in_b[CPU_CHUNK], out[CPU_CHUNK];
    int64_t d = k->in[0].extent[k->in[0].ndim - 1];
    for (int64_t row = first; row < last; row++) {
        float a = lse_a[row], b = lse_b[row], most = a > b ? a : b;
        float both = most == -INFINITY ? most : most + logf(expf(a - most) + expf(b - most));
        float wa = a == -INFINITY ? 0 : expf(a - both), wb = b == -INFINITY ? 0 : expf(b - both);
        for (int64_t at = 0; at < d; at += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, d - at);
            float *o = cpu_begin(k, 0, row * d + at, out);
            mix(o, cpu_read(&k->in[0], row * d + at, n, in_a), cpu_read(&k->in[2], row * d + at, n, in_b), wa, wb, n);
            cpu_end(k, 0, row * d + at, n, o);
        }
        lse[row] = both;
    }
}

static void run(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->in[1]), d = k->in[0].extent[k->in[0].ndim - 1];
    cpu_parallel(k->device, rows, 1 + ROW_GRAIN / (d + 1), merge_rows, k);
}

int32_t cpu_fast_attention_merge(struct hd_kernel *k, struct hd_error *err)
{
    if (k->in[1].dtype != HD_F32 || k->in[3].dtype != HD_F32 || k->out[1].dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "attention_merge: fast kernels want lse in fp32");
    k->run = run;
    return cpu_fast_dtypes(k, 0, err);
}
