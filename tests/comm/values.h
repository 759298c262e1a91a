/* Inputs that every rank can compute for every other, and expected results, computed with code of its own. */
#ifndef TESTS_COMM_VALUES_H
#define TESTS_COMM_VALUES_H

#include <stddef.h>
#include <stdint.h>

/* Element i of what member m contributes to operation `seed`. */
void value_make(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t i);
void values_fill(void *out, uint32_t dtype, uint64_t seed, int m, uint64_t first, uint64_t count);
/* Element i of the reduction over members 0..n-1. */
void value_reduce(void *out, uint32_t dtype, uint32_t redop, uint64_t seed, int n, uint64_t i);

#endif
