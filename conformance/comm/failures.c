/* Promises of every transport when ranks disagree, die, stop or give up.
 * No check waits for a time to pass, but for those where a deadline is what is tested. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/check.h"
#include "conformance/comm/ranks.h"
#include "runtime/rendezvous/liveness.h"

static int32_t finish(struct rank *rank, hd_request request, double deadline, struct hd_error *err)
{
    int32_t done = 0, code;
    if (rank->ops->wait) {
        code = rank->ops->wait(rank->comm, request, deadline, err);
        return code == HD_OK ? settle(rank, deadline, err) : code;
    }
    while (!done && hd__now() < deadline) {
        if ((code = rank->ops->test(rank->comm, request, &done, err)) != HD_OK)
            return code;
        rank->ops->progress(rank->comm, err);
    }
    return done ? HD_OK : HD_E_TIMEOUT;
}

static float data[2][1 << 16];

/* Words of messages, and which of several errors a rank sees first: what transports of this tree promise beyond
 * heddle/comm.h. */
#define NAMED(condition) EXPECT(!transport_strict || (condition), "%s", err.message)

static struct hd_comm_call a_call(uint64_t count)
{
    return (struct hd_comm_call){.struct_size = sizeof(struct hd_comm_call),
                                 .coll = HD_COLL_ALL_REDUCE,
                                 .dtype = HD_F32,
                                 .redop = HD_SUM,
                                 .send = data[0],
                                 .recv = data[1],
                                 .count = count,
                                 .tag = 7};
}

static int32_t run(struct rank *rank, struct hd_comm_group *group, const struct hd_comm_call *call,
                   struct hd_error *err)
{
    hd_request request;
    int32_t code = rank->ops->collective(group, call, &request, err);
    return code == HD_OK ? finish(rank, request, hd__now() + 2 * rank->timeout, err) : code;
}

/* ---- disagreement */

static int mismatch(struct rank *rank)
{
    enum { VARIANTS = 6 };
    for (int v = 0; v < VARIANTS; v++)
        for (int big = 0; big < 2; big++) {
            struct hd_comm_group *group;
            struct hd_error err = HD_ERROR_INIT;
            struct hd_comm_call call = a_call(big ? 1 << 15 : 16), next = call;
            char name[32], wrong[32];
            int odd = rank->rank == rank->size - 1;
            snprintf(name, sizeof name, "variant-%d-%d", v, big);
            if (world_group(rank, name, &group))
                return 1;
            EXPECT(run(rank, group, &call, &err) == HD_OK, "%s", err.message);
            call.coll = odd && v == 0 ? HD_COLL_ALL_GATHER : call.coll;
            call.dtype = odd && v == 1 ? HD_I32 : call.dtype;
            call.count = odd && v == 2 ? (big ? 3 : 1 << 14) : call.count;
            call.redop = odd && v == 3 ? HD_MAX : call.redop;
            call.tag = odd && v == 4 ? 8 : call.tag;
            call.coll = v == 5 ? HD_COLL_BROADCAST : call.coll;
            call.root = odd && v == 5;
            int32_t code = run(rank, group, &call, &err);
            if (v == 5 && !big && code == HD_OK) /* who waits for the root alone, or is it, is told by the next */
                code = run(rank, group, &next, &err);
            EXPECT(code == HD_E_MISMATCH, "variant %d: %s", v, err.message);
            snprintf(wrong, sizeof wrong, "rank %d has", rank->size - 1);
            snprintf(name, sizeof name, "rank %d has", odd ? 0 : rank->rank); /* or whoever saw it first */
            NAMED(strstr(err.message, wrong) && (rank->size > 2 || strstr(err.message, name)));
            struct hd_error again = HD_ERROR_INIT;
            EXPECT(run(rank, group, &next, &again) == HD_E_MISMATCH, "not poisoned: %s", again.message);
            NAMED(strcmp(again.message, err.message) == 0);
        }
    return 0;
}

/* A small message's sender may be through before anybody looks at it. Then what it waits for next in the group
 * tells. */
static int32_t finish_small(struct rank *rank, struct hd_comm_group *group, int32_t peer, hd_request request,
                            struct hd_error *err)
{
    int32_t code = finish(rank, request, hd__now() + rank->timeout, err);
    if (code != HD_OK)
        return code;
    code = rank->ops->recv(group, peer, 0, data[1], 8, &request, err);
    return code == HD_OK ? finish(rank, request, hd__now() + rank->timeout, err) : code;
}

