/* Strategies that waste time or do nothing: pipelines that idle, parts that are never due, axes that are 1. */
#include <linux/magic.h>
#include <math.h>
#include <stdlib.h>
#include <sys/vfs.h>

#include "cli/warnings/warnings.h"

/* Stages of 1F1B idle (stages - 1) / micro-batches times as long as they work (Narayanan et al., arXiv 2104.04473,
 * section 2.2); 4 micro-batches a stage, the usual advice, leave a fifth to a quarter. */
static void warn_bubble(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *schedule = hd__job_value_get(job, "strategies.3d.schedule");
    const char *name = schedule ? schedule->text : "1f1b";
    int64_t stages = job->mesh[HD_AXIS_PP], micros = job->accumulation, few = micros * job->micro_batch < 4 * stages;
    if (micros < 1 || micros >= stages)
        return;
    hd__text_add(out,
                 "%s: warning: mesh.pp: %lld micro-batch%s a step for %lld stages: with %s they idle for %s%.0f %% of "
                 "the time that they work, with %lld micro-batches for %.0f %%; %s%s%s makes more of them\n",
                 hd__job_where(job, "mesh.pp"), (long long)micros, micros > 1 ? "es" : "", (long long)stages, name,
                 !strcmp(name, "1f1b") || !strcmp(name, "gpipe") ? "" : "up to ",
                 100.0 * (double)(stages - 1) / (double)micros, (long long)(4 * stages),
                 25.0 * (double)(stages - 1) / (double)stages, job->micro_batch > 1 ? "a smaller data.micro_batch" : "",
                 job->micro_batch > 1 && few ? " with " : "", few ? "a larger data.batch" : "");
}

/* The key of a strategy whose value a section has as its interval or warm-up; "strategies" where none is found. */
static const char *key_of_section(const struct hd__job *job, const struct hd__code_section *x)
{
    int64_t steps = x->every ? (int64_t)x->every : x->after;
    const char *end = x->every ? ".every" : ".warmup", *found = "strategies";
    for (uint32_t i = 0; i < job->values.count; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        if (!strncmp(v->path, "strategies.", 11) && hd__ends_with(v->path, end) && json_integer_value(v->json) == steps)
            found = v->path;
    }
    return found;
}

/* Replicas of local SGD are unequal between the steps that make them equal. */
static void warn_between(struct hd__job *job, const struct hd__code_section *x, const char *key, const char *where,
                         struct hd__text *out)
{
    long long every = x->every, steps = job->steps;
    const struct {
        int64_t steps;
        const char *key, *why;
    } rows[] = {
        {job->eval_every, "eval.every",
         "in between, val_loss is the mean over replicas that differ, and no saved model has their parameters"},
        {job->checkpoint_every, "checkpoint.every",
         "a checkpoint saved in between holds the model as it was when replicas were last equal"},
    };
    if (steps % every)
        hd__text_add(out,
                     "%s: warning: %s: replicas are made equal every %lld steps, and the job has %lld: its "
                     "last %lld steps are in no model that is saved\n",
                     where, key, every, steps, steps % every);
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (rows[i].steps % every && rows[i].steps <= steps)
            hd__text_add(out,
                         "%s: warning: %s should be a multiple of %s (%lld), which synchronizes the replicas: %s\n",
                         hd__job_where(job, rows[i].key), rows[i].key, key, every, rows[i].why);
}

/* An average that hardly moves away from the weights that it begins with. */
static void warn_average(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *decay = hd__job_value_get(job, "strategies.ema.decay"),
                               *every = hd__job_value_get(job, "strategies.ema.every");
    if (decay && !job->checkpoint)
        hd__text_add(out,
                     "%s: warning: strategies.ema: the average is lost with the run, which saves nothing: add "
                     "checkpoint: {}, or leave ema out\n",
                     hd__job_where(job, "strategies.ema.use"));
    double times = every ? floor((double)job->steps / json_number_value(every->json)) : 0;
    double left = times < 1 ? 0 : pow(json_number_value(decay->json), times);
    if (left > 0.5)
        hd__text_add(out,
                     "%s: warning: strategies.ema.decay: after the %lld steps of the job %.0f %% of the average are "
                     "still the initial weights: lower it; %.3g leaves 1 %% of them\n",
                     hd__job_where(job, "strategies.ema.decay"), (long long)job->steps, 100 * left,
                     pow(0.01, 1 / times));
}

