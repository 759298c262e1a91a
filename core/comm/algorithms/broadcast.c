/* Binomial tree, in ranks counted from the root: the parent of v is v without its lowest bit. */
#include "core/comm/algorithms/schedule.h"

void hd__build_broadcast(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    int32_t n = s->n, v = (s->me - call->root + n) % n, bit = 1;
    while (bit < n && !(v & bit))
        bit <<= 1;
    if (v == 0)
        hd__step_copy(s, call->recv, call->send, bytes);
    else
        hd__step_recv(s, (v - bit + call->root) % n, call->recv, bytes);
    hd__step_fence(s);
    for (bit >>= 1; bit; bit >>= 1)
        if (v + bit < n)
            hd__step_send(s, (v + bit + call->root) % n, call->recv, bytes);
}
