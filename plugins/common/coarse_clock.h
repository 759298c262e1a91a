/* A monotonic clock that costs 3 ns where CLOCK_MONOTONIC costs 20, and is some milliseconds late: for the beginning of
 * a wait that is mostly over at once. */
#ifndef HD_PLUGINS_COMMON_COARSE_CLOCK_H
#define HD_PLUGINS_COMMON_COARSE_CLOCK_H

#include <time.h>

static inline double coarse_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
