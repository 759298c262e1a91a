/* A mapping of the job file through an option table into a settings struct. */
#include "core/base/file.h"
#include "core/job/internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- resolved values */

const struct hd__job_value *hd__job_value_get(const struct hd__job *job, const char *path)
{
    for (uint32_t i = 0; i < job->values.count; i++)
        if (!strcmp(job->values.at[i].path, path))
            return &job->values.at[i];
    return NULL;
}

void hd__job_value_set(struct hd__job *job, const struct hd__job_section *owner, const char *path, const char *text,
                       json_t *json, const char *origin, uint32_t flags)
{
    struct hd__job_value value = {.path = hd__arena_strdup(&job->arena, path),
                                  .text = hd__arena_strdup(&job->arena, text),
                                  .origin = origin,
                                  .owner = owner,
                                  .json = json,
                                  .flags = flags};
    struct hd__job_value *before = (struct hd__job_value *)hd__job_value_get(job, path);
    if (before) {
        json_decref(before->json);
        *before = value;
    } else {
        hd__push(&job->values, value);
    }
}

void hd__job_value_note(struct hd__job *job, const char *path, const char *note)
{
    ((struct hd__job_value *)hd__job_value_get(job, path))->note = note;
}

/* A number where it looks like one: these are values whose readers knew, but whose nodes do not say it. */
static json_t *scalar_json(const struct hd__tree_node *node)
{
    char *end;
    long long whole = strtoll(node->text, &end, 10);
    int number = !node->quoted && *node->text && !node->text[strspn(node->text, "0123456789.e-")];
    if (number && !*end && strlen(node->text) < 19)
        return json_integer(whole);
    double value = strtod(node->text, &end);
    return number && !*end && isfinite(value) ? json_real(value) : hd__json_text(node->text);
}

static json_t *tree_json(const struct hd__tree_node *node)
{
    if (node->kind == HD__SCALAR)
        return scalar_json(node);
    json_t *out = node->kind == HD__MAP ? json_object() : json_array();
    for (uint32_t i = 0; i < node->count; i++) {
        if (node->kind == HD__MAP)
            json_object_set_new(out, node->key[i]->text, tree_json(node->value[i]));
        else
            json_array_append_new(out, tree_json(node->value[i]));
    }
    return out;
}

void hd__job_value_set_tree(struct hd__job *job, const char *path, const struct hd__tree_node *node, uint32_t flags)
{
    struct hd__text text = {0};
    hd__tree_text(node, &text);
    hd__job_value_set(job, NULL, path, text.at, tree_json(node), node->origin, flags);
    hd__text_free(&text);
}

/* ---- one node */

int32_t hd__job_node_fail(const struct hd__tree_node *node, struct hd_error *err, const char *format, ...)
{
    char message[900];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return hd_fail(err, HD_E_INVALID, "%s: %s", node->origin, message);
}

static int32_t parse_items(const struct hd__tree_node *node, const char *path, const struct hd_option *option,
                           void *settings, struct hd__arena *arena, struct hd_error *err)
{
    uint32_t n = node->kind == HD__LIST ? node->count : 1;
    const char **items = hd__arena_alloc(arena, (n + 1) * sizeof *items);
    struct hd_error why = HD_ERROR_INIT;
    for (uint32_t i = 0; i < n; i++) {
        const struct hd__tree_node *item = node->kind == HD__LIST ? node->value[i] : node;
        if (item->kind != HD__SCALAR || hd__tree_is_null(item))
            return hd__job_node_fail(item, err, "%s: an item is %s where a single value is wanted", path,
                                     item->kind == HD__SCALAR ? "empty" : hd__tree_kind_name(item));
        items[i] = item->text;
    }
    if (hd__option_parse_list(option, items, n, settings, arena, &why))
        return hd__job_node_fail(node, err, "%s: %s", path, why.message);
    return HD_OK;
}

