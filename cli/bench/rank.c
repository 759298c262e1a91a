/* One rank of a bench: buffers, calls, clocks, checks. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/rank.h"
#include "runtime/comm/open.h"
#include "runtime/rendezvous/host_store.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/store.h"

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

static int32_t sendrecv(struct hd__bench_rank *b, const struct hd_comm_call *call, hd_request request[2])
{
    int32_t n = b->group_size, to = (b->group_rank + 1) % n, from = (b->group_rank + n - 1) % n;
    uint64_t bytes = call->count * hd_dtype_size(call->dtype);
    int32_t code = b->ops->send(b->group, to, 0, call->send, bytes, &request[1], b->err);
    return code == HD_OK ? b->ops->recv(b->group, from, 0, call->recv, bytes, &request[0], b->err) : code;
}

int32_t hd__bench_start(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, hd_request request[2])
{
    /* small operations share a deadline: reading the clock takes a tenth of one */
    enum { SMALL = 65536, SO_MANY = 32 };
    if (b->tag % SO_MANY == 0 || call->count * hd_dtype_size(call->dtype) > SMALL)
        b->deadline = hd__now() + b->bench->timeout;
    call->tag = ++b->tag;
    return op == HD__BENCH_SENDRECV ? sendrecv(b, call, request) : b->ops->collective(b->group, call, request, b->err);
}

static int32_t wait_request(struct hd__bench_rank *b, hd_request request)
{
    return b->ops->wait(b->comm, request, b->deadline, b->err);
}

int32_t hd__bench_finish(struct hd__bench_rank *b, uint32_t op, const hd_request request[2])
{
    int32_t code = wait_request(b, request[0]);
    return code == HD_OK && op == HD__BENCH_SENDRECV ? wait_request(b, request[1]) : code;
}

static int32_t call_once(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call)
{
    hd_request request[2];
    int32_t code = hd__bench_start(b, op, call, request);
    return code == HD_OK ? hd__bench_finish(b, op, request) : code;
}

int32_t hd__bench_barrier(struct hd__bench_rank *b)
{
    struct hd_comm_call call = {.struct_size = sizeof call, .coll = HD_COLL_BARRIER, .tag = ++b->tag};
    hd_request request;
    int32_t code = b->ops->collective(b->world, &call, &request, b->err);
    b->deadline = hd__now() + b->bench->timeout;
    code = code == HD_OK ? wait_request(b, request) : code;
    return code == HD_OK ? hd__bench_settle(b) : code;
}

/* ---- one size */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct sample_plan {
    uint32_t batches, calls, singles;
};

static struct sample_plan choose_sample_plan(const struct hd__bench *bench, uint64_t bytes)
{
    struct sample_plan p = {.batches = bytes >= (32u << 20) ? 9 : HD__BENCH_BATCHES};
    p.calls = bytes <= 8192 ? 200 : bytes <= (1u << 20) ? 20 : bytes <= (8u << 20) ? 3 : 1;
    if (bench->iterations) {
        p.batches = HD__MIN(bench->iterations, (uint32_t)HD__BENCH_BATCHES);
        p.calls = bench->iterations / p.batches;
    }
    p.singles = HD__MIN(p.batches * p.calls, (uint32_t)HD__BENCH_SINGLE_CALLS);
    return p;
}

