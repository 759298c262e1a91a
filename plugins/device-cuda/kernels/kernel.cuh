/* Basis of all kernels: launches, element types, wide reads and writes, reductions. Compiled by nvcc for GPUs, and by a
 * plain C++ compiler for tests, which run kernels on the CPU (tests/emulate).
 *
 * So that both work, kernels say CU_SHARED and CU_SHARED_DYNAMIC instead of __shared__, CU_LAUNCH instead of <<<>>>,
 * use the types below instead of cuda_bf16.h's, and what is special to tensor cores from mma.cuh. */
#ifndef HD_DEVICE_CUDA_KERNELS_KERNEL_CUH
#define HD_DEVICE_CUDA_KERNELS_KERNEL_CUH

#include "internal.h"
#include <cuda_runtime.h>
#include <math.h>

#ifndef CU_EMULATE
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define CU_DEVICE static __device__ __forceinline__

/* CU_SHARED(float, tile, [32][33]): shared memory of a block. */
#define CU_SHARED(type, name, dims) __shared__ type name dims

/* The block's dynamic shared memory as type *name; 128-byte aligned. */
#define CU_SHARED_DYNAMIC(type, name)                                                                                  \
    extern __shared__ __align__(128) unsigned char cu_dynamic_memory[];                                                \
    type *name = reinterpret_cast<type *>(cu_dynamic_memory)

/* CU_LAUNCH(kernel, grid, block, shared bytes, stream, arguments...): a cudaError_t. Put a kernel with commas in its
 * template arguments in parentheses. */
#define CU_LAUNCH(kernel, grid, block, shared, stream, ...)                                                            \
    ((kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__), cudaPeekAtLastError())

