/* runtime/exec/stream_comm: exchanges over transports that put their operations into a stream of the device (HD_COMM_STREAM_ORDERED).
 *
 * An exchange begins behind an event of compute; at the wait the stream, and compute with it, follow its end: the host waits for
 * nothing. What
 * was enqueued is watched, so that the flight recorder knows what is done, and an operation that stands still on the device
 * for longer than comm.timeout ends the job. An all_to_all is packed and unpacked by kernels, on the compute stream. One thread. */
#ifndef HD_RUNTIME_EXEC_STREAM_COMM_H
#define HD_RUNTIME_EXEC_STREAM_COMM_H

#include "runtime/exec/device.h"
#include "runtime/exec/transports.h"

struct hd__exchange;
struct hd__ordered;
struct hd__watched;

/* Of an exchange. */
struct hd__in_order {
    struct hd__watched *watched;    /* while it is pending */
    struct hd_event *ready, *done;  /* in a captured piece */
    struct hd_kernel *pack, *unpack; /* NULL: the device copies piece by piece */
};

struct hd__ordered *hd__ordered_create(const struct hd__device *d, struct hd__transports *transports, double timeout);
void hd__ordered_free(struct hd__ordered *o); /* NULL is fine */

/* Makes an exchange known: its tensors and blocks have their addresses. */
int32_t hd__ordered_add(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err);
void hd__ordered_remove(struct hd__ordered *o, struct hd__exchange *x);
int32_t hd__ordered_start(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err);
/* What compute is given from now on starts when the exchange is complete. */
int32_t hd__ordered_wait(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err);

/* Looks at what is under way: HD_OK, or HD_E_TIMEOUT. */
int32_t hd__ordered_look(struct hd__ordered *o, struct hd_error *err);
int32_t hd__ordered_busy(const struct hd__ordered *o);

/* While a piece is captured exchanges are part of it, and not watched. */
void hd__ordered_capture(struct hd__ordered *o, int32_t on);
/* Around the launch of a captured piece: its exchanges are watched as one. */
int32_t hd__ordered_begin(struct hd__ordered *o, struct hd__exchange *const *x, uint32_t n, struct hd__watched **watched,
                          struct hd_error *err);
int32_t hd__ordered_end(struct hd__ordered *o, struct hd__watched *watched, struct hd_error *err);

#endif
