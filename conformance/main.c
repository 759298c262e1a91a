/* heddle-test: what `heddle test KIND-NAME` runs: the checks that a plugin of its kind has to pass. A program of its
 * own beside heddle, so that no job carries them, and launchers of transports can start it again. */
#include <stdlib.h>
#include <unistd.h>

#include "conformance/check.h"
#include "conformance/comm/ranks.h"
#include "core/base/option.h"
#include "core/plugin/crash.h"
#include "core/plugin/plugin.h"
#include "runtime/rendezvous/host_store.h"
#include "service/launch/external.h"

struct conf_target conf_target;

static const struct conf_kind {
    uint32_t kind;
    void (*run)(void);
    int (*word)(const char *word);
    const char *words; /* those of `heddle help test` that it takes */
} kinds[] = {
    {HD_KIND_OPTIMIZER, conf_optim, NULL, "set:KEY=VALUE"},
    {HD_KIND_CKPT, conf_ckpt, conf_ckpt_word, "set:KEY=VALUE, at=URL"},
    {HD_KIND_COMM, conf_comm, conf_comm_word,
     "set:KEY=VALUE, results, failures, few, alone, strict, soak=N, seed=S, ranks=R, huge=BYTES"},
    {HD_KIND_MODEL, conf_model, NULL, "set:KEY=VALUE"},
    {HD_KIND_HOOK, conf_hook, NULL, "set:KEY=VALUE"},
    {HD_KIND_DATA, conf_data, conf_data_word, "set:KEY=VALUE, path=PATH"},
    {HD_KIND_TOKENIZER, conf_tokenizer, conf_tokenizer_word, "path=PATH, token=TEXT, lossy"},
    {HD_KIND_METRICS, conf_metrics, NULL, "set:KEY=VALUE"},
    {HD_KIND_DEVICE, conf_device, conf_device_word, "set:KEY=VALUE, table"},
    {HD_KIND_STRATEGY, conf_strategy, conf_strategy_word, "set:KEY=VALUE, strategies=[...], draws=N, seed=S"},
};

enum { REFUSED = 2 };

__attribute__((format(printf, 1, 2))) static int refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("heddle test: ", stderr);
    vfprintf(stderr, format, args);
    fputs(" (`heddle help test`)\n", stderr);
    va_end(args);
    return REFUSED;
}

/* "optim-lion", or the path of heddle-optim-lion.so. 0 or REFUSED. */
static int read_target(const char *word)
{
    static char folder[4096], label[128];
    const char *slash = strrchr(word, '/'), *base = slash ? slash + 1 : word;
    size_t n = strlen(base);
    conf_target.label = word;
    if (slash || (n > 3 && !strcmp(base + n - 3, ".so"))) {
        if (strncmp(base, "heddle-", 7) || n < 11 || n - 10 >= sizeof label || strcmp(base + n - 3, ".so"))
            return refuse("%s: a plugin's file is called heddle-KIND-NAME.so", word);
        if (access(word, R_OK))
            return refuse("%s: there is no such file that can be read", word);
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)HD__MAX(slash - word, 1) : 1, slash ? word : ".");
        snprintf(label, sizeof label, "%.*s", (int)(n - 10), base + 7);
        conf_target.folder = realpath(folder, NULL);
        conf_target.label = label;
    }
    conf_target.kind = hd__plugin_kind_of_label(conf_target.label, &conf_target.name);
    return conf_target.kind ? 0
                            : refuse("'%s' is no plugin: say KIND-NAME, as optim-lion, or the path of its .so", word);
}

static int read_word(const struct conf_kind *kind, const char *word)
{
    if (!strncmp(word, "set:", 4) && strchr(word, '='))
        conf_target.set[conf_target.n_set++] = word + 4;
    if (!strncmp(word, "only=", 5) && word[5])
        return (conf_target.only = word + 5) != NULL;
    if (kind->word)
        return kind->word(word);
    return !strncmp(word, "set:", 4) && strchr(word, '=');
}

