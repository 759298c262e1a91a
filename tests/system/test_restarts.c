/* Work that is not lost: rounds of a launcher whose ranks die, what ends them, checkpoints by time, those that are
 * kept, and jobs that save before their time is up or their machine is taken away. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "service/checkpoint/memory_copy.h"
#include "service/launch/launch.h"
#include "tests/system/system.h"

static struct curve whole, parts;

#define AGAIN "launch.restarts=3 launch.pause=10ms "
#define ENDLESS "llama.yaml job.steps=1000000000 "

/* Lines of this event in a job's metrics; they stay until the test ends. */
static json_t *events(const char *job, const char *event)
{
    static json_t *kept;
    char path[128], *rest;
    json_t *all = json_array();
    kept = kept ? kept : json_array();
    json_array_append_new(kept, all);
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    rest = read_file(path);
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        json_t *row = json_loads(line, 0, NULL);
        const char *of = json_string_value(json_object_get(row, "event"));
        if (of && !strcmp(of, event))
            json_array_append(all, row);
        json_decref(row);
    }
    return all;
}

static int64_t at(const json_t *rows, size_t i, const char *key)
{
    const json_t *value = json_object_get(json_array_get(rows, i), key);
    ck_assert_msg(json_is_integer(value), "%s of row %zu", key, i);
    return json_integer_value(value);
}

/* ---- rounds */

/* The rank of a round is killed at a step; the launcher starts all again. */
static void kill_rank(const struct command *c, const char *job, int n, int rank, int step)
{
    pid_t ranks[2];
    curve_wait(job, step);
    command_ranks(c, n, ranks);
    ck_assert_int_eq(kill(ranks[rank], SIGKILL), 0);
}

static void expect_restart(const json_t *rows, size_t i, int ranks, int lost)
{
    const json_t *row = json_array_get(rows, i), *all = json_object_get(row, "lost");
    ck_assert_int_eq(at(rows, i, "round"), (int)i + 1);
    ck_assert_int_eq(at(rows, i, "ranks"), ranks);
    ck_assert_uint_eq(json_array_size(all), 1);
    ck_assert_int_eq(json_integer_value(json_array_get(all, 0)), lost);
    ck_assert_double_gt(json_number_value(json_object_get(row, "seconds")), 0);
}

/* Killed twice: the same bits as undisturbed, each step once, one object a restart. The first ends a run without a
 * checkpoint (the third row, of which no rank has all), of one rank, or of two. */
static const struct {
    const char *options;
    int ranks, saves;
} rounds[] = {
    {"mesh.dp=2 checkpoint.every=20 checkpoint.async=false", 2, 1},
    {"checkpoint.every=20 checkpoint.async=false", 1, 1},
    {"mesh.dp=2 strategies.zero.stage=1 checkpoint.every=100000", 2, 0},
};

static json_t *wait_for_restarts(const char *job, size_t n)
{
    json_t *restarts = events(job, "restart");
    for (int waits = 0; waits < 6000 && json_array_size(restarts) < n; waits++) {
        usleep(10000);
        restarts = events(job, "restart");
    }
    ck_assert_uint_eq(json_array_size(restarts), n);
    return restarts;
}

START_TEST(killed_twice)
{
#define EXACT "llama.yaml job.deterministic=exact "
    char job[32], file[64];
    json_t *restarts;
    struct command *c;
    snprintf(job, sizeof job, "killed%d", _i);
    c = command_start(NULL, "train " EXACT AGAIN "job.steps=1000000000 %s job.name=%s checkpoint.dir=%s",
                      rounds[_i].options, job, job);
    kill_rank(c, job, rounds[_i].ranks, rounds[_i].ranks - 1, 30);
    /* the step comes again, or it is cut: what is waited for is beyond the restart */
    wait_for_restarts(job, 1);
    kill_rank(c, job, rounds[_i].ranks, 0, 60);
    restarts = wait_for_restarts(job, 2);
    curve_wait(job, at(restarts, 1, "step") + 45);
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    expect_code(c, 3);
    expect_restart(restarts, 0, rounds[_i].ranks, rounds[_i].ranks - 1);
    expect_restart(restarts, 1, rounds[_i].ranks, 0);
    if (!rounds[_i].saves) {
        expect_says(c, "from the beginning, since there is no checkpoint yet");
        ck_assert_int_eq(at(restarts, 1, "step"), 0);
    } else {
        ck_assert_int_gt(at(restarts, 1, "step"), at(restarts, 0, "step"));
        ck_assert_uint_eq(json_array_size(events(job, "start")), 1);
    }
    snprintf(file, sizeof file, "runs/%s/metrics.jsonl.1", job);
    ck_assert_int_eq(access(file, F_OK), -1); /* it is one run */
    curve_read(&parts, job);
    int last = (int)parts.step[parts.n - 1];
    train(&whole, "undisturbed", EXACT "%s job.steps=%d checkpoint.dir=undisturbed checkpoint.resume=overwrite",
          rounds[_i].options, last);
    /* rank 0 may have died between the end of a step, which rank 1 then saved, and its row */
    ck_assert_int_ge(parts.n, last - (rounds[_i].saves && rounds[_i].ranks > 1));
    for (int i = 0; i < parts.n; i++) {
        ck_assert(i == 0 || parts.step[i] > parts.step[i - 1]);
        ck_assert_str_eq(parts.text[i], whole.text[parts.step[i] - 1]);
    }
}
END_TEST

