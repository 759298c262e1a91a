/* Products of experts without a capacity: a slot for every token of every expert, most of them empty. Which hold tokens
 * is known on the device alone. A block first lists an expert's slots with tokens, in order; then blocks of 128 x 128
 * results multiply rows of the list, and those beyond its end have nothing to do. Sums are in fp32, over k in order.
 *
 * Tiles of 64 deep come by asynchronous copies, DEPTH on their way. Chunks of 16 bytes are swizzled within their row,
 * so that eight rows which ldmatrix reads at once lie in different banks. Warps: 2 x 4, 64 x 32 results each. */
#include "kernels/mma.cuh"
#include "experts/grouped.h"

namespace {

enum { THREADS = 256, TILE = 128, DEEP = 64, DEPTH = 3, LISTERS = 1024, GROUP = 8 };
enum { CHUNKS = TILE * DEEP / 8, STAGE = 2 * CHUNKS, SHARED = DEPTH * STAGE * 16 };

struct alignas(16) chunk {
    uint32_t at[4];
};

/* ---- lists */

__global__ void __launch_bounds__(LISTERS) list_kernel(const __grid_constant__ cu_grouped a)
{
    CU_SHARED(int, before, [LISTERS / 32 + 1]);
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    int64_t e = blockIdx.x, room = a.b * a.slots;
    int32_t *list = a.list + e * room, n = 0;
    for (int64_t first = 0; first < room; first += LISTERS) {
        int64_t i = first + threadIdx.x, slot = (i / a.slots * a.e + e) * a.slots + i % a.slots;
        bool there = i < room && a.token[slot] > 0;
        unsigned set = __ballot_sync(0xffffffffu, there);
        if (lane == 0)
            before[warp] = __popc(set);
        __syncthreads();
        if (threadIdx.x == 0) {
            int sum = 0;
            for (int w = 0; w < LISTERS / 32; w++) {
                int of = before[w];
                before[w] = sum;
                sum += of;
            }
            before[LISTERS / 32] = sum;
        }
        __syncthreads();
        if (there)
            list[n + before[warp] + __popc(set & ((1u << lane) - 1))] = (int32_t)slot;
        n += before[LISTERS / 32];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        a.count[e] = n;
}

/* ---- tiles: WIDE chunks a row */

template <int WIDE> CU_DEVICE int swizzle(int row, int c)
{
    return row * WIDE + (c ^ (row & 7));
}

/* Rows of [.., width] from column chunk c0 on: those of the list from `first` on, or with LISTED = false of `from`
 * itself; `end`: how many there are. */
template <int WIDE, bool LISTED>
CU_DEVICE void fetch(chunk *tile, const char *from, const int32_t *list, int first, int end, int width, int c0)
{
#pragma unroll
    for (int i = 0; i < CHUNKS / THREADS; i++) {
        int at = (int)threadIdx.x + i * THREADS, row = at / WIDE, c = at % WIDE;
        bool there = first + row < end && (c0 + c) * 8 < width;
        int64_t line = !there ? 0 : LISTED ? list[first + row] : first + row;
        cu_copy16(tile + swizzle<WIDE>(row, c), from + (line * width + (there ? (c0 + c) * 8 : 0)) * 2, there);
    }
}

struct work {
    const char *from, *with;
    const int32_t *list;
    int count, row0, col0; /* rows with tokens; the results' first row and column */
};

enum { SHORT = DEEP / 8, LONG = TILE / 8 };

/* The s-th step along what is summed. */
template <int KIND> CU_DEVICE void fetch_step(const cu_grouped &a, const work &w, chunk *left, chunk *right, int s)
{
    if (KIND == CU_GROUPED_SUMS) {
        fetch<LONG, true>(left, w.from, w.list, s * DEEP, w.count, a.m, w.row0 / 8);
        fetch<LONG, true>(right, w.with, w.list, s * DEEP, w.count, a.n, w.col0 / 8);
    } else {
        fetch<SHORT, true>(left, w.from, w.list, w.row0, w.count, a.k, s * SHORT);
        if (KIND == CU_GROUPED_TURNED)
            fetch<SHORT, false>(right, w.with, NULL, w.col0, a.n, a.k, s * SHORT);
        else
            fetch<LONG, false>(right, w.with, NULL, s * DEEP, a.k, a.n, w.col0 / 8);
    }
}

/* 16 rows from `row` on and 16 deep from `deep` on, as the left factor of mma. */
template <int KIND> CU_DEVICE void left_factor(uint32_t (&r)[4], const chunk *tile, int row, int deep)
{
    int lane = (int)threadIdx.x & 31;
    if (KIND == CU_GROUPED_SUMS)
        cu_ldmatrix_trans(r, tile + swizzle<LONG>(deep + (lane & 7) + (lane >> 4 << 3), row / 8 + (lane >> 3 & 1)));
    else
        cu_ldmatrix(r, tile + swizzle<SHORT>(row + (lane & 15), deep / 8 + (lane >> 4)));
}

/* 16 columns: two right factors. */
template <int KIND> CU_DEVICE void right_factors(uint32_t (&r)[4], const chunk *tile, int col, int deep)
{
    int lane = (int)threadIdx.x & 31;
    if (KIND == CU_GROUPED_TURNED)
        cu_ldmatrix(r, tile + swizzle<SHORT>(col + (lane & 7) + (lane >> 4 << 3), deep / 8 + (lane >> 3 & 1)));
    else
        cu_ldmatrix_trans(r, tile + swizzle<LONG>(deep + (lane & 15), col / 8 + (lane >> 4)));
}

template <class T, int KIND>
CU_DEVICE void multiply(float (&c)[4][4][4], const chunk *left, const chunk *right, int row, int col)
{
#pragma unroll
    for (int deep = 0; deep < DEEP; deep += 16) {
        uint32_t l[4][4], r[2][4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            left_factor<KIND>(l[m], left, row + 16 * m, deep);
#pragma unroll
        for (int n = 0; n < 2; n++)
            right_factors<KIND>(r[n], right, col + 16 * n, deep);
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint32_t of[2] = {r[n / 2][n % 2 * 2], r[n / 2][n % 2 * 2 + 1]};
                cu_mma<T>(c[m][n], l[m], of);
            }
    }
}

/* ---- results */

template <class T> struct alignas(2 * sizeof(T)) two {
    T low, high;
};

template <class T> CU_DEVICE void put_two(void *to, int64_t at, float x, float y, int adds)
{
    two<T> *p = (two<T> *)((T *)to + at);
    if (adds) {
        x += cu_float(p->low);
        y += cu_float(p->high);
    }
    *p = {cu_to<T>(x), cu_to<T>(y)};
}

template <class T, int KIND>
CU_DEVICE void put(const cu_grouped &a, const work &w, const float (&c)[4][4][4], int row, int col, int64_t expert)
{
    int lane = (int)threadIdx.x & 31, rows = KIND == CU_GROUPED_SUMS ? a.m : w.count;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = w.row0 + row + 16 * m + 8 * half + (lane >> 2);
            if (r >= rows)
                continue;
            int64_t line = KIND == CU_GROUPED_SUMS ? expert * a.m + r : w.list[r];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int at = w.col0 + col + 8 * n + 2 * (lane & 3);
                if (at >= a.n)
                    continue;
                if (a.to_dtype == HD_F32)
                    put_two<float>(a.to, line * a.n + at, c[m][n][2 * half], c[m][n][2 * half + 1], a.adds);
                else
                    put_two<T>(a.to, line * a.n + at, c[m][n][2 * half], c[m][n][2 * half + 1], a.adds);
            }
        }
}

