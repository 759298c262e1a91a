/* Reports: who is blamed, by parts made here; a recorder's part and back; files, merged and broken. */
#include <check.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "service/report/diagnose.h"
#include "service/report/report.h"
#include "tests/suite.h"

static json_t *report;
static struct hd__report_diagnosis verdict;

static void begin(int ranks)
{
    json_t *all = json_array();
    for (int r = 0; r < ranks; r++)
        json_array_append_new(all, json_pack("{s:i, s:s}", "rank", r, "state", "silent"));
    report =
        json_pack("{s:s, s:s, s:i, s:n, s:o}", "kind", "heddle report", "job", "j", "ranks", ranks, "end", "rank", all);
}

static json_t *rank_of(int r)
{
    return json_array_get(json_object_get(report, "rank"), (size_t)r);
}

static void answers(int r, const char *at)
{
    json_t *channels = json_pack("[{s:s, s:s, s:i}, {s:s, s:s, s:i}]", "group", "dp", "ranks", "0,1,2", "count", 0,
                                 "group", "tp", "ranks", "0,1,2", "count", 0);
    json_object_update_new(rank_of(r),
                           json_pack("{s:s, s:s, s:i, s:i, s:o, s:o}", "state", "answered", "at", at, "waiting", 0,
                                     "operations", 0, "channels", channels, "ops", json_array()));
}

/* Channel 2: messages from rank 0 to rank 1. */
static void has_stages(int r)
{
    json_array_append_new(json_object_get(rank_of(r), "channels"),
                          json_pack("{s:s, s:s, s:i, s:i, s:i, s:i}", "group", "pp", "ranks", "0,1", "count", 0, "from",
                                    0, "to", 1, "stream", 3));
}

/* The rank's next operation; waited >= 0: it waits for it. */
static json_t *op(int r, int channel, int seq, const char *name, int count, double waited)
{
    json_t *ops = json_object_get(rank_of(r), "ops"), *one;
    json_int_t n = (json_int_t)json_array_size(ops) + 1;
    one = json_pack("{s:I, s:i, s:i, s:s, s:s, s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "n", n, "channel",
                    channel, "seq", seq, "op", name, "section", "micro", "instruction", 7 * seq, "block", "L0", "dtype",
                    "fp32", "redop", "sum", "root", -1, "count", count, "bytes", 4 * count, "calls", 1, "tag", seq,
                    "enqueued", 100.0 - seq);
    if (waited >= 0) {
        json_object_set_new(one, "waited", json_real(waited));
        json_object_set_new(rank_of(r), "waiting", json_integer(n));
    } else {
        json_object_set_new(one, "completed", json_real(1));
    }
    json_array_append_new(ops, one);
    json_object_set_new(rank_of(r), "operations", json_integer(n));
    return one;
}

static void ends(const char *code, int rank, const char *cause)
{
    json_object_set_new(report, "end", json_pack("{s:s, s:i, s:s}", "code", code, "rank", rank, "cause", cause));
}

static void expect(int kind, int rank, const char *words)
{
    hd__report_diagnose(report, &verdict);
    ck_assert_msg(verdict.kind == kind && verdict.rank == rank && strstr(verdict.summary, words), "%s, rank %d: %s",
                  hd__report_diagnosis_name(verdict.kind), verdict.rank, verdict.summary);
    json_decref(report);
}

START_TEST(nobody_waits)
{
    begin(2);
    answers(0, "here");
    answers(1, "there");
    op(0, 0, 1, "all_reduce", 10, -1);
    op(1, 0, 1, "all_reduce", 10, -1);
    expect(HD__DIAGNOSIS_NONE, -1, "");
}
END_TEST

START_TEST(one_is_late)
{
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, r == 2 ? "section micro, instruction 3: feed" : "waiting");
        op(r, 0, 1, "all_reduce", 10, -1);
    }
    op(0, 0, 2, "reduce_scatter", 10, 20.04);
    op(1, 0, 2, "reduce_scatter", 10, 12);
    expect(HD__DIAGNOSIS_LATE, 2,
           "rank 2 is 20.0 s late at #14 reduce_scatter(dp) fp32 sum count 10 of section micro, for which rank 0 "
           "waits; it is at: section micro, instruction 3: feed");
}
END_TEST

