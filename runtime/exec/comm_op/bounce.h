/* runtime/exec/comm_op/bounce: exchanges of a device with streams over transports that the host drives.
 *
 * Compute is enqueued far ahead of what has run, and a transport that takes host memory cannot reach the tensors. So an
 * exchange is cut into chunks, and each goes
 *
 *     compute -> event -> copy into pinned memory (stream OUT) -> the transport -> copy back (stream IN) -> event -> compute
 *
 * Exchanges of one stream of the program share a lane: a few slots of pinned memory, used in turn. Within a lane chunks are
 * handed to the transport in order, so that all members of a group do the same in the same order; lanes do not wait for each
 * other. Everything moves in hd__exec_bounce_progress, which the host calls between launches and while it waits.
 *
 * A chunk of a collective is a run of elements of each member's piece (or several whole calls where it is made of many): sums
 * go over members, element by element, so that the cut changes no bit. all_to_all goes in one piece.
 *
 * Where the device computes on host memory, or the transport takes the device's, nothing is copied: the transport is
 * called as soon as compute has come so far. One thread. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_BOUNCE_H
#define HD_RUNTIME_EXEC_COMM_OP_BOUNCE_H

#include "runtime/exec/device.h"
#include "runtime/exec/transports.h"

struct hd__comm_op;
struct hd__bounce;
struct hd__bounce_queue;

/* Of an exchange. */
struct hd__bounce_op {
    struct hd__bounce_queue *queue;
    struct hd__comm_op *next;               /* in the lane, while it is under way */
    struct hd_event *ready, *arrived;       /* compute made the input; the output is in the device's memory */
    int64_t chunk_count;                    /* elements (bytes of messages) of a call in one chunk */
    int64_t calls;                          /* calls in one chunk; 1 where a call is cut */
    uint32_t chunks, per_call;              /* in all; of one call that is cut, else 1 */
    uint32_t copied_out, posted, copied_in; /* chunks */
    int32_t direct;                         /* nothing is copied */
    int32_t reserved;
};

/* Of a device with streams. `chunk`: about how many bytes one chunk has. `transports` and `d` outlive it. */
struct hd__bounce *hd__exec_bounce_create(const struct hd__device *d, struct hd__transports *transports, int64_t chunk);
void hd__exec_bounce_free(struct hd__bounce *stage); /* after all its exchanges; NULL is fine */

/* How many of the `all` elements of a call's piece go in one chunk of about `chunk` bytes; `widest`: bytes of an element in
 * all pieces together. */
int64_t hd__exec_bounce_chunk_count(int64_t all, int64_t widest, int64_t chunk);
/* Makes an exchange known; `lane` is the stream of its instruction. */
int32_t hd__exec_bounce_register(struct hd__bounce *stage, struct hd__comm_op *x, uint32_t queue_id,
                                 struct hd_error *err);
void hd__exec_bounce_unregister(struct hd__bounce *stage, struct hd__comm_op *x);
/* All are known: takes the pinned memory. */
int32_t hd__exec_bounce_alloc_slots(struct hd__bounce *stage, struct hd_error *err);

/* Begins behind what compute was given so far. Nothing may touch the tensors until the wait. */
int32_t hd__exec_bounce_start(struct hd__bounce *stage, struct hd__comm_op *x, struct hd_error *err);
/* A bounded piece of what is under way: 1 if anything moved, 0 if not, or an error. */
int32_t hd__exec_bounce_progress(struct hd__bounce *stage, struct hd_error *err);
/* Until the transport is through with it; what compute is given from then on starts when the data are there. */
int32_t hd__exec_bounce_wait(struct hd__bounce *stage, struct hd__comm_op *x, double deadline, struct hd_error *err);

#endif
