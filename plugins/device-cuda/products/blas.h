/* Matrix products by cuBLASLt. */
#ifndef HD_DEVICE_CUDA_PRODUCTS_BLAS_H
#define HD_DEVICE_CUDA_PRODUCTS_BLAS_H

#include "internal.h"
#include "products/plan.h"

/* a product with its algorithm, shared by all kernels that want the same; lives as long as the device */
struct cu_gemm;

/* Extra operands: of an epilogue (plan.h); of products in fp8 the scales of a and b, on the device. */
struct cu_beside {
    void *bias, *aux;
    const float *scale[2];
};

/* Finds the algorithm, once for each shape: cuBLASLt's candidates within the workspace, timed on the device where the
 * option says so. HD_E_UNSUPPORTED where cuBLASLt has none. `a`, `b`, `d`: where the operands will lie, for their
 * alignment; with loops, every address has to be aligned as these. `beside` is NULL where there is no epilogue and no
 * scale. */
int32_t cu_gemm_prepare(struct hd_device *device, const struct cu_product *product, const void *a, const void *b,
                        const void *d, const struct cu_beside *beside, const struct cu_gemm **gemm,
                        struct hd_error *err);
/* Enqueues. */
int32_t cu_gemm_run(const struct cu_gemm *gemm, const void *a, const void *b, void *d, const struct cu_beside *beside,
                    cudaStream_t stream, struct hd_error *err);
/* A number of whoever asked for the product, 0 at first. */
int32_t *cu_gemm_note(const struct cu_gemm *gemm);
void cu_blas_close(struct hd_device *device);

#endif
