/* A libnccl.so.2 without a GPU: ranks are processes that meet in shared memory, an operation is a function that a
 * stream of the driver calls. It refuses what NCCL refuses: a communicator that is used before the last call on it
 * has finished. What NCCL does not notice (another size, another collective, a member that never comes) it does not
 * notice either.
 *
 *   library.c     ids, communicators, groups of calls
 *   operations.c  what they do
 *   sums.c        reductions, in the order of ranks, rounded at each step as NCCL's may be
 *
 * What is captured is kept until its graph is destroyed, and runs as often as that is launched. A communicator waits
 * for its graphs when it is finalized, as NCCL's does: whoever destroys it first waits for ever. Then it waits for the
 * other members, since ncclCommFinalize and ncclCommDestroy are collective among the ranks of a machine.
 *
 * FAKE_NCCL_FAULT="CALL WHAT RESULT", of this process's CALL-th operation, counted from 1: `fail` it returns RESULT;
 * `async` the communicator reports RESULT and the operation never ends; `hang` it never ends; `late` it is never
 * enqueued. */
#ifndef HD_COMM_NCCL_TESTS_FAKE_H
#define HD_COMM_NCCL_TESTS_FAKE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "plugins/comm-nccl/api.h"

#define MOST_RANKS 16
#define SLOT (256 << 10) /* bytes of a step of a collective */
#define MAIL (64 << 10)  /* of a message */
#define MOST_BUFFERS 64

struct mailbox {
    _Atomic uint32_t full;
    uint32_t bytes;
    uint8_t data[MAIL];
};

/* What the members of a communicator share. */
struct shared {
    _Atomic uint32_t joined, left;       /* left: finalized, or aborted */
    _Atomic uint64_t steps[MOST_RANKS];  /* of collectives: how many each has made */
    _Atomic uint64_t splits[MOST_RANKS]; /* the same of splits */
    int32_t keys[MOST_RANKS];
    struct nc_id born;
    uint8_t slot[MOST_RANKS][SLOT];
    struct mailbox mail[MOST_RANKS][MOST_RANKS]; /* from, to */
};

struct registration {
    const void *buffer;
    size_t bytes; /* 0: free */
};

struct ncclComm {
    struct shared *shared;
    struct registration registered[MOST_BUFFERS]; /* a communicator that is aborted gives them up */
    int n, rank, blocking;
    _Atomic int aborted, result, users, pending, launching, captured,
        left; /* result: the asynchronous one; captured: calls in graphs */
};

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECV };
enum { NO_FAULT = 0, FAIL, ASYNC, HANG, LATE };

struct operation {
    struct operation *next;
    nc_comm comm;
    void *stream;
    const uint8_t *send;
    uint8_t *recv;
    size_t count, done;                      /* done: bytes of a message */
    int kind, type, op, root, fault, result; /* root: also the peer */
};

/* operations.c: runs a list, which it frees, and drops the communicator; called by a stream. */
void operations_run(void *list);
/* The same with a copy of the list, as often as its graph is launched. */
void operations_run_again(void *list);
void operations_free(struct operation *list);
/* Waits until all members have counted as far; 0 if the communicator was aborted meanwhile. */
int steps_meet(nc_comm comm, _Atomic uint64_t *steps);
size_t type_size(int type);
void relax(unsigned idle);

/* sums.c: into += from, of `count`; `last`: all n were added. */
void sum_into(void *into, const void *from, size_t count, int type, int op);
/* Before and after the sum of n: a mean is one of numbers multiplied by 1/n, or of integers, divided. */
void sum_before(void *x, size_t count, int type, int op, int n);
void sum_after(void *x, size_t count, int type, int op, int n);

/* library.c */
void comm_drop(nc_comm comm);

#endif
