/* Recursive doubling along the tree of sums: each half of the members has its sum, and then the halves swap. Where the right
 * half is the smaller one, its members serve several of the left. Every member adds the same numbers in the same places. */
#include "runtime/comm/algorithms/plan.h"

static void join(struct hd__schedule *s, struct hd__partial *p, int32_t first, int32_t n, int last)
{
    uint64_t bytes = p->count * p->esize;
    int32_t left, right, middle, i;
    if (n == 1)
        return;
    left = hd__tree_left(n), right = n - left, middle = first + left;
    if (s->me < middle) {
        join(s, p, first, left, 0);
        i = s->me - first;
        if (i < right)
            hd__step_send(s, middle + i, p->at, bytes);
        hd__step_recv(s, middle + i % right, p->other, bytes);
    } else {
        join(s, p, middle, right, 0);
        hd__step_recv(s, first + s->me - middle, p->other, bytes);
        for (i = s->me - middle; i < left; i += right)
            hd__step_send(s, first + i, p->at, bytes);
    }
    hd__step_fence(s);
    hd__partial_join(s, p, 0, p->count, s->me >= middle, last);
    hd__partial_turn(p);
}

void hd__build_doubling(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    struct hd__partial p = hd__partial_begin(s, call, call->recv);
    (void)esize;
    join(s, &p, 0, s->n, 1);
    hd__partial_end(s, &p, call, call->recv);
}
