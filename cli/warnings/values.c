/* Values of the job file that have no effect, or are possible and hardly meant; strategies that the mesh brought. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "cli/warnings/warnings.h"
#include "core/base/dtype.h"
#include "service/train/data/data_files.h"

/* One condition, "KEY=A|B" or "KEY!=A|B". */
struct need {
    const char *key, *now; /* whole name; its value, NULL: none */
    const char *first;     /* the first word of those that are asked for; NULL: words are excluded */
    int holds;
};

static struct need read_need(struct hd__job *job, const struct hd__job_value *of, const char *text)
{
    size_t n = strcspn(text, "!="), end = strcspn(text, "&");
    int unless = text[n] == '!';
    char *name = hd__arena_format(&job->arena, "%.*s", (int)n, text);
    char *words = hd__arena_format(&job->arena, "%.*s", (int)(end - n - 1 - (size_t)unless), text + n + 1 + unless);
    struct need need = {.key = hd__job_key_of(job, name)};
    if (!need.key) /* of the same table */
        need.key =
            hd__arena_format(&job->arena, "%.*s.%s",
                             (int)(of->owner ? strlen(of->owner->path) : strcspn(of->path, ".")), of->path, name);
    const struct hd__job_value *value = hd__job_value_get(job, need.key);
    need.now = value ? value->text : NULL;
    int data = !strcmp(name, "data_ranks");
    if (data || !strcmp(name, "ranks")) {
        int64_t many = data ? job->ranks / (job->mesh[HD_AXIS_PP] * job->mesh[HD_AXIS_TP]) : job->ranks;
        need.key = data ? "dp x cp x ep" : "the number of ranks";
        need.now = hd__arena_format(&job->arena, "%lld", (long long)many);
    }
    for (char *word = words, *rest; word; word = rest) {
        rest = strchr(word, '|');
        if (rest)
            *rest++ = 0;
        need.holds |= need.now && !strcmp(need.now, word);
    }
    need.holds ^= unless;
    need.first = unless ? NULL : words;
    return need;
}

static void warn_idle(struct hd__job *job, struct hd__job_value *value, struct hd__text *out)
{
    for (const char *at = value->needs; at; at = strchr(at, '&'), at = at ? at + 1 : NULL) {
        struct need need = read_need(job, value, at);
        if (need.holds)
            continue;
        hd__text_add(out, "%s: warning: %s has no effect where %s is %s: leave it out", value->origin,
                     value->written ? value->written : value->path, need.key, need.now ? need.now : "not set");
        hd__text_add(out, need.first ? ", or say %s=%s\n" : "\n", need.key, need.first);
        value->plain = NULL; /* said */
        return;
    }
}

static void warn_axes(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *axes = hd__job_value_get(job, "comm.axes");
    const char *word;
    json_t *use;
    int64_t replicate = job->mesh[HD_AXIS_DP_REPLICATE], shard = job->mesh[HD_AXIS_DP_SHARD];
    json_object_foreach(axes ? axes->json : NULL, word, use)
    {
        int64_t part = !strcmp(word, "dp_replicate") ? replicate : !strcmp(word, "dp_shard") ? shard : 0;
        struct hd__job_value axis = *axes;
        const json_t *r = json_object_get(axes->json, "dp_replicate"), *s = json_object_get(axes->json, "dp_shard");
        if (!strcmp(word, "dp") && replicate * shard > 1 && (replicate == 1 || (r && !json_equal(r, use))) &&
            (shard == 1 || (s && !json_equal(s, use))))
            hd__text_add(out,
                         "%s: warning: comm.axes.dp has no effect, because dp_shard and dp_replicate have their own: "
                         "leave it out\n",
                         axes->origin);
        if (part == 1)
            hd__text_add(out,
                         "%s: warning: comm.axes.%s has no effect, because its size in mesh.dp is 1: leave it out\n",
                         axes->origin, word);
        axis.path = hd__arena_format(&job->arena, "comm.axes.%s", word);
        axis.needs = hd__arena_format(&job->arena, "mesh.%s!=1", word);
        warn_idle(job, &axis, out);
    }
}

/* shm has no other settings for machines. */
static int inside_itself(const struct hd__job *job)
{
    const struct hd__job_section *inside = job->ranks > 1 ? job->comm_inside : NULL;
    const struct hd__job_value *levels = hd__job_value_get(job, "comm.levels");
    return inside && !inside->node && !strcmp(inside->use, "shm") && !strcmp(job->comm->use, "shm") &&
           (!levels || !strcmp(levels->origin, "default"));
}

