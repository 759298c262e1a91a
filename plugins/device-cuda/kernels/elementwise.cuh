/* A map over elements, from a function of one index; elementwise.cu shows its use. */
#ifndef HD_DEVICE_CUDA_KERNELS_ELEMENTWISE_CUH
#define HD_DEVICE_CUDA_KERNELS_ELEMENTWISE_CUH

#include "kernels/operands.cuh"

enum { CU_MAP_IN = 3, CU_MAP_OUT = 2, CU_MAP_THREADS = 256 };

struct cu_map {
    struct cu_ref in[CU_MAP_IN], out[CU_MAP_OUT];
    int64_t n, vectors; /* elements; how many eights of them, from the first on, may be read at once */
    double scale;       /* attrs.scale, for functions that take a constant */
    int32_t adds;
};

/* F::at(x, y, scale) where there is one, else F::at(x, y). */
template <class F, class C> CU_DEVICE auto cu_map_call(const C *x, C *y, C scale, int) -> decltype(F::at(x, y, scale))
{
    F::at(x, y, scale);
}

template <class F, class C> CU_DEVICE void cu_map_call(const C *x, C *y, C, long)
{
    F::at(x, y);
}

template <class F, int V, class C> CU_DEVICE void cu_map_at(const cu_map &a, int64_t i)
{
    cu_raw<C, V> in[F::IN], old[F::OUT];
    C x[F::IN][V], y[F::OUT][V];
#pragma unroll
    for (int k = 0; k < F::IN; k++)
        in[k].fetch(a.in[k], i);
    if (a.adds)
#pragma unroll
        for (int k = 0; k < F::OUT; k++)
            old[k].fetch(a.out[k], i);
#pragma unroll
    for (int k = 0; k < F::IN; k++)
        in[k].widen(x[k], a.in[k]);
#pragma unroll
    for (int j = 0; j < V; j++) {
        C from[F::IN], to[F::OUT];
#pragma unroll
        for (int k = 0; k < F::IN; k++)
            from[k] = x[k][j];
        cu_map_call<F>(from, to, (C)a.scale, 0);
#pragma unroll
        for (int k = 0; k < F::OUT; k++)
            y[k][j] = to[k];
    }
#pragma unroll
    for (int k = 0; k < F::OUT; k++) {
        if (a.adds) {
            C before[V];
            old[k].widen(before, a.out[k]);
#pragma unroll
            for (int j = 0; j < V; j++)
                y[k][j] += before[j];
        }
        cu_store_n(a.out[k], i, y[k]);
    }
}

template <class F, class C> static __global__ void __launch_bounds__(CU_MAP_THREADS, 4) cu_map_kernel(cu_map a)
{
    int64_t first = cu_thread(), step = cu_threads();
    for (int64_t i = first; i < a.vectors; i += step)
        cu_map_at<F, cu_width<C>::most, C>(a, i * cu_width<C>::most);
    for (int64_t i = a.vectors * cu_width<C>::most + first; i < a.n; i += step)
        cu_map_at<F, 1, C>(a, i);
}

template <class F, class C> static int32_t cu_map_run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const cu_map &a = cu_args<cu_map>(k);
    unsigned blocks = cu_blocks(k->device, a.vectors + a.n - a.vectors * 8, CU_MAP_THREADS);
    return cu_launched(k, CU_LAUNCH((cu_map_kernel<F, C>), blocks, CU_MAP_THREADS, 0, stream, a), err);
}

template <class F>
static int32_t cu_map_prepare(const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    cu_map a = {};
    int32_t rc = cu_same(i, err);
    for (int x = 0; x < F::IN; x++)
        a.in[x] = cu_ref_of(&i->in[x]);
    for (int y = 0; y < F::OUT; y++)
        a.out[y] = cu_ref_of(&i->out[y]);
    a.n = hd_operand_count(&i->out[0]);
    a.vectors = cu_vectors(i, a.n);
    a.scale = i->attrs.scale;
    a.adds = cu_accumulates(i);
    cu_pack(k, cu_wide(i) ? cu_map_run<F, double> : cu_map_run<F, float>, &a, sizeof a);
    return rc;
}

#define CU_MAP(name)                                                                                              \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, \
                                         struct hd_error *err)                                                    \
    {                                                                                                             \
        (void)d;                                                                                                  \
        return cu_map_prepare<name>(i, k, err);                                                                   \
    }

#endif
