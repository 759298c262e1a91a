/* Attention, backward (Dao, arXiv 2307.08691, algorithm 2), in two kernels, each with sums in registers, so that no sum
 * depends on which block is first:
 *
 *     s = q k'    p = 2^(s - lse)    dp = do v'    ds = p (dp - rowsum(do o))
 *     dv = sum p' do    dk = scale sum ds' q    (by_keys: over queries and over the query heads of a kv head)
 *     dq = scale sum ds k                       (by_queries: over keys) */
#include "attention/attention_rows.cuh"

enum { ROWS = 128, LANES = 8 };

/* ---- rows: lse in powers of two and rowsum(do o), each head's contiguous, zeros behind the last */

template <class T> CU_DEVICE float dot_eight(const T *x, const T *y)
{
    float a[8], b[8], sum = 0;
    cu_read(x, a);
    cu_read(y, b);
#pragma unroll
    for (int e = 0; e < 8; e++)
        sum += a[e] * b[e];
    return sum;
}

/* Eight lanes a row; rows in the order of memory. */
template <class T> static __global__ void __launch_bounds__(256) row_sums(const __grid_constant__ cu_attention a)
{
    int heads = a.h.k * a.h.g, lane = (int)threadIdx.x % LANES;
    int64_t row = ((int64_t)blockIdx.x * 256 + threadIdx.x) / LANES, all = (int64_t)a.h.b * a.s_room * heads;
    int head = (int)(row % heads), i = (int)(row / heads % a.s_room), b = (int)(row / heads / a.s_room);
    bool there = row < all && i < a.h.s;
    int64_t at = ((int64_t)b * a.h.s + i) * heads + head;
    float sum = 0;
    for (int c = lane; there && c < a.h.d / 8; c += LANES)
        sum += dot_eight((const T *)a.o + at * a.h.d + 8 * c, (const T *)a.grad + at * a.h.d + 8 * c);
    for (int step = LANES / 2; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane || row >= all)
        return;
    float *to = a.out_rows + ((int64_t)b * heads + head) * a.s_room + i;
    to[0] = there && a.lse[at] != -INFINITY ? a.lse[at] * CU_LOG2E
                                            : 0; /* a query that sees nothing: all its weights are 0 */
    to[all] = sum;
}

/* ---- dk, dv. A block has 128 keys of one kv head, a warp 16 M of them, as rows of s' and dp'. */

/* Weights and slopes of a tile, rows are keys, columns queries. `row` and `column` are the lane's first. */
template <class T, int M, int N>
CU_DEVICE void key_slopes(uint32_t (&p)[M][N][2], uint32_t (&ds)[M][N][2], const float (&s)[M][N][4],
                          const float (&dp)[M][N][4], const float *lse, const float *delta, float scale)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        float2 l = *(const float2 *)(lse + 8 * n), sum = *(const float2 *)(delta + 8 * n);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = cu_exp2(s[m][n][2 * half] * scale - l.x), y = cu_exp2(s[m][n][2 * half + 1] * scale - l.y);
                p[m][n][half] = cu_pair<T>(x, y);
                ds[m][n][half] = cu_pair<T>(x * (dp[m][n][2 * half] - sum.x), y * (dp[m][n][2 * half + 1] - sum.y));
            }
    }
}

/* A tile of queries of one head on its way: q, do, and their rows. */
template <int D, int TILE, int THREADS>
CU_DEVICE void fetch_queries(const cu_attention &a, cu_chunk *q, cu_chunk *grad, float *rows, int b, int head, int q0)
{
    const cu_heads &h = a.h;
    int step = h.k * h.g * h.d;
    int64_t at = ((int64_t)b * h.s + q0) * step + head * h.d;
    cu_tile<D>::template fetch<TILE, THREADS>(q, (const char *)a.q + 2 * at, 2 * step, h.s - q0, h.d / 8);
    cu_tile<D>::template fetch<TILE, THREADS>(grad, (const char *)a.grad + 2 * at, 2 * step, h.s - q0, h.d / 8);
    cu_fetch_rows<TILE>(a, rows, b, head, q0);
}

