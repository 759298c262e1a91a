/* After a fault the ranks that are left save the last step that they have whole, where they hold all of it: the run
 * that goes on from there ends with the same bits as one that was never disturbed. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/system.h"

static struct curve parts;

#define SELDOM "checkpoint.every=1000000 "
#define LACKS "is not saved: the ranks that are left lack elements "
#define IN_UPDATE "the last steps are not saved: each rank that is left was in the middle of an update"
#define SAVED "the ranks that are left have all of the state after step "

/* The newest checkpoint, of those that `ckpt ls` lists; until it is called again. */
static json_t *newest(const char *job)
{
    static json_t *rows;
    struct command *c = command_run("ckpt ls runs/%s --json", job);
    expect_code(c, 0);
    json_decref(rows);
    rows = json_loads(c->out, 0, NULL);
    ck_assert_msg(json_array_size(rows) > 0, "no checkpoint");
    return json_array_get(rows, json_array_size(rows) - 1);
}

static int64_t step_of(const json_t *row)
{
    return json_integer_value(json_object_get(row, "step"));
}

/* A checkpoint of that step, which says what became of `rank` (-1: of none), and verifies. */
static void expect_emergency(const char *job, int64_t step, int rank)
{
    const json_t *row = newest(job), *emergency = json_object_get(row, "emergency"),
                 *lost = json_object_get(emergency, "lost");
    ck_assert_int_eq(step_of(row), step);
    ck_assert_uint_eq(json_array_size(lost), rank >= 0);
    if (rank >= 0)
        ck_assert_int_eq(json_integer_value(json_array_get(lost, 0)), rank);
    ck_assert_ptr_nonnull(json_string_value(json_object_get(emergency, "why")));
    expect_code(command_run("ckpt verify llama.yaml job.name=%s checkpoint={}", job), 0);
}

/* The record of the data that rank 0 made at the start is in it, whoever saved. */
static void expect_data(const char *job, int64_t step, int tokenizer)
{
    json_t *index =
        json_load_file(keep(hd__format("runs/%s/checkpoints/step-%08d/index.json", job, (int)step)), 0, NULL);
    const json_t *state = json_object_get(index, "state");
    ck_assert_ptr_nonnull(json_object_get(state, "data"));
    ck_assert_ptr_nonnull(json_object_get(state, "data_samples"));
    ck_assert_int_eq(json_object_get(state, "tokenizer") != NULL, tokenizer);
    json_decref(index);
}

static void expect_same_state(const char *a, const char *b, int64_t step)
{
    struct command *c = command_run("ckpt diff runs/%s/checkpoints/step-%08d runs/%s/checkpoints/step-%08d", a,
                                    (int)step, b, (int)step);
    ck_assert_msg(c->code == 0, "%s and %s differ:\n%.2000s%.1000s", a, b, c->out, c->err);
}

static int64_t saved_step(const struct command *c)
{
    const char *at = strstr(c->err, SAVED);
    return at ? atoll(at + sizeof SAVED - 1) : -1;
}

/* A rank of a job killed once a step is logged, at any moment of another. Where all that are left were in an update,
 * or, with `replicas`, the one that has the same shard was, there is nothing to save, which they say
 * (killed_at_every_operation): then it is tried again, as another job. */
static struct command *kill_rank(char job[16], const char *words, int step, int n, int victim, int replicas,
                                 double *seconds)
{
    enum { TRIES = 5 };
    for (int tries = 0; tries < TRIES; tries++, strcat(job, "x")) {
        pid_t ranks[4];
        struct command *c = command_start(NULL, "train llama.yaml %s job.name=%s", words, job);
        curve_wait(job, step);
        command_ranks(c, n, ranks);
        double since = unhindered_now();
        kill(ranks[victim], SIGKILL);
        command_wait(c, 60);
        *seconds = unhindered_now() - since;
        if (!strstr(c->err, IN_UPDATE) && !(replicas && strstr(c->err, LACKS)))
            return c;
    }
    ck_abort_msg("%d times in a row in the middle of an update", TRIES);
}

#define ASYNC_DEVICE "plugins.path=[\"" ASYNC "\",\"" PIPES "\"] device.use=async device.seed=3 "

/* Ranks, which of them is killed, and what the survivors save from: their own copies; a replica of shards; memory that
 * the host cannot touch. */
