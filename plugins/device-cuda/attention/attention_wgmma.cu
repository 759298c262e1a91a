/* Attention by products of warpgroups, for GPUs of compute capability 9.0: the passes of attention_forward.cu and
 * attention_backward.cu, for head sizes of up to 64, and of 97 to 128. A warpgroup has 64 rows, a warp 16 of them, so
 * what is done with rows is the same (attention_rows.cuh).
 *
 * Forward is FlashAttention-3's with products and weights of one warpgroup overlapped (Shah et al., arXiv 2407.08608,
 * algorithm 2): scores of the next tile are under way with the values of the last, whose sum goes on while the weights
 * of the next are made. Tiles come by cp.async, a whole turn ahead. */
#include "attention/attention_rows.cuh"
#include "kernels/wgmma.cuh"

enum { TILE = 64 }; /* queries, or keys, that a step of a gradient takes in */

#ifdef CU_HAS_WGMMA

/* A tile of rows of one head on its way. `heads`: of a token. */
template <int D, int ROWS, int THREADS>
CU_DEVICE void fetch(const cu_attention &a, cu_chunk *to, const void *from, int heads, int64_t token, int head,
                     int rows)
{
    int step = heads * a.h.d;
    cu_fetch_panels<D, ROWS, THREADS>(to, (const char *)from + 2 * (token * step + head * a.h.d), 2 * step, rows,
                                      a.h.d / 8);
}

/* This thread's copies are there for products, all threads' with it. */
template <int LEFT> CU_DEVICE void arrive(void)
{
    cu_copy_wait<LEFT>();
    cu_fence_async();
    __syncthreads();
}

CU_DEVICE int warpgroup(void)
{
    return (int)threadIdx.x / CU_WARPGROUP;
}

/* The lane's first row among the block's, and its first column. */
CU_DEVICE int own_row(void)
{
    return (int)threadIdx.x / 32 * 16 + ((int)threadIdx.x & 31) / 4;
}

CU_DEVICE int own_column(void)
{
    return 2 * ((int)threadIdx.x & 3);
}

/* Scores of a tile from k0 on, once they are there, become weights. */
template <int KEYS>
CU_DEVICE void weigh(const cu_attention &a, const cu_extent *w, float (&s)[1][KEYS / 8][4], float (&most)[2],
                     float (&total)[2], float (&shrink)[2], int k0)
{
    cu_hold(s[0]);
    if (k0 < w->full || k0 + KEYS > w->until)
        cu_hide<CU_KEYS>(s, a.h, w->b, w->at + own_row(), k0 + own_column());
#pragma unroll
    for (int r = 0; r < 2; r++)
        shrink[r] = cu_weigh_row<KEYS / 8>(s[0], r, a.scale * CU_LOG2E, most[r], total[r]);
}

