/* The tree's sections -> the job: the core's own through their tables, the plugins' kept as they are. */
#include "core/base/dtype.h"
#include "core/base/file.h"
#include "core/job/internal.h"

#include <ctype.h>

/* ---- sections that name a component */

static const char *default_use(const char *path)
{
    for (size_t i = 0; i < hd__job_core_section_count; i++)
        if (!strcmp(hd__job_core_sections[i].name, path))
            return hd__job_core_sections[i].use;
    return NULL;
}

/* optim-adamw, as `heddle plugins` prints it, is adamw. */
static const char *without_kind(uint32_t kind, const char *use)
{
    size_t n = strlen(hd__kind_name(kind));
    return !strncmp(use, hd__kind_name(kind), n) && use[n] == '-' ? use + n + 1 : use;
}

static int32_t read_use(struct hd__job_section *s, struct hd__arena *arena, struct hd_error *err)
{
    struct hd__tree_node *use = hd__tree_get(s->node, "use");
    if (!use) {
        const struct hd__tree_node *dir = s->kind == HD_KIND_CKPT ? hd__tree_get(s->node, "dir") : NULL;
        char name[HD__STORE_NAME];
        const char *store = dir && dir->kind == HD__SCALAR ? hd__store_of(dir->text, name) : NULL;
        s->use = store ? hd__arena_strdup(arena, store) : default_use(s->path);
        s->origin = "default";
        /* {zero: {stage: 3}}, as others write it */
        const char *named =
            s->node && s->node->count == 1 && s->node->value[0]->kind == HD__MAP ? s->node->key[0]->text : NULL;
        return s->use ? HD_OK
                      : hd_fail(err, HD_E_INVALID, "%s: %s needs use, the name of a plugin of kind %s%s%.60s%s",
                                s->location, s->path, hd__kind_name(s->kind), named ? ": write {use: " : "",
                                named ? named : "", named ? ", ...}" : "");
    }
    if (use->kind != HD__SCALAR || hd__tree_is_null(use))
        return hd__job_node_fail(use, err, "%s.use: the name of a plugin of kind %s is wanted", s->path,
                                 hd__kind_name(s->kind));
    s->use = use->text;
    s->origin = use->origin;
    return HD_OK;
}

int32_t hd__job_section_make(struct hd__job *job, const char *path, uint32_t kind, const char *use,
                             struct hd__tree_node *node, const char *place, struct hd__job_section **out,
                             struct hd_error *err)
{
    struct hd__job_section *s = hd__arena_alloc(&job->arena, sizeof *s);
    *s = (struct hd__job_section){
        .path = path, .kind = kind, .use = use, .node = node, .location = place, .origin = place};
    int32_t rc = use ? HD_OK : read_use(s, &job->arena, err);
    if (rc)
        return rc;
    s->use = without_kind(kind, s->use);
    hd__push(&job->sections, s);
    if (!*s->use || s->use[strspn(s->use, "abcdefghijklmnopqrstuvwxyz0123456789_-")] || strlen(s->use) > 60)
        return hd_fail(err, HD_E_INVALID, "%s: %s: '%.60s' is no plugin's name (lower-case letters, digits, _ and -)",
                       s->origin, path, s->use);
    if (!use) /* one that is only named is part of its parent's value */
        hd__job_value_set(job, s, hd__arena_format(&job->arena, "%s.use", path), s->use, json_string(s->use), s->origin,
                          HD_OPTION_GLOBAL);
    if (!use && kind == HD_KIND_COMM && default_use(path) && strcmp(s->use, default_use(path)))
        ((struct hd__job_value *)hd__job_value_get(job, "comm.use"))->needs = "ranks!=1";
    *out = s;
    return HD_OK;
}

static const char *strategy_path(struct hd__job *job, const struct hd__tree_node *item, uint32_t i)
{
    const struct hd__tree_node *use = hd__tree_get(item, "use");
    return use && use->kind == HD__SCALAR
               ? hd__arena_format(&job->arena, "strategies.%.60s", without_kind(HD_KIND_STRATEGY, use->text))
               : hd__arena_format(&job->arena, "strategies.%u", i);
}

