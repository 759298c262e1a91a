/* A step of decoding: keys and values of a few positions go to their rows of a cache, then a block takes one query head
 * and its warps the rows that it sees, a warp a row at a time: a softmax that moves on (Dao, arXiv 2307.08691), and at
 * the end the warps' parts are joined. It reads the cache once for each query head. */
#include "kernels/operands.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, EACH = 4 }; /* EACH: elements of a row that a lane sums up at a time */

struct cached_args {
    cu_ref step[2], before[2], cache[2], q, o; /* keys, values */
    const int32_t *at;
    int64_t rows, window, elements; /* rows: of a cache; elements: of one */
    double scale, cap;              /* cap: of scores, 0: none */
    int32_t queries, t, k, g, d;    /* queries: b t */
    int32_t copies;                 /* the caches are other memory as outputs than as inputs */
};

/* -1: padding */
CU_DEVICE int64_t row_of(const cached_args &a, int query)
{
    int64_t at = a.at[query];
    return at < a.rows ? at : -1;
}

static __global__ void __launch_bounds__(THREADS) copy_cache(cached_args a)
{
    for (int64_t i = cu_thread(); i < 2 * a.elements; i += cu_threads()) {
        int n = i >= a.elements;
        cu_store<double>(a.cache[n], i - n * a.elements, cu_load<double>(a.before[n], i - n * a.elements));
    }
}

/* The later of two queries at one position is kept, as if they came one after the other. */
static __global__ void __launch_bounds__(THREADS) put_rows(cached_args a)
{
    int64_t each = (int64_t)a.k * a.d, all = a.queries * each;
    for (int64_t i = cu_thread(); i < 2 * all; i += cu_threads()) {
        int n = i >= all, query = (int)((i - n * all) / each), b = query / a.t;
        int64_t at = row_of(a, query), e = (i - n * all) % each;
        for (int later = query + 1; later < (b + 1) * a.t; later++)
            at = row_of(a, later) == at ? -1 : at;
        if (at >= 0)
            cu_store<double>(a.cache[n], (b * a.rows + at) * each + e, cu_load<double>(a.step[n], i - n * all));
    }
}

template <class C> CU_DEVICE C score(const cached_args &a, int64_t q, int64_t key)
{
    C sum = 0;
    for (int e = threadIdx.x % 32; e < a.d; e += 32)
        sum += cu_load<C>(a.q, q + e) * cu_load<C>(a.cache[0], key + e);
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    C x = (C)a.scale * sum, cap = (C)a.cap;
    return cap > 0 ? cap * (C)tanh(x / cap) : x;
}

/* Elements e0.. of o, of query head blockIdx.x. */
template <class C> CU_DEVICE void attend(const cached_args &a, int e0)
{
    CU_SHARED(C, parts, [WARPS][32 * EACH]);
    CU_SHARED(C, most_of, [WARPS]);
    CU_SHARED(C, total_of, [WARPS]);
    int64_t heads = (int64_t)a.k * a.g, query = blockIdx.x / heads, head = blockIdx.x % heads,
            last = row_of(a, (int)query);
    int64_t first = a.window > 0 && last >= a.window ? last - a.window + 1 : 0, step = (int64_t)a.k * a.d;
    int64_t base = query / a.t * a.rows * step + head / a.g * a.d;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    C most = -INFINITY, total = 0, o[EACH] = {};
    for (int64_t j = first + warp; j <= last; j += WARPS) {
        C z = score<C>(a, (int64_t)blockIdx.x * a.d, base + j * step), now = cu_most(most, z);
        C shrink = most == -INFINITY ? 0 : cu_exp(most - now), weight = z == -INFINITY ? 0 : cu_exp(z - now);
        total = total * shrink + weight;
        most = now;
        for (int c = 0; c < EACH; c++) {
            int e = e0 + 32 * c + lane;
            if (e < a.d)
                o[c] = o[c] * shrink + weight * cu_load<C>(a.cache[1], base + j * step + e);
        }
    }
    for (int c = 0; c < EACH; c++)
        parts[warp][32 * c + lane] = o[c];
    if (lane == 0) {
        most_of[warp] = most;
        total_of[warp] = total;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        most = cu_most(most, most_of[w]);
    C sum = 0, all = 0;
    for (int w = 0; w < WARPS; w++) {
        C part = most_of[w] == -INFINITY ? 0 : cu_exp(most_of[w] - most);
        all += part * total_of[w];
        sum += part * parts[w][threadIdx.x];
    }
    if (e0 + (int)threadIdx.x < a.d)
        cu_store<C>(a.o, (int64_t)blockIdx.x * a.d + e0 + threadIdx.x, last < 0 ? 0 : sum / all);
    __syncthreads();
}

template <class C> static __global__ void __launch_bounds__(THREADS, 1) attention_cached(cached_args a)
{
    static_assert(32 * EACH == THREADS, "a thread writes an element");
    for (int e0 = 0; e0 < a.d; e0 += 32 * EACH)
        attend<C>(a, e0);
}

template <class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const cached_args &a = cu_args<cached_args>(k);
    int64_t put = 2 * (int64_t)a.queries * a.k * a.d;
    int32_t rc = HD_OK;
    if (!put)
        return HD_OK;
    if (a.copies)
        rc = cu_launched(k, CU_LAUNCH(copy_cache, cu_blocks(k->device, 2 * a.elements, THREADS), THREADS, 0, stream, a),
                         err);
    if (!rc)
        rc = cu_launched(k, CU_LAUNCH(put_rows, cu_blocks(k->device, put, THREADS), THREADS, 0, stream, a), err);
    if (rc)
        return rc;
    unsigned blocks = (unsigned)(a.queries * a.k * a.g);
    return cu_launched(k, CU_LAUNCH((attention_cached<C>), blocks, THREADS, 0, stream, a), err);
}

