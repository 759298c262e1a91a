/* all_gather. Bruck (1997) for small blocks: each round doubles the blocks of every member, in a buffer that starts
 * with its own and is rotated at the end. Doubling: the same without copies, n a power of two. Ring for large
 * blocks: each is forwarded around the ring, chunk by chunk. */
#include "runtime/comm/algorithms/plan.h"

enum { CHUNKS = 8 };

void hd__comm_add_bruck(struct hd__coll_plan *s, const void *mine, uint8_t *out, uint64_t bytes)
{
    int32_t n = s->n, me = s->me;
    uint8_t *rotated = hd__comm_plan_scratch(s, (uint64_t)n * bytes);
    hd__comm_plan_copy(s, rotated, mine, bytes);
    for (int32_t k = 1; k < n; k <<= 1) {
        uint64_t some = (uint64_t)HD__MIN(k, n - k) * bytes;
        hd__comm_plan_send(s, (me - k + n) % n, rotated, some);
        hd__comm_plan_recv(s, (me + k) % n, rotated + (uint64_t)k * bytes, some);
        hd__comm_plan_fence(s);
    }
    for (int32_t i = 0; i < n; i++)
        hd__comm_plan_copy(s, out + (uint64_t)((me + i) % n) * bytes, rotated + (uint64_t)i * bytes, bytes);
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

void hd__comm_add_ring_gather(struct hd__coll_plan *s, uint8_t *out, uint64_t count, size_t esize)
{
    int32_t n = s->n, me = s->me;
    uint64_t each = (count + (uint64_t)n - 1) / (uint64_t)n, mark[CHUNKS];
    uint64_t chunks = HD__MIN(each * esize / s->chunk + 1, (uint64_t)CHUNKS), step = (each + chunks - 1) / chunks;
    for (int32_t round = 0; round < n - 1; round++) {
        struct hd__slice sent = hd__comm_slice_of(count, n, (me - round + n) % n);
        struct hd__slice received = hd__comm_slice_of(count, n, (me - round - 1 + n) % n);
        for (uint64_t k = 0; k < chunks; k++) {
            if (round)
                hd__comm_plan_fence_first(s, mark[k]); /* received in the last round */
            hd__comm_plan_send_slice(s, (me + 1) % n, out, hd__comm_chunk_of(sent, step, k), esize);
            hd__comm_plan_recv_slice(s, (me - 1 + n) % n, out, hd__comm_chunk_of(received, step, k), esize);
            mark[k] = s->messages;
        }
    }
}

void hd__comm_build_ring_gather(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    hd__comm_plan_copy(s, (uint8_t *)call->recv + (uint64_t)s->me * bytes, call->send, bytes);
    hd__comm_add_ring_gather(s, call->recv, call->count * (uint64_t)s->n, esize);
}