/* Changes a byte of every copy of the newest step, and returns the step; 0: not all ranks have copies of it yet. */
static int64_t damage_copies(pid_t launcher, int ranks)
{
    struct hd__copy_header h[2 * HD__COPIES];
    int fd[2 * HD__COPIES], n = 0, have = 0;
    int64_t newest = 0;
    for (int k = 3; k < 1000 && n < ranks * HD__COPIES; k++) {
        char path[64], to[64] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)launcher, k);
        if (readlink(path, to, sizeof to - 1) > 0 && strstr(to, "heddle checkpoint.peers"))
            fd[n++] = open(path, O_RDWR | O_CLOEXEC);
    }
    ck_assert_int_eq(n, ranks * HD__COPIES);
    for (int i = 0; i < n; i++) {
        h[i].step = hd__copy_read_header(fd[i], &h[i]) ? h[i].step : 0;
        newest = HD__MAX(newest, h[i].step);
    }
    for (int i = 0; i < n; i++)
        have += h[i].step == newest;
    if (have < ranks)
        newest = 0;
    for (int i = 0; i < n; close(fd[i++])) {
        char last;
        if (!newest || h[i].step != newest)
            continue;
        off_t at = (off_t)hd__copy_bytes(&h[i]) - 1;
        ck_assert_int_eq(pread(fd[i], &last, 1, at), 1);
        last ^= 1;
        ck_assert_int_eq(pwrite(fd[i], &last, 1, at), 1);
    }
    return newest;
}

/* A damaged copy is not gone on from. */
START_TEST(damaged_copy)
{
#define IN_MEMORY "llama.yaml job.deterministic=exact mesh.dp=2 strategies.zero.stage=1 "
    pid_t ranks[2];
    int64_t step = 0;
    struct command *c = command_start(NULL, "train " IN_MEMORY AGAIN "job.name=damaged job.steps=1000000000 "
                                            "checkpoint={\"every\":100000,\"peers\":{\"every\":10}}");
    curve_wait("damaged", 30);
    command_ranks(c, 2, ranks);
    while (!step) { /* where one rank alone had its copy, the other would finish its own undamaged */
        for (int r = 0; r < 2; r++)
            ck_assert_int_eq(kill(ranks[r], SIGCONT), 0);
        usleep(1000);
        for (int r = 0; r < 2; r++)
            ck_assert_int_eq(kill(ranks[r], SIGSTOP), 0);
        step = damage_copies(c->pid, 2);
    }
    ck_assert_int_eq(kill(ranks[1], SIGKILL), 0);
    ck_assert_int_eq(kill(ranks[0], SIGCONT), 0);
    wait_for_restarts("damaged", 1);
    curve_wait("damaged", step + 40); /* the ranks were stopped before that */
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    expect_code(c, 3);
    expect_says(c, keep(hd__format("the copy of rank 1's state of step %d in memory is damaged", (int)step)));
    ck_assert_int_lt(at(events("damaged", "restart"), 0, "step"), step);
    curve_read(&parts, "damaged");
    train(&whole, "undamaged", IN_MEMORY "job.steps=%d", parts.n);
    expect_same_bits(&parts, &whole);
}
END_TEST

/* A rank dies at the same operation of each round: as often as it takes, since each round saves another checkpoint. */
#define DIES "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"at\":16,\"kind\":\"kill\"}] "

