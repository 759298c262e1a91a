/* Memory, arrays, arenas, text, nearest word. */
#include "core/base/base.h"

#include <ctype.h>
#include <stdlib.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "heddle/plugin.h"

_Noreturn void hd__die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("heddle: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

void *hd__alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        hd__die("out of memory (%zu bytes)", bytes);
    return p;
}

void *hd__realloc(void *p, size_t bytes)
{
    p = realloc(p, bytes ? bytes : 1);
    if (!p)
        hd__die("out of memory (%zu bytes)", bytes);
    return p;
}

char *hd__strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(hd__alloc(n), s, n);
}

char *hd__format(const char *format, ...)
{
    va_list args;
    char *out = NULL;
    va_start(args, format);
    if (vasprintf(&out, format, args) < 0)
        hd__die("out of memory");
    va_end(args);
    return out;
}

/* ---- arena */

struct hd__arena_block {
    struct hd__arena_block *next;
    size_t used, room;
    _Alignas(16) char data[];
};

void *hd__arena_alloc(struct hd__arena *arena, size_t bytes)
{
    struct hd__arena_block *block = arena->block;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!block || block->room - block->used < bytes) {
        size_t room = bytes > 65536 ? bytes : 65536;
        block = hd__alloc(sizeof *block + room);
        block->room = room;
        block->next = arena->block;
        arena->block = block;
    }
    block->used += bytes;
    return block->data + block->used - bytes;
}

void *hd__arena_copy(struct hd__arena *arena, const void *data, size_t bytes)
{
    void *p = hd__arena_alloc(arena, bytes);
    return bytes ? memcpy(p, data, bytes) : p;
}

char *hd__arena_strdup(struct hd__arena *arena, const char *s)
{
    return hd__arena_copy(arena, s, strlen(s) + 1);
}

char *hd__arena_format(struct hd__arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    char *out = hd__arena_alloc(arena, (size_t)n + 1);
    vsnprintf(out, (size_t)n + 1, format, again);
    va_end(again);
    va_end(args);
    return out;
}

void hd__arena_free(struct hd__arena *arena)
{
    for (struct hd__arena_block *b = arena->block, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    arena->block = NULL;
}

/* ---- arrays and text */

void *hd__array_grow(void *at, uint32_t *room, uint32_t need, size_t item)
{
    uint64_t to = *room ? *room : 8;
    while (to < need)
        to *= 2;
    *room = (uint32_t)HD__MIN(to, UINT32_MAX);
    return hd__realloc(at, *room * item);
}

static void make_room(struct hd__text *text, size_t more)
{
    if (text->length + more + 1 > text->room) {
        text->room = HD__MAX(text->room * 2, text->length + more + 1);
        text->at = hd__realloc(text->at, text->room);
    }
}

void hd__text_add(struct hd__text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t n = (size_t)vsnprintf(NULL, 0, format, args);
    make_room(text, n);
    vsnprintf(text->at + text->length, n + 1, format, again);
    text->length += n;
    va_end(again);
    va_end(args);
}

void hd__text_add_bytes(struct hd__text *text, const char *bytes, size_t count)
{
    make_room(text, count);
    memcpy(text->at + text->length, bytes, count);
    text->at[text->length += count] = 0;
}

int hd__ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), m = strlen(tail);
    return n >= m && !strcmp(text + n - m, tail);
}

int hd__is_state_name(const char *name)
{
    return *name && !strpbrk(name, "/.") && strlen(name) <= 80;
}

void hd__text_add_xml(struct hd__text *out, const char *text)
{
    for (; *text; text++) {
        const char *entity = *text == '&' ? "&amp;" : *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : NULL;
        if (entity)
            hd__text_add(out, "%s", entity);
        else
            hd__text_add(out, "%c", *text);
    }
}

void hd__text_free(struct hd__text *text)
{
    free(text->at);
    *text = (struct hd__text){0};
}

