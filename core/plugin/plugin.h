/* core/plugin: finds, loads and checks plugins.
 *
 *     create -> folders (job, environment, build tree or install folder) -> find(kind, name) -> probe
 *
 * Nothing is opened before a job names it: the file of optim-adamw is heddle-optim-adamw.so, so a search is a few
 * stat() calls. A name that no file has may be an alias: then all of its kind are opened, as they are to find the
 * strategy that cuts an axis of the mesh, or a tokenizer for a file that heddle's own do not read. Only `heddle
 * plugins` scans. What find returns has been checked and copied into the core's own tables: every mandatory slot is
 * there, and a slot, option field or table that the plugin's headers did not know is zero. */
#ifndef HD_CORE_PLUGIN_PLUGIN_H
#define HD_CORE_PLUGIN_PLUGIN_H

#include "core/base/base.h"
#include "heddle/ckpt.h"
#include "heddle/comm.h"
#include "heddle/data.h"
#include "heddle/device.h"
#include "heddle/hook.h"
#include "heddle/host.h"
#include "heddle/metrics.h"
#include "heddle/model.h"
#include "heddle/optimizer.h"
#include "heddle/plugin.h"
#include "heddle/strategy.h"
#include "heddle/tokenizer.h"

struct hd__plugins; /* the registry */

/* A component, normalised. Owned by the registry. Optional slots may be NULL: callers check. */
struct hd__component {
    uint32_t kind;       /* HD_KIND_... */
    const char *name;    /* "adamw" */
    const char *label;   /* "optim-adamw" */
    const char *summary; /* one line */
    const char *version; /* of the plugin */
    const char *licence; /* of the plugin */
    const char *path;    /* of the file */
    uint64_t caps;
    uint32_t abi_minor; /* of the headers that the plugin was built with */
    uint32_t reserved;
    const struct hd_option *options;
    size_t n_options;
    size_t settings_size;
    const struct hd_alias *aliases;
    size_t n_aliases;
    int32_t (*probe)(const struct hd_host *host, struct hd_error *err); /* use hd__plugin_probe */
    int32_t (*check)(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                     struct hd_error *err); /* NULL: only `open` can tell */
    union {
        struct hd_device_ops device;
        struct hd_comm_ops comm;
        struct hd_optimizer_ops optimizer;
        struct hd_ckpt_ops ckpt;
        struct hd_model_ops model;
        struct hd_strategy_ops strategy;
        struct hd_hook_ops hook;
        struct hd_data_ops data;
        struct hd_metrics_ops metrics;
        struct hd_tokenizer_ops tokenizer;
    } ops;
};

/* ---- the registry */

/* `host` is what plugins get from probe on; NULL: only log and memory, enough for [load] slots. */
struct hd__plugins *hd__plugins_create(const struct hd_host *host);
/* Frees its components; loaded files stay. NULL is fine. */
void hd__plugins_destroy(struct hd__plugins *registry);

/* Appends a folder to the search. Its plugins are heddle-KIND-NAME.so or KIND-NAME/heddle-KIND-NAME.so. A folder that
 * does not exist is refused with HD_E_NOTFOUND. */
int32_t hd__plugins_add_folder(struct hd__plugins *registry, const char *folder, struct hd_error *err);
/* Adds the folders that every command searches after the job's plugins.path: HEDDLE_PLUGIN_PATH
 * (colon-separated), then the build tree or install folder that the running executable belongs to. */
int32_t hd__plugins_add_default_folders(struct hd__plugins *registry, struct hd_error *err);

/* Loads a component by name or alias; once: a second call returns the same one. Each reason for which it cannot be used
 * has its own message. */
int32_t hd__plugin_find(struct hd__plugins *registry, uint32_t kind, const char *name,
                        const struct hd__component **component, struct hd_error *err);
/* Number n of all components of a kind in the folders, those that cannot be loaded left out; NULL behind the last. */
const struct hd__component *hd__plugin_nth(struct hd__plugins *registry, uint32_t kind, uint32_t n);
/* The alias `name` of the component; NULL if it has none of that name. */
const struct hd_alias *hd__plugin_alias(const struct hd__component *component, const char *name);
/* The installed strategy that cuts a mesh axis and none of those in the mask `taken`; *component is NULL where there is
 * none. Two are refused, with both names. */
int32_t hd__plugin_find_cutter(struct hd__plugins *registry, uint32_t axis, uint64_t taken,
                               const struct hd__component **component, struct hd_error *err);
/* Can it be used on this machine? For commands that will open it; `heddle check` needs no devices and does not ask. */
int32_t hd__plugin_probe(struct hd__plugins *registry, const struct hd__component *component, struct hd_error *err);

/* ---- the whole list: only for `heddle plugins` */
struct hd__plugin_entry {
    uint32_t kind; /* 0 where a file's name has no known kind */
    uint32_t usable;
    const char *label;                     /* "optim-adamw" */
    const char *path;                      /* NULL: it was not built */
    const char *reason;                    /* why it is not usable; NULL if it is */
    const struct hd__component *component; /* NULL where it could not be loaded */
};
/* Loads and probes everything in the folders; sorted by kind and name. The entries belong to the registry. */
void hd__plugin_scan(struct hd__plugins *registry, const struct hd__plugin_entry **entries, size_t *n);

/* ---- kinds */
/* The kind of "optim-adamw", 0 if unknown; *name, where name is not NULL, is then "adamw". */
uint32_t hd__plugin_kind_of_label(const char *label, const char **name);

/* ---- inside the room ---- */

struct hd__plugin_slot {
    const char *name;
    size_t offset;
};

/* A kind of plugin, as normalising needs it. */
struct hd__plugin_kind {
    uint32_t kind;
    const char *struct_name; /* "struct hd_comm_ops" */
    size_t size;             /* ours, today */
    size_t min_size;         /* of ABI 1.0: no valid plugin has less */
    const struct hd__plugin_slot *mandatory;
    size_t n_mandatory;
    /* Rules between slots; NULL: none. Returns what is wrong, or NULL. */
    const char *(*check)(const void *ops);
};
const struct hd__plugin_kind *hd__plugin_kind_find(uint32_t kind); /* NULL if unknown */

/* Checks a descriptor and fills `out` with its component kind-name. `path` names it in messages. */
int32_t hd__plugin_normalise(struct hd__arena *arena, const struct hd_plugin *plugin, uint32_t kind, const char *name,
                             const char *path, struct hd__component *out, struct hd_error *err);
/* dlopen and the entry function. */
int32_t hd__plugin_open(const char *path, const struct hd_plugin **plugin, struct hd_error *err);

#endif
