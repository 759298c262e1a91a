/* service/checkpoint/shard_map: which elements of the global parameters does a flat tensor of one rank hold?
 *
 * Everything that meets parameters by name (initialisation, loading weights, checkpoints) walks these runs: each is
 * contiguous both in the global row-major parameter and in this rank's memory. */
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

/* Visits the runs of a flat tensor (whole, master, a state) at a coordinate, in the order of its memory. Stops at the
 * first code that is not HD_OK and returns it. */
int32_t hd__ckpt_visit_shard_runs(const struct hd_program *p, const struct hd__flat *flat, hd_tensor tensor,
                                  const int32_t coord[HD_AXIS_COUNT],
                                  int32_t (*visit)(void *user, const struct hd__ckpt_shard_run *run), void *user);

/* Whether this rank is the one that stores a flat tensor: others along replicated axes hold the same. */
int hd__ckpt_owns_shard(const struct hd_program *p, const struct hd__flat *flat, uint32_t param, hd_tensor tensor,
                        const int32_t coord[HD_AXIS_COUNT]);

#endif
