/* Hooks around a transport: check finds what breaks the contract, faults makes it break, trace and perf see what
 * happens, count holds operations back; and what the core does beside them. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/option.h"
#include "core/plugin/plugin.h"
#include "runtime/comm/hook.h"
#include "runtime/rendezvous/host_store.h"
#include "runtime/rendezvous/liveness.h"
#include "tests/runtime/comm/ranks.h"
#include "tests/suite.h"

static char folder[] = "/tmp/heddle-hooks-XXXXXX";
static float data[4][4096];

/* Another rank gave up. */
static void on_end(void *user, const char *cause)
{
    struct rank *rank = user;
    rank->ops->abort(rank->comm, cause);
}

static int wrap_with(struct rank *rank, const struct hd_hook_ops *ops, const char *name, const void *settings,
                     struct hd__flight *flight)
{
    static struct hd_world world;
    static struct hd__comm open[HD__HOOKS_MAX + 1]; /* read until the rank ends */
    static int n_open;
    struct hd__hook_context context = {.host = hd__store_host_table(),
                                       .world = &world,
                                       .flight = flight,
                                       .folder = folder,
                                       .transport = transport_name};
    struct hd__comm *around = &open[n_open++];
    struct hd_error err = HD_ERROR_INIT;
    world =
        (struct hd_world){.struct_size = sizeof world, .rank = rank->rank, .size = rank->size, .store = rank->store};
    *around = (struct hd__comm){.ops = *rank->ops, .comm = rank->comm, .n_hooks = (uint32_t)n_open - 1};
    EXPECT(!hd__comm_hook_wrap(around, ops, name, settings, &context, &err), "%s", err.message);
    rank->ops = &around->ops;
    rank->comm = around->comm;
    hd__store_liveness_notify(hd__store_liveness(rank->store), on_end, rank);
    return 0;
}

/* Puts a hook around the rank's transport; `words` are its options. */
static int wrap(struct rank *rank, const char *name, const char *words)
{
    static struct hd__arena arena;
    static struct hd__plugins *plugins;
    const struct hd__component *component = NULL;
    struct hd_error err = HD_ERROR_INIT;
    plugins = plugins ? plugins : hd__plugins_create(hd__store_host_table());
    EXPECT(!hd__plugins_add_folder(plugins, PLUGINS, &err), "%s", err.message);
    EXPECT(!hd__plugins_add_folder(plugins, TEST_PLUGINS, &err), "%s", err.message);
    EXPECT(!hd__plugin_find(plugins, HD_KIND_HOOK, name, &component, &err), "%s", err.message);
    struct hd__options table = {component->options, component->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_alloc(&arena, component->settings_size + 1);
    EXPECT(!hd__options_defaults(&table, settings, &arena, &err), "%s", err.message);
    char key[32], value[32];
    for (int used; words && sscanf(words, " %31[^=]=%31s%n", key, value, &used) == 2; words += used) {
        struct hd_option o = hd__option_at(&table, (size_t)hd__option_find(&table, key));
        EXPECT(!hd__option_parse(&o, value, settings, &arena, &err), "%s", err.message);
    }
    return wrap_with(rank, &component->ops.hook, component->name, settings, NULL);
}

static int group_of_all(struct rank *rank, const char *name, struct hd_comm_group **group)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t ranks[8];
    for (int32_t i = 0; i < rank->size; i++)
        ranks[i] = i;
    EXPECT(!rank->ops->group(rank->comm, name, ranks, rank->size, group, &err), "%s", err.message);
    return 0;
}

static struct hd_comm_call sum(int from, int to, uint64_t count)
{
    return (struct hd_comm_call){.struct_size = sizeof(struct hd_comm_call),
                                 .coll = HD_COLL_ALL_REDUCE,
                                 .dtype = HD_F32,
                                 .redop = HD_SUM,
                                 .send = data[from],
                                 .recv = data[to],
                                 .count = count,
                                 .tag = 7};
}

static int32_t run(struct rank *rank, struct hd_comm_group *group, const struct hd_comm_call *call,
                   struct hd_error *err)
{
    hd_request request;
    int32_t code = rank->ops->collective(group, call, &request, err);
    return code ? code : rank->ops->wait(rank->comm, request, hd__now() + rank->timeout, err);
}

/* ---- check */

