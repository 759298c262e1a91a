/* The other collectives of saving ranks by way of their all-gather. */
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

static inline int32_t gather_by_gather(const struct hd__ckpt_peers *peers, const void *mine, uint64_t bytes,
                                       void (*take)(void *to, const void *part, uint64_t bytes), void *to, void *answer,
                                       uint64_t answer_bytes, struct hd_error *err)
{
    uint64_t *lengths = hd__alloc(sizeof bytes * (uint64_t)peers->ranks), most = answer_bytes;
    int32_t rc = peers->all_gather(peers->user, &bytes, sizeof bytes, lengths, err);
    for (int32_t r = 0; r < peers->ranks && !rc; r++)
        most = HD__MAX(most, lengths[r]);
    char *part = hd__alloc(most), *all = hd__alloc(most * (uint64_t)peers->ranks);
    if (bytes)
        memcpy(part, mine, bytes);
    rc = rc ? rc : peers->all_gather(peers->user, part, most, all, err);
    for (int32_t r = 0; r < peers->ranks && !peers->rank && !rc; r++) {
        memcpy(part, all + most * (uint64_t)r, lengths[r]);
        take(to, part, lengths[r]);
    }
    memcpy(part, answer, answer_bytes);
    rc = rc ? rc : peers->all_gather(peers->user, part, most, all, err);
    if (!rc)
        memcpy(answer, all, answer_bytes);
    free(lengths);
    free(part);
    free(all);
    return rc;
}

#endif
