/* Matrix products with operands in 8 bits: e4m3 and e5m2 (Micikevicius et al. 2022, arXiv 2209.05433), one scale a
 * tensor, made anew for each product. fp8.c decides and runs, fp8.cu casts. */
#ifndef HD_DEVICE_CUDA_PRODUCTS_FP8_H
#define HD_DEVICE_CUDA_PRODUCTS_FP8_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cu_gemm; /* blas.h */

/* Element types of cast operands, beside dtypes of a program. */
enum { CU_E4M3 = 0x100, CU_E5M2 = 0x101 };
enum { CU_FP8_OFF = 0, CU_FP8_E4M3 = 1, CU_FP8_HYBRID = 2 }; /* the option */
enum { CU_FP8_PARTS = 512 }; /* most blocks that search for the largest element of an operand */
enum { CU_FP8_SCALE = 4 };   /* floats from one operand's scale to the other's */

/* An operand, `batch` times: `lines` of `length` neighbours, `ld` elements apart. */
struct cu_fp8_operand {
    const void *from;
    uint8_t *to; /* [batch outer k] */
    int64_t batch_stride;
    int64_t ld;
    uint32_t batch, outer, k;
    uint32_t turned; /* lines are k's, neighbours outer's; else the other way round */
    uint32_t dtype;  /* HD_BF16 or HD_F16 */
    uint32_t type;   /* CU_E4M3 or CU_E5M2 */
    uint32_t wide;   /* 16-byte reads are fine */
    uint32_t reserved;
};

struct cu_fp8_cast {
    struct cu_fp8_operand of[2];
    float *largest; /* [2][CU_FP8_PARTS] */
    float *scale;   /* [2][CU_FP8_SCALE], the first of each: what the product is multiplied by */
};

/* Enqueues both casts. A scale is the power of two that brings the largest finite element into the upper half of what
 * the type holds; elements are rounded to nearest even. NaN stays NaN; Inf becomes NaN in e4m3, which has none, and
 * stays Inf in e5m2. */
int32_t cu_fp8_cast_launch(const struct hd_kernel *k, const struct cu_fp8_cast *cast, cudaStream_t stream,
                           struct hd_error *err);

/* A product that is prepared, its operands' addresses within scratch still to be added. */
struct cu_fp8 {
    const struct cu_gemm *gemm; /* NULL: not in fp8 */
    struct cu_fp8_cast cast;
    int64_t at[2]; /* of the cast operands, in scratch */
};

/* Is the option one that this GPU and its cuBLASLt can follow? For open. */
int32_t cu_fp8_check(struct hd_device *d, struct hd_error *err);
/* Does the product of inputs 0 and 1 run in fp8? */
int cu_fp8_takes(const struct hd_device *d, const struct hd_instr_desc *i);
/* HD_E_UNSUPPORTED, and why, where it does not. Reserves scratch. */
int32_t cu_fp8_prepare(struct hd_device *d, const struct hd_instr_desc *i, struct cu_fp8 *x, struct hd_error *err);
int32_t cu_fp8_run(const struct hd_kernel *k, const struct cu_fp8 *x, void *c, cudaStream_t stream,
                   struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
