/* What is made in scratch, added where it belongs: scratch_add.cu. */
#ifndef HD_DEVICE_CUDA_SCRATCH_ADD_H
#define HD_DEVICE_CUDA_SCRATCH_ADD_H

#include "cu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues to += scratch, which has as many elements of the same dtype, fp32 or fp64. */
int32_t cu_scratch_add(struct hd_kernel *k, const struct hd_operand *to, cudaStream_t stream, struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
