/* What comm-nccl makes of an NCCL that fails: at once, later on the stream, or never; over the fakes beside this file.
 *     test_faults nccl FOLDER stream:DRIVER set:driver=DRIVER set:library=LIBRARY */
#include <check.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "conformance/comm/jobs.h"
#include "tests/suite.h"

static const char *fault; /* of rank 0 */

static int32_t run(struct rank *rank, struct hd_comm_group *group, uint64_t count, struct hd_error *err)
{
    static float *data;
    hd_request request;
    data = data ? data : rank_memory(rank, 2 << 16);
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = HD_COLL_ALL_REDUCE,
                                .dtype = HD_F32,
                                .redop = HD_SUM,
                                .send = data,
                                .recv = data + (1 << 14),
                                .count = count,
                                .tag = 7};
    int32_t rc = rank->ops->collective(group, &call, &request, err);
    return rc ? rc : finish(rank, request, err);
}

/* Rank 0 fails with `code`, and says `text`; from then on always the same. */
static int fails(struct rank *rank, int32_t code, const char *text)
{
    struct hd_comm_group *group, *other;
    struct hd_error err = HD_ERROR_INIT, again = HD_ERROR_INIT;
    if (rank->rank == 0)
        setenv("FAKE_NCCL_FAULT", fault, 1);
    if (world_group(rank, "world", &group) || world_group(rank, "other", &other))
        return 1;
    EXPECT(run(rank, group, 100, &err) == HD_OK, "%s", err.message);
    EXPECT(hd__store_barrier(rank->store, "begun", hd__now() + 20, &err) == HD_OK, "%s", err.message);
    int32_t rc = run(rank, group, 100, &err);
    if (rank->rank == 0) {
        EXPECT(rc == code && strstr(err.message, text), "code %d: %s", rc, err.message);
        EXPECT(run(rank, group, 100, &again) == code, "%s", again.message);
        EXPECT(strcmp(again.message, err.message) == 0, "another cause: %s", again.message);
        rank->ops->abort(rank->comm, err.message);
        return 0;
    }
    if (rc == HD_E_TIMEOUT && code == HD_E_TIMEOUT) { /* both wait equally long */
        EXPECT(strstr(err.message, "no sign of rank 0"), "%s", err.message);
        return 0;
    }
    EXPECT(rc == HD_E_CANCELLED && strstr(err.message, "rank 0") && strstr(err.message, text), "code %d: %s", rc,
           err.message);
    EXPECT(run(rank, other, 100, &again) == HD_E_CANCELLED, "%s", again.message);
    return 0;
}

static int refused(struct rank *rank)
{
    return fails(rank, HD_E_INVALID, "invalid usage");
}
static int of_the_device(struct rank *rank)
{
    return fails(rank, HD_E_IO, "unhandled cuda error");
}
static int of_a_peer(struct rank *rank)
{
    return fails(rank, HD_E_PEER, "all_reduce of 100 fp32 (tag 7)");
}
static int never_ends(struct rank *rank)
{
    return fails(rank, HD_E_TIMEOUT, "no sign of rank 1");
}

