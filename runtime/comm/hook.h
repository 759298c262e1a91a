/* runtime/comm/hook: wrappers of a transport: the same table again, with something done around every operation.
 *
 * A job stacks them: comm.hooks: [check, {use: faults, rank: 1, at: 20, kind: stall}]; the first is outermost. One engine
 * (hook.c) keeps the requests and the order of each group; a hook is a row of calls, all from the thread that runs the
 * program:
 *
 *     open -> (group) -> begin ... progress ... end -> leave -> close
 *
 * begin sees an operation before the transport does: it may change it, refuse it (an HD_E_ code), or hold it back
 * (HD__HOOK_HOLD): then it, and what is enqueued behind it in its group, waits until the hook clears `held` in progress.
 * end sees it complete. Without hooks none of this exists: the transport's own table is called. */
#ifndef HD_RUNTIME_COMM_HOOK_H
#define HD_RUNTIME_COMM_HOOK_H

#include "core/base/base.h"
#include "heddle/comm.h"
#include "heddle/plugin.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/open.h"
#include "runtime/comm/request_pool.h"

#define HD__HOOK_HOLD 1

enum { HD__HOOK_SEND = 64, HD__HOOK_RECV = 65 }; /* beside HD_COLL_... */

struct hd__hook_group {
    struct hd__hook_group *next;
    struct hd_comm *comm;
    struct hd_comm_group *inner;
    const char *name;
    const int32_t *ranks;
    int32_t n, me;
    struct hd__hook_op *held, **held_tail; /* in order, not yet with the transport */
    uint64_t seq;                          /* collectives so far */
};

struct hd__hook_op {
    struct hd__request request;
    struct hd__hook_op *next; /* held in a group */
    struct hd__hook_group *group;
    uint32_t what;            /* HD_COLL_..., HD__HOOK_SEND or RECV */
    int32_t held;             /* 1: not with the transport yet */
    struct hd_comm_call call; /* of a message: send or recv, and count in bytes */
    int32_t peer;             /* member; of a message */
    uint32_t stream;
    uint64_t seq;     /* in its group, of a collective; from 1 */
    uint64_t number;  /* of this rank on this transport, from 1 */
    double since;     /* enqueued */
    double value[2];  /* the hook's */
    uint64_t word[4]; /* the hook's */
    hd_request inner;
    int32_t code; /* of a start that was put off */
    int32_t reserved;
};

/* What a hook may know of the job. */
struct hd__hook_context {
    const struct hd_world *world;
    struct hd__flight *flight;                 /* may be NULL */
    const char *folder;                        /* for files; may be NULL: the working directory */
    const char *transport;                     /* "shm" */
    const struct hd__algorithm_counts *counts; /* which algorithms the transport's collectives take; may be NULL */
};

struct hd__hook {
    const struct hd__hook_kind *kind;
    const void *settings;
    struct hd__hook_context context;
    struct hd_world world; /* a copy */
    struct hd__comm inner;
    struct hd_comm *outer;
    _Atomic int aborted;
    void *state; /* the hook's own, freed by it in close */
};

struct hd__hook_kind {
    const char *name, *summary;
    const struct hd_option *options;
    size_t n_options, settings_size;
    int32_t (*open)(struct hd__hook *hook, struct hd_error *err); /* slots may be NULL */
    int32_t (*group)(struct hd__hook *hook, struct hd__hook_group *group, struct hd_error *err);
    int32_t (*begin)(struct hd__hook *hook, struct hd__hook_op *op, struct hd_error *err);
    int32_t (*end)(struct hd__hook *hook, struct hd__hook_op *op, int32_t code,
                   struct hd_error *err); /* the code to go on with */
    int32_t (*progress)(struct hd__hook *hook, struct hd_error *err);
    void (*leave)(struct hd__hook *hook); /* before the transport is closed */
    void (*close)(struct hd__hook *hook); /* after it was */
};

extern const struct hd__hook_kind hd__comm_hook_check, hd__comm_hook_trace, hd__comm_hook_faults, hd__comm_hook_perf;

/* NULL: there is none of this name. By index: NULL after the last. */
const struct hd__hook_kind *hd__comm_hook_find(const char *name);
const struct hd__hook_kind *hd__comm_hook_at(size_t i);

/* Puts a hook around a transport that is open; on failure it stays as it was. `settings` outlives it. */
int32_t hd__comm_hook_wrap(struct hd__comm *transport, const struct hd__hook_kind *kind, const void *settings,
                           const struct hd__hook_context *context, struct hd_error *err);

/* ---- for hooks */

/* Groups of the transport that were made so far. */
struct hd__hook_group *hd__comm_hook_groups(struct hd__hook *hook);
/* Calls fn for every operation that is not complete. */
void hd__comm_hook_each_op(struct hd__hook *hook, void (*fn)(void *user, struct hd__hook_op *op), void *user);
/* "all_reduce", "send" */
const char *hd__comm_hook_op_name(uint32_t what);
/* Bytes at op->call.send and op->call.recv. */
void hd__comm_hook_op_bytes(const struct hd__hook_op *op, uint64_t *sent, uint64_t *received);
/* FOLDER/NAME-TRANSPORT-rankR.json, its folder made. Returns out. */
const char *hd__comm_hook_output_path(const struct hd__hook *hook, const char *name, char out[512]);

#endif
