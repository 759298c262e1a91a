/* core/base/dtype: a dtype's columns beside its row in HD_DTYPES (heddle/types.h). All that depends on a dtype
 * outside of plugins reads them, so a new dtype is a row there, a row here, and kernels. A row without columns does
 * not compile. */
#ifndef HD_CORE_BASE_DTYPE_H
#define HD_CORE_BASE_DTYPE_H

#include "core/base/base.h"

/* Class; dtype in which sums are formed, and sent until they are complete; element and accumulator in C, and the
 * conversions between them; significant bits and largest exponent as in <float.h>; names in safetensors, in printed
 * programs and in nccl-tests. CODE: bytes that an encoder made of other values; as numbers they are integers. */
#define HD__DTYPE_HD_F32 FLOAT, HD_F32, float, float, HD__SAME, HD__SAME, 24, 128, "F32", "f32", "float"
#define HD__DTYPE_HD_BF16 FLOAT, HD_F32, uint16_t, float, hd__from_bf16, hd__to_bf16, 8, 128, "BF16", "bf16", "bfloat16"
#define HD__DTYPE_HD_F16 FLOAT, HD_F32, uint16_t, float, hd__from_f16, hd__to_f16, 11, 16, "F16", "f16", "half"
#define HD__DTYPE_HD_F64 FLOAT, HD_F64, double, double, HD__SAME, HD__SAME, 53, 1024, "F64", "f64", "double"
#define HD__DTYPE_HD_I32 INT, HD_I32, int32_t, int64_t, HD__SAME, (uint32_t), 31, 0, "I32", "i32", "int32"
#define HD__DTYPE_HD_U8 CODE, HD_U8, uint8_t, uint64_t, HD__SAME, HD__SAME, 8, 0, "U8", "u8", "uint8"
#define HD__SAME(x) (x)

/* X(constant, name, the columns above), from a macro that HD_DTYPES takes. */
#define HD__DTYPE_COLUMNS(X, constant, name) HD__DTYPE_EXPAND(X, constant, name, HD__DTYPE_##constant)
#define HD__DTYPE_EXPAND(X, ...) X(__VA_ARGS__)

enum { HD__CLASS_FLOAT = 1, HD__CLASS_INT, HD__CLASS_CODE };

struct hd__dtype {
    uint8_t class, sum; /* HD__CLASS_..., HD_F32 ... */
    int16_t digits, max_exp;
    const char *safetensors, *mnemonic, *nccl_tests;
};

#define HD__DTYPE_ONE(constant, value, name, bytes) +1
enum { HD__DTYPE_COUNT = 1 HD_DTYPES(HD__DTYPE_ONE) }; /* numbered from 1, without gaps */

extern const struct hd__dtype hd__dtypes[HD__DTYPE_COUNT]; /* [0]: no dtype */

/* The columns of a dtype; those of [0] for an unknown one. */
static inline const struct hd__dtype *hd__dtype(uint32_t dtype)
{
    return &hd__dtypes[dtype < HD__DTYPE_COUNT ? dtype : 0];
}

static inline int hd__is_float(uint32_t dtype)
{
    return hd__dtype(dtype)->class == HD__CLASS_FLOAT;
}

/* Are sums formed in a wider dtype (fp32), and rounded once? */
static inline int hd__is_narrow(uint32_t dtype)
{
    return hd__dtype(dtype)->sum && hd__dtype(dtype)->sum != dtype;
}

/* The dtypes of class FLOAT in their order, from 0; 0 past the last one. */
uint32_t hd__dtype_float_at(uint32_t n);

/* One element of any dtype. */
double hd__dtype_load(uint32_t dtype, const void *at);
void hd__dtype_store(uint32_t dtype, void *at, double value);

/* Elements of a dtype of class FLOAT, rounded to nearest, ties to even. 0: converted, else it is of another class. `in`
 * and `out` may not overlap. */
int hd__to_f32(uint32_t dtype, const void *in, float *out, uint64_t count);
int hd__from_f32(uint32_t dtype, const float *in, void *out, uint64_t count);

/* ---- one element, in a form that compilers make vectors of */

static inline float hd__from_bf16(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t hd__to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float hd__from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exp = x >> 10 & 31, man = x & 0x3ff, u;
    float f = (float)man * 0x1p-24f; /* subnormal: exact */
    if (exp) {
        u = exp == 31 ? 0x7f800000 | man << 13 : (exp + 112) << 23 | man << 13;
        memcpy(&f, &u, 4);
    }
    memcpy(&u, &f, 4);
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t hd__to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: adding 0.5 leaves the value in units of 2^-24, rounded to even */
        float g;
        memcpy(&g, &a, 4);
        g += 0.5f;
        memcpy(&a, &g, 4);
        return (uint16_t)(sign | (a - 0x3f000000));
    }
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

#endif
