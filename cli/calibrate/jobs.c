/* Trains jobs by `heddle train --machine FILE metrics.profile=true`, and reads by which factor each op is off its plan.
 */
#include "cli/calibrate/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/scratch.h"
#include "core/program/ops.h"

extern char **environ;

enum { SEQUENCE = 256, SEQUENCES = 4, TOKENS = 1 << 16, VOCABULARY = 8192 };
/* Neither's shape is a published model's. */
static const char *const models[] = {
    "{use: transformer, family: gpt2, layers: 2, hidden: 576, heads: 9, vocab: 8192, max_seq_len: 256}",
    "{use: transformer, family: llama, layers: 2, hidden: 640, heads: 10, kv_heads: 5, ffn: 1792, vocab: 8192, "
    "tied: false}"};

struct sums {
    double seconds[HD_OP_LIMIT][2], planned[HD_OP_LIMIT][2];
};

static int32_t write_file(const char *folder, const char *name, const void *bytes, size_t n, struct hd_error *err)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    int bad = !file || fwrite(bytes, 1, n, file) != n;
    if (file && fclose(file))
        bad = 1;
    return bad ? hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno)) : HD_OK;
}

static int32_t write_inputs(const struct hd__calibrate_jobs *jobs, const char *folder, struct hd_error *err)
{
    static uint16_t tokens[TOKENS];
    struct hd__text job = {0};
    uint32_t random = 1;
    for (int i = 0; i < TOKENS; i++) {
        random = random * 1664525 + 1013904223;
        tokens[i] = (uint16_t)((random >> 16) % VOCABULARY);
    }
    hd__text_add(&job,
                 "job: {name: calibrate, steps: 6}\ndevice: {use: %s}\ncomm: {use: %s}\nmesh: {dp: %u}\n"
                 "data: {train: %s/tokens.bin, format: nanogpt, seq_len: %d, batch: %u}\n"
                 "optimizer: {use: adamw, lr: 1e-4}\nmetrics: {profile: true, jsonl: %s/metrics.jsonl}\n",
                 jobs->device, jobs->comm, jobs->ranks, folder, SEQUENCE, SEQUENCES * jobs->ranks, folder);
    int32_t rc = write_file(folder, "tokens.bin", tokens, sizeof tokens, err);
    rc = rc ? rc : write_file(folder, "machine.yaml", jobs->machine, strlen(jobs->machine), err);
    rc = rc ? rc : write_file(folder, "job.yaml", job.at, job.length, err);
    hd__text_free(&job);
    return rc;
}

/* The child's last words are the reason. */
static int32_t refuse(const char *log, struct hd_error *err)
{
    char line[512], last[512] = "it says nothing";
    FILE *file = fopen(log, "re");
    while (file && fgets(line, sizeof line, file))
        if (*line != '\n')
            snprintf(last, sizeof last, "%s", line);
    if (file)
        fclose(file);
    last[strcspn(last, "\n")] = 0;
    return hd_fail(err, HD_E_INTERNAL, "a small job does not train: %.400s", last);
}

static int32_t train(const char *folder, const char *model, const char *dtype, struct hd_error *err)
{
    char job[96], machine[96], log[96], words[2][256];
    snprintf(job, sizeof job, "%s/job.yaml", folder);
    snprintf(machine, sizeof machine, "%s/machine.yaml", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(words[0], sizeof words[0], "model=%s", model);
    snprintf(words[1], sizeof words[1], "precision.compute=%s", dtype);
    char *argv[] = {"heddle", "train", job, "--machine", machine, words[0], words[1], NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int why = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (why)
        return hd_fail(err, HD_E_IO, "no process for a small job: %s", strerror(why));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status ? refuse(log, err) : HD_OK;
}

/* Adds the last event `profile` of a run. */
static int32_t read_profile(const char *folder, struct sums *sums, struct hd_error *err)
{
    char path[96], *line = NULL;
    size_t room = 0, k;
    json_t *profile = NULL, *row;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0) {
        json_t *object = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(object, "event"));
        if (event && !strcmp(event, "profile")) {
            json_decref(profile);
            profile = json_incref(object);
        }
        json_decref(object);
    }
    free(line);
    if (file)
        fclose(file);
    if (!profile)
        return hd_fail(err, HD_E_IO, "%s: it has no event profile", path);
    json_array_foreach(json_object_get(profile, "instructions"), k, row)
    {
        int narrow = json_integer_value(json_object_get(row, "bytes")) < 4;
        for (uint32_t op = 0; op < HD_OP_LIMIT; op++)
            if (hd__op((uint16_t)op)->name &&
                !strcmp(hd__op((uint16_t)op)->name, json_string_value(json_object_get(row, "op")))) {
                sums->seconds[op][narrow] += json_number_value(json_object_get(row, "seconds"));
                sums->planned[op][narrow] += json_number_value(json_object_get(row, "planned_s"));
            }
    }
    json_decref(profile);
    return HD_OK;
}

/* Transfers overlap, and what takes no time of a step is measured by chance: neither has a row. */
static void add_rows(const struct sums *s, struct hd__text *out)
{
    static const char *const keys[] = {"fp32", "16"};
    double all = 0;
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++)
        all += s->seconds[op][0] + s->seconds[op][1];
    hd__text_add(out, "instructions: # times as long as by the rates above, in small jobs that train\n");
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++) {
        uint8_t class = hd__op((uint16_t)op)->class;
        if ((s->planned[op][0] <= 0 && s->planned[op][1] <= 0) || class == HD__CLASS_COLLECTIVE ||
            class == HD__CLASS_P2P || s->seconds[op][0] + s->seconds[op][1] < 1e-3 * all)
            continue;
        hd__text_add(out, "  - {op: %s", hd__op((uint16_t)op)->name);
        for (int narrow = 0; narrow < 2; narrow++)
            if (s->planned[op][narrow] > 0)
                hd__text_add(out, ", %s: %.4g", keys[narrow],
                             HD__MIN(HD__MAX(s->seconds[op][narrow] / s->planned[op][narrow], 0.01), 1000));
        hd__text_add(out, "}\n");
    }
}

int32_t hd__calibrate_jobs(const struct hd__calibrate_jobs *jobs, struct hd__text *out, struct hd_error *err)
{
    struct sums *sums = hd__alloc(sizeof *sums);
    char folder[64];
    int32_t rc = hd__scratch_make("heddle-calibrate", folder, err);
    if (!rc) {
        rc = write_inputs(jobs, folder, err);
        for (uint32_t d = 0; d < jobs->n_dtypes; d++)
            for (size_t k = 0; k < HD__COUNT(models) && !rc; k++) {
                rc = train(folder, models[k], hd_dtype_name(jobs->dtypes[d]), err);
                rc = rc ? rc : read_profile(folder, sums, err);
            }
        hd__scratch_remove(folder);
    }
    if (!rc)
        add_rows(sums, out);
    free(sums);
    return rc;
}
