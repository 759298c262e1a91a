/* The registry: search folders, loaded components, lookup by name. */
#include "core/base/process.h"
#include "core/plugin/crash.h"
#include "core/plugin/internal.h"

#include <stdlib.h>
#include <sys/stat.h>

static void *host_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    return p ? memset(p, 0, bytes) : NULL;
}

static const void *no_extension(const char *name)
{
    (void)name;
    return NULL;
}

/* The host for [load] slots; the composition root has the full table. */
static const struct hd_host load_host = {.struct_size = sizeof load_host,
                                         .abi_minor = HD_ABI_MINOR,
                                         .log = hd__log,
                                         .alloc = host_alloc,
                                         .free = free,
                                         .get_extension = no_extension};

struct hd__plugins *hd__plugins_create(const struct hd_host *host)
{
    struct hd__plugins *registry = hd__alloc(sizeof *registry);
    registry->host = host ? host : &load_host;
    return registry;
}

void hd__plugins_destroy(struct hd__plugins *registry)
{
    if (!registry)
        return;
    hd__plugin_folders_free(&registry->folders);
    hd__free_array(&registry->loaded);
    hd__free_array(&registry->entries);
    hd__arena_free(&registry->arena);
    free(registry);
}

/* ---- folders */

static int32_t add_folder(struct hd__plugins *registry, const char *folder, const char *origin, struct hd_error *err)
{
    struct stat s;
    if (stat(folder, &s) || !S_ISDIR(s.st_mode))
        return hd_fail(err, HD_E_NOTFOUND, "%s: '%s' is not a folder: name the one that its plugins lie in", origin,
                       folder);
    hd__plugin_folders_add(&registry->folders, folder);
    return HD_OK;
}

int32_t hd__plugins_add_folder(struct hd__plugins *registry, const char *folder, struct hd_error *err)
{
    return add_folder(registry, folder, "plugins.path", err);
}

int32_t hd__plugins_add_default_folders(struct hd__plugins *registry, struct hd_error *err)
{
    const char *list = getenv("HEDDLE_PLUGIN_PATH");
    char *copy = hd__strdup(list ? list : ""), *rest = copy, *own;
    int32_t r = HD_OK;
    for (char *item; !r && (item = strsep(&rest, ":"));)
        if (item[0])
            r = add_folder(registry, item, "HEDDLE_PLUGIN_PATH", err);
    free(copy);
    own = r ? NULL : hd__plugin_own_folder();
    if (own)
        hd__plugin_folders_add(&registry->folders, own);
    free(own);
    return r;
}

/* ---- loading */

static const struct hd__component *find_loaded(const struct hd__plugins *registry, uint32_t kind, const char *name)
{
    for (uint32_t i = 0; i < registry->loaded.count; i++) {
        const struct hd__component *c = registry->loaded.at[i];
        if (c->kind == kind && strcmp(c->name, name) == 0)
            return c;
    }
    return NULL;
}

/* Opens the shared object at `path` and checks it; *component, of the registry, on success only. */
static int32_t load(struct hd__plugins *registry, uint32_t kind, const char *name, const char *path,
                    const struct hd__component **component, struct hd_error *err)
{
    const struct hd_plugin *plugin;
    struct hd__component *own = hd__arena_alloc(&registry->arena, sizeof *own);
    int32_t r = hd__plugin_open(path, &plugin, err);
    if (r || (r = hd__plugin_normalise(&registry->arena, plugin, kind, name, path, own, err)))
        return r;
    hd__push(&registry->loaded, own);
    *component = own;
    return HD_OK;
}

/* ---- finding */

/* Names near the one that was asked for, and whether it was left out of the build. */
struct suggestion {
    const char *label;
    const char *skipped;
    struct hd__arena *arena;
    HD__ARRAY(const char *) names;
};

/* Only labels of the same kind, compared without the "optim-" in front. */
static void note_label(void *user, const char *label, const char *path)
{
    struct suggestion *s = user;
    const char *name, *wanted;
    (void)path;
    if (hd__plugin_kind_of_label(label, &name) != hd__plugin_kind_of_label(s->label, &wanted))
        return;
    name = hd__arena_strdup(s->arena, name);
    hd__push(&s->names, name);
}

