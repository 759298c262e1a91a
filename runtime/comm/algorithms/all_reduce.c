/* all_reduce and reduce. gather: every member gets all inputs and sums them, ceil(log2 n) rounds. slices:
 * reduce_scatter, then a ring all_gather, or a gather at the root of a reduce. */
#include "runtime/comm/algorithms/plan.h"

void hd__comm_build_gather_sum(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    const void **sources = (void *)hd__comm_plan_scratch(s, (uint64_t)s->n * sizeof *sources);
    uint8_t *all = hd__comm_plan_scratch(s, bytes * (uint64_t)s->n);
    hd__comm_add_bruck(s, call->send, all, bytes);
    for (int32_t i = 0; i < s->n; i++)
        sources[i] = all + (uint64_t)i * bytes;
    hd__comm_plan_reduce(s, call->recv, sources, (uint32_t)s->n, call->count, call->dtype, call->redop);
}

void hd__comm_build_slices_sum(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    hd__comm_add_slices(s, call, esize,
                        (uint8_t *)call->recv + hd__comm_slice_of(call->count, s->n, s->me).first * esize);
    hd__comm_add_ring_gather(s, call->recv, call->count, esize);
}

void hd__comm_build_reduce(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    int32_t n = s->n, me = s->me;
    struct hd__slice mine = hd__comm_slice_of(call->count, n, me);
    uint64_t bytes = (mine.last - mine.first) * esize;
    uint8_t *out = me == call->root ? (uint8_t *)call->recv + mine.first * esize : hd__comm_plan_scratch(s, bytes);
    hd__comm_add_slices(s, call, esize, out);
    for (int32_t i = 0; i < n && me == call->root; i++)
        if (i != me)
            hd__comm_plan_recv_slice(s, i, call->recv, hd__comm_slice_of(call->count, n, i), esize);
    if (me != call->root && bytes)
        hd__comm_plan_send(s, call->root, out, bytes);
}