static int32_t read_strategy(struct hd__job *job, struct hd__tree_node *item, uint32_t i, struct hd_error *err)
{
    struct hd__job_section *s;
    if (item->kind != HD__MAP)
        return hd__job_node_fail(item, err, "a strategy is %s where {use: NAME, ...} is wanted",
                                 hd__tree_kind_name(item));
    int32_t rc =
        hd__job_section_make(job, strategy_path(job, item, i), HD_KIND_STRATEGY, NULL, item, item->origin, &s, err);
    if (rc)
        return rc;
    for (uint64_t k = 0; k < job->n_strategies; k++)
        if (!strcmp(job->strategies[k]->use, s->use))
            return hd_fail(err, HD_E_INVALID, "%s: strategies: %s is already listed, at %s: merge the two", s->origin,
                           s->use, job->strategies[k]->origin);
    job->strategies[job->n_strategies++] = s;
    return HD_OK;
}

static int32_t read_strategies(struct hd__job *job, struct hd__tree_node *list, struct hd_error *err)
{
    if (list->kind == HD__MAP && list->count && !strcmp(list->origin, "command line"))
        return hd__job_node_fail(list, err,
                                 "strategies.%.60s is set, and the job has no list of strategies to set it in (auto "
                                 "leaves them to heddle): write strategies=[{use: zero, ...}]",
                                 list->key[0]->text);
    if (list->kind != HD__LIST)
        return hd__job_node_fail(list, err, "strategies is %s where a list is wanted: [{use: zero, stage: 1}]",
                                 hd__tree_kind_name(list));
    if (!list->count)
        return hd__job_node_fail(list, err, "strategies is empty; leave it out for [{use: zero, stage: 0}]");
    job->strategies = hd__arena_alloc(&job->arena, list->count * sizeof(struct hd__job_section *));
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < list->count; i++) {
        struct hd_error why = HD_ERROR_INIT;
        if (read_strategy(job, list->value[i], i, &why))
            rc = hd__job_mistake(job, rc, &why, err);
    }
    return rc;
}

int32_t hd__job_strategy_add(struct hd__job *job, const char *use, const char *because, const char *place,
                             struct hd_error *err)
{
    struct hd__job_section **all = hd__arena_alloc(&job->arena, (job->n_strategies + 1) * sizeof *all);
    struct hd__tree_node *list = hd__tree_get(job->root, "strategies"), *item = hd__tree_map(&job->arena, place);
    const char *path = hd__arena_format(&job->arena, "strategies.%s", use);
    int32_t rc;
    hd__tree_set(item, "use", hd__tree_scalar(&job->arena, use, place), &job->arena);
    if ((rc = hd__job_section_make(job, path, HD_KIND_STRATEGY, NULL, item, place, &all[0], err)))
        return rc;
    hd__tree_push(list, item, &job->arena);
    all[0]->because = because;
    hd__job_value_note(job, hd__arena_format(&job->arena, "%s.use", path), because);
    memcpy(all + 1, job->strategies, job->n_strategies * sizeof *all);
    job->strategies = all;
    job->n_strategies++;
    return hd__job_place(job, use, err);
}

void hd__job_section_rename(struct hd__job *job, struct hd__job_section *section, const char *use, const char *preset)
{
    const char *path = hd__arena_format(&job->arena, "%s.use", section->path);
    section->alias = section->use;
    section->preset = preset;
    section->use = use;
    hd__job_value_set(job, section, path, use, json_string(use), section->origin, HD_OPTION_GLOBAL);
    hd__job_value_note(job, path, section->alias);
}

struct hd__job_section **hd__job_section_slot(struct hd__job *job, uint32_t kind)
{
    struct hd__job_section **const all[] = {
        [HD_KIND_DEVICE] = &job->device,       [HD_KIND_COMM] = &job->comm,       [HD_KIND_STRATEGY] = NULL,
        [HD_KIND_OPTIMIZER] = &job->optimizer, [HD_KIND_CKPT] = &job->checkpoint, [HD_KIND_MODEL] = &job->model,
        [HD_KIND_DATA] = &job->data,
    };
    return kind < HD__COUNT(all) ? all[kind] : NULL;
}

/* ---- one section of the file */

static const char *place_of(const struct hd__job *job, const char *name)
{
    for (uint32_t i = 0; i < job->root->count; i++)
        if (!strcmp(job->root->key[i]->text, name)) {
            const struct hd__tree_node *key = job->root->key[i], *value = job->root->value[i];
            return key->line && value->line ? key->origin : value->origin;
        }
    return job->root->origin;
}

