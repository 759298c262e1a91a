/* What a run reports: metrics.jsonl across crashes and resumes, and sinks, also those that fail or are slow. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "service/metrics/metrics.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;

/* ---- metrics.jsonl */

/* The lines of a file: how many, and each one's step (0 for an event). Every line is a whole JSON object. */
static int read_steps(const char *path, int64_t steps[64], json_t *objects[64])
{
    size_t bytes;
    char *text = scratch_read(path, &bytes), *line = text;
    int n = 0;
    if (bytes)
        ck_assert_int_eq(text[bytes - 1], '\n');
    for (char *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        *end = '\0';
        json_t *object = json_loads(line, 0, NULL);
        ck_assert_msg(json_is_object(object), "%s", line);
        steps[n] = json_integer_value(json_object_get(object, "step"));
        if (objects)
            objects[n] = object;
        else
            json_decref(object);
    }
    free(text);
    return n;
}

/* What the process prints goes to `path` until it is put back. */
static int redirect(int stream, const char *path)
{
    int before = dup(stream), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fflush(NULL);
    ck_assert_int_ge(dup2(file, stream), 0);
    close(file);
    return before;
}

static void put_back(int stream, int before)
{
    fflush(NULL);
    dup2(before, stream);
    close(before);
}

/* `sink` NULL: none. */
static const char *run_id = "a"; /* of the run that writes */

static void write_steps_to(const struct hd__metrics_sink_config *sink, const char *path, int64_t resumed, int64_t first,
                           int64_t last)
{
    struct hd__metrics *m;
    int out = redirect(STDOUT_FILENO, "/dev/null"); /* the progress lines are for people */
    json_t *start = json_pack("{s:s, s:s}", "event", resumed ? "resume" : "start", "run", run_id);
    ck_ok(hd__metrics_open(path, resumed, start, &m, &err));
    if (sink)
        ck_ok(hd__metrics_add_sink(m, sink, &err));
    ck_ok(hd__metrics_begin(m, &err));
    for (int64_t k = first; k <= last; k++) {
        const struct hd__metrics_row row = {.step = k,
                                            .steps = 100,
                                            .loss = 1.0 / (double)(3 * k),
                                            .grad_norm = k == 4 ? INFINITY : (double)0.1f,
                                            .val_loss = k % 2 ? NAN : 2,
                                            .lr = 3e-4,
                                            .tokens = 1000 * k};
        hd__metrics_log_step(m, &row);
    }
    hd__metrics_close(m);
    json_decref(start);
    put_back(STDOUT_FILENO, out);
}

static void write_steps(const char *path, int64_t resumed, int64_t first, int64_t last)
{
    write_steps_to(NULL, path, resumed, first, last);
}

