/* Whether the driver runs: device.cc. */
#ifndef HEDDLE_EMULATE_DEVICE_H
#define HEDDLE_EMULATE_DEVICE_H

#include "cuda_runtime_api.h"

/* Starts the driver, and says how many GPUs there are. As CUDA's it runs in one process: a child of that one gets
 * cudaErrorInitializationError. */
cudaError_t emulate_start(int *count);

/* It was started, in this process. */
bool emulate_started(void);

/* Queues to the GPU, as the environment said when it was started; 0: it was not. */
int emulate_connections(void);

#endif
