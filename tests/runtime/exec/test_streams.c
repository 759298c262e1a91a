/* One rank on a device with streams, inside this process: what is captured and replayed, and that device-async,
 * which the tests of whole jobs trust (tests/system/test_async.c), does take every order that it was not forbidden. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/exec/select.h"
#include "service/train/session.h"
#include "tests/support/scratch.h"

static struct scratch scratch;

static const struct hd__launch_env alone = {.size = 1, .local_size = 1};

struct run {
    double loss[6], norm[6];
    uint64_t replays;
    uint32_t pieces;
};

static struct hd__plugins *load_plugins(void)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plugins *plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err) && !hd__plugins_add_folder(plugins, ASYNC, &err),
                  "%s", err.message);
    return plugins;
}

static void one_step(struct hd__train_session *s, int64_t step, double value[2])
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_program *p = hd__exec_program(s->exec);
    const hd_tensor scalars[] = {p->loss_sum, p->norm2};
    double *hyper = hd__exec_host_data(s->exec, p->hyper);
    hyper[HD_HYPER_LR] = 1e-2;
    hyper[HD_HYPER_STEP] = (double)step;
    hyper[HD_HYPER_INV_SCALE] = 1;
    ck_assert_msg(!hd__exec_copy_tensors(s->exec, HD__H2D, &p->hyper, 1, &err) &&
                      !hd__exec_run_step(s->exec, step, &err) &&
                      !hd__train_session_read_scalars(s, scalars, 2, value, &err),
                  "%s; at %s", err.message, err.where);
}

static void train(const char *device, struct run *run)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plugins *plugins = load_plugins();
    struct hd__compiled *c;
    struct hd__train_session s;
    struct hd__job *job;
    char text[1024], corpus[4096];
    for (size_t i = 0; i < sizeof corpus; i++)
        corpus[i] = (char)('a' + (i * 7 + i / 26) % 26);
    scratch_write(&scratch, "corpus", corpus, sizeof corpus);
    snprintf(text, sizeof text,
             "job: {steps: 9}\ndevice: %s\n"
             "model: {use: transformer, family: gpt2, layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 256, "
             "max_seq_len: 16}\n"
             "data: {train: %s, seq_len: 16, batch: 8, micro_batch: 2}\noptimizer: {use: adamw, clip: 1.0}\n",
             device, scratch_path(&scratch, "corpus"));
    ck_assert_msg(!hd__job_parse("job.yaml", text, strlen(text), NULL, 0, &job, &err) &&
                      !hd__job_resolve(job, 1, &err) && !hd__exec_compile(job, plugins, &c, &err),
                  "%s", err.message);
    ck_assert_msg(!hd__train_session_open(&s, c, &alone, &err) && !hd__train_feed_open(c, 0, 0, &s.train_feed, &err) &&
                      !hd__train_session_init_params(&s, &err) && !hd__train_feed_seek(s.train_feed, 0, &err),
                  "%s", err.message);
    s.current_feed = s.train_feed;
    for (int64_t step = 1; step <= 6; step++) {
        double value[2];
        one_step(&s, step, value);
        run->loss[step - 1] = value[0];
        run->norm[step - 1] = value[1];
    }
    run->pieces = hd__exec_graph_count(s.exec, &run->replays);
    hd__train_session_close(&s, 0);
    hd__exec_compiled_free(c);
    hd__plugins_destroy(plugins);
    hd__job_free(job);
}

static void expect_same(const struct run *a, const struct run *b)
{
    ck_assert_mem_eq(a->loss, b->loss, sizeof a->loss);
    ck_assert_mem_eq(a->norm, b->norm, sizeof a->norm);
    ck_assert_double_lt(a->loss[5], a->loss[0]);
}

/* Sections begin, micro, micro_last and update: the tokens of a micro-batch are the host's, everything else is not.
 * Four micro-batches a step, six steps; a piece runs once before it is captured. */
START_TEST(pieces_are_captured_once_and_replayed)
{
    struct run cpu, eager, captured;
    scratch_init(&scratch);
    train("{use: cpu}", &cpu);
    train("{use: async, capture: false}", &eager);
    train("{use: async}", &captured);
    ck_assert_uint_eq(cpu.pieces, 0);
    ck_assert_uint_eq(eager.pieces, 0);
    ck_assert_uint_ge(captured.pieces, 3);
    ck_assert_uint_ge(captured.replays, 3 * 6 - 1 + 5 + 5 + 5); /* micro thrice a step, the others once */
    expect_same(&cpu, &eager);
    expect_same(&cpu, &captured);
    scratch_finish(&scratch);
}
END_TEST

/* The device cannot begin, or end, or has in the middle what it cannot capture, once with and once without the rest
 * being void, too: what it ends as if nothing had been is a piece without its rest. */
START_TEST(pieces_that_cannot_be_captured_stay_as_they_are)
{
    static const char *const refusals[] = {
        "refuse: -1",           "refuse: -2",           "refuse: 1", "refuse: 3", "refuse: 10",
        "refuse: 1, voided: 1", "refuse: 10, voided: 1"};
    struct run cpu;
    scratch_init(&scratch);
    train("{use: cpu}", &cpu);
    for (size_t i = 0; i < HD__COUNT(refusals); i++) {
        struct run refused;
        char device[80];
        snprintf(device, sizeof device, "{use: async, %s}", refusals[i]);
        train(device, &refused);
        ck_assert_uint_lt(refused.pieces, 3);
        expect_same(&cpu, &refused);
    }
    scratch_finish(&scratch);
}
END_TEST

