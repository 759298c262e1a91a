/* Training through real processes: the same job twice gives the same bits, and any mesh trains like one rank. */
#include <math.h>

#include "tests/system/system.h"

static struct curve a, b;

START_TEST(twice_on_one_rank)
{
    train(&a, "once", "llama.yaml");
    train(&b, "again", "llama.yaml");
    expect_same_bits(&a, &b);
    expect_learns(&a);
    ck_assert_int_eq(a.n, 20);
}
END_TEST

START_TEST(twice_on_two_ranks)
{
    for (int stage = 0; stage <= 3; stage += 3) {
        train(&a, "once2", "llama.yaml mesh.dp=2 strategies.zero.stage=%d", stage);
        train(&b, "again2", "llama.yaml mesh.dp=2 strategies.zero.stage=%d", stage);
        expect_same_bits(&a, &b);
    }
}
END_TEST

/* A seed is not without effect, or the tests above would hold for constants too. */
START_TEST(another_seed)
{
    train(&a, "seed1", "llama.yaml job.steps=2");
    train(&b, "seed2", "llama.yaml job.steps=2 job.seed=7");
    ck_assert_str_ne(a.text[0], b.text[0]);
    train(&b, "seed3", "llama.yaml job.steps=2 data.shuffle=false");
    ck_assert_str_ne(a.text[0], b.text[0]);
}
END_TEST

/* micro_batch 2 in every run: two ranks accumulate half as many micro-batches as one. */
static void zero_stages(const char *model)
{
    static struct curve stage[4];
    char job[32];
    train(&a, model, "%s.yaml", model);
    expect_learns(&a);
    for (int i = 0; i < 4; i++) {
        snprintf(job, sizeof job, "%s-zero%d", model, i);
        train(&stage[i], job, "%s.yaml mesh.dp=2 strategies.zero.stage=%d", model, i);
        expect_close(&stage[i], &a, 1e-5);
    }
    expect_same_bits(&stage[0], &stage[1]);
    expect_same_bits(&stage[2], &stage[3]);
}

/* Where parameters are gathered in the next step changes no bit, of evaluations between steps neither. */
START_TEST(gathered_in_the_forward_pass)
{
#define EVALUATED "job.steps=8 data.val_fraction=0.1 eval.every=3 eval.batches=2 "
    static const char *const jobs[] = {
        "llama.yaml mesh.dp=2 strategies.zero.stage=1 strategies.zero.bucket=0 " EVALUATED,
        "gpt2.yaml mesh.dp=2 data.micro_batch=1 strategies.zero.stage=2 strategies.zero.bucket=0 " EVALUATED,
        "llama.yaml precision.compute=bf16 mesh.dp=2 strategies.zero.stage=1 " EVALUATED};
    for (size_t i = 0; i < HD__COUNT(jobs); i++) {
        train(&a, "behind-update", "%s strategies.zero.gather_in_forward=false", jobs[i]);
        train(&b, "behind-forward", "%s strategies.zero.gather_in_forward=true", jobs[i]);
        expect_learns(&a);
        expect_same_bits(&a, &b);
        for (int k = 2; k < 8; k += 3) /* after steps 3 and 6 */
            ck_assert_msg(a.val_loss[k] == b.val_loss[k], "%s: %.9g and %.9g", jobs[i], a.val_loss[k], b.val_loss[k]);
    }
}
END_TEST

START_TEST(zero_llama)
{
    zero_stages("llama");
}
END_TEST

START_TEST(zero_gpt2)
{
    zero_stages("gpt2");
}
END_TEST

/* Where the state lies between updates changes nothing, in fp32 and with master weights of their own. */
START_TEST(zero_offload)
{
    static const char *const offload[] = {"strategies.zero.offload.optimizer=host",
                                          "strategies.zero.offload.optimizer=file strategies.zero.offload.path=."};
    for (int stage = 0; stage <= 3; stage += 3)
        for (int low = 0; low < 2; low++) {
            const char *compute = low ? "bf16" : "fp32", *params = stage == 3 ? "host" : "none";
            train(&a, "kept", "llama.yaml job.steps=8 mesh.dp=2 strategies.zero.stage=%d precision.compute=%s", stage,
                  compute);
            expect_learns(&a);
            for (size_t n = 0; n < HD__COUNT(offload); n++) {
                train(&b, "offloaded",
                      "llama.yaml job.steps=8 mesh.dp=2 strategies.zero.stage=%d precision.compute=%s %s "
                      "strategies.zero.offload.params=%s",
                      stage, compute, offload[n], params);
                expect_same_bits(&a, &b);
            }
        }
}
END_TEST

/* Four ranks, and a model that is parameters for the most part: what a process has, as it says itself. The plan is
 * checked by plugins/strategy-zero/tests/test_zero.c. */
