/* RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dim: a block a row, the row read twice, the second time from
 * the cache. */
#include "cu_kernel.cuh"

enum { THREADS = 256 };

struct rmsnorm_args {
    cu_in x, w;
    cu_out y;
    int64_t rows, h;
    float eps;
};

static __global__ void __launch_bounds__(THREADS) rmsnorm_kernel(rmsnorm_args a)
{
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t base = row * a.h, end = base + a.h;
        float square = 0, x[8], w[8];
        for (int64_t j = 8 * (int64_t)threadIdx.x; j < a.h; j += 8 * blockDim.x) {
            cu_get8(a.x, base + j, end, x);
#pragma unroll
            for (int i = 0; i < 8; i++)
                square += x[i] * x[i];
        }
        float r = rsqrtf(cu_block_sum(square) / (float)a.h + a.eps);
        for (int64_t j = 8 * (int64_t)threadIdx.x; j < a.h; j += 8 * blockDim.x) {
            cu_get8(a.x, base + j, end, x);
            cu_get8(a.w, j, a.h, w);
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] *= r * w[i];
            cu_put8(a.y, base + j, end, x);
        }
    }
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const rmsnorm_args &a = cu_args<rmsnorm_args>(k);
    return cu_launched(k, CU_LAUNCH(rmsnorm_kernel, cu_blocks(k->device, a.rows, 1), THREADS, 0, stream, a), err);
}

extern "C" int32_t cu_prepare_rmsnorm(struct hd_device *, const struct hd_instr_desc *i, struct hd_kernel *k,
                                      struct hd_error *)
{
    rmsnorm_args a = {};
    a.x = cu_in_of(&i->in[0]);
    a.w = cu_in_of(&i->in[1]);
    a.y = cu_out_of(i, 0);
    a.h = hd_operand_count(&i->in[1]);
    a.rows = a.h ? hd_operand_count(&i->out[0]) / a.h : 0;
    a.eps = (float)i->attrs.eps;
    cu_pack(k, run, &a, sizeof a);
    return HD_OK;
}
