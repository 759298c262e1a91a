/* runtime/exec/comm_op/stream: exchanges over transports that put their operations into a stream of the device (HD_COMM_STREAM_ORDERED).
 *
 * An exchange begins behind an event of compute; at the wait the stream, and compute with it, follow its end: the host waits for
 * nothing. What
 * was enqueued is watched, so that the flight recorder knows what is done, and an operation that stands still on the device
 * for longer than comm.timeout ends the job. An all_to_all is packed and unpacked by kernels, on the compute stream. One thread. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_STREAM_H
#define HD_RUNTIME_EXEC_COMM_OP_STREAM_H

#include "runtime/exec/device.h"
#include "runtime/exec/transports.h"

struct hd__comm_op;
struct hd__stream_comm;
struct hd__stream_inflight;

/* Of an exchange. */
struct hd__stream_op {
    struct hd__stream_inflight *inflight; /* while it is pending */
    struct hd_event *ready, *done;        /* in a captured piece */
    struct hd_kernel *pack, *unpack;      /* NULL: the device copies piece by piece */
};

struct hd__stream_comm *hd__exec_stream_comm_create(const struct hd__device *d, struct hd__transports *transports,
                                                    double timeout);
void hd__exec_stream_comm_free(struct hd__stream_comm *o); /* NULL is fine */

/* Makes an exchange known: its tensors and blocks have their addresses. */
int32_t hd__exec_stream_comm_register(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err);
void hd__exec_stream_comm_unregister(struct hd__stream_comm *o, struct hd__comm_op *x);
int32_t hd__exec_stream_comm_start(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err);
/* What compute is given from now on starts when the exchange is complete. */
int32_t hd__exec_stream_comm_wait(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err);

/* Looks at what is under way: HD_OK, or HD_E_TIMEOUT. */
int32_t hd__exec_stream_comm_poll(struct hd__stream_comm *o, struct hd_error *err);
int32_t hd__exec_stream_comm_busy(const struct hd__stream_comm *o);

/* While a piece is captured exchanges are part of it, and not watched. */
void hd__exec_stream_comm_set_capturing(struct hd__stream_comm *o, int32_t on);
/* Around the launch of a captured piece: its exchanges are watched as one. */
int32_t hd__exec_stream_comm_begin_replay(struct hd__stream_comm *o, struct hd__comm_op *const *x, uint32_t n,
                                          struct hd__stream_inflight **watched, struct hd_error *err);
int32_t hd__exec_stream_comm_end_replay(struct hd__stream_comm *o, struct hd__stream_inflight *watched,
                                        struct hd_error *err);

#endif
