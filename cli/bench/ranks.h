/* cli/bench/ranks: measures a transport's operations the way nccl-tests does, every result checked.
 *
 * Ranks are forked, or started by the transport's launcher, or by another launcher on several machines (struct
 * hd__bench_external); each opens the transport, takes its buffers from the transport's memory if it has any, and
 * runs every operation at every size. Times are of back-to-back calls: the mean of a batch, of its slowest rank; the
 * median over batches. Sizes are nccl-tests': the larger of send and receive buffer. Bandwidths are in 10^9 bytes a
 * second: algbw = bytes / time, busbw = algbw x the share of the data that must cross between ranks. Several groups
 * run each operation concurrently, every batch from one barrier of all ranks; the slowest rank of all counts, and
 * bandwidths are per group. */
#ifndef HD_CLI_BENCH_RANKS_H
#define HD_CLI_BENCH_RANKS_H

#include "core/plugin/plugin.h"

/* X(constant, value, name, collective or 0, parts of the buffer (0: n, one per member), bus factor of n) */
#define HD__BENCH_OPS(X)                                                                     \
    X(HD__BENCH_ALL_REDUCE, 0, "all_reduce", HD_COLL_ALL_REDUCE, 1, 2.0 * (n - 1) / n)       \
    X(HD__BENCH_REDUCE_SCATTER, 1, "reduce_scatter", HD_COLL_REDUCE_SCATTER, 0, (n - 1) / n) \
    X(HD__BENCH_ALL_GATHER, 2, "all_gather", HD_COLL_ALL_GATHER, 0, (n - 1) / n)             \
    X(HD__BENCH_BROADCAST, 3, "broadcast", HD_COLL_BROADCAST, 1, 1.0)                        \
    X(HD__BENCH_REDUCE, 4, "reduce", HD_COLL_REDUCE, 1, 1.0)                                 \
    X(HD__BENCH_ALL_TO_ALL, 5, "all_to_all", HD_COLL_ALL_TO_ALL, 0, (n - 1) / n)             \
    X(HD__BENCH_SENDRECV, 6, "sendrecv", 0, 1, 1.0)                                          \
    X(HD__BENCH_BARRIER, 7, "barrier", HD_COLL_BARRIER, 1, 0.0)

enum {
#define HD__BENCH_ENUM(constant, value, name, coll, parts, factor) constant = value,
    HD__BENCH_OPS(HD__BENCH_ENUM)
#undef HD__BENCH_ENUM
        HD__BENCH_OP_COUNT
};

struct hd_store;

/* This process as one rank of a launch by another launcher, each with this command. */
struct hd__bench_external {
    struct hd_store *store; /* store of the rendezvous */
    int32_t rank, local_rank, local_ranks;
    int32_t runs; /* number of transports measured so far */
};

struct hd__bench {
    struct hd__bench_external *external; /* NULL: the ranks are started here */
    const struct hd__component *component;
    const void *settings; /* the component's, parsed */
    /* with ranks on several machines: the transport inside each; NULL: one level */
    const struct hd__component *intra;
    const void *intra_settings;
    /* this command: a launcher may start ranks by it, which end in hd__bench_run_launched_rank */
    const char *const *words;
    int32_t index; /* the caller's index of this transport */
    int32_t ranks;
    /* 0, 1: all ranks in one; else the number of groups of neighbours that run an operation concurrently */
    int32_t groups;
    uint32_t dtype;
    uint64_t first, last; /* bytes; inclusive */
    double factor;        /* from one size to the next, above 1 */
    uint32_t iterations;  /* timed calls per size; 0: by size, enough for a stable median */
    uint32_t warmup;
    int32_t in_place;
    int32_t both;                       /* 1: out of place, then in place if the operation has such a form */
    int32_t plain;                      /* 1: buffers outside the transport's memory */
    const struct hd__component *device; /* the operation is overlapped with its products; NULL: it is not */
    void *device_settings;
    int32_t product, reserved;                 /* rows and columns of the matrices */
    const struct hd__component *memory_device; /* whose memory has the buffers; NULL: the host's */
    void *memory_device_settings;
    double timeout;
    const struct hd__tuning *tuning; /* of a transport without collectives; NULL: the built-in rules */
    uint32_t n_ops;
    uint32_t ops[HD__BENCH_OP_COUNT];
};

struct hd__bench_row {
    uint32_t op;
    int32_t in_place;
    uint64_t bytes, count; /* elements of one rank's part */
    double time_us, p50_us, p99_us, algbw, busbw;
    uint64_t errors; /* wrong elements over all ranks */
    /* With products: products alone, the operation alone, both at once, each the best batch. hidden = (products +
     * alone - both) / min(products, alone): 1 is full overlap. exposed = both - products: the time that a step would
     * lose. noisy: 1: the products' times differ by more than the operation lasts, and hidden says nothing. */
    uint32_t products, noisy;
    double products_us, alone_us, both_us, exposed_us, hidden;
};

/* Whether this process has the rows and prints them. */
static inline int hd__bench_is_root(const struct hd__bench *bench)
{
    return !bench->external || bench->external->rank == 0;
}

/* Name of an HD__BENCH_... operation: static text. */
const char *hd__bench_op_name(uint32_t op);
int32_t hd__bench_op_find(const char *name); /* -1 if unknown */
int32_t hd__bench_has_in_place(uint32_t op);

/* Calls `row` for each row, in order; with another launcher in rank 0 only, and all of them call this. A rank that
 * was started here prints its error on stderr. */
int32_t hd__bench_run(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                      void *user, struct hd_error *err);

/* In a rank that a launcher started: its transport, as in `which`; -1 elsewhere. */
int32_t hd__bench_launched_index(void);
/* Runs such a rank, with the same `bench` as the command that started it. Returns the exit code. */
int hd__bench_run_launched_rank(const struct hd__bench *bench, int32_t rank);

/* ---- inside: one rank's work (rank.c) */
#define HD__BENCH_BATCHES 21
#define HD__BENCH_SINGLE_CALLS 1000

enum { HD__BENCH_PRODUCTS, HD__BENCH_ALONE, HD__BENCH_BOTH, HD__BENCH_OVERLAP_COUNT };

/* Shared by the ranks of a run, one per rank. */
struct hd__bench_timings {
    double batch[HD__BENCH_BATCHES];
    double overlap[HD__BENCH_OVERLAP_COUNT][HD__BENCH_BATCHES];
    double alone, product; /* best seconds: of an operation, of a product */
    uint64_t products;
    float single[HD__BENCH_SINGLE_CALLS];
    uint64_t errors;
};

/* Destination of rank 0's rows: a pipe to the process that started the ranks, or, if -1, a function. */
struct hd__bench_sink {
    int out;
    void (*row)(void *user, const struct hd__bench_row *row);
    void *user;
};
/* Runs everything. `boards` are shared by all ranks, or each has its own copy and they are exchanged through the
 * store. */
int32_t hd__bench_rank(const struct hd__bench *bench, int32_t rank, struct hd_store *store,
                       struct hd__bench_timings *timings, const struct hd__bench_sink *sink, struct hd_error *err);

#endif