/* A tile of keys and values on its way. */
template <int D, int KEYS, int THREADS>
CU_DEVICE void fetch_keys(const cu_attention &a, cu_chunk *k, cu_chunk *v, int b, int kv, int k0)
{
    int step = a.h.k * a.h.d;
    int64_t at = ((int64_t)b * a.h.t + k0) * step + kv * a.h.d;
    cu_tile<D>::template fetch<KEYS, THREADS>(k, (const char *)a.k + 2 * at, 2 * step, a.h.t - k0, a.h.d / 8);
    cu_tile<D>::template fetch<KEYS, THREADS>(v, (const char *)a.v + 2 * at, 2 * step, a.h.t - k0, a.h.d / 8);
}

template <class T, int D, int M, int TILE>
static __global__ void __launch_bounds__(ROWS / M * 2, M) by_keys(const __grid_constant__ cu_attention a)
{
    constexpr int threads = ROWS / M * 2, N = TILE / 8, stage = TILE * D / 8;
    CU_SHARED(cu_extent, shared, [1]);
    CU_SHARED_DYNAMIC(cu_chunk, room);
    cu_chunk *k = room, *v = k + ROWS * D / 8, *q = v + ROWS * D / 8, *grad = q + 2 * stage;
    float *rows = (float *)(grad + 2 * stage);
    const cu_extent *w = cu_share(shared, cu_keys_span(a, ROWS));
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    int q0 = w->start / TILE * TILE, head = 0, on = 0; /* head: of the group */
    float dk[M][D / 8][4], dv[M][D / 8][4], scale = a.scale * CU_LOG2E;

    cu_zero(dk);
    cu_zero(dv);
    if (q0 < w->end) {
        fetch_keys<D, ROWS, threads>(a, k, v, w->b, w->head, w->at);
        fetch_queries<D, TILE, threads>(a, q, grad, rows, w->b, w->head * a.h.g, q0);
    }
    cu_copy_commit();
    while (q0 < w->end) {
        int done = q0 + TILE >= w->end, next = done ? w->start / TILE * TILE : q0 + TILE,
            last = done && head + 1 == a.h.g;
        if (!last)
            fetch_queries<D, TILE, threads>(a, q + (1 - on) * stage, grad + (1 - on) * stage,
                                            rows + (1 - on) * 2 * TILE, w->b, w->head * a.h.g + head + done, next);
        cu_copy_commit();
        cu_copy_wait<1>();
        __syncthreads();
        float s[M][N][4], dp[M][N][4];
        uint32_t p[M][N][2], ds[M][N][2];
        const float *row = rows + on * 2 * TILE + 2 * (lane & 3);
        cu_zero(s);
        cu_zero(dp);
        cu_rows_by_rows<T, D>(s, k + warp * M * 2 * D, q + on * stage);
        cu_rows_by_rows<T, D>(dp, v + warp * M * 2 * D, grad + on * stage);
        if (q0 < w->full || q0 + TILE > w->until)
            cu_hide<CU_QUERIES>(s, a.h, w->b, w->at + warp * 16 * M + (lane >> 2), q0 + 2 * (lane & 3));
        key_slopes<T, M, N>(p, ds, s, dp, row, row + TILE, scale);
        cu_by_columns<T, D, M, TILE>(dv, p, grad + on * stage);
        cu_by_columns<T, D, M, TILE>(dk, ds, q + on * stage);
        __syncthreads();
        q0 = last ? w->end : next;
        head += done;
        on ^= 1;
    }
    cu_finish_keys<T, D, M>(a, w, dk, dv);
}

/* ---- dq. A block has 128 queries of one head, a warp 32 of them. */

