/* The store inside one process: a space, and a handle on it per rank. */
#include <errno.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "runtime/rendezvous/client_internal.h"

int32_t hd__local_put(struct hd_store *s, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    pthread_mutex_lock(&s->space->lock);
    int bad = hd__kv_put(&s->space->kv, key, strlen(key), value, bytes);
    pthread_cond_broadcast(&s->space->changed);
    pthread_mutex_unlock(&s->space->lock);
    return bad ? hd_fail(err, HD_E_NOMEM, "the store is full") : HD_OK;
}

void hd__local_remove(struct hd_store *s, const char *key)
{
    pthread_mutex_lock(&s->space->lock);
    hd__kv_remove(&s->space->kv, key, strlen(key));
    pthread_mutex_unlock(&s->space->lock);
}

int32_t hd__local_get(struct hd_store *s, const char *key, void *value, size_t *bytes, double deadline,
                         struct hd_error *err)
{
    struct timespec until = hd__cond_until(deadline);
    const struct hd__kv_item *item;
    int32_t code = HD_OK;
    pthread_mutex_lock(&s->space->lock);
    while (!(item = hd__kv_get(&s->space->kv, key, strlen(key))) && code == HD_OK) {
        if (hd__live_dead(&s->live, NULL, err) != HD_OK)
            code = HD_E_PEER;
        else if (pthread_cond_timedwait(&s->space->changed, &s->space->lock, &until) == ETIMEDOUT)
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
    pthread_mutex_unlock(&s->space->lock);
    return code;
}

/* Without sockets a barrier is a counter per name, stored under a key that no put can use (it starts with a space). */
int32_t hd__local_barrier(struct hd_store *s, const char *name, double deadline, struct hd_error *err)
{
    struct timespec until = hd__cond_until(deadline);
    char key[WIRE_KEY_MAX + 2];
    uint64_t count = 0, goal;
    int32_t code = HD_OK;
    snprintf(key, sizeof key, " %s", name);
    pthread_mutex_lock(&s->space->lock);
    const struct hd__kv_item *item = hd__kv_get(&s->space->kv, key, strlen(key));
    if (item)
        memcpy(&count, item->value, sizeof count);
    goal = (count / (uint64_t)s->size + 1) * (uint64_t)s->size;
    count++;
    hd__kv_put(&s->space->kv, key, strlen(key), &count, sizeof count);
    pthread_cond_broadcast(&s->space->changed);
    while (count < goal && code == HD_OK) {
        if (hd__live_dead(&s->live, NULL, err) != HD_OK)
            code = HD_E_PEER;
        else if (pthread_cond_timedwait(&s->space->changed, &s->space->lock, &until) == ETIMEDOUT)
            code = hd_fail(err, HD_E_TIMEOUT, "barrier %s: %d of %d ranks came", name,
                           (int)(count % (uint64_t)s->size), s->size);
        memcpy(&count, hd__kv_get(&s->space->kv, key, strlen(key))->value, sizeof count);
    }
    if (code != HD_OK && count < goal) { /* not here any more */
        count--;
        hd__kv_put(&s->space->kv, key, strlen(key), &count, sizeof count);
    }
    pthread_mutex_unlock(&s->space->lock);
    return code;
}

void hd__local_abort(struct hd_store *s, const char *cause)
{
    struct hd__space *space = s->space;
    pthread_mutex_lock(&space->lock);
    for (int32_t r = 0; r < space->size; r++)
        if (space->ranks[r])
            hd__live_record(&space->ranks[r]->live, HD_E_CANCELLED, HD_E_CANCELLED, s->rank, cause);
    pthread_cond_broadcast(&space->changed);
    pthread_mutex_unlock(&space->lock);
}

void hd__local_close(struct hd_store *s)
{
    pthread_mutex_lock(&s->space->lock);
    s->space->ranks[s->rank] = NULL;
    pthread_mutex_unlock(&s->space->lock);
    hd__store_free(s);
}

struct hd__space *hd__space_create(int32_t size)
{
    struct hd__space *space = hd__alloc(sizeof *space);
    pthread_mutex_init(&space->lock, NULL);
    hd__cond_init(&space->changed);
    space->size = size;
    space->ranks = hd__alloc((size_t)size * sizeof *space->ranks);
    return space;
}

void hd__space_destroy(struct hd__space *space)
{
    if (!space)
        return;
    hd__kv_free(&space->kv);
    pthread_mutex_destroy(&space->lock);
    pthread_cond_destroy(&space->changed);
    free(space->ranks);
    free(space);
}

struct hd_store *hd__store_local(struct hd__space *space, int32_t rank)
{
    struct hd_store *s = hd__store_new(rank, space->size);
    s->space = space;
    pthread_mutex_lock(&space->lock);
    space->ranks[rank] = s;
    pthread_mutex_unlock(&space->lock);
    return s;
}
