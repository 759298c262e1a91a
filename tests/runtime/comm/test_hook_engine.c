/* The engine of hooks: operations that are held back, in order, released, late or aborted; the flight recorder;
 * codes; streams. */
#include <check.h>
#include <stdlib.h>

#include "runtime/rendezvous/host_store.h"
#include "tests/runtime/comm/hooked.h"
#include "tests/suite.h"

/* Dropped: what comes after it in its group waits behind it. */
static int start_two_dropped(struct rank *rank, hd_request request[2])
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 500), next = sum(2, 3, 500);
    int32_t done = 1;
    if (wrap(rank, "faults", "rank=0 at=1 kind=drop") || group_of_all(rank, "world", &group))
        return 1;
    EXPECT(!rank->ops->collective(group, &call, &request[0], &err), "%s", err.message);
    EXPECT(!rank->ops->collective(group, &next, &request[1], &err), "%s", err.message);
    for (int i = 0; i < 100 && rank->rank == 0; i++) {
        EXPECT(rank->ops->progress(rank->comm, &err) >= 0, "%s", err.message);
        EXPECT(!rank->ops->test(rank->comm, request[1], &done, &err) && !done, "it went past the one before");
    }
    EXPECT(!hd__store_barrier(rank->store, "started", hd__now() + 20, &err), "%s", err.message);
    return 0;
}

static int abort_ends_dropped_ones(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request[2];
    int32_t code;
    if (start_two_dropped(rank, request))
        return 1;
    if (rank->rank == 0)
        hd__store_abort(rank->store, "enough");
    for (int i = 0; i < 2; i++)
        EXPECT((code = rank->ops->wait(rank->comm, request[i], hd__now() + rank->timeout, &err)) == HD_E_CANCELLED ||
                   code == HD_E_PEER,
               "%d: %s", code, err.message);
    return 0;
}

static int a_dropped_one_is_late(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request[2];
    if (start_two_dropped(rank, request))
        return 1;
    for (int i = 0; i < 2 && rank->rank == 0; i++) /* the second fails with the first cause */
        EXPECT(rank->ops->wait(rank->comm, request[i], hd__now() + 0.05, &err) == HD_E_TIMEOUT &&
                   !strcmp(err.message,
                           "all_reduce of group world was held back by comm.hooks: faults until the deadline"),
               "%s", err.message);
    if (rank->rank == 0)
        hd__store_abort(rank->store, "enough");
    for (int i = 0; i < 2 && rank->rank; i++)
        EXPECT(rank->ops->wait(rank->comm, request[i], hd__now() + rank->timeout, &err) != HD_OK, "it was dropped");
    return 0;
}

/* ---- count: what is held back comes in its order, and all of it */

static int held_ones_come(struct rank *rank)
{
    char words[32];
    snprintf(words, sizeof words, "hold=%d", rank->rank + 1); /* each rank holds others */
    return wrap(rank, "count", words) || wrap(rank, "check", NULL) || valid_calls(rank);
}

/* ---- what the core does beside a hook */

struct hd_hook {
    const struct hd_hook_place *place;
    struct hd__flight *flight;
    uint64_t seen; /* operations that the recorder had while begin ran */
    int32_t says, end, progress;
};
static struct hd_hook own;

static int32_t own_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                        struct hd_hook **hook, struct hd_error *err)
{
    (void)host, (void)settings, (void)err;
    own.place = place;
    *hook = &own;
    return HD_OK;
}

static void own_close(struct hd_hook *hook)
{
    (void)hook;
}

static int32_t own_begin(struct hd_hook *hook, struct hd_hook_op *op, struct hd_error *err)
{
    (void)err;
    hook->place->api->retract(hook->place);
    hook->seen = hook->flight ? hook->flight->number : 0;
    op->call->count /= 2;
    return hook->says;
}

static int32_t own_end(struct hd_hook *hook, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    (void)op, (void)code, (void)err;
    return hook->end;
}

static int32_t own_progress(struct hd_hook *hook, struct hd_error *err)
{
    (void)err;
    return hook->progress;
}

static const struct hd_hook_ops own_ops = {.struct_size = sizeof own_ops,
                                           .open = own_open,
                                           .close = own_close,
                                           .begin = own_begin,
                                           .end = own_end,
                                           .progress = own_progress};

