/* runtime/comm/topology: the levels of hierarchical collectives: machines, packages, NUMA nodes (hwloc). */
#ifndef HD_RUNTIME_COMM_TOPOLOGY_H
#define HD_RUNTIME_COMM_TOPOLOGY_H

#include "core/base/base.h"

enum { HD__LEVELS_MACHINE = 0, HD__LEVELS_PACKAGE, HD__LEVELS_NUMA, HD__LEVELS_COUNT };

struct hd__topology; /* the packages and NUMA nodes of this machine */

/* Was heddle built with hwloc? */
int hd__comm_topology_available(void);
/* Reads the topology for these levels; *topology is NULL where all are MACHINE. HD_E_UNSUPPORTED where heddle was
 * built without hwloc. With HWLOC_SYNTHETIC or HWLOC_XMLFILE it is another machine's, and the binding of ranks is
 * simulated. */
int32_t hd__comm_topology_open(const int32_t *levels, uint32_t n, struct hd__topology **topology, struct hd_error *err);
void hd__comm_topology_close(struct hd__topology *topology); /* NULL is fine */
/* Index of the object of this level (0 for MACHINE) that has all cores of this process; -1: several have some, or
 * none has. Simulated, by the rule below, for another machine's topology. */
int32_t hd__comm_topology_locate(const struct hd__topology *topology, uint32_t level, int32_t local_rank,
                                 int32_t local_ranks);
/* The same for any rank, by heddle's rule of binding ranks to cores: hd__cpus_partition. */
int32_t hd__comm_topology_locate_by_rule(const struct hd__topology *topology, uint32_t level, int32_t local_rank,
                                         int32_t local_ranks);
/* "machine", "package", "NUMA node" */
const char *hd__comm_topology_level_name(uint32_t level);

/* Leaders of a level. outer[r]: the first rank of r's machine (or object of an outer level); at[r]: r's object
 * there; leaders[r] becomes the first rank of r's object. Returns -1; or a rank that is on no single object, then
 * leaders is outer. */
int32_t hd__comm_topology_leaders(const int32_t *outer, const int32_t *at, int32_t ranks, int32_t *leaders);

/* The levels in use, the outermost first. */
struct hd__topology_levels {
    uint32_t n, level[HD__LEVELS_COUNT]; /* HD__LEVELS_... */
    int32_t *leaders[HD__LEVELS_COUNT];  /* by rank: the first rank of its object */
    int32_t unbound_rank;                /* a rank on no single object of `dropped_level`, or -1 */
    uint32_t dropped_level;
};
/* Selects among the levels of a job; at[i]: as above, for level i. A level where a rank is unbound is dropped; where
 * all are, the level is the machine. Memory is of the arena. */
void hd__comm_topology_levels(struct hd__topology_levels *out, const int32_t *levels, uint32_t n,
                              const int32_t *machine, int32_t *const *at, int32_t ranks, struct hd__arena *arena);
/* Text for messages: the consequence of a dropped level. */
const char *hd__comm_topology_fallback(const struct hd__topology_levels *out);

#endif
