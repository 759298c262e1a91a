/* The mesh and the batch for a number of ranks. Messages give the rule and the nearest values that keep it. */
#include "core/job/internal.h"

#include <math.h>

enum { MOST_RANKS = 1 << 24, MOST_MICRO_BATCHES = 1 << 20 };

/* "pp 1 x dp auto x cp 1 x ep 1 x tp 4" */
static const char *mesh_text(struct hd__job *job, const int64_t *mesh)
{
    struct hd__text out = {0};
    for (int a = 0; a < HD_AXIS_TQ; a++) {
        const char *name = a == HD_AXIS_DP_SHARD && mesh[HD_AXIS_DP_REPLICATE] == 1 ? "dp" : hd__axis_name(a);
        if (a == HD_AXIS_DP_REPLICATE && mesh[a] == 1)
            continue;
        hd__text_add(&out, "%s%s ", out.length ? " x " : "", name);
        hd__text_add(&out, mesh[a] ? "%lld" : "auto", (long long)mesh[a]);
    }
    return hd__text_to_arena(&out, &job->arena);
}

/* How the command line calls an axis. */
static const char *axis_key(const struct hd__job *job, int a)
{
    if (a == HD_AXIS_DP_REPLICATE)
        return "mesh.dp.replicate";
    if (a == HD_AXIS_DP_SHARD)
        return job->mesh_asked[HD_AXIS_DP_REPLICATE] == 1 ? "mesh.dp" : "mesh.dp.shard";
    return a == HD_AXIS_PP ? "mesh.pp" : a == HD_AXIS_CP ? "mesh.cp" : a == HD_AXIS_EP ? "mesh.ep" : "mesh.tp";
}

/* Divisors of n next to `near`, below and above; 0 where there is none. */
static void nearest_divisors(int64_t n, int64_t near, int64_t *below, int64_t *above)
{
    *below = *above = 0;
    for (int64_t d = 1; d * d <= n; d++) {
        if (n % d)
            continue;
        const int64_t pair[] = {d, n / d};
        for (int i = 0; i < 2; i++) {
            if (pair[i] < near && pair[i] > *below)
                *below = pair[i];
            if (pair[i] > near && (!*above || pair[i] < *above))
                *above = pair[i];
        }
    }
}

static void suggest(struct hd__text *out, const char *key, int64_t value)
{
    if (value > 0)
        hd__text_add(out, "%s%s%lld", out->length ? ", " : "", key, (long long)value);
}

/* Would model-transformer take this size of an axis, as far as its keys say? */
static int fits_model(const struct hd__job *job, int axis, int64_t size)
{
    const char *keys[HD_AXIS_COUNT] = {[HD_AXIS_TP] = "heads", [HD_AXIS_EP] = "experts", [HD_AXIS_PP] = "layers"};
    const char *key = axis < HD_AXIS_COUNT ? keys[axis] : NULL;
    const struct hd__tree_node *model = job->model->node, *value = model && key ? hd__tree_get(model, key) : NULL;
    if (axis == HD_AXIS_CP)
        return !(job->seq_len % size);
    if (!key || size == 1 || strcmp(job->model->use, "transformer") || (model && hd__tree_get(model, "from")))
        return 1;
    int64_t has = value && value->kind == HD__SCALAR ? strtoll(value->text, NULL, 10) : 0;
    return has ? (axis == HD_AXIS_PP ? size <= has : has % size == 0) : axis != HD_AXIS_EP;
}

