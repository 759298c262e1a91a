/* One rank of a bench: buffers, calls, clocks, checks. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/comm/bench.h"
#include "core/comm/host.h"
#include "core/comm/store.h"
#include "core/comm/open.h"

struct bench_rank {
    const struct hd__bench *bench;
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;
    struct hd_comm_group *world, *group; /* all ranks; those that run an operation together */
    struct hd__bench_board *boards;
    struct hd_error *err;
    uint8_t *send, *recv, *plain; /* plain: to free; NULL where the transport gave the memory */
    int32_t rank;
    int32_t me, n; /* member of the group, and of how many */
    int32_t in_place; /* of what is measured now */
    int out;
    uint64_t tag;
};

static const struct {
    uint32_t coll, parts;
} op_rules[] = {
#define OP_RULE(constant, value, name, coll, parts, factor) [value] = {coll, parts},
    HD__BENCH_OPS(OP_RULE)
#undef OP_RULE
};

static double bus_factor(uint32_t op, double n)
{
    switch (op) {
#define OP_FACTOR(constant, value, name, coll, parts, factor) \
    case constant:                                            \
        return factor;
        HD__BENCH_OPS(OP_FACTOR)
#undef OP_FACTOR
    default:
        return 0;
    }
}

/* ---- one call */

static int32_t finish(struct bench_rank *b, hd_request request)
{
    return b->ops->wait(b->comm, request, hd__now() + b->bench->timeout, b->err);
}

static int32_t collective(struct bench_rank *b, struct hd_comm_group *group, const struct hd_comm_call *call)
{
    hd_request request;
    int32_t code = b->ops->collective(group, call, &request, b->err);
    return code == HD_OK ? finish(b, request) : code;
}

static int32_t sendrecv(struct bench_rank *b, const struct hd_comm_call *call)
{
    int32_t n = b->n, to = (b->me + 1) % n, from = (b->me + n - 1) % n;
    uint64_t bytes = call->count * hd_dtype_size(call->dtype);
    hd_request out, in;
    int32_t code = b->ops->send(b->group, to, 0, call->send, bytes, &out, b->err);
    if (code == HD_OK)
        code = b->ops->recv(b->group, from, 0, call->recv, bytes, &in, b->err);
    if (code == HD_OK)
        code = finish(b, in);
    return code == HD_OK ? finish(b, out) : code;
}

static int32_t call_once(struct bench_rank *b, uint32_t op, struct hd_comm_call *call)
{
    call->tag = ++b->tag;
    return op == HD__BENCH_SENDRECV ? sendrecv(b, call) : collective(b, b->group, call);
}

static int32_t barrier(struct bench_rank *b)
{
    struct hd_comm_call call = {.struct_size = sizeof call, .coll = HD_COLL_BARRIER, .tag = ++b->tag};
    return collective(b, b->world, &call);
}

/* ---- values: small whole numbers, exact in every dtype */

/* Groups have values of their own: what strays from one to another is seen. */
static uint32_t value(const struct bench_rank *b, int32_t member, uint64_t i)
{
    return ((uint32_t)(b->rank - b->me + member) % 4 + 1) * (uint32_t)(i % 7);
}

static void put(uint8_t *at, uint32_t dtype, uint32_t v)
{
    float f = (float)v;
    double d = v;
    uint32_t u;
    uint16_t half = 0;
    memcpy(&u, &f, 4);
    if (v) /* whole numbers below 2048: normal in fp16, no rounding */
        half = (uint16_t)(((u >> 23) - 112) << 10 | (u >> 13 & 0x3ff));
    if (dtype == HD_BF16)
        half = (uint16_t)(u >> 16);
    switch (dtype) {
    case HD_F32:
        memcpy(at, &f, 4);
        break;
    case HD_F64:
        memcpy(at, &d, 8);
        break;
    case HD_I32:
        memcpy(at, &v, 4);
        break;
    case HD_U8:
        *at = (uint8_t)v;
        break;
    default:
        memcpy(at, &half, 2);
    }
}

