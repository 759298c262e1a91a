/* Sums of tensors, element by element: y = (y +) sum of factor_i x_i, for add, blend, accum, copy between dtypes and
 * mask.
 *
 * Bytes an element: every input once, the output once (twice where it is added to). The output may be the memory of an
 * input. Without inputs y becomes, or gains, the same value everywhere: fill0, spread and the other side of a mask. */
#include "kernels/operands.cuh"

enum { MOST = 8, THREADS = 256 };

struct add_args {
    cu_ref in[MOST], out;
    double factor[MOST];
    const double *seed; /* of a value that is the same everywhere: times this */
    double value;
    int64_t n, vectors;
    int32_t count, adds;
};

template <int N, int V, class C> CU_DEVICE void add_at(const add_args &a, int64_t i)
{
    cu_raw<C, V> in[N], old;
    C y[V];
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < a.count)
            in[k].fetch(a.in[k], i);
    if (a.adds)
        old.fetch(a.out, i);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < a.count) {
            C x[V], factor = (C)a.factor[k];
            in[k].widen(x, a.in[k]);
#pragma unroll
            for (int j = 0; j < V; j++)
                y[j] = k ? y[j] + factor * x[j] : factor * x[j]; /* not from 0: -0 stays what it is */
        }
    if (a.adds) {
        C x[V];
        old.widen(x, a.out);
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] += x[j];
    }
    cu_store_n(a.out, i, y);
}

template <int N, class C> static __global__ void __launch_bounds__(THREADS, 2) add_kernel(add_args a)
{
    int64_t first = cu_thread(), step = cu_threads();
    for (int64_t i = first; i < a.vectors; i += step)
        add_at<N, cu_width<C>::most, C>(a, i * cu_width<C>::most);
    for (int64_t i = a.vectors * cu_width<C>::most + first; i < a.n; i += step)
        add_at<N, 1, C>(a, i);
}

template <int V, class C> CU_DEVICE void same_at(const add_args &a, int64_t i, C value)
{
    C y[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        y[j] = value;
    cu_put_n<V>(a.out, i, y, a.adds);
}

template <class C> static __global__ void __launch_bounds__(THREADS) same_kernel(add_args a)
{
    int64_t first = cu_thread(), step = cu_threads();
    C value = (C)(a.value * (a.seed ? *a.seed : 1.0));
    for (int64_t i = first; i < a.vectors; i += step)
        same_at<cu_width<C>::most, C>(a, i * cu_width<C>::most, value);
    for (int64_t i = a.vectors * cu_width<C>::most + first; i < a.n; i += step)
        same_at<1, C>(a, i, value);
}

template <class C>
static int32_t launch(struct hd_kernel *k, const add_args &a, cudaStream_t stream, struct hd_error *err)
{
    unsigned blocks = cu_blocks(k->device, a.vectors + a.n - a.vectors * 8, THREADS);
    cudaError_t rc;
    if (a.count == 0)
        rc = CU_LAUNCH((same_kernel<C>), blocks, THREADS, 0, stream, a);
    else if (a.count == 1)
        rc = CU_LAUNCH((add_kernel<1, C>), blocks, THREADS, 0, stream, a);
    else if (a.count == 2)
        rc = CU_LAUNCH((add_kernel<2, C>), blocks, THREADS, 0, stream, a);
    else if (a.count <= 4)
        rc = CU_LAUNCH((add_kernel<4, C>), blocks, THREADS, 0, stream, a);
    else
        rc = CU_LAUNCH((add_kernel<MOST, C>), blocks, THREADS, 0, stream, a);
    return cu_launched(k, rc, err);
}

template <class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    return launch<C>(k, cu_args<add_args>(k), stream, err);
}

extern "C" int32_t cu_scratch_add(struct hd_kernel *k, const struct hd_operand *to, cudaStream_t stream,
                                  struct hd_error *err)
{
    int wide = cu_wide_dtype(to->dtype);
    add_args a = {};
    a.in[0].data = cu_scratch(k->device);
    a.in[0].dtype = to->dtype;
    a.factor[0] = 1;
    a.out = cu_ref_of(to);
    a.n = hd_operand_count(to);
    a.vectors = wide || !cu_aligned(to->data, 16) ? 0 : a.n / 8;
    a.count = a.adds = 1;
    return wide ? launch<double>(k, a, stream, err) : launch<float>(k, a, stream, err);
}

static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, add_args *a, struct hd_error *err)
{
    a->out = cu_ref_of(&i->out[0]);
    a->n = hd_operand_count(&i->out[0]);
    a->vectors = cu_vectors(i, a->n);
    cu_pack(k, cu_wide(i) ? run<double> : run<float>, a, sizeof *a);
    return a->count ? cu_same(i, err) : HD_OK;
}

static void inputs(const struct hd_instr_desc *i, add_args *a)
{
    a->count = (int32_t)i->n_in;
    for (uint32_t x = 0; x < i->n_in; x++) {
        a->in[x] = cu_ref_of(&i->in[x]);
        a->factor[x] = 1;
    }
}

extern "C" int32_t cu_prepare_add(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                  struct hd_error *err)
{
    add_args a = {};
    (void)d;
    inputs(i, &a);
    a.adds = cu_accumulates(i);
    return prepare(i, k, &a, err);
}

extern "C" int32_t cu_prepare_accum(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    add_args a = {};
    (void)d;
    inputs(i, &a);
    a.adds = 1;
    return prepare(i, k, &a, err);
}

extern "C" int32_t cu_prepare_blend(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    add_args a = {};
    (void)d;
    if (!i->attrs.table || i->attrs.n_table != i->n_in)
        return cu_refuse(err, HD_E_INVALID, i, "a blend of %u tensors has %llu factors", i->n_in,
                         (unsigned long long)i->attrs.n_table);
    inputs(i, &a);
    for (uint32_t x = 0; x < i->n_in; x++)
        a.factor[x] = i->attrs.table[x] / (i->attrs.parts ? i->attrs.parts : 1);
    return prepare(i, k, &a, err);
}

/* The first of a group keeps what it has, the others have zeros. */
extern "C" int32_t cu_prepare_mask(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                   struct hd_error *err)
{
    add_args a = {};
    (void)d;
    inputs(i, &a);
    a.adds = cu_accumulates(i);
    int32_t rc = prepare(i, k, &a, err);
    if (i->attrs.index)
        a.count = 0;
    cu_pack(k, k->run, &a, sizeof a);
    return rc;
}

extern "C" int32_t cu_prepare_fill0(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    add_args a = {};
    (void)d;
    return prepare(i, k, &a, err);
}

extern "C" int32_t cu_prepare_spread(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                     struct hd_error *err)
{
    add_args a = {};
    (void)d;
    if (i->n_in && (i->in[0].dtype != HD_F64 || hd_operand_count(&i->in[0]) != 1))
        return cu_refuse(err, HD_E_INVALID, i, "the loss scale must be one fp64 number");
    a.seed = i->n_in ? (const double *)i->in[0].data : NULL;
    a.value = i->attrs.scale;
    a.adds = cu_accumulates(i);
    return prepare(i, k, &a, err);
}
