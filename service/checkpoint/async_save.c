/* Saving in the background: a copy of the runs, and a thread. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "service/checkpoint/internal.h"

struct hd__ckpt_async_writer {
    struct hd__ckpt_store store;
    struct hd__ckpt_save save;
    struct hd__ckpt_run *runs;
    json_t *state;
    char *host_copy; /* copy of the runs; reused from save to save, so that its pages are resident */
    size_t capacity;
    pthread_t thread;
    bool running;
    _Atomic int done;
    int32_t rc;
    double seconds; /* of the last save */
    struct hd_error error;
};

struct hd__ckpt_async_writer *hd__ckpt_async_writer_create(const struct hd__ckpt_store *store)
{
    struct hd__ckpt_async_writer *s = hd__alloc(sizeof *s);
    s->store = *store;
    return s;
}

static void *save_thread(void *user)
{
    struct hd__ckpt_async_writer *s = user;
    double start = hd__now();
    s->rc = hd__ckpt_save(&s->store, &s->save, &s->error);
    s->seconds = hd__now() - start;
    atomic_store(&s->done, 1);
    return NULL;
}

/* The copies are contiguous, in the order of the runs. */
static int32_t take_snapshot(struct hd__ckpt_async_writer *s, const struct hd__ckpt_save *save, struct hd_error *err)
{
    size_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < save->n_runs; i++)
        bytes += hd__ckpt_run_bytes(save, i);
    if (bytes > s->capacity) {
        if (s->host_copy)
            munmap(s->host_copy, s->capacity);
        s->capacity = 0;
        s->host_copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s->host_copy == MAP_FAILED) {
            char text[32];
            s->host_copy = NULL;
            return hd_fail(err, HD_E_NOMEM,
                           "checkpoint: no memory for a copy of %s; checkpoint.async: false needs none",
                           hd__bytes_text(bytes, text));
        }
        madvise(s->host_copy, bytes, MADV_HUGEPAGE);
        s->capacity = bytes;
    }
    s->runs = hd__realloc(s->runs, save->n_runs * sizeof *s->runs);
    for (uint32_t i = 0; i < save->n_runs; i++) {
        size_t n = hd__ckpt_run_bytes(save, i);
        s->runs[i] = save->runs[i];
        s->runs[i].data = s->host_copy + at;
        if (n)
            memcpy(s->host_copy + at, save->runs[i].data, n);
        at += n;
    }
    s->save = *save;
    s->save.runs = s->runs;
    s->save.state = s->state = json_deep_copy(save->state);
    return HD_OK;
}

int32_t hd__ckpt_async_writer_start(struct hd__ckpt_async_writer *s, const struct hd__ckpt_save *save,
                                    struct hd_error *err)
{
    sigset_t all, old;
    int32_t rc = hd__ckpt_async_writer_join(s, err);
    if (!rc)
        rc = take_snapshot(s, save, err);
    if (rc)
        return rc;
    s->error = (struct hd_error)HD_ERROR_INIT;
    atomic_store(&s->done, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int why = pthread_create(&s->thread, NULL, save_thread, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (why) /* saving is collective: the others wait for this rank */
        save_thread(s);
    s->running = !why;
    return HD_OK;
}

int hd__ckpt_async_writer_busy(const struct hd__ckpt_async_writer *s)
{
    return s && s->running && !atomic_load(&s->done);
}

double hd__ckpt_async_writer_seconds(const struct hd__ckpt_async_writer *s)
{
    return s->rc ? -1 : s->seconds;
}

int32_t hd__ckpt_async_writer_join(struct hd__ckpt_async_writer *s, struct hd_error *err)
{
    if (!s)
        return HD_OK;
    if (s->running)
        pthread_join(s->thread, NULL);
    s->running = false;
    json_decref(s->state);
    s->state = NULL;
    int32_t rc = s->rc;
    if (rc && err)
        *err = s->error;
    s->rc = HD_OK;
    return rc;
}

void hd__ckpt_async_writer_destroy(struct hd__ckpt_async_writer *s)
{
    if (!s)
        return;
    hd__ckpt_async_writer_join(s, NULL);
    if (s->host_copy)
        munmap(s->host_copy, s->capacity);
    free(s->runs);
    free(s);
}
