/* comm-shm's members that need nothing of the others run ahead, so far and no farther, and lose nothing. What every
 * transport does: test_transport.c, test_failures.c. Nothing here waits for a time to pass. */
#include <check.h>
#include <signal.h>
#include <string.h>

#include "conformance/comm/jobs.h"
#include "tests/suite.h"

enum { AHEAD = 64, MAILS = 64, ROUNDS = 3 }; /* as in plugins/comm-shm/internal.h */

/* All ranks have come here; not by the transport. */
static int meet(struct rank *rank, const char *name, int k)
{
    struct hd_error err = HD_ERROR_INIT;
    char key[64];
    snprintf(key, sizeof key, "%s/%d", name, k);
    EXPECT(hd__store_barrier(rank->store, key, hd__now() + rank->timeout, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* Is it done, when all that can be done alone is? */
static int is_done(struct rank *rank, hd_request request)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t done = 0;
    while (rank->ops->progress(rank->comm, &err) == 1)
        continue;
    rank->ops->test(rank->comm, request, &done, &err);
    return done;
}

static struct hd_comm_call a_call(uint32_t coll, int32_t *send, int32_t *recv, uint64_t count)
{
    return (struct hd_comm_call){sizeof(struct hd_comm_call), coll, HD_I32, HD_SUM, 0, send, recv, count, 1};
}

static int32_t run(struct rank *rank, struct hd_comm_group *group, const struct hd_comm_call *call,
                   struct hd_error *err)
{
    hd_request request;
    int32_t code = rank->ops->collective(group, call, &request, err);
    return code == HD_OK ? finish(rank, request, err) : code;
}

static int32_t message(struct rank *rank, struct hd_comm_group *group, int32_t peer, int sending, int32_t *data,
                       uint64_t bytes, struct hd_error *err)
{
    hd_request request;
    int32_t code = sending ? rank->ops->send(group, peer, 3, data, bytes, &request, err)
                           : rank->ops->recv(group, peer, 3, data, bytes, &request, err);
    return code == HD_OK ? finish(rank, request, err) : code;
}

static void fill(int32_t *data, uint64_t count, int32_t k)
{
    for (uint64_t i = 0; i < count; i++)
        data[i] = k * 1000 + (int32_t)i;
}

/* Operation k of those that run ahead: `ahead` of them complete while nobody else has begun, from one buffer; the
 * next does not. */
static int run_ahead(struct rank *rank, struct hd_comm_group *group, struct hd_comm_call *call, int32_t *data,
                     int round)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    for (int k = 0; k < AHEAD; k++) {
        fill(data, call->count, round * 100 + k);
        EXPECT(run(rank, group, call, &err) == HD_OK, "%s", err.message);
    }
    fill(data, call->count, round * 100 + AHEAD);
    EXPECT(rank->ops->collective(group, call, &request, &err) == HD_OK, "%s", err.message);
    EXPECT(!is_done(rank, request), "%d operations ahead", AHEAD + 1);
    if (meet(rank, "ahead", round))
        return 1;
    EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
    return 0;
}

static int follow(struct rank *rank, struct hd_comm_group *group, struct hd_comm_call *call, const int32_t *got,
                  int32_t times, int round)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t want[1024];
    if (meet(rank, "ahead", round))
        return 1;
    for (int k = 0; k <= AHEAD; k++) {
        EXPECT(run(rank, group, call, &err) == HD_OK, "%s", err.message);
        fill(want, call->count, round * 100 + k);
        for (uint64_t i = 0; i < call->count; i++)
            EXPECT(got[i] == times * want[i], "round %d operation %d element %zu: %d", round, k, (size_t)i, got[i]);
    }
    return 0;
}

/* Everybody comes to the same operation, so that the next round begins level. */
static int level(struct rank *rank, struct hd_comm_group *group)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = a_call(HD_COLL_BARRIER, NULL, NULL, 0);
    EXPECT(run(rank, group, &call, &err) == HD_OK, "%s", err.message);
    return 0;
}

static const uint64_t counts[ROUNDS] = {2, 50, 0}; /* in the slot, in its place, nothing at all */

static int root_of_broadcast(struct rank *rank)
{
    struct hd_comm_group *group;
    int32_t data[64];
    if (world_group(rank, "world", &group))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct hd_comm_call call = a_call(HD_COLL_BROADCAST, data, data, counts[round]);
        if (rank->rank ? follow(rank, group, &call, data, 1, round) : run_ahead(rank, group, &call, data, round))
            return 1;
        if (level(rank, group))
            return 1;
    }
    return 0;
}

/* The last is the root: it comes late, and has the sum of what all others left. Its own numbers are those of the
 * others' first. */
