/* Copies rows of slots; a warp a row. Bytes: those of the slots that hold tokens are read, all are written. */
#include "kernels/kernel.cuh"
#include "experts/experts.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

struct alignas(16) bytes16 {
    uint32_t at[4];
};

template <class T> CU_DEVICE void copy_row(const cu_expert_rows &a, int64_t row, int64_t to_row)
{
    int64_t n = a.row_bytes / (int64_t)sizeof(T);
    const T *from = (const T *)a.from + row * n;
    T *to = (T *)a.to + to_row * n;
    bool there = a.token[row] > 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        to[i] = there ? from[i] : T{};
}

static __global__ void __launch_bounds__(THREADS, 4) rows_kernel(cu_expert_rows a)
{
    int64_t rows = a.b * a.e * a.slots;
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < rows; row += (int64_t)gridDim.x * WARPS) {
        int64_t slot = row % a.slots, expert = row / a.slots % a.e, batch = row / a.slots / a.e;
        int64_t to = a.by_expert ? (expert * a.b + batch) * a.slots + slot : row;
        if (a.wide)
            copy_row<bytes16>(a, row, to);
        else
            copy_row<uint16_t>(a, row, to);
    }
}

extern "C" int32_t cu_expert_rows_launch(struct hd_kernel *k, const struct cu_expert_rows *a, cudaStream_t stream,
                                         struct hd_error *err)
{
    unsigned blocks = cu_blocks(k->device, a->b * a->e * a->slots, WARPS);
    return cu_launched(k, CU_LAUNCH(rows_kernel, blocks, THREADS, 0, stream, *a), err);
}
