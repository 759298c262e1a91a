/* Sums down columns in an order that shapes alone say: blocks write partial sums of their rows, then each column's are
 * added one after another. */
#ifndef HD_DEVICE_CUDA_KERNELS_COLUMNS_CUH
#define HD_DEVICE_CUDA_KERNELS_COLUMNS_CUH

#include "kernels/operands.cuh"

enum { CU_COLUMNS_WIDE = 32, CU_COLUMNS_DEEP = 16 };

/* partial [parts][stride] -> out[n], and the next n columns, where the grid is two high, -> next[n]; a block has 32
 * columns, 16 threads each. */
template <class C>
static __global__ void __launch_bounds__(CU_COLUMNS_WIDE *CU_COLUMNS_DEEP)
    cu_columns_finish(const C *partial, int64_t parts, int64_t stride, cu_ref out, cu_ref next, int64_t n, int32_t adds)
{
    CU_SHARED(C, shared, [CU_COLUMNS_DEEP][CU_COLUMNS_WIDE]);
    int x = threadIdx.x % CU_COLUMNS_WIDE, y = threadIdx.x / CU_COLUMNS_WIDE;
    int64_t j = (int64_t)blockIdx.x * CU_COLUMNS_WIDE + x;
    C sum = 0;
    partial += blockIdx.y * n;
    for (int64_t part = y; part < parts && j < n; part += CU_COLUMNS_DEEP)
        sum += partial[part * stride + j];
    shared[y][x] = sum;
    __syncthreads();
    if (y || j >= n)
        return;
    for (int i = 1; i < CU_COLUMNS_DEEP; i++)
        sum += shared[i][x];
    C v[1] = {sum};
    cu_put_n<1>(blockIdx.y ? next : out, j, v, adds);
}

template <class C>
static cudaError_t cu_columns_add(const C *partial, int64_t parts, int64_t stride, const cu_ref &out,
                                  const cu_ref *next, int64_t n, int32_t adds, cudaStream_t stream)
{
    dim3 blocks((unsigned)((n + CU_COLUMNS_WIDE - 1) / CU_COLUMNS_WIDE), next ? 2 : 1);
    return CU_LAUNCH((cu_columns_finish<C>), blocks, CU_COLUMNS_WIDE * CU_COLUMNS_DEEP, 0, stream, partial, parts,
                     stride, out, next ? *next : out, n, adds);
}

#endif
