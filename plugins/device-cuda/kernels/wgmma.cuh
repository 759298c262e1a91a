/* Products of a warpgroup, four warps whose first is a multiple of four: sm_90a alone. PTX ISA, "Asynchronous warpgroup
 * level matrix multiply-accumulate"; its matrix descriptors, and CUTLASS' names for what they describe
 * (mma_traits_sm90_gmma.hpp). With CU_EMULATE the same, at the earliest or at the latest moment that the instructions
 * allow.
 *
 * Operands in shared memory are panels: so many rows of 64 16-bit elements, 128 bytes a row, a chunk of 16 bytes at
 * position chunk ^ row % 8 ("128-byte swizzle"). A panel begins at a multiple of 1024 bytes. A tile of D columns is
 * D / 64 panels in a row.
 *
 * Fragments of lane l of warp w (of the group), with g = l / 4 and t = l % 4:
 *     a  64 x 16  a[0] = (16 w + g, 2t..), a[1] = (16 w + g + 8, 2t..),
 *                 a[2] = (16 w + g, 2t + 8..), a[3] = (16 w + g + 8, 2t + 8..)
 *     c  64 x 8 N c[n][0], c[n][1] = (16 w + g, 8 n + 2t..), c[n][2], c[n][3] = (16 w + g + 8, 8 n + 2t..) */
#ifndef HD_DEVICE_CUDA_KERNELS_WGMMA_CUH
#define HD_DEVICE_CUDA_KERNELS_WGMMA_CUH

#include "kernels/mma.cuh"

#if defined(CU_EMULATE) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CU_HAS_WGMMA 1
#endif

enum { CU_PANEL = 64, CU_PANEL_ALIGN = 1024, CU_WARPGROUP = 128 };

#ifdef CU_HAS_WGMMA

/* `base` up to the next multiple of 1024; a block asks for so much more. */
CU_DEVICE cu_chunk *cu_panels(cu_chunk *base)
{
#ifndef CU_EMULATE
    unsigned at = cu_shared_address(base);
#else
    uintptr_t at = (uintptr_t)base;
#endif
    return base + (CU_PANEL_ALIGN - at % CU_PANEL_ALIGN) % CU_PANEL_ALIGN / sizeof *base;
}

/* Starts to copy `rows` of ROWS rows, `used` chunks each, into a tile of D columns; the rest becomes zeros. `step`:
 * bytes from row to row. */
template <int D, int ROWS, int THREADS>
CU_DEVICE void cu_fetch_panels(cu_chunk *tile, const char *from, int step, int rows, int used)
{
    constexpr int down = THREADS / 8;
    static_assert(down % 8 == 0, "a thread's place in its row is the same in all its rows");
    int thread = cu_again((int)threadIdx.x), row = thread / 8, lane = thread % 8;
    const char *next = from + (row * step + lane * 16);
    cu_chunk *to = tile + row * 8 + (lane ^ row % 8);
#pragma unroll
    for (int i = 0; i < (ROWS + down - 1) / down; i++, next += down * step) {
        if (ROWS % down && row + i * down >= ROWS)
            break;
#pragma unroll
        for (int p = 0; p < D / CU_PANEL; p++)
            cu_copy16(to + (p * ROWS + i * down) * 8, next + p * 128, row + i * down < rows && lane + p * 8 < used);
    }
}

/* Makes writes to shared memory, by completed copies too, visible to products after a barrier (fence.proxy.async). */
CU_DEVICE void cu_fence_async(void)
{
#ifndef CU_EMULATE
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#else
    emulate_fence_async();
#endif
}

#ifndef CU_EMULATE
CU_DEVICE void cu_hold_one(float &x)
{
    asm volatile("" : "+f"(x)::"memory");
}

CU_DEVICE void cu_hold_one(uint32_t &x)
{
    asm volatile("" : "+r"(x)::"memory");
}
#endif

/* The compiler keeps these registers where they are, sums and operands: before products are begun and after they were
 * waited for. */
template <class X, int N, int M> CU_DEVICE void cu_hold(X (&c)[N][M])
{
#ifndef CU_EMULATE
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < M; i++)
            cu_hold_one(c[n][i]);
#else
    (void)c;
#endif
}

/* Before the first product that reads or adds to registers that other instructions wrote. */
CU_DEVICE void cu_wgmma_begin(void)
{
#ifndef CU_EMULATE
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#else
    emulate_wgmma_begin();
#endif
}

/* Ends a group of products. */
CU_DEVICE void cu_wgmma_commit(void)
{
#ifndef CU_EMULATE
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#else
    emulate_wgmma_commit();
#endif
}

/* Waits until at most N groups are under way. Until then their sums, and operands in registers, may not be touched. */
template <int N> CU_DEVICE void cu_wgmma_wait(void)
{
#ifndef CU_EMULATE
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
#else
    emulate_wgmma_wait(N);
#endif
}

/* All that x depends on comes before the next wait. The assembler moves a wait ahead of arithmetic, which then does not
 * overlap with the products still under way, but not ahead of a volatile store: `room` has an element a thread, that
 * nobody reads. */
template <class X> CU_DEVICE void cu_wgmma_before_wait(X *room, X x)
{
#ifndef CU_EMULATE
    *(volatile X *)(room + threadIdx.x) = x;
#else
    (void)room;
    (void)x;
#endif
}

