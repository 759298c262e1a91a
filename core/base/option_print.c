/* Option tables for people and for machines. */
#include "core/base/option.h"

#include <math.h>

const char *hd__option_type_name(uint32_t type)
{
    static const char *const names[] = {
#define NAME(constant, value, name) [value] = name,
        HD_OPTION_TYPES(NAME)};
    return type < HD__COUNT(names) && names[type] ? names[type] : "?";
}

static const char *default_text(const struct hd_option *o)
{
    if (o->flags & HD_OPTION_REQUIRED)
        return "(required)";
    return o->value ? o->value : "-";
}

/* "a|b|c" as "a, b, c". */
static void add_words(struct hd__text *out, const char *words)
{
    for (; *words; words++)
        hd__text_add(out, *words == '|' ? ", " : "%c", *words);
}

/* A bound, in the syntax that the option's type has. */
static void add_bound(struct hd__text *out, const struct hd_option *o, double bound)
{
    struct hd__arena scratch = {0};
    struct hd_option field = *o;
    int64_t whole = fabs(bound) < 9.2e18 ? (int64_t)bound : 0;
    field.offset = 0;
    if (o->type == HD_OPT_SIZE)
        hd__text_add(out, "%s", hd__option_text(&field, &whole, &scratch));
    else
        hd__text_add(out, "%.15g%s", bound, o->type == HD_OPT_DURATION ? "s" : "");
    hd__arena_free(&scratch);
}

static void add_range(struct hd__text *out, const struct hd_option *o)
{
    if (o->min == o->max)
        return;
    hd__text_add(out, "; ");
    if (o->max >= 9e18) {
        hd__text_add(out, "at least ");
        add_bound(out, o, o->min);
    } else if (o->min <= -9e18) {
        hd__text_add(out, "at most ");
        add_bound(out, o, o->max);
    } else {
        add_bound(out, o, o->min);
        hd__text_add(out, " to ");
        add_bound(out, o, o->max);
    }
}

/* "; true = 1, BACKWARD_PRE = 1", without those that are refused. */
static void add_spellings(struct hd__text *out, const char *words)
{
    const char *mark = "; ";
    for (const char *at = words; *at;) {
        size_t length = strcspn(at, "|"), word = strcspn(at, "=");
        if (at[word + 1] != '?') {
            hd__text_add(out, "%s", mark);
            for (size_t i = 0; i < word; i++)
                hd__text_add(out, at[i] == ':' ? ": " : "%c", at[i]);
            hd__text_add(out, " = %.*s", (int)(length - word - 1), at + word + 1);
            mark = ", ";
        }
        at += length + (at[length] == '|');
    }
}

static void add_help(struct hd__text *out, const struct hd_option *o)
{
    hd__text_add(out, "%s", o->help ? o->help : "");
    if (o->unit)
        hd__text_add(out, " [%s]", o->unit);
    add_range(out, o);
    if (o->type == HD_OPT_ENUM && o->choices) {
        hd__text_add(out, "; one of ");
        add_words(out, o->choices);
    }
    if (o->aliases && *o->aliases) {
        hd__text_add(out, "; also called ");
        add_words(out, o->aliases);
    }
    if (o->words)
        add_spellings(out, o->words);
    if (o->flags & HD_OPTION_FIXED)
        hd__text_add(out, "; always so");
    if (o->level != HD_LEVEL_USER)
        hd__text_add(out, "; for %s", o->level == HD_LEVEL_TUNER ? "tuning" : "development");
    hd__text_add(out, "\n");
}

void hd__options_print(const struct hd__options *table, struct hd__text *out)
{
    int name = 6, value = 7;
    for (size_t i = 0; i < table->count; i++) {
        struct hd_option o = hd__option_at(table, i);
        name = HD__MAX(name, (int)strlen(o.name));
        value = HD__MAX(value, (int)HD__MIN(strlen(default_text(&o)), (size_t)24));
    }
    if (table->count)
        hd__text_add(out, "%-*s  %-8s  %-*s  %s\n", name, "option", "type", value, "default", "what");
    for (size_t i = 0; i < table->count; i++) {
        struct hd_option o = hd__option_at(table, i);
        hd__text_add(out, "%-*s  %-8s  %-*s  ", name, o.name, hd__option_type_name(o.type), value, default_text(&o));
        add_help(out, &o);
    }
}

static json_t *words_json(const char *words)
{
    json_t *out = json_array();
    while (words && *words) {
        size_t n = strcspn(words, "|");
        json_array_append_new(out, json_stringn(words, n));
        words += n + (words[n] == '|');
    }
    return out;
}

json_t *hd__json_text(const char *text)
{
    json_t *out = text ? json_string(text) : json_null();
    char *copy = out ? NULL : hd__printable(hd__strdup(text));
    out = out ? out : json_string(copy);
    free(copy);
    return out;
}

json_t *hd__options_json(const struct hd__options *table)
{
    static const char *const levels[] = {"user", "tuner", "dev"};
    json_t *out = json_array();
    for (size_t i = 0; i < table->count; i++) {
        struct hd_option o = hd__option_at(table, i);
        json_t *item = json_object();
        json_object_set_new(item, "name", json_string(o.name));
        json_object_set_new(item, "type", json_string(hd__option_type_name(o.type)));
        json_object_set_new(item, "default", hd__json_text(o.value));
        json_object_set_new(item, "unit", hd__json_text(o.unit));
        json_object_set_new(item, "help", hd__json_text(o.help));
        json_object_set_new(item, "choices", words_json(o.type == HD_OPT_ENUM ? o.choices : NULL));
        json_object_set_new(item, "aliases", words_json(o.aliases));
        int ranged = o.min != o.max;
        json_object_set_new(item, "min", ranged && o.min > -9e18 ? json_real(o.min) : json_null());
        json_object_set_new(item, "max", ranged && o.max < 9e18 ? json_real(o.max) : json_null());
        json_object_set_new(item, "level", json_string(levels[HD__MIN(o.level, 2u)]));
        json_object_set_new(item, "required", json_boolean(o.flags & HD_OPTION_REQUIRED));
        json_object_set_new(item, "global", json_boolean(o.flags & HD_OPTION_GLOBAL));
        json_array_append_new(out, item);
    }
    return out;
}