/* A strategy of the job that would cut axes of the mesh, which are 1; context parallelism has no axis in `cuts`. */
static void warn_uncut(const struct hd__compiled *c, struct hd__text *out)
{
    for (uint64_t s = 0; c && s < c->n_strategies; s++) {
        const struct hd__job_section *section = c->strategies[s].section;
        uint64_t cuts = c->strategies[s].component->ops.strategy.cuts | HD_AXIS_BIT(HD_AXIS_CP);
        if (cuts == HD_AXIS_BIT(HD_AXIS_CP) || section->because || cuts & hd__mesh_axes(&c->mesh))
            continue;
        hd__text_add(out, "%s: warning: %s has no effect where", section->origin, section->path);
        for (int32_t a = 0, n = 0; a < HD_AXIS_COUNT; a++)
            if (cuts & HD_AXIS_BIT(a))
                hd__text_add(out, "%s mesh.%s", n++ ? "," : "", hd__axis_name(a));
        hd__text_add(out, " are 1: raise one of them, or leave it out\n");
    }
}

void hd__warn_sections(const struct hd__cli_job *loaded, struct hd__text *out)
{
    const struct hd_program *p = loaded->compiled ? loaded->compiled->stage[0] : NULL;
    long long steps = loaded->job->steps;
    const char *said = NULL; /* several sections follow one key */
    for (uint32_t s = 0; p && steps && s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        const char *key = key_of_section(loaded->job, x), *where = hd__job_where(loaded->job, key);
        long long first = HD__MAX((long long)x->every, x->after + 1);
        if (x->repeat > 0 && first > steps && said != key)
            hd__text_add(out,
                         "%s: warning: %s: section %s (`heddle explain --section %s`) runs from step %lld on, "
                         "and the job has %lld steps: it never runs%s: lower %s, or train longer\n",
                         where, said = key, x->name, x->name, first, steps,
                         x->equal_axes ? ", and the model that is saved, evaluated and exported stays the initial one"
                         : strstr(key, ".compress.") ? ", and nothing is ever compressed"
                                                     : "",
                         strcmp(key, "strategies") ? key : "its interval");
        else if (x->every && x->equal_axes && first <= steps)
            warn_between(loaded->job, x, key, where, out);
    }
    warn_average(loaded->job, out);
}

void hd__warn_medians(const struct hd__cli_job *loaded, int64_t first, int64_t last, struct hd__text *out)
{
    const struct hd_program *p = loaded->compiled->stage[0];
    const char *said = NULL;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        const char *key = key_of_section(loaded->job, x);
        if (x->repeat > 0 && said != key && (x->every > 2 || x->after > (first + last) / 2))
            hd__text_add(out,
                         "%s: warning: %s: section %s (`heddle explain --section %s`) runs %s %lld%s, and the medians "
                         "of steps %lld to %lld are of steps without it%s\n",
                         hd__job_where(loaded->job, key), said = key, x->name, x->name,
                         x->every > 2 ? "every" : "from step",
                         x->every > 2 ? (long long)x->every : (long long)x->after + 1, x->every > 2 ? " steps" : "",
                         (long long)first, (long long)last, x->every > 2 ? "" : ": raise --warmup");
    }
}

static const struct hd__job_value *option_of(struct hd__job *job, const struct hd__job_section *section,
                                             const char *option)
{
    return hd__job_value_get(job, hd__arena_format(&job->arena, "%s.%s", section->path, option));
}

static int is_in_host(const struct hd__job_value *offload)
{
    return offload && !strcmp(offload->text, "host");
}

/* A name such as fsdp says that it shards, or mesh.dp does, and no key of the job does. What is offloaded, it offloads
 * all the same. */
static void warn_unsharded(struct hd__job *job, const struct hd__job_section *section, struct hd__text *out)
{
    const struct hd__job_value *dp = hd__job_value_get(job, "mesh.dp"), *stage = option_of(job, section, "stage"),
                               *states = option_of(job, section, "offload.optimizer");
    if (stage && !strcmp(stage->text, "0") && job->mesh[HD_AXIS_DP_SHARD] > 1 && dp && strchr(dp->text, '{') &&
        job->n_strategies == 1 && job->comm_axis[HD_AXIS_DP_SHARD] == job->comm_axis[HD_AXIS_DP_REPLICATE])
        hd__text_add(out,
                     "%s: warning: mesh.dp: shard is %lld, and nothing is sharded, because %s is 0: every rank holds "
                     "all states: say stage 3 (fsdp), or mesh.dp=%lld\n",
                     dp->origin, (long long)job->mesh[HD_AXIS_DP_SHARD], stage->path,
                     (long long)(job->mesh[HD_AXIS_DP_SHARD] * job->mesh[HD_AXIS_DP_REPLICATE]));
    if (section->preset && stage && strcmp(stage->text, "0") != 0 && (!states || !strcmp(states->text, "none")) &&
        !is_in_host(option_of(job, section, "offload.params")) &&
        job->ranks == job->mesh[HD_AXIS_PP] * job->mesh[HD_AXIS_TP])
        hd__text_add(out,
                     "%s: warning: %s shards nothing where dp x cp x ep is 1: raise launch.ranks, or leave it out\n",
                     section->origin, section->path);
}