static int32_t read_component(struct hd__job *job, const struct hd__job_core_section *s, struct hd__tree_node *node,
                              struct hd_error *err)
{
    if (s->kind == HD_KIND_STRATEGY)
        return read_strategies(job, node, err);
    if (!node && !s->use)
        return hd_fail(err, HD_E_INVALID, "%s: section %s is missing; it needs use, the name of a plugin of kind %s",
                       job->root->origin, s->name, hd__kind_name(s->kind));
    int32_t rc = hd__job_section_make(job, s->name, s->kind, NULL, node, place_of(job, s->name),
                                      hd__job_section_slot(job, s->kind), err);
    for (int a = 0; a < HD_AXIS_COUNT && s->kind == HD_KIND_COMM; a++)
        job->comm_axis[a] = job->comm;
    return rc;
}

static int32_t read_section(struct hd__job *job, const struct hd__job_core_section *s, struct hd_error *err)
{
    struct hd__tree_node *node = hd__tree_get(job->root, s->name);
    if (!node && s->kind == HD_KIND_CKPT)
        return HD_OK;
    if (node && hd__tree_is_null(node))
        return hd_fail(err, HD_E_INVALID,
                       s->kind == HD_KIND_CKPT ? "%s: %s has no value; write `%s: {}` for the defaults"
                                               : "%s: %s has no value; leave it out for the defaults",
                       place_of(job, s->name), s->name, s->name);
    if (!strcmp(s->name, "recompute"))
        return hd__job_composite_read(hd__job_composite_key(s->name), job,
                                      node ? node : hd__tree_scalar(&job->arena, "none", "default"), err);
    if (node && node->kind != HD__MAP && s->kind != HD_KIND_STRATEGY) {
        const char *word = s->kind && node->kind == HD__SCALAR ? node->text : "...",
                   *key = s->kind == HD_KIND_CKPT                                   ? "dir"
                          : s->kind == HD_KIND_DATA                                 ? "train"
                          : s->kind == HD_KIND_MODEL && strcmp(word, "transformer") ? "use: transformer, family"
                          : s->kind                                                 ? "use"
                                                                                    : s->options[0].name;
        return hd__job_node_fail(node, err, "%s is %s where a mapping is wanted: %s", s->name, hd__tree_kind_name(node),
                                 !strcmp(word, "true")    ? "{} for the defaults"
                                 : !strcmp(word, "false") ? "leave the section out to do without"
                                                          : hd__arena_format(&job->arena, "{%s: %.40s}", key, word));
    }
    int32_t rc = s->kind ? read_component(job, s, node, err) : HD_OK;
    if (rc || !s->count)
        return rc;
    struct hd__job_fields fields = {
        .path = s->name,
        .location = place_of(job, s->name),
        .node = node,
        .table = {s->options, s->count, sizeof(struct hd_option)},
        .settings = job,
        .allow_unknown = s->kind != 0,
        .composites = 1,
    };
    return hd__job_fields_parse(job, &fields, err);
}

/* An unknown section that is probably this one: that it is missing follows. */
static int is_misspelt(const struct hd__job *job, const char *name)
{
    for (uint32_t k = 0; k < job->root->count; k++)
        if (hd__nearest(job->root->key[k]->text, &name, 1))
            return 1;
    return 0;
}

static void check_names(struct hd__job *job)
{
    const char *names[32];
    char place[HD__KEY_PLACE];
    struct hd__text list = {0};
    for (size_t i = 0; i < hd__job_core_section_count; i++) {
        names[i] = hd__job_core_sections[i].name;
        hd__text_add(&list, "%s%s", i ? ", " : "", names[i]);
    }
    for (uint32_t k = 0; k < job->root->count; k++) {
        const struct hd__tree_node *key = job->root->key[k];
        struct hd_error why = HD_ERROR_INIT;
        size_t i = 0;
        while (i < hd__job_core_section_count && strcmp(names[i], key->text))
            i++;
        if (i < hd__job_core_section_count)
            continue;
        const char *near = hd__nearest(key->text, names, hd__job_core_section_count);
        const char *other = hd__job_foreign(key->text), *in = hd__job_key_place(key->text, place);
        if (strchr(key->text, '.'))
            hd__job_node_fail(key, &why, "unknown section %.60s; dots are the command line's: write %.*s: {%.60s: ...}",
                              key->text, (int)strcspn(key->text, "."), key->text, strchr(key->text, '.') + 1);
        else if (other)
            hd__job_node_fail(key, &why, "unknown section %.60s; %s", key->text, other);
        else if (in)
            hd__job_node_fail(key, &why, "unknown section %.60s; that is %s", key->text, in);
        else if (near)
            hd__job_node_fail(key, &why, "unknown section %.60s; did you mean %s?", key->text, near);
        else
            job->unknown = key->text,
            hd__job_node_fail(key, &why, "unknown section %.60s; the sections are %s", key->text, list.at);
        hd__job_mistake(job, HD_OK, &why, NULL);
    }
    hd__text_free(&list);
}

