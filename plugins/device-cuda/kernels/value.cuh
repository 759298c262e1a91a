/* plugins/device-cuda: elements of operands in kernels.
 *
 * Which dtype an operand has is asked where it is read or written: all threads answer alike, and memory takes longer.
 * So a kernel has two instances, C = float and C = double, whatever its operands are. Eight elements are read or
 * written at a time (16 or 32 bytes) where they lie on 16 bytes, else one. Reading is in two steps, `fetch` and
 * `widen`, so that a kernel has the loads of all its operands in flight before it reads the first. */
#ifndef HD_DEVICE_CUDA_KERNELS_VALUE_CUH
#define HD_DEVICE_CUDA_KERNELS_VALUE_CUH

#include "kernels/kernel.cuh"

struct cu_ref {
    void *data;
    uint32_t dtype;
    uint32_t reserved;
};

/* The same where the compiler knows the dtype, for the few kernels that have an instance for it: a third of the
 * registers and instructions. */
template <uint32_t D> struct cu_ref_to : cu_ref {
};

/* A value that the compiler takes as new here: it would make a copy of a loop for each combination of dtypes. */
CU_DEVICE uint32_t cu_opaque(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

CU_DEVICE uint32_t cu_dtype(const cu_ref &x)
{
    return cu_opaque(x.dtype);
}

template <uint32_t D> CU_DEVICE uint32_t cu_dtype(const cu_ref_to<D> &)
{
    return D;
}

template <class R> CU_DEVICE R cu_ref_as(const cu_ref &x)
{
    R r;
    (cu_ref &)r = x;
    return r;
}

CU_DEVICE float cu_widen2(uint32_t bits, uint32_t dtype)
{
    float half = cu_float(cu_f16{(uint16_t)bits});
    return dtype == HD_BF16 ? __uint_as_float(bits << 16) : half;
}

CU_DEVICE uint32_t cu_round2(float v, uint32_t dtype)
{
    uint32_t half = cu_to<cu_f16>(v).bits, brain = cu_to<cu_bf16>(v).bits;
    return dtype == HD_BF16 ? brain : half;
}

CU_DEVICE uint32_t cu_round_pair(float low, float high, uint32_t dtype)
{
#ifndef CU_EMULATE
    __nv_bfloat162 brain = __floats2bfloat162_rn(low, high);
    __half2 half = __floats2half2_rn(low, high);
    return dtype == HD_BF16 ? *(const uint32_t *)&brain : *(const uint32_t *)&half;
#else
    return cu_round2(low, dtype) | cu_round2(high, dtype) << 16;
#endif
}

/* ---- one element */

template <class C> CU_DEVICE C cu_load(const cu_ref &x, int64_t i)
{
    uint32_t dtype = cu_opaque(x.dtype);
    switch (dtype) {
    case HD_F32:
        return (C)((const float *)x.data)[i];
    case HD_F64:
        return (C)((const double *)x.data)[i];
    case HD_I32:
        return (C)((const int32_t *)x.data)[i];
    case HD_U8:
        return (C)((const uint8_t *)x.data)[i];
    default:
        return (C)cu_widen2(((const uint16_t *)x.data)[i], dtype);
    }
}

template <class C> CU_DEVICE void cu_store(const cu_ref &y, int64_t i, C v)
{
    uint32_t dtype = cu_opaque(y.dtype);
    switch (dtype) {
    case HD_F32:
        ((float *)y.data)[i] = (float)v;
        break;
    case HD_F64:
        ((double *)y.data)[i] = (double)v;
        break;
    case HD_I32:
        ((int32_t *)y.data)[i] = (int32_t)v;
        break;
    case HD_U8:
        ((uint8_t *)y.data)[i] = (uint8_t)v;
        break;
    default:
        ((uint16_t *)y.data)[i] = (uint16_t)cu_round2((float)v, dtype);
    }
}

/* v as x's dtype holds it. */
template <class R> CU_DEVICE float cu_held(float v, const R &x)
{
    uint32_t dtype = cu_dtype(x);
    return dtype == HD_F32 ? v : cu_widen2(cu_round2(v, dtype), dtype);
}

template <class R> CU_DEVICE double cu_held(double v, const R &x)
{
    return cu_dtype(x) == HD_F64 ? v : (double)cu_held((float)v, x);
}

/* ---- V neighbours as they lie in memory: on their way from there, or to there */

template <class C, int V> struct cu_raw {
    static_assert(V == 1, "others have a layout of their own");
    C value;
    __device__ __forceinline__ void fetch(const cu_ref &x, int64_t i)
    {
        value = cu_load<C>(x, i);
    }
    __device__ __forceinline__ void widen(C (&v)[V], const cu_ref &) const
    {
        v[0] = value;
    }
    __device__ __forceinline__ void narrow(const C (&v)[V], const cu_ref &y)
    {
        value = cu_held(v[0], y);
    }
    __device__ __forceinline__ void store(const cu_ref &y, int64_t i) const
    {
        cu_store<C>(y, i, value);
    }
};

template <> struct cu_raw<float, 8> {
    uint4 a, b;
    template <class R> __device__ __forceinline__ void fetch(const R &x, int64_t i)
    {
        uint32_t wide = cu_dtype(x) == HD_F32;
        const uint4 *from = (const uint4 *)((const char *)x.data + (i << (1 + wide)));
        a = from[0];
        b = a;
        if (wide)
            b = from[1];
    }
    template <class R> __device__ __forceinline__ void widen(float (&v)[8], const R &x) const
    {
        const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, dtype = cu_dtype(x);
        if (dtype == HD_BF16) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[2 * i] = __uint_as_float(w[i] << 16);
                v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float half = cu_float(cu_f16{(uint16_t)(i % 2 ? w[i / 2] >> 16 : w[i / 2])});
                v[i] = dtype == HD_F32 ? __uint_as_float(w[i]) : half;
            }
        }
    }
    template <class R> __device__ __forceinline__ void narrow(const float (&v)[8], const R &y)
    {
        uint32_t dtype = cu_dtype(y);
        if (dtype == HD_F32) {
            a = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
            b = make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7]));
        } else {
            a = make_uint4(cu_round_pair(v[0], v[1], dtype), cu_round_pair(v[2], v[3], dtype),
                           cu_round_pair(v[4], v[5], dtype), cu_round_pair(v[6], v[7], dtype));
            b = a;
        }
    }
    template <class R> __device__ __forceinline__ void store(const R &y, int64_t i) const
    {
        uint32_t wide = cu_dtype(y) == HD_F32;
        uint4 *to = (uint4 *)((char *)y.data + (i << (1 + wide)));
        to[0] = a;
        if (wide)
            to[1] = b;
    }
};

