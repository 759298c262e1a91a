/* Attention without tensor cores: any head size, any dtype. A warp takes one row of an output at a time, 32 columns of
 * scores at a time: a lane has the score of one column, then all lanes add what it weighs to their elements of the row.
 * The twin of attention_forward.cu and attention_backward.cu, whose formulas stand there. */
#include "attention/attention.h"
#include "kernels/kernel.cuh"

enum { THREADS = 128, EACH = 4 }; /* EACH: elements of a row that a lane holds; longer rows are done part by part */

struct plain {
    cu_in q, k, v, o, lse, grad;
    cu_out out[3], out_lse;
    cu_heads h;
    double scale, cap; /* cap: of scores, 0: none */
};

/* ---- in fp32, and in fp64 */

CU_DEVICE float get(const cu_in &x, int64_t i, float)
{
    return cu_get(x, i);
}

CU_DEVICE double get(const cu_in &x, int64_t i, double)
{
    return cu_get_double(x, i);
}

CU_DEVICE void put(const cu_out &y, int64_t i, float v)
{
    cu_put(y, i, v);
}

CU_DEVICE void put(const cu_out &y, int64_t i, double v)
{
    double *p = (double *)y.data + i;
    if (y.dtype == HD_F64)
        *p = y.add ? *p + v : v;
    else
        cu_put(y, i, (float)v);
}

CU_DEVICE float exp_of(float x)
{
    return expf(x);
}

CU_DEVICE double exp_of(double x)
{
    return exp(x);
}

CU_DEVICE float log_of(float x)
{
    return logf(x);
}

CU_DEVICE double log_of(double x)
{
    return log(x);
}