/* 0 waits for 1, which waits for 2 somewhere else, which waits for nobody. */
START_TEST(one_is_late_behind_another)
{
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, "here");
        has_stages(r);
    }
    op(0, 2, 1, "recv", 10, 30);
    op(1, 1, 1, "all_gather", 10, 29);
    expect(HD__DIAGNOSIS_LATE, 2, "#7 all_gather(tp)");
}
END_TEST

/* All have begun it; rank 2 does something else, and the transport moves only when it is called. */
START_TEST(one_went_away)
{
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, r == 2 ? "instruction 3: feed" : "waiting");
        json_object_del(op(r, 0, 1, "all_reduce", 10, r == 2 ? -1 : 4), "completed");
    }
    expect(HD__DIAGNOSIS_LATE, 2, "rank 2 is 4.0 s late at #7 all_reduce(dp)");
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, "waiting");
        op(r, 0, 1, "all_reduce", 10, r == 2 ? -1 : 4);
    }
    expect(HD__DIAGNOSIS_STUCK, -1, "which all members have begun"); /* rank 2 is done with it */
}
END_TEST

/* Nobody waits for an operation yet: who is inside a call keeps the others waiting, unless the job ended otherwise. */
START_TEST(one_is_inside_a_call)
{
    for (int k = 0; k < 4; k++) {
        begin(3);
        for (int r = 0; r < 3; r++)
            answers(r, r == 1 ? "opening comm-libfabric" : "creating groups");
        json_object_set_new(rank_of(1), "call", json_real(10.04));
        json_object_set_new(rank_of(2), "call", json_real(k == 1 ? 3 : 0));
        if (k >= 2)
            ends(hd_code_name(k == 2 ? HD_E_TIMEOUT : HD_E_CANCELLED), 0, "rank 0: stopped");
        if (k < 3)
            expect(HD__DIAGNOSIS_LATE, 1,
                   k == 1 ? "rank 1 has been opening comm-libfabric for 10.0 s, and 1 other is inside such a call"
                          : "rank 1 has been opening comm-libfabric for 10.0 s");
        else
            expect(HD__DIAGNOSIS_FAILED, 0, "rank 0: stopped");
    }
}
END_TEST

/* A rank that never came keeps the others at the rendezvous, whatever call they have been in for long. */
START_TEST(one_never_came)
{
    for (int k = 0; k < 4; k++) {
        begin(4);
        for (int r = 0; r < 4; r++)
            if (r != 2 && (r != 3 || k != 1))
                answers(r, "the rendezvous: creating groups");
            else
                json_object_set_new(rank_of(r), "state", json_string("never came"));
        json_object_set_new(rank_of(0), "call", json_real(10.04));
        if (k >= 2)
            ends(hd_code_name(k == 2 ? HD_E_TIMEOUT : HD_E_CANCELLED), 0, "rank 0: stopped");
        if (k < 3)
            expect(HD__DIAGNOSIS_SILENT, 2,
                   k == 1 ? "rank 2, and 1 more, never came to the rendezvous, where the others wait"
                          : "rank 2 never came to the rendezvous, where the others wait");
        else
            expect(HD__DIAGNOSIS_FAILED, 0, "rank 0: stopped");
    }
}
END_TEST

/* The launcher, which is no rank. */
START_TEST(the_launcher_died)
{
    begin(2);
    answers(0, "here");
    op(0, 0, 1, "all_reduce", 10, 6);
    ends(hd_code_name(HD_E_PEER), -1, "the launcher is gone (it is silent)");
    expect(HD__DIAGNOSIS_FAILED, -1, "the launcher is gone (it is silent)");
}
END_TEST

START_TEST(one_does_not_answer)
{
    begin(3);
    answers(0, "here");
    answers(1, "here");
    op(0, 0, 1, "all_reduce", 10, 6);
    op(1, 0, 1, "all_reduce", 10, 6);
    expect(HD__DIAGNOSIS_SILENT, 2, "rank 2 does not answer; rank 0 has waited 6.0 s");
}
END_TEST

