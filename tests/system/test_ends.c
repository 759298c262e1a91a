/* How runs end before their time: signals, killed and stopped processes, a diverging loss. Whatever happens, nothing of
 * a job stays behind. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/system.h"

enum { RANKS = 3 };
#define ENDLESS "llama.yaml job.steps=1000000000 "
#define ENDLESS_ON_3 ENDLESS "mesh.dp=3 data.batch=12 "
/* For jobs that have to last for a while: steps of 10 ms and more, in which the ranks wait for the most part. */
#define PAUSES "comm.hooks=[{\"use\":\"faults\",\"kind\":\"delay\",\"every\":2,\"seconds\":\"10ms\"}] "

/* What of a process could outlive it: memory and files with a name in /dev/shm. */
static void expect_no_name_in_shm(pid_t pid)
{
    char path[64], line[512];
    int heddle = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        ck_assert_msg(strstr(line, "/dev/shm/") == NULL, "mapped: %s", line);
        heddle |= strstr(line, "heddle") != NULL;
    }
    fclose(f);
    ck_assert(heddle); /* that was one of ours */
}

/* ---- the time of day */

#if !SANITIZED
/* Anything but that the device's peak was measured while the machine was busy, and the pauses that were asked for. */
static int has_warning(const char *said)
{
    for (const char *at = said; (at = strstr(at, "warning: ")); at++)
        if (strncmp(at, "warning: mfu is above", 21) != 0 && strncmp(at, "warning: rank 0, operation ", 27) != 0)
            return 1;
    return 0;
}
#endif

#define SHORT_STEPS "llama.yaml data.seq_len=8 mesh.dp=2 job.steps=60 data.val_fraction=0.1 eval.every=20 "
/* A wall clock that is stepped to and fro makes nobody late or dead, and ends no wait too early or never. */
START_TEST(clock_steps)
{
#if SANITIZED
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    static const char *const transports[] = {"shm", DP_TRANSPORT};
    static struct curve stepped, steady;
    struct command *c;
    char job[32];
    snprintf(job, sizeof job, "clock-%s", transports[_i]);
    c = command_run_env("LD_PRELOAD=" ASYNC "/clock_steps.so HEDDLE_TEST_CLOCK=stepped",
                        "train " SHORT_STEPS "job.name=%s comm.use=%s liveness.dead_after=2s "
                        "checkpoint.every=20 checkpoint.async=false " PAUSES
                        "watch.straggler=0 watch.data_wait=0 watch.exposed_comm=0 watch.memory=0", /* it may be busy */
                        job, transports[_i]);
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "error") && !has_warning(c->err), "it said: %s", c->err); /* psm says something */
    ck_assert_int_eq(access("stepped", F_OK), 0);                                           /* the clock was read */
    curve_read(&stepped, job);
    train(&steady, "steady", SHORT_STEPS "comm.use=%s", transports[_i]);
    expect_same_bits(&stepped, &steady);
    expect_code(command_run("ckpt verify llama.yaml job.name=%s checkpoint={}", job), 0);
#endif
}
END_TEST

/* ---- asked to stop */

/* The last step that was logged is whole, and it is the one that the message names. */
static void expect_stopped_after_a_step(const struct command *c, const char *job, int sig)
{
    static struct curve curve;
    char words[64];
    curve_read(&curve, job);
    snprintf(words, sizeof words, "stopped by signal %d after step %lld", sig, (long long)curve.step[curve.n - 1]);
    expect_says(c, words);
    expect_code(c, 3);
}

static void stop_by(int sig, const char *job, int n)
{
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "mesh.dp=%d job.name=%s", n, job);
    pid_t ranks[RANKS];
    curve_wait(job, 10);
    if (n > 1)
        command_ranks(c, n, ranks);
    kill(c->pid, sig);
    command_wait(c, 10);
    expect_stopped_after_a_step(c, job, sig);
    if (n > 1)
        expect_gone(ranks, n, 0.5);
}

/* SIGUSR1: Slurm's way (sbatch --signal); SIGHUP: a terminal that is closed. */
START_TEST(stopped)
{
    static const struct {
        int signal;
        const char *job[2];
    } rows[] = {{SIGTERM, {"term1", "term3"}},
                {SIGINT, {"int1", "int3"}},
                {SIGUSR1, {"usr1", "usr3"}},
                {SIGHUP, {"hup1", "hup3"}}};
    stop_by(rows[_i].signal, rows[_i].job[0], 1);
    stop_by(rows[_i].signal, rows[_i].job[1], 3);
}
END_TEST

