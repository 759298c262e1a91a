/* Lookup of components by alias or number, and of strategies by the mesh axis that they cut. */
#include "core/plugin/internal.h"

const struct hd_alias *hd__plugin_alias(const struct hd__component *component, const char *name)
{
    if (!strcmp(component->name, name))
        return NULL;
    for (size_t i = 0; i < component->n_aliases; i++)
        if (!strcmp(component->aliases[i].name, name))
            return &component->aliases[i];
    return NULL;
}

struct wanted {
    struct hd__plugins *registry;
    uint32_t kind;
};

static void load_file(void *user, const char *label, const char *path)
{
    const struct wanted *w = user;
    const struct hd__component *component;
    struct hd_error unusable = HD_ERROR_INIT;
    const char *name;
    (void)path;
    if (hd__plugin_kind_of_label(label, &name) == w->kind)
        hd__plugin_find(w->registry, w->kind, name, &component, &unusable);
}

void hd__plugin_load_kind(struct hd__plugins *registry, uint32_t kind)
{
    struct wanted w = {registry, kind};
    hd__plugin_search_all(&registry->folders, load_file, &w);
}

const struct hd__component *hd__plugin_nth(struct hd__plugins *registry, uint32_t kind, uint32_t n)
{
    hd__plugin_load_kind(registry, kind);
    for (uint32_t i = 0; i < registry->loaded.count; i++)
        if (registry->loaded.at[i]->kind == kind && !n--)
            return registry->loaded.at[i];
    return NULL;
}

int32_t hd__plugin_find_alias(const struct hd__plugins *registry, uint32_t kind, const char *name,
                              const struct hd__component **component, struct hd_error *err)
{
    const struct hd__component *found = NULL;
    for (uint32_t i = 0; i < registry->loaded.count; i++) {
        const struct hd__component *c = registry->loaded.at[i];
        if (c->kind != kind || !hd__plugin_alias(c, name))
            continue;
        if (found)
            return hd_fail(err, HD_E_INVALID, "%s is an alias of both %s and %s: use one of them by its own name", name,
                           found->label, c->label);
        found = c;
    }
    *component = found;
    return HD_OK;
}

int32_t hd__plugin_find_cutter(struct hd__plugins *registry, uint32_t axis, uint64_t taken,
                               const struct hd__component **component, struct hd_error *err)
{
    const struct hd__component *found = NULL;
    hd__plugin_load_kind(registry, HD_KIND_STRATEGY);
    for (uint32_t i = 0; i < registry->loaded.count; i++) {
        const struct hd__component *c = registry->loaded.at[i];
        if (c->kind != HD_KIND_STRATEGY || !(c->ops.strategy.cuts & HD_AXIS_BIT(axis)) || c->ops.strategy.cuts & taken)
            continue;
        if (found)
            return hd_fail(err, HD_E_INVALID, "both %s and %s cut %s: name one of them in `strategies`", found->label,
                           c->label, hd__axis_name((int32_t)axis));
        found = c;
    }
    *component = found;
    return HD_OK;
}