static int32_t mesh_fail(struct hd__job *job, int64_t ranks, int64_t fixed, int has_auto, struct hd_error *err)
{
    struct hd__text out = {0};
    char key[40];
    for (int a = HD_AXIS_TQ - 1; a >= 0; a--) {
        int64_t asked = job->mesh_asked[a], rest = asked ? fixed / asked : 0, below = 0, above = 0;
        if (rest == 0 || ranks % rest || (asked == 1 && has_auto))
            continue;
        snprintf(key, sizeof key, "%s=", axis_key(job, a));
        if (has_auto)
            nearest_divisors(ranks / rest, asked, &below, &above);
        else
            above = a == HD_AXIS_DP_REPLICATE && asked == 1 ? 0 : ranks / rest;
        suggest(&out, key, below > 0 && fits_model(job, a, below) ? below : 0);
        suggest(&out, key, above > 0 && fits_model(job, a, above) ? above : 0);
    }
    int64_t each =
        job->nodes_max > 1 && job->launch_ranks && !has_auto && fixed % job->nodes_max == 0 ? job->nodes_max : 1;
    suggest(&out, each > 1 ? "launch.ranks=" : "ranks ", has_auto ? ranks / fixed * fixed : fixed / each);
    suggest(&out, "ranks ", has_auto ? (ranks / fixed + 1) * fixed : 0);
    int64_t dp = job->mesh_asked[HD_AXIS_DP_SHARD];
    int may_be_auto = !has_auto && job->mesh_asked[HD_AXIS_DP_REPLICATE] == 1 && dp > 1 && ranks % (fixed / dp) == 0;
    int32_t rc = hd__job_fail(job, "mesh", err,
                              "mesh: %lld rank%s%s %s %s; the product must be the number of ranks; nearest that work: "
                              "%s%s",
                              (long long)ranks, ranks == 1 ? "" : "s",
                              job->nodes_max > 1 && job->launch_ranks * job->nodes_max == ranks
                                  ? hd__arena_format(&job->arena, " (launch.ranks %lld on each of %d machines)",
                                                     (long long)job->launch_ranks, job->nodes_max)
                                  : "",
                              has_auto     ? "cannot be cut into"
                              : ranks == 1 ? "is not"
                                           : "are not",
                              mesh_text(job, job->mesh_asked), out.at,
                              may_be_auto ? "; or mesh.dp=auto, for any number that the other axes divide" : "");
    hd__text_free(&out);
    return rc;
}

/* How many machines there may be, and how many ranks each has. */
static int32_t resolve_machines(struct hd__job *job, int64_t fixed, int has_auto, struct hd_error *err)
{
    enum { MOST = 2048 };
    if (!job->nodes_max && !hd__range_parse(job->launch_nodes, MOST, &job->nodes_min, &job->nodes_max))
        return hd__job_fail(job, "launch.nodes", err,
                            "launch.nodes: '%.40s' is neither a number of machines (such as 4) nor a range MIN:MAX "
                            "(such as 2:4), up to %d",
                            job->launch_nodes, MOST);
    if (!job->launch_ranks && !has_auto && fixed % job->nodes_max)
        return hd__job_fail(job, "launch.ranks", err,
                            "launch.ranks is left out, and the %lld ranks of the mesh are no multiple of %d machines "
                            "(launch.nodes): say how many a machine has",
                            (long long)fixed, job->nodes_max);
    job->ranks_each = job->launch_ranks ? job->launch_ranks : has_auto ? fixed : fixed / job->nodes_max;
    return HD_OK;
}

static int32_t resolve_mesh(struct hd__job *job, int64_t ranks, int64_t mesh[HD_AXIS_COUNT], struct hd_error *err)
{
    int64_t fixed = 1;
    int automatic = -1;
    for (int a = 0; a < HD_AXIS_COUNT; a++) {
        mesh[a] = a == HD_AXIS_TQ ? 1 : job->mesh_asked[a];
        if (!mesh[a])
            automatic = a;
        else
            fixed *= mesh[a];
        if (fixed > MOST_RANKS) /* each factor is at most 2^20: no overflow on the way */
            return hd__job_fail(job, "mesh", err, "mesh: %s are more than %d ranks", mesh_text(job, job->mesh_asked),
                                MOST_RANKS);
    }
    if (resolve_machines(job, fixed, automatic >= 0, err))
        return err->code;
    if (!ranks)
        ranks = job->ranks_each * job->nodes_max;
    if (automatic < 0 && ranks != fixed && job->nodes_min < job->nodes_max) { /* what machines that went leave of it */
        automatic = job->mesh_asked[HD_AXIS_DP_REPLICATE] > 1 ? HD_AXIS_DP_REPLICATE : HD_AXIS_DP_SHARD;
        fixed /= mesh[automatic];
    }
    if (ranks < 0 || ranks > MOST_RANKS)
        return hd__job_fail(job, "mesh", err, "mesh: %lld is no possible number of ranks", (long long)ranks);
    if (automatic >= 0 ? ranks % fixed : ranks != fixed)
        return mesh_fail(job, ranks, fixed, automatic >= 0, err);
    if (automatic >= 0)
        mesh[automatic] = ranks / fixed;
    return HD_OK;
}

static int pads_batch(const struct hd__job *job)
{
    int fits = job->nodes_min < job->nodes_max && job->deterministic != HD__DETERMINISTIC_EXACT;
    return job->pad_batch == HD__PAD_BATCH_ALWAYS || (job->pad_batch == HD__PAD_BATCH_AUTO && fits);
}

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Sequences of a micro-batch; 0: not asked for. With fewer machines than there may be the batch
 * stays, so a coordinate has more of it: in more micro-batches, not in larger ones. */
