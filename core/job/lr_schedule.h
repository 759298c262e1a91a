/* core/job/lr_schedule: the learning rate of every step. */
#ifndef HD_CORE_JOB_LR_SCHEDULE_H
#define HD_CORE_JOB_LR_SCHEDULE_H

#include <stdint.h>

enum { HD__LR_CONSTANT = 0, HD__LR_LINEAR, HD__LR_COSINE, HD__LR_WSD };
enum { HD__DECAY_LINEAR = 0, HD__DECAY_COSINE, HD__DECAY_SQRT };

struct hd__lr_schedule {
    int32_t kind;        /* HD__SCHEDULE_... */
    int32_t decay_shape; /* WSD: HD__DECAY_... */
    int64_t warmup;      /* steps */
    int64_t decay;       /* WSD: steps of the last phase; 0: a tenth of all steps */
    double lr;           /* the optimizer's, the peak */
    double min_lr;       /* where linear, cosine and wsd end */
};

/* The rate of step `step` (1 = the first update) of `steps`. With W steps of warm-up: lr step/W up to step W. Then
 * progress p = (step - 1 - W) / (steps - W), as PyTorch's schedulers count (the first step after warm-up still has the
 * peak), and
 *   linear    lr + (min_lr - lr) p
 *   cosine    min_lr + (lr - min_lr) (1 + cos(pi p)) / 2         (Loshchilov and Hutter 2017, one period)
 *   wsd       lr, until the last D steps: p = (step - 1 - (steps - D)) / D through linear, cosine, or
 *             lr + (min_lr - lr) sqrt(p)                          (Haegele et al. 2024)
 * Steps beyond `steps` keep the last value, that of p = 1. */
double hd__lr(const struct hd__lr_schedule *schedule, int64_t step, int64_t steps);

#endif