static int others_of_reduce(struct rank *rank)
{
    struct hd_comm_group *group;
    int32_t data[64], sum[64];
    if (world_group(rank, "world", &group))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct hd_comm_call call = a_call(HD_COLL_REDUCE, data, sum, counts[round]);
        call.root = rank->size - 1;
        memset(data, 0, sizeof data);
        if (rank->rank == call.root ? follow(rank, group, &call, sum, rank->size - 1, round)
                                    : run_ahead(rank, group, &call, data, round))
            return 1;
        if (level(rank, group))
            return 1;
    }
    return 0;
}

static int senders(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    hd_request request;
    int32_t data[64], want[64];
    if (world_group(rank, "world", &group))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t bytes = counts[round] * sizeof *data;
        if (rank->rank)
            for (int k = meet(rank, "sent", round); k <= MAILS; k++) {
                EXPECT(message(rank, group, 0, 0, data, bytes, &err) == HD_OK, "%s", err.message);
                fill(want, counts[round], round * 100 + k);
                EXPECT(!memcmp(data, want, bytes), "round %d message %d", round, k);
            }
        else {
            for (int k = 0; k < MAILS; k++) {
                fill(data, counts[round], round * 100 + k);
                EXPECT(message(rank, group, 1, 1, data, bytes, &err) == HD_OK, "%s", err.message);
            }
            fill(data, counts[round], round * 100 + MAILS);
            EXPECT(rank->ops->send(group, 1, 3, data, bytes, &request, &err) == HD_OK, "%s", err.message);
            EXPECT(!is_done(rank, request), "%d messages ahead", MAILS + 1);
            if (meet(rank, "sent", round))
                return 1;
            EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
        }
        if (level(rank, group))
            return 1;
    }
    return 0;
}

/* The root is ahead when the other diverges at its third call: an error there at once, here at the next that waits. */
static int diverges(struct rank *rank)
{
    enum { WRONG = 2, ALL = 5 };
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64] = {0}, code = HD_OK;
    if (world_group(rank, "world", &group))
        return 1;
    for (int k = 0; k < ALL && code == HD_OK; k++) {
        struct hd_comm_call call = a_call(HD_COLL_BROADCAST, data, data, rank->rank && k == WRONG ? 9 : 8);
        if (k == 0 && rank->rank && meet(rank, "ahead", 0))
            return 1;
        code = run(rank, group, &call, &err);
        EXPECT(code == (rank->rank && k == WRONG ? HD_E_MISMATCH : HD_OK), "operation %d: %d %s", k, code, err.message);
    }
    if (rank->rank == 0) {
        struct hd_comm_call call = a_call(HD_COLL_BARRIER, NULL, NULL, 0);
        if (meet(rank, "ahead", 0))
            return 1;
        code = run(rank, group, &call, &err);
    }
    EXPECT(code == HD_E_MISMATCH && err.peer == 1 - rank->rank, "%d of %lld: %s", code, (long long)err.peer,
           err.message);
    EXPECT(strstr(err.message, "operation 3 of group world differs") && strstr(err.message, "count 9") &&
               strstr(err.message, "count 8"),
           "%s", err.message);
    return 0;
}

/* Two are ahead of the root that comes late, and one of them diverged in the middle: they find it between them,
 * the root when it gets there. */
static int wrong_in_the_middle(struct rank *rank)
{
    enum { WRONG = 20 };
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64] = {0}, sum[64], code = HD_OK, k, root = rank->size - 1;
    if (world_group(rank, "world", &group) || (rank->rank == root && meet(rank, "ahead", 0)))
        return 1;
    for (k = 1; k <= AHEAD + 1 && code == HD_OK; k++) {
        struct hd_comm_call call = a_call(HD_COLL_REDUCE, data, sum, 8);
        call.root = root;
        call.tag = rank->rank == 1 && k == WRONG ? 2 : 1;
        code = run(rank, group, &call, &err);
    }
    EXPECT(code == HD_E_MISMATCH && k - 1 == (rank->rank == root ? WRONG : AHEAD + 1), "operation %d: %d %s", k - 1,
           code, err.message);
    EXPECT(strstr(err.message, "operation 20 of group world differs") && strstr(err.message, "tag 2"), "%s",
           err.message);
    return rank->rank == root ? 0 : meet(rank, "ahead", 0);
}

