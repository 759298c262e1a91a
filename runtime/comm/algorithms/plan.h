/* runtime/comm/algorithms: collective algorithms for transports that only have send and recv, as plans of steps.
 *
 * A builder turns a call into the plan of one member: messages, copies, sums, and fences. Steps between two fences
 * are concurrent; a fence waits for all messages before it, or for the first so many, so that a chunk is summed
 * while the next ones are in flight. Members build matching plans from the same call without communication.
 * software_collectives.c runs plans, select.c selects the builder.
 *
 *     barrier          dissemination: ceil(log2 n) rounds
 *     broadcast        binomial: ceil(log2 n) rounds; chain: a pipeline of the members
 *     all_gather       bruck: ceil(log2 n) rounds, small blocks; doubling: without copies, n a power of two; ring
 *     all_to_all       pairwise, n - 1 rounds
 *     reduce_scatter   pairwise: raw blocks, summed by the owner of the result; ring: partial sums
 *     all_reduce       gather: bruck of all inputs, summed everywhere; slices: reduce_scatter and a ring; doubling:
 *                      partial sums in ceil(log2 n) rounds; halving: recursive halving and doubling, n a power of 2;
 *                      tree: reduce and broadcast; ring: reduce_scatter and all_gather
 *     reduce           slices: reduce_scatter, gathered at the root; tree: ceil(log2 n) rounds
 *
 * heddle/comm.h prescribes the tree of sums. gather, slices and pairwise evaluate it on one member; doubling,
 * halving and tree along the members. Rings, and halving where partial sums are rounded (bf16, fp16), have another
 * order: these builders are used only with `comm.sums: any`. A mismatch of calls is detected only where message
 * sizes differ. */
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
    HD__COLL_STEP_POSTED /* a RECV that was posted early */
};

struct hd__coll_step {
    uint32_t kind;
    int32_t peer;     /* SEND, RECV: member */
    const void *from; /* SEND, COPY, WIDEN, NARROW */
    void *to;         /* RECV, COPY, REDUCE, WIDEN, NARROW */
    uint64_t bytes;   /* REDUCE, WIDEN, NARROW: elements; FENCE: messages */
    /* REDUCE: sources first .. first + n - 1; WIDEN, NARROW: dtype of the narrow side */
    uint32_t first, n, dtype, redop;
};

struct hd__coll_plan {
    HD__ARRAY(struct hd__coll_step) steps;
    HD__ARRAY(const void *) sources; /* of REDUCE steps */
    HD__ARRAY(void *) scratch;       /* freed with the plan */
    int32_t n, me;
    uint64_t messages;               /* sends and receives so far */
    uint64_t chunk;                  /* bytes; never 0 */
    const struct hd__algorithm *use; /* NULL: an empty call */
};

/* Builds the plan of member `me` of n. Memory is reused from call to call. */
int32_t hd__comm_plan_build(struct hd__coll_plan *s, const struct hd__tuning *tuning, int32_t n, int32_t me,
                            const struct hd_comm_call *call, struct hd_error *err);
void hd__comm_plan_clear(struct hd__coll_plan *s); /* before the next build */
void hd__comm_plan_free(struct hd__coll_plan *s);

/* dst = src[0] op src[1] ... in the tree of heddle/comm.h; fp16 and bf16 in fp32, rounded once. HD_AVG divides the
 * sum by `over`. dst may be one of src. */
void hd__comm_reduce(void *dst, const void *const *src, int32_t n, int32_t over, uint64_t count, uint32_t dtype,
                     uint32_t redop);

/* ---- for the builders */
void hd__comm_plan_send(struct hd__coll_plan *s, int32_t peer, const void *from, uint64_t bytes);
void hd__comm_plan_recv(struct hd__coll_plan *s, int32_t peer, void *to, uint64_t bytes);
/* nothing if to == from */
void hd__comm_plan_copy(struct hd__coll_plan *s, void *to, const void *from, uint64_t bytes);
/* Sum of n sources; HD_AVG divides by the members of the group, whatever n is. */
void hd__comm_plan_reduce(struct hd__coll_plan *s, void *to, const void *const *sources, uint32_t n, uint64_t count,
                          uint32_t dtype, uint32_t redop);
