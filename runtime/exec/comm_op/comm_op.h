/* runtime/exec/comm_op/comm_op: what a rank sends and receives in one instruction: a collective, a step around a ring, or a message
 * between pipeline stages. Made once with final addresses, then started and waited for in every step. One thread. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_COMM_OP_H
#define HD_RUNTIME_EXEC_COMM_OP_COMM_OP_H

#include "core/program/program.h"
#include "runtime/exec/transports.h"

struct hd__comm_op;

/* Where an instruction stands in the program, for the flight recorder. */
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

/* May make groups: collective over their members, in the same order on all. `transports` outlives it. */
int32_t hd__exec_comm_op_create(struct hd__transports *transports, struct hd_program *p, const struct hd__instr *i,
                                const struct hd__instr_location *place, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                struct hd__comm_op **exchange, struct hd_error *err);
void hd__exec_comm_op_free(struct hd__comm_op *exchange); /* NULL is fine */

/* No part of it is the host's to do: it may be part of a captured piece. */
int32_t hd__exec_comm_op_capturable(const struct hd__comm_op *exchange);
/* It is watched while the device is at it (runtime/exec/comm_op/stream.h). */
int32_t hd__exec_comm_op_stream_ordered(const struct hd__comm_op *exchange);
/* Posts all of it; nothing may touch its tensors until the wait. The transport's error, then nothing is pending. */
int32_t hd__exec_comm_op_start(struct hd__comm_op *exchange, struct hd_error *err);
/* Instead of the wait, where it was started in a captured piece that came to nothing: the transport is asked for what it was
 * given until `deadline`, whatever it says. Nothing where none is pending. */
void hd__exec_comm_op_cancel(struct hd__comm_op *exchange, double deadline);
/* 1 from start to wait; 0 also where a rank is alone in its group, and all is done at once. */
int32_t hd__exec_comm_op_pending(const struct hd__comm_op *exchange);
/* Until it is complete, `timeout` seconds at most; adds to *seconds how long it took. */
int32_t hd__exec_comm_op_wait(struct hd__comm_op *exchange, double timeout, double *seconds, struct hd_error *err);

#endif
