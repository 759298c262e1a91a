/* comm-nccl: heddle's operations as NCCL's, on streams.
 *
 *   plugin.c        the table, the probe
 *   options.*       settings: NCCL's variables and ncclConfig_t
 *   api.h           what is used of NCCL and of CUDA's driver; library.c opens both
 *   world.c         open, close
 *   abort.c         abort, here and elsewhere
 *   communicator.c  queues and their communicators: created, watched, ended
 *   group.c         groups
 *   collective.c    a call -> NCCL's
 *   message.c       send, recv
 *   engine.c        operations: their pool, their way to the stream; progress, test, wait
 *
 * A lane is a communicator with a stream of its own, on which operations run in the order in which they were enqueued.
 * A group has one for its collectives, and one for each sender, receiver and stream of its messages: what the contract
 * calls independent never waits for each other, as it would on one stream. An operation begins where the device's
 * stream was when it was enqueued, and the device's stream waits for its end once `test` has said done.
 *
 * An operation is posted, launched when its lane's communicator is ready and what was launched before is enqueued, and
 * done when NCCL has enqueued it. What goes wrong later on the stream is what `progress` returns from then on.
 *
 * One thread at a time is inside; `abort` alone comes when it likes. */
#ifndef HD_COMM_NCCL_INTERNAL_H
#define HD_COMM_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "../common/request_pool.h"
#include "api.h"
#include "heddle/comm.h"
#include "heddle/host.h"
#include "options.h"

#define NC_REASON 400
#define NC_KEY 160
#define NC_SCRATCH 4096 /* bytes */

enum { NC_COLLECTIVE = 0, NC_SEND = 1, NC_RECV = 2 };

struct nc_queue;
struct nc_group;

struct nc_op {
    struct rq_record id;
    struct nc_op *next;     /* in its lane */
    struct nc_group *group; /* NULL: it was freed */
    struct nc_queue *queue;
    void *begin, *end; /* events on the device's stream, on the lane's; kept while the record is */
    int32_t code;
    uint8_t done, empty, kind, reserved;
    int32_t peer; /* of a message: member index */
    uint32_t stream;
    const void *from;
    void *to;
    uint64_t bytes; /* of a message */
    double since;   /* when it was seen to wait at the head of its queue; 0: not yet */
    struct hd_comm_call call;
};

enum { NC_MEETING = 1, NC_JOINING = 2, NC_READY = 3, NC_OVER = 4, NC_SELF = 5 };

/* Memory that a communicator knows. */
struct nc_buffer {
    uint64_t base, bytes;
    void *handle; /* NULL: NCCL would not */
};

struct nc_queue {
    struct nc_queue *next; /* of the group */
    struct nc_group *group;
    _Atomic(nc_comm) comm; /* taken out by who ends it */
    nc_comm *born;         /* where a split puts it, at a time of its own: freed once it has */
    void *stream;
    int32_t state, n, me;            /* in the communicator */
    int32_t shared;                  /* the communicator is the world's, and stays */
    int32_t from, to;                /* of messages: member indices; -1: collectives */
    uint32_t tag;                    /* of messages: the stream */
    uint8_t armed;                   /* `mark` is being waited for */
    uint8_t captured;                /* some operations are in graphs, which run at any time */
    uint16_t placed;                 /* place[1] was recorded since `mark` was */
    uint32_t unmarked;               /* operations that came after it */
    uint32_t number;                 /* of the group: its words in `scratch` */
    struct nc_op *head, **tail;      /* posted */
    struct nc_op *launched;          /* not yet enqueued */
    struct nc_op *sent, **sent_tail; /* to oneself: sends without a receive; `head` has receives without a send */
    double checked, since;           /* for the id; when `mark` was recorded */
    void *mark;                      /* the end of an operation that may still run */
    void *place[2];                  /* on the device's stream: where it was posted; where the last one was */
    struct nc_op marked, last;       /* that operation; the last enqueued: copies, for their names */
    struct nc_buffer *buffer;
    uint32_t n_buffers, buffer_room;
    char key[NC_KEY]; /* of the id, in the store */
};

struct nc_group {
    struct hd_comm *comm;
    struct nc_group *next;
    struct nc_queue *queues; /* by sender, receiver and stream; the first is that of collectives */
    int32_t n, me;
    int32_t *ranks;
    uint64_t id; /* the same on all members, another for each group */
    struct hd_error error;
    char name[64];
};

struct nc_group_count {
    uint64_t hash, times;
};

struct hd_comm {
    const struct hd_host *host;
    struct nc_settings settings;
    struct nc_config config;
    struct nc_api api;
    struct hd_world world;
    void *context;               /* CUDA's, which other threads enter */
    uint64_t scratch;            /* device memory of barriers, two words a group */
    _Atomic(nc_comm) base;       /* of all ranks, once there was such a group: later ones are split off */
    struct nc_queue *base_queue; /* which uses it; NULL: none any more */
    struct nc_group *groups;
    struct nc_group_count *counts; /* of groups so far */
    uint32_t n_counts, counts_room;
    struct rq_pool ops; /* struct nc_op */
    double checked;
    struct hd_error failure; /* of an operation that was done, and failed on the stream */