/* The matrix descriptor of an operand that begins at `at`; from eight rows to the next eight it is 1024 bytes.
 * `leading`: bytes from a panel to the next, for an operand whose columns the product keeps. */
CU_DEVICE uint64_t cu_descriptor(const cu_chunk *at, int leading)
{
#ifndef CU_EMULATE
    uint64_t address = cu_shared_address(at);
#else
    uint64_t address = (uint64_t)((const unsigned char *)at - (const unsigned char *)emulate_dynamic());
#endif
    return (address >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(CU_PANEL_ALIGN >> 4) << 32 |
           UINT64_C(1) << 62;
}

#ifndef CU_EMULATE

#define CU_SUMS_1(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define CU_SUMS_4(c, n) CU_SUMS_1(c, n), CU_SUMS_1(c, n + 1), CU_SUMS_1(c, n + 2), CU_SUMS_1(c, n + 3)
#define CU_SUMS_8(c, n) CU_SUMS_4(c, n), CU_SUMS_4(c, n + 4)
#define CU_NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31"
#define CU_NAMES_48 CU_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define CU_NAMES_64 CU_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* Overloads for a type and 8 N columns: operands by their rows, and registers by columns. d0 on: the numbers behind
 * those of the sums. */
#define CU_WGMMA(type, word, columns, names, sums, d0, d1, d2, d3, d4)                                                 \
    CU_DEVICE void cu_wgmma_rows_of(type, float(&c)[columns / 8][4], uint64_t a, uint64_t b, int add)                  \
    {                                                                                                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " d2 ", 0;\n"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." word "." word " {" names "}, " d0 ", " d1 \
                     ", p, 1, 1, 0, 0;\n}\n"                                                                           \
                     : sums                                                                                            \
                     : "l"(a), "l"(b), "r"(add));                                                                      \
    }                                                                                                                  \
    CU_DEVICE void cu_wgmma_columns_of(type, float(&c)[columns / 8][4], const uint32_t(&a)[4], uint64_t b)             \
    {                                                                                                                  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." word "." word " {" names "}, {" d0 "," d1 \
                     "," d2 "," d3 "}, " d4 ", 1, 1, 1, 1;\n"                                                          \
                     : sums                                                                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }
#define CU_SUMS_64 CU_SUMS_8(c, 0)
#define CU_SUMS_96 CU_SUMS_8(c, 0), CU_SUMS_4(c, 8)
#define CU_SUMS_128 CU_SUMS_8(c, 0), CU_SUMS_8(c, 8)
CU_WGMMA(cu_bf16, "bf16", 64, CU_NAMES_32, CU_SUMS_64, "%32", "%33", "%34", "%35", "%36")
CU_WGMMA(cu_f16, "f16", 64, CU_NAMES_32, CU_SUMS_64, "%32", "%33", "%34", "%35", "%36")
CU_WGMMA(cu_bf16, "bf16", 96, CU_NAMES_48, CU_SUMS_96, "%48", "%49", "%50", "%51", "%52")
CU_WGMMA(cu_f16, "f16", 96, CU_NAMES_48, CU_SUMS_96, "%48", "%49", "%50", "%51", "%52")
CU_WGMMA(cu_bf16, "bf16", 128, CU_NAMES_64, CU_SUMS_128, "%64", "%65", "%66", "%67", "%68")
CU_WGMMA(cu_f16, "f16", 128, CU_NAMES_64, CU_SUMS_128, "%64", "%65", "%66", "%67", "%68")

#else

template <class T, int N> CU_DEVICE void cu_wgmma_rows_of(T, float (&c)[N][4], uint64_t a, uint64_t b, int add)
{
    emulate_wgmma({emulate_floats<T>(), c[0], N, NULL, a, b, 0, add});
}

template <class T, int N> CU_DEVICE void cu_wgmma_columns_of(T, float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    emulate_wgmma({emulate_floats<T>(), c[0], N, a, 0, b, 1, 1});
}

#endif

/* c = a b' over D columns: 64 rows of a, whose panels have A rows, and 8 N rows of b, whose panels have B. */
template <class T, int D, int A, int B, int N>
CU_DEVICE void cu_wgmma_rows(float (&c)[N][4], const cu_chunk *a, const cu_chunk *b)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        int panel = k / 4, chunk = k % 4 * 2;
        cu_wgmma_rows_of(T{}, c, cu_descriptor(a + panel * A * 8 + chunk, 16),
                         cu_descriptor(b + panel * B * 8 + chunk, 16), k > 0);
    }
}

/* c[D] += a b with a[K] in registers, as it comes out of a product, and K rows of b, whose panels have B. */
template <class T, int D, int B, int K>
CU_DEVICE void cu_wgmma_columns(float (&c)[D / 8][4], const uint32_t (&a)[K / 8][2], const cu_chunk *b)
{
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        const uint32_t left[4] = {a[2 * k][0], a[2 * k][1], a[2 * k + 1][0], a[2 * k + 1][1]};
        cu_wgmma_columns_of(T{}, c, left, cu_descriptor(b + k * 16 * 8, B * 128));
    }
}

#endif
#endif
