/* RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450) over the last dim, and
 * their gradients of x. With r = 1/sqrt(variance + eps), xhat = (x - mean) r and a = w dy, dx = r (a - mean(a) - xhat
 * mean(a xhat)); RMSNorm is the case without means. Statistics are sums in fp32 (fp64 where an operand is).
 *
 * Bytes an element: x (and dy) once, y or dx once; w and c stay in the cache. Rows longer than 4096 (gradient: 2048)
 * elements are read again from the cache. The variance is summed about the mean.
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

/* V elements of the sum, written, and left as they were written. x may lie where x0 does. */
template <int V, class C> CU_DEVICE void sum_of(C (&v)[V], const norm_args &a, int64_t at)
{
    cu_load_sum<V>(v, a.x0, a.x1, at);
    cu_store_n(a.x, at, v);
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = cu_held(v[i], a.x.dtype);
}

/* cu_load_row of the sum. A thread reads again only what it wrote itself. */
template <int V, int K, class C> CU_DEVICE void load_sum(C (&held)[K][V], const norm_args &a, const cu_row &row)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if ((k * row.lanes + row.lane) * V < row.h)
            sum_of<V>(held[k], a, row.base + (k * row.lanes + row.lane) * V);
    for (int j = (K * row.lanes + row.lane) * V; j < row.h; j += row.lanes * V) {
        C more[V];
        sum_of<V>(more, a, row.base + j);
    }
}

/* ---- kernels: SUM says whether there is one */