static void check_steps(const char *path, int n, const int64_t *wanted)
{
    int64_t steps[64];
    ck_assert_int_eq(read_steps(path, steps, NULL), n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(steps[i], wanted[i]);
}

/* Another run's file is kept, and a file of no run is refused. */
START_TEST(set_aside)
{
    static const char old[] = "{\"event\":\"start\"}\n{\"step\": 1}\n{\"step\": 2}\n";
    struct scratch s;
    struct hd__metrics *m;
    json_t *start = json_pack("{s:s, s:s}", "event", "start", "run", "a");
    scratch_init(&s);
    const char *path = scratch_path(&s, "m.jsonl");
    write_steps(path, 0, 1, 3);
    scratch_write(&s, "m.jsonl.1", "mine", 4); /* a number that is taken */
    run_id = "b";
    write_steps(path, 2, 3, 4); /* a branch of the run before */
    check_steps(path, 3, (const int64_t[]){0, 3, 4});
    check_steps(scratch_path(&s, "m.jsonl.2"), 4, (const int64_t[]){0, 1, 2, 3});
    size_t bytes;
    char *text = scratch_read(scratch_path(&s, "m.jsonl.1"), &bytes);
    ck_assert(bytes == 4 && !memcmp(text, "mine", 4));
    free(text);
    /* of a heddle without ids: it is gone on with */
    scratch_write(&s, "old.jsonl", old, sizeof old - 1);
    write_steps(scratch_path(&s, "old.jsonl"), 1, 2, 2);
    check_steps(scratch_path(&s, "old.jsonl"), 4, (const int64_t[]){0, 1, 0, 2});
    /* restarted before its first checkpoint: steps are cut, restarts stay */
    static const char again[] = "{\"event\":\"start\",\"run\":\"b\"}\n{\"step\":1}\n"
                                "{\"event\":\"restart\",\"step\":7,\"run\":\"b\"}\n{\"step\":2}\n";
    scratch_write(&s, "again.jsonl", again, sizeof again - 1);
    write_steps(scratch_path(&s, "again.jsonl"), 0, 1, 2);
    check_steps(scratch_path(&s, "again.jsonl"), 5, (const int64_t[]){0, 7, 0, 1, 2});
    /* not ours, in whatever way */
    static const char *const foreign[] = {
        "x", "\n", "{\"step\": 1}\n", "[1]\n", "{\"event\": \"birth\"}\n", "{\"event\":\"start\"}"};
    for (size_t i = 0; i < HD__COUNT(foreign); i++)
        for (int resumed = 0; resumed < 2; resumed++) {
            scratch_write(&s, "foreign", foreign[i], strlen(foreign[i]));
            ck_refused(hd__metrics_open(scratch_path(&s, "foreign"), resumed, start, &m, &err), HD_E_INVALID,
                       "does not start a run");
            text = scratch_read(scratch_path(&s, "foreign"), &bytes);
            ck_assert(bytes == strlen(foreign[i]) && !memcmp(text, foreign[i], bytes));
            free(text);
        }
    json_decref(start);
    run_id = "a";
    scratch_finish(&s);
}
END_TEST

START_TEST(jsonl)
{
    struct scratch s;
    int64_t steps[64];
    json_t *line[64];
    scratch_init(&s);
    const char *path = scratch_path(&s, "runs/x/metrics.jsonl");
    run_id = "before";
    write_steps(path, 0, 1, 5);
    run_id = "a";
    write_steps(path, 0, 1, 4); /* fresh: the five are in a file of their own */
    check_steps(scratch_path(&s, "runs/x/metrics.jsonl.1"), 6, (const int64_t[]){0, 1, 2, 3, 4, 5});
    ck_assert_int_eq(read_steps(path, steps, line), 5);
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(json_string_value(json_object_get(line[i], "run")), "a");
    for (int i = 1; i < 5; i++) {
        ck_assert_int_eq(steps[i], i);
        /* two floats that differ print differently: they come back as they were */
        ck_assert_float_eq((float)json_number_value(json_object_get(line[i], "loss")), (float)(1.0 / (3.0 * i)));
        if (i < 4)
            ck_assert_float_eq((float)json_number_value(json_object_get(line[i], "grad_norm")), 0.1f);
        else
            ck_assert(json_is_null(json_object_get(line[i], "grad_norm")));
        ck_assert_int_eq(json_object_get(line[i], "val_loss") != NULL, i % 2 == 0);
    }
    for (int i = 0; i < 5; i++)
        json_decref(line[i]);
    scratch_finish(&s);
}
END_TEST

START_TEST(resume)
{
    struct scratch s;
    scratch_init(&s);
    const char *path = scratch_path(&s, "m.jsonl");
    write_steps(path, 0, 1, 9);
    write_steps(path, 6, 7, 8); /* the checkpoint was at 6 */
    check_steps(path, 10, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 0, 7, 8});
    /* killed while writing a line: all cuts of the last one */
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    size_t last = bytes - 1;
    while (text[last - 1] != '\n')
        last--;
    for (size_t cut = last; cut < bytes; cut++) {
        scratch_write(&s, "m.jsonl", text, cut);
        write_steps(path, 7, 8, 8);
        check_steps(path, 11, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 0, 7, 0, 8});
    }
    free(text);
    write_steps(scratch_path(&s, "new.jsonl"), 3, 4, 4); /* nothing to cut */
    check_steps(scratch_path(&s, "new.jsonl"), 2, (const int64_t[]){0, 4});
    scratch_finish(&s);
}
END_TEST