static int valid_calls(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    if (group_of_all(rank, "world", &group))
        return 1;
    for (uint64_t count = 0; count <= 4096; count = count * 3 + 1) {
        struct hd_comm_call call = sum(0, count % 2 ? 1 : 0, count); /* in place too */
        hd_request message[2];
        for (uint64_t i = 0; i < count; i++)
            data[0][i] = (float)rank->rank + 1;
        EXPECT(!run(rank, group, &call, &err), "%s", err.message);
        for (uint64_t i = 0; i < count; i++)
            EXPECT(((float *)call.recv)[i] == (float)(rank->size * (rank->size + 1) / 2), "%g",
                   (double)((float *)call.recv)[i]);
        EXPECT(!rank->ops->recv(group, (rank->rank + 1) % rank->size, 3, data[2], 100, &message[0], &err), "%s",
               err.message);
        EXPECT(!rank->ops->send(group, (rank->rank + rank->size - 1) % rank->size, 3, data[3], 100, &message[1], &err),
               "%s", err.message);
        for (int i = 0; i < 2; i++)
            EXPECT(!rank->ops->wait(rank->comm, message[i], hd__now() + rank->timeout, &err), "%s", err.message);
    }
    return 0;
}

static int valid_calls_pass(struct rank *rank)
{
    return wrap(rank, "check", NULL) || valid_calls(rank);
}

static int broken_calls_are_refused(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call[8] = {sum(0, 1, 4), sum(0, 1, 4), sum(0, 1, 4), sum(0, 1, 4),
                                   sum(0, 1, 4), sum(0, 1, 4), sum(0, 1, 4), sum(0, 1, 4)};
    static const char *const says[] = {
        "unknown collective", "unknown dtype", "unknown reduction",  "the root is not a member",
        "a buffer is NULL",   "not aligned",   "cannot be in place", NULL};
    hd_request request, other;
    call[0].coll = 40;
    call[1].dtype = 40;
    call[2].redop = 40;
    call[3].coll = HD_COLL_BROADCAST;
    call[3].root = rank->size;
    call[4].send = NULL;
    call[5].send = (char *)data[0] + 1;
    call[6].coll = HD_COLL_ALL_TO_ALL;
    call[6].recv = data[0];
    if (wrap(rank, "check", NULL) || group_of_all(rank, "world", &group))
        return 1;
    for (int i = 0; i < 7; i++)
        EXPECT(rank->ops->collective(group, &call[i], &request, &err) == HD_E_INVALID && strstr(err.message, says[i]),
               "%d: %s", i, err.message);
    EXPECT(rank->ops->send(group, rank->size, 0, data[0], 4, &request, &err) == HD_E_INVALID &&
               strstr(err.message, "not a member"),
           "%s", err.message);
    /* What is read by one that is under way may be read by another, but not written. */
    EXPECT(!rank->ops->collective(group, &call[7], &request, &err), "%s", err.message);
    call[6] = sum(2, 0, 4);
    EXPECT(rank->ops->collective(group, &call[6], &other, &err) == HD_E_INVALID &&
               strstr(err.message, "are in use by operation"),
           "%s", err.message);
    call[6] = sum(0, 2, 4);
    EXPECT(!rank->ops->collective(group, &call[6], &other, &err), "%s", err.message);
    EXPECT(!rank->ops->wait(rank->comm, request, hd__now() + rank->timeout, &err), "%s", err.message);
    EXPECT(!rank->ops->wait(rank->comm, other, hd__now() + rank->timeout, &err), "%s", err.message);
    EXPECT(rank->ops->wait(rank->comm, other, hd__now() + rank->timeout, &err) == HD_E_INVALID, "waited twice");
    return 0;
}

static int a_touched_buffer_is_named(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 2000);
    hd_request request;
    int32_t code;
    if (wrap(rank, "check", NULL) || group_of_all(rank, "world", &group))
        return 1;
    EXPECT(!rank->ops->collective(group, &call, &request, &err), "%s", err.message);
    if (rank->rank == 1)
        data[0][1999] = 3;
    code = rank->ops->wait(rank->comm, request, hd__now() + rank->timeout, &err);
    EXPECT(code == (rank->rank == 1 ? HD_E_INVALID : HD_OK), "%d: %s", code, err.message);
    EXPECT(rank->rank != 1 || strstr(err.message, "send buffer was changed before it completed"), "%s", err.message);
    EXPECT(!hd__store_barrier(rank->store, "end", hd__now() + 20, &err), "%s", err.message);
    return 0;
}

