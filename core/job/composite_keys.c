/* Keys that are more than one option: mesh.dp, data.micro_batches, data.train, data.val and data.test, comm.axes and
 * comm.hooks, precision.loss_scale, recompute, metrics.tensorboard, metrics.sinks. Each reader fills the job. */
#include "core/base/dtype.h"
#include "core/job/internal.h"

#include <float.h>
#include <math.h>
#include <unistd.h>

/* ---- mesh.dp */

static int32_t axis_size(struct hd__job *job, const char *path, const struct hd__tree_node *node, int64_t *out,
                         struct hd_error *err)
{
    static const struct hd_option number = {.type = HD_OPT_INT, .min = 1, .max = 1048576};
    if (node->kind == HD__SCALAR && !strcasecmp(node->text, "auto")) {
        *out = 0;
        return HD_OK;
    }
    if (node->kind == HD__SCALAR && !strcmp(node->text, "-1")) /* of torchtitan, and of DeviceMesh */
        return hd__job_node_fail(node, err, "%s: -1: what the other axes leave is auto here: say auto", path);
    return hd__job_node_parse(node, path, &number, out, &job->arena, err);
}

static int32_t read_dp_parts(struct hd__job *job, struct hd__tree_node *node, struct hd_error *err)
{
    int64_t part[2] = {0, 0};
    for (uint32_t i = 0; i < node->count; i++) {
        const char *key = node->key[i]->text;
        int shard = !strcmp(key, "shard");
        if (!shard && strcmp(key, "replicate"))
            return hd__job_node_fail(node->key[i], err, "mesh.dp: unknown key %.60s; the keys are replicate and shard",
                                     key);
        int32_t rc = axis_size(job, shard ? "mesh.dp.shard" : "mesh.dp.replicate", node->value[i], &part[shard], err);
        if (rc)
            return rc;
    }
    if (!part[0] && !part[1])
        return hd__job_node_fail(node, err, "mesh.dp: replicate and shard cannot both be auto");
    job->mesh_asked[HD_AXIS_DP_REPLICATE] = part[0];
    job->mesh_asked[HD_AXIS_DP_SHARD] = part[1];
    return HD_OK;
}

static int32_t read_dp(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    if (node->kind == HD__LIST)
        return hd__job_node_fail(node, err,
                                 "mesh.dp is a list where a number, auto or {replicate: R, shard: S} is wanted");
    if (node->kind == HD__MAP)
        return read_dp_parts(job, node, err);
    job->mesh_asked[HD_AXIS_DP_REPLICATE] = 1;
    return axis_size(job, path, node, &job->mesh_asked[HD_AXIS_DP_SHARD], err);
}

/* ---- data.micro_batches */

static int32_t read_micro_batches(struct hd__job *job, const char *path, struct hd__tree_node *node,
                                  struct hd_error *err)
{
    static const struct hd_option number = {.type = HD_OPT_INT, .min = 1, .max = 1 << 20};
    int automatic = node->kind == HD__SCALAR && !strcmp(node->text, "auto");
    if (!automatic && (node->kind != HD__LIST || !node->count))
        return hd__job_node_fail(node, err, "%s is %s where auto or a list is wanted: [9, 3]", path,
                                 node->kind == HD__LIST ? "empty" : hd__tree_kind_name(node));
    for (uint32_t i = 0; i < node->count && !automatic; i++) {
        int64_t n = 0;
        int32_t rc = hd__job_node_parse(node->value[i], path, &number, &n, &job->arena, err);
        if (rc)
            return rc;
        hd__push(&job->micro_batches, (int32_t)n);
    }
    return HD_OK;
}

/* ---- data.train, data.val, data.test */

