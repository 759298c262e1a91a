/* One optimizer plugin with one fault each: FAULT_xxx is defined by the build. Without a fault it is a good
 * plugin. NAME is the component's name. */
#include <stdio.h>
#include <unistd.h>

#include "heddle/host.h"
#include "heddle/optimizer.h"

#ifndef NAME
#define NAME "fine"
#endif

struct settings {
    double lr;
    int64_t count;
};

#ifdef FAULT_UNDEFINED_SYMBOL
double a_function_that_nobody_has(void);
#endif
#ifdef FAULT_MISSING_LIBRARY
double absent_rate(void);
#endif

static double learning_rate(const void *settings)
{
    (void)settings;
#ifdef FAULT_UNDEFINED_SYMBOL
    return a_function_that_nobody_has();
#elif defined FAULT_MISSING_LIBRARY
    return absent_rate();
#else
    return ((const struct settings *)settings)->lr;
#endif
}

static int32_t step(const void *settings, const struct hd_optim_args *a)
{
    for (int64_t i = 0; i < a->count; i++)
        a->param[i] -= (float)(learning_rate(settings) * a->grad[i]);
    return HD_OK;
}

#if defined HANGS_CONSTRUCTOR || defined HANGS_ENTRY || defined HANGS_PROBE
static int32_t hang(void)
{
    unsigned left = alarm(0);
    alarm(left);
    dprintf(STDOUT_FILENO, "hangs, for %u s\n", left);
    while (pause())
        continue;
    return HD_OK;
}
#endif
#ifdef HANGS_CONSTRUCTOR
__attribute__((constructor)) static void construct(void)
{
    hang();
}
#elif defined HANGS_PROBE
static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    (void)host, (void)err;
    return hang();
}
#endif

#ifdef FAULT_LEAVES
#include <fenv.h>
#include <locale.h>
#include <sys/stat.h>
__attribute__((constructor)) static void leaves(void)
{
    umask(0777);
    setlocale(LC_ALL, "C.UTF-8");
    fesetround(FE_DOWNWARD);
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); /* as code linked with -ffast-math does */
#endif
}
#endif

#ifdef FAULT_PROBE
static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    void *p = host->alloc(100);
    int aligned = p && (uintptr_t)p % 64 == 0;
    host->free(p);
    return hd_fail(err, HD_E_UNSUPPORTED, aligned ? "no unicorn in slot 7" : "host->alloc is broken");
}
#endif

static const struct hd_option options[] = {
    {.name = "lr",
     .value = "0.1",
     .help = "learning rate",
     .type = HD_OPT_FLOAT,
     .offset = offsetof(struct settings, lr)},
#ifdef FAULT_OPTION_OFFSET
    {.name = "count", .help = "beyond the end", .type = HD_OPT_INT, .offset = sizeof(struct settings)},
#elif defined FAULT_OPTION_DEFAULT
    {.name = "count",
     .value = "many",
     .help = "no number",
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, count)},
#elif defined FAULT_OPTION_NEEDS
    {.name = "count",
     .help = "needs",
     .type = HD_OPT_INT,
     .needs = FAULT_OPTION_NEEDS,
     .offset = offsetof(struct settings, count)},
#elif defined FAULT_OPTION_FLAGS
    {.name = "count",
     .help = "flags",
     .type = HD_OPT_INT,
     .flags = HD_OPTION_GLOBAL | 1u << 20,
     .offset = offsetof(struct settings, count)},
#elif defined FAULT_OPTION_HELP
    {.name = "count", .type = HD_OPT_INT, .offset = offsetof(struct settings, count)},
#elif defined FAULT_OPTION_TWICE
    {.name = "lr", .help = "again", .type = HD_OPT_INT, .offset = offsetof(struct settings, count)},
#endif
};

#ifdef FAULT_STATE_NAMES
static const char *const state_names[] = {FAULT_STATE_NAMES};
#endif

static const struct hd_optimizer_ops ops = {
#ifdef FAULT_SHORT_OPS
    .struct_size = offsetof(struct hd_optimizer_ops, learning_rate),
#else
    .struct_size = sizeof ops,
#endif
#ifdef FAULT_OPS_CAPS
    .caps = UINT64_C(1) << 63,
#else
    .caps = HD_OPTIM_FLAT | UINT64_C(1) << 47, /* an unknown bit that may be ignored */
#endif
#ifdef FAULT_STATES
    .n_states = 5,
#elif defined FAULT_STATE_NAMES
    .n_states = sizeof state_names / sizeof *state_names,
    .state_names = state_names,
#endif
#ifndef FAULT_NO_STEP
    .step = step,
#endif
#ifndef FAULT_MISSING_SLOT
    .learning_rate = learning_rate,
#endif
};

/* What a plugin from a later minor looks like: longer tables. */
struct later_ops {
    struct hd_optimizer_ops now;
    int32_t (*later)(void);
};

