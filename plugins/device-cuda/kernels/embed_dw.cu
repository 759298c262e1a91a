/* The gradient of a table of rows: dw[id] = sum of dy over the tokens with that id, in order of tokens whoever runs
 * when.
 *
 * Tokens are sorted by row, by a radix sort that keeps the order of equals; then blocks sum runs of equal rows in
 * chunks of the sorted tokens. A run within a chunk is finished there; what crosses chunks is left as partial sums,
 * which the chunk that the run begins in adds up, in order. Bytes an element: dy once, dw once (twice where it is added
 * to); the sort moves 16 bytes a token and pass. */
#include "kernels/operands.cuh"

enum { TILE = 256, WARPS = TILE / 32, DIGIT = 9, BINS = 1 << DIGIT };
enum { THREADS = 128, CHUNK = 32, UNROLL = 4 };

struct dw_args {
    cu_ref dy, dw;
    const int32_t *ids;
    int64_t tokens, rows, first, h;
    int32_t tiles, chunks, digit, passes; /* bits of a digit */
    int32_t adds, vector;
};

/* Scratch: two lists of rows and tokens, counts of each tile, where each digit begins, partial sums. */
struct lists {
    uint32_t *row[2], *token[2], *counts, *begins;
    void *partial;
};

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static lists lists_of(const dw_args &a, void *scratch, size_t *bytes)
{
    lists l;
    size_t list = rounded((size_t)a.tokens * 4), at = 0;
    for (int i = 0; i < 2; i++, at += 2 * list) {
        l.row[i] = (uint32_t *)((char *)scratch + at);
        l.token[i] = (uint32_t *)((char *)scratch + at + list);
    }
    l.counts = (uint32_t *)((char *)scratch + at);
    at += rounded((size_t)a.tiles * BINS * 4);
    l.begins = (uint32_t *)((char *)scratch + at);
    at += BINS * 4;
    l.partial = (char *)scratch + at;
    *bytes = at;
    return l;
}

/* ---- the sort. Tokens whose rows are elsewhere come last. */

static __global__ void __launch_bounds__(TILE) begin_kernel(dw_args a, lists l)
{
    int64_t t = cu_thread();
    if (t >= a.tokens)
        return;
    int64_t row = a.ids[t] - a.first;
    l.row[0][t] = (uint32_t)(row >= 0 && row < a.rows ? row : a.rows);
    l.token[0][t] = (uint32_t)t;
}

CU_DEVICE uint32_t *list_of(uint32_t *const (&two)[2], int pass)
{
    return pass % 2 ? two[1] : two[0];
}

CU_DEVICE uint32_t digit_of(const dw_args &a, const lists &l, int pass, int64_t t)
{
    return t < a.tokens ? list_of(l.row, pass)[t] >> pass * a.digit & ((1u << a.digit) - 1) : (uint32_t)BINS;
}

/* How many tokens of a tile have each digit. */
static __global__ void __launch_bounds__(TILE) count_kernel(dw_args a, lists l, int pass)
{
    CU_SHARED(uint32_t, counts, [BINS]);
    for (int b = threadIdx.x; b < BINS; b += TILE)
        counts[b] = 0;
    __syncthreads();
    uint32_t digit = digit_of(a, l, pass, cu_thread());
    if (digit < BINS)
        atomicAdd(&counts[digit], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += TILE)
        l.counts[(int64_t)blockIdx.x * BINS + b] = counts[b];
}

/* Counts become those of all tiles before, and begins those of all smaller digits. */
static __global__ void __launch_bounds__(BINS) scan_kernel(dw_args a, lists l)
{
    CU_SHARED(uint32_t, sums, [BINS]);
    int b = threadIdx.x;
    uint32_t sum = 0;
#pragma unroll 8
    for (int tile = 0; tile < a.tiles; tile++) {
        uint32_t count = l.counts[(int64_t)tile * BINS + b];
        l.counts[(int64_t)tile * BINS + b] = sum;
        sum += count;
    }
    sums[b] = sum;
    __syncthreads();
    for (int d = 1; d < BINS; d *= 2) {
        uint32_t before = b >= d ? sums[b - d] : 0;
        __syncthreads();
        sums[b] += before;
        __syncthreads();
    }
    l.begins[b] = sums[b] - sum;
}

