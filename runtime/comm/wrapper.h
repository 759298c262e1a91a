/* runtime/comm/wrapper: one engine for all transports that the core makes of others: software_collectives,
 * hierarchical, hook.
 *
 * It has their table, their request numbers, a queue for each group, and test, wait, progress and abort. Every
 * operation, collective or message, has a record, and a kind of wrapper says in `begin` how it goes on:
 *
 *     HD_OK                it passes through to the group's home, a transport below, and is done when that says so
 *     HD__WRAPPER_QUEUE    it waits in its group's queue; `advance` carries its head on until it is finished
 *
 * `end` sees it complete. The owner's struct hd_comm, group and operation begin with the structures here. A failed
 * operation poisons its group. What it owns stays until the transports below are closed: they may still write into
 * it. One thread at a time, but for abort. */
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
    const struct hd__comm *below; /* whose request it is, once it passed through; else NULL */
    hd_request inner;
    struct hd_comm_call call; /* of a message: HD_HOOK_SEND or HD_HOOK_RECV, and count in bytes */
    int32_t peer;             /* of a message */
    uint32_t stream;
    int32_t finished; /* nothing is left to do; done once those before it are */
    int32_t done, code, reserved;
};

struct hd__wrapper_group {
    struct hd__wrapper *wrapper;
    struct hd__wrapper_group *next;
    struct hd__wrapper_op *head, **tail;
    const struct hd__comm *home;       /* where what passes through goes */
    struct hd_comm_group *inner_group; /* the group on it */
    struct hd_error error;             /* the first */
    const char *name;
    const int32_t *ranks; /* of the job */
    int32_t n, me;
};

struct hd__wrapper_kind {
    size_t op_bytes, group_bytes;
    uint32_t max_inflight; /* so many of a queue advance beside each other */
    /* How an operation goes on: see above; or an error. */
    int32_t (*begin)(struct hd__wrapper_op *op, struct hd_error *err);
    /* An operation, as far as it goes. 1: something moved; 0: nothing; or an error. finished = 1 once it is. */
    int32_t (*advance)(struct hd__wrapper_op *op, struct hd_error *err);
    /* The head of a queue is late. The transport below is asked to wait, no longer: it knows best who is missing, and
     * tells the others. */
    int32_t (*on_timeout)(struct hd__wrapper_op *head, struct hd_error *err);
    /* Sets home and inner_group; `ranks` are of the world. */
    int32_t (*group)(struct hd__wrapper_group *group, const int32_t *ranks, struct hd_error *err);
    /* From here on a slot may be NULL. */
    int32_t (*end)(struct hd__wrapper_op *op, int32_t code, struct hd_error *err); /* the code to go on with */
    void (*op_clear)(struct hd__wrapper_op *op); /* it is over, and its record will be used again */
    void (*op_free)(struct hd__wrapper_op *op);
    void (*group_free)(struct hd__wrapper_group *group); /* NULL: inner_group is; its memory stays until close */
    int32_t (*progress)(struct hd__wrapper *wrapper, struct hd_error *err); /* after that of the transports below */
    void (*leave)(struct hd__wrapper *wrapper);                             /* before they are closed */
    void (*finish)(struct hd__wrapper *wrapper);                            /* after: what the owner added is freed */
};

struct hd__wrapper {
    const struct hd__wrapper_kind *kind;
    struct hd__comm below[2]; /* the last gives memory, and is closed first */
    uint32_t n_below;
    int32_t polls;          /* kind->progress has work where no queue has */
    struct hd_world world;  /* that it serves */
    struct hd__arena arena; /* of groups */
    struct hd__wrapper_group *groups;
    struct hd__request_pool ops;
    _Atomic int aborted;
};

/* The transport that it is. Its `close` frees the groups, closes what is below, then frees what operations own, and
 * the wrapper. */
void hd__comm_wrapper_make_table(struct hd__wrapper *wrapper, uint64_t caps, struct hd__comm *out);
/* For `advance`: the operation goes to the group's home now. */
int32_t hd__comm_wrapper_pass_through(struct hd__wrapper_op *op, struct hd_error *err);

static inline int hd__comm_is_message(const struct hd_comm_call *call)
{
    return call->coll == HD_HOOK_SEND || call->coll == HD_HOOK_RECV;
}

#endif