/* Would a shell have put something else in its place: ~/a, a-$B, ${B}/a, a/$(b), `b`? */
static int is_for_a_shell(const char *path)
{
    for (const char *at = path; (at = strpbrk(at, "$`")) != NULL; at++)
        if (*at == '`' || isupper((unsigned char)at[1]) || strspn(at + 1, "_{("))
            return 1;
    return *path == '~';
}

int32_t hd__job_path_check(const struct hd__tree_node *node, const char *path, struct hd_error *err)
{
    static const char *const switches[] = {"none", "null", "false", "no", "off", "true", "yes", "on"};
    char name[HD__STORE_NAME];
    const char *store = node->kind == HD__SCALAR ? hd__store_of(node->text, name) : "posix";
    int stores = !strcmp(path, "checkpoint.dir") || !strcmp(path, "checkpoint.resume");
    for (size_t i = 0; i < HD__COUNT(switches) && node->kind == HD__SCALAR; i++)
        if (!strcasecmp(node->text, switches[i]))
            return hd__job_node_fail(node, err, "%s: '%s' is no name of a file: leave the key out, or write ./%s", path,
                                     node->text, node->text);
    if (node->kind == HD__SCALAR && is_for_a_shell(node->text))
        return hd__job_node_fail(node, err, "%s: '%.100s': ~, $ and ` are not expanded: write the whole path", path,
                                 node->text);
    if (store && (stores || !strcmp(store, "posix")))
        return HD_OK;
    return hd__job_node_fail(
        node, err,
        !strncmp(node->text, "file:", 5) ? "%s: '%.100s' is a URL: write the path alone, without file://"
        : stores && !strncasecmp(node->text, "s3:", 3)
            ? "%s: '%.100s' is no s3://BUCKET/PREFIX: did you mean s3://%.100s?"
        : stores ? "%s: '%.100s': lower-case letters and digits are wanted before ://, as in s3:// of ckpt-s3"
        : !strcmp(path, "launch.rendezvous")
            ? "%s: '%.100s' is a URL, and HOST:PORT is wanted: leave out what is before HOST"
            : "%s: '%.100s' is a URL; object stores are not supported here: name a file or "
              "folder, which may be a mounted one",
        path, node->text, node->text + strcspn(node->text, "/") + strspn(strchrnul(node->text, '/'), "/"));
}

int32_t hd__job_node_parse(const struct hd__tree_node *node, const char *path, const struct hd_option *option,
                           void *settings, struct hd__arena *arena, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    if (hd__tree_is_null(node))
        return hd__job_node_fail(node, err, "%s has no value; leave the key out for the default", path);
    if (option->type == HD_OPT_LIST && node->kind != HD__MAP)
        return parse_items(node, path, option, settings, arena, err);
    if (node->kind != HD__SCALAR)
        return hd__job_node_fail(node, err, "%s is %s where %s%s is wanted", path, hd__tree_kind_name(node),
                                 option->type == HD_OPT_LIST ? "a " : "one value of type ",
                                 hd__option_type_name(option->type));
    if (hd__option_parse(option, node->text, settings, arena, &why))
        return hd__job_node_fail(node, err, "%s: %s", path, why.message);
    return HD_OK;
}

/* ---- a whole mapping */

struct parse_state {
    struct hd__job *job;
    const struct hd__job_fields *f;
    const struct hd__tree_node **given; /* by option: what was written for it */
    const char **name;                  /* and by which name */
    int32_t rc;                         /* of the first mistake, which err says */
    struct hd_error *err;
};

static void note(struct parse_state *w, int32_t rc, const struct hd_error *why)
{
    if (rc)
        w->rc = hd__job_mistake(w->job, w->rc, why, w->err);
}

static char *join(struct hd__job *job, const char *path, const char *name)
{
    return *path ? hd__arena_format(&job->arena, "%s.%s", path, name) : hd__arena_strdup(&job->arena, name);
}

