#include "runtime/comm/topology.h"

#include <sched.h>
#include <stdlib.h>

#include "core/base/cpu_affinity.h"

const char *hd__places_word(uint32_t level)
{
    return level == HD__LEVELS_NUMA ? "NUMA node" : level == HD__LEVELS_PACKAGE ? "package" : "machine";
}

/* The first level that is not the machine; HD__LEVELS_MACHINE: there is none. */
static uint32_t first_within(const int32_t *levels, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (levels[i] != HD__LEVELS_MACHINE)
            return (uint32_t)levels[i];
    return HD__LEVELS_MACHINE;
}

int32_t hd__places_firsts(const int32_t *outer, const int32_t *at, int32_t ranks, int32_t *firsts)
{
    for (int32_t r = 0; r < ranks; r++)
        if (at[r] < 0) {
            memcpy(firsts, outer, (size_t)ranks * sizeof *firsts);
            return r;
        }
    for (int32_t r = 0; r < ranks; r++) {
        firsts[r] = outer[r];
        while (at[firsts[r]] != at[r] || outer[firsts[r]] != outer[r])
            firsts[r]++;
    }
    return -1;
}

void hd__places_nest(struct hd__nest *nest, const int32_t *levels, uint32_t n, const int32_t *machine, int32_t *const *at,
                     int32_t ranks, struct hd__arena *arena)
{
    const int32_t *outer = machine;
    *nest = (struct hd__nest){.nowhere = -1};
    for (uint32_t i = 0; i < n; i++) {
        int32_t *firsts = hd__arena_alloc(arena, (size_t)ranks * sizeof *firsts);
        int32_t nowhere = hd__places_firsts(outer, at[i], ranks, firsts);
        if (nowhere >= 0 && nest->nowhere < 0) {
            nest->nowhere = nowhere;
            nest->lost = (uint32_t)levels[i];
        }
        if (nowhere >= 0 && (nest->n || i + 1 < n))
            continue;
        nest->level[nest->n] = nowhere >= 0 ? (uint32_t)HD__LEVELS_MACHINE : (uint32_t)levels[i];
        nest->firsts[nest->n++] = firsts;
        outer = firsts;
    }
}

const char *hd__places_instead(const struct hd__nest *nest)
{
    return nest->n == 1 && nest->level[0] == HD__LEVELS_MACHINE ? "machines are the levels" : "that level is left out";
}

#ifdef HEDDLE_HWLOC
#include <hwloc.h>
#include <hwloc/glibc-sched.h>

int hd__places_known(void)
{
    return 1;
}

struct hd__places {
    hwloc_topology_t topology;
    cpu_set_t all; /* cores that ranks are dealt */
    int32_t real;  /* this machine's: bindings count */
};

static int32_t load(struct hd__places *p, struct hd_error *err)
{
    if (hwloc_topology_init(&p->topology))
        return hd_fail(err, HD_E_UNSUPPORTED, "hwloc: no topology");
    if (hwloc_topology_load(p->topology))
        return hd_fail(err, HD_E_UNSUPPORTED, "hwloc cannot read this machine's topology");
    p->real = hwloc_topology_is_thissystem(p->topology);
    return HD_OK;
}

/* Cores that this process may use; of another machine all. */
static void find_cores(struct hd__places *p)
{
    if (!p->real || sched_getaffinity(0, sizeof p->all, &p->all))
        hwloc_cpuset_to_glibc_sched_affinity(p->topology, hwloc_topology_get_topology_cpuset(p->topology), &p->all, sizeof p->all);
}

int32_t hd__places_open(const int32_t *levels, uint32_t n, struct hd__places **places, struct hd_error *err)
{
    struct hd__places *p;
    int32_t rc;
    *places = NULL;
    if (first_within(levels, n) == HD__LEVELS_MACHINE)
        return HD_OK;
    p = hd__alloc(sizeof *p);
    rc = load(p, err);
    if (rc) {
        hd__places_close(p);
        return rc;
    }
    find_cores(p);
    *places = p;
    return HD_OK;
}

void hd__places_close(struct hd__places *p)
{
    if (!p)
        return;
    if (p->topology)
        hwloc_topology_destroy(p->topology);
    free(p);
}

/* Memories beside the same cores, as fast and large ones, are one place; one without cores is none. */
static int32_t place_of(const struct hd__places *p, uint32_t level, const cpu_set_t *cpus)
{
    hwloc_obj_type_t type = level == HD__LEVELS_NUMA ? HWLOC_OBJ_NUMANODE : HWLOC_OBJ_PACKAGE;
    int n = hwloc_get_nbobjs_by_type(p->topology, type);
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    hwloc_obj_t found = NULL;
    int several = 0;
    hwloc_cpuset_from_glibc_sched_affinity(p->topology, mine, cpus, sizeof *cpus);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t place = hwloc_get_obj_by_type(p->topology, type, (unsigned)i);
        if (!hwloc_bitmap_intersects(place->cpuset, mine) || (found && hwloc_bitmap_isequal(found->cpuset, place->cpuset)))
            continue;
        several = found != NULL;
        found = place;
        if (several)
            break;
    }
    hwloc_bitmap_free(mine);
    return found && !several ? (int32_t)found->logical_index : -1;
}

int32_t hd__places_by_rule(const struct hd__places *p, uint32_t level, int32_t local_rank, int32_t local_ranks)
{
    cpu_set_t mine;
    if (!p || level == HD__LEVELS_MACHINE)
        return 0;
    hd__cpus_deal(&p->all, local_rank, local_ranks, &mine);
    return place_of(p, level, &mine);
}

int32_t hd__places_here(const struct hd__places *p, uint32_t level, int32_t local_rank, int32_t local_ranks)
{
    return p && p->real && level != HD__LEVELS_MACHINE ? place_of(p, level, &p->all)
                                                       : hd__places_by_rule(p, level, local_rank, local_ranks);
}

#else

int hd__places_known(void)
{
    return 0;
}

int32_t hd__places_open(const int32_t *levels, uint32_t n, struct hd__places **places, struct hd_error *err)
{
    uint32_t level = first_within(levels, n);
    *places = NULL;
    if (level == HD__LEVELS_MACHINE)
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED, "which %s a rank is on is not known: this heddle was built without hwloc",
                   hd__places_word(level));
}

void hd__places_close(struct hd__places *places)
{
    (void)places;
}

int32_t hd__places_here(const struct hd__places *places, uint32_t level, int32_t local_rank, int32_t local_ranks)
{
    (void)places, (void)level, (void)local_rank, (void)local_ranks;
    return 0;
}

int32_t hd__places_by_rule(const struct hd__places *places, uint32_t level, int32_t local_rank, int32_t local_ranks)
{
    (void)places, (void)level, (void)local_rank, (void)local_ranks;
    return 0;
}

#endif