/* An evaluation without end is left between two batches, and the step before it is saved. */
START_TEST(stopped_while_evaluating)
{
    struct timespec half = {.tv_nsec = 500000000};
    for (int n = 1; n <= 2; n++) {
        struct command *c = command_start(NULL,
                                          "train " ENDLESS "mesh.dp=%d job.name=evaluates%d data.val_fraction=0.1 "
                                          "eval={\"every\":2,\"batches\":1000000000} checkpoint={}",
                                          n, n);
        curve_wait(n == 1 ? "evaluates1" : "evaluates2", 1);
        nanosleep(&half, NULL); /* whenever it comes: step 2 ends in an evaluation */
        kill(c->pid, SIGTERM);
        command_wait(c, 10);
        expect_stopped_after_a_step(c, n == 1 ? "evaluates1" : "evaluates2", SIGTERM);
        expect_says(c, "the state is saved");
        ck_assert_msg(strstr(c->out, "trained to step") && !strstr(c->out, "best val_loss"), "%s", c->out);
    }
}
END_TEST

/* Under nohup nobody is asked to stop by it. */
START_TEST(ignored_hangup)
{
    for (int n = 1; n <= 2; n++) {
        struct command *c;
        signal(SIGHUP, SIG_IGN);
        c = command_start(NULL, "train " ENDLESS "mesh.dp=%d job.name=nohup%d", n, n);
        signal(SIGHUP, SIG_DFL);
        curve_wait(n == 1 ? "nohup1" : "nohup2", 3);
        kill(c->pid, SIGHUP);
        curve_wait(n == 1 ? "nohup1" : "nohup2", 30);
        kill(c->pid, SIGTERM);
        command_wait(c, 10);
        expect_code(c, 3);
        expect_says(c, "stopped by signal 15 ");
    }
}
END_TEST

/* A second one, whenever it comes, changes nothing: the state is saved, and nothing is left over. */
START_TEST(twice)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    int sig = signals[_i / 2], n = 1 + _i % 2 * 2;
    char job[32];
    int status;
    snprintf(job, sizeof job, "twice%d-%d", sig, n);
    struct command *c =
        command_start(NULL, "train " ENDLESS_ON_3 "mesh.dp=%d job.name=%s checkpoint={\"every\":1000000000}", n, job);
    curve_wait(job, 3);
    while (!waitpid(c->pid, &status, WNOHANG)) { /* until it has ended */
        kill(c->pid, sig);
        usleep(1000);
    }
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 3, "status %x; it said:\n%s", (unsigned)status,
                  read_file(c->err_file));
    c->err = read_file(c->err_file);
    expect_says(c, "the state is saved");
    c = command_run("ckpt ls llama.yaml job.name=%s checkpoint={}", job);
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "step-"));
    ck_assert_int_ne(system(keep(hd__format("find runs/%s -name '.tmp*' | grep .", job))), 0);
}
END_TEST

/* ---- ranks that die */

static int times_said(const struct command *c, const char *words)
{
    int n = 0;
    for (const char *at = c->err; (at = strstr(at, words)); at++)
        n++;
    return n;
}

/* All ranks are told, and one says it. */
START_TEST(before_the_first_step)
{
    pid_t ranks[4];
    struct command *c = command_start(
        NULL,
        "train llama.yaml mesh.dp=4 job.name=early "
        "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"when\":\"opening\",\"kind\":\"delay\",\"seconds\":\"60s\"}]");
    command_ranks(c, 4, ranks);
    kill(c->pid, SIGTERM);
    command_wait(c, 10);
    expect_code(c, 3);
    ck_assert_msg(times_said(c, "stopped before the first step") == 1 && !strstr(c->err, "error: ") &&
                      !strstr(c->err, "report: "),
                  "it said:\n%s", c->err);
}
END_TEST

