/* analysis/numerics: compares the numbers of a job on its mesh with those of one rank. All ranks run in this
 * process, in the token machine with the device's reference kernels in fp64, in arenas at the planned offsets and
 * with events in random order, which tests waits, lifetimes and offsets as well. */
#ifndef HD_ANALYSIS_NUMERICS_H
#define HD_ANALYSIS_NUMERICS_H

#include "runtime/exec/select.h"

struct hd__numerics {
    int32_t ranks, steps;
    double loss, norm, gradient, parameter; /* largest absolute differences over all steps */
    double evaluation;                      /* loss of an evaluation before the first step */
    double worst;                           /* maximum of these; infinite where a number is NaN */
    char where[160];                        /* the largest difference: "step 2, rank 3, gradient of layers.0.wq" */
    double memory_ratio;                    /* temporary bytes over their lower bound, the worst stage */
};

/* Loads the job twice with fp64 and reference kernels: as it is, and for one rank with the whole batch as one
 * micro-batch, the loss as a plain chain of instructions (no fused head), and sums not fused into norms. */
int32_t hd__numerics_file(const char *file, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err);
int32_t hd__numerics_text(const char *text, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err);
/* The same for compiled jobs. `one` has one rank. */
int32_t hd__numerics(struct hd__compiled *one, struct hd__compiled *many, int32_t steps, uint64_t seed,
                     struct hd__numerics *result, struct hd_error *err);

#endif
