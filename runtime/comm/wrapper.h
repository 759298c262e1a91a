/* runtime/comm/wrapper: engine of transports over other transports: software_collectives, hierarchical, hook.
 *
 * It implements the table, request numbers, a queue for each group, and test, wait, progress and abort. Every
 * operation, collective or message, has a record; `begin` of the wrapper's kind returns how it proceeds:
 *
 *     HD_OK                passes through to the group's home, a transport below, and completes with it
 *     HD__WRAPPER_QUEUE    enters its group's queue; `advance` drives those at the head until they are finished
 *
 * `end` is called when it completes. The kind's structs of transport, group and operation start with the structs
 * here. A failed operation fails its group, and its memory stays until the transports below are closed, since they
 * may still write to it. One thread at a time, except abort. */
#ifndef HD_RUNTIME_COMM_WRAPPER_H
#define HD_RUNTIME_COMM_WRAPPER_H

#include "heddle/hook.h"
#include "runtime/comm/open.h"
#include "runtime/comm/request_pool.h"

enum { HD__WRAPPER_QUEUE = 1 };

struct hd__wrapper_op {
    struct hd__request request;
    struct hd__wrapper_op *next; /* in its queue */
    struct hd__wrapper_group *group;
    const struct hd__comm *below; /* of a passed-through operation; else NULL */
    hd_request inner;
    struct hd_comm_call call; /* of a message: HD_HOOK_SEND or HD_HOOK_RECV, and count in bytes */
    int32_t peer;             /* of a message */
    uint32_t stream;
    int32_t finished; /* by `advance`; done when those before it are too */
    int32_t done, code, reserved;
};

struct hd__wrapper_group {
    struct hd__wrapper *wrapper;
    struct hd__wrapper_group *next;
    struct hd__wrapper_op *head, **tail;
    const struct hd__comm *home;       /* target of pass-through */
    struct hd_comm_group *inner_group; /* the group on it */
    struct hd_error error;             /* the first */
    const char *name;
    const int32_t *ranks; /* of the job */
    int32_t n, me;
};

struct hd__wrapper_kind {
    size_t op_bytes, group_bytes;
    uint32_t max_inflight; /* operations of a queue that advance concurrently */
    /* HD_OK or HD__WRAPPER_QUEUE, see above; or an error. */
    int32_t (*begin)(struct hd__wrapper_op *op, struct hd_error *err);
    /* Drives an operation as far as possible; sets `finished`. 1: something moved; 0: nothing; or an error. */
    int32_t (*advance)(struct hd__wrapper_op *op, struct hd_error *err);
    /* Deadline of the head of a queue: waits on the transport below with no time left, so that it names the late
     * rank. */
    int32_t (*on_timeout)(struct hd__wrapper_op *head, struct hd_error *err);
    /* Sets home and inner_group; `ranks` are of the world. */
    int32_t (*group)(struct hd__wrapper_group *group, const int32_t *ranks, struct hd_error *err);
    /* The slots from here on may be NULL. */
    int32_t (*end)(struct hd__wrapper_op *op, int32_t code, struct hd_error *err); /* returns its final code */
    void (*op_clear)(struct hd__wrapper_op *op);                                   /* before its record is reused */
    void (*op_free)(struct hd__wrapper_op *op);
    void (*group_free)(struct hd__wrapper_group *group);                    /* NULL: frees inner_group */
    int32_t (*progress)(struct hd__wrapper *wrapper, struct hd_error *err); /* after the transports below */
    void (*leave)(struct hd__wrapper *wrapper);                             /* before they are closed */
    void (*finish)(struct hd__wrapper *wrapper);                            /* after: frees the kind's own state */
};

struct hd__wrapper {
    const struct hd__wrapper_kind *kind;
    struct hd__comm below[2]; /* the last allocates memory, and is closed first */
    uint32_t n_below;
    int32_t polls; /* kind->progress is called even while all queues are empty */
    struct hd_world world;
    struct hd__arena arena; /* of groups */
    struct hd__wrapper_group *groups;
    struct hd__request_pool ops;
    _Atomic int aborted;
};

/* Fills in its table. `close` frees the groups, closes the transports below, then frees operations and wrapper. */
void hd__comm_wrapper_make_table(struct hd__wrapper *wrapper, uint64_t caps, struct hd__comm *out);
/* For `advance`: posts the operation on the group's home. */
int32_t hd__comm_wrapper_pass_through(struct hd__wrapper_op *op, struct hd_error *err);

static inline int hd__comm_is_message(const struct hd_comm_call *call)
{
    return call->coll == HD_HOOK_SEND || call->coll == HD_HOOK_RECV;
}

#endif
