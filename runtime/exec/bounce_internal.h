/* Inside stage*.c: lanes, their slots, and the way of a chunk through one. */
#ifndef HD_RUNTIME_EXEC_BOUNCE_INTERNAL_H
#define HD_RUNTIME_EXEC_BOUNCE_INTERNAL_H

#include "runtime/exec/comm_op_internal.h"

enum { HD__STAGE_SLOTS = 3 }; /* one is copied out, one travels, one is copied in */

struct hd__lane_slot {
    struct hd__exchange *x;
    uint32_t chunk, n_requests; /* requests that are not done */
    hd_request *requests;
    char *out, *in;             /* pinned */
    struct hd_event *copied;    /* out of the device's memory */
    struct hd_event *arrived;   /* in it again: the slot is free */
};

struct hd__lane {
    struct hd__lane *next;
    struct hd__exchange *head, **tail; /* under way, in order */
    uint64_t sent, posted, done;       /* chunks, since the beginning */
    int64_t out_room, in_room;
    uint32_t id, request_room;
    struct hd__lane_slot slot[HD__STAGE_SLOTS];
};

struct hd__stage {
    const struct hd__device *device;
    struct hd__transports *transports;
    int64_t chunk;
    struct hd__lane *lanes;
    int32_t under_way, reserved; /* exchanges */
};

/* Does anything leave the device's memory, and does anything come? */
int hd__stage_sends(const struct hd__exchange *x);
int hd__stage_receives(const struct hd__exchange *x);
/* How many chunks of which part, from `direct`. */
void hd__stage_cut(const struct hd__stage *stage, struct hd__exchange *x);
/* Bytes of pinned memory that a chunk takes on its way out, and on its way in. */
void hd__stage_room(const struct hd__exchange *x, int64_t *out, int64_t *in);

/* The steps of a chunk: copied out of the device's memory; given to the transport; 1 where the transport is through
 * with it; copied in. */
int32_t hd__chunk_send(struct hd__stage *stage, struct hd__lane *l, struct hd__exchange *x, struct hd_error *err);
int32_t hd__chunk_post(struct hd__stage *stage, struct hd__lane *l, struct hd__lane_slot *slot, struct hd_error *err);
int32_t hd__chunk_test(struct hd__stage *stage, struct hd__lane_slot *slot, struct hd_error *err);
int32_t hd__chunk_arrive(struct hd__stage *stage, struct hd__lane *l, struct hd__lane_slot *slot, struct hd_error *err);

#endif