static int64_t asked_micro_batch(const struct hd__job *job, int64_t dp, int64_t ep, int64_t ranks)
{
    int64_t all = job->ranks_each * job->nodes_max, part = ceil_div(job->batch, dp * ep), most = job->micro_batch_asked;
    if (job->nodes_min == job->nodes_max || (!pads_batch(job) && job->batch % (dp * ep)) || (most && part % most == 0))
        return most;
    most = most ? most : job->batch_of_all * ranks / (all * dp * ep);
    most = HD__MAX(HD__MIN(most, part), 1);
    int64_t even = ceil_div(part, ceil_div(part, most)), divisor = most; /* of 7 in at most 5: 4, and 1 */
    while (part % divisor)
        divisor--;
    return pads_batch(job) && even >= 2 * divisor ? even : divisor;
}

/* data.micro_batches: what the batch and the mesh make of them. */
static int32_t check_micro_batches(struct hd__job *job, const int64_t mesh[HD_AXIS_COUNT], int64_t *micro,
                                   int64_t *accumulation, struct hd_error *err)
{
    int64_t dp = mesh[HD_AXIS_DP_REPLICATE] * mesh[HD_AXIS_DP_SHARD], sum = 0;
    const char *key = "data.micro_batches";
    *accumulation = 0;
    for (uint32_t i = 0; i < job->micro_batches.count; i++) {
        sum += job->micro_batches.at[i];
        *accumulation = HD__MAX(*accumulation, job->micro_batches.at[i]);
    }
    if (job->micro_batches.count != dp)
        return hd__job_fail(job, key, err, "%s: %u number%s, and mesh.dp is %lld: say one for each of its ranks", key,
                            job->micro_batches.count, job->micro_batches.count > 1 ? "s" : "", (long long)dp);
    if (mesh[HD_AXIS_PP] > 1)
        return hd__job_fail(job, key, err,
                            "%s: mesh.pp is %lld: a pipeline's stages have all the same micro-batches; give slower "
                            "stages fewer layers by strategies.3d.split",
                            key, (long long)mesh[HD_AXIS_PP]);
    if (job->nodes_min < job->nodes_max)
        return hd__job_fail(job, key, err,
                            "%s: launch.nodes is %s, and which machines train is not known: say how many there are",
                            key, job->launch_nodes);
    int64_t unit = sum * mesh[HD_AXIS_EP];
    *micro = job->micro_batch_asked ? job->micro_batch_asked : HD__MAX(job->batch / unit, 1);
    if (unit * *micro == job->batch)
        return HD_OK;
    return hd__job_fail(
        job, "data.batch", err,
        "data.batch: %lld is not %lld, the %lld micro-batches of %s x micro_batch %lld x ep %lld: say "
        "%sdata.batch=%lld",
        (long long)job->batch, (long long)(unit * *micro), (long long)sum, key, (long long)*micro,
        (long long)mesh[HD_AXIS_EP],
        job->batch % unit ? ""
                          : hd__arena_format(&job->arena, "data.micro_batch=%lld, or ", (long long)(job->batch / unit)),
        (long long)(unit * *micro));
}

static int32_t batch_fail(struct hd__job *job, int64_t dp, int64_t ep, int64_t ranks, struct hd_error *err)
{
    int64_t micro = job->micro_batch_asked, unit = HD__MAX(micro, 1) * dp * ep, below = 0, above = 0;
    struct hd__text out = {0};
    suggest(&out, "data.batch=", job->batch / unit * unit);
    suggest(&out, "data.batch=", (job->batch / unit + 1) * unit);
    if (micro && job->batch % (dp * ep) == 0)
        nearest_divisors(job->batch / (dp * ep), micro, &below, &above);
    suggest(&out, "data.micro_batch=", below);
    suggest(&out, "data.micro_batch=", above);
    if (job->batch % (HD__MAX(micro, 1) * ep) == 0 && !job->mesh_asked[HD_AXIS_DP_SHARD]) {
        nearest_divisors(job->batch / (HD__MAX(micro, 1) * ep), dp, &below, &above);
        suggest(&out, "ranks ", below * (ranks / dp));
    }
    int32_t rc =
        micro ? hd__job_fail(job, "data.batch", err,
                             "data.batch: %lld is no multiple of micro_batch %lld x dp %lld x ep %lld = "
                             "%lld; nearest that work: %s; or data.pad_batch=always, with empty sequences",
                             (long long)job->batch, (long long)micro, (long long)dp, (long long)ep, (long long)unit,
                             out.at)
              : hd__job_fail(job, "data.batch", err,
                             "data.batch: %lld is no multiple of dp %lld x ep %lld = %lld; nearest that work: %s; or "
                             "data.pad_batch=always, with empty sequences",
                             (long long)job->batch, (long long)dp, (long long)ep, (long long)unit, out.at);
    hd__text_free(&out);
    return rc;
}