/* The report of a job lies beside its metrics, is named on stderr, and `heddle debug` finds this in it. */
static void expect_report(const struct command *c, const char *job, const char *verdict, int rank)
{
    char path[64];
    const char *named;
    struct command *debug;
    json_t *all, *judged;
    snprintf(path, sizeof path, "runs/%s/report-", job);
    named = strstr(c->err, path);
    ck_assert_msg(named != NULL, "no report is named in\n%s", c->err);
    debug = command_run("debug --json %.*s", (int)strcspn(named, " \n"), named);
    expect_code(debug, 0);
    all = json_loads(debug->out, 0, NULL);
    judged = json_object_get(all, "verdict");
    ck_assert_str_eq(json_string_value(json_object_get(judged, "kind")), verdict);
    ck_assert_int_eq(json_integer_value(json_object_get(judged, "rank")), rank);
    json_decref(all);
    debug = command_run("debug %.*s", (int)strcspn(named, " \n"), named);
    ck_assert_msg(strstr(debug->out, "operations of group dp_shard") && strstr(debug->out, "all_reduce_max"), "%s",
                  debug->out);
}

START_TEST(killed_rank)
{
    for (int victim = 0; victim < RANKS; victim++) {
        char job[32];
        pid_t ranks[RANKS];
        double since;
        snprintf(job, sizeof job, "killed%d", victim);
        struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "job.name=%s", job);
        curve_wait(job, 3);
        command_ranks(c, RANKS, ranks);
        expect_no_name_in_shm(ranks[victim]);
        since = unhindered_now();
        kill(ranks[victim], SIGKILL);
        command_wait(c, 20);
        ck_assert_msg(unhindered_now() - since < promptly(5), "it took %g s", unhindered_now() - since);
        expect_code(c, 1);
        expect_first_named(c, victim);
        ck_assert_msg(times_said(c, " died (its connection closed), so this rank ends\n") == RANKS - 1, "it said:\n%s",
                      c->err);
        expect_says(c, "section ");
        expect_report(c, job, "dead", victim);
        expect_gone(ranks, RANKS, 0.5);
    }
}
END_TEST

/* Killed as soon as it is there, before it has heard where the others are: whenever it is, the command lives to
 * tell. */
START_TEST(killed_at_once)
{
    struct command *c = command_start(
        NULL, "train llama.yaml mesh.dp=2 launch.ranks=2 job.steps=100000 job.name=at-once%d comm.use=shm", _i);
    pid_t ranks[2];
    command_ranks(c, 2, ranks);
    kill(ranks[1], SIGKILL);
    command_wait(c, 20);
    expect_code(c, 1);
    expect_says(c, "rank 1 (process ");
    expect_says(c, "was killed by signal 9");
    expect_gone(ranks, 2, 5);
}
END_TEST

START_TEST(stopped_rank)
{
    pid_t ranks[RANKS];
    double since;
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "liveness.dead_after=3s job.name=silent");
    curve_wait("silent", 3);
    command_ranks(c, RANKS, ranks);
    since = unhindered_now();
    kill(ranks[1], SIGSTOP);
    command_wait(c, 20);
    ck_assert_msg(unhindered_now() - since < promptly(3 + 5), "it took %g s", unhindered_now() - since);
    expect_code(c, 1);
    expect_first_named(c, 1);
    expect_says(c, "silent for");
    expect_report(c, "silent", "dead", 1);
    expect_gone(ranks, RANKS, 0.5);
}
END_TEST

/* Where a rank is when it is stopped does not matter: before its groups are made, when all is done, or at any moment
 * of its start. */
static const char *const stop_over[] = {"shm", "pipes", "libfabric", "mpi"};

static void stop_when(const char *when, const char *use)
{
    char job[40];
    double since = unhindered_now();
    struct command *c;
    if (!runs_over(use)) {
        printf("skipped: comm-%s does not run here\n", use);
        return;
    }
    snprintf(job, sizeof job, "stops-%s-%s", when, use);
    c = command_start(
        NULL,
        "train llama.yaml mesh.dp=3 data.batch=12 job.steps=5 job.name=%s liveness.dead_after=3s plugins.path=" PIPES
        " comm.use=%s comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"when\":\"%s\",\"kind\":\"stop\"}]",
        job, use, when);
    command_wait(c, 60);
    ck_assert_msg(unhindered_now() - since < promptly(20), "it took %g s",
                  unhindered_now() - since); /* comm.timeout is 300 s */
    expect_code(c, 1);
    expect_first_named(c, 1);
    if (!strcmp(when, "opening"))
        expect_says(c, "rank 1 died (silent for");
    if (!strcmp(when, "opening"))
        expect_says(c, "report: ");
}

START_TEST(stopped_while_opening)
{
    stop_when("opening", stop_over[_i]);
}
END_TEST

