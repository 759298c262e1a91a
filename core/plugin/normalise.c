/* Checks a plugin's tables and copies them into our own: min(their size, ours), the rest zero.
 *
 * Code behind this need not know a plugin's version: a slot that its headers did not know is NULL, and a mandatory slot
 * is never NULL. Every refusal says which field, theirs, ours, and the fix. */
#include "core/base/option.h"
#include "core/base/yaml_tree.h"
#include "core/plugin/plugin.h"

#define STRICT_CAPS (UINT64_C(0xffff) << 48)

struct subject {
    const char *label, *path;
};

__attribute__((format(printf, 3, 4))) static int32_t refuse(const struct subject *s, struct hd_error *err,
                                                            const char *format, ...)
{
    char what[768];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return hd_fail(err, HD_E_UNSUPPORTED, "plugin %s: %s [%s]", s->label, what, s->path);
}

static void copy_sized(void *ours, size_t our_size, const void *theirs, size_t their_size)
{
    memset(ours, 0, our_size);
    memcpy(ours, theirs, HD__MIN(our_size, their_size));
}

static int32_t check_size(const struct subject *s, const char *what, size_t theirs, size_t least, struct hd_error *err)
{
    if (theirs >= least)
        return HD_OK;
    return refuse(s, err,
                  "%s is short: %zu bytes, ABI %d.0 has %zu: set its size with sizeof and build with heddle's headers",
                  what, theirs, HD_ABI_MAJOR, least);
}

static int32_t check_caps(const struct subject *s, const char *what, uint64_t caps, struct hd_error *err)
{
    uint64_t unknown = caps & STRICT_CAPS;
    if (!unknown)
        return HD_OK;
    return refuse(s, err,
                  "%s.caps has bit %d, which this heddle (ABI %d.%d) does not know and must not ignore (bits 48 to "
                  "63): use a newer heddle",
                  what, __builtin_ctzll(unknown), HD_ABI_MAJOR, HD_ABI_MINOR);
}

/* ---- the descriptor */

static int32_t check_magic(const struct subject *s, const struct hd_plugin *plugin, struct hd_error *err)
{
    char hex[3 * sizeof plugin->magic + 1];
    if (memcmp(plugin->magic, HD_PLUGIN_MAGIC, sizeof plugin->magic) == 0)
        return HD_OK;
    for (size_t i = 0; i < sizeof plugin->magic; i++)
        snprintf(hex + 3 * i, 4, " %02x", (unsigned char)plugin->magic[i]);
    return refuse(s, err, "wrong magic%s, heddle's is 68 65 64 64 6c 65 0a 1a: set .magic = HD_PLUGIN_MAGIC", hex);
}

static int32_t check_descriptor(const struct subject *s, const struct hd_plugin *plugin, struct hd_error *err)
{
    int32_t r;
    if ((r = check_magic(s, plugin, err)) ||
        (r = check_size(s, "struct hd_plugin", plugin->struct_size, HD__END(struct hd_plugin, components), err)))
        return r;
    if (plugin->abi_minor > HD_ABI_MINOR)
        return refuse(s, err,
                      "built for ABI %d.%u, this heddle has %d.%d and may lack calls it relies on: use a newer heddle, "
                      "or build the plugin with this heddle's headers",
                      HD_ABI_MAJOR, plugin->abi_minor, HD_ABI_MAJOR, HD_ABI_MINOR);
    if (!plugin->name || !plugin->version || !plugin->licence)
        return refuse(s, err, "struct hd_plugin.%s is NULL: fill it",
                      !plugin->name      ? "name"
                      : !plugin->version ? "version"
                                         : "licence");
    if (!plugin->components || !plugin->components[0])
        return refuse(s, err, "it offers no component: struct hd_plugin.components is empty");
    return HD_OK;
}

/* ---- the component */

/* Refuses a plugin that lacks the component asked for, and names those that it has. */
static int32_t wrong_component(const struct subject *s, const struct hd_plugin *plugin, uint32_t kind,
                               struct hd_error *err)
{
    const struct hd_component *first = plugin->components[0];
    if (!strcmp(hd__kind_name(first->kind), "?"))
        return refuse(s, err, "struct hd_component.kind is %u, which is no HD_KIND_...: set it", first->kind);
    struct hd__text offers = {0};
    for (const struct hd_component *const *c = plugin->components; *c; c++)
        hd__text_add(&offers, "%s%s-%s", c == plugin->components ? "" : ", ", hd__kind_name((*c)->kind), (*c)->name);
    int32_t r =
        refuse(s, err, "wrong %s: the file's name promises %s, but it offers %s: rename the file to heddle-%s-%s.so",
               first->kind == kind ? "name" : "kind", s->label, offers.at, hd__kind_name(first->kind), first->name);
    hd__text_free(&offers);
    return r;
}

