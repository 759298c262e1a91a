/* Reductions. MPI has no bf16 and no fp16, its maximum may lose a NaN, and Open MPI's sum of bytes stops at 255 where
 * it uses AVX: those are operations of ours. All of them are commutative to the bit, so that an order of MPI's gives
 * every member the same. */
#include "internal.h"

static MPI_Op float_max, double_max, bf16_sum, bf16_max, f16_sum, f16_max, u8_sum;

#define SAME(x) (x)
#define ADD(a, b) ((a) + (b))
#define MOST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* a NaN wins */
#define REDUCTION(name, type, load, store, combine)                       \
    static void name(void *in, void *inout, int *n, MPI_Datatype *unused) \
    {                                                                     \
        const type *a = in;                                               \
        type *b = inout;                                                  \
        (void)unused;                                                     \
        for (int i = 0; i < *n; i++)                                      \
            b[i] = store(combine(load(a[i]), load(b[i])));                \
    }

REDUCTION(max_float, float, SAME, SAME, MOST)
REDUCTION(max_double, double, SAME, SAME, MOST)
REDUCTION(sum_bf16, uint16_t, cm_bf16_load, cm_bf16_store, ADD)
REDUCTION(max_bf16, uint16_t, cm_bf16_load, cm_bf16_store, MOST)
REDUCTION(sum_f16, uint16_t, cm_f16_load, cm_f16_store, ADD)
REDUCTION(max_f16, uint16_t, cm_f16_load, cm_f16_store, MOST)
REDUCTION(sum_u8, uint8_t, SAME, (uint8_t), ADD)

static const struct {
    MPI_User_function *function;
    MPI_Op *op;
} ops[] = {{max_float, &float_max}, {max_double, &double_max}, {sum_bf16, &bf16_sum}, {max_bf16, &bf16_max},
           {sum_f16, &f16_sum},     {max_f16, &f16_max},       {sum_u8, &u8_sum}};

int cm_sums_open(void)
{
    int code = MPI_SUCCESS;
    for (size_t i = 0; i < sizeof ops / sizeof *ops && code == MPI_SUCCESS; i++)
        code = MPI_Op_create(ops[i].function, 1, ops[i].op);
    return code;
}

void cm_sums_close(void)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        MPI_Op_free(ops[i].op);
}

MPI_Datatype cm_element(uint32_t dtype)
{
    switch (dtype) {
    case HD_F32:
        return MPI_FLOAT;
    case HD_F64:
        return MPI_DOUBLE;
    case HD_I32:
        return MPI_INT32_T;
    case CM_I64:
        return MPI_INT64_T;
    case HD_U8:
        return MPI_UINT8_T;
    default:
        return MPI_UINT16_T;
    }
}

size_t cm_size(uint32_t dtype)
{
    return dtype == CM_I64 ? 8 : hd_dtype_size(dtype);
}

struct cm_rule cm_rule(uint32_t dtype, uint32_t redop)
{
    struct cm_rule rule = {
        .type = cm_element(dtype), .op = redop == HD_MAX ? MPI_MAX : MPI_SUM, .divide = redop == HD_AVG};
    if (dtype == HD_BF16)
        rule.op = redop == HD_MAX ? bf16_max : bf16_sum;
    if (dtype == HD_F16)
        rule.op = redop == HD_MAX ? f16_max : f16_sum;
    if (redop == HD_MAX && (dtype == HD_F32 || dtype == HD_F64))
        rule.op = dtype == HD_F32 ? float_max : double_max;
    if (redop != HD_MAX && dtype == HD_U8)
        rule.op = u8_sum;
    if (redop != HD_MAX && dtype == HD_I32)
        rule.type = MPI_UINT32_T; /* sums wrap */
    return rule;
}

/* Integers are widened before (widen.c): their sum has to be whole. */
void cm_divide(void *x, uint32_t dtype, uint64_t count, int32_t n)
{
    float *f = x;
    double *d = x;
    uint16_t *h = x;
    for (uint64_t i = 0; i < count; i++)
        if (dtype == HD_F32)
            f[i] /= (float)n;
        else if (dtype == HD_F64)
            d[i] /= n;
        else if (dtype == HD_BF16)
            h[i] = cm_bf16_store(cm_bf16_load(h[i]) / (float)n);
        else
            h[i] = cm_f16_store(cm_f16_load(h[i]) / (float)n);
}
