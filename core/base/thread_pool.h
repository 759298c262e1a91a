/* core/base/thread_pool: threads that share a row of jobs. */
#ifndef HD_CORE_BASE_THREAD_POOL_H
#define HD_CORE_BASE_THREAD_POOL_H

#include "core/base/base.h"

/* Processors that this process may use; at least 1. */
int32_t hd__cpu_count(void);

/* Calls work(user, i, block, err) for i = 0 .. count-1 from at most `threads` threads, the caller's among them. Each has a
 * block of memory of its own, aligned to a page. Signals are the caller's. After the first error no job is begun; it is
 * returned, and so is HD_E_NOMEM where there is no memory for a block. */
int32_t hd__parallel_for(uint32_t threads, uint64_t count, size_t block_bytes,
                         int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err), void *user,
                         struct hd_error *err);

#endif
