/* One row an op: operands (least and most inputs, least and most outputs), dtypes, prepare. To add an op: its .cu file
 * with cu_prepare_NAME, a row here, the file in meson.build. */
#include "slots.h"

#define CU_ROWS(X)                                              \
    X(HD_OP_ADD, 1, 8, 1, 1, CU_FLOATS, add)                    \
    X(HD_OP_RMSNORM, 2, 2, 1, 1, CU_FLOATS, rmsnorm)

#define CU_DECLARE(op, min_in, max_in, min_out, max_out, dtypes, name)                                                 \
    int32_t cu_prepare_##name(struct hd_device *, const struct hd_instr_desc *, struct hd_kernel *, struct hd_error *);
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
