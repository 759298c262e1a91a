/* How runs end before their time: signals, killed and stopped processes, a diverging loss; and runs that other
 * launchers started. Whatever happens, nothing of a job stays behind. */
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

/* A wall clock that is stepped to and fro makes nobody late or dead, and ends no wait too early or never. */
START_TEST(clock_steps)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    static const char *const transports[] = {"shm", DP_TRANSPORT};
    static struct curve stepped, steady;
    struct command *c;
    char job[32];
    snprintf(job, sizeof job, "clock-%s", transports[_i]);
    c = command_run_env("LD_PRELOAD=" ASYNC "/clock_steps.so HEDDLE_TEST_CLOCK=stepped",
                        "train llama.yaml mesh.dp=2 job.steps=200 job.name=%s comm.use=%s liveness.dead_after=2s "
                        "data.val_fraction=0.1 eval.every=50 checkpoint.every=20 checkpoint.async=false "
                        "watch.straggler=0 watch.data_wait=0 watch.exposed_comm=0", /* the machine may be busy */
                        job, transports[_i]);
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "error") && !strstr(c->err, "warning"), "it said: %s",
                  c->err);                        /* psm says something */
    ck_assert_int_eq(access("stepped", F_OK), 0); /* the clock was read */
    curve_read(&stepped, job);
    train(&steady, "steady", "llama.yaml mesh.dp=2 job.steps=200 comm.use=%s data.val_fraction=0.1 eval.every=50",
          transports[_i]);
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

/* The first line that says what went wrong names this rank as the cause. */
static void expect_first_named(const struct command *c, int rank)
{
    char words[32];
    const char *error = strstr(c->err, "error: ");
    ck_assert_msg(error != NULL, "no error was said:\n%s", c->err);
    snprintf(words, sizeof words, "error: rank %d", rank);
    ck_assert_msg(!strncmp(error, words, strlen(words)) && strchr(" ,", error[strlen(words)]),
                  "\"%s\" is not the first error in\n%s", words, c->err);
}

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
    struct command *c =
        command_run("train llama.yaml mesh.dp=3 data.batch=12 job.name=crash " CRASH, "\"kind\":\"crash\"");
    expect_code(c, 1);
    expect_says(c, "[rank 1] error: this rank crashed: Segmentation fault\n");
    expect_says(c, "error: rank 1 (process ");
    expect_says(c, "was killed by signal 11 (Segmentation fault)");
    ck_assert_msg(c->unhindered < promptly(30), "it took %g s", c->unhindered); /* comm.timeout is 300 s */
}
END_TEST

/* Nor one that was installed by a call. */
START_TEST(crash_after_opening)
{
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
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "liveness.dead_after=2s job.name=launcher");
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
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "job.name=slow");
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

/* Rank 0 begins a checkpoint, and its folder has become a file. */
START_TEST(checkpoint_fails)
{
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3
                                            "job.name=full checkpoint={\"dir\":\"saved\",\"every\":50,\"keep\":1}");
    int fd = -1;
    curve_wait("full", 60);
    for (int i = 0; i < 1000 && fd < 0; i++) {
        char aside[32];
        snprintf(aside, sizeof aside, "aside%d", i);
        rename("saved", aside);
        fd = open("saved", O_CREAT | O_EXCL | O_WRONLY, 0600);
    }
    ck_assert_int_ge(fd, 0);
    close(fd);
    command_wait(c, 30);
    expect_short(c, "Not a directory", 0, 2);
}
END_TEST