static int the_recorder_says_what_is_done(struct rank *rank)
{
    static const int32_t ranks[] = {0, 1};
    struct hd__flight *flight = own.flight = hd__comm_flight_create(8);
    struct hd__flight_op op = {.name = "all_reduce", .section = "micro", .block = "L0", .count = 500, .calls = 1};
    struct hd__flight_record record;
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 500);
    op.channel = hd__comm_flight_channel(flight, "world", ranks, 2, -1, -1, 0);
    if (wrap_with(rank, &own_ops, "own", NULL, flight) || group_of_all(rank, "world", &group))
        return 1;
    EXPECT(hd__comm_flight_start(flight, &op, hd__now()) == 1, "it is the first");
    EXPECT(!run(rank, group, &call, &err), "%s", err.message);
    EXPECT(own.seen == 0, "it had begun while the hook held it");
    EXPECT(flight->number == 1 && hd__comm_flight_read(flight, 1, &record), "it did not begin");
    EXPECT(record.op->count == 250 && record.op->channel == op.channel && record.seq == 1, "%llu elements",
           (unsigned long long)record.op->count);
    hd__comm_flight_destroy(flight);
    return 0;
}

static int an_end_hides_no_failure(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 500);
    hd_request request;
    own.says = HD_E_IO;
    if (wrap_with(rank, &own_ops, "own", NULL, NULL) || group_of_all(rank, "world", &group))
        return 1;
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_E_IO, "it was refused by begin");
    own.says = HD_HOOK_HOLD + 1;
    EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_E_INVALID &&
               strstr(err.message, "hook own: begin returned 2"),
           "%s", err.message);
    EXPECT(!hd__store_barrier(rank->store, "end", hd__now() + 20, &err), "%s", err.message);
    return 0;
}

/* A code without a message is the hook's, not the transport's around which it stands. */
static int a_silent_hook_is_named(struct rank *rank)
{
    static const struct {
        int32_t begin, end, progress;
        const char *says;
    } rows[] = {{HD_E_IO, 0, 0, "hook own's begin failed (code -4) without a message (hd_fail)"},
                {HD_OK, HD_E_IO, 0, "hook own's end failed (code -4) without a message (hd_fail)"},
                {HD_OK, 7, 0, "hook own's end returned 7, which is no HD_E_ code"},
                {HD_OK, HD_OK, HD_E_IO, "hook own's progress failed (code -4) without a message (hd_fail)"}};
    struct hd_comm_group *group;
    if (wrap_with(rank, &own_ops, "own", NULL, NULL) || group_of_all(rank, "world", &group))
        return 1;
    for (size_t k = 0; k < HD__COUNT(rows); k++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd_comm_call call = sum(0, 1, 500);
        own.says = rows[k].begin, own.end = rows[k].end, own.progress = rows[k].progress;
        EXPECT(run(rank, group, &call, &err) != HD_OK && !strcmp(err.message, rows[k].says), "%s instead of %s",
               err.message, rows[k].says);
        EXPECT(!hd__store_barrier(rank->store, "row", hd__now() + 20, &err), "%s", err.message);
    }
    return 0;
}

static int hooks_have_streams_of_their_own(struct rank *rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__hook_context context = {.host = hd__store_host_table(),
                                       .world = &(struct hd_world){.struct_size = sizeof(struct hd_world)}};
    struct hd__comm full = {.ops = *rank->ops, .comm = rank->comm, .n_hooks = HD__HOOKS_MAX};
    for (int i = 0; i < HD__HOOKS_MAX; i++)
        if (wrap(rank, "check", NULL)) /* each sends what the next one carries and compares nothing of */
            return 1;
    EXPECT(hd__comm_hook_wrap(&full, &own_ops, "own", NULL, &context, &err) == HD_E_UNSUPPORTED &&
               strstr(err.message, "more than 16 hooks"),
           "%s", err.message);
    return valid_calls(rank);
}

HOOK_TEST(dropped_until_abort, abort_ends_dropped_ones, 2)
HOOK_TEST(dropped_until_late, a_dropped_one_is_late, 2)
HOOK_TEST(holding, held_ones_come, 2 + _i)
HOOK_TEST(recorder, the_recorder_says_what_is_done, 2)
HOOK_TEST(failures_stay, an_end_hides_no_failure, 2)
HOOK_TEST(silence, a_silent_hook_is_named, 2)
HOOK_TEST(streams, hooks_have_streams_of_their_own, 2)

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("hook engine");
    transport_name = argc > 1 ? argv[1] : transport_name;
    transport_folder = argc > 2 ? argv[2] : transport_folder;
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, dropped_until_abort);
    tcase_add_test(tc, dropped_until_late);
    tcase_add_loop_test(tc, holding, 0, 3);
    tcase_add_test(tc, recorder);
    tcase_add_test(tc, failures_stay);
    tcase_add_test(tc, silence);
    tcase_add_test(tc, streams);
    return suite_run_case("hook engine", tc);
}
