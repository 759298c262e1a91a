/* comm_op/bounce: ops of a device with streams over transports that the host drives. For bounce*.c.
 *
 * Compute is enqueued far ahead of its execution, and a transport of host memory cannot access the tensors. So an op
 * is cut into chunks, and each goes through a pinned bounce buffer:
 *
 *     compute -> event -> copy to pinned memory (stream OUT) -> transport -> copy back (stream IN) -> event -> compute
 *
 * Ops of one stream of the program share a queue, a ring of pinned slots. Within a queue chunks are posted in order,
 * the same on all members of a group; queues do not block each other. All steps run in the path's progress, which
 * the host calls between launches and while it waits.
 *
 * A chunk of a collective is a run of elements of each member's block (or several whole calls where it has many):
 * sums are elementwise over members, so chunking changes no bit. all_to_all is not cut.
 *
 * Nothing is copied where the device computes on host memory or the transport takes device memory: the transport is
 * called as soon as the compute event has completed. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_BOUNCE_H
#define HD_RUNTIME_EXEC_COMM_OP_BOUNCE_H

#include "runtime/exec/comm_op/internal.h"

enum { HD__BOUNCE_SLOTS = 3 }; /* one is copied out, one is in the transport, one is copied in */

struct hd__bounce_op {
    struct hd__comm_op op;
    struct hd__bounce_queue *queue;
    struct hd__bounce_op *next;       /* in the queue, while in flight */
    struct hd_event *ready, *arrived; /* the input is computed; the output is in device memory */
    int64_t chunk_count;              /* elements (bytes of messages) of a call in one chunk */
    int64_t calls;                    /* in one chunk; 1 where a call is cut */
    uint32_t chunks, per_call;        /* in all; per call that is cut, else 1 */
    uint32_t copied_out, copied_in;   /* chunks */
    int32_t direct, reserved;         /* without copies; else: */
    int32_t copies_out, copies_in;    /* has data to copy out of device memory; into it */
};

struct hd__bounce_slot {
    struct hd__bounce_op *x;
    uint32_t chunk, n_requests; /* not completed */
    hd_request *requests;
    char *out, *in;           /* pinned */
    struct hd_event *copied;  /* the copy out of device memory is done */
    struct hd_event *arrived; /* the copy into it is: the slot is free */
};

struct hd__bounce_queue {
    struct hd__bounce_queue *next;
    struct hd__bounce_op *head, **tail; /* in flight, in order */
    uint64_t sent, posted, done;        /* chunks since the start */
    int64_t out_room, in_room;
    uint32_t id, request_room;
    struct hd__bounce_slot slot[HD__BOUNCE_SLOTS];
};

struct hd__bounce {
    struct hd__comm_path path;
    int64_t chunk;
    struct hd__bounce_queue *queues;
};

/* Sets the chunking, the copies, and the slot sizes of its queue, from `direct`. */
void hd__exec_bounce_split(const struct hd__bounce *b, struct hd__bounce_op *x);

/* The steps of a chunk: copy out of device memory, post to the transport, copy in. Each tries the next chunk of the
 * queue: 1 if it was done, 0 if not ready, or an error. */
int32_t hd__exec_chunk_copy_out(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err);
int32_t hd__exec_chunk_post(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err);
int32_t hd__exec_chunk_copy_in(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err);

#endif
