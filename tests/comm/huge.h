/* Operations larger than any buffer between; by hand, larger than 2^32 bytes and elements. */
#ifndef TESTS_COMM_HUGE_H
#define TESTS_COMM_HUGE_H

#include "tests/comm/ranks.h"

extern uint64_t huge_bytes; /* of the larger buffer */

int huge(struct rank *rank); /* a body for run_ranks */

#endif
