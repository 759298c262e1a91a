#include "service/train/save/store_gather.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHUNK_BYTES 60000                                /* bytes of one value in the rendezvous store */
#define GATHER_KEY "%s/%" PRIu64 "/%" PRIu64 "/%" PRId32 /* name, number of the gather, first byte, rank or ALL */
#define SLOWEST_DISK 20e6 /* bytes a second; one that is slower counts as one that hangs */
#define PATIENCE 4.0      /* seconds beyond that */

enum { ALL = -1 };
enum operation { PUT, GET, REMOVE };

static int32_t each_chunk(const struct hd__store_gather *g, enum operation what, uint64_t number, int32_t rank,
                          char *data, uint64_t bytes, struct hd_error *err)
{
    struct hd_store *store = g->session->store;
    double patience = g->patience > 0 ? g->patience : g->session->compiled->job->comm_timeout;
    int32_t rc = HD_OK;
    patience += rank == ALL; /* the first rank gives up first, and names who is late */
    char key[96];
    for (uint64_t at = 0; at < bytes && !rc; at += CHUNK_BYTES) {
        size_t n = HD__MIN(CHUNK_BYTES, bytes - at);
        snprintf(key, sizeof key, GATHER_KEY, g->name, number, at, rank);
        rc = what == PUT   ? hd__store_put(store, key, data + at, n, err)
             : what == GET ? hd__store_get(store, key, data + at, &n, hd__now() + patience, err)
                           : hd__store_remove(store, key, err);
    }
    return rc;
}

/* The first rank collects what all have put, and puts one result, with new keys each time, so that requests grow as the
 * ranks do, not as their square. A rank that has put its part has read the result before: then that goes. A rank that
 * has read the result knows that its own part was read. `fold` NULL: the result is all parts. */
static int32_t exchange(struct hd__store_gather *g, const void *mine, uint64_t bytes,
                        void (*fold)(void *sum, const void *other), void *result, struct hd_error *err)
{
    int32_t me = g->session->env->rank, leads = me == (g->ranks ? g->ranks[0] : 0);
    uint64_t number = g->exchanges++, total = fold ? bytes : bytes * (uint64_t)g->n;
    if (atomic_load(&g->ended))
        return hd_fail(err, HD_E_CANCELLED, "the job has ended");
    char *part = fold ? hd__alloc(bytes) : NULL;
    int32_t rc = each_chunk(g, PUT, number, me, (char *)mine, bytes, err);
    for (int32_t r = 0; r < g->n && leads && !rc; r++) {
        char *to = fold ? part : (char *)result + bytes * (uint64_t)r;
        rc = each_chunk(g, GET, number, g->ranks ? g->ranks[r] : r, to, bytes, err);
        if (fold && !rc && r)
            fold(result, part);
    }
    free(part);
    if (!rc && leads && number)
        rc = each_chunk(g, REMOVE, number - 1, ALL, NULL, g->last_bytes, err);
    rc = rc ? rc : each_chunk(g, leads ? PUT : GET, number, ALL, result, total, err);
    g->last_bytes = total;
    return rc ? rc : each_chunk(g, REMOVE, number, me, NULL, bytes, err);
}

static int32_t all_gather(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *err)
{
    return exchange(user, mine, bytes, NULL, all, err);
}

static int32_t all_reduce(void *user, void *mine, uint64_t bytes, void (*fold)(void *sum, const void *other),
                          struct hd_error *err)
{
    return exchange(user, mine, bytes, fold, mine, err);
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
    struct hd__ckpt_peers peers = {.rank = g->session->env->rank,
                                   .ranks = g->n,
                                   .all_gather = all_gather,
                                   .all_reduce = all_reduce,
                                   .busy = busy,
                                   .user = g};
    for (int32_t i = 0; g->ranks && i < g->n; i++)
        if (g->ranks[i] == g->session->env->rank)
            peers.rank = i;
    return peers;
}