static int32_t read_source(struct hd__job *job, const char *path, const struct hd__tree_node *node,
                           struct hd__source *out, uint32_t *weighted, struct hd_error *err)
{
    static const struct hd_option number = {.type = HD_OPT_FLOAT, .min = 1e-9, .max = 1e9};
    out->weight = 1;
    if (hd__tree_is_null(node) || node->kind == HD__LIST)
        return hd__job_node_fail(node, err, "%s: a file name or {path: FILE, weight: W} is wanted", path);
    if (node->kind == HD__SCALAR) {
        out->path = node->text;
        return *out->path != '0' || out->path[strspn(out->path, "0123456789.")] || !access(out->path, F_OK)
                   ? HD_OK
                   : hd__job_node_fail(node, err, "%s: %s is no file: a share goes into {path: FILE, weight: %s}", path,
                                       out->path, out->path);
    }
    for (uint32_t i = 0; i < node->count; i++) {
        const char *key = node->key[i]->text;
        const struct hd__tree_node *value = node->value[i];
        int32_t rc = HD_OK;
        if (!strcmp(key, "weight") && value->kind == HD__SCALAR && !strcmp(value->text, "0"))
            rc = hd__job_node_fail(value, err, "%s: weight is 0, so it would never be read: leave the file out", path);
        else if (!strcmp(key, "weight"))
            rc = hd__job_node_parse(value, hd__arena_format(&job->arena, "%s: weight", path), &number, &out->weight,
                                    &job->arena, err);
        else if (strcmp(key, "path"))
            rc = hd__job_node_fail(node->key[i], err, "%s: unknown key %.60s; the keys are path and weight", path, key);
        else if (value->kind != HD__SCALAR || hd__tree_is_null(value))
            rc = hd__job_node_fail(value, err, "%s: path is no file name", path);
        else
            out->path = value->text;
        if (rc)
            return rc;
        *weighted += !strcmp(key, "weight");
    }
    return out->path ? HD_OK : hd__job_node_fail(node, err, "%s: path is missing", path);
}

static int32_t read_files(struct hd__job *job, const char *path, const struct hd__tree_node *node,
                          struct hd__sources *out, struct hd_error *err)
{
    uint32_t n = node->kind == HD__LIST ? node->count : 1;
    struct hd__source *at = hd__arena_alloc(&job->arena, (n + 1) * sizeof *at);
    uint32_t weighted = 0;
    int32_t rc = n ? HD_OK : hd__job_node_fail(node, err, "%s is an empty list", path);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = read_source(job, path, node->kind == HD__LIST ? node->value[i] : node, &at[i], &weighted, err);
    if (rc)
        return rc;
    if (weighted && weighted < n)
        return hd__job_node_fail(node, err, "%s: either every file has a weight or none", path);
    *out = (struct hd__sources){.at = at, .count = n, .weighted = weighted > 0};
    return HD_OK;
}

static int32_t read_sources(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    return read_files(job, path, node, !strcmp(path, "data.test") ? &job->test : &job->train, err);
}

/* {path: FILE, weight: W} is a file, any other mapping has sets by name. */
static int has_sets(const struct hd__tree_node *node)
{
    for (uint32_t i = 0; i < node->count && node->kind == HD__MAP; i++)
        if (!strcmp(node->key[i]->text, "path") || !strcmp(node->key[i]->text, "weight"))
            return 0;
    return node->kind == HD__MAP;
}

/* A name becomes part of a metric's, val_loss_NAME, and a word of `heddle eval --split`. */
static int32_t check_set_name(const struct hd__tree_node *key, struct hd_error *err)
{
    static const char *const taken[] = {"train", "val", "test"};
    size_t n = strspn(key->text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    if (!n || n > 40 || key->text[n])
        return hd__job_node_fail(
            key, err, "data.val: %.60s is no name of a set: at most 40 letters, digits, _ and - are", key->text);
    for (size_t i = 0; i < HD__COUNT(taken); i++)
        if (!strcmp(taken[i], key->text))
            return hd__job_node_fail(key, err, "data.val: %s is the name of a part of its own: name the set otherwise",
                                     key->text);
    return HD_OK;
}

/* All sources lie one behind the other in job->val, and those of a set among them. */
static void join_sets(struct hd__job *job, struct hd__val_set *sets, uint64_t n)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; i++)
        count += sets[i].sources.count;
    struct hd__source *all = hd__arena_alloc(&job->arena, (count + 1) * sizeof *all);
    job->val = (struct hd__sources){.at = all, .count = count};
    for (uint64_t i = 0; i < n; i++) {
        memcpy(all, sets[i].sources.at, sets[i].sources.count * sizeof *all);
        sets[i].sources.at = all;
        all += sets[i].sources.count;
    }
    job->val_sets = sets;
    job->n_val_sets = n;
}

