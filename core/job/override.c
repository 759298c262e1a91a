/* "key.key=value" of the command line, put into the tree before anything is typed. */
#include "core/job/internal.h"

#include <stdlib.h>

#define ORIGIN "command line"

/* The value. What begins like a list, a mapping or a quoted word is YAML; anything else stands for itself, so
 * that a path needs no quotes. */
static int32_t read_value(struct hd__job *job, const char *word, const char *text, struct hd__tree_node **out,
                          struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    if (!*text)
        return hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s' has no value", word);
    if (!strchr("[{\"'", *text)) {
        *out = hd__tree_scalar(&job->arena, text, ORIGIN);
        return HD_OK;
    }
    if (hd__tree_parse(job->file, text, strlen(text), ORIGIN, &job->arena, out, &why))
        return hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': %s", word, why.message + strlen(ORIGIN ": "));
    (*out)->line = (*out)->column = 0;
    return HD_OK;
}

/* The item of a list that `part` means: an index, or the name in its `use:`. */
static int32_t find_item(const struct hd__tree_node *list, const char *word, const char *part, uint32_t *out,
                         struct hd_error *err)
{
    const char *names[64];
    uint32_t n = 0;
    char *end;
    unsigned long index = strtoul(part, &end, 10);
    if (*part >= '0' && *part <= '9' && !*end && index < list->count) {
        *out = (uint32_t)index;
        return HD_OK;
    }
    struct hd__text all = {0};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct hd__tree_node *use = hd__tree_get(list->value[i], "use");
        const char *name = use && use->kind == HD__SCALAR ? use->text : NULL;
        if (name && !strcmp(name, part)) {
            hd__text_free(&all);
            *out = i;
            return HD_OK;
        }
        if (name && n < HD__COUNT(names)) {
            hd__text_add(&all, "%s%.60s", n ? ", " : "", name);
            names[n++] = name;
        }
    }
    const char *near = hd__nearest(part, names, n);
    if (near)
        hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': no item %.60s in the job; did you mean %s?", word, part, near);
    else
        hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': no item %.60s in the job; there is %s", word, part,
                n ? all.at : "none with a name");
    hd__text_free(&all);
    return HD_E_INVALID;
}

/* Walks to the mapping or list that holds the last part, making mappings on the way. */
static int32_t set_at_path(struct hd__job *job, const char *word, char *path, struct hd__tree_node *value,
                           struct hd_error *err)
{
    struct hd__tree_node *at = job->root;
    for (char *part = path, *rest; part; part = rest) {
        uint32_t i = 0;
        rest = strchr(part, '.');
        if (rest)
            *rest++ = 0;
        if (!*part)
            return hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': an empty key", word);
        if (at->kind == HD__LIST) {
            int32_t rc = find_item(at, word, part, &i, err);
            if (rc)
                return rc;
            if (!rest || at->value[i]->kind == HD__SCALAR)
                at->value[i] = rest ? hd__tree_map(&job->arena, ORIGIN) : value;
            at = at->value[i];
            continue;
        }
        if (!rest) {
            hd__tree_set(at, part, value, &job->arena);
            return HD_OK;
        }
        struct hd__tree_node *child = hd__tree_get(at, part);
        if (!child || child->kind == HD__SCALAR) {
            child = hd__tree_map(&job->arena, ORIGIN);
            hd__tree_set(at, part, child, &job->arena);
        }
        at = child;
    }
    return HD_OK;
}

static uint32_t depth_of(const struct hd__tree_node *node)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < node->count; i++)
        most = HD__MAX(most, depth_of(node->value[i]));
    return most + 1;
}

/* The limit of files holds for the command line too: everything that walks a tree may rely on it. */
static int32_t check_depth(const char *word, const char *path, const struct hd__tree_node *value, struct hd_error *err)
{
    uint32_t depth = depth_of(value) + 1;
    for (const char *c = path; *c; c++)
        depth += *c == '.';
    return depth <= HD__TREE_DEPTH
               ? HD_OK
               : hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': nested more than %d deep", word, HD__TREE_DEPTH);
}

int32_t hd__job_override(struct hd__job *job, const char *word, struct hd_error *err)
{
    const char *equals = strchr(word, '=');
    struct hd__tree_node *value = NULL;
    if (!equals || equals == word)
        return hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s' is not key=value, like optimizer.lr=1e-3", word);
    int32_t rc = read_value(job, word, equals + 1, &value, err);
    if (rc)
        return rc;
    char *path = hd__arena_strdup(&job->arena, word);
    path[equals - word] = 0;
    rc = check_depth(word, path, value, err);
    return rc ? rc : set_at_path(job, word, path, value, err);
}
