#include "runtime/comm/topology.h"

#include <sched.h>
#include <stdlib.h>

#include "runtime/cpu/affinity.h"

const char *hd__comm_topology_level_name(uint32_t level)
{
    return level == HD__LEVELS_NUMA ? "NUMA node" : level == HD__LEVELS_PACKAGE ? "package" : "machine";
}

/* First level below the machine, or HD__LEVELS_MACHINE. */
static uint32_t first_below_machine(const int32_t *levels, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (levels[i] != HD__LEVELS_MACHINE)
            return (uint32_t)levels[i];
    return HD__LEVELS_MACHINE;
}

int32_t hd__comm_topology_leaders(const int32_t *outer, const int32_t *at, int32_t ranks, int32_t *leaders)
{
    for (int32_t r = 0; r < ranks; r++)
        if (at[r] < 0) {
            memcpy(leaders, outer, (size_t)ranks * sizeof *leaders);
            return r;
        }
    for (int32_t r = 0; r < ranks; r++) {
        leaders[r] = outer[r];
        while (at[leaders[r]] != at[r] || outer[leaders[r]] != outer[r])
            leaders[r]++;
    }
    return -1;
}

void hd__comm_topology_levels(struct hd__topology_levels *out, const int32_t *levels, uint32_t n,
                              const int32_t *machine, int32_t *const *at, int32_t ranks, struct hd__arena *arena)
{
    const int32_t *outer = machine;
    *out = (struct hd__topology_levels){.unbound_rank = -1};
    for (uint32_t i = 0; i < n; i++) {
        int32_t *leaders = hd__arena_alloc(arena, (size_t)ranks * sizeof *leaders);
        int32_t unbound_rank = hd__comm_topology_leaders(outer, at[i], ranks, leaders);
        if (unbound_rank >= 0 && out->unbound_rank < 0) {
            out->unbound_rank = unbound_rank;
            out->dropped_level = (uint32_t)levels[i];
        }
        if (unbound_rank >= 0 && (out->n || i + 1 < n))
            continue;
        out->level[out->n] = unbound_rank >= 0 ? (uint32_t)HD__LEVELS_MACHINE : (uint32_t)levels[i];
        out->leaders[out->n++] = leaders;
        outer = leaders;
    }
}

const char *hd__comm_topology_fallback(const struct hd__topology_levels *out)
{
    return out->n == 1 && out->level[0] == HD__LEVELS_MACHINE ? "machines are the levels" : "that level is left out";
}

#ifdef HEDDLE_HWLOC
#include <hwloc.h>
#include <hwloc/glibc-sched.h>

int hd__comm_topology_available(void)
{
    return 1;
}

struct hd__topology {
    hwloc_topology_t topology;
    cpu_set_t all; /* cores that ranks are bound to */
    int32_t real;  /* of this machine, so that affinities apply */
};

int32_t hd__comm_topology_open(const int32_t *levels, uint32_t n, struct hd__topology **topology, struct hd_error *err)
{
    struct hd__topology *p;
    *topology = NULL;
    if (first_below_machine(levels, n) == HD__LEVELS_MACHINE)
        return HD_OK;
    p = hd__alloc(sizeof *p);
    if (hwloc_topology_init(&p->topology) || hwloc_topology_load(p->topology)) {
        hd__comm_topology_close(p);
        return hd_fail(err, HD_E_UNSUPPORTED, "comm.levels: hwloc cannot read this machine's topology: use machine");
    }
    p->real = hwloc_topology_is_thissystem(p->topology);
    if (!p->real || sched_getaffinity(0, sizeof p->all, &p->all)) /* of another machine: all cores */
        hwloc_cpuset_to_glibc_sched_affinity(p->topology, hwloc_topology_get_topology_cpuset(p->topology), &p->all,
                                             sizeof p->all);
    *topology = p;
    return HD_OK;
}

void hd__comm_topology_close(struct hd__topology *p)
{
    if (!p)
        return;
    if (p->topology)
        hwloc_topology_destroy(p->topology);
    free(p);
}

/* NUMA nodes with the same cores (fast and large memory) count as one, those without cores not at all. */
static int32_t object_of(const struct hd__topology *p, uint32_t level, const cpu_set_t *cpus)
{
    hwloc_obj_type_t type = level == HD__LEVELS_NUMA ? HWLOC_OBJ_NUMANODE : HWLOC_OBJ_PACKAGE;
    int n = hwloc_get_nbobjs_by_type(p->topology, type);
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    hwloc_obj_t found = NULL;
    int several = 0;
    hwloc_cpuset_from_glibc_sched_affinity(p->topology, mine, cpus, sizeof *cpus);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(p->topology, type, (unsigned)i);
        if (!hwloc_bitmap_intersects(object->cpuset, mine) ||
            (found && hwloc_bitmap_isequal(found->cpuset, object->cpuset)))
            continue;
        several = found != NULL;
        found = object;
        if (several)
            break;
    }
    hwloc_bitmap_free(mine);
    return found && !several ? (int32_t)found->logical_index : -1;
}

int32_t hd__comm_topology_locate_by_rule(const struct hd__topology *p, uint32_t level, int32_t local_rank,
                                         int32_t local_ranks)
{
    cpu_set_t mine;
    if (!p || level == HD__LEVELS_MACHINE)
        return 0;
    hd__cpus_partition(&p->all, local_rank, local_ranks, &mine);
    return object_of(p, level, &mine);
}

int32_t hd__comm_topology_locate(const struct hd__topology *p, uint32_t level, int32_t local_rank, int32_t local_ranks)
{
    return p && p->real && level != HD__LEVELS_MACHINE
               ? object_of(p, level, &p->all)
               : hd__comm_topology_locate_by_rule(p, level, local_rank, local_ranks);
}

#else

int hd__comm_topology_available(void)
{
    return 0;
}

int32_t hd__comm_topology_open(const int32_t *levels, uint32_t n, struct hd__topology **topology, struct hd_error *err)
{
    uint32_t level = first_below_machine(levels, n);
    *topology = NULL;
    if (level == HD__LEVELS_MACHINE)
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "comm.levels: this heddle was built without hwloc, which knows the %s of a rank: use machine",
                   hd__comm_topology_level_name(level));
}

void hd__comm_topology_close(struct hd__topology *topology)
{
    (void)topology;
}

int32_t hd__comm_topology_locate(const struct hd__topology *topology, uint32_t level, int32_t local_rank,
                                 int32_t local_ranks)
{
    (void)topology, (void)level, (void)local_rank, (void)local_ranks;
    return 0;
}

int32_t hd__comm_topology_locate_by_rule(const struct hd__topology *topology, uint32_t level, int32_t local_rank,
                                         int32_t local_ranks)
{
    (void)topology, (void)level, (void)local_rank, (void)local_ranks;
    return 0;
}

#endif