/* Lanes of this warp that have the same digit. */
CU_DEVICE uint32_t peers_of(uint32_t digit)
{
    uint32_t peers = 0xffffffffu;
    for (int bit = 0; bit <= DIGIT; bit++) {
        uint32_t set = __ballot_sync(0xffffffffu, digit >> bit & 1);
        peers &= digit >> bit & 1 ? set : ~set;
    }
    return peers;
}

static __global__ void __launch_bounds__(TILE) scatter_kernel(dw_args a, lists l, int pass)
{
    CU_SHARED(uint32_t, before, [WARPS][BINS]);
    int64_t t = cu_thread();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t digit = digit_of(a, l, pass, t), peers = peers_of(digit), rank = __popc(peers & ((1u << lane) - 1));
    for (int i = threadIdx.x; i < WARPS * BINS; i += TILE)
        before[i / BINS][i % BINS] = 0;
    __syncthreads();
    if (digit < BINS && rank == 0)
        before[warp][digit] = __popc(peers);
    __syncthreads();
    if (digit >= BINS)
        return;
    uint32_t to = l.begins[digit] + l.counts[(int64_t)blockIdx.x * BINS + digit] + rank;
    for (int w = 0; w < warp; w++)
        to += before[w][digit];
    list_of(l.row, pass + 1)[to] = list_of(l.row, pass)[t];
    list_of(l.token, pass + 1)[to] = list_of(l.token, pass)[t];
}

/* ---- sums of runs */

CU_DEVICE int same_row(const dw_args &a, const uint32_t *row, int64_t i, int64_t j)
{
    return i >= 0 && j < a.tokens && row[i] == row[j];
}

/* Stores a run's sum: to dw, or to the chunk's first or second partial sum. */
template <int V, class C>
CU_DEVICE void finish_run(const dw_args &a, C (&sum)[V], uint32_t row, int64_t column, int open_before, int open_after,
                          C *partial)
{
    if (open_before || open_after) {
        C *to = partial + ((int64_t)blockIdx.x * 2 + !open_before) * a.h + column;
#pragma unroll
        for (int j = 0; j < V; j++)
            to[j] = sum[j];
    } else {
        cu_put_n<V>(a.dw, row * a.h + column, sum, a.adds);
    }
}

template <int V, class C>
static __global__ void __launch_bounds__(THREADS)
    runs_kernel(dw_args a, const uint32_t *row, const uint32_t *token, C *partial)
{
    int64_t first = (int64_t)blockIdx.x * CHUNK, last = first + CHUNK < a.tokens ? first + CHUNK : a.tokens,
            begin = first;
    int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V;
    if (column >= a.h)
        return;
    C sum[V] = {};
    for (int64_t i = first; i < last && row[i] < a.rows; i += UNROLL) {
        cu_raw<C, V> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u < last && row[i + u] < a.rows)
                raw[u].fetch(a.dy, token[i + u] * a.h + column);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u >= last || row[i + u] >= a.rows)
                break;
            C v[V];
            raw[u].widen(v, a.dy);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += v[j];
            int more = same_row(a, row, i + u, i + u + 1);
            if (more && i + u + 1 < last)
                continue;
            finish_run<V>(a, sum, row[i + u], column, begin == first && same_row(a, row, first - 1, first), more,
                          partial);
            begin = i + u + 1;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] = 0;
        }
    }
}

/* Runs that begin in this chunk and go on in the next. */
template <int V, class C>
static __global__ void __launch_bounds__(THREADS) join_kernel(dw_args a, const uint32_t *row, const C *partial)
{
    int64_t last = ((int64_t)blockIdx.x + 1) * CHUNK - 1, first = last + 1 - CHUNK;
    int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V;
    if (column >= a.h || !same_row(a, row, last, last + 1) || row[last] >= a.rows || same_row(a, row, first - 1, last))
        return;
    C sum[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        sum[j] = partial[((int64_t)blockIdx.x * 2 + 1) * a.h + column + j];
    for (int64_t chunk = blockIdx.x + 1; same_row(a, row, last, chunk * CHUNK); chunk++)
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] += partial[chunk * 2 * a.h + column + j];
    cu_put_n<V>(a.dw, row[last] * a.h + column, sum, a.adds);
}

