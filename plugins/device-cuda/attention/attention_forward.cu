/* Attention, forward (Dao, arXiv 2307.08691, algorithm 1). A block has 128 queries of one head, a warp 32 of them. Key
 * tile after key tile: scores, row maxima, weights p = 2^(s - m), o = o + p v; where a later tile raises a row's
 * maximum, its sums so far shrink. Values are on their way while scores are computed, the next keys while values are
 * weighed. */
#include "attention/attention_rows.cuh"

enum { ROWS = 128, THREADS = 128, M = 2 }; /* M: 16 rows each, of a warp */

/* A tile of keys or values of the head on its way. */
template <int D, int KEYS>
CU_DEVICE void fetch_keys(const cu_attention &a, const cu_extent *w, cu_chunk *to, const void *from, int k0)
{
    int step = a.h.k * a.h.d;
    int64_t at = ((int64_t)w->b * a.h.t + k0) * step + w->head / a.h.g * a.h.d;
    cu_tile<D>::template fetch<KEYS, THREADS>(to, (const char *)from + 2 * at, 2 * step, w->end - k0, a.h.d / 8);
}

/* Sums of rows lie in shared memory, one element for each thread: registers have no room for them. */
template <class T, int D, int KEYS>
static __global__ void __launch_bounds__(THREADS, 2) forward(const __grid_constant__ cu_attention a)
{
    constexpr int N = KEYS / 8;
    CU_SHARED(cu_extent, shared, [1]);
    CU_SHARED_DYNAMIC(cu_chunk, room);
    cu_chunk *q = room, *k = q + ROWS * D / 8, *v = k + KEYS * D / 8;
    float *total = (float *)(v + KEYS * D / 8) + threadIdx.x;
    const cu_extent *w = cu_share(shared, cu_queries_span(a, ROWS));
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, step = a.h.k * a.h.g * a.h.d;
    const char *from = (const char *)a.q + 2 * (((int64_t)w->b * a.h.s + w->at) * step + w->head * a.h.d);
    float o[M][D / 8][4], most[2 * M], scale = a.scale * CU_LOG2E;

    cu_zero(o);
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        most[r] = -INFINITY;
        total[r * THREADS] = 0;
    }
    cu_tile<D>::template fetch<ROWS, THREADS>(q, from, 2 * step, a.h.s - w->at, a.h.d / 8);
    fetch_keys<D, KEYS>(a, w, k, a.k, w->start / KEYS * KEYS);
    cu_copy_commit();
    for (int k0 = w->start / KEYS * KEYS; k0 < w->end; k0 += KEYS) {
        float s[M][N][4];
        uint32_t p[M][N][2];
        cu_copy_wait<0>();
        __syncthreads();
        fetch_keys<D, KEYS>(a, w, v, a.v, k0);
        cu_copy_commit();
        cu_zero(s);
        cu_rows_by_rows<T, D>(s, q + warp * M * 2 * D, k);
        cu_copy_wait<0>();
        __syncthreads();
        fetch_keys<D, KEYS>(a, w, k, a.k, cu_again(k0) + KEYS);
        cu_copy_commit();
        if (k0 < w->full || k0 + KEYS > w->until)
            cu_hide<CU_KEYS>(s, a.h, w->b, w->at + warp * 16 * M + (lane >> 2), k0 + 2 * (lane & 3));
#pragma unroll
        for (int r = 0; r < 2 * M; r++) {
            float shrink = cu_weigh_row<N>(s[r / 2], r % 2, scale, most[r], total[r * THREADS]);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                o[r / 2][n][r % 2 * 2] *= shrink;
                o[r / 2][n][r % 2 * 2 + 1] *= shrink;
            }
        }
        cu_narrow<T>(p, s);
        cu_by_columns<T, D, M, KEYS>(o, p, v);
    }
    cu_copy_wait<0>();
    cu_finish_rows<T, D, M>(a, w, o, most, total, THREADS);
}

/* ---- which kernel */

template <class T, int D, int KEYS> static cu_attention_kernel kernel(void)
{
    return {forward<T, D, KEYS>, ROWS, THREADS, (ROWS + 2 * KEYS) * D * 2 + 2 * M * THREADS * 4, 0};
}

template <class T> static cu_attention_kernel choose(int32_t d)
{
    return d <= 64 ? kernel<T, 64, 96>() : d <= 96 ? kernel<T, 96, 64>() : kernel<T, 128, 64>();
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const cu_attention_call &call = cu_args<cu_attention_call>(k);
    return cu_attention_run(k, call.kernel[0], call.a, stream, err);
}

extern "C" int32_t cu_attention_forward(const struct cu_attention *a, struct hd_kernel *k, struct hd_error *err)
{
    cu_attention_call call = {};
    call.a = *a;
    call.n = 1;
    if (a->wgmma)
        call.kernel[0] = cu_wgmma_forward(*a);
    else
        call.kernel[0] = a->dtype == HD_BF16 ? choose<cu_bf16>(a->h.d) : choose<cu_f16>(a->h.d);
    cu_pack(k, run, &call, sizeof call);
    return cu_attention_allow(k, call, err);
}