/* With more than one axis, groups of all ranks are over comm.use. */
static int is_comm_unused(const struct hd__job *job)
{
    int axes = 0, named = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        axes += job->mesh[a] > 1;
        named += job->mesh[a] > 1 && job->comm_axis[a] != job->comm;
    }
    return axes == 1 && named;
}

#define UNSAVED "ends the job before its last step, and there are no checkpoints of what it did: add checkpoint: {}"

enum { HOUR = 3600, DAY = 86400 };
#define TOO_LONG "is longer than anyone waits: a number without a unit is of seconds; say 10m or 600000ms"

#define NO_EVAL "because eval.every is 0: set eval.every, or evaluate by `heddle eval`"

/* Values that are possible, and hardly meant. */
struct unlikely {
    int is;
    const char *key, *why;
};

static void add_rows(struct hd__job *job, const struct unlikely *rows, size_t n, struct hd__text *out)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].is)
            hd__text_add(out, "%s: warning: %s %s\n", hd__job_where(job, rows[i].key), rows[i].key, rows[i].why);
}

/* The kind of a strategy's compress that sends gradients in fp16; NULL: none does. */
static const char *find_fp16_wire(const struct hd__job *job)
{
    int alone = job->ranks == job->mesh[HD_AXIS_PP] * job->mesh[HD_AXIS_TP];
    for (uint32_t i = 0; i < job->values.count && !alone; i++)
        if (hd__ends_with(job->values.at[i].path, ".compress.kind") && !strcmp(job->values.at[i].text, "fp16"))
            return job->values.at[i].path;
    return NULL;
}

