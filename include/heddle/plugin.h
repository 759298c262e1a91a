/* heddle/plugin.h: how a shared object says what it offers.
 *
 * A plugin exports one function, heddle_plugin_v1, without side effects. It returns a descriptor with a
 * NULL-terminated array of components. The core copies min(their size, ours) of every table into its own,
 * checks mandatory slots by name, and calls nothing else before the job asks for the component.
 * A plugin links nothing of heddle, reads no environment variable but those that all clients of a service take its
 * address and credentials from (AWS_...), and is never unloaded.
 *
 *     dlopen -> heddle_plugin_v1() -> [load] probe() -> options parsed into settings -> ops->open(...) */
#ifndef HEDDLE_PLUGIN_H
#define HEDDLE_PLUGIN_H

#include "heddle/types.h"

struct hd_host;

/* ---- kinds of component: X(constant, value, name) */
#define HD_KINDS(X)                    \
    X(HD_KIND_DEVICE, 1, "device")     \
    X(HD_KIND_COMM, 2, "comm")         \
    X(HD_KIND_STRATEGY, 3, "strategy") \
    X(HD_KIND_OPTIMIZER, 4, "optim")   \
    X(HD_KIND_CKPT, 5, "ckpt")         \
    X(HD_KIND_MODEL, 6, "model")       \
    X(HD_KIND_HOOK, 7, "hook")         \
    X(HD_KIND_DATA, 8, "data")         \
    X(HD_KIND_METRICS, 9, "metrics")   \
    X(HD_KIND_TOKENIZER, 10, "tokenizer")

enum {
#define HD_KIND_ENUM(constant, value, name) constant = value,
    HD_KINDS(HD_KIND_ENUM)
#undef HD_KIND_ENUM
};

/* ---- options: X(constant, value, name). The C type that the core writes at hd_option.offset stands beside. */
#define HD_OPTION_TYPES(X)                                                           \
    X(HD_OPT_BOOL, 1, "bool")         /* int32_t, 0 or 1 */                          \
    X(HD_OPT_INT, 2, "int")           /* int64_t */                                  \
    X(HD_OPT_FLOAT, 3, "float")       /* double */                                   \
    X(HD_OPT_SIZE, 4, "size")         /* int64_t, bytes: 25MB = 25e6, 1MiB = 2^20 */ \
    X(HD_OPT_DURATION, 5, "duration") /* double, seconds: 300s, 5m, 20ms */          \
    X(HD_OPT_ENUM, 6, "enum")         /* int32_t, index into choices */              \
    X(HD_OPT_STRING, 7, "string")     /* const char *, NULL where unset */           \
    X(HD_OPT_LIST, 8, "list")         /* struct hd_list */

enum {
#define HD_OPT_ENUM_CONSTANT(constant, value, name) constant = value,
    HD_OPTION_TYPES(HD_OPT_ENUM_CONSTANT)
#undef HD_OPT_ENUM_CONSTANT
};

/* Owned by the core; lives as long as the component is open. */
struct hd_list {
    uint64_t count;
    const char *const *text; /* the items as written */
    const double *number;    /* the items as numbers; NaN where an item is none */
};

enum { HD_LEVEL_USER = 0, HD_LEVEL_TUNER = 1, HD_LEVEL_DEV = 2 };

/* All ranks must agree on the value, because it changes the numbers that are trained or how ranks communicate. Before
 * the first step each rank's text of the value is compared with rank 0's; a difference ends the job on all ranks.
 * Without the flag the value may differ from rank to rank: paths, threads, the index of a device, logging. */
#define HD_OPTION_GLOBAL (UINT32_C(1) << 0)
/* There is no default: a job that leaves it out is refused. */
#define HD_OPTION_REQUIRED (UINT32_C(1) << 1)
/* With HD_OPTION_GLOBAL: the value is a path. Names are compared, folders are not: machines may have others. */
#define HD_OPTION_PATH (UINT32_C(1) << 2)
/* There is nothing to choose: the default is what happens always. The key is there for files written for others; any
 * other value is refused, with the help as the reason. Its field is written like any other's. */
#define HD_OPTION_FIXED (UINT32_C(1) << 3)

/* One option. A name with dots, "offload.optimizer", is a nested mapping in the job file. */
struct hd_option {
    const char *name;
    const char *value;   /* default as text, in the syntax of the job file; NULL: unset */
    const char *unit;    /* for the help: "tokens", "layers"; may be NULL */
    const char *help;    /* one line */
    const char *choices; /* for ENUM: "1f1b|gpipe|interleaved"; else NULL */
    const char *aliases; /* other names accepted in job files: "reduce_bucket_size|bucket_cap_mb"; or NULL */
    double min, max;     /* for numbers; min == max means no range */
    uint32_t type;       /* HD_OPT_... */
    uint32_t level;      /* HD_LEVEL_... */
    uint32_t flags;      /* HD_OPTION_... */
    uint32_t reserved;
    size_t offset; /* into the component's settings struct */
    /* Further spellings of values, each with what it stands for: "true=1|BACKWARD_PRE=1|cpu=host"; or NULL. */
    const char *words;
    /* Condition under which the value has an effect, "stage=3|FULL_SHARD" or "mesh.pp!=1"; several are joined by &. Its
     * key is one of the job with its section, or one of the same table; `ranks` is the number of ranks. A job that sets
     * the option where the condition is false gets a warning. NULL: always. */
    const char *needs;
};

/* ---- components */

/* Another name under which job files may ask for a component, with other defaults: {use: fsdp} for {use: zero,
 * stage: FULL_SHARD}. What the job says itself wins over the preset. A component's own name wins over an alias of
 * another; an alias that two installed components of a kind have is refused with both their names. */
