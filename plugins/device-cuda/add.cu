/* y = x0 + x1 + ... */
#include "cu_kernel.cuh"

enum { THREADS = 256 };

struct add_args {
    cu_in x[8];
    cu_out y;
    int64_t n;
    uint32_t n_in;
};

static __global__ void __launch_bounds__(THREADS) add_kernel(add_args a)
{
    for (int64_t at = 8 * cu_thread(); at < a.n; at += 8 * cu_threads()) {
        float sum[8], x[8];
        cu_get8(a.x[0], at, a.n, sum);
        for (uint32_t i = 1; i < a.n_in; i++) {
            cu_get8(a.x[i], at, a.n, x);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[j] += x[j];
        }
        cu_put8(a.y, at, a.n, sum);
    }
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const add_args &a = cu_args<add_args>(k);
    return cu_launched(k, CU_LAUNCH(add_kernel, cu_blocks(k->device, a.n, 8 * THREADS), THREADS, 0, stream, a), err);
}

extern "C" int32_t cu_prepare_add(struct hd_device *, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *)
{
    add_args a = {};
    a.y = cu_out_of(i, 0);
    a.n = hd_operand_count(&i->out[0]);
    a.n_in = i->n_in;
    for (uint32_t x = 0; x < i->n_in; x++)
        a.x[x] = cu_in_of(&i->in[x]);
    cu_pack(k, run, &a, sizeof a);
    return HD_OK;
}
