/* heddle plugins: what is installed, what cannot be used and why; a plugin's options. */
#include <jansson.h>
#include <stdlib.h>

#include "cli/command.h"
#include "core/base/option.h"
#include "core/plugin/crash.h"
#include "core/plugin/plugin.h"

static const char *entry_name(const struct hd__plugin_entry *e)
{
    const char *name = e->label;
    hd__plugin_kind_of_label(e->label, &name);
    return name;
}

/* ---- text */

static void print_row(const struct hd__plugin_entry *e, int width)
{
    const struct hd__component *c = e->component;
    printf("%-9s %-*s %-9s %-7s %s", e->kind ? hd__kind_name(e->kind) : "?", width, entry_name(e), c ? c->version : "-",
           e->usable ? "yes" : "no", e->usable ? c->summary : e->reason);
    for (size_t i = 0; c && i < c->n_aliases; i++)
        printf("%s%s", i ? ", " : "; also called ", c->aliases[i].name);
    putchar('\n');
}

static void print_table(const struct hd__plugin_entry *entries, size_t n)
{
    int width = 4;
    for (size_t i = 0; i < n; i++)
        width = HD__MAX(width, (int)strlen(entry_name(&entries[i])));
    if (!n) {
        puts("no plugins found: set HEDDLE_PLUGIN_PATH to a folder that has some");
        return;
    }
    printf("%-9s %-*s %-9s %-7s %s\n", "kind", width, "name", "version", "usable", "summary, or why not usable");
    for (size_t i = 0; i < n; i++)
        print_row(&entries[i], width);
}

static struct hd__options options_of(const struct hd__component *c)
{
    return (struct hd__options){c->options, c->n_options, sizeof(struct hd_option)};
}

static void print_aliases(const struct hd__component *c)
{
    for (size_t i = 0; i < c->n_aliases; i++)
        printf("also called %s%s%s%s: %s\n", c->aliases[i].name, c->aliases[i].preset ? " (" : "",
               c->aliases[i].preset ? c->aliases[i].preset : "", c->aliases[i].preset ? ")" : "",
               c->aliases[i].summary);
}

static void print_options(const struct hd__component *c)
{
    struct hd__options table = options_of(c);
    struct hd__text text = {0};
    hd__options_print(&table, &text);
    printf("\n%s", table.count ? text.at : "no options\n");
    hd__text_free(&text);
}

static void print_one(const struct hd__plugin_entry *e)
{
    const struct hd__component *c = e->component;
    printf("%s: %s\n", e->label, c ? c->summary : "cannot be loaded");
    if (c)
        printf("version %s, licence %s\n", c->version, c->licence);
    if (e->path)
        printf("file %s\n", e->path);
    if (e->usable)
        puts("usable: yes");
    else
        printf("usable: no: %s\n", e->reason);
    if (c) {
        print_aliases(c);
        print_options(c);
    }
}

/* ---- JSON */

static json_t *aliases_json(const struct hd__component *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_aliases; i++)
        json_array_append_new(list, json_pack("{s:s, s:o, s:s}", "name", c->aliases[i].name, "preset",
                                              hd__json_text(c->aliases[i].preset), "summary", c->aliases[i].summary));
    return list;
}

static json_t *entry_json(const struct hd__plugin_entry *e)
{
    const struct hd__component *c = e->component;
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:b, s:o, s:o}", "kind", e->kind ? hd__kind_name(e->kind) : "?", "name",
                     hd__json_text(entry_name(e)), "version", hd__json_text(c ? c->version : NULL), "licence",
                     hd__json_text(c ? c->licence : NULL), "summary", hd__json_text(c ? c->summary : NULL), "usable",
                     (int)e->usable, "reason", hd__json_text(e->reason), "path", hd__json_text(e->path));
}

static void print_json(const struct hd__plugin_entry *entries, size_t n, int with_options)
{
    json_t *list = json_array(), *root = json_pack("{s:o}", "plugins", list);
    for (size_t i = 0; i < n; i++) {
        json_t *entry = entry_json(&entries[i]);
        if (entries[i].component && entries[i].component->n_aliases)
            json_object_set_new(entry, "aliases", aliases_json(entries[i].component));
        if (with_options && entries[i].component) {
            struct hd__options table = options_of(entries[i].component);
            json_object_set_new(entry, "options", hd__options_json(&table));
        }
        json_array_append_new(list, entry);
    }
    hd__cli_print_json(root, JSON_INDENT(2));
}

