/* all_to_all, pairwise: in round i each member sends to the i-th member after it and receives from the i-th before. */
#include "runtime/comm/algorithms/plan.h"

void hd__comm_build_all_to_all(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    const uint8_t *in = call->send;
    uint8_t *out = call->recv;
    int32_t n = s->n, me = s->me;
    hd__comm_plan_copy(s, out + (uint64_t)me * bytes, in + (uint64_t)me * bytes, bytes);
    for (int32_t i = 1; i < n; i++) {
        int32_t to = (me + i) % n, from = (me - i + n) % n;
        hd__comm_plan_send(s, to, in + (uint64_t)to * bytes, bytes);
        hd__comm_plan_recv(s, from, out + (uint64_t)from * bytes, bytes);
        hd__comm_plan_fence(s);
    }
}
