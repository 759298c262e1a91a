/* heddle bench --train: rows that agree with each other, a run folder that stays as it was, and no scratch left. */
#include <dirent.h>
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

static double number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    ck_assert_msg(json_is_number(value), "%s is not a number", key);
    return json_number_value(value);
}

static void expect_empty(const char *folder)
{
    struct dirent *e;
    DIR *open = opendir(folder);
    while ((e = readdir(open)))
        ck_assert_msg(e->d_name[0] == '.', "%s/%s was left", folder, e->d_name);
    closedir(open);
}

START_TEST(rows)
{
    mkdir("tmp", 0700);
    struct command *c =
        command_run_env("TMPDIR=tmp", "bench --train llama.yaml --ranks 1,2 --steps 4 --warmup 1 --json "
                                      "job.name=benched metrics.tensorboard=tb checkpoint={\"every\":1}");
    expect_code(c, 0);
    json_t *root = keep(json_loads(c->out, 0, NULL));
    const json_t *table = json_object_get(root, "rows"), *base = json_array_get(table, 0);
    ck_assert_int_eq(json_array_size(table), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(table, i), *weak = json_object_get(row, "weak");
        double ranks = (double)i + 1, step_s = number(row, "step_s"), rate = number(row, "tokens_per_s");
        ck_assert(number(row, "ranks") == ranks && number(row, "batch") == 8);
        ck_assert(number(row, "tokens_per_step") == 8 * 32 && number(weak, "batch") == 8 * ranks);
        ck_assert(step_s > 0 && fabs(rate * step_s / (8 * 32) - 1) < 1e-4);
        ck_assert(fabs(number(weak, "tokens_per_s") * number(weak, "step_s") / (8 * 32 * ranks) - 1) < 1e-4);
        ck_assert(fabs(number(row, "efficiency") / (rate / ranks / number(base, "tokens_per_s")) - 1) < 1e-4);
        ck_assert(
            fabs(number(weak, "efficiency") / (number(weak, "tokens_per_s") / ranks / number(base, "tokens_per_s")) -
                 1) < 1e-4);
        ck_assert(fabs(step_s / number(row, "roofline_s") / number(row, "roofline_ratio") - 1) < 1e-4);
        ck_assert_ptr_nonnull(json_object_get(json_object_get(row, "device"), "isa"));
        ck_assert(number(row, "arena_bytes") > 0 && number(row, "exposed_comm_s") >= 0);
    }
    ck_assert(number(base, "efficiency") == 1 && number(base, "exposed_comm_s") == 0);
    expect_empty("tmp");
    ck_assert(access("runs/benched", F_OK) && access("tb", F_OK));
    c = command_run("bench --train llama.yaml --steps 2"); /* the job's own ranks, for people */
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "\n     1 "));
}
END_TEST

START_TEST(refusals)
{
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"--ranks 1,1", "--ranks '1,1': wanted different numbers"},
        {"--ranks 1,,2", "--ranks '1,,2'"},
        {"--ranks 0", "--ranks '0'"},
        {"--steps 0", "--steps '0': a number from 1"},
        {"--warmup -1", "--warmup '-1'"},
        {"launch.nodes=2", "launch.nodes: `heddle bench --train` measures ranks of this machine alone"},
        {"--peak", "--peak does not go with --train"},
        {"mesh.dp=3 --ranks 2", "the product must be the number of ranks; nearest that work: mesh.dp=2, ranks 3; or "
                                "mesh.dp=auto, for any number"},
        {"--ranks 1,3", "data.batch: 8"},
        {"data.train=none.txt --ranks 1,2", "data.train: none.txt: No such file"},
    };
    mkdir("tmp", 0700);
    for (size_t i = 0; i < HD__COUNT(cases); i++) {
        struct command *c = command_run_env("TMPDIR=tmp", "bench --train llama.yaml %s", cases[i].words);
        expect_code(c, 2);
        expect_says(c, cases[i].says);
        ck_assert_msg(!strstr(c->out, "\n     1 "), "%s was measured: %s", cases[i].words, c->out);
        ck_assert_str_eq(c->out[0] == '#' ? "" : c->out, "");
        expect_empty("tmp");
    }
}
END_TEST

START_TEST(stopped)
{
    glob_t found = {0};
    mkdir("tmp", 0700);
    struct command *c = command_start("TMPDIR=tmp", "bench --train llama.yaml --ranks 2 --steps 100000");
    while (glob("tmp/*/metrics.jsonl", 0, NULL, &found)) /* the test's limit ends it */
        usleep(10000);
    globfree(&found);
    kill(c->pid, SIGTERM);
    command_wait(c, 30);
    expect_code(c, 3);
    expect_empty("tmp");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"rows", rows, 1}, {"refusals", refusals, 1}, {"stopped", stopped, 1}, {NULL, NULL, 0}};
    return system_run("bench-train", tests);
}
