/* Preloaded into a command: its monotonic clock jumps ten minutes ahead four times a second, at the same instant in all
 * processes of the machine. To a job that is as if all of it had been stopped for so long, at any instant: also
 * outside of the calls that wait. Waits last as long as on the machine's own clock. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define JUMP 600
#define BETWEEN 250000000

/* The kernel's, not the vDSO's: this is called by the function that stands before libc's. */
int clock_gettime(clockid_t id, struct timespec *at)
{
    int rc = (int)syscall(SYS_clock_gettime, id, at);
    if (!rc && (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE))
        at->tv_sec += (at->tv_sec * (1000000000 / BETWEEN) + at->tv_nsec / BETWEEN) * JUMP;
    return rc;
}

/* The time-stamp counter does not jump: core/base/clock is not to take it for a clock. */
FILE *fopen(const char *restrict path, const char *restrict mode)
{
    static FILE *(*libc)(const char *restrict, const char *restrict);
    if (!libc)
        *(void **)&libc = dlsym(RTLD_NEXT, "fopen");
    return strstr(path, "current_clocksource") ? NULL : libc(path, mode);
}

/* Every condition variable of heddle is of the monotonic clock (core/base/timed_wait.h). */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    static int (*libc)(pthread_cond_t *restrict, pthread_mutex_t *restrict, clockid_t, const struct timespec *restrict);
    struct timespec now, own;
    if (!libc)
        *(void **)&libc = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    clock_gettime(CLOCK_MONOTONIC, &now);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &own);
    own.tv_sec += until->tv_sec - now.tv_sec;
    own.tv_nsec += until->tv_nsec - now.tv_nsec;
    own.tv_sec += own.tv_nsec < 0 ? -1 : own.tv_nsec >= 1000000000;
    own.tv_nsec += own.tv_nsec < 0 ? 1000000000 : own.tv_nsec >= 1000000000 ? -1000000000 : 0;
    return libc(cond, mutex, CLOCK_MONOTONIC, &own);
}
