/* Comm op internals: the op, and the path to its transport as a table of calls. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H
#define HD_RUNTIME_EXEC_COMM_OP_INTERNAL_H

#include "core/base/clock.h"
#include "runtime/exec/comm_op/comm_op.h"

/* [outer, n, inner] bytes in a tensor <-> n contiguous blocks [outer, inner]. */
struct hd__block_layout {
    char *tensor, *blocks;
    int64_t outer, n, inner;
};

/* A message to or from one member. Messages of a pair and a stream match in order. */
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
    struct hd_comm_call call;                  /* of a collective */
    int64_t n_calls, send_stride, recv_stride; /* bytes from one call to the next */
    struct hd__block_layout pack, unpack;      /* all_to_all; n = 0 elsewhere */
    struct hd__p2p_message message[2];
    uint32_t n_messages, n_requests;
    hd_request *requests;
    int32_t pending, across_stages; /* across_stages: of the pipeline, whose programs differ */
    uint32_t queue;                 /* the stream of its instruction in the program */
    struct hd__flight_op flight_op; /* its description in the flight recorder */
    uint64_t flight_number;         /* its number there, while pending */
};

/* Table of a path. Ops are started and waited for; the path itself makes progress, and is freed after its ops. */
struct hd__comm_path_ops {
    size_t op_bytes; /* of its op struct, which begins with struct hd__comm_op */
    /* Ops are enqueued on the device as a whole, and recorded by the path; else the host waits, and the engine
     * records. */
    int32_t capturable, reserved;
    /* Addresses, calls and messages are set; the blocks of an all_to_all are not allocated. */
    int32_t (*prepare)(struct hd__comm_op *x, struct hd_error *err);
    void (*release)(struct hd__comm_op *x); /* also after a failed prepare; both may be NULL */
    int32_t (*start)(struct hd__comm_op *x, struct hd_error *err);
    int32_t (*wait)(struct hd__comm_op *x, double deadline, struct hd_error *err); /* NULL: complete after start */
    void (*cancel)(struct hd__comm_op *x, double deadline);                        /* NULL: not stream-ordered */
    /* A bounded step of progress: at least 0, or an error. */
    int32_t (*progress)(struct hd__comm_path *path, struct hd_error *err);
    void (*free)(struct hd__comm_path *path); /* progress, free: NULL for a path without state */
};

/* Base of a path's state. */
struct hd__comm_path {
    const struct hd__comm_path_ops *ops;
    const struct hd__device *device;
    struct hd__transports *transports;
    int32_t under_way, reserved; /* ops in flight */
};

extern const struct hd__comm_path_ops hd__comm_path_self, hd__comm_path_host; /* host.c */
/* bounce.c */
struct hd__comm_path *hd__exec_bounce_create(struct hd__transports *transports, int64_t chunk);
int32_t hd__exec_bounce_alloc_slots(struct hd__comm_path *path, struct hd_error *err);
/* stream.c; flight, clock: of the engine. */
struct hd__comm_path *hd__exec_stream_create(struct hd__transports *transports, struct hd__flight *flight,
                                             struct hd__clock *clock, double timeout);

/* host.c: for the other paths */

/* Allocates the blocks of an all_to_all in host memory; nothing for others. HD_OK. */
int32_t hd__exec_blocks_alloc(struct hd__comm_op *x, struct hd_error *err);
void hd__exec_blocks_free(struct hd__comm_op *x);
/* to_blocks: tensor to blocks; else back. `tensor` may be a copy of the op's. */
void hd__exec_permute_blocks(const struct hd__block_layout *s, char *tensor, int to_blocks);
/* Posts a message with `data` as its buffer. */
int32_t hd__exec_post_message(const struct hd__comm_op *x, const struct hd__p2p_message *m, void *data, uint64_t bytes,
                              hd_request *request, struct hd_error *err);
/* Posts all n_requests requests; waits for them. */
int32_t hd__exec_comm_op_post(struct hd__comm_op *x, struct hd_error *err);
int32_t hd__exec_comm_op_wait_requests(struct hd__comm_op *x, double deadline, struct hd_error *err);

#endif
