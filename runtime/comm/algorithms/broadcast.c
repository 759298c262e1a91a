/* broadcast. Binomial: a tree in member numbers relative to the root; the parent of v is v without its lowest bit.
 * Chain: a pipeline of the members, which forward each chunk while the next ones arrive. */
#include "runtime/comm/algorithms/plan.h"

enum { AHEAD = 4 }; /* receives posted ahead of a send */

void hd__comm_add_binomial(struct hd__coll_plan *s, int32_t root, uint8_t *out, uint64_t bytes)
{
    int32_t n = s->n, v = (s->me - root + n) % n, bit = 1;
    while (bit < n && !(v & bit))
        bit <<= 1;
    if (v)
        hd__comm_plan_recv(s, (v - bit + root) % n, out, bytes);
    hd__comm_plan_fence(s);
    for (bit >>= 1; bit; bit >>= 1)
        if (v + bit < n)
            hd__comm_plan_send(s, (v + bit + root) % n, out, bytes);
}

void hd__comm_build_broadcast(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    if (s->me == call->root)
        hd__comm_plan_copy(s, call->recv, call->send, bytes);
    hd__comm_add_binomial(s, call->root, call->recv, bytes);
}

void hd__comm_build_chain(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize, posted = 0, mark[AHEAD];
    uint64_t step = HD__MAX(s->chunk, bytes / 4096 + 1), chunks = (bytes + step - 1) / step;
    int32_t n = s->n, first = s->me == call->root, last = (s->me + 1) % n == call->root;
    uint8_t *out = call->recv;
    if (first)
        hd__comm_plan_copy(s, out, call->send, bytes);
    for (uint64_t k = 0; k < chunks; k++) {
        for (; posted < chunks && posted < k + AHEAD && !first; posted++) {
            hd__comm_plan_recv(s, (s->me - 1 + n) % n, out + posted * step, HD__MIN(step, bytes - posted * step));
            mark[posted % AHEAD] = s->messages;
        }
        if (!first)
            hd__comm_plan_fence_first(s, mark[k % AHEAD]);
        if (!last)
            hd__comm_plan_send(s, (s->me + 1) % n, out + k * step, HD__MIN(step, bytes - k * step));
    }
}