START_TEST(stopped_while_closing)
{
    stop_when("closing", stop_over[_i]);
}
END_TEST

/* Late is not dead; and a rank that is late in the end has nobody left to wait for, whoever served the rendezvous. */
START_TEST(late_in_opening_and_closing)
{
    int port = free_port();
    struct command *c[2] = {command_run(
        "train llama.yaml mesh.dp=2 job.steps=3 job.name=late comm.use=shm "
        "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"when\":\"opening\",\"kind\":\"delay\",\"seconds\":\"1s\"}]")};
    expect_code(c[0], 0);
    for (int rank = 1; rank >= 0; rank--)
        c[rank] = command_start_rank(
            rank, 2, 0, port,
            "train llama.yaml job.steps=3 job.name=late comm.use=shm "
            "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"when\":\"closing\",\"kind\":\"delay\",\"seconds\":\"12s\"}]");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
}
END_TEST

#define CRASH "plugins.path=" ASYNC " comm.hooks=[{\"use\":\"crash\",\"rank\":1,%s}] "

/* A library's handler of crashes does not outlive its loading: the signal ends the rank, and is named. */
START_TEST(crash_while_opening)
{
#if SANITIZED
    printf("skipped: a sanitizer reports crashes by itself\n");
#else
    struct command *c =
        command_run("train llama.yaml mesh.dp=3 data.batch=12 job.name=crash " CRASH, "\"kind\":\"crash\"");
    expect_code(c, 1);
    expect_says(c, "[rank 1] error: this rank crashed: Segmentation fault in a call from plugin hook-crash (/");
    expect_says(c, "error: rank 1 (process ");
    expect_says(c, "was killed by signal 11 (Segmentation fault)");
    ck_assert_msg(c->unhindered < promptly(30), "it took %g s", c->unhindered); /* comm.timeout is 300 s */
#endif
}
END_TEST

/* A plug-in's exit(0) is no success, by the library's call, which is named, or by the system's. */
START_TEST(exit_while_opening)
{
#if SANITIZED
    printf("skipped: a sanitizer ends processes by itself\n");
#else
    struct command *c = command_run("train llama.yaml mesh.dp=3 data.batch=12 job.name=exit%d " CRASH, _i,
                                    _i ? "\"kind\":\"leave\"" : "\"kind\":\"exit\"");
    expect_code(c, 1);
    expect_says(c, _i ? "rank 1 died (its connection closed)"
                      : "[rank 1] error: this rank was ended by exit(0) in a call from plugin hook-crash (/");
    ck_assert_msg(c->unhindered < promptly(30), "it took %g s", c->unhindered);
#endif
}
END_TEST

/* Nor does a handler of crashes that was installed by a call. */
START_TEST(crash_after_opening)
{
#if SANITIZED
    printf("skipped: a sanitizer reports crashes by itself\n");
#else
    static const struct {
        int signal;
        const char *words;
    } rows[] = {{SIGSEGV, "was killed by signal 11 (Segmentation fault)"},
                {SIGABRT, "was killed by signal 6 (Aborted)"}};
    pid_t ranks[RANKS];
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "job.name=crash%d " CRASH, _i, "\"kind\":\"quiet\"");
    curve_wait(_i ? "crash1" : "crash0", 3);
    command_ranks(c, RANKS, ranks);
    kill(ranks[1], rows[_i].signal);
    command_wait(c, 20);
    expect_code(c, 1);
    expect_says(c, rows[_i].words);
    expect_report(c, _i ? "crash1" : "crash0", "dead", 1);
#endif
}
END_TEST

/* A rank that never comes back from a call is named, though its process lives: liveness follows the main thread. */
START_TEST(hang_while_opening)
{
    struct command *c = command_run("train llama.yaml mesh.dp=3 data.batch=12 job.name=hang liveness.late_after=1s "
                                    "comm.timeout=20s " CRASH,
                                    "\"kind\":\"hang\"");
    expect_code(c, 1);
    expect_says(c, "warning: rank 1 has been opening comm-shm for ");
    expect_says(c, "error: rank 1 has been opening comm-shm for ");
}
END_TEST

