/* Reductions. MPI has no bf16 and no fp16, its maximum may lose a NaN, and Open MPI's sum of bytes stops at 255 where
 * it uses AVX: those are operations of ours. All of them are commutative to the bit, so that an order of MPI's gives
 * every member the same. */
#include "internal.h"

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

REDUCTION(max_float, float, CM_SAME, CM_SAME, MOST)
REDUCTION(max_double, double, CM_SAME, CM_SAME, MOST)
REDUCTION(sum_bf16, uint16_t, cm_bf16_load, cm_bf16_store, ADD)
REDUCTION(max_bf16, uint16_t, cm_bf16_load, cm_bf16_store, MOST)
REDUCTION(sum_f16, uint16_t, cm_f16_load, cm_f16_store, ADD)
REDUCTION(max_f16, uint16_t, cm_f16_load, cm_f16_store, MOST)
REDUCTION(sum_u8, uint8_t, CM_SAME, (uint8_t), ADD)

enum { SUM = 0, MAX, OPS };
static MPI_User_function *const functions[][OPS] = {[HD_F32] = {[MAX] = max_float},
                                                    [HD_BF16] = {sum_bf16, max_bf16},
                                                    [HD_F16] = {sum_f16, max_f16},
                                                    [HD_F64] = {[MAX] = max_double},
                                                    [HD_U8] = {sum_u8}};
enum { DTYPES = sizeof functions / sizeof *functions };
static MPI_Op ops[DTYPES][OPS];

int cm_sums_open(void)
{
    int code = MPI_SUCCESS;
    for (int i = 0; i < DTYPES * OPS && code == MPI_SUCCESS; i++)
        if (functions[i / OPS][i % OPS])
            code = MPI_Op_create(functions[i / OPS][i % OPS], 1, &ops[i / OPS][i % OPS]);
    return code;
}

void cm_sums_close(void)
{
    for (int i = 0; i < DTYPES * OPS; i++)
        if (functions[i / OPS][i % OPS])
            MPI_Op_free(&ops[i / OPS][i % OPS]);
}

MPI_Datatype cm_element(uint32_t dtype)
{
    switch (dtype) {
#define ELEMENT(dtype, T, wide, type, load, store) \
    case dtype:                                    \
        return type;
        CM_DTYPES(ELEMENT)
    default: /* CM_I64 */
        return MPI_INT64_T;
    }
}

size_t cm_size(uint32_t dtype)
{
    return dtype == CM_I64 ? 8 : hd_dtype_size(dtype);
}

struct cm_rule cm_rule(uint32_t dtype, uint32_t redop)
{
    int op = redop == HD_MAX ? MAX : SUM;
    struct cm_rule rule = {.type = cm_element(dtype), .op = op == MAX ? MPI_MAX : MPI_SUM, .divide = redop == HD_AVG};
    if (dtype < DTYPES && functions[dtype][op])
        rule.op = ops[dtype][op];
    if (op == SUM && dtype == HD_I32)
        rule.type = MPI_UINT32_T; /* sums wrap */
    return rule;
}