template <class T, int D, int ROWS, int KEYS>
CU_DEVICE void go_forward(const cu_attention &a, cu_chunk *room, const cu_extent *w, float *settled)
{
    constexpr int THREADS = 2 * ROWS, stage = KEYS * D / 8;
    cu_chunk *q = room, *k = q + ROWS * D / 8, *v = k + 2 * stage, *own = q + warpgroup() * CU_PANEL * 8;
    int64_t keys = (int64_t)w->b * a.h.t;
    int k0 = w->start / KEYS * KEYS, kv = w->head / a.h.g, on = 0;
    float o[1][D / 8][4], s[1][KEYS / 8][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, shrink[2];
    uint32_t p[1][KEYS / 8][2];

    cu_zero(o);
    fetch<D, ROWS, THREADS>(a, q, a.q, a.h.k * a.h.g, (int64_t)w->b * a.h.s + w->at, w->head, a.h.s - w->at);
    fetch<D, KEYS, THREADS>(a, k, a.k, a.h.k, keys + k0, kv, w->end - k0);
    cu_copy_commit();
    fetch<D, KEYS, THREADS>(a, v, a.v, a.h.k, keys + k0, kv, w->end - k0);
    fetch<D, KEYS, THREADS>(a, k + stage, a.k, a.h.k, keys + k0 + KEYS, kv, w->end - k0 - KEYS);
    cu_copy_commit();
    arrive<1>();
    if (k0 < w->end) {
        cu_hold(s[0]);
        cu_wgmma_begin();
        cu_wgmma_rows<T, D, ROWS, KEYS>(s[0], own, k);
        cu_wgmma_commit();
        cu_wgmma_wait<0>();
        weigh<KEYS>(a, w, s, most, total, shrink, k0);
        cu_narrow<T>(p, s);
    }
    for (k0 += KEYS; k0 < w->end; k0 += KEYS) {
        int last = on;
        on ^= 1;
        arrive<0>(); /* all are done with the last tile's keys, and with the values of the one before */
        fetch<D, KEYS, THREADS>(a, v + on * stage, a.v, a.h.k, keys + k0, kv, w->end - k0);
        fetch<D, KEYS, THREADS>(a, k + last * stage, a.k, a.h.k, keys + k0 + KEYS, kv, w->end - k0 - KEYS);
        cu_copy_commit();
        cu_hold(s[0]);
        cu_hold(o[0]);
        cu_hold(p[0]);
        cu_wgmma_begin();
        cu_wgmma_rows<T, D, ROWS, KEYS>(s[0], own, k + on * stage);
        cu_wgmma_commit();
        cu_wgmma_columns<T, D, KEYS, KEYS>(o[0], p[0], v + last * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<1>();
        weigh<KEYS>(a, w, s, most, total, shrink, k0);
        cu_wgmma_before_wait(settled, total[0] + total[1]);
        cu_wgmma_wait<0>();
        cu_hold(o[0]);
        cu_hold(p[0]);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                o[0][n][c] *= shrink[c / 2];
        cu_narrow<T>(p, s);
    }
    arrive<0>();
    if (w->start < w->end) {
        cu_hold(o[0]);
        cu_hold(p[0]);
        cu_wgmma_begin();
        cu_wgmma_columns<T, D, KEYS, KEYS>(o[0], p[0], v + on * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<0>();
        cu_hold(o[0]);
    }
    cu_finish_rows<T, D, 1>(a, w, o, most, total, 1);
}

/* Scores become weights: x = 2^(s - lse). */
template <class T, int N>
CU_DEVICE void weigh_keys(uint32_t (&p)[1][N][2], float (&s)[1][N][4], const float *lse, float scale)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        float2 l = *(const float2 *)(lse + 8 * n);
#pragma unroll
        for (int c = 0; c < 4; c++)
            s[0][n][c] = cu_exp2(s[0][n][c] * scale - (c % 2 ? l.y : l.x));
    }
    cu_narrow<T>(p, s);
}

/* And with what came of the gradient slopes: x (dp - rowsum(do o)). Rows are keys. */
template <class T, int N>
CU_DEVICE void slope_keys(uint32_t (&ds)[1][N][2], float (&s)[1][N][4], const float (&dp)[1][N][4], const float *delta)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        float2 sum = *(const float2 *)(delta + 8 * n);
#pragma unroll
        for (int c = 0; c < 4; c++)
            s[0][n][c] *= dp[0][n][c] - (c % 2 ? sum.y : sum.x);
    }
    cu_narrow<T>(ds, s);
}

