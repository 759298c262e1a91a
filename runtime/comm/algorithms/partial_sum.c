/* Partial sums that are sent between members: fp16 and bf16 as fp32, rounded once, at the end. */
#include "core/base/dtype.h"
#include "runtime/comm/algorithms/plan.h"

int32_t hd__comm_tree_left(int32_t n)
{
    int32_t left = 1;
    while (2 * left < n)
        left *= 2;
    return left;
}

struct hd__partial hd__comm_partial_begin(struct hd__coll_plan *s, const struct hd_comm_call *call, uint8_t *out)
{
    int narrow = hd__is_narrow(call->dtype);
    struct hd__partial p = {.count = call->count, .dtype = hd__dtype(call->dtype)->sum, .redop = call->redop};
    p.esize = hd_dtype_size(p.dtype);
    p.other = hd__comm_plan_scratch(s, p.count * p.esize);
    /* with two members a single one is received */
    p.spare = s->n > 2 ? hd__comm_plan_scratch(s, p.count * p.esize) : p.other;
    p.at = out && !narrow ? out : hd__comm_plan_scratch(s, p.count * p.esize);
    if (narrow)
        hd__comm_plan_widen(s, (float *)(void *)p.at, call->send, p.count, call->dtype);
    else
        hd__comm_plan_copy(s, p.at, call->send, p.count * p.esize);
    return p;
}

uint8_t *hd__comm_partial_recv_at(const struct hd__partial *p, uint64_t first)
{
    return p->other + (first - p->first) * p->esize;
}

void hd__comm_partial_swap(struct hd__partial *p)
{
    uint8_t *next = p->spare;
    p->spare = p->other;
    p->other = next;
}

void hd__comm_partial_add(struct hd__coll_plan *s, const struct hd__partial *p, uint64_t first, uint64_t count,
                          int other_is_lower, int last)
{
    const void *a = p->at + first * p->esize, *b = hd__comm_partial_recv_at(p, first);
    const void *sources[] = {other_is_lower ? b : a, other_is_lower ? a : b};
    hd__comm_plan_reduce(s, p->at + first * p->esize, sources, 2, count, p->dtype,
                         p->redop == HD_AVG && !last ? (uint32_t)HD_SUM : p->redop);
}

void hd__comm_partial_end(struct hd__coll_plan *s, const struct hd__partial *p, const struct hd_comm_call *call,
                          uint8_t *out)
{
    if (p->dtype != call->dtype)
        hd__comm_plan_narrow(s, out, (const float *)(const void *)p->at, p->count, call->dtype);
    else
        hd__comm_plan_copy(s, out, p->at, p->count * p->esize);
}