/* Nor while it closes, be it rank 0 or another, and whether the launcher or rank 0 serves the rendezvous. */
START_TEST(hang_while_closing)
{
    int rank = _i % 2, launched = _i < 2, port = free_port();
    char *job = keep(hd__format(
        "train llama.yaml mesh.dp=2 job.steps=2 job.name=hang-closing%d liveness.dead_after=60s "
        "liveness.late_after=1s comm.timeout=20s plugins.path=" ASYNC " comm.hooks=[{\"use\":\"crash\",\"rank\":%d,"
        "\"kind\":\"hang\",\"closing\":true}]",
        _i, rank));
    struct command *c[2] = {NULL, NULL}, *hanging;
    for (int r = 1; r >= 0; r--)
        if (!launched)
            c[r] = command_start_rank(r, 2, 0, port, "%s", job);
    if (launched)
        c[0] = command_start(NULL, "%s", job);
    for (int r = 0; r < 2 && c[r]; r++)
        command_wait(c[r], 90);
    hanging = launched ? c[0] : c[rank];
    expect_code(hanging, 1);
    expect_says(hanging, "(comm.timeout: 20 s), so this rank ends, while closing");
    expect_says(c[0], keep(hd__format("warning: rank %d has been closing comm-shm for ", rank))); /* which serves */
    expect_says(c[0], keep(hd__format("error: rank %d has been closing comm-shm for ", rank)));
}
END_TEST

/* A data set whose plug-in does not come back is watched as transports are. */
START_TEST(hang_while_closing_data)
{
    struct command *c = command_run("train llama.yaml mesh.dp=2 job.steps=4 job.name=hang-data liveness.dead_after=60s "
                                    "liveness.late_after=1s comm.timeout=15s plugins.path=" ASYNC
                                    " data={\"use\":\"pattern\",\"train\":\"endless\",\"seq_len\":32,\"batch\":8,"
                                    "\"micro_batch\":2,\"check_tokens\":0,\"hang\":8}");
    expect_code(c, 1);
    expect_says(c, "has been closing data.train for ");
    ck_assert_msg(strstr(c->out, "step 4/4  loss ") != NULL, "it said: %s", c->out);
}
END_TEST

/* So is a store of checkpoints; what was saved is there. */
START_TEST(hang_while_closing_store)
{
    struct command *c =
        command_run("train llama.yaml mesh.dp=2 job.steps=4 job.name=hang-store liveness.dead_after=60s "
                    "liveness.late_after=1s comm.timeout=15s plugins.path=" ASYNC
                    " checkpoint={\"use\":\"hanging\",\"hang\":true}");
    expect_code(c, 1);
    expect_says(c, "has been closing the storage of checkpoints for ");
    c = command_run("ckpt verify llama.yaml job.name=hang-store checkpoint={}");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "step-00000004: every block matches"));
}
END_TEST

/* The launcher serves the rendezvous: where it is stopped, the ranks end and write what they were doing. */
START_TEST(stopped_launcher)
{
    pid_t ranks[RANKS];
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 PAUSES "liveness.dead_after=2s job.name=launcher");
    curve_wait("launcher", 3);
    command_ranks(c, RANKS, ranks);
    kill(c->pid, SIGSTOP);
    for (double until = hd__now() + 60; hd__now() < until;) { /* their parent, which would reap them, is stopped */
        int ended = 0;
        for (int i = 0; i < RANKS; i++)
            ended += !system(keep(hd__format("grep -q '^State:.*Z' /proc/%d/status", (int)ranks[i])));
        if (ended == RANKS)
            break;
        usleep(10000);
    }
    kill(c->pid, SIGCONT);
    command_wait(c, 20);
    expect_code(c, 1);
    ck_assert_msg(times_said(c, "error: the launcher is gone (it is silent), so this rank ends\n") == RANKS &&
                      times_said(c, "what this rank was doing: runs/launcher/report-") == RANKS,
                  "it said:\n%s", c->err);
}
END_TEST

START_TEST(stopped_at_once)
{
    pid_t ranks[2];
    struct timespec later = {.tv_nsec = 3000000L * _i};
    struct command *c =
        command_start(NULL,
                      "train llama.yaml mesh.dp=2 job.steps=100000 job.name=stopped-at-once%d comm.use=shm "
                      "liveness.dead_after=1s",
                      _i);
    command_ranks(c, 2, ranks);
    nanosleep(&later, NULL);
    kill(ranks[1], SIGSTOP);
    command_wait(c, 20);
    expect_code(c, 1);
    expect_says(c, "rank 1 (process ");
    expect_says(c, "had been stopped by a signal; it is killed");
    expect_gone(ranks, 2, 5);
}
END_TEST

