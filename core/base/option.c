/* Option tables: finding, suggesting, checking. */
#include "core/base/option.h"

#include <stdlib.h>
#include <strings.h>

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789_.-"
#define KNOWN_FLAGS (HD_OPTION_GLOBAL | HD_OPTION_REQUIRED | HD_OPTION_PATH | HD_OPTION_FIXED)

struct hd_option hd__option_at(const struct hd__options *table, size_t i)
{
    struct hd_option option = {0};
    memcpy(&option, (const char *)table->at + i * table->size, HD__MIN(table->size, sizeof option));
    return option;
}

/* Is `word` (length n) one of the words of "a|b|c"? */
static int64_t word_index(const char *words, const char *word, size_t n)
{
    for (int64_t i = 0; words && *words; i++) {
        size_t length = strcspn(words, "|");
        if (length == n && !memcmp(words, word, n))
            return i;
        words += length + (words[length] == '|');
    }
    return -1;
}

int64_t hd__option_find(const struct hd__options *table, const char *name)
{
    for (size_t i = 0; i < table->count; i++)
        if (!strcmp(hd__option_at(table, i).name, name))
            return (int64_t)i;
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    for (size_t i = 0; i < table->count; i++) {
        struct hd_option o = hd__option_at(table, i);
        int beside = dot && !strncmp(o.name, name, (size_t)(last - name)); /* compress.X for compress.rank */
        if (word_index(o.aliases, name, strlen(name)) >= 0 ||
            (beside && word_index(o.aliases, last, strlen(last)) >= 0))
            return (int64_t)i;
    }
    return -1;
}

const char *hd__option_word(const struct hd_option *option, const char *name, const char *text, struct hd__arena *arena)
{
    for (const char *at = option->words; at && *at;) {
        size_t length = strcspn(at, "|"), word = strcspn(at, "="), key = strcspn(at, ":=");
        const char *from = key < word ? at + key + 1 : at; /* KEY:WORD=VALUE is of the alias KEY alone */
        size_t n = (size_t)(at + word - from);
        if (strlen(text) == n && !strncasecmp(from, text, n) &&
            (key == word || (strlen(name) == key && !memcmp(at, name, key))))
            return hd__arena_format(arena, "%.*s", (int)(length - word - 1), at + word + 1);
        at += length + (at[length] == '|');
    }
    return NULL;
}

int hd__option_prefix(const struct hd__options *table, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < table->count; i++) {
        struct hd_option o = hd__option_at(table, i);
        if (!strncmp(o.name, name, n) && o.name[n] == '.')
            return 1;
        for (const char *at = o.aliases; at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
            if (!strncmp(at, name, n) && at[n] == '.')
                return 1;
    }
    return 0;
}

int32_t hd__options_defaults(const struct hd__options *table, void *settings, struct hd__arena *arena,
                             struct hd_error *err)
{
    for (size_t i = 0; i < table->count; i++) {
        struct hd_option option = hd__option_at(table, i);
        struct hd_error why = HD_ERROR_INIT;
        if (option.value && hd__option_parse(&option, option.value, settings, arena, &why))
            return hd_fail(err, why.code, "the default of option %s: %s", option.name, why.message);
    }
    return HD_OK;
}

/* ---- is the table sound? */

/* Every word stands for a value that parses. */
static int32_t check_words(const struct hd_option *o, struct hd_error *err)
{
    struct hd__arena scratch = {0};
    struct hd_option plain = *o;
    int64_t field[3];
    int32_t rc = HD_OK;
    plain.offset = 0;
    for (const char *at = o->words; at && *at && !rc;) {
        size_t length = strcspn(at, "|"), word = strcspn(at, "=");
        struct hd_error why = HD_ERROR_INIT;
        const char *value =
            word < length ? hd__arena_format(&scratch, "%.*s", (int)(length - word - 1), at + word + 1) : NULL;
        if (!value || (*value != '?' && hd__option_parse(&plain, value, field, &scratch, &why)))
            rc = hd_fail(err, HD_E_INVALID, "option %s: '%.*s' among its words: %s", o->name, (int)length, at,
                         value ? why.message : "WORD=VALUE is wanted");
        at += length + (at[length] == '|');
    }
    hd__arena_free(&scratch);
    return rc;
}

/* A key without a dot is one of the table: others have the name of their section. */
static int names_no_key(const struct hd__options *table, const char *at, size_t n)
{
    char *key = hd__format("%.*s", (int)n, at);
    int none =
        !strchr(key, '.') && strcmp(key, "ranks") && strcmp(key, "data_ranks") && hd__option_find(table, key) < 0;
    free(key);
    return none;
}

