/* One value: text -> field, field -> text. */
#include "core/base/option.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <strings.h>

/* A parsed value before it is stored, so that nothing is written on an error. */
union field {
    int32_t i32;
    int64_t i64;
    double f64;
    const char *text;
    struct hd_list list;
};

/* ---- numbers */

/* Length of the leading decimal number (with _ between digits), copied without _ into out; 0 if there is none. */
static size_t number_prefix(const char *text, char out[64])
{
    size_t n = 0, i = 0, digits = 0;
    if (text[i] == '+' || text[i] == '-')
        out[n++] = text[i++];
    for (char c; n < 62 && (c = text[i]) && (strchr("0123456789.", c) || (c == '_' && digits && text[i - 1] != '_'));
         i++)
        if (c != '_') {
            digits += c != '.';
            out[n++] = c;
        }
    if ((text[i] == 'e' || text[i] == 'E') && digits) {
        size_t sign = text[i + 1] == '+' || text[i + 1] == '-';
        if (text[i + 1 + sign] >= '0' && text[i + 1 + sign] <= '9') {
            out[n++] = text[i++];
            while (n < 62 && text[i] && strchr("+-0123456789", text[i]))
                out[n++] = text[i++];
        }
    }
    out[n] = 0;
    return digits ? i : 0;
}

static const char not_a_number[] = "is not a number";

/* Signs, digits and quotes of a text processor are no number's, whatever they look like. */
static const char *beyond_ascii(const char *text)
{
    while (*text && !(*text & 0x80))
        text++;
    return *text ? ": it has a character beyond ASCII, as a long minus is: type it anew" : "";
}

/* Reads a decimal number; *rest is what follows it. NULL, or why there is none. */
static const char *read_number(const char *text, double *value, const char **rest)
{
    char digits[64], *end;
    size_t n = number_prefix(text, digits);
    errno = 0;
    *value = strtod(digits, &end);
    *rest = text + n;
    if (!n || text[n - 1] == '_' || *end)
        return not_a_number;
    if (!isfinite(*value))
        return "is too large for a 64-bit float";
    return *value == 0 && errno ? "is too small for a 64-bit float" : NULL;
}

static int32_t check_range(const struct hd_option *o, double value, const char *text, struct hd_error *err)
{
    if (o->min == o->max || (value >= o->min && value <= o->max))
        return HD_OK;
    const char *zero = o->min == 0 && value < 0 && o->help ? strstr(o->help, "0 for ") : NULL;
    if (o->max >= 9e18)
        return hd_fail(err, HD_E_INVALID, "%s is too small: at least %.15g%s%s", text, o->min, zero ? ", and " : "",
                       zero ? zero : "");
    if (o->min <= -9e18)
        return hd_fail(err, HD_E_INVALID, "%s is too large: at most %.15g", text, o->max);
    return hd_fail(err, HD_E_INVALID, "%s is out of range: %.15g to %.15g%s", text, o->min, o->max,
                   o->type == HD_OPT_DURATION ? " seconds" : "");
}

static int32_t parse_int(const struct hd_option *o, const char *text, union field *out, struct hd_error *err)
{
    char digits[64], *end;
    double value;
    const char *rest;
    size_t n = number_prefix(text, digits);
    errno = 0;
    long long whole = strtoll(digits, &end, 10);
    if (!n || text[n] || *end || text[n - 1] == '_') {
        int number = !read_number(text, &value, &rest) && !*rest;
        int is_whole = number && value == floor(value) && fabs(value) < 1e15;
        if (is_whole && strpbrk(text, "eE")) { /* 5e8 */
            out->i64 = (int64_t)value;
            return check_range(o, value, text, err);
        }
        if (is_whole)
            return hd_fail(err, HD_E_INVALID, "'%.60s' is not written as a whole number: write %.0f", text, value);
        if (number && fabs(value) >= 1e15 && o->max > o->min && value > o->max)
            return check_range(o, value, text, err);
        if (number && fabs(value) >= 1e15 && fabs(value) < 0x1p63)
            return hd_fail(err, HD_E_INVALID, "'%.60s' is above 1e15: write all of its digits", text);
        return hd_fail(err, HD_E_INVALID, "'%.60s' is not a whole number%s%s%s", text, number && o->unit ? " of " : "",
                       number && o->unit ? o->unit : "", beyond_ascii(text));
    }
    if (errno)
        return hd_fail(err, HD_E_INVALID, "'%.60s' does not fit 64 bits", text);
    if (whole && digits[strspn(digits, "+-")] == '0') /* octal elsewhere */
        return hd_fail(err, HD_E_INVALID, "'%.60s' begins with a zero: write %lld", text, whole);
    out->i64 = whole;
    return check_range(o, (double)whole, text, err);
}

