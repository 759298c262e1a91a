/* runtime/comm/topology: what "inside" means to the levels of collectives: a machine, a package of it, or a NUMA node
 * (hwloc). */
#ifndef HD_RUNTIME_COMM_TOPOLOGY_H
#define HD_RUNTIME_COMM_TOPOLOGY_H

#include "core/base/base.h"

enum { HD__LEVELS_MACHINE = 0, HD__LEVELS_PACKAGE, HD__LEVELS_NUMA, HD__LEVELS_COUNT };

struct hd__topology; /* the packages and NUMA nodes of this machine */

/* Was heddle built with hwloc? */
int hd__comm_topology_available(void);
/* For these levels. *places is NULL where all are MACHINE, which is one place: 0. Else the topology is read, once for all of them;
 * HD_E_UNSUPPORTED where heddle was built without hwloc. hwloc's environment counts: with HWLOC_SYNTHETIC or HWLOC_XMLFILE the
 * topology is another machine's, and ranks are bound in thought. */
int32_t hd__comm_topology_open(const int32_t *levels, uint32_t n, struct hd__topology **topology, struct hd_error *err);
void hd__comm_topology_close(struct hd__topology *topology); /* NULL is fine */
/* The number of the only place of this level that the cores of this process are in, as it is bound; -1: they are in several, or in
 * none. Where the topology is another machine's, by the rule. */
int32_t hd__comm_topology_locate(const struct hd__topology *topology, uint32_t level, int32_t local_rank,
                                 int32_t local_ranks);
/* That of any rank, by the rule by which heddle binds ranks to the cores of a machine: hd__cpus_partition. */
int32_t hd__comm_topology_locate_by_rule(const struct hd__topology *topology, uint32_t level, int32_t local_rank,
                                         int32_t local_ranks);
/* "machine", "package", "NUMA node" */
const char *hd__comm_topology_level_name(uint32_t level);

/* Of `ranks` ranks: outer[r] is the first rank of r's machine (or of another place around it), at[r] its place there. firsts[r]
 * becomes the first rank of r's place. Where a rank is in no single place, firsts is as outer, and it is returned; else -1. */
int32_t hd__comm_topology_leaders(const int32_t *outer, const int32_t *at, int32_t ranks, int32_t *leaders);

/* The levels of a job's ranks as they will be, the outermost first. */
struct hd__topology_levels {
    uint32_t n, level[HD__LEVELS_COUNT]; /* HD__LEVELS_... */
    int32_t *leaders[HD__LEVELS_COUNT];  /* by rank: the first rank of its place */
    int32_t unbound_rank;                /* a rank that is in no single place of the level `lost`; -1: there is none */
    uint32_t dropped_level;
};
/* Of the levels that a job names; at[i]: as above, for level i. A level where a rank is nowhere is left out; where all are,
 * the level is the machine. Memory is of the arena. */
void hd__comm_topology_levels(struct hd__topology_levels *out, const int32_t *levels, uint32_t n,
                              const int32_t *machine, int32_t *const *at, int32_t ranks, struct hd__arena *arena);
/* What comes of a level that is left out, for people. */
const char *hd__comm_topology_fallback(const struct hd__topology_levels *out);

#endif