/* Names of the table and of the others, for suggestions. Caller frees. */
static const char **all_names(const struct hd__job_fields *f, size_t *n)
{
    size_t others = f->other_keys ? f->other_keys->count : 0, k = 0;
    const char **names = hd__alloc((f->table.count + others + 2) * sizeof *names);
    for (size_t i = 0; i < f->table.count; i++)
        names[k++] = hd__option_at(&f->table, i).name;
    for (size_t i = 0; i < others; i++)
        names[k++] = hd__option_at(f->other_keys, i).name;
    if (f->owner)
        names[k++] = "use";
    *n = k;
    return names;
}

/* Keys of other trainers that have another place here, or none. docs/coming-from.md has them all. */
const char *hd__job_foreign(const char *name)
{
#define OF(words, says)                            \
    {                                              \
        .name = "", .aliases = words, .help = says \
    }
    static const struct hd_option rows[] = {
        OF("eval.steps", "eval.batches is how many batches one evaluation has, eval.every how often"),
        OF("checkpoint.steps", "that is checkpoint.every"),
        OF("metrics.steps", "that is metrics.every"),
        OF("gradient_accumulation_steps", "that follows from data.batch / (data.micro_batch x data ranks)"),
        OF("batch_size", "that is data.batch of a step of all ranks, or data.micro_batch of a rank"),
        OF("bias", "model.family decides it: gpt2 has biases, llama and mixtral have none"),
        OF("attn_implementation", "attention is always computed block by block: leave it out"),
        OF("gradient_checkpointing|activation_checkpoint", "that is recompute"),
        OF("hidden_dropout|resid_pdrop", "heddle has no dropout: leave it out"),
        OF("per_device_train_batch_size", "that is data.micro_batch"),
        OF("data_parallel_shard_degree", "that is mesh.dp: {shard: N}"),
        OF("data_parallel_replicate_degree", "that is mesh.dp: {replicate: N}"),
        OF("tensor_parallel_degree", "that is mesh.tp"),
        OF("pipeline_parallel_degree", "that is mesh.pp"),
        OF("context_parallel_degree", "that is mesh.cp"),
        OF("expert_parallel_degree", "that is mesh.ep"),
        OF("lr|learning_rate", "that is optimizer.lr"),
        OF("weight_decay", "that is optimizer.weight_decay"),
        OF("warmup_ratio", "that is schedule.warmup, in steps"),
        OF("bf16|fp16|mixed_precision|torch_dtype", "that is precision.compute: bf16, fp16 or fp32"),
        OF("path", "data.train names files, checkpoint.dir and plugins.path folders"),
        OF("dataset|dataset_path|data_path", "data.train names the files"),
        OF("num_workers", "one thread reads data.read_ahead micro-batches ahead: leave it out"),
        OF("output_dir", "that is checkpoint.dir; job.name names the folder of metrics"),
        OF("wandb", "metrics.jsonl has all of it, and metrics.sinks name plugins"),
        OF("lora|peft|freeze", "LoRA is not offered: all weights are trained, and none are frozen"),
        OF("fused|foreach", "updates are fused always: leave it out"),
        OF("fsdp", "that is strategies: [{use: fsdp}]"),
        OF("deepspeed", "`heddle import` reads its file"),
        OF("zero_optimization", "in a configuration of DeepSpeed's: `heddle import FILE` makes a job of it"),
        OF("fsdp_config", "in a configuration of accelerate's: `heddle import FILE` makes a job of it"),
    };
    static const struct hd__options table = HD__OPTIONS(rows);
    int64_t i = hd__option_find(&table, name);
    if (i < 0 && strchr(name, '.'))
        i = hd__option_find(&table, strrchr(name, '.') + 1);
    return i < 0 ? NULL : rows[i].help;
}

