/* runtime/comm/hierarchical: two transports as one: inside a machine one, between machines another. Where the job says so
 * (comm.levels, topology.h), packages or NUMA nodes stand for machines.
 *
 * A group of several machines, as many members of each, its members one machine after the other, goes in two levels:
 *
 *     all_reduce       reduce_scatter inside, all_reduce across, all_gather inside
 *     reduce_scatter   inside for each machine's pieces, then across
 *     all_gather       across, then inside
 *     broadcast        inside the root's machine, across in slices, gathered inside the others
 *
 * Either transport may itself be two levels: so a machine's NUMA nodes lie inside machines.
 *
 * "Across" is a group of the members that have the same place in their machines: each moves its share between machines
 * once. Everything else (messages, small operations, other groups) goes over the transport between machines, and groups of one
 * machine wholly over the one inside. Sums keep the order of heddle/comm.h: two levels are taken only where the members of
 * a machine are a power of two and nothing is rounded between, or where any order will do. */
#ifndef HD_RUNTIME_COMM_HIERARCHICAL_H
#define HD_RUNTIME_COMM_HIERARCHICAL_H

#include "runtime/comm/open.h"

/* The world of this rank's machine, for the transport inside, but for its instance: its ranks in the order of `world`. `firsts[r]`:
 * the first rank on the machine of rank r. `job_ranks` has room for as many as `world`, and lives as long as that transport. */
struct hd_world hd__comm_hier_intra_world(const struct hd_world *world, const int32_t *leaders, int32_t *job_ranks);

/* Takes over both transports, which are open: `across` for `world`, `inside` for hd__comm_hier_intra_world of it. Then `out` is used like
 * any transport. Where `across` keeps the tree of heddle/comm.h, `inside` does. */
void hd__comm_hier_create(struct hd__comm *inter, struct hd__comm *intra, const struct hd_world *world,
                          const int32_t *leaders, struct hd__comm *out);
#endif
