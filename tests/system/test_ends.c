/* How runs end before their time: signals, killed and stopped processes, a diverging loss; and runs that other launchers
 * started. Whatever happens, nothing of a job stays behind. */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

static int exists(pid_t pid)
{
    return kill(pid, 0) == 0 || errno != ESRCH;
}

/* Ranks that lost their parent come to the test, which asked for that, and are collected here. */
static void expect_gone(const pid_t *pids, int n, double seconds)
{
    double until = hd__now() + seconds;
    int left = n;
    while (left && hd__now() < until) {
        struct timespec t = {.tv_nsec = 2000000};
        nanosleep(&t, NULL);
        left = 0;
        for (int i = 0; i < n; i++) {
            waitpid(pids[i], NULL, WNOHANG);
            left += exists(pids[i]);
        }
    }
    ck_assert_msg(left == 0, "%d of %d ranks are still there after %g s", left, n, seconds);
}

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
    struct command *c = command_start(NULL, "train " ENDLESS_ON_3 "metrics.every=10 mesh.dp=%d job.name=%s", n, job);
    pid_t ranks[RANKS];
    curve_wait(job, 10);
    if (n > 1)
        command_ranks(c, n, ranks);
    kill(c->pid, sig);
    command_wait(c, 10);
    expect_stopped_after_a_step(c, job, SIGTERM == sig || n > 1 ? SIGTERM : sig);
    if (n > 1)
        expect_gone(ranks, n, 0.5);
}

START_TEST(terminate)
{
    stop_by(SIGTERM, "term1", 1);
    stop_by(SIGTERM, "term3", 3);
}
END_TEST

START_TEST(interrupt)
{
    stop_by(SIGINT, "int1", 1);
    stop_by(SIGINT, "int3", 3);
}
END_TEST