static double process_bytes(const char *name, int stage)
{
    char path[64], *at;
    struct command *c =
        command_start(NULL,
                      "train llama.yaml job.name=%s job.steps=2 launch.ranks=4 mesh.dp=4 strategies.zero.stage=%d "
                      "model.hidden=256 model.layers=48 model.ffn=704 data.batch=4 data.micro_batch=1 data.seq_len=16 "
                      "device.threads=1",
                      name, stage);
    command_wait(c, 600);
    expect_code(c, 0);
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", name);
    at = strstr(read_file(path), "{\"step\": 2,");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "\"rss_bytes\": ");
    ck_assert_ptr_nonnull(at);
    return atof(at + strlen("\"rss_bytes\": "));
}

START_TEST(stage_3_needs_a_third)
{
    double whole = process_bytes("whole", 0), shards = process_bytes("shards", 3);
    fprintf(stderr, "process memory, 4 ranks: stage 0 %.0f MiB, stage 3 %.0f MiB, ratio %.3f\n", whole / (1 << 20),
            shards / (1 << 20), shards / whole);
    if (!SANITIZED) /* a process has a sanitizer's memory too */
        ck_assert_double_le(shards, 0.35 * whole);
}
END_TEST

#define STRATEGIES "strategies=[{\"use\":\"3d\",\"sequence_parallel\":%s},{\"use\":\"zero\",\"stage\":%d}]"

static void tensor_parallel(const char *model)
{
    char job[32];
    train(&a, model, "%s.yaml", model);
    for (int sequence = 0; sequence < 2; sequence++) {
        snprintf(job, sizeof job, "%s-tp-%d", model, sequence);
        train(&b, job, "%s.yaml mesh.tp=2 " STRATEGIES, model, sequence ? "true" : "false", 0);
        expect_close(&b, &a, 1e-5);
    }
}

START_TEST(tensor_parallel_llama)
{
    tensor_parallel("llama");
}
END_TEST

START_TEST(tensor_parallel_gpt2)
{
    tensor_parallel("gpt2");
}
END_TEST

/* Four processes: more tensor parallelism than llama.yaml has kv heads for, and both kinds of sharding at once. */
START_TEST(four_ranks)
{
    train(&a, "four-heads", "llama.yaml model.kv_heads=4");
    train(&b, "four-tp", "llama.yaml model.kv_heads=4 mesh.tp=4 " STRATEGIES, "true", 0);
    expect_close(&b, &a, 1e-5);
    train(&a, "four-one", "llama.yaml");
    train(&b, "four-shared", "llama.yaml mesh.tp=4 " STRATEGIES, "true", 0);
    expect_close(&b, &a, 1e-5);
    train(&b, "four-both", "llama.yaml mesh.tp=2 mesh.dp=2 " STRATEGIES, "true", 3);
    expect_close(&b, &a, 1e-5);
    train(&b, "four-hybrid", "llama.yaml mesh.dp={\"replicate\":2,\"shard\":2} " STRATEGIES, "false", 2);
    expect_close(&b, &a, 1e-5);
}
END_TEST

/* A transport that offers send and recv only: the core's collectives sum in the same order as comm-shm's. */
START_TEST(messages_alone)
{
    static const char *const jobs[] = {"llama.yaml mesh.dp=2 strategies.zero.stage=1",
                                       "gpt2.yaml mesh.dp=2 strategies.zero.stage=3",
                                       "llama.yaml mesh.tp=2 mesh.dp=2 " STRATEGIES};
    for (size_t i = 0; i < HD__COUNT(jobs); i++) {
        char format[512], name[32];
        snprintf(format, sizeof format, "%s job.steps=6", jobs[i]);
        snprintf(name, sizeof name, "shm-%zu", i);
        train(&a, name, format, "true", 2);
        expect_learns(&a);
        snprintf(format, sizeof format, "%s job.steps=6 plugins.path=" PIPES " comm.use=pipes", jobs[i]);
        snprintf(name, sizeof name, "pipes-%zu", i);
        train(&b, name, format, "true", 2);
        expect_same_bits(&a, &b);
    }
}
END_TEST

/* Several transports at once, told apart by axis. */
START_TEST(a_transport_for_an_axis)
{
    train(&a, "axis-shm", "llama.yaml job.steps=6 mesh.tp=2 mesh.dp=2 " STRATEGIES, "true", 2);
    train(&b, "axis-both",
          "llama.yaml job.steps=6 mesh.tp=2 mesh.dp=2 " STRATEGIES " plugins.path=" PIPES
          " comm.axes={\"dp\":\"pipes\"}",
          "true", 2);
    expect_same_bits(&a, &b);
}
END_TEST