/* Asked to stop, and the state cannot be saved: nobody says that it is. */
START_TEST(stopped_without_a_checkpoint)
{
    struct command *c =
        command_start(NULL, "train " ENDLESS "job.name=unsaved checkpoint={\"dir\":\"kept\",\"every\":1000000000}");
    curve_wait("unsaved", 3);
    ck_assert(!rename("kept", "kept-aside") || errno == ENOENT);
    write_file("kept", "");
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
    expect_says(
        c, "] error: a mapped file became shorter while it was read, or its disk failed: most likely data.train\n");
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
    expect_says(c, "a process may open 8 files here, and a job of 2 ranks on this machine needs ");
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
        struct command *c =
            command_run("train llama.yaml job.name=diverges job.steps=200 optimizer.lr=1e6 %s", rows[n].words);
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

/* ---- other launchers */

static struct command *start_launched(int rank, int size, int port, const char *words)
{
    return command_start_rank(rank, size, 0, port, "train llama.yaml %s", words);
}

START_TEST(launched_by_environment)
{
    static struct curve ours, theirs;
    int port = free_port();
    struct command *one = start_launched(1, 2, port, "job.name=launched");
    struct command *zero = start_launched(0, 2, port, "job.name=launched");
    command_wait(zero, 60);
    command_wait(one, 60);
    expect_code(zero, 0);
    expect_code(one, 0);
    curve_read(&theirs, "launched");
    train(&ours, "forked", "llama.yaml mesh.dp=2");
    expect_same_bits(&ours, &theirs);
}
END_TEST

/* Launchers that say who is who, but not where to meet: two ranks each, in the launcher's variables. */
static const struct {
    const char *name, *environment; /* of the rank */
} meeting[] = {
    {"mpirun",
     "OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=%d OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "PMIX_NAMESPACE=test%d PMIX_RANK=0"},
    {"mpiexec", "PMI_RANK=%d PMI_SIZE=2 MPI_LOCALRANKID=%d MPI_LOCALNRANKS=2 I_MPI_HYDRA_UUID=test%d"},
    {"srun", "SLURM_PROCID=%d SLURM_NTASKS=2 SLURM_LOCALID=%d SLURM_JOB_ID=%d SLURM_STEP_ID=0 SLURM_NODEID=0 "
             "SLURM_STEP_TASKS_PER_NODE=2"},
};

START_TEST(launched_without_an_address)
{
    static struct curve ours, theirs;
    struct command *c[2];
    char environment[256];
    for (int rank = 1; rank >= 0; rank--) {
        snprintf(environment, sizeof environment, meeting[_i].environment, rank, rank, (int)getpid());
        c[rank] = command_start(environment, "train llama.yaml job.steps=5 job.name=met-%s", meeting[_i].name);
    }
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
    snprintf(environment, sizeof environment, "met-%s", meeting[_i].name);
    curve_read(&theirs, environment);
    train(&ours, "met", "llama.yaml job.steps=5 mesh.dp=2");
    expect_same_bits(&ours, &theirs);
}
END_TEST

/* The real one, where it is installed. */
START_TEST(under_mpirun)
{
    static struct curve ours, theirs;
    if (system("mpirun --version >/dev/null 2>&1")) {
        printf("skipped: there is no mpirun here\n");
        return;
    }
    ck_assert_int_eq(system("mpirun --allow-run-as-root --oversubscribe -np 2 " HEDDLE
                            " train llama.yaml job.steps=5 job.name=mpi "
                            "</dev/null >mpi.log 2>&1"),
                     0);
    ck_assert_ptr_null(strchr(read_file("mpi.log"), '\033')); /* mpirun gives its ranks a terminal */
    curve_read(&theirs, "mpi");
    train(&ours, "met", "llama.yaml job.steps=5 mesh.dp=2");
    expect_same_bits(&ours, &theirs);
}
END_TEST

/* Launched ranks watch each other, without a parent of ours. */
START_TEST(launched_rank_killed)
{
    for (int victim = 0; victim < 2; victim++) {
        int port = free_port();
        char words[64], job[16];
        struct command *c[2];
        double since;
        snprintf(job, sizeof job, "alone%d", victim);
        snprintf(words, sizeof words, "job.steps=1000000000 job.name=%s", job);
        c[0] = start_launched(0, 2, port, words);
        c[1] = start_launched(1, 2, port, words);
        curve_wait(job, 3);
        since = unhindered_now();
        kill(c[victim]->pid, SIGKILL);
        command_wait(c[!victim], 20);
        ck_assert_msg(unhindered_now() - since < promptly(5), "it took %g s", unhindered_now() - since);
        command_wait(c[victim], 1);
        expect_code(c[!victim], 1);
        expect_first_named(c[!victim], victim);
    }
}
END_TEST

/* What every rank would say, the first says; what another rank alone has to say ends the job for all. */
START_TEST(refused)
{
    int port = free_port();
    struct command *c[2];
    for (int rank = 0; rank < 2; rank++)
        c[rank] = start_launched(rank, 2, port, "model.layers=two");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 20);
        expect_code(c[rank], 2);
    }
    expect_says(c[0], "model.layers: 'two' is not a whole number");
    ck_assert_str_eq(c[1]->err, "");
    c[0] = start_launched(0, 2, port, "job.name=alone");
    c[1] = start_launched(1, 2, port, "model.layers=two");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 20);
        expect_code(c[rank], 2);
        expect_says(c[rank], "rank 1: command line: model.layers: 'two' is not a whole number");
    }
}
END_TEST

