/* Up the tree of sums: of each two halves the one without the root gives its sum to the one with it; where the root is in
 * neither, the lower member of each half holds it. Chunk by chunk, so that the levels work at the same time. */
#include "runtime/comm/algorithms/plan.h"

static int32_t holder(int32_t first, int32_t n, int32_t root)
{
    return root >= first && root < first + n ? root : first;
}

static void up(struct hd__schedule *s, struct hd__partial *p, struct hd__slice part, int32_t first, int32_t n,
               int32_t root, int last)
{
    uint64_t at = part.first * p->esize, bytes = (part.last - part.first) * p->esize;
    int32_t left, middle, to, from;
    if (n == 1)
        return;
    left = hd__tree_left(n), middle = first + left;
    to = holder(first, n, root);
    from = to < middle ? holder(middle, n - left, root) : holder(first, left, root);
    up(s, p, part, s->me < middle ? first : middle, s->me < middle ? left : n - left, root, 0);
    if (s->me == from)
        hd__step_send(s, to, p->at + at, bytes);
    if (s->me != to)
        return;
    hd__step_recv(s, from, hd__partial_room(p, part.first), bytes);
    hd__step_fence(s);
    hd__partial_join(s, p, part.first, part.last - part.first, to >= middle, last);
    hd__partial_turn(p);
}

static void up_all(struct hd__schedule *s, struct hd__partial *p, int32_t root)
{
    uint64_t step = HD__MAX(s->chunk / p->esize, UINT64_C(1));
    for (uint64_t at = 0; at < p->count; at += step)
        up(s, p, (struct hd__slice){at, HD__MIN(at + step, p->count)}, 0, s->n, root, 1);
}

void hd__build_tree_reduce(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    uint8_t *out = s->me == call->root ? call->recv : NULL;
    struct hd__partial p = hd__partial_begin(s, call, out);
    (void)esize;
    up_all(s, &p, call->root);
    if (out)
        hd__partial_end(s, &p, call, out);
}

void hd__build_tree(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    struct hd__partial p = hd__partial_begin(s, call, call->recv);
    up_all(s, &p, 0);
    hd__step_fence(s); /* what was sent up may lie where the result comes down */
    if (s->me == 0)
        hd__partial_end(s, &p, call, call->recv);
    hd__build_down(s, 0, call->recv, call->count * esize);
}