/* A rank that is continued in time has only been slow. */
START_TEST(continued_rank)
{
    pid_t ranks[RANKS];
    struct timespec second = {.tv_sec = 1};
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 PAUSES "job.name=slow");
    curve_wait("slow", 10);
    command_ranks(c, RANKS, ranks);
    kill(ranks[1], SIGSTOP);
    nanosleep(&second, NULL);
    kill(ranks[1], SIGCONT);
    nanosleep(&second, NULL);
    kill(c->pid, SIGTERM);
    command_wait(c, 10);
    expect_stopped_after_a_step(c, "slow", SIGTERM);
}
END_TEST

START_TEST(killed_parent)
{
    pid_t ranks[RANKS];
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "job.name=orphans");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    curve_wait("orphans", 3);
    command_ranks(c, RANKS, ranks);
    kill(c->pid, SIGKILL);
    command_wait(c, 5);
    ck_assert_int_eq(c->code, 128 + SIGKILL);
    expect_gone(ranks, RANKS, 2);
}
END_TEST

/* ---- ranks that give up: one says why, and the report; the others name it */

static void expect_short(const struct command *c, const char *words, int rank, int others)
{
    char short_words[64];
    snprintf(short_words, sizeof short_words, "error: rank %d gave up, so this rank ends\n", rank);
    expect_code(c, 1);
    ck_assert_msg(times_said(c, words) == 2 && times_said(c, short_words) == others, "it said:\n%s", c->err);
    ck_assert_msg(!strstr(c->err, "ended with exit code") && times_said(c, "report: ") == 1, "it said:\n%s", c->err);
}

START_TEST(one_rank_gives_up)
{
    static const char *const transports[] = {"shm", "pipes", DP_TRANSPORT};
    struct command *c = command_run("train " ENDLESS "mesh.dp=4 data.micro_batch=1 plugins.path=" PIPES " comm.use=%s "
                                    "comm.hooks=[{\"use\":\"faults\",\"rank\":2,\"at\":30,\"kind\":\"fail\"}]",
                                    transports[_i]);
    expect_short(c, "made to fail by comm.hooks: faults", 2, 3);
}
END_TEST

/* A file in the place of a folder, which another process may be making; at no moment is neither there. */
static void put_file_at(const char *folder)
{
    const char *file = keep(hd__format("%s-file", folder));
    write_file(file, "");
    while (renameat2(AT_FDCWD, file, AT_FDCWD, folder, RENAME_EXCHANGE))
        if (!renameat2(AT_FDCWD, file, AT_FDCWD, folder, RENAME_NOREPLACE))
            break;
}

/* Rank 0 begins a checkpoint, and its folder has become a file. */
START_TEST(checkpoint_fails)
{
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3
                                            "job.name=full checkpoint={\"dir\":\"saved\",\"every\":50,\"keep\":1}");
    curve_wait("full", 60);
    put_file_at("saved");
    command_wait(c, 30);
    expect_short(c, "Not a directory", 0, 2);
}
END_TEST

/* The same while training goes on: it is noticed before the next one is due. */
START_TEST(checkpoint_fails_meanwhile)
{
    static struct curve curve;
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 PAUSES
                                            "job.name=meanwhile checkpoint={\"dir\":\"later\",\"every\":100}");
    curve_wait("meanwhile", 3);
    put_file_at("later");
    command_wait(c, 60);
    expect_code(c, 1);
    expect_says(c, "Not a directory");
    curve_read(&curve, "meanwhile");
    ck_assert_msg(curve.step[curve.n - 1] < 200, "noticed at step %d", (int)curve.step[curve.n - 1]);
}
END_TEST

/* Asked to stop, and the state cannot be saved: nobody says that it is. */
START_TEST(stopped_without_a_checkpoint)
{
    struct command *c =
        command_start(NULL, "train " ENDLESS "job.name=unsaved checkpoint={\"dir\":\"kept\",\"every\":1000000000}");
    curve_wait("unsaved", 3);
    put_file_at("kept");
    kill(c->pid, SIGTERM);
    command_wait(c, 30);
    expect_code(c, 1);
    expect_says(c, "Not a directory");
    expect_says(c, "; the state of this step is not saved\n");
    ck_assert_msg(!strstr(c->err, "the state is saved"), "it said:\n%s", c->err);
}
END_TEST