/* Ranks numbered by hand, one of them wrongly: all end at once, and know why. With a secret, and without. */
START_TEST(misnumbered)
{
    static const struct {
        int rank[3], size[3];
        const char *message;
    } rows[] = {{{0, 1, 1}, {3, 3, 3}, "rank 1 has connected before: two processes were started as this rank"},
                {{0, 0, 1}, {3, 3, 3}, "rank 0 has connected before: two processes were started as this rank"},
                {{0, 1, 2}, {3, 2, 3}, "the job has 3 ranks here and 2 there"}};
    struct command *c[3];
    int port = free_port();
    for (int i = 0; i < 3; i++) {
        char environment[256];
        snprintf(environment, sizeof environment, "RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s",
                 rows[_i / 2].rank[i], rows[_i / 2].size[i], port, _i % 2 ? TEST_SECRET : "");
        c[i] = command_start(environment, "train llama.yaml job.name=misnumbered data.batch=12 comm.timeout=60s");
    }
    for (int i = 0; i < 3; i++) {
        command_wait(c[i], 20);
        expect_code(c[i], 2);
        expect_says(c[i], rows[_i / 2].message);
    }
    ck_assert_int_ne(access("runs/misnumbered/metrics.jsonl", F_OK), 0);
}
END_TEST

/* A rank whose peers never come can be stopped, and gives up by itself after comm.timeout. */
START_TEST(alone)
{
    struct timespec second = {.tv_sec = 1};
    for (int rank = 0; rank < 2; rank++) {
        struct command *c = start_launched(rank, 2, free_port(), "job.name=lonely");
        nanosleep(&second, NULL);
        ck_assert_int_eq(waitpid(c->pid, NULL, WNOHANG), 0); /* it waits */
        kill(c->pid, rank ? SIGTERM : SIGINT);
        command_wait(c, 2);
        expect_code(c, 3);
        expect_says(c, "stopped before the first step");
    }
    struct command *c = start_launched(0, 2, free_port(), "job.name=lonely comm.timeout=1s");
    command_wait(c, 6);
    expect_code(c, 1);
    expect_says(c, "rank 1 did not connect within 1 s");
    c = start_launched(0, 3, free_port(), "job.name=lonely data.batch=12 liveness.late_after=1s comm.timeout=3s");
    command_wait(c, 9);
    expect_code(c, 1);
    expect_says(c, "warning: ranks 1, 2 did not connect within 1 s");
    expect_says(c, "ranks 1, 2 did not connect within 3 s");
    ck_assert_int_ne(access("runs/lonely/metrics.jsonl", F_OK), 0);
}
END_TEST

/* All of a job suspended for longer than dead_after, as by Ctrl-Z: nobody died. */
START_TEST(suspended)
{
    struct timespec seconds = {.tv_sec = 2};
    pid_t ranks[RANKS];
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "liveness.dead_after=1s job.name=suspended");
    curve_wait("suspended", 3);
    command_ranks(c, RANKS, ranks);
    kill(c->pid, SIGSTOP);
    for (int i = 0; i < RANKS; i++)
        kill(ranks[i], SIGSTOP);
    nanosleep(&seconds, NULL);
    for (int i = 0; i < RANKS; i++)
        kill(ranks[i], SIGCONT);
    kill(c->pid, SIGCONT);
    nanosleep(&seconds, NULL);
    kill(c->pid, SIGTERM);
    command_wait(c, 10);
    expect_stopped_after_a_step(c, "suspended", SIGTERM);
}
END_TEST

static void expect_environment_refused(const char *environment, const char *words, const char *message)
{
    struct command *c = command_run_env(environment, "train llama.yaml job.name=wrong %s", words);
    expect_code(c, 2);
    expect_says(c, message);
    ck_assert_int_ne(access("runs/wrong/metrics.jsonl", F_OK), 0);
}

