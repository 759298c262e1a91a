/* Rows of slots that hold tokens, for products: experts_rows.cu. */
#ifndef HD_DEVICE_CUDA_EXPERTS_EXPERTS_H
#define HD_DEVICE_CUDA_EXPERTS_EXPERTS_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A copy of slots [b e # width] with zeros where no token is. */
struct cu_expert_rows {
    const void *from;
    void *to;
    const int32_t *token; /* [b e #]; 0: none */
    int64_t b, e, slots;
    int64_t row_bytes;  /* even */
    uint32_t by_expert; /* to [e b # width] */
    uint32_t wide;      /* rows are multiples of 16 bytes, and so aligned */
};

int32_t cu_expert_rows_launch(struct hd_kernel *k, const struct cu_expert_rows *a, cudaStream_t stream,
                              struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
