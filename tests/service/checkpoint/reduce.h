/* An all-reduce of saving ranks by way of their all-gather. */
#ifndef HD_TESTS_SERVICE_CHECKPOINT_REDUCE_H
#define HD_TESTS_SERVICE_CHECKPOINT_REDUCE_H

#include <stdlib.h>
#include <string.h>

#include "service/checkpoint/checkpoint.h"

static inline int32_t reduce_by_gather(const struct hd__ckpt_peers *peers, void *mine, uint64_t bytes,
                                       void (*fold)(void *sum, const void *other), struct hd_error *err)
{
    char *all = hd__alloc(bytes * (uint64_t)peers->ranks);
    int32_t rc = peers->all_gather(peers->user, mine, bytes, all, err);
    for (int32_t r = 1; r < peers->ranks && !rc; r++)
        fold(all, all + bytes * (uint64_t)r);
    if (!rc)
        memcpy(mine, all, bytes);
    free(all);
    return rc;
}

#endif
