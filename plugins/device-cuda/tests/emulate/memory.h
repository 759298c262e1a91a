/* Device memory of the emulator: memory.cc. */
#ifndef HEDDLE_EMULATE_MEMORY_H
#define HEDDLE_EMULATE_MEMORY_H

#include "cuda_runtime_api.h"
#include <stdint.h>

/* 1: kernels and copies are about to run. 0: they are done; whoever touches device memory now crashes. Calls nest. */
void emulate_memory_open(int open);

/* Which allocation of device memory holds `at`: its first byte and its length, in whole pages.
 * cudaErrorInvalidValue: none. */
cudaError_t emulate_memory_range(const void *at, uint64_t *base, size_t *bytes);

#endif