static int32_t parse_float(const struct hd_option *o, const char *text, union field *out, struct hd_error *err)
{
    const char *rest, *why = read_number(text, &out->f64, &rest);
    if (why || *rest)
        return hd_fail(err, HD_E_INVALID, "'%.60s' %s%s", text, *rest ? not_a_number : why, beyond_ascii(text));
    return check_range(o, out->f64, text, err);
}

struct unit {
    const char *name;
    double factor;
};

static const struct unit size_units[] = {{"TiB", 0x1p40}, {"TB", 1e12},  {"GiB", 0x1p30}, {"GB", 1e9}, {"MiB", 0x1p20},
                                         {"MB", 1e6},     {"KiB", 1024}, {"kB", 1e3},     {"KB", 1e3}, {"B", 1}};
static const struct unit time_units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1},    {"min", 60},
                                         {"m", 60},    {"h", 3600},  {"d", 86400}};

static double unit_factor(const struct unit *units, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(units[i].name, name))
            return units[i].factor;
    return *name ? 0 : 1;
}

static int32_t parse_size(const struct hd_option *o, const char *text, union field *out, struct hd_error *err)
{
    double value;
    const char *rest;
    if (read_number(text, &value, &rest))
        return hd_fail(err, HD_E_INVALID, "'%.60s' is not a size: write 25MB (10^6 bytes), 16MiB (2^20) or 4096", text);
    rest += strspn(rest, " ");
    double factor = unit_factor(size_units, HD__COUNT(size_units), rest);
    if (factor == 0 && strlen(rest) == 1 && strchr("kKMGT", *rest))
        return hd_fail(err, HD_E_INVALID, "'%.60s': %s is not a unit; write %sB (powers of 1000) or %ciB (of 1024)",
                       text, rest, rest, *rest == 'k' ? 'K' : *rest);
    if (factor == 0)
        return hd_fail(err, HD_E_INVALID, "'%.60s': unknown unit; allowed are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
                       text);
    /* a 64-bit mantissa: decimal fractions times units that are whole numbers come out exact */
    long double bytes = (long double)value * factor;
    if (bytes < 0 || bytes >= 0x1p63L)
        return hd_fail(err, HD_E_INVALID, "'%.60s' is not a possible number of bytes", text);
    long double whole = roundl(bytes);
    if (fabsl(bytes - whole) > 1e-15L * whole)
        return hd_fail(err, HD_E_INVALID, "'%.60s' is not a whole number of bytes", text);
    out->i64 = (int64_t)whole;
    return check_range(o, (double)out->i64, text, err);
}

static int32_t parse_duration(const struct hd_option *o, const char *text, union field *out, struct hd_error *err)
{
    double value;
    const char *rest;
    if (read_number(text, &value, &rest) || value < 0)
        return hd_fail(err, HD_E_INVALID, "'%.60s' is not a duration: write 300s, 5m or 20ms", text);
    rest += strspn(rest, " ");
    double factor = unit_factor(time_units, HD__COUNT(time_units), rest);
    if (factor == 0)
        return hd_fail(err, HD_E_INVALID,
                       *rest == ':' ? "'%.60s': write one number with its unit, as 90s, 30m or 1.5h"
                                    : "'%.60s': unknown unit; allowed are us, ms, s, m, h, d",
                       text);
    out->f64 = factor < 1 ? value / (factor == 1e-3 ? 1e3 : 1e6) : value * factor;
    return check_range(o, out->f64, text, err);
}

/* ---- words */

static int32_t parse_bool(const struct hd_option *o, const char *text, union field *out, struct hd_error *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    (void)o;
    for (size_t i = 0; i < HD__COUNT(words); i++)
        if (!strcasecmp(text, words[i])) { /* True, as Python writes it */
            out->i32 = i & 1;
            return HD_OK;
        }
    return hd_fail(err, HD_E_INVALID, "'%.60s' is neither true nor false", text);
}