static int32_t unknown_key(const struct parse_state *w, const struct hd__tree_node *key, const char *name,
                           struct hd_error *err)
{
    const struct hd__job_fields *f = w->f;
    size_t n;
    char place[HD__KEY_PLACE];
    const char **names = all_names(f, &n), *near = hd__nearest(name, names, n), *in = hd__job_key_place(name, place);
    const char *foreign = strchr(name, ':')   ? "a blank is wanted behind the colon"
                          : strchr(name, ')') ? "a list is written in brackets: [A, B]"
                          : !name[strspn(name, "0123456789")]
                              ? "a number has no commas: 1000 or 1_000, not 1,000; a list is written [A, B]"
                              : hd__job_foreign(join(w->job, f->path, name));
    struct hd__text list = {0}, nested = {0}; /* nested: keys of a mapping of this name, where a single value stands */
    for (size_t i = 0; i < n; i++)
        if (i >= f->table.count || !(hd__option_at(&f->table, i).flags & HD_OPTION_FIXED))
            hd__text_add(&list, "%s%s", i ? ", " : "", names[i]);
    for (size_t i = 0; i < f->table.count; i++)
        if (!strncmp(names[i], name, strlen(name)) && names[i][strlen(name)] == '.')
            hd__text_add(&nested, "%s%s", nested.length ? ", " : "", names[i] + strlen(name) + 1);
    int32_t rc = nested.length
                     ? hd__job_node_fail(key, err, "%s.%.60s is a mapping, with the keys %s: write %.60s: {%.*s: ...}",
                                         f->path, name, nested.at, name, (int)strcspn(nested.at, ","), nested.at)
                 : foreign ? hd__job_node_fail(key, err, "%s: unknown key %.60s; %s", f->path, name, foreign)
                 : in      ? hd__job_node_fail(key, err, "%s: unknown key %.60s; that is %s", f->path, name, in)
                 : near    ? hd__job_node_fail(key, err, "%s: unknown key %.60s; did you mean %s?", f->path, name, near)
                        : hd__job_node_fail(key, err, "%s: unknown key %.60s; the keys are %s", f->path, name, list.at);
    w->job->unknown = near || foreign || nested.length ? NULL : name; /* a plugin's section may have it */
    w->job->unknown_in = f->owner;
    hd__text_free(&nested);
    hd__text_free(&list);
    free(names);
    return rc;
}

static int from_command_line(const struct hd__tree_node *node)
{
    return !strcmp(node->origin, "command line");
}

/* There is nothing to choose: the value is the default, or refused. */
static int32_t check_fixed(const struct parse_state *w, const struct hd_option *o, const char *path,
                           const struct hd__tree_node *node, struct hd_error *err)
{
    const struct hd_option plain = {.type = o->type, .value = o->value, .choices = o->choices};
    int64_t given[3] = {0}, always[3] = {0}; /* room for a list, the largest field */
    int32_t rc = hd__job_node_parse(node, path, &plain, given, &w->job->arena, err);
    if (rc)
        return rc;
    hd__option_parse(&plain, o->value, always, &w->job->arena, NULL);
    return strcmp(hd__option_text(&plain, given, &w->job->arena), hd__option_text(&plain, always, &w->job->arena)) == 0
               ? HD_OK
               : hd__job_node_fail(node, err, "%s: there is only %s: %s; leave the key out", path, o->value, o->help);
}

/* A key may be given by its name, an alias, dotted or nested; the command line wins over the file. */
static int32_t record_given(struct parse_state *w, size_t i, const struct hd__tree_node *key, const char *name,
                            const struct hd__tree_node *value, struct hd_error *err)
{
    struct hd_option o = hd__option_at(&w->f->table, i);
    const struct hd__tree_node *before = w->given[i];
    if (o.flags & HD_OPTION_FIXED)
        return check_fixed(w, &o, join(w->job, w->f->path, name), value, err);
    if (before && from_command_line(before) && !from_command_line(value))
        return HD_OK;
    if (before && !(from_command_line(value) && !from_command_line(before)))
        return hd__job_node_fail(key, err, "%s: %s was already given at %s", w->f->path, name, before->origin);
    const char *word = value->kind == HD__SCALAR ? hd__option_word(&o, name, value->text, &w->job->arena) : NULL;
    if (word && *word == '?')
        return hd__job_node_fail(value, err, "%s: '%.60s': %s", join(w->job, w->f->path, name), value->text, word + 1);
    if (word) {
        struct hd__tree_node *meant = hd__tree_scalar(&w->job->arena, word, value->origin);
        meant->note = value->text;
        value = meant;
    }
    w->given[i] = value;
    w->name[i] = name;
    return HD_OK;
}