START_TEST(each_round_gets_further)
{
    train(&whole, "straight", "llama.yaml job.deterministic=exact mesh.dp=2");
    struct command *c = command_run("train llama.yaml job.deterministic=exact mesh.dp=2 job.name=further " DIES
                                    "launch.restarts=1 launch.pause=0s checkpoint.every=1 checkpoint.async=false");
    expect_code(c, 0);
    ck_assert_uint_ge(json_array_size(events("further", "restart")), 2); /* more than launch.restarts */
    curve_read(&parts, "further");
    expect_same_bits(&parts, &whole);
}
END_TEST

/* The report is the last failure's, and so is the exit code. */
START_TEST(none_gets_further)
{
    struct command *c = command_run("train llama.yaml mesh.dp=2 strategies.zero.stage=1 job.name=nofurther " DIES
                                    "launch.restarts=2 launch.pause=10ms checkpoint.every=100000");
    expect_code(c, 1);
    expect_says(c, "restart 2 of 2 in a row: all ranks are started again in 0.02 s, from the beginning"); /* doubled */
    expect_says(c, "launch.restarts: 2 in a row have made no newer checkpoint: the job has failed");
    const char *last = strstr(c->err, "restart 2 of 2"); /* then both, in either order */
    ck_assert_msg(strstr(last, "was killed by signal 9") && strstr(last, "report: runs/nofurther/report-"),
                  "it said: %s", c->err);
    ck_assert_uint_eq(json_array_size(events("nofurther", "restart")), 2);
}
END_TEST

static void expect_no_restart(const struct command *c, int code)
{
    expect_code(c, code);
    ck_assert_msg(!strstr(c->err, "started again in"), "it said: %s", c->err);
}

START_TEST(not_restarted)
{
    struct command *c;
    expect_no_restart(command_run("train llama.yaml mesh.dp=2 job.name=refused " AGAIN
                                  "checkpoint.dir=refused checkpoint.resume=nowhere/step-00000007"),
                      2);
    c = command_start(NULL, "train " ENDLESS "mesh.dp=2 job.name=stopped checkpoint={} " AGAIN);
    curve_wait("stopped", 5);
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    expect_no_restart(c, 3);
    expect_says(c, "the state is saved");
    /* another launcher's ranks are its own to restart */
    c = command_run_env("RANK=0 WORLD_SIZE=1", "train llama.yaml job.name=others " AGAIN);
    expect_code(c, 0);
    expect_says(c, "warning: command line: launch.restarts is for ranks that heddle itself starts");
}
END_TEST

/* A fault of the job's own is there again; that is found out by one restart. */
START_TEST(same_step_twice)
{
    struct command *c = command_run("train llama.yaml mesh.dp=2 job.name=nan job.steps=200 optimizer.lr=1e6 " AGAIN
                                    "checkpoint.every=1 checkpoint.async=false");
    json_t *restarts = events("nan", "restart");
    char words[64];
    expect_code(c, 1);
    ck_assert_uint_eq(json_array_size(restarts), 1);
    snprintf(words, sizeof words, "error: step %d has failed twice by itself", (int)at(restarts, 0, "step") + 1);
    expect_says(c, words);
}
END_TEST

/* While it waits for the next round nothing runs, and the state is on disk. */
START_TEST(stopped_in_the_pause)
{
    struct command *c = command_start(NULL, "train llama.yaml mesh.dp=2 job.name=pause " DIES
                                            "launch.restarts=2 launch.pause=100000s checkpoint.every=2 "
                                            "checkpoint.async=false");
    for (int waits = 0; waits < 6000; waits++) {
        if (!access(c->err_file, R_OK) && strstr(read_file(c->err_file), "started again in 1e+05 s"))
            break;
        usleep(10000);
    }
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    expect_code(c, 3);
    expect_says(c, "stopped before the restart");
}
END_TEST

/* ---- which checkpoints */