static void note_dp(struct hd__job *job)
{
    int64_t r = job->mesh[HD_AXIS_DP_REPLICATE], s = job->mesh[HD_AXIS_DP_SHARD];
    int parts = job->mesh_asked[HD_AXIS_DP_REPLICATE] != 1;
    int was_auto = !job->mesh_asked[HD_AXIS_DP_REPLICATE] || !job->mesh_asked[HD_AXIS_DP_SHARD];
    const struct hd__job_value *before = hd__job_value_get(job, "mesh.dp");
    const char *text = parts
                           ? hd__arena_format(&job->arena, "{replicate: %lld, shard: %lld}", (long long)r, (long long)s)
                           : hd__arena_format(&job->arena, "%lld", (long long)s);
    json_t *json =
        parts ? json_pack("{s:I, s:I}", "replicate", (json_int_t)r, "shard", (json_int_t)s) : json_integer(s);
    hd__job_value_set(job, NULL, "mesh.dp", text, json, before ? before->origin : "default", HD_OPTION_GLOBAL);
    if (was_auto)
        hd__job_value_note(job, "mesh.dp", "auto");
}

int64_t hd__job_empty_sequences(const struct hd__job *job)
{
    int64_t dp = job->mesh[HD_AXIS_DP_REPLICATE] * job->mesh[HD_AXIS_DP_SHARD];
    return job->micro_batches.count ? 0
                                    : job->accumulation * job->micro_batch * dp * job->mesh[HD_AXIS_EP] - job->batch;
}

double hd__job_lr(const struct hd__job *job, int64_t step)
{
    return job->lr_factor * hd__lr(&job->schedule, step, job->steps);
}

/* data.batch for the machines that train, and what that makes of the learning rate: in proportion (Goyal et al. 2017),
 * or as the square root, which keeps the noise of Adam's steps (Malladi et al. 2022). */
static int32_t scale_batch(struct hd__job *job, int64_t ranks, struct hd_error *err)
{
    int64_t all = job->ranks_each * job->nodes_max;
    char text[24];
    job->lr_factor = 1;
    job->batch_of_all = job->batch_of_all ? job->batch_of_all : job->batch;
    if (!job->scale_batch || job->nodes_min == job->nodes_max)
        return HD_OK;
    if (job->epochs > 0)
        return hd__job_fail(job, "launch.scale_batch", err,
                            "launch.scale_batch: job.epochs needs one batch size to count steps: set job.steps, or "
                            "leave launch.scale_batch out");
    if (job->batch_of_all % job->nodes_max || ranks % job->ranks_each)
        return hd__job_fail(job, "launch.scale_batch", err,
                            "launch.scale_batch: data.batch %lld cannot be cut into equal parts for %d machines "
                            "(launch.nodes): nearest that work: data.batch=%lld",
                            (long long)job->batch_of_all, job->nodes_max,
                            (long long)(ceil_div(job->batch_of_all, job->nodes_max) * job->nodes_max));
    job->batch = job->batch_of_all / job->nodes_max * (ranks / job->ranks_each);
    job->lr_factor = (double)ranks / (double)all;
    if (job->scale_batch == HD__SCALE_BATCH_SQRT)
        job->lr_factor = sqrt(job->lr_factor);
    if (ranks == all)
        return HD_OK;
    snprintf(text, sizeof text, "%lld", (long long)job->batch);
    hd__job_value_set(job, NULL, "data.batch", text, json_integer(job->batch), hd__job_where(job, "data.batch"),
                      HD_OPTION_GLOBAL);
    hd__job_value_note(job, "data.batch", "launch.scale_batch");
    return HD_OK;
}

static void note_micro_batch(struct hd__job *job)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)job->micro_batch);
    hd__job_value_set(job, NULL, "data.micro_batch", text, json_integer(job->micro_batch), "default", HD_OPTION_GLOBAL);
    hd__job_value_note(job, "data.micro_batch", "batch / (dp x ep)");
}