START_TEST(wrong_environment)
{
#define AT " MASTER_ADDR=127.0.0.1 MASTER_PORT=29400"
    expect_environment_refused("RANK=0 WORLD_SIZE=2" AT, "mesh.dp=4",
                               "command line: mesh: 2 ranks are not pp 1 x dp 4");
    expect_environment_refused("RANK=0 WORLD_SIZE=3" AT, "", "data.batch: 8 is no multiple of micro_batch 2 x dp 3");
    expect_environment_refused("RANK=2 WORLD_SIZE=2" AT, "", "RANK must be below WORLD_SIZE");
    expect_environment_refused("RANK=two WORLD_SIZE=2" AT, "", "RANK='two': not a whole number");
    expect_environment_refused("RANK=0 WORLD_SIZE=two" AT, "", "WORLD_SIZE='two': not a whole number");
    expect_environment_refused("RANK=0" AT, "", "RANK, but not WORLD_SIZE");
    expect_environment_refused("WORLD_SIZE=2" AT, "", "WORLD_SIZE, but not RANK");
    expect_environment_refused("RANK=0 WORLD_SIZE=2", "", "not MASTER_ADDR and MASTER_PORT");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=many", "",
                               "MASTER_PORT (1 to 65534)");
    expect_environment_refused(
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=7", "",
        "mpirun started 2 ranks, 1 of them on this machine, and MASTER_ADDR and MASTER_PORT are not set");
    expect_environment_refused(
        "SLURM_PROCID=8 SLURM_LOCALID=0 SLURM_NTASKS=11 SLURM_STEP_ID=0 SLURM_JOB_ID=3 SLURM_NODEID=2 "
        "SLURM_STEP_TASKS_PER_NODE=4(x2),3",
        "data.batch=22 data.micro_batch=2", "srun started 11 ranks, 3 of them on this machine");
    expect_environment_refused("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "",
                               "mpirun set OMPI_COMM_WORLD_RANK and");
    expect_environment_refused("RANK=0 WORLD_SIZE=0" AT, "", "WORLD_SIZE='0': not a whole number from 1");
    expect_environment_refused("LOCAL_RANK=1", "", "LOCAL_RANK, but not RANK: the launcher sets both");
    expect_environment_refused("OMPI_COMM_WORLD_RANK=1", "", "OMPI_COMM_WORLD_RANK, but not OMPI_COMM_WORLD_SIZE");
    expect_environment_refused("OMPI_COMM_WORLD_SIZE=4", "", "OMPI_COMM_WORLD_SIZE, but not OMPI_COMM_WORLD_RANK");
    expect_environment_refused("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=many", "", "WORLD_SIZE='many': not a");
    expect_environment_refused("PMI_RANK=1", "", "PMI_RANK, but not PMI_SIZE: mpiexec sets both");
    expect_environment_refused("PMI_SIZE=2", "", "PMI_SIZE, but not PMI_RANK: mpiexec sets both");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=x" AT, "", "LOCAL_RANK='x': not a whole number");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2" AT, "",
                               "LOCAL_RANK=2, but this machine has 2 of its ranks: they count from 0");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3" AT, "",
                               "LOCAL_WORLD_SIZE=3, but WORLD_SIZE=2: there are not so many ranks");
    expect_environment_refused("PMIX_RANK=0", "", "PMIX_RANK, but not how many ranks there are");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR= MASTER_PORT=29400", "",
                               "not MASTER_ADDR and MASTER_PORT");
    expect_environment_refused("NNODES=2", "", "nothing says which of them this is: give --node-rank I");
    expect_environment_refused("NNODES=2 NODE_RANK=1", "", "nothing says where they meet: give --rendezvous");
    expect_environment_refused("NNODES=2 NODE_RANK=1" AT, "mesh.dp=2",
                               "and have no secret, so that anybody could join");
    expect_environment_refused("NODE_RANK=0", "", "NODE_RANK=0, but not RANK and WORLD_SIZE");
    expect_environment_refused("JOB_COMPLETION_INDEX=0", "", "JOB_COMPLETION_INDEX=0, but not RANK and WORLD_SIZE");
    expect_code(command_run_env("NNODES=1 NODE_RANK=0", "train llama.yaml job.steps=1 job.name=one-node"), 0);
    struct command *c = command_run_env("RANK=0 WORLD_SIZE=1", "train llama.yaml --dry-run launch.ranks=4");
    expect_code(c, 0);
    expect_says(c, "command line: launch.ranks is 4, but RANK or its like says that a launcher started 1");
}
END_TEST

