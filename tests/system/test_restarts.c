/* Work that is not lost: rounds of a launcher whose ranks die, what ends them, checkpoints by time, those that are
 * kept, and jobs that save before their time is up or their machine is taken away. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/system.h"

static struct curve whole, parts;

#define AGAIN "launch.restarts=3 launch.pause=10ms "
#define ENDLESS "llama.yaml job.steps=1000000000 "

/* Lines of this event in a job's metrics. */
static json_t *events(const char *job, const char *event)
{
    char path[128], *rest;
    json_t *all = json_array();
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
 * checkpoint (every=1000 of the third row), of one rank, or of two. */
static const struct {
    const char *options;
    int ranks, saves;
} rounds[] = {
    {"mesh.dp=2 checkpoint.every=50 checkpoint.async=false", 2, 1},
    {"checkpoint.every=50 checkpoint.async=false", 1, 1},
    {"mesh.dp=2 checkpoint.every=100000", 2, 0},
};

START_TEST(killed_twice)
{
#define LONG "llama.yaml job.deterministic=exact job.steps=1500 "
    char job[32], file[64];
    json_t *restarts;
    struct command *c;
    snprintf(job, sizeof job, "killed%d", _i);
    c = command_start(NULL, "train " LONG AGAIN "%s job.name=%s checkpoint.dir=%s", rounds[_i].options, job, job);
    kill_rank(c, job, rounds[_i].ranks, rounds[_i].ranks - 1, 100);
    /* the step comes again, or it is cut: what is waited for is beyond the restart */
    for (int waits = 0; waits < 6000; waits++) {
        restarts = events(job, "restart");
        if (json_array_size(restarts))
            break;
        usleep(10000);
    }
    ck_assert_uint_eq(json_array_size(restarts), 1);
    kill_rank(c, job, rounds[_i].ranks, 0, 300);
    command_wait(c, 60);
    expect_code(c, 0);
    restarts = events(job, "restart");
    ck_assert_uint_eq(json_array_size(restarts), 2);
    expect_restart(restarts, 0, rounds[_i].ranks, rounds[_i].ranks - 1);
    expect_restart(restarts, 1, rounds[_i].ranks, 0);
    if (!rounds[_i].saves) {
        expect_says(c, "from the beginning, since there is no checkpoint yet");
        ck_assert_int_eq(at(restarts, 1, "step"), 0);
    } else {
        ck_assert_int_gt(at(restarts, 1, "step"), at(restarts, 0, "step"));
        ck_assert_int_eq(at(restarts, 1, "step") % 50, 0);
        ck_assert_uint_eq(json_array_size(events(job, "start")), 1);
    }
    snprintf(file, sizeof file, "runs/%s/metrics.jsonl.1", job);
    ck_assert_int_eq(access(file, F_OK), -1); /* it is one run */
    curve_read(&parts, job);
    train(&whole, "undisturbed", LONG "mesh.dp=%d", rounds[_i].ranks);
    expect_same_bits(&parts, &whole);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"killed twice", killed_twice, HD__COUNT(rounds)}, {NULL}};
    return system_run("restarts", tests);
}