    pthread_mutex_t lock; /* while NCCL is called; an abort waits a moment for it */
    pthread_t listener;
    pthread_t ender;
    int32_t listening, taken; /* the error is in all groups */
    int32_t ending;           /* `ender` was started */
    int32_t splitting;        /* `base` is being split: nothing else may use it */
    uint32_t n_queues;        /* that there were, of collectives */
    _Atomic uint32_t stopped; /* 0, 1: the error is being written, 2: it is there */
    struct hd_error error;    /* after an abort, here or elsewhere */
    char key[96];             /* of notes to this rank, up to the rank */
};

/* library.c */
int32_t nc_library_open(struct nc_api *api, const char *library, struct hd_error *err);
int32_t nc_driver_open(struct nc_api *api, const char *driver, struct hd_error *err);
int32_t nc_driver_works(const struct nc_api *api, struct hd_error *err); /* starts it; says why not */
int32_t nc_driver_tried(const struct nc_api *api, struct hd_error *err); /* the same, without starting it here */
/* HD_OK, or how heddle calls it: message, scope and native code. `comm` may be NULL. */
int32_t nc_check(const struct nc_api *api, nc_comm comm, int result, const char *what, struct hd_error *err);
int32_t nc_cu_check(const struct nc_api *api, int result, const char *what, struct hd_error *err);
int32_t nc_code(int result); /* NCCL's result as HD_E_... */

/* world.c */
int32_t nc_open(const struct hd_host *host, const void *settings, const struct hd_world *world, struct hd_comm **comm,
                struct hd_error *err);
void nc_close(struct hd_comm *comm);
/* Lets this thread use the device. */
void nc_enter(const struct hd_comm *comm);

/* abort.c */
void nc_abort(struct hd_comm *comm, const char *reason);
int32_t nc_listen(struct hd_comm *comm, struct hd_error *err);
void nc_stop_listening(struct hd_comm *comm);
/* Takes an abort over into the groups. HD_OK while there was none. Under the lock. */
int32_t nc_poll_abort(struct hd_comm *comm, struct hd_error *err);

/* communicator.c: under the lock. */
struct nc_queue *nc_queue_new(struct nc_group *group, int32_t from, int32_t to, uint32_t tag, struct hd_error *err);
/* A step towards NC_READY. */
int32_t nc_queue_advance(struct nc_queue *queue, int *moved, struct hd_error *err);
/* Waits for NC_READY; gives the lock away in between. */
int32_t nc_queue_connect(struct nc_queue *queue, struct hd_error *err);
/* Ends communicators of `group`, or of all: in order, waiting for what runs, or at once. The lanes stay, NC_OVER. */
void nc_queues_end(struct hd_comm *comm, struct nc_group *group, int in_order);
void nc_queue_free(struct nc_queue *queue);
/* Registers the allocation around `at` with the communicator, once; NULL: nothing. */
void nc_queue_register(struct nc_queue *queue, const void *at);

/* group.c */
int32_t nc_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                 struct hd_error *err);
void nc_group_free(struct hd_comm_group *group);
/* Poisons: all that is pending completes with `err`, the first. */
void nc_group_fail(struct nc_group *group, const struct hd_error *err);
int32_t nc_usable(struct nc_group *group, struct hd_error *err);

/* collective.c */
int32_t nc_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                      struct hd_error *err);
const char *nc_call_text(const struct hd_comm_call *call, char out[160]);
int nc_call(struct nc_op *op); /* NCCL's result */

/* message.c */
int32_t nc_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err);
int32_t nc_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err);
int nc_message(struct nc_op *op); /* NCCL's result */
/* Copies what a rank sends itself, where both sides are posted. */
int32_t nc_self_advance(struct nc_queue *queue, int *moved, struct hd_error *err);

/* engine.c */
double nc_now(void);
void nc_lock(struct hd_comm *comm);
void nc_unlock(struct hd_comm *comm);
struct nc_op *nc_op_new(struct nc_group *group, struct nc_queue *queue, uint32_t kind, struct hd_error *err);
void nc_op_release(struct hd_comm *comm, struct nc_op *op);
/* Into its lane, and as far as it goes at once. The record is the caller's no more. */
int32_t nc_post(struct nc_op *op, hd_request *request, struct hd_error *err);
void nc_op_finish(struct nc_op *op, int32_t code);
/* A launched operation is on the stream. */
int32_t nc_enqueued(struct nc_op *op, struct hd_error *err);
const char *nc_op_text(const struct nc_op *op, char out[160]);
void nc_ops_free(struct hd_comm *comm);
/* One turn over all lanes; 1 if anything moved. */
int nc_turn(struct hd_comm *comm);
int32_t nc_progress(struct hd_comm *comm, struct hd_error *err);
int32_t nc_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err);
int32_t nc_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err);

#endif
