/* Collectives of saving ranks through the rendezvous: what each gets, how many requests that takes, and what lies in
 * the store meanwhile. Calls of hd__store_get, put and remove come through the wrappers here. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/job/job.h"
#include "runtime/rendezvous/kv.h"
#include "runtime/rendezvous/store.h"
#include "service/train/save/store_gather.h"
#include "tests/suite.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hd__kv there; /* a copy of the server's table */
static uint64_t most;       /* bytes that were in it at a time */
static _Atomic int gets;

int32_t __real_hd__store_put(struct hd_store *store, const char *key, const void *value, size_t bytes,
                             struct hd_error *err);
int32_t __real_hd__store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                             struct hd_error *err);
int32_t __real_hd__store_remove(struct hd_store *store, const char *key, struct hd_error *err);
int32_t __wrap_hd__store_put(struct hd_store *store, const char *key, const void *value, size_t bytes,
                             struct hd_error *err);
int32_t __wrap_hd__store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                             struct hd_error *err);
int32_t __wrap_hd__store_remove(struct hd_store *store, const char *key, struct hd_error *err);

int32_t __wrap_hd__store_put(struct hd_store *store, const char *key, const void *value, size_t bytes,
                             struct hd_error *err)
{
    pthread_mutex_lock(&lock);
    int full = hd__store_kv_put(&there, key, strlen(key), value, bytes);
    most = HD__MAX(most, there.bytes);
    pthread_mutex_unlock(&lock);
    return full ? HD_E_NOMEM : __real_hd__store_put(store, key, value, bytes, err);
}

int32_t __wrap_hd__store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                             struct hd_error *err)
{
    gets++;
    return __real_hd__store_get(store, key, value, bytes, deadline, err);
}

int32_t __wrap_hd__store_remove(struct hd_store *store, const char *key, struct hd_error *err)
{
    int32_t rc = __real_hd__store_remove(store, key, err);
    pthread_mutex_lock(&lock);
    hd__store_kv_remove(&there, key, strlen(key));
    pthread_mutex_unlock(&lock);
    return rc;
}

enum { SIZE = 20, ROUNDS = 4, WORDS = 1000, CHUNKS = (SIZE * WORDS * 8 + 59999) / 60000 };

static struct hd__server *server;
static struct hd__server_options options = {.address = "127.0.0.1", .size = SIZE, .rank = -1, .dead_after = 60};
static int32_t some[SIZE / 2]; /* every other rank */
static _Atomic int entered[ROUNDS];

struct member {
    int32_t rank, part;
    int32_t rc;
    struct hd_error err;
    const char *wrong;
};

static uint64_t word(int32_t rank, int round, int i)
{
    return (uint64_t)rank * 1000003 + (uint64_t)round * 10007 + (uint64_t)i;
}

static void add(void *sum, const void *other)
{
    for (int i = 0; i < WORDS; i++)
        ((uint64_t *)sum)[i] = 3 * ((uint64_t *)sum)[i] + ((const uint64_t *)other)[i]; /* the order of ranks shows */
}

/* Bytes that a rank gives to the first: none, a chunk, more than one, and most of them little. */
static uint64_t length(int32_t rank)
{
    static const uint64_t lengths[] = {0, 60000, 8, 60008};
    return (size_t)rank < HD__COUNT(lengths) ? lengths[rank] : 16;
}

/* The first rank answers with the sum of what it got. */
struct taken {
    const struct hd__store_gather *g;
    uint64_t sum;
    int n;
    const char *wrong;
};

static void take(void *to, const void *part, uint64_t bytes)
{
    struct taken *t = to;
    int32_t rank = t->g->ranks ? t->g->ranks[t->n] : t->n;
    t->n++;
    if (bytes != length(rank))
        t->wrong = "a part has another length";
    for (uint64_t i = 0; i < bytes / 8; i++)
        t->sum += ((const uint64_t *)part)[i];
}

static const char *gather_to_first(struct hd__store_gather *g, struct member *m)
{
    struct hd__ckpt_peers peers = hd__store_gather_peers(g);
    struct taken t = {.g = g};
    uint64_t wanted = 0, bytes = length(m->rank), *mine = hd__alloc(bytes);
    for (int32_t r = 0; r < g->n; r++)
        wanted += (uint64_t)(r + 1) * (length(g->ranks ? g->ranks[r] : r) / 8);
    for (uint64_t i = 0; i < bytes / 8; i++)
        mine[i] = (uint64_t)peers.rank + 1;
    m->rc = peers.gather(peers.user, mine, bytes, take, &t, &t.sum, sizeof t.sum, &m->err);
    free(mine);
    return m->rc ? NULL : t.sum != wanted ? "the answer is not of what all gave" : t.wrong;
}