static void flip_byte(const char *path)
{
    FILE *f = fopen(path, "r+");
    ck_assert_msg(f != NULL, "%s", path);
    fseek(f, 200000, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, 200000, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
}

START_TEST(flipped_bit)
{
#define FLIP \
    "llama.yaml mesh.dp=2 strategies.zero.stage=%d checkpoint.dir=flip%d checkpoint.every=5 checkpoint.async=false "
    char job[16], file[128];
    struct command *c;
    int stage = 3 * _i; /* sharded, one rank alone may find it */
    snprintf(job, sizeof job, "flip%d", stage);
    train(&parts, job, FLIP "job.steps=15", stage, stage);
    snprintf(file, sizeof file, "%s/step-00000015/model-00001-of-00001.safetensors", job);
    flip_byte(file);
    c = command_run("train " FLIP "job.name=%s checkpoint.resume=step-00000015", stage, stage, job);
    expect_code(c, 2); /* what is asked for by name is not passed over */
    expect_says(c, "checksum");
    c = command_run("train " FLIP "job.name=%s", stage, stage, job);
    expect_code(c, 0);
    expect_says(c, "warning: step-00000015 is passed over, since it is damaged: checkpoint step-00000015: "
                   "model-00001-of-00001.safetensors: block 0 (bytes 0 to ");
    snprintf(file, sizeof file, "%s: 1 checkpoint that cannot be read moved to %s.1", job, job);
    expect_says(c, file);
    curve_read(&parts, job);
    train(&whole, "unflipped", "llama.yaml mesh.dp=2 strategies.zero.stage=%d", stage);
    expect_same_bits(&parts, &whole);
}
END_TEST

static int is_there(const char *job, int64_t step)
{
    char path[128];
    snprintf(path, sizeof path, "runs/%s/checkpoints/step-%08d/index.json", job, (int)step);
    return !access(path, F_OK);
}

/* Held against the losses of the metrics: the last two, multiples of ten, and the five best, of which these
 * cannot be all. */
START_TEST(kept)
{
    train(&parts, "policy",
          "llama.yaml job.steps=24 optimizer.lr=0.3 data.val_fraction=0.1 eval.every=5 eval.batches=1 "
          "checkpoint={\"every\":2,\"async\":false,\"keep\":{\"last\":2,\"every\":10,\"best\":5}}");
    json_t *saves = events("policy", "checkpoint");
    size_t n = json_array_size(saves), others = 0;
    double loss[64];
    ck_assert_uint_eq(n, 12);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(saves, i);
        loss[i] = json_number_value(json_object_get(row, "val_loss"));
        ck_assert_double_gt(loss[i], 0);
        ck_assert_double_gt(json_number_value(json_object_get(row, "seconds")), 0);
        ck_assert_double_gt(json_number_value(json_object_get(row, "exposed_s")), 0);
        ck_assert_int_gt(at(saves, i, "bytes"), 3 * 4 * 100000); /* parameters and two states */
    }
    for (size_t i = 0; i < n; i++) {
        int better = 0, step = (int)at(saves, i, "step"), best;
        for (size_t k = 0; k < n; k++)
            better += loss[k] < loss[i];
        best = better < 5;
        others += best && i + 2 < n && step % 10;
        ck_assert_msg(is_there("policy", step) == (i + 2 >= n || step % 10 == 0 || best), "step %d", step);
    }
    ck_assert_uint_ge(others, 1); /* there for its loss alone */
    struct command *c = command_run("ckpt ls runs/policy --json");
    expect_code(c, 0);
    json_t *rows = json_loads(c->out, 0, NULL);
    ck_assert_int_eq(at(rows, json_array_size(rows) - 1, "step"), 24);
    ck_assert_int_gt(at(rows, 0, "time"), 1700000000);
    ck_assert_double_eq_tol(json_number_value(json_object_get(json_array_get(rows, 0), "val_loss")),
                            loss[at(rows, 0, "step") / 2 - 1], 1e-8);
    json_decref(rows);
    expect_code(command_run("ckpt prune llama.yaml job.name=policy checkpoint.keep=1"), 0);
    for (int step = 2; step <= 24; step += 2)
        ck_assert_int_eq(is_there("policy", step), step == 24);
    c = command_run("train llama.yaml job.name=policy checkpoint.keep={\"best\":1}");
    expect_code(c, 2);
    expect_says(c, "checkpoint.keep: best needs the val_loss of each checkpoint: set eval.every");
}
END_TEST