static int32_t measure(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, const struct sample_plan *p)
{
    struct hd__bench_timings *mine = &b->timings[b->rank];
    int32_t code = HD_OK;
    uint32_t warmup = b->bench->warmup;
    if (warmup && !b->warmed) /* ranks that share cores take a tenth of a second to find their turns */
        warmup = HD__MAX(warmup, p->batches * p->calls);
    b->warmed = 1;
    for (uint32_t i = 0; i < warmup && code == HD_OK; i++)
        code = call_once(b, op, call);
    for (uint32_t k = 0; k < p->batches && code == HD_OK; k++) {
        code = hd__bench_barrier(b);
        double began = hd__now();
        for (uint32_t i = 0; i < p->calls && code == HD_OK; i++)
            code = call_once(b, op, call);
        code = code == HD_OK ? hd__bench_settle(b) : code;
        mine->batch[k] = (hd__now() - began) / p->calls;
    }
    if (code == HD_OK)
        code = hd__bench_barrier(b);
    for (uint32_t k = 0; k < p->singles && code == HD_OK; k++) {
        double began = hd__now();
        code = call_once(b, op, call);
        code = code == HD_OK ? hd__bench_settle(b) : code;
        mine->single[k] = (float)(hd__now() - began);
    }
    return code;
}

static int32_t count_errors(struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call)
{
    int32_t code = hd__bench_settle(b);
    code = code == HD_OK ? hd__bench_device_get(b) : code;
    if (code == HD_OK)
        b->timings[b->rank].errors = hd__bench_count_errors(b, op, call);
    return code;
}

/* Out of place, the last timed call's result is checked. In place, sums would grow from call to call: the timed
 * calls add zeros, and one call with values is checked before them. */
static int32_t check_and_measure(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call,
                                 const struct sample_plan *p)
{
    size_t esize = hd_dtype_size(call->dtype);
    hd__bench_fill(b, op, call);
    int32_t code = hd__bench_device_put(b);
    code = code == HD_OK ? hd__bench_barrier(b) : code;
    if (b->in_place && code == HD_OK && (code = call_once(b, op, call)) == HD_OK) {
        code = count_errors(b, op, call);
        code = code == HD_OK ? hd__bench_barrier(b) : code;
        memset(hd__bench_mirror(b, call->send), 0, hd__bench_send_elements(b, op, call->count) * esize);
        code = code == HD_OK ? hd__bench_device_put(b) : code;
        code = code == HD_OK ? hd__bench_barrier(b) : code;
    }
    if (code == HD_OK)
        code = measure(b, op, call, p);
    if (code == HD_OK && b->compute)
        code = hd__bench_overlap(b, op, call, p->batches);
    if (!b->in_place && code == HD_OK)
        code = count_errors(b, op, call);
    return code == HD_OK ? hd__bench_barrier(b) : code;
}

/* Each batch counts by its slowest rank; returns the batch at quantile `which`. `batches` is an array of doubles in
 * every board. */
static double batch_at(const struct hd__bench_rank *b, const double *batches, uint32_t n, uint32_t which)
{
    double slowest[HD__BENCH_BATCHES] = {0};
    size_t at = (size_t)((const uint8_t *)batches - (const uint8_t *)b->timings);
    for (int32_t r = 0; r < b->bench->ranks; r++) {
        const double *of = (const double *)((const uint8_t *)(b->timings + r) + at);
        for (uint32_t k = 0; k < n; k++)
            slowest[k] = HD__MAX(slowest[k], of[k]);
    }
    qsort(slowest, n, sizeof *slowest, by_size);
    return slowest[which];
}

static void add_singles(const struct hd__bench_rank *b, uint32_t n, struct hd__bench_row *row)
{
    double slowest[HD__BENCH_SINGLE_CALLS] = {0};
    for (int32_t r = 0; r < b->bench->ranks; r++)
        for (uint32_t k = 0; k < n; k++)
            slowest[k] = HD__MAX(slowest[k], (double)b->timings[r].single[k]);
    qsort(slowest, n, sizeof *slowest, by_size);
    row->p50_us = slowest[n / 2] * 1e6;
    row->p99_us = slowest[HD__MIN(n - 1, n * 99 / 100)] * 1e6;
}