static int32_t pick_component(const struct subject *s, const struct hd_plugin *plugin, uint32_t kind, const char *name,
                              const struct hd_component **picked, struct hd_error *err)
{
    const struct hd_component *found = NULL;
    for (const struct hd_component *const *c = plugin->components; *c; c++) {
        int32_t r = check_size(s, "struct hd_component", (*c)->struct_size, HD__END(struct hd_component, ops), err);
        if (r)
            return r;
        if (!(*c)->name || !(*c)->summary)
            return refuse(s, err, "struct hd_component.%s is NULL: fill it", (*c)->name ? "summary" : "name");
        if ((*c)->kind != kind || strcmp((*c)->name, name) != 0)
            continue;
        if (found)
            return refuse(s, err, "duplicate name: two of its components are called %s", s->label);
        found = *c;
    }
    if (!found)
        return wrong_component(s, plugin, kind, err);
    *picked = found;
    return HD_OK;
}

/* ---- options */

static int32_t normalise_options(struct hd__arena *arena, const struct subject *s, const struct hd_component *theirs,
                                 struct hd__component *out, struct hd_error *err)
{
    struct hd_option *ours = hd__arena_alloc(arena, theirs->n_options * sizeof *ours);
    struct hd__options table = {ours, theirs->n_options, sizeof *ours};
    struct hd_error why = HD_ERROR_INIT;
    int32_t r;
    if (!theirs->n_options)
        return HD_OK;
    if (!theirs->options)
        return refuse(s, err, "options is NULL, but n_options is %zu", theirs->n_options);
    if ((r = check_size(s, "struct hd_option", theirs->option_size, HD__END(struct hd_option, offset), err)))
        return r;
    for (size_t i = 0; i < theirs->n_options; i++) {
        copy_sized(&ours[i], sizeof ours[i], (const char *)theirs->options + i * theirs->option_size,
                   theirs->option_size);
        if (!ours[i].help)
            return refuse(s, err, "option %s has no help: write one line",
                          ours[i].name ? ours[i].name : "without a name");
    }
    if (hd__options_check(&table, theirs->settings_size, &why))
        return refuse(s, err, "its table of options is wrong: %s", why.message);
    out->options = ours;
    out->n_options = theirs->n_options;
    return HD_OK;
}

/* ---- aliases */

/* Does the preset name known options, with valid values? */
static int32_t check_preset(struct hd__arena *arena, const struct hd_alias *alias, const struct hd__component *c,
                            struct hd_error *why)
{
    struct hd__options table = {c->options, c->n_options, sizeof *c->options};
    void *settings = hd__arena_alloc(arena, c->settings_size);
    struct hd__tree_node *preset;
    int32_t r = hd__tree_parse("preset", alias->preset, strlen(alias->preset), "preset", arena, &preset, why);
    if (!r && preset->kind != HD__MAP)
        r = hd_fail(why, HD_E_INVALID, "'%s' is no mapping: {KEY: VALUE}", alias->preset);
    for (uint32_t i = 0; !r && i < preset->count; i++) {
        const char *key = preset->key[i]->text;
        int64_t at = hd__option_find(&table, key);
        struct hd__text text = {0};
        hd__tree_text(preset->value[i], &text);
        r = at < 0 ? hd_fail(why, HD_E_INVALID, "there is no option %s", key)
                   : hd__option_parse(&c->options[at], text.at, settings, arena, why);
        hd__text_free(&text);
    }
    return r;
}

