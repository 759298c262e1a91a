/* core/base/cpu_affinity: which cores of a machine the ranks on it are bound to, where heddle binds them. */
#ifndef HD_CORE_BASE_CPU_AFFINITY_H
#define HD_CORE_BASE_CPU_AFFINITY_H

#include <sched.h>
#include <stdint.h>

/* Deals the cores of `all` to `ranks` ranks in equal runs; more ranks than cores: in turn. `all` has one core at least.
 */
void hd__cpus_partition(const cpu_set_t *all, int32_t rank, int32_t ranks, cpu_set_t *mine);

#endif
