/* heddle/hook.h: a hook wraps a transport and sees every operation, before it begins and when it is complete.
 *
 * A job stacks hooks around each of its transports, comm.hooks: [check, {use: faults, rank: 1, at: 20}]. The first is
 * outermost: what a hook does is seen by those after it. The core keeps the requests and the order of each group;
 * without hooks none of this exists, and a transport's own slots are called.
 *
 * Life, for each transport of a rank: open -> group, group, ... -> begin ... end of each operation, progress beside
 * them -> leave -> the transport is closed -> close. An operation that nobody completes, as in a job that fails, has
 * no end. `begin` may change the call or its group, refuse it with an HD_E_ code (`end` follows at once), or hold it
 * back: HD_HOOK_HOLD. It then waits until the hook releases it, and so does what is enqueued behind it in its group;
 * at the deadline of a wait it fails with HD_E_TIMEOUT, when the job is aborted with HD_E_CANCELLED.
 *
 * Ownership: a place and its groups live until `close` has returned, an operation from its begin until its end has
 * returned. Buffers are the caller's: a hook may read what is sent. All slots are called by one thread at a time, as
 * heddle/comm.h says of a transport. */
#ifndef HEDDLE_HOOK_H
#define HEDDLE_HOOK_H

#include "heddle/comm.h"

struct hd_hook; /* the plugin's own: one for each transport of a rank */

#define HD_HOOK_HOLD 1 /* from `begin`: the operation is held back until hd_hook_api.release */

/* Messages, beside the HD_COLL_... of a call. */
enum { HD_HOOK_SEND = 64, HD_HOOK_RECV = 65 };

struct hd_hook_group {
    size_t struct_size;
    const char *name;
    const int32_t *ranks; /* of the job, n of them; order = member index */
    int32_t n, me;
    struct hd_comm_group *below; /* on the transport below; NULL once it was freed */
};

struct hd_hook_op {
    size_t struct_size;
    /* A copy, which `begin` may change. A message has its bytes as HD_U8: `send` or `recv` and `count`. */
    struct hd_comm_call *call;
    const struct hd_hook_group *group; /* `begin` may name another one of the same place */
    int32_t peer;                      /* of a message: member index; else -1 */
    uint32_t stream;                   /* of a message */
    uint64_t seq;                      /* of a collective, in its group, from 1; of a message 0 */
    uint64_t number;                   /* of this rank on this transport, from 1 */
    double began, ended;               /* CLOCK_MONOTONIC seconds; `ended` is set when `end` is called */
    uint64_t user[4];                  /* the hook's own, 0 at first */
};

struct hd_hook_place;

/* Calls into heddle, with the place that `open` was given. */
struct hd_hook_api {
    size_t struct_size;
    /* [progress] The groups that there are, newest first: the one after `group`, or the first of all. NULL: there is
     * none. */
    const struct hd_hook_group *(*next_group)(const struct hd_hook_place *place, const struct hd_hook_group *group);
    /* [progress] Calls visit for every operation that has begun and not ended, the one of `begin` or `end` among
     * them. */
    void (*each_op)(const struct hd_hook_place *place, void (*visit)(void *user, const struct hd_hook_op *op),
                    void *user);
    /* [progress] An operation that is held goes to the transport, once those before it have. */
    void (*release)(const struct hd_hook_place *place, const struct hd_hook_op *op);
    /* [any-thread] 1 once the job was aborted: what takes time should return. */
    int32_t (*aborted)(const struct hd_hook_place *place);
    /* [progress] In `begin`: until it returns, the flight recorder does not say that the operation has begun. What
     * `begin` changes is recorded as it was changed, without this. */
    void (*retract)(const struct hd_hook_place *place);
    /* [control] Which algorithms the collectives took so far: those of a transport of send and recv, or in two
     * levels. */
    void (*each_algorithm)(const struct hd_hook_place *place,
                           void (*visit)(void *user, const char *group, uint32_t coll, const char *algorithm,
                                         uint64_t calls),
                           void *user);
    /* [progress] Breaks the connection of this process to the job's store, as a network would: to test failures. */
    void (*reset_store)(const struct hd_hook_place *place);
};

