/* The table of ops: a row has the number of operands of an op, its dtypes and its prepare function. */
#ifndef HD_DEVICE_CUDA_OP_TABLE_H
#define HD_DEVICE_CUDA_OP_TABLE_H

#include "internal.h"

/* Sets of dtypes, one bit each. */
#define CU_DTYPE(dtype) (UINT32_C(1) << (dtype))
enum {
    CU_FLOATS = CU_DTYPE(HD_F32) | CU_DTYPE(HD_BF16) | CU_DTYPE(HD_F16),
    CU_ALL = CU_FLOATS | CU_DTYPE(HD_F64),
};

struct cu_op_row {
    uint8_t min_in, max_in, min_out, max_out;
    uint32_t dtypes; /* compute dtypes */
    cu_prepare_fn prepare;
};

#define CU_PREPARE(name) \
    int32_t cu_prepare_##name(struct hd_device *, const struct hd_instr_desc *, struct hd_kernel *, struct hd_error *)

/* Prepare functions in C. */
CU_PREPARE(attention);
CU_PREPARE(attention_grad);
CU_PREPARE(einsum);
CU_PREPARE(epilogue);
CU_PREPARE(grouped);
CU_PREPARE(grouped_dw);
CU_PREPARE(xent_head);
CU_PREPARE(custom);
/* Einsums that are no matrix product: products/einsum_plain.cu. */
CU_PREPARE(einsum_plain);

/* NULL for an op that has no row. */
const struct cu_op_row *cu_op_row(uint32_t op);

#endif