START_TEST(one_died)
{
    begin(3);
    answers(0, "here");
    answers(2, "here");
    op(2, 0, 1, "all_reduce", 10, 0.1);
    ends("peer lost", 1, "rank 1 died (its connection closed)");
    expect(HD__DIAGNOSIS_DEAD, 1, "rank 1 died (its connection closed); rank 2 waited for it at #7 all_reduce(dp)");
}
END_TEST

/* Ranks that did not answer alike are one line where they are many. */
START_TEST(many_died)
{
    struct hd__text text = {0};
    begin(40);
    for (int r = 0; r < 40; r++)
        json_object_set_new(rank_of(r), "state", json_string("dead"));
    answers(20, "here");
    answers(22, "here");
    hd__report_summary(report, &text);
    ck_assert_msg(strstr(text.at, "  rank 15 dead\n  ranks 16 to 19 dead\n  rank 21 dead\n  ranks 23 to 39 dead\n  (40 "
                                  "ranks;") != NULL,
                  "%s", text.at);
    hd__text_free(&text);
    json_decref(report);
}
END_TEST

/* What differs, and on whom: the field of rank `odd`'s second operation is another. */
static const struct {
    const char *key, *text;
    int number;
} fields[] = {{"op", "all_gather", 0}, {"dtype", "bf16", 0}, {"redop", "max", 0}, {"count", NULL, 11},
              {"calls", NULL, 2},      {"root", NULL, 1},    {"tag", NULL, 99}};

START_TEST(one_diverges)
{
    for (int odd = 0; odd < 3; odd++) {
        char words[80];
        begin(3);
        for (int r = 0; r < 3; r++) {
            json_t *second;
            answers(r, "here");
            op(r, 0, 1, "all_reduce", 10, -1);
            second = op(r, 0, 2, "all_reduce", 10, 1);
            if (r == odd)
                json_object_set_new(second, fields[_i].key,
                                    fields[_i].text ? json_string(fields[_i].text) : json_integer(fields[_i].number));
        }
        snprintf(words, sizeof words, "rank %d diverged: collective mismatch: operation 2 of dp is ", odd);
        expect(HD__DIAGNOSIS_MISMATCH, odd, words);
    }
}
END_TEST

START_TEST(two_differ)
{
    begin(2);
    answers(0, "here");
    answers(1, "here");
    op(0, 0, 1, "all_reduce", 10, 1);
    op(1, 0, 1, "all_reduce", 12, 1);
    ends("mismatch", 1, "rank 1: they differ");
    expect(HD__DIAGNOSIS_MISMATCH, -1,
           "ranks 0 and 1 do not do the same: operation 1 of dp is #7 all_reduce(dp) fp32 sum count 10 in "
           "section micro on rank 0, and #7 all_reduce(dp) fp32 sum count 12 in section micro on rank 1");
}
END_TEST

START_TEST(a_message_of_another_size)
{
    for (int more = 0; more < 2; more++) {
        begin(2);
        for (int r = 0; r < 2; r++) {
            answers(r, "here");
            has_stages(r);
        }
        op(0, 2, 1, "send", 10, 1);
        op(1, 2, 1, "recv", 10 + more, 1);
        if (more)
            expect(HD__DIAGNOSIS_MISMATCH, -1, "send");
        else
            expect(HD__DIAGNOSIS_STUCK, -1, "all members have begun");
    }
}
END_TEST

