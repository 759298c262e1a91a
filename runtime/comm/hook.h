/* runtime/comm/hook: wraps a transport in a hook, a plug-in of heddle/hook.h. */
#ifndef HD_RUNTIME_COMM_HOOK_H
#define HD_RUNTIME_COMM_HOOK_H

#include "heddle/hook.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/open.h"

/* All pointers outlive the transport. */
struct hd__hook_context {
    const struct hd_host *host;
    const struct hd_world *world;
    struct hd__flight *flight; /* may be NULL */
    const char *folder;        /* for files; NULL: the working directory */
    const char *transport;     /* "shm": part of file names */
};

/* Wraps an open transport; on failure it is unchanged. `ops`, `name` and `settings` outlive it. */
int32_t hd__comm_hook_wrap(struct hd__comm *transport, const struct hd_hook_ops *ops, const char *name,
                           const void *settings, const struct hd__hook_context *context, struct hd_error *err);

#endif
