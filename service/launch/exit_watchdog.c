#include "service/launch/exit_watchdog.h"

#include <stdio.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/timed_wait.h"
#include "runtime/rendezvous/liveness.h"

#define POLL_SECONDS 0.1

/* The call is inside another library for good, or comes back any moment: what it uses stays as it is. */
static void exit_process(struct hd__launch_exit_watchdog *w)
{
    int code = hd__speaker_abandon(w->speaker, w->phase);
    hd__store_leave(w->speaker->store);
    if (w->server)
        hd__server_drain(w->server, hd__now() + 2);
    fflush(NULL);
    _exit(code);
}

static void *watch_call(void *user)
{
    struct hd__launch_exit_watchdog *w = user;
    double since = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->call_returned && !w->exiting) {
        struct timespec until = hd__cond_until(hd__now() + POLL_SECONDS);
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (!since && hd__store_liveness_check(hd__store_liveness(w->speaker->store), NULL, NULL))
            since = hd__now();
        w->exiting = !w->call_returned && since && hd__now() > since + HD__LAUNCH_EXIT_WATCHDOG_SECONDS;
    }
    pthread_mutex_unlock(&w->lock);
    if (w->exiting)
        exit_process(w);
    return NULL;
}

void hd__launch_exit_watchdog_start(struct hd__launch_exit_watchdog *w, const struct hd__speaker *speaker,
                                    struct hd__server *server, const char *phase)
{
    *w = (struct hd__launch_exit_watchdog){
        .speaker = speaker, .server = server, .phase = phase, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!speaker->store)
        return;
    hd__cond_init(&w->changed);
    w->running = !pthread_create(&w->thread, NULL, watch_call, w);
    if (!w->running)
        hd__log(HD_LOG_WARN, NULL, "the thread that watches over %s cannot start", w->phase);
}

void hd__launch_exit_watchdog_stop(struct hd__launch_exit_watchdog *w)
{
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->call_returned = 1;
    while (w->exiting) { /* too late: the process ends any moment */
        pthread_mutex_unlock(&w->lock);
        pause();
        pthread_mutex_lock(&w->lock);
    }
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->running = 0;
}
