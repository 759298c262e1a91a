/* Trains jobs by `heddle train --machine FILE metrics.profile=true`, and reads by which factor each op is off its plan.
 */
#include "cli/calibrate/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "analysis/plan/machine_file.h"
#include "cli/scratch.h"
#include "core/base/file.h"
#include "core/program/ops.h"
#include "runtime/exec/profile.h"

extern char **environ;

enum { SEQUENCE = 256, SEQUENCES = 4, TOKENS = 1 << 16, VOCABULARY = 8192 };
/* Neither's shape is a published model's. */
static const char *const models[] = {
    "{use: transformer, family: gpt2, layers: 2, hidden: 576, heads: 9, vocab: 8192, max_seq_len: 256}",
    "{use: transformer, family: llama, layers: 2, hidden: 640, heads: 10, kv_heads: 5, ffn: 1792, vocab: 8192, "
    "tied: false}"};

static int32_t write_file(const char *folder, const char *name, const void *bytes, size_t n, struct hd_error *err)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = hd__output_create(path, "", err);
    if (!file)
        return err->code;
    fwrite(bytes, 1, n, file);
    return hd__output_close(file, path, err);
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
                 "job: {name: calibrate, steps: %u}\ndevice: {use: %s}\ncomm: {use: %s}\nmesh: {dp: %u}\n"
                 "data: {train: %s/tokens.bin, format: nanogpt, seq_len: %d, batch: %u}\n"
                 "optimizer: {use: adamw, lr: 1e-4}\nmetrics: {profile: true, jsonl: %s/metrics.jsonl}\n",
                 jobs->steps, jobs->device, jobs->comm, jobs->ranks, folder, SEQUENCE, SEQUENCES * jobs->ranks, folder);
    int32_t rc = write_file(folder, "tokens.bin", tokens, sizeof tokens, err);
    rc = rc ? rc : write_file(folder, "machine.yaml", jobs->machine, strlen(jobs->machine), err);
    rc = rc ? rc : write_file(folder, "job.yaml", job.at, job.length, err);
    hd__text_free(&job);
    return rc;
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
    if (!status)
        return HD_OK;
    hd__scratch_show(folder, "log");
    return hd_fail(err, HD_E_INTERNAL, "a small job does not train, and says why above");
}

/* Adds the last event `profile` of a run. */
static int32_t read_profile(const char *folder, struct hd__op_seconds *sums, struct hd_error *err)
{
    json_t *lines = hd__scratch_lines(folder, "metrics.jsonl"), *profile = NULL, *row;
    size_t k;
    json_array_foreach(lines, k, row)
    {
        const char *event = json_string_value(json_object_get(row, "event"));
        profile = event && !strcmp(event, "profile") ? row : profile;
    }
    json_array_foreach(json_object_get(profile, "instructions"), k, row)
    {
        int narrow = json_integer_value(json_object_get(row, "bytes")) < 4;
        const char *name = json_string_value(json_object_get(row, "op"));
        uint16_t op = hd__op_named(name ? name : "");
        if (op == HD_OP_LIMIT)
            continue;
        sums->measured[op][narrow] += json_number_value(json_object_get(row, "seconds"));
        sums->planned[op][narrow] += json_number_value(json_object_get(row, "planned_s"));
    }
    json_decref(lines);
    return profile ? HD_OK : hd_fail(err, HD_E_IO, "a small job wrote no event profile");
}

/* Transfers overlap, and what takes no time of a step is measured by chance: neither has a row. */
static void add_rows(const struct hd__op_seconds *s, struct hd__text *out)
{
    static const char *const keys[] = {"fp32", "16"};
    double all = 0;
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++)
        all += s->measured[op][0] + s->measured[op][1];
    hd__text_add(out, "instructions: # times as long as by the rates above, in small jobs that train\n");
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++) {
        uint8_t class = hd__op((uint16_t)op)->class;
        if ((s->planned[op][0] <= 0 && s->planned[op][1] <= 0) || class == HD__CLASS_COLLECTIVE ||
            class == HD__CLASS_P2P || s->measured[op][0] + s->measured[op][1] < 1e-3 * all)
            continue;
        hd__text_add(out, "  - {op: %s", hd__op((uint16_t)op)->name);
        for (int narrow = 0; narrow < 2; narrow++)
            if (s->planned[op][narrow] > 0)
                hd__text_add(out, ", %s: %.4g", keys[narrow],
                             HD__MIN(HD__MAX(s->measured[op][narrow] / s->planned[op][narrow], 0.01), 1000));
        hd__text_add(out, "}\n");
    }
}

int32_t hd__calibrate_jobs(const struct hd__calibrate_jobs *jobs, struct hd__text *out, struct hd_error *err)
{
    struct hd__op_seconds *sums = hd__alloc(sizeof *sums);
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