void *conf_settings(struct hd_error *err)
{
    static struct hd__arena arena;
    const struct hd__component *c = conf_target.component;
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_alloc(&arena, c->settings_size);
    if (hd__options_defaults(&table, settings, &arena, err))
        return NULL;
    for (size_t i = 0; i < conf_target.n_set; i++) {
        const char *value = strchr(conf_target.set[i], '=') + 1;
        const char *name = hd__arena_format(&arena, "%.*s", (int)(value - 1 - conf_target.set[i]), conf_target.set[i]);
        int64_t at = hd__option_find(&table, name);
        if (at < 0) {
            hd_fail(err, HD_E_INVALID, "%s has no option '%s': `heddle plugins %s` lists them", c->label, name,
                    c->label);
            return NULL;
        }
        struct hd_option option = hd__option_at(&table, (size_t)at);
        if (hd__option_parse(&option, value, settings, &arena, err))
            return NULL;
    }
    for (size_t o = 0; o < table.count; o++) {
        struct hd_option option = hd__option_at(&table, o);
        int given = !(option.flags & HD_OPTION_REQUIRED);
        for (size_t i = 0; i < conf_target.n_set; i++)
            given |=
                (size_t)hd__option_find(&table, hd__arena_format(&arena, "%.*s", (int)strcspn(conf_target.set[i], "="),
                                                                 conf_target.set[i])) == o;
        if (!given) {
            hd_fail(err, HD_E_INVALID, "option %s has no default", option.name);
            return NULL;
        }
    }
    return settings;
}

/* A check runs in a folder of its own: paths of what is there are those from here. */
static void keep_paths(void)
{
    const struct hd__component *c = conf_target.component;
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    if (conf_target.kind == HD_KIND_METRICS) /* whose paths are written: into the check's own folder */
        return;
    for (size_t i = 0; i < conf_target.n_set; i++) {
        const char *value = strchr(conf_target.set[i], '=') + 1;
        char *name = hd__format("%.*s", (int)(value - 1 - conf_target.set[i]), conf_target.set[i]), *path = NULL;
        int64_t at = hd__option_find(&table, name);
        if (at >= 0 && (hd__option_at(&table, (size_t)at).flags & HD_OPTION_PATH) && (path = realpath(value, NULL)))
            conf_target.set[i] = hd__format("%s=%s", name, path);
        free(path);
        free(name);
    }
}

/* Its exit code is that of `heddle plugins`: 1 for a plugin that cannot be used, 2 where there is none. */
static int load(void)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plugins *plugins = conf_target.plugins = hd__plugins_create(hd__store_host_table());
    int32_t rc = conf_target.folder ? hd__plugins_add_folder(plugins, conf_target.folder, &err)
                                    : hd__plugins_add_default_folders(plugins, &err);
    rc = rc ? rc : hd__plugin_find(plugins, conf_target.kind, conf_target.name, &conf_target.component, &err);
    if (rc == HD_OK) {
        conf_target.label = conf_target.component->label;
        conf_target.name = conf_target.component->name;
        if (conf_target.kind == HD_KIND_COMM) /* it is probed by a rank, which may have to open a device first */
            return 0;
        rc = hd__plugin_probe(plugins, conf_target.component, &err);
    }
    if (rc)
        fprintf(stderr, "heddle test: %s\n", err.message);
    return rc == HD_E_NOTFOUND ? REFUSED : rc != HD_OK;
}

int main(int argc, char **argv)
{
    const struct conf_kind *kind = NULL;
    struct hd_error err = HD_ERROR_INIT;
    int code;
    hd__crash_catch("heddle test", "");
    hd__crash_set_patience(HD__CRASH_PATIENCE);
    if (argc < 2)
        return refuse("which plugin? Say KIND-NAME, as optim-lion, or the path of its .so");
    if ((code = read_target(argv[1])))
        return code;
    for (size_t k = 0; k < HD__COUNT(kinds); k++)
        kind = kinds[k].kind == conf_target.kind ? &kinds[k] : kind;
    if (!kind)
        return refuse("no conformance test for kind %s yet", hd__kind_name(conf_target.kind));
    conf_target.set = hd__alloc((size_t)argc * sizeof *conf_target.set);
    transport_told = 1; /* as in a job, unless a word says `alone` */
    for (int i = 2; i < argc; i++)
        if (!read_word(kind, argv[i]))
            return refuse("'%s' is not understood: what %s takes is %s", argv[i], hd__kind_name(kind->kind),
                          kind->words);
    transport_name = conf_target.name;
    transport_folder = conf_target.folder;
    if (launched_rank(&code))
        return code;
    if ((code = load()))
        return code;
    transport_name = conf_target.name;
    keep_paths();
    if (!conf_settings(&err)) {
        fprintf(stderr, "heddle test: %s: %s; say set:KEY=VALUE\n", conf_target.label, err.message);
        return REFUSED;
    }
    kind->run();
    return conf_finish();
}
