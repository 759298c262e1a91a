/* Transposes statistics of attention: cuDNN's lie [b, h, s], ours [b, s, h]. Not hot: they are a d-th of an operand. */
#include "attention/cudnn_attention.h"
#include "kernels/kernel.cuh"

namespace {

constexpr int THREADS = 256;
constexpr unsigned BLOCKS = 1024;

__global__ void __launch_bounds__(THREADS)
    turn_kernel(float *to, const float *from, int64_t count, int64_t m, int64_t n)
{
    for (int64_t i = cu_thread(); i < count; i += cu_threads()) {
        int64_t row = i % m, col = i / m % n, outer = i / (m * n);
        to[i] = from[(outer * m + row) * n + col];
    }
}

} // namespace

extern "C" cudaError_t dnn_turn(float *to, const float *from, int64_t outer, int64_t m, int64_t n, cudaStream_t stream)
{
    int64_t count = outer * m * n, blocks = (count + THREADS - 1) / THREADS;
    return CU_LAUNCH(turn_kernel, blocks < BLOCKS ? (unsigned)blocks : BLOCKS, THREADS, 0, stream, to, from, count, m,
                     n);
}
