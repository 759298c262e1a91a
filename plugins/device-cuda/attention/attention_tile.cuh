/* Tiles of attention in shared memory and as fragments of m16n8k16 products.
 *
 * A tile is rows of D 16-bit elements in chunks of 16 bytes. Chunks are swizzled: a chunk's position is turned by its
 * row, so that the eight rows that one ldmatrix reads lie in eight different groups of banks. */
#ifndef HD_DEVICE_CUDA_ATTENTION_ATTENTION_TILE_CUH
#define HD_DEVICE_CUDA_ATTENTION_ATTENTION_TILE_CUH

#include "attention/attention.h"
#include "kernels/mma.cuh"

/* A block's extent of queries and keys. It lies in shared memory, for registers are short. */
struct cu_extent {
    int b, head;     /* head: of b; among query heads or kv heads */
    int at;          /* its first query (or key) */
    int start, end;  /* the keys (or queries) that any of them sees */
    int full, until; /* those that all of them see */
};

/* Blocks of a section (so many heads that their keys and values stay in the cache) run one tile of every head, then the
 * next. *tile: of the head. */
CU_DEVICE cu_extent cu_attention_work(const cu_attention &a, int heads, int *tile)
{
    int id = (int)blockIdx.x, whole = a.section * a.tiles, section = id / whole, in = id % whole;
    int rest = a.h.b * heads - section * a.section, wide = rest < a.section ? rest : a.section;
    int head = section * a.section + in % wide;
    *tile = in / wide;
    return {head / heads, head % heads, 0, 0, 0, 0, 0};
}

/* A block of `rows` queries of a head; those with the most keys come first. */
CU_DEVICE cu_extent cu_queries_span(const cu_attention &a, int rows)
{
    int tile;
    cu_extent w = cu_attention_work(a, a.h.k * a.h.g, &tile);
    w.at = (a.tiles - 1 - tile) * rows;
    cu_run top = cu_visible(&a.h, w.b, w.at),
           bottom = cu_visible(&a.h, w.b, (w.at + rows < a.h.s ? w.at + rows : a.h.s) - 1);
    w.start = top.first;
    w.end = bottom.end;
    w.full = bottom.first;
    w.until = top.end;
    return w;
}

/* A block of `rows` keys of a kv head. */
CU_DEVICE cu_extent cu_keys_span(const cu_attention &a, int rows)
{
    int tile;
    cu_extent w = cu_attention_work(a, a.h.k, &tile);
    w.at = tile * rows;
    cu_run top = cu_seen_by(&a.h, w.b, w.at),
           bottom = cu_seen_by(&a.h, w.b, (w.at + rows < a.h.t ? w.at + rows : a.h.t) - 1);
    w.start = top.first;
    w.end = bottom.end;
    w.full = bottom.first;
    w.until = top.end;
    return w;
}

/* For every thread of the block to see. */
CU_DEVICE const cu_extent *cu_share(cu_extent *shared, const cu_extent &w)
{
    if (threadIdx.x == 0)
        *shared = w;
    __syncthreads();
    return shared;
}

template <int D> struct cu_tile {
    static constexpr int chunks = D / 8, turns = chunks % 8 ? 4 : 8;

    CU_DEVICE int turn(int row)
    {
        return (chunks % 8 ? row >> 1 : row) & (turns - 1);
    }

    /* Starts to copy `rows` of ROWS rows, `used` chunks each; the rest becomes zeros. `step`: bytes from row to row. A
     * thread keeps its columns and steps down by whole turns. */
    template <int ROWS, int THREADS>
    CU_DEVICE void fetch(cu_chunk *tile, const char *from, int step, int rows, int used)
    {
        constexpr int down = THREADS / turns;
        int thread = cu_again((int)threadIdx.x), row = thread / turns, lane = thread % turns;
        const char *next = from + (row * step + lane * 16);
        cu_chunk *to = tile + row * chunks + (lane ^ turn(row));
#pragma unroll
        for (int i = 0; i < ROWS / down; i++, next += down * step) {
#pragma unroll
            for (int c = 0; c < chunks / turns; c++) {
                bool there = row + i * down < rows && lane + c * turns < used;
                cu_copy16(to + i * down * chunks + c * turns, next + c * turns * 16, there);
            }
        }
    }
};

/* A lane's address for ldmatrix of 16 rows x 16 columns: a left factor, or with a transposition two right ones.
 * `chunk`: even. */
template <int D> CU_DEVICE int cu_down(int chunk)
{
    int lane = cu_again((int)threadIdx.x) & 31, row = lane & 15;
    return cu_again(row * (D / 8) + (chunk ^ lane >> 4 ^ cu_tile<D>::turn(row)));
}

/* The same for two right factors of 8 rows (n) x 16 columns (k). */
template <int D> CU_DEVICE int cu_across(int chunk)
{
    int lane = cu_again((int)threadIdx.x) & 31, row = (lane & 7) + (lane >> 4 << 3);
    return cu_again(row * (D / 8) + (chunk ^ (lane >> 3 & 1) ^ cu_tile<D>::turn(row)));
}

/* Two products with one left factor. */
template <class T>
CU_DEVICE void cu_mma_two(float (&c)[4], float (&next)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    cu_mma<T>(c, a, low);
    cu_mma<T>(next, a, high);
}