static void warn_unlikely_training(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *lr = hd__job_value_get(job, "optimizer.lr");
    const struct hd__job_value *shrink = hd__job_value_get(job, "optimizer.weight_decay");
    const struct hd__job_value *other_lr = hd__job_value_get(job, "optimizer.adamw_lr");
    const struct hd__job_value *capacity = hd__job_value_get(job, "model.capacity");
    const struct hd__job_value *window = hd__job_value_get(job, "model.sliding_window");
    const struct hd__job_value *experts = hd__job_value_get(job, "model.experts");
    const struct hd__job_value *chosen = hd__job_value_get(job, "model.experts_per_token");
    const struct hd__job_value *rounding = hd__job_value_get(job, "optimizer.rounding");
    const struct hd__job_value *betas = hd__job_value_get(job, "optimizer.betas");
    const struct hd__job_value *hidden = hd__job_value_get(job, "model.hidden"),
                               *width = hd__job_value_get(job, "model.ffn");
    double ffn = width ? json_number_value(width->json) : 0;
    double slots = capacity ? strtod(capacity->text, NULL) : 0,
           per_token = chosen ? json_number_value(chosen->json) : 2;
    const char *wire = find_fp16_wire(job);
    double beta = betas ? json_number_value(json_array_get(betas->json, 1)) : 0, new_part = 1 - beta;
    int scaled = job->precision.loss_scale != 1, wide = 1;
    const uint32_t gradients[] = {job->precision.compute, job->precision.grad, job->precision.reduce};
    for (size_t i = 0; i < HD__COUNT(gradients); i++)
        wide &= hd__dtype(gradients[i])->max_exp >= FLT_MAX_EXP;
    const struct unlikely rows[] = {
        {lr && json_number_value(lr->json) == 0, "optimizer.lr", "is 0: no parameter changes"},
        {other_lr && json_number_value(other_lr->json) == 0, "optimizer.adamw_lr",
         "is 0: embeddings, norms and the head never change"},
        {slots > 0 && slots < 1, "model.capacity",
         "is below 1: tokens are dropped even where experts are chosen evenly; dropless drops none"},
        {lr && shrink && json_number_value(lr->json) * json_number_value(shrink->json) >= 1, "optimizer.weight_decay",
         "times optimizer.lr is 1 or more: each step takes weights to 0 or beyond, whatever they learn: lower one"},
        {betas && json_number_value(json_array_get(betas->json, 0)) > beta, "optimizer.betas",
         "has the larger one first: second moments are to remember longer than first ones, as in [0.9, 0.95]"},
        {experts && capacity && slots * (per_token > 0 ? per_token : 2) > json_number_value(experts->json),
         "model.capacity",
         "is above model.experts / model.experts_per_token: no token is ever dropped: it is a factor, as 1.25, or "
         "dropless"},
        {experts && json_integer_value(experts->json) == 1, "model.experts",
         "is 1: the router has nothing to choose; say 2 or more, or a family without experts"},
        {experts && json_integer_value(experts->json) > 1 && per_token == json_number_value(experts->json),
         chosen && strcmp(chosen->origin, "default") ? "model.experts_per_token" : "model.experts",
         "routes each token to all experts, so nothing is sparse: set experts_per_token below experts"},
        {ffn > 0 && hidden &&
             ffn * (experts && json_integer_value(experts->json) ? 16 : 2) < json_number_value(hidden->json),
         "model.ffn", "is far below model.hidden: it is a width, not a ratio: leave it out for what is usual"},
        {job->train.weighted && job->train.count == 1, "data.train", "is one file: leave its weight out"},
        {scaled && wide && !wire, "precision.loss_scale",
         "is not needed: gradients have the range of fp32, and none of them become 0: leave it out"},
        {!scaled && !wide, "precision.loss_scale",
         "does not scale, and small gradients (in fp16 below 6e-8) become 0: leave it out, which is dynamic"},
        {!scaled && wide && wire, wire,
         "is fp16, and on their way gradients below 6e-8 become 0: say precision.loss_scale=dynamic, or bf16"},
        {job->precision.loss_scaling == HD__LOSS_SCALE_STATIC && job->precision.loss_scale > 1 &&
             job->precision.loss_scale < 64 && (!wide || wire),
         "precision.loss_scale",
         "is the scale itself, not an exponent of 2 like DeepSpeed's initial_scale_power, and so small that small "
         "gradients become 0 (in fp16 those below 6e-8 / loss_scale): set dynamic, or 65536 for 2^16"},
        {hd__dtype(job->precision.optimizer)->max_exp < FLT_MAX_EXP, "precision.optimizer",
         "is a type of a short range: second moments (AdamW) of small gradients become 0 in it, and their steps much "
         "too large: leave it out, or say one with the range of fp32"},
        {new_part < ldexp(1, -hd__dtype(job->precision.optimizer)->digits) && job->precision.compute != HD_F64,
         "precision.optimizer",
         "rounds second moments to nearest, and their change in a step, 1 - optimizer.betas[1], is smaller than a "
         "rounding step: they rise and hardly fall; leave it out, or say optimizer.betas=[0.9, 0.99] or less"},
        {hd__dtype(job->precision.master)->digits < FLT_MANT_DIG && job->precision.compute != HD_F64 &&
             !(rounding && !strcmp(rounding->text, "stochastic")),
         "precision.master",
         "rounds weights to nearest: smaller updates, in bf16 below 1/256 of a weight, are lost: leave it out, or say "
         "optimizer.rounding=stochastic (adamw, for bf16)"},
        {hd__dtype(job->precision.grad)->digits < FLT_MANT_DIG &&
             job->accumulation > 1LL << hd__dtype(job->precision.grad)->digits,
         "precision.grad",
         "sums so many micro-batches that the last ones are lost in rounding: leave it out, or make data.micro_batch "
         "larger"},
        {lr && job->schedule.min_lr > 0 && job->schedule.min_lr >= json_number_value(lr->json), "schedule.min_lr",
         "is not below optimizer.lr: the rate never falls"},
        {window && json_integer_value(window->json) >= job->seq_len && strcmp(window->origin, "default") != 0,
         "model.sliding_window",
         "is not below data.seq_len, so training never uses it; the config.json of an export keeps it"},
        {job->shuffle && job->shuffle_buffer && job->shuffle_buffer < 64, "data.shuffle_buffer",
         "is below 64, and no fewer are shuffled at a time: say 64 or more, or data.shuffle: false"},
    };
    add_rows(job, rows, HD__COUNT(rows), out);
}

