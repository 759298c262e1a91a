/* runtime/comm/wrapper: what the transports that the core makes of others (overlay, levels) have in common. Collectives of their own
 * go through a queue, a group's own, and are done in its order; whatever else is asked for passes through to the group's home, a transport
 * below. Both are numbers of the layer's. How an operation goes on, and what it owns, its owner knows: struct hd__wrapper_kind.
 *
 * The owner's struct hd_comm, struct hd_comm_group and operation begin with the structures here. A failed operation poisons its
 * group. What it owns stays until the transports below are closed: they may still write into it. One thread at a time. */
#ifndef HD_RUNTIME_COMM_WRAPPER_H
#define HD_RUNTIME_COMM_WRAPPER_H

#include "runtime/comm/open.h"
#include "runtime/comm/request_pool.h"

struct hd__wrapper_op {
    struct hd__request request;
    struct hd__wrapper_op *next;     /* in its queue */
    struct hd__wrapper_group *group; /* NULL: it was freed */
    const struct hd__comm *below;    /* whose request it is, if it passed through; else NULL */
    hd_request inner;
    int32_t finished; /* nothing is left to do; done once those before it are */
    int32_t done, code;
};

struct hd__wrapper_group {
    struct hd__wrapper *layer;
    struct hd__wrapper_group *next;
    struct hd__wrapper_op *head, **tail;
    const struct hd__comm *home;       /* where what passes through goes */
    struct hd_comm_group *inner_group; /* the group on it */
    struct hd_error error;             /* the first */
    char name[64];
};

struct hd__wrapper_kind {
    size_t op_bytes;
    uint32_t
        first_reserved_stream; /* messages on it and all beyond are the owner's: refused to others; 0: there is none */
    uint32_t max_inflight;     /* so many of a queue advance beside each other */
    /* An operation, as far as it goes. 1: something moved; 0: nothing; or an error. over = 1 once it is. */
    int32_t (*advance)(struct hd__wrapper_op *op, struct hd_error *err);
    /* The head of a queue is late. The transport below is asked to wait, no longer: it knows best who is missing, and tells the others. */
    int32_t (*on_timeout)(struct hd__wrapper_op *head, struct hd_error *err);
    void (*op_clear)(struct hd__wrapper_op *op); /* it is over, and its record will be used again */
    void (*op_free)(struct hd__wrapper_op *op);
    void (*finish)(struct hd__wrapper *layer); /* what the owner added to it is freed; NULL: nothing was */
    int32_t (*group)(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n,
                     struct hd_comm_group **group, struct hd_error *err);
    void (*group_free)(struct hd_comm_group *group); /* never NULL */
    int32_t (*collective)(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                          struct hd_error *err);
};

struct hd__wrapper {
    const struct hd__wrapper_kind *kind;
    struct hd__comm below[2]; /* the last gives memory, and is closed first */
    uint32_t n_below;
    struct hd_world world; /* that it serves */
    struct hd__wrapper_group *groups;
    struct hd__request_pool ops;
};

/* The transport that it is, whose `close` frees the groups, closes what is below, then frees what operations own, and the layer. */
void hd__comm_wrapper_make_table(struct hd__wrapper *layer, uint64_t caps, struct hd__comm *out);
/* A collective that passes through. */
int32_t hd__comm_wrapper_pass_through(struct hd__wrapper_group *group, const struct hd_comm_call *call,
                                      hd_request *request, struct hd_error *err);

/* `group` is zeroed; home and there are its owner's to set. */
void hd__comm_wrapper_group_init(struct hd__wrapper *layer, struct hd__wrapper_group *group, const char *name);
void hd__comm_wrapper_group_finish(struct hd__wrapper_group *group); /* what is in its queue is cancelled */

/* HD_OK, or the error that poisoned the group. */
int32_t hd__comm_wrapper_group_status(const struct hd__wrapper_group *group, struct hd_error *err);
/* A new operation, to be filled in and then enqueued, or given back. What its owner added is as the last one left it. */
void *hd__comm_wrapper_op_take(struct hd__wrapper_group *group);
void hd__comm_wrapper_op_give_back(struct hd__wrapper_op *op);
/* Starts it, if it is the first; where it fails at once, it is gone. */
int32_t hd__comm_wrapper_enqueue(struct hd__wrapper_op *op, hd_request *request, struct hd_error *err);

#endif
