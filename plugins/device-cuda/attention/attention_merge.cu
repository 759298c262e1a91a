/* Two attentions over different keys become one over all of them (ring attention): o = w1 o1 + w2 o2 with w = exp(lse
 * of one - lse of both). A query that sees no keys on one side has lse -inf there. A warp a row. */
#include "kernels/kernel.cuh"

enum { THREADS = 256 };

struct merge_args {
    cu_in o[2], lse[2];
    cu_out out, out_lse;
    int64_t rows, d;
};

static __global__ void __launch_bounds__(THREADS, 4) attention_merge(merge_args a)
{
    for (int64_t row = cu_thread() / 32; row < a.rows; row += cu_threads() / 32) {
        float x = cu_get(a.lse[0], row), y = cu_get(a.lse[1], row), most = fmaxf(x, y);
        float both = most == -INFINITY ? most : most + logf(expf(x - most) + expf(y - most));
        float wx = x == -INFINITY ? 0 : expf(x - both), wy = y == -INFINITY ? 0 : expf(y - both);
        for (int64_t e = 8 * (int64_t)(threadIdx.x % 32); e < a.d; e += 256) {
            float p[8], q[8];
            cu_get8(a.o[0], row * a.d + e, (row + 1) * a.d, p);
            cu_get8(a.o[1], row * a.d + e, (row + 1) * a.d, q);
#pragma unroll
            for (int j = 0; j < 8; j++)
                p[j] = wx * p[j] + wy * q[j];
            cu_put8(a.out, row * a.d + e, (row + 1) * a.d, p);
        }
        if (threadIdx.x % 32 == 0)
            cu_put(a.out_lse, row, both);
    }
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const merge_args &a = cu_args<merge_args>(k);
    return cu_launched(k, CU_LAUNCH(attention_merge, cu_blocks(k->device, a.rows, THREADS / 32), THREADS, 0, stream, a),
                       err);
}

static int32_t check(const struct hd_instr_desc *i, int64_t rows, struct hd_error *err)
{
    int64_t n = hd_operand_count(&i->in[0]);
    if (!i->in[0].ndim || n != rows * i->in[0].extent[i->in[0].ndim - 1])
        return cu_refuse(err, HD_E_INVALID, i, "o must be lse with one more dim");
    if (hd_operand_count(&i->in[2]) != n || hd_operand_count(&i->out[0]) != n)
        return cu_refuse(err, HD_E_INVALID, i, "the parts and the whole differ in size");
    if (hd_operand_count(&i->in[3]) != rows || hd_operand_count(&i->out[1]) != rows)
        return cu_refuse(err, HD_E_INVALID, i, "the lse of the parts and the whole differ in size");
    return HD_OK;
}

extern "C" int32_t cu_prepare_attention_merge(struct hd_device *, const struct hd_instr_desc *i, struct hd_kernel *k,
                                              struct hd_error *err)
{
    merge_args a = {};
    a.rows = hd_operand_count(&i->in[1]);
    int32_t rc = check(i, a.rows, err);
    if (rc)
        return rc;
    for (int n = 0; n < 2; n++) {
        a.o[n] = cu_in_of(&i->in[2 * n]);
        a.lse[n] = cu_in_of(&i->in[2 * n + 1]);
    }
    a.out = cu_out_of(i, 0);
    a.out_lse = cu_out_of(i, 1);
    a.out_lse.add = 0; /* a statistic of this call */
    a.d = a.rows ? hd_operand_count(&i->in[0]) / a.rows : 0;
    cu_pack(k, run, &a, sizeof a);
    return HD_OK;
}
