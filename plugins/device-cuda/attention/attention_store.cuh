/* Stores of attention's results: pairs of neighbouring columns, in any dtype, perhaps added to what is there. */
#ifndef HD_DEVICE_CUDA_ATTENTION_ATTENTION_STORE_CUH
#define HD_DEVICE_CUDA_ATTENTION_ATTENTION_STORE_CUH

#include "attention/attention_tile.cuh"

template <class T> struct alignas(2 * sizeof(T)) cu_two {
    T low, high;
};

template <class T> CU_DEVICE void cu_store_two(T *to, float a, float b, int add)
{
    cu_two<T> *pair = (cu_two<T> *)to;
    if (add) {
        cu_two<T> old = *pair;
        a += cu_float(old.low);
        b += cu_float(old.high);
    }
    *pair = {cu_to<T>(a), cu_to<T>(b)};
}

/* One row of a product: the pairs of columns that this lane holds, times factor. half: rows 0-7 or 8-15 of the 16. */
template <class T, int D>
CU_DEVICE void cu_store_row(T *to, const float (&c)[D / 8][4], int half, float factor, int d, int add)
{
    int column = 2 * ((int)threadIdx.x & 3);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        if (8 * n < d)
            cu_store_two(to + 8 * n + column, c[n][2 * half] * factor, c[n][2 * half + 1] * factor, add);
}

/* The same to element `at` of output `out`: its dtype is T's or fp32. */
template <class T, int D>
CU_DEVICE void cu_put_row(const cu_attention &a, int out, int64_t at, const float (&c)[D / 8][4], int half,
                          float factor)
{
    if (a.out_dtype[out] == a.dtype)
        cu_store_row<T, D>((T *)a.out[out] + at, c, half, factor, a.h.d, a.add);
    else
        cu_store_row<float, D>((float *)a.out[out] + at, c, half, factor, a.h.d, a.add);
}

#endif
