/* One row an op: operands (least and most inputs, least and most outputs), dtypes, prepare. To add an op: its .cu file
 * with cu_prepare_NAME, a row here, the file in meson.build. Products of experts multiply every slot: those without a token hold
 * zeros, and give zeros. */
#include "slots.h"

#define CU_ROWS(X)                                              \
    X(HD_OP_EINSUM, 2, 2, 1, 1, CU_PRODUCTS, einsum)            \
    X(HD_OP_GROUPED, 3, 3, 1, 1, CU_FLOATS, einsum)             \
    X(HD_OP_GROUPED_DW, 3, 3, 1, 1, CU_FLOATS, einsum)          \
    X(HD_OP_XENT_HEAD, 3, 4, 1, 3, CU_FLOATS, xent_head)        \
    X(HD_OP_ADD, 1, 8, 1, 1, CU_FLOATS, add)                    \
    X(HD_OP_RMSNORM, 2, 2, 1, 1, CU_FLOATS, rmsnorm)

#define CU_DECLARE(op, min_in, max_in, min_out, max_out, dtypes, name) CU_PREPARE(name);
CU_ROWS(CU_DECLARE)
#undef CU_DECLARE

static const struct cu_slot rows[HD_OP_LIMIT] = {
#define CU_ROW(op, min_in, max_in, min_out, max_out, dtypes, name)                                                     \
    [op] = {min_in, max_in, min_out, max_out, dtypes, cu_prepare_##name},
    CU_ROWS(CU_ROW)
#undef CU_ROW
};

const struct cu_slot *cu_slot(uint32_t op)
{
    return op < HD_OP_LIMIT && rows[op].prepare ? &rows[op] : NULL;
}
