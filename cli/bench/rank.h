/* cli/bench/rank: declarations shared by the parts of one rank of a bench. */
#ifndef HD_CLI_BENCH_RANK_H
#define HD_CLI_BENCH_RANK_H

#include "cli/bench/ranks.h"
#include "runtime/comm/open.h"

struct hd__bench_rank {
    const struct hd__bench *bench;
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;
    struct hd_comm_group *world, *group; /* all ranks; members of a group */
    struct hd__bench_timings *timings;
    struct hd_store *store;
    struct hd_error *err;
    uint8_t *send, *recv, *plain; /* plain: memory to free; NULL: the transport's memory */
    int32_t rank;
    int32_t group_rank, group_size; /* this member and the number of members */
    int32_t in_place, warmed;       /* the current measurement; 1: a row was measured before it */
    const struct hd__bench_sink *sink;
    uint64_t tag;
    double deadline;                        /* requests in flight */
    struct hd__bench_compute *compute;      /* NULL: no overlap */
    struct hd__bench_device_memory *device; /* send and recv are a device's memory; NULL: the host's */
};

/* Enqueues an operation; hd__bench_finish waits for it. */
int32_t hd__bench_start(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, hd_request request[2]);
int32_t hd__bench_finish(struct hd__bench_rank *b, uint32_t op, const hd_request request[2]);
int32_t hd__bench_barrier(struct hd__bench_rank *b); /* maximum over all ranks */

/* ---- device_memory.c: does nothing where the buffers are the host's */
/* Opens bench->memory_device, and sets the world's device and stream. Closed on failure too, by the caller. */
int32_t hd__bench_device_open(struct hd__bench_rank *b, struct hd_world *world);
int32_t hd__bench_device_alloc(struct hd__bench_rank *b, size_t bytes, void **base);
void hd__bench_device_close(struct hd__bench_rank *b);
/* Waits until what was enqueued is done. */
int32_t hd__bench_settle(struct hd__bench_rank *b);
/* An address of the buffers, in host memory. */
uint8_t *hd__bench_mirror(const struct hd__bench_rank *b, const void *at);
int32_t hd__bench_device_put(struct hd__bench_rank *b); /* mirror to buffers, */
int32_t hd__bench_device_get(struct hd__bench_rank *b); /* and back */

/* ---- values.c */
uint64_t hd__bench_send_elements(const struct hd__bench_rank *b, uint32_t op, uint64_t count);
void hd__bench_fill(struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call);
/* Number of wrong elements of the result. */
uint64_t hd__bench_count_errors(const struct hd__bench_rank *b, uint32_t op, const struct hd_comm_call *call);

/* ---- external_ranks.c */
/* Copies the boards of the others to rank 0, before the barrier that ends a size; does nothing where they are
 * shared. */
int32_t hd__bench_gather_timings(struct hd__bench_rank *b);
/* State with the lifetime of the transport inside a machine. */
struct hd__bench_intra {
    int32_t *ranks;
    char instance[48];
};
/* Hierarchical: `both`, which is open, becomes the transport between machines; it is closed on failure. */
int32_t hd__bench_open_hierarchical(const struct hd__bench *bench, const struct hd_world *world,
                                    struct hd__bench_intra *intra, struct hd__comm *both, struct hd_error *err);
int32_t hd__bench_run_external(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                               void *user, struct hd_error *err);

/* ---- ranks.c */
/* Binds rank r to the r-th core of the affinity mask, round-robin: migrations are noise. */
void hd__bench_pin_rank(int32_t rank);

/* ---- overlap.c */
struct hd__bench_compute; /* matrix products */
int32_t hd__bench_compute_open(struct hd__bench_rank *b);
void hd__bench_compute_close(struct hd__bench_rank *b);
/* Times products alone, the operation alone and both, into this rank's board: `batches` of each. */
int32_t hd__bench_overlap(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, uint32_t batches);

#endif
