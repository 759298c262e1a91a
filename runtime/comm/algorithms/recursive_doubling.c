/* Recursive doubling along the tree of sums: each half of the members forms its sum, then the halves swap these.
 * Members of a smaller right half send to several of the left. All members add the same numbers in the same order. */
#include "runtime/comm/algorithms/plan.h"

static void exchange_and_reduce(struct hd__coll_plan *s, struct hd__partial *p, int32_t first, int32_t n, int last)
{
    uint64_t bytes = p->count * p->esize;
    int32_t left, right, middle, i;
    if (n == 1)
        return;
    left = hd__comm_tree_left(n), right = n - left, middle = first + left;
    if (s->me < middle) {
        exchange_and_reduce(s, p, first, left, 0);
        i = s->me - first;
        if (i < right)
            hd__comm_plan_send(s, middle + i, p->at, bytes);
        hd__comm_plan_recv(s, middle + i % right, p->other, bytes);
    } else {
        exchange_and_reduce(s, p, middle, right, 0);
        hd__comm_plan_recv(s, first + s->me - middle, p->other, bytes);
        for (i = s->me - middle; i < left; i += right)
            hd__comm_plan_send(s, first + i, p->at, bytes);
    }
    hd__comm_plan_fence(s);
    hd__comm_partial_add(s, p, 0, p->count, s->me >= middle, last);
    hd__comm_partial_swap(p);
}

void hd__comm_build_doubling(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    struct hd__partial p = hd__comm_partial_begin(s, call, call->recv);
    (void)esize;
    exchange_and_reduce(s, &p, 0, s->n, 1);
    hd__comm_partial_end(s, &p, call, call->recv);
}
