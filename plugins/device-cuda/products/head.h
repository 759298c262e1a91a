/* The rows of the fused head: head_rows.cu. */
#ifndef HD_DEVICE_CUDA_PRODUCTS_HEAD_H
#define HD_DEVICE_CUDA_PRODUCTS_HEAD_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Logits of some rows, `ld` (a multiple of 8) elements apart, 16-byte aligned. */
struct cu_head_rows {
    void *z;
    uint32_t dtype;
    uint32_t trains; /* z becomes the gradient */
    int64_t rows, v, ld;
    const int32_t *labels; /* of the vocabulary; this shard begins at `start` */
    int64_t start;
    float *nll;         /* written */
    double scale;       /* of the gradient, */
    const double *seed; /* times this, where it is not NULL */
    int64_t kept;       /* bytes of a row that shared memory has room for, or 0: cu_head_prepare */
};

int32_t cu_head_prepare(struct hd_device *d, struct cu_head_rows *a, struct hd_error *err);
int32_t cu_head_launch(struct hd_kernel *k, const struct cu_head_rows *a, cudaStream_t stream, struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
