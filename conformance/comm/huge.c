#include "conformance/comm/huge.h"

#include <stdlib.h>

#include "conformance/comm/jobs.h"

uint64_t huge_bytes = 12 << 20;

/* Whole numbers that follow from the index by products and wrap: a sum over ranks is one too. */
static uint32_t huge_value(int64_t sum_of_ranks, int64_t n, uint64_t i)
{
    return (uint32_t)n * ((uint32_t)i * 2654435761u + (uint32_t)(i >> 32) * 40503u) + (uint32_t)sum_of_ranks * 97u;
}

/* Element i of my result. */
static uint32_t huge_expected(const struct rank *rank, uint32_t coll, uint64_t count, uint64_t i)
{
    int32_t n = rank->size, all = n * (n - 1) / 2;
    switch (coll) {
    case HD_COLL_ALL_GATHER:
        return huge_value((int64_t)(i / count), 1, i % count);
    case HD_COLL_ALL_TO_ALL:
        return huge_value((int64_t)(i / count), 1, (uint64_t)rank->rank * count + i % count);
    case HD_COLL_BROADCAST:
        return huge_value(n - 1, 1, i);
    case HD_COLL_REDUCE_SCATTER:
        return huge_value(all, n, (uint64_t)rank->rank * count + i);
    default:
        return huge_value(all, n, i);
    }
}

static int huge_one(struct rank *rank, struct hd_comm_group *group, uint32_t coll, uint8_t *send, uint8_t *recv)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    struct job j = {.coll = coll, .n = rank->size, .me = rank->rank, .root = rank->size - 1, .count = huge_bytes};
    int words =
        coll != HD_COLL_ALL_REDUCE && coll != HD_COLL_BROADCAST; /* those as bytes: the count is beyond 32 bits */
    j.count = (words ? huge_bytes / 4 : huge_bytes) /
              (coll < HD_COLL_ALL_GATHER || coll > HD_COLL_ALL_TO_ALL ? 1 : (uint64_t)j.n);
    for (uint64_t i = 0; i < job_send_count(&j); i++) {
        uint32_t v = huge_value(rank->rank, 1, i);
        if (words)
            ((uint32_t *)(void *)send)[i] = v;
        else
            send[i] = (uint8_t)v;
    }
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = coll,
                                .dtype = words ? HD_I32 : HD_U8,
                                .redop = HD_SUM,
                                .root = j.root,
                                .send = send,
                                .recv = recv,
                                .count = j.count,
                                .tag = coll};
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
    EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
    for (uint64_t i = 0; i < job_recv_count(&j); i++) {
        uint32_t want = huge_expected(rank, coll, j.count, i);
        uint32_t got = words ? ((uint32_t *)(void *)recv)[i] : recv[i];
        EXPECT(got == (words ? want : want & 255), "coll %u: element %llu of %llu", coll, (unsigned long long)i,
               (unsigned long long)j.count);
    }
    return 0;
}

static void fill(uint8_t *data, int32_t rank)
{
    for (uint64_t i = 0; i < huge_bytes; i++)
        data[i] = (uint8_t)huge_value(rank, 1, i);
}

/* A broadcast and a message, in one buffer: a rank needs little more than the bytes. */
int huge_in_place(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    hd_request request;
    int32_t last = rank->size - 1;
    uint8_t *data = malloc(huge_bytes);
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = HD_COLL_BROADCAST,
                                .dtype = HD_U8,
                                .root = last,
                                .send = data,
                                .recv = data,
                                .count = huge_bytes,
                                .tag = 1};
    EXPECT(data != NULL, "memory");
    if (world_group(rank, "world", &group))
        return 1;
    fill(data, rank->rank);
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
    EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
    for (uint64_t i = 0; i < huge_bytes; i++)
        EXPECT(data[i] == (uint8_t)huge_value(last, 1, i), "broadcast: element %llu", (unsigned long long)i);
    if (rank->rank == 0) {
        fill(data, 5);
        EXPECT(rank->ops->send(group, last, 0, data, huge_bytes, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
    } else if (rank->rank == last) {
        EXPECT(rank->ops->recv(group, 0, 0, data, huge_bytes, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
        for (uint64_t i = 0; i < huge_bytes; i++)
            EXPECT(data[i] == (uint8_t)huge_value(5, 1, i), "message: byte %llu", (unsigned long long)i);
    }
    free(data);
    return 0;
}

/* Whose sum it is lies in the one buffer of each rank; of a reduce at the last one. */
int huge_sums(struct rank *rank)
{
    static const uint32_t colls[] = {HD_COLL_ALL_REDUCE, HD_COLL_REDUCE};
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t n = rank->size, last = n - 1;
    uint8_t *data = rank_memory(rank, huge_bytes);
    EXPECT(data != NULL, "memory");
    if (world_group(rank, "world", &group))
        return 1;
    for (size_t k = 0; k < HD__COUNT(colls); k++) {
        struct hd_comm_call call = {.struct_size = sizeof call,
                                    .coll = colls[k],
                                    .dtype = HD_U8,
                                    .redop = HD_SUM,
                                    .root = last,
                                    .send = data,
                                    .recv = data,
                                    .count = huge_bytes,
                                    .tag = k + 1};
        hd_request request;
        fill(data, rank->rank);
        EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
        for (uint64_t i = 0; i < huge_bytes && (colls[k] == HD_COLL_ALL_REDUCE || rank->rank == last); i++)
            EXPECT(data[i] == (uint8_t)huge_value(n * (n - 1) / 2, n, i), "%s: element %llu", hd_coll_name(colls[k]),
                   (unsigned long long)i);
    }
    return 0;
}

int huge(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    hd_request in, out;
    uint8_t *send = rank_memory(rank, huge_bytes), *recv = rank_memory(rank, huge_bytes);
    EXPECT(send && recv, "memory");
    if (world_group(rank, "world", &group))
        return 1;
    for (uint32_t coll = HD_COLL_ALL_REDUCE; coll <= HD_COLL_REDUCE; coll++)
        if (huge_one(rank, group, coll, send, recv))
            return 1;
    int32_t n = rank->size, next = (rank->rank + 1) % n, last = (rank->rank + n - 1) % n;
    for (uint64_t i = 0; i < huge_bytes; i++)
        send[i] = (uint8_t)huge_value(rank->rank, 1, i);
    EXPECT(rank->ops->send(group, next, 0, send, huge_bytes, &out, &err) == HD_OK, "%s", err.message);
    EXPECT(rank->ops->recv(group, last, 0, recv, huge_bytes, &in, &err) == HD_OK, "%s", err.message);
    EXPECT(finish(rank, in, &err) == HD_OK && finish(rank, out, &err) == HD_OK, "%s", err.message);
    for (uint64_t i = 0; i < huge_bytes; i++)
        EXPECT(recv[i] == (uint8_t)huge_value(last, 1, i), "byte %llu of a message", (unsigned long long)i);
    return 0;
}
