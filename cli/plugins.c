/* heddle plugins: lists installed plugins, why one is not usable, and its options. */
#include <jansson.h>
#include <stdlib.h>

#include "cli/command.h"
#include "core/base/option.h"
#include "core/plugin/plugin.h"

struct plugins_arguments {
    const char *label; /* NULL: all */
    int json;
};

static const char *entry_name(const struct hd__plugin_entry *e)
{
    const char *name = e->label;
    hd__plugin_kind_of_label(e->label, &name);
    return name;
}

/* ---- text */

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
    for (size_t i = 0; i < n; i++) {
        const struct hd__plugin_entry *e = &entries[i];
        const struct hd__component *c = e->component;
        printf("%-9s %-*s %-9s %-7s %s\n", e->kind ? hd__plugin_kind_name(e->kind) : "?", width, entry_name(e),
               c ? c->version : "-", e->usable ? "yes" : "no", e->usable ? c->summary : e->reason);
    }
}

static struct hd__options options_of(const struct hd__component *c)
{
    return (struct hd__options){c->options, c->n_options, sizeof(struct hd_option)};
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
        struct hd__options table = options_of(c);
        struct hd__text text = {0};
        hd__options_print(&table, &text);
        printf("\n%s", table.count ? text.at : "no options\n");
        hd__text_free(&text);
    }
}

/* ---- JSON */

static json_t *text_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

static void print_json(const struct hd__plugin_entry *entries, size_t n, int with_options)
{
    json_t *list = json_array(), *root = json_pack("{s:o}", "plugins", list);
    for (size_t i = 0; i < n; i++) {
        const struct hd__plugin_entry *e = &entries[i];
        const struct hd__component *c = e->component;
        json_t *entry =
            json_pack("{s:s, s:s, s:o, s:o, s:o, s:b, s:o, s:o}", "kind", e->kind ? hd__plugin_kind_name(e->kind) : "?",
                      "name", entry_name(e), "version", text_or_null(c ? c->version : NULL), "licence",
                      text_or_null(c ? c->licence : NULL), "summary", text_or_null(c ? c->summary : NULL), "usable",
                      (int)e->usable, "reason", text_or_null(e->reason), "path", text_or_null(e->path));
        if (with_options && c) {
            struct hd__options table = options_of(c);
            json_object_set_new(entry, "options", hd__options_json(&table));
        }
        json_array_append_new(list, entry);
    }
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

/* ---- the command */

static int no_such_plugin(const struct hd__plugin_entry *entries, size_t n, const char *label)
{
    const char **labels = hd__alloc(n * sizeof *labels), *nearest;
    for (size_t i = 0; i < n; i++)
        labels[i] = entries[i].label;
    nearest = hd__nearest(label, labels, n);
    for (size_t i = 0; i < n && !nearest; i++) /* its name without the kind */
        nearest = !strcmp(label, entry_name(&entries[i])) ? labels[i] : NULL;
    fprintf(stderr, "heddle plugins: there is no plugin '%s'%s%s%s (`heddle plugins` lists them)\n", label,
            nearest ? ": did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
    free(labels);
    return HD__EXIT_REFUSED;
}

static int show(const struct hd__plugin_entry *entries, size_t n, const struct plugins_arguments *a)
{
    const struct hd__plugin_entry *one = NULL;
    for (size_t i = 0; i < n && a->label && !one; i++)
        one = strcmp(entries[i].label, a->label) ? NULL : &entries[i];
    if (a->label && !one)
        return no_such_plugin(entries, n, a->label);
    if (a->json)
        print_json(one ? one : entries, one ? 1 : n, one != NULL);
    else if (one)
        print_one(one);
    else
        print_table(entries, n);
    return HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct plugins_arguments a = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plugins *registry;
    const struct hd__plugin_entry *entries;
    size_t n;
    int code;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            a.json = 1;
        else if (argv[i][0] == '-' || a.label)
            return hd__cli_usage_error(&hd__command_plugins, "it does not know '%s'", argv[i]);
        else
            a.label = argv[i];
    }
    registry = hd__plugins_create(NULL);
    if (hd__plugins_add_default_folders(registry, &err)) {
        fprintf(stderr, "heddle plugins: %s\n", err.message);
        code = HD__EXIT_REFUSED;
    } else {
        hd__plugin_scan(registry, &entries, &n);
        code = show(entries, n, &a);
    }
    hd__plugins_destroy(registry);
    return code;
}

const struct hd__command hd__command_plugins = {
    .name = "plugins",
    .usage = "[KIND-NAME] [--json]",
    .summary = "list the plugins; show one plugin's options",
    .help = "Lists every plugin in HEDDLE_PLUGIN_PATH (folders, separated by colons) and in heddle's own\n"
            "folder, and for one that cannot be used the reason. With KIND-NAME: that plugin and its options.\n"
            "  --json   print {\"plugins\": [{kind, name, version, licence, summary, usable, reason, path}]}\n"
            "           and, of a single plugin, its options\n",
    .example = "  heddle plugins\n  heddle plugins optim-adamw\n",
    .run = run,
};