START_TEST(diff_and_rm)
{
#define AT_STEP " runs/two/checkpoints/step-%08d"
    struct command *c;
    train(&parts, "two", "llama.yaml mesh.dp=2 job.steps=4 checkpoint={\"every\":2,\"async\":false}");
    c = command_run("ckpt diff" AT_STEP AT_STEP, 2, 2);
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, ": 0 differ\n"));
    c = command_run("ckpt diff" AT_STEP AT_STEP, 2, 4);
    expect_code(c, 1);
    ck_assert_ptr_nonnull(strstr(c->out, "  step: 2 in A, 4 in B\n"));
    ck_assert_ptr_nonnull(strstr(c->out, "lm_head.weight: "));
    expect_code(command_run("ckpt diff" AT_STEP " runs/two", 2), 2);
    c = command_run("ckpt diff" AT_STEP AT_STEP " --json", 2, 4);
    expect_code(c, 2);
    expect_says(c, "--json: diff has no options");
    c = command_run("ckpt ls" AT_STEP, 2);
    expect_code(c, 2);
    expect_says(c, "step-00000002 is one checkpoint: name the folder that it is in");
    c = command_run("ckpt ls runs/two/checkpoints");
    ck_assert_msg(strstr(c->out, " UTC  dp_shard 2  run ") != NULL, "it listed: %s", c->out);
    expect_code(command_run("ckpt rm runs/two"), 2);
    expect_code(command_run("ckpt rm runs/two --checkpoint step-00000003"), 2);
    expect_code(command_run("ckpt rm runs/two --checkpoint step-00000002"), 0);
    ck_assert(!is_there("two", 2) && is_there("two", 4));
    /* not while a run has the folder */
    c = command_start(NULL, "train " ENDLESS "job.name=two checkpoint={}");
    curve_wait("two", 10);
    struct command *rm = command_run("ckpt rm runs/two --checkpoint step-00000004");
    expect_code(rm, 2);
    expect_says(rm, "runs/two/checkpoints is in use by process ");
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    ck_assert(is_there("two", 4));
}
END_TEST

/* ---- saves by time */

/* A time that is always over, and one that never is: all ranks save at the same steps, and train to the same bits. */
START_TEST(by_time)
{
    train(&whole, "untimed", "llama.yaml mesh.dp=2 job.steps=24");
    train(&parts, "often", "llama.yaml mesh.dp=2 job.steps=24 checkpoint.every=10us checkpoint.async=false");
    expect_same_bits(&parts, &whole);
    ck_assert_uint_eq(json_array_size(events("often", "checkpoint")), 24);
    train(&parts, "seldom", "llama.yaml mesh.dp=2 job.steps=24 checkpoint.every=[1000h,10] checkpoint.async=false");
    json_t *saves = events("seldom", "checkpoint");
    ck_assert_uint_eq(json_array_size(saves), 3);
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(at(saves, i, "step"), i == 2 ? 24 : 10 * ((int)i + 1));
}
END_TEST

/* The disk is slower than the steps: one save is under way, and no other waits. */
START_TEST(slow_disk)
{
    struct command *c = command_start(NULL, "train llama.yaml mesh.dp=2 job.name=slow job.steps=30 plugins.path=" ASYNC
                                            " checkpoint={\"use\":\"hanging\",\"slow\":true,\"every\":5}");
    curve_wait("slow", 30);
    write_file("disk-goes-on", "");
    command_wait(c, 60);
    expect_code(c, 0);
    expect_says(c, "warning: no checkpoint of step 10: that of step 5 is still being written after ");
    ck_assert_ptr_null(strstr(c->err, "no checkpoint of step 15")); /* once, and their number */
    expect_says(c, "warning: 4 checkpoints were left out while that of step 5 was written, up to step 30");
    json_t *saves = events("slow", "checkpoint");
    ck_assert_uint_eq(json_array_size(saves), 2);
    ck_assert_int_eq(at(saves, 0, "step"), 5);
    ck_assert_int_eq(at(saves, 1, "step"), 30);
    unlink("disk-goes-on");
}
END_TEST

/* A step that checkpoint.keep.every keeps waits for the disk. */
START_TEST(slow_disk_keeps)
{
    struct command *c = command_start(NULL, "train llama.yaml mesh.dp=2 job.name=kept job.steps=25 plugins.path=" ASYNC
                                            " checkpoint={\"use\":\"hanging\",\"slow\":true,\"every\":5,"
                                            "\"keep\":{\"last\":1,\"every\":10}}");
    curve_wait("kept", 10);
    usleep(100000);
    write_file("disk-goes-on", "");
    command_wait(c, 60);
    expect_code(c, 0);
    ck_assert(is_there("kept", 10) && is_there("kept", 20) && is_there("kept", 25));
    unlink("disk-goes-on");
}
END_TEST

/* ---- the end of the time, and of the machine */

