/* RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450) over the last dim, and
 * their gradients of x. With r = 1/sqrt(variance + eps), xhat = (x - mean) r and a = w dy, dx = r (a - mean(a) - xhat
 * mean(a xhat)); RMSNorm is the case without means. Statistics are sums in fp32 (fp64 where an operand is).
 *
 * Bytes an element: x (and dy) once, y or dx once; w and c stay in the cache. Rows longer than 4096 (gradient: 2048)
 * elements are read again from the cache. The variance is summed about the mean. */
#include "rows.cuh"

enum { KEPT = 2, KEPT_DX = 1 };

struct norm_args {
    cu_ref x, w, c, y; /* dx: c is dy */
    double eps;
    int64_t rows;
    int32_t h, lanes, adds, reserved;
};

template <int CENTRED, int V, class C>
static __global__ void __launch_bounds__(CU_ROWS_THREADS, 3) norm_kernel(norm_args a)
{
    CU_SHARED(C, shared, [32]);
    int group = threadIdx.x / a.lanes, groups = blockDim.x / a.lanes;
    for (int64_t first = (int64_t)blockIdx.x * groups; first < a.rows; first += (int64_t)gridDim.x * groups) {
        cu_row row = {(first + group) * a.h, first + group < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes};
        C kept[KEPT][V], mean = 0, square = 0;
        cu_keep<V, KEPT>(kept, a.x, row);
        if (CENTRED) {
            cu_each<V, KEPT>(kept, a.x, row, [&](const C *x, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        cu_each<V, KEPT>(kept, a.x, row, [&](const C *x, int) {
#pragma unroll
            for (int i = 0; i < V; i++)
                square += (x[i] - mean) * (x[i] - mean);
        });
        C r = cu_rsqrt(cu_sum(square, a.lanes, shared) / (C)a.h + (C)a.eps);
        cu_each<V, KEPT>(kept, a.x, row, [&](const C *x, int j) {
            C w[V], c[V], y[V];
            cu_load_n<V>(w, a.w, j);
            if (CENTRED)
                cu_load_n<V>(c, a.c, j);
#pragma unroll
            for (int i = 0; i < V; i++)
                y[i] = (x[i] - mean) * r * w[i] + (CENTRED ? c[i] : 0);
            cu_put_n<V>(a.y, row.base + j, y, a.adds);
        });
    }
}

template <int CENTRED, int V, class C>
static __global__ void __launch_bounds__(CU_ROWS_THREADS, 2) norm_dx_kernel(norm_args a)
{
    CU_SHARED(C, shared, [32]);
    int group = threadIdx.x / a.lanes, groups = blockDim.x / a.lanes;
    for (int64_t first = (int64_t)blockIdx.x * groups; first < a.rows; first += (int64_t)gridDim.x * groups) {
        cu_row row = {(first + group) * a.h, first + group < a.rows ? a.h : 0, (int32_t)threadIdx.x % a.lanes, a.lanes};
        C x_kept[KEPT_DX][V], dy_kept[KEPT_DX][V], mean = 0, square = 0, mean_a = 0, mean_ax = 0;
        cu_keep<V, KEPT_DX>(x_kept, a.x, row);
        cu_keep<V, KEPT_DX>(dy_kept, a.c, row);
        if (CENTRED) {
            cu_each<V, KEPT_DX>(x_kept, a.x, row, [&](const C *x, int) {
#pragma unroll
                for (int i = 0; i < V; i++)
                    mean += x[i];
            });
            mean = cu_sum(mean, a.lanes, shared) / (C)a.h;
        }
        cu_each2<V, KEPT_DX>(x_kept, a.x, dy_kept, a.c, row, [&](const C *x, const C *dy, int j) {
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
        cu_each2<V, KEPT_DX>(x_kept, a.x, dy_kept, a.c, row, [&](const C *x, const C *dy, int j) {
            C w[V], dx[V];
            cu_load_n<V>(w, a.w, j);
#pragma unroll
            for (int i = 0; i < V; i++)
                dx[i] = r * (w[i] * dy[i] - mean_a - (x[i] - mean) * r * mean_ax);
            cu_put_n<V>(a.y, row.base + j, dx, a.adds);
        });
    }
}

template <int CENTRED, int GRAD, int V, class C>
static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const norm_args &a = cu_args<norm_args>(k);
    int threads = cu_rows_threads(a.lanes);
    unsigned blocks = cu_blocks(k->device, a.rows, threads / a.lanes);
    cudaError_t rc;
    if (GRAD)
        rc = CU_LAUNCH((norm_dx_kernel<CENTRED, V, C>), blocks, threads, 0, stream, a);
    else
        rc = CU_LAUNCH((norm_kernel<CENTRED, V, C>), blocks, threads, 0, stream, a);
    return cu_launched(k, rc, err);
}

template <int CENTRED, int GRAD>
static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &i->in[0], *w = &i->in[1];
    int64_t n = hd_operand_count(&i->out[0]);
    int wide = cu_wide(i), vector = !wide && w->ndim == 1 && w->extent[0] % 8 == 0 && cu_all_aligned(i);
    norm_args a = {};
    if (x->ndim < 1 || w->ndim != 1 || x->extent[x->ndim - 1] != w->extent[0] || w->extent[0] < 1 ||
        w->extent[0] > INT32_MAX / 8)
        return cu_refuse(err, HD_E_INVALID, i, "the weight must be one dim, the last one of the input");
    int32_t rc = cu_want(i, x, n, "input 0", err);
    if (!rc && i->n_in > 2)
        rc = cu_want(i, &i->in[2], GRAD ? n : w->extent[0], "input 2", err);
    a.x = cu_ref_of(x);
    a.w = cu_ref_of(w);
    a.c = cu_ref_of(i->n_in > 2 ? &i->in[2] : w);
    a.y = cu_ref_of(&i->out[0]);
    a.eps = i->attrs.eps;
    a.h = (int32_t)w->extent[0];
    a.rows = n / a.h;
    a.lanes = cu_lanes(a.h, vector ? 8 : 1, GRAD ? KEPT_DX : KEPT, CU_ROWS_THREADS);
    a.adds = cu_accumulates(i);
    cu_pack(k,
            wide     ? run<CENTRED, GRAD, 1, double>
            : vector ? run<CENTRED, GRAD, 8, float>
                     : run<CENTRED, GRAD, 1, float>,
            &a, sizeof a);
    return rc;
}

#define NORM(name, centred, grad)                                                                                      \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,      \
                                         struct hd_error *err)                                                         \
    {                                                                                                                  \
        (void)d;                                                                                                       \
        return prepare<centred, grad>(i, k, err);                                                                      \
    }

NORM(rmsnorm, 0, 0)
NORM(rmsnorm_dx, 0, 1)
NORM(layernorm, 1, 0)
NORM(layernorm_dx, 1, 1)
