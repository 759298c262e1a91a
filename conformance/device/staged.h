/* Instructions whose operands lie in host memory, on a device with HD_DEVICE_STREAMS. */
#ifndef HEDDLE_TESTS_DEVICE_STAGED_H
#define HEDDLE_TESTS_DEVICE_STAGED_H

#include "conformance/device/harness.h"

/* Copies the operands to the device, prepares, launches so many times, copies them back; fails the test on an error. */
void h_run_staged(struct h_device *d, struct h_instr *i, int times);
/* Once each: all are prepared, on memory of their own, before the first one runs. */
void h_run_staged_all(struct h_device *d, struct h_instr *const *all, int n);

#endif
