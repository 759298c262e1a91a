#include "service/train/save/store_gather.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHUNK_BYTES 60000                                /* bytes of one value in the rendezvous store */
#define GATHER_KEY "%s/%" PRIu64 "/%" PRIu64 "/%" PRId32 /* name, number of the gather, first byte, rank or ALL */
#define SLOWEST_DISK 20e6 /* bytes a second; one that is slower counts as one that hangs */
#define PATIENCE 4.0      /* seconds beyond that */

enum { ALL = -1 };
enum operation { PUT, GET, REMOVE };

/* A rank that is late is named, not its key. */
static int32_t get_chunk(const struct hd__store_gather *g, const char *key, int32_t rank, char *data, size_t *n,
                         struct hd_error *err)
{
    double patience = g->patience > 0 ? g->patience : g->session->compiled->job->comm_timeout, began = hd__now();
    /* the first rank gives up first, and names who is late */
    double until = HD__MAX(began + patience, g->busy_until) + (rank == ALL);
    int32_t rc = hd__store_get(g->session->store, key, data, n, until, err);
    if (rc != HD_E_TIMEOUT)
        return rc;
    rank = rank != ALL ? rank : g->ranks ? g->ranks[0] : 0;
    rc = hd_fail(err, rc, "no word of rank %d for %.3g s, in what ranks that save tell each other (%s)", rank,
                 hd__now() - began, key);
    if (err)
        err->peer = rank;
    return rc;
}

static int32_t one_chunk(const struct hd__store_gather *g, enum operation what, uint64_t number, uint64_t at,
                         int32_t rank, char *data, size_t *n, struct hd_error *err)
{
    struct hd_store *store = g->session->store;
    char key[96];
    snprintf(key, sizeof key, GATHER_KEY, g->name, number, at, rank);
    return what == PUT   ? hd__store_put(store, key, data, *n, err)
           : what == GET ? get_chunk(g, key, rank, data, n, err)
                         : hd__store_remove(store, key, err);
}

/* The last chunk is the one that is not full, if only by being empty: whoever reads need not know the length. */
static int32_t each_chunk(const struct hd__store_gather *g, enum operation what, uint64_t number, int32_t rank,
                          char *data, uint64_t bytes, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t at = 0; at <= bytes && !rc; at += CHUNK_BYTES) {
        size_t n = HD__MIN(CHUNK_BYTES, bytes - at);
        rc = one_chunk(g, what, number, at, rank, data ? data + at : NULL, &n, err);
    }
    return rc;
}

/* The part of a rank. */
struct part {
    char *at;
    uint64_t bytes, room;
};

static int32_t get_part(const struct hd__store_gather *g, uint64_t number, int32_t rank, struct part *part,
                        struct hd_error *err)
{
    size_t n = CHUNK_BYTES;
    int32_t rc = HD_OK;
    for (part->bytes = 0; n == CHUNK_BYTES && !rc; part->bytes += n) {
        if (part->room < part->bytes + CHUNK_BYTES)
            part->at = hd__realloc(part->at, part->room = 2 * part->bytes + CHUNK_BYTES);
        rc = one_chunk(g, GET, number, part->bytes, rank, part->at + part->bytes, &n, err);
    }
    return rc;
}

/* The first rank collects what all have put, and puts one answer, with new keys each time, so that requests grow as the
 * ranks do, not as their square. A rank that has put its part has read the answer before: then that goes. A rank that
 * has read the answer knows that its own part was read. */