/* Rows of what a later round does not do again stay, wherever it goes on from, and cut nothing themselves. */
START_TEST(outlives)
{
    static const char *const rows[] = {
        "{\"event\": \"restart\", \"step\": 8}\n",
        "{\"event\": \"shrink\", \"step\": 8}\n",
        "{\"event\": \"grow\", \"step\": 8}\n",
        "{\"event\": \"alarm\", \"rule\": \"replicas\", \"step\": 8}\n",
        "{\"event\": \"alarm\", \"rule\": \"rerun\", \"step\": 8}\n",
    };
    static const char *const again[] = {
        "{\"event\": \"alarm\", \"rule\": \"loss_spike\", \"step\": 8}\n",
        "{\"event\": \"checkpoint\", \"step\": 8}\n",
    };
    struct scratch s;
    scratch_init(&s);
    const char *path = scratch_path(&s, "o.jsonl");
    for (size_t i = 0; i < HD__COUNT(rows) + HD__COUNT(again); i++) {
        int stays = i < HD__COUNT(rows);
        unlink(path);
        write_steps(path, 0, 1, 7);
        FILE *file = fopen(path, "a");
        fputs(stays ? rows[i] : again[i - HD__COUNT(rows)], file);
        fclose(file);
        write_steps(path, 4, 5, 6);
        check_steps(path, stays ? 9 : 8,
                    stays ? (const int64_t[]){0, 1, 2, 3, 4, 8, 0, 5, 6} : (const int64_t[]){0, 1, 2, 3, 4, 0, 5, 6});
        write_steps(path, 5, 6, 6);
        check_steps(path, stays ? 10 : 9,
                    stays ? (const int64_t[]){0, 1, 2, 3, 4, 8, 0, 5, 0, 6}
                          : (const int64_t[]){0, 1, 2, 3, 4, 0, 5, 0, 6});
    }
    scratch_finish(&s);
}
END_TEST

/* ---- sinks */

/* A plug-in that keeps what it is told, and does with a step as it is asked. */
struct hd_metrics {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t from, steps[64], refuse_from, refuse_to, refusals; /* of the steps it refuses: none where they are 0 */
    int n, closed, held;                                       /* held: write waits until it is not */
    char record[64], run[8];
    double loss, val_loss, grad_norm;
    int64_t tokens;
};

static struct hd_metrics sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int32_t sink_open(const struct hd_host *host, const void *settings, const struct hd_metrics_start *start,
                         struct hd_metrics **metrics, struct hd_error *why)
{
    (void)host;
    if (settings && !*(const char *)settings)
        return HD_E_IO;
    if (settings)
        return hd_fail(why, HD_E_IO, "%s", (const char *)settings);
    ck_assert_str_eq(start->job, "j");
    ck_assert_int_eq(start->steps, 100);
    snprintf(sink.run, sizeof sink.run, "%s", start->run ? start->run : "none");
    snprintf(sink.record, sizeof sink.record, "%s", start->record);
    sink.from = start->step;
    *metrics = &sink;
    return HD_OK;
}

static double value_of(const struct hd_metrics_record *record, const char *name, int64_t *integer)
{
    for (size_t i = 0; i < record->count; i++) {
        const struct hd_metric *x = hd_metric_at(record, i);
        if (strcmp(x->name, name))
            continue;
        if (integer)
            *integer = x->type == HD_METRIC_INT ? x->integer : -1;
        return x->number;
    }
    return -1;
}

