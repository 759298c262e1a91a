#include "service/train/save/store_gather.h"

#include <inttypes.h>

#define CHUNK_BYTES 60000                                /* bytes of one value in the rendezvous store */
#define GATHER_KEY "%s/%" PRIu64 "/%" PRIu64 "/%" PRId32 /* name, number of the gather, first byte, rank */
#define SLOWEST_DISK 20e6 /* bytes a second; one that is slower counts as one that hangs */
#define PATIENCE 4.0      /* seconds beyond that */

/* All-gather through the store, with new keys each time. A rank that has written its keys of this gather has read
 * all keys of the previous one: after reading everyone's, a rank deletes its keys of the previous gather. */
static int32_t all_gather(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *err)
{
    struct hd__store_gather *g = user;
    struct hd_store *store = g->session->store;
    int32_t me = g->session->env->rank, rc = HD_OK;
    double deadline = hd__now() + g->session->compiled->job->comm_timeout;
    uint64_t number = g->exchanges++;
    char key[96];
    if (atomic_load(&g->ended))
        return hd_fail(err, HD_E_CANCELLED, "the job has ended");
    for (uint64_t at = 0; at < bytes && !rc; at += CHUNK_BYTES) {
        snprintf(key, sizeof key, GATHER_KEY, g->name, number, at, me);
        rc = hd__store_put(store, key, (const char *)mine + at, HD__MIN(CHUNK_BYTES, bytes - at), err);
    }
    for (int32_t r = 0; r < g->n; r++)
        for (uint64_t at = 0; at < bytes && !rc; at += CHUNK_BYTES) {
            size_t room = HD__MIN(CHUNK_BYTES, bytes - at);
            snprintf(key, sizeof key, GATHER_KEY, g->name, number, at, g->ranks ? g->ranks[r] : r);
            rc = hd__store_get(store, key, (char *)all + (uint64_t)r * bytes + at, &room, deadline, err);
        }
    if (!bytes) /* no data is no proof that the others have read the previous keys */
        return HD_OK;
    for (uint64_t at = 0; at < g->last_bytes && !rc; at += CHUNK_BYTES) {
        snprintf(key, sizeof key, GATHER_KEY, g->name, g->last_exchange, at, me);
        rc = hd__store_remove(store, key, err);
    }
    g->last_exchange = number;
    g->last_bytes = bytes;
    return rc;
}

static void busy(void *user, uint64_t bytes)
{
    const struct hd__store_gather *g = user;
    struct hd__launch_progress *p = g->session->env->progress;
    double until = hd__now() + PATIENCE + (double)bytes / SLOWEST_DISK, before;
    if (!p)
        return;
    __atomic_load(&p->busy_until, &before, __ATOMIC_RELAXED);
    if (until > before)
        __atomic_store(&p->busy_until, &until, __ATOMIC_RELAXED);
}

struct hd__ckpt_peers hd__store_gather_peers(struct hd__store_gather *g)
{
    struct hd__ckpt_peers peers = {
        .rank = g->session->env->rank, .ranks = g->n, .all_gather = all_gather, .busy = busy, .user = g};
    for (int32_t i = 0; g->ranks && i < g->n; i++)
        if (g->ranks[i] == g->session->env->rank)
            peers.rank = i;
    return peers;
}
