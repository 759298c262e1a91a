/* heddle/comm.h: a transport moves data between ranks.
 *
 * Life: open (all ranks of the world together) -> memory (optional) -> group, group, ... -> operations -> close.
 * Data operations only enqueue: they return a request at once and complete in the background of `progress`, which
 * the core calls between instructions and while it waits, or from a thread of its own (`comm.progress: thread`):
 * slots tagged [progress] are called by one thread at a time, not always the same. Collectives of one group complete
 * in the order in which they were enqueued, messages in the order of their sender, receiver and stream; operations
 * of different groups are independent, and several may be in flight. Buffers stay untouched by the caller until the
 * request is done. A member may be done with an operation before others begin theirs, where it needs nothing of them
 * (the root of a broadcast, the others of a reduce, a sender); what is then found to differ fails a later operation
 * of its in the group, at the latest the next that waits for all members. A failed operation poisons its group:
 * every later call on it fails with the first cause. What was under way may still be written into its buffers until
 * the transport is closed: their memory stays until then. */
#ifndef HEDDLE_COMM_H
#define HEDDLE_COMM_H

#include "heddle/plugin.h"

struct hd_comm;       /* the plugin's own: one a rank */
struct hd_comm_group; /* the plugin's own */
struct hd_store;      /* heddle/host.h */

#define HD_COMM_STREAM_ORDERED (UINT64_C(1) << 0) /* completion follows a device stream (NCCL) */
#define HD_COMM_HOST_PROGRESS (UINT64_C(1) << 1)  /* progress must be called (shm, MPI, libfabric) */
#define HD_COMM_LOCAL_ONLY (UINT64_C(1) << 2)     /* only between processes of one machine */
#define HD_COMM_DEVICE_MEMORY (UINT64_C(1) << 3)  /* buffers may be device memory */
#define HD_COMM_ANY_ORDER \
    (UINT64_C(1) << 4)                           /* sums of floats follow the transport's own order, the same on all
                                                     members and from run to run; without it: the tree below */
#define HD_COMM_MESSAGES_ONLY (UINT64_C(1) << 5) /* from caps_of: opened so that `collective` is not to be called */
/* With HD_COMM_STREAM_ORDERED: an operation begins where the stream was when it was posted, and the stream waits for
 * it only once `test` or `wait` said done. Until then operations of other groups and all messages are independent of
 * it, as they are on the host. Without it a pipeline's messages would wait for each other, and the core does not
 * send them. */
#define HD_COMM_INDEPENDENT_P2P (UINT64_C(1) << 6)
#define HD_COMM_STREAM_APART HD_COMM_INDEPENDENT_P2P /* its name until ABI 1.0 */

/* Operations of struct hd_comm_call. Counts are in elements of what ONE rank contributes or receives:
 *   all_reduce      send[count] -> recv[count]
 *   all_gather      send[count] -> recv[n count], piece i from group member i
 *   reduce_scatter  send[n count] -> recv[count], this member's piece of the sum
 *   all_to_all      send[n count] -> recv[n count], piece i to / from member i
 *   broadcast       root's send[count] -> everyone's recv[count]
 *   reduce          send[count] -> root's recv[count]
 *   barrier         nothing
 * In place: all_reduce, broadcast, reduce: send == recv. all_gather: send == recv + me count (elements);
 * reduce_scatter: recv == send + me count. Sums of bf16 and fp16 are formed in fp32 and rounded once. Integer sums
 * wrap; HD_AVG is the sum divided by n, of integers the exact one, truncated; a maximum is NaN if an input is. Every
 * sum is formed in one binary tree over the members, whatever the algorithm: those before the largest power of two
 * below n on the left, the others on the right, each half alike; ((0 + 1) + (2 + 3)) + (4 + 5) of six. Results are
 * bit-identical on all members and from run to run, and a sum over two axes is that over the inner axis, then over
 * the outer, where the inner has a power of two. Under HD_COMM_ANY_ORDER fp and bf sums follow an order of the
 * transport's own, partial sums of bf16 and fp16 may be rounded, and members and runs still agree to the bit. */
#define HD_COLLS(X)                                \
    X(HD_COLL_ALL_REDUCE, 1, "all_reduce")         \
    X(HD_COLL_ALL_GATHER, 2, "all_gather")         \
    X(HD_COLL_REDUCE_SCATTER, 3, "reduce_scatter") \
    X(HD_COLL_ALL_TO_ALL, 4, "all_to_all")         \
    X(HD_COLL_BROADCAST, 5, "broadcast")           \
    X(HD_COLL_REDUCE, 6, "reduce")                 \
    X(HD_COLL_BARRIER, 7, "barrier")

