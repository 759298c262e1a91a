/* Byte strings to ids: a hash table with linear probing. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "internal.h"

static uint32_t bits_for(size_t entries)
{
    uint32_t bits = 4;
    while ((UINT64_C(1) << bits) < 2 * entries)
        bits++;
    return bits;
}

bool bpe_map_reserve(struct bpe_map *map, size_t entries)
{
    map->slot_bits = bits_for(entries);
    map->slots = calloc((size_t)1 << map->slot_bits, sizeof *map->slots);
    map->entries = malloc((entries + 1) * sizeof *map->entries);
    return map->slots && map->entries;
}

/* The slot of a string, or the free one where it would stand. */
static uint32_t *slot_of(const struct bpe_map *map, const char *text, size_t bytes)
{
    uint64_t mask = (UINT64_C(1) << map->slot_bits) - 1, i = XXH3_64bits(text, bytes) & mask;
    for (;; i = (i + 1) & mask) {
        if (!map->slots[i])
            return &map->slots[i];
        const struct bpe_entry *e = &map->entries[map->slots[i] - 1];
        if (e->length == bytes && (!bytes || !memcmp(map->pool.at + e->at, text, bytes)))
            return &map->slots[i];
    }
}

bool bpe_map_put(struct bpe_map *map, const char *text, size_t bytes, int32_t id)
{
    uint32_t *slot = slot_of(map, text, bytes);
    if (*slot) {
        map->entries[*slot - 1].id = id;
        return true;
    }
    if (2 * (uint64_t)map->count >= UINT64_C(1) << map->slot_bits || bytes >= UINT32_MAX)
        return false;
    map->entries[map->count] = (struct bpe_entry){map->pool.length, (uint32_t)bytes, id};
    bpe_text_add(&map->pool, text, bytes);
    *slot = ++map->count;
    return !bpe_text_failed(&map->pool);
}

int32_t bpe_map_find(const struct bpe_map *map, const char *text, size_t bytes)
{
    if (!map->count)
        return -1;
    const uint32_t *slot = slot_of(map, text, bytes);
    return *slot ? map->entries[*slot - 1].id : -1;
}

void bpe_map_free(struct bpe_map *map)
{
    free(map->slots);
    free(map->entries);
    free(map->pool.at);
    *map = (struct bpe_map){0};
}
