/* Cross-entropy of rows of logits and, in place, its gradient: scale (softmax(z) - onehot). A block a row; the largest
 * logit and the sum come from one pass (Milakov and Gimelshein, arXiv 1805.02867), the gradient from a second, out of
 * the cache. */
#include "kernels/kernel.cuh"
#include "products/head.h"

enum { THREADS = 512 }; /* at most */

/* sum exp(z - most) over what was seen. */
struct online {
    float most, sum;
};

CU_DEVICE void see(online &o, const float (&z)[8], int n)
{
    float most = o.most;
    for (int j = 0; j < 8; j++)
        most = j < n ? fmaxf(most, z[j]) : most;
    if (most > o.most) {
        o.sum *= __expf(o.most - most);
        o.most = most;
    }
    for (int j = 0; j < 8; j++)
        o.sum += j < n ? __expf(z[j] - o.most) : 0.0f;
}

CU_DEVICE int left_of(int64_t at, int64_t v)
{
    return v - at < 8 ? (int)(v - at) : 8;
}

static __global__ void __launch_bounds__(THREADS, 2) rows_kernel(cu_head_rows a)
{
    cu_in in = {a.z, a.dtype, 1};
    cu_out out = {a.z, a.dtype, 1, 0, 0};
    float scale = (float)(a.scale * (a.seed ? *a.seed : 1.0)), z[8];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t base = row * a.ld, label = a.labels[row] - a.start;
        online o = {-INFINITY, 0};
        for (int64_t j = 8 * (int64_t)threadIdx.x; j < a.v; j += 8 * blockDim.x) {
            cu_get8(in, base + j, base + a.v, z);
            see(o, z, left_of(j, a.v));
        }
        float most = cu_block_max(o.most);
        float sum = cu_block_sum(o.sum == 0 ? 0.0f : o.sum * __expf(o.most - most));
        if (threadIdx.x == 0)
            a.nll[row] = logf(sum) + most - (label >= 0 && label < a.v ? cu_get(in, base + label) : 0.0f);
        if (!a.trains)
            continue;
        float share = __fdividef(scale, sum);
        __syncthreads(); /* the label's logit has been read */
        for (int64_t j = 8 * (int64_t)threadIdx.x; j < a.v; j += 8 * blockDim.x) {
            cu_get8(in, base + j, base + a.v, z);
            for (int i = 0; i < 8; i++)
                z[i] = share * __expf(z[i] - most) - (j + i == label ? scale : 0.0f);
            cu_put8(out, base + j, base + a.v, z);
        }
    }
}

extern "C" int32_t cu_head_launch(struct hd_kernel *k, const struct cu_head_rows *a, cudaStream_t stream,
                                  struct hd_error *err)
{
    unsigned blocks = cu_blocks(k->device, a->rows, 1), threads = THREADS;
    while (threads > 32 && (int64_t)threads * 4 >= a->v) /* eight logits a thread */
        threads /= 2;
    return cu_launched(k, CU_LAUNCH(rows_kernel, blocks, threads, 0, stream, *a), err);
}
