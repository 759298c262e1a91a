/* RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450) over the last dim, and
 * their gradients of x. With r = 1/sqrt(variance + eps), xhat = (x - mean) r and a = w dy, dx = r (a - mean(a) - xhat
 * mean(a xhat)); RMSNorm is the case without means. Statistics are sums in fp32 (fp64 where an operand is).
 *
 * Bytes an element: x (and dy) once, y or dx once; w and c stay in the cache. Rows longer than 4096 (gradient: 2048)
 * elements, 8192 where all is bf16, are read again from the cache. The variance is summed about the mean.
 *
 * With the sum before a norm, x = x0 + x1 is written and normed as it is written; with the sum behind a gradient, r is
 * added to dx as it would be written: the bits are those of two kernels. */
#include "kernels/rows.cuh"

enum { HELD = 2, HELD_DX = 1 };

struct norm_args {
    cu_ref x, w, c, y; /* dx: c is dy */
    cu_ref x0, x1;     /* of a sum before: its terms; of one behind: x0 is r */
    double eps;
    int64_t rows;
    int32_t h, lanes, adds, reserved;
};

/* ---- sums beside a norm */

/* The sum, written, and as it was written. x may lie where x0 does. A thread reads again only what it wrote. */
template <int V, int K, class C, class R>
CU_DEVICE void load_sum(cu_raw<C, V> (&raw)[K], const norm_args &a, const cu_row &row)
{
    R x = cu_ref_as<R>(a.x), x0 = cu_ref_as<R>(a.x0), x1 = cu_ref_as<R>(a.x1);
    cu_raw<C, V> raw1[K];
    C v[V], v1[V];
    cu_fetch_row<V, K, C>(raw, x0, row);
    cu_fetch_row<V, K, C>(raw1, x1, row);
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h) {
            raw[k].widen(v, x0);
            raw1[k].widen(v1, x1);
#pragma unroll
            for (int i = 0; i < V; i++)
                v[i] += v1[i];
            raw[k].narrow(v, x);
            raw[k].store(x, row.base + (k * row.lanes + row.lane) * V);
        }
    for (int j = (K * row.lanes + row.lane) * V; j < row.h; j += row.lanes * V) {
        cu_load_sum<V>(v, x0, x1, row.base + j);
        cu_store_n(x, row.base + j, v);
    }
}

/* ---- kernels: SUM says whether there is one, T is the instance */