/* ---- what the sections say together */

enum { NAME_MAX_LENGTH = 100 }; /* job.name, in names of folders and files */

static int32_t finish_name(struct hd__job *job, struct hd_error *err)
{
    if (!job->name) {
        const char *slash = strrchr(job->file, '/');
        char *stem = hd__arena_strdup(&job->arena, slash ? slash + 1 : job->file);
        char *dot = strrchr(stem, '.');
        if (dot && dot != stem)
            *dot = 0;
        for (char *c = stem; *c; c++)
            if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
                *c = '_';
        if (*stem == '.')
            *stem = '_';
        stem[HD__MIN(strlen(stem), (size_t)NAME_MAX_LENGTH)] = 0;
        job->name = *stem ? stem : "job";
        hd__job_value_set(job, NULL, "job.name", hd__yaml_quote(job->name, &job->arena), json_string(job->name),
                          "default", 0);
    }
    for (const char *c = job->name; *c || c == job->name; c++)
        if (c - job->name == NAME_MAX_LENGTH || (!isalnum((unsigned char)*c) && !strchr("._-", *c)) || *c == 0 ||
            *job->name == '.')
            return hd__job_fail(job, "job.name", err,
                                "job.name: '%.60s' names a folder: use at most %d letters, digits, . _ and -, and do "
                                "not begin with a dot",
                                job->name, NAME_MAX_LENGTH);
    return HD_OK;
}

static void default_path(struct hd__job *job, const char *path, const char **field, const char *file)
{
    if (*field)
        return;
    *field = hd__arena_format(&job->arena, "runs/%s/%s", job->name, file);
    hd__job_value_set(job, NULL, path, hd__yaml_quote(*field, &job->arena), json_string(*field), "default", 0);
}

int32_t hd__job_check_schedule(struct hd__job *job, struct hd_error *err)
{
    const struct hd__lr_schedule *s = &job->schedule;
    int64_t decay = s->kind != HD__LR_WSD ? 0 : s->decay ? s->decay : job->steps / 10;
    if (job->steps && s->warmup > job->steps)
        return hd__job_fail(job, "schedule.warmup", err, "schedule.warmup: %lld steps are more than job.steps, %lld",
                            (long long)s->warmup, (long long)job->steps);
    if (job->steps && decay > job->steps - s->warmup)
        return hd__job_fail(job, "schedule.decay", err,
                            "schedule.decay: warmup %lld + decay %lld are more than job.steps, %lld",
                            (long long)s->warmup, (long long)decay, (long long)job->steps);
    if (s->kind == HD__LR_CONSTANT && s->min_lr > 0)
        return hd__job_fail(job, "schedule.min_lr", err,
                            "schedule.min_lr: a constant schedule never comes down; say kind: linear, cosine or wsd");
    if (s->kind != HD__LR_WSD && (s->decay || s->decay_shape))
        return hd__job_fail(job, s->decay ? "schedule.decay" : "schedule.decay_shape", err,
                            "schedule.%s: only kind: wsd has it", s->decay ? "decay" : "decay_shape");
    return HD_OK;
}

static int32_t check_steps(struct hd__job *job, struct hd_error *err)
{
    if (job->steps && job->epochs > 0)
        return hd__job_fail(job, "job.epochs", err, "job.epochs: job.steps is given too; say one, as job={epochs: N}");
    if (job->steps || job->epochs > 0)
        return HD_OK;
    return hd__job_fail(job, "job", err,
                        hd__tree_get(job->root, "job") ? "job needs steps (optimizer steps to train) or epochs"
                                                       : "section job is missing; it needs steps or epochs");
}