/* Each of two waits for someone else, one for a third that has not come: that they differ is found all the same. */
static int apart_before_the_last(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64] = {0}, code = HD_OK;
    if (world_group(rank, "world", &group))
        return 1;
    if (rank->rank < 2) {
        struct hd_comm_call first = a_call(HD_COLL_BROADCAST, data, data, 8),
                            barrier = a_call(HD_COLL_BARRIER, NULL, NULL, 0);
        first.root = rank->rank ? 2 : 0;
        code = run(rank, group, &first, &err);
        EXPECT(code == (rank->rank ? HD_E_MISMATCH : HD_OK), "%d %s", code, err.message);
        code = code == HD_OK ? run(rank, group, &barrier, &err) : code;
        EXPECT(code == HD_E_MISMATCH && err.peer == 1 - rank->rank, "%d of %lld: %s", code, (long long)err.peer,
               err.message);
        EXPECT(strstr(err.message, "operation 1 of group world differs") && strstr(err.message, "root 2"), "%s",
               err.message);
    }
    return meet(rank, "found", 0);
}

/* ---- who is ahead, or behind, and goes */

static int32_t broadcast(struct rank *rank, struct hd_comm_group *group, int32_t root, int32_t *data,
                         struct hd_error *err)
{
    struct hd_comm_call call = a_call(HD_COLL_BROADCAST, data, data, 50);
    call.root = root;
    return run(rank, group, &call, err);
}

enum { FREES, CLOSES, DIES, WAYS, DONE = 20 };

static void go(struct rank *rank, struct hd_comm_group *group, int way)
{
    if (way == FREES)
        rank->ops->group_free(group);
    rank->ops->close(way == DIES ? NULL : rank->comm);
    if (way == DIES)
        raise(SIGKILL);
    rank->comm = NULL;
}

/* The root publishes, and goes before anybody looks. */
static int root_goes(struct rank *rank, int way)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64], want[64];
    if (world_group(rank, "world", &group))
        return 1;
    for (int k = 0; k < DONE && rank->rank == 0; k++) {
        fill(data, 50, k);
        EXPECT(broadcast(rank, group, 0, data, &err) == HD_OK, "%s", err.message);
    }
    if (meet(rank, "published", 0))
        return 1;
    if (rank->rank == 0) {
        go(rank, group, way);
        return 0;
    }
    for (int k = 0; k < DONE; k++) {
        EXPECT(broadcast(rank, group, 0, data, &err) == HD_OK, "%s", err.message);
        fill(want, 50, k);
        EXPECT(!memcmp(data, want, 50 * sizeof *want), "operation %d", k);
    }
    int32_t code = broadcast(rank, group, 0, data, &err);
    EXPECT(code == HD_E_PEER && err.peer == 0, "%d of %lld: %s", code, (long long)err.peer, err.message);
    return 0;
}

/* The last goes before it begins: the root is told by the first operation that it may not be ahead with. */
static int last_goes(struct rank *rank, int way)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64] = {0}, last = rank->size - 1;
    if (world_group(rank, "world", &group))
        return 1;
    if (rank->rank == last) {
        go(rank, group, way);
        return 0;
    }
    for (int k = 0; k < AHEAD; k++)
        EXPECT(broadcast(rank, group, 0, data, &err) == HD_OK, "operation %d: %s", k, err.message);
    int32_t code = broadcast(rank, group, 0, data, &err);
    EXPECT(code == HD_E_PEER && err.peer == last, "%d of %lld: %s", code, (long long)err.peer, err.message);
    return 0;
}

/* Nobody reads the sender's messages before it is gone; or nobody ever does. */
static int sender_goes(struct rank *rank, int way)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64], want[64];
    if (world_group(rank, "world", &group))
        return 1;
    for (int k = 0; k < MAILS && rank->rank == 0; k++) {
        fill(data, 50, k);
        EXPECT(message(rank, group, 1, 1, data, 200, &err) == HD_OK, "%s", err.message);
    }
    if (meet(rank, "sent", 0))
        return 1;
    if (rank->rank == 0) {
        go(rank, group, way);
        return 0;
    }
    for (int k = 0; k < MAILS; k++) {
        EXPECT(message(rank, group, 0, 0, data, 200, &err) == HD_OK, "message %d: %s", k, err.message);
        fill(want, 50, k);
        EXPECT(!memcmp(data, want, 200), "message %d", k);
    }
    int32_t code = message(rank, group, 0, 0, data, 200, &err);
    EXPECT(code == HD_E_PEER && err.peer == 0, "%d of %lld: %s", code, (long long)err.peer, err.message);
    return 0;
}

static int receiver_goes(struct rank *rank, int way)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64] = {0};
    if (world_group(rank, "world", &group))
        return 1;
    if (rank->rank == 1) {
        go(rank, group, way);
        return 0;
    }
    for (int k = 0; k < MAILS; k++)
        EXPECT(message(rank, group, 1, 1, data, 200, &err) == HD_OK, "message %d: %s", k, err.message);
    int32_t code = message(rank, group, 1, 1, data, 200, &err);
    EXPECT(code == HD_E_PEER && err.peer == 1, "%d of %lld: %s", code, (long long)err.peer, err.message);
    return 0;
}