/* A hook's surroundings: one transport of one rank. */
struct hd_hook_place {
    size_t struct_size;
    const struct hd_hook_api *api;
    const struct hd_world *world;
    const char *transport; /* for names of files: "shm"; the second of a job's libfabrics is "libfabric-2" */
    const char *folder;    /* the job's, for files; may have to be made; never NULL */
    /* The transport below, hooks among it, to send and receive messages of the hook's own by `stream`, which nobody
     * else uses. */
    const struct hd_comm_ops *below;
    struct hd_comm *comm;
    uint32_t stream;
    uint32_t reserved;
};

struct hd_hook_ops {
    size_t struct_size;
    uint64_t caps; /* none yet */
    /* [control] mandatory. Collective, as a transport's `open`; the transport is open, and its memory and groups are
     * not made yet. */
    int32_t (*open)(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                    struct hd_hook **hook, struct hd_error *err);
    /* [control] mandatory; NULL is fine. After the transport was closed: results are written here. */
    void (*close)(struct hd_hook *hook);
    /* [control] A group was made. NULL slot: it need not be known. */
    int32_t (*group)(struct hd_hook *hook, const struct hd_hook_group *group, struct hd_error *err);
    /* [progress] Before the transport sees the operation. HD_OK, HD_HOOK_HOLD or an HD_E_ code. NULL slot: all pass. */
    int32_t (*begin)(struct hd_hook *hook, struct hd_hook_op *op, struct hd_error *err);
    /* [progress] After test or wait found it complete, or something refused it: with its code, and in `err` why it
     * failed. Returns the code that the caller gets; a failure can become another failure, not a success. NULL slot:
     * `code`. */
    int32_t (*end)(struct hd_hook *hook, struct hd_hook_op *op, int32_t code, struct hd_error *err);
    /* [progress] With the transport's progress. Returns 1 if anything moved, 0 if not, or an error. NULL slot:
     * nothing to do. */
    int32_t (*progress)(struct hd_hook *hook, struct hd_error *err);
    /* [control] Before the transport is closed, when nothing is left to do. NULL slot: nothing to do. */
    void (*leave)(struct hd_hook *hook);
};

static inline int hd_hook_is_message(const struct hd_hook_op *op)
{
    return op->call->coll == HD_HOOK_SEND || op->call->coll == HD_HOOK_RECV;
}

/* The name of hd_comm_call.coll: "all_reduce", "send"; "?" of an unknown one. */
static inline const char *hd_hook_coll_name(uint32_t coll)
{
    return coll == HD_HOOK_SEND ? "send" : coll == HD_HOOK_RECV ? "recv" : hd_coll_name(coll);
}

/* Bytes that this member has at call->send and call->recv: the table of heddle/comm.h. */
static inline void hd_hook_op_bytes(const struct hd_hook_op *op, uint64_t *sent, uint64_t *received)
{
    const struct hd_comm_call *call = op->call;
    uint64_t one = call->count * hd_dtype_size(call->dtype), all = one * (uint64_t)op->group->n;
    int root = call->root == op->group->me;
    *sent = *received = one;
    switch (call->coll) {
    case HD_HOOK_SEND:
        *received = 0;
        break;
    case HD_HOOK_RECV:
        *sent = 0;
        break;
    case HD_COLL_ALL_GATHER:
        *received = all;
        break;
    case HD_COLL_REDUCE_SCATTER:
        *sent = all;
        break;
    case HD_COLL_ALL_TO_ALL:
        *sent = *received = all;
        break;
    case HD_COLL_BROADCAST:
        *sent = root ? one : 0;
        break;
    case HD_COLL_REDUCE:
        *received = root ? one : 0;
        break;
    case HD_COLL_BARRIER:
        *sent = *received = 0;
        break;
    }
}

#endif