static uint64_t send_elements(const struct bench_rank *b, uint32_t op, uint64_t count)
{
    return op == HD__BENCH_REDUCE_SCATTER || op == HD__BENCH_ALL_TO_ALL ? count * (uint64_t)b->n : count;
}

static uint64_t recv_elements(const struct bench_rank *b, uint32_t op, uint64_t count)
{
    if ((op == HD__BENCH_REDUCE && b->me != 0) || op == HD__BENCH_BARRIER)
        return 0;
    return op == HD__BENCH_ALL_GATHER || op == HD__BENCH_ALL_TO_ALL ? count * (uint64_t)b->n : count;
}

static uint32_t sum(const struct bench_rank *b, uint64_t i)
{
    uint32_t total = 0;
    for (int32_t r = 0; r < b->n; r++)
        total += value(b, r, i);
    return total;
}

static uint32_t expected(const struct bench_rank *b, uint32_t op, uint64_t count, uint64_t i)
{
    int32_t n = b->n, piece = (int32_t)(i / count);
    switch (op) {
    case HD__BENCH_ALL_GATHER:
        return value(b, piece, i % count);
    case HD__BENCH_ALL_TO_ALL:
        return value(b, piece, (uint64_t)b->me * count + i % count);
    case HD__BENCH_BROADCAST:
        return value(b, 0, i);
    case HD__BENCH_SENDRECV:
        return value(b, (b->me + n - 1) % n, i);
    case HD__BENCH_REDUCE_SCATTER:
        return sum(b, (uint64_t)b->me * count + i);
    default:
        return sum(b, i);
    }
}

static void fill(struct bench_rank *b, uint32_t op, const struct hd_comm_call *call)
{
    size_t esize = hd_dtype_size(call->dtype);
    uint64_t n = op == HD__BENCH_BARRIER ? 0 : send_elements(b, op, call->count);
    if (!b->in_place)
        memset(b->recv, 0xa5, recv_elements(b, op, call->count) * esize);
    for (uint64_t i = 0; i < n; i++)
        put((uint8_t *)(uintptr_t)call->send + i * esize, call->dtype, value(b, b->me, i));
}

/* The inputs repeat every 7 elements, and so do sums: 7 expected values a piece are enough. */
static uint64_t wrong(const struct bench_rank *b, uint32_t op, const struct hd_comm_call *call)
{
    size_t esize = hd_dtype_size(call->dtype);
    uint64_t n = recv_elements(b, op, call->count), errors = 0;
    const uint8_t *at = call->recv;
    for (uint64_t first = 0; first < n; first += call->count) {
        uint8_t want[7][8];
        for (uint64_t k = 0; k < 7 && k < call->count; k++)
            put(want[k], call->dtype, expected(b, op, call->count, first + k));
        for (uint64_t i = 0; i < call->count; i++, at += esize)
            errors += memcmp(at, want[i % 7], esize) != 0;
    }
    return errors;
}

/* ---- one size */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct plan {
    uint32_t batches, calls, singles;
};

static struct plan plan_of(const struct hd__bench *bench, uint64_t bytes)
{
    struct plan p = {.batches = bytes >= (32u << 20) ? 9 : HD__BENCH_BATCHES};
    p.calls = bytes <= 8192 ? 200 : bytes <= (1u << 20) ? 20 : bytes <= (8u << 20) ? 3 : 1;
    if (bench->iterations) {
        p.batches = HD__MIN(bench->iterations, (uint32_t)HD__BENCH_BATCHES);
        p.calls = bench->iterations / p.batches;
    }
    p.singles = HD__MIN(p.batches * p.calls, (uint32_t)HD__BENCH_SINGLES);
    return p;
}