/* Choice i of "a|b|c", copied; NULL past the end. */
static char *choice_at(const char *choices, int64_t i, struct hd__arena *arena)
{
    for (; i > 0 && choices; i--) {
        choices = strchr(choices, '|');
        choices = choices ? choices + 1 : NULL; /* NULL + 0 is undefined in C */
    }
    if (!choices || i < 0)
        return NULL;
    char *word = hd__arena_strdup(arena, choices);
    word[strcspn(word, "|")] = 0;
    return word;
}

static int32_t parse_enum(const struct hd_option *o, const char *text, union field *out, struct hd_error *err)
{
    const char **words = NULL;
    struct hd__arena scratch = {0};
    struct hd__text all = {0};
    int32_t n = 0, rc = HD_OK;
    for (const char *c = o->choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        n++;
    words = hd__arena_alloc(&scratch, (size_t)n * sizeof *words);
    for (int32_t i = 0; i < n; i++)
        words[i] = choice_at(o->choices, i, &scratch);
    for (out->i32 = 0; out->i32 < n && strcmp(text, words[out->i32]); out->i32++)
        hd__text_add(&all, "%s%s", out->i32 ? ", " : "", words[out->i32]);
    if (out->i32 == n) /* no case: full_shard is FULL_SHARD */
        for (out->i32 = 0; out->i32 < n && strcasecmp(text, words[out->i32]);)
            out->i32++;
    if (out->i32 == n) {
        const char *near = hd__nearest(text, words, (size_t)n);
        size_t whole = strspn(text, "0123456789");
        near = whole && (!text[whole] || text[whole] == '.') ? NULL : near; /* 5 is not nearly 0 */
        for (int32_t i = 0; i < n && whole && !strcmp(text + whole, ".0"); i++)
            near = strlen(words[i]) == whole && !strncmp(words[i], text, whole) ? words[i] : near;
        rc = hd_fail(err, HD_E_INVALID, "'%.60s' is none of %s%s%s%s", text, all.at ? all.at : "",
                     near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    hd__text_free(&all);
    hd__arena_free(&scratch);
    return rc;
}

/* ---- lists */

static int32_t make_list(const struct hd_option *o, const char *const *items, size_t n, struct hd__arena *arena,
                         struct hd_list *out, struct hd_error *err)
{
    const char **text = hd__arena_alloc(arena, (n + 1) * sizeof *text);
    double *number = hd__arena_alloc(arena, (n + 1) * sizeof *number);
    for (size_t i = 0; i < n; i++) {
        const char *rest;
        if (read_number(items[i], &number[i], &rest) || *rest)
            number[i] = NAN;
        if (o->min != o->max && isnan(number[i]))
            return hd_fail(err, HD_E_INVALID, "item %zu, '%.60s', is not a number", i + 1, items[i]);
        int32_t rc = check_range(o, number[i], items[i], err);
        if (rc)
            return rc;
        text[i] = hd__arena_strdup(arena, items[i]);
    }
    *out = (struct hd_list){.count = n, .text = text, .number = number};
    return HD_OK;
}

/* Cuts one item off a flow list; quotes protect commas. Returns what follows, NULL on a missing quote. */
static const char *cut_item(const char *text, char *out)
{
    char quote = 0;
    size_t n = 0;
    text += strspn(text, " ");
    if (*text == '"' || *text == '\'')
        quote = *text++;
    for (; *text && (quote ? *text != quote : !strchr(",]", *text)); text++) {
        if (quote == '"' && *text == '\\' && text[1])
            text++;
        out[n++] = *text;
    }
    while (!quote && n && out[n - 1] == ' ')
        n--;
    out[n] = 0;
    if (quote && !*text)
        return NULL;
    text += quote != 0;
    return text + strspn(text, " ");
}

static int32_t parse_list(const struct hd_option *o, const char *text, struct hd__arena *arena, struct hd_list *out,
                          struct hd_error *err)
{
    if (*text != '[')
        return make_list(o, &text, 1, arena, out, err);
    size_t room = strlen(text) + 1;
    const char **items = hd__arena_alloc(arena, room * sizeof *items);
    char *words = hd__arena_alloc(arena, room);
    const char *at = text + 1;
    size_t n = 0;
    at += strspn(at, " ");
    while (at && *at && *at != ']') {
        at = cut_item(at, words);
        items[n++] = words;
        words += strlen(words) + 1;
        if (at && *at == ',')
            at++;
    }
    if (!at || strcmp(at, "]"))
        return hd_fail(err, HD_E_INVALID, "'%.60s' is not a list: write [a, b, c]", text);
    return make_list(o, items, n, arena, out, err);
}

/* ---- the two entries */

size_t hd__option_bytes(uint32_t type)
{
    static const size_t bytes[] = {
        [HD_OPT_BOOL] = sizeof(int32_t),  [HD_OPT_ENUM] = sizeof(int32_t),       [HD_OPT_INT] = sizeof(int64_t),
        [HD_OPT_SIZE] = sizeof(int64_t),  [HD_OPT_FLOAT] = sizeof(double),       [HD_OPT_DURATION] = sizeof(double),
        [HD_OPT_STRING] = sizeof(char *), [HD_OPT_LIST] = sizeof(struct hd_list)};
    return type < HD__COUNT(bytes) ? bytes[type] : 0;
}

static void store(const struct hd_option *o, const union field *value, void *settings)
{
    memcpy((char *)settings + o->offset, value, hd__option_bytes(o->type));
}

int32_t hd__option_parse(const struct hd_option *o, const char *text, void *settings, struct hd__arena *arena,
                         struct hd_error *err)
{
    static int32_t (*const parsers[])(const struct hd_option *, const char *, union field *, struct hd_error *) = {
        [HD_OPT_BOOL] = parse_bool, [HD_OPT_INT] = parse_int,           [HD_OPT_FLOAT] = parse_float,
        [HD_OPT_SIZE] = parse_size, [HD_OPT_DURATION] = parse_duration, [HD_OPT_ENUM] = parse_enum};
    union field value = {0};
    int32_t rc;
    if (o->type == HD_OPT_LIST)
        rc = parse_list(o, text, arena, &value.list, err);
    else if (o->type == HD_OPT_STRING)
        rc = (value.text = hd__arena_strdup(arena, text)) ? HD_OK : HD_E_NOMEM;
    else if (o->type < HD__COUNT(parsers) && parsers[o->type])
        rc = parsers[o->type](o, text, &value, err);
    else
        return hd_fail(err, HD_E_INTERNAL, "option %s has the unknown type %u", o->name, o->type);
    if (!rc)
        store(o, &value, settings);
    return rc;
}

int32_t hd__option_parse_list(const struct hd_option *o, const char *const *items, size_t n, void *settings,
                              struct hd__arena *arena, struct hd_error *err)
{
    union field value = {0};
    if (o->type != HD_OPT_LIST)
        return hd_fail(err, HD_E_INVALID, "is a list where one %s is wanted", hd__option_type_name(o->type));
    int32_t rc = make_list(o, items, n, arena, &value.list, err);
    if (!rc)
        store(o, &value, settings);
    return rc;
}

/* ---- back to text */

/* The character at c and its length in bytes; a byte that is not UTF-8 stands for itself. */
static size_t code_point(const char *c, uint32_t *code)
{
    unsigned char first = (unsigned char)*c;
    size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    *code = n == 1 ? first : first & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)c[i] & 0xc0) != 0x80) {
            *code = first;
            return 1;
        }
        *code = *code << 6 | ((unsigned char)c[i] & 0x3f);
    }
    return n;
}

