/* core/base: the library under all rooms: memory, growing arrays, arenas, strings, hashing, time, the log.
 * Symbols shared inside the core begin with hd__. Allocation failure ends the process in one place (hd__die): a trainer
 * that cannot allocate a few kilobytes cannot go on, and big memory (the arena) is asked for with an error return. */
#ifndef HD_CORE_BASE_BASE_H
#define HD_CORE_BASE_BASE_H

#include <stddef.h>
#include <stdint.h>

#include "heddle/host.h"
#include "heddle/types.h"

/* Bytes of a struct up to and with a field: its size in an older ABI. */
#define HD__END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define HD__COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define HD__MIN(a, b) ((a) < (b) ? (a) : (b))
#define HD__MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- memory */
void *hd__alloc(size_t bytes); /* zeroed */
void *hd__realloc(void *p, size_t bytes);
char *hd__strdup(const char *s);
char *hd__format(const char *format, ...) __attribute__((format(printf, 1, 2))); /* caller frees */
_Noreturn void hd__die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- arena: many small things that die together. Zeroed memory, 16-byte aligned. Init by {0}. */
struct hd__arena {
    struct hd__arena_block *block;
};
void *hd__arena_alloc(struct hd__arena *arena, size_t bytes);
char *hd__arena_strdup(struct hd__arena *arena, const char *s);
char *hd__arena_format(struct hd__arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *hd__arena_copy(struct hd__arena *arena, const void *data, size_t bytes);
void hd__arena_free(struct hd__arena *arena);

/* ---- growing arrays: declare  struct { T *at; uint32_t count, room; } name;  Init by {0}. */
#define HD__ARRAY(T)          \
    struct {                  \
        T *at;                \
        uint32_t count, room; \
    }
void *hd__array_grow(void *at, uint32_t *room, uint32_t need, size_t item);
/* Appends one value. */
#define hd__push(array, ...)                                                                                     \
    do {                                                                                                         \
        if ((array)->count == (array)->room)                                                                     \
            (array)->at = hd__array_grow((array)->at, &(array)->room, (array)->count + 1, sizeof(*(array)->at)); \
        (array)->at[(array)->count++] = (__VA_ARGS__);                                                           \
    } while (0)
/* qsort takes no NULL, which an empty array has. */
#define hd__sort(array, compare)                                               \
    do {                                                                       \
        if ((array)->count)                                                    \
            qsort((array)->at, (array)->count, sizeof(*(array)->at), compare); \
    } while (0)
/* Appends n items from `from`. */
#define hd__append(array, from, n)                                                                                   \
    do {                                                                                                             \
        uint32_t hd__n = (uint32_t)(n);                                                                              \
        if ((array)->count + hd__n > (array)->room)                                                                  \
            (array)->at = hd__array_grow((array)->at, &(array)->room, (array)->count + hd__n, sizeof(*(array)->at)); \
        if (hd__n)                                                                                                   \
            memcpy((array)->at + (array)->count, (from), hd__n * sizeof(*(array)->at));                              \
        (array)->count += hd__n;                                                                                     \
    } while (0)
#define hd__free_array(array)               \
    do {                                    \
        free((array)->at);                  \
        (array)->at = NULL;                 \
        (array)->count = (array)->room = 0; \
    } while (0)

/* ---- strings that grow. Init by {0}; text is always terminated once something was added. */
struct hd__text {
    char *at;
    size_t length, room;
};
void hd__text_add(struct hd__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hd__text_add_bytes(struct hd__text *text, const char *bytes, size_t count); /* zeros among them, too */
/* Text content for XML and HTML: &, < and > as entities. */
void hd__text_add_xml(struct hd__text *text, const char *plain);
void hd__text_free(struct hd__text *text);
/* Writes the text, made printable, and frees it. */
void hd__text_print(struct hd__text *text, FILE *out);
/* Replaces, in place, by '?' what a terminal would obey (ESC and other control characters, but not newline and tab) and
 * bytes that are not UTF-8: messages quote files. Returns text. */
char *hd__printable(char *text);
char *hd__text_to_arena(struct hd__text *text, struct hd__arena *arena); /* a copy; frees the text */

/* The candidate nearest to `word` by edit distance, or NULL if none is near enough to suggest. */
const char *hd__nearest(const char *word, const char *const *candidates, size_t n);
/* "4", both bounds, or "2:4", from 1 to `most`; 0: the text is neither. */
int hd__range_parse(const char *text, int32_t most, int32_t *low, int32_t *high);
int hd__ends_with(const char *text, const char *tail);
int hd__is_state_name(const char *name); /* part of a checkpoint's file names: no '/' or '.', at most 80 bytes */
/* "1.5 GiB": binary units, for people. `out` has room for 32. Returns out. */
const char *hd__bytes_text(uint64_t bytes, char out[32]);

/* ---- hashing (XXH3 of the xxhash library) */
uint64_t hd__hash(const void *data, size_t bytes, uint64_t seed);
/* SplitMix64's finaliser (Steele, Lea, Flood 2014) over a counter: stateless. */
static inline uint64_t hd__mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#define HD__DP_AXES (HD_AXIS_BIT(HD_AXIS_DP_REPLICATE) | HD_AXIS_BIT(HD_AXIS_DP_SHARD)) /* of mesh.dp */
const char *hd__axis_name(int32_t axis);                                                /* "dp_shard" */
const char *hd__kind_name(uint32_t kind); /* of a component: "optim"; "?" if unknown */

/* ---- identities of failures: hd_error.origin */
enum { HD__ORIGIN_ALL = -1 }; /* for a rank: an error that every rank detects, under the same number */
static inline uint64_t hd__origin(int32_t rank, uint32_t number)
{
    return (uint64_t)(uint32_t)(rank + 1) << 32 | number;
}
static inline int32_t hd__origin_rank(uint64_t origin)
{
    return (int32_t)(origin >> 32) - 1;
}
/* The result of a plugin's slot: whatever it is but HD_OK is a failure, with a code of ours and a message, which the
 * plugin may have forgotten. `whose`: "the transport's". */
int32_t hd__slot_failed(int32_t code, const char *whose, const char *slot, struct hd_error *err);
static inline int32_t hd__slot_result(int32_t code, const char *whose, const char *slot, struct hd_error *err)
{
    return code == HD_OK ? HD_OK : hd__slot_failed(code, whose, slot, err);
}
/* The same of one that gives a handle, which is not NULL with HD_OK. */
static inline int32_t hd__slot_handle(int32_t code, const char *whose, const char *slot, void *const *handle,
                                      struct hd_error *err)
{
    if (code == HD_OK && !*handle)
        return hd_fail(err, HD_E_INTERNAL, "%s %s returned HD_OK and gave nothing", whose, slot);
    return hd__slot_result(code, whose, slot, err);
}
/* The error's origin; a new one of this rank if it has none. */
uint64_t hd__origin_of(const struct hd_error *err, int32_t rank);

/* ---- time: CLOCK_MONOTONIC, seconds */
double hd__now(void);

/* ---- log. One line, to stderr; level and prefix are set once at start. Thread-safe, one write() a line. */
void hd__log_setup(uint32_t level, const char *prefix); /* prefix "[rank 3] ", copied; NULL: none */
void hd__log(uint32_t level, const char *component, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
