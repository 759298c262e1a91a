/* Gradients of the weights of RMSNorm and LayerNorm: dw = sum of dy (x - mean) r over rows, dc = sum of dy. And with
 * them that of x with the sum behind it (norm.cu): x and dy are read once for both.
 *
 * A group of threads goes through its rows: statistics, then its columns' sums, which stay in registers. The groups of
 * a block are added up in shared memory, the blocks' partial sums by a second kernel. Bytes an element: x and dy once,
 * where a row is no longer than 8192 elements (with dx: 4096); a longer one is done in tiles, each of which wants the
 * statistics of the whole. */
#include "kernels/columns.cuh"
#include "kernels/rows.cuh"

enum { HELD = 2, HELD_DX = 1, BLOCKS = 264 };     /* packs of a row that a thread keeps: registers are short */
enum { SHARED = CU_ROWS_THREADS / 2 * HELD * 8 }; /* what a group of half a block has */
/* All in bf16: small blocks, of which a multiprocessor of 9.0 holds three, and four without means if registers allow;
 * rows that one of them can hold. */
enum { BF16_THREADS = 128, BF16_BLOCKS = 3 * 132, BF16_BLOCKS_PLAIN = 4 * 132 };
enum { BF16_ROW = BF16_THREADS * cu_rows_bf16::K * 8 };
static_assert(BF16_THREADS / 2 * cu_rows_bf16::K * 8 <= SHARED, "a group's sums");

struct dw_args {
    cu_ref x, dy, dw, dc;
    cu_ref w, r, dx; /* of the gradient of x */
    double eps;
    int64_t rows, chunk; /* of a group */
    int32_t h, lanes, adds, tile, blocks, threads;
};

/* The sum over a block's groups of what each thread has, in the order of groups, to `to`. */
template <int V, int K, class C> CU_DEVICE void add_groups(const dw_args &a, C (&v)[K][V], C *shared, C *to, int end)
{
    int groups = blockDim.x / a.lanes, group = threadIdx.x / a.lanes, lane = threadIdx.x % a.lanes;
    for (int g = 0; g < groups; g++) {
        if (g == group)
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int i = 0; i < V; i++) {
                    int at = (k * V + i) * a.lanes + lane;
                    if (g)
                        v[k][i] += shared[at];
                    if (g < groups - 1)
                        shared[at] = v[k][i];
                }
        __syncthreads();
    }
    if (group == groups - 1)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < V; i++)
                if ((k * a.lanes + lane) * V < end)
                    to[(k * a.lanes + lane) * V + i] = v[k][i];
    __syncthreads();
}

/* f(V elements of x, of dy where DY, the place of the first) for all of a row: those of this tile are in registers. */
template <int V, int DY, int K, class C, class R, class F>
CU_DEVICE void whole_row(const cu_raw<C, V> (&x_raw)[K], const R &x_ref, const cu_raw<C, V> (&dy_raw)[K],
                         const R &dy_ref, const dw_args &a, const cu_row &row, const cu_row &tile, F f)
{
    int first = (int)(tile.base - row.base), last = first + a.tile;
    C x[V], dy[V] = {};
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * a.lanes + row.lane) * V < tile.h) {
            x_raw[k].widen(x, x_ref);
            if (DY)
                dy_raw[k].widen(dy, dy_ref);
            f(x, dy, first + (k * a.lanes + row.lane) * V);
        }
    for (int j = row.lane * V; K <= HELD && a.tile < a.h && j < row.h; j += a.lanes * V)
        if (j < first || j >= last) {
            cu_load_n<V>(x, x_ref, row.base + j);
            if (DY)
                cu_load_n<V>(dy, dy_ref, row.base + j);
            f(x, dy, j);
        }
}

