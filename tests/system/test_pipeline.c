/* Pipelines between real processes: stages and schedules change no bit of what one rank computes; they combine with
 * the other strategies; and what is saved by stages is read by any mesh. */
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/system/system.h"

static struct curve a, b;

#define FOUR "model.layers=4 job.steps=8 "
#define PIPE "mesh.pp=2 strategies=[{\"use\":\"3d\",\"schedule\":\"%s\"},{\"use\":\"zero\",\"stage\":%d}] "

static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

/* Micro-batches are summed in the same order whoever sums them, so all agree to the last bit. Without clipping: the
 * norm of all stages is added up in another order. */
START_TEST(stages_are_one_rank)
{
    char job[32];
    train(&a, "one", "llama.yaml " FOUR "optimizer.clip=0 data.val_fraction=0.1 eval.every=4 eval.batches=3");
    expect_learns(&a);
    ck_assert(!isnan(a.val_loss[3]) && !isnan(a.val_loss[7]));
    for (size_t s = 0; s < HD__COUNT(schedules); s++) {
        snprintf(job, sizeof job, "pp2-%s", schedules[s]);
        train(&b, job, "llama.yaml " FOUR "optimizer.clip=0 data.val_fraction=0.1 eval.every=4 eval.batches=3 " PIPE,
              schedules[s], 0);
        for (int i = 0; i < a.n; i++)
            ck_assert_double_eq(b.loss[i], a.loss[i]);
        for (int i = 3; i < 8; i += 4)
            ck_assert_double_eq(b.val_loss[i], a.val_loss[i]);
        expect_close(&b, &a, 1e-7);
    }
}
END_TEST

/* GPT-2's embedding is its head: a gradient from the first stage and one from the last. */
START_TEST(tied_embeddings)
{
    char job[32];
    train(&a, "tied", "gpt2.yaml " FOUR);
    for (int pp = 2; pp <= 4; pp += 2) {
        snprintf(job, sizeof job, "tied%d", pp);
        train(&b, job, "gpt2.yaml " FOUR PIPE "mesh.pp=%d", "1f1b", 0, pp);
        expect_close(&b, &a, 1e-5);
    }
}
END_TEST

START_TEST(with_other_strategies)
{
    static const struct {
        const char *schedule, *words;
        int zero;
    } rows[] = {{"1f1b", "mesh.dp=2", 0},          {"zb-h1", "mesh.dp=2", 1}, {"gpipe", "mesh.dp=2", 2},
                {"1f1b", "mesh.dp=2", 3},          {"zb-v", "mesh.dp=2", 3},  {"interleaved", "mesh.tp=2", 0},
                {"1f1b", "mesh.tp=2 mesh.dp=2", 2}};
    char job[32];
    train(&a, "alone", "llama.yaml " FOUR);
    for (size_t r = 0; r < HD__COUNT(rows); r++) {
        snprintf(job, sizeof job, "with%zu", r);
        train(&b, job, "llama.yaml " FOUR PIPE "%s", rows[r].schedule, rows[r].zero, rows[r].words);
        expect_close(&b, &a, 1e-5);
    }
}
END_TEST

/* A transport that offers send and recv only. */
START_TEST(messages_alone)
{
    train(&a, "shm", "gpt2.yaml " FOUR PIPE "mesh.dp=2", "1f1b", 1);
    train(&b, "pipes", "gpt2.yaml " FOUR PIPE "mesh.dp=2 plugins.path=" PIPES " comm.use=pipes", "1f1b", 1);
    expect_same_bits(&a, &b);
}
END_TEST

/* One rank begins, two stages go on, then four, then one. */
START_TEST(other_meshes_go_on)
{
    static const char *const meshes[] = {"mesh.pp=1", "mesh.pp=2", "mesh.pp=4", "mesh.pp=1"};
    train(&a, "straight", "gpt2.yaml model.layers=4 job.steps=12");
    for (int i = 0; i < 4; i++)
        train(&b, "relay", "gpt2.yaml model.layers=4 " PIPE "checkpoint.dir=relay job.steps=%d %s", "1f1b", 0,
              3 * (i + 1), meshes[i]);
    ck_assert_int_eq(b.n, 12);
    expect_close(&b, &a, 1e-5);
}
END_TEST