/* Rank 1 goes to tp while the others go to dp: they wait for each other, and its numbering shows who strayed. */
START_TEST(one_joins_another_group)
{
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, "here");
        op(r, 0, 1, "all_reduce", 10, -1);
        op(r, r == 1, r == 1 ? 1 : 2, "all_reduce", 10, 3);
    }
    expect(HD__DIAGNOSIS_MISMATCH, 1, "rank 1 diverged: collective mismatch: its operation 2 is #7 all_reduce(tp)");
    begin(2);
    for (int r = 0; r < 2; r++) {
        answers(r, "here");
        op(r, r, 1, "all_reduce", 10, 3);
    }
    hd__report_diagnose(report, &verdict);
    ck_assert_int_eq(verdict.kind, HD__DIAGNOSIS_CYCLE);
    ck_assert_ptr_nonnull(strstr(verdict.summary, "ranks wait for each other: rank 1 for #7 all_reduce(tp)"));
    ck_assert_ptr_nonnull(strstr(verdict.summary, "rank 0 for #7 all_reduce(dp)"));
    json_decref(report);
}
END_TEST

START_TEST(a_reason_of_its_own)
{
    begin(2);
    answers(0, "here");
    op(0, 0, 1, "all_reduce", 10, 1);
    ends("invalid", 1, "rank 1: step 3: the loss is nan");
    expect(HD__DIAGNOSIS_FAILED, 1, "rank 1: step 3: the loss is nan");
}
END_TEST

/* Nothing that a part claims is counted up to. */
START_TEST(large_claims)
{
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, "here");
        op(r, r > 0, 1, "all_reduce", 10, 3);
        json_object_set_new(rank_of(r), "operations", json_integer(INT64_C(1) << 62));
    }
    hd__report_diagnose(report, &verdict);
    ck_assert_int_eq(verdict.kind, HD__DIAGNOSIS_MISMATCH);
    ck_assert_int_eq(verdict.rank, 0);
    json_decref(report);
    begin(2);
    for (int r = 0; r < 2; r++) {
        answers(r, "here");
        op(r, r, 1, "all_reduce", 10, 3);
        json_object_set_new(rank_of(r), "operations", json_integer(INT64_C(1) << 62));
    }
    hd__report_diagnose(report, &verdict);
    ck_assert_int_eq(verdict.kind, HD__DIAGNOSIS_CYCLE);
    json_decref(report);
    begin(3);
    for (int r = 0; r < 3; r++) {
        answers(r, "here");
        json_object_set_new(json_array_get(json_object_get(rank_of(r), "channels"), 0), "ranks",
                            json_string("0-2147483646+0-2147483646+0-2147483646"));
        op(r, 0, 1, "all_reduce", 10, 3);
    }
    expect(HD__DIAGNOSIS_STUCK, -1, "");
}
END_TEST

/* Groups as those of meshes are, and others: however large they are, whoever of them is late is named in a moment. */
static const struct {
    const char *text;
    int32_t n, count[3], step[3]; /* innermost first; step 0: the members' squares */
} groups[] = {{"0,1,2,3,4,5,6,7", 8, {8, 1, 1}, {1}},
              {"0-2999", 3000, {3000, 1, 1}, {1}},
              {"0-2999", 3000, {100, 30, 1}, {1, 100}},
              {"0-2992/8", 375, {375, 1, 1}, {8}},
              {"0-2984/8+0-1", 748, {2, 374, 1}, {1, 8}},
              {"0-1200/1200+0-900/100+0-18/2", 200, {10, 10, 2}, {2, 100, 1200}},
              {"0,1,4,9,16,25,36,49,64,81", 10, {10, 1, 1}, {0}}};

