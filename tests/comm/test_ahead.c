/* comm-shm's members that need nothing of the others run ahead, so far and no farther, and lose nothing. What every transport
 * does: test_transport.c, test_failures.c. Nothing here waits for a time to pass. */
#include <check.h>
#include <string.h>

#include "tests/comm/ranks.h"
#include "tests/suite.h"

enum { AHEAD = 32, MAILS = 64, ROUNDS = 3 }; /* as in plugins/comm-shm/shm.h */

static int world_group(struct rank *rank, struct hd_comm_group **group)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t ranks[8];
    for (int32_t i = 0; i < rank->size; i++)
        ranks[i] = i;
    EXPECT(rank->ops->group(rank->comm, "world", ranks, rank->size, group, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* All ranks have come here; not by the transport. */
static int meet(struct rank *rank, const char *name, int k)
{
    struct hd_error err = HD_ERROR_INIT;
    char key[64];
    snprintf(key, sizeof key, "%s/%d", name, k);
    EXPECT(hd__store_barrier(rank->store, key, hd__now() + rank->timeout, &err) == HD_OK, "%s", err.message);
    return 0;
}

static int32_t wait_for(struct rank *rank, hd_request request, struct hd_error *err)
{
    return rank->ops->wait(rank->comm, request, hd__now() + rank->timeout, err);
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

static void fill(int32_t *data, uint64_t count, int32_t k)
{
    for (uint64_t i = 0; i < count; i++)
        data[i] = k * 1000 + (int32_t)i;
}

/* Operation k of those that run ahead: `ahead` of them complete while nobody else has begun, from one buffer; the next does not. */
static int run_ahead(struct rank *rank, struct hd_comm_group *group, struct hd_comm_call *call, int32_t *data, int round)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    for (int k = 0; k < AHEAD; k++) {
        fill(data, call->count, round * 100 + k);
        EXPECT(rank->ops->collective(group, call, &request, &err) == HD_OK && wait_for(rank, request, &err) == HD_OK, "%s", err.message);
    }
    fill(data, call->count, round * 100 + AHEAD);
    EXPECT(rank->ops->collective(group, call, &request, &err) == HD_OK, "%s", err.message);
    EXPECT(!is_done(rank, request), "%d operations ahead", AHEAD + 1);
    if (meet(rank, "ahead", round))
        return 1;
    EXPECT(wait_for(rank, request, &err) == HD_OK, "%s", err.message);
    return 0;
}

static int follow(struct rank *rank, struct hd_comm_group *group, struct hd_comm_call *call, const int32_t *got, int32_t times, int round)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    int32_t want[1024];
    if (meet(rank, "ahead", round))
        return 1;
    for (int k = 0; k <= AHEAD; k++) {
        EXPECT(rank->ops->collective(group, call, &request, &err) == HD_OK && wait_for(rank, request, &err) == HD_OK, "%s", err.message);
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
    hd_request request;
    struct hd_comm_call call = a_call(HD_COLL_BARRIER, NULL, NULL, 0);
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK && wait_for(rank, request, &err) == HD_OK, "%s", err.message);
    return 0;
}

static const uint64_t counts[ROUNDS] = {2, 50, 0}; /* in the slot, in its place, nothing at all */

static int root_of_broadcast(struct rank *rank)
{
    struct hd_comm_group *group;
    int32_t data[64];
    if (world_group(rank, &group))
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

/* The last is the root: it comes late, and has the sum of what all others left. Its own numbers are those of the others' first. */
static int others_of_reduce(struct rank *rank)
{
    struct hd_comm_group *group;
    int32_t data[64], sum[64];
    if (world_group(rank, &group))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct hd_comm_call call = a_call(HD_COLL_REDUCE, data, sum, counts[round]);
        call.root = rank->size - 1;
        memset(data, 0, sizeof data);
        if (rank->rank == call.root ? follow(rank, group, &call, sum, rank->size - 1, round) : run_ahead(rank, group, &call, data, round))
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
    if (world_group(rank, &group))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t bytes = counts[round] * sizeof *data;
        if (rank->rank)
            for (int k = meet(rank, "sent", round); k <= MAILS; k++) {
                EXPECT(rank->ops->recv(group, 0, 3, data, bytes, &request, &err) == HD_OK && wait_for(rank, request, &err) == HD_OK, "%s",
                       err.message);
                fill(want, counts[round], round * 100 + k);
                EXPECT(!memcmp(data, want, bytes), "round %d message %d", round, k);
            }
        else {
            for (int k = 0; k < MAILS; k++) {
                fill(data, counts[round], round * 100 + k);
                EXPECT(rank->ops->send(group, 1, 3, data, bytes, &request, &err) == HD_OK && wait_for(rank, request, &err) == HD_OK, "%s",
                       err.message);
            }
            fill(data, counts[round], round * 100 + MAILS);
            EXPECT(rank->ops->send(group, 1, 3, data, bytes, &request, &err) == HD_OK, "%s", err.message);
            EXPECT(!is_done(rank, request), "%d messages ahead", MAILS + 1);
            if (meet(rank, "sent", round))
                return 1;
            EXPECT(wait_for(rank, request, &err) == HD_OK, "%s", err.message);
        }
        if (level(rank, group))
            return 1;
    }
    return 0;
}

/* The root is ahead when the other takes a wrong turn at its third: there at once, here with the next that waits. */
static int wrong_turn(struct rank *rank)
{
    enum { WRONG = 2, ALL = 5 };
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_group *group;
    hd_request request;
    int32_t data[64] = {0}, code = HD_OK;
    if (world_group(rank, &group))
        return 1;
    for (int k = 0; k < ALL && code == HD_OK; k++) {
        struct hd_comm_call call = a_call(HD_COLL_BROADCAST, data, data, rank->rank && k == WRONG ? 9 : 8);
        if (k == 0 && rank->rank && meet(rank, "ahead", 0))
            return 1;
        code = rank->ops->collective(group, &call, &request, &err);
        code = code == HD_OK ? wait_for(rank, request, &err) : code;
        EXPECT(code == (rank->rank && k == WRONG ? HD_E_MISMATCH : HD_OK), "operation %d: %d %s", k, code, err.message);
    }
    if (rank->rank == 0) {
        struct hd_comm_call call = a_call(HD_COLL_BARRIER, NULL, NULL, 0);
        if (meet(rank, "ahead", 0))
            return 1;
        code = rank->ops->collective(group, &call, &request, &err);
        code = code == HD_OK ? wait_for(rank, request, &err) : code;
    }
    EXPECT(code == HD_E_MISMATCH && err.peer == 1 - rank->rank, "%d of %lld: %s", code, (long long)err.peer, err.message);
    EXPECT(strstr(err.message, "operation 3 of group world differs") && strstr(err.message, "count 9") && strstr(err.message, "count 8"),
           "%s", err.message);
    return 0;
}

static const struct {
    int32_t ranks;
    int (*body)(struct rank *rank);
} cases[] = {{2, root_of_broadcast}, {4, root_of_broadcast}, {2, others_of_reduce}, {4, others_of_reduce}, {2, senders}, {2, wrong_turn}};

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
    return suite_run_case("ahead", tc);
}
