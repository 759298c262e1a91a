/* Comparison of results, for verification of attention. */
#include "attention/attention_autotune.h"
#include "kernels/kernel.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr unsigned BLOCKS = 1024;

/* A warp a row. */

__global__ void __launch_bounds__(THREADS) compare_kernel(float (*rows)[2], cu_in a, cu_in b, int64_t n, int64_t d)
{
    int64_t warps = cu_threads() / 32, lane = threadIdx.x % 32;
    for (int64_t row = cu_thread() / 32; row < n; row += warps) {
        float difference = 0, whole = 0;
        for (int64_t i = row * d + lane; i < (row + 1) * d; i += 32) {
            float x = cu_get(a, i), y = cu_get(b, i);
            difference += (x - y) * (x - y);
            whole += x * x;
        }
        difference = cu_warp_sum(difference);
        whole = cu_warp_sum(whole);
        if (lane == 0) {
            rows[row][0] = difference;
            rows[row][1] = whole;
        }
    }
}

} // namespace

extern "C" cudaError_t cu_verify_compare(float (*rows)[2], const void *a, const void *b, uint32_t dtype, int64_t n,
                                         int64_t d, cudaStream_t stream)
{
    cu_in x = {a, dtype, 0}, y = {b, dtype, 0};
    return CU_LAUNCH(compare_kernel, BLOCKS, THREADS, 0, stream, rows, x, y, n, d);
}
