/* The resolved job as YAML with origins, and as JSON. Both walk one view: a tree whose leaves carry the text,
 * the origin and the JSON of a value. */
#include "core/job/internal.h"

struct view {
    const struct hd__job *job;
    struct hd__arena arena;
};

static struct hd__tree_node *leaf(struct view *v, const struct hd__job_value *value)
{
    struct hd__tree_node *node = hd__tree_scalar(&v->arena, value->text, value->origin);
    node->leaf = value->json;
    node->note = value->note;
    return node;
}

/* Puts a leaf at a dotted name below `map`. */
static void put_at_path(struct view *v, struct hd__tree_node *map, const char *name, struct hd__tree_node *node)
{
    char *copy = hd__arena_strdup(&v->arena, name), *rest;
    for (char *part = copy;; part = rest) {
        rest = strchr(part, '.');
        if (!rest) {
            hd__tree_set(map, part, node, &v->arena);
            return;
        }
        *rest++ = 0;
        struct hd__tree_node *child = hd__tree_get(map, part);
        if (!child || child->kind != HD__MAP) {
            child = hd__tree_map(&v->arena, node->origin);
            hd__tree_set(map, part, child, &v->arena);
        }
        map = child;
    }
}

static void put_values(struct view *v, struct hd__tree_node *map, const struct hd__job_section *owner, const char *path)
{
    size_t n = strlen(path);
    for (uint32_t i = 0; i < v->job->values.count; i++) {
        const struct hd__job_value *value = &v->job->values.at[i];
        if (value->owner == owner && !strncmp(value->path, path, n) && value->path[n] == '.')
            put_at_path(v, map, value->path + n + 1, leaf(v, value));
    }
}

/* The core's own keys, in the order of their table. */
static void put_core_keys(struct view *v, struct hd__tree_node *map, const char *section)
{
    struct hd__options table = hd__job_core_table(section);
    for (size_t i = 0; i < table.count; i++) {
        const char *name = table.at[i].name;
        const struct hd__job_value *value =
            hd__job_value_get(v->job, hd__arena_format(&v->arena, "%s.%s", section, name));
        if (value && !value->owner)
            hd__tree_set(map, name, leaf(v, value), &v->arena);
    }
}

/* Keys of a plugin's section as written: no option table has parsed them yet. */
static void put_raw_keys(struct view *v, struct hd__tree_node *map, const struct hd__job_section *s)
{
    struct hd__options core = hd__job_core_table(s->path);
    for (uint32_t i = 0; s->node && i < s->node->count; i++) {
        const struct hd__tree_node *raw = s->node->value[i];
        const char *key = s->node->key[i]->text;
        struct hd__text text = {0};
        if (!strcmp(key, "use") || hd__option_find(&core, key) >= 0)
            continue;
        hd__tree_text(raw, &text);
        hd__tree_set(map, key, hd__tree_scalar(&v->arena, text.at, raw->origin), &v->arena);
        hd__text_free(&text);
    }
}

static struct hd__tree_node *section_view(struct view *v, const struct hd__job_section *s)
{
    struct hd__tree_node *map = hd__tree_map(&v->arena, s->location);
    if (!s->node && !s->preset && strchr(s->path, '.')) { /* a transport or hook that was only named */
        struct hd__tree_node *name = hd__tree_scalar(&v->arena, s->use, s->origin);
        name->leaf = NULL;
        return name;
    }
    put_values(v, map, s, s->path);
    if (!s->parsed)
        put_raw_keys(v, map, s);
    return map;
}

static const struct hd__job_section *find_axis(const struct hd__job *job, const char *path)
{
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        if (!strcmp(job->comm_axis[a]->path, path))
            return job->comm_axis[a];
    return NULL;
}

static struct hd__tree_node *list_view(struct view *v, struct hd__job_section *const *sections, uint64_t n)
{
    struct hd__tree_node *list = hd__arena_alloc(&v->arena, sizeof *list);
    list->kind = HD__LIST;
    for (uint64_t i = 0; i < n; i++)
        hd__tree_push(list, section_view(v, sections[i]), &v->arena);
    return list;
}

static void put_comm(struct view *v, struct hd__tree_node *map)
{
    const struct hd__job *job = v->job;
    const struct hd__tree_node *axes = hd__tree_get(job->comm->node, "axes");
    if (axes && axes->count) {
        struct hd__tree_node *out = hd__tree_map(&v->arena, axes->origin);
        for (uint32_t i = 0; i < axes->count; i++) {
            const char *word = axes->key[i]->text;
            const struct hd__job_section *s = find_axis(job, hd__arena_format(&v->arena, "comm.axes.%s", word));
            hd__tree_set(out, word,
                         s ? section_view(v, s)
                           : hd__tree_scalar(&v->arena,
                                             axes->value[i]->kind == HD__SCALAR ? axes->value[i]->text : "{}",
                                             axes->value[i]->origin),
                         &v->arena);
        }
        hd__tree_set(map, "axes", out, &v->arena);
    }
    if (!job->n_hooks)
        return;
    hd__tree_set(map, "hooks", list_view(v, job->hooks, job->n_hooks), &v->arena);
}

