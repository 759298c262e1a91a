/* runtime/comm/request_pool: the requests of the transports that the core makes of others (runtime/comm/wrapper): records
 * behind numbers, used again and again. A number is an index and a generation, so that one that was completed is not
 * taken for the next in its place. Not thread-safe. (Plug-ins see nothing of the core: theirs are in plugins/common.)
 *
 * A record begins with a struct hd__request; what else it has stays as it was left. */
#ifndef HD_RUNTIME_COMM_REQUEST_POOL_H
#define HD_RUNTIME_COMM_REQUEST_POOL_H

#include "core/base/base.h"
#include "heddle/comm.h"

struct hd__request {
    struct hd__request *next_free;
    uint32_t index, generation;
    int32_t used, reserved;
};

struct hd__request_pool {
    HD__ARRAY(void *) at;
    struct hd__request *free;
};

/* A record that is free, or a new one of `bytes`, zeroed. Never NULL. */
void *hd__comm_request_take(struct hd__request_pool *all, size_t bytes);
/* The record's number is unknown from now on; drop: and the record is never taken again. */
void hd__comm_request_give_back(struct hd__request_pool *all, struct hd__request *one);
void hd__comm_request_retire(struct hd__request *one);
/* NULL and an error where the number is unknown. */
void *hd__comm_request_find(const struct hd__request_pool *all, hd_request request, struct hd_error *err);
/* The records themselves, not what they own. */
void hd__comm_requests_free(struct hd__request_pool *all);

static inline hd_request hd__comm_request_number(const struct hd__request *one)
{
    return (uint64_t)one->generation << 32 | one->index;
}

/* The idle-th turn of a wait in which nothing moved: ranks that share a core wait for each other, so yield soon, and nap in
 * the end. */
void hd__comm_backoff(uint32_t idle);

#endif