static const struct {
    const char *options;
    int ranks, killed;
} whole[] = {
    {"mesh.dp=2 checkpoint.async=false", 2, 1},
    {"mesh.dp=2 optimizer.use=muon model.vocab=320 data.tokenizer=" GOLDEN_DIR "/indexed/tokenizer.json", 2, 0},
    {"mesh.dp={\"replicate\":2,\"shard\":2} strategies.zero.stage=HYBRID_SHARD", 4, 2},
    {"mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"ema\"}]", 2, 1},
    {"mesh.dp=2 " ASYNC_DEVICE, 2, 1},
};

START_TEST(killed)
{
    char job[16], straight[16];
    double seconds;
    snprintf(job, sizeof job, "left%d", _i);
    const char *left = keep(hd__format("job.deterministic=exact " SELDOM "%s", whole[_i].options));
    struct command *c = kill_rank(job, keep(hd__format("job.steps=1000000 %s", left)), 15, whole[_i].ranks,
                                  whole[_i].killed, whole[_i].ranks > 2, &seconds);
    expect_code(c, 1);
    expect_says(c, SAVED);
    ck_assert_int_ge(saved_step(c), 15);
    expect_emergency(job, saved_step(c), whole[_i].killed);
    expect_data(job, saved_step(c), strstr(whole[_i].options, "tokenizer") != NULL);
    if (whole[_i].killed) { /* rank 0 logged what was saved, and no step more */
        curve_read(&parts, job);
        ck_assert_int_eq(parts.step[parts.n - 1], saved_step(c));
    }
    int64_t from = saved_step(c);
    int last = (int)from + 15;
    c = command_run("train llama.yaml job.steps=%d %s job.name=%s", last, left, job);
    expect_code(c, 0);
    char words[64];
    snprintf(words, sizeof words, "resuming from step %d of ", (int)from);
    ck_assert_ptr_nonnull(strstr(c->out, words));
    snprintf(straight, sizeof straight, "straight%d", _i);
    expect_code(command_run("train llama.yaml job.steps=%d %s job.name=%s", last, left, straight), 0);
    expect_same_state(job, straight, last);
}
END_TEST

/* Dies at one operation after the other of a step: whatever was under way, what is saved is one step, whole. */
START_TEST(killed_at_every_operation)
{
#define SHORT "train llama.yaml mesh.dp=2 data.batch=4 job.deterministic=exact job.steps=12 job.name=%s checkpoint={} "
    char job[16];
    struct command *c;
    int64_t before = 0;
    int torn = 0;
    expect_code(command_run(SHORT, "unhurt"), 0);
    for (int at = 9; at < 18; at++) {
        snprintf(job, sizeof job, "at%d", at);
        c = command_run(SHORT "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"at\":%d,\"kind\":\"kill\"}]", job, at);
        expect_code(c, 1);
        int64_t step = saved_step(c);
        if (step < 0) { /* the update was done, but not what was left of the step */
            expect_says(c, IN_UPDATE);
            torn++;
        } else {
            ck_assert_int_ge(step, before);
            before = step;
            expect_emergency(job, step, 1);
        }
        expect_code(command_run(SHORT, job), 0);
        expect_same_state(job, "unhurt", 12);
    }
    ck_assert_int_gt(before, 2);
    ck_assert_int_le(torn, 3); /* one operation of three in a step */
}
END_TEST

/* All processes are stopped, the launcher too, while those that are left save. */
START_TEST(stopped_while_they_save)
{
#if SANITIZED
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    static const char clock[] = "LD_PRELOAD=" ASYNC "/stopped_clock.so";
    struct command *c = command_start(clock,
                                      SHORT "liveness.dead_after=60s plugins.path=" ASYNC
                                            " checkpoint={\"use\":\"hanging\",\"slow\":true} comm.hooks=[{"
                                            "\"use\":\"faults\",\"rank\":1,\"at\":10,\"kind\":\"kill\"}]",
                                      "still");
    while (access("runs/still/checkpoints", F_OK))
        usleep(10000);
    usleep(600000); /* two stops */
    close(open("disk-goes-on", O_CREAT | O_WRONLY, 0600));
    command_wait(c, 60);
    expect_code(c, 1);
    expect_emergency("still", saved_step(c), 1);
    ck_assert_msg(!strstr(c->err, "are killed"), "%s", c->err);
#endif
}
END_TEST

/* Dies in a save, or in what comes before it: the step that was to be saved is not taken for saved. */
START_TEST(killed_at_a_save)
{
    char job[16];
    int held = 0;
    for (int at = 9; at < 21; at++) {
        snprintf(job, sizeof job, "save%d", at);
        struct command *c =
            command_run(SHORT "checkpoint.every=1 checkpoint.async=false "
                              "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"at\":%d,\"kind\":\"kill\"}]",
                        job, at);
        expect_code(c, 1);
        if (strstr(c->err, IN_UPDATE))
            continue;
        curve_read(&parts, job); /* rank 0 logs a step before it is saved */
        ck_assert_msg(step_of(newest(job)) == parts.step[parts.n - 1], "killed at operation %d: saved %d of %d steps",
                      at, (int)step_of(newest(job)), (int)parts.step[parts.n - 1]);
        held++;
    }
    ck_assert_int_gt(held, 4);
}
END_TEST