static int32_t sink_write(struct hd_metrics *m, const struct hd_metrics_record *record, struct hd_error *why)
{
    pthread_mutex_lock(&m->lock);
    while (m->held)
        pthread_cond_wait(&m->changed, &m->lock);
    int refuse = record->step >= m->refuse_from && record->step < m->refuse_to;
    m->refusals += refuse;
    if (!refuse) {
        m->steps[m->n++ % 64] = record->step;
        m->loss = value_of(record, "loss", NULL);
        m->val_loss = value_of(record, "val_loss", NULL);
        m->grad_norm = value_of(record, "grad_norm", NULL);
        value_of(record, "tokens", &m->tokens);
    }
    pthread_mutex_unlock(&m->lock);
    return refuse ? hd_fail(why, HD_E_IO, "no paper") : HD_OK;
}

static void sink_close(struct hd_metrics *m)
{
    m->closed++;
}

static const struct hd_metrics_ops sink_ops = {
    .struct_size = sizeof sink_ops, .open = sink_open, .write = sink_write, .close = sink_close};
static const struct hd__metrics_sink_config sink_config = {
    .name = "metrics.sinks.0", .ops = &sink_ops, .job = "j", .steps = 100};

static void hold(int held)
{
    pthread_mutex_lock(&sink.lock);
    sink.held = held;
    pthread_cond_broadcast(&sink.changed);
    pthread_mutex_unlock(&sink.lock);
}

/* Every step, in order, with its values; what it refuses is said once, and costs nothing else. */
/* Four ranks: the row has what they are together, sinks also each one's compute. */
START_TEST(ranks)
{
    enum { STRIDE = HD__RANK_NUMBERS + 2 };
    static const double compute[] = {0.25, 0.5, 1, 0.75};
    double numbers[4][STRIDE] = {{0}};
    int64_t steps[64];
    json_t *object[64];
    struct scratch s;
    struct hd__metrics *m;
    json_t *start = json_pack("{s:s, s:s}", "event", "start", "run", "r");
    scratch_init(&s);
    for (int r = 0; r < 4; r++) {
        numbers[r][HD__RANK_COMPUTE] = compute[r];
        numbers[r][HD__RANK_COMM_WAIT] = 1 - compute[r];
        numbers[r][HD__RANK_RSS] = 1000 + r;
        numbers[r][HD__RANK_COMM_AXIS + HD_AXIS_TP] = r;
    }
    const struct hd__metrics_row row = {.step = 1,
                                        .steps = 2,
                                        .loss = 1,
                                        .val_loss = NAN,
                                        .samples_per_s = 3,
                                        .ranks = numbers[0],
                                        .n_ranks = 4,
                                        .stride = STRIDE,
                                        .axes = HD_AXIS_BIT(HD_AXIS_TP) | HD_AXIS_BIT(HD_AXIS_PP)};
    int out = redirect(STDOUT_FILENO, "/dev/null");
    ck_ok(hd__metrics_open(scratch_path(&s, "m.jsonl"), 0, start, &m, &err));
    ck_ok(hd__metrics_begin(m, &err));
    hd__metrics_log_step(m, &row);
    hd__metrics_close(m);
    put_back(STDOUT_FILENO, out);
    ck_assert_int_eq(read_steps(scratch_path(&s, "m.jsonl"), steps, object), 2);
    static const struct {
        const char *name;
        double value;
    } wanted[] = {{"compute_min_s", 0.25},    {"compute_median_s", 0.5}, {"compute_max_s", 1}, {"compute_max_rank", 2},
                  {"wait_max_s", 0.75},       {"wait_max_rank", 0},      {"wait_min_s", 0},    {"rss_max_bytes", 1003},
                  {"rss_median_bytes", 1001}, {"rss_max_rank", 3},       {"comm_s_tp", 1.5},   {"comm_s_pp", 0},
                  {"samples_per_s", 3}};
    for (size_t k = 0; k < HD__COUNT(wanted); k++) {
        const json_t *value = json_object_get(object[1], wanted[k].name);
        ck_assert_msg(json_is_number(value) && json_number_value(value) == wanted[k].value, "%s", wanted[k].name);
    }
    ck_assert(!json_object_get(object[1], "comm_s_cp") && !json_object_get(object[1], "compute_s_0"));
    json_decref(object[0]);
    json_decref(object[1]);
    json_decref(start);
    scratch_finish(&s);
}
END_TEST

