/* Everything that is installed, usable or not: for `heddle plugins`. */
#include <stdlib.h>

#include "core/plugin/internal.h"

static int known(const struct hd__plugins *registry, const char *label)
{
    for (uint32_t i = 0; i < registry->entries.count; i++)
        if (strcmp(registry->entries.at[i].label, label) == 0)
            return 1;
    return 0;
}

static void add_entry(struct hd__plugins *registry, const char *label, const char *path,
                      const struct hd__component *component, const char *reason)
{
    struct hd__plugin_entry e = {.kind = hd__plugin_kind_of_label(label, NULL),
                                 .usable = !reason,
                                 .label = hd__arena_strdup(&registry->arena, label),
                                 .path = path ? hd__arena_strdup(&registry->arena, path) : NULL,
                                 .reason = reason ? hd__arena_strdup(&registry->arena, reason) : NULL,
                                 .component = component};
    hd__push(&registry->entries, e);
}

static void add_component(struct hd__plugins *registry, const struct hd__component *component)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t r = hd__plugin_probe(registry, component, &err);
    add_entry(registry, component->label, component->path, component, r ? err.message : NULL);
}

static void visit_file(void *user, const char *label, const char *path)
{
    struct hd__plugins *registry = user;
    const struct hd__component *component = NULL;
    struct hd_error err = HD_ERROR_INIT;
    const char *name = NULL;
    uint32_t kind = hd__plugin_kind_of_label(label, &name);
    if (known(registry, label))
        return; /* find names both paths */
    if (!kind)
        hd_fail(&err, HD_E_INVALID, "%s: the file's name has no known kind: heddle-KIND-NAME.so", path);
    else if (hd__plugin_find(registry, kind, name, &component, &err) == HD_OK) {
        add_component(registry, component);
        return;
    }
    add_entry(registry, label, path, NULL, err.message);
}

static void visit_skipped(void *user, const char *label, const char *why)
{
    struct hd__plugins *registry = user;
    if (known(registry, label))
        return;
    char *reason = hd__format("not built: %s", why);
    add_entry(registry, label, NULL, NULL, reason);
    free(reason);
}

static int by_kind_and_name(const void *a, const void *b)
{
    const struct hd__plugin_entry *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return strcmp(x->label, y->label);
}

void hd__plugin_scan(struct hd__plugins *registry, const struct hd__plugin_entry **entries, size_t *n)
{
    registry->entries.count = 0;
    hd__plugin_search_all(&registry->folders, visit_file, registry);
    for (uint32_t i = 0; i < registry->loaded.count; i++)
        if (!known(registry, registry->loaded.at[i]->label))
            add_component(registry, registry->loaded.at[i]);
    hd__plugin_search_skipped(&registry->folders, visit_skipped, registry);
    hd__sort(&registry->entries, by_kind_and_name);
    *entries = registry->entries.at;
    *n = registry->entries.count;
}
