/* Where work of streams goes: runtime.cc. */
#ifndef HEDDLE_EMULATE_QUEUE_H
#define HEDDLE_EMULATE_QUEUE_H

#include "cuda_runtime_api.h"
#include <functional>
#include <memory>

/* Runs `work` on the stream when its turn comes; keeps it where the stream is captured. */
cudaError_t emulate_enqueue(cudaStream_t stream, std::function<void()> work);

/* Notes an error for cudaGetLastError and cudaPeekAtLastError; returns what it was given. */
cudaError_t emulate_said(cudaError_t rc);

/* The graph that the stream is captured into; NULL: it is not captured. */
cudaGraph_t emulate_capture(cudaStream_t stream);

/* The graph, and what is made of it, hold this as long as they live. */
void emulate_keep(cudaGraph_t graph, std::shared_ptr<void> object);

/* Counts a copy, for HEDDLE_EMULATE_COUNTS. */
void emulate_copied(size_t bytes);

/* The next of a sequence that HEDDLE_EMULATE_SEED begins, below n. */
uint32_t emulate_random(uint32_t n);

#endif
