/* Products of experts over rows that hold tokens alone, on tensor cores: grouped.cu. */
#ifndef HD_DEVICE_CUDA_EXPERTS_GROUPED_H
#define HD_DEVICE_CUDA_EXPERTS_GROUPED_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_GROUPED_ROWS, CU_GROUPED_TURNED, CU_GROUPED_SUMS };

/* Slots are [b e #]; a slot's row of an operand is as long as it is wide. Operands are of one dtype, bf16 or fp16,
 * 16-byte aligned, widths multiples of 8; outputs are of theirs or fp32. Of slots without a token nothing is read; ROWS
 * and TURNED make their rows zeros.
 *     ROWS     to[slot, n] = sum over k of from[slot, k] with[e, k, n]
 *     TURNED   the same with [e, n, k]
 *     SUMS     to[e, m, n] = sum over slots of expert e that hold a token of from[slot, m] with[slot, n] */
struct cu_grouped {
    const void *from, *with;
    void *to;
    const int32_t *token; /* 0: the slot holds none */
    int32_t *list;        /* [e][b #] slots with tokens, in order; scratch */
    int32_t *count;       /* [e] */
    int64_t b, e, slots;
    int32_t m, n, k; /* SUMS has no k, the others no m */
    uint32_t dtype, to_dtype;
    int32_t kind, adds;
    int32_t tiles; /* along n; cu_grouped_prepare fills it in, list and count when it runs */
};

/* HD_E_UNSUPPORTED, err as it was: not on this GPU. Reserves scratch. */
int32_t cu_grouped_prepare(struct hd_device *d, struct hd_kernel *k, const struct cu_grouped *a, struct hd_error *err);

#ifdef __cplusplus
}
#endif

#endif
