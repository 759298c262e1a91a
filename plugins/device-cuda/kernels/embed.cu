/* Rows of a table, by token id (embed) or by position (position: added to x); and the gradient of a table of positions,
 * the sum over sequences in their order.
 *
 * Bytes an element: embed reads a row of w and writes y; position reads x too, its rows of w come from the cache;
 * position_dw reads dy and writes dw. */
#include "kernels/operands.cuh"

enum { THREADS = 256, UNROLL = 4 };

struct rows_args {
    cu_ref x, w, y; /* no data in x: nothing is added */
    const int32_t *ids;
    cu_zigzag order;
    int64_t n;           /* vectors of y */
    int64_t h, s, start; /* vectors of a row; of dim s: extent, global index of the first */
    int64_t rows, first; /* of the table */
    int64_t batch;       /* position_dw */
    int32_t adds, reserved;
};

CU_DEVICE void divide(int64_t n, int64_t by, int64_t *quotient, int64_t *rest)
{
    *quotient = n <= INT32_MAX ? (int64_t)((uint32_t)n / (uint32_t)by) : n / by;
    *rest = n - *quotient * by;
}

template <int V, class C> static __global__ void __launch_bounds__(THREADS) rows_kernel(rows_args a)
{
    for (int64_t i = cu_thread(); i < a.n; i += cu_threads()) {
        int64_t token, j, row;
        C y[V], w[V];
        divide(i, a.h, &token, &j);
        row = (a.ids ? a.ids[token] : cu_position(a.order, a.start + token % a.s)) - a.first;
#pragma unroll
        for (int e = 0; e < V; e++)
            y[e] = 0;
        if (a.x.data)
            cu_load_n<V>(y, a.x, i * V);
        if (row >= 0 && row < a.rows) {
            cu_load_n<V>(w, a.w, (row * a.h + j) * V);
#pragma unroll
            for (int e = 0; e < V; e++)
                y[e] += w[e];
        }
        cu_put_n<V>(a.y, i * V, y, a.adds);
    }
}

/* A thread has V columns of one position. */
template <int V, class C> static __global__ void __launch_bounds__(THREADS) position_dw_kernel(rows_args a)
{
    for (int64_t i = cu_thread(); i < a.n; i += cu_threads()) {
        int64_t row, j, at;
        C sum[V], v[V];
        divide(i, a.h, &row, &j);
        at = cu_index_of(a.order, row + a.first) - a.start;
#pragma unroll
        for (int e = 0; e < V; e++)
            sum[e] = 0;
        for (int64_t b = 0; b < a.batch && at >= 0 && at < a.s; b += UNROLL) {
            cu_raw<C, V> raw[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (b + u < a.batch)
                    raw[u].fetch(a.x, (((b + u) * a.s + at) * a.h + j) * V);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (b + u < a.batch) {
                    raw[u].widen(v, a.x);
#pragma unroll
                    for (int e = 0; e < V; e++)
                        sum[e] += v[e];
                }
        }
        cu_put_n<V>(a.y, i * V, sum, a.adds);
    }
}

template <int DW, int V, class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const rows_args &a = cu_args<rows_args>(k);
    unsigned blocks = cu_blocks(k->device, a.n, THREADS);
    cudaError_t rc = DW ? CU_LAUNCH((position_dw_kernel<V, C>), blocks, THREADS, 0, stream, a)
                        : CU_LAUNCH((rows_kernel<V, C>), blocks, THREADS, 0, stream, a);
    return cu_launched(k, rc, err);
}

/* `ids` is one of the operands that does not make a kernel wide. */
template <int DW>
static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, const struct hd_operand *rows,
                       const struct hd_operand *table, rows_args *a, struct hd_error *err)
{
    const struct hd_operand *y = &i->out[0];
    if (table->ndim != 2 || rows->ndim < 2 || rows->extent[rows->ndim - 1] != table->extent[1])
        return cu_refuse(err, HD_E_INVALID, i, "the table must be [rows, h] and the other operand end in h");
    int wide = cu_wide_dtype(table->dtype) || cu_wide_dtype(rows->dtype) || cu_wide_dtype(y->dtype);
    int v = !wide && table->extent[1] % 8 == 0 && cu_all_aligned(i) ? 8 : 1;
    a->order = cu_zigzag_of(&i->attrs);
    a->y = cu_ref_of(y);
    a->n = hd_operand_count(y) / v;
    a->h = table->extent[1] / v;
    a->s = rows->extent[rows->ndim - 2];
    a->start = rows->start[rows->ndim - 2];
    a->rows = table->extent[0];
    a->first = table->start[0];
    a->adds = cu_accumulates(i);
    cu_pack(k, wide ? run<DW, 1, double> : v == 8 ? run<DW, 8, float> : run<DW, 1, float>, a, sizeof *a);
    return HD_OK;
}

extern "C" int32_t cu_prepare_embed(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    rows_args a = {};
    (void)d;
    if (i->in[0].dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "token ids must be int32");
    a.ids = (const int32_t *)i->in[0].data;
    a.w = cu_ref_of(&i->in[1]);
    int32_t rc = prepare<0>(i, k, &i->out[0], &i->in[1], &a, err);
    return rc ? rc : cu_want(i, &i->out[0], hd_operand_count(&i->in[0]) * i->in[1].extent[1], "the output", err);
}

extern "C" int32_t cu_prepare_position(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                       struct hd_error *err)
{
    rows_args a = {};
    (void)d;
    a.x = cu_ref_of(&i->in[0]);
    a.w = cu_ref_of(&i->in[1]);
    int32_t rc = cu_want(i, &i->in[0], hd_operand_count(&i->out[0]), "input 0", err);
    return rc ? rc : prepare<0>(i, k, &i->in[0], &i->in[1], &a, err);
}

extern "C" int32_t cu_prepare_position_dw(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                          struct hd_error *err)
{
    const struct hd_operand *dy = &i->in[0];
    rows_args a = {};
    (void)d;
    a.x = cu_ref_of(dy);
    a.batch = dy->ndim < 2 ? 0 : cu_span(dy, 0, dy->ndim - 2);
    return prepare<1>(i, k, dy, &i->out[0], &a, err);
}
