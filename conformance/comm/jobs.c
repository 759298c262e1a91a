#include "conformance/comm/jobs.h"

#include <stdlib.h>

const uint32_t all_dtypes[6] = {HD_F32, HD_BF16, HD_F16, HD_F64, HD_I32, HD_U8};
static uint64_t next_seed = 1;

int buffers_open(struct rank *rank, struct buffers *b)
{
    struct hd_error err = HD_ERROR_INIT;
    uint8_t *arena = NULL;
    b->send[0] = rank_memory(rank, LARGEST);
    b->recv[0] = rank_memory(rank, LARGEST);
    EXPECT(b->send[0] && b->recv[0], "memory");
    if (rank->ops->memory) {
        EXPECT(rank->ops->memory(rank->comm, 2 * LARGEST, (void **)&arena, &err) == HD_OK, "%s", err.message);
        EXPECT(((uintptr_t)arena & 4095) == 0, "arena at %p", (void *)arena);
        EXPECT(!arena[0] && !memcmp(arena, arena + 1, 2 * LARGEST - 1), "arena is not zeroed");
    }
    b->send[1] = arena ? arena : b->send[0];
    b->recv[1] = arena ? arena + LARGEST : b->recv[0];
    return 0;
}

int32_t finish(struct rank *rank, hd_request request, struct hd_error *err)
{
    double deadline = hd__now() + rank->timeout + 5;
    int32_t done = 0, code;
    if (rank->ops->wait) {
        code = rank->ops->wait(rank->comm, request, deadline, err);
        return code == HD_OK ? settle(rank, deadline, err) : code;
    }
    while (!done) {
        if ((code = rank->ops->test(rank->comm, request, &done, err)) != HD_OK)
            return code;
        rank->ops->progress(rank->comm, err);
    }
    return settle(rank, deadline, err);
}

int32_t attempt(struct rank *rank, hd_request request, int32_t *done, struct hd_error *err)
{
    int32_t code = rank->ops->test(rank->comm, request, done, err);
    return code == HD_OK && *done ? settle(rank, hd__now() + rank->timeout + 5, err) : code;
}

int is_refused(const struct job *j)
{
    int whole = j->dtype == HD_I32 || j->dtype == HD_U8;
    return transport_narrow && coll_reduces(j->coll) && j->redop == HD_AVG && (whole || (j->n & (j->n - 1)));
}

int coll_reduces(uint32_t coll)
{
    return coll == HD_COLL_ALL_REDUCE || coll == HD_COLL_REDUCE_SCATTER || coll == HD_COLL_REDUCE;
}

int coll_is_rooted(uint32_t coll)
{
    return coll == HD_COLL_BROADCAST || coll == HD_COLL_REDUCE;
}

int sums_in_order(const struct rank *rank, const struct job *j)
{
    int rounds = j->dtype != HD_I32 && j->dtype != HD_U8 && j->redop != HD_MAX && coll_reduces(j->coll);
    return !rounds || !(rank->ops->caps & HD_COMM_ANY_ORDER);
}

uint64_t job_send_count(const struct job *j)
{
    return j->coll == HD_COLL_REDUCE_SCATTER || j->coll == HD_COLL_ALL_TO_ALL ? j->count * (uint64_t)j->n : j->count;
}

uint64_t job_recv_count(const struct job *j)
{
    if (j->coll == HD_COLL_REDUCE && j->me != j->root)
        return 0;
    return j->coll == HD_COLL_ALL_GATHER || j->coll == HD_COLL_ALL_TO_ALL ? j->count * (uint64_t)j->n : j->count;
}

int job_start(struct rank *rank, struct hd_comm_group *group, struct job *j, uint8_t *send, uint8_t *recv)
{
    size_t esize = hd_dtype_size(j->dtype);
    struct hd_error err = HD_ERROR_INIT;
    uint64_t ns = job_send_count(j), nr = job_recv_count(j);
    if (!sums_in_order(rank, j))
        j->seed |= VALUES_WHOLE;
    send += GUARD;
    recv += GUARD;
    if (j->in_place) {
        recv = send;
        if (j->coll == HD_COLL_ALL_GATHER)
            send = recv + (uint64_t)j->me * j->count * esize;
        if (j->coll == HD_COLL_REDUCE_SCATTER)
            recv = send + (uint64_t)j->me * j->count * esize;
    }
    memset(recv - GUARD, 0xa5, GUARD + nr * esize + GUARD);
    if (!j->in_place || j->coll != HD_COLL_ALL_GATHER)
        memset(send - GUARD, 0x5a, GUARD);
    values_fill(send, j->dtype, j->seed, j->me, 0, ns);
    j->send = send;
    j->recv = recv;
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = j->coll,
                                .dtype = j->dtype,
                                .redop = j->redop,
                                .root = j->root,
                                .send = send,
                                .recv = nr || j->coll != HD_COLL_REDUCE ? recv : NULL,
                                .count = j->count,
                                .tag = j->seed & INT32_MAX};
    if (is_refused(j)) {
        EXPECT(rank->ops->collective(group, &call, &j->request, &err) == HD_E_UNSUPPORTED, "%s", err.message);
        j->redop = call.redop = HD_SUM;
    }
    EXPECT(rank->ops->collective(group, &call, &j->request, &err) == HD_OK, "%s", err.message);
    return 0;
}

int job_check(struct rank *rank, const struct job *j)
{
    size_t esize = hd_dtype_size(j->dtype);
    struct hd_comm_call call = {
        .coll = j->coll, .dtype = j->dtype, .redop = j->redop, .root = j->root, .count = j->count};
    uint64_t nr = job_recv_count(j), at = nr ? values_wrong(j->recv, &call, j->seed, j->n, j->me) : 0;
    EXPECT(at == nr, "coll %u %s redop %u count %llu n %d in place %d memory %d seed %llx: element %llu differs",
           j->coll, hd_dtype_name(j->dtype), j->redop, (unsigned long long)j->count, j->n, j->in_place, j->memory,
           (unsigned long long)j->seed, (unsigned long long)at);
    if (j->in_place)
        return 0;
    for (int i = 0; i < GUARD; i++)
        EXPECT(j->recv[-1 - i] == 0xa5 && j->recv[nr * esize + (size_t)i] == 0xa5,
               "coll %u %s count %llu memory %d: wrote outside its buffer", j->coll, hd_dtype_name(j->dtype),
               (unsigned long long)j->count, j->memory);
    EXPECT(values_differ(j->send, j->dtype, j->seed, j->me, 0, job_send_count(j)) == job_send_count(j),
           "coll %u changed its input", j->coll);
    return 0;
}

int job_run(struct rank *rank, struct hd_comm_group *group, struct buffers *b, struct job *j, size_t skew)
{
    struct hd_error err = HD_ERROR_INIT;
    int s = j->memory == MIXED ? rank->rank & 1 : j->memory, r = j->memory == MIXED ? rank->rank >> 1 & 1 : j->memory;
    j->seed = (j->seed & VALUES_KIND) | next_seed++;
    if (job_start(rank, group, j, b->send[s] + skew, b->recv[r] + skew))
        return 1;
    EXPECT(finish(rank, j->request, &err) == HD_OK, "%s", err.message);
    return job_check(rank, j);
}