/* The job goes on where it was, and loses no step. */
static void expect_saved(struct command *c, const char *job, const char *says)
{
    command_wait(c, 60);
    expect_code(c, 3);
    expect_says(c, says);
    expect_says(c, "the state is saved");
    curve_read(&parts, job);
    ck_assert(is_there(job, parts.step[parts.n - 1]));
    c = command_run("train llama.yaml mesh.dp=2 job.name=%s job.steps=%d checkpoint={}", job, parts.n + 3);
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "resuming from step "));
}

/* The margin covers all but a moment of it. */
START_TEST(time_is_up)
{
    char end[64];
    expect_saved(command_start(NULL, "train " ENDLESS "mesh.dp=2 job.name=limit checkpoint={} "
                                     "launch.time_limit=100000s launch.margin=99999.9s"),
                 "limit", "stopped by the end of its time after step ");
    snprintf(end, sizeof end, "SLURM_JOB_END_TIME=%ld", (long)time(NULL) + 100000);
    expect_saved(command_start(end, "train " ENDLESS "mesh.dp=2 job.name=slurm checkpoint={} launch.margin=99999.9s"),
                 "slurm", "stopped by the end of its time after step ");
    expect_code(command_run_env("SLURM_JOB_END_TIME=1000", "train llama.yaml job.name=past"), 0);
    struct command *c = command_run("train llama.yaml job.name=short launch.time_limit=60s");
    expect_code(c, 2);
    expect_says(c, "command line: launch.time_limit: 60s is not above launch.margin, 60s");
}
END_TEST

START_TEST(notice)
{
    struct command *c = command_start(NULL, "train " ENDLESS "mesh.dp=2 job.name=spot checkpoint={} " AGAIN
                                            "launch.notice={\"file\":\"spot-notice\",\"every\":\"10ms\"}");
    curve_wait("spot", 5);
    write_file("spot-notice", "");
    expect_saved(c, "spot", "launch.notice: spot-notice is there: the job saves and ends");
    /* Rank 0 may be gone before the other has met it, which then does not wait for comm.timeout, or while they meet. */
    for (int later = 0; later < 2; later++) {
        c = command_run("train llama.yaml mesh.dp=2 job.name=early launch.notice={%s}",
                        later ? "\"command\":\"true\"" : "\"file\":\"spot-notice\"");
        expect_code(c, 3);
        ck_assert_msg(!strstr(c->err, "error: ") && !strstr(c->err, "report: "), "it said:\n%s", c->err);
    }
    c = command_start(NULL, "train " ENDLESS "job.name=asked checkpoint={} "
                            "launch.notice={\"command\":\"test\t-e\tasked-notice\",\"every\":\"10ms\"}");
    curve_wait("asked", 5);
    write_file("asked-notice", "");
    expect_saved(c, "asked", "exited with 0: the job saves and ends");
    c = command_run("train llama.yaml job.name=unheard "
                    "launch.notice={\"command\":\"no-such-command\",\"every\":\"10ms\"}");
    expect_code(c, 0);
    expect_says(c, "launch.notice: `no-such-command` is not found");
}
END_TEST

/* Stopped with the job, the command has not taken too long. */
START_TEST(notice_of_stopped)
{
#if SANITIZED
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    struct command *c =
        command_start("LD_PRELOAD=" ASYNC "/stopped_clock.so",
                      "train " ENDLESS "job.name=slow metrics.every=10 checkpoint={} "
                      "launch.notice={\"command\":\"sleep\t1;touch\tcame-through\",\"every\":\"10ms\"}");
    command_wait(c, 60);
    expect_code(c, 3);
    ck_assert_msg(!access("came-through", F_OK) && !strstr(c->err, "took too long"), "%s", c->err);
#endif
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"killed twice", killed_twice, HD__COUNT(rounds)},
                                        {"damaged copy", damaged_copy, 1},
                                        {"each round gets further", each_round_gets_further, 1},
                                        {"none gets further", none_gets_further, 1},
                                        {"not restarted", not_restarted, 1},
                                        {"same step twice", same_step_twice, 1},
                                        {"stopped in the pause", stopped_in_the_pause, 1},
                                        {"flipped bit", flipped_bit, 2},
                                        {"kept", kept, 1},
                                        {"diff and rm", diff_and_rm, 1},
                                        {"by time", by_time, 1},
                                        {"slow disk", slow_disk, 1},
                                        {"slow disk keeps", slow_disk_keeps, 1},
                                        {"time is up", time_is_up, 1},
                                        {"notice", notice, 1},
                                        {"notice of stopped", notice_of_stopped, 1},
                                        {NULL}};
    return system_run("restarts", tests);
}
