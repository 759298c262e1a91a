/* Local SGD through the built command: DiLoCo as torch computes it (tests/golden/localsgd.py), runs that go on in
 * the middle of their steps apart, and what a checkpoint's model is. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/system/system.h"

static struct curve whole, parts;

#define STEPS 20
#define EVERY 5

/* ---- torch: two workers, AdamW and clipping each for itself, torch.optim.SGD on the mean of what they moved */

static const struct {
    const char *name, *options;
} outer[] = {
    {"nesterov", "outer_lr: 0.7, momentum: 0.9"},
    {"heavy-ball", "outer_lr: 0.5, momentum: 0.8, nesterov: false"},
    {"mean", "outer_lr: 1, momentum: 0"},
};

static void write_golden_job(int n)
{
    char text[1024];
    snprintf(
        text, sizeof text,
        "job: {name: golden%d, steps: %d}\nmesh: {dp: 2}\nstrategies: [{use: zero}, {use: localsgd, every: %d, %s}]\n"
        "optimizer: {use: adamw, lr: 1e-2, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, clip: 1.0}\n"
        "model: {use: transformer, from: %s/llama}\n"
        "data: {train: %s/localsgd/tokens.npy, seq_len: 8, batch: 4, micro_batch: 2, shuffle: false}\n"
        "checkpoint: {dir: golden%d}\n",
        n, STEPS, EVERY, outer[n].options, GOLDEN_DIR, GOLDEN_DIR, n);
    write_file("golden.yaml", text);
}

static json_t *expected(const char *name)
{
    json_t *all = keep(json_loads(read_file(GOLDEN_DIR "/localsgd/expected.json"), 0, NULL));
    json_t *one = json_object_get(json_object_get(all, "outer"), name);
    ck_assert_ptr_nonnull(one);
    return one;
}

START_TEST(as_torch)
{
    json_t *want = expected(outer[_i].name);
    char job[32], golden[512];
    write_golden_job(_i);
    snprintf(job, sizeof job, "golden%d", _i);
    train(&whole, job, "golden.yaml");
    ck_assert_int_eq(whole.n, STEPS);
    for (int n = 0; n < STEPS; n++) {
        expect_number(whole.loss[n], json_number_value(json_array_get(json_object_get(want, "losses"), (size_t)n)),
                      1e-5, "the loss", n + 1);
        expect_number(whole.norm[n], json_number_value(json_array_get(json_object_get(want, "grad_norms"), (size_t)n)),
                      1e-4, "the gradient norm", n + 1);
    }
    expect_code(command_run("ckpt export golden.yaml --to exported%d", _i), 0);
    snprintf(job, sizeof job, "exported%d", _i);
    snprintf(golden, sizeof golden, GOLDEN_DIR "/localsgd/%s.safetensors", outer[_i].name);
    expect_weights(job, golden, 1e-4);
}
END_TEST

/* The last step apart is left out: what is exported is what the ranks had in common before it, all the same. */
START_TEST(the_model_is_what_ranks_have_in_common)
{
    write_golden_job(0);
    train(&parts, "apart", "golden.yaml job.steps=10 checkpoint.dir=apart checkpoint.keep=0");
    expect_code(command_run("ckpt export golden.yaml checkpoint.dir=apart --to at10"), 0);
    train(&parts, "apart", "golden.yaml job.steps=13 checkpoint.dir=apart checkpoint.keep=0");
    struct command *c = command_run("ckpt export golden.yaml checkpoint.dir=apart --to at13");
    expect_code(c, 0);
    expect_says(c,
                "the weights of checkpoint step-00000013 are as of step 10: strategies.localsgd makes replicas equal ");
    expect_weights("at13", "at10", 0);
}
END_TEST

/* ---- real meetings in every step: data parallel SGD, but for rounding */

#define SGD "optimizer={\"use\":\"sgd\",\"lr\":0.1} "

