/* Any einsum, a thread an element: what no matrix product fits. Sums in fp32, of fp64 operands in fp64. */
#include "../common/einsum_labels.h"
#include "kernels/kernel.cuh"

enum { THREADS = 256 };

struct plain_label {
    int64_t extent, a, b; /* strides; 0 where an operand lacks the label */
};

struct plain_args {
    cu_in a, b;
    cu_out c;
    int64_t count;
    int32_t n_keep, n_sum;
    plain_label keep[HD_MAX_DIMS], sum[2 * HD_MAX_DIMS];
};

template <class T> static __device__ T dot(const plain_args &x, int64_t a, int64_t b)
{
    int64_t at[2 * HD_MAX_DIMS] = {}, terms = 1;
    T total = 0;
    for (int32_t i = 0; i < x.n_sum; i++)
        terms *= x.sum[i].extent;
    for (int64_t n = 0; n < terms; n++) {
        if (sizeof(T) == sizeof(double))
            total += (T)(cu_get_double(x.a, a) * cu_get_double(x.b, b));
        else
            total += (T)(cu_get(x.a, a) * cu_get(x.b, b));
        for (int32_t i = x.n_sum - 1; i >= 0; i--) {
            a += x.sum[i].a;
            b += x.sum[i].b;
            if (++at[i] < x.sum[i].extent)
                break;
            a -= x.sum[i].a * x.sum[i].extent;
            b -= x.sum[i].b * x.sum[i].extent;
            at[i] = 0;
        }
    }
    return total;
}

static __global__ void __launch_bounds__(THREADS) plain_kernel(const __grid_constant__ plain_args x)
{
    for (int64_t at = cu_thread(); at < x.count; at += cu_threads()) {
        int64_t a = 0, b = 0, left = at;
        for (int32_t i = x.n_keep - 1; i >= 0; i--) {
            int64_t j = left % x.keep[i].extent;
            left /= x.keep[i].extent;
            a += j * x.keep[i].a;
            b += j * x.keep[i].b;
        }
        if (x.a.dtype != HD_F64) {
            cu_put(x.c, at, dot<float>(x, a, b));
        } else {
            double *c = (double *)x.c.data + at;
            *c = (x.c.add ? *c : 0) + dot<double>(x, a, b);
        }
    }
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const plain_args &x = cu_args<plain_args>(k);
    return cu_launched(k, CU_LAUNCH(plain_kernel, cu_blocks(k->device, x.count, THREADS), THREADS, 0, stream, x), err);
}

static plain_label label_of(const struct hd_instr_desc *i, const struct hd_operand *o, uint32_t d)
{
    int32_t a = cu_dim(&i->in[0], o->dim[d]), b = cu_dim(&i->in[1], o->dim[d]);
    return {o->extent[d], a < 0 ? 0 : cu_stride(&i->in[0], (uint32_t)a), b < 0 ? 0 : cu_stride(&i->in[1], (uint32_t)b)};
}

extern "C" int32_t cu_prepare_einsum_plain(struct hd_device *, const struct hd_instr_desc *i, struct hd_kernel *k,
                                           struct hd_error *err)
{
    plain_args x = {};
    if ((i->in[0].dtype == HD_F64) != (i->out[0].dtype == HD_F64))
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "an einsum of %s into %s", hd_dtype_name(i->in[0].dtype),
                         hd_dtype_name(i->out[0].dtype));
    x.a = cu_in_of(&i->in[0]);
    x.b = cu_in_of(&i->in[1]);
    x.c = cu_out_of(i, 0);
    x.count = hd_operand_count(&i->out[0]);
    for (uint32_t d = 0; d < i->out[0].ndim; d++)
        x.keep[x.n_keep++] = label_of(i, &i->out[0], d);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t d = 0; d < i->in[side].ndim; d++) {
            uint8_t id = i->in[side].dim[d];
            if (cu_dim(&i->out[0], id) < 0 && !(side == 1 && cu_dim(&i->in[0], id) >= 0))
                x.sum[x.n_sum++] = label_of(i, &i->in[side], d);
        }
    cu_pack(k, run, &x, sizeof x);
    return HD_OK;
}
