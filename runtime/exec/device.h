/* runtime/exec/device: the device of this rank as the executor, its comm ops and its copies use it.
 *
 * Calls of a device without streams are synchronous. One with streams (HD_DEVICE_STREAMS) only enqueues: events
 * order the streams, and the host polls them, so that it never blocks inside the device. One thread. */
#ifndef HD_RUNTIME_EXEC_DEVICE_H
#define HD_RUNTIME_EXEC_DEVICE_H

#include "core/base/base.h"
#include "heddle/device.h"
#include "runtime/exec/select.h"

struct hd__device {
    const struct hd_device_ops *ops;
    struct hd_device *handle;
    const char *name;
    int32_t streams;  /* launches are asynchronous */
    int32_t discrete; /* the host cannot access its memory */
};

/* Opens the job's device for a rank of this machine. The caller closes d->handle where it is set, on failure too. */
int32_t hd__exec_device_open(struct hd__device *d, const struct hd__compiled *c, int32_t local_rank,
                             int32_t local_ranks, struct hd_error *err);
/* Can this machine run the job? Probes its plug-ins, but for its source of data; the message has the place of the one
 * that cannot in the job. `open_for`: of so many ranks here, the last one's device is opened and closed; 0:
 * none, since a process that opened a device cannot fork ranks. */
int32_t hd__exec_check_plugins(const struct hd__compiled *c, int32_t open_for, struct hd_error *err);
/* Would opening refuse the settings of transports, hooks and sinks, or the folder of offloaded state? For --dry-run.
 * `apart`: ranks are on other machines, too; `leads`: rank 0 is on this one. */
int32_t hd__exec_check_settings(const struct hd__compiled *c, int apart, int leads, struct hd_error *err);

/* ---- devices with streams */

/* Stream `later` waits for all that is enqueued in `earlier` so far (cudaStreamWaitEvent). */
int32_t hd__exec_device_order_streams(const struct hd__device *d, uint32_t earlier, uint32_t later,
                                      struct hd_event *event, struct hd_error *err);
int32_t hd__exec_device_create_event(const struct hd__device *d, struct hd_event **event, struct hd_error *err);
/* 1 if an event has completed, 0 if not yet, or an error (cudaEventQuery). */
int32_t hd__exec_device_reached(const struct hd__device *d, struct hd_event *event, struct hd_error *err);
void hd__exec_device_free_event(const struct hd__device *d, struct hd_event *event); /* NULL is fine */
/* Pinned memory for asynchronous copies. */
int32_t hd__exec_device_alloc_pinned(const struct hd__device *d, size_t bytes, void **memory, struct hd_error *err);
void hd__exec_device_free_pinned(const struct hd__device *d, void *memory); /* NULL is fine */

#endif
