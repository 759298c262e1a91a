/* Orthogonalises columns: classical Gram-Schmidt, each column as often as needed (Kahan and Parlett: twice is
 * enough, unless it shrinks once more). Sums are in double.
 *
 * One block does a matrix [rows n]: n is a rank, a few columns. It goes over the matrix three times a column and pass,
 * eight columns at a time; such a matrix stays in the cache. */
#include "kernels/operands.cuh"

enum { THREADS = 512, COLUMNS = 1024, GROUP = 8 };

struct columns_args {
    cu_ref in, out;
    double rounding; /* what is smaller than this part of a sum may be its rounding alone */
    int64_t rows, n;
};

/* hd_direction */
CU_DEVICE double direction(int64_t row, int64_t column, uint32_t attempt)
{
    uint64_t x = (uint64_t)row * UINT64_C(0x9e3779b97f4a7c15) + attempt + 1;
    x += (uint64_t)column * UINT64_C(0xd1b54a32d192ed03);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (double)(x >> 11) * 0x1p-52 - 1;
}

/* dots[i]: column i times column j, for all i up to j. The length of column j. */
CU_DEVICE double measure(const columns_args &a, int64_t j, double *dots, double *shared)
{
    for (int64_t first = 0; first <= j; first += GROUP) {
        double sum[GROUP] = {};
        for (int64_t row = threadIdx.x; row < a.rows; row += THREADS) {
            double mine = cu_load<double>(a.out, row * a.n + j);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (first + i <= j)
                    sum[i] += mine * cu_load<double>(a.out, row * a.n + first + i);
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            if (first + i > j)
                break;
            double total = cu_sum(sum[i], THREADS, shared);
            if (threadIdx.x == 0)
                dots[first + i] = total;
        }
    }
    __syncthreads();
    return sqrt(dots[j]);
}

/* Takes out of column j what lies along those before it. Its length then, or 0 where nothing but rounding is left. */
CU_DEVICE double project(const columns_args &a, int64_t j, double *dots, double *shared)
{
    double whole = measure(a, j, dots, shared), before = whole, length = whole;
    for (int pass = 0; (pass < 2 || length < before / 2) && length > a.rounding * whole; pass++) {
        before = length;
        for (int64_t row = threadIdx.x; row < a.rows; row += THREADS) {
            double sum = 0;
            for (int64_t i = 0; i < j; i++)
                sum += dots[i] * cu_load<double>(a.out, row * a.n + i);
            cu_store(a.out, row * a.n + j, cu_load<double>(a.out, row * a.n + j) - sum);
        }
        __syncthreads();
        length = measure(a, j, dots, shared);
    }
    return length > a.rounding * whole ? length : 0;
}

static __global__ void __launch_bounds__(THREADS, 1) orthogonalise_kernel(columns_args a)
{
    CU_SHARED(double, dots, [COLUMNS]);
    CU_SHARED(double, shared, [32]);
    int broken = 0;
    for (int64_t i = threadIdx.x; i < a.rows * a.n; i += THREADS) {
        double v = cu_load<double>(a.in, i);
        broken |= !(v - v == 0);
    }
    broken = __syncthreads_or(broken);
    for (int64_t i = threadIdx.x; i < a.rows * a.n; i += THREADS)
        cu_store(a.out, i, broken ? (double)NAN : cu_load<double>(a.in, i));
    __syncthreads();
    for (int64_t j = 0; j < a.n && !broken; j++) {
        double length = project(a, j, dots, shared);
        for (uint32_t attempt = 0; length == 0; attempt++) {
            __syncthreads(); /* all have read what they replace */
            for (int64_t row = threadIdx.x; row < a.rows; row += THREADS)
                cu_store(a.out, row * a.n + j, direction(row, j, attempt));
            __syncthreads();
            length = project(a, j, dots, shared);
        }
        for (int64_t row = threadIdx.x; row < a.rows; row += THREADS)
            cu_store(a.out, row * a.n + j, cu_load<double>(a.out, row * a.n + j) / length);
        __syncthreads();
    }
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    return cu_launched(k, CU_LAUNCH(orthogonalise_kernel, 1, THREADS, 0, stream, cu_args<columns_args>(k)), err);
}

extern "C" int32_t cu_prepare_orthogonalise(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                            struct hd_error *err)
{
    const struct hd_operand *a = &i->in[0], *q = &i->out[0];
    (void)d;
    if (q->ndim != 2 || a->ndim != 2 || a->extent[0] != q->extent[0] || a->extent[1] != q->extent[1])
        return cu_refuse(err, HD_E_INVALID, i, "orthogonalise wants a matrix, and another of its shape");
    if (q->extent[1] > q->extent[0])
        return cu_refuse(err, HD_E_INVALID, i, "%lld columns of %lld rows cannot all be orthogonal",
                         (long long)q->extent[1], (long long)q->extent[0]);
    if (q->extent[1] > COLUMNS)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "more than %d columns", COLUMNS);
    double rounding = q->dtype == HD_F64   ? 0x1p-48
                      : q->dtype == HD_F32 ? 0x1p-19
                      : q->dtype == HD_F16 ? 0x1p-7
                                           : 0x1p-4;
    columns_args args = {cu_ref_of(a), cu_ref_of(q), rounding, q->extent[0], q->extent[1]};
    cu_pack(k, run, &args, sizeof args);
    return HD_OK;
}