START_TEST(large_groups)
{
    enum { MANY = 3000 };
    static char text[65536];
    int32_t members[MANY], n = groups[_i].n;
    for (int32_t i = 0; i < n; i++) {
        int32_t rest = i;
        members[i] = groups[_i].step[0] ? 0 : i * i;
        for (int k = 0; k < 3; rest /= groups[_i].count[k++])
            members[i] += rest % groups[_i].count[k] * groups[_i].step[k];
    }
    for (int32_t odd = 0; odd < n; odd += HD__MAX(1, (n - 1) / 2)) {
        begin(MANY);
        for (int32_t i = 0; i < n; i++) {
            struct hd__flight *f = hd__comm_flight_create(8);
            struct hd__flight_op sum = {.name = "all_reduce",
                                        .section = "micro",
                                        .block = "",
                                        .root = -1,
                                        .channel = hd__comm_flight_channel(f, "dp", members, n, -1, -1, 0)};
            double now = hd__now();
            hd__comm_flight_end(f, hd__comm_flight_start(f, &sum, now - 20), now - 19, HD_OK);
            if (i != odd)
                hd__comm_flight_wait(f, hd__comm_flight_start(f, &sum, now - 12), now - 12);
            json_t *part = json_loadb(text, hd__report_rank_dump(f, members[i], "here", 0, text, sizeof text), 0, NULL);
            ck_assert_str_eq(
                json_string_value(json_object_get(json_array_get(json_object_get(part, "channels"), 0), "ranks")),
                groups[_i].text);
            json_object_set_new(part, "state", json_string("answered"));
            json_array_set_new(json_object_get(report, "rank"), (size_t)members[i], part);
            hd__comm_flight_destroy(f);
        }
        expect(HD__DIAGNOSIS_LATE, members[odd], " s late at #0 all_reduce(dp)");
    }
}
END_TEST

/* ---- a recorder's part, in little room too */

START_TEST(part_of_a_recorder)
{
    static const int32_t members[] = {0, 1, 2};
    static char text[65536];
    enum { MOST = 128 }; /* of liveness.operations */
    struct hd__flight *f = hd__comm_flight_create(MOST);
    struct hd__flight_op sum = {.name = "reduce_scatter",
                                .section = "a_section_of_a_strategy_with_a_long_name",
                                .block = "decoder.layers.1000.self_attention.experts",
                                .instr = 49000,
                                .dtype = HD_BF16,
                                .redop = HD_SUM,
                                .count = UINT64_C(1) << 50,
                                .bytes = UINT64_C(1) << 51,
                                .calls = 1000,
                                .root = -1,
                                .tag = UINT64_C(1) << 62,
                                .channel = hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0)};
    for (int i = 0; i < 200; i++) {
        uint64_t n = hd__comm_flight_start(f, &sum, hd__now() / 4);
        hd__comm_flight_wait(f, n, hd__now() / 3);
        if (i < 199)
            hd__comm_flight_end(f, n, hd__now() / 2, HD_OK);
    }
    for (size_t room = sizeof text; room > 300; room /= 2) {
        size_t bytes = hd__report_rank_dump(f, 1, "at home", 0, text, room);
        json_t *part = json_loadb(text, bytes, 0, NULL), *ops = json_object_get(part, "ops"), *last;
        ck_assert_msg(json_is_object(part), "%zu bytes of %zu: %.*s", bytes, room, (int)bytes, text);
        ck_assert_uint_le(bytes, room);
        ck_assert_int_eq(json_integer_value(json_object_get(part, "operations")), 200);
        ck_assert_int_eq(json_integer_value(json_object_get(part, "waiting")), 200);
        if (room == sizeof text)
            ck_assert_uint_eq(json_array_size(ops), MOST);
        last = json_array_get(ops, json_array_size(ops) - 1);
        if (json_array_size(ops)) { /* the newest are kept */
            ck_assert_int_eq(json_integer_value(json_object_get(last, "n")), 200);
            ck_assert_ptr_null(json_object_get(last, "completed"));
            ck_assert_ptr_nonnull(json_object_get(last, "waited"));
        }
        json_decref(part);
    }
    hd__comm_flight_destroy(f);
}
END_TEST

/* ---- files */

static void write_report(const char *path)
{
    ck_assert_int_eq(json_dump_file(report, path, 0), 0);
    json_decref(report);
}

static long write_calls(void) /* of this process so far; 0: the kernel does not count them */
{
    FILE *f = fopen("/proc/self/io", "r");
    char line[80];
    long n = 0;
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "syscw: %ld", &n);
    if (f)
        fclose(f);
    return n;
}

