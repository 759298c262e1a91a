/* Dissemination barrier: after round k each member has a message, maybe indirect, from 2^k members. */
#include "runtime/comm/algorithms/plan.h"

void hd__comm_build_barrier(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    (void)call, (void)esize;
    for (int32_t k = 1; k < s->n; k <<= 1) {
        hd__comm_plan_send(s, (s->me + k) % s->n, NULL, 0);
        hd__comm_plan_recv(s, (s->me - k + s->n) % s->n, NULL, 0);
        hd__comm_plan_fence(s);
    }
}
