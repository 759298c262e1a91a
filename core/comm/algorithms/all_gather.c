/* Bruck (1997) for small pieces: round k doubles what everyone has, in a buffer that starts with one's own piece and is
 * rotated at the end. A ring for larger ones: every piece travels round once, nothing is copied twice. */
#include "core/comm/algorithms/schedule.h"

enum { BRUCK_BYTES = 65536 }; /* of the whole result */

void hd__build_bruck(struct hd__schedule *s, const void *mine, uint8_t *out, uint64_t bytes)
{
    int32_t n = s->n, me = s->me;
    uint8_t *turned = hd__schedule_scratch(s, (uint64_t)n * bytes);
    hd__step_copy(s, turned, mine, bytes);
    for (int32_t k = 1; k < n; k <<= 1) {
        uint64_t some = (uint64_t)HD__MIN(k, n - k) * bytes;
        hd__step_send(s, (me - k + n) % n, turned, some);
        hd__step_recv(s, (me + k) % n, turned + (uint64_t)k * bytes, some);
        hd__step_fence(s);
    }
    for (int32_t i = 0; i < n; i++)
        hd__step_copy(s, out + (uint64_t)((me + i) % n) * bytes, turned + (uint64_t)i * bytes, bytes);
}

void hd__build_all_gather(struct hd__schedule *s, const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    uint8_t *out = call->recv;
    int32_t n = s->n, me = s->me;
    if (bytes * (uint64_t)n <= BRUCK_BYTES) {
        hd__build_bruck(s, call->send, out, bytes);
        return;
    }
    hd__step_copy(s, out + (uint64_t)me * bytes, call->send, bytes);
    for (int32_t r = 0; r < n - 1; r++) {
        hd__step_send(s, (me + 1) % n, out + (uint64_t)((me - r + n) % n) * bytes, bytes);
        hd__step_recv(s, (me - 1 + n) % n, out + (uint64_t)((me - r - 1 + n) % n) * bytes, bytes);
        hd__step_fence(s);
    }
}
