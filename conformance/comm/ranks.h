/* Forked ranks with a rendezvous, each with a transport opened: what the suites of this folder share. */
#ifndef HD_CONFORMANCE_COMM_RANKS_H
#define HD_CONFORMANCE_COMM_RANKS_H

#include <stdatomic.h>

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/comm/algorithms/select.h"
#include "runtime/rendezvous/store.h"

struct rank {
    int32_t rank, size;
    struct hd_store *store;
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;        /* NULL where the run asked for no transport */
    const _Atomic int32_t *over; /* of all processes: ranks whose body has returned */
    int32_t stays;               /* set by a body: it closes the transport once so many bodies have returned */
    double timeout;
    void *stream;     /* by which the transport is ordered; NULL: none */
    int own_messages; /* send and recv are the transport's own: no stream is kept for collectives */
};

struct ranks_options {
    int32_t size;
    double timeout, dead_after; /* 0: 30 s and 10 s; a timeout is longer with CK_TIMEOUT_MULTIPLIER */
    const char *settings;       /* "small=1KiB stage=64KiB"; NULL: defaults */
    double patience;            /* seconds until ranks that hang are killed; 0: 100, more with CK_TIMEOUT_MULTIPLIER */
    int no_transport;
};

/* Which transport: set by main() from the command line. transport_folder is NULL where heddle looks. */
extern const char *transport_name, *transport_folder;
extern const struct hd__tuning *transport_tuning; /* of the core's algorithms; NULL: the built-in one */
extern char transport_driver[256];                /* of streams; "": the transport is the host's */
extern int transport_bare; /* without its collectives: the core's algorithms over send and recv */
extern int transport_told; /* it learns of a death from liveness, which aborts it, as the executor has it done */
/* Messages name ranks and sizes, and nonsense is refused: more than heddle/comm.h asks for. */
extern int transport_strict;
extern char transport_settings[512]; /* before those of the run */
extern int transport_narrow;         /* it refuses means that NCCL forms in its own way, and its maxima lose a NaN */
extern int32_t transport_most;       /* ranks that it can have here; 0: any number */

/* A word of the command line: bare, alone (not told), strict, narrow, most:N, stream:DRIVER (it is
 * ordered by a stream of that CUDA driver), set:KEY=VALUE, or inside:NAME:FOLDER:N[:M], another transport inside machines that are thought to have N
 * ranks each (-N: N machines that have the ranks in turn), and with M once more inside nodes of M ranks. 1 if it was
 * one of these. */
int transport_word(const char *word);

/* Starts `size` ranks, each runs body(rank) and leaves with its result. Returns 0 if all returned 0; expect_signal[r],
 * if given, is the signal by which rank r ends. Ranks are forked; those of a transport that names a launcher are this
 * program again, started by it, so main() has to ask launched_rank first. */
int run_ranks(const struct ranks_options *options, int (*body)(struct rank *rank), const int *expect_signal);
/* For main(), after it has read its arguments: is this process a rank? Then it was one, to its end, and leaves with
 * *result. */
int launched_rank(int *result);

/* After wait or test said done: until what was done is done on the stream too, if there is one. */
int32_t settle(struct rank *rank, double deadline, struct hd_error *err);
/* Memory that the transport can use, until the process ends. */
void *rank_memory(const struct rank *rank, size_t bytes);

/* A group of all ranks. Fails the rank (1) as EXPECT does. */
int world_group(struct rank *rank, const char *name, struct hd_comm_group **group);

/* In a body: fails the rank with a line on stderr. */
#define EXPECT(condition, ...)                                                                                    \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            char expect_text[1400];                                                                               \
            snprintf(expect_text, sizeof expect_text, __VA_ARGS__);                                               \
            fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, rank->rank, #condition, expect_text); \
            return 1;                                                                                             \
        }                                                                                                         \
    } while (0)

#endif