template <int CENTRED, int SUM, class T>
static __global__ void __launch_bounds__(CU_ROWS_THREADS, T::K > 2 || SUM ? 2 : 3) norm_kernel(norm_args a)
{
    constexpr int V = T::V, K = T::K;
    typedef typename T::C C;
    typedef typename T::R R;
    R x_ref = cu_ref_as<R>(a.x), w_ref = cu_ref_as<R>(a.w), c_ref = cu_ref_as<R>(a.c), y_ref = cu_ref_as<R>(a.y);
    CU_SHARED(C, shared, [32]);
    int group = threadIdx.x / a.lanes, groups = blockDim.x / a.lanes;
    for (int64_t first = (int64_t)blockIdx.x * groups; first < a.rows; first += (int64_t)gridDim.x * groups) {
        cu_row row = {(first + group) * a.h, first + group < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes};
        cu_raw<C, V> raw[K];
        C mean = 0, square = 0;
        if (SUM)
            load_sum<V, K, C, R>(raw, a, row);
        else
            cu_fetch_row<V, K, C>(raw, x_ref, row);
        if (CENTRED) {
            cu_each<V, K, C>(raw, x_ref, row, [&](const C *x, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        cu_each<V, K, C>(raw, x_ref, row, [&](const C *x, int) {
#pragma unroll
            for (int i = 0; i < V; i++)
                square += (x[i] - mean) * (x[i] - mean);
        });
        C r = cu_rsqrt(cu_sum(square, a.lanes, shared) / (C)a.h + (C)a.eps);
        cu_each<V, K, C>(raw, x_ref, row, [&](const C *x, int j) {
            C w[V], y[V];
            cu_load_n<V>(w, w_ref, j);
#pragma unroll
            for (int i = 0; i < V; i++)
                y[i] = (x[i] - mean) * r * w[i];
            if (CENTRED) {
                cu_load_n<V>(w, c_ref, j);
#pragma unroll
                for (int i = 0; i < V; i++)
                    y[i] += w[i];
            }
            cu_put_n<V>(y_ref, row.base + j, y, a.adds);
        });
    }
}

template <int CENTRED, int SUM, class T>
static __global__ void __launch_bounds__(CU_ROWS_THREADS, 2) norm_dx_kernel(norm_args a)
{
    constexpr int V = T::V, K = T::K;
    typedef typename T::C C;
    typedef typename T::R R;
    R x_ref = cu_ref_as<R>(a.x), dy_ref = cu_ref_as<R>(a.c), w_ref = cu_ref_as<R>(a.w), y_ref = cu_ref_as<R>(a.y);
    R behind_ref = cu_ref_as<R>(a.x0);
    CU_SHARED(C, shared, [3 * 32]);
    int group = threadIdx.x / a.lanes, groups = blockDim.x / a.lanes;
    for (int64_t first = (int64_t)blockIdx.x * groups; first < a.rows; first += (int64_t)gridDim.x * groups) {
        cu_row row = {(first + group) * a.h, first + group < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes};
        cu_raw<C, V> x_raw[K], dy_raw[K];
        C mean = 0, sum[3] = {};
        cu_fetch_row<V, K, C>(x_raw, x_ref, row);
        cu_fetch_row<V, K, C>(dy_raw, dy_ref, row);
        if (CENTRED) {
            cu_each<V, K, C>(x_raw, x_ref, row, [&](const C *x, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        cu_each2<V, K, C>(x_raw, x_ref, dy_raw, dy_ref, row, [&](const C *x, const C *dy, int j) {
            C w[V];
            cu_load_n<V>(w, w_ref, j);
#pragma unroll
            for (int i = 0; i < V; i++)
                cu_norm_sums(sum, x[i] - mean, w[i] * dy[i]);
        });
        cu_sums(sum, a.lanes, shared);
        cu_norm_row<CENTRED>(sum, (C)a.h, (C)a.eps);
        cu_each2<V, K, C>(x_raw, x_ref, dy_raw, dy_ref, row, [&](const C *x, const C *dy, int j) {
            C w[V], dx[V], behind[V];
            cu_load_n<V>(w, w_ref, j);
            if (SUM)
                cu_load_n<V>(behind, behind_ref, row.base + j);
#pragma unroll
            for (int i = 0; i < V; i++) {
                dx[i] = cu_norm_dx(sum, x[i] - mean, w[i] * dy[i]);
                dx[i] = SUM ? cu_plus(cu_held(dx[i], y_ref), behind[i]) : dx[i];
            }
            cu_put_n<V>(y_ref, row.base + j, dx, a.adds);
        });
    }
}

template <int CENTRED, int GRAD, int SUM, class T>
static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const norm_args &a = cu_args<norm_args>(k);
    int threads = CU_ROWS_THREADS;
    unsigned blocks = cu_blocks(k->device, a.rows, threads / a.lanes);
    if constexpr (GRAD)
        return cu_launched(k, CU_LAUNCH((norm_dx_kernel<CENTRED, SUM, T>), blocks, threads, 0, stream, a), err);
    else
        return cu_launched(k, CU_LAUNCH((norm_kernel<CENTRED, SUM, T>), blocks, threads, 0, stream, a), err);
}

/* Which operand is what. `c` may be absent. */
template <int GRAD, int SUM> static norm_args args_of(const struct hd_instr_desc *i)
{
    const struct hd_operand *x = SUM && !GRAD ? &i->out[0] : &i->in[SUM], *w = &i->in[SUM ? 2 : 1];
    norm_args a = {};
    a.x = cu_ref_of(x);
    a.w = cu_ref_of(w);
    a.c = cu_ref_of(w + 1 < i->in + i->n_in ? w + 1 : w);
    a.y = cu_ref_of(&i->out[i->n_out - 1]);
    a.x0 = cu_ref_of(&i->in[0]);
    a.x1 = cu_ref_of(&i->in[1]);
    a.eps = i->attrs.eps;
    return a;
}

template <int GRAD, int SUM> static int32_t check(const struct hd_instr_desc *i, struct hd_error *err)
{
    const struct hd_operand *x = &i->in[GRAD && SUM], *w = &i->in[SUM ? 2 : 1];
    int64_t n = hd_operand_count(&i->out[0]);
    if (x->ndim < 1 || w->ndim != 1 || x->extent[x->ndim - 1] != w->extent[0] || w->extent[0] < 1 ||
        w->extent[0] > INT32_MAX / 8)
        return cu_refuse(err, HD_E_INVALID, i, "the weight must be one dim, the last one of the input");
    int32_t rc = cu_want(i, &i->in[0], n, "input 0", err);
    if (!rc && SUM)
        rc = cu_want(i, &i->in[1], n, "input 1", err);
    if (!rc && w + 1 < i->in + i->n_in)
        rc = cu_want(i, w + 1, GRAD ? n : w->extent[0], SUM ? "input 3" : "input 2", err);
    return rc || i->n_out < 2 ? rc : cu_want(i, &i->out[1], n, "output 1", err);
}

template <int CENTRED, int GRAD, int SUM>
static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check<GRAD, SUM>(i, err);
    if (rc)
        return rc;
    constexpr int HELD_BY = GRAD ? (int)HELD_DX : (int)HELD;
    norm_args a = args_of<GRAD, SUM>(i);
    int64_t h = i->in[SUM ? 2 : 1].extent[0];
    int wide = cu_wide(i), vector = !wide && h % 8 == 0 && cu_all_aligned(i);
    a.h = (int32_t)h;
    a.rows = hd_operand_count(&i->out[0]) / h;
    int bf16 = vector && cu_rows_are_bf16(i, i->n_out);
    a.lanes = cu_lanes(h, vector ? 8 : 1, bf16 ? (int)cu_rows_bf16::K : HELD_BY, CU_ROWS_THREADS);
    a.adds = cu_accumulates(i);
    cu_pack(k,
            wide     ? run<CENTRED, GRAD, SUM, cu_rows_instance<HELD_BY, 1, double, cu_ref>>
            : bf16   ? run<CENTRED, GRAD, SUM, cu_rows_bf16>
            : vector ? run<CENTRED, GRAD, SUM, cu_rows_instance<HELD_BY, 8, float, cu_ref>>
                     : run<CENTRED, GRAD, SUM, cu_rows_instance<HELD_BY, 1, float, cu_ref>>,
            &a, sizeof a);
    return HD_OK;
}

#define NORM(name, centred, grad, sum)                                                                            \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, \
                                         struct hd_error *err)                                                    \
    {                                                                                                             \
        (void)d;                                                                                                  \
        return prepare<centred, grad, sum>(i, k, err);                                                            \
    }

NORM(rmsnorm, 0, 0, 0)
NORM(rmsnorm_dx, 0, 1, 0)
NORM(layernorm, 1, 0, 0)
NORM(layernorm_dx, 1, 1, 0)
NORM(add_rmsnorm, 0, 0, 1)
NORM(add_layernorm, 1, 0, 1)
NORM(rmsnorm_dx_add, 0, 1, 1)
NORM(layernorm_dx_add, 1, 1, 1)