static int32_t check_alias(struct hd__arena *arena, const struct subject *s, const struct hd_alias *alias,
                           const struct hd__component *c, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    const char *name = alias->name;
    if (!name || !*name || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-")])
        return refuse(s, err, "alias '%s': a name has lower-case letters, digits, _ and -", name ? name : "");
    if (!alias->summary)
        return refuse(s, err, "alias %s has no summary: write one line", name);
    if (hd__plugin_alias(c, name) || !strcmp(name, c->name))
        return refuse(s, err, "two of its names are %s", name);
    if (alias->preset && check_preset(arena, alias, c, &why))
        return refuse(s, err, "the preset of alias %s: %s", name, why.message);
    return HD_OK;
}

static int32_t normalise_aliases(struct hd__arena *arena, const struct subject *s, const struct hd_component *theirs,
                                 struct hd__component *out, struct hd_error *err)
{
    struct hd_alias *ours;
    int32_t r;
    if (theirs->struct_size < HD__END(struct hd_component, alias_size) || !theirs->n_aliases)
        return HD_OK;
    if (!theirs->aliases)
        return refuse(s, err, "aliases is NULL, but n_aliases is %zu", theirs->n_aliases);
    if ((r = check_size(s, "struct hd_alias", theirs->alias_size, HD__END(struct hd_alias, summary), err)))
        return r;
    ours = hd__arena_alloc(arena, theirs->n_aliases * sizeof *ours);
    out->aliases = ours;
    for (size_t i = 0; i < theirs->n_aliases; i++) {
        copy_sized(&ours[i], sizeof ours[i], (const char *)theirs->aliases + i * theirs->alias_size,
                   theirs->alias_size);
        if ((r = check_alias(arena, s, &ours[i], out, err)))
            return r;
        out->n_aliases = i + 1;
    }
    return HD_OK;
}

/* ---- the table of slots */

static int32_t normalise_ops(const struct subject *s, const struct hd__plugin_kind *kind, const void *theirs,
                             struct hd__component *out, struct hd_error *err)
{
    size_t their_size;
    uint64_t caps;
    int32_t r;
    if (!theirs)
        return refuse(s, err, "struct hd_component.ops is NULL: it must point to a %s", kind->struct_name);
    memcpy(&their_size, theirs, sizeof their_size);
    if ((r = check_size(s, kind->struct_name, their_size, kind->min_size, err)))
        return r;
    memcpy(&caps, (const char *)theirs + sizeof their_size, sizeof caps);
    if ((r = check_caps(s, kind->struct_name, caps, err)))
        return r;
    copy_sized(&out->ops, kind->size, theirs, their_size);
    memcpy(&out->ops, &kind->size, sizeof kind->size); /* struct_size is now ours */
    for (size_t i = 0; i < kind->n_mandatory; i++) {
        void (*slot)(void);
        memcpy(&slot, (const char *)&out->ops + kind->mandatory[i].offset, sizeof slot);
        if (!slot)
            return refuse(s, err, "slot '%s' is missing: it is mandatory in %s", kind->mandatory[i].name,
                          kind->struct_name);
    }
    const char *fault = kind->check ? kind->check(&out->ops) : NULL;
    return fault ? refuse(s, err, "%s", fault) : HD_OK;
}

int32_t hd__plugin_normalise(struct hd__arena *arena, const struct hd_plugin *plugin, uint32_t kind, const char *name,
                             const char *path, struct hd__component *out, struct hd_error *err)
{
    char *label = hd__arena_format(arena, "%s-%s", hd__kind_name(kind), name);
    struct subject s = {label, path};
    const struct hd__plugin_kind *rules = hd__plugin_kind_find(kind);
    const struct hd_component *theirs = NULL;
    struct hd__component c;
    int32_t r;
    memset(&c, 0, sizeof c);
    if ((r = check_descriptor(&s, plugin, err)) || (r = pick_component(&s, plugin, kind, name, &theirs, err)))
        return r;
    if (!rules)
        return refuse(&s, err, "this heddle has no interface for plugins of kind %s", hd__kind_name(kind));
    c.name = theirs->name;
    c.settings_size = theirs->settings_size;
    if ((r = check_caps(&s, "struct hd_component", theirs->caps, err)) ||
        (r = normalise_options(arena, &s, theirs, &c, err)) || (r = normalise_aliases(arena, &s, theirs, &c, err)) ||
        (r = normalise_ops(&s, rules, theirs->ops, &c, err)))
        return r;
    c.kind = kind;
    c.label = label;
    c.summary = theirs->summary;
    c.version = plugin->version;
    c.licence = plugin->licence;
    c.path = hd__arena_strdup(arena, path);
    c.caps = theirs->caps;
    c.abi_minor = plugin->abi_minor;
    c.probe = theirs->probe;
    if (theirs->struct_size >= HD__END(struct hd_component, check))
        c.check = theirs->check;
    *out = c;
    return HD_OK;
}