/* Rows of checkpoints in a job's metrics, of this step. */
static int checkpoint_rows(const char *job, int64_t step, int emergency)
{
    char words[96];
    int n = 0;
    snprintf(words, sizeof words, "{\"event\": \"checkpoint\", \"step\": %" PRId64 ", %s", step,
             emergency ? "\"emergency\": true" : "\"seconds\"");
    for (const char *at = read_file(keep(hd__format("runs/%s/metrics.jsonl", job))); (at = strstr(at, words)); at++)
        n++;
    return n;
}

/* Rank 0 fails in an operation that rank 1 ends, and so in a step that rank 1 may have whole and save: it has its row,
 * since nobody trains it again. */
START_TEST(failed_alone)
{
    struct curve whole, straight;
    char job[16];
    int ahead = 0;
    expect_code(command_run(SHORT, "straight"), 0);
    curve_read(&straight, "straight");
    for (int at = 9; at < 15; at++) {
        snprintf(job, sizeof job, "alone%d", at);
        unlink("next-operation-began");
        struct command *c = command_run(
            SHORT "plugins.path=" ASYNC " comm.hooks=[{\"use\":\"crash\",\"rank\":0,\"at\":%d,\"kind\":\"alone\"}]",
            job, at);
        expect_code(c, 1);
        if (strstr(c->err, IN_UPDATE))
            continue;
        int64_t step = saved_step(c);
        ck_assert_int_gt(step, 0);
        ahead += strstr(c->err, "[rank 1] the ranks that are left have all of the state") != NULL;
        curve_read(&parts, job);
        ck_assert_msg(parts.step[parts.n - 1] == step, "operation %d: saved %d of %d steps", at, (int)step,
                      (int)parts.step[parts.n - 1]);
        ck_assert_int_eq(checkpoint_rows(job, step, 1), 1);
        expect_code(command_run(SHORT, job), 0);
        curve_read(&whole, job);
        expect_same_bits(&whole, &straight);
    }
    ck_assert_int_gt(ahead, 0);
}
END_TEST

/* A save is committed, and the other rank dies before it hears of that: it is on disk, has its row, and is not made
 * again. */
START_TEST(committed)
{
    static const struct {
        const char *async, *options;
    } ways[] = {{"false", ""}, {"true", ""}, {"true", "strategies.zero.stage=3"}}; /* the last: nothing is saved then */
    char job[16];
    pid_t ranks[2];
    unlink("disk-committed");
    snprintf(job, sizeof job, "commits%d", _i);
    struct command *c = command_start(NULL,
                                      "train llama.yaml mesh.dp=2 job.steps=1000000 job.name=%s plugins.path=" ASYNC
                                      " checkpoint={\"use\":\"hanging\",\"commits\":true,\"every\":20,\"async\":%s} %s",
                                      job, ways[_i].async, ways[_i].options);
    curve_wait(job, 20);
    while (access("disk-committed", F_OK))
        usleep(1000);
    if (_i) /* a later step is saved after the fault, not this one once more */
        curve_wait(job, 25);
    command_ranks(c, 2, ranks);
    kill(ranks[1], SIGKILL);
    write_file("disk-goes-on", "");
    command_wait(c, 60);
    unlink("disk-goes-on");
    expect_code(c, 1);
    ck_assert_int_eq(checkpoint_rows(job, 20, 0), 1);
    ck_assert_int_eq(checkpoint_rows(job, 20, 1), 0);
}
END_TEST

/* What nobody has any more is named, and nothing is saved. */
static const struct {
    const char *options, *says;
} torn[] = {
    {"mesh.dp=2 strategies.zero.stage=3", LACKS},
    {"mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]", " of model/model.embed_tokens.weight and "},
    {"mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] data.micro_batch=1", " of model/"},
};

