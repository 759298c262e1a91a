/* Inputs that every rank can compute for every other, and expected results, computed with code of its own. */
#ifndef HD_CONFORMANCE_COMM_VALUES_H
#define HD_CONFORMANCE_COMM_VALUES_H

#include <stddef.h>
#include <stdint.h>

/* What kind of values: bits of the seed. None: numbers whose sums round, so that the order of a sum shows. */
#define VALUES_WHOLE (UINT64_C(1) << 62) /* small whole numbers: sums are exact in any order */
#define VALUES_SPECIAL \
    (UINT64_C(1) << 61) /* zeros of both signs, infinities, NaN, the largest and the least among them */
#define VALUES_KIND (VALUES_WHOLE | VALUES_SPECIAL)

/* Element i of what member m contributes to operation `seed`. */
void value_make(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t i);
void values_fill(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count);
/* Element i of the reduction over members 0..n-1. */
void value_reduce(void *out, uint32_t dtype, uint32_t redop, uint64_t seed, int n, uint64_t i);
/* Draws by chance: the same for the same state, which goes on; 0 to n - 1. */
uint64_t value_draw(uint64_t *state);
uint64_t value_below(uint64_t *state, uint64_t n);
int value_same_bits(const void *a, const void *b, size_t size); /* of a dtype */
/* The same bits; any NaN is as good as another, and of two zeros either is the larger. */
int value_same(const void *a, const void *b, uint32_t dtype, uint32_t redop);

#endif
