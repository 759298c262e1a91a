/* The device of a rank whose transport is ordered by a stream: as much of CUDA's driver as the suites need. Memory is
 * the host's, pinned, so that both sides reach it. */
#ifndef HD_CONFORMANCE_COMM_STREAM_H
#define HD_CONFORMANCE_COMM_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "heddle/types.h"

/* Opens the driver (a path, or a name for the loader), enters the `index`-th GPU, counted around, and makes a stream.
 */
int32_t stream_open(const char *driver, int32_t index, void **stream, struct hd_error *err);
/* 1: it has nothing left to do; 0: it has; else an error of the driver's. */
int32_t stream_idle(void *stream, struct hd_error *err);
void *stream_memory(size_t bytes); /* zeroed, page-aligned, until the process ends; NULL: none */

#endif
