/* Small: everyone gets all inputs and adds them itself, ceil(log2 n) rounds. Large: everyone adds a slice (as
 * reduce_scatter), then the slices travel round a ring. reduce: the slices go to the root instead. */
#include "core/comm/algorithms/schedule.h"

enum { SMALL_BYTES = 16384 };

void hd__build_all_reduce(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    uint8_t *out = call->recv;
    int32_t n = s->n, me = s->me;
    if (bytes <= SMALL_BYTES) {
        const void *sources[1024];
        uint8_t *all = hd__schedule_scratch(s, bytes * (uint64_t)n);
        hd__build_bruck(s, call->send, all, bytes);
        for (int32_t i = 0; i < n; i++)
            sources[i] = all + (uint64_t)i * bytes;
        hd__step_reduce(s, out, sources, call->count);
        return;
    }
    hd__build_slices(s, call, esize, out + hd__slice_of(call->count, n, me).first * esize);
    for (int32_t r = 0; r < n - 1; r++) {
        struct hd__slice mine = hd__slice_of(call->count, n, (me - r + n) % n);
        struct hd__slice next = hd__slice_of(call->count, n, (me - r - 1 + n) % n);
        hd__step_fence(s);
        hd__step_send(s, (me + 1) % n, out + mine.first * esize, (mine.last - mine.first) * esize);
        hd__step_recv(s, (me - 1 + n) % n, out + next.first * esize, (next.last - next.first) * esize);
    }
}

void hd__build_reduce(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    int32_t n = s->n, me = s->me;
    struct hd__slice mine = hd__slice_of(call->count, n, me);
    uint64_t bytes = (mine.last - mine.first) * esize;
    uint8_t *out = me == call->root ? (uint8_t *)call->recv + mine.first * esize : hd__schedule_scratch(s, bytes);
    hd__build_slices(s, call, esize, out);
    hd__step_fence(s);
    for (int32_t i = 0; i < n && me == call->root; i++) {
        struct hd__slice part = hd__slice_of(call->count, n, i);
        if (i != me && part.last > part.first)
            hd__step_recv(s, i, (uint8_t *)call->recv + part.first * esize, (part.last - part.first) * esize);
    }
    if (me != call->root && bytes)
        hd__step_send(s, call->root, out, bytes);
}