/* Another group goes on while one has failed, with what was not yet done there. */
static int apart(struct rank *rank)
{
    struct hd_comm_group *group, *other;
    struct hd_error err = HD_ERROR_INIT;
    if (rank->rank == 0)
        setenv("FAKE_NCCL_FAULT", fault, 1);
    if (world_group(rank, "world", &group) || world_group(rank, "other", &other))
        return 1;
    EXPECT(run(rank, other, 10, &err) == HD_OK, "%s", err.message);
    if (rank->rank == 0)
        EXPECT(run(rank, group, 10, &err) == HD_E_IO, "%s", err.message);
    EXPECT(run(rank, other, 10, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* Each rank first hears of the one before it, then tells the one behind it: no member's order of use is another's. */
static int ring(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    int32_t n = rank->size, before = (rank->rank + n - 1) % n, behind = (rank->rank + 1) % n, rc;
    hd_request in, out;
    uint8_t *data = rank_memory(rank, 128);
    if (world_group(rank, "world", &group))
        return 1;
    rc = rank->ops->recv(group, before, 0, data, 64, &in, &err);
    rc = rc ? rc : rank->ops->send(group, behind, 0, data + 64, 64, &out, &err);
    rc = rc ? rc : finish(rank, in, &err);
    rc = rc ? rc : finish(rank, out, &err);
    EXPECT(rc == HD_OK, "%s", err.message);
    rank->ops->group_free(group);
    return 0;
}

static void hold(void *over)
{
    while (!atomic_load((_Atomic int *)over))
        sched_yield();
}

/* Time in which the device's own stream has not come to an operation is no wait of it. */
static int behind_compute(struct rank *rank)
{
    static _Atomic int over;
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    void *driver = dlopen(transport_driver, RTLD_NOW | RTLD_NOLOAD),
         *found = driver ? dlsym(driver, "cuLaunchHostFunc") : NULL;
    int (*call)(void *stream, void (*call)(void *), void *data);
    float *data = rank_memory(rank, 64);
    struct hd_comm_call sum = {.struct_size = sizeof sum,
                               .coll = HD_COLL_ALL_REDUCE,
                               .dtype = HD_F32,
                               .redop = HD_SUM,
                               .send = data,
                               .recv = data,
                               .count = 16};
    hd_request before, request;
    int32_t rc = HD_OK;
    memcpy(&call, &found, sizeof call);
    if (!found || world_group(rank, "world", &group))
        return 1;
    EXPECT(rank->ops->collective(group, &sum, &before, &err) == HD_OK, "%s",
           err.message); /* its communicator is made */
    call(rank->stream, hold, &over);
    rc = rank->ops->collective(group, &sum, &request, &err);
    for (double until = hd__now() + 1.5 * rank->timeout; rc >= 0 && hd__now() < until;)
        rc = rank->ops->progress(rank->comm, &err);
    over = 1;
    EXPECT(rc >= 0, "%s", err.message);
    EXPECT(finish(rank, before, &err) == HD_OK && finish(rank, request, &err) == HD_OK, "%s", err.message);
    return 0;
}

START_TEST(compute_before_an_operation_is_no_wait)
{
    struct ranks_options o = {.size = 1, .timeout = 2};
    ck_assert_int_eq(run_ranks(&o, behind_compute, NULL), 0);
}
END_TEST

/* An operation of a graph fails while nothing else is under way: `progress` returns its error. */
static int in_a_graph(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    void *driver = dlopen(transport_driver, RTLD_NOW | RTLD_NOLOAD),
         *found = driver ? dlsym(driver, "fake_capture") : NULL;
    int (*capture)(int on);
    float *data = rank_memory(rank, 64);
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = HD_COLL_ALL_REDUCE,
                                .dtype = HD_F32,
                                .redop = HD_SUM,
                                .send = data,
                                .recv = data,
                                .count = 16,
                                .tag = 7};
    hd_request request;
    int32_t rc;
    memcpy(&capture, &found, sizeof capture);
    if (rank->rank == 0)
        setenv("FAKE_NCCL_FAULT", fault, 1);
    if (!found || world_group(rank, "world", &group) || run(rank, group, 100, &err))
        return 1;
    capture(1);
    rc = rank->ops->collective(group, &call, &request, &err);
    rc = rc ? rc : rank->ops->wait(rank->comm, request, hd__now() + 20, &err);
    capture(0);
    if (rank->rank == 1 && rc == HD_E_CANCELLED) /* rank 0 has found its failure and aborted by now */
        return 0;
    EXPECT(rc == HD_OK, "%s", err.message);
    while ((rc = rank->ops->progress(rank->comm, &err)) >= 0)
        sched_yield();
    if (rank->rank == 0) {
        EXPECT(rc == HD_E_PEER && strstr(err.message, "all_reduce of 16 fp32 (tag 7)"), "code %d: %s", rc, err.message);
        rank->ops->abort(rank->comm, err.message);
    } else {
        EXPECT(rc == HD_E_CANCELLED, "code %d: %s", rc, err.message);
    }
    return 0;
}

/* The send buffer lies at the end of an allocation, which is registered once. */
static int at_the_end(struct rank *rank)
{
    enum { COUNT = 16 };
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    float *send = rank_memory(rank, COUNT * sizeof *send), *recv = rank_memory(rank, 2 * COUNT * sizeof *recv);
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = HD_COLL_ALL_GATHER,
                                .dtype = HD_F32,
                                .send = send,
                                .recv = recv,
                                .count = COUNT};
    if (world_group(rank, "world", &group))
        return 1;
    for (int n = 0; n < 3; n++) {
        hd_request request;
        int32_t rc = rank->ops->collective(group, &call, &request, &err);
        rc = rc ? rc : finish(rank, request, &err);
        EXPECT(rc == HD_OK, "operation %d: %s", n, err.message);
    }
    return 0;
}

START_TEST(memory_is_registered_once)
{
    struct ranks_options o = {.size = 2};
    ck_assert_int_eq(run_ranks(&o, at_the_end, NULL), 0);
}
END_TEST

START_TEST(a_ring_of_messages_ends)
{
    struct ranks_options o = {.size = 3, .timeout = 1000};
    ck_assert_int_eq(run_ranks(&o, ring, NULL), 0);
}
END_TEST

/* The job's word counts before the environment's, and what it leaves out stays. */
static int environment(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    EXPECT(getenv("NCCL_ALGO") && !strcmp(getenv("NCCL_ALGO"), "ring,tree"), "NCCL_ALGO is %s", getenv("NCCL_ALGO"));
    EXPECT(getenv("NCCL_BUFFSIZE") && !strcmp(getenv("NCCL_BUFFSIZE"), "8388608"), "NCCL_BUFFSIZE");
    EXPECT(getenv("NCCL_IB_DISABLE") && !strcmp(getenv("NCCL_IB_DISABLE"), "1"), "NCCL_IB_DISABLE");
    EXPECT(getenv("NCCL_DEBUG") && !strcmp(getenv("NCCL_DEBUG"), "WARN"), "NCCL_DEBUG is the environment's");
    EXPECT(!getenv("NCCL_PROTO"), "NCCL_PROTO was set");
    return world_group(rank, "world", &group) || run(rank, group, 100, &err);
}

START_TEST(settings_reach_nccl)
{
    struct ranks_options o = {.size = 2, .settings = "algo=ring,tree buffsize=8MiB ib_disable=yes max_ctas=4"};
    setenv("NCCL_ALGO", "tree", 1);
    setenv("NCCL_DEBUG", "WARN", 1);
    unsetenv("NCCL_PROTO");
    ck_assert_int_eq(run_ranks(&o, environment, NULL), 0);
}
END_TEST

static int run_fault(const char *text, double timeout, int (*body)(struct rank *))
{
    struct ranks_options o = {.size = 2, .timeout = timeout};
    fault = text;
    return run_ranks(&o, body, NULL);
}

#define FAULT_TEST(name, text, timeout, body)                \
    START_TEST(name)                                         \
    {                                                        \
        ck_assert_int_eq(run_fault(text, timeout, body), 0); \
    }                                                        \
    END_TEST

FAULT_TEST(a_call_that_is_refused, "2 fail 5", 30, refused)
FAULT_TEST(a_call_that_fails, "2 fail 1", 30, of_the_device)
FAULT_TEST(one_group_of_two, "2 fail 2", 30, apart)
FAULT_TEST(a_failure_on_the_stream, "2 async 1", 30, of_the_device)
FAULT_TEST(a_peer_that_nccl_lost, "2 async 6", 30, of_a_peer)
FAULT_TEST(a_failure_in_a_graph, "2 async 6", 30, in_a_graph)
FAULT_TEST(an_operation_without_end, "2 hang", 1, never_ends)
FAULT_TEST(an_operation_never_enqueued, "2 late", 1, never_ends)

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("faults");
    transport_name = argc > 1 ? argv[1] : transport_name;
    transport_folder = argc > 2 ? argv[2] : transport_folder;
    for (int i = 3; i < argc; i++)
        if (!transport_word(argv[i])) {
            fprintf(stderr, "%s is not understood\n", argv[i]);
            return 2;
        }
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_call_that_is_refused);
    tcase_add_test(tc, a_call_that_fails);
    tcase_add_test(tc, one_group_of_two);
    tcase_add_test(tc, a_failure_on_the_stream);
    tcase_add_test(tc, a_peer_that_nccl_lost);
    tcase_add_test(tc, a_failure_in_a_graph);
    tcase_add_test(tc, compute_before_an_operation_is_no_wait);
    tcase_add_test(tc, an_operation_without_end);
    tcase_add_test(tc, an_operation_never_enqueued);
    tcase_add_test(tc, memory_is_registered_once);
    tcase_add_test(tc, a_ring_of_messages_ends);
    tcase_add_test(tc, settings_reach_nccl);
    return suite_run_case("faults", tc);
}