static void warn_unlikely_running(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *pause = hd__job_value_get(job, "launch.pause"),
                               *margin = hd__job_value_get(job, "launch.margin");
    const struct hd__job_value *batches = hd__job_value_get(job, "eval.batches");
    int early = job->ranks > 1 && job->comm_timeout < job->comm_dead_after, never = !job->eval_every;
    const struct unlikely rows[] = {
        {never && job->val.count, "data.val", "has no effect on training, " NO_EVAL},
        {never && hd__train_is_asked(batches), "eval.batches", "has no effect on training, " NO_EVAL},
        {never && job->val_fraction > 0, "data.val_fraction", "only keeps data from training, " NO_EVAL},
        {job->val_fraction > 0.5, "data.val_fraction",
         "holds out more than half of data.train: the rest is trained on"},
        {job->ranks > 1 && job->comm_dead_after < 0.5, "liveness.dead_after",
         "is less than half a second: a rank that waits for the processor that long is taken for dead"},
        {early, "comm.timeout", "is below liveness.dead_after: a wait ends the job before a dead rank is known"},
        {job->ranks > 1 && job->comm_timeout > DAY, "comm.timeout", TOO_LONG},
        {job->ranks > 1 && job->comm_dead_after > HOUR, "liveness.dead_after", TOO_LONG},
        {job->ranks > 1 && job->late_after > DAY, "liveness.late_after", TOO_LONG},
        {job->launch_time_limit > 0 && !job->checkpoint, "launch.time_limit", UNSAVED},
        {(job->notice_file || job->notice_command) && !job->checkpoint, "launch.notice", UNSAVED},
        {job->launch_restarts && !job->checkpoint, "launch.restarts",
         "has no checkpoints to go on from: each restart begins at step 0; add checkpoint: {every: 30m}"},
        {job->launch_restarts && job->checkpoint && !job->checkpoint_every && job->checkpoint_seconds <= 0 &&
             !job->checkpoint_peers,
         "launch.restarts", "has only the last step's checkpoint to go on from: set checkpoint.every"},
        {job->deterministic == HD__DETERMINISTIC_EXACT && job->ranks > 1 &&
             job->mesh[HD_AXIS_TP] * job->mesh[HD_AXIS_CP] * job->mesh[HD_AXIS_EP] > 1,
         "job.deterministic",
         "is exact, which does not cover mesh.tp, cp and ep: compare only runs in which these are the same"},
        {job->deterministic == HD__DETERMINISTIC_EXACT && !job->micro_batch_asked && job->batch > 1,
         "job.deterministic",
         "is exact, but data.micro_batch is not set, so it depends on the data ranks and another mesh gives other "
         "bits: set data.micro_batch"},
        {job->comm_inside && is_comm_unused(job), "comm.inside",
         "has no effect, because comm.axes gives the only axis above 1 a transport of its own, and comm.use is not "
         "opened: name that transport in comm.use"},
        {inside_itself(job), "comm.inside", "has no effect where it is the same transport as comm.use: leave it out"},
        {job->checkpoint_keep_every && job->checkpoint_every && job->checkpoint_keep_every % job->checkpoint_every,
         "checkpoint.keep", "every is no multiple of checkpoint.every: only steps that are multiples of both are kept"},
        {job->checkpoint_keep_every && !job->checkpoint_every && job->checkpoint, "checkpoint.keep",
         "every keeps checkpoints at multiples of its value, but checkpoint.every is not a number of steps: make it "
         "one"},
        {(job->metrics_profile || job->metrics_blocks) && job->steps && job->steps <= 2,
         job->metrics_profile ? "metrics.profile" : "metrics.blocks",
         "covers only the first two steps, which are slow and which longer runs leave out: set job.steps to 3 or more"},
        {job->checkpoint_peers && !job->launch_restarts && job->nodes_min == job->nodes_max, "checkpoint.peers",
         "has no effect, because launch.restarts is 0: its copies are for ranks that are started again"},
        {job->checkpoint_peers && (job->launch_restarts || job->nodes_min < job->nodes_max) && job->checkpoint_every &&
             job->checkpoint_peers % job->checkpoint_every == 0,
         "checkpoint.peers",
         "is a multiple of checkpoint.every: no copy is newer than the checkpoint of its step, which a restart takes: "
         "copy more often, or save more rarely"},
        {job->nodes_min < job->nodes_max && !job->launch_restarts && !job->checkpoint, "launch.nodes",
         "may lose machines, and there are no checkpoints to go on from: add checkpoint: {every: 30m}"},
        {job->nodes_min < job->nodes_max && job->checkpoint && !job->checkpoint_every && job->checkpoint_seconds <= 0 &&
             !job->checkpoint_peers,
         "launch.nodes",
         "may lose machines, and has only the last step's checkpoint to go on from: set checkpoint.every"},
        {job->scale_batch && job->nodes_min == job->nodes_max, "launch.scale_batch",
         "has no effect, because launch.nodes is a fixed number: say MIN:MAX"},
        {job->launch_time_limit <= 0 && !getenv("SLURM_JOB_END_TIME") && hd__train_is_asked(margin), "launch.margin",
         "has no effect outside Slurm, because launch.time_limit is not set"},
        {!job->launch_restarts && job->nodes_max == 1 && hd__train_is_asked(pause), "launch.pause",
         "has no effect, because launch.restarts is 0"},
        {job->ranks > 1 && !early && job->comm_timeout <= job->late_after, "comm.timeout",
         "is not above liveness.late_after: it ends the job before a late rank is named"},
    };
    add_rows(job, rows, HD__COUNT(rows), out);
}

