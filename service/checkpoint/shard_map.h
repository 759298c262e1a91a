/* service/checkpoint/shard_map: elements of the global parameters in a flat tensor of one rank.
 *
 * Initialisation, loading of weights and checkpoints walk these runs: each is contiguous both in the global
 * row-major parameter and in this rank's memory. */
#ifndef HD_SERVICE_CHECKPOINT_SHARD_MAP_H
#define HD_SERVICE_CHECKPOINT_SHARD_MAP_H

#include "core/program/program.h"

struct hd__ckpt_shard_run {
    uint32_t param; /* index into hd_program.params */
    uint32_t reserved;
    int64_t first; /* element of the global parameter, row-major */
    int64_t count;
    int64_t offset; /* element of the flat tensor */
};

/* Iterator over the runs of a flat tensor (full, master, a state) at a coordinate, in memory order. */
struct hd__ckpt_shard_walk {
    const struct hd_program *p;
    const struct hd__flat *flat;
    const int32_t *coord;
    hd_tensor tensor;
    uint32_t param; /* this and the next begin as 0 */
    int64_t at;     /* the end of the last run, in elements of the flat */
};

/* The next run; 0 at the end. */
int hd__ckpt_shard_next(struct hd__ckpt_shard_walk *walk, struct hd__ckpt_shard_run *run);

/* Whether this rank stores a flat tensor: it is the first of its replicas. */
int hd__ckpt_owns_shard(const struct hd_program *p, const struct hd__flat *flat, uint32_t param, hd_tensor tensor,
                        const int32_t coord[HD_AXIS_COUNT]);

#endif
