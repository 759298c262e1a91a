/* Who says what when a job ends: by the identity of failures, whatever their texts. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/liveness.h"
#include "service/report/speaker.h"
#include "tests/suite.h"

static struct hd__server *server;
static struct hd__speaker speaker[2];
static char said[4096];

/* So that the server need not wait for what the ranks were doing. */
static size_t write_dump(void *user, char *out, size_t room)
{
    (void)user;
    return (size_t)snprintf(out, room, "{}");
}

static void open_job(int shared_log)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server_options o = {.address = "127.0.0.1", .size = 2, .rank = -1, .dead_after = 20};
    hd__store_secret_generate(o.secret);
    ck_assert_int_eq(hd__server_open(&o, &server, &err), HD_OK);
    for (int r = 0; r < 2; r++) {
        struct hd__store_options c = {
            .host = "127.0.0.1", .port = hd__server_port(server), .rank = r, .size = 2, .dead_after = 20};
        memcpy(c.secret, o.secret, sizeof c.secret);
        struct hd__store_status_provider provider = {.write_dump = write_dump};
        speaker[r] = (struct hd__speaker){.rank = r, .shared_log = shared_log, .phase = 3};
        ck_assert_int_eq(hd__store_connect(&c, hd__now() + 10, &speaker[r].store, &err), HD_OK);
        hd__store_set_status_provider(speaker[r].store, &provider);
    }
}

static void close_job(void)
{
    for (int r = 0; r < 2; r++)
        hd__store_close(speaker[r].store);
    hd__server_close(server);
}

/* The rank fails, or where there is no error is inside a call as the job ends; what it prints is in `said`. Returns the
 * exit code. */
static int fails(int rank, struct hd_error *err, int opening)
{
    int before = dup(STDERR_FILENO), code;
    FILE *f = tmpfile();
    ck_assert(before >= 0 && f);
    dup2(fileno(f), STDERR_FILENO);
    code = err ? hd__speaker_fail(&speaker[rank], err, opening) : hd__speaker_abandon(&speaker[rank], "opening");
    dup2(before, STDERR_FILENO);
    rewind(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    fclose(f);
    close(before);
    return code;
}

static struct hd_error failure(int32_t code, uint64_t origin, const char *text)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_fail(&err, code, "%s", text);
    err.origin = origin;
    return err;
}

static void expect_said(const char *words)
{
    ck_assert_msg(*words ? strstr(said, words) != NULL : !*said, "it said \"%s\" and not \"%s\"", said, words);
}

static int has_heard(int rank)
{
    for (double until = hd__now() + 10; hd__now() < until; usleep(1000))
        if (hd__store_liveness_check(hd__store_liveness(speaker[rank].store), NULL, NULL))
            return 1;
    return 0;
}

/* Rank 0 gives up for a failure of its own; then rank 1 fails. */
static const struct {
    int32_t code;
    int same; /* it has rank 0's origin */
    const char *text, *says;
} later[] = {
    {HD_E_IO, 0, "disk full", "error: disk full\n"}, /* the same text, and another failure */
    {HD_E_IO, 1, "rank 0: disk f",
     "error: rank 0 gave up, so this rank ends\n"}, /* the same failure, and another text */
    {HD_E_CANCELLED, 0, "aborted", "error: rank 0 gave up, so this rank ends\n"},
    {HD_E_PEER, 0, "it is gone", "error: rank 0 gave up, so this rank ends\n"},
    {HD_E_TIMEOUT, 0, "no sign of rank 0", "error: rank 0 gave up, so this rank ends\n"},
    {HD_E_MISMATCH, 0, "ranks differ", "error: rank 0 gave up, so this rank ends\n"},
    {HD_E_INVALID, 0, "rank 0: disk full", "error: rank 0: disk full\n"},
};

START_TEST(after_the_start)
{
    struct hd_error first = failure(HD_E_IO, 0, "disk full"), then, end = HD_ERROR_INIT;
    open_job(1);
    ck_assert_int_eq(fails(0, &first, 0), 1);
    expect_said("error: disk full\n");
    ck_assert(has_heard(1));
    hd__store_liveness_check(hd__store_liveness(speaker[1].store), NULL, &end);
    then = failure(later[_i].code, later[_i].same ? end.origin : 0, later[_i].text);
    ck_assert_int_eq(fails(1, &then, 0), 1);
    expect_said(later[_i].says);
    close_job();
}
END_TEST

/* Two that are found alike, at one point of the job and at two. */
START_TEST(found_by_all)
{
    for (uint32_t number = 7; number < 9; number++) {
        struct hd_error a = failure(HD_E_INVALID, hd__speaker_shared(&speaker[0], 7), "step 7: block L0"),
                        b = failure(HD_E_INVALID, hd__speaker_shared(&speaker[0], number), "step 7: block L1");
        open_job(1);
        ck_assert_int_eq(fails(1, &b, 0), 1);
        expect_said("error: step 7: block L1");
        ck_assert_int_eq(fails(0, &a, 0), 1);
        expect_said(number == 7 ? "error: rank 1 gave up, so this rank ends\n" : "error: step 7: block L0\n");
        close_job();
    }
}
END_TEST

