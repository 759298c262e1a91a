/* Sums of everything: total = scale sum x, sumsq += sum over ranges of value x^2, as a number or in digits.
 *
 * Blocks sum segments, which shapes alone cut; one block then adds what they have, in order, in double. Bytes an
 * element: x once. */
#include "kernels/segments.cuh"

enum { THREADS = 256, SEGMENT = 16 * 8 * THREADS, FINISH = 512, UNROLL = 4 };

struct sum_args {
    cu_ref x, y;
    const cu_segment *segments;
    double scale;
    int64_t n_segments;
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

/* Eights of a thread are summed in C before they are added to a double. */
template <class C> CU_DEVICE double sum_segment(const sum_args &a, const cu_segment &p)
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
                raw[u].widen(x, a.x);
                sum += (double)sum_of(x, a.square);
            }
    }
    return sum;
}

template <class C> static __global__ void __launch_bounds__(THREADS) sum_kernel(sum_args a, double *partial)
{
    CU_SHARED(double, shared, [32]);
    for (int64_t p = blockIdx.x; p < a.n_segments; p += gridDim.x) {
        cu_segment segment = a.segments[p];
        double sum = cu_sum(sum_segment<C>(a, segment), THREADS, shared);
        if (threadIdx.x == 0)
            partial[p] = segment.value * sum;
    }
}

static __global__ void __launch_bounds__(FINISH) finish_kernel(sum_args a, const double *partial)
{
    CU_SHARED(double, shared, [32]);
    double sum[1] = {0};
    for (int64_t p = threadIdx.x; p < a.n_segments; p += FINISH)
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
    if (a.n_segments)
        rc = CU_LAUNCH((sum_kernel<C>), cu_blocks(k->device, a.n_segments, 1), THREADS, 0, stream, a, partial);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH(finish_kernel, 1, FINISH, 0, stream, a, partial);
    return cu_launched(k, rc, err);
}

/* ---- the same in digits: whole numbers. A thread has a column of its own; of a segment it sums SEGMENT / THREADS
 * squares, which 32 bits hold. Squares that are no numbers, or as good as none, are counted behind the digits. */

enum { LARGEST = HD_SUM_SHIFT + HD_SUM_SHIFT - 52, LARGE = HD_SUM_DIGITS, NO_NUMBER, COUNTS };

CU_DEVICE void add_square(uint32_t (&column)[COUNTS][THREADS], double square)
{
    unsigned long long bits, m;
    int e, x = threadIdx.x;
    memcpy(&bits, &square, sizeof bits);
    m = (bits & (~0ull >> 12)) | 1ull << 52;
    e = (int)(bits >> 52) - 1023 - 52 + HD_SUM_SHIFT;
    if (e <= -53)
        return;
    if (e >= LARGEST) {
        column[square == square ? LARGE : NO_NUMBER][x] += 1;
        return;
    }
    if (e < 0) {
        m >>= -e;
        e = 0;
    }
    for (int k = e / 16, shift = e % 16; m; k++, shift = 0) { /* the first digit has the lowest 16 - shift bits */
        column[k][x] += (uint32_t)(m << shift) & 0xffff;
        m >>= 16 - shift;
    }
}

/* partial[block][COUNTS]: thread k has digit k of the segments of its block. */
template <class C> static __global__ void __launch_bounds__(THREADS) digits_kernel(sum_args a, double *partial)
{
    CU_SHARED(uint32_t, column, [COUNTS][THREADS]);
    double sum = 0;
    for (int64_t p = blockIdx.x; p < a.n_segments; p += gridDim.x) {
        cu_segment segment = a.segments[p];
        unsigned long long count = 0;
        for (int k = 0; k < COUNTS; k++)
            column[k][threadIdx.x] = 0;
        for (int64_t i = segment.first + threadIdx.x; i < segment.first + segment.count && segment.value > 0;
             i += THREADS) {
            double x = (double)cu_load<C>(a.x, i);
            add_square(column, x * x);
        }
        __syncthreads();
        for (int j = 0; j < THREADS && threadIdx.x < COUNTS; j++)
            count += column[threadIdx.x][(j + threadIdx.x) % THREADS]; /* no two of them in one bank */
        sum += segment.value * (double)count;
        __syncthreads();
    }
    if (threadIdx.x < COUNTS)
        partial[blockIdx.x * COUNTS + threadIdx.x] = sum;
}

CU_DEVICE double of_blocks(const double *partial, int blocks, int k)
{
    double sum = 0;
    for (int b = 0; b < blocks; b++)
        sum += partial[b * COUNTS + k];
    return sum;
}

static __global__ void digits_finish_kernel(sum_args a, const double *partial, int blocks)
{
    int k = threadIdx.x;
    double sum[1];
    if (k >= HD_SUM_DIGITS)
        return;
    sum[0] = ldexp(of_blocks(partial, blocks, k), 16 * k - HD_SUM_SHIFT);
    if (k == HD_SUM_DIGITS - 1 && of_blocks(partial, blocks, LARGE) > 0)
        sum[0] = (double)INFINITY;
    if (k == HD_SUM_DIGITS - 1 && of_blocks(partial, blocks, NO_NUMBER) > 0)
        sum[0] = (double)NAN;
    cu_put_n<1>(a.y, k, sum, 1);
}

template <class C> static int32_t run_digits(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const sum_args &a = cu_args<sum_args>(k);
    double *partial = (double *)cu_scratch(k->device);
    int blocks = a.n_segments ? (int)cu_blocks(k->device, a.n_segments, 1) : 0;
    cudaError_t rc = cudaSuccess;
    if (blocks)
        rc = CU_LAUNCH((digits_kernel<C>), blocks, THREADS, 0, stream, a, partial);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH(digits_finish_kernel, 1, 32, 0, stream, a, partial, blocks);
    return cu_launched(k, rc, err);
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, sum_args *a,
                       const struct hd_range *ranges, uint64_t n_ranges, int64_t start, struct hd_error *err)
{
    int digits = a->square && hd_operand_count(&i->out[0]) == HD_SUM_DIGITS, wide = cu_wide_dtype(i->in[0].dtype);
    int32_t rc = digits ? HD_OK : cu_want(i, &i->out[0], 1, "the output", err);
    if (!rc)
        rc = cu_segments(d, ranges, n_ranges, start, hd_operand_count(&i->in[0]), SEGMENT, 0, &a->segments,
                         &a->n_segments, err);
    if (!rc)
        rc = cu_scratch_reserve(d, (size_t)(a->n_segments + 1) * (digits ? COUNTS : 1) * sizeof(double), err);
    a->x = cu_ref_of(&i->in[0]);
    a->y = cu_ref_of(&i->out[0]);
    a->vector = cu_aligned(i->in[0].data, 16);
    if (digits)
        cu_pack(k, wide ? run_digits<double> : run_digits<float>, a, sizeof *a);
    else
        cu_pack(k, wide ? run<double> : run<float>, a, sizeof *a);
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
