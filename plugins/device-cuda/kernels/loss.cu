/* Cross-entropy over a vocabulary that may be sharded: the largest logit of a row, this shard's sum and label, the
 * gradient.
 *
 * A block a row. Rows of odd length begin anywhere: what lies before and behind the eights of a row is done one by one.
 * Bytes an element: rowmax and xent_local read z, xent_grad reads z and writes dz, which may be the memory of z. */
#include "kernels/row.cuh"

enum { THREADS = 256 };

struct loss_args {
    cu_ref z, m, dl, dc, first, second; /* of a row: m, dl, dc; outputs */
    const int32_t *labels;
    int64_t rows, v, used, start; /* used: entries that are no padding; start: of this shard in the vocabulary */
    int32_t adds, vector;
};

template <class C> static __global__ void __launch_bounds__(THREADS, 4) rowmax_kernel(loss_args a)
{
    CU_SHARED(C, shared, [32]);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        C most = -INFINITY;
        cu_along<THREADS, C>(a.z, row * a.v, a.used, a.vector, [&](const C *z, int n, int64_t) {
            for (int j = 0; j < n; j++)
                most = cu_most(most, z[j]);
        });
        most = cu_largest(most, THREADS, shared);
        if (threadIdx.x == 0)
            cu_store(a.first, row, most);
    }
}

template <class C> static __global__ void __launch_bounds__(THREADS, 4) xent_local_kernel(loss_args a)
{
    CU_SHARED(C, shared, [32]);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        C m = cu_load<C>(a.m, row), sum = 0;
        cu_along<THREADS, C>(a.z, row * a.v, a.used, a.vector, [&](const C *z, int n, int64_t) {
            for (int j = 0; j < n; j++)
                sum += cu_exp(z[j] - m);
        });
        sum = cu_sum(sum, THREADS, shared);
        if (threadIdx.x)
            continue;
        int64_t label = a.labels[row] - a.start;
        if (a.labels[row] < 0) { /* ignored: of all shards log(l) + (m - c) is 0 */
            C l[1] = {a.start == 0 ? (C)1 : (C)0}, c[1] = {a.start == 0 ? m : (C)0};
            cu_put_n<1>(a.first, row, l, a.adds);
            cu_put_n<1>(a.second, row, c, a.adds);
            continue;
        }
        C l[1] = {sum}, c[1] = {label >= 0 && label < a.v ? cu_load<C>(a.z, row * a.v + label) : (C)0};
        cu_put_n<1>(a.first, row, l, a.adds);
        cu_put_n<1>(a.second, row, c, a.adds);
    }
}

template <int V, class C>
CU_DEVICE void xent_grad_at(const loss_args &a, int64_t at, int64_t end, int64_t label, C m, C dl, C dc)
{
    C z[V];
    cu_load_n<V>(z, a.z, at);
#pragma unroll
    for (int j = 0; j < V; j++)
        z[j] = at + j < end ? cu_exp(z[j] - m) * dl + (at + j == label ? dc : (C)0) : (C)0;
    cu_put_n<V>(a.first, at, z, a.adds);
}

template <class C> static __global__ void __launch_bounds__(THREADS, 4) xent_grad_kernel(loss_args a)
{
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        C m = cu_load<C>(a.m, row), dl = cu_load<C>(a.dl, row), dc = cu_load<C>(a.dc, row);
        int64_t label = a.labels[row] - a.start, end = row * a.v + (a.labels[row] < 0 ? 0 : a.used);
        cu_span_of s = cu_span_in(row * a.v, a.v, a.vector);
        label = label >= 0 && label < a.v ? row * a.v + label : -1;
        for (int64_t i = s.begin + threadIdx.x * cu_width<C>::most; i < s.end; i += THREADS * cu_width<C>::most)
            xent_grad_at<cu_width<C>::most, C>(a, i, end, label, m, dl, dc);
        for (int64_t i = s.first + threadIdx.x; i < s.begin; i += THREADS)
            xent_grad_at<1, C>(a, i, end, label, m, dl, dc);
        for (int64_t i = s.end + threadIdx.x; i < s.last; i += THREADS)
            xent_grad_at<1, C>(a, i, end, label, m, dl, dc);
    }
}

enum { ROWMAX, LOCAL, GRAD };

template <int WHAT, class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const loss_args &a = cu_args<loss_args>(k);
    unsigned blocks = cu_blocks(k->device, a.rows, 1);
    cudaError_t rc;
    if (WHAT == ROWMAX)
        rc = CU_LAUNCH((rowmax_kernel<C>), blocks, THREADS, 0, stream, a);
    else if (WHAT == LOCAL)
        rc = CU_LAUNCH((xent_local_kernel<C>), blocks, THREADS, 0, stream, a);
    else
        rc = CU_LAUNCH((xent_grad_kernel<C>), blocks, THREADS, 0, stream, a);
    return cu_launched(k, rc, err);
}

template <int WHAT> static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *z = &i->in[0];
    loss_args a = {};
    int32_t rc = HD_OK;
    if (z->ndim < 1)
        return cu_refuse(err, HD_E_INVALID, i, "logits must have a dim");
    if (WHAT != ROWMAX && i->in[2].dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "labels must be int32");
    a.rows = cu_span(z, 0, z->ndim - 1);
    a.v = z->extent[z->ndim - 1];
    a.used = hd_vocabulary(&i->attrs, z);
    a.start = z->start[z->ndim - 1];
    for (uint32_t x = 1; !rc && x < i->n_in; x++)
        rc = cu_want(i, &i->in[x], a.rows, "an operand with one element a row", err);
    for (uint32_t y = 0; !rc && y < i->n_out; y++)
        rc = cu_want(i, &i->out[y], WHAT == GRAD ? a.rows * a.v : a.rows, "an output", err);
    int wide = cu_wide_dtype(z->dtype) || cu_wide_dtype(i->out[0].dtype);
    a.z = cu_ref_of(z);
    a.first = cu_ref_of(&i->out[0]);
    if (i->n_out > 1)
        a.second = cu_ref_of(&i->out[1]);
    if (WHAT != ROWMAX) {
        a.m = cu_ref_of(&i->in[1]);
        a.labels = (const int32_t *)i->in[2].data;
    }
    if (WHAT == GRAD) {
        a.dl = cu_ref_of(&i->in[3]);
        a.dc = cu_ref_of(&i->in[4]);
    }
    a.adds = cu_accumulates(i);
    a.vector = !wide && cu_aligned(z->data, 16) && (WHAT != GRAD || cu_aligned(i->out[0].data, 16));
    cu_pack(k, wide ? run<WHAT, double> : run<WHAT, float>, &a, sizeof a);
    return rc;
}

#define LOSS(name, what)                                                                                               \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,      \
                                         struct hd_error *err)                                                         \
    {                                                                                                                  \
        (void)d;                                                                                                       \
        return prepare<what>(i, k, err);                                                                               \
    }

LOSS(rowmax, ROWMAX)
LOSS(xent_local, LOCAL)
LOSS(xent_grad, GRAD)
