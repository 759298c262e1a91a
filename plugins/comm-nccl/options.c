/* The tables of options.h as options, as variables and as ncclConfig_t. */
#include "options.h"

#define AT(name) offsetof(struct nc_settings, name)

const struct hd_option nc_options[NC_N_OPTIONS] = {
    {.name = "library",
     .value = "libnccl.so.2",
     .type = HD_OPT_STRING,
     .help = "NCCL: a name that the loader finds, or a path",
     .offset = AT(library)},
    {.name = "driver",
     .value = "libcuda.so.1",
     .type = HD_OPT_STRING,
     .level = HD_LEVEL_DEV,
     .help = "CUDA's driver",
     .offset = AT(driver)},
    {.name = "blocking",
     .value = "no",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_TUNER,
     .help = "collectives wait while NCCL connects, and are cheaper to call (from NCCL 2.28 on, others start a thread "
             "each); an abort alone ends them",
     .offset = AT(blocking)},
    {.name = "registered",
     .value = "yes",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_TUNER,
     .help = "memory of operations is registered with NCCL when first used, where NCCL can (2.19; not 2.23)",
     .flags = HD_OPTION_GLOBAL,
     .offset = AT(registered)},
    {.name = "message_ctas",
     .value = "-1",
     .type = HD_OPT_INT,
     .level = HD_LEVEL_TUNER,
     .unit = "blocks",
     .min = -1,
     .max = 64,
     .help = "most blocks of a message (send, recv); -1: max_ctas",
     .offset = AT(message_ctas)},
    {.name = "net_name",
     .type = HD_OPT_STRING,
     .level = HD_LEVEL_TUNER,
     .help = "the network module of communicators",
     .offset = AT(net_name)},
#define ROW(id, variable, text_level, text) \
    {.name = #id,                           \
     .type = HD_OPT_STRING,                 \
     .level = HD_LEVEL_##text_level,        \
     .help = text " (" variable ")",        \
     .offset = AT(id)},
    NC_TEXTS(ROW)
#undef ROW
#define ROW(id, variable, lowest, highest, unset, in, number_level, text) \
    {.name = #id,                                                         \
     .value = #unset,                                                     \
     .type = highest > 1e9 ? HD_OPT_SIZE : HD_OPT_INT,                    \
     .level = HD_LEVEL_##number_level,                                    \
     .unit = in,                                                          \
     .min = lowest,                                                       \
     .max = highest,                                                      \
     .help = text " (" variable ")",                                      \
     .offset = AT(id)},
        NC_NUMBERS(ROW)
#undef ROW
#define ROW(id, variable, words, choice_level, text) \
    {.name = #id,                                    \
     .value = "default",                             \
     .type = HD_OPT_ENUM,                            \
     .choices = words,                               \
     .level = HD_LEVEL_##choice_level,               \
     .help = text " (" variable ")",                 \
     .offset = AT(id)},
            NC_CHOICES(ROW)
#undef ROW
#define ROW(id, highest, first, in, field_level, text) \
    {.name = #id,                                      \
     .value = "-1",                                    \
     .type = HD_OPT_INT,                               \
     .level = HD_LEVEL_##field_level,                  \
     .unit = in,                                       \
     .min = -1,                                        \
     .max = highest,                                   \
     .help = text "; -1: NCCL's",                      \
     .offset = AT(id)},
                NC_FIELDS(ROW)
#undef ROW
};

/* ---- variables */

struct list {
    struct nc_variable *at;
    int32_t n, reserved;
};

static int32_t add(struct list *list, const char *name, const char *text, size_t length, struct hd_error *err)
{
    struct nc_variable *v = &list->at[list->n];
    if (length >= sizeof v->value)
        return hd_fail(err, HD_E_INVALID, "nccl: the value for %s has %zu bytes, at most %zu are taken", name, length,
                       sizeof v->value - 1);
    v->name = name;
    snprintf(v->value, sizeof v->value, "%.*s", (int)length, text);
    list->n++;
    return HD_OK;
}

static int32_t add_number(struct list *list, const char *name, int64_t value, struct hd_error *err)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return add(list, name, text, strlen(text), err);
}

/* The choice-th word of "default|no|yes". */
static int32_t add_choice(struct list *list, const char *name, const char *words, int32_t choice, struct hd_error *err)
{
    for (; choice > 0 && words; choice--)
        words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL;
    if (!words)
        return hd_fail(err, HD_E_INVALID, "nccl: %s has no such choice", name);
    size_t length = strcspn(words, "|");
    if (length == 2 && !strncmp(words, "no", 2))
        return add(list, name, "0", 1, err);
    if (length == 3 && !strncmp(words, "yes", 3))
        return add(list, name, "1", 1, err);
    return add(list, name, words, length, err);
}

int32_t nc_variables(const struct nc_settings *s, struct nc_variable variables[NC_N_VARIABLES], struct hd_error *err)
{
    struct list list = {.at = variables};
    int32_t rc = HD_OK;
#define ROW(name, variable, ...) \
    if (!rc && s->name)          \
        rc = add(&list, variable, s->name, strlen(s->name), err);
    NC_TEXTS(ROW)
#undef ROW
#define ROW(name, variable, lowest, highest, unset, ...) \
    if (!rc && s->name != (unset))                       \
        rc = add_number(&list, variable, s->name, err);
    NC_NUMBERS(ROW)
#undef ROW
#define ROW(name, variable, words, ...) \
    if (!rc && s->name)                 \
        rc = add_choice(&list, variable, words, s->name, err);
    NC_CHOICES(ROW)
#undef ROW
    return rc ? rc : list.n;
}

/* ---- ncclConfig_t */

static int32_t too_old(const char *name, int first, int version, struct hd_error *err)
{
    return hd_fail(err, HD_E_UNSUPPORTED, "nccl: %s needs NCCL %d.%d, and this is %d.%d.%d", name, first / 10000,
                   first / 100 % 100, version / 10000, version / 100 % 100, version % 100);
}

int32_t nc_config(const struct nc_settings *s, int version, struct nc_config *out, struct hd_error *err)
{
    struct nc_config config = {.size = sizeof config,
                               .magic = NC_MAGIC,
                               .version = NC_VERSION(2, 28, 9),
                               .blocking = s->blocking != 0,
                               .net_name = s->net_name,
                               .shrink_share = NC_UNSET};
#define ROW(id, highest, first, ...)              \
    if (s->id >= 0 && version < (first))          \
        return too_old(#id, first, version, err); \
    config.id = s->id >= 0 ? (int)s->id : NC_UNSET;
    NC_FIELDS(ROW)
#undef ROW
    if (config.min_ctas > 0 && config.max_ctas > 0 && config.min_ctas > config.max_ctas)
        return hd_fail(err, HD_E_INVALID, "nccl: min_ctas %d is more than max_ctas %d", config.min_ctas,
                       config.max_ctas);
    *out = config;
    return HD_OK;
}

/* 2.23 has GPUs of a machine reach memory that is registered, which may hang with what cudaMalloc gave, as heddle's:
 * from 2.24 on NCCL leaves that out (NCCL_LEGACY_CUDA_REGISTER). */
int nc_registers(const struct nc_settings *s, int version)
{
    return s->registered && (version < NC_VERSION(2, 23, 0) || version >= NC_VERSION(2, 24, 0));
}
