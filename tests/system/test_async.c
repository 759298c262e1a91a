/* A device that only enqueues, with memory that the host cannot touch: device-async (tests/plugins/async.h) trains
 * to the same bits as device-cpu, which computes its kernels, whatever order its streams take within what the core
 * asked for. */
#include "tests/system/system.h"

static struct curve a, b;

#define PLUGINS "plugins.path=[\"" ASYNC "\",\"" PIPES "\"] "
#define ON_ASYNC PLUGINS "device.use=async device.seed=%d device.staging=%s"

static void same_on_both(const char *job, int seed, const char *staging)
{
    train(&a, "cpu", "%s " PLUGINS, job);
    expect_learns(&a);
    train(&b, "async", "%s " ON_ASYNC, job, seed, staging);
    expect_same_bits(&a, &b);
}

static const struct {
    const char *job, *staging;
} jobs[] = {
    {"gpt2.yaml job.steps=8 data.val_fraction=0.1 eval.every=3 eval.batches=2", "4MiB"},
    {"llama.yaml job.steps=8 precision.compute=fp16 recompute=full", "4MiB"},
    {"llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=1 strategies.zero.compress.kind=int8", "4KiB"},
    {"llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 strategies.zero.offload.optimizer=host "
     "strategies.zero.offload.params=host",
     "16KiB"},
    {"llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 strategies.zero.offload.optimizer=file "
     "strategies.zero.offload.path=. "
     "strategies.zero.offload.params=host",
     "4KiB"},
    {"gpt2.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 comm.use=pipes", "4KiB"},
    {"llama.yaml job.steps=6 mesh.tp=2 mesh.dp=2 "
     "strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},{\"use\":\"zero\",\"stage\":2}] "
     "comm.axes={\"dp\":\"pipes\"}",
     "4KiB"},
    {"llama.yaml job.steps=6 mesh.cp=2 strategies=[{\"use\":\"3d\",\"context\":\"ulysses\"},{\"use\":\"zero\"}]",
     "4KiB"},
    {"llama.yaml job.steps=6 mesh.cp=2 "
     "strategies=[{\"use\":\"3d\",\"context\":\"ring\"},{\"use\":\"zero\",\"stage\":1}]",
     "4KiB"},
    {"mixtral.yaml job.steps=6 mesh.ep=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] comm.progress=thread",
     "4KiB"},
    {"llama.yaml job.steps=6 mesh.pp=2 strategies=[{\"use\":\"3d\",\"schedule\":\"1f1b\"},{\"use\":\"zero\"}] "
     "data.micro_batch=1",
     "4KiB"},
};

START_TEST(trains_to_the_same_bits)
{
    same_on_both(jobs[_i].job, _i + 1, jobs[_i].staging);
}
END_TEST

/* A transport inside the device's stream: the host waits for nothing, and what has no tokens in it is captured
 * whole. */
static const char *const ordered[] = {
    "llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=0",
    "gpt2.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 data.val_fraction=0.1 eval.every=3 eval.batches=2",
    "llama.yaml job.steps=6 mesh.cp=2 "
    "strategies=[{\"use\":\"3d\",\"context\":\"ulysses\"},{\"use\":\"zero\",\"stage\":2}]",
    "llama.yaml job.steps=6 mesh.cp=2 "
    "strategies=[{\"use\":\"3d\",\"context\":\"ring\"},{\"use\":\"zero\",\"stage\":1}]",
    "mixtral.yaml job.steps=6 mesh.ep=2 mesh.tp=2 "
    "strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},{\"use\":\"zero\"}]",
    "llama.yaml job.steps=6 mesh.pp=2 mesh.dp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":1}] "
    "comm.axes={\"pp\":\"shm\"}",
    "llama.yaml job.steps=6 mesh.pp=2 mesh.dp=2 "
    "strategies=[{\"use\":\"3d\",\"schedule\":\"1f1b\"},{\"use\":\"zero\",\"stage\":1}] data.micro_batch=1",
    "llama.yaml job.steps=6 mesh.pp=2 model.layers=4 "
    "strategies=[{\"use\":\"3d\",\"schedule\":\"zb-v\"},{\"use\":\"zero\"}] data.micro_batch=1",
};

START_TEST(orders_a_transport_by_its_streams)
{
    train(&a, "cpu", "%s " PLUGINS, ordered[_i]);
    expect_learns(&a);
    train(&b, "async", "%s " ON_ASYNC " comm.use=ordered device.capture=%s", ordered[_i], _i + 1, "4KiB",
          _i % 2 ? "false" : "true");
    expect_same_bits(&a, &b);
}
END_TEST

