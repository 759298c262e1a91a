#include "runtime/exec/progress_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"

#define BACKOFF_MIN_NS 50000
#define BACKOFF_MAX_NS 800000
#define SCHED_SLICE_NS 100000
#define TIMER_SLACK_NS 5000 /* the kernel's default adds 50 us to each sleep */

struct hd__progress_thread {
    int32_t (*progress)(void *user, struct hd_error *err);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* of all calls into transports */
    pthread_cond_t wakeup;
    _Atomic int32_t lock_waiters; /* they have priority */
    int32_t in_flight, stop, failed;
    struct hd_error error; /* the first one, for whoever waits */
    int32_t moved_last;    /* the last call of `progress` moved something, so no sleep came before this one */
    uint32_t outside_calls, outside_calls_seen; /* hd__exec_progress_poll: all calls; those before the last sleep */
    long backoff_ns;
};

/* Gives the lock to waiters, and sleeps where nothing moved. */
static void yield_lock(struct hd__progress_thread *thread, int32_t moved)
{
    struct timespec delay = {.tv_nsec = thread->backoff_ns};
    if (!moved) {
        pthread_mutex_unlock(&thread->lock);
        nanosleep(&delay, NULL);
        pthread_mutex_lock(&thread->lock);
    }
    while (atomic_load(&thread->lock_waiters) && !thread->stop)
        pthread_cond_wait(&thread->wakeup, &thread->lock);
}

/* Adaptive back-off. Network buffers hide a sleep that is somewhat too long; one too short costs the compute thread,
 * about 10 us each in a virtual machine. So the length aims at work after every second sleep, unless the compute
 * thread polls. */
static int32_t progress_once(struct hd__progress_thread *thread)
{
    int32_t outside_call = thread->outside_calls != thread->outside_calls_seen,
            moved = outside_call ? 0 : thread->progress(thread->user, &thread->error);
    thread->outside_calls_seen = thread->outside_calls;
    thread->failed = HD__MIN(moved, 0);
    if (!thread->moved_last)
        thread->backoff_ns =
            moved ? HD__MAX(thread->backoff_ns / 2, BACKOFF_MIN_NS) : HD__MIN(thread->backoff_ns * 2, BACKOFF_MAX_NS);
    thread->moved_last = moved;
    return moved;
}

/* Short scheduler slices: where this thread shares a core with the compute thread it preempts that at once, instead of
 * leaving the network idle for a slice of some milliseconds. Linux 6.12 and later. */
static void request_short_slices(void)
{
    struct { /* of sched_setattr(2), which the C library lacks */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr;
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) || attr.policy != SCHED_OTHER)
        return;
    attr.runtime = SCHED_SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *thread_main(void *arg)
{
    struct hd__progress_thread *thread = arg;
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    request_short_slices();
    pthread_mutex_lock(&thread->lock);
    while (!thread->stop) {
        if (!thread->in_flight || thread->failed) {
            pthread_cond_wait(&thread->wakeup, &thread->lock);
            continue;
        }
        yield_lock(thread, progress_once(thread));
    }
    pthread_mutex_unlock(&thread->lock);
    return NULL;
}

struct hd__progress_thread *hd__exec_progress_start(int32_t (*progress)(void *user, struct hd_error *err), void *user)
{
    struct hd__progress_thread *thread = hd__alloc(sizeof *thread);
    sigset_t all, before;
    thread->error = (struct hd_error)HD_ERROR_INIT;
    thread->progress = progress;
    thread->user = user;
    thread->backoff_ns = BACKOFF_MIN_NS;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->wakeup, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread->thread, NULL, thread_main, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        return thread;
    hd__log(HD_LOG_WARN, NULL,
            "comm.progress: cannot create the thread (%s); transports progress between instructions only",
            strerror(rc));
    free(thread);
    return NULL;
}

void hd__exec_progress_stop(struct hd__progress_thread *thread)
{
    if (!thread)
        return;
    hd__exec_progress_lock(thread);
    thread->stop = 1;
    pthread_cond_signal(&thread->wakeup);
    hd__exec_progress_unlock(thread, 0);
    pthread_join(thread->thread, NULL);
    pthread_mutex_destroy(&thread->lock);
    pthread_cond_destroy(&thread->wakeup);
    free(thread);
}

void hd__exec_progress_lock(struct hd__progress_thread *thread)
{
    if (!thread)
        return;
    atomic_fetch_add(&thread->lock_waiters, 1);
    pthread_mutex_lock(&thread->lock);
    atomic_fetch_sub(&thread->lock_waiters, 1);
}

void hd__exec_progress_unlock(struct hd__progress_thread *thread, int32_t more)
{
    if (!thread)
        return;
    thread->in_flight += more;
    if (thread->in_flight)
        pthread_cond_signal(&thread->wakeup);
    pthread_mutex_unlock(&thread->lock);
}

int32_t hd__exec_progress_poll(struct hd__progress_thread *thread, struct hd_error *err)
{
    int32_t moved = 0;
    if (pthread_mutex_trylock(&thread->lock))
        return 0;
    if (!thread->failed) {
        moved = thread->progress(thread->user, &thread->error);
        thread->failed = HD__MIN(moved, 0);
        thread->outside_calls++;
    }
    if (thread->failed) {
        hd_error_copy(err, &thread->error);
        moved = thread->failed;
    }
    pthread_mutex_unlock(&thread->lock);
    return moved;
}
