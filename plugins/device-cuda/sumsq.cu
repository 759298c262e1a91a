/* Sums of everything: total = scale sum x, sumsq += sum over ranges of value x^2.
 *
 * Blocks sum pieces, which shapes alone cut; one block then adds what they have, in order, in double. Bytes an element:
 * x once. */
#include "pieces.cuh"

enum { THREADS = 256, PIECE = 16 * 8 * THREADS, FINISH = 512, UNROLL = 4 };

struct sum_args {
    cu_ref x, y;
    const cu_piece *pieces;
    double scale;
    int64_t n_pieces;
    int32_t vector, square, adds, reserved;
};

template <int V, class C> CU_DEVICE C sum_of(const C (&x)[V], int square)
{
    C sum = 0;
#pragma unroll
    for (int j = 0; j < V; j++)
        sum += square ? x[j] * x[j] : x[j];
    return sum;
}

template <class C> CU_DEVICE double one(const sum_args &a, int64_t i, C)
{
    C x[1] = {cu_load<C>(a.x, i)};
    return (double)sum_of(x, a.square);
}

/* What a thread has of eights is summed in C before it joins a double. */
template <class C> CU_DEVICE double sum_piece(const sum_args &a, const cu_piece &p)
{
    const int V = cu_width<C>::most;
    int64_t first = p.first, last = p.first + p.count, begin = first, end = first;
    double sum = 0;
    if (a.vector && V > 1) {
        begin = (first + V - 1) / V * V;
        begin = begin < last ? begin : last;
        end = begin + (last - begin) / V * V;
    }
    for (int64_t i = first + threadIdx.x; i < begin; i += THREADS)
        sum += one(a, i, (C)0);
    for (int64_t i = end + threadIdx.x; i < last; i += THREADS)
        sum += one(a, i, (C)0);
    for (int64_t i = begin + threadIdx.x * V; i < end; i += THREADS * V * UNROLL) {
        cu_raw<C, V> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * THREADS * V < end)
                raw[u].fetch(a.x, i + u * THREADS * V);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * THREADS * V < end) {
                C x[V];
                raw[u].widen(x, a.x.dtype);
                sum += (double)sum_of(x, a.square);
            }
    }
    return sum;
}

template <class C> static __global__ void __launch_bounds__(THREADS) sum_kernel(sum_args a, double *partial)
{
    CU_SHARED(double, shared, [32]);
    for (int64_t p = blockIdx.x; p < a.n_pieces; p += gridDim.x) {
        cu_piece piece = a.pieces[p];
        double sum = cu_sum(sum_piece<C>(a, piece), THREADS, shared);
        if (threadIdx.x == 0)
            partial[p] = piece.value * sum;
    }
}

static __global__ void __launch_bounds__(FINISH) finish_kernel(sum_args a, const double *partial)
{
    CU_SHARED(double, shared, [32]);
    double sum[1] = {0};
    for (int64_t p = threadIdx.x; p < a.n_pieces; p += FINISH)
        sum[0] += partial[p];
    sum[0] = cu_sum(sum[0], FINISH, shared) * a.scale;
    if (threadIdx.x == 0)
        cu_put_n<1>(a.y, 0, sum, a.adds);
}

template <class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const sum_args &a = cu_args<sum_args>(k);
    double *partial = (double *)cu_scratch(k->device);
    cudaError_t rc = cudaSuccess;
    if (a.n_pieces)
        rc = CU_LAUNCH((sum_kernel<C>), cu_blocks(k->device, a.n_pieces, 1), THREADS, 0, stream, a, partial);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH(finish_kernel, 1, FINISH, 0, stream, a, partial);
    return cu_launched(k, rc, err);
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, sum_args *a,
                       const struct hd_range *ranges, uint64_t n_ranges, int64_t start, struct hd_error *err)
{
    int32_t rc = cu_want(i, &i->out[0], 1, "the output", err);
    if (!rc)
        rc =
            cu_pieces(d, ranges, n_ranges, start, hd_operand_count(&i->in[0]), PIECE, 0, &a->pieces, &a->n_pieces, err);
    if (!rc)
        rc = cu_scratch_reserve(d, (size_t)(a->n_pieces + 1) * sizeof(double), err);
    a->x = cu_ref_of(&i->in[0]);
    a->y = cu_ref_of(&i->out[0]);
    a->vector = cu_aligned(i->in[0].data, 16);
    cu_pack(k, cu_wide_dtype(i->in[0].dtype) ? run<double> : run<float>, a, sizeof *a);
    return rc;
}

extern "C" int32_t cu_prepare_total(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    struct hd_range all = {0, hd_operand_count(&i->in[0]), 1};
    sum_args a = {};
    a.scale = i->attrs.scale;
    a.adds = cu_accumulates(i);
    return prepare(d, i, k, &a, &all, 1, 0, err);
}

extern "C" int32_t cu_prepare_sumsq(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    sum_args a = {};
    a.scale = 1;
    a.square = 1;
    a.adds = 1;
    if (i->in[0].ndim != 1)
        return cu_refuse(err, HD_E_INVALID, i, "sumsq wants a flat buffer");
    return prepare(d, i, k, &a, i->attrs.ranges, i->attrs.n_ranges, i->in[0].start[0], err);
}
