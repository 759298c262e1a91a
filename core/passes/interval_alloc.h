/* An arena over time: which bytes are taken at which positions of a list.
 *
 * A space is made for so many positions, is asked for the lowest free bytes of one life after another, and is freed.
 * A life takes its bytes at all positions from its first to its last.
 *
 * It is a tree over the positions whose nodes hold sorted, merged intervals of the arena: n log n, where a scan of
 * all lives that have a place would be quadratic. */
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
