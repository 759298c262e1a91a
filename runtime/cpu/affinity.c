#include "runtime/cpu/affinity.h"

#include "core/base/base.h"

void hd__cpus_partition(const cpu_set_t *all, int32_t rank, int32_t ranks, cpu_set_t *mine)
{
    int32_t n = CPU_COUNT(all), count = HD__MAX(1, n / ranks), first = n >= ranks ? rank * count : rank % n, seen = 0;
    CPU_ZERO(mine);
    for (int32_t c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, all)) {
            if (seen >= first && seen < first + count)
                CPU_SET(c, mine);
            seen++;
        }
}
