#include "runtime/comm/request_pool.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

void *hd__requests_take(struct hd__requests *all, size_t bytes)
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

void hd__requests_drop(struct hd__request *one)
{
    one->used = 0;
    one->generation++;
}

void hd__requests_give(struct hd__requests *all, struct hd__request *one)
{
    hd__requests_drop(one);
    one->next_free = all->free;
    all->free = one;
}

void *hd__requests_find(const struct hd__requests *all, hd_request request, struct hd_error *err)
{
    uint32_t index = (uint32_t)request;
    struct hd__request *one = index < all->at.count ? all->at.at[index] : NULL;
    if (one && one->used && one->generation == (uint32_t)(request >> 32))
        return one;
    hd_fail(err, HD_E_INVALID, "request %llx is unknown, or was completed before", (unsigned long long)request);
    return NULL;
}

void hd__requests_free(struct hd__requests *all)
{
    for (uint32_t i = 0; i < all->at.count; i++)
        free(all->at.at[i]);
    hd__free_array(&all->at);
    all->free = NULL;
}

void hd__relax(uint32_t idle)
{
    struct timespec nap = {.tv_nsec = 50000};
    if (idle > 2000)
        nanosleep(&nap, NULL);
    else if (idle > 64)
        sched_yield();
}
