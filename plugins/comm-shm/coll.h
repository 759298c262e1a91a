/* Collectives: what each reads, writes and shares, and where its data lies. coll.c moves operations on, share.c their
 * data. */
#ifndef HD_COMM_SHM_COLL_H
#define HD_COMM_SHM_COLL_H

#include "internal.h"

enum { BY_SLICE = 1, BY_PEER = 2 };                   /* the share: a slice; one pass a peer; else everything */
enum { FROM_ME = 0, FROM_ALL, FROM_ROOT, FROM_NONE }; /* also the destinations */

/* blocks: how many times `count` the buffer holds, 0 for n. */
struct shm_rule {
    const char *name;
    uint8_t reads, writes, share, reduces, send_blocks, recv_blocks;
};
extern const struct shm_rule shm_rules[HD_COLL_BARRIER + 1];
#define RULE(op) (&shm_rules[(op)->coll])

static inline uint64_t blocks(uint8_t rule, int32_t n)
{
    return rule ? rule : (uint64_t)n;
}

/* Broadcast, reduce: the root's buffer is the only one that is read, or written. */
static inline int is_rooted(const struct shm_op *op)
{
    return RULE(op)->reads == FROM_ROOT || RULE(op)->writes == FROM_ROOT;
}

static inline struct shm_slot *slot_at(const struct shm_group *g, int32_t i, uint64_t seq)
{
    return &g->member[i].slot[seq % SHM_SLOTS];
}

static inline struct shm_slot *slot_of(const struct shm_op *op, int32_t i)
{
    return slot_at(op->group, i, op->seq);
}

/* The payload of a slot that has no room for it itself. */
static inline uint8_t *payload_at(const struct shm_group *g, int32_t i, uint64_t seq)
{
    return g->member[i].small + seq % SHM_SLOTS * g->stride;
}

static inline uint8_t *payload(const struct shm_op *op, int32_t i, uint64_t bytes)
{
    return bytes <= SHM_TINY ? slot_of(op, i)->tiny : payload_at(op->group, i, op->seq);
}

static inline uint64_t step_start(const struct shm_op *op)
{
    return op->step * op->per_step;
}

static inline uint64_t step_count(const struct shm_op *op)
{
    return SHM_MIN(op->per_step, op->count - step_start(op));
}

/* Do others read member i's send buffer, write its recv buffer? */
static inline int exposed(const struct shm_op *op, int32_t i, int recv)
{
    uint8_t who = recv ? RULE(op)->writes : RULE(op)->reads;
    return op->group->n > 1 && (who == FROM_ALL || (who == FROM_ROOT && op->root == i));
}

static inline uint64_t send_bytes(const struct shm_op *op)
{
    return op->coll == HD_COLL_BARRIER ? 0 : blocks(RULE(op)->send_blocks, op->group->n) * op->count * op->esize;
}

static inline uint64_t recv_bytes(const struct shm_op *op)
{
    return op->coll == HD_COLL_BARRIER ? 0 : blocks(RULE(op)->recv_blocks, op->group->n) * op->count * op->esize;
}

/* share.c */
void shm_copy_in(struct shm_op *op);   /* fills staging for the present step */
void shm_copy_out(struct shm_op *op);  /* what the others wrote to my staging in the present step */
void shm_small(struct shm_op *op);     /* the whole of a small operation */
void shm_plan_step(struct shm_op *op); /* the share of the present step, from its beginning */
int shm_work(struct shm_op *op);       /* a quantum of it; 1 when it is finished */

#endif
