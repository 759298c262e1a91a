#include "load.h"

#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "mock.h"

const struct hd_component *model_component;
const struct hd_model_ops *model_ops;
char model_warnings[4096];

static void note(uint32_t level, const char *component, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ck_assert_str_eq(component, "model-transformer");
    if (level == HD_LOG_WARN)
        snprintf(model_warnings + strlen(model_warnings), sizeof model_warnings - strlen(model_warnings), "%s\n", line);
}

static void *take(size_t bytes)
{
    return calloc(1, bytes);
}

struct hd_host model_host = {
    .struct_size = sizeof model_host,
    .abi_minor = HD_ABI_MINOR,
    .log = note,
    .alloc = take,
    .free = free,
    .build = &mock_builder,
};

void model_load(void)
{
    void *object = dlopen(MODEL_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    ck_assert_msg(object != NULL, "%s", dlerror());
    hd_plugin_entry entry = (hd_plugin_entry)dlsym(object, HD_PLUGIN_SYMBOL);
    ck_assert_ptr_nonnull(entry);
    model_component = entry()->components[0];
    model_ops = model_component->ops;
    ck_assert_uint_eq(model_component->kind, HD_KIND_MODEL);
    model_warnings[0] = '\0';
}

static const struct hd_option *option_named(const char *name)
{
    for (size_t i = 0; i < model_component->n_options; i++)
        if (!strcmp(model_component->options[i].name, name))
            return &model_component->options[i];
    ck_abort_msg("no option %s", name);
    return NULL;
}

static int32_t choice(const char *choices, const char *word)
{
    char copy[128], *at = copy, *item;
    snprintf(copy, sizeof copy, "%s", choices);
    for (int32_t i = 0; (item = strsep(&at, "|")); i++)
        if (!strcmp(item, word))
            return i;
    ck_abort_msg("%s is none of %s", word, choices);
    return -1;
}

static void set(void *settings, const char *name, const char *value)
{
    const struct hd_option *option = option_named(name);
    char *field = (char *)settings + option->offset;
    if (option->type == HD_OPT_INT)
        *(int64_t *)(void *)field = atoll(value);
    else if (option->type == HD_OPT_FLOAT)
        *(double *)(void *)field = atof(value);
    else if (option->type == HD_OPT_ENUM)
        *(int32_t *)(void *)field = choice(option->choices, value);
    else
        *(const char **)(void *)field = value;
}

void *model_settings(const char *key, ...)
{
    static char settings[512] __attribute__((aligned(16)));
    va_list args;
    ck_assert_uint_le(model_component->settings_size, sizeof settings);
    memset(settings, 0, sizeof settings);
    for (uint32_t i = 0; i < model_component->n_options; i++) /* as the core: what is not said has its default */
        if (model_component->options[i].type == HD_OPT_FLOAT && model_component->options[i].value)
            set(settings, model_component->options[i].name, model_component->options[i].value);
    va_start(args, key);
    for (; key; key = va_arg(args, const char *))
        set(settings, key, va_arg(args, const char *));
    va_end(args);
    return settings;
}

struct hd_model *model_open(struct hd_error *err, const void *settings)
{
    struct hd_model *model = NULL;
    int32_t rc = model_ops->open(&model_host, settings, &model, err);
    ck_assert_int_eq(rc == HD_OK, model != NULL);
    return model;
}