START_TEST(sinks)
{
    struct scratch s;
    size_t bytes;
    scratch_init(&s);
    const char *log = scratch_path(&s, "log");
    int before = redirect(STDERR_FILENO, log);
    write_steps_to(&sink_config, scratch_path(&s, "m.jsonl"), 0, 1, 4);
    ck_assert_int_eq(sink.n, 4);
    ck_assert_int_eq(sink.closed, 1);
    ck_assert_str_eq(sink.record, "{\"event\":\"start\",\"run\":\"a\"}");
    ck_assert_str_eq(sink.run, "a");
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(sink.steps[i], i + 1);
    ck_assert_double_eq(sink.loss, 1.0 / 12);
    ck_assert_double_eq(sink.val_loss, 2);
    ck_assert(isinf(sink.grad_norm));
    ck_assert_int_eq(sink.tokens, 4000);
    sink.refuse_from = 7, sink.refuse_to = 9;
    write_steps_to(&sink_config, scratch_path(&s, "m.jsonl"), 4, 5, 9);
    ck_assert_int_eq(sink.from, 4);
    ck_assert_int_eq(sink.n, 7);
    ck_assert_int_eq(sink.steps[6], 9);
    ck_assert_double_eq(sink.val_loss, -1); /* nothing was evaluated */
    ck_assert_int_eq(sink.refusals, 2);
    put_back(STDERR_FILENO, before);
    char *text = scratch_read(log, &bytes), *first;
    text = hd__realloc(text, bytes + 1);
    text[bytes] = 0;
    ck_assert_ptr_nonnull(first = strstr(text, "metrics.sinks.0: no paper; steps are dropped until a write succeeds"));
    ck_assert_ptr_null(strstr(first + 24, "no paper"));
    check_steps(scratch_path(&s, "m.jsonl"), 11, (const int64_t[]){0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 9});
    free(text);
    scratch_finish(&s);
}
END_TEST

/* A disk that fills up costs lines, not the run; it is said once, and lines stay whole. */
START_TEST(disk_full)
{
    struct scratch s;
    struct hd__metrics *m;
    struct rlimit whole, small;
    size_t bytes;
    char pad[1001] = ""; /* the limit is for what is said as well */
    scratch_init(&s);
    memset(pad, 'x', sizeof pad - 1);
    json_t *start = json_pack("{s:s, s:s, s:s}", "event", "start", "run", "a", "pad", pad);
    int out = redirect(STDOUT_FILENO, "/dev/null"), before = redirect(STDERR_FILENO, scratch_write(&s, "said", "", 0));
    ck_ok(hd__metrics_open(scratch_path(&s, "m.jsonl"), 0, start, &m, &err));
    ck_ok(hd__metrics_begin(m, &err));
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &whole), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int64_t k = 1; k <= 4; k++) {
        small = (struct rlimit){.rlim_cur = k < 4 ? 1000 : whole.rlim_cur, .rlim_max = whole.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
        hd__metrics_log_step(m, &(struct hd__metrics_row){.step = k, .steps = 4, .val_loss = NAN});
    }
    hd__metrics_close(m);
    put_back(STDOUT_FILENO, out);
    put_back(STDERR_FILENO, before);
    char *said = scratch_read(scratch_path(&s, "said"), &bytes);
    const char *once = strstr(said, "m.jsonl cannot be written: File too large");
    ck_assert_msg(once && !strchr(once, '\n')[1], "said:\n%s", said);
    char *lines = scratch_read(scratch_path(&s, "m.jsonl"), &bytes), *second = strchr(lines, '\n') + 1;
    ck_assert_msg(!strncmp(second, "{\"step\": 4, ", 12) && strchr(second, '\n') == lines + bytes - 1, "%s", lines);
    free(said);
    free(lines);
    json_decref(start);
    scratch_finish(&s);
}
END_TEST

