#include "service/launch/exit_watchdog.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/timed_wait.h"
#include "runtime/rendezvous/liveness.h"

#define LOOK_SECONDS 0.1

/* The call is inside another library for good, or comes back any moment: what it uses stays as it is. Where another rank refused
 * the job, that one has said why. */
static void go(struct hd__way_out *w, const char *why)
{
    int refused = hd__live_fault(hd__store_live(w->store)) == HD_E_INVALID;
    if (!refused)
        hd__log(HD_LOG_ERROR, NULL, "%s, so this rank ends, while %s", why, w->inside);
    hd__store_leave(w->store);
    if (w->server)
        hd__server_drain(w->server, hd__now() + 2);
    fflush(NULL);
    _exit(refused ? 2 : 1);
}

/* In the end the rank that serves leaves when it is done, and does not wait for ever for who is late. */
static int has_ended(const struct hd__way_out *w, struct hd_error *why)
{
    int32_t rank = -1, code = hd__live_dead(hd__store_live(w->store), &rank, why);
    return code && !(w->closing && code == HD_E_PEER && rank >= 0 && rank == hd__store_server_rank(w->store));
}

static void *watch(void *user)
{
    struct hd__way_out *w = user;
    struct hd_error end = HD_ERROR_INIT;
    double since = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->back && !w->taken) {
        struct timespec until = hd__cond_until(hd__now() + LOOK_SECONDS);
        pthread_cond_timedwait(&w->left, &w->lock, &until);
        if (!since && has_ended(w, &end))
            since = hd__now();
        w->taken = !w->back && since && hd__now() > since + HD__WAY_OUT_SECONDS;
    }
    pthread_mutex_unlock(&w->lock);
    if (w->taken)
        go(w, end.message);
    return NULL;
}

void hd__way_out_enter(struct hd__way_out *w, struct hd_store *store, struct hd__server *server, int closing)
{
    *w = (struct hd__way_out){.store = store, .server = server, .closing = closing, .inside = closing ? "closing" : "opening",
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!store)
        return;
    hd__cond_init(&w->left);
    w->on = !pthread_create(&w->thread, NULL, watch, w);
    if (!w->on)
        hd__log(HD_LOG_WARN, NULL, "the thread that watches over %s cannot start", w->inside);
}

void hd__way_out_leave(struct hd__way_out *w)
{
    if (!w->on)
        return;
    pthread_mutex_lock(&w->lock);
    w->back = 1;
    while (w->taken) { /* too late: the process ends any moment */
        pthread_mutex_unlock(&w->lock);
        pause();
        pthread_mutex_lock(&w->lock);
    }
    pthread_cond_signal(&w->left);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->left);
    pthread_mutex_destroy(&w->lock);
    w->on = 0;
}
