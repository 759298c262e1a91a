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

/* The item of a list that `part` means: an index, or the name in its `use:`. HD_E_NOTFOUND: no item is called so. */
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
    int32_t rc = near || (*part >= '0' && *part <= '9' && !*end) ? HD_E_INVALID : HD_E_NOTFOUND;
    if (near)
        hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': no item %.60s in the job; did you mean %s?", word, part, near);
    else
        hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': no item %.60s in the job; there is %s", word, part,
                n ? all.at : "none with a name");
    hd__text_free(&all);
    return rc;
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
            if (rc == HD_E_NOTFOUND && rest && at == hd__tree_get(job->root, "strategies")) {
                hd__push(&job->unplaced, hd__arena_strdup(&job->arena, word)); /* the mesh may bring it */
                return HD_OK;
            }
            if (rc)
                return rc;
            if (!rest || at->value[i]->kind == HD__SCALAR)
                at->value[i] = rest ? hd__tree_map(&job->arena, ORIGIN) : value;
            at = at->value[i];
            continue;
        }
        if (!rest) {
            if (at == job->root && !strcmp(part, "strategies"))
                job->unplaced.count = 0; /* the last word for all of them */
            hd__tree_set(at, part, value, &job->arena);
            return HD_OK;
        }
        struct hd__tree_node *child = hd__tree_get(at, part);
        if (child && child->kind == HD__SCALAR && !strcmp(part, "mesh"))
            return hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': mesh is %.40s: to say its axes write mesh={%s: ...}",
                           word, child->text, rest);
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

/* The key's own name where the core knows another: two words of the command line for one key are one key. */
static char *own_name(struct hd__arena *arena, char *path)
{
    char *dot = strchr(path, '.');
    if (!dot)
        return path;
    struct hd__options table = hd__job_core_table(hd__arena_format(arena, "%.*s", (int)(dot - path), path));
    int64_t i = hd__option_find(&table, dot + 1);
    return i < 0
               ? path
               : hd__arena_format(arena, "%.*s%s", (int)(dot + 1 - path), path, hd__option_at(&table, (size_t)i).name);
}

static int is_below(const char *path, const char *above)
{
    size_t n = strlen(above);
    return !strncmp(path, above, n) && path[n] == '.';
}

/* Is nothing left of the word for `before` once `later` is set: what holds it is replaced, or it was a plain value
 * where there is a mapping now? That of `precision` is its compute by then. */
static int is_replaced(const char *word, const char *before, const char *later)
{
    const char *value = strchr(word, '=');
    int plain = value && !strchr("[{", value[1]),
        stays = !strcmp(before, "precision") && strcmp(later, "precision.compute") != 0;
    return is_below(before, later) || (is_below(later, before) && plain && !stays);
}

int32_t hd__job_overrides_check(const char *const *words, size_t n, struct hd_error *err)
{
    struct hd__arena arena = {0};
    int32_t rc = HD_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        char *name = hd__arena_format(&arena, "%.*s", (int)strcspn(words[i], "="), words[i]);
        for (size_t k = 0; k < i && !rc; k++) {
            char *before = hd__arena_format(&arena, "%.*s", (int)strcspn(words[k], "="), words[k]);
            if (words[k][strlen(before)] && is_replaced(words[k], before, name))
                rc = hd_fail(err, HD_E_INVALID,
                             ORIGIN ": '%.100s' has no effect, because '%.100s' behind it replaces "
                                    "all of %s: leave %s",
                             words[k], words[i], strlen(name) < strlen(before) ? name : before,
                             !is_replaced(words[i], name, before) ? "it out, or write it behind"
                             : strchr(before, '.')                ? "one of them out"
                                                                  : "it out, or write the key that it meant, as in "
                                                                    "optimizer.use=adamw");
            else if (strcmp(name, before) != 0 && !strcmp(own_name(&arena, name), own_name(&arena, before)))
                rc = hd_fail(err, HD_E_INVALID, ORIGIN ": '%.100s' and '%.100s' are one key, %s: leave one of them out",
                             words[k], words[i], own_name(&arena, name));
        }
    }
    hd__arena_free(&arena);
    return rc;
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
    if (strchr(path, ' ') || equals[1] == ' ')
        return hd_fail(err, HD_E_INVALID, ORIGIN ": '%.200s': no blanks around =, as in optimizer.lr=1e-3", word);
    rc = check_depth(word, path, value, err);
    return rc ? rc : set_at_path(job, word, own_name(&job->arena, path), value, err);
}

/* ---- strategies that come with the mesh */

/* Length of NAME in strategies.NAME.KEY=VALUE. */
static size_t name_length(const char *word)
{
    return strcspn(word + strlen("strategies."), ".");
}

const char *hd__job_unplaced(struct hd__job *job)
{
    const char *word = job->unplaced.count ? job->unplaced.at[0] : NULL;
    return word ? hd__arena_format(&job->arena, "%.*s", (int)name_length(word), word + strlen("strategies.")) : NULL;
}

int32_t hd__job_unplaced_fail(struct hd__job *job, struct hd_error *err)
{
    const char *name = hd__job_unplaced(job), *others = job->strategies[0]->path + strlen("strategies.");
    for (uint64_t i = 1; i < job->n_strategies; i++)
        others = hd__arena_format(&job->arena, "%s, %s", others, job->strategies[i]->path + strlen("strategies."));
    return hd_fail(err, HD_E_INVALID,
                   ORIGIN ": '%.200s': no strategy %.60s in the job, which has %.200s: add {use: %.60s} to "
                          "`strategies`",
                   job->unplaced.at[0], name, others, name);
}

int32_t hd__job_place(struct hd__job *job, const char *strategy, struct hd_error *err)
{
    uint32_t kept = 0, n = job->unplaced.count;
    int32_t rc = HD_OK;
    job->unplaced.count = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char *word = job->unplaced.at[i], *name = word + strlen("strategies.");
        if (name_length(word) != strlen(strategy) || strncmp(name, strategy, strlen(strategy)) != 0)
            job->unplaced.at[kept++] = word;
        else if (!rc)
            rc = hd__job_override(job, word, err);
    }
    job->unplaced.count = kept;
    return rc;
}
