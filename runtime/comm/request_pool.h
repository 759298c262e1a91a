/* runtime/comm/request_pool: pool of the requests of runtime/comm/wrapper. A request number is the index of its
 * record and a generation, so that a completed request is not mistaken for the next one in its record. Not
 * thread-safe. (Plug-ins have their own in plugins/common.)
 *
 * A record starts with a struct hd__request; its other fields are kept when it is reused. */
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

/* A free record, or a new zeroed one of `bytes`. Never NULL. */
void *hd__comm_request_take(struct hd__request_pool *all, size_t bytes);
/* Invalidate the number of a record; retire: without reusing the record. */
void hd__comm_request_give_back(struct hd__request_pool *all, struct hd__request *one);
void hd__comm_request_retire(struct hd__request *one);
/* NULL and an error where the number is unknown. */
void *hd__comm_request_find(const struct hd__request_pool *all, hd_request request, struct hd_error *err);
/* Frees the records, not what they own. */
void hd__comm_requests_free(struct hd__request_pool *all);

static inline hd_request hd__comm_request_number(const struct hd__request *one)
{
    return (uint64_t)one->generation << 32 | one->index;
}

/* Back-off of a wait loop after `idle` iterations without progress: spins, yields (ranks may share a core), then
 * sleeps. */
void hd__comm_backoff(uint32_t idle);

#endif
