/* to += what scratch holds. Bytes an element: two reads, one write. */
#include "scratch_add.h"
#include "cu_kernel.cuh"

enum { THREADS = 256 };

template <class T> static __global__ void __launch_bounds__(THREADS) add_kernel(T *to, const T *from, int64_t n)
{
    for (int64_t i = cu_thread(); i < n; i += cu_threads())
        to[i] += from[i];
}

static __global__ void __launch_bounds__(THREADS) add4_kernel(float4 *to, const float4 *from, int64_t n)
{
    for (int64_t i = cu_thread(); i < n; i += cu_threads()) {
        float4 x = to[i], y = from[i];
        to[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
}

extern "C" int32_t cu_scratch_add(struct hd_kernel *k, const struct hd_operand *to, cudaStream_t stream, struct hd_error *err)
{
    const void *from = cu_scratch(k->device);
    int64_t n = hd_operand_count(to);
    int wide = to->dtype == HD_F32 && n % 4 == 0 && cu_aligned(to->data, 16);
    unsigned blocks = cu_blocks(k->device, wide ? n / 4 : n, THREADS);
    cudaError_t rc = cudaSuccess;
    if (wide)
        rc = CU_LAUNCH(add4_kernel, blocks, THREADS, 0, stream, (float4 *)to->data, (const float4 *)from, n / 4);
    else if (to->dtype == HD_F32)
        rc = CU_LAUNCH(add_kernel<float>, blocks, THREADS, 0, stream, (float *)to->data, (const float *)from, n);
    else
        rc = CU_LAUNCH(add_kernel<double>, blocks, THREADS, 0, stream, (double *)to->data, (const double *)from, n);
    return cu_launched(k, rc, err);
}
