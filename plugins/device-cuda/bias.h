/* What epilogues.c leaves to bias.cu. */
#ifndef HD_DEVICE_CUDA_BIAS_H
#define HD_DEVICE_CUDA_BIAS_H

#include "cu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues db += sum, which has db's shape, and is fp32. */
int32_t cu_bias_dw_add(struct hd_kernel *k, const void *sum, const struct hd_operand *db, cudaStream_t stream,
                       struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
