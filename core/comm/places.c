#include "core/comm/places.h"

#include <stdlib.h>

#include "core/base/cpus.h"

const char *hd__places_word(uint32_t levels)
{
    return levels == HD__LEVELS_NUMA ? "NUMA node" : levels == HD__LEVELS_PACKAGE ? "package" : "machine";
}

int32_t hd__places_firsts(const int32_t *machine, const int32_t *at, int32_t ranks, int32_t *firsts)
{
    for (int32_t r = 0; r < ranks; r++)
        if (at[r] < 0) {
            memcpy(firsts, machine, (size_t)ranks * sizeof *firsts);
            return r;
        }
    for (int32_t r = 0; r < ranks; r++) {
        firsts[r] = machine[r];
        while (at[firsts[r]] != at[r] || machine[firsts[r]] != machine[r])
            firsts[r]++;
    }
    return -1;
}

#ifdef HEDDLE_HWLOC
#include <hwloc.h>

int hd__places_known(void)
{
    return 1;
}

struct hd__places {
    hwloc_topology_t topology;
    hwloc_obj_type_t type;
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
    unsigned cpu;
    if (p->real && !sched_getaffinity(0, sizeof p->all, &p->all))
        return;
    CPU_ZERO(&p->all);
    hwloc_bitmap_foreach_begin(cpu, hwloc_topology_get_topology_cpuset(p->topology)) if (cpu < CPU_SETSIZE)
        CPU_SET(cpu, &p->all);
    hwloc_bitmap_foreach_end();
}

int32_t hd__places_open(uint32_t levels, struct hd__places **places, struct hd_error *err)
{
    struct hd__places *p = hd__alloc(sizeof *p);
    int32_t rc = load(p, err);
    if (rc) {
        hd__places_close(p);
        return rc;
    }
    p->type = levels == HD__LEVELS_NUMA ? HWLOC_OBJ_NUMANODE : HWLOC_OBJ_PACKAGE;
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

static int meets(const hwloc_obj_t place, const cpu_set_t *cpus)
{
    unsigned cpu;
    hwloc_bitmap_foreach_begin(cpu, place->cpuset) if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, cpus)) return 1;
    hwloc_bitmap_foreach_end();
    return 0;
}

/* Memories beside the same cores, as fast and large ones, are one place; one without cores is none. */
int32_t hd__places_of(const struct hd__places *p, const cpu_set_t *cpus)
{
    int n = hwloc_get_nbobjs_by_type(p->topology, p->type);
    hwloc_obj_t found = NULL;
    for (int i = 0; i < n; i++) {
        hwloc_obj_t place = hwloc_get_obj_by_type(p->topology, p->type, (unsigned)i);
        if (!meets(place, cpus) || (found && hwloc_bitmap_isequal(found->cpuset, place->cpuset)))
            continue;
        if (found)
            return -1;
        found = place;
    }
    return found ? (int32_t)found->logical_index : -1;
}

int32_t hd__places_by_rule(const struct hd__places *p, int32_t local_rank, int32_t local_ranks)
{
    cpu_set_t mine;
    hd__cpus_deal(&p->all, local_rank, local_ranks, &mine);
    return hd__places_of(p, &mine);
}

int32_t hd__places_here(const struct hd__places *p, int32_t local_rank, int32_t local_ranks)
{
    return p->real ? hd__places_of(p, &p->all) : hd__places_by_rule(p, local_rank, local_ranks);
}

#else

int hd__places_known(void)
{
    return 0;
}

int32_t hd__places_open(uint32_t levels, struct hd__places **places, struct hd_error *err)
{
    (void)places;
    return hd_fail(err, HD_E_UNSUPPORTED, "which %s a rank is on is not known: this heddle was built without hwloc",
                   hd__places_word(levels));
}

void hd__places_close(struct hd__places *places)
{
    (void)places;
}

int32_t hd__places_of(const struct hd__places *places, const cpu_set_t *cpus)
{
    (void)places, (void)cpus;
    return -1;
}

int32_t hd__places_here(const struct hd__places *places, int32_t local_rank, int32_t local_ranks)
{
    (void)places, (void)local_rank, (void)local_ranks;
    return -1;
}

int32_t hd__places_by_rule(const struct hd__places *places, int32_t local_rank, int32_t local_ranks)
{
    (void)places, (void)local_rank, (void)local_ranks;
    return -1;
}

#endif