/* Host memory is what such a device computes in, and what a tmpfs is of. */
static void warn_offload(const struct hd__cli_job *loaded, const struct hd__job_section *section, struct hd__text *out)
{
    static const char *const options[] = {"offload.optimizer", "offload.params"};
    const struct hd__component *device = loaded->compiled ? loaded->compiled->device_choice.component : NULL;
    for (size_t i = 0; device && device->ops.device.caps & HD_DEVICE_HOST_MEMORY && i < HD__COUNT(options); i++) {
        const struct hd__job_value *value = option_of(loaded->job, section, options[i]);
        if (is_in_host(value))
            hd__text_add(out,
                         "%s: warning: %s: device %s computes in host memory, so this saves none: leave it out%s\n",
                         value->origin, value->path, device->name, i ? "" : ", or say file");
    }
    const struct hd__job_value *folder = option_of(loaded->job, section, "offload.path");
    struct statfs of;
    if (folder && !statfs(folder->text, &of) && of.f_type == TMPFS_MAGIC)
        hd__text_add(out,
                     "%s: warning: %s: %s is a tmpfs, which is memory, so this saves none: name a folder on a disk\n",
                     folder->origin, folder->path, folder->text);
}

/* A single segment is there again as a whole before any of it is read. Stages of a pipeline keep several micro-batches,
 * so they gain all the same. */
static void warn_recompute(const struct hd__cli_job *loaded, struct hd__text *out)
{
    const struct hd__compiled *c = loaded->compiled;
    struct hd__job *job = loaded->job;
    int64_t every = job->recompute == HD__RECOMPUTE_EVERY ? job->recompute_every : job->recompute == HD__RECOMPUTE_FULL;
    if (c && c->n_stages == 1 && every && c->info.layers && every >= c->info.layers)
        hd__text_add(
            out,
            "%s: warning: recompute: one segment of %lld blocks is the whole model (%lld blocks): recomputing it costs "
            "a forward pass and saves no memory: say {every: N} with a smaller N, or none\n",
            hd__job_where(job, "recompute"), (long long)every, (long long)c->info.layers);
}

/* An optimizer that keeps large matrices alone in codes, and a model without such. */
static void warn_codes(const struct hd__cli_job *loaded, struct hd__text *out)
{
    const struct hd__job_value *least = hd__job_value_get(loaded->job, "optimizer.min_8bit_size");
    int64_t largest = 0, codes = !least;
    for (int32_t s = 0; !codes && loaded->compiled && s < loaded->compiled->n_stages; s++)
        for (uint32_t k = 0; k < loaded->compiled->stage[s]->params.count; k++) {
            const struct hd__param *x = &loaded->compiled->stage[s]->params.at[k];
            codes |= x->state[0].dtype == HD_U8;
            largest = HD__MAX(largest, x->optim.all_rows * x->optim.all_cols);
        }
    if (!codes && largest)
        hd__text_add(
            out,
            "%s: warning: optimizer.min_8bit_size: no matrix of this model has that many elements in whole blocks of "
            "optimizer.block_size (largest %lld), so all states stay in fp32: lower either, or use adamw\n",
            hd__job_where(loaded->job, "optimizer.min_8bit_size"), (long long)largest);
}

void hd__warn_strategies(const struct hd__cli_job *loaded, struct hd__text *out)
{
    warn_bubble(loaded->job, out);
    warn_uncut(loaded->compiled, out);
    warn_recompute(loaded, out);
    warn_codes(loaded, out);
    for (uint64_t i = 0; i < loaded->job->n_strategies; i++) {
        warn_unsharded(loaded->job, loaded->job->strategies[i], out);
        warn_offload(loaded, loaded->job->strategies[i], out);
    }
}
