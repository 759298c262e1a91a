#include "tests/core/job/common.h"

struct hd_error err = HD_ERROR_INIT;

const char full_job[] =
    "job:        {name: kjv, steps: 300, seed: 7, deterministic: exact}\n"
    "launch:     {ranks: 4}\n"
    "plugins:    {path: [./a, ./b]}\n"
    "device:     {use: cpu, stage: 1}\n"
    "comm:       {use: shm, axes: {dp: mpi, tp: {use: fast, stage: 2}}, timeout: 2m, hooks: [check, {use: "
    "faults, stage: 3}]}\n"
    "mesh:       {pp: 1, dp: auto, cp: 1, ep: 1, tp: 2}\n"
    "strategies:\n"
    "  - {use: 3d, order: gpipe}\n"
    "  - use: zero\n"
    "    stage: 3\n"
    "    bucket: 25MB\n"
    "optimizer:  {use: adamw, lr: 3e-4, betas: [0.9, 0.95]}\n"
    "schedule:   {kind: cosine, warmup: 100, min_lr: 3e-5}\n"
    "model:      {use: transformer, stage: 6}\n"
    "data:\n"
    "  train: [{path: a.txt, weight: 0.7}, {path: b.txt, weight: 0.3}]\n"
    "  val: v.txt\n"
    "  stage: 7\n"
    "  seq_len: 256\n"
    "  batch: 32\n"
    "  micro_batch: 4\n"
    "  shuffle: no\n"
    "eval:       {every: 100, batches: 5}\n"
    "precision:  {compute: bf16, grad: fp32, reduce: bf16}\n"
    "recompute:  {every: 2}\n"
    "checkpoint: {use: posix, dir: out, every: 100, keep: 2, async: false, resume: never, stage: 1}\n"
    "metrics:    {every: 10, jsonl: m.jsonl, tensorboard: tb, sinks: [other, {use: lines, stage: 4}]}\n";

const char small_job[] = "job: {steps: 20}\n"
                         "optimizer: {use: sgd}\n"
                         "model: {use: transformer}\n"
                         "data: {train: a.txt, seq_len: 8, batch: 4}\n";

#define AT(field) offsetof(struct plugin_settings, field)
const struct hd_option plugin_options[] = {
    {.name = "lr", .type = HD_OPT_FLOAT, .value = "1e-3", .offset = AT(lr), .flags = HD_OPTION_GLOBAL},
    {.name = "betas", .type = HD_OPT_LIST, .value = "[0.9, 0.999]", .offset = AT(betas)},
    {.name = "stage",
     .type = HD_OPT_INT,
     .value = "0",
     .min = 0,
     .max = 9,
     .offset = AT(stage),
     .aliases = "zero_stage",
     .words = "some=3|zero_stage:all=9|zero_stage:most=?say how many"},
    {.name = "bucket", .type = HD_OPT_SIZE, .value = "1MiB", .offset = AT(bucket)},
    {.name = "order", .type = HD_OPT_ENUM, .value = "1f1b", .choices = "gpipe|1f1b", .offset = AT(order)},
    {.name = "overlap", .type = HD_OPT_BOOL, .value = "true", .offset = AT(overlap)},
    {.name = "offload.path", .type = HD_OPT_STRING, .aliases = "folder|nvme.path", .offset = AT(path)},
    {.name = "graph",
     .type = HD_OPT_ENUM,
     .value = "static",
     .choices = "static|dynamic",
     .flags = HD_OPTION_FIXED,
     .offset = AT(graph),
     .help = "all is compiled"},
};
const size_t plugin_option_count = HD__COUNT(plugin_options);

struct hd__job *load(const char *text, const char *a, const char *b, const char *c)
{
    const char *words[] = {a, b, c};
    size_t n = !a ? 0 : !b ? 1 : !c ? 2 : 3;
    struct hd__job *job = NULL;
    int32_t rc = hd__job_parse("job.yaml", text, strlen(text), words, n, &job, &err);
    ck_assert_msg(rc == HD_OK, "%s", err.message);
    return job;
}

const char *refusal(const char *text, const char *override, int64_t ranks)
{
    struct hd__job *job = NULL;
    int32_t rc = hd__job_parse("job.yaml", text, strlen(text), &override, override != NULL, &job, &err);
    if (!rc) {
        rc = hd__job_resolve(job, ranks, &err);
        hd__job_free(job);
    } else {
        ck_assert_ptr_null(job);
    }
    ck_assert_msg(rc == HD_E_INVALID && err.code == rc, "%s", rc ? hd__format("code %d", rc) : "it was accepted");
    return err.message;
}

int32_t parse_section(struct hd__job *job, struct hd__job_section *section, struct plugin_settings *out)
{
    memset(out, 0, sizeof *out);
    return hd__job_section_parse(job, section, plugin_options, plugin_option_count, sizeof(struct hd_option), out,
                                 &err);
}
