/* Preloaded into a command: the wall clock, as the command reads it, is stepped by a day to and fro every 20 ms. The
 * machine's own clock stays as it is, and so do clocks that are not of the time of day. HEDDLE_TEST_CLOCK names a file
 * that a process creates when it has read the stepped clock. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define DAY 86400

static int is_wall(clockid_t id)
{
    return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI;
}

/* The kernel's, not the vDSO's: this is called by the functions that stand before libc's. */
static int read_clock(clockid_t id, struct timespec *at)
{
    static int told;
    struct timespec since;
    int rc = (int)syscall(SYS_clock_gettime, id, at);
    if (rc || !is_wall(id))
        return rc;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &since);
    at->tv_sec += since.tv_nsec / 20000000 % 2 ? DAY : -DAY;
    const char *file = __atomic_exchange_n(&told, 1, __ATOMIC_RELAXED) ? NULL : getenv("HEDDLE_TEST_CLOCK");
    int fd = file ? open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        close(fd);
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    return read_clock(id, at);
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    int rc = read_clock(CLOCK_REALTIME, &now);
    (void)zone;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return rc;
}

time_t time(time_t *at)
{
    struct timespec now;
    time_t seconds = read_clock(CLOCK_REALTIME, &now) ? -1 : now.tv_sec;
    if (at)
        *at = seconds;
    return seconds;
}