/* A data file that becomes shorter while it is mapped. */
START_TEST(data_ends)
{
    struct command *c;
    ck_assert_int_eq(system("cp corpus.txt shrinks.txt"), 0);
    c = command_start(NULL, "train " ENDLESS_ON_3 "job.name=shrinks data.train=shrinks.txt");
    curve_wait("shrinks", 3);
    ck_assert_int_eq(truncate("shrinks.txt", 100), 0);
    command_wait(c, 30);
    expect_code(c, 1);
    expect_says(c, "] error: this rank crashed: Bus error: a mapped file became shorter while it was read, or its disk "
                   "failed: most likely data.train");
    expect_says(c, "was killed by signal 7 (Bus error)");
}
END_TEST

/* ---- limits */

/* Said before anything starts; a soft limit is raised instead. */
START_TEST(too_few_descriptors)
{
    struct rlimit before, few = {8, 8}, soft;
    struct command *c;
    getrlimit(RLIMIT_NOFILE, &before);
    soft = (struct rlimit){8, before.rlim_max};
    c = command_start(NULL, "train llama.yaml mesh.dp=2 job.steps=1 job.name=soft");
    prlimit(c->pid, RLIMIT_NOFILE, &soft, NULL);
    command_wait(c, 60);
    expect_code(c, 0);
    c = command_start(NULL, "train llama.yaml mesh.dp=2 job.steps=1 job.name=hard");
    prlimit(c->pid, RLIMIT_NOFILE, &few, NULL);
    command_wait(c, 60);
    expect_code(c, 2);
    expect_says(c, "a process may open 8 files here, and one that meets 2 ranks needs ");
    expect_says(c, "ulimit -n 1024");
}
END_TEST

/* ulimit -f: the file is named, and no process is killed. */
START_TEST(file_too_large)
{
    struct rlimit limit = {4096, RLIM_INFINITY}, before;
    struct command *c;
    getrlimit(RLIMIT_FSIZE, &before);
    setrlimit(RLIMIT_FSIZE, &limit);
    c = command_run("train llama.yaml job.steps=2 job.name=large checkpoint={\"dir\":\"large\",\"every\":1}");
    setrlimit(RLIMIT_FSIZE, &before);
    expect_code(c, 1);
    expect_says(c, "large/.tmp-step-00000001/");
    expect_says(c, "File too large");
}
END_TEST

/* ---- a loss that explodes */

START_TEST(diverging)
{
    static const struct {
        const char *words, *block;
    } rows[] = {{"mesh.dp=1", "L0"}, {"mesh.dp=2", "L0"}, {"precision.compute=fp64", ""}};
    static struct curve curve;
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        char words[64], block[64];
        struct command *c = command_run(
            "train llama.yaml data.seq_len=8 job.name=diverges job.steps=200 optimizer.lr=1e6 %s", rows[n].words);
        snprintf(block, sizeof block, "the first bad number: block %s", rows[n].block);
        expect_code(c, 1);
        curve_read(&curve, "diverges"); /* whatever could still be computed was logged */
        ck_assert_int_gt(curve.n, 0);
        snprintf(words, sizeof words, "step %lld: the loss is ", (long long)curve.step[curve.n - 1] + 1);
        expect_says(c, words);
        expect_says(c, block);
        expect_says(c, "Nothing of this step is saved");
        expect_says(c, "optimizer.lr");
        if (n == 1)
            expect_short(c, "Nothing of this step is saved", strstr(c->err, "rank 0 gave up") ? 0 : 1, 1);
    }
}
END_TEST

static const char *const suspended_over[] = {"shm", DP_TRANSPORT, "pipes"};

