/* Random operations, many at once, on groups that overlap: the whole plan follows from a seed. */
#ifndef HD_CONFORMANCE_COMM_SOAK_H
#define HD_CONFORMANCE_COMM_SOAK_H

#include "conformance/comm/ranks.h"

extern uint64_t soak_operations, soak_seed;

int soak(struct rank *rank); /* a body for run_ranks */

#endif
