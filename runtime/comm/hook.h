/* runtime/comm/hook: puts a hook, a plug-in of heddle/hook.h, around a transport: a wrapper whose `begin` and `end`
 * are the hook's. */
#ifndef HD_RUNTIME_COMM_HOOK_H
#define HD_RUNTIME_COMM_HOOK_H

#include "heddle/hook.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/open.h"

/* Its pointers outlive the transport. */
struct hd__hook_context {
    const struct hd_host *host;
    const struct hd_world *world;
    struct hd__flight *flight; /* may be NULL */
    const char *folder;        /* for files; NULL: the working directory */
    const char *transport;     /* for names of files: "shm" */
};

/* Puts a hook around a transport that is open; on failure it stays as it was. `ops`, `name` and `settings` outlive
 * it. */
int32_t hd__comm_hook_wrap(struct hd__comm *transport, const struct hd_hook_ops *ops, const char *name,
                           const void *settings, const struct hd__hook_context *context, struct hd_error *err);

#endif
