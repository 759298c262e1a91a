/* runtime/exec/comm_op: what a rank sends and receives in one instruction: a collective, a step around a ring, or a
 * message between pipeline stages. Made once with final addresses, then started and waited for in every step. One
 * thread.
 *
 * How an op reaches its transport is its path (internal.h): the host calls the transport at once (host.c); the device
 * has streams, and the host calls the transport chunk by chunk as compute comes to them (bounce.c); or the transport
 * puts its operations into a stream of the device (stream.c). */
#ifndef HD_RUNTIME_EXEC_COMM_OP_COMM_OP_H
#define HD_RUNTIME_EXEC_COMM_OP_COMM_OP_H

#include "core/program/program.h"
#include "runtime/exec/device.h"
#include "runtime/exec/transports.h"

struct hd__comm_op;

/* ---- all ops of a rank */

struct hd__comm_engine;

/* The device is open. `chunk`: about how many bytes a chunk of bounce.c has; `timeout`: seconds for an op. */
struct hd__comm_engine *hd__exec_comm_engine_create(struct hd__transports *transports, int64_t chunk, double timeout);
void hd__exec_comm_engine_free(struct hd__comm_engine *engine); /* after its ops; NULL is fine */
/* All ops are there: takes what they share of pinned memory. */
int32_t hd__exec_comm_engine_alloc(struct hd__comm_engine *engine, struct hd_error *err);
/* A bounded piece of what is under way: HD_OK or an error. */
int32_t hd__exec_comm_engine_progress(struct hd__comm_engine *engine, struct hd_error *err);
/* Ops between their start and their wait. */
int32_t hd__exec_comm_engine_pending(const struct hd__comm_engine *engine);

/* ---- an op */

/* An instruction's place in the program, for the flight recorder. */
struct hd__instr_location {
    const char *section;
    uint32_t index, reserved;
};

/* The calls of a transport that an instruction is, in a group of n, without addresses. call.coll 0: it is none. */
struct hd__coll_calls {
    struct hd_comm_call call;
    int64_t n, send_stride, recv_stride; /* bytes from one call to the next */
};
struct hd__coll_calls hd__exec_coll_calls(const struct hd_program *p, const struct hd__instr *i, int32_t n);
/* How many of the `all` elements of a call's piece go in one chunk of about `chunk` bytes; `widest`: bytes of an
 * element in all pieces together. */
int64_t hd__exec_bounce_chunk_count(int64_t all, int64_t widest, int64_t chunk);

/* May make groups: collective over their members, in the same order on all. */
int32_t hd__exec_comm_op_create(struct hd__comm_engine *engine, struct hd_program *p, const struct hd__instr *i,
                                const struct hd__instr_location *place, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                struct hd__comm_op **op, struct hd_error *err);
void hd__exec_comm_op_free(struct hd__comm_op *op); /* NULL is fine */

/* Posts all of it; nothing may touch its tensors until the wait. The transport's error, then nothing is pending. */
int32_t hd__exec_comm_op_start(struct hd__comm_op *op, struct hd_error *err);
/* Until it is complete, or compute is ordered behind its end; adds to *seconds how long the host waited. HD_OK where
 * nothing is pending: a rank that is alone in its group is done at the start. */
int32_t hd__exec_comm_op_wait(struct hd__comm_op *op, double *seconds, struct hd_error *err);

/* ---- captured pieces: see stream.c */

/* No part of it is the host's to do: it may be part of a captured piece. */
int32_t hd__exec_comm_op_capturable(const struct hd__comm_op *op);
/* It is in a stream of the device: what follows is for these. */
int32_t hd__exec_comm_op_stream_ordered(const struct hd__comm_op *op);
/* Instead of the wait, where some were started in a captured piece that came to nothing: the transport is asked for
 * what it was given, whatever it says. */
void hd__exec_comm_ops_cancel(struct hd__comm_op *const *ops, uint32_t n);

struct hd__stream_inflight;

/* While a piece is captured its ops are part of it, and not watched. */
void hd__exec_comm_ops_set_capturing(struct hd__comm_op *const *ops, uint32_t n, int32_t on);
/* Around the launch of a captured piece: its ops, at least one, are watched together. */
int32_t hd__exec_comm_ops_begin_replay(struct hd__comm_op *const *ops, uint32_t n,
                                       struct hd__stream_inflight **inflight, struct hd_error *err);
int32_t hd__exec_comm_ops_end_replay(struct hd__comm_op *const *ops, struct hd__stream_inflight *inflight,
                                     struct hd_error *err);

#endif
