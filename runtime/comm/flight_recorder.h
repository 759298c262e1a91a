/* runtime/comm/flight_recorder: ring buffer of the last operations of this rank, and of the one that it waits for.
 *
 * Every operation that the core starts writes one record. Its description is the same in every step and made once
 * (struct hd__flight_op); a record has a pointer to it, a number and three times. The thread that runs the step
 * program writes; any thread may read at any time (hd__comm_flight_read): fields are atomic, and the number of a
 * record tells whether it is valid. Writing costs one clock read and a few stores. */
#ifndef HD_RUNTIME_COMM_FLIGHT_RECORDER_H
#define HD_RUNTIME_COMM_FLIGHT_RECORDER_H

#include "core/base/base.h"

/* A sequence of operations, numbered from 1 and equal on all members: the collectives of a group, or the messages
 * from one member to another on one stream. */
struct hd__flight_channel {
    struct hd__flight_channel *next;
    const char *group;
    const int32_t *ranks; /* of the group, in member order */
    int32_t n;
    int32_t from, to; /* ranks; -1: collectives */
    uint32_t stream, index;
    uint64_t count; /* operations so far */
};

struct hd__flight_op {
    const char *name, *section, *block; /* "reduce_scatter", "micro_last", "L0" */
    struct hd__flight_channel *channel;
    uint64_t tag;   /* the same on all members */
    uint64_t count; /* elements of a call */
    uint64_t bytes; /* larger of what this rank sends and receives; all calls */
    uint32_t instr; /* index in its section */
    uint32_t dtype, redop, calls;
    int32_t root; /* member, or -1 */
    uint32_t reserved;
    uint64_t hash; /* of the fields that are equal on all members: hd__comm_flight_hash_op */
};

struct hd__flight_record {
    uint64_t number; /* on this rank, from 1; 0: being written */
    uint64_t seq;    /* in its channel */
    const struct hd__flight_op *op;
    double enqueued, waited, completed; /* hd__now(); 0: not yet */
    int64_t code;                       /* when completed */
};

struct hd__flight {
    struct hd__flight_record *ring; /* `room` of them, a power of two */
    uint64_t room;
    uint64_t number;                  /* of the newest */
    uint64_t waiting;                 /* number of the operation that is waited for, or 0 */
    uint64_t op_hash, op_hash_before; /* chained hash of all operations so far; without the newest */
    int64_t step;                     /* training step, or -1 */
    double went_on;                   /* when this process last did after it had been stopped; 0: never */
    struct hd__arena arena;
    struct hd__flight_channel *channels, **tail;
    uint32_t n_channels, reserved;
};

/* `room`: at least so many records are kept. */
struct hd__flight *hd__comm_flight_create(uint64_t room);
void hd__comm_flight_destroy(struct hd__flight *flight); /* NULL is fine */

/* Finds or creates a channel; before the first operation only. */
struct hd__flight_channel *hd__comm_flight_channel(struct hd__flight *flight, const char *group, const int32_t *ranks,
                                                   int32_t n, int32_t from, int32_t to, uint32_t stream);

/* Sets op->hash. */
void hd__comm_flight_hash_op(struct hd__flight_op *op);

/* ---- writing: one thread */

/* Release: no store to a record is visible before its number is cleared. Plain stores on x86. */
#define HD__FLIGHT_SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELEASE)
#define HD__FLIGHT_TIME(field, value) __atomic_store(&(field), &(double){value}, __ATOMIC_RELEASE)

/* Records the start of an operation; returns its number. */
static inline uint64_t hd__comm_flight_start(struct hd__flight *f, const struct hd__flight_op *op, double now)
{
    uint64_t number = f->number + 1, seq = op->channel->count + 1;
    struct hd__flight_record *r = &f->ring[number & (f->room - 1)];
    HD__FLIGHT_SET(r->number, 0);
    HD__FLIGHT_SET(r->seq, seq);
    HD__FLIGHT_SET(r->op, op);
    HD__FLIGHT_TIME(r->enqueued, now);
    HD__FLIGHT_TIME(r->waited, 0);
    HD__FLIGHT_TIME(r->completed, 0);
    HD__FLIGHT_SET(r->code, 0);
    HD__FLIGHT_SET(r->number, number);
    HD__FLIGHT_SET(op->channel->count, seq);
    HD__FLIGHT_SET(f->number, number);
    f->op_hash_before = f->op_hash;
    f->op_hash = (f->op_hash ^ op->hash) * UINT64_C(0x9e3779b97f4a7c15);
    return number;
}

/* Records that this rank blocks on it. */
static inline void hd__comm_flight_wait(struct hd__flight *f, uint64_t number, double now)
{
    struct hd__flight_record *r = &f->ring[number & (f->room - 1)];
    if (r->number == number) /* else overwritten: more operations were in flight than there are records */
        HD__FLIGHT_TIME(r->waited, now);
    HD__FLIGHT_SET(f->waiting, number);
}

/* Records its end: HD_OK, or the HD_E_ code. */
static inline void hd__comm_flight_end(struct hd__flight *f, uint64_t number, double now, int32_t code)
{
    struct hd__flight_record *r = &f->ring[number & (f->room - 1)];
    if (!code) /* after a failure `waiting` keeps the operation that failed */
        HD__FLIGHT_SET(f->waiting, 0);
    if (r->number != number)
        return;
    HD__FLIGHT_SET(r->code, code);
    HD__FLIGHT_TIME(r->completed, now);
}

/* Removes the newest operation, as if it had not started; returns its description, NULL if there is none. */
const struct hd__flight_op *hd__comm_flight_retract(struct hd__flight *flight);

/* ---- reading: any thread */

/* 1 and a copy; 0 where it was overwritten or never recorded. */
int hd__comm_flight_read(const struct hd__flight *flight, uint64_t number, struct hd__flight_record *out);
/* Seconds that this rank has blocked on its current operation; 0: it does not wait. */
double hd__comm_flight_waited(const struct hd__flight *flight);
/* [any-thread] This process had been stopped until now: waits begin anew. */
void hd__comm_flight_went_on(struct hd__flight *flight, double now);
/* Seconds from `began` until now; 0: it was stopped meanwhile, and what took so long is no measure. */
double hd__comm_flight_took(const struct hd__flight *flight, double began);

#endif