static void add_overlap(const struct hd__bench_rank *b, uint32_t batches, struct hd__bench_row *row)
{
    double of[HD__BENCH_OVERLAP_COUNT];
    for (int k = 0; k < HD__BENCH_OVERLAP_COUNT; k++)
        of[k] = batch_at(b, b->timings->overlap[k], batches, 0);
    row->products = (uint32_t)b->timings->products;
    row->products_us = of[HD__BENCH_PRODUCTS] * 1e6;
    row->alone_us = of[HD__BENCH_ALONE] * 1e6;
    row->both_us = of[HD__BENCH_BOTH] * 1e6;
    row->exposed_us = row->both_us - row->products_us;
    row->noisy = row->alone_us * 1e-6 <
                 batch_at(b, b->timings->overlap[HD__BENCH_PRODUCTS], batches, batches / 2) - of[HD__BENCH_PRODUCTS];
    row->hidden = (row->products_us + row->alone_us - row->both_us) / HD__MIN(row->products_us, row->alone_us);
}

static void write_row(struct hd__bench_rank *b, uint32_t op, uint64_t bytes, uint64_t count,
                      const struct sample_plan *p)
{
    struct hd__bench_row row = {.op = op, .in_place = b->in_place, .bytes = bytes, .count = count};
    double time = batch_at(b, b->timings->batch, p->batches, p->batches / 2);
    for (int32_t r = 0; r < b->bench->ranks; r++)
        row.errors += b->timings[r].errors;
    row.time_us = time * 1e6;
    row.algbw = (double)bytes / time * 1e-9;
    row.busbw = row.algbw * bus_factor(op, b->group_size);
    add_singles(b, p->singles, &row);
    if (b->compute)
        add_overlap(b, p->batches, &row);
    if (b->sink->out < 0)
        b->sink->row(b->sink->user, &row);
    else if (write(b->sink->out, &row, sizeof row) != sizeof row)
        hd__log(HD_LOG_ERROR, "bench", "a row is lost: %s", strerror(errno));
}

static int32_t bench_placement(struct hd__bench_rank *b, uint32_t op, uint64_t bytes, int32_t in_place)
{
    uint32_t dtype = b->bench->dtype, n = (uint32_t)b->group_size;
    size_t esize = hd_dtype_size(dtype);
    uint64_t count = bytes / esize / (op_rules[op].parts ? 1 : n);
    struct sample_plan p = choose_sample_plan(b->bench, bytes);
    bytes = count * esize * (op_rules[op].parts ? 1 : n); /* what moves */
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
            call.send = b->send + (uint64_t)b->group_rank * count * esize;
        if (op == HD__BENCH_REDUCE_SCATTER)
            call.recv = b->send + (uint64_t)b->group_rank * count * esize;
    }
    int32_t code = check_and_measure(b, op, &call, &p);
    if (code == HD_OK)
        code = hd__bench_gather_timings(b);
    if (code == HD_OK && b->rank == 0)
        write_row(b, op, op == HD__BENCH_BARRIER ? 0 : bytes, count, &p);
    return code == HD_OK ? hd__bench_barrier(b) : code;
}

static int32_t bench_size(struct hd__bench_rank *b, uint32_t op, uint64_t bytes)
{
    const struct hd__bench *bench = b->bench;
    int32_t code = bench_placement(b, op, bytes, bench->in_place && !bench->both);
    return code == HD_OK && bench->both && hd__bench_has_in_place(op) ? bench_placement(b, op, bytes, 1) : code;
}

/* ---- the rank */

