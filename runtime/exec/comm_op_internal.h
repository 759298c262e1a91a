/* Inside exchange*.c and stage*.c: what an instruction sends and receives, and how it gets there. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H
#define HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H

#include "runtime/exec/bounce.h"
#include "runtime/exec/comm_op.h"
#include "runtime/exec/stream_comm.h"

/* [outer, n, inner] bytes in a tensor <-> n contiguous blocks [outer, inner]. */
struct hd__shuffle {
    char *tensor, *blocks;
    int64_t outer, n, inner;
};

/* To or from one member. Messages match in the order of their pair and stream. */
struct hd__message {
    void *data;
    uint64_t bytes;
    int32_t peer, receives;
    uint32_t stream, reserved;
};

/* How a transport reaches the tensors: where they are the host's it is called at once; where the device has streams, an
 * exchange goes through a lane of the stage, or into a stream of the device. */
enum { HD__WAY_HOST = 0, HD__WAY_STAGED, HD__WAY_ORDERED };

struct hd__exchange {
    struct hd__transports *transports;
    struct hd__group_ref group;
    struct hd_comm_call call;              /* a collective */
    int64_t n_calls, send_step, recv_step; /* bytes from one call to the next */
    struct hd__shuffle pack, unpack;       /* all_to_all; n = 0 elsewhere */
    struct hd__message message[2];
    uint32_t n_messages, n_requests;
    hd_request *requests;
    int32_t pending;
    uint32_t way;                /* HD__WAY_... */
    struct hd__chunked staged;   /* HD__WAY_STAGED */
    struct hd__in_order order;   /* HD__WAY_ORDERED */
    struct hd__flight_op flight; /* as the recorder describes it */
    uint64_t flown;              /* its number there while it is pending */
};

/* to_blocks: from the tensor into the blocks; else back. `tensor` may be a copy of it. */
void hd__shuffle(const struct hd__shuffle *s, char *tensor, int to_blocks);

/* Gives all of it to the transport: n_requests requests. */
int32_t hd__exchange_post(struct hd__exchange *x, struct hd_error *err);

#endif
