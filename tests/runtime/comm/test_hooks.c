/* The hooks around a transport: check finds what breaks the contract, faults makes it break, trace and perf see what
 * happens. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/runtime/comm/hooked.h"
#include "tests/suite.h"

static char folder[] = "/tmp/heddle-hooks-XXXXXX";

/* ---- check */

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
    call[5].send = (char *)hook_data[0] + 1;
    call[6].coll = HD_COLL_ALL_TO_ALL;
    call[6].recv = hook_data[0];
    if (wrap(rank, "check", NULL) || group_of_all(rank, "world", &group))
        return 1;
    for (int i = 0; i < 7; i++)
        EXPECT(rank->ops->collective(group, &call[i], &request, &err) == HD_E_INVALID && strstr(err.message, says[i]),
               "%d: %s", i, err.message);
    EXPECT(rank->ops->send(group, rank->size, 0, hook_data[0], 4, &request, &err) == HD_E_INVALID &&
               strstr(err.message, "not a member"),
           "%s", err.message);
    /* A buffer that is read by one that is under way may be read by another, but not written. */
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
        hook_data[0][1999] = 3;
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

static int a_mismatch_is_named(struct rank *rank)
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

/* ---- trace, perf */

static int is_seen(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm_call call = sum(0, 1, 1000), little = sum(0, 1, 1), byte = sum(0, 1, 1), empty = sum(0, 1, 0);
    byte.dtype = HD_U8;
    if (wrap(rank, "trace", "most=25") || wrap(rank, "perf", NULL) || group_of_all(rank, "world", &group))
        return 1;
    for (int i = 0; i < 20; i++)
        EXPECT(!run(rank, group, &call, &err), "%s", err.message);
    for (int i = 0; i < 10; i++)
        EXPECT(!run(rank, group, &little, &err), "%s", err.message);
    EXPECT(!run(rank, group, &byte, &err), "%s", err.message);
    EXPECT(!run(rank, group, &empty, &err), "%s", err.message);
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
    ck_assert_int_eq(number(json_object_get(trace, "otherData"), "not_kept"), 7);
    for (size_t i = 1; i < json_array_size(events); i += 2) {
        const json_t *b = json_array_get(events, i), *e = json_array_get(events, i + 1);
        ck_assert_str_eq(json_string_value(json_object_get(b, "name")), "all_reduce");
        ck_assert_str_eq(json_string_value(json_object_get(b, "cat")), "world");
        ck_assert_int_eq(number(b, "id"), number(e, "id"));
        ck_assert_int_eq(number(b, "id") >> 32, rank);
        ck_assert_double_le(json_number_value(json_object_get(b, "ts")), json_number_value(json_object_get(e, "ts")));
        ck_assert_int_eq(number(json_object_get(b, "args"), "seq"), (json_int_t)(i + 1) / 2);
    }
    ck_assert_uint_eq(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        static const int wanted[4][3] = {{1, 0, 0}, {1, 1, 1}, {10, 40, 4}, {20, 80000, 4096}};
        ck_assert_int_eq(number(json_array_get(rows, i), "calls"), wanted[i][0]);
        ck_assert_int_eq(number(json_array_get(rows, i), "bytes"), wanted[i][1]);
        ck_assert_int_eq(number(json_array_get(rows, i), "up_to_bytes"), wanted[i][2]);
    }
    json_decref(trace);
    json_decref(perf);
}

/* ---- the suite */

HOOK_TEST(check_lets_valid_calls_pass, valid_calls_pass, 2 + _i)
HOOK_TEST(check_refuses_broken_calls, broken_calls_are_refused, 2)
HOOK_TEST(check_sees_touched_buffers, a_touched_buffer_is_named, 2)
START_TEST(check_names_a_mismatch)
{
    struct ranks_options o = {.size = 3, .timeout = 30, .dead_after = 30};
    turn = _i;
    said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(said, MAP_FAILED);
    ck_assert_int_eq(run_ranks(&o, a_mismatch_is_named, NULL), 0);
    expect_named();
    munmap(said, sizeof *said);
}
END_TEST

HOOK_TEST(faults_fail, a_failure_is_a_failure, 2)
HOOK_TEST(faults_delay, a_delay_only_delays, 2)

START_TEST(trace_and_perf)
{
    struct ranks_options o = {.size = 2, .timeout = 30};
    ck_assert_ptr_nonnull(mkdtemp(folder));
    hook_folder = folder;
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
    tcase_add_loop_test(tc, check_names_a_mismatch, 0, (int)HD__COUNT(turns));
    tcase_add_test(tc, faults_fail);
    tcase_add_test(tc, faults_delay);
    tcase_add_test(tc, trace_and_perf);
    return suite_run_case("hooks", tc);
}