char *hd__printable(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        int more = *p >= 0xf5 ? 0 : *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : *p >= 0xc2 ? 1 : 0, n = 0;
        int low = *p == 0xe0 ? 0xa0 : *p == 0xf0 ? 0x90 : 0x80, high = *p == 0xed ? 0x9f : *p == 0xf4 ? 0x8f : 0xbf;
        for (; n < more && p[n + 1] >= low && p[n + 1] <= high; n++, low = 0x80, high = 0xbf)
            ;
        int is_c1 = *p == 0xc2 && p[1] < 0xa0, is_control = (*p < 0x20 && *p != '\n' && *p != '\t') || *p == 0x7f;
        if (is_control || (*p >= 0x80 && (!more || n < more || is_c1)))
            *p = '?';
        else
            p += n;
    }
    return text;
}

void hd__text_print(struct hd__text *text, FILE *out)
{
    if (text->at)
        fputs(hd__printable(text->at), out);
    hd__text_free(text);
}

char *hd__text_to_arena(struct hd__text *text, struct hd__arena *arena)
{
    char *copy = hd__arena_strdup(arena, text->at);
    hd__text_free(text);
    return copy;
}

static int same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Letters to insert, delete, replace, or swap with their neighbour; case does not count. Cut off at 64 characters. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(b), table[3][65], *before = table[0], *last = table[1], *row = table[2], *swap;
    if (n > 64 || strlen(a) > 64)
        return 64;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        swap = before;
        before = last;
        last = row;
        row = swap;
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            row[j] = HD__MIN(last[j - 1] + !same_letter(a[i - 1], b[j - 1]), HD__MIN(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
                row[j] = HD__MIN(row[j], before[j - 2] + 1);
        }
    }
    return row[n];
}

const char *hd__nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 2, n_prefix = 0; /* least: the first distance that is too far */
    for (size_t i = 0; i < n && strlen(word) >= 3; i++)
        if (!strncmp(candidates[i], word, strlen(word)) && n_prefix++ == 0)
            best = candidates[i];
    if (n_prefix == 1) /* --temp: --temperature */
        return best;
    best = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, candidates[i]);
        if (d < least && d < strlen(word)) { /* a word of which no letter stays is another one */
            least = d;
            best = candidates[i];
        }
    }
    return best;
}

int hd__range_parse(const char *text, int32_t most, int32_t *low, int32_t *high)
{
    long bound[2];
    char *end;
    for (int i = 0; i < 2; i++) {
        if (*text < '0' || *text > '9') /* strtol takes spaces and signs */
            return 0;
        bound[i] = strtol(text, &end, 10);
        if (i == 0 && *end == ':')
            text = end + 1;
    }
    if (*end || bound[0] < 1 || bound[1] < bound[0] || bound[1] > most)
        return 0;
    *low = (int32_t)bound[0];
    *high = (int32_t)bound[1];
    return 1;
}

const char *hd__bytes_text(uint64_t bytes, char out[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u + 1 < HD__COUNT(unit)) {
        x /= 1024;
        u++;
    }
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
    return out;
}

const char *hd__axis_name(int32_t axis)
{
    static const char *const names[] = {
#define NAME(constant, value, name) [value] = name,
        HD_AXES(NAME)};
    return names[axis];
}

const char *hd__kind_name(uint32_t kind)
{
    static const char *const names[] = {HD_KINDS(NAME)};
    return kind < HD__COUNT(names) && names[kind] ? names[kind] : "?";
}

uint64_t hd__hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

int32_t hd__slot_failed(int32_t code, const char *whose, const char *slot, struct hd_error *err)
{
    if (code > 0)
        return hd_fail(err, HD_E_INTERNAL, "%s %s returned %d, which is no HD_E_ code", whose, slot, code);
    if (err && (err->code == HD_OK || !err->message[0]))
        return hd_fail(err, code, "%s %s failed (code %d) without a message (hd_fail)", whose, slot, code);
    return code;
}

uint64_t hd__origin_of(const struct hd_error *err, int32_t rank)
{
    static _Atomic uint32_t number;
    return err->origin ? err->origin : hd__origin(rank, ++number);
}

double hd__now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