/* Its own variables are wrong, but rank 0 has been found by the others': all end at once, and know why. */
START_TEST(wrong_local_rank)
{
    int port = free_port();
    char environment[160];
    struct command *zero = start_launched(0, 2, port, "comm.timeout=60s job.name=wrong-local");
    snprintf(environment, sizeof environment,
             "RANK=1 WORLD_SIZE=2 LOCAL_RANK=9 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d", port);
    struct command *one = command_start(environment, "train llama.yaml comm.timeout=60s job.name=wrong-local");
    command_wait(one, 30);
    command_wait(zero, 30);
    expect_code(one, 2);
    expect_says(one, "LOCAL_RANK=9, but this machine has 2 of its ranks");
    ck_assert_int_ne(zero->code, 0);
    expect_says(zero, "LOCAL_RANK=9, but this machine has 2 of its ranks");
}
END_TEST

/* Ranks of a launcher that others could join have a secret, or there is no job. */
START_TEST(no_secret)
{
    static const char key[] = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n";
    struct command *c;
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1" AT, "",
                               "ranks meet at MASTER_ADDR=127.0.0.1 and have no secret");
    expect_environment_refused(
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29400", "",
        "`export HEDDLE_SECRET=$(openssl rand -hex 32)`, the same for every rank of the launcher "
        "(or MASTER_ADDR=localhost where all are on one machine)");
    expect_environment_refused("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NODEID=0 "
                               "SLURM_STEP_TASKS_PER_NODE=1(x2)" AT,
                               "", "the same for every rank of srun");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET=00112233445566778899aabbccddee" AT, "",
                               "HEDDLE_SECRET is not 32 or 64 hexadecimal digits");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=nowhere" AT, "",
                               "HEDDLE_SECRET_FILE: nowhere: No such file or directory");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=key " TEST_SECRET AT, "",
                               "HEDDLE_SECRET and HEDDLE_SECRET_FILE are both set");
    write_file("key", key);
    ck_assert_int_eq(chmod("key", 0640), 0);
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=key" AT, "", "key can be read by others");
    ck_assert_int_eq(chmod("key", 0600), 0);
    c = command_run_env("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 HEDDLE_SECRET_FILE=key" AT,
                        "train llama.yaml --dry-run");
    expect_code(c, 0);
    write_file("key", "none");
    ck_assert_int_eq(chmod("key", 0600), 0);
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=key" AT, "",
                               "key does not begin with a line of 32 or 64 hexadecimal digits");
}
END_TEST

/* comm.timeout and liveness.late_after hold before the first connection, too. */
START_TEST(rank_0_never_comes)
{
    static const char *const secret[] = {"", " " TEST_SECRET};
    char environment[256], where[64];
    int port = free_port();
    struct command *c;
    snprintf(where, sizeof where, _i ? "127.0.0.1:%d" : "the local socket of job %d", port);
    snprintf(environment, sizeof environment, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d%s", port,
             secret[_i]);
    c = command_run_env(environment, "train llama.yaml comm.timeout=0.5 liveness.late_after=0.1");
    ck_assert_int_ne(c->code, 0);
    expect_says(c, keep(hd__format("waiting for rank 0 at %s since ", where)));
    expect_says(c, keep(hd__format("s for rank 0 at %s (Connection refused)", where)));
}
END_TEST

static struct command *dry_run(int rank, int each, const char *mesh)
{
    char environment[256];
    struct command *c;
    snprintf(environment, sizeof environment, "RANK=%d WORLD_SIZE=4 LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d " TEST_SECRET AT,
             rank, rank % each, each);
    c = command_run_env(environment, "train llama.yaml --dry-run strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] %s",
                        mesh);
    expect_code(c, 0);
    return c;
}

