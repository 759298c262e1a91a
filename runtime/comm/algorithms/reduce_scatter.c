/* reduce_scatter, pairwise: every member receives the raw blocks of its result, chunk by chunk, and sums them in the
 * tree's order. It moves as many bytes as a ring, but needs scratch for two chunks of every member: one is summed,
 * one in flight. */
#include "runtime/comm/algorithms/plan.h"

enum { SCRATCH_BYTES = 8 << 20 };

struct pairwise {
    const uint8_t *in;
    const struct hd__slice *part; /* each member's part of `in`, in elements */
    uint64_t room;                /* elements of a chunk */
    uint8_t *scratch[2], *to;
    const void **sources; /* of a sum, by member */
    size_t esize;
};

static uint8_t *recv_at(const struct pairwise *x, int32_t from, uint64_t at)
{
    return x->scratch[at / x->room & 1] + (uint64_t)from * x->room * x->esize;
}

static void post_chunk(struct hd__coll_plan *s, const struct pairwise *x, uint64_t at)
{
    struct hd__slice mine = hd__comm_chunk_of(x->part[s->me], x->room, at / x->room);
    for (int32_t i = 1; i < s->n; i++) {
        int32_t peer = (s->me + i) % s->n, from = (s->me - i + s->n) % s->n;
        hd__comm_plan_send_slice(s, peer, x->in, hd__comm_chunk_of(x->part[peer], x->room, at / x->room), x->esize);
        if (mine.last > mine.first)
            hd__comm_plan_recv(s, from, recv_at(x, from, at), (mine.last - mine.first) * x->esize);
    }
}

static void reduce_chunk(struct hd__coll_plan *s, const struct pairwise *x, uint64_t at,
                         const struct hd_comm_call *call)
{
    struct hd__slice mine = hd__comm_chunk_of(x->part[s->me], x->room, at / x->room);
    for (int32_t i = 0; i < s->n; i++)
        x->sources[i] = i == s->me ? x->in + mine.first * x->esize : recv_at(x, i, at);
    if (mine.last > mine.first)
        hd__comm_plan_reduce(s, x->to + at * x->esize, x->sources, (uint32_t)s->n, mine.last - mine.first, call->dtype,
                             call->redop);
}

/* The sum of part `me` goes to `to`. */
static void run_pairwise(struct hd__coll_plan *s, const struct hd_comm_call *call, const struct hd__slice *part,
                         uint8_t *to, size_t esize)
{
    struct pairwise x = {.in = call->send, .part = part, .to = to, .esize = esize};
    uint64_t most = 0;
    for (int32_t i = 0; i < s->n; i++)
        most = HD__MAX(most, part[i].last - part[i].first);
    x.sources = (void *)hd__comm_plan_scratch(s, (uint64_t)s->n * sizeof *x.sources);
    x.room = HD__MIN(s->chunk, SCRATCH_BYTES / 2 / (uint64_t)s->n) / esize;
    x.room = HD__MAX(HD__MIN(most, x.room), UINT64_C(1));
    for (int i = 0; i < 2; i++)
        x.scratch[i] = hd__comm_plan_scratch(s, x.room * (uint64_t)s->n * esize);
    post_chunk(s, &x, 0);
    for (uint64_t at = 0; at < most; at += x.room) {
        uint64_t posted = s->messages;
        if (at + x.room < most)
            post_chunk(s, &x, at + x.room);
        hd__comm_plan_fence_first(s, posted);
        reduce_chunk(s, &x, at, call);
    }
}

void hd__comm_build_reduce_scatter(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    run_pairwise(s, call, hd__comm_plan_blocks(s, call->count), call->recv, esize);
}

void hd__comm_add_slices(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize, uint8_t *to)
{
    run_pairwise(s, call, hd__comm_plan_slices(s, call->count), to, esize);
    hd__comm_plan_fence(s);
}
