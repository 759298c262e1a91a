/* A block along one row, which may begin anywhere and be as long as it likes: the eights that lie on 16 bytes at once,
 * what is before and behind them one by one. */
#ifndef HD_DEVICE_CUDA_KERNELS_ROW_CUH
#define HD_DEVICE_CUDA_KERNELS_ROW_CUH

#include "kernels/operands.cuh"

/* first <= begin <= end <= last: eights in [begin, end). */
struct cu_span_of {
    int64_t first, begin, end, last;
};

CU_DEVICE cu_span_of cu_span_in(int64_t first, int64_t n, int vector)
{
    cu_span_of s = {first, first, first, first + n};
    if (vector) {
        s.begin = (first + 7) / 8 * 8;
        s.begin = s.begin < s.last ? s.begin : s.last;
        s.end = s.begin + (s.last - s.begin) / 8 * 8;
    }
    return s;
}

/* f(elements, how many, index of the first) for all of elements [first, first + n), by a block of so many threads. */
template <int THREADS, class C, class F>
CU_DEVICE void cu_along(const cu_ref &x, int64_t first, int64_t n, int vector, F f)
{
    const int V = cu_width<C>::most, UNROLL = 2;
    cu_span_of s = cu_span_in(first, n, vector && V > 1);
    for (int64_t i = s.begin + threadIdx.x * V; i < s.end; i += THREADS * V * UNROLL) {
        cu_raw<C, V> raw[UNROLL];
        C v[V];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * THREADS * V < s.end)
                raw[u].fetch(x, i + u * THREADS * V);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * THREADS * V < s.end) {
                raw[u].widen(v, x);
                f(v, V, i + u * THREADS * V);
            }
    }
    for (int64_t i = s.first + threadIdx.x; i < s.begin; i += THREADS) {
        C v = cu_load<C>(x, i);
        f(&v, 1, i);
    }
    for (int64_t i = s.end + threadIdx.x; i < s.last; i += THREADS) {
        C v = cu_load<C>(x, i);
        f(&v, 1, i);
    }
}

#endif
