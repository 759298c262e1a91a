/* Autotuning of attention: a candidate kernel (for Hopper, cuDNN's) and our kernel for every GPU run on the same random
 * numbers, in memory of their own. A candidate is verified first: with a row of a result further from ours than
 * rounding explains it is not used, and a warning says so. Else the option `attention` decides, or the measured
 * time. */
#ifndef HD_DEVICE_CUDA_ATTENTION_ATTENTION_AUTOTUNE_H
#define HD_DEVICE_CUDA_ATTENTION_ATTENTION_AUTOTUNE_H

#include "attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_ATTENTION_OWN, CU_ATTENTION_WGMMA, CU_ATTENTION_CUDNN, CU_ATTENTION_AUTO }; /* device option `attention` */

/* A candidate kernel. `prepare`: for such an instruction; it has `scratch` bytes of scratch, and no other memory of the
 * device. */
struct cu_candidate {
    const char *who; /* in the log: "cuDNN's" */
    size_t scratch;
    void *state;
    int32_t (*prepare)(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h, void *state,
                       char *scratch, struct hd_kernel *k, struct hd_error *err);
};

struct cu_autotune_result {
    double error;       /* of the worst row, relative to its norm */
    float ours, theirs; /* ms */
    int32_t used, reserved;
};

/* Runs and compares both, and writes a line to the log. An error: they did not run, for want of memory or because a
 * kernel refused. */
int32_t cu_attention_autotune(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                              const struct cu_candidate *c, struct cu_autotune_result *v, struct hd_error *err);

/* attention.c: can the option be followed? */
int32_t cu_attention_check(struct hd_device *d, struct hd_error *err);
void cu_attention_close(struct hd_device *d);

/* ---- attention_verify.c */

/* Error of an output, from sum((ours - theirs)^2) and sum(ours^2) of each row: that of the worst row, relative to its
 * norm or to the mean norm, whichever is larger. INFINITY where a number is NaN or infinite. */
double cu_verify_error(const float (*rows)[2], int64_t n);
/* The largest error allowed, by the dtype of operands. */
double cu_verify_tolerance(uint32_t dtype);
/* Is the candidate used? By the option, its error, the error allowed, and the milliseconds of both. */
int32_t cu_autotune_accepts(int32_t option, double error, double tolerance, float ours, float theirs);

/* ---- attention_numbers.cu */

/* Enqueues: rows[r] = {sum((a - b)^2), sum(a^2)} of n rows of d. */
cudaError_t cu_verify_compare(float (*rows)[2], const void *a, const void *b, uint32_t dtype, int64_t n, int64_t d,
                              cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