struct hd_alias {
    const char *name;    /* lower case, "fsdp" */
    const char *preset;  /* options by their full names: "{stage: FULL_SHARD, offload.params: host}"; may be NULL */
    const char *summary; /* one line */
};

/* The job that a component is to be opened for. */
struct hd_check_job {
    size_t struct_size;
    int32_t ranks;
    int32_t apart; /* 1: this machine has not all of those that the component serves */
    /* Settings of the sinks that were checked before and are this component's, too: they will be open beside it. */
    const void *const *before;
    uint64_t n_before;
};

struct hd_component {
    size_t struct_size;
    uint32_t kind; /* HD_KIND_... */
    uint32_t reserved;
    const char *name;    /* lower case, "shm"; the file is heddle-KIND-NAME.so */
    const char *summary; /* one line */
    uint64_t caps;       /* bits 0-47 ignored if unknown, bits 48-63 refused if unknown */
    const struct hd_option *options;
    size_t n_options;
    size_t option_size;   /* sizeof(struct hd_option) */
    size_t settings_size; /* bytes of the struct that options are parsed into; zeroed first */
    /* [load] Can it be used on this machine? HD_OK, or a code and the reason. NULL: always. */
    int32_t (*probe)(const struct hd_host *host, struct hd_error *err);
    const void *ops; /* struct hd_<kind>_ops, which begins with its own struct_size */
    const struct hd_alias *aliases;
    size_t n_aliases;
    size_t alias_size; /* sizeof(struct hd_alias) */
    /* [load] Would `open` refuse these settings on this machine? Of transports, hooks and sinks, before the ranks start
     * (`heddle train --dry-run`). It leaves nothing behind. NULL: only `open` can tell. */
    int32_t (*check)(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                     struct hd_error *err);
};

#define HD_PLUGIN_MAGIC "heddle\n\x1a"
/* The same as an initialiser of hd_plugin.magic: C++ refuses the text, whose NUL does not fit. */
#define HD_PLUGIN_MAGIC_CHARS                      \
    {                                              \
        'h', 'e', 'd', 'd', 'l', 'e', '\n', '\x1a' \
    }

struct hd_plugin {
    char magic[8]; /* HD_PLUGIN_MAGIC */
    size_t struct_size;
    uint32_t abi_minor; /* HD_ABI_MINOR of the headers it was built with */
    uint32_t reserved;
    const char *name;
    const char *version;
    const char *licence;                          /* SPDX */
    const struct hd_component *const *components; /* NULL-terminated */
};

typedef const struct hd_plugin *(*hd_plugin_entry)(void);

#define HD_PLUGIN_SYMBOL "heddle_plugin_v1"

/* Defines the one exported function. With HEDDLE_STATIC_PLUGIN=suffix it gets a name of its own, so that several
 * plugins can be linked into one program. */
#ifdef HEDDLE_STATIC_PLUGIN
#define HD_PASTE_(a, b) a##_##b
#define HD_PASTE(a, b) HD_PASTE_(a, b)
#define HD_PLUGIN_ENTRY HD_PASTE(heddle_plugin_v1, HEDDLE_STATIC_PLUGIN)
#else
#define HD_PLUGIN_ENTRY heddle_plugin_v1
#endif

#ifdef __cplusplus
#define HD_EXTERN_C extern "C"
#else
#define HD_EXTERN_C
#endif

#define HD_PLUGIN_EXPORT(descriptor)                                                                  \
    HD_EXTERN_C __attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void); \
    const struct hd_plugin *HD_PLUGIN_ENTRY(void)                                                     \
    {                                                                                                 \
        return &(descriptor);                                                                         \
    }

/* The descriptor of a plugin with one component. */
#define HD_PLUGIN_DESCRIPTOR(descriptor, plugin_name, plugin_version, spdx, component)          \
    static const struct hd_component *const descriptor##_components[] = {&(component), NULL};   \
    static const struct hd_plugin descriptor = {                                                \
        HD_PLUGIN_MAGIC_CHARS, sizeof(struct hd_plugin), HD_ABI_MINOR, 0,                       \
        plugin_name,           plugin_version,           spdx,         descriptor##_components, \
    }

/* Descriptor and entry of a component that has a name of its own in the source. In one source file, once, at the
 * end. */
#define HD_PLUGIN_ONE(plugin_name, plugin_version, spdx, component)                           \
    HD_PLUGIN_DESCRIPTOR(hd_plugin_descriptor, plugin_name, plugin_version, spdx, component); \
    HD_PLUGIN_EXPORT(hd_plugin_descriptor)

/* A plugin with one component, whole: component, descriptor and entry. What follows the licence are fields of struct
 * hd_component (designated initialisers: C, and C++ from 20 on; before that, HD_PLUGIN_ONE); HD_OPTIONS and HD_ALIASES
 * fill in those of a table and its sizes:
 *     HD_PLUGIN("optim-lion", "1.0.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "lion",
 *               .summary = "Lion: sign of the momentum", HD_OPTIONS(options, struct lion_settings), .ops = &ops) */
#define HD_PLUGIN(plugin_name, plugin_version, spdx, ...)                                                             \
    static const struct hd_component hd_plugin_component = {.struct_size = sizeof(struct hd_component), __VA_ARGS__}; \
    HD_PLUGIN_ONE(plugin_name, plugin_version, spdx, hd_plugin_component)

#define HD_OPTIONS(table, settings_type)                                                              \
    .options = (table), .n_options = sizeof(table) / sizeof *(table), .option_size = sizeof *(table), \
    .settings_size = sizeof(settings_type)

#define HD_ALIASES(table) \
    .aliases = (table), .n_aliases = sizeof(table) / sizeof *(table), .alias_size = sizeof *(table)

#endif
