/* Inside exchange*.c and stage*.c: what an instruction sends and receives, and how it gets there. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H
#define HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H

#include "runtime/exec/comm_op/bounce.h"
#include "runtime/exec/comm_op/comm_op.h"
#include "runtime/exec/comm_op/stream.h"

/* [outer, n, inner] bytes in a tensor <-> n contiguous blocks [outer, inner]. */
struct hd__block_layout {
    char *tensor, *blocks;
    int64_t outer, n, inner;
};

/* To or from one member. Messages match in the order of their pair and stream. */
struct hd__p2p_message {
    void *data;
    uint64_t bytes;
    int32_t peer, receives;
    uint32_t stream, reserved;
};

/* How a transport reaches the tensors: where they are the host's it is called at once; where the device has streams, an
 * exchange goes through a lane of the stage, or into a stream of the device. */
enum { HD__COMM_PATH_HOST = 0, HD__COMM_PATH_BOUNCE, HD__COMM_PATH_STREAM };

struct hd__comm_op {
    struct hd__transports *transports;
    struct hd__group_ref group;
    struct hd_comm_call call;                  /* a collective */
    int64_t n_calls, send_stride, recv_stride; /* bytes from one call to the next */
    struct hd__block_layout pack, unpack;      /* all_to_all; n = 0 elsewhere */
    struct hd__p2p_message message[2];
    uint32_t n_messages, n_requests;
    hd_request *requests;
    int32_t pending;
    uint32_t path;                  /* HD__WAY_... */
    struct hd__bounce_op bounce;    /* HD__COMM_PATH_BOUNCE */
    struct hd__stream_op stream_op; /* HD__COMM_PATH_STREAM */
    struct hd__flight_op flight_op; /* as the recorder describes it */
    uint64_t flight_number;         /* its number there while it is pending */
};

/* to_blocks: from the tensor into the blocks; else back. `tensor` may be a copy of it. */
void hd__exec_permute_blocks(const struct hd__block_layout *s, char *tensor, int to_blocks);

/* Gives all of it to the transport: n_requests requests. */
int32_t hd__exec_comm_op_post(struct hd__comm_op *x, struct hd_error *err);

#endif
