/* Rows of h elements, each by `lanes` neighbouring threads of a block, a power of two. A thread has the V elements from
 * (k lanes + lane) V on for k = 0, 1, ...; the first K of these it keeps in registers, so that a second pass is free.
 */
#ifndef HD_DEVICE_CUDA_KERNELS_ROWS_CUH
#define HD_DEVICE_CUDA_KERNELS_ROWS_CUH

#include "kernels/operands.cuh"

enum { CU_ROWS_THREADS = 256, CU_ROWS_MOST = 512 };

/* Threads a row, so that K V elements are each one's share where a block is large enough. */
static inline int32_t cu_lanes(int64_t h, int v, int k, int32_t most)
{
    int32_t lanes = 8;
    while (lanes < most && (int64_t)lanes * v * k < h)
        lanes *= 2;
    return lanes;
}

static inline int32_t cu_rows_threads(int32_t lanes)
{
    return lanes > CU_ROWS_THREADS ? lanes : CU_ROWS_THREADS;
}

/* An instance of a kernel: V elements at a time, K times as many of a row in a thread's registers, sums in C, operands
 * that are an R. */
template <int K_, int V_, class C_, class R_> struct cu_rows_instance {
    enum { K = K_, V = V_ };
    typedef C_ C;
    typedef R_ R;
};

/* All in bf16: registers suffice for so much of a row that a warp has one of 1024 elements by itself, and no barrier
 * stands between a row's loads and the next one's. */
typedef cu_rows_instance<4, 8, float, cu_ref_to<HD_BF16>> cu_rows_bf16;

/* Inputs, and the first outputs, are bf16. */
static inline int cu_rows_are_bf16(const struct hd_instr_desc *i, uint32_t outputs)
{
    int are = 1;
    for (uint32_t x = 0; x < i->n_in; x++)
        are &= i->in[x].dtype == HD_BF16;
    for (uint32_t y = 0; y < outputs; y++)
        are &= i->out[y].dtype == HD_BF16;
    return are;
}

struct cu_row {
    int64_t base; /* its first element */
    int32_t h;    /* 0 for threads that have no row */
    int32_t lane, lanes;
};

/* Sets out to read the elements that are held in registers. */
template <int V, int K, class C, class R>
CU_DEVICE void cu_fetch_row(cu_raw<C, V> (&raw)[K], const R &x, const cu_row &row)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h)
            raw[k].fetch(x, row.base + (k * row.lanes + row.lane) * V);
}

/* f(V elements, index in the row of the first) for all of this thread's. */
template <int V, int K, class C, class R, class F>
CU_DEVICE void cu_each(const cu_raw<C, V> (&raw)[K], const R &x, const cu_row &row, F f)
{
    C v[V];
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h) {
            raw[k].widen(v, x);
            f(v, (k * row.lanes + row.lane) * V);
        }
    for (int j = (K * row.lanes + row.lane) * V; j < row.h; j += row.lanes * V) {
        cu_load_n<V>(v, x, row.base + j);
        f(v, j);
    }
}

/* The same for two operands that are alike. */
template <int V, int K, class C, class R, class F>
CU_DEVICE void cu_each2(const cu_raw<C, V> (&raw)[K], const R &x, const cu_raw<C, V> (&raw2)[K], const R &x2,
                        const cu_row &row, F f)
{
    C v[V], v2[V];
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h) {
            raw[k].widen(v, x);
            raw2[k].widen(v2, x2);
            f(v, v2, (k * row.lanes + row.lane) * V);
        }
    for (int j = (K * row.lanes + row.lane) * V; j < row.h; j += row.lanes * V) {
        cu_load_n<V>(v, x, row.base + j);
        cu_load_n<V>(v2, x2, row.base + j);
        f(v, v2, j);
    }
}

/* cu_sum of N numbers at once; shared has room for 32 N. */
template <int N, class C> CU_DEVICE void cu_sums(C (&v)[N], int lanes, C *shared)
{
#pragma unroll
    for (int n = 0; n < N; n++)
        v[n] = cu_sum(v[n], lanes < 32 ? lanes : 32, shared);
    if (lanes <= 32)
        return;
    int warp = threadIdx.x / 32, first = threadIdx.x / lanes * (lanes / 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int n = 0; n < N; n++)
            shared[n * 32 + warp] = v[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        v[n] = 0;
        for (int w = 0; w < lanes / 32; w++)
            v[n] += shared[n * 32 + first + w];
    }
}

/* ---- the gradient of a norm's input. With r = 1/sqrt(variance + eps), xhat = (x - mean) r and a = w dy, it is
 * r (a - mean(a) - xhat mean(a xhat)); RMSNorm is the case without means. */

/* Adds an element to the sums of (x - mean)^2, a and a (x - mean) over the row; x is about the mean. */
template <class C> CU_DEVICE void cu_norm_sums(C (&sum)[3], C x, C a)
{
    sum[0] += x * x;
    sum[1] += a;
    sum[2] += a * x;
}

/* The sums become r, mean(a) and mean(a xhat), which cu_norm_dx takes. */
template <int CENTRED, class C> CU_DEVICE void cu_norm_row(C (&sum)[3], C h, C eps)
{
    sum[0] = cu_rsqrt(sum[0] / h + eps);
    sum[1] = CENTRED ? sum[1] / h : 0;
    sum[2] = sum[2] * sum[0] / h;
}

template <class C> CU_DEVICE C cu_norm_dx(const C (&row)[3], C x, C a)
{
    return row[0] * (a - row[1] - x * row[0] * row[2]);
}

/* ---- sums beside a norm, to the bits of two kernels */

/* Never one rounding with the product that a may be. */
CU_DEVICE float cu_plus(float a, float b)
{
#ifndef CU_EMULATE
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

CU_DEVICE double cu_plus(double a, double b)
{
#ifndef CU_EMULATE
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
}

#endif