/* ---- faults under check: the members' calls are named side by side, whatever the transport compares itself */

static struct {
    char named[1100], noticed[1100];
} * said; /* shared by the ranks */

static const char *const turns[] = {"size", "dtype", "redop", "root", "op"};
static int turn;

static int a_wrong_turn_is_named(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 500);
    char words[64];
    int32_t code = HD_OK;
    snprintf(words, sizeof words, "rank=1 at=5 kind=%s", turns[turn]);
    if (wrap(rank, "check", NULL) || wrap(rank, "faults", words) || group_of_all(rank, "world", &group))
        return 1;
    for (int i = 1; i < 30 && !code;
         i++) { /* where the sizes fit, the operation itself may be through before it is found */
        call.coll = i == 5 && !strcmp(turns[turn], "root") ? HD_COLL_BROADCAST : HD_COLL_ALL_REDUCE;
        code = run(rank, group, &call, &err);
    }
    EXPECT(code != HD_OK, "nobody noticed");
    if (code == HD_E_MISMATCH)
        snprintf(strstr(err.message, " differs: ") ? said->named : said->noticed, sizeof said->named, "%s",
                 err.message);
    hd__store_abort(rank->store, "they differ"); /* as a job does: who finds it tells the others */
    return 0;
}

static void expect_named(void)
{
    /* A transport that meets with a wrong size before the signature is there says that. */
    int late = strcmp(transport_name, "shm") && strcmp(turns[turn], "dtype") && strcmp(turns[turn], "redop");
    if (!*said->named && late)
        ck_assert_str_ne(said->noticed, "");
    else
        ck_assert_msg(strstr(said->named, "rank 1 has") && strstr(said->named, "operation 5 of group world"), "%s",
                      said->named);
}

static int a_failure_is_a_failure(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 500);
    if (wrap(rank, "faults", "rank=0 at=2 kind=fail") || group_of_all(rank, "world", &group))
        return 1;
    EXPECT(!run(rank, group, &call, &err), "%s", err.message);
    if (rank->rank == 0) {
        EXPECT(run(rank, group, &call, &err) == HD_E_IO && strstr(err.message, "made to fail"), "%s", err.message);
        EXPECT(!run(rank, group, &call, &err), "the next one is like any other: %s", err.message);
    } else {
        EXPECT(!run(rank, group, &call, &err), "%s", err.message);
    }
    return 0;
}

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

static int a_delay_only_delays(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 500);
    double began;
    if (wrap(rank, "faults", "rank=1 at=1 kind=delay seconds=0.2s") || group_of_all(rank, "world", &group))
        return 1;
    began = hd__now();
    EXPECT(!run(rank, group, &call, &err), "%s", err.message);
    EXPECT(rank->rank != 1 || hd__now() - began >= 0.2, "%g s", hd__now() - began);
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
    int32_t says;
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
    (void)hook, (void)op, (void)code, (void)err;
    return HD_OK;
}

static const struct hd_hook_ops own_ops = {
    .struct_size = sizeof own_ops, .open = own_open, .close = own_close, .begin = own_begin, .end = own_end};

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

/* ---- trace, perf */

static int is_seen(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 1000), little = sum(0, 1, 1);
    if (wrap(rank, "trace", "most=25") || wrap(rank, "perf", NULL) || group_of_all(rank, "world", &group))
        return 1;
    for (int i = 0; i < 20; i++)
        EXPECT(!run(rank, group, &call, &err), "%s", err.message);
    for (int i = 0; i < 10; i++)
        EXPECT(!run(rank, group, &little, &err), "%s", err.message);
    return 0; /* files are written when it closes */
}

static json_t *read_json(const char *name, int rank)
{
    char path[128];
    json_error_t why;
    snprintf(path, sizeof path, "%s/%s-%s-rank%d.json", folder, name, transport_name, rank);
    json_t *json = json_load_file(path, 0, &why);
    ck_assert_msg(json != NULL, "%s: %s", path, why.text);
    unlink(path);
    return json;
}

static json_int_t number(const json_t *of, const char *key)
{
    return json_integer_value(json_object_get(of, key));
}

