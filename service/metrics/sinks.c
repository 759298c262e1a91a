/* Sinks of metrics: a queue and a thread each, so that no step waits for a sink. */
#include <pthread.h>
#include <stdlib.h>

#include "core/base/process.h"
#include "core/base/timed_wait.h"
#include "service/metrics/internal.h"

enum { QUEUE = 64 };

struct queued_record {
    struct hd_metrics_record record; /* its metrics point to the array below */
    struct hd_metric metrics[HD__METRICS_MAX];
};

struct hd__metrics_sink {
    const struct hd_metrics_ops *ops;
    struct hd_metrics *opened;
    char *name;
    double patience;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct queued_record queue[QUEUE];
    uint64_t put, taken; /* records so far */
    int stop, closed, is_behind;
};

static void *sink_thread(void *user)
{
    struct hd__metrics_sink *s = user;
    int failed = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && s->taken == s->put)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->taken == s->put)
            break;
        pthread_mutex_unlock(&s->lock); /* the slot belongs to this thread until `taken` passes it */
        struct hd_error err = HD_ERROR_INIT;
        int32_t rc = s->ops->write(s->opened, &s->queue[s->taken % QUEUE].record, &err);
        if (rc && !failed) /* logged once, until a step succeeds */
            hd__log(HD_LOG_WARN, "metrics", "%s: %s; steps are dropped until a write succeeds", s->name,
                    err.message[0] ? err.message : hd_code_name(rc));
        failed = rc != HD_OK;
        pthread_mutex_lock(&s->lock);
        s->taken++;
    }
    pthread_mutex_unlock(&s->lock);
    s->ops->close(s->opened);
    pthread_mutex_lock(&s->lock);
    s->closed = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void free_sink(struct hd__metrics_sink *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->name);
    free(s);
}

int32_t hd__metrics_sink_open(const struct hd__metrics_sink_config *c, const struct hd_metrics_start *start,
                              struct hd__metrics_sink **sink, struct hd_error *err)
{
    struct hd__metrics_sink *s = hd__alloc(sizeof *s);
    struct hd__process process;
    int why;
    s->ops = c->ops;
    s->name = hd__strdup(c->name);
    s->patience = c->patience > 0 ? c->patience : 10;
    pthread_mutex_init(&s->lock, NULL);
    hd__cond_init(&s->changed);
    hd__process_note(&process);
    int32_t rc = hd__slot_result(c->ops->open(c->host, c->settings, start, &s->opened, err), "the sink's", "open", err);
    hd__process_restore_after(&process, (uintptr_t)c->ops->open);
    if (!rc && (why = pthread_create(&s->thread, NULL, sink_thread, s))) {
        rc = hd_fail(err, HD_E_NOMEM, "no thread for it: %s", strerror(why));
        c->ops->close(s->opened);
    }
    if (rc)
        free_sink(s);
    else
        *sink = s;
    return rc;
}

void hd__metrics_sink_put(struct hd__metrics_sink *s, const struct hd_metrics_record *record)
{
    pthread_mutex_lock(&s->lock);
    int is_full = s->put - s->taken == QUEUE;
    if (is_full && !s->is_behind)
        hd__log(HD_LOG_WARN, "metrics",
                "%s: its queue of %d steps is full; step %ld and later ones are dropped until it catches up", s->name,
                QUEUE, (long)record->step);
    s->is_behind = is_full || (s->is_behind && s->put > s->taken); /* logged once */
    if (!is_full) {
        struct queued_record *q = &s->queue[s->put++ % QUEUE];
        q->record = *record;
        q->record.metrics = q->metrics;
        memcpy(q->metrics, record->metrics, record->count * sizeof *q->metrics);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
}

void hd__metrics_sink_close(struct hd__metrics_sink *s)
{
    struct timespec until = hd__cond_until(hd__now() + s->patience);
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_cond_broadcast(&s->changed);
    while (!s->closed && !pthread_cond_timedwait(&s->changed, &s->lock, &until))
        ;
    int closed = s->closed;
    uint64_t left = s->put - s->taken;
    pthread_mutex_unlock(&s->lock);
    if (closed) {
        pthread_join(s->thread, NULL);
        free_sink(s);
        return;
    }
    /* The thread may be blocked inside the plug-in for ever, so its memory is not freed. */
    hd__log(HD_LOG_WARN, "metrics", "%s: was not closed within %g s; its last %lu steps may be lost", s->name,
            s->patience, (unsigned long)left);
    pthread_detach(s->thread);
}
