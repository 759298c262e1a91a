/* service/metrics/tensorboard: scalars for TensorBoard.
 *
 * An event file is a sequence of TFRecords (length, masked CRC-32C of the length, data, masked CRC-32C of the
 * data), each a protobuf message tensorflow.Event. Only what scalars need is written; one write() a step.
 * TensorBoard shows all event files of a folder as one run, so every run begins its file with the order to
 * forget what older files say about its steps. */
#ifndef HD_SERVICE_METRICS_TENSORBOARD_H
#define HD_SERVICE_METRICS_TENSORBOARD_H

#include "core/base/base.h"

struct hd__metrics_event_writer;

struct hd__metrics_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored as a float */
};

/* Makes the folder, and a file in it that no other run has. `resumed`: the step of the checkpoint, 0 for a
 * fresh run.
 */
int32_t hd__metrics_event_writer_open(const char *folder, int64_t resumed, struct hd__metrics_event_writer **writer,
                                      struct hd_error *err);
/* `wall`: seconds since 1970. Scalars that are NaN are left out. A failing write is logged once; training
 * goes on. */
void hd__metrics_event_writer_write(struct hd__metrics_event_writer *writer, double wall, int64_t step,
                                    const struct hd__metrics_scalar *scalars, uint32_t n);
void hd__metrics_event_writer_close(struct hd__metrics_event_writer *writer); /* NULL is fine */

/* ---- the format, for tests */
uint32_t hd__metrics_crc32c(const void *data, size_t bytes);
void hd__metrics_event_version(struct hd__text *out, double wall);
void hd__metrics_event_restart(struct hd__text *out, double wall, int64_t step);
void hd__metrics_event_scalars(struct hd__text *out, double wall, int64_t step,
                               const struct hd__metrics_scalar *scalars, uint32_t n);

#endif