/* Where a piece cannot be captured, for the so manyth thing in it, it goes on as it is; what the transport was given
 * goes with it. */
static const char *const refused[] = {
    "llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=0 device.refuse=-2",
    "gpt2.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 device.refuse=20",
    "gpt2.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 device.refuse=21 device.voided=1",
    "llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 device.refuse=22",
    "llama.yaml job.steps=6 mesh.cp=2 "
    "strategies=[{\"use\":\"3d\",\"context\":\"ring\"},{\"use\":\"zero\",\"stage\":1}] device.refuse=30",
};

START_TEST(goes_on_where_it_cannot_capture)
{
    char plain[400];
    struct command *c;
    snprintf(plain, sizeof plain, "%.*s", (int)(strstr(refused[_i], " device.") - refused[_i]), refused[_i]);
    train(&a, "cpu", "%s " PLUGINS, plain);
    c = command_run("train %s " ON_ASYNC " comm.use=ordered job.name=refused", refused[_i], _i + 1, "4KiB");
    expect_code(c, 0);
    expect_says(c, "are launched one by one: device async refuses");
    curve_read(&b, "refused");
    expect_same_bits(&a, &b);
}
END_TEST

/* An operation in the device's streams is captured on all its ranks or on none (NCCL wants that, and comm-ordered): not
 * between stages, whose programs differ, nor in steps that some ranks run instruction by instruction. */
static const char *const uneven[] = {
    "llama.yaml job.steps=4 mesh.pp=2 model.layers=4 "
    "strategies=[{\"use\":\"3d\",\"schedule\":\"zb-v\"},{\"use\":\"zero\"}] data.micro_batch=1",
    "llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 metrics.profile=true",
    "llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 watch.rerun.every=3",
    "llama.yaml job.steps=6 mesh.dp=2 strategies.zero.stage=3 "
    "metrics.trace={\"file\":\"trace.json\",\"steps\":\"3-4\",\"ranks\":[0]}",
};

START_TEST(captures_on_all_ranks_or_on_none)
{
    train(&a, "cpu", "%s " PLUGINS, uneven[_i]);
    train(&b, "async", "%s " ON_ASYNC " comm={\"use\":\"ordered\",\"timeout\":30}", uneven[_i], _i + 1, "4KiB");
    expect_same_bits(&a, &b);
}
END_TEST

/* So it is where the device of one rank alone refuses: its beginning, its end, or in the middle; the second rank of a
 * group that the first is not in has to know, too. */
static const struct {
    int ranks;
    const char *job;
} one_refuses[] = {{2, "mesh.dp=2 strategies.zero.stage=3"},
                   {2, "mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]"},
                   {4, "mesh.dp=2 mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":3}]"}};
static const int refused_at[] = {-1, -2, 9};

START_TEST(captures_on_none_where_one_refuses)
{
    int n = one_refuses[_i].ranks;
    train(&a, "cpu", "llama.yaml job.steps=4 %s " PLUGINS, one_refuses[_i].job);
    for (size_t k = 0; k < HD__COUNT(refused_at); k++) {
        int port = free_port();
        struct command *c[4];
        for (int rank = n - 1; rank >= 0; rank--)
            c[rank] = command_start_rank(rank, n, 0, port,
                                         "train llama.yaml job.steps=4 job.name=one%zu %s " ON_ASYNC
                                         " comm={\"use\":\"ordered\",\"timeout\":30} device.refuse=%d",
                                         k, one_refuses[_i].job, rank + 1, "4KiB", rank == n - 1 ? refused_at[k] : 0);
        for (int rank = 0; rank < n; rank++) {
            command_wait(c[rank], 60);
            expect_code(c[rank], 0);
            expect_says(c[rank], rank == n - 1 ? "are launched one by one: device async refuses"
                                               : "are launched one by one: another rank cannot capture them");
        }
        curve_read(&b, keep(hd__format("one%zu", k)));
        expect_same_bits(&a, &b);
    }
}
END_TEST

