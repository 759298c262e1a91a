/* Shared by most kernels: operands as kernels see them, sums over groups of threads, checks for prepare functions. */
#ifndef HD_DEVICE_CUDA_KERNELS_OPERANDS_CUH
#define HD_DEVICE_CUDA_KERNELS_OPERANDS_CUH

#include "kernels/value.cuh"

/* ---- preparing */

static inline cu_ref cu_ref_of(const struct hd_operand *o)
{
    cu_ref r = {o->data, o->dtype, 0};
    return r;
}

/* fp64, and what fp32 does not hold. */
static inline int cu_wide_dtype(uint32_t dtype)
{
    return dtype != HD_F32 && dtype != HD_BF16 && dtype != HD_F16;
}

/* Kernels compute in double where an operand that is no scalar asks for it. */
static inline int cu_wide(const struct hd_instr_desc *i)
{
    int wide = 0;
    for (uint32_t x = 0; x < i->n_in; x++)
        wide |= i->in[x].ndim && cu_wide_dtype(i->in[x].dtype);
    for (uint32_t y = 0; y < i->n_out; y++)
        wide |= i->out[y].ndim && cu_wide_dtype(i->out[y].dtype);
    return wide;
}

/* Every operand lies on 16 bytes: an index that is a multiple of 8 may be read with its 7 neighbours. */
static inline int cu_all_aligned(const struct hd_instr_desc *i)
{
    int aligned = 1;
    for (uint32_t x = 0; x < i->n_in; x++)
        aligned &= !i->in[x].ndim || cu_aligned(i->in[x].data, 16);
    for (uint32_t y = 0; y < i->n_out; y++)
        aligned &= !i->out[y].ndim || cu_aligned(i->out[y].data, 16);
    return aligned;
}

/* Whole eights among n elements; 0 where they cannot be read as such. */
static inline int64_t cu_vectors(const struct hd_instr_desc *i, int64_t n)
{
    return cu_wide(i) || !cu_all_aligned(i) ? 0 : n / 8;
}

static inline int32_t cu_want(const struct hd_instr_desc *i, const struct hd_operand *o, int64_t n, const char *what,
                              struct hd_error *err)
{
    if (hd_operand_count(o) == n)
        return HD_OK;
    return cu_refuse(err, HD_E_INVALID, i, "%s has %lld elements, the others ask for %lld", what,
                     (long long)hd_operand_count(o), (long long)n);
}

/* Every operand with as many elements as the first output. */
static inline int32_t cu_same(const struct hd_instr_desc *i, struct hd_error *err)
{
    int64_t n = hd_operand_count(&i->out[0]);
    int32_t rc = HD_OK;
    for (uint32_t x = 0; !rc && x < i->n_in; x++)
        rc = cu_want(i, &i->in[x], n, "an input", err);
    for (uint32_t y = 1; !rc && y < i->n_out; y++)
        rc = cu_want(i, &i->out[y], n, "an output", err);
    return rc;
}

/* ---- numbers */

template <class C> struct cu_width { /* elements that are read at once where they may */
    enum { most = 1 };
};

template <> struct cu_width<float> {
    enum { most = 8 };
};

CU_DEVICE float cu_exp(float x)
{
    return expf(x);
}

CU_DEVICE double cu_exp(double x)
{
    return exp(x);
}

CU_DEVICE float cu_log(float x)
{
    return logf(x);
}

CU_DEVICE double cu_log(double x)
{
    return log(x);
}

/* To two units of the last place; 0 where b is beyond 2^126. */
CU_DEVICE float cu_quotient(float a, float b)
{
#ifndef CU_EMULATE
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

CU_DEVICE float cu_sigmoid(float x)
{
    return cu_quotient(1.0f, 1.0f + expf(-x));
}

CU_DEVICE double cu_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

CU_DEVICE float cu_rsqrt(float x)
{
    return rsqrtf(x);
}

CU_DEVICE double cu_rsqrt(double x)
{
    return 1 / sqrt(x);
}

/* sin and cos of so many turns of a circle, at most one half either way. */
CU_DEVICE void cu_circle(double turns, float *s, float *c)
{
#ifndef CU_EMULATE
    sincospif((float)(2 * turns), s, c);
#else
    *s = (float)sin(2 * M_PI * turns);
    *c = (float)cos(2 * M_PI * turns);
#endif
}

CU_DEVICE void cu_circle(double turns, double *s, double *c)
{
#ifndef CU_EMULATE
    sincospi(2 * turns, s, c);
#else
    *s = sin(2 * M_PI * turns);
    *c = cos(2 * M_PI * turns);
#endif
}

/* ---- positions of a sequence that is stored in zig-zag order: hd_position, and back */

struct cu_zigzag {
    int64_t parts, run; /* run 0: in order */
};

static inline cu_zigzag cu_zigzag_of(const struct hd_attrs *a)
{
    cu_zigzag z = {a->zigzag_parts, a->zigzag_parts > 1 ? a->zigzag_length / (2 * a->zigzag_parts) : 0};
    return z;
}

CU_DEVICE int64_t cu_position(const cu_zigzag &z, int64_t index)
{
    if (z.run < 1)
        return index;
    int64_t part = index / (2 * z.run), at = index % (2 * z.run);
    return at < z.run ? part * z.run + at : (2 * z.parts - 1 - part) * z.run + at - z.run;
}

CU_DEVICE int64_t cu_index_of(const cu_zigzag &z, int64_t position)
{
    if (z.run < 1)
        return position;
    int64_t at = position / z.run;
    return (at < z.parts ? 2 * at : 2 * (2 * z.parts - 1 - at) + 1) * z.run + position % z.run;
}

/* The larger of two; a NaN wins. */
template <class C> CU_DEVICE C cu_most(C a, C b)
{
    return a > b || a != a ? a : b;
}

/* ---- sums over `lanes` neighbouring threads, a power of two: all of them get the sum, in an order that lanes alone
 * says. Above 32 the whole block calls, with 32 numbers of shared memory that nothing else uses meanwhile. */
template <class C> CU_DEVICE C cu_sum(C v, int lanes, C *shared)
{
    for (int d = (lanes < 32 ? lanes : 32) / 2; d > 0; d /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, d);
    if (lanes > 32) {
        int warp = threadIdx.x / 32, first = threadIdx.x / lanes * (lanes / 32);
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            shared[warp] = v;
        __syncthreads();
        v = 0;
        for (int w = 0; w < lanes / 32; w++)
            v += shared[first + w];
    }
    return v;
}

template <class C> CU_DEVICE C cu_largest(C v, int lanes, C *shared)
{
    for (int d = (lanes < 32 ? lanes : 32) / 2; d > 0; d /= 2)
        v = cu_most(v, __shfl_xor_sync(0xffffffffu, v, d));
    if (lanes > 32) {
        int warp = threadIdx.x / 32, first = threadIdx.x / lanes * (lanes / 32);
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            shared[warp] = v;
        __syncthreads();
        v = shared[first];
        for (int w = 1; w < lanes / 32; w++)
            v = cu_most(v, shared[first + w]);
    }
    return v;
}

#endif