template <int CENTRED, int SUM, int V, class C>
static __global__ void __launch_bounds__(CU_ROWS_THREADS, 3) norm_kernel(norm_args a)
{
    CU_SHARED(C, shared, [32]);
    int group = threadIdx.x / a.lanes, groups = blockDim.x / a.lanes;
    for (int64_t first = (int64_t)blockIdx.x * groups; first < a.rows; first += (int64_t)gridDim.x * groups) {
        cu_row row = {(first + group) * a.h, first + group < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes};
        C held[HELD][V], mean = 0, square = 0;
        if (SUM)
            load_sum<V, HELD>(held, a, row);
        else
            cu_load_row<V, HELD>(held, a.x, row);
        if (CENTRED) {
            cu_each<V, HELD>(held, a.x, row, [&](const C *x, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        cu_each<V, HELD>(held, a.x, row, [&](const C *x, int) {
#pragma unroll
            for (int i = 0; i < V; i++)
                square += (x[i] - mean) * (x[i] - mean);
        });
        C r = cu_rsqrt(cu_sum(square, a.lanes, shared) / (C)a.h + (C)a.eps);
        cu_each<V, HELD>(held, a.x, row, [&](const C *x, int j) {
            C w[V], y[V];
            cu_load_n<V>(w, a.w, j);
#pragma unroll
            for (int i = 0; i < V; i++)
                y[i] = (x[i] - mean) * r * w[i];
            if (CENTRED) {
                cu_load_n<V>(w, a.c, j);
#pragma unroll
                for (int i = 0; i < V; i++)
                    y[i] += w[i];
            }
            cu_put_n<V>(a.y, row.base + j, y, a.adds);
        });
    }
}

template <int CENTRED, int SUM, int V, class C>
static __global__ void __launch_bounds__(CU_ROWS_THREADS, 2) norm_dx_kernel(norm_args a)
{
    CU_SHARED(C, shared, [32]);
    int group = threadIdx.x / a.lanes, groups = blockDim.x / a.lanes;
    for (int64_t first = (int64_t)blockIdx.x * groups; first < a.rows; first += (int64_t)gridDim.x * groups) {
        cu_row row = {(first + group) * a.h, first + group < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes};
        C x_held[HELD_DX][V], dy_held[HELD_DX][V], mean = 0, square = 0, mean_a = 0, mean_ax = 0;
        cu_load_row<V, HELD_DX>(x_held, a.x, row);
        cu_load_row<V, HELD_DX>(dy_held, a.c, row);
        if (CENTRED) {
            cu_each<V, HELD_DX>(x_held, a.x, row, [&](const C *x, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        cu_each2<V, HELD_DX>(x_held, a.x, dy_held, a.c, row, [&](const C *x, const C *dy, int j) {
            C w[V];
            cu_load_n<V>(w, a.w, j);
#pragma unroll
            for (int i = 0; i < V; i++) {
                square += (x[i] - mean) * (x[i] - mean);
                mean_a += w[i] * dy[i];
                mean_ax += w[i] * dy[i] * (x[i] - mean);
            }
        });
        C r = cu_rsqrt(cu_sum(square, a.lanes, shared) / (C)a.h + (C)a.eps);
        mean_a = CENTRED ? cu_sum(mean_a, a.lanes, shared) / (C)a.h : 0;
        mean_ax = cu_sum(mean_ax, a.lanes, shared) * r / (C)a.h;
        cu_each2<V, HELD_DX>(x_held, a.x, dy_held, a.c, row, [&](const C *x, const C *dy, int j) {
            C w[V], dx[V], behind[V];
            cu_load_n<V>(w, a.w, j);
            if (SUM)
                cu_load_n<V>(behind, a.x0, row.base + j);
#pragma unroll
            for (int i = 0; i < V; i++) {
                dx[i] = r * (w[i] * dy[i] - mean_a - (x[i] - mean) * r * mean_ax);
                dx[i] = SUM ? cu_plus(cu_held(dx[i], a.y.dtype), behind[i]) : dx[i];
            }
            cu_put_n<V>(a.y, row.base + j, dx, a.adds);
        });
    }
}

template <int CENTRED, int GRAD, int SUM, int V, class C>
static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const norm_args &a = cu_args<norm_args>(k);
    int threads = cu_rows_threads(a.lanes);
    unsigned blocks = cu_blocks(k->device, a.rows, threads / a.lanes);
    cudaError_t rc;
    if (GRAD)
        rc = CU_LAUNCH((norm_dx_kernel<CENTRED, SUM, V, C>), blocks, threads, 0, stream, a);
    else
        rc = CU_LAUNCH((norm_kernel<CENTRED, SUM, V, C>), blocks, threads, 0, stream, a);
    return cu_launched(k, rc, err);
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

template <int GRAD, int SUM>
static int32_t check(const struct hd_instr_desc *i, struct hd_error *err)
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
    norm_args a = args_of<GRAD, SUM>(i);
    int64_t h = i->in[SUM ? 2 : 1].extent[0];
    int wide = cu_wide(i), vector = !wide && h % 8 == 0 && cu_all_aligned(i);
    a.h = (int32_t)h;
    a.rows = hd_operand_count(&i->out[0]) / h;
    a.lanes = cu_lanes(h, vector ? 8 : 1, GRAD ? HELD_DX : HELD, CU_ROWS_THREADS);
    a.adds = cu_accumulates(i);
    cu_pack(k,
            wide     ? run<CENTRED, GRAD, SUM, 1, double>
            : vector ? run<CENTRED, GRAD, SUM, 8, float>
                     : run<CENTRED, GRAD, SUM, 1, float>,
            &a, sizeof a);
    return HD_OK;
}

#define NORM(name, centred, grad, sum)                                                                                 \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,      \
                                         struct hd_error *err)                                                         \
    {                                                                                                                  \
        (void)d;                                                                                                       \
        return prepare<centred, grad, sum>(i, k, err);                                                                 \
    }

NORM(rmsnorm, 0, 0, 0)
NORM(rmsnorm_dx, 0, 1, 0)
NORM(layernorm, 1, 0, 0)
NORM(layernorm_dx, 1, 1, 0)
NORM(add_rmsnorm, 0, 0, 1)
NORM(add_layernorm, 1, 0, 1)
NORM(rmsnorm_dx_add, 0, 1, 1)
NORM(layernorm_dx_add, 1, 1, 1)