enum {
#define HD_COLL_ENUM(constant, value, name) constant = value,
    HD_COLLS(HD_COLL_ENUM)
#undef HD_COLL_ENUM
};

/* "?" of an unknown one. */
static inline const char *hd_coll_name(uint32_t coll)
{
    switch (coll) {
#define HD_COLL_CASE(constant, value, name) \
    case constant:                          \
        return name;
        HD_COLLS(HD_COLL_CASE)
#undef HD_COLL_CASE
    default:
        return "?";
    }
}

/* Read before `collective` returns; of what it leads to, `send` and `recv` live until the request is done. */
struct hd_comm_call {
    size_t struct_size;
    uint32_t coll;  /* HD_COLL_... */
    uint32_t dtype; /* HD_F32, HD_BF16, HD_F16, HD_F64, HD_I32, HD_U8 */
    uint32_t redop; /* HD_SUM, HD_MAX, HD_AVG; where it reduces */
    int32_t root;   /* member index, where there is one */
    const void *send;
    void *recv;
    uint64_t count;
    uint64_t tag; /* the caller's number of this operation (instruction); compared across members, named in errors */
};

/* Streams of messages are numbers below this, from 0 on: a library may have room for small ones only, as MPI's tags.
 * Some from it on are the core's own. */
#define HD_STREAMS_OF_CALLERS 2147483616u

/* A request is a number that the transport gives; it is valid until test or wait said done (or failed) once. Then what
 * stands behind it is the transport's again; what nobody asked for, in a job that fails, it frees in close. */
typedef uint64_t hd_request;

/* Read before `open` returns; store, instance, device and stream live until `close`. */
struct hd_world {
    size_t struct_size;
    int32_t rank, size;             /* of the job, from 0 */
    int32_t local_rank, local_size; /* of those on this machine, as the launcher numbers them */
    struct hd_store *store;         /* for exchanging addresses, through hd_host.store_put and store_get */
    const char *instance;           /* prefix for this transport's keys in the store: "comm/dp" */
    double timeout;                 /* seconds: the longest wait of any operation */
    double dead_after;              /* seconds until a silent peer counts as dead */
    /* For a transport that can be HD_COMM_STREAM_ORDERED: what the device's HD_STREAM_COMM is natively (a
     * cudaStream_t) and the device plugin's name ("cuda"). NULL: operations are on host memory. `test` then says
     * done when an operation is enqueued; its buffers are the stream's until the stream has passed it. Sends and
     * receives that were posted since the last test, wait or progress go into the stream together, as one: none of
     * them waits for another of them to be done. What fails after that ends the operation on the stream, and
     * `progress` returns the error from then on: ask it once after the stream has passed. */
    void *stream;
    const char *device;
    /* What messages and hd_error.peer call its ranks, where it serves but some of the job's (comm.inside):
     * job_ranks[r] is what rank r is in the job. Lives until `close`. NULL: all ranks, the same numbers. hd_job_rank
     * reads it. */
    const int32_t *job_ranks;
};

static inline int32_t hd_job_rank(const struct hd_world *world, int32_t rank)
{
    int known =
        world->struct_size >= offsetof(struct hd_world, job_ranks) + sizeof world->job_ranks && world->job_ranks;
    return known && rank >= 0 && rank < world->size ? world->job_ranks[rank] : rank;
}

/* While a process is stopped (Ctrl-Z, a suspended batch job, docker pause) those it waits for mostly are, too, so that
 * nobody is to blame for that time. Who waits looks at the clock again and again: what passed beyond `planned` seconds
 * between two looks does not count. */
static inline double hd_slept(double looked, double planned, double now)
{
    return now - looked > planned ? now - looked - planned : 0;
}

/* The beginning of a wait, later by what was slept since; never later than now. */
static inline double hd_excuse(double since, double looked, double planned, double now)
{
    since += hd_slept(looked, planned, now);
    return since < now ? since : now;
}

/* `planned` of a wait that looks at the clock some hundred times a second. */
#define HD_LOOK_SECONDS 1.0

/* Has a wait that began at *since (0: it begins now) lasted longer than `timeout` seconds? */
static inline int hd_wait_is_late(double *since, double looked, double timeout, double now)
{
    *since = *since != 0 ? hd_excuse(*since, looked, HD_LOOK_SECONDS, now) : now;
    return now - *since > timeout;
}

/* The end of such a wait; `looked`: when it began. */
struct hd_deadline {
    double at, looked;
};