static int32_t read_sets(struct hd__job *job, const struct hd__tree_node *node, struct hd_error *err)
{
    struct hd__val_set *sets = hd__arena_alloc(&job->arena, ((size_t)node->count + 1) * sizeof *sets);
    if (!node->count)
        return hd__job_node_fail(node, err, "data.val is an empty mapping");
    if (node->count > HD__VAL_SETS)
        return hd__job_node_fail(node, err, "data.val: %u sets; at most %d are evaluated", node->count, HD__VAL_SETS);
    for (uint32_t i = 0; i < node->count; i++) {
        const char *name = node->key[i]->text;
        int32_t rc = check_set_name(node->key[i], err);
        if (!rc)
            rc = read_files(job, hd__arena_format(&job->arena, "data.val.%s", name), node->value[i], &sets[i].sources,
                            err);
        if (rc)
            return rc;
        sets[i].name = name;
    }
    join_sets(job, sets, node->count);
    return HD_OK;
}

static int32_t read_val(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    return has_sets(node) ? read_sets(job, node, err) : read_files(job, path, node, &job->val, err);
}

/* ---- comm.axes, comm.hooks */

/* The axes that a word of comm.axes means; 0 if it is none. */
static uint32_t axis_bits(const char *word)
{
    if (!strcmp(word, "dp"))
        return HD__DP_AXES;
    if (!strcmp(word, "tp"))
        return HD_AXIS_BIT(HD_AXIS_TP) | HD_AXIS_BIT(HD_AXIS_TQ);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (!strcmp(word, hd__axis_name(a)) && a != HD_AXIS_TQ)
            return HD_AXIS_BIT(a);
    return 0;
}

/* A transport that was only named and is already there is shared. */
static struct hd__job_section *known_transport(struct hd__job *job, const char *use)
{
    if (!strcmp(job->comm->use, use))
        return job->comm;
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        if (job->comm_axis[a] != job->comm && !job->comm_axis[a]->node && !strcmp(job->comm_axis[a]->use, use))
            return job->comm_axis[a];
    return NULL;
}

static int32_t named_or_mapping(struct hd__job *job, const char *path, uint32_t kind, struct hd__tree_node *node,
                                struct hd__job_section **out, struct hd_error *err)
{
    if (node->kind == HD__LIST || hd__tree_is_null(node))
        return hd__job_node_fail(node, err, "%s: a name or {use: NAME, ...} is wanted", path);
    const char *use = node->kind == HD__SCALAR ? node->text : NULL;
    int32_t rc =
        hd__job_section_make(job, path, kind, use, node->kind == HD__MAP ? node : NULL, node->origin, out, err);
    if (!rc && use)
        (*out)->origin = node->origin;
    return rc;
}

static int32_t read_axes(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    if (node->kind != HD__MAP)
        return hd__job_node_fail(node, err, "%s is %s where {dp: mpi} is wanted", path, hd__tree_kind_name(node));
    /* dp first, so that dp_replicate and dp_shard can refine it, whatever the order in the file. */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < node->count; i++) {
            const char *word = node->key[i]->text;
            uint32_t bits = axis_bits(word);
            struct hd__job_section *section = NULL;
            if (!bits)
                return hd__job_node_fail(
                    node->key[i], err,
                    "%s: unknown axis %.60s; the axes are pp, dp, dp_replicate, dp_shard, cp, ep, tp", path, word);
            if ((strcmp(word, "dp") == 0) == pass)
                continue;
            if (node->value[i]->kind == HD__SCALAR)
                section = known_transport(job, node->value[i]->text);
            const char *name = hd__arena_format(&job->arena, "%s.%s", path, word);
            int32_t rc = section ? HD_OK : named_or_mapping(job, name, HD_KIND_COMM, node->value[i], &section, err);
            if (rc)
                return rc;
            for (int a = 0; a < HD_AXIS_COUNT; a++)
                if (bits & HD_AXIS_BIT(a))
                    job->comm_axis[a] = section;
        }
    return HD_OK;
}