/* kill -9 of everything; the same command goes on with the same bits. */
START_TEST(killed_and_resumed)
{
#define KILLED "llama.yaml model.layers=4 job.steps=60 " PIPE "mesh.dp=2 checkpoint.every=4 "
    train(&a, "unkilled", KILLED "checkpoint.dir=unkilled", "zb-h1", 1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int at = 9; at < 50; at += 21) {
        struct command *c = command_start(NULL, "train " KILLED "checkpoint.dir=killed job.name=killed", "zb-h1", 1);
        pid_t ranks[4];
        curve_wait("killed", at);
        command_ranks(c, 4, ranks);
        kill(c->pid, SIGKILL);
        command_wait(c, 5);
        for (int i = 0; i < 4; i++)
            waitpid(ranks[i], NULL, 0);
    }
    train(&b, "killed", KILLED "checkpoint.dir=killed", "zb-h1", 1);
    ck_assert_int_eq(b.n, 60);
    expect_same_bits(&a, &b);
}
END_TEST

/* A stage that dies ends the run, and the message names its rank. */
START_TEST(a_stage_dies)
{
    struct command *c =
        command_start(NULL, "train llama.yaml job.name=dies model.layers=4 job.steps=100000 " PIPE, "1f1b", 0);
    pid_t ranks[2];
    curve_wait("dies", 3);
    command_ranks(c, 2, ranks);
    kill(ranks[1], SIGKILL);
    command_wait(c, 20);
    expect_code(c, 1);
    expect_says(c, "rank 1 (process ");
    expect_says(c, "killed by signal 9");
}
END_TEST

/* What two stages saved: exported, evaluated and sampled by one rank as if it had been its own. */
START_TEST(export_eval_sample)
{
#define HELD "data.val_fraction=0.1 eval.every=8 eval.batches=2 optimizer.clip=0 "
    static const char *const folders[] = {"of-one", "of-two"};
    struct command *c[2];
    train(&a, "of-one", "llama.yaml " FOUR HELD "checkpoint.dir=of-one");
    train(&b, "of-two", "llama.yaml " FOUR HELD PIPE "checkpoint.dir=of-two", "zb-v", 0);
    for (int i = 0; i < 2; i++) {
        struct command *e =
            command_run("ckpt export llama.yaml " FOUR "checkpoint.dir=%s --to export-%s", folders[i], folders[i]);
        expect_code(e, 0);
        c[i] = command_run("sample llama.yaml " FOUR "checkpoint.dir=%s --prompt the --tokens 20 --temperature 0",
                           folders[i]);
        expect_code(c[i], 0);
    }
    ck_assert_str_eq(c[0]->out, c[1]->out);
    for (int i = 0; i < 2; i++) {
        c[i] = command_run("eval llama.yaml --json " HELD "model={\"use\":\"transformer\",\"from\":\"export-%s\"}",
                           folders[i]);
        expect_code(c[i], 0);
    }
    ck_assert_str_eq(c[0]->out, c[1]->out);
    ck_assert_msg(strstr(c[0]->out, "val_loss") != NULL, "%s", c[0]->out);
    c[0] = command_run("eval llama.yaml " FOUR HELD "mesh.pp=2 "
                       "checkpoint.dir=of-two strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]");
    expect_code(c[0], 0);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"stages are one rank", stages_are_one_rank, 1},
                                        {"tied embeddings", tied_embeddings, 1},
                                        {"with other strategies", with_other_strategies, 1},
                                        {"messages alone", messages_alone, 1},
                                        {"other meshes go on", other_meshes_go_on, 1},
                                        {"killed and resumed", killed_and_resumed, 1},
                                        {"a stage dies", a_stage_dies, 1},
                                        {"export, eval, sample", export_eval_sample, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-pipeline", tests);
}
