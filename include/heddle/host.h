/* heddle/host.h: what the core lends to plugins. A plugin links nothing of heddle: everything it may call is here.
 * The table is passed to every slot that opens something and stays valid until the process ends. */
#ifndef HEDDLE_HOST_H
#define HEDDLE_HOST_H

#include "heddle/types.h"

struct hd_builder_api; /* heddle/program.h */
struct hd_pass_api;    /* heddle/strategy.h */
struct hd_store;

enum { HD_LOG_ERROR = 0, HD_LOG_WARN = 1, HD_LOG_INFO = 2, HD_LOG_DEBUG = 3 };

struct hd_host {
    size_t struct_size;
    uint32_t abi_minor;
    uint32_t reserved;

    /* [any-thread] One line, without a newline; the core adds rank and component. */
    void (*log)(uint32_t level, const char *component, const char *format, ...) __attribute__((format(printf, 3, 4)));

    /* [any-thread] 64-byte aligned, zeroed; NULL when there is none. For small things: tensors live in the arena. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *p); /* NULL is fine */

    /* The job's key-value store, shared by all ranks: rendezvous only, nothing of a step. Keys are lower-case paths
     * ("shm/3/arena"), values at most 64 KiB. `deadline` is CLOCK_MONOTONIC in seconds.
     * [control] put: visible to all ranks when it returns. get: waits until the key exists; *bytes is the room on
     * entry, the length on return; HD_E_TIMEOUT when the deadline passes, HD_E_PEER when the job is ending. */
    int32_t (*store_put)(struct hd_store *store, const char *key, const void *value, size_t bytes,
                         struct hd_error *err);
    int32_t (*store_get)(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                         struct hd_error *err);

    /* Building and rewriting step programs; only for models, strategies and optimizers. */
    const struct hd_builder_api *build;
    const struct hd_pass_api *pass;

    /* [any-thread] Families of calls that came later, by name: "heddle.comm.onesided/1". NULL if unknown. There is
     * none yet: NULL of every name. */
    const void *(*get_extension)(const char *name);

    /* [control] Sets an environment variable of this process, for a library that a plugin opens and that takes its
     * settings nowhere else: before that library's first call, and from what the job says alone. What the
     * environment had is replaced, with a line in the log. HD_E_INVALID of a name that is none. */
    int32_t (*set_variable)(const char *name, const char *value, struct hd_error *err);
};

#endif
