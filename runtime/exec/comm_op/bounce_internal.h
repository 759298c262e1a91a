/* Inside stage*.c: lanes, their slots, and the way of a chunk through one. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_BOUNCE_INTERNAL_H
#define HD_RUNTIME_EXEC_COMM_OP_BOUNCE_INTERNAL_H

#include "runtime/exec/comm_op/internal.h"

enum { HD__BOUNCE_SLOTS = 3 }; /* one is copied out, one travels, one is copied in */

struct hd__bounce_slot {
    struct hd__comm_op *x;
    uint32_t chunk, n_requests; /* requests that are not done */
    hd_request *requests;
    char *out, *in;           /* pinned */
    struct hd_event *copied;  /* out of the device's memory */
    struct hd_event *arrived; /* in it again: the slot is free */
};

struct hd__bounce_queue {
    struct hd__bounce_queue *next;
    struct hd__comm_op *head, **tail; /* under way, in order */
    uint64_t sent, posted, done;      /* chunks, since the beginning */
    int64_t out_room, in_room;
    uint32_t id, request_room;
    struct hd__bounce_slot slot[HD__BOUNCE_SLOTS];
};

struct hd__bounce {
    const struct hd__device *device;
    struct hd__transports *transports;
    int64_t chunk;
    struct hd__bounce_queue *queues;
    int32_t under_way, reserved; /* exchanges */
};

/* Does anything leave the device's memory, and does anything come? */
int hd__exec_bounce_sends(const struct hd__comm_op *x);
int hd__exec_bounce_receives(const struct hd__comm_op *x);
/* How many chunks of which part, from `direct`. */
void hd__exec_bounce_split(const struct hd__bounce *stage, struct hd__comm_op *x);
/* Bytes of pinned memory that a chunk takes on its way out, and on its way in. */
void hd__exec_bounce_chunk_bytes(const struct hd__comm_op *x, int64_t *out, int64_t *in);

/* The steps of a chunk: copied out of the device's memory; given to the transport; 1 where the transport is through
 * with it; copied in. */
int32_t hd__exec_chunk_copy_out(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd__comm_op *x,
                                struct hd_error *err);
int32_t hd__exec_chunk_post(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd__bounce_slot *slot,
                            struct hd_error *err);
int32_t hd__exec_chunk_test(struct hd__bounce *stage, struct hd__bounce_slot *slot, struct hd_error *err);
int32_t hd__exec_chunk_copy_in(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd__bounce_slot *slot,
                               struct hd_error *err);

#endif
