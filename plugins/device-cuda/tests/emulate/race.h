/* Races between threads of a kernel: race.cc, in the plugin of tests/long/cuda-races.sh; else these do nothing. */
#ifndef HEDDLE_EMULATE_RACE_H
#define HEDDLE_EMULATE_RACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef CU_EMULATE_RACES
/* A block begins; its threads have met at a barrier; it ends. */
void emulate_race_begin(const char *kernel, uint64_t launch, uint32_t block);
void emulate_race_barrier(void);
void emulate_race_end(void);
/* Lanes of a warp, whose first thread this is, have met in __syncwarp. */
void emulate_race_sync(unsigned first, unsigned mask);
/* An atomic operation of the thread that runs. */
void emulate_race_atomic(const void *at, size_t bytes);
/* In block.cc: has shared memory any of these bytes? How many pieces of it there are, which may grow in a launch. */
int emulate_is_shared(const void *at, size_t bytes);
size_t emulate_shared_pieces(void);
#else
static inline void emulate_race_begin(const char *, uint64_t, uint32_t)
{
}
static inline void emulate_race_barrier(void)
{
}
static inline void emulate_race_end(void)
{
}
static inline void emulate_race_sync(unsigned, unsigned)
{
}
static inline void emulate_race_atomic(const void *, size_t)
{
}
#endif

#endif
