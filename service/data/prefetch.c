/* Prefetching: a ring of `depth` + 1 buffers, one thread that fills them, one consumer. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "service/data/data.h"

struct hd__data_prefetch {
    struct hd__data_prefetch_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t *buffer; /* [slots][2][rows][length] */
    int64_t *counts; /* [slots]: labels that count */
    uint32_t slots;
    uint64_t filled, taken; /* number of requests */
    bool stop;
    int32_t rc; /* error of request `filled`; the thread has ended */
    struct hd_error error;
};

static int64_t row_length(const struct hd__data_prefetch_config *c)
{
    return c->ranges[0].count + c->ranges[1].count;
}

static int32_t *request_buffer(const struct hd__data_prefetch *p, uint64_t request, bool labels)
{
    uint64_t one = (uint64_t)p->config.rows * (uint64_t)row_length(&p->config);
    return p->buffer + (request % p->slots * 2 + labels) * one;
}

static int32_t read_row(const struct hd__data_prefetch_config *c, uint64_t number, int32_t *ids, int32_t *labels,
                        const struct hd__data_range *range, struct hd_error *err)
{
    if (number != HD__NO_SEQUENCE)
        return hd__data_read(c->data, number, ids, labels, range->first, range->count, err);
    memset(ids, 0, (size_t)range->count * sizeof *ids);
    memset(labels, 0xff, (size_t)range->count * sizeof *labels); /* -1 */
    return HD_OK;
}

static int32_t read_request(const struct hd__data_prefetch *p, uint64_t request, struct hd_error *err)
{
    const struct hd__data_prefetch_config *c = &p->config;
    int32_t *ids = request_buffer(p, request, false), *labels = request_buffer(p, request, true), rc = HD_OK;
    for (uint32_t j = 0; j < c->rows && !rc; j++)
        for (uint32_t run = 0; run < 2 && c->ranges[run].count && !rc; run++) {
            int64_t at = j * row_length(c) + (run ? c->ranges[0].count : 0);
            rc = read_row(c, c->number(c->user, c->first + request, j), ids + at, labels + at, &c->ranges[run], err);
        }
    int64_t count = 0, n = c->rows * row_length(c);
    for (int64_t i = 0; i < n && !rc; i++)
        count += labels[i] >= 0;
    p->counts[request % p->slots] = count;
    return rc;
}

static void *prefetch_thread(void *user)
{
    struct hd__data_prefetch *p = user;
    struct hd_error error = HD_ERROR_INIT;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        /* The consumer still holds the last request that it took. */
        while (!p->stop && p->filled - p->taken >= p->slots - (p->taken > 0))
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->stop)
            break;
        uint64_t request = p->filled;
        pthread_mutex_unlock(&p->lock);
        int32_t rc = read_request(p, request, &error);
        pthread_mutex_lock(&p->lock);
        p->rc = rc;
        p->error = error;
        p->filled += !rc;
        pthread_cond_broadcast(&p->changed);
        if (rc)
            break;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int32_t hd__data_prefetch_start(const struct hd__data_prefetch_config *config, struct hd__data_prefetch **prefetch,
                                struct hd_error *err)
{
    struct hd__data_prefetch *p = hd__alloc(sizeof *p);
    p->config = *config;
    p->slots = (config->depth ? config->depth : 2) + 1;
    p->buffer = hd__alloc((size_t)p->slots * 2 * config->rows * (size_t)row_length(config) * sizeof *p->buffer);
    p->counts = hd__alloc(p->slots * sizeof *p->counts);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    int rc = pthread_create(&p->thread, NULL, prefetch_thread, p);
    if (rc) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->lock);
        free(p->buffer);
        free(p->counts);
        free(p);
        return hd_fail(err, HD_E_NOMEM, "data: no thread for reading ahead: %s", strerror(rc));
    }
    *prefetch = p;
    return HD_OK;
}

int32_t hd__data_prefetch_next(struct hd__data_prefetch *p, const int32_t **ids, const int32_t **labels,
                               struct hd_error *err)
{
    int32_t rc = HD_OK;
    pthread_mutex_lock(&p->lock);
    while (p->filled == p->taken && !p->rc)
        pthread_cond_wait(&p->changed, &p->lock);
    if (p->filled == p->taken) {
        rc = p->rc;
        if (err)
            *err = p->error;
    } else {
        *ids = request_buffer(p, p->taken, false);
        *labels = request_buffer(p, p->taken, true);
        p->taken++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int32_t hd__data_prefetch_count(struct hd__data_prefetch *p, uint32_t n, int64_t *count, struct hd_error *err)
{
    int32_t rc = HD_OK;
    *count = 0;
    pthread_mutex_lock(&p->lock);
    while (p->filled < p->taken + n && !p->rc)
        pthread_cond_wait(&p->changed, &p->lock);
    if (p->filled < p->taken + n) {
        rc = p->rc;
        if (err)
            *err = p->error;
    }
    for (uint64_t request = p->taken; request < p->taken + n && !rc; request++)
        *count += p->counts[request % p->slots];
    pthread_mutex_unlock(&p->lock);
    return rc;
}

void hd__data_prefetch_stop(struct hd__data_prefetch *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->buffer);
    free(p->counts);
    free(p);
}