/* Adds one character inside double quotes: what YAML does not count as printable, or folds, is escaped. */
static size_t quote_one(struct hd__text *out, const char *c)
{
    uint32_t code;
    size_t n = code_point(c, &code);
    if (code == '"' || code == '\\')
        hd__text_add(out, "\\%c", (int)code);
    else if (code < 32 || (code >= 0x7f && code < 0xa0))
        hd__text_add(out, "\\x%02x", code);
    else if (code == 0x2028 || code == 0x2029 || code == 0xfeff || code == 0xfffe || code == 0xffff)
        hd__text_add(out, "\\u%04x", code);
    else
        hd__text_add(out, "%.*s", (int)n, c);
    return n;
}

const char *hd__yaml_quote(const char *word, struct hd__arena *arena)
{
    static const char *const taken[] = {"null", "Null", "NULL", "~"};
    int plain = *word != 0 && !strchr("-", *word);
    for (const char *c = word; *c && plain; c++)
        plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || strchr("_./+-", *c);
    for (size_t i = 0; i < HD__COUNT(taken); i++)
        plain &= strcmp(word, taken[i]) != 0;
    if (plain || (*word == '-' && word[1] >= '0' && word[1] <= '9' && !word[strspn(word, "-0123456789.e")]))
        return hd__arena_strdup(arena, word);
    struct hd__text out = {0};
    hd__text_add(&out, "\"");
    while (*word)
        word += quote_one(&out, word);
    hd__text_add(&out, "\"");
    return hd__text_to_arena(&out, arena);
}

