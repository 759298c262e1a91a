/* A bias over some dims of x, and its gradient: the sum of dy over the other dims.
 *
 * With a bias of the last dims, x is [rows, width]. Bytes an element: bias x and y once; bias_dw dy once, by blocks
 * that have 32 threads side by side and 8 on top of one another. With one of other dims, element by element (bias), or
 * a warp an output (bias_dw): models do not ask for that. */
#include "kernels/columns.cuh"

/* BLOCKS: four for each multiprocessor of 9.0, which are to fit at once. */
enum { THREADS = 256, WIDE = 32, DEEP = THREADS / WIDE, BLOCKS = 4 * 132, UNROLL = 4 };

/* Element i of x is element sum of (i / below[d] % extent[d]) stride[d] of w; stride 0 where w lacks the dim. */
struct subset {
    int64_t extent[HD_MAX_DIMS], stride[HD_MAX_DIMS];
    int32_t ndim, suffix;
};

struct bias_args {
    cu_ref x, w, y; /* bias_dw: x is dy, y is dw */
    int64_t n, vectors, width, rows, chunk;
    subset map;
    int32_t adds, chunks;
};

CU_DEVICE int64_t subset_index(const subset &s, int64_t i)
{
    int64_t at = 0;
    for (int d = s.ndim - 1; d >= 0; d--) {
        int64_t above = i / s.extent[d];
        at += (i - above * s.extent[d]) * s.stride[d];
        i = above;
    }
    return at;
}

/* ---- bias */

template <int V, class C> CU_DEVICE void bias_at(const bias_args &a, int64_t i)
{
    cu_raw<C, V> raw;
    C x[V], w[V];
    raw.fetch(a.x, i);
    if (!a.map.suffix)
#pragma unroll
        for (int j = 0; j < V; j++)
            w[j] = cu_load<C>(a.w, subset_index(a.map, i + j));
    else
        cu_load_n<V>(w, a.w, a.n <= INT32_MAX ? (int64_t)((uint32_t)i % (uint32_t)a.width) : i % a.width);
    raw.widen(x, a.x);
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] += w[j];
    cu_put_n<V>(a.y, i, x, a.adds);
}

template <class C> static __global__ void __launch_bounds__(THREADS) bias_kernel(bias_args a)
{
    int64_t first = cu_thread(), step = cu_threads();
    for (int64_t i = first; i < a.vectors; i += step)
        bias_at<cu_width<C>::most, C>(a, i * cu_width<C>::most);
    for (int64_t i = a.vectors * cu_width<C>::most + first; i < a.n; i += step)
        bias_at<1, C>(a, i);
}

template <class C> static int32_t run_bias(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const bias_args &a = cu_args<bias_args>(k);
    unsigned blocks = cu_blocks(k->device, a.vectors + a.n - a.vectors * 8, THREADS);
    return cu_launched(k, CU_LAUNCH((bias_kernel<C>), blocks, THREADS, 0, stream, a), err);
}

/* The dims of w are some of x's. */
static int32_t map_of(const struct hd_instr_desc *i, const struct hd_operand *x, const struct hd_operand *w, subset *s,
                      struct hd_error *err)
{
    for (uint32_t d = 0; d < w->ndim; d++) {
        int32_t at = cu_dim(x, w->dim[d]);
        if (at < 0 || x->extent[at] != w->extent[d])
            return cu_refuse(err, HD_E_INVALID, i, "dim id %u of the bias is not in the input, or differs", w->dim[d]);
    }
    s->ndim = (int32_t)x->ndim;
    s->suffix = w->ndim <= x->ndim;
    for (uint32_t d = 0; d < x->ndim; d++) {
        int32_t at = cu_dim(w, x->dim[d]);
        s->extent[d] = x->extent[d];
        s->stride[d] = at < 0 ? 0 : cu_stride(w, (uint32_t)at);
        s->suffix &= at == (int32_t)(d + w->ndim) - (int32_t)x->ndim || (at < 0 && d + w->ndim < x->ndim);
    }
    return HD_OK;
}

extern "C" int32_t cu_prepare_bias(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                   struct hd_error *err)
{
    bias_args a = {};
    int32_t rc = cu_want(i, &i->in[0], hd_operand_count(&i->out[0]), "input 0", err);
    (void)d;
    if (!rc)
        rc = map_of(i, &i->in[0], &i->in[1], &a.map, err);
    a.x = cu_ref_of(&i->in[0]);
    a.w = cu_ref_of(&i->in[1]);
    a.y = cu_ref_of(&i->out[0]);
    a.n = hd_operand_count(&i->out[0]);
    a.width = hd_operand_count(&i->in[1]);
    a.vectors = a.map.suffix && a.width % 8 == 0 ? cu_vectors(i, a.n) : 0;
    a.adds = cu_accumulates(i);
    cu_pack(k, cu_wide(i) ? run_bias<double> : run_bias<float>, &a, sizeof a);
    return rc;
}

/* ---- the gradient, where the bias has the last dims */