static int32_t read_hooks(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    if (node->kind != HD__LIST)
        return hd__job_node_fail(node, err, "%s is %s where a list is wanted: [check, trace]", path,
                                 hd__tree_kind_name(node));
    job->hooks = hd__arena_alloc(&job->arena, (node->count + 1) * sizeof(struct hd__job_section *));
    job->n_hooks = node->count;
    for (uint32_t i = 0; i < node->count; i++) {
        const char *name = hd__arena_format(&job->arena, "%s.%u", path, i);
        int32_t rc = named_or_mapping(job, name, HD_KIND_HOOK, node->value[i], &job->hooks[i], err);
        if (rc)
            return rc;
    }
    return HD_OK;
}

static int32_t read_inside(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    if (node->kind != HD__SCALAR)
        return hd__job_node_fail(node, err, "%s is %s where a transport's name is wanted: shm", path,
                                 hd__tree_kind_name(node));
    return named_or_mapping(job, path, HD_KIND_COMM, node, &job->comm_inside, err);
}

/* Each level lies inside the one before. */
static int32_t read_levels(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option words = {.type = HD_OPT_ENUM, .choices = "machine|package|numa"};
    uint32_t n = node->kind == HD__LIST ? node->count : 1;
    job->n_comm_levels = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct hd__tree_node *item = node->kind == HD__LIST ? node->value[i] : node;
        int32_t level, rc = hd__job_node_parse(item, path, &words, &level, &job->arena, err);
        if (rc)
            return rc;
        if (i && level <= job->comm_levels[i - 1])
            return hd__job_node_fail(item, err, "%s: machine, package, numa are wanted in this order, once each", path);
        job->comm_levels[i] = level;
        job->n_comm_levels++;
    }
    if (!n)
        return hd__job_node_fail(node, err, "%s is empty; leave the key out for the default", path);
    return HD_OK;
}

/* ---- precision.loss_scale, recompute */

/* Gradients below fp32's range vanish: they are to be scaled. Dtypes of `precision` still are indices into choices. */
static int is_range_short(uint32_t choice)
{
    return hd__dtype(hd__dtype_float_at(choice))->max_exp < FLT_MAX_EXP;
}

static int32_t read_loss_scale(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option number = {.type = HD_OPT_FLOAT, .min = 1, .max = 0x1p40};
    const char *word = node->kind == HD__SCALAR ? node->text : "";
    job->precision.loss_scale = 1;
    job->precision.loss_scaling = HD__LOSS_SCALE_NONE;
    int narrow = is_range_short(job->precision.compute) || is_range_short(job->precision.grad) ||
                 is_range_short(job->precision.reduce);
    if (!strcmp(word, "dynamic") || (!strcmp(word, "auto") && narrow)) {
        job->precision.loss_scaling = HD__LOSS_SCALE_DYNAMIC;
        job->precision.loss_scale = 65536;
    } else if (strcmp(word, "none") && strcmp(word, "auto")) {
        struct hd_error why = HD_ERROR_INIT;
        if (node->kind != HD__SCALAR || hd__option_parse(&number, word, &job->precision.loss_scale, &job->arena, &why))
            return hd__job_node_fail(node, err, "%s: auto, none, dynamic or a number from 1 to 2^40 (1.1e12) is wanted",
                                     path);
        job->precision.loss_scaling = HD__LOSS_SCALE_STATIC;
    }
    return HD_OK;
}

