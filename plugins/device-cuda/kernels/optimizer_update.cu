/* AdamW (Loshchilov and Hutter, arXiv 1711.05101) and SGD over flat shards: the rules of heddle/optimizer.h.
 *
 * One thread forms what is the same for all elements, in double; blocks then update segments that have one decay. Bytes
 * an element: adamw reads the gradient (2 or 4) and p, m, v (12), writes p, m, v (12) and the low-precision copy where
 * there is one. */
#include "kernels/segments.cuh"

enum { THREADS = 256, SEGMENT = 8 * 8 * THREADS };

struct factors {
    uint64_t key;               /* of stochastic rounding */
    double run, gradient, rate; /* rate: lr over the bias correction of m */
    double lr, fix2;            /* fix2: sqrt of the bias correction of v */
};

struct update_args {
    cu_ref g, p, m, v, low; /* without data where there is none */
    const cu_segment *segments;
    const double *norm2, *hyper;
    double beta1, beta2, eps, clip;
    int64_t n_segments, start;
    int32_t rule, vector; /* rule: below */
    uint32_t seed;
};

enum { SGD, ADAM, ADAM_STOCHASTIC };

/* hd_splitmix64, hd_round_stochastic_key, hd_round_stochastic_bf16 */
CU_DEVICE uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

CU_DEVICE float round_stochastic(float x, uint64_t key, int64_t index)
{
    uint32_t noise = (uint32_t)(mix(key + (uint64_t)index * UINT64_C(0x9e3779b97f4a7c15)) >> 48),
             bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + noise) & 0xffff0000u);
}

static __global__ void factors_kernel(update_args a, factors *f)
{
    double inverse = a.hyper[HD_HYPER_INV_SCALE], norm2 = *a.norm2, lr = a.hyper[HD_HYPER_LR],
           t = a.hyper[HD_HYPER_STEP];
    double clip = a.clip > 0 ? a.clip / (sqrt(norm2 * inverse * inverse) + 1e-6) : 1.0;
    f->run = a.hyper[HD_HYPER_SKIP] == 0 && norm2 - norm2 == 0;
    f->gradient = inverse * (clip < 1 ? clip : 1.0);
    f->lr = lr;
    f->rate = a.rule != SGD ? lr / (1 - pow(a.beta1, t)) : lr;
    f->key = mix(((uint64_t)a.seed << 32) + (uint64_t)t * UINT64_C(0x9e3779b97f4a7c15));
    f->fix2 = a.rule != SGD ? sqrt(1 - pow(a.beta2, t)) : 1;
}

template <class C> struct same { /* for all elements of a segment */
    C gradient, rate, keep, decay, beta1, rest1, beta2, rest2, fix2, eps;
};

template <int RULE, int V, class C>
CU_DEVICE void update_at(const update_args &a, const same<C> &s, uint64_t key, int64_t i)
{
    cu_raw<C, V> g_raw, p_raw, m_raw, v_raw;
    C g[V], p[V], m[V], v[V];
    bool has_m = RULE || a.m.data;
    g_raw.fetch(a.g, i);
    p_raw.fetch(a.p, i);
    if (has_m)
        m_raw.fetch(a.m, i);
    if (RULE)
        v_raw.fetch(a.v, i);
    g_raw.widen(g, a.g);
    p_raw.widen(p, a.p);
    if (has_m)
        m_raw.widen(m, a.m);
    if (RULE)
        v_raw.widen(v, a.v);
#pragma unroll
    for (int j = 0; j < V; j++) {
        C step = g[j] * s.gradient;
        if (RULE) {
            m[j] = s.beta1 * m[j] + s.rest1 * step;
            v[j] = s.beta2 * v[j] + s.rest2 * step * step;
            p[j] = p[j] * s.keep - s.rate * m[j] / (sqrt(v[j]) * s.fix2 + s.eps);
        } else {
            step += s.decay * p[j];
            m[j] = has_m ? s.beta1 * m[j] + step : step;
            p[j] -= s.rate * m[j];
        }
    }
    if (RULE == ADAM_STOCHASTIC)
#pragma unroll
        for (int j = 0; j < V; j++)
            p[j] = round_stochastic((float)p[j], key, a.start + i + j);
    cu_store_n(a.p, i, p);
    if (has_m)
        cu_store_n(a.m, i, m);
    if (RULE)
        cu_store_n(a.v, i, v);
    if (a.low.data)
        cu_store_n(a.low, i, p);
}

template <int RULE, class C>
static __global__ void __launch_bounds__(THREADS, 4) update_kernel(update_args a, const factors *given)
{
    const int V = cu_width<C>::most;
    factors f = *given;
    if (f.run == 0)
        return;
    for (int64_t at = blockIdx.x; at < a.n_segments; at += gridDim.x) {
        cu_segment p = a.segments[at];
        int64_t last = p.first + p.count, begin = p.first, end = p.first;
        same<C> s = {(C)f.gradient,    (C)f.rate,  (C)(1 - f.lr * p.value), (C)p.value,      (C)a.beta1,
                     (C)(1 - a.beta1), (C)a.beta2, (C)(1 - a.beta2),        (C)(1 / f.fix2), (C)a.eps};
        if (a.vector && V > 1) {
            begin = (p.first + V - 1) / V * V;
            begin = begin < last ? begin : last;
            end = begin + (last - begin) / V * V;
        }
        for (int64_t i = begin + threadIdx.x * V; i < end; i += THREADS * V)
            update_at<RULE, V, C>(a, s, f.key, i);
        for (int64_t i = p.first + threadIdx.x; i < begin; i += THREADS)
            update_at<RULE, 1, C>(a, s, f.key, i);
        for (int64_t i = end + threadIdx.x; i < last; i += THREADS)
            update_at<RULE, 1, C>(a, s, f.key, i);
    }
}