/* A block has 128 keys; per query head of the group, tile after tile: dv += p' do goes on while slopes are made. */
template <class T, int D, int ROWS>
CU_DEVICE void go_by_keys(const cu_attention &a, cu_chunk *room, const cu_extent *w, float *)
{
    constexpr int THREADS = 2 * ROWS, N = TILE / 8, stage = TILE * D / 8;
    cu_chunk *k = room, *v = k + ROWS * D / 8, *q = v + ROWS * D / 8, *grad = q + 2 * stage;
    float *rows = (float *)(grad + 2 * stage);
    int own = warpgroup() * CU_PANEL * 8, heads = a.h.k * a.h.g;
    int start = w->start / TILE * TILE, q0 = start, head = w->head * a.h.g, end = head + a.h.g, on = 0;
    int64_t queries = (int64_t)w->b * a.h.s, keys = (int64_t)w->b * a.h.t;
    float dk[1][D / 8][4], dv[1][D / 8][4], scale = a.scale * CU_LOG2E;

    cu_zero(dk);
    cu_zero(dv);
    auto fetch_queries = [&](int stage_on) {
        fetch<D, TILE, THREADS>(a, q + stage_on * stage, a.q, heads, queries + q0, head, a.h.s - q0);
        fetch<D, TILE, THREADS>(a, grad + stage_on * stage, a.grad, heads, queries + q0, head, a.h.s - q0);
        cu_fetch_rows<TILE>(a, rows + stage_on * 2 * TILE, w->b, head, q0);
    };
    if (q0 >= w->end)
        head = end;
    if (head < end) {
        fetch<D, ROWS, THREADS>(a, k, a.k, a.h.k, keys + w->at, w->head, a.h.t - w->at);
        fetch<D, ROWS, THREADS>(a, v, a.v, a.h.k, keys + w->at, w->head, a.h.t - w->at);
        fetch_queries(0);
    }
    cu_copy_commit();
    while (head < end) {
        int now = q0;
        q0 += TILE;
        if (q0 >= w->end) {
            q0 = start;
            head++;
        }
        if (head < end)
            fetch_queries(1 - on);
        cu_copy_commit();
        arrive<1>();
        float s[1][N][4], dp[1][N][4];
        uint32_t p[1][N][2], ds[1][N][2];
        const float *row = rows + on * 2 * TILE + own_column();
        cu_hold(s[0]);
        cu_hold(dp[0]);
        cu_wgmma_begin();
        cu_wgmma_rows<T, D, ROWS, TILE>(s[0], k + own, q + on * stage);
        cu_wgmma_commit();
        cu_wgmma_rows<T, D, ROWS, TILE>(dp[0], v + own, grad + on * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<1>();
        cu_hold(s[0]);
        if (now < w->full || now + TILE > w->until)
            cu_hide<CU_QUERIES>(s, a.h, w->b, w->at + own_row(), now + own_column());
        weigh_keys<T>(p, s, row, scale);
        cu_hold(dv[0]);
        cu_hold(p[0]);
        cu_wgmma_begin();
        cu_wgmma_columns<T, D, TILE, TILE>(dv[0], p[0], grad + on * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<1>();
        cu_hold(dp[0]);
        slope_keys<T>(ds, s, dp, row + TILE);
        cu_hold(dk[0]);
        cu_hold(ds[0]);
        cu_wgmma_begin();
        cu_wgmma_columns<T, D, TILE, TILE>(dk[0], ds[0], q + on * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<0>();
        cu_hold(dk[0]);
        cu_hold(dv[0]);
        cu_hold(p[0]);
        cu_hold(ds[0]);
        __syncthreads();
        on ^= 1;
    }
    cu_finish_keys<T, D, 1>(a, w, dk, dv);
}

/* A block has 128 queries. */
template <class T, int D, int ROWS>
CU_DEVICE void go_by_queries(const cu_attention &a, cu_chunk *room, const cu_extent *w, float *settled)
{
    constexpr int THREADS = 2 * ROWS, N = TILE / 8, stage = TILE * D / 8;
    cu_chunk *q = room, *grad = q + ROWS * D / 8, *k = grad + ROWS * D / 8, *v = k + 2 * stage;
    float *rows = (float *)(v + 2 * stage);
    int own = warpgroup() * CU_PANEL * 8, heads = a.h.k * a.h.g, kv = w->head / a.h.g, on = 0;
    int k0 = w->start < w->end ? w->start / TILE * TILE : w->end; /* a window may leave nothing to be seen */
    int64_t queries = (int64_t)w->b * a.h.s + w->at, keys = (int64_t)w->b * a.h.t;
    float dq[1][D / 8][4], scale = a.scale * CU_LOG2E;

    cu_zero(dq);
    auto fetch_keys = [&](int at, int stage_on) {
        fetch<D, TILE, THREADS>(a, k + stage_on * stage, a.k, a.h.k, keys + at, kv, a.h.t - at);
        fetch<D, TILE, THREADS>(a, v + stage_on * stage, a.v, a.h.k, keys + at, kv, a.h.t - at);
    };
    fetch<D, ROWS, THREADS>(a, q, a.q, heads, queries, w->head, a.h.s - w->at);
    fetch<D, ROWS, THREADS>(a, grad, a.grad, heads, queries, w->head, a.h.s - w->at);
    cu_fetch_rows<ROWS>(a, rows, w->b, w->head, w->at);
    if (k0 < w->end)
        fetch_keys(k0, 0);
    cu_copy_commit();
    for (; k0 < w->end; k0 += TILE, on ^= 1) {
        float s[1][N][4], dp[1][N][4];
        uint32_t ds[1][N][2];
        const float *row = rows + own_row();
        if (k0 + TILE < w->end)
            fetch_keys(k0 + TILE, 1 - on);
        cu_copy_commit();
        arrive<1>();
        cu_hold(s[0]);
        cu_hold(dp[0]);
        cu_wgmma_begin();
        cu_wgmma_rows<T, D, ROWS, TILE>(s[0], q + own, k + on * stage);
        cu_wgmma_commit();
        cu_wgmma_rows<T, D, ROWS, TILE>(dp[0], grad + own, v + on * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<1>();
        cu_hold(s[0]);
        if (k0 < w->full || k0 + TILE > w->until)
            cu_hide<CU_KEYS>(s, a.h, w->b, w->at + own_row(), k0 + own_column());
        cu_wgmma_before_wait(settled, cu_weigh_queries(s, row, scale));
        cu_wgmma_wait<0>();
        cu_hold(dp[0]);
        cu_query_slopes<T>(ds, s, dp, row + ROWS);
        cu_hold(dq[0]);
        cu_hold(ds[0]);
        cu_wgmma_begin();
        cu_wgmma_columns<T, D, TILE, TILE>(dq[0], ds[0], k + on * stage);
        cu_wgmma_commit();
        cu_wgmma_wait<0>();
        cu_hold(dq[0]);
        cu_hold(ds[0]);
        __syncthreads();
    }
    cu_copy_wait<0>(); /* of queries that see no key */
    cu_finish_queries<T, D, 1>(a, w, dq);
}

#endif

/* ---- kernels: empty where the architecture has no such products */

#ifdef CU_HAS_WGMMA
#define CU_BODY(span, go)                                 \
    CU_SHARED(cu_extent, shared, [1]);                    \
    CU_SHARED(float, settled, [2 * ROWS]);                \
    CU_SHARED_DYNAMIC(cu_chunk, room);                    \
    const cu_extent *w = cu_share(shared, span(a, ROWS)); \
    go(a, cu_panels(room), w, settled)
#else
#define CU_BODY(span, go) (void)a
#endif

template <class T, int D, int ROWS, int KEYS>
static __global__ void __launch_bounds__(2 * ROWS, 1) wgmma_forward(const __grid_constant__ cu_attention a)
{
    CU_BODY(cu_queries_span, (go_forward<T, D, ROWS, KEYS>));
}

template <class T, int D, int ROWS>
static __global__ void __launch_bounds__(2 * ROWS, 1) wgmma_by_keys(const __grid_constant__ cu_attention a)
{
    CU_BODY(cu_keys_span, (go_by_keys<T, D, ROWS>));
}

template <class T, int D, int ROWS>
static __global__ void __launch_bounds__(2 * ROWS, 1) wgmma_by_queries(const __grid_constant__ cu_attention a)
{
    CU_BODY(cu_queries_span, (go_by_queries<T, D, ROWS>));
}

/* ---- which kernel */

template <class T, int D, int ROWS, int KEYS> static cu_attention_kernel forward_kernel(void)
{
    return {wgmma_forward<T, D, ROWS, KEYS>, ROWS, 2 * ROWS, (ROWS + 4 * KEYS) * D * 2 + CU_PANEL_ALIGN, 0};
}

template <class T, int D, int ROWS> static void gradient_kernels(cu_attention_kernel (&kernel)[2])
{
    const int32_t tiles = (2 * ROWS + 4 * TILE) * D * 2 + CU_PANEL_ALIGN;
    kernel[0] = {wgmma_by_keys<T, D, ROWS>, ROWS, 2 * ROWS, tiles + 4 * TILE * 4, 1};
    kernel[1] = {wgmma_by_queries<T, D, ROWS>, ROWS, 2 * ROWS, tiles + 2 * ROWS * 4, 0};
}

template <class T> static cu_attention_kernel choose_forward(int32_t d)
{
    return d <= 64 ? forward_kernel<T, 64, 192, 96>() : forward_kernel<T, 128, 128, 128>();
}

template <class T> static void choose_gradient(cu_attention_kernel (&kernel)[2], int32_t d)
{
    if (d <= 64)
        gradient_kernels<T, 64, 128>(kernel);
    else
        gradient_kernels<T, 128, 128>(kernel);
}

cu_attention_kernel cu_wgmma_forward(const cu_attention &a)
{
    return a.dtype == HD_BF16 ? choose_forward<cu_bf16>(a.h.d) : choose_forward<cu_f16>(a.h.d);
}

void cu_wgmma_gradient(const cu_attention &a, cu_attention_kernel (&kernel)[2])
{
    if (a.dtype == HD_BF16)
        choose_gradient<cu_bf16>(kernel, a.h.d);
    else
        choose_gradient<cu_f16>(kernel, a.h.d);
}
