/* The thread engine: one thread for each direction. See copy.h. */
#include "runtime/exec/copy/copy.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/timed_wait.h"
#include "heddle/comm.h"

struct copy_thread { /* one direction */
    struct thread_engine *of;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    HD__ARRAY(struct hd__copy_op) queue; /* from `first` on */
    uint32_t first;
    uint32_t started, finished; /* tickets are 1, 2, ... */
    int32_t running, stop;
    struct hd_error error; /* the first */
};

struct thread_engine {
    struct hd__copy_engine engine;
    struct copy_thread direction[2];
    int file;
};

/* ---- copies */

static int32_t run_copy(int file, const struct hd__copy_op *c, struct hd_error *err)
{
    if (c->other)
        memcpy(c->out ? c->other : c->main, c->out ? c->main : c->other, (size_t)c->bytes);
    for (int64_t done = 0; done < c->bytes && !c->other;) {
        char *at = (char *)c->main + done;
        size_t left = (size_t)(c->bytes - done);
        ssize_t n = c->out ? pwrite(file, at, left, c->offset + done) : pread(file, at, left, c->offset + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hd_fail(err, HD_E_IO, "%s %zu bytes at %lld of the file of offloaded state: %s",
                           c->out ? "writing" : "reading", left, (long long)(c->offset + done),
                           n ? strerror(errno) : "it is shorter than planned");
        done += n;
    }
    return HD_OK;
}

static void *copy_thread_main(void *user)
{
    struct copy_thread *l = user;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        struct hd_error why = HD_ERROR_INIT;
        while (l->first == l->queue.count && !l->stop)
            pthread_cond_wait(&l->work, &l->lock);
        if (l->first == l->queue.count)
            break;
        struct hd__copy_op c = l->queue.at[l->first++];
        if (l->first == l->queue.count)
            l->first = l->queue.count = 0;
        pthread_mutex_unlock(&l->lock);
        int32_t rc = run_copy(l->of->file, &c, &why);
        pthread_mutex_lock(&l->lock);
        if (rc && !l->error.code)
            l->error = why;
        l->finished = c.ticket;
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- threads */

static int32_t start_thread(struct thread_engine *engine, struct copy_thread *l, struct hd_error *err)
{
    pthread_condattr_t monotonic;
    l->of = engine;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = pthread_create(&l->thread, NULL, copy_thread_main, l);
    l->running = !rc;
    return rc ? hd_fail(err, HD_E_IO, "offload: cannot create a copy thread: %s", strerror(rc)) : HD_OK;
}

static void stop_thread(struct copy_thread *l)
{
    if (!l->of)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    if (l->running)
        pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    hd__free_array(&l->queue);
}

/* ---- the engine */

static int32_t threads_start(struct hd__copy_op *copy, struct hd_error *err)
{
    struct thread_engine *c = (struct thread_engine *)copy->engine;
    struct copy_thread *l = &c->direction[copy->out != 0];
    (void)err;
    pthread_mutex_lock(&l->lock);
    copy->ticket = ++l->started;
    hd__push(&l->queue, *copy);
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    return HD_OK;
}

static int32_t threads_wait(struct hd__copy_op *copy, double deadline, struct hd_error *err)
{
    struct thread_engine *c = (struct thread_engine *)copy->engine;
    struct copy_thread *l = &c->direction[copy->out != 0];
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    int32_t rc = HD_OK;
    pthread_mutex_lock(&l->lock);
    while ((int32_t)(l->finished - copy->ticket) < 0 && !rc) {
        struct timespec look = hd__cond_until(HD__MIN(end.at, end.looked + HD_LOOK_SECONDS / 2));
        pthread_cond_timedwait(&l->done, &l->lock, &look);
        if (hd_deadline_passed(&end, hd__now()) && (int32_t)(l->finished - copy->ticket) < 0)
            rc = hd_fail(err, HD_E_TIMEOUT, "offload: a copy did not finish before the deadline");
    }
    if (!rc && l->error.code) {
        *err = l->error;
        rc = l->error.code;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

static void threads_close(struct hd__copy_engine *engine)
{
    struct thread_engine *c = (struct thread_engine *)engine;
    stop_thread(&c->direction[0]);
    stop_thread(&c->direction[1]);
    free(c);
}

static const struct hd__copy_engine_ops threads_ops = {
    .name = "threads", .start = threads_start, .wait = threads_wait, .close = threads_close};

int32_t hd__exec_copy_threads_open(int file, struct hd__copy_engine **engine, struct hd_error *err)
{
    struct thread_engine *c = hd__alloc(sizeof *c);
    int32_t rc = HD_OK;
    c->engine.ops = &threads_ops;
    c->file = file;
    for (int n = 0; n < 2 && !rc; n++)
        rc = start_thread(c, &c->direction[n], err);
    if (rc)
        threads_close(&c->engine);
    else
        *engine = &c->engine;
    return rc;
}
