/* runtime/rendezvous/kv: the table of the rendezvous store: keys and values by hash, bounded in all. Not
 * thread-safe. */
#ifndef HD_RUNTIME_RENDEZVOUS_KV_H
#define HD_RUNTIME_RENDEZVOUS_KV_H

#include <stddef.h>
#include <stdint.h>

#define HD__KV_MAX (UINT64_C(1) << 28) /* bytes of all keys and values */

struct hd__kv_item {
    char *key;
    uint8_t *value;
    uint32_t key_bytes, value_bytes;
};

struct hd__kv {
    struct hd__kv_item *at; /* open addressing; `room` is a power of two */
    uint32_t count, room;
    uint64_t bytes;
};

/* Adds or replaces. 0, or -1 when the table would grow beyond HD__KV_MAX. */
int hd__store_kv_put(struct hd__kv *kv, const char *key, size_t key_bytes, const void *value, size_t bytes);
const struct hd__kv_item *hd__store_kv_get(const struct hd__kv *kv, const char *key, size_t key_bytes);
/* 1 if the key was there. */
int hd__store_kv_remove(struct hd__kv *kv, const char *key, size_t key_bytes);
void hd__store_kv_free(struct hd__kv *kv);

#endif