START_TEST(meeting_in_every_step)
{
    train(&whole, "ddp", "llama.yaml mesh.dp=2 " SGD);
    train(&parts, "averaged",
          "llama.yaml mesh.dp=2 " SGD
          "strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":1,\"outer_lr\":1,\"momentum\":0}]");
    expect_learns(&parts);
    expect_close(&parts, &whole, 1e-5);
}
END_TEST

/* ---- going on */

static const char *const jobs[] = {
    "llama.yaml mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":7}]",
    "llama.yaml mesh.dp={\"replicate\":2,\"shard\":2} strategies=[{\"use\":\"zero\",\"stage\":3},"
    "{\"use\":\"localsgd\",\"every\":7,\"axes\":[\"dp_replicate\"]}]",
    "llama.yaml mesh.dp=2 mesh.pp=2 precision.compute=bf16 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"},"
    "{\"use\":\"localsgd\",\"every\":7}]",
};

START_TEST(resume_apart_is_exact)
{
    char job[32];
    snprintf(job, sizeof job, "midway%d", _i);
    train(&whole, "straight", "%s", jobs[_i]);
    train(&parts, job, "%s checkpoint.dir=%s job.steps=10", jobs[_i], job);
    ck_assert_int_eq(parts.n, 10);
    train(&parts, job, "%s checkpoint.dir=%s", jobs[_i], job);
    ck_assert_int_eq(parts.n, 20);
    expect_same_bits(&parts, &whole);
    expect_learns(&whole);
}
END_TEST

#define KILLED                                                                                                \
    "llama.yaml job.steps=300 mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":11}] " \
    "checkpoint.every=4 "

START_TEST(killed_apart)
{
    train(&whole, "unkilled", KILLED "checkpoint.dir=unkilled checkpoint.every=1000");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int round = 0; round < 2; round++) {
        struct command *c = command_start(NULL, "train " KILLED "checkpoint.dir=killed job.name=killed");
        pid_t ranks[2];
        curve_wait("killed", 60 + 90 * round);
        command_ranks(c, 2, ranks);
        kill(c->pid, SIGKILL);
        command_wait(c, 5);
        ck_assert_int_eq(c->code, 128 + SIGKILL);
        for (int i = 0; i < 2; i++)
            waitpid(ranks[i], NULL, 0);
    }
    train(&parts, "killed", KILLED "checkpoint.dir=killed");
    ck_assert_int_eq(parts.n, 300);
    expect_same_bits(&parts, &whole);
}
END_TEST

START_TEST(replicas_of_another_number)
{
    struct command *c;
    train(&parts, "two", "%s checkpoint.dir=two job.steps=10", jobs[0]);
    c = command_run("train llama.yaml mesh.dp=4 checkpoint.dir=two "
                    "strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":7}]");
    expect_code(c, 2);
    expect_says(c, "has the state of 2 local-SGD replicas, this job has 4");
    c = command_run("train llama.yaml mesh.dp=2 checkpoint.dir=two");
    expect_code(c, 2);
    expect_says(c, "has the state of 2 local-SGD replicas, this job has 1");
}
END_TEST

START_TEST(proved_and_compared)
{
    struct command *c = command_run("check %s", jobs[0]);
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "every 7 steps their parameters become equal") != NULL, "%s", c->out);
    c = command_run("check %s --numerics", jobs[0]);
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "replicas take one step of sgd, lr 0.1, between two outer steps") != NULL, "%s",
                  c->out);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"as torch", as_torch, HD__COUNT(outer)},
        {"the model", the_model_is_what_ranks_have_in_common, 1},
        {"meeting in every step", meeting_in_every_step, 1},
        {"resume", resume_apart_is_exact, HD__COUNT(jobs)},
        {"killed", killed_apart, 1},
        {"replicas", replicas_of_another_number, 1},
        {"proved", proved_and_compared, 1},
        {NULL, NULL, 0},
    };
    return system_run("localsgd", tests);
}
