/* Device memory of the emulator: memory.cc. */
#ifndef HEDDLE_EMULATE_MEMORY_H
#define HEDDLE_EMULATE_MEMORY_H

/* 1: kernels and copies are about to run. 0: they are done; whoever touches device memory now crashes. Calls nest. */
void emulate_memory_open(int open);

#endif