/* All of a job suspended for longer than dead_after and comm.timeout, as by Ctrl-Z: nobody died or was late. */
START_TEST(suspended)
{
    enum { JOBS = HD__COUNT(suspended_over) };
    struct timespec seconds = {.tv_sec = 12};
    static struct curve curve;
    struct command *c[JOBS];
    pid_t ranks[JOBS][2];
    for (int j = 0; j < JOBS; j++) {
        const char *use = suspended_over[j];
        c[j] = command_start(NULL,
                             "train " ENDLESS "mesh.dp=2 liveness.dead_after=1s comm.timeout=6s job.name=suspended-%s "
                             "plugins.path=" PIPES " comm.use=%s",
                             use, use);
        curve_wait(keep(hd__format("suspended-%s", use)), 3);
        command_ranks(c[j], 2, ranks[j]);
        kill(c[j]->pid, SIGSTOP);
        for (int i = 0; i < 2; i++)
            kill(ranks[j][i], SIGSTOP);
    }
    nanosleep(&seconds, NULL);
    for (int j = 0; j < JOBS; j++) {
        char *job = keep(hd__format("suspended-%s", suspended_over[j]));
        curve_read(&curve, job);
        for (int i = 0; i < 2; i++)
            kill(ranks[j][i], SIGCONT);
        kill(c[j]->pid, SIGCONT);
        curve_wait(job, curve.step[curve.n - 1] + 20);
        kill(c[j]->pid, SIGTERM);
        command_wait(c[j], 30);
        expect_stopped_after_a_step(c[j], job, SIGTERM);
    }
}
END_TEST

/* The same at any instant, while ranks meet and while they train: where a thread computes, takes a lock or is about to
 * wait, too. */
START_TEST(suspended_anywhere)
{
#if SANITIZED
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    enum { SHORT_JOBS = 12 };
    static const char clock[] = "LD_PRELOAD=" ASYNC "/stopped_clock.so";
    static const char words[] =
        "mesh.dp=2 comm.timeout=300s liveness.dead_after=60s metrics.every=10 checkpoint.keep=2";
    struct command *c =
        command_start(clock, "train " ENDLESS "%s job.name=anywhere comm.progress=thread checkpoint.every=100", words);
    curve_wait("anywhere", 10);
    for (int i = 0; i < SHORT_JOBS; i++) {
        struct command *job = command_run_env(clock, "train llama.yaml %s job.steps=10 job.name=short-%d comm.use=%s",
                                              words, i, i % 3 ? DP_TRANSPORT : "pipes plugins.path=" PIPES);
        expect_code(job, 0);
        ck_assert_msg(!strstr(job->err, "error"), "%.2000s", job->err);
    }
    kill(c->pid, SIGTERM);
    command_wait(c, 30);
    expect_code(c, 3);
    ck_assert_msg(!strstr(c->err, "error"), "%.2000s", c->err);
#endif
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"clock steps", clock_steps, 2},
                                        {"stopped by a signal", stopped, 4},
                                        {"stopped while evaluating", stopped_while_evaluating, 1},
                                        {"nohup", ignored_hangup, 1},
                                        {"twice", twice, 8},
                                        {"crash while opening", crash_while_opening, 1},
                                        {"exit while opening", exit_while_opening, 2},
                                        {"crash after opening", crash_after_opening, 2},
                                        {"hang while opening", hang_while_opening, 1},
                                        {"hang while closing", hang_while_closing, 4},
                                        {"before the first step", before_the_first_step, 1},
                                        {"hang while closing data", hang_while_closing_data, 1},
                                        {"hang while closing store", hang_while_closing_store, 1},
                                        {"stopped launcher", stopped_launcher, 1},
                                        {"too few descriptors", too_few_descriptors, 1},
                                        {"a file too large", file_too_large, 1},
                                        {"killed rank", killed_rank, 1},
                                        {"killed at once", killed_at_once, 5},
                                        {"stopped rank", stopped_rank, 1},
                                        {"stopped while opening", stopped_while_opening, HD__COUNT(stop_over)},
                                        {"stopped while closing", stopped_while_closing, HD__COUNT(stop_over)},
                                        {"stopped at once", stopped_at_once, 5},
                                        {"late in opening and closing", late_in_opening_and_closing, 1},
                                        {"continued rank", continued_rank, 1},
                                        {"killed parent", killed_parent, 1},
                                        {"diverging", diverging, 1},
                                        {"gives up", one_rank_gives_up, 3},
                                        {"checkpoint fails", checkpoint_fails, 1},
                                        {"checkpoint fails meanwhile", checkpoint_fails_meanwhile, 1},
                                        {"stopped without a checkpoint", stopped_without_a_checkpoint, 1},
                                        {"data ends", data_ends, 1},
                                        {"suspended", suspended, 1},
                                        {"suspended anywhere", suspended_anywhere, 1},
                                        {NULL, NULL, 0}};
    signal(SIGHUP, SIG_DFL); /* nohup ./run-tests ignores it, and children would */
    return system_run("system-ends", tests);
}
