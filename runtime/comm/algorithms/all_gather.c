/* Bruck (1997) for small pieces: round k doubles what everyone has, in a buffer that starts with one's own piece and is
 * rotated at the end. Doubling: the same where n is a power of two, and nothing is copied. A ring for large ones: every
 * piece travels round once, chunk by chunk. */
#include "runtime/comm/algorithms/plan.h"

enum { CHUNKS = 8 };

void hd__comm_add_bruck(struct hd__coll_plan *s, const void *mine, uint8_t *out, uint64_t bytes)
{
    int32_t n = s->n, me = s->me;
    uint8_t *turned = hd__comm_plan_scratch(s, (uint64_t)n * bytes);
    hd__comm_plan_copy(s, turned, mine, bytes);
    for (int32_t k = 1; k < n; k <<= 1) {
        uint64_t some = (uint64_t)HD__MIN(k, n - k) * bytes;
        hd__comm_plan_send(s, (me - k + n) % n, turned, some);
        hd__comm_plan_recv(s, (me + k) % n, turned + (uint64_t)k * bytes, some);
        hd__comm_plan_fence(s);
    }
    for (int32_t i = 0; i < n; i++)
        hd__comm_plan_copy(s, out + (uint64_t)((me + i) % n) * bytes, turned + (uint64_t)i * bytes, bytes);
}

void hd__comm_build_bruck_gather(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    hd__comm_add_bruck(s, call->send, call->recv, call->count * esize);
}

void hd__comm_build_doubling_gather(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    uint8_t *out = call->recv;
    hd__comm_plan_copy(s, out + (uint64_t)s->me * bytes, call->send, bytes);
    for (int32_t bit = 1; bit < s->n; bit <<= 1) {
        int32_t mine = s->me & ~(bit - 1), peer = s->me ^ bit;
        hd__comm_plan_send(s, peer, out + (uint64_t)mine * bytes, (uint64_t)bit * bytes);
        hd__comm_plan_recv(s, peer, out + (uint64_t)(mine ^ bit) * bytes, (uint64_t)bit * bytes);
        hd__comm_plan_fence(s);
    }
}

/* Chunk k of slice i, in elements. */
static struct hd__slice chunk_of(uint64_t count, int32_t n, int32_t i, uint64_t step, uint64_t k)
{
    struct hd__slice whole = hd__comm_slice_of(count, n, i);
    uint64_t first = HD__MIN(whole.first + k * step, whole.last);
    return (struct hd__slice){first, HD__MIN(first + step, whole.last)};
}

void hd__comm_add_ring_gather(struct hd__coll_plan *s, uint8_t *out, uint64_t count, size_t esize)
{
    int32_t n = s->n, me = s->me;
    uint64_t each = (count + (uint64_t)n - 1) / (uint64_t)n, mark[CHUNKS];
    uint64_t chunks = HD__MIN(each * esize / s->chunk + 1, (uint64_t)CHUNKS), step = (each + chunks - 1) / chunks;
    for (int32_t turn = 0; turn < n - 1; turn++)
        for (uint64_t k = 0; k < chunks; k++) {
            struct hd__slice goes = chunk_of(count, n, (me - turn + n) % n, step, k);
            struct hd__slice comes = chunk_of(count, n, (me - turn - 1 + n) % n, step, k);
            if (turn)
                hd__comm_plan_fence_first(s, mark[k]); /* what goes on now has come */
            if (goes.last > goes.first)
                hd__comm_plan_send(s, (me + 1) % n, out + goes.first * esize, (goes.last - goes.first) * esize);
            if (comes.last > comes.first)
                hd__comm_plan_recv(s, (me - 1 + n) % n, out + comes.first * esize, (comes.last - comes.first) * esize);
            mark[k] = s->messages;
        }
}

void hd__comm_build_ring_gather(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    hd__comm_plan_copy(s, (uint8_t *)call->recv + (uint64_t)s->me * bytes, call->send, bytes);
    hd__comm_add_ring_gather(s, call->recv, call->count * (uint64_t)s->n, esize);
}