/* Before the first step: one says it where both write to one log, both where each has its own. */
START_TEST(refusals)
{
    static const struct {
        int shared_log;
        int32_t code;
        uint32_t phase; /* of rank 1: rank 0's is 3 */
        const char *text, *says;
    } rows[] = {
        {1, HD_E_INVALID, 3, "job.yaml:1:1: no such key", ""},
        {1, HD_E_INVALID, 3, "another text", ""},
        {1, HD_E_INVALID, 4, "job.yaml:1:1: no such key", "job.yaml:1:1: no such key"},
        {1, HD_E_CORRUPT, 3, "job.yaml:1:1: no such key", "job.yaml:1:1: no such key"},
        {1, HD_E_CANCELLED, 4, "rank 0: job.yaml:1:1: no such key", ""},
        {0, HD_E_INVALID, 3, "job.yaml:1:1: no such key", "job.yaml:1:1: no such key"},
        {0, HD_E_CANCELLED, 4, "aborted", "rank 0: job.yaml:1:1: no such key"},
        {1, HD_E_IO, 4, "memory of rank 0 cannot be mapped", ""},
        {0, HD_E_IO, 4, "memory of rank 0 cannot be mapped", "error: rank 0: job.yaml:1:1: no such key\n"},
    };
    struct hd_error first = failure(HD_E_INVALID, 0, "job.yaml:1:1: no such key"),
                    then = failure(rows[_i].code, 0, rows[_i].text);
    ck_assert_int_lt(_i, HD__COUNT(rows));
    open_job(rows[_i].shared_log);
    ck_assert_int_eq(fails(0, &first, 1), 2);
    expect_said("job.yaml:1:1: no such key");
    speaker[1].phase = rows[_i].phase;
    ck_assert_int_eq(fails(1, &then, 1), 2);
    expect_said(rows[_i].says);
    close_job();
}
END_TEST

/* Failures of the start that are no refusal: another rank is late or gone, ranks met and differ, another failed. */
START_TEST(failed_starts)
{
    struct hd_error late = failure(HD_E_TIMEOUT, 0, "no sign of rank 1"), differ = failure(HD_E_MISMATCH, 0, "differ"),
                    full = failure(HD_E_NOMEM, 0, "no memory");
    open_job(0);
    ck_assert_int_eq(fails(0, &late, 1), 1);
    expect_said("error: no sign of rank 1\n");
    ck_assert_int_eq(fails(1, &full, 1), 1);
    close_job();
    open_job(0);
    speaker[0].barrier_failed = 1;
    ck_assert_int_eq(fails(0, &differ, 1), 1);
    close_job();
}
END_TEST

START_TEST(abandoned_calls)
{
    struct hd_error refusal = failure(HD_E_INVALID, 0, "no such key"), full = failure(HD_E_IO, 0, "disk full");
    for (int shared_log = 0; shared_log < 2; shared_log++) {
        open_job(shared_log);
        ck_assert_int_eq(fails(0, &refusal, 1), 2);
        ck_assert(has_heard(1));
        ck_assert_int_eq(fails(1, NULL, 1), 2);
        expect_said(shared_log ? "" : "error: rank 0: no such key, so this rank ends, while opening\n");
        close_job();
    }
    open_job(1);
    ck_assert_int_eq(fails(0, &full, 0), 1);
    ck_assert(has_heard(1));
    ck_assert_int_eq(fails(1, NULL, 1), 1);
    expect_said("error: rank 0: disk full, so this rank ends, while opening\n");
    close_job();
}
END_TEST

/* Alone: nobody to tell. */
START_TEST(one_rank)
{
    struct hd_error refusal = failure(HD_E_NOMEM, 0, "no memory"), full = failure(HD_E_IO, 0, "disk full");
    speaker[0] = (struct hd__speaker){.phase = 1};
    ck_assert_int_eq(fails(0, &refusal, 1), 2);
    expect_said("error: no memory\n");
    snprintf(full.where, sizeof full.where, "L0 #3");
    ck_assert_int_eq(fails(0, &full, 0), 1);
    expect_said("error: disk full; at L0 #3\n");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("speaker");
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, after_the_start, 0, HD__COUNT(later));
    tcase_add_test(tc, found_by_all);
    tcase_add_loop_test(tc, refusals, 0, 9);
    tcase_add_test(tc, failed_starts);
    tcase_add_test(tc, abandoned_calls);
    tcase_add_test(tc, one_rank);
    return suite_run_case("speaker", tc);
}
