#include "runtime/rendezvous/kv.h"

#include <stdlib.h>

#include "core/base/base.h"

static struct hd__kv_item *find(const struct hd__kv *kv, const char *key, size_t key_bytes)
{
    uint64_t h = hd__hash(key, key_bytes, 0);
    for (;; h++) {
        struct hd__kv_item *item = &kv->at[h & (kv->room - 1)];
        if (!item->key || (item->key_bytes == key_bytes && memcmp(item->key, key, key_bytes) == 0))
            return item;
    }
}

static void grow(struct hd__kv *kv)
{
    struct hd__kv bigger = {.room = kv->room ? kv->room * 2 : 64};
    bigger.at = hd__alloc(bigger.room * sizeof *bigger.at);
    for (uint32_t i = 0; i < kv->room; i++)
        if (kv->at[i].key)
            *find(&bigger, kv->at[i].key, kv->at[i].key_bytes) = kv->at[i];
    free(kv->at);
    kv->at = bigger.at;
    kv->room = bigger.room;
}

int hd__store_kv_put(struct hd__kv *kv, const char *key, size_t key_bytes, const void *value, size_t bytes)
{
    if (kv->count * 2 >= kv->room)
        grow(kv);
    struct hd__kv_item *item = find(kv, key, key_bytes);
    uint64_t total = kv->bytes + bytes + (item->key ? 0 : key_bytes) - (item->key ? item->value_bytes : 0);
    if (total > HD__KV_MAX)
        return -1;
    if (!item->key) {
        item->key = hd__alloc(key_bytes);
        memcpy(item->key, key, key_bytes);
        item->key_bytes = (uint32_t)key_bytes;
        kv->count++;
    }
    free(item->value);
    item->value = hd__alloc(bytes);
    if (bytes)
        memcpy(item->value, value, bytes);
    item->value_bytes = (uint32_t)bytes;
    kv->bytes = total;
    return 0;
}

const struct hd__kv_item *hd__store_kv_get(const struct hd__kv *kv, const char *key, size_t key_bytes)
{
    if (!kv->room)
        return NULL;
    const struct hd__kv_item *item = find(kv, key, key_bytes);
    return item->key ? item : NULL;
}

/* Moves up items that linear probing put behind the removed one. */
static void close_gap(struct hd__kv *kv, uint64_t hole)
{
    uint64_t mask = kv->room - 1;
    for (uint64_t i = (hole + 1) & mask; kv->at[i].key; i = (i + 1) & mask) {
        uint64_t home = hd__hash(kv->at[i].key, kv->at[i].key_bytes, 0) & mask;
        if (((i - home) & mask) < ((i - hole) & mask))
            continue; /* its home slot is after the hole */
        kv->at[hole] = kv->at[i];
        kv->at[i] = (struct hd__kv_item){0};
        hole = i;
    }
}

int hd__store_kv_remove(struct hd__kv *kv, const char *key, size_t key_bytes)
{
    struct hd__kv_item *item = kv->room ? find(kv, key, key_bytes) : NULL;
    if (!item || !item->key)
        return 0;
    kv->bytes -= item->key_bytes + item->value_bytes;
    kv->count--;
    free(item->key);
    free(item->value);
    *item = (struct hd__kv_item){0};
    close_gap(kv, (uint64_t)(item - kv->at));
    return 1;
}

void hd__store_kv_free(struct hd__kv *kv)
{
    for (uint32_t i = 0; i < kv->room; i++) {
        free(kv->at[i].key);
        free(kv->at[i].value);
    }
    free(kv->at);
    *kv = (struct hd__kv){0};
}