/* Of a hook that reads buffers, where they are the device's. Those that only look see every operation. */
START_TEST(hooks_on_a_stream)
{
    struct command *c = command_run("train llama.yaml mesh.dp=2 job.steps=2 job.name=checked " ON_ASYNC
                                    " comm={\"use\":\"ordered\",\"hooks\":[\"check\"]}",
                                    1, "4KiB");
    expect_code(c, 2);
    expect_says(c, "comm.hooks: check needs buffers in host memory, but comm-ordered works in a stream of "
                   "device async: remove check, or use a transport of host memory");
    c = command_run("train llama.yaml mesh.dp=2 job.steps=2 job.name=traced " ON_ASYNC
                    " comm={\"use\":\"ordered\",\"hooks\":[\"trace\",\"perf\"]}",
                    1, "4KiB");
    expect_code(c, 0);
    expect_says(c, "operations of rank 0 on comm-ordered");
    ck_assert_ptr_null(strstr(c->out, "operations of rank 0")); /* eval and sample print JSON there */
}
END_TEST

START_TEST(refuses_messages_in_one_stream)
{
    struct command *c = command_run("train llama.yaml mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] "
                                    "comm={\"use\":\"ordered\",\"apart\":0} " ON_ASYNC,
                                    1, "4KiB");
    expect_code(c, 2);
    expect_says(c, "axes: {pp: shm}");
}
END_TEST

/* Saved by one, gone on with by the other, and by itself. */
START_TEST(checkpoints)
{
    static const char *const job = "llama.yaml mesh.dp=2 strategies.zero.stage=3";
    train(&a, "straight", "%s job.steps=9", job);
    train(&b, "async", "%s " ON_ASYNC " checkpoint.dir=kept job.steps=3", job, 1, "4KiB");
    train(&b, "async", "%s " ON_ASYNC " checkpoint.dir=kept checkpoint.async=false job.steps=6", job, 2, "4KiB");
    train(&b, "async", "%s checkpoint.dir=kept job.steps=9", job);
    expect_same_bits(&a, &b);
}
END_TEST

static void says_the_same(const char *words)
{
    struct command *cpu = command_run("%s", words), *async = command_run("%s " ON_ASYNC, words, 1, "4MiB");
    expect_code(cpu, 0);
    expect_code(async, 0);
    ck_assert_str_eq(cpu->out, async->out);
}

START_TEST(reads_what_it_made)
{
    train(&a, "made", "llama.yaml job.steps=4 checkpoint.dir=made " ON_ASYNC, 1, "4MiB");
    says_the_same("sample llama.yaml --prompt the --tokens 20 checkpoint.dir=made");
    says_the_same("eval llama.yaml checkpoint.dir=made data.val_fraction=0.1");
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=made --to of-cpu"), 0);
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=made --to exported " ON_ASYNC, 1, "4MiB"), 0);
    ck_assert_int_eq(system("cmp -s of-cpu/model.safetensors exported/model.safetensors"), 0);
    expect_code(
        command_run("sample llama.yaml model={\"use\":\"transformer\",\"from\":\"exported\"} --tokens 2 " ON_ASYNC, 1,
                    "4MiB"),
        0);
}
END_TEST

/* A step that went wrong is looked at through the view of the device's memory. */
START_TEST(names_the_first_bad_number)
{
    struct command *c =
        command_run("train llama.yaml precision.compute=fp16 precision.loss_scale=1e9 " ON_ASYNC, 1, "4MiB");
    char *from_async, *from_cpu;
    expect_code(c, 1);
    from_async = strstr(c->err, "the first bad number");
    ck_assert_ptr_nonnull(from_async);
    c = command_run("train llama.yaml precision.compute=fp16 precision.loss_scale=1e9");
    from_cpu = strstr(c->err, "the first bad number");
    ck_assert_ptr_nonnull(from_cpu);
    ck_assert_str_eq(from_async, from_cpu);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"trains to the same bits", trains_to_the_same_bits, HD__COUNT(jobs)},
        {"orders a transport by its streams", orders_a_transport_by_its_streams, HD__COUNT(ordered)},
        {"goes on where it cannot capture", goes_on_where_it_cannot_capture, HD__COUNT(refused)},
        {"captures on all ranks or on none", captures_on_all_ranks_or_on_none, HD__COUNT(uneven)},
        {"captures on none where one refuses", captures_on_none_where_one_refuses, HD__COUNT(one_refuses)},
        {"hooks on a stream", hooks_on_a_stream, 1},
        {"refuses messages in one stream", refuses_messages_in_one_stream, 1},
        {"checkpoints", checkpoints, 1},
        {"reads what it made", reads_what_it_made, 1},
        {"names the first bad number", names_the_first_bad_number, 1},
        {NULL, NULL, 0}};
    return system_run("system-async", tests);
}