/* ---- a block: a tile of results. Neighbours share columns of `with`, GROUP of them in turn */

template <class T, int KIND>
__global__ void __launch_bounds__(THREADS, 2) grouped_kernel(const __grid_constant__ cu_grouped a)
{
    CU_SHARED_DYNAMIC(chunk, room);
    int64_t expert = blockIdx.y;
    int turn = (int)(blockIdx.x % (unsigned)(GROUP * a.tiles)),
        tile = (int)(blockIdx.x / (unsigned)(GROUP * a.tiles)) * GROUP + turn % GROUP;
    int warp = (int)threadIdx.x >> 5, row = warp / 4 * 64, col = warp % 4 * 32;
    bool sums = KIND == CU_GROUPED_SUMS;
    work w = {(const char *)a.from,
              (const char *)a.with + (sums ? 0 : 2 * expert * a.k * a.n),
              a.list + expert * a.b * a.slots,
              a.count[expert],
              tile * TILE,
              turn / GROUP * TILE};
    if (w.row0 >= (sums ? a.m : w.count))
        return;
    int steps = ((sums ? w.count : a.k) + DEEP - 1) / DEEP;
    float c[4][4][4];
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
#pragma unroll
    for (int s = 0; s < DEPTH - 1; s++) {
        if (s < steps)
            fetch_step<KIND>(a, w, room + s * STAGE, room + s * STAGE + CHUNKS, s);
        cu_copy_commit();
    }
    for (int s = 0; s < steps; s++) {
        cu_copy_wait<DEPTH - 2>();
        __syncthreads(); /* this step is there for all, and the step before has been read by all */
        int next = s + DEPTH - 1;
        if (next < steps)
            fetch_step<KIND>(a, w, room + next % DEPTH * STAGE, room + next % DEPTH * STAGE + CHUNKS, next);
        cu_copy_commit();
        multiply<T, KIND>(c, room + s % DEPTH * STAGE, room + s % DEPTH * STAGE + CHUNKS, row, col);
    }
    cu_copy_wait<0>();
    put<T, KIND>(a, w, c, row, col, expert);
}