static int32_t check_needs(const struct hd__options *table, const struct hd_option *o, struct hd_error *err)
{
    for (const char *at = o->needs; at; at = strchr(at, '&'), at = at ? at + 1 : NULL) {
        size_t n = strspn(at, NAME_LETTERS);
        const char *word = at + n + (at[n] == '!');
        int bad = !n || *word != '=';
        while (!bad && (*word == '=' || *word == '|')) {
            bad = strcspn(word + 1, "|&") == 0;
            word += 1 + strcspn(word + 1, "|&");
        }
        if (bad)
            return hd_fail(err, HD_E_INVALID,
                           "option %s: its needs is '%s': KEY=VALUE|VALUE or KEY!=VALUE is wanted, several joined by &",
                           o->name, o->needs);
        if (names_no_key(table, at, n))
            return hd_fail(err, HD_E_INVALID,
                           "option %s: its needs is '%s', and the table has no %.*s: name one of it, a job's key with "
                           "its section, or ranks",
                           o->name, o->needs, (int)n, at);
    }
    return HD_OK;
}

static int32_t check_one(const struct hd__options *table, size_t i, size_t settings_size, struct hd_error *err)
{
    struct hd_option option = hd__option_at(table, i);
    size_t bytes = hd__option_bytes(option.type);
    if (!option.name || !*option.name)
        return hd_fail(err, HD_E_INVALID, "option %zu has no name", i);
    if (!strcmp(option.name, "use"))
        return hd_fail(err, HD_E_INVALID, "no option may be called use: it names the component");
    if (option.name[strspn(option.name, NAME_LETTERS)])
        return hd_fail(err, HD_E_INVALID, "option %s: names are lower-case letters, digits, _ - and .", option.name);
    if (!bytes)
        return hd_fail(err, HD_E_INVALID, "option %s has the unknown type %u", option.name, option.type);
    if (option.flags & ~KNOWN_FLAGS)
        return hd_fail(err, HD_E_INVALID, "option %s has the unknown flag %#x", option.name,
                       option.flags & ~KNOWN_FLAGS);
    if (bytes > settings_size || option.offset > settings_size - bytes || option.offset % HD__MIN(bytes, (size_t)8))
        return hd_fail(err, HD_E_INVALID, "option %s: %zu bytes at offset %zu do not fit settings of %zu bytes",
                       option.name, bytes, option.offset, settings_size);
    if (option.type == HD_OPT_ENUM && (!option.choices || !*option.choices))
        return hd_fail(err, HD_E_INVALID, "option %s is an enum without choices", option.name);
    if ((option.flags & HD_OPTION_FIXED) && !option.value)
        return hd_fail(err, HD_E_INVALID, "option %s is always its default and has none", option.name);
    if (option.value && (option.flags & HD_OPTION_REQUIRED))
        return hd_fail(err, HD_E_INVALID, "option %s is required and has a default", option.name);
    for (size_t j = 0; j < i; j++) {
        struct hd_option other = hd__option_at(table, j);
        if (!strcmp(option.name, other.name) || word_index(other.aliases, option.name, strlen(option.name)) >= 0 ||
            word_index(option.aliases, other.name, strlen(other.name)) >= 0)
            return hd_fail(err, HD_E_INVALID, "two options are called %s",
                           word_index(option.aliases, other.name, strlen(other.name)) >= 0 ? other.name : option.name);
        if (!((option.flags | other.flags) & HD_OPTION_FIXED) &&
            option.offset < other.offset + hd__option_bytes(other.type) && other.offset < option.offset + bytes)
            return hd_fail(err, HD_E_INVALID, "options %s and %s share their field, at offset %zu: give each its own",
                           other.name, option.name, option.offset);
    }
    int32_t rc = check_needs(table, &option, err);
    return rc ? rc : check_words(&option, err);
}

int32_t hd__options_check(const struct hd__options *table, size_t settings_size, struct hd_error *err)
{
    for (size_t i = 0; i < table->count; i++) {
        int32_t rc = check_one(table, i, settings_size, err);
        if (rc)
            return rc;
    }
    struct hd__arena arena = {0};
    void *settings = hd__alloc(settings_size);
    int32_t rc = hd__options_defaults(table, settings, &arena, err);
    free(settings);
    hd__arena_free(&arena);
    return rc;
}