static void *gather(void *arg)
{
    struct member *m = arg;
    struct hd__store_options o = {
        .host = "127.0.0.1", .port = hd__server_port(server), .rank = m->rank, .size = SIZE, .dead_after = 60};
    struct hd__job job = {.comm_timeout = 60};
    struct hd__compiled compiled = {.job = &job};
    struct hd__launch_env env = {.rank = m->rank, .size = SIZE};
    struct hd__train_session session = {.compiled = &compiled, .env = &env};
    struct hd__store_gather g = {
        .session = &session, .name = "test", .ranks = m->part ? some : NULL, .n = m->part ? SIZE / 2 : SIZE};
    uint64_t mine[WORDS], *all = hd__alloc(sizeof mine * SIZE);
    memcpy(o.secret, options.secret, sizeof o.secret);
    m->rc = hd__store_connect(&o, hd__now() + 60, &session.store, &m->err);
    struct hd__ckpt_peers peers = hd__store_gather_peers(&g);
    for (int round = 0; round < ROUNDS && !m->rc; round++) {
        for (int i = 0; i < WORDS; i++)
            mine[i] = word(m->rank, round, i);
        entered[round]++;
        m->rc = peers.all_gather(peers.user, mine, sizeof mine, all, &m->err);
        if (entered[round] < g.n)
            m->wrong = "it was over before all had come";
        for (int32_t r = 0; r < g.n && !m->rc; r++)
            for (int i = 0; i < WORDS; i++)
                if (all[r * WORDS + i] != word(g.ranks ? g.ranks[r] : r, round, i))
                    m->wrong = "it is not what the others gave";
        m->rc = m->rc ? m->rc : peers.all_reduce(peers.user, mine, sizeof mine, add, &m->err);
        for (int32_t r = 1; r < g.n && !m->rc; r++)
            add(all, all + r * WORDS);
        if (!m->rc && memcmp(mine, all, sizeof mine) != 0)
            m->wrong = "it is not the sum of what the others gave";
        if (!m->rc && !m->wrong)
            m->wrong = gather_to_first(&g, m);
    }
    hd__store_close(session.store);
    free(all);
    return NULL;
}

/* _i: 1: of half of the ranks */
START_TEST(all_gather)
{
    struct member m[SIZE];
    pthread_t thread[SIZE];
    struct hd_error err = HD_ERROR_INIT;
    int n = _i ? SIZE / 2 : SIZE;
    hd__store_secret_generate(options.secret);
    ck_assert_msg(!hd__server_open(&options, &server, &err), "%s", err.message);
    for (int i = 0; i < n; i++) {
        some[i % (SIZE / 2)] = 2 * (i % (SIZE / 2)) + 1;
        m[i] = (struct member){.rank = _i ? 2 * i + 1 : i, .part = _i, .err = HD_ERROR_INIT};
    }
    for (int i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, gather, &m[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_msg(!m[i].rc, "rank %d: %s", m[i].rank, m[i].err.message);
        ck_assert_msg(!m[i].wrong, "rank %d: %s", m[i].rank, m[i].wrong);
    }
    hd__server_close(server);
    ck_assert_int_le(gets, ROUNDS * n * (3 + CHUNKS + 3)); /* not n * n; a reduction reads one part */
    ck_assert_uint_le(most, (uint64_t)(2 * n * (WORDS * 8 + 20) + CHUNKS * 20 + 2 * 60100));
    ck_assert_uint_le(there.count, CHUNKS); /* of the last gather, once */
    hd__store_kv_free(&there);
}
END_TEST

/* ---- a rank that writes for long */

static _Atomic int waits, gave_up;

/* Rank 0 writes while the other, which has nothing to write, waits for it beyond its patience. `part`: that was told
 * how much there is to write. */
static void *save(void *arg)
{
    struct member *m = arg;
    struct hd__store_options o = {
        .host = "127.0.0.1", .port = hd__server_port(server), .rank = m->rank, .size = SIZE, .dead_after = 60};
    struct hd__launch_env env = {.rank = m->rank, .size = SIZE};
    struct hd__train_session session = {.env = &env};
    struct hd__store_gather g = {.session = &session, .name = "test", .n = 2, .patience = 0.01};
    int64_t mine = m->rank, all[2];
    memcpy(o.secret, options.secret, sizeof o.secret);
    m->rc = hd__store_connect(&o, hd__now() + 60, &session.store, &m->err);
    struct hd__ckpt_peers peers = hd__store_gather_peers(&g);
    if (m->part)
        peers.busy(peers.user, UINT64_C(1) << 40);
    while (!m->rank && !m->rc && !(m->part ? waits : gave_up))
        usleep(1000);
    if (!m->rank && m->part) /* the other gave up a second after its patience, if it did */
        usleep(1500000);
    waits = m->rank;
    m->rc = m->rc ? m->rc : peers.all_gather(peers.user, &mine, sizeof mine, all, &m->err);
    gave_up = m->rank;
    hd__store_close(session.store);
    return NULL;
}

START_TEST(slow_rank)
{
    struct member m[2];
    pthread_t thread[2];
    struct hd_error err = HD_ERROR_INIT;
    hd__store_secret_generate(options.secret);
    ck_assert_msg(!hd__server_open(&options, &server, &err), "%s", err.message);
    for (int i = 0; i < 2; i++) {
        m[i] = (struct member){.rank = i, .part = _i, .err = HD_ERROR_INIT};
        pthread_create(&thread[i], NULL, save, &m[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    hd__server_close(server);
    ck_assert_msg(m[1].rc == (_i ? HD_OK : HD_E_TIMEOUT), "%s", m[1].err.message);
    if (!_i) {
        ck_assert_msg(strstr(m[1].err.message, "no word of rank 0 for ") != NULL, "%s", m[1].err.message);
        ck_assert_int_eq(m[1].err.peer, 0);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("gather");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, all_gather, 0, 2);
    tcase_add_loop_test(tc, slow_rank, 0, 2);
    return suite_run_case("gather", tc);
}