static int32_t measure(struct bench_rank *b, uint32_t op, struct hd_comm_call *call, const struct plan *p)
{
    struct hd__bench_board *mine = &b->boards[b->rank];
    int32_t code = HD_OK;
    for (uint32_t i = 0; i < b->bench->warmup && code == HD_OK; i++)
        code = call_once(b, op, call);
    for (uint32_t k = 0; k < p->batches && code == HD_OK; k++) {
        code = barrier(b);
        double began = hd__now();
        for (uint32_t i = 0; i < p->calls && code == HD_OK; i++)
            code = call_once(b, op, call);
        mine->batch[k] = (hd__now() - began) / p->calls;
    }
    if (code == HD_OK)
        code = barrier(b);
    for (uint32_t k = 0; k < p->singles && code == HD_OK; k++) {
        double began = hd__now();
        code = call_once(b, op, call);
        mine->single[k] = (float)(hd__now() - began);
    }
    return code;
}

/* Out of place the last timed call's result is checked. In place sums would grow from call to call: the timed calls add
 * zeros, and one call with values is checked before them. */
static int32_t check_and_measure(struct bench_rank *b, uint32_t op, struct hd_comm_call *call, const struct plan *p)
{
    struct hd__bench_board *mine = &b->boards[b->rank];
    size_t esize = hd_dtype_size(call->dtype);
    fill(b, op, call);
    int32_t code = barrier(b);
    if (b->in_place && code == HD_OK && (code = call_once(b, op, call)) == HD_OK) {
        mine->errors = wrong(b, op, call);
        code = barrier(b);
        memset((void *)(uintptr_t)call->send, 0, send_elements(b, op, call->count) * esize);
        code = code == HD_OK ? barrier(b) : code;
    }
    if (code == HD_OK)
        code = measure(b, op, call, p);
    if (!b->in_place && code == HD_OK)
        mine->errors = wrong(b, op, call);
    return code == HD_OK ? barrier(b) : code;
}

static void write_row(struct bench_rank *b, uint32_t op, uint64_t bytes, uint64_t count, const struct plan *p)
{
    struct hd__bench_row row = {.op = op, .in_place = b->in_place, .bytes = bytes, .count = count};
    double slowest[HD__BENCH_SINGLES];
    int32_t n = b->bench->ranks;
    for (int32_t r = 0; r < n; r++)
        row.errors += b->boards[r].errors;
    for (uint32_t k = 0; k < p->batches; k++) {
        slowest[k] = 0;
        for (int32_t r = 0; r < n; r++)
            slowest[k] = HD__MAX(slowest[k], b->boards[r].batch[k]);
    }
    qsort(slowest, p->batches, sizeof *slowest, by_size);
    double time = slowest[p->batches / 2];
    for (uint32_t k = 0; k < p->singles; k++) {
        slowest[k] = 0;
        for (int32_t r = 0; r < n; r++)
            slowest[k] = HD__MAX(slowest[k], (double)b->boards[r].single[k]);
    }
    qsort(slowest, p->singles, sizeof *slowest, by_size);
    row.time_us = time * 1e6;
    row.p50_us = slowest[p->singles / 2] * 1e6;
    row.p99_us = slowest[HD__MIN(p->singles - 1, p->singles * 99 / 100)] * 1e6;
    row.algbw = (double)bytes / time * 1e-9;
    row.busbw = row.algbw * bus_factor(op, b->n);
    if (write(b->out, &row, sizeof row) != sizeof row)
        hd__log(HD_LOG_ERROR, "bench", "a row is lost: %s", strerror(errno));
}

static int32_t one_place(struct bench_rank *b, uint32_t op, uint64_t bytes, int32_t in_place)
{
    uint32_t dtype = b->bench->dtype, n = (uint32_t)b->n;
    size_t esize = hd_dtype_size(dtype);
    uint64_t count = bytes / esize / (op_rules[op].parts ? 1 : n);
    struct plan p = plan_of(b->bench, bytes);
    struct hd_comm_call call = {
        .struct_size = sizeof call, .coll = op_rules[op].coll, .dtype = dtype, .redop = HD_SUM, .count = count};
    if (count == 0 && op != HD__BENCH_BARRIER)
        return HD_OK;
    b->in_place = in_place;
    call.send = b->send;
    call.recv = b->recv;
    if (b->in_place) {
        call.recv = b->send;
        if (op == HD__BENCH_ALL_GATHER)
            call.send = b->send + (uint64_t)b->me * count * esize;
        if (op == HD__BENCH_REDUCE_SCATTER)
            call.recv = b->send + (uint64_t)b->me * count * esize;
    }
    int32_t code = check_and_measure(b, op, &call, &p);
    if (code == HD_OK && b->rank == 0)
        write_row(b, op, op == HD__BENCH_BARRIER ? 0 : bytes, count, &p);
    return code == HD_OK ? barrier(b) : code;
}