static int32_t read_every(struct hd__job *job, const struct hd__tree_node *node, struct hd_error *err)
{
    const struct hd__job_part parts[] = {{"every", {.type = HD_OPT_INT, .min = 1, .max = 1e6}, &job->recompute_every}};
    if (!node->count)
        return hd__job_node_fail(node, err, "recompute: {every: N} is wanted");
    job->recompute = HD__RECOMPUTE_EVERY;
    return hd__job_read_parts(job, "recompute", node, parts, 1, err);
}

static int32_t read_recompute(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option words = {.type = HD_OPT_ENUM, .choices = "none|selective|full"};
    struct hd_error why = HD_ERROR_INIT;
    if (node->kind == HD__LIST)
        return hd__job_node_fail(node, err, "%s is a list where none, selective, full or {every: N} is wanted", path);
    if (node->kind == HD__MAP)
        return read_every(job, node, err);
    if (hd__option_parse(&words, node->text, &job->recompute, &job->arena, &why))
        return hd__job_node_fail(node, err, "%s: %s; or {every: N}", path, why.message);
    return HD_OK;
}

/* ---- launch.notice, checkpoint.every, checkpoint.keep: maps of plain options */

int32_t hd__job_read_parts(struct hd__job *job, const char *path, const struct hd__tree_node *node,
                           const struct hd__job_part *parts, size_t n, struct hd_error *err)
{
    for (uint32_t i = 0; i < node->count; i++) {
        struct hd__text keys = {0};
        size_t p = 0;
        for (size_t k = 0; k < n; k++)
            hd__text_add(&keys, "%s%s", k ? ", " : "", parts[k].key);
        while (p < n && strcmp(parts[p].key, node->key[i]->text) != 0)
            p++;
        int32_t rc =
            p < n ? hd__job_node_parse(node->value[i], hd__arena_format(&job->arena, "%s.%s", path, parts[p].key),
                                       &parts[p].option, parts[p].out, &job->arena, err)
                  : hd__job_node_fail(node->key[i], err, "%s: unknown key %.60s; the key%s %s", path,
                                      node->key[i]->text, n > 1 ? "s are" : " is", keys.at);
        hd__text_free(&keys);
        if (rc)
            return rc;
    }
    return HD_OK;
}

static int32_t read_notice(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    const struct hd__job_part parts[] = {
        {"file", {.type = HD_OPT_STRING}, &job->notice_file},
        {"command", {.type = HD_OPT_STRING}, &job->notice_command},
        {"every", {.type = HD_OPT_DURATION, .min = 0.01, .max = 1e6}, &job->notice_every}};
    job->notice_every = 5;
    if (node->kind != HD__MAP)
        return hd__job_node_fail(node, err, "%s is %s where {file: PATH} or {command: WORDS} is wanted", path,
                                 hd__tree_kind_name(node));
    for (uint32_t i = 0; i < node->count; i++)
        if (!strcmp(node->key[i]->text, "url"))
            return hd__job_node_fail(node->key[i], err,
                                     "%s: url is not supported: ask it by a command, as {command: curl -sf URL}", path);
    if (hd__job_read_parts(job, path, node, parts, HD__COUNT(parts), err))
        return HD_E_INVALID;
    if ((!job->notice_file || !*job->notice_file) == (!job->notice_command || !*job->notice_command))
        return hd__job_node_fail(node, err, "%s: one of file and command is wanted", path);
    for (uint32_t i = 0; i < node->count; i++)
        if (!strcmp(node->key[i]->text, "file") && hd__job_path_check(node->value[i], path, err))
            return HD_E_INVALID;
    return HD_OK;
}

