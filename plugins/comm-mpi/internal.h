/* comm-mpi: heddle's operations as MPI's non-blocking ones.
 *
 *   plugin.c        options, the table
 *   process.c       MPI_Init, MPI_Finalize: once a process, whatever is opened in it
 *   world.c         open, close, abort
 *   control.c       control messages: an abort, a group given up
 *   group.c         communicators
 *   collective.c    a call -> MPI requests
 *   call_check.c    compares what members call before it gets into MPI
 *   shared_flags.c  call signatures in memory that members of one machine share
 *   message.c       send, recv
 *   sums.c          reductions that MPI has not: bf16, fp16, maxima that keep a NaN
 *   widen.c         sums in a wider type, rounded once
 *   engine.c        operations: their pool, completion, failure; progress, test, wait
 *
 * One thread calls MPI; `abort` alone may come from another, and only leaves a note. */
#ifndef HD_COMM_MPI_INTERNAL_H
#define HD_COMM_MPI_INTERNAL_H

#include <mpi.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "../common/request_pool.h"
#include "heddle/comm.h"
#include "heddle/host.h"

#define CM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CM_MAX(a, b) ((a) > (b) ? (a) : (b))

struct cm_settings {
    int64_t largest; /* elements, or bytes of a message, in one MPI call */
    int32_t order;   /* CM_ORDER_... */
    int32_t halves;  /* CM_HALVES_... */
    int32_t compare; /* 0: members' calls are not compared */
    int32_t boards;  /* 0: not in shared memory */
};

/* Tags of messages: first those of the core's streams, then one of call_check.c's, then those of callers' streams. */
enum { CM_CORE_STREAMS = 31, CM_TAG_SIGNATURE = CM_CORE_STREAMS, CM_TAG_CALLERS };

enum { CM_ORDER_MPI = 0, CM_ORDER_CORE = 1 };
enum { CM_HALVES_NARROW = 0, CM_HALVES_WIDE = 1 };

/* ---- operations */

struct cm_group;

/* Work that remains when MPI's part is complete. */
struct cm_after {
    void *scratch;    /* to free, and where the result lies if `from` says so */
    const void *from; /* copied to `to`; NULL: nothing */
    void *to;
    uint64_t bytes, count; /* bytes to copy; elements to finish */
    uint32_t dtype;
    int32_t divide;  /* by the number of members, 0 or 1 */
    int32_t widened; /* `from` holds a wider type: narrowed into `to` */
    int32_t reserved;
};

/* The signature of a call, which a member sends to the next one. */
struct cm_signature {
    uint64_t count, tag;
    uint32_t coll, dtype, redop;
    int32_t root;
};

struct cm_op {
    struct rq_record id;
    struct cm_op *next; /* in the group's queue */
    struct cm_group *group;
    MPI_Request *requests;
    uint32_t n, room; /* requests */
    int32_t code;
    uint8_t done, kind, failed, reserved;
    int32_t peer; /* of a message */
    uint32_t stream;
    uint64_t bytes; /* of a message */
    double since;   /* when it first had to wait; 0: not yet */
    struct hd_comm_call call;
    struct cm_after after;
    struct cm_signature mine, theirs; /* theirs: of the member before */
    MPI_Request signature_requests[2];
};

enum { CM_COLLECTIVE = 0, CM_SEND = 1, CM_RECV = 2 };

/* Memory that a member shares with the next one: a ring of signatures. */
struct cm_flag_ring;

struct cm_flags {
    struct cm_flag_ring *own, *before; /* NULL: by messages */
    uint64_t put, taken;               /* signatures so far */
    uint64_t read;                     /* of `put`, as last read */
};