template <int V, class C, class R> CU_DEVICE void cu_load_n(C (&v)[V], const R &x, int64_t i)
{
    cu_raw<C, V> raw;
    raw.fetch(x, i);
    raw.widen(v, x);
}

/* x + y, both loads in flight before either is used. */
template <int V, class C, class R> CU_DEVICE void cu_load_sum(C (&v)[V], const R &x, const R &y, int64_t i)
{
    cu_raw<C, V> x_raw, y_raw;
    C other[V];
    x_raw.fetch(x, i);
    y_raw.fetch(y, i);
    x_raw.widen(v, x);
    y_raw.widen(other, y);
#pragma unroll
    for (int j = 0; j < V; j++)
        v[j] += other[j];
}

/* narrow and store at once: apart they ask twice for the dtype, and a kernel short of registers spilled. */
template <class R> CU_DEVICE void cu_store_n(const R &y, int64_t i, const float (&v)[8])
{
    uint32_t dtype = cu_dtype(y);
    if (dtype == HD_F32) {
        float4 *to = (float4 *)y.data + i / 4;
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        uint4 w;
        w.x = cu_round_pair(v[0], v[1], dtype);
        w.y = cu_round_pair(v[2], v[3], dtype);
        w.z = cu_round_pair(v[4], v[5], dtype);
        w.w = cu_round_pair(v[6], v[7], dtype);
        ((uint4 *)y.data)[i / 8] = w;
    }
}

template <class C> CU_DEVICE void cu_store_n(const cu_ref &y, int64_t i, const C (&v)[1])
{
    cu_store<C>(y, i, v[0]);
}

/* Writes, or adds to what is there. */
template <int V, class C, class R> CU_DEVICE void cu_put_n(const R &y, int64_t i, C (&v)[V], int adds)
{
    if (cu_opaque((uint32_t)adds)) {
        C old[V];
        cu_load_n<V>(old, y, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[j] += old[j];
    }
    cu_store_n(y, i, v);
}

#endif
