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

struct cu_row {
    int64_t base; /* its first element */
    int32_t h;    /* 0 for threads that have no row */
    int32_t lane, lanes;
};

/* Reads the elements that are held in registers. */
template <int V, int K, class C> CU_DEVICE void cu_load_row(C (&held)[K][V], const cu_ref &x, const cu_row &row)
{
    cu_raw<C, V> raw[K];
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h)
            raw[k].fetch(x, row.base + (k * row.lanes + row.lane) * V);
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h)
            raw[k].widen(held[k], x.dtype);
}

/* f(V elements, index in the row of the first) for all of this thread's. */
template <int V, int K, class C, class F>
CU_DEVICE void cu_each(C (&held)[K][V], const cu_ref &x, const cu_row &row, F f)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h)
            f(held[k], (k * row.lanes + row.lane) * V);
    for (int j = (K * row.lanes + row.lane) * V; j < row.h; j += row.lanes * V) {
        C more[V];
        cu_load_n<V>(more, x, row.base + j);
        f(more, j);
    }
}

/* The same for two operands that are alike. */
template <int V, int K, class C, class F>
CU_DEVICE void cu_each2(C (&held)[K][V], const cu_ref &x, C (&held2)[K][V], const cu_ref &x2, const cu_row &row, F f)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h)
            f(held[k], held2[k], (k * row.lanes + row.lane) * V);
    for (int j = (K * row.lanes + row.lane) * V; j < row.h; j += row.lanes * V) {
        C more[V], more2[V];
        cu_load_n<V>(more, x, row.base + j);
        cu_load_n<V>(more2, x2, row.base + j);
        f(more, more2, j);
    }
}

/* ---- sums beside a norm, to the bits of two kernels */

/* v as the dtype holds it. */
CU_DEVICE float cu_held(float v, uint32_t dtype)
{
    dtype = cu_opaque(dtype);
    return dtype == HD_F32 ? v : cu_widen2(cu_round2(v, dtype), dtype);
}

CU_DEVICE double cu_held(double v, uint32_t dtype)
{
    dtype = cu_opaque(dtype);
    return dtype == HD_F64 ? v : (double)cu_held((float)v, dtype);
}

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
