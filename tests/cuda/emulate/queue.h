/* Where work of streams goes: runtime.cc. */
#ifndef HEDDLE_EMULATE_QUEUE_H
#define HEDDLE_EMULATE_QUEUE_H

#include "cuda_runtime_api.h"
#include <functional>

/* Runs `work` on the stream when its turn comes; keeps it where the stream is captured. */
cudaError_t emulate_enqueue(cudaStream_t stream, std::function<void()> work);

/* Notes an error for cudaGetLastError and cudaPeekAtLastError; returns what it was given. */
cudaError_t emulate_said(cudaError_t rc);

/* 1 while the stream is captured. */
int emulate_is_captured(cudaStream_t stream);

/* The next of a sequence that HEDDLE_EMULATE_SEED begins, below n. */
uint32_t emulate_random(uint32_t n);

#endif