static int32_t check(const struct hd_instr_desc *i, struct hd_error *err)
{
    const struct hd_operand *q = &i->in[0], *key = &i->in[1], *cache = &i->in[3];
    if (q->ndim != 5 || key->ndim != 4 || cache->ndim != 4)
        return cu_refuse(err, HD_E_INVALID, i,
                         "attention_cached wants q [b, t, k, g, d], k, v [b, t, k, d], caches [b, s, k, d]");
    if (i->attrs.top_k > 0 || i->attrs.flags & HD_ATTR_NOT_CAUSAL || cu_accumulates(i))
        return cu_refuse(err, HD_E_INVALID, i, "attention_cached is causal, without a prefix, and adds to nothing");
    if (cache->extent[0] != q->extent[0] || cache->extent[2] != q->extent[2] || cache->extent[3] != q->extent[4] ||
        key->extent[3] != q->extent[4])
        return cu_refuse(err, HD_E_INVALID, i, "q, k and their cache differ in batch, heads or head size");
    if (i->in[5].dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "positions must be int32");
    int64_t step = cu_span(q, 0, 3) * q->extent[4], n = hd_operand_count(cache);
    int32_t rc = cu_want(i, &i->in[5], cu_span(q, 0, 2), "positions", err);
    if (!rc)
        rc = cu_want(i, &i->out[0], hd_operand_count(q), "o", err);
    for (int x = 1; x <= 2 && !rc; x++) {
        rc = cu_want(i, &i->in[x], step, "keys or values", err);
        rc = rc ? rc : cu_want(i, &i->in[2 + x], n, "a cache", err);
        rc = rc ? rc : cu_want(i, &i->out[x], n, "a cache", err);
        if (!rc && (i->in[x].dtype != i->out[x].dtype || i->in[2 + x].dtype != i->out[x].dtype))
            rc = cu_refuse(err, HD_E_INVALID, i, "a cache has the dtype of what it keeps");
    }
    return rc;
}

extern "C" int32_t cu_prepare_attention_cached(struct hd_device *, const struct hd_instr_desc *i, struct hd_kernel *k,
                                               struct hd_error *err)
{
    const struct hd_operand *q = &i->in[0];
    cached_args a = {};
    int32_t rc = check(i, err);
    if (rc)
        return rc;
    for (int n = 0; n < 2; n++) {
        a.step[n] = cu_ref_of(&i->in[1 + n]);
        a.before[n] = cu_ref_of(&i->in[3 + n]);
        a.cache[n] = cu_ref_of(&i->out[1 + n]);
        a.copies |= i->in[3 + n].data != i->out[1 + n].data;
    }
    a.q = cu_ref_of(q);
    a.o = cu_ref_of(&i->out[0]);
    a.at = (const int32_t *)i->in[5].data;
    a.rows = i->in[3].extent[1];
    a.elements = hd_operand_count(&i->in[3]);
    a.window = i->attrs.window;
    a.scale = i->attrs.scale;
    a.cap = i->attrs.clip;
    a.queries = (int32_t)(q->extent[0] * q->extent[1]);
    a.t = (int32_t)q->extent[1];
    a.k = (int32_t)q->extent[2];
    a.g = (int32_t)q->extent[3];
    a.d = (int32_t)q->extent[4];
    cu_pack(k, cu_wide(i) && q->dtype == HD_F64 ? run<double> : run<float>, &a, sizeof a);
    return HD_OK;
}
