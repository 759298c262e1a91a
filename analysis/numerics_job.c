/* A job file -> the two jobs that are compared: as it is, and on one rank, both in fp64. Where the job's own training
 * is not one rank's (what travels is rounded, replicas take steps of their own), other settings run instead, and the
 * result names them. */
#include <stdarg.h>

#include "analysis/numerics.h"
#include "core/program/fusion.h"

typedef int32_t loader(const char *from, const char *const *overrides, size_t n, struct hd__job **job,
                       struct hd_error *err);

struct source {
    loader *load;
    const char *from;
    struct hd__plugins *plugins;
    HD__ARRAY(const char *) overrides; /* the user's, then what is added */
    struct hd__arena arena;
    struct hd__numerics *result;
};

static int32_t load_text(const char *text, const char *const *overrides, size_t n, struct hd__job **job,
                         struct hd_error *err)
{
    return hd__job_parse("job", text, strlen(text), overrides, n, job, err);
}

#define OVERRIDE(s, ...) hd__push(&(s)->overrides, hd__arena_format(&(s)->arena, __VA_ARGS__))

__attribute__((format(printf, 2, 3))) static void note(struct source *s, const char *format, ...)
{
    char *to = s->result->instead;
    size_t n = strlen(to);
    va_list args;
    va_start(args, format);
    if (n)
        n += (size_t)snprintf(to + n, sizeof s->result->instead - n, "; ");
    vsnprintf(to + n, sizeof s->result->instead - n, format, args);
    va_end(args);
}

static int32_t compile(struct source *s, uint32_t flags, struct hd__job **job, struct hd__compiled **compiled,
                       struct hd_error *err)
{
    int32_t rc = s->load(s->from, s->overrides.at, s->overrides.count, job, err);
    if (!rc)
        rc = hd__job_resolve(*job, 0, err);
    return rc ? rc : hd__exec_compile_with(*job, s->plugins, flags | HD__COMPILE_WIDEN, compiled, err);
}

static void release(struct hd__job **job, struct hd__compiled **compiled)
{
    hd__exec_compiled_free(*compiled);
    hd__job_free(*job);
    *compiled = NULL;
    *job = NULL;
}

static void note_wire(struct source *s, const struct hd__job *job)
{
    uint32_t grad = job->precision.grad, reduce = job->precision.reduce;
    if (reduce != grad && hd_dtype_size(reduce) <= hd_dtype_size(grad))
        note(s, "gradients travel as fp64, not as %s", hd_dtype_name(reduce));
}

/* Codes of 4 bits have no room for the numbers that they stand for: those of 8 are emulated. */
static void widen_compression(struct source *s, const struct hd__job *job, const char *path)
{
    char key[160];
    snprintf(key, sizeof key, "%s.compress.kind", path);
    const struct hd__job_value *kind = hd__job_value_get(job, key);
    if (!kind || !strcmp(kind->text, "none"))
        return;
    if (!strcmp(kind->text, "int4"))
        OVERRIDE(s, "%s=int8", key);
    if (strcmp(kind->text, "powersgd")) {
        note(s, "gradients travel as fp64, not as %s", kind->text);
        return;
    }
    OVERRIDE(s, "%s.compress.rank=65536", path);
    note(s, "powersgd has full rank");
}

/* With a meeting in every step, and a linear inner step, it trains like one rank that takes the outer steps. */
static void meet_in_every_step(struct source *s, const char *path)
{
    OVERRIDE(s, "%s.every=1", path);
    OVERRIDE(s, "optimizer={use: sgd, lr: 0.1}");
    OVERRIDE(s, "schedule.min_lr=0");
    note(s, "replicas take one step of sgd, lr 0.1, between two outer steps");
}

static const char *path_of(const struct hd__job *job, const char *use)
{
    for (uint64_t n = 0; n < job->n_strategies; n++)
        if (!strcmp(job->strategies[n]->use, use))
            return job->strategies[n]->path;
    return NULL;
}