/* A process can be stopped between the call that computes `at` and the one that begins to wait: where `at` has passed
 * long since by then, one look more is granted. at <= 0, or just now: only what is there already is asked for. */
static inline struct hd_deadline hd_deadline_from(double at, double now)
{
    struct hd_deadline deadline = {at > 0 && at < now - HD_LOOK_SECONDS ? now + HD_LOOK_SECONDS : at, now};
    return deadline;
}

/* So many seconds from now. */
static inline struct hd_deadline hd_deadline_in(double seconds, double now)
{
    struct hd_deadline deadline = {now + seconds, now};
    return deadline;
}

static inline int hd_deadline_passed(struct hd_deadline *deadline, double now)
{
    deadline->at += hd_slept(deadline->looked, HD_LOOK_SECONDS, now);
    deadline->looked = now;
    return now > deadline->at;
}

/* What starts the ranks of a job where nothing else did: the words of a command, found in PATH, before heddle's own;
 * "%n" is the number of ranks. Each rank must find its number in the command's environment variables. */
struct hd_comm_launcher {
    size_t struct_size;
    const char *const *command;     /* {"mpirun", "-n", "%n", NULL} */
    const char *const *environment; /* {"NAME=value", ..., NULL}: set for it where not set already; NULL: nothing */
    /* where the command comes from, for those who lack it: "Debian's package openmpi-bin"; NULL: unknown */
    const char *source;
    /* the same as environment, where nothing says that ranks run on other machines: no MASTER_ADDR, resource manager or
     * file of hosts; NULL: nothing */
    const char *const *local_environment;
};

struct hd_comm_ops {
    size_t struct_size;
    uint64_t caps;
    /* [control] mandatory. Collective: all ranks call it. *comm is not NULL where it returns HD_OK. */
    int32_t (*open)(const struct hd_host *host, const void *settings, const struct hd_world *world,
                    struct hd_comm **comm, struct hd_error *err);
    /* [control] mandatory; NULL is fine. Does not wait for peers, unless nothing failed and all are bound to come. */
    void (*close)(struct hd_comm *comm);
    /* [control] Collective. Memory that peers can reach directly, for this rank's arena: zeroed, 4096-byte aligned,
     * lives until close. Sizes may differ by rank. NULL slot: the core allocates. */
    int32_t (*memory)(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err);
    /* [control] mandatory. Collective over `ranks` (world ranks, n of them, this one among them; order = member
     * index). `name` is the same on all members and unique among groups with the same members. Not all groups are
     * made on all ranks; those that two ranks share they make in the same order. */
    int32_t (*group)(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n,
                     struct hd_comm_group **group, struct hd_error *err);
    /* [control] Before close; requests of the group are not asked for again. NULL slot: there is nothing to free. */
    void (*group_free)(struct hd_comm_group *group);
    /* [progress] Enqueues a collective. NULL slot: the core's algorithms over send and recv are used. */
    int32_t (*collective)(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                          struct hd_error *err);
    /* [progress] mandatory. Point to point inside a group; `peer` is a member index, one's own too. Matched in order
     * per (sender, receiver, stream); a different size is HD_E_MISMATCH on both sides, at a sender that was done by
     * then of what next waits for this receiver. Messages of 0 bytes are matched like others. */
    int32_t (*send)(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                    hd_request *request, struct hd_error *err);
    int32_t (*recv)(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                    hd_request *request, struct hd_error *err);
    /* [progress] mandatory. Does a bounded piece of pending work. Returns 1 if anything moved, 0 if not, or an
     * error. */
    int32_t (*progress)(struct hd_comm *comm, struct hd_error *err);
    /* [progress] mandatory. *done = 1 when complete. Does not make progress by itself. */
    int32_t (*test)(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err);
    /* [progress] Waits for one request, making progress and yielding the core; HD_E_TIMEOUT at the deadline
     * (CLOCK_MONOTONIC seconds; 0: at once), HD_E_PEER when a member died. NULL slot: the core loops over progress and
     * test. */
    int32_t (*wait)(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err);
    /* [any-thread] mandatory. Completes everything pending, here and soon on the peers, as HD_E_CANCELLED. */
    void (*abort)(struct hd_comm *comm, const char *reason);
    /* [control] The caps of a transport as its settings opened it. NULL slot: `caps`. */
    uint64_t (*caps_of)(const struct hd_comm *comm);
    /* NULL: any way to start the ranks will do. */
    const struct hd_comm_launcher *launcher;
    /* [load] What caps_of will say of a transport that is opened with these settings: `heddle explain` asks. NULL
     * slot: `caps`. */
    uint64_t (*caps_with)(const void *settings);
};

#endif