template <int V, class C, class R>
static __global__ void __launch_bounds__(THREADS, BLOCKS / 132) bias_dw_kernel(bias_args a, C *partial)
{
    CU_SHARED(C, shared, [DEEP][WIDE * V + 1]);
    R x_ref = cu_ref_as<R>(a.x);
    int x = threadIdx.x % WIDE, y = threadIdx.x / WIDE;
    int64_t column = ((int64_t)blockIdx.x * WIDE + x) * V, first = blockIdx.y * a.chunk, last = first + a.chunk;
    C sum[V] = {};
    last = last < a.rows ? last : a.rows;
    for (int64_t row = first + y; row < last && column < a.width; row += DEEP * UNROLL) {
        cu_raw<C, V> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (row + u * DEEP < last)
                raw[u].fetch(x_ref, (row + u * DEEP) * a.width + column);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (row + u * DEEP < last) {
                C v[V];
                raw[u].widen(v, x_ref);
#pragma unroll
                for (int j = 0; j < V; j++)
                    sum[j] += v[j];
            }
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        shared[y][x * V + j] = sum[j];
    __syncthreads();
    for (int at = threadIdx.x; at < WIDE * V; at += THREADS) {
        int64_t to = (int64_t)blockIdx.x * WIDE * V + at;
        C total = shared[0][at];
        for (int i = 1; i < DEEP; i++)
            total += shared[i][at];
        if (to < a.width)
            partial[blockIdx.y * a.width + to] = total;
    }
}

template <int V, class C, class R> static int32_t run_dw(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const bias_args &a = cu_args<bias_args>(k);
    C *partial = (C *)cu_scratch(k->device);
    dim3 grid((unsigned)((a.width + WIDE * V - 1) / (WIDE * V)), (unsigned)a.chunks);
    cudaError_t rc = CU_LAUNCH((bias_dw_kernel<V, C, R>), grid, THREADS, 0, stream, a, partial);
    if (rc == cudaSuccess)
        rc = cu_columns_add(partial, a.chunks, a.width, a.y, NULL, a.width, a.adds, stream);
    return cu_launched(k, rc, err);
}

/* ---- and where it has others: map counts the elements to sum, outer says where each output's begin */

struct sums_args {
    cu_ref x, y;
    subset inner, outer;
    int64_t n, count; /* outputs; elements of each */
    int32_t adds;
};

template <class C> static __global__ void __launch_bounds__(THREADS) sums_kernel(sums_args a)
{
    for (int64_t i = cu_thread() / 32; i < a.n; i += cu_threads() / 32) {
        int64_t base = subset_index(a.outer, i);
        C sum[1] = {0};
        for (int64_t j = threadIdx.x % 32; j < a.count; j += 32)
            sum[0] += cu_load<C>(a.x, base + subset_index(a.inner, j));
        sum[0] = cu_sum(sum[0], 32, (C *)NULL);
        if (threadIdx.x % 32 == 0)
            cu_put_n<1>(a.y, i, sum, a.adds);
    }
}

template <class C> static int32_t run_sums(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const sums_args &a = cu_args<sums_args>(k);
    unsigned blocks = cu_blocks(k->device, a.n, THREADS / 32);
    return cu_launched(k, CU_LAUNCH((sums_kernel<C>), blocks, THREADS, 0, stream, a), err);
}

static void prepare_sums(const struct hd_instr_desc *i, struct hd_kernel *k)
{
    const struct hd_operand *x = &i->in[0], *w = &i->out[0];
    sums_args a = {};
    a.x = cu_ref_of(x);
    a.y = cu_ref_of(w);
    a.n = hd_operand_count(w);
    a.count = a.n ? hd_operand_count(x) / a.n : 0;
    a.adds = cu_accumulates(i);
    for (uint32_t d = 0; d < x->ndim; d++) {
        subset *s = cu_dim(w, x->dim[d]) < 0 ? &a.inner : &a.outer;
        s->extent[s->ndim] = x->extent[d];
        s->stride[s->ndim++] = cu_stride(x, d);
    }
    cu_pack(k, cu_wide(i) ? run_sums<double> : run_sums<float>, &a, sizeof a);
}

extern "C" int32_t cu_prepare_bias_dw(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                      struct hd_error *err)
{
    bias_args a = {};
    int wide = cu_wide(i);
    int32_t rc = map_of(i, &i->in[0], &i->out[0], &a.map, err);
    if (rc)
        return rc;
    if (!a.map.suffix)
        return prepare_sums(i, k), HD_OK;
    a.x = cu_ref_of(&i->in[0]);
    a.y = cu_ref_of(&i->out[0]);
    a.width = hd_operand_count(&i->out[0]);
    a.rows = a.width ? hd_operand_count(&i->in[0]) / a.width : 0;
    a.adds = cu_accumulates(i);
    int v = !wide && a.width % 8 == 0 && cu_all_aligned(i) ? 8 : 1;
    int64_t across = (a.width + WIDE * v - 1) / (WIDE * v), down = BLOCKS / (across ? across : 1);
    down = down < 1 ? 1 : down;
    a.chunk = (a.rows + down - 1) / down;
    a.chunk = a.chunk < DEEP * UNROLL ? DEEP * UNROLL : a.chunk;
    a.chunks = (int32_t)((a.rows + a.chunk - 1) / a.chunk);
    a.chunks = a.chunks < 1 ? 1 : a.chunks;
    cu_pack(k,
            wide                   ? run_dw<1, double, cu_ref>
            : v == 1               ? run_dw<1, float, cu_ref>
            : a.x.dtype == HD_BF16 ? run_dw<8, float, cu_ref_to<HD_BF16>>
                                   : run_dw<8, float, cu_ref>,
            &a, sizeof a);
    return cu_scratch_reserve(d, (size_t)a.chunks * (size_t)a.width * (wide ? 8 : 4), err);
}