/* The shortest decimal that reads back as the same double, with a point: YAML 1.1 readers want one. */
static void float_text(double value, char out[40])
{
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(out, 40, "%.*g", precision, value);
        if (strtod(out, NULL) == value)
            break;
    }
    char *e = strchr(out, 'e');
    if (e && !strchr(out, '.')) {
        memmove(e + 2, e, strlen(e) + 1);
        memcpy(e, ".0", 2);
    }
}

static char *size_text(int64_t bytes, struct hd__arena *arena)
{
    for (size_t i = 0; bytes && i < HD__COUNT(size_units); i++)
        if (bytes % (int64_t)size_units[i].factor == 0 && size_units[i].factor > 1)
            return hd__arena_format(arena, "%lld%s", (long long)(bytes / (int64_t)size_units[i].factor),
                                    size_units[i].name);
    return hd__arena_format(arena, "%lld", (long long)bytes);
}

static char *list_text(const struct hd_list *list, struct hd__arena *arena)
{
    struct hd__text out = {0};
    hd__text_add(&out, "[");
    for (uint64_t i = 0; i < list->count; i++)
        hd__text_add(&out, "%s%s", i ? ", " : "", hd__yaml_quote(list->text[i], arena));
    hd__text_add(&out, "]");
    return hd__text_to_arena(&out, arena);
}

const char *hd__option_text(const struct hd_option *o, const void *settings, struct hd__arena *arena)
{
    const void *field = (const char *)settings + o->offset;
    char number[40];
    switch (o->type) {
    case HD_OPT_BOOL:
        return *(const int32_t *)field ? "true" : "false";
    case HD_OPT_INT:
        return hd__arena_format(arena, "%lld", (long long)*(const int64_t *)field);
    case HD_OPT_SIZE:
        return size_text(*(const int64_t *)field, arena);
    case HD_OPT_FLOAT:
        float_text(*(const double *)field, number);
        return hd__arena_strdup(arena, number);
    case HD_OPT_DURATION:
        float_text(*(const double *)field, number);
        return hd__arena_format(arena, "%ss", number);
    case HD_OPT_ENUM: {
        char *word = choice_at(o->choices, *(const int32_t *)field, arena);
        return word ? hd__yaml_quote(word, arena) : NULL;
    }
    case HD_OPT_STRING: {
        const char *text = *(const char *const *)field;
        return text ? hd__yaml_quote(text, arena) : NULL;
    }
    case HD_OPT_LIST:
        return list_text(field, arena);
    default:
        return NULL;
    }
}

static json_t *list_json(const struct hd_list *list)
{
    json_t *out = json_array();
    for (uint64_t i = 0; i < list->count; i++)
        json_array_append_new(out, isnan(list->number[i]) ? json_string(list->text[i]) : json_real(list->number[i]));
    return out;
}

json_t *hd__option_json(const struct hd_option *o, const void *settings)
{
    const void *field = (const char *)settings + o->offset;
    switch (o->type) {
    case HD_OPT_BOOL:
        return json_boolean(*(const int32_t *)field);
    case HD_OPT_INT:
    case HD_OPT_SIZE:
        return json_integer(*(const int64_t *)field);
    case HD_OPT_FLOAT:
    case HD_OPT_DURATION:
        return json_real(*(const double *)field);
    case HD_OPT_LIST:
        return list_json(field);
    case HD_OPT_ENUM: {
        struct hd__arena scratch = {0};
        char *word = choice_at(o->choices, *(const int32_t *)field, &scratch);
        json_t *out = word ? json_string(word) : json_null();
        hd__arena_free(&scratch);
        return out;
    }
    case HD_OPT_STRING:
        return hd__json_text(*(const char *const *)field);
    default:
        return json_null();
    }
}
