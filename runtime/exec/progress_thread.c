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
#define TIMER_SLACK_NS 5000 /* naps are not rounded up to the kernel's usual 50 us more */

struct hd__progress_thread {
    int32_t (*progress)(void *user, struct hd_error *err);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* who holds it may call transports */
    pthread_cond_t wakeup;
    _Atomic int32_t lock_waiters; /* others want the lock: it is theirs first */
    int32_t in_flight, stop, failed;
    int32_t moved_last; /* the last call of `progress` moved something: not after a nap */
    uint32_t outside_calls,
        outside_calls_seen; /* calls of `progress` by the thread that computes: all, and those before the last nap */
    long backoff_ns;
};

/* Lets others in, and sleeps until they are through. */
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

/* What is missed by a nap too long the buffers of a network hide for a while; naps too short cost the thread that computes, in a
 * virtual machine some 10 us each. So every second one should find something to do, unless the other has found it. */
static int32_t progress_once(struct hd__progress_thread *thread)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t outside_call = thread->outside_calls != thread->outside_calls_seen,
            moved = outside_call ? 0 : thread->progress(thread->user, &err);
    thread->outside_calls_seen = thread->outside_calls;
    thread->failed |= moved < 0;
    if (!thread->moved_last)
        thread->backoff_ns =
            moved ? HD__MAX(thread->backoff_ns / 2, BACKOFF_MIN_NS) : HD__MIN(thread->backoff_ns * 2, BACKOFF_MAX_NS);
    thread->moved_last = moved;
    return moved;
}

/* Where a processor has to be shared with the thread that computes: on for a moment at a time, but then at once, and not when the
 * other's slice of some milliseconds is over, for which the network would be idle. Linux 6.12 and later heed it. */
static void request_short_slices(void)
{
    struct { /* sched_setattr(2); the C library has no name for it */
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
    int rc;
    thread->progress = progress;
    thread->user = user;
    thread->backoff_ns = BACKOFF_MIN_NS;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->wakeup, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread->thread, NULL, thread_main, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        return thread;
    hd__log(HD_LOG_WARN, NULL, "comm.progress: no thread (%s); transports move between instructions only",
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
        moved = thread->progress(thread->user, err);
        thread->failed = moved < 0;
        thread->outside_calls++;
    }
    pthread_mutex_unlock(&thread->lock);
    return moved;
}
