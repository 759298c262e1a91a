/* Recursive halving and doubling (Rabenseifner 2004): neighbours first, so that the order of sums is the tree's. A
 * member sends half of its range to its partner and reduces the other half; when each has one n-th, the ranges are
 * gathered in reverse. n is a power of two. */
#include "runtime/comm/algorithms/plan.h"

enum { AHEAD = 4, LEVELS = 32 }; /* chunks in flight while one is summed */

struct swap {
    int32_t peer;
    struct hd__slice out, in; /* sent; received and kept */
};

static void reduce_half(struct hd__coll_plan *s, const struct hd__partial *p, const struct swap *w, int last)
{
    uint64_t step = HD__MAX(s->chunk / p->esize, UINT64_C(1)), mark[AHEAD], posted = 0;
    uint64_t chunks = (HD__MAX(w->out.last - w->out.first, w->in.last - w->in.first) + step - 1) / step;
    for (uint64_t k = 0; k < chunks; k++) {
        for (; posted < chunks && posted < k + AHEAD; posted++) {
            struct hd__slice in = hd__comm_chunk_of(w->in, step, posted);
            hd__comm_plan_send_slice(s, w->peer, p->at, hd__comm_chunk_of(w->out, step, posted), p->esize);
            if (in.last > in.first)
                hd__comm_plan_recv(s, w->peer, hd__comm_partial_recv_at(p, in.first), (in.last - in.first) * p->esize);
            mark[posted % AHEAD] = s->messages;
        }
        struct hd__slice in = hd__comm_chunk_of(w->in, step, k);
        hd__comm_plan_fence_first(s, mark[k % AHEAD]);
        if (in.last > in.first)
            hd__comm_partial_add(s, p, in.first, in.last - in.first, w->peer < s->me, last);
    }
    hd__comm_plan_fence(s);
}

void hd__comm_build_halving(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    struct hd__partial p = {
        .at = call->recv, .count = call->count, .dtype = call->dtype, .redop = call->redop, .esize = esize};
    struct swap swaps[LEVELS];
    struct hd__slice mine = {0, call->count};
    int levels = 0;
    p.other = hd__comm_plan_scratch(s, (call->count + LEVELS) * esize); /* the halves of all levels, rounded up */
    hd__comm_plan_copy(s, p.at, call->send, call->count * esize);
    for (int32_t bit = 1; bit < s->n; bit <<= 1) {
        struct swap *w = &swaps[levels++];
        uint64_t middle = mine.first + (mine.last - mine.first) / 2;
        struct hd__slice low = {mine.first, middle}, high = {middle, mine.last};
        *w = (struct swap){s->me ^ bit, s->me & bit ? low : high, s->me & bit ? high : low};
        p.first = w->in.first;
        reduce_half(s, &p, w, 2 * bit == s->n);
        p.other += (w->in.last - w->in.first) * esize;
        mine = w->in;
    }
    while (levels--) {
        const struct swap *w = &swaps[levels];
        hd__comm_plan_send_slice(s, w->peer, p.at, w->in, esize);
        hd__comm_plan_recv_slice(s, w->peer, p.at, w->out, esize);
        hd__comm_plan_fence(s);
    }
}
