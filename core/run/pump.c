#include "core/run/pump.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/base/base.h"

#define NAP_NS 50000
#define SLACK_NS 5000 /* naps are not rounded up to the kernel's usual 50 us more */

struct hd__pump {
    int32_t (*progress)(void *user, struct hd_error *err);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* who holds it may call transports */
    pthread_cond_t work;
    _Atomic int32_t wanted; /* others want the lock: it is theirs first */
    int32_t in_flight, stop, failed;
};

/* Lets others in, and sleeps until they are through. */
static void step_back(struct hd__pump *pump, int32_t moved)
{
    struct timespec nap = {.tv_nsec = NAP_NS};
    if (!moved) {
        pthread_mutex_unlock(&pump->lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&pump->lock);
    }
    while (atomic_load(&pump->wanted) && !pump->stop)
        pthread_cond_wait(&pump->work, &pump->lock);
}

static void *run(void *arg)
{
    struct hd__pump *pump = arg;
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    pthread_mutex_lock(&pump->lock);
    while (!pump->stop) {
        struct hd_error err = HD_ERROR_INIT;
        int32_t moved;
        if (!pump->in_flight || pump->failed) {
            pthread_cond_wait(&pump->work, &pump->lock);
            continue;
        }
        moved = pump->progress(pump->user, &err);
        pump->failed = moved < 0;
        step_back(pump, moved);
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
