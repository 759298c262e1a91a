/* Operations larger than any buffer between; by hand, larger than 2^32 bytes and elements. */
#ifndef HD_CONFORMANCE_COMM_HUGE_H
#define HD_CONFORMANCE_COMM_HUGE_H

#include "conformance/comm/ranks.h"

extern uint64_t huge_bytes; /* of the larger buffer */

/* Bodies for run_ranks. */
int huge(struct rank *rank);
int huge_in_place(struct rank *rank); /* a broadcast and a message of bytes, in one buffer */
int huge_sums(struct rank *rank);     /* an all_reduce and a reduce of bytes, in one buffer */

#endif
