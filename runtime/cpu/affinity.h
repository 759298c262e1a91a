/* runtime/cpu/affinity: the cores that each rank of a machine is bound to. */
#ifndef HD_RUNTIME_CPU_AFFINITY_H
#define HD_RUNTIME_CPU_AFFINITY_H

#include <sched.h>
#include <stdint.h>

/* Partitions the cores of `all` (at least one) into equal runs, one a rank; with more ranks than cores round-robin. */
void hd__cpus_partition(const cpu_set_t *all, int32_t rank, int32_t ranks, cpu_set_t *mine);

#endif
