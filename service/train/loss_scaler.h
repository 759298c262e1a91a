/* service/train/loss_scaler: the loss scale of a run (Micikevicius et al., arXiv 1710.03740). Dynamic scaling
 * follows PyTorch's torch.amp.GradScaler: it begins at 65536, halves when a step's gradients are not finite, and
 * doubles after 2000 steps in a row that were. Unlike there it never falls below 1: an overflow at 1 is divergence.
 *
 * A step whose gradients are not finite is skipped: nothing is updated, on all ranks alike, since all see the same
 * norm. The optimizer does not count it (bias correction); the run, the data and the schedule do. */
#ifndef HD_SERVICE_TRAIN_LOSS_SCALER_H
#define HD_SERVICE_TRAIN_LOSS_SCALER_H

#include <jansson.h>

#include "core/job/job.h"

struct hd__train_loss_scaler {
    uint32_t scaling; /* HD__LOSS_SCALE_... */
    uint32_t reserved;
    double scale;    /* 1 without scaling */
    int64_t good;    /* steps without overflow since the last change of the scale */
    int64_t skipped; /* steps skipped in the whole run */
};

/* Initialises from precision.loss_scale, before the first step. */
void hd__train_loss_scaler_init(struct hd__train_loss_scaler *s, const struct hd__job *job);
/* After a step. Returns 0 if the overflow is not due to the scale: the run has diverged. */
int hd__train_loss_scaler_update(struct hd__train_loss_scaler *s, int overflow);

/* A part of a checkpoint's state. A checkpoint without scaling leaves the initial values. */
json_t *hd__train_loss_scaler_json(const struct hd__train_loss_scaler *s);
void hd__train_loss_scaler_load(struct hd__train_loss_scaler *s, const json_t *saved); /* NULL is fine */

#endif
