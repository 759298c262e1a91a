/* A trial of other kernels for attention than those that every GPU has: both run on the same numbers, in memory of the trial's own.
 * Where a row of a result is further from ours than rounding explains, the others are not used, and a warning says so; else the
 * option `attention` decides, or the clock. */
#ifndef HD_DEVICE_CUDA_ATTENTION_ATTENTION_AUTOTUNE_H
#define HD_DEVICE_CUDA_ATTENTION_ATTENTION_AUTOTUNE_H

#include "attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_ATTENTION_OWN, CU_ATTENTION_WGMMA, CU_ATTENTION_CUDNN, CU_ATTENTION_AUTO }; /* device option `attention` */

/* Who is tried. `prepare`: its kernel for such an instruction; it has so many bytes of scratch, and nothing else of the device's. */
struct cu_candidate {
    const char *who; /* in the log: "cuDNN's" */
    size_t scratch;
    void *state;
    int32_t (*prepare)(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h, void *state,
                       char *scratch, struct hd_kernel *k, struct hd_error *err);
};

struct cu_verdict {
    double distance;    /* of the worst row, as a part of its norm */
    float ours, theirs; /* ms */
    int32_t taken, reserved;
};

/* Runs one and writes a line to the log. An error: there was none, for want of memory or because a kernel refused. */
int32_t cu_attention_try(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                         const struct cu_candidate *c, struct cu_verdict *v, struct hd_error *err);

/* attention.c: can the option be followed? */
int32_t cu_attention_check(struct hd_device *d, struct hd_error *err);
void cu_attention_close(struct hd_device *d);

/* ---- attention_verify.c */

/* What a trial measured of an output: of each row sum((ours - theirs)^2) and sum(ours^2). How far is the worst row, as a
 * part of its norm or of the mean norm, whichever is larger? INFINITY where a number is none. */
double cu_trial_distance(const float (*rows)[2], int64_t n);
/* How far it may be, of a dtype of operands. */
double cu_trial_near(uint32_t dtype);
/* Are theirs taken? By the option, how far they are from ours, how far they may be, and the milliseconds of both. */
int32_t cu_trial_takes(int32_t option, double distance, double near, float ours, float theirs);

/* ---- attention_numbers.cu: enqueue */

/* Numbers that look random, in [-1, 1) times scale. */
cudaError_t cu_trial_fill(void *to, uint32_t dtype, int64_t n, uint32_t seed, float scale, cudaStream_t stream);
/* rows[r] = {sum((a - b)^2), sum(a^2)} of n rows of d. */
cudaError_t cu_trial_compare(float (*rows)[2], const void *a, const void *b, uint32_t dtype, int64_t n, int64_t d,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