static int message_mismatch(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    for (int big = 0; big < (transport_strict ? 2 : 1);
         big++) { /* an error may be of the transport, not of the group */
        hd_request request;
        char name[32];
        uint64_t bytes = big ? 100000 : 100;
        snprintf(name, sizeof name, "messages-%d", big);
        if (world_group(rank, name, &group))
            return 1;
        if (rank->rank == 0)
            EXPECT(rank->ops->send(group, 1, 0, data[0], bytes, &request, &err) == HD_OK, "%s", err.message);
        else
            EXPECT(rank->ops->recv(group, 0, 0, data[1], bytes + 1, &request, &err) == HD_OK, "%s", err.message);
        if (rank->rank == 0 && !big)
            EXPECT(finish_small(rank, group, 1, request, &err) == HD_E_MISMATCH, "%s", err.message);
        else
            EXPECT(finish(rank, request, hd__now() + rank->timeout, &err) == HD_E_MISMATCH, "%s", err.message);
        char a[32], b[32];
        snprintf(a, sizeof a, "%llu bytes", (unsigned long long)bytes);
        snprintf(b, sizeof b, "receives %llu", (unsigned long long)bytes + 1);
        NAMED(strstr(err.message, a) && strstr(err.message, b));
    }
    return 0;
}

/* A group of the last two ranks, which may be the first of their machine: messages call them what the job does. */
static int last_two_disagree(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    const int32_t pair[] = {rank->size - 2, rank->size - 1};
    hd_request request;
    char a[32], b[32];
    if (rank->rank < pair[0])
        return 0;
    EXPECT(rank->ops->group(rank->comm, "last", pair, 2, &group, &err) == HD_OK, "%s", err.message);
    if (rank->rank == pair[0]) {
        EXPECT(rank->ops->send(group, 1, 0, data[0], 100, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish_small(rank, group, 1, request, &err) == HD_E_MISMATCH, "%s", err.message);
    } else {
        EXPECT(rank->ops->recv(group, 0, 0, data[1], 101, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, request, hd__now() + rank->timeout, &err) == HD_E_MISMATCH, "%s", err.message);
    }
    snprintf(a, sizeof a, "rank %d sends 100", pair[0]);
    snprintf(b, sizeof b, "rank %d receives 101", pair[1]);
    NAMED(strstr(err.message, a) && strstr(err.message, b));
    EXPECT(err.peer == pair[rank->rank == pair[0]] || err.peer == -1, "peer %lld: %s", (long long)err.peer,
           err.message);
    return 0;
}

static int nonsense(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    static const int32_t nobody[] = {2, 9, 1 << 28, -1, INT32_MIN};
    int32_t alien[] = {0, 9}, twice[] = {0, 1, 1}, done;
    struct hd_comm_call call = a_call(4);
    for (size_t i = 0; i < HD__COUNT(nobody); i++) {
        alien[1] = nobody[i];
        EXPECT(rank->ops->group(rank->comm, "alien", alien, 2, &group, &err) == HD_E_INVALID, "%s", err.message);
    }
    EXPECT(rank->ops->group(rank->comm, "twice", twice, 3, &group, &err) == HD_E_INVALID, "%s", err.message);
    if (world_group(rank, "world", &group))
        return 1;
    call.coll = 99;
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_E_UNSUPPORTED, "%s", err.message);
    call = a_call(4);
    call.dtype = 99;
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_E_UNSUPPORTED, "%s", err.message);
    call = a_call(4);
    call.coll = HD_COLL_BROADCAST;
    call.root = 2;
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_E_INVALID, "%s", err.message);
    EXPECT(rank->ops->send(group, 5, 0, data, 4, &request, &err) == HD_E_INVALID, "%s", err.message);
    EXPECT(rank->ops->test(rank->comm, 12345, &done, &err) == HD_E_INVALID, "%s", err.message);
    call = a_call(4);
    EXPECT(run(rank, group, &call, &err) == HD_OK, "a refused call must not poison: %s", err.message);
    return 0;
}

/* ---- death */

/* A result of a rank's death: HD_E_PEER where the transport sees it itself, HD_E_CANCELLED where liveness tells it. */
static int is_death(int32_t code)
{
    return code == HD_E_PEER || (transport_told && code == HD_E_CANCELLED);
}

/* A result of a wait that ran out of time; other ranks may have given up earlier. */
static int is_late(int32_t code)
{
    return code == HD_E_TIMEOUT || (!transport_strict && is_death(code));
}

/* Stops this process for as long as others wait for it: a child ends it when their bodies are over. The parent's
 * patience is longer. */
