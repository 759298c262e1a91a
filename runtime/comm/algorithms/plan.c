#include "runtime/comm/algorithms/plan.h"

#include <stdlib.h>

static void append_step(struct hd__coll_plan *s, struct hd__coll_step step)
{
    hd__push(&s->steps, step);
}

void hd__comm_plan_send(struct hd__coll_plan *s, int32_t peer, const void *from, uint64_t bytes)
{
    append_step(s, (struct hd__coll_step){.kind = HD__COLL_STEP_SEND, .peer = peer, .from = from, .bytes = bytes});
    s->messages++;
}

void hd__comm_plan_recv(struct hd__coll_plan *s, int32_t peer, void *to, uint64_t bytes)
{
    append_step(s, (struct hd__coll_step){.kind = HD__COLL_STEP_RECV, .peer = peer, .to = to, .bytes = bytes});
    s->messages++;
}

void hd__comm_plan_send_slice(struct hd__coll_plan *s, int32_t peer, const uint8_t *base, struct hd__slice part,
                              size_t esize)
{
    if (part.last > part.first)
        hd__comm_plan_send(s, peer, base + part.first * esize, (part.last - part.first) * esize);
}

void hd__comm_plan_recv_slice(struct hd__coll_plan *s, int32_t peer, uint8_t *base, struct hd__slice part, size_t esize)
{
    if (part.last > part.first)
        hd__comm_plan_recv(s, peer, base + part.first * esize, (part.last - part.first) * esize);
}

void hd__comm_plan_copy(struct hd__coll_plan *s, void *to, const void *from, uint64_t bytes)
{
    if (to != from && bytes)
        append_step(s, (struct hd__coll_step){.kind = HD__COLL_STEP_COPY, .to = to, .from = from, .bytes = bytes});
}

void hd__comm_plan_reduce(struct hd__coll_plan *s, void *to, const void *const *sources, uint32_t n, uint64_t count,
                          uint32_t dtype, uint32_t redop)
{
    append_step(s, (struct hd__coll_step){.kind = HD__COLL_STEP_REDUCE,
                                          .to = to,
                                          .bytes = count,
                                          .first = s->sources.count,
                                          .n = n,
                                          .dtype = dtype,
                                          .redop = redop});
    hd__append(&s->sources, sources, n);
}

void hd__comm_plan_widen(struct hd__coll_plan *s, float *to, const void *from, uint64_t count, uint32_t dtype)
{
    append_step(
        s, (struct hd__coll_step){.kind = HD__COLL_STEP_WIDEN, .to = to, .from = from, .bytes = count, .dtype = dtype});
}

void hd__comm_plan_narrow(struct hd__coll_plan *s, void *to, const float *from, uint64_t count, uint32_t dtype)
{
    append_step(s, (struct hd__coll_step){
                       .kind = HD__COLL_STEP_NARROW, .to = to, .from = from, .bytes = count, .dtype = dtype});
}

void hd__comm_plan_fence_first(struct hd__coll_plan *s, uint64_t messages)
{
    append_step(s, (struct hd__coll_step){.kind = HD__COLL_STEP_FENCE, .bytes = messages});
}

void hd__comm_plan_fence(struct hd__coll_plan *s)
{
    hd__comm_plan_fence_first(s, s->messages);
}

uint8_t *hd__comm_plan_scratch(struct hd__coll_plan *s, uint64_t bytes)
{
    void *p = hd__alloc(bytes);
    hd__push(&s->scratch, p);
    return p;
}

struct hd__slice hd__comm_slice_of(uint64_t count, int32_t n, int32_t i)
{
    uint64_t each = (count + (uint64_t)n - 1) / (uint64_t)n, first = HD__MIN(count, each * (uint64_t)i);
    return (struct hd__slice){first, HD__MIN(count, first + each)};
}

struct hd__slice *hd__comm_plan_blocks(struct hd__coll_plan *s, uint64_t count)
{
    struct hd__slice *block = (void *)hd__comm_plan_scratch(s, (uint64_t)s->n * sizeof *block);
    for (int32_t i = 0; i < s->n; i++)
        block[i] = (struct hd__slice){(uint64_t)i * count, (uint64_t)(i + 1) * count};
    return block;
}

struct hd__slice *hd__comm_plan_slices(struct hd__coll_plan *s, uint64_t count)
{
    struct hd__slice *slice = (void *)hd__comm_plan_scratch(s, (uint64_t)s->n * sizeof *slice);
    for (int32_t i = 0; i < s->n; i++)
        slice[i] = hd__comm_slice_of(count, s->n, i);
    return slice;
}

struct hd__slice hd__comm_chunk_of(struct hd__slice part, uint64_t step, uint64_t k)
{
    uint64_t first = HD__MIN(part.first + k * step, part.last);
    return (struct hd__slice){first, HD__MIN(first + step, part.last)};
}

void hd__comm_plan_clear(struct hd__coll_plan *s)
{
    for (uint32_t i = 0; i < s->scratch.count; i++)
        free(s->scratch.at[i]);
    s->scratch.count = s->steps.count = s->sources.count = 0;
    s->messages = 0;
}

void hd__comm_plan_free(struct hd__coll_plan *s)
{
    hd__comm_plan_clear(s);
    hd__free_array(&s->scratch);
    hd__free_array(&s->steps);
    hd__free_array(&s->sources);
}

int32_t hd__comm_plan_build(struct hd__coll_plan *s, const struct hd__tuning *tuning, int32_t n, int32_t me,
                            const struct hd_comm_call *call, struct hd_error *err)
{
    uint32_t coll = call->coll;
    size_t esize = hd_dtype_size(call->dtype);
    int reduces = coll == HD_COLL_ALL_REDUCE || coll == HD_COLL_REDUCE || coll == HD_COLL_REDUCE_SCATTER;
    int rooted = coll == HD_COLL_BROADCAST || coll == HD_COLL_REDUCE;
    if (coll < HD_COLL_ALL_REDUCE || coll > HD_COLL_BARRIER)
        return hd_fail(err, HD_E_UNSUPPORTED, "collective %u is unknown", coll);
    if (coll != HD_COLL_BARRIER && !esize)
        return hd_fail(err, HD_E_UNSUPPORTED, "collective %u: unknown dtype %u", coll, call->dtype);
    if (reduces && (call->redop < HD_SUM || call->redop > HD_AVG))
        return hd_fail(err, HD_E_UNSUPPORTED, "reduction %u is unknown", call->redop);
    if (rooted && (call->root < 0 || call->root >= n))
        return hd_fail(err, HD_E_INVALID, "root %d is not a member of a group of %d", call->root, n);
    if (coll == HD_COLL_ALL_TO_ALL && call->send == call->recv && call->count && n > 1)
        return hd_fail(err, HD_E_INVALID, "all_to_all cannot be in place");
    s->n = n;
    s->me = me;
    s->use = coll == HD_COLL_BARRIER || call->count ? hd__comm_algorithm_select(tuning, call, n, &s->chunk) : NULL;
    if (s->use)
        s->use->build(s, call, esize);
    hd__comm_plan_fence(s);
    return HD_OK;
}