static int32_t one_size(struct bench_rank *b, uint32_t op, uint64_t bytes)
{
    const struct hd__bench *bench = b->bench;
    int32_t code = one_place(b, op, bytes, bench->in_place && !bench->both);
    return code == HD_OK && bench->both && hd__bench_has_in_place(op) ? one_place(b, op, bytes, 1) : code;
}

static int32_t one_op(struct bench_rank *b, uint32_t op)
{
    const struct hd__bench *bench = b->bench;
    int32_t code = HD_OK;
    if (op == HD__BENCH_BARRIER)
        return one_size(b, op, 0);
    for (double bytes = (double)bench->first; bytes <= (double)bench->last && code == HD_OK; bytes *= bench->factor)
        code = one_size(b, op, (uint64_t)bytes);
    return code;
}

/* ---- the rank */

static int32_t open_buffers(struct bench_rank *b)
{
    size_t bytes = (b->bench->last + 4095) / 4096 * 4096 + 4096;
    void *base = NULL;
    int32_t code = HD_OK;
    if (b->ops->memory && !b->bench->plain) {
        code = b->ops->memory(b->comm, 2 * bytes, &base, b->err);
    } else {
        base = b->plain = aligned_alloc(2 << 20, (2 * bytes + (2 << 20) - 1) >> 21 << 21);
        if (!base)
            code = hd_fail(b->err, HD_E_NOMEM, "%zu bytes of buffers", 2 * bytes);
        else
            memset(base, 0, 2 * bytes);
    }
    b->send = base;
    b->recv = (uint8_t *)base + bytes;
    return code;
}

/* Neighbours make a group: ranks 0 and 1, ranks 2 and 3. */
static int32_t make_groups(struct bench_rank *b)
{
    int32_t all = b->bench->ranks, groups = HD__MAX(b->bench->groups, 1), code;
    int32_t *ranks = hd__alloc((size_t)all * sizeof *ranks);
    for (int32_t r = 0; r < all; r++)
        ranks[r] = r;
    b->n = all / groups;
    b->me = b->rank % b->n;
    code = b->ops->group(b->comm, "world", ranks, all, &b->world, b->err);
    b->group = b->world;
    if (code == HD_OK && groups > 1)
        code = b->ops->group(b->comm, "bench", ranks + b->rank - b->me, b->n, &b->group, b->err);
    free(ranks);
    return code;
}

int32_t hd__bench_rank(const struct hd__bench *bench, int32_t rank, struct hd_store *store,
                       struct hd__bench_board *boards, int out, struct hd_error *err)
{
    struct bench_rank b = {
        .bench = bench, .boards = boards, .err = err, .rank = rank, .out = out};
    struct hd__comm transport = {.tuning = bench->tuning};
    struct hd_world world = {.struct_size = sizeof world,
                             .rank = rank,
                             .size = bench->ranks,
                             .local_rank = rank,
                             .local_size = bench->ranks,
                             .store = store,
                             .instance = "comm/bench",
                             .timeout = bench->timeout,
                             .dead_after = bench->timeout};
    int32_t code =
        hd__comm_open(&bench->component->ops.comm, hd__comm_host(), bench->settings, &world, &transport, err);
    b.ops = &transport.ops;
    b.comm = transport.comm;
    if (code == HD_OK)
        code = open_buffers(&b);
    if (code == HD_OK)
        code = make_groups(&b);
    for (uint32_t k = 0; k < bench->n_ops && code == HD_OK; k++)
        code = one_op(&b, bench->ops[k]);
    hd__comm_close(&transport);
    free(b.plain);
    return code;
}