static const struct {
    int32_t ranks, who;
    int (*body)(struct rank *rank, int way);
} leavers[] = {{3, 0, root_goes}, {3, 2, last_goes}, {2, 0, sender_goes}, {2, 1, receiver_goes}};
static int the_case, the_way;

static int leave(struct rank *rank)
{
    return leavers[the_case].body(rank, the_way);
}

START_TEST(someone_goes)
{
    the_case = _i / WAYS;
    the_way = _i % WAYS;
    int signals[3] = {0};
    struct ranks_options options = {.size = leavers[the_case].ranks};
    signals[leavers[the_case].who] = the_way == DIES ? SIGKILL : 0;
    ck_assert_int_eq(run_ranks(&options, leave, signals), 0);
}
END_TEST

/* ---- messages of which one is of another size */

/* The sender is told by the message that needs the same mail, at the latest; by that one of it if nothing else
 * waits. */
static int wrong_size(struct rank *rank)
{
    enum { BEFORE = 10, SENT = BEFORE + MAILS + 1 };
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t data[64] = {0}, code = HD_OK;
    int k;
    if (world_group(rank, "world", &group))
        return 1;
    for (k = 0; k < SENT && code == HD_OK; k++)
        code = message(rank, group, 1 - rank->rank, rank->rank == 0, data, rank->rank && k == BEFORE ? 41 : 40, &err);
    EXPECT(code == HD_E_MISMATCH && k - 1 >= BEFORE && (rank->rank == 0 || k - 1 == BEFORE), "message %d: %d %s", k - 1,
           code, err.message);
    EXPECT(strstr(err.message, "stream 3: rank 0 sends 40 bytes, rank 1 receives 41"), "%s", err.message);
    return 0;
}

/* Sizes about those at which a message takes another way; 60 under way, of streams that are received in the other
 * order; to oneself in the end. */
static int many_streams(struct rank *rank)
{
    enum { STREAMS = 6, EACH = 10, LARGE = 300000 };
    static const uint64_t sizes[EACH] = {0, 40, 41, 4095, 4096, 1, 4097, 256, 257, LARGE};
    static uint8_t out[STREAMS][EACH][LARGE], in[STREAMS][EACH][LARGE];
    hd_request sent[STREAMS][EACH], received[STREAMS][EACH];
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    int32_t to = (rank->rank + 1) % rank->size, from = (rank->rank + rank->size - 1) % rank->size;
    if (world_group(rank, "world", &group))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        to = round == 2 ? rank->rank : to;
        from = round == 2 ? rank->rank : from;
        for (uint32_t i = 0; i < STREAMS * EACH; i++) {
            uint32_t s = i % STREAMS, k = i / STREAMS;
            memset(out[s][k], (int)(i + (uint32_t)round + 64 * (uint32_t)rank->rank), sizes[k]);
            EXPECT(rank->ops->send(group, to, s, out[s][k], sizes[k], &sent[s][k], &err) == HD_OK, "%s", err.message);
        }
        for (uint32_t s = STREAMS; s-- > 0;)
            for (uint32_t k = 0; k < EACH; k++)
                EXPECT(rank->ops->recv(group, from, s, in[s][k], sizes[k], &received[s][k], &err) == HD_OK, "%s",
                       err.message);
        for (uint32_t i = 0; i < STREAMS * EACH; i++) {
            uint32_t s = i % STREAMS, k = i / STREAMS;
            EXPECT(finish(rank, received[s][k], &err) == HD_OK && finish(rank, sent[s][k], &err) == HD_OK, "%s",
                   err.message);
            for (uint64_t b = 0; b < sizes[k]; b++)
                EXPECT(in[s][k][b] == (uint8_t)(i + (uint32_t)round + 64 * (uint32_t)from),
                       "stream %u message %u byte %zu", s, k, (size_t)b);
        }
    }
    return 0;
}

static const struct {
    int32_t ranks;
    int (*body)(struct rank *rank);
} cases[] = {{2, root_of_broadcast}, {4, root_of_broadcast}, {2, others_of_reduce},    {4, others_of_reduce},
             {2, senders},           {2, diverges},          {3, wrong_in_the_middle}, {3, apart_before_the_last},
             {2, wrong_size},        {2, many_streams},      {3, many_streams}};

START_TEST(ahead)
{
    struct ranks_options options = {.size = cases[_i].ranks};
    ck_assert_int_eq(run_ranks(&options, cases[_i].body, NULL), 0);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("ahead");
    transport_name = "shm";
    transport_folder = argc > 1 ? argv[1] : transport_folder;
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, ahead, 0, HD__COUNT(cases));
    tcase_add_loop_test(tc, someone_goes, 0, HD__COUNT(leavers) * WAYS);
    return suite_run_case("ahead", tc);
}
