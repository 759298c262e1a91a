/* An einsum as cuBLASLt products, planned by plan.h: einsum.c. */
#ifndef HD_DEVICE_CUDA_PRODUCTS_EINSUM_H
#define HD_DEVICE_CUDA_PRODUCTS_EINSUM_H

#include "products/blas.h"

struct cu_einsum {
    const struct cu_gemm *first, *more; /* `more` adds: later terms of a loop that is summed */
    struct labels outer;
    int64_t size[LABELS_OPERANDS];
    uint64_t swapped;
};

/* HD_E_UNSUPPORTED where it is no product. The operands' addresses count for their alignment alone. */
int32_t cu_einsum_prepare(struct hd_device *d, const struct hd_operand *in, const struct hd_operand *out,
                          uint32_t accumulate, struct cu_einsum *e, struct hd_error *err);
int32_t cu_einsum_run(const struct cu_einsum *e, const void *a, const void *b, void *c, cudaStream_t stream,
                      struct hd_error *err);

#endif
