/* Inside comm_op/: what an op is, and a path to its transport as a table of calls. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H
#define HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H

#include "core/base/clock.h"
#include "runtime/exec/comm_op/comm_op.h"

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

struct hd__comm_op {
    struct hd__comm_engine *engine;
    struct hd__comm_path *path;
    struct hd__group_ref group;
    struct hd_comm_call call;                  /* a collective */
    int64_t n_calls, send_stride, recv_stride; /* bytes from one call to the next */
    struct hd__block_layout pack, unpack;      /* all_to_all; n = 0 elsewhere */
    struct hd__p2p_message message[2];
    uint32_t n_messages, n_requests;
    hd_request *requests;
    int32_t pending;
    uint32_t queue;                 /* the stream of its instruction in the program */
    struct hd__flight_op flight_op; /* as the recorder describes it */
    uint64_t flight_number;         /* its number there while it is pending */
};

/* The calls of a path. Its ops are started and waited for; the path itself makes progress, and is freed after them. */
struct hd__comm_path_ops {
    size_t op_bytes; /* an op of this path begins with struct hd__comm_op */
    /* All of an op is enqueued on the device, and its path records it; else the host waits for it, and the engine
     * does. */
    int32_t capturable, reserved;
    /* Addresses, calls and messages are there; memory for the blocks of an all_to_all is not. */
    int32_t (*prepare)(struct hd__comm_op *x, struct hd_error *err);
    void (*release)(struct hd__comm_op *x); /* also after a prepare that failed; both NULL: nothing to prepare */
    int32_t (*start)(struct hd__comm_op *x, struct hd_error *err);
    int32_t (*wait)(struct hd__comm_op *x, double deadline, struct hd_error *err); /* NULL: the start does it all */
    void (*cancel)(struct hd__comm_op *x, double deadline);                        /* NULL: not ordered by a stream */
    /* A bounded piece of what is under way: at least 0, or an error. */
    int32_t (*progress)(struct hd__comm_path *path, struct hd_error *err);
    void (*free)(struct hd__comm_path *path); /* progress, free: NULL where a path has no state */
};

/* One path of a rank; its state begins with this. */
struct hd__comm_path {
    const struct hd__comm_path_ops *ops;
    const struct hd__device *device;
    struct hd__transports *transports;
    int32_t under_way, reserved; /* what progress has to look at */
};

extern const struct hd__comm_path_ops hd__comm_path_self, hd__comm_path_host; /* host.c */
/* bounce.c */
struct hd__comm_path *hd__exec_bounce_create(struct hd__transports *transports, int64_t chunk);
int32_t hd__exec_bounce_alloc_slots(struct hd__comm_path *path, struct hd_error *err);
/* stream.c; flight, clock: of the engine, which records what the host waits for. */
struct hd__comm_path *hd__exec_stream_create(struct hd__transports *transports, struct hd__flight *flight,
                                             struct hd__clock *clock, double timeout);

/* host.c: for the other paths */

/* Host memory for the blocks of an all_to_all; nothing for others. HD_OK. */
int32_t hd__exec_blocks_alloc(struct hd__comm_op *x, struct hd_error *err);
void hd__exec_blocks_free(struct hd__comm_op *x);
/* to_blocks: from the tensor into the blocks; else back. `tensor` may be a copy of it. */
void hd__exec_permute_blocks(const struct hd__block_layout *s, char *tensor, int to_blocks);
/* Sends `data`, or receives into it, as the message says. */
int32_t hd__exec_post_message(const struct hd__comm_op *x, const struct hd__p2p_message *m, void *data, uint64_t bytes,
                              hd_request *request, struct hd_error *err);
/* Gives all of it to the transport: n_requests requests; and waits for these. */
int32_t hd__exec_comm_op_post(struct hd__comm_op *x, struct hd_error *err);
int32_t hd__exec_comm_op_wait_requests(struct hd__comm_op *x, double deadline, struct hd_error *err);

#endif
