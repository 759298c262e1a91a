/* service/metrics/tensorboard: scalars for TensorBoard.
 *
 * An event file is a sequence of TFRecords (length, masked CRC-32C of the length, data, masked CRC-32C of the
 * data), each a protobuf message tensorflow.Event. Only what scalars need is written; one write() a step.
 * TensorBoard shows all event files of a folder as one run, so every run begins its file with the order to
 * forget what older files say about its steps. */
#ifndef HD_SERVICE_METRICS_TENSORBOARD_H
#define HD_SERVICE_METRICS_TENSORBOARD_H

#include "core/base/base.h"

struct hd__tensorboard;

struct hd__scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored as a float */
};

/* Makes the folder, and a file in it that no other run has. `resumed`: the step of the checkpoint, 0 for a
 * fresh run.
 */
int32_t hd__tensorboard_open(const char *folder, int64_t resumed, struct hd__tensorboard **board,
                             struct hd_error *err);
/* `wall`: seconds since 1970. Scalars that are NaN are left out. A failing write is logged once; training
 * goes on. */
void hd__tensorboard_step(struct hd__tensorboard *board, double wall, int64_t step,
                          const struct hd__scalar *scalars, uint32_t n);
void hd__tensorboard_close(struct hd__tensorboard *board); /* NULL is fine */

/* ---- the format, for tests */
uint32_t hd__crc32c(const void *data, size_t bytes);
void hd__event_version(struct hd__text *out, double wall);
void hd__event_restart(struct hd__text *out, double wall, int64_t step);
void hd__event_scalars(struct hd__text *out, double wall, int64_t step, const struct hd__scalar *scalars,
                       uint32_t n);

#endif