static int32_t gather(void *user, const void *mine, uint64_t bytes,
                      void (*take)(void *to, const void *part, uint64_t bytes), void *to, void *answer,
                      uint64_t answer_bytes, struct hd_error *err)
{
    struct hd__store_gather *g = user;
    int32_t me = g->session->env->rank, leads = me == (g->ranks ? g->ranks[0] : 0);
    uint64_t number = g->exchanges++;
    struct part part = {0};
    if (atomic_load(&g->ended))
        return hd_fail(err, HD_E_CANCELLED, "the job has ended");
    int32_t rc = each_chunk(g, PUT, number, me, (char *)mine, bytes, err);
    for (int32_t r = 0; r < g->n && leads && !rc; r++) {
        rc = get_part(g, number, g->ranks ? g->ranks[r] : r, &part, err);
        if (!rc)
            take(to, part.at, part.bytes);
    }
    free(part.at);
    if (!rc && leads && number)
        rc = each_chunk(g, REMOVE, number - 1, ALL, NULL, g->last_bytes, err);
    rc = rc ? rc : each_chunk(g, leads ? PUT : GET, number, ALL, answer, answer_bytes, err);
    g->last_bytes = answer_bytes;
    return rc ? rc : each_chunk(g, REMOVE, number, me, NULL, bytes, err);
}

/* The end of a gather's result, which is not filled yet. */
struct rest {
    char *at;
    uint64_t bytes;
};

static void append(void *to, const void *part, uint64_t bytes)
{
    struct rest *rest = to;
    uint64_t n = HD__MIN(bytes, rest->bytes);
    memcpy(rest->at, part, n);
    rest->at += n;
    rest->bytes -= n;
}

static int32_t all_gather(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *err)
{
    uint64_t total = bytes * (uint64_t)((struct hd__store_gather *)user)->n;
    return gather(user, mine, bytes, append, &(struct rest){all, total}, all, total, err);
}

struct sum {
    void *sum;
    void (*fold)(void *sum, const void *other);
    int others; /* the first part is the first rank's own, which it has */
};

static void add(void *to, const void *part, uint64_t bytes)
{
    struct sum *s = to;
    (void)bytes;
    if (s->others++)
        s->fold(s->sum, part);
}

static int32_t all_reduce(void *user, void *mine, uint64_t bytes, void (*fold)(void *sum, const void *other),
                          struct hd_error *err)
{
    return gather(user, mine, bytes, add, &(struct sum){mine, fold, 0}, mine, bytes, err);
}

double hd__store_gather_seconds(uint64_t bytes)
{
    return PATIENCE + (double)bytes / SLOWEST_DISK;
}

/* The launcher of this machine's ranks, and the process that serves the rendezvous: that may have no rank that is
 * left. */
void hd__store_gather_busy(struct hd__store_gather *g, uint64_t bytes)
{
    struct hd__launch_progress *p = g->session->env->progress;
    double seconds = hd__store_gather_seconds(bytes), until = hd__now() + seconds;
    if (atomic_load(&g->ended)) /* another, of those that are left, has said it */
        return;
    g->busy_until = until;
    if (p)
        __atomic_store(&p->busy_until, &until, __ATOMIC_RELAXED);
    if (g->session->store)
        hd__store_busy(g->session->store, seconds);
}

static void busy(void *user, uint64_t bytes)
{
    hd__store_gather_busy(user, bytes);
}

/* Each rank of a machine tells its launcher: one of them may be all that is left there. */
static void saved(void *user, uint64_t step)
{
    struct hd__store_gather *g = user;
    atomic_store(&g->committed, (int64_t)step);
    hd__launch_note_saved(g->session->env->progress, (int64_t)step);
}

struct hd__ckpt_peers hd__store_gather_peers(struct hd__store_gather *g)
{
    struct hd__ckpt_peers peers = {.rank = g->session->env->rank,
                                   .ranks = g->n,
                                   .gather = gather,
                                   .all_gather = all_gather,
                                   .all_reduce = all_reduce,
                                   .busy = busy,
                                   .saved = g->ranks ? NULL : saved, /* what is left is read back first */
                                   .user = g};
    for (int32_t i = 0; g->ranks && i < g->n; i++)
        if (g->ranks[i] == g->session->env->rank)
            peers.rank = i;
    return peers;
}
