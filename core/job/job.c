/* A job's life: load, plugins' sections, places of messages. */
#include "core/base/file.h"
#include "core/job/internal.h"

#include <stdlib.h>

static void mark_default(struct hd__tree_node *node)
{
    node->origin = "default";
    node->line = node->column = 0;
    for (uint32_t i = 0; i < node->count; i++)
        mark_default(node->value[i]);
}

static int32_t set_default_strategies(struct hd__job *job, struct hd_error *err)
{
    static const char text[] = "[{use: zero, stage: 0}]";
    struct hd__tree_node *list;
    int32_t rc = hd__tree_parse("default", text, sizeof text - 1, NULL, &job->arena, &list, err);
    if (rc)
        return rc;
    mark_default(list);
    hd__tree_set(job->root, "strategies", list, &job->arena);
    return HD_OK;
}

/* `precision: bf16` is {compute: bf16}. */
static void expand_precision(struct hd__job *job)
{
    struct hd__tree_node *value = hd__tree_get(job->root, "precision"), *map;
    if (!value || value->kind != HD__SCALAR || hd__tree_is_null(value))
        return;
    map = hd__tree_map(&job->arena, value->origin);
    hd__tree_set(map, "compute", value, &job->arena);
    hd__tree_set(job->root, "precision", map, &job->arena);
}

static int is_auto(const struct hd__tree_node *value)
{
    return value && value->kind == HD__SCALAR && !strcasecmp(value->text, "auto");
}

/* `mesh: auto` and `strategies: auto` are the defaults until they are chosen. */
static int32_t expand_auto(struct hd__job *job, struct hd_error *err)
{
    const struct hd__tree_node *mesh = hd__tree_get(job->root, "mesh"),
                               *strategies = hd__tree_get(job->root, "strategies");
    if ((job->auto_mesh = is_auto(mesh)))
        hd__tree_set(job->root, "mesh", hd__tree_map(&job->arena, mesh->origin), &job->arena);
    job->auto_strategies = is_auto(strategies);
    return job->auto_strategies ? set_default_strategies(job, err) : HD_OK;
}

/* A file that is no job at all is refused here; mistakes of its keys and values are noted. */
static int32_t read_job(struct hd__job *job, const char *text, size_t bytes, const char *const *overrides, size_t n,
                        struct hd_error *err)
{
    int32_t rc = hd__tree_parse(job->file, text, bytes, NULL, &job->arena, &job->root, err);
    if (rc)
        return rc;
    if (job->root->kind != HD__MAP)
        return hd__job_node_fail(job->root, err, "a job is a mapping of sections, not %s",
                                 hd__tree_kind_name(job->root));
    /* Before the command line, so that strategies.zero.stage=1 finds something to change. */
    if (!hd__tree_get(job->root, "strategies") && (rc = set_default_strategies(job, err)))
        return rc;
    expand_precision(job);
    for (size_t i = 0; i < n; i++) {
        struct hd_error why = HD_ERROR_INIT;
        if (hd__job_override(job, overrides[i], &why))
            hd__job_mistake(job, HD_OK, &why, NULL);
        expand_precision(job);
    }
    if ((rc = expand_auto(job, err)))
        return rc;
    hd__job_sections_read(job);
    return HD_OK;
}

static int32_t parse_text(const char *file, const char *text, size_t bytes, const char *const *overrides, size_t n,
                          struct hd__job **out, struct hd_error *err)
{
    struct hd__job *job = hd__alloc(sizeof *job);
    job->file = hd__arena_strdup(&job->arena, file);
    int32_t rc = read_job(job, text, bytes, overrides, n, err);
    if (rc)
        hd__job_free(job);
    else
        *out = job;
    return rc;
}

static int32_t refuse_mistakes(int32_t rc, struct hd__job **job, struct hd_error *err)
{
    if (rc || !(*job)->mistakes.count)
        return rc;
    rc = hd_fail(err, HD_E_INVALID, "%s", (*job)->mistakes.at[0].text);
    hd__job_free(*job);
    *job = NULL;
    return rc;
}

int32_t hd__job_parse(const char *file, const char *text, size_t bytes, const char *const *overrides, size_t n,
                      struct hd__job **job, struct hd_error *err)
{
    return refuse_mistakes(parse_text(file, text, bytes, overrides, n, job, err), job, err);
}

int32_t hd__job_load(const char *file, const char *const *overrides, size_t n, struct hd__job **job,
                     struct hd_error *err)
{
    return refuse_mistakes(hd__job_open(file, overrides, n, job, err), job, err);
}

