/* Inputs that every rank can compute for every other, and expected results, computed with code of its own. */
#ifndef HD_CONFORMANCE_COMM_VALUES_H
#define HD_CONFORMANCE_COMM_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "heddle/comm.h"

/* What kind of values: bits of the seed. None: numbers whose sums round, so that the order of a sum shows. */
#define VALUES_WHOLE (UINT64_C(1) << 62) /* small whole numbers: sums are exact in any order */
#define VALUES_SPECIAL \
    (UINT64_C(1) << 61) /* zeros of both signs, infinities, NaN, the largest and the least among them */
#define VALUES_KIND (VALUES_WHOLE | VALUES_SPECIAL)

/* Elements first to first + count - 1 of what member m contributes to operation `seed`. */
void values_fill(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count);
/* The first of `count` elements that has not the bits of values_fill; `count`: none. */
uint64_t values_differ(const void *got, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count);
/* The first element of member me's result of n that is not what the collective promises; the elements of the result:
 * none. The same bits; in a reduction any NaN is as good as another, and of two zeros either is the larger. */
uint64_t values_wrong(const void *got, const struct hd_comm_call *call, uint64_t seed, int n, int me);

/* Draws by chance: the same for the same state, which goes on; 0 to n - 1. */
uint64_t value_draw(uint64_t *state);
uint64_t value_below(uint64_t *state, uint64_t n);

#endif
