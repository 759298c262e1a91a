#include "kernels/rows.h"

#include "kernels/half.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

int32_t cpu_fast_dtypes(const struct hd_kernel *k, uint32_t others, struct hd_error *err)
{
    for (uint32_t i = 0; i < k->d.n_in; i++)
        if (!cpu_fast_dtype(k->in[i].dtype) && !(others >> i & 1))
            return hd_fail(err, HD_E_UNSUPPORTED, "input %u is %s", i, hd_dtype_name(k->in[i].dtype));
    for (uint32_t i = 0; i < k->d.n_out; i++)
        if (!cpu_fast_dtype(k->out[i].dtype) && !(others >> (16 + i) & 1))
            return hd_fail(err, HD_E_UNSUPPORTED, "output %u is %s", i, hd_dtype_name(k->out[i].dtype));
    return HD_OK;
}

CPU_CLONES(void, widen, (float *y, const uint16_t *x, int64_t n), (y, x, n))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = cpu_get(x, i, 1);
}

/* To nearest, ties to even; NaN stays NaN. */
CPU_CLONES(void, narrow_plain, (uint16_t * y, const float *x, int64_t n), (y, x, n))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t b = ((union cpu_bits){.f = x[i]}).u, rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16,
                 quiet = b >> 16 | 0x40;
        y[i] = (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

#if defined __x86_64__ && defined __GNUC__ && !defined __clang__
#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

/* AVX512-BF16 takes subnormal values for zero: returns whether there is one. */
AVX512_BF16 static unsigned narrow_bf16(uint16_t *y, const float *x, int64_t n)
{
    enum { SUBNORMAL = 0x20 };
    unsigned found = 0;
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        found |= _mm512_fpclass_ps_mask(v, SUBNORMAL);
        _mm256_mask_storeu_epi16(y + i, mask, (__m256i)_mm512_cvtneps_pbh(v));
    }
    return found;
}

static void narrow(uint16_t *y, const float *x, int64_t n)
{
    if (cpu_isa() < CPU_ISA_AVX512_BF16 || narrow_bf16(y, x, n))
        narrow_plain(y, x, n);
}
#else
#define narrow narrow_plain
#endif

CPU_INLINE void add_to(float *y, const void *x, int64_t n, int half)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += cpu_get(x, i, half);
}

CPU_CLONES(void, add_to_any, (float *y, const void *x, int64_t n, int half), (y, x, n, half))
{
    CPU_EITHER(half, add_to, y, x, n);
}

void cpu_add_to(float *y, const void *x, int64_t n, int half)
{
    add_to_any(y, x, n, half);
}

CPU_INLINE float sum_of(const void *x, int64_t n, int half)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += cpu_get(x, i, half);
    return sum;
}

CPU_CLONES(float, sum_any, (const void *x, int64_t n, int half), (x, n, half))
{
    return CPU_EITHER(half, sum_of, x, n);
}

float cpu_sum(const void *x, int64_t n, int half)
{
    return sum_any(x, n, half);
}

const float *cpu_read(const struct hd_operand *o, int64_t at, int64_t n, float *buf)
{
    if (o->dtype == HD_F32)
        return (const float *)o->data + at;
    if (o->dtype == HD_F16)
        cpu_half_to_float(buf, (const uint16_t *)o->data + at, n);
    else
        widen(buf, (const uint16_t *)o->data + at, n);
    return buf;
}

float *cpu_begin(const struct hd_kernel *k, uint32_t out, int64_t at, float *buf)
{
    const struct hd_operand *o = &k->out[out];
    return o->dtype == HD_F32 && !cpu_accumulates(k) ? (float *)o->data + at : buf;
}

void cpu_end(const struct hd_kernel *k, uint32_t out, int64_t at, int64_t n, const float *buf)
{
    const struct hd_operand *o = &k->out[out];
    float sum[CPU_CHUNK];
    if (!cpu_accumulates(k)) {
        cpu_write(o, at, n, buf);
    } else if (o->dtype == HD_F32) {
        cpu_add_to((float *)o->data + at, buf, n, 0);
    } else {
        cpu_read(o, at, n, sum);
        cpu_add_to(sum, buf, n, 0);
        cpu_write(o, at, n, sum);
    }
}

void cpu_write(const struct hd_operand *o, int64_t at, int64_t n, const float *buf)
{
    if (o->dtype == HD_BF16)
        narrow((uint16_t *)o->data + at, buf, n);
    else if (o->dtype == HD_F16)
        cpu_half_from_float((uint16_t *)o->data + at, buf, n);
    else if ((const float *)o->data + at != buf)
        memcpy((float *)o->data + at, buf, (size_t)n * sizeof *buf);
}

int cpu_half(const struct hd_kernel *k, uint32_t inputs)
{
    for (uint32_t i = 0; i < k->d.n_in; i++)
        if (inputs >> i & 1 && k->in[i].dtype != HD_BF16)
            return 0;
    return 1;
}

const void *cpu_in(const struct hd_kernel *k, uint32_t in, int64_t at, int64_t n, float *buf, int half)
{
    return half ? (const void *)((const uint16_t *)k->in[in].data + at) : cpu_read(&k->in[in], at, n, buf);
}
