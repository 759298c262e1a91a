#ifndef HD_TESTS_FUZZ_JOB_H
#define HD_TESTS_FUZZ_JOB_H

#include <stddef.h>
#include <stdint.h>

/* Reads the bytes as a job and everything that follows from one. Returns 1 if they were a job; aborts on a
 * fault. */
int fuzz_job(const uint8_t *data, size_t size);

#endif