static int32_t read_save_every(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option steps = {.type = HD_OPT_INT, .min = 0, .max = 0x1p62},
                                  duration = {.type = HD_OPT_DURATION, .min = 1e-6, .max = 1e8};
    uint32_t n = node->kind == HD__LIST ? node->count : 1;
    job->checkpoint_every = 0;
    job->checkpoint_seconds = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct hd__tree_node *item = node->kind == HD__LIST ? node->value[i] : node;
        const char *text = item->kind == HD__SCALAR && !hd__tree_is_null(item) ? item->text : "";
        struct hd_error why = HD_ERROR_INIT;
        int time = *text && strchr("smhd", text[strlen(text) - 1]) != NULL;
        int again = time ? job->checkpoint_seconds > 0 : job->checkpoint_every > 0;
        int32_t rc = time ? hd__option_parse(&duration, text, &job->checkpoint_seconds, &job->arena, &why)
                          : hd__option_parse(&steps, text, &job->checkpoint_every, &job->arena, &why);
        if (rc || again || n > 2)
            return hd__job_node_fail(item, err,
                                     "%s: %s%sa number of steps (500), a duration (30m) or a list of both is wanted",
                                     path, *text ? why.message : "", rc && *text ? "; " : "");
    }
    if (!n)
        return hd__job_node_fail(node, err, "%s is empty; leave the key out for the default", path);
    return HD_OK;
}

static int32_t read_keep(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option number = {.type = HD_OPT_INT, .min = 0, .max = INT32_MAX};
    const struct hd__job_part parts[] = {
        {"last", {.type = HD_OPT_INT, .min = 1, .max = INT32_MAX}, &job->checkpoint_keep},
        {"every", {.type = HD_OPT_INT, .min = 1, .max = 0x1p62}, &job->checkpoint_keep_every},
        {"best", {.type = HD_OPT_INT, .min = 1, .max = INT32_MAX}, &job->checkpoint_keep_best}};
    job->checkpoint_keep = 3;
    job->checkpoint_keep_every = job->checkpoint_keep_best = 0;
    return node->kind == HD__MAP ? hd__job_read_parts(job, path, node, parts, HD__COUNT(parts), err)
                                 : hd__job_node_parse(node, path, &number, &job->checkpoint_keep, &job->arena, err);
}

/* ---- checkpoint.peers, watch.replicas, watch.rerun: {every: N} */

/* A number, or {every: N}; of `watch` auto, too. */
static int32_t read_interval(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    int peers = !strcmp(path, "checkpoint.peers");
    int64_t *out = peers                          ? &job->checkpoint_peers
                   : !strcmp(path, "watch.rerun") ? &job->watch.rerun_every
                                                  : &job->watch.replicas_every;
    const struct hd__job_part parts[] = {{"every", {.type = HD_OPT_INT, .min = 0, .max = 0x1p62}, out}};
    const struct hd__tree_node *given = hd__tree_get(node, "every"), *every = given ? given : node;
    if (!peers && every->kind == HD__SCALAR && !strcmp(every->text, "auto") && node->count <= 1) {
        *out = -1;
        return HD_OK;
    }
    if (node->kind == HD__MAP ? !node->count : node->kind == HD__LIST || node->text[strspn(node->text, "-0123456789")])
        return hd__job_node_fail(node, err, "%s: %sa number of steps, or {every: N} is wanted", path,
                                 peers ? "" : "auto, ");
    return node->kind == HD__MAP ? hd__job_read_parts(job, path, node, parts, 1, err)
                                 : hd__job_node_parse(node, path, &parts->option, out, &job->arena, err);
}

/* ---- metrics.tensorboard, metrics.sinks */

/* Room for `more` behind those that are there. */
static struct hd__job_section **grow_sinks(struct hd__job *job, uint32_t more)
{
    struct hd__job_section **all = hd__arena_alloc(&job->arena, (job->n_sinks + more + 1) * sizeof *all);
    for (uint64_t i = 0; i < job->n_sinks; i++)
        all[i] = job->sinks[i];
    job->sinks = all;
    return all + job->n_sinks;
}

