/* analysis/numerics: compares the numbers of a job on its mesh with those of one rank. All ranks run in this
 * process, in the token machine with the device's reference kernels in fp64, in arenas at the planned offsets and
 * with events in random order, which tests waits, lifetimes and offsets as well. */
#ifndef HD_ANALYSIS_NUMERICS_H
#define HD_ANALYSIS_NUMERICS_H

#include "runtime/exec/select.h"

/* Above this a difference is a fault: of fp64 sums in another order. */
#define HD__NUMERICS_LIMIT 1e-9

/* Differences are relative to the largest magnitude of the tensor, but no less than a thousandth of that of all
 * gradients, a tenth of that of all parameters; infinite where a number is NaN, negative where nothing was
 * compared. */
struct hd__numerics {
    int32_t ranks, steps;
    double loss, norm, gradient, parameter; /* largest over all steps */
    double average;                         /* of the strategy ema's averages */
    double evaluation;                      /* loss of an evaluation before the first step */
    double worst;                           /* maximum of these */
    double limit;                           /* for all but the evaluation: 0: the same bits, deterministic: exact */
    char where[160];                        /* the largest: "step 2, rank 3, gradient of layers.0.wq" */
    char failed[256];                       /* the first that is above its limit; "": none is */
    char instead[320];                      /* what ran instead of the job's own: "powersgd has full rank"; or "" */
    double memory_ratio;                    /* temporary bytes over their lower bound, the worst stage */
};

/* Loads the job twice with reference kernels: as it is, but for what is in `instead`, its program widened to fp64, and
 * with fp64 for one rank with the whole batch as one micro-batch, the loss as a plain chain of instructions (no fused
 * head), and sums not fused into norms. Runs the first `steps` steps, and further ones where sections run in none of
 * these: numerics_job.c. */
int32_t hd__numerics_file(const char *file, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err);
int32_t hd__numerics_text(const char *text, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err);
/* The same for compiled jobs. `one` has one rank. Replicas of local SGD meet in every step. */
int32_t hd__numerics(struct hd__compiled *one, struct hd__compiled *many, int32_t steps, uint64_t seed,
                     struct hd__numerics *result, struct hd_error *err);

#endif
