/* runtime/exec/device: the device of this rank as the executor, its exchanges and its copies use it.
 *
 * A device without streams is done when a call returns. One with streams (HD_DEVICE_STREAMS) only enqueues: what runs after
 * what is said by events, and the host waits by asking again and again, never inside the device. One thread. */
#ifndef HD_RUNTIME_EXEC_DEVICE_H
#define HD_RUNTIME_EXEC_DEVICE_H

#include "core/base/base.h"
#include "heddle/device.h"

struct hd__device {
    const struct hd_device_ops *ops;
    struct hd_device *handle;
    const char *name;
    int32_t streams;  /* it only enqueues */
    int32_t discrete; /* the host cannot touch its memory */
};

/* Checks what its capabilities mean for the executor. */
int32_t hd__exec_device_check(struct hd__device *d, struct hd_error *err);

/* ---- of devices with streams */

/* What `later` is given from now on starts after what `earlier` was given so far. */
int32_t hd__exec_device_order_streams(const struct hd__device *d, uint32_t earlier, uint32_t later,
                                      struct hd_event *event, struct hd_error *err);
int32_t hd__exec_device_create_event(const struct hd__device *d, struct hd_event **event, struct hd_error *err);
/* 1 if an event was reached, 0 if not yet, or an error. */
int32_t hd__exec_device_reached(const struct hd__device *d, struct hd_event *event, struct hd_error *err);
void hd__exec_device_free_event(const struct hd__device *d, struct hd_event *event); /* NULL is fine */
/* Memory that copies from and to the device are fast with. HD_MEM_PINNED, freed with the next call. */
int32_t hd__exec_device_alloc_pinned(const struct hd__device *d, size_t bytes, void **memory, struct hd_error *err);
void hd__exec_device_free_pinned(const struct hd__device *d, void *memory); /* NULL is fine */

#endif
