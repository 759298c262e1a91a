/* runtime/exec/comm_op: what a rank sends and receives in one instruction: a collective, a step around a ring, or a message
 * between pipeline stages. Made once with final addresses, then started and waited for in every step. One thread. */
#ifndef HD_RUNTIME_EXEC_COMM_OP_H
#define HD_RUNTIME_EXEC_COMM_OP_H

#include "core/program/program.h"
#include "runtime/exec/transports.h"

struct hd__exchange;

/* Where an instruction stands in the program, for the flight recorder. */
struct hd__exchange_place {
    const char *section;
    uint32_t index, reserved;
};

/* The calls of a transport that an instruction is, in a group of n, without addresses. call.coll 0: it is none. */
struct hd__calls {
    struct hd_comm_call call;
    int64_t n, send_step, recv_step; /* bytes from one call to the next */
};
struct hd__calls hd__calls_of(const struct hd_program *p, const struct hd__instr *i, int32_t n);

/* May make groups: collective over their members, in the same order on all. `transports` outlives it. */
int32_t hd__exchange_new(struct hd__transports *transports, struct hd_program *p, const struct hd__instr *i,
                         const struct hd__exchange_place *place, const int32_t coord[HD_AXIS_COUNT], void *arena,
                         struct hd__exchange **exchange, struct hd_error *err);
void hd__exchange_free(struct hd__exchange *exchange); /* NULL is fine */

/* No part of it is the host's to do: it may be part of a captured piece. */
int32_t hd__exchange_quiet(const struct hd__exchange *exchange);
/* It is watched while the device is at it (runtime/exec/stream_comm.h). */
int32_t hd__exchange_watched(const struct hd__exchange *exchange);
/* Posts all of it; nothing may touch its tensors until the wait. The transport's error, then nothing is pending. */
int32_t hd__exchange_start(struct hd__exchange *exchange, struct hd_error *err);
/* Instead of the wait, where it was started in a captured piece that came to nothing: the transport is asked for what it was
 * given until `deadline`, whatever it says. Nothing where none is pending. */
void hd__exchange_forget(struct hd__exchange *exchange, double deadline);
/* 1 from start to wait; 0 also where a rank is alone in its group, and all is done at once. */
int32_t hd__exchange_pending(const struct hd__exchange *exchange);
/* Until it is complete, `timeout` seconds at most; adds to *seconds how long it took. */
int32_t hd__exchange_wait(struct hd__exchange *exchange, double timeout, double *seconds, struct hd_error *err);

#endif
