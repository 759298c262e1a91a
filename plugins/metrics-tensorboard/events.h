/* metrics-tensorboard: an event file's bytes.
 *
 * An event file is a sequence of TFRecords (length, masked CRC-32C of the length, data, masked CRC-32C of the data),
 * each a protobuf message tensorflow.Event. Only what scalars need is written. */
#ifndef METRICS_TENSORBOARD_EVENTS_H
#define METRICS_TENSORBOARD_EVENTS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that grow. Init by {0}; events_free frees them. */
struct events {
    uint8_t *at;
    size_t length, room;
    uint64_t no_memory; /* an allocation failed */
};

void events_free(struct events *out);

/* `wall`: seconds since 1970. The first event of a file. */
void events_version(struct events *out, double wall);
/* SessionLog START: TensorBoard discards `step` and later ones of the folder's older files. */
void events_restart(struct events *out, double wall, int64_t step);
/* Appends a scalar, "train/loss", to a summary; it is stored as a float. */
void events_scalar(struct events *summary, const char *tag, double value);
/* Appends the scalars of a step; nothing for an empty summary. Frees the summary. */
void events_summary(struct events *out, double wall, int64_t step, struct events *summary);

uint32_t events_crc32c(const void *data, size_t bytes);

#endif