/* The last phase, which is a tenth of wsd where nothing is said, and all after the warm-up of linear and cosine. */
static void warn_phase(struct hd__job *job, struct hd__text *out)
{
    int wsd = job->schedule.kind == HD__LR_WSD, falls = wsd || (job->schedule.kind && job->schedule.warmup);
    int64_t phase = !wsd                  ? job->steps - job->schedule.warmup
                    : job->schedule.decay ? job->schedule.decay
                                          : job->steps / 10;
    if (falls && job->steps && phase < 2)
        hd__text_add(out, "%s: warning: schedule.kind is %s, and its last phase has %s: the rate never falls%s\n",
                     hd__job_where(job, "schedule.kind"), hd__job_value_get(job, "schedule.kind")->text,
                     phase ? "1 step, which is at optimizer.lr" : "0 steps",
                     !wsd                  ? "; lower schedule.warmup"
                     : job->schedule.decay ? ""
                                           : "; set schedule.decay");
}

void hd__warn_intervals(struct hd__job *job, struct hd__text *out)
{
    const struct {
        int64_t every;
        const char *key, *why;
    } rows[] = {
        {job->checkpoint_keep_best ? 0 : job->eval_every, "eval.every", "nothing is evaluated"},
        {job->checkpoint_every, "checkpoint.every", "it never comes"},
        {job->checkpoint_peers, "checkpoint.peers", "no copies are made"},
        {job->watch.replicas_every, "watch.replicas", "no replicas are compared"},
        {job->watch.rerun_every, "watch.rerun", "no instruction runs twice"},
        {job->metrics_every, "metrics.every", "only the last step and evaluations are logged"},
    };
    warn_phase(job, out);
    for (size_t i = 0; i < HD__COUNT(rows) && job->steps; i++) {
        if (rows[i].every <= job->steps)
            continue;
        hd__text_add(out, "%s: warning: %s is above ", hd__job_where(job, rows[i].key), rows[i].key);
        if (job->epochs > 0)
            hd__text_add(out, "the %lld steps of job.epochs", (long long)job->steps);
        hd__text_add(out, "%s: %s\n", job->epochs > 0 ? "" : "job.steps", rows[i].why);
    }
}

static void warn_empty(struct hd__job *job, struct hd__text *out)
{
    int64_t empty = hd__job_empty_sequences(job), all = job->batch + empty;
    if (empty)
        hd__text_add(out,
                     "%s: data.batch: %lld sequences take %lld places in micro-batches: %.0f%% of the compute is of "
                     "empty ones (data.pad_batch)\n",
                     hd__job_where(job, "data.batch"), (long long)job->batch, (long long)all,
                     100 * (double)empty / (double)all);
}

void hd__warn_values(struct hd__job *job, struct hd__text *out)
{
    for (uint64_t i = 0; i < job->n_strategies; i++)
        if (job->strategies[i]->because)
            hd__text_add(out, "%s: strategy %s is used (add {use: %s, ...} to `strategies` to set its options)\n",
                         job->strategies[i]->because, job->strategies[i]->use, job->strategies[i]->use);
    for (uint32_t i = 0; i < job->values.count; i++)
        warn_idle(job, &job->values.at[i], out);
    warn_axes(job, out);
    warn_unlikely_training(job, out);
    warn_unlikely_running(job, out);
    hd__warn_unusual(job, out);
    warn_empty(job, out);
}