/* A failed job's file takes few calls, and the cause is said before it: here SIGXFSZ ends the process that writes. */
START_TEST(cause_before_file)
{
    enum { MANY = 32 };
    static const int32_t members[] = {0, 1, 2};
    static char dump[65536], said[16384];
    const char *dumps[MANY];
    uint8_t state[MANY];
    char folder[] = "/tmp/heddle-report-XXXXXX", cause[512], *path;
    struct hd__flight *f = hd__comm_flight_create(64);
    struct hd__flight_op sum = {.name = "all_reduce",
                                .section = "micro",
                                .block = "L0",
                                .calls = 1,
                                .channel = hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0)};
    f->step = 1;
    for (int i = 0; i < 64; i++)
        hd__comm_flight_end(f, hd__comm_flight_start(f, &sum, hd__now()), hd__now(), HD_OK);
    dump[hd__report_rank_dump(f, 0, "here", 0, dump, sizeof dump - 1)] = 0;
    hd__comm_flight_destroy(f);
    for (int r = 0; r < MANY; r++) {
        dumps[r] = dump;
        state[r] = HD__RANK_CONNECTED;
    }
    ck_assert_ptr_nonnull(mkdtemp(folder));
    struct hd__reporter reporter = {.job = "j", .folder = folder};
    struct hd__rank_dumps all = {
        .size = MANY, .code = HD_E_PEER, .rank = 5, .cause = "rank 5 died", .dump = dumps, .state = state};
    for (int killed = 0; killed < 2; killed++) {
        int fds[2], status;
        ssize_t n;
        size_t length = 0;
        ck_assert_int_eq(pipe(fds), 0);
        pid_t child = fork();
        if (!child) {
            long calls = write_calls();
            int32_t rank;
            dup2(fds[1], STDERR_FILENO);
            if (killed)
                setrlimit(RLIMIT_FSIZE, &(struct rlimit){10000, 10000});
            hd__report_on_dumps(&reporter, &all, &rank, cause);
            _exit(write_calls() - calls > 1000);
        }
        close(fds[1]);
        while ((n = read(fds[0], said + length, sizeof said - 1 - length)) > 0)
            length += (size_t)n;
        said[length] = 0;
        close(fds[0]);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(strstr(said, "error: rank 5 died\n  rank 0 at step 1, here\n") == said, "%s", said);
        path = strstr(said, "  report: ");
        if (killed) {
            ck_assert_msg(WIFSIGNALED(status) && !path, "status %x: %s", status, said);
            continue;
        }
        ck_assert_msg(status == 0 && path, "status %x: %s", status, said);
        path += strlen("  report: ");
        path[strcspn(path, " \n")] = 0;
        ck_assert_int_eq(hd__report_load((const char *[]){path}, 1, &report, NULL), 0);
        ck_assert_uint_eq(json_array_size(json_object_get(report, "rank")), MANY);
        json_decref(report);
    }
    snprintf(cause, sizeof cause, "rm -r %s", folder);
    ck_assert_int_eq(system(cause), 0);
}
END_TEST

