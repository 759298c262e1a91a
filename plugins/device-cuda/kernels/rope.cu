/* Rotary positions (Su et al., arXiv 2104.09864): the pair (i, i + half) of each head, or (2 i, 2 i + 1), is turned by
 * sign position table[i]; what is behind the pairs stays.
 *
 * A block has some tokens: it makes their sines and cosines in shared memory, once for all heads, from angles in
 * double. Bytes an element: x and y once. y may be x: a pair is read before it is written, by the same thread. */
#include "kernels/operands.cuh"

enum { THREADS = 256, ANGLES = 2048, ITEMS = 4 * THREADS };

struct rope_args {
    cu_ref x, y;
    const int32_t *at;   /* positions of tokens; NULL: their index */
    const double *turns; /* inverse frequencies over 2 pi, with the sign */
    double scale;
    cu_zigzag order;
    int64_t tokens, s, start;
    int32_t half, heads, each; /* half: pairs; each: tokens of a block */
    int32_t d, step, apart;    /* pair i: elements i step and i step + apart */
    int32_t adds, reserved;
};

template <int V, class C> CU_DEVICE void turn(const rope_args &a, int64_t at, const C *sines, const C *cosines, C scale)
{
    cu_raw<C, V> low_raw, high_raw;
    C low[V], high[V], x[V], y[V];
    low_raw.fetch(a.x, at);
    high_raw.fetch(a.x, at + a.apart);
    low_raw.widen(low, a.x);
    high_raw.widen(high, a.x);
#pragma unroll
    for (int j = 0; j < V; j++) {
        x[j] = scale * (low[j] * cosines[j] - high[j] * sines[j]);
        y[j] = scale * (high[j] * cosines[j] + low[j] * sines[j]);
    }
    cu_put_n<V>(a.y, at, x, a.adds);
    cu_put_n<V>(a.y, at + a.apart, y, a.adds);
}

/* AT: positions are an input. */
template <int V, class C, bool AT> static __global__ void __launch_bounds__(THREADS) rope_kernel(rope_args a)
{
    CU_SHARED(C, sines, [ANGLES]);
    CU_SHARED(C, cosines, [ANGLES]);
    int64_t first = (int64_t)blockIdx.x * a.each;
    int n = (int)(a.tokens - first < a.each ? a.tokens - first : a.each), items = a.heads * (a.half / V);
    for (int i = threadIdx.x; i < n * a.half; i += THREADS) {
        int64_t token = first + i / a.half, position = AT ? a.at[token] : cu_position(a.order, a.start + token % a.s);
        double turns = (double)position * a.turns[i % a.half];
        cu_circle(turns - rint(turns), &sines[i], &cosines[i]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n * items; i += THREADS) {
        int token = i / items, item = i - token * items, head = item / (a.half / V),
            j = (item - head * (a.half / V)) * V;
        int64_t at = ((first + token) * a.heads + head) * a.d + j * a.step;
        turn<V, C>(a, at, sines + token * a.half + j, cosines + token * a.half + j, (C)a.scale);
    }
    for (int i = threadIdx.x, rest = a.d - 2 * a.half; i < n * a.heads * rest; i += THREADS) {
        int64_t at = (first * a.heads + i / rest) * a.d + 2 * a.half + i % rest;
        cu_raw<C, 1> raw;
        C x[1];
        raw.fetch(a.x, at);
        raw.widen(x, a.x);
        cu_put_n<1>(a.y, at, x, a.adds);
    }
}

template <int V, class C, bool AT> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const rope_args &a = cu_args<rope_args>(k);
    unsigned blocks = (unsigned)((a.tokens + a.each - 1) / a.each);
    if (!blocks)
        return HD_OK;
    return cu_launched(k, CU_LAUNCH((rope_kernel<V, C, AT>), blocks, THREADS, 0, stream, a), err);
}

static int32_t check(const struct hd_instr_desc *i, struct hd_error *err)
{
    const struct hd_operand *x = &i->in[0];
    int64_t d = x->ndim ? x->extent[x->ndim - 1] : 0;
    if (x->ndim < 3 || d % 2 || d < 2)
        return cu_refuse(err, HD_E_INVALID, i, "rope wants [batch, sequence, ..., head size], the head size even");
    if (d > 2 * ANGLES)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "heads of more than %d elements", 2 * ANGLES);
    if (!i->attrs.n_table || !i->attrs.table)
        return cu_refuse(err, HD_E_INVALID, i,
                         "rope wants a table of inverse frequencies, of all %lld pairs or of the first",
                         (long long)d / 2);
    if (i->n_in > 1 && i->in[1].dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "positions must be int32");
    int32_t rc = i->n_in > 1 ? cu_want(i, &i->in[1], cu_span(x, 0, 2), "positions", err) : HD_OK;
    return rc ? rc : cu_want(i, &i->out[0], hd_operand_count(x), "an output", err);
}

extern "C" int32_t cu_prepare_rope(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                   struct hd_error *err)
{
    const struct hd_operand *x = &i->in[0];
    double turns[ANGLES];
    rope_args a = {};
    int32_t rc = check(i, err);
    if (rc)
        return rc;
    int wide = cu_wide_dtype(x->dtype) || cu_wide_dtype(i->out[0].dtype);
    a.x = cu_ref_of(x);
    a.y = cu_ref_of(&i->out[0]);
    a.scale = i->attrs.scale != 0 ? i->attrs.scale : 1;
    a.at = i->n_in > 1 ? (const int32_t *)i->in[1].data : NULL;
    a.order = cu_zigzag_of(&i->attrs);
    a.s = x->extent[1];
    a.start = x->start[1];
    a.tokens = x->extent[0] * a.s;
    a.d = (int32_t)x->extent[x->ndim - 1];
    a.half = i->attrs.n_table < (uint64_t)a.d / 2 ? (int32_t)i->attrs.n_table : a.d / 2;
    a.step = i->attrs.flags & HD_ATTR_INTERLEAVED ? 2 : 1;
    a.apart = a.step == 2 ? 1 : a.half;
    a.heads = (int32_t)cu_span(x, 2, x->ndim - 1);
    a.adds = cu_accumulates(i);
    int v = !wide && !a.at && a.step == 1 && a.half % 8 == 0 && a.d % 8 == 0 && cu_all_aligned(i) ? 8 : 1;
    a.each = ITEMS / (a.heads * (a.half / v));
    a.each = a.each < 1 ? 1 : a.each;
    a.each = a.each * a.half > ANGLES ? ANGLES / a.half : a.each;
    for (int j = 0; j < a.half; j++)
        turns[j] = i->attrs.sign * i->attrs.table[j] / (2 * M_PI);
    if (a.at)
        cu_pack(k, wide ? run<1, double, true> : run<1, float, true>, &a, sizeof a);
    else
        cu_pack(k, wide ? run<1, double, false> : v == 8 ? run<8, float, false> : run<1, float, false>, &a, sizeof a);
    const void *table;
    rc = cu_table(d, turns, (size_t)a.half * sizeof turns[0], &table, err);
    a.turns = (const double *)table;
    cu_pack(k, k->run, &a, sizeof a);
    return rc;
}

extern "C" int32_t cu_prepare_rope_at(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                      struct hd_error *err)
{
    return cu_prepare_rope(d, i, k, err);
}
