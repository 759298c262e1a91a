/* runtime/comm/flight_recorder: the flight recorder: the last operations of this rank, and what it waits for.
 *
 * Every operation that the core starts writes one record; the ring keeps the newest. What an operation is does not change
 * from step to step and is described once (struct hd__flight_op); a record is a pointer to that, a number and three times.
 * The thread that runs the step program writes; any thread may read at any moment (hd__comm_flight_read): fields are atomic and
 * a record's number says whether it is whole. Writing costs one look at the clock and a few stores. */
#ifndef HD_RUNTIME_COMM_FLIGHT_RECORDER_H
#define HD_RUNTIME_COMM_FLIGHT_RECORDER_H

#include "core/base/base.h"

/* Operations that are numbered together, from 1, alike on all members: the collectives of a group, or the messages from
 * one member to another on one stream. */
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
    uint64_t bytes; /* that this rank contributes or receives, whichever is more; of all calls */
    uint32_t instr; /* in its section */
    uint32_t dtype, redop, calls;
    int32_t root; /* member; -1 where there is none */
    uint32_t reserved;
    uint64_t hash; /* hash of all that the ranks of one program have in common: hd__comm_flight_hash_op */
};

struct hd__flight_record {
    uint64_t number; /* of all operations of this rank, from 1; 0: being written */
    uint64_t seq;    /* in its channel */
    const struct hd__flight_op *op;
    double enqueued, waited, completed; /* hd__now(); 0: not yet */
    int64_t code;                       /* once completed */
};

struct hd__flight {
    struct hd__flight_record *ring; /* `room` of them, a power of two */
    uint64_t room;
    uint64_t number;                  /* of the newest */
    uint64_t waiting;                 /* for this one; 0: for none */
    uint64_t op_hash, op_hash_before; /* of the signs of all operations so far; without the newest */
    int64_t step;                     /* of training, where there are steps; -1 */
    struct hd__arena arena;
    struct hd__flight_channel *channels, **tail;
    uint32_t n_channels, reserved;
};

/* `room`: records to keep at least. */
struct hd__flight *hd__comm_flight_create(uint64_t room);
void hd__comm_flight_destroy(struct hd__flight *flight); /* NULL is fine */

/* The channel of these, made when first asked for; before the first operation only. */
struct hd__flight_channel *hd__comm_flight_channel(struct hd__flight *flight, const char *group, const int32_t *ranks,
                                                   int32_t n, int32_t from, int32_t to, uint32_t stream);

/* Fills in op->sign. */
void hd__comm_flight_hash_op(struct hd__flight_op *op);

/* ---- writing: one thread */

/* Release: no store of a record is seen before its number was taken away. Plain stores on x86. */
#define HD__FLIGHT_SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELEASE)
#define HD__FLIGHT_TIME(field, value) __atomic_store(&(field), &(double){value}, __ATOMIC_RELEASE)

/* An operation begins; returns its number. */
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

/* From now on this rank does nothing else but wait for it. */
static inline void hd__comm_flight_wait(struct hd__flight *f, uint64_t number, double now)
{
    struct hd__flight_record *r = &f->ring[number & (f->room - 1)];
    if (r->number == number) /* else it was overwritten: more were under way than there is room for */
        HD__FLIGHT_TIME(r->waited, now);
    HD__FLIGHT_SET(f->waiting, number);
}

/* It is over: HD_OK, or the HD_E_ code with which it failed. */
static inline void hd__comm_flight_end(struct hd__flight *f, uint64_t number, double now, int32_t code)
{
    struct hd__flight_record *r = &f->ring[number & (f->room - 1)];
    if (!code) /* else it stays where it failed */
        HD__FLIGHT_SET(f->waiting, 0);
    if (r->number != number)
        return;
    HD__FLIGHT_SET(r->code, code);
    HD__FLIGHT_TIME(r->completed, now);
}

/* Takes the newest operation back, as if it had not begun; returns what it was, NULL if there is none. */
const struct hd__flight_op *hd__comm_flight_retract(struct hd__flight *flight);

/* ---- reading: any thread */

/* 1 and a copy; 0 where it is gone, or was never there. */
int hd__comm_flight_read(const struct hd__flight *flight, uint64_t number, struct hd__flight_record *out);
/* Seconds that this rank has waited for the operation it waits for; 0: it does not wait. */
double hd__comm_flight_waited(const struct hd__flight *flight);

#endif