void hd__comm_plan_widen(struct hd__coll_plan *s, float *to, const void *from, uint64_t count, uint32_t dtype);
void hd__comm_plan_narrow(struct hd__coll_plan *s, void *to, const float *from, uint64_t count, uint32_t dtype);
void hd__comm_plan_fence(struct hd__coll_plan *s);
void hd__comm_plan_fence_first(struct hd__coll_plan *s, uint64_t messages); /* of the first `messages` */
uint8_t *hd__comm_plan_scratch(struct hd__coll_plan *s, uint64_t bytes);

/* Elements [first, last): slice i of n of `count` elements; chunk k, of `step` elements, of a slice. */
struct hd__slice {
    uint64_t first, last;
};
struct hd__slice hd__comm_slice_of(uint64_t count, int32_t n, int32_t i);
struct hd__slice hd__comm_chunk_of(struct hd__slice part, uint64_t step, uint64_t k);
/* By member, the plan's memory: blocks of `count` elements each; slices of `count` elements in all. */
struct hd__slice *hd__comm_plan_blocks(struct hd__coll_plan *s, uint64_t count);
struct hd__slice *hd__comm_plan_slices(struct hd__coll_plan *s, uint64_t count);
/* A message of a slice of the elements at `base`; none where it is empty. */
void hd__comm_plan_send_slice(struct hd__coll_plan *s, int32_t peer, const uint8_t *base, struct hd__slice part,
                              size_t esize);
void hd__comm_plan_recv_slice(struct hd__coll_plan *s, int32_t peer, uint8_t *base, struct hd__slice part,
                              size_t esize);
/* Largest power of two below n > 1: the members of the left subtree of sums. */
int32_t hd__comm_tree_left(int32_t n);

/* A partial sum: fp32 where the call's dtype is narrower, so that it is rounded once. */
struct hd__partial {
    uint8_t *at;    /* the sum so far */
    uint8_t *other; /* receive buffer, from element `first` on */
    uint8_t *spare; /* the next one: its message may arrive before this one is added */
    uint64_t count, first;
    uint32_t dtype, redop;
    size_t esize;
};
/* The call's input as the first partial sum, in `out` if possible; `out` may be NULL. */
struct hd__partial hd__comm_partial_begin(struct hd__coll_plan *s, const struct hd_comm_call *call, uint8_t *out);
/* Receive address of elements from `first` on. */
uint8_t *hd__comm_partial_recv_at(const struct hd__partial *p, uint64_t first);
/* After an addition: swaps the receive buffers. */
void hd__comm_partial_swap(struct hd__partial *p);
/* at += other for `count` elements, other + at where the other is the lower half; the last addition divides for
 * HD_AVG. */
void hd__comm_partial_add(struct hd__coll_plan *s, const struct hd__partial *p, uint64_t first, uint64_t count,
                          int other_is_lower, int last);
void hd__comm_partial_end(struct hd__coll_plan *s, const struct hd__partial *p, const struct hd_comm_call *call,
                          uint8_t *out);

hd__coll_build_fn hd__comm_build_barrier, hd__comm_build_broadcast, hd__comm_build_chain, hd__comm_build_bruck_gather,
    hd__comm_build_doubling_gather, hd__comm_build_ring_gather, hd__comm_build_all_to_all,
    hd__comm_build_reduce_scatter, hd__comm_build_ring_scatter, hd__comm_build_gather_sum, hd__comm_build_slices_sum,
    hd__comm_build_doubling, hd__comm_build_halving, hd__comm_build_tree, hd__comm_build_ring, hd__comm_build_reduce,
    hd__comm_build_tree_reduce;

/* Pairwise reduce_scatter of slices: this member's slice of the sum goes to `to`. */
void hd__comm_add_slices(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize, uint8_t *to);
/* Ring all_gather of the members' slices of `out`. */
void hd__comm_add_ring_gather(struct hd__coll_plan *s, uint8_t *out, uint64_t count, size_t esize);
/* all_gather of `bytes` from each member, in ceil(log2 n) rounds. */
void hd__comm_add_bruck(struct hd__coll_plan *s, const void *mine, uint8_t *out, uint64_t bytes);
/* Broadcast of `out` from member `root`, in ceil(log2 n) rounds. */
void hd__comm_add_binomial(struct hd__coll_plan *s, int32_t root, uint8_t *out, uint64_t bytes);

#endif
