/* cli/bench/ranks: measures a transport's operations the way nccl-tests does, every result checked.
 *
 * Ranks are forked, or started by the transport's launcher, or were started by somebody else's on several machines (struct
 * hd__bench_external); each opens the transport, takes its buffers from the transport's memory where there is any, and
 * runs every operation at every size. Times are of calls made back to back: the mean of a batch, of its slowest rank;
 * the median over batches. Sizes are nccl-tests': the larger of send and receive buffer. Bandwidths are in 10^9 bytes
 * a second: algbw = bytes / time, busbw = algbw x the share of the data that must cross between ranks. Several groups
 * run each operation at the same time, every batch from one barrier of all ranks; the slowest rank of all counts, and
 * bandwidths are those of one group. */
#ifndef HD_CLI_BENCH_RANKS_H
#define HD_CLI_BENCH_RANKS_H

#include "core/plugin/plugin.h"

/* X(constant, value, name, collective or 0, parts of the buffer (0: n, one a member), bus factor of n) */
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

/* This process is one of the ranks: another launcher started them all, each with this command. */
struct hd__bench_external {
    struct hd_store *store; /* through which they meet */
    int32_t rank, local_rank, local_ranks;
    int32_t runs; /* counted: transports that were measured */
};

struct hd__bench {
    struct hd__bench_external *external; /* NULL: the ranks are started here */
    const struct hd__component *component;
    const void *settings; /* the component's, parsed */
    const struct hd__component
        *intra; /* among ranks of several machines: the transport inside each; NULL: there is one level */
    const void *intra_settings;
    const char *const
        *words;    /* this command: a launcher may start ranks by it, which end in hd__bench_run_launched_rank */
    int32_t index; /* the caller's number of this transport */
    int32_t ranks;
    int32_t groups; /* 0, 1: all ranks in one; else so many of neighbours, which run an operation at the same time */
    uint32_t dtype;
    uint64_t first, last; /* bytes; inclusive */
    double factor;        /* from one size to the next, above 1 */
    uint32_t iterations;  /* calls timed a size; 0: by size, as many as give a steady median */
    uint32_t warmup;
    int32_t in_place;
    int32_t both;                       /* 1: out of place, then in place where there is such a form */
    int32_t plain;                      /* 1: buffers outside the transport's memory */
    const struct hd__component *device; /* the operation is overlapped with its products; NULL: it is not */
    const void *device_settings;
    int32_t product, reserved; /* rows and columns of the matrices */
    double timeout;
    const struct hd__tuning *tuning; /* of a transport without collectives; NULL: the built-in rules */
    uint32_t n_ops;
    uint32_t ops[HD__BENCH_OP_COUNT];
};

struct hd__bench_row {
    uint32_t op;
    int32_t in_place;
    uint64_t bytes, count; /* count: elements of one rank's part */
    double time_us, p50_us, p99_us, algbw, busbw;
    uint64_t errors; /* elements that were wrong, over all ranks */
    /* With products: so many alone, the operation alone, both at once, each of the best batch.
     * hidden = (products + alone - both) / the less of the two: 1 where both last as long as the longer one.
     * exposed = both - products: what a step would lose. */
    uint32_t products, reserved;
    double products_us, alone_us, both_us, exposed_us, hidden;
};

/* Does this process have the rows, and say them? */
static inline int hd__bench_is_root(const struct hd__bench *bench)
{
    return !bench->external || bench->external->rank == 0;
}

/* Of HD__BENCH_...: static text. */
const char *hd__bench_op_name(uint32_t op);
int32_t hd__bench_op_find(const char *name); /* -1 if unknown */
int32_t hd__bench_has_in_place(uint32_t op);

/* Calls `row` for each row, in order; among ranks of another launcher in rank 0 only, and all of them call this. A rank that was
 * started here and fails says why on stderr. */
int32_t hd__bench_run(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                      void *user, struct hd_error *err);

/* In a process that a launcher started as a rank of a bench: its transport, as in `which`; -1 elsewhere. */
int32_t hd__bench_launched_index(void);
/* Its work, with the same `bench` as the command that started it. Returns the exit code. */
int hd__bench_run_launched_rank(const struct hd__bench *bench, int32_t rank);

/* ---- inside: one rank's work (rank.c) */
#define HD__BENCH_BATCHES 21
#define HD__BENCH_SINGLE_CALLS 1000

enum { HD__BENCH_PRODUCTS, HD__BENCH_ALONE, HD__BENCH_BOTH, HD__BENCH_OVERLAP_COUNT };

/* Shared by the ranks of a run, one per rank. */
struct hd__bench_timings {
    double batch[HD__BENCH_BATCHES];
    double overlap[HD__BENCH_OVERLAP_COUNT][HD__BENCH_BATCHES];
    double alone, product; /* seconds at best: of an operation, of a product */
    uint64_t products;
    float single[HD__BENCH_SINGLE_CALLS];
    uint64_t errors;
};

/* Where rank 0's rows go: a pipe to who started the ranks, or, where there is none (-1), a function. */
struct hd__bench_sink {
    int out;
    void (*row)(void *user, const struct hd__bench_row *row);
    void *user;
};
/* Runs everything. `boards` are shared by all ranks, or each has a copy of its own and they go through the store. */
int32_t hd__bench_rank(const struct hd__bench *bench, int32_t rank, struct hd_store *store,
                       struct hd__bench_timings *timings, const struct hd__bench_sink *sink, struct hd_error *err);

#endif