START_TEST(not_all_there)
{
    char job[16], file[64];
    double seconds;
    snprintf(job, sizeof job, "torn%d", _i);
    struct command *c =
        kill_rank(job, keep(hd__format("job.steps=1000000 " SELDOM "%s", torn[_i].options)), 20, 2, 1, 0, &seconds);
    expect_code(c, 1);
    expect_says(c, torn[_i].says);
    c = command_run("ckpt ls runs/%s --json", job);
    json_t *checkpoints = json_loads(c->out, 0, NULL);
    ck_assert_uint_eq(json_array_size(checkpoints), 0);
    json_decref(checkpoints);
    snprintf(file, sizeof file, "runs/%s/checkpoints/step-00000020", job);
    ck_assert_int_eq(access(file, F_OK), -1);
}
END_TEST

/* No rank is lost: the update of the step that had the NaN did nothing, and what was before it is saved, once. */
START_TEST(not_a_number)
{
#define DIVERGES "train llama.yaml mesh.dp=%d job.name=nan%d job.steps=200 optimizer.lr=1e6 " SELDOM
    char job[16];
    snprintf(job, sizeof job, "nan%d", _i + 1);
    struct command *c = command_run(DIVERGES, _i + 1, _i + 1);
    expect_code(c, 1);
    expect_says(c, SAVED);
    curve_read(&parts, job);
    expect_emergency(job, parts.step[parts.n - 1], -1);
    c = command_run(DIVERGES, _i + 1, _i + 1);
    expect_code(c, 1);
    ck_assert_msg(!strstr(c->err, SAVED), "it was saved before:\n%s", c->err);
}
END_TEST

/* The next round goes on from there. Steps are long, so that the rank is killed before the last. */
START_TEST(restarted)
{
#define RESTARTED "mesh.dp=2 job.deterministic=exact job.steps=100 " SELDOM
#define PAUSED "comm.hooks=[{\"use\":\"faults\",\"kind\":\"delay\",\"every\":4,\"seconds\":\"10ms\"}] "
    char job[16] = "again", words[96];
    double seconds;
    struct command *c = kill_rank(job, RESTARTED "launch.restarts=1 launch.pause=10ms " PAUSED, 15, 2, 1, 0, &seconds);
    expect_code(c, 0);
    snprintf(words, sizeof words, "all ranks are started again in 0.01 s, from step %d\n", (int)saved_step(c));
    expect_says(c, words);
    /* The device is measured once: both rounds print the same. */
    const char *peak = strstr(c->out, "peak of the device"),
               *again = peak ? strstr(peak + 1, "peak of the device") : NULL;
    ck_assert_msg(again && !strncmp(peak, again, strcspn(peak, "\n")), "%s", c->out);
    expect_code(command_run("train llama.yaml job.name=once " RESTARTED), 0);
    expect_same_state(job, "once", 100);
}
END_TEST

/* The storage does not answer: the job ends as promptly as without it. */
START_TEST(storage_hangs)
{
    char job[16] = "hangs";
    double seconds;
    struct command *c = kill_rank(job,
                                  "mesh.dp=2 job.steps=1000000 plugins.path=" ASYNC
                                  " checkpoint={\"use\":\"hanging\",\"slow\":true,\"every\":1000000}",
                                  20, 2, 1, 0, &seconds);
    expect_code(c, 1);
    expect_says(c, "ranks that did not end by themselves are killed");
    ck_assert_double_lt(seconds, promptly(10));
}
END_TEST

/* With rank 0 of another launcher the rendezvous is gone, where the ranks that are left would meet: they say so. */
START_TEST(nowhere_to_meet)
{
    struct command *c[2];
    int port = free_port();
    for (int rank = 0; rank < 2; rank++)
        c[rank] = command_start_rank(rank, 2, 2, port,
                                     "train llama.yaml job.steps=1000000 mesh.dp=2 " SELDOM "job.name=nowhere");
    curve_wait("nowhere", 40);
    kill(c[0]->pid, SIGKILL);
    for (int rank = 0; rank < 2; rank++)
        command_wait(c[rank], 60);
    expect_code(c[1], 1);
    expect_says(c[1], " is not saved: the ranks that are left could not tell each other what they hold: rank 0");
    expect_says(c[1], "the job goes on from its newest checkpoint when it is started again");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"killed", killed, HD__COUNT(whole)},
                                        {"killed at every operation", killed_at_every_operation, 1},
                                        {"killed at a save", killed_at_a_save, 1},
                                        {"stopped while they save", stopped_while_they_save, 1},
                                        {"failed alone", failed_alone, 1},
                                        {"committed", committed, 3},
                                        {"not all there", not_all_there, HD__COUNT(torn)},
                                        {"not a number", not_a_number, 2},
                                        {"restarted", restarted, 1},
                                        {"storage hangs", storage_hangs, 1},
                                        {"nowhere to meet", nowhere_to_meet, 1},
                                        {NULL}};
    return system_run("emergency", tests);
}