template <int V, class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const dw_args &a = cu_args<dw_args>(k);
    size_t bytes;
    lists l = lists_of(a, cu_scratch(k->device), &bytes);
    C *partial = (C *)l.partial;
    dim3 grid((unsigned)a.chunks, (unsigned)((a.h / V + THREADS - 1) / THREADS));
    cudaError_t rc = cudaSuccess;
    if (!a.adds)
        rc = cudaMemsetAsync(a.dw.data, 0, (size_t)(a.rows * a.h) * hd_dtype_size(a.dw.dtype), stream);
    if (!a.tokens || !a.h)
        return cu_launched(k, rc, err);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH(begin_kernel, (unsigned)a.tiles, TILE, 0, stream, a, l);
    for (int pass = 0; rc == cudaSuccess && pass < a.passes; pass++) {
        rc = CU_LAUNCH(count_kernel, (unsigned)a.tiles, TILE, 0, stream, a, l, pass);
        if (rc == cudaSuccess)
            rc = CU_LAUNCH(scan_kernel, 1, BINS, 0, stream, a, l);
        if (rc == cudaSuccess)
            rc = CU_LAUNCH(scatter_kernel, (unsigned)a.tiles, TILE, 0, stream, a, l, pass);
    }
    const uint32_t *row = l.row[a.passes % 2], *token = l.token[a.passes % 2];
    if (rc == cudaSuccess)
        rc = CU_LAUNCH((runs_kernel<V, C>), grid, THREADS, 0, stream, a, row, token, partial);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH((join_kernel<V, C>), grid, THREADS, 0, stream, a, row, partial);
    return cu_launched(k, rc, err);
}

extern "C" int32_t cu_prepare_embed_dw(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                       struct hd_error *err)
{
    const struct hd_operand *ids = &i->in[0], *dy = &i->in[1], *dw = &i->out[0];
    dw_args a = {};
    size_t bytes;
    int bits = 1;
    if (dw->ndim != 2 || dy->ndim < 2 || dy->extent[dy->ndim - 1] != dw->extent[1])
        return cu_refuse(err, HD_E_INVALID, i, "the table must be [rows, h] and the other operand end in h");
    if (ids->dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "token ids must be int32");
    a.tokens = hd_operand_count(ids);
    a.rows = dw->extent[0];
    a.h = dw->extent[1];
    if (a.tokens > INT32_MAX / 4 || a.rows >= INT32_MAX)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "more tokens or rows than a sort counts");
    int32_t rc = cu_want(i, dy, a.tokens * a.h, "the operand of rows", err);
    while (a.rows >> bits)
        bits++;
    a.passes = (bits + DIGIT - 1) / DIGIT;
    a.digit = (bits + a.passes - 1) / a.passes;
    a.dy = cu_ref_of(dy);
    a.dw = cu_ref_of(dw);
    a.ids = (const int32_t *)ids->data;
    a.first = dw->start[0];
    a.tiles = (int32_t)((a.tokens + TILE - 1) / TILE);
    a.chunks = (int32_t)((a.tokens + CHUNK - 1) / CHUNK);
    a.adds = cu_accumulates(i);
    int wide = cu_wide_dtype(dy->dtype) || cu_wide_dtype(dw->dtype);
    int v = !wide && a.h % 8 == 0 && cu_aligned(dy->data, 16) && cu_aligned(dw->data, 16) ? 8 : 1;
    cu_pack(k, wide ? run<1, double> : v == 8 ? run<8, float> : run<1, float>, &a, sizeof a);
    lists_of(a, NULL, &bytes);
    return rc ? rc : cu_scratch_reserve(d, bytes + (size_t)a.chunks * 2 * (size_t)a.h * (wide ? 8 : 4), err);
}
