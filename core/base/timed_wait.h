/* core/base/timed_wait: condition variables with deadlines of hd__now(). */
#ifndef HD_CORE_BASE_TIMED_WAIT_H
#define HD_CORE_BASE_TIMED_WAIT_H

#include <pthread.h>
#include <time.h>

/* A condition variable on the monotonic clock. */
static inline void hd__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

/* The deadline `t` for pthread_cond_timedwait. */
static inline struct timespec hd__cond_until(double t)
{
    return (struct timespec){.tv_sec = (time_t)t, .tv_nsec = (long)((t - (double)(time_t)t) * 1e9)};
}

#endif
