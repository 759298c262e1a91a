/* A thread a direction, and who takes which copy. See copy_engine.h. */
#include "runtime/exec/copy/copy.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct copy_thread { /* one direction */
    struct hd__copy_engine *of;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    HD__ARRAY(struct hd__copy_op) queue; /* from `first` on */
    uint32_t first;
    uint32_t started, finished; /* tickets are 1, 2, ... */
    int32_t running, stop;
    struct hd_error error; /* of the first that failed */
};

struct hd__copy_engine {
    struct copy_thread direction[2];
    struct hd__uring *uring; /* NULL: files by the threads */
    int file;
};

/* ---- the work */

static int32_t copy_file(int file, const struct hd__copy_op *c, struct hd_error *err)
{
    for (int64_t done = 0; done < c->bytes;) {
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

static int32_t run_copy(const struct hd__copy_engine *copy_engine, const struct hd__copy_op *c, struct hd_error *err)
{
    if (!c->other)
        return copy_file(copy_engine->file, c, err);
    memcpy(c->out ? c->other : c->main, c->out ? c->main : c->other, (size_t)c->bytes);
    return HD_OK;
}

static void *copy_thread_main(void *user)
{
    struct copy_thread *l = user;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        struct hd_error why = HD_ERROR_INIT;
        struct hd__copy_op c;
        while (l->first == l->queue.count && !l->stop)
            pthread_cond_wait(&l->work, &l->lock);
        if (l->first == l->queue.count)
            break;
        c = l->queue.at[l->first++];
        if (l->first == l->queue.count)
            l->first = l->queue.count = 0;
        pthread_mutex_unlock(&l->lock);
        int32_t rc = run_copy(l->of, &c, &why);
        pthread_mutex_lock(&l->lock);
        if (rc && !l->error.code)
            l->error = why;
        l->finished = c.ticket;
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- lanes */

static int32_t start_thread(struct hd__copy_engine *copy_engine, struct copy_thread *l, struct hd_error *err)
{
    pthread_condattr_t monotonic;
    int rc;
    l->of = copy_engine;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rc = pthread_create(&l->thread, NULL, copy_thread_main, l);
    l->running = !rc;
    return rc ? hd_fail(err, HD_E_IO, "no thread for copies between memories: %s", strerror(rc)) : HD_OK;
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

static void enqueue_copy(struct copy_thread *l, struct hd__copy_op *c)
{
    pthread_mutex_lock(&l->lock);
    c->ticket = ++l->started;
    hd__push(&l->queue, *c);
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
}

static int32_t wait_copy(struct copy_thread *l, uint32_t ticket, double deadline, struct hd_error *err)
{
    struct timespec until = {.tv_sec = (time_t)deadline,
                             .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int32_t rc = HD_OK;
    pthread_mutex_lock(&l->lock);
    while ((int32_t)(l->finished - ticket) < 0 && !rc)
        if (pthread_cond_timedwait(&l->done, &l->lock, &until) == ETIMEDOUT && (int32_t)(l->finished - ticket) < 0)
            rc = hd_fail(err, HD_E_TIMEOUT, "a copy between memories is not done before the deadline");
    if (!rc && l->error.code) {
        *err = l->error;
        rc = l->error.code;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* ---- both */

int32_t hd__exec_copy_engine_open(int file, uint32_t engine, struct hd__copy_engine **copy_engine, struct hd_error *err)
{
    struct hd__copy_engine *c = hd__alloc(sizeof *c);
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = HD_OK;
    c->file = file;
    if (file >= 0 && engine != HD__COPY_ENGINE_THREADS && hd__exec_uring_open(file, &c->uring, &why)) {
        if (engine == HD__COPY_ENGINE_URING)
            rc = hd_fail(err, why.code, "%s", why.message);
        else
            hd__log(HD_LOG_WARN, "run", "offloaded state is read and written by threads: %s", why.message);
    }
    for (int n = 0; n < 2 && !rc; n++)
        rc = start_thread(c, &c->direction[n], err);
    if (rc) {
        hd__exec_copy_engine_close(c);
        return rc;
    }
    *copy_engine = c;
    return HD_OK;
}

void hd__exec_copy_engine_close(struct hd__copy_engine *c)
{
    if (!c)
        return;
    stop_thread(&c->direction[0]);
    stop_thread(&c->direction[1]);
    hd__exec_uring_close(c->uring);
    free(c);
}

int32_t hd__exec_copy_engine_start(struct hd__copy_engine *c, struct hd__copy_op *copy, struct hd_error *err)
{
    if (c->uring && !copy->other)
        return hd__exec_uring_start(c->uring, copy, err);
    enqueue_copy(&c->direction[copy->out != 0], copy);
    return HD_OK;
}

int32_t hd__exec_copy_engine_wait(struct hd__copy_engine *c, const struct hd__copy_op *copy, double deadline,
                                  struct hd_error *err)
{
    if (c->uring && !copy->other)
        return hd__exec_uring_wait(c->uring, copy, deadline, err);
    return wait_copy(&c->direction[copy->out != 0], copy->ticket, deadline, err);
}

const char *hd__exec_copy_engine_name(const struct hd__copy_engine *c)
{
    return c->uring ? "io_uring" : "threads";
}
