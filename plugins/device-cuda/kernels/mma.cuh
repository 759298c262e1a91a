/* Tensor cores and asynchronous copies, sm_80 and newer: PTX ISA, sections "mma.m16n8k16 with floating point type",
 * "ldmatrix", "cp.async". With CU_EMULATE the same by exchanges within a warp. T is cu_bf16 or cu_f16; sums are fp32.
 *
 * Fragments of lane l, with g = l / 4 and t = l % 4; two elements a register, the lower column (of b: row) first:
 *     a  16 x 16  a[0] = (g, 2t..), a[1] = (g + 8, 2t..), a[2] = (g, 2t + 8..), a[3] = (g + 8, 2t + 8..)
 *     b  16 x 8   b[0] = (2t.., g), b[1] = (2t + 8.., g)
 *     c  16 x 8   c[0], c[1] = (g, 2t..), c[2], c[3] = (g + 8, 2t..) */
#ifndef HD_DEVICE_CUDA_KERNELS_MMA_CUH
#define HD_DEVICE_CUDA_KERNELS_MMA_CUH

#include "kernels/kernel.cuh"

/* 16 bytes, what moves at once. */
struct alignas(16) cu_chunk {
    uint32_t at[4];
};

#ifndef CU_EMULATE
CU_DEVICE uint32_t cu_pair_of(cu_bf16, float low, float high)
{
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

CU_DEVICE uint32_t cu_pair_of(cu_f16, float low, float high)
{
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
#else
template <class T> CU_DEVICE uint32_t cu_pair_of(T, float low, float high)
{
    return cu_to<T>(low).bits | (uint32_t)cu_to<T>(high).bits << 16;
}
#endif

/* x, which the compiler takes for changed: what follows from it is computed again instead of being kept in registers.
 */
CU_DEVICE int cu_again(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Two numbers in one register. */
template <class T> CU_DEVICE uint32_t cu_pair(float low, float high)
{
    return cu_pair_of(T{}, low, high);
}

#ifndef CU_EMULATE

CU_DEVICE unsigned cu_shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

CU_DEVICE void cu_mma_of(cu_bf16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

CU_DEVICE void cu_mma_of(cu_f16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 tiles of 16-bit elements; lane l gives the address of row l % 8 of tile l / 8 (16-byte aligned, shared
 * memory). r[i] of lane l: row l / 4 of tile i, elements 2 (l % 4).. */
CU_DEVICE void cu_ldmatrix(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

/* The same of transposed tiles: r[i] of lane l: column l / 4, rows 2 (l % 4).. */
CU_DEVICE void cu_ldmatrix_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

/* 16 bytes from global to shared memory, both 16-byte aligned; zeros where `there` is 0 (`from` is then not read). */
CU_DEVICE void cu_copy16(void *to, const void *from, int there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :
                 : "r"(cu_shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

/* Ends a group of this thread's copies. */
CU_DEVICE void cu_copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits until at most N of this thread's groups are under way. Other threads' copies are there after a barrier. */
template <int N> CU_DEVICE void cu_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

#else

CU_DEVICE void cu_mma_of(cu_bf16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emulate_mma(emulate_floats<cu_bf16>(), c, a, b);
}

CU_DEVICE void cu_mma_of(cu_f16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emulate_mma(emulate_floats<cu_f16>(), c, a, b);
}

CU_DEVICE void cu_ldmatrix(uint32_t (&r)[4], const void *row)
{
    emulate_ldmatrix(r, row, 0);
}

CU_DEVICE void cu_ldmatrix_trans(uint32_t (&r)[4], const void *row)
{
    emulate_ldmatrix(r, row, 1);
}

CU_DEVICE void cu_copy16(void *to, const void *from, int there)
{
    emulate_copy16(to, from, there);
}

CU_DEVICE void cu_copy_commit(void)
{
    emulate_copy_commit();
}

template <int N> CU_DEVICE void cu_copy_wait(void)
{
    emulate_copy_wait(N);
}

#endif

/* c += a b */
template <class T> CU_DEVICE void cu_mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    cu_mma_of(T{}, c, a, b);
}

#endif