template <int RULE, class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const update_args &a = cu_args<update_args>(k);
    factors *f = (factors *)cu_scratch(k->device);
    cudaError_t rc = CU_LAUNCH(factors_kernel, 1, 1, 0, stream, a, f);
    if (rc == cudaSuccess && a.n_segments)
        rc = CU_LAUNCH((update_kernel<RULE, C>), (unsigned)(a.n_segments < INT32_MAX ? a.n_segments : INT32_MAX),
                       THREADS, 0, stream, a, f);
    return cu_launched(k, rc, err);
}

static int32_t check(const struct hd_instr_desc *i, struct hd_error *err)
{
    int32_t rc = cu_want(i, &i->in[0], hd_operand_count(&i->out[0]), "the gradient", err);
    for (uint32_t y = 1; !rc && y < i->n_out; y++)
        rc = cu_want(i, &i->out[y], hd_operand_count(&i->out[0]), "an output", err);
    if (!rc)
        rc = cu_want(i, &i->in[1], 1, "the squared norm", err);
    if (!rc)
        rc = cu_want(i, &i->in[2], HD_HYPER_COUNT, "hyper", err);
    if (!rc && i->out[0].ndim != 1)
        rc = cu_refuse(err, HD_E_INVALID, i, "an update wants flat buffers");
    if (!rc && (i->in[1].dtype != HD_F64 || i->in[2].dtype != HD_F64))
        rc = cu_refuse(err, HD_E_INVALID, i, "the squared norm and hyper must be fp64");
    return rc;
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, update_args *a,
                       struct hd_error *err)
{
    int wide = cu_wide_dtype(i->in[0].dtype);
    for (uint32_t y = 0; y < i->n_out; y++)
        wide |= cu_wide_dtype(i->out[y].dtype);
    a->g = cu_ref_of(&i->in[0]);
    a->p = cu_ref_of(&i->out[0]);
    a->norm2 = (const double *)i->in[1].data;
    a->hyper = (const double *)i->in[2].data;
    a->beta1 = i->attrs.beta1;
    a->beta2 = i->attrs.beta2;
    a->eps = i->attrs.eps;
    a->clip = i->attrs.clip;
    a->vector = cu_aligned(i->in[0].data, 16);
    for (uint32_t y = 0; y < i->n_out; y++)
        a->vector &= cu_aligned(i->out[y].data, 16);
    int32_t rc = cu_segments(d, i->attrs.ranges, i->attrs.n_ranges, i->out[0].start[0], hd_operand_count(&i->out[0]),
                             SEGMENT, 1, &a->segments, &a->n_segments, err);
    a->start = i->out[0].start[0];
    if (a->rule == ADAM_STOCHASTIC)
        cu_pack(k, wide ? run<ADAM_STOCHASTIC, double> : run<ADAM_STOCHASTIC, float>, a, sizeof *a);
    else if (a->rule == ADAM)
        cu_pack(k, wide ? run<ADAM, double> : run<ADAM, float>, a, sizeof *a);
    else
        cu_pack(k, wide ? run<SGD, double> : run<SGD, float>, a, sizeof *a);
    return rc ? rc : cu_scratch_reserve(d, sizeof(factors), err);
}

extern "C" int32_t cu_prepare_adamw(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    update_args a = {};
    int32_t rc = check(i, err);
    if (rc)
        return rc;
    a.rule = i->attrs.flags & HD_ATTR_STOCHASTIC && i->out[0].dtype == HD_BF16 ? ADAM_STOCHASTIC : ADAM;
    a.seed = i->attrs.index;
    a.m = cu_ref_of(&i->out[1]);
    a.v = cu_ref_of(&i->out[2]);
    if (i->n_out > 3)
        a.low = cu_ref_of(&i->out[3]);
    return prepare(d, i, k, &a, err);
}

/* The momentum is the second output where attrs.beta1 is not 0; the low-precision copy is the output after it. */
extern "C" int32_t cu_prepare_sgd(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                  struct hd_error *err)
{
    uint32_t low = i->attrs.beta1 != 0 ? 2 : 1;
    update_args a = {};
    int32_t rc = check(i, err);
    if (rc)
        return rc;
    if (low == 2 && i->n_out < 2)
        return cu_refuse(err, HD_E_INVALID, i, "sgd with momentum wants the momentum as its second output");
    if (low == 2)
        a.m = cu_ref_of(&i->out[1]);
    if (i->n_out > low)
        a.low = cu_ref_of(&i->out[low]);
    return prepare(d, i, k, &a, err);
}