/* The short form, which comes first, is printed as it was written. */
static void put_sinks(struct view *v, struct hd__tree_node *map)
{
    const struct hd__job *job = v->job;
    uint64_t first = job->n_sinks && !strcmp(job->sinks[0]->path, "metrics.tensorboard");
    if (job->n_sinks > first)
        hd__tree_set(map, "sinks", list_view(v, job->sinks + first, job->n_sinks - first), &v->arena);
}

static struct hd__tree_node *make_view(struct view *v)
{
    struct hd__tree_node *root = hd__tree_map(&v->arena, "");
    for (size_t i = 0; i < hd__job_core_section_count; i++) {
        const struct hd__job_core_section *s = &hd__job_core_sections[i];
        struct hd__job_section **slot = hd__job_section_slot((struct hd__job *)v->job, s->kind);
        const struct hd__job_section *own = slot ? *slot : NULL;
        const struct hd__job_value *single = hd__job_value_get(v->job, s->name);
        struct hd__tree_node *node;
        if (s->kind == HD_KIND_CKPT && !own)
            continue;
        if (s->kind == HD_KIND_STRATEGY)
            node = list_view(v, v->job->strategies, v->job->n_strategies);
        else if (single)
            node = leaf(v, single);
        else
            node = own ? section_view(v, own) : hd__tree_map(&v->arena, "");
        if (node->kind == HD__MAP)
            put_core_keys(v, node, s->name);
        if (own == v->job->comm && own)
            put_comm(v, node);
        if (!strcmp(s->name, "metrics"))
            put_sinks(v, node);
        if (node->kind != HD__MAP || node->count)
            hd__tree_set(root, s->name, node, &v->arena);
    }
    return root;
}

/* ---- YAML */

static void print_node(const struct hd__tree_node *node, int indent, struct hd__text *out);

/* The value behind "key:" or "-", and its origin as a comment. */
static void print_leaf(const struct hd__tree_node *node, struct hd__text *out, size_t line)
{
    hd__text_add(out, " %s", node->text);
    size_t width = out->length - line;
    hd__text_add(out, "%*s # %s%s%s\n", width < 48 ? (int)(48 - width) : 1, "", node->origin, node->note ? ", " : "",
                 node->note ? node->note : "");
}

static void print_map(const struct hd__tree_node *map, int indent, int dash, struct hd__text *out)
{
    struct hd__arena scratch = {0};
    for (uint32_t i = 0; i < map->count; i++) {
        size_t line = out->length;
        int lead = dash && i == 0;
        hd__text_add(out, "%*s%s%s:", lead ? indent - 2 : indent, "", lead ? "- " : "",
                     hd__yaml_quote(map->key[i]->text, &scratch));
        if (map->value[i]->kind == HD__SCALAR) {
            print_leaf(map->value[i], out, line);
        } else {
            hd__text_add(out, "\n");
            print_node(map->value[i], indent + 2, out);
        }
    }
    hd__arena_free(&scratch);
}

static void print_node(const struct hd__tree_node *node, int indent, struct hd__text *out)
{
    if (node->kind == HD__MAP) {
        print_map(node, indent, 0, out);
        return;
    }
    for (uint32_t i = 0; i < node->count; i++) {
        size_t line = out->length;
        if (node->value[i]->kind == HD__MAP) {
            print_map(node->value[i], indent + 2, 1, out);
        } else {
            hd__text_add(out, "%*s-", indent, "");
            print_leaf(node->value[i], out, line);
        }
    }
}

void hd__job_print(const struct hd__job *job, struct hd__text *out)
{
    struct view v = {.job = job};
    print_map(make_view(&v), 0, 0, out);
    hd__arena_free(&v.arena);
}

/* ---- JSON */

static json_t *node_json(const struct hd__tree_node *node)
{
    if (node->kind == HD__SCALAR)
        return node->leaf ? json_incref(node->leaf) : hd__json_text(node->text);
    json_t *out = node->kind == HD__MAP ? json_object() : json_array();
    for (uint32_t i = 0; i < node->count; i++) {
        if (node->kind == HD__MAP)
            json_object_set_new(out, node->key[i]->text, node_json(node->value[i]));
        else
            json_array_append_new(out, node_json(node->value[i]));
    }
    return out;
}

json_t *hd__job_json(const struct hd__job *job)
{
    struct view v = {.job = job};
    json_t *out = node_json(make_view(&v));
    hd__arena_free(&v.arena);
    return out;
}

/* ---- values that ranks must agree on */

static json_t *without_folders(const json_t *value)
{
    const char *text = json_string_value(value), *slash = text ? strrchr(text, '/') : NULL;
    json_t *copy = json_copy((json_t *)value), *item;
    const char *key;
    size_t i;
    if (slash && slash[1])
        json_string_set(copy, slash + 1);
    json_array_foreach(value, i, item) json_array_set_new(copy, i, without_folders(item));
    json_object_foreach((json_t *)value, key, item) json_object_set_new(copy, key, without_folders(item));
    return copy;
}

json_t *hd__job_global_json(const struct hd__job *job)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < job->values.count; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        /* An optimizer's numbers, whatever its plug-in says of them: other ones are other weights. */
        if (v->flags & HD_OPTION_GLOBAL || (!strncmp(v->path, "optimizer.", 10) && json_is_number(v->json)))
            json_object_set_new(all, v->path,
                                v->flags & HD_OPTION_PATH ? without_folders(v->json) : hd__json_text(v->text));
    }
    return all;
}
