/* core/base/option: one option as text -> a field of a settings struct, by its struct hd_option.
 *
 * The type says what a text means; nothing is guessed from its looks:
 *     bool      true false yes no on off            size      25MB (10^6), 1.5GiB (2^30), 4096; whole bytes
 *     int       decimal, also 1_000_000             duration  300s 5m 20ms 1.5h; a bare number is seconds
 *     float     1e-4, inf and nan are refused       enum      one of the choices; string: as it is
 *     list      [a, b, c] or one item
 * Messages say what is wrong with the value and what is allowed, without the key's name: the caller knows
 * where. */
#ifndef HD_CORE_BASE_OPTION_H
#define HD_CORE_BASE_OPTION_H

#include <jansson.h>

#include "core/base/base.h"
#include "heddle/plugin.h"

/* A table of options as some plugin compiled it: `size` bytes each, of which min(theirs, ours) are read. */
struct hd__options {
    const struct hd_option *at;
    size_t count;
    size_t size;
};
#define HD__OPTIONS(table) ((struct hd__options){(table), HD__COUNT(table), sizeof(struct hd_option)})

/* Option i, in our size; missing fields are 0. */
struct hd_option hd__option_at(const struct hd__options *table, size_t i);
/* Finds by name or alias; -1 if there is none. */
int64_t hd__option_find(const struct hd__options *table, const char *name);
/* The option's answer to the word `text` of the key that the file calls `name`: another spelling's value, or "?" and
 * why there is none. NULL: it has nothing. */
const char *hd__option_word(const struct hd_option *option, const char *name, const char *text,
                            struct hd__arena *arena);
/* Whether dotted options begin with `name` + ".". */
int hd__option_prefix(const struct hd__options *table, const char *name);

/* Is the table itself sound? Types known, names unique, defaults that parse and are in range, fields inside
 * settings_size bytes. For the loader and for tests. */
int32_t hd__options_check(const struct hd__options *table, size_t settings_size, struct hd_error *err);

/* Writes one value. Strings and lists are copied to the arena. Nothing is written on an error. */
int32_t hd__option_parse(const struct hd_option *option, const char *text, void *settings, struct hd__arena *arena,
                         struct hd_error *err);
/* Writes a LIST from separate items. */
int32_t hd__option_parse_list(const struct hd_option *option, const char *const *items, size_t n, void *settings,
                              struct hd__arena *arena, struct hd_error *err);
/* Writes all defaults. */
int32_t hd__options_defaults(const struct hd__options *table, void *settings, struct hd__arena *arena,
                             struct hd_error *err);

/* The value of a field as text that hd__option_parse reads back and that is YAML; NULL where a string is unset. */
const char *hd__option_text(const struct hd_option *option, const void *settings, struct hd__arena *arena);
json_t *hd__option_json(const struct hd_option *option, const void *settings);
json_t *hd__json_text(const char *text); /* null for NULL; '?' for what is no UTF-8, which JSON has not */
/* A word as YAML: plain where that is safe, else in double quotes. */
const char *hd__yaml_quote(const char *word, struct hd__arena *arena);

/* The table for people: name, type, default, unit, range, choices, aliases, help. */
void hd__options_print(const struct hd__options *table, struct hd__text *out);
/* The same as an array of objects. */
json_t *hd__options_json(const struct hd__options *table);

/* "int", "size", ...: static text; "?" for an unknown type. */
const char *hd__option_type_name(uint32_t type);
size_t hd__option_bytes(uint32_t type); /* of the field; 0 for an unknown type */

#endif
