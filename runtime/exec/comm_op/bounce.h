/* comm_op/bounce: ops of a device with streams over transports that the host drives. Inside bounce*.c.
 *
 * Compute is enqueued far ahead of what has run, and a transport that takes host memory cannot reach the tensors. So
 * an op is cut into chunks, and each goes
 *
 *     compute -> event -> copy to pinned memory (stream OUT) -> transport -> copy back (stream IN) -> event -> compute
 *
 * Ops of one stream of the program share a queue: a few slots of pinned memory, used in turn. Within a queue chunks
 * are handed to the transport in order, so that all members of a group do the same in the same order; queues do not
 * wait for each other. Everything moves in the path's progress, which the host calls between launches and while it
 * waits.
 *
 * A chunk of a collective is a run of elements of each member's piece (or several whole calls where it is made of
 * many): sums go over members, element by element, so that the cut changes no bit. all_to_all goes in one piece.
 *
 * Where the device computes on host memory, or the transport takes the device's, nothing is copied: the transport is
 * called as soon as compute has come so far. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_BOUNCE_H
#define HD_RUNTIME_EXEC_COMM_OP_BOUNCE_H

#include "runtime/exec/comm_op/internal.h"

enum { HD__BOUNCE_SLOTS = 3 }; /* one is copied out, one travels, one is copied in */

struct hd__bounce_op {
    struct hd__comm_op op;
    struct hd__bounce_queue *queue;
    struct hd__bounce_op *next;       /* in the queue, while it is under way */
    struct hd_event *ready, *arrived; /* compute made the input; the output is in the device's memory */
    int64_t chunk_count;              /* elements (bytes of messages) of a call in one chunk */
    int64_t calls;                    /* calls in one chunk; 1 where a call is cut */
    uint32_t chunks, per_call;        /* in all; of one call that is cut, else 1 */
    uint32_t copied_out, copied_in;   /* chunks */
    int32_t direct, reserved;         /* nothing is copied; else: */
    int32_t copies_out, copies_in;    /* something leaves the device's memory; something comes */
};

struct hd__bounce_slot {
    struct hd__bounce_op *x;
    uint32_t chunk, n_requests; /* requests that are not done */
    hd_request *requests;
    char *out, *in;           /* pinned */
    struct hd_event *copied;  /* out of the device's memory */
    struct hd_event *arrived; /* in it again: the slot is free */
};

struct hd__bounce_queue {
    struct hd__bounce_queue *next;
    struct hd__bounce_op *head, **tail; /* under way, in order */
    uint64_t sent, posted, done;        /* chunks, since the beginning */
    int64_t out_room, in_room;
    uint32_t id, request_room;
    struct hd__bounce_slot slot[HD__BOUNCE_SLOTS];
};

struct hd__bounce {
    struct hd__comm_path path;
    int64_t chunk;
    struct hd__bounce_queue *queues;
};

/* How many chunks of which part, what is copied, and what a slot of its queue needs for it, from `direct`. */
void hd__exec_bounce_split(const struct hd__bounce *b, struct hd__bounce_op *x);

/* The steps of a chunk: copied out of the device's memory; given to the transport; copied in. Each takes the queue's
 * next where it can be taken: 1 if it was, 0 if not, or an error. */
int32_t hd__exec_chunk_copy_out(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err);
int32_t hd__exec_chunk_post(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err);
int32_t hd__exec_chunk_copy_in(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err);

#endif