template <class A> CU_DEVICE A warp_most(A x)
{
    for (int step = 16; step; step /= 2)
        x = fmax(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <class A> CU_DEVICE A dot(const cu_in &x, int64_t i, const cu_in &y, int64_t j, int d)
{
    A sum = 0;
    for (int e = 0; e < d; e++)
        sum += get(x, i + e, A()) * get(y, j + e, A());
    return sum;
}

/* The score of a query's row and a key. */
template <class A> CU_DEVICE A score(const plain &a, int64_t row, int64_t at)
{
    A x = (A)a.scale * dot<A>(a.q, row * a.h.d, a.k, at, a.h.d), cap = (A)a.cap;
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* ---- rows */

CU_DEVICE int64_t query_at(const cu_heads &h, int b, int i, int head)
{
    return ((int64_t)b * h.s + i) * h.k * h.g + head;
}

CU_DEVICE int64_t key_at(const cu_heads &h, int b, int j, int kv)
{
    return (((int64_t)b * h.t + j) * h.k + kv) * h.d;
}

/* sum[c] += what lane l of the warp weighs times element e0 + lane + 32 c of the row at at[l]: for lanes below n. */
template <class A> CU_DEVICE void add_rows(A (&sum)[EACH], A weight, const cu_in &x, int64_t at, int n, int e0, int d)
{
    for (int l = 0; l < n; l++) {
        A w = __shfl_sync(0xffffffffu, weight, l);
        int64_t row = __shfl_sync(0xffffffffu, at, l);
        for (int c = 0; c < EACH; c++) {
            int e = e0 + 32 * c + (int)threadIdx.x % 32;
            if (e < d)
                sum[c] += w * get(x, row + e, A());
        }
    }
}

template <class A> CU_DEVICE void put_row(const cu_out &y, int64_t at, const A (&sum)[EACH], A factor, int e0, int d)
{
    for (int c = 0; c < EACH; c++) {
        int e = e0 + 32 * c + (int)threadIdx.x % 32;
        if (e < d)
            put(y, at + e, sum[c] * factor);
    }
}

/* ---- o, lse */

/* Columns e0.. of one row of o, and its lse. */
template <class A> CU_DEVICE void attend(const plain &a, int b, int i, int head, int e0)
{
    const cu_heads &h = a.h;
    cu_run seen = cu_visible(&h, b, i);
    int64_t row = query_at(h, b, i, head);
    A most = -INFINITY, total = 0, o[EACH] = {};
    for (int j0 = seen.first; j0 < seen.end; j0 += 32) {
        int j = j0 + (int)threadIdx.x % 32, n = seen.end - j0 < 32 ? seen.end - j0 : 32;
        int64_t at = key_at(h, b, j < seen.end ? j : j0, head / h.g);
        A x = j < seen.end ? score<A>(a, row, at) : (A)-INFINITY;
        A now = fmax(most, warp_most(x)), shift = now == -INFINITY ? 0 : now;
        A shrink = exp_of(most - shift), p = exp_of(x - shift);
        total = total * shrink + cu_warp_sum(p);
        for (int c = 0; c < EACH; c++)
            o[c] *= shrink;
        add_rows(o, p, a.v, at, n, e0, h.d);
        most = now;
    }
    put_row(a.out[0], row * h.d, o, total == 0 ? (A)0 : 1 / total, e0, h.d);
    if (threadIdx.x % 32 == 0 && e0 == 0)
        put(a.out_lse, row, total == 0 ? (A)-INFINITY : most + log_of(total));
}

template <class A> static __global__ void __launch_bounds__(THREADS, 4) plain_forward(plain a)
{
    int heads = a.h.k * a.h.g;
    int64_t rows = (int64_t)a.h.b * a.h.s * heads;
    for (int64_t row = cu_thread() / 32; row < rows; row += cu_threads() / 32)
        for (int e0 = 0; e0 < a.h.d; e0 += 32 * EACH)
            attend<A>(a, (int)(row / heads / a.h.s), (int)(row / heads % a.h.s), (int)(row % heads), e0);
}

/* ---- dq */

template <class A> struct slope {
    A p, ds;
};

/* Weight and slope of key `at` for query row `row`; delta = rowsum(do o). */
template <class A> CU_DEVICE slope<A> slope_of(const plain &a, int64_t row, int64_t at, A delta)
{
    int d = a.h.d;
    A z = score<A>(a, row, at), p = exp_of(z - get(a.lse, row, A())), t = a.cap > 0 ? z / (A)a.cap : 0;
    return {p, p * (1 - t * t) * (dot<A>(a.grad, row * d, a.v, at, d) - delta)};
}

template <class A> CU_DEVICE void query_gradient(const plain &a, int b, int i, int head, int e0)
{
    const cu_heads &h = a.h;
    cu_run seen = cu_visible(&h, b, i);
    int64_t row = query_at(h, b, i, head);
    A delta = dot<A>(a.grad, row * h.d, a.o, row * h.d, h.d), dq[EACH] = {};
    for (int j0 = seen.first; j0 < seen.end; j0 += 32) {
        int j = j0 + (int)threadIdx.x % 32, n = seen.end - j0 < 32 ? seen.end - j0 : 32;
        int64_t at = key_at(h, b, j < seen.end ? j : j0, head / h.g);
        add_rows(dq, slope_of(a, row, at, delta).ds, a.k, at, n, e0, h.d);
    }
    put_row(a.out[0], row * h.d, dq, (A)a.scale, e0, h.d);
}

template <class A> static __global__ void __launch_bounds__(THREADS, 4) plain_queries(plain a)
{
    int heads = a.h.k * a.h.g;
    int64_t rows = (int64_t)a.h.b * a.h.s * heads;
    for (int64_t row = cu_thread() / 32; row < rows; row += cu_threads() / 32)
        for (int e0 = 0; e0 < a.h.d; e0 += 32 * EACH)
            query_gradient<A>(a, (int)(row / heads / a.h.s), (int)(row / heads % a.h.s), (int)(row % heads), e0);
}

/* ---- dk, dv: over the query heads of the kv head, and their queries, in order */

template <class A> CU_DEVICE void key_gradient(const plain &a, int b, int j, int kv, int e0)
{
    const cu_heads &h = a.h;
    cu_run by = cu_seen_by(&h, b, j);
    int64_t at = key_at(h, b, j, kv);
    A dk[EACH] = {}, dv[EACH] = {};
    for (int head = kv * h.g; head < (kv + 1) * h.g; head++)
        for (int i0 = by.first; i0 < by.end; i0 += 32) {
            int i = i0 + (int)threadIdx.x % 32, n = by.end - i0 < 32 ? by.end - i0 : 32;
            int64_t row = query_at(h, b, i < by.end ? i : i0, head);
            slope<A> s = slope_of(a, row, at, dot<A>(a.grad, row * h.d, a.o, row * h.d, h.d));
            add_rows(dk, s.ds, a.q, row * h.d, n, e0, h.d);
            add_rows(dv, s.p, a.grad, row * h.d, n, e0, h.d);
        }
    put_row(a.out[1], at, dk, (A)a.scale, e0, h.d);
    put_row(a.out[2], at, dv, (A)1, e0, h.d);
}

template <class A> static __global__ void __launch_bounds__(THREADS, 4) plain_keys(plain a)
{
    int64_t rows = (int64_t)a.h.b * a.h.t * a.h.k;
    for (int64_t row = cu_thread() / 32; row < rows; row += cu_threads() / 32)
        for (int e0 = 0; e0 < a.h.d; e0 += 32 * EACH)
            key_gradient<A>(a, (int)(row / a.h.k / a.h.t), (int)(row / a.h.k % a.h.t), (int)(row % a.h.k), e0);
}

/* ---- launches */

static unsigned blocks_of(const struct hd_kernel *k, int64_t rows)
{
    return cu_blocks(k->device, rows, THREADS / 32);
}

template <class A> static int32_t run_forward(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const plain &a = cu_args<plain>(k);
    unsigned blocks = blocks_of(k, (int64_t)a.h.b * a.h.s * a.h.k * a.h.g);
    return cu_launched(k, CU_LAUNCH(plain_forward<A>, blocks, THREADS, 0, stream, a), err);
}

template <class A> static int32_t run_backward(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const plain &a = cu_args<plain>(k);
    unsigned queries = blocks_of(k, (int64_t)a.h.b * a.h.s * a.h.k * a.h.g),
             keys = blocks_of(k, (int64_t)a.h.b * a.h.t * a.h.k);
    int32_t rc = cu_launched(k, CU_LAUNCH(plain_queries<A>, queries, THREADS, 0, stream, a), err);
    return rc ? rc : cu_launched(k, CU_LAUNCH(plain_keys<A>, keys, THREADS, 0, stream, a), err);
}

extern "C" int32_t cu_attention_plain(const struct hd_instr_desc *i, const struct cu_heads *h, struct hd_kernel *k,
                                      struct hd_error *)
{
    plain a = {};
    int wide = i->in[0].dtype == HD_F64, back = i->op == HD_OP_ATTENTION_GRAD;
    a.q = cu_in_of(&i->in[0]);
    a.k = cu_in_of(&i->in[1]);
    a.v = cu_in_of(&i->in[2]);
    a.h = *h;
    a.scale = i->attrs.scale;
    a.cap = i->attrs.clip;
    a.out[0] = cu_out_of(i, 0);
    if (back) {
        a.o = cu_in_of(&i->in[3]);
        a.lse = cu_in_of(&i->in[4]);
        a.grad = cu_in_of(&i->in[5]);
        a.out[1] = cu_out_of(i, 1);
        a.out[2] = cu_out_of(i, 2);
    } else {
        a.out_lse = cu_out_of(i, 1);
        a.out_lse.add = 0; /* a statistic of this call */
    }
    cu_pack(k,
            back   ? (wide ? run_backward<double> : run_backward<float>)
            : wide ? run_forward<double>
                   : run_forward<float>,
            &a, sizeof a);
    return HD_OK;
}
