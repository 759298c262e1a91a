/* core/comm/algorithms: collectives as lists of steps over send and recv, for transports that offer no more.
 *
 * A builder turns one call into the steps of one member: messages, copies, sums, and fences. Everything between two
 * fences may happen at once; a fence waits for it. Members build matching schedules from the same call, and nothing is
 * exchanged to agree. overlay.c runs them.
 *
 *     barrier          dissemination: ceil(log2 n) rounds
 *     broadcast        binomial tree
 *     all_gather       Bruck for small pieces, else a ring
 *     all_to_all       pairwise exchange, n - 1 rounds
 *     reduce_scatter   pairwise exchange of raw pieces, then a sum
 *     all_reduce       small: everything gathered, summed by everyone; else reduce_scatter of slices and a ring
 *     reduce           reduce_scatter of slices, gathered at the root
 *
 * No algorithm adds partial sums in an order of its own (a ring of sums): heddle/comm.h promises that every sum is formed in
 * one binary tree over the members. A mismatch of calls is noticed only where it makes the sizes of messages differ. */
#ifndef HD_CORE_COMM_SCHEDULE_H
#define HD_CORE_COMM_SCHEDULE_H

#include "core/base/base.h"
#include "heddle/comm.h"

enum { HD__STEP_SEND = 0, HD__STEP_RECV, HD__STEP_COPY, HD__STEP_REDUCE, HD__STEP_FENCE };

struct hd__step {
    uint32_t kind;
    int32_t peer;   /* SEND, RECV: member; REDUCE: first source in `sources` */
    const void *from; /* SEND, COPY */
    void *to;         /* RECV, COPY, REDUCE */
    uint64_t bytes;   /* REDUCE: elements */
};

struct hd__schedule {
    HD__ARRAY(struct hd__step) steps;
    HD__ARRAY(const void *) sources; /* of REDUCE steps, n each */
    HD__ARRAY(void *) scratch;       /* freed with the schedule */
    int32_t n, me;
};

/* Builds the schedule of member `me` of n. The schedule's memory is reused from call to call. */
int32_t hd__schedule_build(struct hd__schedule *s, int32_t n, int32_t me, const struct hd_comm_call *call,
                           struct hd_error *err);
void hd__schedule_clear(struct hd__schedule *s); /* before the next build */
void hd__schedule_free(struct hd__schedule *s);

/* dst = src[0] op src[1] ... in the binary tree over them (heddle/comm.h); fp16 and bf16 in fp32, rounded once. dst may be one of them. */
void hd__reduce(void *dst, const void *const *src, int32_t n, uint64_t count, uint32_t dtype, uint32_t redop);

/* ---- for the builders */
void hd__step_send(struct hd__schedule *s, int32_t peer, const void *from, uint64_t bytes);
void hd__step_recv(struct hd__schedule *s, int32_t peer, void *to, uint64_t bytes);
void hd__step_copy(struct hd__schedule *s, void *to, const void *from, uint64_t bytes); /* nothing if they are one */
void hd__step_reduce(struct hd__schedule *s, void *to, const void *const *sources, uint64_t count);
void hd__step_fence(struct hd__schedule *s);
uint8_t *hd__schedule_scratch(struct hd__schedule *s, uint64_t bytes);

/* Elements first..last of n slices of `count`; slice i. */
struct hd__slice {
    uint64_t first, last;
};
struct hd__slice hd__slice_of(uint64_t count, int32_t n, int32_t i);

typedef void hd__build_fn(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize);
hd__build_fn hd__build_barrier, hd__build_broadcast, hd__build_all_gather, hd__build_all_to_all,
    hd__build_reduce_scatter, hd__build_all_reduce, hd__build_reduce;

/* Exchanges raw slices and leaves this member's slice of the sum in `to` (its first element is the slice's). */
void hd__build_slices(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize, uint8_t *to);
/* Gathers `bytes` from each member into out (n of them, in member order), in ceil(log2 n) rounds. */
void hd__build_bruck(struct hd__schedule *s, const void *mine, uint8_t *out, uint64_t bytes);

#endif
