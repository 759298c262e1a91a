#include "fast_rows.h"

typedef uint32_t __attribute__((may_alias)) float_bits;

static int dtype_ok(const struct hd_operand *o)
{
    return o->dtype == HD_F32 || o->dtype == HD_BF16;
}

int32_t cpu_fast_dtypes(const struct hd_kernel *k, uint32_t others, struct hd_error *err)
{
    for (uint32_t i = 0; i < k->d.n_in; i++)
        if (!dtype_ok(&k->in[i]) && !(others >> i & 1))
            return hd_fail(err, HD_E_UNSUPPORTED, "input %u is %s", i, hd_dtype_name(k->in[i].dtype));
    for (uint32_t i = 0; i < k->d.n_out; i++)
        if (!dtype_ok(&k->out[i]) && !(others >> (16 + i) & 1))
            return hd_fail(err, HD_E_UNSUPPORTED, "output %u is %s", i, hd_dtype_name(k->out[i].dtype));
    return HD_OK;
}

CPU_CLONES static void widen(float *y, const uint16_t *x, int64_t n)
{
    float_bits *bits = (float_bits *)(void *)y;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        bits[i] = (uint32_t)x[i] << 16;
}

/* Round to nearest, ties to even; NaN stays NaN. */
CPU_CLONES static void narrow(uint16_t *y, const float *x, int64_t n)
{
    const float_bits *bits = (const float_bits *)(const void *)x;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t b = bits[i];
        uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
        uint32_t quiet = b >> 16 | 0x40;
        y[i] = (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

CPU_CLONES void cpu_add_to(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

CPU_CLONES float cpu_sum(const float *x, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

const float *cpu_read(const struct hd_operand *o, int64_t at, int64_t n, float *buf)
{
    if (o->dtype == HD_F32)
        return (const float *)o->data + at;
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
        cpu_add_to((float *)o->data + at, buf, n);
    } else {
        widen(sum, (const uint16_t *)o->data + at, n);
        cpu_add_to(sum, buf, n);
        narrow((uint16_t *)o->data + at, sum, n);
    }
}

void cpu_write(const struct hd_operand *o, int64_t at, int64_t n, const float *buf)
{
    if (o->dtype == HD_BF16)
        narrow((uint16_t *)o->data + at, buf, n);
    else if ((const float *)o->data + at != buf)
        memcpy((float *)o->data + at, buf, (size_t)n * sizeof *buf);
}
