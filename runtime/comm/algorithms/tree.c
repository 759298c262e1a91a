/* Tree reduce along the tree of sums: of two halves the one without the root sends its sum to the one with it; where
 * the root is in neither, the first member of a half has its sum. Pipelined over chunks, so that all levels work
 * concurrently. */
#include "runtime/comm/algorithms/plan.h"

static int32_t subtree_root(int32_t first, int32_t n, int32_t root)
{
    return root >= first && root < first + n ? root : first;
}

static void reduce_to_root(struct hd__coll_plan *s, struct hd__partial *p, struct hd__slice part, int32_t first,
                           int32_t n, int32_t root, int last)
{
    uint64_t at = part.first * p->esize, bytes = (part.last - part.first) * p->esize;
    int32_t left, middle, to, from;
    if (n == 1)
        return;
    left = hd__comm_tree_left(n), middle = first + left;
    to = subtree_root(first, n, root);
    from = to < middle ? subtree_root(middle, n - left, root) : subtree_root(first, left, root);
    reduce_to_root(s, p, part, s->me < middle ? first : middle, s->me < middle ? left : n - left, root, 0);
    if (s->me == from)
        hd__comm_plan_send(s, to, p->at + at, bytes);
    if (s->me != to)
        return;
    hd__comm_plan_recv(s, from, hd__comm_partial_recv_at(p, part.first), bytes);
    hd__comm_plan_fence(s);
    hd__comm_partial_add(s, p, part.first, part.last - part.first, to >= middle, last);
    hd__comm_partial_swap(p);
}

static void reduce_all_chunks(struct hd__coll_plan *s, struct hd__partial *p, int32_t root)
{
    uint64_t step = HD__MAX(s->chunk / p->esize, UINT64_C(1));
    for (uint64_t at = 0; at < p->count; at += step)
        reduce_to_root(s, p, (struct hd__slice){at, HD__MIN(at + step, p->count)}, 0, s->n, root, 1);
}

void hd__comm_build_tree_reduce(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint8_t *out = s->me == call->root ? call->recv : NULL;
    struct hd__partial p = hd__comm_partial_begin(s, call, out);
    (void)esize;
    reduce_all_chunks(s, &p, call->root);
    if (out)
        hd__comm_partial_end(s, &p, call, out);
}

void hd__comm_build_tree(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    struct hd__partial p = hd__comm_partial_begin(s, call, call->recv);
    reduce_all_chunks(s, &p, 0);
    hd__comm_plan_fence(s); /* the result overwrites what was sent */
    if (s->me == 0)
        hd__comm_partial_end(s, &p, call, call->recv);
    hd__comm_add_binomial(s, 0, call->recv, call->count * esize);
}
