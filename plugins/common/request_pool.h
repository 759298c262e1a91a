/* Request pool of a transport: records behind numbers, reused.
 *
 * A number is a record's index and a generation, so that one that was completed is not taken for the next in its place.
 * Records are made in blocks and never move. A record's type begins with a struct rq_record; what else it has stays as
 * it was left. Not thread-safe. */
#ifndef HD_COMMON_REQUEST_POOL_H
#define HD_COMMON_REQUEST_POOL_H

#include <sched.h>
#include <string.h>
#include <time.h>

#include "heddle/comm.h"
#include "heddle/host.h"

enum { RQ_BLOCK = 64 };

struct rq_record {
    struct rq_record *next_free;
    uint32_t index, generation;
    int32_t used, reserved;
};

struct rq_pool {
    const struct hd_host *host;
    char **block;
    struct rq_record *free;
    size_t bytes;     /* of a record */
    uint32_t n, most; /* records that there are, and may be: 0 is without limit */
};

static inline void rq_init(struct rq_pool *pool, const struct hd_host *host, size_t bytes, uint32_t most)
{
    *pool = (struct rq_pool){.host = host, .bytes = bytes, .most = most};
}

/* Record `index`, used or not. */
static inline void *rq_at(const struct rq_pool *pool, uint32_t index)
{
    return pool->block[index / RQ_BLOCK] + index % RQ_BLOCK * pool->bytes;
}

static inline int rq_more(struct rq_pool *pool)
{
    uint32_t n_blocks = pool->n / RQ_BLOCK;
    char **block, *records;
    if (pool->most && pool->n + RQ_BLOCK > pool->most)
        return 0;
    block = pool->host->alloc((n_blocks + 1) * sizeof *block);
    records = pool->host->alloc(RQ_BLOCK * pool->bytes);
    if (!block || !records) {
        pool->host->free(block);
        pool->host->free(records);
        return 0;
    }
    if (n_blocks)
        memcpy(block, pool->block, n_blocks * sizeof *block);
    pool->host->free(pool->block);
    pool->block = block;
    block[n_blocks] = records;
    for (uint32_t i = RQ_BLOCK; i-- > 0;) {
        struct rq_record *one = rq_at(pool, pool->n + i);
        *one = (struct rq_record){.index = pool->n + i, .generation = 1, .next_free = pool->free};
        pool->free = one;
    }
    pool->n += RQ_BLOCK;
    return 1;
}

/* A record that is free, or a new one, zeroed. NULL: no memory, or too many. */
static inline void *rq_take(struct rq_pool *pool)
{
    struct rq_record *one = pool->free;
    if (__builtin_expect(!one, 0)) {
        if (!rq_more(pool))
            return NULL;
        one = pool->free;
    }
    pool->free = one->next_free;
    one->used = 1;
    return one;
}

/* The record's number is unknown from now on. */
static inline void rq_give(struct rq_pool *pool, struct rq_record *one)
{
    one->used = 0;
    one->generation++;
    one->next_free = pool->free;
    pool->free = one;
}

static inline hd_request rq_number(const struct rq_record *one)
{
    return (uint64_t)one->generation << 32 | one->index;
}

/* NULL and HD_E_INVALID: the number is unknown. `transport` is what the message begins with. */
static inline void *rq_find(const struct rq_pool *pool, hd_request number, const char *transport, struct hd_error *err)
{
    uint32_t index = (uint32_t)number;
    struct rq_record *one = index < pool->n ? rq_at(pool, index) : NULL;
    if (one && one->used && one->generation == (uint32_t)(number >> 32))
        return one;
    hd_fail(err, HD_E_INVALID, "%s: request %llx is unknown, or was completed before", transport,
            (unsigned long long)number);
    return NULL;
}

/* The records themselves, not what they own. */
static inline void rq_finish(struct rq_pool *pool)
{
    for (uint32_t n = 0; n < pool->n; n += RQ_BLOCK)
        pool->host->free(pool->block[n / RQ_BLOCK]);
    pool->host->free(pool->block);
}

/* Between looks at what moves by itself: yields, and naps in the end. Linux puts a thread that yields for seconds so
 * far behind that it, and all that it waits for, may stand still for a minute. */
static inline void rq_relax(uint32_t idle)
{
    struct timespec nap = {.tv_nsec = 50000};
    if (idle > 4000)
        nanosleep(&nap, NULL);
    else
        sched_yield();
}

#endif