static int32_t read_tensorboard(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    struct hd__tree_node *map = hd__tree_map(&job->arena, node->origin);
    if (node->kind != HD__SCALAR)
        return hd__job_node_fail(node, err, "%s is %s where a folder is wanted", path, hd__tree_kind_name(node));
    if (hd__job_path_check(node, path, err))
        return HD_E_INVALID;
    hd__tree_set(map, "dir", node, &job->arena);
    int32_t rc =
        hd__job_section_make(job, path, HD_KIND_METRICS, "tensorboard", map, node->origin, grow_sinks(job, 1), err);
    job->n_sinks += !rc;
    return rc;
}

/* The core's own file, which every run writes. */
static int is_jsonl(const struct hd__tree_node *node)
{
    const struct hd__tree_node *use = node->kind == HD__MAP ? hd__tree_get(node, "use") : node;
    return use && use->kind == HD__SCALAR && !strcmp(use->text, "jsonl");
}

static int32_t read_sinks(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    if (node->kind != HD__LIST)
        return hd__job_node_fail(node, err, "%s is %s where a list is wanted: [{use: NAME, ...}]", path,
                                 hd__tree_kind_name(node));
    struct hd__job_section **sinks = grow_sinks(job, node->count);
    const struct hd__tree_node *jsonl = NULL;
    for (uint32_t i = 0; i < node->count; i++) {
        const char *name = hd__arena_format(&job->arena, "%s.%u", path, i);
        if (is_jsonl(node->value[i])) {
            if (node->value[i]->count > 1)
                return hd__job_node_fail(node->value[i], err,
                                         "%s: jsonl has no keys here: metrics.jsonl names its file", name);
            if (jsonl)
                return hd__job_node_fail(node->value[i], err, "%s: jsonl was already given at %s", path, jsonl->origin);
            jsonl = node->value[i];
            continue;
        }
        int32_t rc = named_or_mapping(job, name, HD_KIND_METRICS, node->value[i], sinks, err);
        if (rc)
            return rc;
        sinks++;
        job->n_sinks++;
    }
    return HD_OK;
}

const struct hd__job_composite *hd__job_composite_key(const char *path)
{
    static const struct hd__job_composite table[] = {
        {"mesh.dp", read_dp, HD_OPTION_GLOBAL},
        {"data.micro_batches", read_micro_batches, HD_OPTION_GLOBAL},
        {"data.train", read_sources, HD_OPTION_GLOBAL | HD_OPTION_PATH},
        {"data.val", read_val, HD_OPTION_GLOBAL | HD_OPTION_PATH},
        {"data.test", read_sources, HD_OPTION_GLOBAL | HD_OPTION_PATH},
        {"comm.axes", read_axes, HD_OPTION_GLOBAL},
        {"comm.hooks", read_hooks, HD_OPTION_GLOBAL},
        {"comm.inside", read_inside, HD_OPTION_GLOBAL},
        {"comm.levels", read_levels, HD_OPTION_GLOBAL},
        {"precision.loss_scale", read_loss_scale, HD_OPTION_GLOBAL},
        {"recompute", read_recompute, HD_OPTION_GLOBAL},
        {"metrics.tensorboard", read_tensorboard},
        {"metrics.sinks", read_sinks},
        {"metrics.trace", hd__job_read_trace, HD_OPTION_GLOBAL},
        {"watch.replicas", read_interval, HD_OPTION_GLOBAL},
        {"watch.rerun", read_interval, HD_OPTION_GLOBAL},
        {"launch.notice", read_notice},
        {"checkpoint.every", read_save_every, HD_OPTION_GLOBAL},
        {"checkpoint.keep", read_keep, HD_OPTION_GLOBAL},
        {"checkpoint.peers", read_interval, HD_OPTION_GLOBAL},
    };
    for (size_t i = 0; i < HD__COUNT(table); i++)
        if (!strcmp(table[i].path, path))
            return &table[i];
    return NULL;
}

int32_t hd__job_composite_read(const struct hd__job_composite *key, struct hd__job *job, struct hd__tree_node *node,
                               struct hd_error *err)
{
    int32_t rc = key->read(job, key->path, node, err);
    if (!rc)
        hd__job_value_set_tree(job, key->path, node, key->flags);
    return rc;
}
