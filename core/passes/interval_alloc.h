/* core/passes/interval_alloc: a static memory allocator: bytes of an arena over positions of a list of instructions.
 *
 * Each lifetime, from its first to its last position, gets the lowest free bytes, one after another.
 *
 * A segment tree over the positions, whose nodes hold sorted, merged intervals of the arena: n log n, where a scan of
 * all lifetimes placed before would be quadratic. */
#ifndef HD_CORE_PASSES_INTERVAL_ALLOC_H
#define HD_CORE_PASSES_INTERVAL_ALLOC_H

#include <stdint.h>

struct hd__interval_alloc;
struct hd__interval_alloc *hd__interval_alloc_new(uint32_t positions);
void hd__interval_alloc_free(struct hd__interval_alloc *space);

/* Takes the lowest `bytes` that are free from position `first` to `last`, both included; returns where they begin: a
 * multiple of `step`, which is a power of two. */
int64_t hd__interval_alloc_take(struct hd__interval_alloc *space, uint32_t first, uint32_t last, int64_t bytes,
                                int64_t step);

#endif