static int32_t check_data(struct hd__job *job, struct hd_error *err)
{
    if (job->val.count && job->val_fraction > 0)
        return hd__job_fail(job, "data.val_fraction", err, "data.val_fraction: data.val is given too; say one of them");
    if (job->on_error == HD__ON_ERROR_SKIP && job->documents == HD__DOCUMENTS_PACK)
        return hd__job_fail(job, "data.on_error", err,
                            "data.on_error: skip, and data.documents is pack, which needs all files: say mask or "
                            "continue, or on_error: stop");
    if (job->eval_every && !job->val.count && job->val_fraction == 0)
        return hd__job_fail(job, "eval.every", err,
                            "eval.every: nothing to evaluate on; say data.val or data.val_fraction");
    return HD_OK;
}

/* comm.dead_after is an older name of liveness.dead_after: the value goes there. As of a key's own names, two are one
 * too many, and the command line wins over the file. */
static int32_t fold_dead_after(struct hd__job *job, struct hd_error *err)
{
    struct hd__job_value *kept = (struct hd__job_value *)hd__job_value_get(job, "liveness.dead_after"),
                         *older = (struct hd__job_value *)hd__job_value_get(job, "comm.dead_after"), moved;
    if (!older)
        return HD_OK;
    int is_first = !strcmp(kept->origin, "command line"), is_second = !strcmp(older->origin, "command line");
    if (strcmp(kept->origin, "default") != 0 && is_first == is_second)
        return hd__job_fail(job, "comm.dead_after", err,
                            "comm.dead_after: liveness.dead_after, which is the same, was already given at %s: leave "
                            "one of them out",
                            kept->origin);
    moved = *older;
    job->values.count--;
    memmove(older, older + 1, (size_t)(job->values.at + job->values.count - older) * sizeof *older);
    kept = (struct hd__job_value *)hd__job_value_get(job, "liveness.dead_after");
    if (is_first) {
        job->comm_dead_after = json_number_value(kept->json);
        json_decref(moved.json);
    } else {
        hd__job_value_set(job, NULL, kept->path, moved.text, moved.json, moved.origin, moved.flags);
        kept->needs = moved.needs;
    }
    return HD_OK;
}

/* A word that is nearly one of the three is no path. */
static int32_t check_resume(struct hd__job *job, struct hd_error *err)
{
    static const char *const words[] = {"auto", "never", "overwrite"};
    const char *near = job->resume ? hd__nearest(job->resume, words, HD__COUNT(words)) : NULL;
    return !near || !strcmp(near, job->resume)
               ? HD_OK
               : hd__job_fail(job, "checkpoint.resume", err,
                              "checkpoint.resume: did you mean %s? A folder called %s is written ./%s", near,
                              job->resume, job->resume);
}

/* An option has the index of its choice, here among the dtypes of class FLOAT. */
static void finish_precision(struct hd__job *job)
{
    uint32_t *const all[] = {&job->precision.compute, &job->precision.grad, &job->precision.reduce,
                             &job->precision.master, &job->precision.optimizer};
    for (size_t i = 0; i < HD__COUNT(all); i++)
        *all[i] = hd__dtype_float_at(*all[i]);
}

void hd__job_sections_read(struct hd__job *job)
{
    static int32_t (*const checks[])(struct hd__job *, struct hd_error *) = {
        finish_name, check_steps, hd__job_check_schedule, check_data, check_resume, fold_dead_after};
    struct hd_error why = HD_ERROR_INIT;
    check_names(job);
    for (size_t i = 0; i < hd__job_core_section_count; i++) {
        const struct hd__job_core_section *s = &hd__job_core_sections[i];
        if (read_section(job, s, &why) && (hd__tree_get(job->root, s->name) || !is_misspelt(job, s->name)))
            hd__job_mistake(job, HD_OK, &why, NULL);
    }
    for (size_t i = 0; i < HD__COUNT(checks); i++)
        if (!job->mistakes.count && checks[i](job, &why))
            hd__job_mistake(job, HD_OK, &why, NULL);
    if (job->mistakes.count)
        return;
    finish_precision(job);
    default_path(job, "metrics.jsonl", &job->metrics_jsonl, "metrics.jsonl");
    if (job->checkpoint)
        default_path(job, "checkpoint.dir", &job->checkpoint_dir, "checkpoints");
}