static void note_skipped(void *user, const char *label, const char *why)
{
    struct suggestion *s = user;
    if (strcmp(label, s->label) == 0)
        s->skipped = hd__arena_strdup(s->arena, why);
}

static int32_t not_found(struct hd__plugins *registry, const char *label, struct hd_error *err)
{
    struct suggestion s = {.label = label, .arena = &registry->arena};
    struct hd__text text = {0};
    const char *nearest, *name = label;
    uint32_t kind = hd__plugin_kind_of_label(label, &name);
    int prefix = (int)(name - label);
    hd__plugin_search_all(&registry->folders, note_label, &s);
    for (uint32_t i = 0; i < registry->loaded.count; i++)
        for (size_t a = 0; registry->loaded.at[i]->kind == kind && a < registry->loaded.at[i]->n_aliases; a++)
            hd__push(&s.names, registry->loaded.at[i]->aliases[a].name);
    hd__plugin_search_skipped(&registry->folders, note_skipped, &s);
    nearest = hd__nearest(name, s.names.at, s.names.count);
    if (s.skipped)
        hd__text_add(&text, "plugin %s was not built: %s", label, s.skipped);
    else if (nearest)
        hd__text_add(&text, "there is no plugin %s: did you mean %.*s%s?", label, prefix, label, nearest);
    else
        hd__text_add(&text, "there is no plugin %s", label);
    for (uint32_t i = 0; !s.skipped && !nearest && i < s.names.count; i++)
        hd__text_add(&text, "%s%s", i ? ", " : "; there are ", s.names.at[i]);
    hd__text_add(&text, " (looked for heddle-%s.so in ", label);
    for (uint32_t i = 0; i < registry->folders.count; i++)
        hd__text_add(&text, "%s%s", i ? ", " : "", registry->folders.at[i]);
    if (!registry->folders.count)
        hd__text_add(&text, "no folder at all");
    int32_t r = hd_fail(err, HD_E_NOTFOUND, "%s)", text.at);
    hd__text_free(&text);
    hd__free_array(&s.names);
    return r;
}

static int32_t find_file(struct hd__plugins *registry, uint32_t kind, const char *name, const char *label,
                         const struct hd__component **component, struct hd_error *err)
{
    char *paths[2] = {0};
    uint32_t n = hd__plugin_search(&registry->folders, label, paths);
    const struct hd__component *loaded = find_loaded(registry, kind, name);
    int32_t r = HD_OK;
    if (n == 2)
        r = hd_fail(err, HD_E_INVALID,
                    "duplicate name: plugin %s is both %s and %s: remove one, or one folder of the search", label,
                    paths[0], paths[1]);
    else if (loaded)
        *component = loaded;
    else if (n)
        r = load(registry, kind, name, paths[0], component, err);
    else { /* no file has the name: an alias may */
        hd__plugin_load_kind(registry, kind);
        if (!(r = hd__plugin_find_alias(registry, kind, name, &loaded, err)))
            r = loaded ? HD_OK : not_found(registry, label, err);
        *component = loaded ? loaded : *component;
    }
    free(paths[0]);
    free(paths[1]);
    return r;
}

int32_t hd__plugin_find(struct hd__plugins *registry, uint32_t kind, const char *name,
                        const struct hd__component **component, struct hd_error *err)
{
    if (!name || !name[0] || strchr(name, '/'))
        return hd_fail(err, HD_E_INVALID, "'%s' is not a plugin's name", name ? name : "");
    const char *bare = name;
    name = hd__plugin_kind_of_label(name, &bare) == kind ? bare : name; /* comm-shm is shm */
    char *label = hd__format("%s-%s", hd__kind_name(kind), name);
    int32_t r = find_file(registry, kind, name, label, component, err);
    free(label);
    return r;
}

int32_t hd__plugin_probe(struct hd__plugins *registry, const struct hd__component *component, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__process process;
    hd__process_note(&process);
    hd__crash_note_call("the probe of", component->path);
    int32_t r = component->probe ? component->probe(registry->host, &why) : HD_OK;
    hd__crash_note_call("", NULL);
    hd__process_restore(&process, component->path);
    return r == HD_OK ? HD_OK
                      : hd_fail(err, r, "plugin %s cannot be used on this machine: %s", component->label,
                                why.message[0] ? why.message : "its probe gives no reason");
}
