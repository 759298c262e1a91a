/* Ring reduce_scatter and all_reduce: the partial sum of block p starts at member p + 1 and ends at member p; a
 * chunk is forwarded as soon as it is summed. All links carry the same number of bytes. Each block sums in an order
 * of its own. */
#include "runtime/comm/algorithms/plan.h"

/* ROUNDS: buffers of the round that is summed, the one that is sent, and the one that may arrive early. */
enum { CHUNKS = 8, ROUNDS = 3 };

struct ring {
    const uint8_t *in;
    const struct hd__slice *part; /* elements of `in`, by member */
    uint8_t *buffer[ROUNDS], *to;
    uint64_t step, chunks;
    const struct hd_comm_call *call;
    size_t esize;
    uint64_t mark[CHUNKS]; /* by chunk: messages until its latest receive */
};

/* Chunk k of block i, relative to the block. */
static struct hd__slice chunk_of(const struct ring *r, int32_t i, uint64_t k)
{
    return hd__comm_chunk_of((struct hd__slice){0, r->part[i].last - r->part[i].first}, r->step, k);
}

/* Sends block me - 1 - round and receives block me - 2 - round. The send comes first, so that a fence on the receive
 * also covers it and its buffer is free. */
static void post_round(struct hd__coll_plan *s, struct ring *r, int32_t round, uint64_t k)
{
    int32_t n = s->n, sent = (s->me - 1 - round + 2 * n) % n, received = (s->me - 2 - round + 2 * n) % n;
    const uint8_t *from = round ? r->buffer[(round - 1) % ROUNDS] : r->in + r->part[sent].first * r->esize;
    hd__comm_plan_send_slice(s, (s->me + 1) % n, from, chunk_of(r, sent, k), r->esize);
    hd__comm_plan_recv_slice(s, (s->me - 1 + n) % n, r->buffer[round % ROUNDS], chunk_of(r, received, k), r->esize);
    r->mark[k] = s->messages;
}

static void reduce_received(struct hd__coll_plan *s, const struct ring *r, int32_t round, uint64_t k)
{
    int32_t block = (s->me - 2 - round + 2 * s->n) % s->n, last = round == s->n - 2;
    struct hd__slice c = chunk_of(r, block, k);
    uint8_t *received = r->buffer[round % ROUNDS] + c.first * r->esize;
    const void *sources[] = {received, r->in + (r->part[block].first + c.first) * r->esize};
    if (c.last > c.first)
        hd__comm_plan_reduce(s, last ? r->to + c.first * r->esize : received, sources, 2, c.last - c.first,
                             r->call->dtype, r->call->redop == HD_AVG && !last ? (uint32_t)HD_SUM : r->call->redop);
}

static void ring_reduce_scatter(struct hd__coll_plan *s, const struct hd_comm_call *call, const struct hd__slice *part,
                                uint8_t *to, size_t esize)
{
    struct ring r = {.in = call->send, .part = part, .to = to, .call = call, .esize = esize};
    uint64_t most = 0;
    for (int32_t i = 0; i < s->n; i++)
        most = HD__MAX(most, part[i].last - part[i].first);
    r.chunks = HD__MIN(most * esize / s->chunk + 1, (uint64_t)CHUNKS);
    r.step = (most + r.chunks - 1) / r.chunks;
    for (int i = 0; i < ROUNDS; i++)
        r.buffer[i] = hd__comm_plan_scratch(s, most * esize);
    if (s->n == 1)
        hd__comm_plan_copy(s, to, r.in, most * esize);
    for (uint64_t k = 0; k < r.chunks && s->n > 1; k++)
        post_round(s, &r, 0, k);
    for (int32_t round = 0; round < s->n - 1; round++)
        for (uint64_t k = 0; k < r.chunks; k++) {
            hd__comm_plan_fence_first(s, r.mark[k]);
            reduce_received(s, &r, round, k);
            if (round < s->n - 2)
                post_round(s, &r, round + 1, k);
        }
}

void hd__comm_build_ring_scatter(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    ring_reduce_scatter(s, call, hd__comm_plan_blocks(s, call->count), call->recv, esize);
}

void hd__comm_build_ring(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    const struct hd__slice *part = hd__comm_plan_slices(s, call->count);
    ring_reduce_scatter(s, call, part, (uint8_t *)call->recv + part[s->me].first * esize, esize);
    hd__comm_add_ring_gather(s, call->recv, call->count, esize);
}
