/* plugins/device-cpu/kernels/rows.h: shared by the vectorised kernels.
 *
 * Work is cut into parts that depend on shapes alone (chunks of CPU_CHUNK elements, rows, blocks of rows), and each
 * part is done by one thread: results are the same bits for any number of threads. Arithmetic is in fp32; operands are
 * fp32, bf16 or fp16. Inner loops are plain C that the compiler vectorises, once for each instruction set (CPU_CLONES),
 * chosen by the one in use (isa.h), and once for fp32 and bf16 (CPU_EITHER): where all inputs are bf16 the loop widens
 * them as it reads; where dtypes are mixed, and fp16, they pass through a small fp32 buffer on the stack. So do short
 * results: rounding is a loop of its own, for which newer machines have an instruction. */
#ifndef HD_DEVICE_CPU_KERNELS_ROWS_H
#define HD_DEVICE_CPU_KERNELS_ROWS_H

#include "internal.h"
#include "isa.h"
#include <math.h>

#define CPU_INLINE static inline __attribute__((always_inline))

/* CPU_CLONES(void, name, (int64_t n, float *y), (n, y)) { ... }: a static function whose body is compiled for each
 * width of vectors; a call runs the one of the instruction set in use. */
#if defined __x86_64__ && defined __GNUC__ && !defined __clang__
#define CPU_CLONES(type, name, parameters, arguments)                                           \
    CPU_INLINE type name##_body parameters;                                                     \
    __attribute__((target("arch=x86-64-v4"))) static type name##_v4 parameters                  \
    {                                                                                           \
        return name##_body arguments;                                                           \
    }                                                                                           \
    __attribute__((target("arch=x86-64-v3"))) static type name##_v3 parameters                  \
    {                                                                                           \
        return name##_body arguments;                                                           \
    }                                                                                           \
    static type name##_v1 parameters                                                            \
    {                                                                                           \
        return name##_body arguments;                                                           \
    }                                                                                           \
    static type name parameters                                                                 \
    {                                                                                           \
        static type(*const clones[CPU_VECTORS]) parameters = {name##_v1, name##_v3, name##_v4}; \
        return clones[cpu_vectors()] arguments;                                                 \
    }                                                                                           \
    CPU_INLINE type name##_body parameters
#else
#define CPU_CLONES(type, name, parameters, arguments) static type name parameters
#endif

enum { CPU_CHUNK = 512 };

static inline int64_t cpu_chunks(int64_t n)
{
    return (n + CPU_CHUNK - 1) / CPU_CHUNK;
}

static inline int64_t cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- rows.c */

/* HD_OK where every operand is fp32, bf16 or fp16; operands whose bit (inputs from bit 0, outputs from bit 16) is in
 * `others` may be anything. */
int32_t cpu_fast_dtypes(const struct hd_kernel *k, uint32_t others, struct hd_error *err);

/* n elements from `at` as fp32: in place, or widened into buf. */
const float *cpu_read(const struct hd_operand *o, int64_t at, int64_t n, float *buf);

/* Memory for n results of an output: the output itself, or buf; cpu_end then rounds or adds them where that is asked
 * for. */
float *cpu_begin(const struct hd_kernel *k, uint32_t out, int64_t at, float *buf);
void cpu_end(const struct hd_kernel *k, uint32_t out, int64_t at, int64_t n, const float *buf);

/* As cpu_end for an operand that is not an output's or never accumulates. */
void cpu_write(const struct hd_operand *o, int64_t at, int64_t n, const float *buf);

/* Asks for the n elements that follow these n: loops that compute a lot see too little ahead by themselves. */
static inline void cpu_ahead(const struct hd_operand *o, int64_t at, int64_t n)
{
    int64_t size = (int64_t)hd_dtype_size(o->dtype);
    const char *next = (const char *)o->data + (at + n) * size;
    for (int64_t i = 0; i < n * size; i += 64)
        __builtin_prefetch(next + i);
}

float cpu_sum(const void *x, int64_t n, int half);
void cpu_add_to(float *y, const void *x, int64_t n, int half);

/* Are these inputs (a mask) all bf16, so that loops may read them as they lie? */
int cpu_half(const struct hd_kernel *k, uint32_t inputs);
/* As cpu_read, or where the input lies if `half`. */
const void *cpu_in(const struct hd_kernel *k, uint32_t in, int64_t at, int64_t n, float *buf, int half);

/* Row of the logits z [rows, v]: becomes its gradient, scale (p - onehot); returns -log p[label]. label -1: no such
 * entry. loss.c. */
enum { CPU_IGNORED = -2 }; /* a label that does not count */
float cpu_xent_row(const struct hd_operand *z, int64_t row, int64_t label, double scale);
/* The same number, and the row stays. */
float cpu_xent_loss(const struct hd_operand *z, int64_t row, int64_t label);

/* Elements of a flat operand that have one value (attrs.ranges), as this shard counts them. */
struct cpu_segment {
    int64_t first, last;
    double value;
};
/* Those of o, in the order of the ranges; out has room for as many. Returns how many. optimizer_update.c. */
int64_t cpu_segments(const struct hd_kernel *k, const struct hd_operand *o, struct cpu_segment *out);
/* Prepares a product of two operands element by element, all of one shape. elementwise.c. */
int32_t cpu_fast_mul(struct hd_kernel *k, struct hd_error *err);
/* Prepares sumsq with HD_SUM_DIGITS numbers. digits.c. */
int32_t cpu_fast_digits(struct hd_kernel *k, struct hd_error *err);

/* ---- for inner loops: element i of an operand that is bf16 (`half`, a constant) or fp32 */

/* fn is CPU_INLINE and its last parameter is `half`. */
#define CPU_EITHER(half, fn, ...) ((half) ? fn(__VA_ARGS__, 1) : fn(__VA_ARGS__, 0))

union cpu_bits {
    float f;
    uint32_t u;
};

CPU_INLINE float cpu_get(const void *x, int64_t i, int half)
{
    union cpu_bits wide = {.u = half ? (uint32_t)((const uint16_t *)x)[i] << 16 : 0};
    return half ? wide.f : ((const float *)x)[i];
}

/* exp, within 2 ulp on [-87, 88]; the least or the largest of these beyond, NaN of NaN. Coefficients: Cephes' expf. */
CPU_INLINE float cpu_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, in the low bits */
    float v = 88.3f < x ? 88.3f : x;
    v = -87.3f > v ? -87.3f : v;
    float t = v * 1.44269504f + magic, n = t - magic;
    float r = v - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union cpu_bits bits = {.f = t}, power;
    power.u = (bits.u + (127 - 0x4b400000u)) << 23;
    return p * power.f;
}

#endif