template <class T, int D, int KEYS>
static __global__ void __launch_bounds__(ROWS, 2) by_queries(const __grid_constant__ cu_attention a)
{
    constexpr int threads = ROWS, M = 2, N = KEYS / 8, stage = KEYS * D / 8;
    CU_SHARED(cu_extent, shared, [1]);
    CU_SHARED_DYNAMIC(cu_chunk, room);
    cu_chunk *q = room, *grad = q + ROWS * D / 8, *k = grad + ROWS * D / 8, *v = k + 2 * stage;
    float *rows = (float *)(v + 2 * stage);
    const cu_extent *w = cu_share(shared, cu_queries_span(a, ROWS));
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, step = a.h.k * a.h.g * a.h.d, on = 0;
    int64_t from = 2 * (((int64_t)w->b * a.h.s + w->at) * step + w->head * a.h.d);
    float dq[M][D / 8][4], scale = a.scale * CU_LOG2E;

    cu_zero(dq);
    cu_tile<D>::template fetch<ROWS, threads>(q, (const char *)a.q + from, 2 * step, a.h.s - w->at, a.h.d / 8);
    cu_tile<D>::template fetch<ROWS, threads>(grad, (const char *)a.grad + from, 2 * step, a.h.s - w->at, a.h.d / 8);
    cu_fetch_rows<ROWS>(a, rows, w->b, w->head, w->at);
    int k0 = w->start < w->end ? w->start / KEYS * KEYS : w->end; /* a window may leave nothing to be seen */
    if (k0 < w->end)
        fetch_keys<D, KEYS, threads>(a, k, v, w->b, w->head / a.h.g, k0);
    cu_copy_commit();
    for (; k0 < w->end; k0 += KEYS, on ^= 1) {
        float s[M][N][4], dp[M][N][4];
        uint32_t ds[M][N][2];
        const float *row = rows + warp * 16 * M + (lane >> 2);
        if (k0 + KEYS < w->end)
            fetch_keys<D, KEYS, threads>(a, k + (1 - on) * stage, v + (1 - on) * stage, w->b, w->head / a.h.g,
                                         k0 + KEYS);
        cu_copy_commit();
        cu_copy_wait<1>();
        __syncthreads();
        cu_zero(s);
        cu_zero(dp);
        cu_rows_by_rows<T, D>(s, q + warp * M * 2 * D, k + on * stage);
        cu_rows_by_rows<T, D>(dp, grad + warp * M * 2 * D, v + on * stage);
        if (k0 < w->full || k0 + KEYS > w->until)
            cu_hide<CU_KEYS>(s, a.h, w->b, w->at + warp * 16 * M + (lane >> 2), k0 + 2 * (lane & 3));
        cu_weigh_queries(s, row, scale);
        cu_query_slopes<T>(ds, s, dp, row + ROWS);
        cu_by_columns<T, D, M, KEYS>(dq, ds, k + on * stage);
        __syncthreads();
    }
    cu_copy_wait<0>(); /* of queries that see no key */
    cu_finish_queries<T, D, M>(a, w, dq);
}

/* ---- which kernels */

template <class T, int D, int M, int TILE, int KEYS> static void choose_sizes(cu_attention_call &call)
{
    call.kernel[0] = {by_keys<T, D, M, TILE>, ROWS, ROWS / M * 2, (2 * ROWS + 4 * TILE) * D * 2 + 4 * TILE * 4, 1};
    call.kernel[1] = {by_queries<T, D, KEYS>, ROWS, ROWS, (2 * ROWS + 4 * KEYS) * D * 2 + 2 * ROWS * 4, 0};
}

template <class T> static void choose(cu_attention_call &call)
{
    if (call.a.h.d <= 64)
        choose_sizes<T, 64, 2, 32, 48>(call);
    else if (call.a.h.d <= 96)
        choose_sizes<T, 96, 1, 64, 32>(call);
    else
        choose_sizes<T, 128, 1, 64, 32>(call);
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const cu_attention_call &call = cu_args<cu_attention_call>(k);
    cu_attention a = call.a;
    int64_t rows = (int64_t)a.h.b * a.s_room * a.h.k * a.h.g;
    unsigned blocks = (unsigned)((rows * LANES + 255) / 256);
    auto sums = a.dtype == HD_BF16 ? row_sums<cu_bf16> : row_sums<cu_f16>;
    a.rows = a.out_rows = (float *)cu_scratch(k->device);
    int32_t rc = cu_launched(k, CU_LAUNCH(sums, blocks, 256, 0, stream, a), err);
    for (int32_t n = 0; n < call.n && rc == HD_OK; n++)
        rc = cu_attention_run(k, call.kernel[n], a, stream, err);
    return rc;
}

extern "C" int32_t cu_attention_backward(const struct cu_attention *a, struct hd_kernel *k, struct hd_error *err)
{
    cu_attention_call call = {};
    call.a = *a;
    call.a.s_room = (a->h.s + ROWS - 1) / ROWS * ROWS;
    call.n = 2;
    if (a->wgmma)
        cu_wgmma_gradient(*a, call.kernel);
    else if (a->dtype == HD_BF16)
        choose<cu_bf16>(call);
    else
        choose<cu_f16>(call);
    cu_pack(k, run, &call, sizeof call);
    int32_t rc = cu_attention_allow(k, call, err);
    return rc ? rc
              : cu_scratch_reserve(
                    k->device, 2 * sizeof(float) * (size_t)a->h.b * (size_t)call.a.s_room * (size_t)(a->h.k * a->h.g),
                    err);
}
