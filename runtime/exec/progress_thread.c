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

#define NAP_LEAST_NS 50000
#define NAP_MOST_NS 800000
#define SLICE_NS 100000
#define SLACK_NS 5000 /* naps are not rounded up to the kernel's usual 50 us more */

struct hd__pump {
    int32_t (*progress)(void *user, struct hd_error *err);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* who holds it may call transports */
    pthread_cond_t work;
    _Atomic int32_t wanted; /* others want the lock: it is theirs first */
    int32_t in_flight, stop, failed;
    int32_t in_a_row; /* the last call of `progress` moved something: not after a nap */
    uint32_t others, seen; /* calls of `progress` by the thread that computes: all, and those before the last nap */
    long nap_ns;
};

/* Lets others in, and sleeps until they are through. */
static void step_back(struct hd__pump *pump, int32_t moved)
{
    struct timespec nap = {.tv_nsec = pump->nap_ns};
    if (!moved) {
        pthread_mutex_unlock(&pump->lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&pump->lock);
    }
    while (atomic_load(&pump->wanted) && !pump->stop)
        pthread_cond_wait(&pump->work, &pump->lock);
}

/* What is missed by a nap too long the buffers of a network hide for a while; naps too short cost the thread that computes, in a
 * virtual machine some 10 us each. So every second one should find something to do, unless the other has found it. */
static int32_t work(struct hd__pump *pump)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t others = pump->others != pump->seen, moved = others ? 0 : pump->progress(pump->user, &err);
    pump->seen = pump->others;
    pump->failed |= moved < 0;
    if (!pump->in_a_row)
        pump->nap_ns = moved ? HD__MAX(pump->nap_ns / 2, NAP_LEAST_NS) : HD__MIN(pump->nap_ns * 2, NAP_MOST_NS);
    pump->in_a_row = moved;
    return moved;
}

/* Where a processor has to be shared with the thread that computes: on for a moment at a time, but then at once, and not when the
 * other's slice of some milliseconds is over, for which the network would be idle. Linux 6.12 and later heed it. */
static void ask_for_short_slices(void)
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
    attr.runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *run(void *arg)
{
    struct hd__pump *pump = arg;
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    ask_for_short_slices();
    pthread_mutex_lock(&pump->lock);
    while (!pump->stop) {
        if (!pump->in_flight || pump->failed) {
            pthread_cond_wait(&pump->work, &pump->lock);
            continue;
        }
        step_back(pump, work(pump));
    }
    pthread_mutex_unlock(&pump->lock);
    return NULL;
}

struct hd__pump *hd__pump_start(int32_t (*progress)(void *user, struct hd_error *err), void *user)
{
    struct hd__pump *pump = hd__alloc(sizeof *pump);
    sigset_t all, before;
    int rc;
    pump->progress = progress;
    pump->user = user;
    pump->nap_ns = NAP_LEAST_NS;
    pthread_mutex_init(&pump->lock, NULL);
    pthread_cond_init(&pump->work, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&pump->thread, NULL, run, pump);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        return pump;
    hd__log(HD_LOG_WARN, NULL, "comm.progress: no thread (%s); transports move between instructions only",
            strerror(rc));
    free(pump);
    return NULL;
}

void hd__pump_stop(struct hd__pump *pump)
{
    if (!pump)
        return;
    hd__pump_enter(pump);
    pump->stop = 1;
    pthread_cond_signal(&pump->work);
    hd__pump_leave(pump, 0);
    pthread_join(pump->thread, NULL);
    pthread_mutex_destroy(&pump->lock);
    pthread_cond_destroy(&pump->work);
    free(pump);
}

void hd__pump_enter(struct hd__pump *pump)
{
    if (!pump)
        return;
    atomic_fetch_add(&pump->wanted, 1);
    pthread_mutex_lock(&pump->lock);
    atomic_fetch_sub(&pump->wanted, 1);
}

void hd__pump_leave(struct hd__pump *pump, int32_t more)
{
    if (!pump)
        return;
    pump->in_flight += more;
    if (pump->in_flight)
        pthread_cond_signal(&pump->work);
    pthread_mutex_unlock(&pump->lock);
}

int32_t hd__pump_progress(struct hd__pump *pump, struct hd_error *err)
{
    int32_t moved = 0;
    if (pthread_mutex_trylock(&pump->lock))
        return 0;
    if (!pump->failed) {
        moved = pump->progress(pump->user, err);
        pump->failed = moved < 0;
        pump->others++;
    }
    pthread_mutex_unlock(&pump->lock);
    return moved;
}