static void stop(const struct rank *rank)
{
    pid_t me = getpid();
    double until = hd__now() + 6 * rank->timeout;
    if (fork() == 0) {
        while (atomic_load(rank->over) < rank->size - 1 && hd__now() < until)
            usleep(1000);
        kill(me, SIGKILL);
        _exit(0);
    }
    raise(SIGSTOP);
}

static int last_dies(struct rank *rank, int in_message, int stops)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = a_call(1 << 15);
    hd_request request;
    int32_t last = rank->size - 1;
    if (world_group(rank, "world", &group))
        return 1;
    for (int i = 0; i < 10; i++)
        EXPECT(run(rank, group, &call, &err) == HD_OK, "%s", err.message);
    EXPECT(hd__store_barrier(rank->store, "warm", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    if (rank->rank == last && stops)
        stop(rank);
    else if (rank->rank == last)
        raise(SIGKILL);
    double began = hd__now();
    int32_t code = in_message ? rank->ops->recv(group, last, 0, data[1], 4000, &request, &err)
                              : rank->ops->collective(group, &call, &request, &err);
    if (code == HD_OK)
        code = finish(rank, request, began + 60, &err);
    char text[32];
    snprintf(text, sizeof text, "rank %d", last);
    EXPECT(stops ? is_late(code) : is_death(code), "code %d: %s", code, err.message);
    /* Others may have given up before, and be named first; the cause they pass on names the last rank. */
    NAMED(strstr(err.message, text));
    if (!stops)
        EXPECT(hd__now() - began < 5, "took %.1f s", hd__now() - began);
    return 0;
}

static int dies_in_collective(struct rank *rank)
{
    return last_dies(rank, 0, 0);
}
static int dies_in_message(struct rank *rank)
{
    return last_dies(rank, 1, 0);
}
static int stops_in_collective(struct rank *rank)
{
    return last_dies(rank, 0, 1);
}
static int stops_in_message(struct rank *rank)
{
    return last_dies(rank, 1, 1);
}

/* The others work on while one rank dies at some moment: whoever is not done learns of it, no one hangs. */
static int dies_at_work(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = a_call(1 << 15);
    if (world_group(rank, "world", &group))
        return 1;
    for (int i = 0;; i++) {
        if (rank->rank == 0 && i == 200) {
            hd_request request;
            EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
            rank->ops->progress(rank->comm, &err);
            raise(SIGKILL);
        }
        int32_t code = run(rank, group, &call, &err);
        if (code != HD_OK) {
            EXPECT(is_death(code), "code %d: %s", code, err.message);
            NAMED(strstr(err.message, "rank 0"));
            rank->stays = rank->size - 1; /* who has closed is what a late one would find gone */
            return 0;
        }
        EXPECT(i < 300, "nobody noticed");
    }
}

static int leaves_early(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = a_call(100);
    if (world_group(rank, "world", &group))
        return 1;
    EXPECT(run(rank, group, &call, &err) == HD_OK, "%s", err.message);
    if (rank->rank == 1)
        return 0; /* closes */
    EXPECT(run(rank, group, &call, &err) == HD_E_PEER, "%s", err.message);
    NAMED(strstr(err.message, "rank 1"));
    return 0;
}

/* ---- a deadline, an abort */

static int deadline(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = a_call(100);
    hd_request request;
    if (world_group(rank, "world", &group))
        return 1;
    if (rank->rank == 0) {
        EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, request, hd__now() + 0.2, &err) == HD_E_TIMEOUT, "%s", err.message);
        NAMED(strstr(err.message, "rank 1"));
    }
    EXPECT(hd__store_barrier(rank->store, "waited", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    if (rank->rank == 1 &&
        transport_strict) { /* what rank 0 posted may still serve once; then the group is given up here too */
        int32_t code = run(rank, group, &call, &err);
        code = code == HD_OK ? run(rank, group, &call, &err) : code;
        EXPECT(code == HD_E_TIMEOUT && strstr(err.message, "rank 0"), "code %d: %s", code, err.message);
    }
    EXPECT(hd__store_barrier(rank->store, "end", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* From rank `from` to the other. */
static int pass_on(struct rank *rank, struct hd_comm_group *group, int32_t from, uint64_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    int32_t code = rank->rank == from ? rank->ops->send(group, 1 - from, 0, data[0], bytes, &request, &err)
                                      : rank->ops->recv(group, from, 0, data[1], bytes, &request, &err);
    EXPECT(code == HD_OK, "%s", err.message);
    if (rank->rank != from || bytes < 1000) /* shm: a large one is sent when all large ones before it were received */
        EXPECT(finish(rank, request, hd__now() + rank->timeout, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* A large receive that its sender was told of, given up before anything came: it is called back, and what is sent
 * then goes nowhere. Messages between two ranks arrive in order here: behind another one as large, that has been
 * seen. */
static int calls_back(struct rank *rank)
{
    enum { LARGE = 100000 };
    static uint8_t lost[LARGE];
    struct hd_comm_group *group, *other;
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    if (world_group(rank, "world", &group) || world_group(rank, "other", &other))
        return 1;
    memset(lost, 0x5a, sizeof lost);
    memset(data[0], 0xa5, sizeof data[0]);
    if (rank->rank == 1)
        EXPECT(rank->ops->recv(group, 0, 0, lost, LARGE, &request, &err) == HD_OK, "%s", err.message);
    if (pass_on(rank, other, 1, 100)) /* behind it, so that rank 0 knows what rank 1 waits for */
        return 1;
    if (rank->rank == 1)
        EXPECT(finish(rank, request, hd__now() + 0.1, &err) == HD_E_TIMEOUT, "%s", err.message);
    EXPECT(hd__store_barrier(rank->store, "given up", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    if (rank->rank == 0)
        EXPECT(rank->ops->send(group, 1, 0, data[0], LARGE, &request, &err) == HD_OK, "%s", err.message);
    if (pass_on(rank, other, 0, LARGE) || pass_on(rank, other, 1, 100))
        return 1;
    for (size_t i = 0; i < LARGE && rank->rank == 1; i++)
        EXPECT(lost[i] == 0x5a, "byte %zu was written after its operation had failed", i);
    EXPECT(hd__store_barrier(rank->store, "end", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    return 0;
}

static void *abort_soon(void *arg)
{
    struct rank *rank = arg;
    usleep(50000);
    rank->ops->abort(rank->comm, "enough of it");
    return NULL;
}

static int aborts(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = a_call(1 << 15);
    pthread_t thread;
    hd_request request, message;
    if (world_group(rank, "world", &group))
        return 1;
    EXPECT(run(rank, group, &call, &err) == HD_OK, "%s", err.message);
    int32_t from = rank->rank == 0 ? 1 : 0; /* nobody sends, and rank 0 never starts its collective */
    EXPECT(rank->ops->recv(group, from, 0, data[1], 8, &message, &err) == HD_OK, "%s", err.message);
    if (rank->rank != 0)
        EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
    EXPECT(hd__store_barrier(rank->store, "begun", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    if (rank->rank == 0)
        pthread_create(&thread, NULL, abort_soon, rank);
    double began = hd__now();
    if (rank->rank != 0)
        EXPECT(finish(rank, request, began + 30, &err) == HD_E_CANCELLED, "%s", err.message);
    EXPECT(finish(rank, message, began + 30, &err) == HD_E_CANCELLED, "%s", err.message);
    NAMED(strstr(err.message, "rank 0") && strstr(err.message, "enough of it"));
    EXPECT(hd__now() - began < 5, "took %.1f s", hd__now() - began);
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_E_CANCELLED, "%s", err.message);
    while (rank->ops->progress(rank->comm, &err) == 1) /* whoever waits for something else does not spin */
        EXPECT(hd__now() - began < 10, "progress still says that something moved");
    if (rank->rank == 0)
        pthread_join(thread, NULL);
    EXPECT(hd__store_barrier(rank->store, "end", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* Liveness reaches a rank that waits in the transport: the store's notice calls abort. */
static void on_end(void *user, const char *cause)
{
    struct rank *rank = user;
    rank->ops->abort(rank->comm, cause);
}

static int store_abort(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    if (world_group(rank, "world", &group))
        return 1;
    EXPECT(rank->ops->recv(group, (rank->rank + 1) % rank->size, 0, data[1], 8, &request, &err) == HD_OK, "%s",
           err.message);
    EXPECT(hd__store_barrier(rank->store, "ready", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    hd__store_liveness_notify(hd__store_liveness(rank->store), on_end, rank);
    if (rank->rank == 0)
        hd__store_abort(rank->store, "the data ran out");
    EXPECT(finish(rank, request, hd__now() + 30, &err) == HD_E_CANCELLED, "%s", err.message);
    NAMED(strstr(err.message, "the data ran out"));
    hd__store_liveness_notify(hd__store_liveness(rank->store), NULL, NULL);
    usleep(100000); /* the peers read our reason: a real job's ranks end after their own notice */
    return 0;
}

/* ---- the suite */

/* With _i ranks, of which rank `dead` ends by SIGKILL; -1: none does. */
#define FAILURE_TEST(name, body, time, dead)                                                                 \
    START_TEST(name)                                                                                         \
    {                                                                                                        \
        int signals[64] = {0}, killed = dead;                                                                \
        struct ranks_options o = {.size = _i, .timeout = time, .dead_after = 30, .settings = "stage=64KiB"}; \
        if (killed >= 0)                                                                                     \
            signals[killed] = SIGKILL;                                                                       \
        ck_assert_msg(run_ranks(&o, body, signals) == 0, "with %d ranks", _i);                               \
    }                                                                                                        \
    END_TEST

FAILURE_TEST(disagreement_is_named, mismatch, 30, -1)
FAILURE_TEST(sizes_of_messages, message_mismatch, 30, -1)
FAILURE_TEST(ranks_are_those_of_the_job, last_two_disagree, 30, -1)
FAILURE_TEST(nonsense_is_refused, nonsense, 30, -1)
FAILURE_TEST(death_in_a_collective, dies_in_collective, 30, _i - 1)
FAILURE_TEST(death_in_a_message, dies_in_message, 30, _i - 1)
FAILURE_TEST(death_at_work, dies_at_work, 30, 0)
FAILURE_TEST(a_stopped_rank, stops_in_collective, 1, 2)
FAILURE_TEST(a_stopped_sender, stops_in_message, 1, 1)
FAILURE_TEST(leaving_early, leaves_early, 30, -1)
FAILURE_TEST(a_deadline, deadline, 30, -1)
FAILURE_TEST(given_up_is_called_back, calls_back, 30, -1)
FAILURE_TEST(abort_from_a_thread, aborts, 30, -1)
FAILURE_TEST(abort_through_the_store, store_abort, 30, -1)

static void run_all(void)
{
    if (!transport_bare) /* the core's algorithms do not compare calls */
        WITH_RANKS(disagreement_is_named, 2, 5);
    WITH_RANKS(sizes_of_messages, 2, 3);
    WITH_RANKS(ranks_are_those_of_the_job, 4, 5);
    WITH_RANKS(ranks_are_those_of_the_job, 6, 7);
    if (transport_strict) /* heddle asks for nothing of the kind */
        WITH_RANKS(nonsense_is_refused, 2, 3);
    WITH_RANKS(death_in_a_collective, 2, 5);
    WITH_RANKS(death_in_a_message, 2, 4);
    WITH_RANKS(death_at_work, 2, 5);
    WITH_RANKS(a_stopped_rank, 3, 4);
    WITH_RANKS(a_stopped_sender, 2, 3);
    WITH_RANKS(leaving_early, 3, 4);
    WITH_RANKS(a_deadline, 2, 3);
    if (!strcmp(transport_name, "libfabric")) /* more than heddle/comm.h asks for */
        WITH_RANKS(given_up_is_called_back, 2, 3);
    WITH_RANKS(abort_from_a_thread, 2, 5);
    WITH_RANKS(abort_through_the_store, 3, 4);
}

/* Where ranks take long to start, and the library below does not know who is missing. */
static void run_few(void)
{
    if (!transport_bare)
        WITH_RANKS(disagreement_is_named, 2, 4);
    if (transport_strict)
        WITH_RANKS(nonsense_is_refused, 2, 3);
    WITH_RANKS(death_in_a_collective, 3, 4);
    WITH_RANKS(death_in_a_message, 2, 3);
    WITH_RANKS(death_at_work, 4, 5);
    WITH_RANKS(a_stopped_sender, 2, 3);
    WITH_RANKS(a_deadline, 2, 3);
    WITH_RANKS(abort_from_a_thread, 3, 4);
    WITH_RANKS(abort_through_the_store, 3, 4);
}

/* Ordered by a stream: `wait` is over when an operation is enqueued, so that its deadline is another. */
static void run_stream(void)
{
    WITH_RANKS(nonsense_is_refused, 2, 3);
    WITH_RANKS(death_in_a_collective, 2, 4);
    WITH_RANKS(death_in_a_message, 2, 4);
    WITH_RANKS(death_at_work, 3, 5);
    WITH_RANKS(a_stopped_sender, 2, 3);
    WITH_RANKS(abort_from_a_thread, 2, 5);
    WITH_RANKS(abort_through_the_store, 3, 4);
}

void conf_comm_failures(int few)
{
    (*transport_driver ? run_stream : few ? run_few : run_all)();
}