START_TEST(tensor_parallel_across_machines)
{
    struct command *c = dry_run(0, 2, "mesh.tp=4");
    expect_says(c, "mesh.tp = 4 spans 2 machines of 2 ranks (ranks 0 to 3)");
    expect_says(c, "mesh.tp=2 stays inside a machine, with mesh.dp or mesh.pp 2 times as large");
    expect_says(dry_run(0, 1, "mesh.tp=2 mesh.dp=2"), "mesh.tp = 2 spans 2 machines of 1 rank (ranks 0 to 1)");
    expect_says(dry_run(0, 3, "mesh.tp=2 mesh.dp=2"), "(ranks 2 to 3)");
    for (int i = 0; i < 2; i++) {
        c = command_run("%s llama.yaml mesh.tp=4 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] --per-machine 2",
                        i ? "check" : "explain");
        expect_code(c, 0);
        expect_says(c, "mesh.tp = 4 spans 2 machines of 2 ranks (ranks 0 to 3)");
    }
    ck_assert_ptr_null(strstr(dry_run(2, 2, "mesh.tp=4")->err, "spans")); /* one says it */
    ck_assert_ptr_null(strstr(dry_run(0, 2, "mesh.tp=2 mesh.dp=2")->err, "spans"));
    ck_assert_ptr_null(strstr(dry_run(0, 1, "mesh.dp=4")->err, "spans"));
}
END_TEST

/* Neither the parent of ranks and its children say it, nor two ranks of a launcher. */
START_TEST(an_added_strategy_is_said_once)
{
    static const char note[] =
        "mesh.tp is 2: strategy 3d is used (add {use: 3d, ...} to `strategies` to set its options)\n";
    static const char *const lines[] = {"train llama.yaml mesh.tp=2 job.steps=1",
                                        "train llama.yaml mesh.tp=2 --dry-run",
                                        "train llama.yaml mesh.tp=2 --print-config", "check llama.yaml mesh.tp=2",
                                        "explain llama.yaml mesh.tp=2 --json"};
    for (size_t i = 0; i < HD__COUNT(lines); i++) {
        struct command *c = command_run("%s", lines[i]);
        const char *at = strstr(c->err, note);
        expect_code(c, 0);
        ck_assert_msg(at && !strstr(at + 1, "mesh.tp is 2"), "%s: %s", lines[i], c->err);
    }
    for (int rank = 0; rank < 2; rank++) {
        char environment[160];
        struct command *c;
        snprintf(environment, sizeof environment, "RANK=%d WORLD_SIZE=2 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2" AT, rank,
                 rank);
        c = command_run_env(environment, "train llama.yaml --dry-run mesh.tp=2");
        expect_code(c, 0);
        ck_assert_int_eq(strstr(c->err, note) != NULL, rank == 0);
    }
    ck_assert_ptr_null(strstr(command_run("check llama.yaml mesh.dp=2")->err, "is used"));
}
END_TEST

/* A batch script of Slurm has SLURM_PROCID as well, but its step is none that srun started: we start our own ranks. */
START_TEST(in_a_batch_script)
{
    struct command *c = command_run_env("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=4294967291",
                                        "train llama.yaml job.steps=2 job.name=batch mesh.dp=2");
    static struct curve curve;
    expect_code(c, 0);
    expect_says(c, "Slurm gave 4 tasks (SLURM_NTASKS), but srun did not start this process");
    curve_read(&curve, "batch");
    ck_assert_int_eq(curve.n, 2);
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
                                        {"crash after opening", crash_after_opening, 2},
                                        {"hang while opening", hang_while_opening, 1},
                                        {"hang while closing", hang_while_closing, 4},
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
                                        {"stopped without a checkpoint", stopped_without_a_checkpoint, 1},
                                        {"data ends", data_ends, 1},
                                        {"launched by environment", launched_by_environment, 1},
                                        {"launched without an address", launched_without_an_address, 3},
                                        {"under mpirun", under_mpirun, 1},
                                        {"in a batch script", in_a_batch_script, 1},
                                        {"launched rank killed", launched_rank_killed, 1},
                                        {"refused", refused, 1},
                                        {"alone", alone, 1},
                                        {"suspended", suspended, 1},
                                        {"wrong environment", wrong_environment, 1},
                                        {"wrong local rank", wrong_local_rank, 1},
                                        {"misnumbered", misnumbered, 6},
                                        {"no secret", no_secret, 1},
                                        {"rank 0 never comes", rank_0_never_comes, 2},
                                        {"tensor parallel across machines", tensor_parallel_across_machines, 1},
                                        {"an added strategy is said once", an_added_strategy_is_said_once, 1},
                                        {NULL, NULL, 0}};
    signal(SIGHUP, SIG_DFL); /* nohup ./run-tests ignores it, and children would */
    return system_run("system-ends", tests);
}