struct cm_group {
    struct hd_comm *comm;
    struct cm_group *next;
    MPI_Comm mpi;
    int32_t n, me;
    int32_t *ranks;
    uint64_t id;                /* the same on all members, another for each group */
    struct cm_op *head, **tail; /* collectives: they complete in this order */
    struct cm_op *unstarted;    /* the first that MPI does not have yet; those behind it neither */
    struct cm_op *unpublished;  /* the first whose signature is not in shared memory yet */
    struct cm_flags flags;
    struct cm_op **message; /* messages under way, beside their requests */
    MPI_Request *request;
    int *index;
    MPI_Status *status;
    uint32_t n_messages, message_room;
    struct hd_error error;
    char name[64];
};

#define CM_REASON 400

/* A control message between two ranks. */
struct cm_note {
    uint64_t group; /* 0: all */
    int32_t rank, code;
    char text[CM_REASON];
};

/* A control message that MPI may still be sending. */
struct cm_sent {
    struct cm_sent *next;
    MPI_Request request;
    struct cm_note note;
};

struct hd_comm {
    const struct hd_host *host;
    struct cm_settings settings;
    struct hd_world world;
    MPI_Comm mpi; /* all ranks, in heddle's order */
    struct cm_group *groups;
    uint64_t *hashes; /* of all groups so far */
    uint32_t n_hashes, hash_room;
    struct rq_pool ops; /* struct cm_op */
    uint32_t idle, reserved;
    struct cm_note note; /* being received */
    MPI_Request listening;
    struct cm_sent *sent;
    double checked;            /* when late operations were last searched for */
    uint32_t spins;            /* polls in vain before a wait yields the core */
    int32_t failed;            /* some operation did: MPI cannot be finalised in order */
    _Atomic uint32_t aborting; /* 0, 1: the reason is being written, 2: it is there */
    uint32_t told;             /* the others were */
    int32_t node;              /* the first rank of those that MPI says share memory with this one */
    int32_t largest_tag;       /* MPI_TAG_UB: from 2^15 - 1 on */
    struct hd_error error;     /* after an abort, here or elsewhere */
    char reason[CM_REASON];
};

/* process.c */
int32_t cm_process_open(struct hd_error *err);
/* in_order: all ranks are here, so that MPI can be finalised. */
void cm_process_close(int in_order);
int32_t cm_fail(struct hd_error *err, int mpi_code, const char *what); /* in words of MPI's */

/* world.c */
int32_t cm_open(const struct hd_host *host, const void *settings, const struct hd_world *world, struct hd_comm **comm,
                struct hd_error *err);
void cm_close(struct hd_comm *comm);
void cm_abort(struct hd_comm *comm, const char *reason);

/* control.c */
int32_t cm_control_listen(struct hd_comm *comm, struct hd_error *err);
void cm_control_stop(struct hd_comm *comm);
/* Tells the members; the note is on its way when it returns. */
void cm_control_send(struct hd_comm *comm, const struct cm_group *group, int32_t code, const char *text);
/* The last of those told, as the transport closes. */
void cm_control_release(struct hd_comm *comm);
/* Handles control messages that came, and passes on an abort of our own. */
void cm_control_poll(struct hd_comm *comm);

/* group.c */
int32_t cm_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                 struct hd_error *err);
void cm_group_free(struct hd_comm_group *group);

/* collective.c */
int32_t cm_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                      struct hd_error *err);
const char *cm_call_text(const struct hd_comm_call *call, char out[160]);
int cm_reduces(uint32_t coll);
int cm_collective_start(struct cm_op *op); /* MPI's code */
/* After MPI refused a call: gives the group up. */
void cm_collective_broke(struct cm_op *op, int code);

/* call_check.c */
int cm_check_begin(struct cm_op *op); /* MPI's code */
/* Hands MPI what is known to be the same on the member before, in order. 1 if anything moved. */
int cm_check_advance(struct cm_group *group);
void cm_check_cancel(struct cm_group *group);

/* shared_flags.c */
/* Collective. Without memory that all can share, the flags stay empty, which is no error. */
int32_t cm_flags_open(struct cm_group *group, struct hd_error *err);
void cm_flags_close(struct cm_flags *flags);
/* 0: the ring has no room yet; the member before has published nothing yet. */
int cm_flags_put(struct cm_flags *flags, const struct cm_signature *signature);
int cm_flags_take(struct cm_flags *flags, struct cm_signature *signature);