/* c[M][N] += a b' over D: 16 M rows of a, 8 N rows of b. Columns whose turns are the same share an address. */
template <class T, int D, int M, int N>
CU_DEVICE void cu_rows_by_rows(float (&c)[M][N][4], const cu_chunk *a, const cu_chunk *b)
{
#pragma unroll
    for (int turn = 0; turn < cu_tile<D>::turns; turn += 2) {
        int at_a = cu_down<D>(turn), at_b = cu_across<D>(turn);
#pragma unroll
        for (int k = 0; k < D / 8; k += cu_tile<D>::turns) {
            uint32_t left[M][4], right[4];
#pragma unroll
            for (int m = 0; m < M; m++)
                cu_ldmatrix(left[m], a + at_a + (k + m * 2 * D));
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                cu_ldmatrix(right, b + at_b + (k + n * D));
#pragma unroll
                for (int m = 0; m < M; m++) {
                    cu_mma_two<T>(c[m][n], c[m][n + 1], left[m], right);
                }
            }
        }
    }
}

/* c[M][D] += a b with a[M][K] in registers, as it comes out of a product, and K rows of b. */
template <class T, int D, int M, int K>
CU_DEVICE void cu_by_columns(float (&c)[M][D / 8][4], const uint32_t (&a)[M][K / 8][2], const cu_chunk *b)
{
    int at[cu_tile<D>::turns / 2];
#pragma unroll
    for (int turn = 0; turn < cu_tile<D>::turns; turn += 2)
        at[turn / 2] = cu_down<D>(turn);
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t right[4];
            cu_ldmatrix_trans(right, b + at[n % cu_tile<D>::turns / 2] +
                                         (n / cu_tile<D>::turns * cu_tile<D>::turns + k * 2 * D));
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t left[4] = {a[m][2 * k][0], a[m][2 * k][1], a[m][2 * k + 1][0], a[m][2 * k + 1][1]};
                cu_mma_two<T>(c[m][n], c[m][n + 1], left, right);
            }
        }
    }
}

template <int M, int N> CU_DEVICE void cu_zero(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
            c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
}

/* Over the four lanes that share a row. */
CU_DEVICE float cu_quad_most(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

CU_DEVICE float cu_quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

enum cu_columns { CU_KEYS, CU_QUERIES };

/* Scores of queries and keys that do not see each other: columns are the ones, rows the others. `row` and `column` are
 * the lane's first. */
template <cu_columns OF, int M, int N>
CU_DEVICE void cu_hide(float (&s)[M][N][4], const cu_heads &h, int b, int row, int column)
{
    const int rows = OF == CU_KEYS ? h.s : h.t;
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        int i = row + 8 * r, real = i < rows ? i : rows - 1;
        cu_run seen = OF == CU_KEYS ? cu_visible(&h, b, real) : cu_seen_by(&h, b, real);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int j = column + 8 * n + c;
                if (j < seen.first || j >= seen.end)
                    s[r / 2][n][r % 2 * 2 + c] = -INFINITY;
            }
    }
}

/* ---- launches */

struct cu_attention_kernel {
    void (*run)(cu_attention);
    int32_t rows, threads, shared; /* rows of a block: queries or keys */
    int32_t by_keys;
};

/* Arguments in a hd_kernel. */
struct cu_attention_call {
    cu_attention a;
    cu_attention_kernel kernel[2];
    int32_t n;
};

/* attention_wgmma.cu: the kernels for a GPU of compute capability 9.0, and head sizes of up to 64 or above 96. */
cu_attention_kernel cu_wgmma_forward(const cu_attention &a);
void cu_wgmma_gradient(const cu_attention &a, cu_attention_kernel (&kernel)[2]);

/* HD_E_UNSUPPORTED, err as it was: this GPU's blocks have too little shared memory (8.6 and 8.9, for some head sizes).
 */
static inline int32_t cu_attention_allow(struct hd_kernel *k, const cu_attention_call &call, struct hd_error *err)
{
    cudaError_t rc = cudaSuccess;
    for (int32_t n = 0; n < call.n && rc == cudaSuccess; n++) {
        if (call.kernel[n].shared + (int32_t)sizeof(cu_extent) > k->device->shared_limit)
            return HD_E_UNSUPPORTED;
        rc = cu_allow_shared(call.kernel[n].run, (size_t)call.kernel[n].shared);
    }
    return cu_fail(err, rc, k->label, "shared memory for attention");
}

/* Heads whose keys and values, or queries and gradients, take about as much as stays in the cache of a GPU (40 MB and
 * more). */
static inline int32_t cu_attention_section(const cu_heads &h, int32_t by_keys)
{
    int64_t bytes = 4 * (int64_t)h.d * (by_keys ? (int64_t)h.s * h.g : h.t / h.g + 1),
            fit = (INT64_C(16) << 20) / bytes;
    int64_t heads = (int64_t)h.b * h.k * (by_keys ? 1 : h.g);
    return (int32_t)(fit < 1 ? 1 : fit < heads ? fit : heads);
}

static inline int32_t cu_attention_run(struct hd_kernel *k, const cu_attention_kernel &kernel, cu_attention a,
                                       cudaStream_t stream, struct hd_error *err)
{
    int32_t n = kernel.by_keys ? a.h.t : a.h.s, heads = a.h.k * (kernel.by_keys ? 1 : a.h.g);
    a.tiles = (n + kernel.rows - 1) / kernel.rows;
    a.section = cu_attention_section(a.h, kernel.by_keys);
    unsigned blocks = (unsigned)((int64_t)a.tiles * a.h.b * heads);
    return cu_launched(k, CU_LAUNCH(kernel.run, blocks, kernel.threads, kernel.shared, stream, a), err);
}

#endif