/* ---- the command */

static const struct hd__plugin_entry *find_entry(const struct hd__plugin_entry *entries, size_t n, const char *label)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(entries[i].label, label) == 0)
            return &entries[i];
    for (size_t i = 0; i < n; i++) {
        const char *name;
        uint32_t kind = hd__plugin_kind_of_label(label, &name);
        if (kind && entries[i].kind == kind && entries[i].component && hd__plugin_alias(entries[i].component, name))
            return &entries[i];
    }
    return NULL;
}

static int no_such_plugin(const struct hd__plugin_entry *entries, size_t n, const char *label)
{
    HD__ARRAY(const char *) labels = {0};
    struct hd__arena arena = {0};
    for (size_t i = 0; i < n; i++)
        hd__push(&labels, entries[i].label);
    for (size_t i = 0; i < n; i++)
        for (size_t a = 0; entries[i].component && a < entries[i].component->n_aliases; a++)
            hd__push(&labels, hd__arena_format(&arena, "%s-%s", hd__kind_name(entries[i].kind),
                                               entries[i].component->aliases[a].name));
    const char *nearest = hd__nearest(label, labels.at, labels.count);
    for (size_t i = 0; i < n && !nearest; i++) /* its name without the kind */
        nearest = !strcmp(label, entry_name(&entries[i])) ? entries[i].label : NULL;
    fprintf(stderr, "heddle plugins: there is no plugin '%s'%s%s%s (`heddle plugins` lists them)\n", label,
            strchr(label, '/') ? ": KIND-NAME is wanted, and HEDDLE_PLUGIN_PATH=FOLDER where it lies"
            : nearest          ? ": did you mean '"
                               : "",
            nearest ? nearest : "", nearest ? "'?" : "");
    hd__free_array(&labels);
    hd__arena_free(&arena);
    return HD__EXIT_REFUSED;
}

/* `label` NULL: all. */
static int show(const struct hd__plugin_entry *entries, size_t n, const char *label, int json)
{
    const struct hd__plugin_entry *one = label ? find_entry(entries, n, label) : NULL;
    if (label && !one)
        return no_such_plugin(entries, n, label);
    if (json)
        print_json(one ? one : entries, one ? 1 : n, one != NULL);
    else if (one)
        print_one(one);
    else
        print_table(entries, n);
    return one && !one->usable ? HD__EXIT_FAILED : HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct hd__cli_words words;
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__plugin_entry *entries;
    size_t n;
    int json = 0;
    const struct hd__cli_flag flags[] = {{"--json", NULL, &json}};
    int code = hd__cli_split(&hd__command_plugins, argc, argv, flags, HD__COUNT(flags), &words);
    if (!code && words.count > 1)
        code = hd__cli_usage_error(&hd__command_plugins, "one plugin at a time: '%s' is too many", words.at[1]);
    struct hd__plugins *registry = hd__plugins_create(NULL);
    hd__crash_set_patience(HD__CRASH_PATIENCE);
    if (!code && hd__plugins_add_default_folders(registry, &err)) {
        fprintf(stderr, "heddle plugins: %s\n", err.message);
        code = HD__EXIT_REFUSED;
    } else if (!code) {
        hd__plugin_scan(registry, &entries, &n);
        code = show(entries, n, words.count ? words.at[0] : NULL, json);
    }
    hd__plugins_destroy(registry);
    free(words.at);
    return code;
}

const struct hd__command hd__command_plugins = {
    .name = "plugins",
    .usage = "[KIND-NAME] [--json]",
    .summary = "list the plugins; show one plugin's options",
    .help = "Lists every plugin in HEDDLE_PLUGIN_PATH (folders, separated by colons) and in heddle's own\n"
            "folder, and for one that cannot be used the reason. With KIND-NAME: that plugin and its options;\n"
            "exit code 1 if it cannot be used, 2 if there is none. A plugin whose constructor or probe takes more\n"
            "than 90 s is named, and ends the command with exit code 1.\n"
            "  --json   print {\"plugins\": [{kind, name, version, licence, summary, usable, reason, path}]}\n"
            "           with aliases where it has some, and, of a single plugin, its options\n",
    .example = "  heddle plugins\n  heddle plugins optim-adamw\n",
    .run = run,
};
