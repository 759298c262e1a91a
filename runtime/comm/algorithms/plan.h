/* runtime/comm/algorithms: collectives as lists of steps over send and recv, for transports that offer no more.
 *
 * A builder turns one call into the steps of one member: messages, copies, sums, and fences. Everything between two
 * fences may happen at once; a fence waits for all messages before it, or for the first so many: so a chunk is summed
 * while the next ones travel. Members build matching schedules from the same call, and nothing is exchanged to agree.
 * software_collectives.c runs them, select.c says which builder a call gets.
 *
 *     barrier          dissemination: ceil(log2 n) rounds
 *     broadcast        binomial: ceil(log2 n) rounds; chain: the members in a row, chunk by chunk
 *     all_gather       bruck: rounds that double, small pieces; doubling: the same without copies, n a power of two; ring
 *     all_to_all       pairwise exchange, n - 1 rounds
 *     reduce_scatter   pairwise: raw pieces, chunk by chunk, summed by who owns the result; ring: partial sums travel
 *     all_reduce       gather: all inputs to everyone (bruck), summed by everyone; slices: reduce_scatter and a ring;
 *                      doubling: partial sums are swapped in ceil(log2 n) rounds; halving: halves of halves are, then gathered
 *                      back, n a power of two; tree: up and down again; ring: partial sums travel round, then the results
 *     reduce           slices: reduce_scatter, gathered at the root; tree: up to the root, ceil(log2 n) rounds
 *
 * heddle/comm.h prescribes the tree in which sums are formed. gather, slices and pairwise sum it at one place; doubling,
 * halving and tree follow it from member to member. Where partial sums would have to be rounded (bf16 and fp16 in halves of
 * halves), and in rings, the order is another: such builders are used only where the job allows any order.
 * A mismatch of calls is noticed only where it makes the sizes of messages differ. */
#ifndef HD_RUNTIME_COMM_ALGORITHMS_PLAN_H
#define HD_RUNTIME_COMM_ALGORITHMS_PLAN_H

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/comm/algorithms/select.h"

enum {
    HD__COLL_STEP_SEND = 0,
    HD__COLL_STEP_RECV,
    HD__COLL_STEP_COPY,
    HD__COLL_STEP_REDUCE,
    HD__COLL_STEP_WIDEN,
    HD__COLL_STEP_NARROW,
    HD__COLL_STEP_FENCE,
    HD__COLL_STEP_POSTED /* what a RECV becomes that was posted before its turn */
};

struct hd__coll_step {
    uint32_t kind;
    int32_t peer;     /* SEND, RECV: member */
    const void *from; /* SEND, COPY, WIDEN, NARROW */
    void *to;         /* RECV, COPY, REDUCE, WIDEN, NARROW */
    uint64_t bytes;   /* REDUCE, WIDEN, NARROW: elements; FENCE: how many of the messages so far */
    uint32_t first, n, dtype,
        redop; /* REDUCE: sources first .. first + n - 1; WIDEN, NARROW: dtype of the narrow side */
};

struct hd__coll_plan {
    HD__ARRAY(struct hd__coll_step) steps;
    HD__ARRAY(const void *) sources; /* of REDUCE steps */
    HD__ARRAY(void *) scratch;       /* freed with the schedule */
    int32_t n, me;
    uint64_t messages;               /* steps that send or receive, so far */
    uint64_t chunk;                  /* bytes of a message where a builder cuts; never 0 */
    const struct hd__algorithm *use; /* NULL: there was nothing to do */
};

/* Builds the schedule of member `me` of n. The schedule's memory is reused from call to call. */
int32_t hd__comm_plan_build(struct hd__coll_plan *s, const struct hd__tuning *tuning, int32_t n, int32_t me,
                            const struct hd_comm_call *call, struct hd_error *err);
void hd__comm_plan_clear(struct hd__coll_plan *s); /* before the next build */
void hd__comm_plan_free(struct hd__coll_plan *s);

/* dst = src[0] op src[1] ... in the binary tree over them (heddle/comm.h), in the dtype of sums, rounded once. HD_AVG divides
 * the sum by `over`. dst may be one of them. */
void hd__comm_reduce(void *dst, const void *const *src, int32_t n, int32_t over, uint64_t count, uint32_t dtype,
                     uint32_t redop);

