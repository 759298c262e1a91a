/* runtime/cpu/parallel_for: a loop whose iterations are shared by threads. */
#ifndef HD_RUNTIME_CPU_PARALLEL_FOR_H
#define HD_RUNTIME_CPU_PARALLEL_FOR_H

#include "core/base/base.h"

/* Processors that this process may use; at least 1. */
int32_t hd__cpu_count(void);

/* Calls work(user, i, block, err) for i = 0 .. count-1 from at most `threads` threads, the caller's among them. Each
 * has its own page-aligned block of memory. Signals go to the caller's thread. After the first error no further
 * iteration begins; that error is returned, HD_E_NOMEM where there is no memory for a block. */
int32_t hd__parallel_for(uint32_t threads, uint64_t count, size_t block_bytes,
                         int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err), void *user,
                         struct hd_error *err);

#endif