static void collect_keys(struct parse_state *w, const struct hd__tree_node *map, const char *prefix)
{
    const struct hd__job_fields *f = w->f;
    for (uint32_t k = 0; k < map->count; k++) {
        const struct hd__tree_node *key = map->key[k], *value = map->value[k];
        const char *name = join(w->job, prefix, key->text);
        int64_t i = hd__option_find(&f->table, name);
        struct hd_error why = HD_ERROR_INIT;
        if (value->kind == HD__MAP && hd__option_prefix(&f->table, name))
            collect_keys(w, value, name);
        else if (i >= 0)
            note(w, record_given(w, (size_t)i, key, name, value, &why), &why);
        else if (!f->allow_unknown && !(f->owner && !strcmp(name, "use")) &&
                 !(f->other_keys && hd__option_find(f->other_keys, name) >= 0))
            note(w, unknown_key(w, key, name, &why), &why);
    }
}

/* An unknown key near to a missing one, so that it is no plugin's; NULL: none. */
static const struct hd__tree_node *find_misspelt(const struct parse_state *w, const char *missing)
{
    for (uint32_t k = 0; w->f->node && k < w->f->node->count; k++)
        if (hd__option_find(&w->f->table, w->f->node->key[k]->text) < 0 &&
            hd__nearest(w->f->node->key[k]->text, &missing, 1))
            return w->f->node->key[k];
    return NULL;
}

/* Missing required keys, all of them in one message. */
static int32_t check_required(const struct parse_state *w, struct hd_error *err)
{
    struct hd__text missing = {0};
    const char *help = "";
    int n = 0;
    for (size_t i = 0; i < w->f->table.count; i++) {
        struct hd_option o = hd__option_at(&w->f->table, i);
        if (!(o.flags & HD_OPTION_REQUIRED) || w->given[i])
            continue;
        const struct hd__tree_node *key = find_misspelt(w, o.name);
        if (key) {
            hd__text_free(&missing);
            return unknown_key(w, key, key->text, err);
        }
        hd__text_add(&missing, "%s%s", n++ ? ", " : "", o.name);
        help = o.help ? o.help : "";
    }
    int32_t rc = HD_OK;
    if (n && !w->f->node)
        rc = hd_fail(err, HD_E_INVALID, "%s: section %s is missing; it needs %s", w->f->location, w->f->path,
                     missing.at);
    else if (n == 1)
        rc = hd_fail(err, HD_E_INVALID, "%s: %s needs %s (%s)", w->f->location, w->f->path, missing.at, help);
    else if (n)
        rc = hd_fail(err, HD_E_INVALID, "%s: %s needs %s", w->f->location, w->f->path, missing.at);
    hd__text_free(&missing);
    return rc;
}

/* Values of an alias's preset count as written, where the job itself says nothing. */
static void apply_preset(struct parse_state *w)
{
    const struct hd__tree_node *preset = w->f->preset;
    for (uint32_t k = 0; preset && k < preset->count; k++) {
        int64_t i = hd__option_find(&w->f->table, preset->key[k]->text);
        if (i >= 0 && !w->given[i])
            w->given[i] = preset->value[k];
    }
}

static int32_t parse_composite(struct parse_state *w, const struct hd__job_composite *key, const struct hd_option *o,
                               const struct hd__tree_node *given, struct hd_error *err)
{
    struct hd__tree_node *node = (struct hd__tree_node *)given;
    if (!node && !o->value)
        return HD_OK;
    if (!node)
        node = hd__tree_scalar(&w->job->arena, o->value, "default");
    if (hd__tree_is_null(node))
        return hd__job_node_fail(node, err, "%s has no value; leave the key out for the default", key->path);
    int32_t rc = hd__job_composite_read(key, w->job, node, err);
    if (!rc && given && !(o->value && given->kind == HD__SCALAR && !strcmp(given->text, o->value)))
        ((struct hd__job_value *)hd__job_value_get(w->job, key->path))->needs = o->needs;
    return rc;
}