static const struct later_ops later_ops = {
    .now = {.struct_size = sizeof later_ops, .step = step, .learning_rate = learning_rate},
    .later = (int32_t(*)(void))(uintptr_t)0x5a5a5a5a, /* never called */
};

#ifdef ALIAS
static const struct hd_alias aliases[] = {
#ifdef FAULT_ALIAS_NAME
    {.name = "Grand", .summary = "a capital"},
#elif defined FAULT_ALIAS_SUMMARY
    {.name = "nickname"},
#elif defined FAULT_ALIAS_OWN
    {.name = NAME, .summary = "no other name"},
#elif defined FAULT_ALIAS_TWICE
    {.name = "nickname", .summary = "once"},
    {.name = "nickname", .summary = "and again"},
#elif defined FAULT_ALIAS_OPTION
    {.name = "nickname", .preset = "{lr: 1, rate: 2}", .summary = "an option that is not there"},
#elif defined FAULT_ALIAS_VALUE
    {.name = "nickname", .preset = "{lr: fast}", .summary = "no rate"},
#elif defined FAULT_ALIAS_WORDS
    {.name = "nickname", .preset = "lr", .summary = "no mapping"},
#else
    {.name = "nickname", .preset = "{lr: 0.25}", .summary = "short for it"},
    {.name = ALIAS, .summary = "its own"},
#endif
};
#endif

static const struct hd_component component = {
#ifdef FAULT_SHORT_COMPONENT
    .struct_size = 24,
#elif defined OLD_COMPONENT
    .struct_size = offsetof(struct hd_component, aliases), /* as ABI 1.0 had it: what is behind is not its own */
    .n_aliases = 77,
#else
    .struct_size = sizeof component,
#endif
#ifdef FAULT_WRONG_KIND
    .kind = HD_KIND_CKPT,
#elif defined FAULT_NO_KIND
    .kind = 55,
#else
    .kind = HD_KIND_OPTIMIZER,
#endif
    .name = NAME,
#ifndef FAULT_NO_SUMMARY
    .summary = "a plugin for the loader's tests",
#endif
#ifdef FAULT_CAPS
    .caps = UINT64_C(1) << 51,
#endif
    .options = options,
    .n_options = sizeof options / sizeof options[0],
#ifdef FAULT_SHORT_OPTION
    .option_size = 40,
#else
    .option_size = sizeof options[0],
#endif
    .settings_size = sizeof(struct settings),
#if defined FAULT_PROBE || defined HANGS_PROBE
    .probe = probe,
#endif
#ifdef LATER_OPS
    .ops = &later_ops,
#elif !defined FAULT_NO_OPS
    .ops = &ops,
#endif
#ifdef FAULT_ALIAS_NULL
    .n_aliases = 2,
#elif defined ALIAS
    .aliases = aliases,
    .n_aliases = sizeof aliases / sizeof *aliases,
#ifdef FAULT_ALIAS_SHORT
    .alias_size = 8,
#else
    .alias_size = sizeof *aliases,
#endif
#endif
};

static const struct hd_component *const components[] = {
#ifndef FAULT_NO_COMPONENT
    &component,
#endif
#ifdef FAULT_COMPONENT_TWICE
    &component,
#endif
    NULL,
};

static const struct hd_plugin plugin = {
#ifdef FAULT_MAGIC
    .magic = "headle\n\x1a",
#else
    .magic = HD_PLUGIN_MAGIC,
#endif
#ifdef FAULT_SHORT_PLUGIN
    .struct_size = 16,
#else
    .struct_size = sizeof plugin,
#endif
#ifdef ABI_MINOR
    .abi_minor = ABI_MINOR,
#elif defined FAULT_NEWER_MINOR
    .abi_minor = HD_ABI_MINOR + 7,
#else
    .abi_minor = HD_ABI_MINOR,
#endif
    .name = "optim-" NAME,
#ifndef FAULT_NO_VERSION
    .version = "1.2.3",
#endif
    .licence = "Apache-2.0",
    .components = components,
};

/* Keeps what a fault leaves unused from being warned about. */
__attribute__((used)) static const void *const all[] = {&ops, &later_ops, &component, options};

#ifdef FAULT_MAJOR
__attribute__((visibility("default"))) const struct hd_plugin *heddle_plugin_v2(void);
const struct hd_plugin *heddle_plugin_v2(void)
{
    return &plugin;
}
#elif defined FAULT_NO_SYMBOL
__attribute__((used)) static const struct hd_plugin *const unseen = &plugin;
#elif defined FAULT_RETURNS_NULL
HD_PLUGIN_EXPORT(*(const struct hd_plugin *)(plugin.struct_size ? NULL : &plugin))
#elif defined HANGS_ENTRY
HD_PLUGIN_EXPORT(*(const struct hd_plugin *)(hang() ? NULL : &plugin))
#else
HD_PLUGIN_EXPORT(plugin)
#endif
