/* Every member gets the raw pieces that it has to add, a chunk at a time, and adds them in the tree over members. It moves as
 * much as a ring would; what it costs is scratch for one chunk of every member. */
#include "core/comm/algorithms/schedule.h"

enum { SCRATCH_BYTES = 4 << 20 };

/* One chunk: `piece[i]` is where, in `in`, the part begins that member i is to get (elements), `sizes[i]` its length. */
static void exchange(struct hd__schedule *s, const uint8_t *in, const uint64_t *piece, const uint64_t *sizes,
                     uint8_t *scratch, uint64_t room, uint8_t *to, size_t esize)
{
    const void *sources[1024];
    int32_t n = s->n, me = s->me;
    for (int32_t i = 0; i < n; i++)
        sources[i] = i == me ? in + piece[me] * esize : scratch + (uint64_t)i * room * esize;
    for (int32_t i = 1; i < n; i++) {
        int32_t peer = (me + i) % n, from = (me - i + n) % n;
        if (sizes[peer])
            hd__step_send(s, peer, in + piece[peer] * esize, sizes[peer] * esize);
        if (sizes[me])
            hd__step_recv(s, from, scratch + (uint64_t)from * room * esize, sizes[me] * esize);
    }
    hd__step_fence(s);
    if (sizes[me])
        hd__step_reduce(s, to, sources, sizes[me]);
}

/* first, last: each member's part of `in`, in elements. The sum of part `me` goes to `to`. */
static void exchange_all(struct hd__schedule *s, const uint8_t *in, const struct hd__slice *part, uint8_t *to, size_t esize)
{
    uint64_t most = 0, room, piece[1024], sizes[1024];
    for (int32_t i = 0; i < s->n; i++)
        most = HD__MAX(most, part[i].last - part[i].first);
    room = HD__MAX(HD__MIN(most, SCRATCH_BYTES / esize / (uint64_t)s->n), UINT64_C(1));
    uint8_t *scratch = hd__schedule_scratch(s, room * (uint64_t)s->n * esize);
    for (uint64_t at = 0; at < most; at += room) {
        for (int32_t i = 0; i < s->n; i++) {
            uint64_t whole = part[i].last - part[i].first;
            piece[i] = part[i].first + HD__MIN(at, whole);
            sizes[i] = HD__MIN(room, whole - HD__MIN(at, whole));
        }
        exchange(s, in, piece, sizes, scratch, room, to + at * esize, esize);
    }
}

void hd__build_reduce_scatter(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    struct hd__slice part[1024];
    for (int32_t i = 0; i < s->n; i++)
        part[i] = (struct hd__slice){(uint64_t)i * call->count, (uint64_t)(i + 1) * call->count};
    exchange_all(s, call->send, part, call->recv, esize);
}

void hd__build_slices(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize, uint8_t *to)
{
    struct hd__slice part[1024];
    for (int32_t i = 0; i < s->n; i++)
        part[i] = hd__slice_of(call->count, s->n, i);
    exchange_all(s, call->send, part, to, esize);
}