/* Was it chosen by the job: neither a preset's nor the same as the default? */
static int is_chosen(const struct parse_state *w, const struct hd_option *o, const struct hd__tree_node *given,
                     const char *text)
{
    int64_t always[3] = {0}; /* room for a list, the largest field */
    struct hd_option plain = *o;
    plain.offset = 0;
    if (!given || (w->f->owner && given->note && given->note == w->f->owner->alias))
        return 0;
    return !o->value || hd__option_parse(&plain, o->value, always, &w->job->arena, NULL) ||
           strcmp(text, hd__option_text(&plain, always, &w->job->arena)) != 0;
}

static int32_t parse_one(struct parse_state *w, size_t i, struct hd_error *err)
{
    const struct hd__job_fields *f = w->f;
    struct hd_option o = hd__option_at(&f->table, i);
    const char *path = join(w->job, f->path, o.name);
    const struct hd__job_composite *special = f->composites ? hd__job_composite_key(path) : NULL;
    if (special)
        return parse_composite(w, special, &o, w->given[i], err);
    if (o.flags & HD_OPTION_FIXED)
        return HD_OK;
    int32_t rc = HD_OK;
    if (w->given[i] && o.type == HD_OPT_STRING && (o.flags & HD_OPTION_PATH))
        rc = hd__job_path_check(w->given[i], path, err);
    if (!rc && w->given[i])
        rc = hd__job_node_parse(w->given[i], path, &o, f->settings, &w->job->arena, err);
    if (rc || (!w->given[i] && !o.value))
        return rc;
    const char *text = hd__option_text(&o, f->settings, &w->job->arena);
    if (text)
        hd__job_value_set(w->job, f->owner, path, text, hd__option_json(&o, f->settings),
                          w->given[i] ? w->given[i]->origin : "default", o.flags);
    if (text && w->given[i] && w->given[i]->note)
        hd__job_value_note(w->job, path, w->given[i]->note);
    if (text && is_chosen(w, &o, w->given[i], text)) {
        struct hd__job_value *value = (struct hd__job_value *)hd__job_value_get(w->job, path);
        value->needs = o.needs ? o.needs : f->needs;
        value->plain = o.value;
        value->written = w->name[i] ? join(w->job, f->path, w->name[i]) : path;
    }
    return HD_OK;
}

/* Defaults of everything but the special keys, whose readers get theirs as a node. */
static int32_t apply_defaults(const struct parse_state *w)
{
    const struct hd__job_fields *f = w->f;
    for (size_t i = 0; i < f->table.count; i++) {
        struct hd_option o = hd__option_at(&f->table, i);
        struct hd_error why = HD_ERROR_INIT;
        if (!o.value || (f->composites && hd__job_composite_key(join(w->job, f->path, o.name))))
            continue;
        if (hd__option_parse(&o, o.value, f->settings, &w->job->arena, &why))
            return hd_fail(w->err, HD_E_INTERNAL, "the default of %s.%s: %s", f->path, o.name, why.message);
    }
    return HD_OK;
}

int32_t hd__job_fields_parse(struct hd__job *job, const struct hd__job_fields *fields, struct hd_error *err)
{
    struct parse_state w = {.job = job, .f = fields, .err = err};
    w.given = hd__arena_alloc(&job->arena, (fields->table.count + 1) * sizeof *w.given);
    w.name = hd__arena_alloc(&job->arena, (fields->table.count + 1) * sizeof *w.name);
    int32_t rc = apply_defaults(&w);
    if (rc)
        return rc;
    if (fields->node)
        collect_keys(&w, fields->node, "");
    apply_preset(&w);
    struct hd_error why = HD_ERROR_INIT;
    note(&w, check_required(&w, &why), &why);
    for (size_t i = 0; i < fields->table.count; i++)
        note(&w, parse_one(&w, i, &why), &why);
    return w.rc;
}