static void expect_seen(int rank)
{
    json_t *trace = read_json("trace", rank), *perf = read_json("perf", rank);
    json_t *events = json_object_get(trace, "traceEvents"), *rows = json_object_get(perf, "rows");
    ck_assert_uint_eq(json_array_size(events), 1 + 2 * 25);
    ck_assert_int_eq(number(json_object_get(trace, "otherData"), "not_kept"), 5);
    for (size_t i = 1; i < json_array_size(events); i += 2) {
        const json_t *b = json_array_get(events, i), *e = json_array_get(events, i + 1);
        ck_assert_str_eq(json_string_value(json_object_get(b, "name")), "all_reduce");
        ck_assert_str_eq(json_string_value(json_object_get(b, "cat")), "world");
        ck_assert_int_eq(number(b, "id"), number(e, "id"));
        ck_assert_int_eq(number(b, "id") >> 32, rank);
        ck_assert_double_le(json_number_value(json_object_get(b, "ts")), json_number_value(json_object_get(e, "ts")));
        ck_assert_int_eq(number(json_object_get(b, "args"), "seq"), (json_int_t)(i + 1) / 2);
    }
    ck_assert_uint_eq(json_array_size(rows), 2);
    ck_assert_int_eq(number(json_array_get(rows, 0), "calls"), 10);
    ck_assert_int_eq(number(json_array_get(rows, 0), "up_to_bytes"), 4);
    ck_assert_int_eq(number(json_array_get(rows, 1), "calls"), 20);
    ck_assert_int_eq(number(json_array_get(rows, 1), "bytes"), 80000);
    ck_assert_int_eq(number(json_array_get(rows, 1), "up_to_bytes"), 4096);
    json_decref(trace);
    json_decref(perf);
}

/* ---- the suite */

#define HOOK_TEST(name, body, ranks)                                               \
    START_TEST(name)                                                               \
    {                                                                              \
        struct ranks_options o = {.size = ranks, .timeout = 30, .dead_after = 30}; \
        ck_assert_int_eq(run_ranks(&o, body, NULL), 0);                            \
    }                                                                              \
    END_TEST

HOOK_TEST(check_lets_valid_calls_pass, valid_calls_pass, 2 + _i)
HOOK_TEST(check_refuses_broken_calls, broken_calls_are_refused, 2)
HOOK_TEST(check_sees_touched_buffers, a_touched_buffer_is_named, 2)
START_TEST(check_names_a_wrong_turn)
{
    struct ranks_options o = {.size = 3, .timeout = 30, .dead_after = 30};
    turn = _i;
    said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(said, MAP_FAILED);
    ck_assert_int_eq(run_ranks(&o, a_wrong_turn_is_named, NULL), 0);
    expect_named();
    munmap(said, sizeof *said);
}
END_TEST

HOOK_TEST(faults_fail, a_failure_is_a_failure, 2)
HOOK_TEST(faults_drop_until_abort, abort_ends_dropped_ones, 2)
HOOK_TEST(faults_drop_until_late, a_dropped_one_is_late, 2)
HOOK_TEST(faults_delay, a_delay_only_delays, 2)

HOOK_TEST(holding, held_ones_come, 2 + _i)
HOOK_TEST(recorder, the_recorder_says_what_is_done, 2)
HOOK_TEST(failures_stay, an_end_hides_no_failure, 2)
HOOK_TEST(streams, hooks_have_streams_of_their_own, 2)

START_TEST(trace_and_perf)
{
    struct ranks_options o = {.size = 2, .timeout = 30};
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(run_ranks(&o, is_seen, NULL), 0);
    for (int r = 0; r < 2; r++)
        expect_seen(r);
    rmdir(folder);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("hooks");
    transport_name = argc > 1 ? argv[1] : transport_name;
    transport_folder = argc > 2 ? argv[2] : transport_folder;
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, check_lets_valid_calls_pass, 0, 3);
    tcase_add_test(tc, check_refuses_broken_calls);
    tcase_add_test(tc, check_sees_touched_buffers);
    tcase_add_loop_test(tc, check_names_a_wrong_turn, 0, (int)HD__COUNT(turns));
    tcase_add_test(tc, faults_fail);
    tcase_add_test(tc, faults_drop_until_abort);
    tcase_add_test(tc, faults_drop_until_late);
    tcase_add_test(tc, faults_delay);
    tcase_add_loop_test(tc, holding, 0, 3);
    tcase_add_test(tc, recorder);
    tcase_add_test(tc, failures_stay);
    tcase_add_test(tc, streams);
    tcase_add_test(tc, trace_and_perf);
    return suite_run_case("hooks", tc);
}