START_TEST(files)
{
    static const char *const names[] = {"a.json", "b.json"};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text text = {0};
    char folder[] = "/tmp/heddle-report-XXXXXX";
    json_t *both;
    FILE *f;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    for (int r = 0; r < 2; r++) { /* each rank wrote its own */
        begin(3);
        answers(r, "here");
        op(r, 0, 1, "all_reduce", r ? 10 : 12, 1);
        write_report(names[r]);
    }
    ck_assert_msg(!hd__report_load(names, 2, &both, &err), "%s", err.message);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(both, "verdict"), "kind")), "mismatch");
    hd__report_summary(both, &text);
    hd__report_table(both, &text);
    ck_assert_ptr_nonnull(strstr(text.at, ">      1  all_reduce     #7"));
    ck_assert_ptr_nonnull(strstr(text.at, "rank 1: #7 all_reduce(dp) fp32 sum count 10, tag 1"));
    hd__text_free(&text);
    json_decref(both);
    ck_assert_int_eq(hd__report_load((const char *[]){"none.json"}, 1, &both, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "none.json"));
    ck_assert_int_eq(mkfifo("pipe", 0600), 0); /* nobody writes to it */
    ck_assert_int_eq(hd__report_load((const char *[]){"pipe"}, 1, &both, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(
        strstr(err.message, "pipe: cannot open the report: not a regular file but a FIFO; a failed "));
    f = fopen("b.json", "w");
    fputs("{\"kind\": \"something else\"}", f);
    fclose(f);
    ck_assert_int_eq(hd__report_load(names, 2, &both, &err), HD_E_INVALID);
    ck_assert_str_eq(
        err.message,
        "b.json: not a heddle report; a failed job prints the path of its report: report-TIME.json, beside "
        "its metrics");
    unlink("a.json");
    unlink("b.json");
    unlink("pipe");
    rmdir(folder);
}
END_TEST

/* Whatever a part says, the judge and the table say something: fields are of other types, gone, or out of range. */
static json_t *strange(uint32_t x)
{
    switch (x % 8) {
    case 0:
        return json_null();
    case 1:
        return json_integer(-1);
    case 2:
        return json_integer(INT64_MAX);
    case 3:
        return json_string("");
    case 4:
        return json_array();
    case 5:
        return json_real(1e300);
    case 6:
        return json_string("0-9/3+0-1,7-,5-4,9999999999,+");
    default:
        return json_object();
    }
}

START_TEST(noise)
{
    static const char *const of_part[] = {"rank", "state", "at", "waiting", "operations", "channels", "ops"};
    static const char *const of_op[] = {"n",    "channel", "seq",    "op",        "section", "dtype",
                                        "root", "count",   "waited", "completed", "tag"};
    static const char *const of_channel[] = {"group", "ranks", "from", "to", "stream"};
    uint32_t state = 1;
    for (int i = 0; i < 5000; i++) {
        struct hd__text text = {0};
        begin(3);
        for (int r = 0; r < 3; r++) {
            answers(r, "here");
            has_stages(r);
            for (int k = 1; k < 4; k++)
                op(r, k % 3, 1, "all_reduce", 10, k == 3 ? 1 : -1);
        }
        for (int k = 0; k < 3; k++) {
            json_t *part = rank_of((state = state * 1664525 + 1013904223) >> 20 & 1);
            uint32_t x = (state = state * 1664525 + 1013904223) >> 8;
            json_t *one = json_array_get(json_object_get(part, "ops"), x % 3),
                   *channel = json_array_get(json_object_get(part, "channels"), x % 3);
            if (x % 5 == 0)
                json_object_set_new(part, of_part[x / 5 % HD__COUNT(of_part)], strange(x / 64));
            else if (x % 5 < 4)
                json_object_set_new(one, of_op[x / 5 % HD__COUNT(of_op)], strange(x / 64));
            else
                json_object_set_new(channel, of_channel[x / 5 % HD__COUNT(of_channel)], strange(x / 64));
        }
        hd__report_diagnose(report, &verdict);
        hd__report_summary(report, &text);
        hd__report_table(report, &text);
        hd__text_free(&text);
        json_decref(report);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("report");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, nobody_waits);
    tcase_add_test(tc, one_is_late);
    tcase_add_test(tc, one_is_late_behind_another);
    tcase_add_test(tc, one_went_away);
    tcase_add_test(tc, one_is_inside_a_call);
    tcase_add_test(tc, one_never_came);
    tcase_add_test(tc, the_launcher_died);
    tcase_add_test(tc, one_does_not_answer);
    tcase_add_test(tc, one_died);
    tcase_add_test(tc, many_died);
    tcase_add_loop_test(tc, one_diverges, 0, (int)HD__COUNT(fields));
    tcase_add_test(tc, two_differ);
    tcase_add_test(tc, a_message_of_another_size);
    tcase_add_test(tc, one_joins_another_group);
    tcase_add_test(tc, a_reason_of_its_own);
    tcase_add_test(tc, large_claims);
    tcase_add_loop_test(tc, large_groups, 0, (int)HD__COUNT(groups));
    tcase_add_test(tc, part_of_a_recorder);
    tcase_add_test(tc, cause_before_file);
    tcase_add_test(tc, files);
    tcase_add_test(tc, noise);
    return suite_run_case("report", tc);
}
