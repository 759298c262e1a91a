/* runtime/exec/comm_op: the communication of one instruction: a collective, a ring shift, or a message between
 * pipeline stages. Created once with final addresses, then started and waited for in every step. One thread.
 *
 * The path of an op (internal.h) says how it reaches its transport: the host calls it at once (host.c); the device
 * has streams, and the host posts chunk by chunk as compute proceeds (bounce.c); or the transport enqueues its
 * operations in a stream of the device (stream.c). */
#ifndef HD_RUNTIME_EXEC_COMM_OP_COMM_OP_H
#define HD_RUNTIME_EXEC_COMM_OP_COMM_OP_H

#include "core/program/program.h"
#include "runtime/exec/device.h"
#include "runtime/exec/transports.h"

struct hd__comm_op;

/* ---- engine: all ops of a rank */

struct hd__comm_engine;

/* For an open device. `chunk`: approximate bytes of a chunk of bounce.c; `timeout`: seconds for an op. */
struct hd__comm_engine *hd__exec_comm_engine_create(struct hd__transports *transports, int64_t chunk, double timeout);
void hd__exec_comm_engine_free(struct hd__comm_engine *engine); /* after its ops; NULL is fine */
/* After all ops are created: allocates the pinned memory that they share. */
int32_t hd__exec_comm_engine_alloc(struct hd__comm_engine *engine, struct hd_error *err);
/* A bounded step of progress: HD_OK or an error. */
int32_t hd__exec_comm_engine_progress(struct hd__comm_engine *engine, struct hd_error *err);
/* Ops between their start and their wait. */
int32_t hd__exec_comm_engine_pending(const struct hd__comm_engine *engine);

/* ---- ops */

/* An instruction's place in the program, for the flight recorder. */
struct hd__instr_location {
    const char *section;
    uint32_t index, reserved;
};

/* The transport calls of an instruction in a group of n, without addresses. call.coll 0: no collective. */
struct hd__coll_calls {
    struct hd_comm_call call;
    int64_t n, send_stride, recv_stride; /* bytes from one call to the next */
};
struct hd__coll_calls hd__exec_coll_calls(const struct hd_program *p, const struct hd__instr *i, int32_t n);
/* Elements, of `all` in a block of a call, in one chunk of about `chunk` bytes; `widest`: bytes of an element in all
 * blocks. */
int64_t hd__exec_bounce_chunk_count(int64_t all, int64_t widest, int64_t chunk);

/* May create groups: collective over their members, in the same order on all. */
int32_t hd__exec_comm_op_create(struct hd__comm_engine *engine, struct hd_program *p, const struct hd__instr *i,
                                const struct hd__instr_location *place, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                struct hd__comm_op **op, struct hd_error *err);
void hd__exec_comm_op_free(struct hd__comm_op *op); /* NULL is fine */

/* Starts the op; its tensors may not be accessed until the wait. After an error nothing is pending. */
int32_t hd__exec_comm_op_start(struct hd__comm_op *op, struct hd_error *err);
/* Waits until it is complete, or orders later compute behind it; adds the host's waiting time to *seconds. HD_OK where
 * nothing is pending: in a group of one rank the start does it all. */
int32_t hd__exec_comm_op_wait(struct hd__comm_op *op, double *seconds, struct hd_error *err);

/* The mesh axis that it runs over, the outermost of several. */
int32_t hd__exec_comm_op_axis(const struct hd__comm_op *op);

/* Its group, and that in the flight recorder. */
const struct hd__group_ref *hd__exec_comm_op_group(const struct hd__comm_op *op, struct hd__flight_channel **channel);

/* ---- graph capture: see stream.c */

/* Needs no work of the host, so that it may be captured. */
int32_t hd__exec_comm_op_capturable(const struct hd__comm_op *op);
/* Enqueued in a stream of the device; the functions below are for these ops. */
int32_t hd__exec_comm_op_stream_ordered(const struct hd__comm_op *op);
/* Instead of the waits of a capture that failed: completes all requests, and ignores their errors. */
void hd__exec_comm_ops_cancel(struct hd__comm_op *const *ops, uint32_t n);

struct hd__stream_inflight;

/* During a capture ops are not tracked as in flight. */
void hd__exec_comm_ops_set_capturing(struct hd__comm_op *const *ops, uint32_t n, int32_t on);
/* Around the replay of a graph: its ops, at least one, are tracked together. */
int32_t hd__exec_comm_ops_begin_replay(struct hd__comm_op *const *ops, uint32_t n,
                                       struct hd__stream_inflight **inflight, struct hd_error *err);
int32_t hd__exec_comm_ops_end_replay(struct hd__comm_op *const *ops, struct hd__stream_inflight *inflight,
                                     struct hd_error *err);

#endif