START_TEST(sink_refused)
{
    struct scratch s;
    struct hd__metrics *m;
    struct hd__metrics_sink_config config = sink_config;
    json_t *start = json_object();
    scratch_init(&s);
    config.settings = "no printer";
    ck_ok(hd__metrics_open(scratch_path(&s, "m.jsonl"), 0, start, &m, &err));
    ck_refused(hd__metrics_add_sink(m, &config, &err), HD_E_IO, "no printer");
    config.settings = "";
    err = (struct hd_error)HD_ERROR_INIT;
    ck_refused(hd__metrics_add_sink(m, &config, &err), HD_E_IO, "the sink's open failed (code -4) without a message");
    hd__metrics_close(m);
    ck_assert_int_eq(sink.closed, 0);
    json_decref(start);
    scratch_finish(&s);
}
END_TEST

/* A sink that takes nothing holds no step up, and a few hundred of them do not pile up; then it catches up. */
START_TEST(sink_slow)
{
    enum { STEPS = 300 };
    struct scratch s;
    struct hd__metrics *m;
    json_t *start = json_object();
    scratch_init(&s);
    int out = redirect(STDOUT_FILENO, "/dev/null"), before = redirect(STDERR_FILENO, "/dev/null");
    hold(1);
    ck_ok(hd__metrics_open(scratch_path(&s, "m.jsonl"), 0, start, &m, &err));
    ck_ok(hd__metrics_add_sink(m, &sink_config, &err));
    for (int64_t k = 1; k <= STEPS; k++)
        hd__metrics_log_step(m, &(struct hd__metrics_row){.step = k, .steps = STEPS, .val_loss = NAN});
    ck_assert_int_eq(sink.n, 0);
    hold(0);
    hd__metrics_close(m);
    put_back(STDOUT_FILENO, out);
    put_back(STDERR_FILENO, before);
    ck_assert_int_eq(sink.n, 64);
    ck_assert_int_eq(sink.closed, 1);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(sink.steps[i], i + 1);
    json_decref(start);
    scratch_finish(&s);
}
END_TEST

/* One that never comes back is left behind. */
START_TEST(sink_hangs)
{
    struct scratch s;
    struct hd__metrics_sink_config config = sink_config;
    size_t bytes;
    scratch_init(&s);
    const char *log = scratch_path(&s, "log");
    int before = redirect(STDERR_FILENO, log);
    config.patience = 0.05;
    hold(1);
    write_steps_to(&config, scratch_path(&s, "m.jsonl"), 0, 1, 3);
    put_back(STDERR_FILENO, before);
    char *text = scratch_read(log, &bytes);
    ck_assert_ptr_nonnull(
        memmem(text, bytes, "metrics.sinks.0: was not closed within 0.05 s; its last 3 steps may be lost", 70));
    check_steps(scratch_path(&s, "m.jsonl"), 4, (const int64_t[]){0, 1, 2, 3});
    free(text);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"jsonl", jsonl},
        {"set aside", set_aside},
        {"resume", resume},
        {"sinks", sinks},
        {"disk full", disk_full},
        {"sink refused", sink_refused},
        {"sink slow", sink_slow},
        {"sink hangs", sink_hangs},
        {"ranks", ranks},
        {"outlives", outlives},
        {NULL, NULL},
    };
    return scratch_run("metrics", tests);
}