/* message.c */
int32_t cm_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err);
int32_t cm_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err);
/* 1 if any was completed. */
int cm_messages_advance(struct cm_group *group);
/* `count` times `element` as one datatype, however many; *is_new: it is to be freed. */
int cm_type(uint64_t count, MPI_Datatype element, int64_t largest, int *n, MPI_Datatype *type, int *is_new);

/* X(dtype, element, the wider one of cm_wider, element as it travels, element -> wider, wider -> element) */
#define CM_DTYPES(X)                                                       \
    X(HD_F32, float, float, MPI_FLOAT, CM_SAME, CM_SAME)                   \
    X(HD_F64, double, double, MPI_DOUBLE, CM_SAME, CM_SAME)                \
    X(HD_BF16, uint16_t, float, MPI_UINT16_T, cm_bf16_load, cm_bf16_store) \
    X(HD_F16, uint16_t, float, MPI_UINT16_T, cm_f16_load, cm_f16_store)    \
    X(HD_I32, int32_t, int64_t, MPI_INT32_T, CM_SAME, CM_SAME)             \
    X(HD_U8, uint8_t, int64_t, MPI_UINT8_T, CM_SAME, CM_SAME)
#define CM_SAME(x) (x)

/* sums.c */
struct cm_rule {
    MPI_Datatype type;
    MPI_Op op;
    int32_t divide, reserved;
};
int cm_sums_open(void); /* MPI's code */
void cm_sums_close(void);
/* How `redop` of `dtype` is formed, in that dtype. */
struct cm_rule cm_rule(uint32_t dtype, uint32_t redop);
MPI_Datatype cm_element(uint32_t dtype);
#define CM_I64 100 /* beside the HD_ dtypes: what the mean of integers is formed in */
size_t cm_size(uint32_t dtype);

/* widen.c */
/* The type that sums of `dtype` are formed in so that they are rounded once, or exact; 0: its own. */
uint32_t cm_wider(uint32_t dtype, uint32_t redop, int32_t halves);
void cm_widen(void *to, const void *from, uint32_t dtype, uint64_t count);
/* Divides as well. */
void cm_narrow(void *to, const void *from, uint32_t dtype, uint64_t count, int32_t divide_by);
/* In place; integers are to be wide before, for their sum has to be whole. */
void cm_divide(void *to, uint32_t dtype, uint64_t count, int32_t n);
float cm_bf16_load(uint16_t x);
uint16_t cm_bf16_store(float f);
float cm_f16_load(uint16_t x);
uint16_t cm_f16_store(float f);

/* engine.c */
double cm_now(void);
struct cm_op *cm_op_new(struct cm_group *group, uint32_t kind, struct hd_error *err);
void cm_op_release(struct hd_comm *comm, struct cm_op *op);
/* The place for one more request. */
MPI_Request *cm_op_request(struct cm_op *op);
void cm_op_finish(struct cm_op *op, int32_t code);
const char *cm_op_text(const struct cm_op *op, char out[160]);
/* Poisons the group: all that is pending completes with its first error. */
void cm_group_fail(struct cm_group *group, const struct hd_error *err);
/* The same, and the members are told. */
void cm_group_give_up(struct cm_group *group, const struct hd_error *err);
int32_t cm_usable(struct cm_group *group, struct hd_error *err);
void cm_ops_free(struct hd_comm *comm);
int32_t cm_progress(struct hd_comm *comm, struct hd_error *err);
int32_t cm_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err);
int32_t cm_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err);
/* Waits for requests of MPI, bounded by the time-out and by an abort; `what` for the message. */
int32_t cm_wait_all(struct hd_comm *comm, int n, MPI_Request *requests, const char *what, struct hd_error *err);

#endif