/* Ulysses and the ring; two kv heads do not divide by four. */
START_TEST(context_parallel)
{
    static const char *const kinds[] = {"ulysses", "ring"};
    train(&a, "context-one", "llama.yaml");
    for (int i = 0; i < 2; i++) {
        train(&b, "context-two",
              "llama.yaml mesh.cp=2 strategies=[{\"use\":\"3d\",\"context\":\"%s\"},{\"use\":\"zero\",\"stage\":%d}]",
              kinds[i], i);
        expect_close(&b, &a, 1e-5);
    }
    train(&b, "context-four", "llama.yaml mesh.cp=4 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":3}]");
    expect_close(&b, &a, 1e-5);
    train(&a, "context-gpt2", "gpt2.yaml");
    train(&b, "context-gpt2-ring",
          "gpt2.yaml mesh.cp=2 strategies=[{\"use\":\"3d\",\"context\":\"ring\"},{\"use\":\"zero\"}]");
    expect_close(&b, &a, 1e-5);
}
END_TEST

/* Experts apart on two and four processes, with what they may be mixed with. */
START_TEST(expert_parallel)
{
    static const char *const meshes[] = {"mesh.ep=2 " STRATEGIES, "mesh.ep=4 " STRATEGIES,
                                         "mesh.ep=2 mesh.tp=2 " STRATEGIES, "mesh.ep=2 mesh.dp=2 " STRATEGIES};
    for (int capacity = 0; capacity < 2; capacity++) {
        const char *slots = capacity ? "model.capacity=1" : "model.capacity=dropless";
        train(&a, "experts", "mixtral.yaml %s", slots);
        expect_learns(&a);
        for (size_t i = 0; i < HD__COUNT(meshes); i++) {
            char format[512];
            snprintf(format, sizeof format, "mixtral.yaml %s %s", slots, meshes[i]);
            train(&b, "experts-apart", format, i == 2 ? "true" : "false", (int)i);
            expect_close(&b, &a, 1e-5);
        }
    }
}
END_TEST

START_TEST(bf16)
{
    train(&a, "bf16-one", "llama.yaml precision.compute=bf16");
    expect_learns(&a);
    train(&b, "bf16-two", "llama.yaml precision.compute=bf16 mesh.dp=2 strategies.zero.stage=1");
    expect_close(&b, &a, 1e-2);
    train(&b, "bf16-three", "llama.yaml precision.compute=bf16 mesh.dp=2 strategies.zero.stage=3");
    expect_close(&b, &a, 1e-2);
}
END_TEST

/* The sums of one step do not depend on how the batch is cut. */
START_TEST(accumulation)
{
    train(&a, "cut8", "llama.yaml data.micro_batch=8");
    train(&b, "cut1", "llama.yaml data.micro_batch=1");
    expect_close(&b, &a, 1e-5);
}
END_TEST

/* What is made again has the bits of what was kept, collectives included. */
START_TEST(recompute)
{
    static const struct {
        const char *job, *how[2];
    } rows[] = {{"gpt2.yaml mesh.dp=2 strategies.zero.stage=3", {"recompute=full", "recompute=selective"}},
                {"llama.yaml mesh.tp=2 mesh.dp=2 "
                 "strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},{\"use\":\"zero\",\"stage\":2}]",
                 {"recompute.every=2", "recompute=selective"}}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        train(&a, "kept", "%s job.steps=6", rows[i].job);
        expect_learns(&a);
        for (int k = 0; k < 2; k++) {
            train(&b, "again", "%s job.steps=6 %s", rows[i].job, rows[i].how[k]);
            expect_same_bits(&a, &b);
        }
    }
}
END_TEST

/* Fifty steps of exact sums: ranks, stages of sharding, pipelines, recomputation and transports change no bit. */
START_TEST(exact_sums)
{
    static const char *const how[] = {
        "mesh.dp=2 strategies=[{\"use\":\"zero\",\"stage\":0}]",
        "mesh.dp=4 strategies=[{\"use\":\"zero\",\"stage\":1}] plugins.path=" PIPES " comm.use=pipes",
        "mesh.dp={\"replicate\":2,\"shard\":2} strategies=[{\"use\":\"zero\",\"stage\":2}] recompute=selective",
        "mesh.dp=2 strategies=[{\"use\":\"zero\",\"stage\":3}] recompute=full",
        "mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]"};
    const char *const base = "llama.yaml job.steps=50 job.deterministic=exact data.micro_batch=1 data.seq_len=8 "
                             "model.tied=true device.threads=1";
    train(&a, "exact", "%s", base);
    expect_learns(&a);
    for (size_t i = 0; i < HD__COUNT(how); i++) {
        train(&b, "exact-other", "%s %s", base, how[i]);
        expect_same_bits(&a, &b);
    }
}
END_TEST