int32_t hd__job_open(const char *file, const char *const *overrides, size_t n, struct hd__job **job,
                     struct hd_error *err)
{
    size_t bytes;
    char *text = hd__read_text(file, "job file", HD__TREE_BYTES, &bytes, err);
    int32_t rc = text ? parse_text(file, text, bytes, overrides, n, job, err) : err->code;
    free(text);
    return rc;
}

void hd__job_free(struct hd__job *job)
{
    if (!job)
        return;
    for (uint32_t i = 0; i < job->values.count; i++)
        json_decref(job->values.at[i].json);
    hd__free_array(&job->values);
    hd__free_array(&job->sections);
    hd__free_array(&job->mistakes);
    hd__free_array(&job->unplaced);
    hd__free_array(&job->tokenized);
    hd__free_array(&job->token_files);
    hd__free_array(&job->micro_batches);
    hd__free_array(&job->skipped);
    hd__free_array(&job->saved_files);
    hd__arena_free(&job->arena);
    free(job);
}

/* Its values stand where the alias was written, and say so. */
static int32_t read_preset(struct hd__job *job, const struct hd__job_section *section, struct hd__tree_node **out,
                           struct hd_error *err)
{
    int32_t rc =
        hd__tree_parse(section->use, section->preset, strlen(section->preset), section->origin, &job->arena, out, err);
    for (uint32_t i = 0; !rc && i < (*out)->count; i++)
        (*out)->value[i]->note = section->alias;
    return rc;
}

/* A key of the section is either heddle's or the plug-in's, by all its names. */
static int32_t check_own_names(struct hd__job *job, const struct hd__job_section *section,
                               const struct hd__options *own, const struct hd__options *core, struct hd_error *err)
{
    for (size_t i = 0; i < own->count; i++) {
        struct hd_option o = hd__option_at(own, i);
        char *names = hd__arena_format(&job->arena, "%s%s%s", o.name, o.aliases ? "|" : "", o.aliases ? o.aliases : "");
        for (char *name; (name = strsep(&names, "|"));)
            if (hd__option_find(core, name) >= 0)
                return hd_fail(err, HD_E_UNSUPPORTED,
                               "plugin %s-%s: its option %s%s is a key of heddle's own in section %s: rename it",
                               hd__kind_name(section->kind), section->use, o.name,
                               strcmp(name, o.name) ? hd__arena_format(&job->arena, ", also called %s,", name) : "",
                               section->path);
    }
    return HD_OK;
}

int32_t hd__job_section_parse(struct hd__job *job, struct hd__job_section *section, const struct hd_option *options,
                              size_t n, size_t option_size, void *settings, struct hd_error *err)
{
    struct hd__options others = hd__job_core_table(section->path);
    struct hd__tree_node *preset = NULL;
    int32_t rc = check_own_names(job, section, &(struct hd__options){options, n, option_size}, &others, err);
    if (!rc && section->preset)
        rc = read_preset(job, section, &preset, err);
    if (rc)
        return rc;
    struct hd__job_fields fields = {
        .path = section->path,
        .location = section->location,
        .node = section->node ? section->node : hd__tree_map(&job->arena, section->location),
        .table = {options, n, option_size},
        .settings = settings,
        .owner = section,
        .needs = section->kind == HD_KIND_COMM ? "ranks!=1" : NULL,
        .preset = preset,
        .other_keys = &others,
    };
    uint32_t before = job->values.count;
    section->table = fields.table;
    rc = hd__job_fields_parse(job, &fields, err);
    while (rc && job->values.count > before) /* half a section is none */
        json_decref(job->values.at[--job->values.count].json);
    section->parsed |= !rc;
    return rc;
}

/* ---- mistakes */

static int stands_before(const struct hd__job_mistake *a, const struct hd__job_mistake *b)
{
    return a->line != b->line ? a->line < b->line : a->column < b->column;
}

/* In the order of the file, each once; those of the command line have no line and come last. */
int32_t hd__job_mistake(struct hd__job *job, int32_t first, const struct hd_error *why, struct hd_error *err)
{
    struct hd__job_mistake *at, m = {.text = hd__arena_strdup(&job->arena, why->message), .line = UINT32_MAX};
    m.unknown = job->unknown;
    m.in = job->unknown_in;
    job->unknown = NULL;
    size_t file = strlen(job->file);
    uint32_t k = job->mistakes.count;
    if (strncmp(m.text, job->file, file) == 0)
        sscanf(m.text + file, ":%u:%u: ", &m.line, &m.column);
    if (!first)
        hd_error_copy(err, why);
    for (uint32_t i = 0; i < k; i++)
        if (!strcmp(m.text, job->mistakes.at[i].text))
            return first ? first : why->code;
    hd__push(&job->mistakes, m);
    for (at = job->mistakes.at; k > 0 && stands_before(&m, &at[k - 1]); k--) {
        at[k] = at[k - 1];
        at[k - 1] = m;
    }
    if (job->mistakes.count > HD__MISTAKES) {
        job->mistakes.count--;
        job->mistakes_left_out++;
    }
    return first ? first : why->code;
}

