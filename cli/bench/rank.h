/* cli/bench/rank: what the parts of one rank of a bench share. */
#ifndef HD_CLI_BENCH_RANK_H
#define HD_CLI_BENCH_RANK_H

#include "cli/bench/ranks.h"
#include "runtime/comm/open.h"

struct hd__bench_rank {
    const struct hd__bench *bench;
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;
    struct hd_comm_group *world, *group; /* all ranks; those that run an operation together */
    struct hd__bench_timings *timings;
    struct hd_store *store;
    struct hd_error *err;
    uint8_t *send, *recv, *plain; /* plain: to free; NULL where the transport gave the memory */
    int32_t rank;
    int32_t group_rank, group_size; /* member of the group, and of how many */
    int32_t in_place;               /* of what is measured now */
    const struct hd__bench_sink *sink;
    uint64_t tag;
    double deadline;                   /* of what waits now */
    struct hd__bench_compute *compute; /* NULL: nothing is overlapped */
};

/* Enqueues an operation; hd__bench_finish waits for it. */
int32_t hd__bench_start(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, hd_request request[2]);
int32_t hd__bench_finish(struct hd__bench_rank *b, uint32_t op, const hd_request request[2]);
int32_t hd__bench_barrier(struct hd__bench_rank *b); /* of all ranks */

/* ---- values.c */
uint64_t hd__bench_send_elements(const struct hd__bench_rank *b, uint32_t op, uint64_t count);
void hd__bench_fill(struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call);
/* Elements of the result that are not what they must be. */
uint64_t hd__bench_count_errors(const struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call);

/* ---- external_ranks.c */
/* The boards of the others come to rank 0, before the barrier that ends a size; nothing where they are shared. */
int32_t hd__bench_gather_timings(struct hd__bench_rank *b);
/* What lives as long as the transport inside a machine. */
struct hd__bench_intra {
    int32_t *ranks;
    char instance[48];
};
/* In two levels: `both`, which is open, goes between machines from here on; closed where this fails. */
int32_t hd__bench_open_hierarchical(const struct hd__bench *bench, const struct hd_world *world,
                                    struct hd__bench_intra *intra, struct hd__comm *both, struct hd_error *err);
int32_t hd__bench_run_external(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                               void *user, struct hd_error *err);

/* ---- ranks.c */
/* Rank r runs on the r-th core that we may use, round and round: migrations are noise. */
void hd__bench_pin_rank(int32_t rank);

/* ---- overlap.c */
struct hd__bench_compute; /* matrix products */
int32_t hd__bench_compute_open(struct hd__bench_rank *b);
void hd__bench_compute_close(struct hd__bench_rank *b);
/* Times of products alone, of the operation alone and of both, into this rank's board: `batches` of each. */
int32_t hd__bench_overlap(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, uint32_t batches);

#endif
