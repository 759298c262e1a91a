/* Alarms: planted spikes and slowdowns that each rule finds once, noise that none does, and what becomes of an
 * alarm. */
#include <math.h>
#include <unistd.h>

#include "service/metrics/watch.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;
static const struct hd__watch_config on = {.loss_spike = 8, .grad_norm = 10, .throughput = 0.1};

/* A row of a run that is well: a falling loss, and noise that is the same everywhere. */
static struct hd__metrics_row row_at(int64_t k)
{
    double noise = (double)(k * 7919 % 101) / 101 - 0.5;
    return (struct hd__metrics_row){.step = k,
                                    .steps = 1000,
                                    .loss = 5 - 0.002 * (double)k + 0.05 * noise,
                                    .grad_norm = 1 + noise,
                                    .val_loss = NAN,
                                    .tokens_per_s = 1000 * (1 + 0.2 * noise)};
}

START_TEST(quiet)
{
    struct hd__watch w = {.config = on};
    struct hd__alarm alarms[HD__WATCH_RULE_COUNT];
    for (int64_t k = 1; k <= 1000; k++) {
        struct hd__metrics_row r = row_at(k);
        if (k % 16 < 7)
            r.tokens_per_s /= 10; /* a machine that is busy at times */
        if (k % 50 == 0)
            r.grad_norm = INFINITY; /* overflows */
        ck_assert_uint_eq(hd__watch_step(&w, &r, alarms), 0);
    }
}
END_TEST

/* Steps 200 to 202 are odd in one way. */
static struct hd__metrics_row planted(int rule, int64_t k)
{
    struct hd__metrics_row r = row_at(k);
    int odd = k >= 200 && k <= 202;
    if (rule == HD__WATCH_LOSS_SPIKE && odd)
        r.loss += 1;
    if (rule == HD__WATCH_GRAD_NORM && odd)
        r.grad_norm = 12;
    if (rule == HD__WATCH_THROUGHPUT && k >= 200)
        r.tokens_per_s *= 0.7;
    return r;
}

START_TEST(each)
{
    struct hd__watch w = {.config = on}, off = {0};
    struct hd__alarm a[HD__WATCH_RULE_COUNT], none[HD__WATCH_RULE_COUNT];
    int found = 0;
    for (int64_t k = 1; k <= 300; k++) {
        const struct hd__metrics_row r = planted(_i, k);
        uint32_t n = hd__watch_step(&w, &r, a);
        ck_assert_uint_eq(hd__watch_step(&off, &r, none), 0);
        if (!n)
            continue;
        ck_assert_uint_eq(n, 1);
        ck_assert_str_eq(a[0].rule, hd__watch_rule_name(_i));
        ck_assert_msg(strstr(a[0].words, ": look at "), "no remedy: %s", a[0].words);
        if (_i == HD__WATCH_THROUGHPUT)
            ck_assert(a[0].step >= 207 && a[0].step <= 216 && a[0].value < a[0].limit);
        else
            ck_assert(a[0].step == 200 && a[0].value > a[0].limit);
        found++;
    }
    ck_assert_int_eq(found, 1);
    ck_assert_int_eq(w.total[_i], 1);
}
END_TEST

/* Too few rows to compare with, and a rule that raises again after a row within the limit. */
START_TEST(again)
{
    struct hd__watch w = {.config = on};
    struct hd__alarm a[HD__WATCH_RULE_COUNT];
    for (int64_t k = 1; k <= 100; k++) {
        struct hd__metrics_row r = row_at(k);
        int odd = k == HD__WATCH_LEAST || k == 60 || k == 62;
        r.loss += odd;
        ck_assert_uint_eq(hd__watch_step(&w, &r, a), odd && k > HD__WATCH_LEAST);
    }
    ck_assert_int_eq(w.total[HD__WATCH_LOSS_SPIKE], 2);
}
END_TEST

/* A command that fails is said once, with its status: two alarms, the second of which comes in the last row. */
START_TEST(failing_command)
{
    struct scratch s;
    struct hd__metrics *m;
    size_t bytes;
    int out = dup(STDOUT_FILENO), log = dup(STDERR_FILENO), times = 0;
    json_t *start = json_pack("{s:s, s:s}", "event", "start", "run", "a");
    struct hd__watch_config config = on;
    scratch_init(&s);
    config.command = "exit 3";
    const char *path = scratch_path(&s, "m.jsonl"), *said = scratch_path(&s, "said");
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    ck_assert_ptr_nonnull(freopen(said, "w", stderr));
    ck_ok(hd__metrics_open(path, 0, start, &m, &err));
    hd__metrics_set_watch(m, &config);
    ck_ok(hd__metrics_begin(m, &err));
    for (int64_t k = 1; k <= 400; k++) {
        const struct hd__metrics_row r = planted(HD__WATCH_LOSS_SPIKE, k > 200 ? k - 200 : k);
        hd__metrics_log_step(m, &r);
    }
    hd__metrics_close(m);
    fflush(stdout);
    fflush(stderr);
    dup2(out, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    char *text = scratch_read(said, &bytes);
    for (const char *at = text; (at = strstr(at, "watch.command failed (exit code 3), so nobody")); at++)
        times++;
    ck_assert_msg(times == 1 && strstr(text, "of the alarm: exit 3"), "%s", text);
    free(text);
    json_decref(start);
    scratch_finish(&s);
}
END_TEST

START_TEST(line_and_command)
{
    struct scratch s;
    struct hd__metrics *m;
    size_t bytes;
    int out = dup(STDOUT_FILENO), found = 0;
    json_t *start = json_pack("{s:s, s:s}", "event", "start", "run", "a");
    scratch_init(&s);
    const char *path = scratch_path(&s, "m.jsonl"), *told = scratch_path(&s, "told");
    char *command = hd__format("echo \"$1 $2 $3\" > %s.part && mv %s.part %s", told, told, told);
    struct hd__watch_config config = on;
    config.command = command;
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    ck_ok(hd__metrics_open(path, 0, start, &m, &err));
    hd__metrics_set_watch(m, &config);
    ck_ok(hd__metrics_begin(m, &err));
    for (int64_t k = 1; k <= 220; k++) {
        const struct hd__metrics_row r = planted(HD__WATCH_LOSS_SPIKE, k);
        hd__metrics_log_step(m, &r);
    }
    hd__metrics_close(m);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    char *text = scratch_read(path, &bytes);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(object, "event"));
        ck_assert(json_is_object(object));
        if (event && !strcmp(event, "alarm")) {
            found++;
            ck_assert_str_eq(json_string_value(json_object_get(object, "rule")), "loss_spike");
            ck_assert_int_eq(json_integer_value(json_object_get(object, "step")), 200);
            ck_assert_int_eq(json_integer_value(json_object_get(object, "rank")), 0);
            ck_assert(json_number_value(json_object_get(object, "value")) >
                      json_number_value(json_object_get(object, "limit")));
        }
        json_decref(object);
    }
    free(text);
    ck_assert_int_eq(found, 1);
    while (access(told, F_OK)) /* the test's limit ends it */
        usleep(1000);
    text = scratch_read(told, &bytes);
    ck_assert_msg(!strncmp(text, "loss_spike 200 the loss is ", 27), "%s", text);
    free(text);
    free(command);
    json_decref(start);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watch");
    TCase *t = tcase_create("watch");
    tcase_add_test(t, quiet);
    tcase_add_loop_test(t, each, 0, HD__WATCH_STRAGGLER);
    tcase_add_test(t, again);
    tcase_add_test(t, line_and_command);
    tcase_add_test(t, failing_command);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