/* The plugin's section that has this key; NULL: none, or several. */
static const char *owner_of(const struct hd__job *job, const char *key)
{
    const char *owner = NULL;
    for (uint32_t i = 0, n = 0; key && i < job->sections.count; i++)
        if (hd__option_find(&job->sections.at[i]->table, key) >= 0)
            owner = n++ ? NULL : job->sections.at[i]->path;
    return owner;
}

void hd__job_mistakes_text(const struct hd__job *job, struct hd__text *out)
{
    for (uint32_t i = 0; i < job->mistakes.count; i++) {
        const struct hd__job_mistake *m = &job->mistakes.at[i];
        const char *owner = owner_of(job, m->unknown), *end = owner || m->others ? strrchr(m->text, ';') : NULL;
        hd__text_add(out, "%s%.*s", i ? "\n" : "", (int)(end ? end - m->text : (long)strlen(m->text)), m->text);
        if (end && m->others)
            hd__text_add(out, "; that is an option of %s", m->others);
        else if (end)
            hd__text_add(out, "; that is %s.%s", owner, m->unknown);
    }
    if (job->mistakes_left_out)
        hd__text_add(out, "\n%s: and %llu more", job->file, (unsigned long long)job->mistakes_left_out);
}

/* ---- places */

static const struct hd__tree_node *descend(const struct hd__tree_node *at, const char *part, const char **place)
{
    for (uint32_t i = 0; i < at->count; i++) {
        const struct hd__tree_node *value = at->value[i], *use = hd__tree_get(value, "use");
        char index[16];
        snprintf(index, sizeof index, "%u", i);
        if (at->kind == HD__MAP
                ? strcmp(at->key[i]->text, part) != 0
                : strcmp(index, part) != 0 && !(use && use->kind == HD__SCALAR && !strcmp(use->text, part)))
            continue;
        int whole = value->kind != HD__SCALAR && at->kind == HD__MAP && at->key[i]->line && value->line;
        *place = whole ? at->key[i]->origin : value->origin;
        return value;
    }
    return NULL;
}

const char *hd__job_where(struct hd__job *job, const char *path)
{
    const struct hd__job_value *value = hd__job_value_get(job, path);
    if (value && strcmp(value->origin, "default"))
        return value->origin;
    const struct hd__tree_node *at = job->root;
    const char *best = at->origin, *place = best;
    char *copy = hd__arena_strdup(&job->arena, path), *rest;
    for (char *part = copy; part && at; part = rest) {
        rest = strchr(part, '.');
        if (rest)
            *rest++ = 0;
        at = descend(at, part, &place);
        if (strcmp(place, "default"))
            best = place;
    }
    return best;
}

const char *hd__job_key_of(struct hd__job *job, const char *text)
{
    size_t section = strcspn(text, ". "), n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    char *key = hd__arena_format(&job->arena, "%.*s", (int)n, text);
    for (size_t i = 0; i < hd__job_core_section_count; i++) {
        const char *name = hd__job_core_sections[i].name;
        if (section < n && strlen(name) == section && !strncmp(key, name, section))
            return key;
    }
    return NULL;
}

int32_t hd__job_fail(struct hd__job *job, const char *path, struct hd_error *err, const char *format, ...)
{
    char message[900];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return hd_fail(err, HD_E_INVALID, "%s: %s", hd__job_where(job, path), message);
}

int32_t hd__job_locate_error(struct hd__job *job, const char *path, struct hd_error *err)
{
    int32_t code = err->code ? err->code : HD_E_INVALID; /* a plugin may have returned one and set none */
    hd__job_fail(job, path, err, "%s", err->message);
    return err->code = code;
}

const char *hd__job_folder(struct hd__job *job)
{
    const char *slash = strrchr(job->metrics_jsonl, '/');
    return slash ? hd__arena_format(&job->arena, "%.*s", (int)(slash - job->metrics_jsonl), job->metrics_jsonl) : ".";
}