/* ---- launches */

typedef void (*kernel)(const cu_grouped);

template <class T> kernel choose(int32_t kind)
{
    return kind == CU_GROUPED_SUMS     ? grouped_kernel<T, CU_GROUPED_SUMS>
           : kind == CU_GROUPED_TURNED ? grouped_kernel<T, CU_GROUPED_TURNED>
                                       : grouped_kernel<T, CU_GROUPED_ROWS>;
}

kernel kernel_of(const cu_grouped &a)
{
    return a.dtype == HD_BF16 ? choose<cu_bf16>(a.kind) : choose<cu_f16>(a.kind);
}

int64_t list_bytes(const cu_grouped &a)
{
    return (a.e * a.b * a.slots * 4 + 255) / 256 * 256;
}

int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    cu_grouped a = cu_args<cu_grouped>(k);
    bool sums = a.kind == CU_GROUPED_SUMS;
    int64_t rows = sums ? a.m : a.b * a.slots, tiles = (rows + TILE * GROUP - 1) / (TILE * GROUP) * GROUP * a.tiles;
    a.list = (int32_t *)cu_scratch(k->device);
    a.count = (int32_t *)((char *)a.list + list_bytes(a));
    cudaError_t rc = CU_LAUNCH(list_kernel, (unsigned)a.e, LISTERS, 0, stream, a);
    if (rc == cudaSuccess && !sums && !a.adds) /* slots without a token are zeros */
        rc = cudaMemsetAsync(a.to, 0, (size_t)(a.e * rows * a.n) * hd_dtype_size(a.to_dtype), stream);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH(kernel_of(a), dim3((unsigned)tiles, (unsigned)a.e), THREADS, SHARED, stream, a);
    return cu_launched(k, rc, err);
}

} // namespace

extern "C" int32_t cu_grouped_prepare(struct hd_device *d, struct hd_kernel *k, const struct cu_grouped *given,
                                      struct hd_error *err)
{
    cu_grouped a = *given;
    if (d->shared_limit < SHARED || a.e > 65535 || a.e * a.b * a.slots > INT32_MAX)
        return HD_E_UNSUPPORTED;
    a.tiles = (a.n + TILE - 1) / TILE;
    cudaError_t rc = cu_allow_shared(kernel_of(a), SHARED);
    if (rc != cudaSuccess)
        return cu_fail(err, rc, k->label, "shared memory for products of experts");
    cu_pack(k, run, &a, sizeof a);
    return cu_scratch_reserve(d, (size_t)(list_bytes(a) + a.e * 4), err);
}
