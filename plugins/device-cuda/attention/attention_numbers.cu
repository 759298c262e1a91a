/* Random operands and comparison of results, for verification of attention. */
#include "attention/attention_autotune.h"
#include "kernels/kernel.cuh"

namespace {

constexpr int THREADS = 256;
constexpr unsigned BLOCKS = 1024;

/* ---- numbers */

CU_DEVICE float noise(uint32_t seed, uint64_t i)
{
    uint32_t x = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32) ^ seed * 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return (float)(x >> 8) * 0x1p-23f - 1;
}

__global__ void __launch_bounds__(THREADS) fill_kernel(cu_out to, int64_t n, uint32_t seed, float scale)
{
    for (int64_t i = cu_thread(); i < n; i += cu_threads())
        cu_put(to, i, scale * noise(seed, (uint64_t)i));
}

/* ---- how far: a warp a row */

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

extern "C" cudaError_t cu_verify_fill(void *to, uint32_t dtype, int64_t n, uint32_t seed, float scale,
                                      cudaStream_t stream)
{
    cu_out out = {to, dtype, 0, 0, 0};
    return CU_LAUNCH(fill_kernel, BLOCKS, THREADS, 0, stream, out, n, seed, scale);
}

extern "C" cudaError_t cu_verify_compare(float (*rows)[2], const void *a, const void *b, uint32_t dtype, int64_t n,
                                         int64_t d, cudaStream_t stream)
{
    cu_in x = {a, dtype, 0}, y = {b, dtype, 0};
    return CU_LAUNCH(compare_kernel, BLOCKS, THREADS, 0, stream, rows, x, y, n, d);
}