/* ---- the test device */

struct bench {
    struct hd__plugins *plugins;
    const struct hd_device_ops *ops;
    struct hd_device *device;
    void *settings;
    char *a, *b, *pinned;
    struct hd_event *event;
};

static void open_bench(struct bench *x, int seed)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    const struct hd__component *c;
    void *memory[3];
    x->plugins = load_plugins();
    ck_assert_msg(!hd__plugin_find(x->plugins, HD_KIND_DEVICE, "async", &c, &err), "%s", err.message);
    x->settings = hd__alloc(c->settings_size);
    *(int64_t *)x->settings = seed;
    x->ops = &c->ops.device;
    ck_assert_int_eq(x->ops->open(hd__exec_host_table(), x->settings, &place, &x->device, &err), HD_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(x->ops->alloc(x->device, i < 2 ? HD_MEM_DEVICE : HD_MEM_PINNED, 4096, &memory[i], &err),
                         HD_OK);
    x->a = memory[0];
    x->b = memory[1];
    x->pinned = memory[2];
    ck_assert_int_eq(x->ops->event(x->device, &x->event, &err), HD_OK);
}

static void close_bench(struct bench *x)
{
    x->ops->event_free(x->device, x->event);
    x->ops->close(x->device);
    hd__plugins_destroy(x->plugins);
    free(x->settings);
}

/* pinned -> a on one stream, a -> b on another, b -> pinned. 1: what came back is what went there. */
static int around(struct bench *x, int asked)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd_device_ops *ops = x->ops;
    memset(x->pinned, 7, 64);
    ck_assert_int_eq(ops->copy(x->device, HD_STREAM_IN, x->a, x->pinned, 64, &err), HD_OK);
    ck_assert_int_eq(ops->record(x->device, x->event, HD_STREAM_IN, &err), HD_OK);
    if (asked)
        ck_assert_int_eq(ops->follow(x->device, HD_STREAM_COMPUTE, x->event, &err), HD_OK);
    ck_assert_int_eq(ops->copy(x->device, HD_STREAM_COMPUTE, x->b, x->a, 64, &err), HD_OK);
    ck_assert_int_eq(ops->sync(x->device, HD_STREAM_COMPUTE, &err), HD_OK);
    ck_assert_int_eq(ops->sync(x->device, HD_STREAM_IN, &err), HD_OK);
    ck_assert_int_eq(ops->copy(x->device, HD_STREAM_OUT, x->pinned, x->b, 64, &err), HD_OK);
    ck_assert_int_eq(ops->sync(x->device, HD_STREAM_OUT, &err), HD_OK);
    return x->pinned[0] == 7 && x->pinned[63] == 7;
}

START_TEST(streams_keep_only_the_order_that_was_asked_for)
{
    int right[2] = {0};
    for (int seed = 1; seed <= 20; seed++)
        for (int asked = 0; asked < 2; asked++) {
            struct bench x;
            open_bench(&x, seed);
            right[asked] += around(&x, asked);
            close_bench(&x);
        }
    ck_assert_int_eq(right[1], 20);
    ck_assert_int_gt(right[0], 0);
    ck_assert_int_lt(right[0], 20);
}
END_TEST

static void begin_piece(struct bench *x)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(x->ops->capture_begin(x->device, &err), HD_OK);
    ck_assert_int_eq(x->ops->copy(x->device, HD_STREAM_COMPUTE, x->b, x->a, 64, &err), HD_OK);
}

START_TEST(pieces_that_are_open_at_an_end_are_refused)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_captured *captured;
    struct bench x;
    int32_t done;
    open_bench(&x, 1);
    begin_piece(&x);
    ck_assert_int_eq(x.ops->reached(x.device, x.event, &done, &err), HD_E_INVALID);
    ck_assert_int_eq(x.ops->copy(x.device, HD_STREAM_OUT, x.pinned, x.b, 64, &err), HD_OK);
    ck_assert_int_eq(x.ops->capture_end(x.device, &captured, &err), HD_E_INVALID);
    begin_piece(&x);
    ck_assert_int_eq(x.ops->record(x.device, x.event, HD_STREAM_COMPUTE, &err), HD_OK);
    ck_assert_int_eq(x.ops->follow(x.device, HD_STREAM_OUT, x.event, &err), HD_OK);
    ck_assert_int_eq(x.ops->copy(x.device, HD_STREAM_OUT, x.pinned, x.b, 64, &err), HD_OK);
    ck_assert_int_eq(x.ops->capture_end(x.device, &captured, &err), HD_E_INVALID);
    begin_piece(&x);
    ck_assert_int_eq(x.ops->capture_end(x.device, &captured, &err), HD_OK);
    x.ops->captured_free(x.device, captured);
    close_bench(&x);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"captured pieces", pieces_are_captured_once_and_replayed},
        {"refused pieces", pieces_that_cannot_be_captured_stay_as_they_are},
        {"orders of streams", streams_keep_only_the_order_that_was_asked_for},
        {"open pieces", pieces_that_are_open_at_an_end_are_refused},
        {NULL, NULL},
    };
    return scratch_run("streams", tests);
}
