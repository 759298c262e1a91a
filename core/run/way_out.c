#include "core/run/way_out.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/comm/liveness.h"
#include "core/comm/store_inside.h"

#define LOOK_SECONDS 0.1

/* The call is inside another library for good: what it holds stays as it is. */
static void go(struct hd__way_out *w, const char *why)
{
    hd__log(HD_LOG_ERROR, NULL, "%s, so this rank ends, while %s", why, w->inside);
    hd__store_close(w->store);
    if (w->server)
        hd__server_drain(w->server, hd__now() + 2);
    fflush(NULL);
    _exit(1);
}

static void *watch(void *user)
{
    struct hd__way_out *w = user;
    struct hd_error end = HD_ERROR_INIT;
    double since = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->back && !w->taken) {
        struct timespec until = hd__store_time(hd__now() + LOOK_SECONDS);
        pthread_cond_timedwait(&w->left, &w->lock, &until);
        if (!since && hd__live_dead(hd__store_live(w->store), NULL, &end))
            since = hd__now();
        w->taken = !w->back && since && hd__now() > since + HD__WAY_OUT_SECONDS;
    }
    pthread_mutex_unlock(&w->lock);
    if (w->taken)
        go(w, end.message);
    return NULL;
}

void hd__way_out_enter(struct hd__way_out *w, struct hd_store *store, struct hd__server *server, const char *inside)
{
    *w = (struct hd__way_out){.store = store, .server = server, .inside = inside, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!store)
        return;
    hd__store_cond(&w->left);
    w->on = !pthread_create(&w->thread, NULL, watch, w);
    if (!w->on)
        hd__log(HD_LOG_WARN, NULL, "the thread that watches over %s cannot start", inside);
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
