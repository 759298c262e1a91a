/* Binomial: a tree in ranks counted from the root; the parent of v is v without its lowest bit.
 * Chain: the members in a row, each passing a chunk on while the next ones come. */
#include "runtime/comm/algorithms/plan.h"

enum { AHEAD = 4 }; /* chunks that are asked for before one is passed on */

void hd__build_down(struct hd__schedule *s, int32_t root, uint8_t *out, uint64_t bytes)
{
    int32_t n = s->n, v = (s->me - root + n) % n, bit = 1;
    while (bit < n && !(v & bit))
        bit <<= 1;
    if (v)
        hd__step_recv(s, (v - bit + root) % n, out, bytes);
    hd__step_fence(s);
    for (bit >>= 1; bit; bit >>= 1)
        if (v + bit < n)
            hd__step_send(s, (v + bit + root) % n, out, bytes);
}

void hd__build_broadcast(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    if (s->me == call->root)
        hd__step_copy(s, call->recv, call->send, bytes);
    hd__build_down(s, call->root, call->recv, bytes);
}

void hd__build_chain(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize, posted = 0, mark[AHEAD];
    uint64_t step = HD__MAX(s->chunk, bytes / 4096 + 1), chunks = (bytes + step - 1) / step;
    int32_t n = s->n, first = s->me == call->root, last = (s->me + 1) % n == call->root;
    uint8_t *out = call->recv;
    if (first)
        hd__step_copy(s, out, call->send, bytes);
    for (uint64_t k = 0; k < chunks; k++) {
        for (; posted < chunks && posted < k + AHEAD && !first; posted++) {
            hd__step_recv(s, (s->me - 1 + n) % n, out + posted * step, HD__MIN(step, bytes - posted * step));
            mark[posted % AHEAD] = s->messages;
        }
        if (!first)
            hd__step_fence_first(s, mark[k % AHEAD]);
        if (!last)
            hd__step_send(s, (s->me + 1) % n, out + k * step, HD__MIN(step, bytes - k * step));
    }
}
