/* What the suites that run the built command share: a scratch folder with a corpus and two jobs, commands with a time
 * limit, and what a run wrote into its metrics. */
#ifndef HD_TESTS_SYSTEM_H
#define HD_TESTS_SYSTEM_H

#include <check.h>
#include <jansson.h>
#include <sys/types.h>

#include "core/base/base.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Every test runs in a scratch folder that holds
 *   corpus.txt      400 KB of words, the same everywhere
 *   llama.yaml      2 layers, hidden 64, 4 heads, 2 kv heads; batch 8 of 32 tokens; micro_batch 2; AdamW, clip 1;
 *                   20 steps
 *   gpt2.yaml       the same with GPT-2's blocks and 4 kv heads
 * and is removed when the suite is over. A job's metrics are runs/NAME/metrics.jsonl. */
struct system_test {
    const char *name;
    const TTest *test;
    int times; /* above 1: a loop test, with _i from 0 */
};
int system_run(const char *suite, const struct system_test *tests); /* {NULL} ends the list; returns main's exit code */

void write_file(const char *path, const char *text);
char *read_file(const char *path); /* the text lives until the test ends */
/* Remembers what lives until the test ends, and returns it. */
void *keep(void *memory);

/* ---- commands */

struct command {
    pid_t pid;
    double started, seconds; /* seconds: how long it ran */
    double unhindered;       /* the same by unhindered_now */
    int code;                /* exit code; 128 + signal if it was killed */
    char *out, *err;
    char out_file[32], err_file[32];
};

/* Starts `heddle WORDS`; the words are separated by single spaces. `environment`: "NAME=value" words, or NULL;
 * variables of launchers are removed before. A command still running when its test ends is killed, and so are its
 * ranks. */
struct command *command_start(const char *environment, const char *format, ...) __attribute__((format(printf, 2, 3)));
int free_port(void); /* of 127.0.0.1 */
/* Port at which a process listens by TCP at this IPv4 address, in the hexadecimal digits of /proc/net/tcp; 0: none. */
int listening_port(pid_t pid, const char *address);
/* For ranks that are said to be on several machines. */
#define TEST_SECRET "HEDDLE_SECRET=00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef"
/* The same as one of `size` ranks that meet at `port`, with variables as torchrun sets them; `each` on a machine, 0:
 * nothing says how many. */
struct command *command_start_rank(int rank, int size, int each, int port, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Seconds on a clock that stands still while something on this machine waits for a core, where the kernel counts that
 * (PSI): what has to be prompt is measured by it, so that other work is no fault, and a wait for nothing is one. */
double unhindered_now(void);
/* So many seconds, more on a busy machine (CK_TIMEOUT_MULTIPLIER): for what has to be prompt. */
double promptly(double seconds);
/* Waits at most so long; a command that takes longer fails the test. Fills in all fields. */
void command_wait(struct command *c, double seconds);
/* Start and wait (60 s). */
struct command *command_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct command *command_run_env(const char *environment, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Does a job of two ranks run over this transport here? shm and pipes always do. */
int runs_over(const char *use);

/* The processes that a running command started, in the order of their ranks; waits until there are `n`. */
void command_ranks(const struct command *c, int n, pid_t *ranks);
/* Within so many seconds, more on a busy machine (CK_TIMEOUT_MULTIPLIER), none of them is there. Those that lost
 * their parent come to the test where it asked for that (PR_SET_CHILD_SUBREAPER), and are collected here. */
void expect_gone(const pid_t *pids, int n, double seconds);
void expect_code(const struct command *c, int code);
void expect_says(const struct command *c, const char *words); /* on stderr */

/* ---- metrics */

enum { CURVE_MAX = 20000 };
/* The first line that says what went wrong names this rank as the cause. */
void expect_first_named(const struct command *c, int rank);
struct curve {
    int n;
    int64_t step[CURVE_MAX];
    double loss[CURVE_MAX], norm[CURVE_MAX], val_loss[CURVE_MAX]; /* NAN where there is none */
    char text[CURVE_MAX][64];                                     /* loss and norm as they were printed */
};
void curve_read(struct curve *c, const char *job);
/* Waits until a running job has logged this step. */
void curve_wait(const char *job, int64_t step);
void expect_same_bits(const struct curve *a, const struct curve *b);
void expect_close(const struct curve *a, const struct curve *b, double relative);
/* The loss went down: a curve that stands still would be close to any other. */
void expect_learns(const struct curve *c);
/* Runs a training job of this name to its end and reads its curve. */
void train(struct curve *c, const char *job, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- numbers of others: torch's, within `relative` of them; and every tensor of its safetensors file, of its norm */
void expect_number(double is, double should, double relative, const char *what, int step);
void expect_weights(const char *exported, const char *golden, double relative);

#endif
