/* runtime/comm/hierarchical: two-level collectives: one transport within machines, another between them. With
 * comm.levels (topology.h) the parts are packages or NUMA nodes instead of machines, and levels nest: either
 * transport may itself be hierarchical.
 *
 * Two levels need a group of several machines with equally many members on each, numbered machine by machine:
 *
 *     all_reduce       intra reduce_scatter, inter all_reduce, intra all_gather
 *     reduce_scatter   intra for each machine's blocks, then inter
 *     all_gather       inter, then intra
 *     broadcast        intra on the root's machine, inter in slices, intra all_gather on the others
 *
 * An inter group has the members of equal index in their machines: each share crosses between machines once.
 * Messages, small operations and other groups use the inter transport, groups within one machine the intra
 * transport. Sums keep the order of heddle/comm.h: two levels are used only where the members of a machine are a
 * power of two and no partial sum is rounded, or with `comm.sums: any`. */
#ifndef HD_RUNTIME_COMM_HIERARCHICAL_H
#define HD_RUNTIME_COMM_HIERARCHICAL_H

#include "runtime/comm/open.h"

/* World of the intra transport, except its instance: the ranks of this rank's machine in the order of `world`.
 * `leaders[r]`: the first rank on the machine of rank r. `job_ranks` has room for world->size, and outlives that
 * transport. */
struct hd_world hd__comm_hier_intra_world(const struct hd_world *world, const int32_t *leaders, int32_t *job_ranks);

/* Takes over both open transports: `inter` for `world`, `intra` for hd__comm_hier_intra_world of it. `out` is the
 * result. Where `inter` keeps the tree of heddle/comm.h, `intra` must too. */
void hd__comm_hier_create(struct hd__comm *inter, struct hd__comm *intra, const struct hd_world *world,
                          const int32_t *leaders, struct hd__comm *out);
#endif
