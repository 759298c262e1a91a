/* Data of a bench's operations: small whole numbers, exact in every dtype; and the check of the results. */
#include "cli/bench/rank.h"

#include "core/base/dtype.h"

/* Groups have values of their own: what strays from one to another is seen. */
static uint32_t value(const struct hd__bench_rank *b, uint32_t dtype, int32_t member, uint64_t i)
{
    /* whole numbers up to this have no rounding, whatever the order of a sum */
    uint32_t exact = 1u << (hd__is_float(dtype) ? HD__MIN(hd__dtype(dtype)->digits, 24) : 24);
    uint32_t most = HD__MAX(1u, exact / (4 * (uint32_t)b->group_size));
    return ((uint32_t)(b->rank - b->group_rank + member) % 4 + 1) * HD__MIN((uint32_t)(i % 7), most);
}

uint64_t hd__bench_send_elements(const struct hd__bench_rank *b, uint32_t op, uint64_t count)
{
    return op == HD__BENCH_REDUCE_SCATTER || op == HD__BENCH_ALL_TO_ALL ? count * (uint64_t)b->group_size : count;
}

static uint64_t recv_elements(const struct hd__bench_rank *b, uint32_t op, uint64_t count)
{
    if ((op == HD__BENCH_REDUCE && b->group_rank != 0) || op == HD__BENCH_BARRIER)
        return 0;
    return op == HD__BENCH_ALL_GATHER || op == HD__BENCH_ALL_TO_ALL ? count * (uint64_t)b->group_size : count;
}

static uint32_t sum(const struct hd__bench_rank *b, uint32_t dtype, uint64_t i)
{
    uint32_t total = 0;
    for (int32_t r = 0; r < b->group_size; r++)
        total += value(b, dtype, r, i);
    return total;
}

static uint32_t expected(const struct hd__bench_rank *b, uint32_t op, uint32_t dtype, uint64_t count, uint64_t i)
{
    int32_t n = b->group_size, piece = (int32_t)(i / count);
    switch (op) {
    case HD__BENCH_ALL_GATHER:
        return value(b, dtype, piece, i % count);
    case HD__BENCH_ALL_TO_ALL:
        return value(b, dtype, piece, (uint64_t)b->group_rank * count + i % count);
    case HD__BENCH_BROADCAST:
        return value(b, dtype, 0, i);
    case HD__BENCH_SENDRECV:
        return value(b, dtype, (b->group_rank + n - 1) % n, i);
    case HD__BENCH_REDUCE_SCATTER:
        return sum(b, dtype, (uint64_t)b->group_rank * count + i);
    default:
        return sum(b, dtype, i);
    }
}

void hd__bench_fill(struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call)
{
    size_t esize = hd_dtype_size(call->dtype);
    uint64_t n = op == HD__BENCH_BARRIER ? 0 : hd__bench_send_elements(b, op, call->count);
    uint8_t *send = hd__bench_mirror(b, call->send);
    if (!b->in_place)
        memset(hd__bench_mirror(b, b->recv), 0xa5, recv_elements(b, op, call->count) * esize);
    for (uint64_t i = 0; i < n; i++)
        hd__dtype_store(call->dtype, send + i * esize, value(b, call->dtype, b->group_rank, i));
}

/* The inputs repeat every 7 elements, and so do sums: 7 expected values a piece are enough. */
uint64_t hd__bench_count_errors(const struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call)
{
    size_t esize = hd_dtype_size(call->dtype);
    uint64_t n = recv_elements(b, op, call->count), errors = 0;
    const uint8_t *at = hd__bench_mirror(b, call->recv);
    for (uint64_t first = 0; first < n; first += call->count) {
        uint8_t want[7][8];
        for (uint64_t k = 0; k < 7 && k < call->count; k++)
            hd__dtype_store(call->dtype, want[k], expected(b, op, call->dtype, call->count, first + k));
        for (uint64_t i = 0; i < call->count; i++, at += esize)
            errors += memcmp(at, want[i % 7], esize) != 0;
    }
    return errors;
}
