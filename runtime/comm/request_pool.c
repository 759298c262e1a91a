#include "runtime/comm/request_pool.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

void *hd__comm_request_take(struct hd__request_pool *all, size_t bytes)
{
    struct hd__request *one = all->free;
    if (one) {
        all->free = one->next_free;
    } else {
        one = hd__alloc(bytes);
        one->index = all->at.count;
        one->generation = 1;
        hd__push(&all->at, (void *)one);
    }
    one->used = 1;
    return one;
}

void hd__comm_request_retire(struct hd__request *one)
{
    one->used = 0;
    one->generation++;
}

void hd__comm_request_give_back(struct hd__request_pool *all, struct hd__request *one)
{
    hd__comm_request_retire(one);
    one->next_free = all->free;
    all->free = one;
}

void *hd__comm_request_find(const struct hd__request_pool *all, hd_request request, struct hd_error *err)
{
    uint32_t index = (uint32_t)request;
    struct hd__request *one = index < all->at.count ? all->at.at[index] : NULL;
    if (one && one->used && one->generation == (uint32_t)(request >> 32))
        return one;
    hd_fail(err, HD_E_INVALID, "request %llx is unknown, or was completed before", (unsigned long long)request);
    return NULL;
}

void hd__comm_requests_free(struct hd__request_pool *all)
{
    for (uint32_t i = 0; i < all->at.count; i++)
        free(all->at.at[i]);
    hd__free_array(&all->at);
    all->free = NULL;
}

void hd__comm_backoff(uint32_t idle)
{
    struct timespec nap = {.tv_nsec = 50000};
    if (idle > 2000)
        nanosleep(&nap, NULL);
    else if (idle > 64)
        sched_yield();
}