/* ---- for the builders */
void hd__comm_plan_send(struct hd__coll_plan *s, int32_t peer, const void *from, uint64_t bytes);
void hd__comm_plan_recv(struct hd__coll_plan *s, int32_t peer, void *to, uint64_t bytes);
void hd__comm_plan_copy(struct hd__coll_plan *s, void *to, const void *from,
                        uint64_t bytes); /* nothing if they are one */
/* The sum of n sources; redop HD_AVG divides by the members of the group, n or not. */
void hd__comm_plan_reduce(struct hd__coll_plan *s, void *to, const void *const *sources, uint32_t n, uint64_t count,
                          uint32_t dtype, uint32_t redop);
void hd__comm_plan_widen(struct hd__coll_plan *s, float *to, const void *from, uint64_t count, uint32_t dtype);
void hd__comm_plan_narrow(struct hd__coll_plan *s, void *to, const float *from, uint64_t count, uint32_t dtype);
void hd__comm_plan_fence(struct hd__coll_plan *s);
void hd__comm_plan_fence_first(struct hd__coll_plan *s, uint64_t messages); /* the first so many of s->messages */
uint8_t *hd__comm_plan_scratch(struct hd__coll_plan *s, uint64_t bytes);

/* Elements first..last of n slices of `count`; slice i. */
struct hd__slice {
    uint64_t first, last;
};
struct hd__slice hd__comm_slice_of(uint64_t count, int32_t n, int32_t i);
/* The largest power of two below n; members before it are the left half of the tree of sums. n > 1. */
int32_t hd__comm_tree_left(int32_t n);

/* A partial sum on its way: fp32 where the call's dtype is narrower, which is rounded only once. */
struct hd__partial {
    uint8_t *at;    /* the sum so far */
    uint8_t *other; /* room for what comes, from element `first` on */
    uint8_t *spare; /* as much again, for what comes after it: that may come before this is added */
    uint64_t count, first;
    uint32_t dtype, redop;
    size_t esize;
};
/* The call's input as the first partial sum; out, unless NULL, may hold it. */
struct hd__partial hd__comm_partial_begin(struct hd__coll_plan *s, const struct hd_comm_call *call, uint8_t *out);
/* Where elements from `first` on come. */
uint8_t *hd__comm_partial_recv_at(const struct hd__partial *p, uint64_t first);
/* After a join: the next comes into the spare room. */
void hd__comm_partial_swap(struct hd__partial *p);
/* Of `count` elements: at + other, or other + at where the other is lower; the last join also divides for an average. */
void hd__comm_partial_add(struct hd__coll_plan *s, const struct hd__partial *p, uint64_t first, uint64_t count,
                          int other_is_lower, int last);
void hd__comm_partial_end(struct hd__coll_plan *s, const struct hd__partial *p, const struct hd_comm_call *call,
                          uint8_t *out);

hd__coll_build_fn hd__comm_build_barrier, hd__comm_build_broadcast, hd__comm_build_chain, hd__comm_build_bruck_gather,
    hd__comm_build_doubling_gather, hd__comm_build_ring_gather, hd__comm_build_all_to_all,
    hd__comm_build_reduce_scatter, hd__comm_build_ring_scatter, hd__comm_build_gather_sum, hd__comm_build_slices_sum,
    hd__comm_build_doubling, hd__comm_build_halving, hd__comm_build_tree, hd__comm_build_ring, hd__comm_build_reduce,
    hd__comm_build_tree_reduce;

/* Exchanges raw slices and leaves this member's slice of the sum in `to` (its first element is the slice's). */
void hd__comm_add_slices(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize, uint8_t *to);
/* Each member's slice of `out` is complete there: they travel round to all. */
void hd__comm_add_ring_gather(struct hd__coll_plan *s, uint8_t *out, uint64_t count, size_t esize);
/* Gathers `bytes` from each member into out (n of them, in member order), in ceil(log2 n) rounds. */
void hd__comm_add_bruck(struct hd__coll_plan *s, const void *mine, uint8_t *out, uint64_t bytes);
/* From member `root` to all, in ceil(log2 n) rounds; out holds it at the root. */
void hd__comm_add_binomial(struct hd__coll_plan *s, int32_t root, uint8_t *out, uint64_t bytes);

#endif