/* For prepare: the kernel may be launched with so many bytes of dynamic shared memory. */
template <class F> static inline cudaError_t cu_allow_shared(F *kernel, size_t bytes)
{
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#else
#define CU_DEVICE static inline
#endif

/* The result of `run`, from that of a launch. */
static inline int32_t cu_launched(const struct hd_kernel *k, cudaError_t rc, struct hd_error *err)
{
    return rc == cudaSuccess ? HD_OK : cu_fail(err, rc, k->label, "launching");
}

/* The packed arguments, as they were given to cu_pack. */
template <class T> static inline T cu_args(const struct hd_kernel *k)
{
    static_assert(sizeof(T) <= CU_ARGS_BYTES, "arguments are too long: CU_ARGS_BYTES");
    T args;
    memcpy(&args, k->args, sizeof args);
    return args;
}

/* ---- element types */

struct cu_bf16 {
    uint16_t bits;
};
struct cu_f16 {
    uint16_t bits;
};

CU_DEVICE float cu_float(float x)
{
    return x;
}

CU_DEVICE float cu_float(double x)
{
    return (float)x;
}

CU_DEVICE float cu_float(cu_bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

CU_DEVICE float cu_float(cu_f16 x)
{
#ifndef CU_EMULATE
    return __half2float(__ushort_as_half(x.bits));
#else
    return emulate_from_half(x.bits);
#endif
}

/* Rounds to nearest, ties to even. */
CU_DEVICE void cu_set(float &y, float x)
{
    y = x;
}

CU_DEVICE void cu_set(double &y, float x)
{
    y = x;
}

CU_DEVICE void cu_set(cu_bf16 &y, float x)
{
#ifndef CU_EMULATE
    y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    y.bits = emulate_to_bfloat(x);
#endif
}

CU_DEVICE void cu_set(cu_f16 &y, float x)
{
#ifndef CU_EMULATE
    y.bits = __half_as_ushort(__float2half_rn(x));
#else
    y.bits = emulate_to_half(x);
#endif
}

template <class T> CU_DEVICE T cu_to(float x)
{
    T y;
    cu_set(y, x);
    return y;
}

/* ---- operands whose dtype is known when the kernel runs: one kernel serves all. Every thread takes the same
 * branch. */

struct cu_in {
    const void *data;
    uint32_t dtype;
    uint32_t wide; /* 16-byte reads are fine */
};

struct cu_out {
    void *data;
    uint32_t dtype;
    uint32_t wide;
    uint32_t add; /* add to what is there */
    uint32_t reserved;
};

static inline cu_in cu_in_of(const struct hd_operand *o)
{
    return {o->data, o->dtype, (uint32_t)cu_aligned(o->data, 16)};
}

static inline cu_out cu_out_of(const struct hd_instr_desc *i, uint32_t n)
{
    return {i->out[n].data, i->out[n].dtype, (uint32_t)cu_aligned(i->out[n].data, 16), cu_accumulates(i), 0};
}

CU_DEVICE float cu_get(const cu_in &x, int64_t i)
{
    switch (x.dtype) {
    case HD_F32:
        return ((const float *)x.data)[i];
    case HD_BF16:
        return cu_float(((const cu_bf16 *)x.data)[i]);
    case HD_F16:
        return cu_float(((const cu_f16 *)x.data)[i]);
    case HD_I32:
        return (float)((const int32_t *)x.data)[i];
    default:
        return (float)((const double *)x.data)[i];
    }
}

CU_DEVICE double cu_get_double(const cu_in &x, int64_t i)
{
    return x.dtype == HD_F64 ? ((const double *)x.data)[i] : (double)cu_get(x, i);
}

template <class T> CU_DEVICE void cu_put_as(const cu_out &y, int64_t i, float v)
{
    T *p = (T *)y.data + i;
    *p = cu_to<T>(y.add ? cu_float(*p) + v : v);
}

CU_DEVICE void cu_put(const cu_out &y, int64_t i, float v)
{
    if (y.dtype == HD_F32)
        cu_put_as<float>(y, i, v);
    else if (y.dtype == HD_BF16)
        cu_put_as<cu_bf16>(y, i, v);
    else if (y.dtype == HD_F16)
        cu_put_as<cu_f16>(y, i, v);
    else
        cu_put_as<double>(y, i, v);
}

/* 16 bytes at once; p is 16-byte aligned. */
template <class T> struct alignas(16) cu_pack16 {
    T at[16 / sizeof(T)];
};

template <class T, int N> CU_DEVICE void cu_read(const T *p, float (&v)[N])
{
    constexpr int M = 16 / (int)sizeof(T);
    static_assert(N % M == 0, "whole packs of 16 bytes");
#pragma unroll
    for (int j = 0; j < N; j += M) {
        cu_pack16<T> pack = *reinterpret_cast<const cu_pack16<T> *>(p + j);
#pragma unroll
        for (int k = 0; k < M; k++)
            v[j + k] = cu_float(pack.at[k]);
    }
}

template <class T, int N> CU_DEVICE void cu_write(T *p, const float (&v)[N])
{
    constexpr int M = 16 / (int)sizeof(T);
    static_assert(N % M == 0, "whole packs of 16 bytes");
#pragma unroll
    for (int j = 0; j < N; j += M) {
        cu_pack16<T> pack;
#pragma unroll
        for (int k = 0; k < M; k++)
            pack.at[k] = cu_to<T>(v[j + k]);
        *reinterpret_cast<cu_pack16<T> *>(p + j) = pack;
    }
}

/* Elements at .. at + 7, zeros from `end` on. Wide where the operand is, `at` is a multiple of 8 and all are there. */
CU_DEVICE void cu_get8(const cu_in &x, int64_t at, int64_t end, float (&v)[8])
{
    if (x.wide && at + 8 <= end && at % 8 == 0) {
        if (x.dtype == HD_F32)
            return cu_read((const float *)x.data + at, v);
        if (x.dtype == HD_BF16)
            return cu_read((const cu_bf16 *)x.data + at, v);
        if (x.dtype == HD_F16)
            return cu_read((const cu_f16 *)x.data + at, v);
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = at + j < end ? cu_get(x, at + j) : 0.0f;
}

template <class T> CU_DEVICE void cu_put8_as(const cu_out &y, int64_t at, float (&v)[8])
{
    T *p = (T *)y.data + at;
    if (y.add) {
        float old[8];
        cu_read(p, old);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] += old[j];
    }
    cu_write(p, v);
}

/* Writes (or adds) elements at .. at + 7 that lie before `end`; may change v. */
CU_DEVICE void cu_put8(const cu_out &y, int64_t at, int64_t end, float (&v)[8])
{
    if (y.wide && at + 8 <= end && at % 8 == 0) {
        if (y.dtype == HD_F32)
            return cu_put8_as<float>(y, at, v);
        if (y.dtype == HD_BF16)
            return cu_put8_as<cu_bf16>(y, at, v);
        if (y.dtype == HD_F16)
            return cu_put8_as<cu_f16>(y, at, v);
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (at + j < end)
            cu_put(y, at + j, v[j]);
}

/* ---- exponentials */

#define CU_LOG2E 1.4426950408889634f

/* 2^x, to 2 units in the last place; 0 for what would be subnormal. */
CU_DEVICE float cu_exp2(float x)
{
#ifndef CU_EMULATE
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* ---- reductions, in an order that depends on the shape of the block alone */

template <class T> CU_DEVICE T cu_warp_sum(T v)
{
#pragma unroll
    for (int d = 16; d; d >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

CU_DEVICE float cu_warp_max(float v)
{
#pragma unroll
    for (int d = 16; d; d >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

/* Over all threads of a one-dimensional block of whole warps; every thread calls it and gets the result. */
template <class T> CU_DEVICE T cu_block_sum(T v)
{
    CU_SHARED(T, partial, [32]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = cu_warp_sum(v);
    __syncthreads(); /* the last call's readers are done */
    if (lane == 0)
        partial[warp] = v;
    __syncthreads();
    return cu_warp_sum(lane < warps ? partial[lane] : T(0));
}

CU_DEVICE float cu_block_max(float v)
{
    CU_SHARED(float, partial, [32]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = cu_warp_max(v);
    __syncthreads();
    if (lane == 0)
        partial[warp] = v;
    __syncthreads();
    return cu_warp_max(lane < warps ? partial[lane] : -INFINITY);
}

/* Index of this thread in a one-dimensional grid, and the number of threads. */
CU_DEVICE int64_t cu_thread(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

CU_DEVICE int64_t cu_threads(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

#endif