static int32_t check_tokens(struct hd__job *job, struct hd_error *err)
{
    const char *key = job->epochs > 0 ? "job.epochs" : "job.steps";
    int64_t tokens;
    if (!__builtin_mul_overflow(job->batch * job->seq_len, job->steps, &tokens))
        return HD_OK;
    return hd__job_fail(job, key, err,
                        "%s: %lld steps of data.batch %lld x data.seq_len %lld tokens are too many to count", key,
                        (long long)job->steps, (long long)job->batch, (long long)job->seq_len);
}

int32_t hd__job_count_steps(struct hd__job *job, uint64_t sequences, struct hd_error *err)
{
    const struct hd__job_value *epochs = hd__job_value_get(job, "job.epochs");
    double steps = ceil(job->epochs * (double)sequences / (double)job->batch * (1 - 1e-12)); /* 1.1 x 10 is above 11 */
    char text[24];
    if (job->epochs <= 0)
        return HD_OK;
    job->steps = steps < 1e15 ? (int64_t)HD__MAX(steps, 1) : INT64_MAX;
    int32_t rc = check_tokens(job, err);
    if (!rc)
        rc = hd__job_check_schedule(job, err);
    if (rc)
        return rc;
    snprintf(text, sizeof text, "%lld", (long long)job->steps);
    /* Ranks agree on the epochs and the files: one may know its steps later than another. */
    hd__job_value_set(job, NULL, "job.steps", text, json_integer(job->steps), epochs ? epochs->origin : "default", 0);
    hd__job_value_note(job, "job.steps", "epochs x sequences / batch");
    return HD_OK;
}

int32_t hd__job_resolve(struct hd__job *job, int64_t ranks, struct hd_error *err)
{
    int64_t mesh[HD_AXIS_COUNT];
    if (job->auto_mesh || job->auto_strategies)
        return hd__job_fail(
            job, job->auto_mesh ? "mesh" : "strategies", err,
            "%s: auto is resolved only by commands that plan: replace it with what `heddle plan JOB --search` prints",
            job->auto_mesh ? "mesh" : "strategies");
    int32_t rc = resolve_mesh(job, ranks, mesh, err);
    if (rc)
        return rc;
    int64_t dp = mesh[HD_AXIS_DP_REPLICATE] * mesh[HD_AXIS_DP_SHARD], ep = mesh[HD_AXIS_EP], cp = mesh[HD_AXIS_CP];
    if (job->seq_len % cp)
        return hd__job_fail(job, "data.seq_len", err,
                            "data.seq_len: %lld cannot be cut into mesh.cp = %lld equal parts", (long long)job->seq_len,
                            (long long)cp);
    ranks = mesh[HD_AXIS_PP] * dp * cp * ep * mesh[HD_AXIS_TP];
    if ((rc = scale_batch(job, ranks, err)))
        return rc;
    int64_t micro = asked_micro_batch(job, dp, ep, ranks);
    if (!job->micro_batches.count && !pads_batch(job) && job->batch % (HD__MAX(micro, 1) * dp * ep))
        return batch_fail(job, dp, ep, ranks, err);
    micro = micro ? micro : ceil_div(job->batch, dp * ep);
    int64_t accumulation = ceil_div(job->batch, micro * dp * ep);
    if (job->micro_batches.count && (rc = check_micro_batches(job, mesh, &micro, &accumulation, err)))
        return rc;
    if (accumulation > MOST_MICRO_BATCHES)
        return hd__job_fail(job, "data.batch", err,
                            "data.batch: a step of %lld micro-batches (data.micro_batch %lld), and at most %d are "
                            "accumulated: take a larger micro_batch",
                            (long long)accumulation, (long long)micro, MOST_MICRO_BATCHES);
    if ((rc = check_tokens(job, err)))
        return rc;
    if (job->checkpoint_keep_best && !job->eval_every)
        return hd__job_fail(job, "checkpoint.keep", err,
                            "checkpoint.keep: best needs the val_loss of each checkpoint: set eval.every");
    if (job->launch_time_limit > 0 && job->launch_time_limit <= job->launch_margin)
        return hd__job_fail(job, "launch.time_limit", err,
                            "launch.time_limit: %gs is not above launch.margin, %gs, so no step would be made: raise "
                            "it, or lower the margin",
                            job->launch_time_limit, job->launch_margin);
    memcpy(job->mesh, mesh, sizeof mesh);
    job->ranks = ranks;
    job->micro_batch = micro;
    job->accumulation = accumulation;
    note_dp(job);
    if (!job->micro_batch_asked)
        note_micro_batch(job);
    return HD_OK;
}