static int32_t compile_many(struct source *s, struct hd__job **job, struct hd__compiled **compiled,
                            struct hd_error *err)
{
    OVERRIDE(s, "device.kernels=reference");
    OVERRIDE(s, "device.threads=1");
    uint32_t before = s->overrides.count;
    if (compile(s, 0, job, compiled, err))
        return err->code;
    note_wire(s, *job);
    if (path_of(*job, "zero"))
        widen_compression(s, *job, path_of(*job, "zero"));
    if ((*compiled)->stage[0]->independent_axes && !path_of(*job, "localsgd"))
        return hd__job_fail(*job, "strategies", err,
                            "strategies: ranks along %s train apart, by a formula that --numerics does not know: no "
                            "one rank trains like them; leave --numerics out",
                            hd__axes((*compiled)->stage[0]->independent_axes));
    for (uint64_t n = 0; n < (*compiled)->n_strategies; n++)
        if ((*compiled)->strategies[n].component->ops.strategy.reduce)
            note(s, "gradients are summed by all_reduce and reduce_scatter, not by %s", (*job)->strategies[n]->use);
    if ((*compiled)->stage[0]->independent_axes)
        meet_in_every_step(s, path_of(*job, "localsgd"));
    if (s->overrides.count == before)
        return HD_OK;
    release(job, compiled);
    return compile(s, 0, job, compiled, err);
}

/* The same micro-batches and the same kernels where bits are compared; else the whole batch as one micro-batch. */
static int32_t compile_one(struct source *s, const struct hd__job *many, struct hd__job **job,
                           struct hd__compiled **compiled, struct hd_error *err)
{
    int exact = many->deterministic == HD__DETERMINISTIC_EXACT;
    const char *outer = path_of(many, "localsgd");
    static const char *const single[] = {"precision.compute=fp64",
                                         "mesh.pp=1",
                                         "mesh.dp=1",
                                         "mesh.cp=1",
                                         "mesh.ep=1",
                                         "mesh.tp=1",
                                         "launch.ranks=1",
                                         "recompute=none",
                                         "data.micro_batches=auto",
                                         "precision.loss_scale=none"};
    for (size_t n = 0; n < HD__COUNT(single); n++)
        hd__push(&s->overrides, single[n]);
    if (exact && many->precision.loss_scaling != HD__LOSS_SCALE_NONE) /* it rounds */
        OVERRIDE(s, "precision.loss_scale=%.17g", many->precision.loss_scale);
    OVERRIDE(s, "data.micro_batch=%lld", (long long)(exact ? many->micro_batch : many->batch));
    if (outer) {
        OVERRIDE(s, "%s.outer_lr=1", outer);
        OVERRIDE(s, "%s.momentum=0", outer);
    }
    return compile(s, HD__COMPILE_NO_FUSE((exact ? 0 : HD__FUSE_LOSS_HEAD) | HD__FUSE_NORM_SUMS), job, compiled, err);
}

static int32_t numerics_from(loader *load, const char *from, const char *const *overrides, size_t n,
                             struct hd__plugins *plugins, int32_t steps, uint64_t seed, struct hd__numerics *result,
                             struct hd_error *err)
{
    struct hd__numerics found = {0};
    struct source s = {.load = load, .from = from, .plugins = plugins, .result = &found};
    struct hd__job *jobs[2] = {NULL, NULL};
    struct hd__compiled *one = NULL, *many = NULL;
    for (size_t k = 0; k < n; k++)
        hd__push(&s.overrides, overrides[k]);
    int32_t rc = compile_many(&s, &jobs[0], &many, err);
    if (!rc)
        rc = compile_one(&s, jobs[0], &jobs[1], &one, err);
    if (!rc)
        rc = hd__numerics(one, many, steps, seed, result, err);
    if (!rc)
        memcpy(result->instead, found.instead, sizeof found.instead);
    release(&jobs[1], &one);
    release(&jobs[0], &many);
    hd__free_array(&s.overrides);
    hd__arena_free(&s.arena);
    return rc;
}

int32_t hd__numerics_file(const char *file, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err)
{
    return numerics_from(hd__job_load, file, overrides, n, plugins, steps, seed, result, err);
}

int32_t hd__numerics_text(const char *text, const char *const *overrides, size_t n, struct hd__plugins *plugins,
                          int32_t steps, uint64_t seed, struct hd__numerics *result, struct hd_error *err)
{
    return numerics_from(load_text, text, overrides, n, plugins, steps, seed, result, err);
}