/* Empty sequences fill up what the ranks do not divide: the mean and the sequences of a step are those of one rank,
 * after a checkpoint of fewer ranks too, and so are evaluations. */
START_TEST(uneven_batches)
{
#define UNEVEN "data.batch=7 data.micro_batch=1 data.val_fraction=0.1 eval.every=10 eval.batches=2 "
    static const char *const how[] = {
        "mesh.dp=3 data.micro_batch=2",
        "mesh.dp=2 data.micro_batch=4 strategies.zero.stage=3",
        "mesh.dp=4 strategies.zero.stage=2 recompute=full",
        "mesh={\"dp\":3,\"tp\":2} strategies.zero.stage=1",
        "mesh.pp=2 data.micro_batch=2",
        "mesh={\"dp\":2,\"cp\":2} data.micro_batch=2",
        "mesh={\"pp\":2,\"dp\":3}",
    };
    static const char *const documents[] = {"data.documents=mask data.eod=10 ", "data.documents=pack data.eod=10 "};
    for (size_t i = 0; i < HD__COUNT(documents); i++) {
        train(&a, "seven-documents", "llama.yaml " UNEVEN "%s", documents[i]);
        train(&b, "uneven-documents", "llama.yaml " UNEVEN "data.pad_batch=always mesh.dp=3 %s", documents[i]);
        expect_close(&b, &a, 1e-5);
    }
    train(&a, "seven", "llama.yaml " UNEVEN);
    expect_learns(&a);
    for (size_t i = 0; i < HD__COUNT(how); i++) {
        train(&b, "uneven", "llama.yaml " UNEVEN "data.pad_batch=always %s", how[i]);
        expect_close(&b, &a, 1e-5);
        for (int k = 9; k < 20; k += 10)
            ck_assert_msg(fabs(b.val_loss[k] / a.val_loss[k] - 1) < 1e-5, "%g, %g", b.val_loss[k], a.val_loss[k]);
    }
    train(&b, "uneven-resumed", "llama.yaml " UNEVEN "job.steps=8 checkpoint.dir=uneven");
    train(&b, "uneven-resumed", "llama.yaml " UNEVEN "checkpoint.dir=uneven data.pad_batch=always mesh.dp=3");
    expect_close(&b, &a, 1e-5);
    struct command *c =
        command_run("check llama.yaml " UNEVEN "data.pad_batch=always mesh.dp=3 data.micro_batch=2 --numerics");
    expect_code(c, 0);
    expect_says(
        c, "command line: data.batch: 7 sequences take 12 places in micro-batches: 42% of the compute is of empty ones "
           "(data.pad_batch)");
}
END_TEST

/* Empty sequences are refused by name if they would change what is trained. */
START_TEST(uneven_batches_refused)
{
    static const char *const rows[][2] = {
        {"llama.yaml job.deterministic=exact", "empty sequences of data.pad_batch would change the order of sums"},
        {"llama.yaml strategies=[{\"use\":\"localsgd\",\"every\":4}]", "excludes data.pad_batch with empty sequences"},
        {"mixtral.yaml", "the model has an auxiliary loss over all tokens"},
        {"llama.yaml data.pad_batch=never", "or data.pad_batch=always, with empty sequences"},
        {"llama.yaml data.pad_batch=often", "data.pad_batch: 'often' is none of auto, always, never"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("check data.pad_batch=always mesh.dp=3 %s", rows[i][0]);
        expect_code(c, 2);
        expect_says(c, rows[i][1]);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"twice on one rank", twice_on_one_rank, 1},
                                        {"twice on two ranks", twice_on_two_ranks, 1},
                                        {"another seed", another_seed, 1},
                                        {"gathered in the forward pass", gathered_in_the_forward_pass, 1},
                                        {"zero, llama", zero_llama, 1},
                                        {"zero, gpt2", zero_gpt2, 1},
                                        {"zero, offload", zero_offload, 1},
                                        {"stage 3 needs a third", stage_3_needs_a_third, 1},
                                        {"tensor parallel, llama", tensor_parallel_llama, 1},
                                        {"tensor parallel, gpt2", tensor_parallel_gpt2, 1},
                                        {"four ranks", four_ranks, 1},
                                        {"context parallel", context_parallel, 1},
                                        {"messages alone", messages_alone, 1},
                                        {"a transport for an axis", a_transport_for_an_axis, 1},
                                        {"bf16", bf16, 1},
                                        {"accumulation", accumulation, 1},
                                        {"recompute", recompute, 1},
                                        {"exact sums", exact_sums, 1},
                                        {"expert parallel", expert_parallel, 1},
                                        {"uneven batches", uneven_batches, 1},
                                        {"uneven batches refused", uneven_batches_refused, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-parity", tests);
}