/* DX: the gradient of x, too. */
template <int CENTRED, int DX, class T>
static __global__ void __launch_bounds__(T::K > 2 ? (int)BF16_THREADS : (int)CU_ROWS_MOST, T::K > 2 ? 3 : 1)
    dw_kernel(dw_args a, typename T::C *partial)
{
    constexpr int V = T::V, K = T::K;
    typedef typename T::C C;
    typedef typename T::R R;
    R x_ref = cu_ref_as<R>(a.x), dy_ref = cu_ref_as<R>(a.dy), w_ref = cu_ref_as<R>(a.w), r_ref = cu_ref_as<R>(a.r);
    R dx_ref = cu_ref_as<R>(a.dx);
    CU_SHARED(C, shared, [3 * 32]);
    CU_SHARED(C, sums, [SHARED / 8 * V]);
    int groups = blockDim.x / a.lanes, group = threadIdx.x / a.lanes, column = K > HELD ? 0 : blockIdx.y * a.tile;
    int64_t first = ((int64_t)blockIdx.x * groups + group) * a.chunk;
    C dw[K][V] = {}, dc[K][V] = {};
    for (int64_t at = first; at < first + a.chunk; at++) { /* as often in all groups */
        cu_row row = {at * a.h, at < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes}, mine = row;
        cu_raw<C, V> x_raw[K], dy_raw[K], r_raw[K];
        C mean = 0, sum[3] = {};
        mine.base += column;
        mine.h = row.h - column < a.tile ? row.h - column : a.tile;
        cu_fetch_row<V, K, C>(x_raw, x_ref, mine);
        cu_fetch_row<V, K, C>(dy_raw, dy_ref, mine);
        if (DX)
            cu_fetch_row<V, K, C>(r_raw, r_ref, mine);
        if (CENTRED) {
            whole_row<V, 0, K, C>(x_raw, x_ref, dy_raw, dy_ref, a, row, mine, [&](const C *x, const C *, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        whole_row<V, DX, K, C>(x_raw, x_ref, dy_raw, dy_ref, a, row, mine, [&](const C *x, const C *dy, int j) {
            C w[V] = {};
            if (DX)
                cu_load_n<V>(w, w_ref, j);
#pragma unroll
            for (int i = 0; i < V; i++)
                cu_norm_sums(sum, x[i] - mean, w[i] * dy[i]);
        });
        cu_sums(sum, a.lanes, shared);
        cu_norm_row<CENTRED>(sum, (C)a.h, (C)a.eps);
#pragma unroll
        for (int k = 0; k < K; k++) {
            int at_k = (k * a.lanes + row.lane) * V;
            if (at_k >= mine.h)
                continue;
            C x[V], dy[V], dx[V], behind[V];
            x_raw[k].widen(x, x_ref);
            dy_raw[k].widen(dy, dy_ref);
            if (DX) {
                cu_load_n<V>(dx, w_ref, column + at_k);
                r_raw[k].widen(behind, r_ref);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    dx[i] = cu_norm_dx(sum, x[i] - mean, dx[i] * dy[i]);
                    dx[i] = cu_plus(cu_held(dx[i], dx_ref), behind[i]);
                }
                cu_store_n(dx_ref, mine.base + at_k, dx);
            }
#pragma unroll
            for (int i = 0; i < V; i++) {
                dw[k][i] += dy[i] * (x[i] - mean) * sum[0];
                dc[k][i] += dy[i];
            }
        }
    }
    C *to = partial + (int64_t)blockIdx.x * (CENTRED + 1) * a.h + column;
    int end = a.h - column < a.tile ? a.h - column : a.tile;
    add_groups<V>(a, dw, sums, to, end);
    if (CENTRED)
        add_groups<V>(a, dc, sums, to + a.h, end);
}

template <int CENTRED, int DX, class T>
static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const dw_args &a = cu_args<dw_args>(k);
    auto *partial = (typename T::C *)cu_scratch(k->device);
    dim3 grid((unsigned)a.blocks, (unsigned)((a.h + a.tile - 1) / a.tile));
    int64_t stride = (int64_t)(CENTRED + 1) * a.h;
    cudaError_t rc = CU_LAUNCH((dw_kernel<CENTRED, DX, T>), grid, (unsigned)a.threads, 0, stream, a, partial);
    if (rc == cudaSuccess)
        rc = cu_columns_add(partial, a.blocks, stride, a.dw, CENTRED ? &a.dc : NULL, a.h, a.adds, stream);
    return cu_launched(k, rc, err);
}

/* DX: inputs are r, x, w, dy, and output 0 is dx. */
template <int CENTRED, int DX>
static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &i->in[DX], *dy = &i->in[DX ? 3 : 1], *w = &i->out[DX];
    int wide = cu_wide(i), vector = !wide && w->ndim == 1 && w->extent[0] % 8 == 0 && cu_all_aligned(i);
    dw_args a = {};
    if (x->ndim < 1 || w->ndim != 1 || x->extent[x->ndim - 1] != w->extent[0] || w->extent[0] < 1 ||
        w->extent[0] > INT32_MAX / 8)
        return cu_refuse(err, HD_E_INVALID, i, "the weight must be one dim, the last one of the input");
    int64_t n = hd_operand_count(x);
    int32_t rc = cu_want(i, dy, n, DX ? "input 3" : "input 1", err);
    if (!rc && DX)
        rc = cu_want(i, &i->in[0], n, "input 0", err);
    if (!rc && DX)
        rc = cu_want(i, &i->in[2], w->extent[0], "input 2", err);
    if (!rc && DX)
        rc = cu_want(i, &i->out[0], n, "output 0", err);
    if (!rc && CENTRED)
        rc = cu_want(i, w + 1, w->extent[0], DX ? "output 2" : "output 1", err);
    if (rc)
        return rc;
    a.x = cu_ref_of(x);
    a.dy = cu_ref_of(dy);
    a.dw = cu_ref_of(w);
    a.dc = cu_ref_of(&w[CENTRED]);
    a.w = cu_ref_of(&i->in[DX ? 2 : 0]);
    a.r = cu_ref_of(&i->in[0]);
    a.dx = cu_ref_of(&i->out[0]);
    a.eps = i->attrs.eps;
    a.h = (int32_t)w->extent[0];
    a.rows = n / a.h;
    constexpr int HELD_BY = DX ? (int)HELD_DX : (int)HELD;
    int bf16 = vector && a.h <= BF16_ROW && cu_rows_are_bf16(i, DX), held = bf16 ? (int)cu_rows_bf16::K : HELD_BY;
    a.lanes = cu_lanes(a.h, vector ? 8 : 1, held, bf16 ? (int)BF16_THREADS : (int)CU_ROWS_MOST);
    a.tile = a.lanes * held * (vector ? 8 : 1);
    a.tile = a.tile < a.h ? a.tile : a.h;
    a.threads = bf16 ? (int)BF16_THREADS : cu_rows_threads(a.lanes);
    a.adds = cu_accumulates(i);
    int64_t blocks = !bf16 ? (int)BLOCKS : CENTRED ? (int)BF16_BLOCKS : (int)BF16_BLOCKS_PLAIN;
    int64_t groups = a.threads / a.lanes, all = blocks * groups;
    a.chunk = (a.rows + all - 1) / all;
    a.chunk = a.chunk < 4 ? 4 : a.chunk;
    a.blocks = (int32_t)((a.rows + a.chunk * groups - 1) / (a.chunk * groups));
    a.blocks = a.blocks < 1 ? 1 : a.blocks;
    cu_pack(k,
            wide     ? run<CENTRED, DX, cu_rows_instance<HELD_BY, 1, double, cu_ref>>
            : bf16   ? run<CENTRED, DX, cu_rows_bf16>
            : vector ? run<CENTRED, DX, cu_rows_instance<HELD_BY, 8, float, cu_ref>>
                     : run<CENTRED, DX, cu_rows_instance<HELD_BY, 1, float, cu_ref>>,
            &a, sizeof a);
    return cu_scratch_reserve(d, (size_t)a.blocks * (CENTRED + 1) * (size_t)a.h * (wide ? 8 : 4), err);
}

#define NORM_DW(name, centred, dx)                                                                                \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, \
                                         struct hd_error *err)                                                    \
    {                                                                                                             \
        return prepare<centred, dx>(d, i, k, err);                                                                \
    }

NORM_DW(rmsnorm_dw, 0, 0)
NORM_DW(layernorm_dw, 1, 0)
NORM_DW(rmsnorm_grad_add, 0, 1)
NORM_DW(layernorm_grad_add, 1, 1)
