/* The store inside one process: a space, and a handle on it per rank. */
#include <errno.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "runtime/rendezvous/client_internal.h"

int32_t hd__store_local_put(struct hd_store *s, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    pthread_mutex_lock(&s->local->lock);
    int bad = hd__store_kv_put(&s->local->kv, key, strlen(key), value, bytes);
    pthread_cond_broadcast(&s->local->changed);
    pthread_mutex_unlock(&s->local->lock);
    return bad ? hd_fail(err, HD_E_NOMEM, "the store is full") : HD_OK;
}

void hd__store_local_remove(struct hd_store *s, const char *key)
{
    pthread_mutex_lock(&s->local->lock);
    hd__store_kv_remove(&s->local->kv, key, strlen(key));
    pthread_mutex_unlock(&s->local->lock);
}

int32_t hd__store_local_get(struct hd_store *s, const char *key, void *value, size_t *bytes, double deadline,
                            struct hd_error *err)
{
    struct timespec until = hd__cond_until(deadline);
    const struct hd__kv_item *item;
    int32_t code = HD_OK;
    pthread_mutex_lock(&s->local->lock);
    while (!(item = hd__store_kv_get(&s->local->kv, key, strlen(key))) && code == HD_OK) {
        if (hd__store_liveness_check(&s->live, NULL, err) != HD_OK)
            code = HD_E_PEER;
        else if (pthread_cond_timedwait(&s->local->changed, &s->local->lock, &until) == ETIMEDOUT)
            code = hd_fail(err, HD_E_TIMEOUT, "nobody put %s into the store in time", key);
    }
    if (item && item->value_bytes > *bytes)
        code = hd_fail(err, HD_E_INVALID, "store value %s has %u bytes, room for %zu", key, item->value_bytes, *bytes);
    else if (item) {
        if (item->value_bytes)
            memcpy(value, item->value, item->value_bytes);
        *bytes = item->value_bytes;
        code = HD_OK;
    }
    pthread_mutex_unlock(&s->local->lock);
    return code;
}

/* Without sockets a barrier is a counter per name, stored under a key that no put can use (it starts with a space). */
int32_t hd__store_local_barrier(struct hd_store *s, const char *name, double deadline, struct hd_error *err)
{
    struct timespec until = hd__cond_until(deadline);
    char key[WIRE_KEY_MAX + 2];
    uint64_t count = 0, goal;
    int32_t code = HD_OK;
    snprintf(key, sizeof key, " %s", name);
    pthread_mutex_lock(&s->local->lock);
    const struct hd__kv_item *item = hd__store_kv_get(&s->local->kv, key, strlen(key));
    if (item)
        memcpy(&count, item->value, sizeof count);
    goal = (count / (uint64_t)s->size + 1) * (uint64_t)s->size;
    count++;
    hd__store_kv_put(&s->local->kv, key, strlen(key), &count, sizeof count);
    pthread_cond_broadcast(&s->local->changed);
    while (count < goal && code == HD_OK) {
        if (hd__store_liveness_check(&s->live, NULL, err) != HD_OK)
            code = HD_E_PEER;
        else if (pthread_cond_timedwait(&s->local->changed, &s->local->lock, &until) == ETIMEDOUT)
            code = hd_fail(err, HD_E_TIMEOUT, "barrier %s: %d of %d ranks came", name, (int)(count % (uint64_t)s->size),
                           s->size);
        memcpy(&count, hd__store_kv_get(&s->local->kv, key, strlen(key))->value, sizeof count);
    }
    if (code != HD_OK && count < goal) { /* not here any more */
        count--;
        hd__store_kv_put(&s->local->kv, key, strlen(key), &count, sizeof count);
    }
    pthread_mutex_unlock(&s->local->lock);
    return code;
}

void hd__store_local_abort(struct hd_store *s, uint64_t origin, const char *cause)
{
    struct hd__local_store *store_space = s->local;
    pthread_mutex_lock(&store_space->lock);
    for (int32_t r = 0; r < store_space->size; r++)
        if (store_space->ranks[r])
            hd__store_liveness_record(&store_space->ranks[r]->live, HD_E_CANCELLED, HD_E_CANCELLED, s->rank, origin,
                                      cause);
    pthread_cond_broadcast(&store_space->changed);
    pthread_mutex_unlock(&store_space->lock);
}

void hd__store_local_close(struct hd_store *s)
{
    pthread_mutex_lock(&s->local->lock);
    s->local->ranks[s->rank] = NULL;
    pthread_mutex_unlock(&s->local->lock);
    hd__store_free(s);
}

struct hd__local_store *hd__store_local_create(int32_t size)
{
    struct hd__local_store *store_space = hd__alloc(sizeof *store_space);
    pthread_mutex_init(&store_space->lock, NULL);
    hd__cond_init(&store_space->changed);
    store_space->size = size;
    store_space->ranks = hd__alloc((size_t)size * sizeof *store_space->ranks);
    return store_space;
}

void hd__store_local_destroy(struct hd__local_store *store_space)
{
    if (!store_space)
        return;
    hd__store_kv_free(&store_space->kv);
    pthread_mutex_destroy(&store_space->lock);
    pthread_cond_destroy(&store_space->changed);
    free(store_space->ranks);
    free(store_space);
}

struct hd_store *hd__store_local_open(struct hd__local_store *store_space, int32_t rank)
{
    struct hd_store *s = hd__store_new(rank, store_space->size);
    s->local = store_space;
    pthread_mutex_lock(&store_space->lock);
    store_space->ranks[rank] = s;
    pthread_mutex_unlock(&store_space->lock);
    return s;
}
