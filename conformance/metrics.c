/* Promises of every sink of metrics: it takes any record, from another thread, of later versions too; a job is not
 * changed by it, and goes on with it. */
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/check.h"
#include "core/plugin/plugin.h"
#include "runtime/rendezvous/host_store.h"

static struct hd_error err = HD_ERROR_INIT;
static const struct hd_metrics_ops *ops;

/* In the folder in which it runs. */
static struct hd_metrics *open_sink(int64_t step, const char *run)
{
    const struct hd_metrics_start start = {.struct_size = sizeof start,
                                           .job = "conformance",
                                           .record = "{\"job\": \"conformance\", \"ranks\": 2}",
                                           .step = step,
                                           .steps = 100,
                                           .run = run};
    struct hd_metrics *sink = NULL;
    ops = &conf_target.component->ops.metrics;
    int32_t rc = ops->open(hd__store_host_table(), conf_settings(&err), &start, &sink, &err);
    ck_assert_msg(rc == HD_OK, "open: error %d: %s", rc, err.message);
    return sink;
}

/* As a later heddle might write them: fields behind those of struct hd_metric, and keys that nobody knows. */
struct later {
    struct hd_metric metric;
    uint64_t appended[3];
};

/* 20 of them, behind step `from`. */
static const char *write_steps(struct hd_metrics *sink, int64_t from)
{
    for (int64_t step = 1; step <= 20; step++) {
        struct later list[] = {
            {.metric = {.name = "loss", .type = HD_METRIC_FLOAT, .number = step == 3 ? NAN : 1.0 / (double)step}},
            {.metric = {.name = "grad_norm", .type = HD_METRIC_FLOAT, .number = step == 4 ? INFINITY : -1e300}},
            {.metric = {.name = "tokens", .type = HD_METRIC_INT, .integer = INT64_MAX, .number = (double)INT64_MAX}},
            {.metric = {.name = "of_a_later_version", .type = step % 2 ? 3 : HD_METRIC_INT, .integer = step}}};
        const struct hd_metrics_record record = {.struct_size = sizeof record,
                                                 .metrics = &list[0].metric,
                                                 .count = step == 5 ? 0 : HD__COUNT(list),
                                                 .metric_size = sizeof *list,
                                                 .step = from + step,
                                                 .time = 1.7e9 + (double)(from + step)};
        if (ops->write(sink, &record, &err))
            return "write failed";
    }
    return NULL;
}

static void *write_beside(void *sink)
{
    return (void *)(uintptr_t)write_steps(sink, 0);
}

START_TEST(any_record_is_taken)
{
    ck_assert(!chdir(conf_folder()));
    struct hd_metrics *sink = open_sink(0, "0123456789abcdef");
    pthread_t thread;
    void *failed;
    ck_assert(!pthread_create(&thread, NULL, write_beside, sink) && !pthread_join(thread, &failed));
    ck_assert_msg(!failed, "write: %s", err.message);
    ops->close(sink);
    ops->close(NULL);
}
END_TEST

static int64_t total;

static int add_size(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)path, (void)at;
    total += type == FTW_F ? st->st_size : 0;
    return 0;
}

/* The bytes of all files in the folder in which it runs. */
static int64_t bytes_here(void)
{
    total = 0;
    nftw(".", add_size, 16, FTW_PHYS);
    return total;
}

/* In a folder of its own, whose bytes it returns. */
static int64_t write_run(const char *folder, int times)
{
    ck_assert(!chdir(conf_folder()) && !mkdir(folder, 0700) && !chdir(folder));
    struct hd_metrics *sink = open_sink(0, "0123456789abcdef");
    for (int n = 0; n < times; n++)
        ck_assert_msg(!write_steps(sink, 20 * n), "write: %s", err.message);
    ops->close(sink);
    return bytes_here();
}

/* Files that grow with the steps have them all: those of the first 20 are there when the run goes on behind 40. */
START_TEST(a_run_may_be_opened_again)
{
    ops = &conf_target.component->ops.metrics;
    ck_assert(!chdir(conf_folder()));
    ops->close(open_sink(0, NULL)); /* without a step */
    int64_t few = write_run("few", 1), all = write_run("all", 2);
    struct hd_metrics *sink = open_sink(40, "0123456789abcdef");
    int64_t left = bytes_here();
    ck_assert_msg(2 * all < 3 * few || left >= few,
                  "its files have %lld bytes after 20 steps, %lld after 40, and %lld when `open` is told that the run "
                  "goes on behind step 40: earlier steps are lost",
                  (long long)few, (long long)all, (long long)left);
    ck_assert_msg(!write_steps(sink, 40), "write, resumed: %s", err.message);
    ops->close(sink);
    sink = open_sink(10, "0123456789abcdef"); /* of an earlier checkpoint */
    ck_assert_msg(!write_steps(sink, 10), "write, resumed: %s", err.message);
    ops->close(sink);
}
END_TEST

START_TEST(a_job_trains_the_same)
{
    static const char job[] =
        "job: {name: metrics, steps: 6, seed: 3, deterministic: exact}\n"
        "optimizer: {use: adamw, lr: 1e-2}\n"
        "model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: 256}\n"
        "data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 4, shuffle: false}\n";
    struct hd__text use = {0}, words = {0}, printed[3] = {{0}};
    char want[128], got[128], warned[128];
    conf_use(&use);
    snprintf(warned, sizeof warned, "metrics-%s: warning: ", conf_target.component->name);
    ck_assert_msg(!conf_train(conf_folder(), job, "launch.ranks=2", &printed[0]), "%s", printed[0].at);
    for (int n = 0; n < 2; n++) {
        words.length = 0;
        hd__text_add(&words, "launch.ranks=2 job.name=with 'metrics.sinks=[%s]' checkpoint.dir=saved job.steps=%d",
                     use.at, n ? 6 : 3);
        int code = conf_train(conf_folder(), job, words.at, &printed[n + 1]);
        ck_assert_msg(!code, "%s: exit code %d\n%s", words.at, code, printed[n + 1].at);
        ck_assert_msg(!strstr(printed[n + 1].at, warned) && !strstr(printed[n + 1].at, "metrics: warning: "),
                      "a warning of the sink:\n%s", printed[n + 1].at);
    }
    conf_end(&printed[0], want);
    conf_end(&printed[2], got);
    ck_assert_msg(!strcmp(want, got), "without it the job ends with %s, and %s with it", want, got);
}
END_TEST

void conf_metrics(void)
{
    RUN_TEST(any_record_is_taken);
    RUN_TEST(a_run_may_be_opened_again);
    RUN_TEST(a_job_trains_the_same);
}
