/* service/train/loss_scaler: the loss scale of a run (Micikevicius et al., arXiv 1710.03740). Dynamic scaling follows PyTorch's
 * torch.amp.GradScaler: it begins at 65536, halves when a step's gradients are not finite, and doubles after 2000 steps in a
 * row that were. Unlike there it never falls below 1: who overflows at 1 has diverged.
 *
 * A step whose gradients are not finite is skipped: nothing is updated, on all ranks alike, since all see the same norm. The
 * optimizer does not count it (bias correction); the run, the data and the schedule do. */
#ifndef HD_SERVICE_TRAIN_LOSS_SCALER_H
#define HD_SERVICE_TRAIN_LOSS_SCALER_H

#include <jansson.h>

#include "core/job/job.h"

struct hd__train_loss_scaler {
    uint32_t scaling; /* HD__LOSS_SCALE_... */
    uint32_t reserved;
    double scale;    /* 1 without scaling */
    int64_t good;    /* steps without overflow since the scale changed */
    int64_t skipped; /* in all of the run */
};

/* As precision.loss_scale says, before the first step. */
void hd__train_loss_scaler_init(struct hd__train_loss_scaler *s, const struct hd__job *job);
/* After a step. Returns 0 where the overflow is not the scale's fault: the run has diverged. */
int hd__train_loss_scaler_update(struct hd__train_loss_scaler *s, int overflow);

/* A part of a checkpoint's state. What was saved without scaling goes on as it starts. */
json_t *hd__train_loss_scaler_json(const struct hd__train_loss_scaler *s);
void hd__train_loss_scaler_load(struct hd__train_loss_scaler *s, const json_t *saved); /* NULL is fine */

#endif