static int32_t open_buffers(struct hd__bench_rank *b)
{
    size_t bytes = (b->bench->last + 4095) / 4096 * 4096 + 4096;
    void *base = NULL;
    int32_t code = HD_OK;
    if (b->device) {
        code = hd__bench_device_alloc(b, 2 * bytes, &base);
    } else if (b->ops->memory && !b->bench->plain) {
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

/* Neighbours form a group: ranks 0 and 1, ranks 2 and 3. */
static int32_t make_groups(struct hd__bench_rank *b)
{
    int32_t all = b->bench->ranks, groups = HD__MAX(b->bench->groups, 1), code;
    int32_t *ranks = hd__alloc((size_t)all * sizeof *ranks);
    for (int32_t r = 0; r < all; r++)
        ranks[r] = r;
    b->group_size = all / groups;
    b->group_rank = b->rank % b->group_size;
    code = b->ops->group(b->comm, "world", ranks, all, &b->world, b->err);
    b->group = b->world;
    if (code == HD_OK && groups > 1)
        code = b->ops->group(b->comm, "bench", ranks + b->rank - b->group_rank, b->group_size, &b->group, b->err);
    free(ranks);
    return code;
}

/* Runs in the thread that listens to the rendezvous: another rank failed. */
static void on_peer_failure(void *user, const char *cause)
{
    struct hd__comm *transport = user;
    transport->ops.abort(transport->comm, cause);
}

/* Ranks that did not meet: variables may have been left by a former launcher. */
static int32_t add_launcher(const struct hd__bench *bench, int32_t code, struct hd_error *err)
{
    const struct hd_error why = *err;
    return code != HD_E_TIMEOUT || !bench->external
               ? code
               : hd_fail(err, code,
                         "%s; RANK, WORLD_SIZE or their like in the environment made this rank %d of %d: start the "
                         "others, or unset them",
                         why.message, bench->external->rank, bench->ranks);
}

int32_t hd__bench_rank(const struct hd__bench *bench, int32_t rank, struct hd_store *store,
                       struct hd__bench_timings *timings, const struct hd__bench_sink *sink, struct hd_error *err)
{
    const struct hd__bench_external *among = bench->external;
    struct hd__bench_rank b = {
        .bench = bench, .timings = timings, .store = store, .err = err, .rank = rank, .sink = sink};
    struct hd__comm transport = {.tuning = bench->tuning};
    char instance[32];
    struct hd_world world = {.struct_size = sizeof world,
                             .rank = rank,
                             .size = bench->ranks,
                             .local_rank = among ? among->local_rank : rank,
                             .local_size = among ? among->local_ranks : bench->ranks,
                             .store = store,
                             .instance = instance,
                             .timeout = bench->timeout,
                             .dead_after = bench->timeout};
    snprintf(instance, sizeof instance, "comm/bench/%d", among ? among->runs : 0);
    int32_t code = bench->memory_device ? hd__bench_device_open(&b, &world) : HD_OK;
    if (code == HD_OK)
        code = hd__comm_open(&bench->component->ops.comm, hd__store_host_table(), bench->settings, &world, &transport,
                             err);
    struct hd__bench_intra in = {0};
    if (code == HD_OK && bench->intra)
        code = hd__bench_open_hierarchical(bench, &world, &in, &transport, err);
    if (code != HD_OK) {
        hd__store_fail(store, code, err->message);
        add_launcher(bench, code, err);
        hd__bench_device_close(&b);
        free(in.ranks);
        return code;
    }
    b.ops = &transport.ops;
    b.comm = transport.comm;
    hd__store_liveness_notify(hd__store_liveness(store), on_peer_failure, &transport);
    code = open_buffers(&b);
    if (code == HD_OK)
        code = add_launcher(bench, make_groups(&b), err);
    if (code == HD_OK && bench->device)
        code = hd__bench_compute_open(&b);
    for (uint32_t k = 0; k < bench->n_ops && code == HD_OK; k++) {
        if (bench->ops[k] == HD__BENCH_BARRIER) {
            code = bench_size(&b, HD__BENCH_BARRIER, 0);
            continue;
        }
        for (double bytes = (double)bench->first; bytes <= (double)bench->last && !code; bytes *= bench->factor)
            code = bench_size(&b, bench->ops[k], (uint64_t)bytes);
    }
    hd__bench_compute_close(&b);
    if (code != HD_OK)
        hd__store_fail(store, code, err->message);
    hd__store_liveness_notify(hd__store_liveness(store), NULL, NULL);
    hd__comm_close(&transport);
    hd__bench_device_close(&b);
    free(b.plain);
    free(in.ranks);
    return code;
}
