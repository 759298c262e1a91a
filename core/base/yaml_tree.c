/* libyaml's events -> tree. Events rather than documents: they show anchors, and depth is ours to limit. */
#include "core/base/yaml_tree.h"

#include <yaml.h>

#include "core/base/option.h"

struct reader {
    yaml_parser_t yaml;
    yaml_event_t event;
    const char *name, *place;
    const char *text;
    size_t bytes;
    struct hd__arena *arena;
    struct hd_error *err;
    uint32_t nodes;
};

/* ---- making */

static void grow(struct hd__tree_node *node, struct hd__arena *arena)
{
    if (node->count < node->room)
        return;
    node->room = node->room ? node->room * 2 : 8;
    struct hd__tree_node **value = hd__arena_alloc(arena, node->room * sizeof *value);
    struct hd__tree_node **key = hd__arena_alloc(arena, node->room * sizeof *key);
    for (uint32_t i = 0; i < node->count; i++) {
        value[i] = node->value[i];
        key[i] = node->key[i];
    }
    node->value = value;
    node->key = key;
}

struct hd__tree_node *hd__tree_scalar(struct hd__arena *arena, const char *text, const char *origin)
{
    struct hd__tree_node *node = hd__arena_alloc(arena, sizeof *node);
    *node = (struct hd__tree_node){.kind = HD__SCALAR, .text = hd__arena_strdup(arena, text), .origin = origin};
    return node;
}

struct hd__tree_node *hd__tree_map(struct hd__arena *arena, const char *origin)
{
    struct hd__tree_node *node = hd__arena_alloc(arena, sizeof *node);
    *node = (struct hd__tree_node){.kind = HD__MAP, .origin = origin};
    return node;
}

void hd__tree_push(struct hd__tree_node *list, struct hd__tree_node *value, struct hd__arena *arena)
{
    grow(list, arena);
    list->value[list->count++] = value;
}

static int64_t find(const struct hd__tree_node *map, const char *key)
{
    for (uint32_t i = 0; map && map->kind == HD__MAP && i < map->count; i++)
        if (!strcmp(map->key[i]->text, key))
            return i;
    return -1;
}

struct hd__tree_node *hd__tree_get(const struct hd__tree_node *map, const char *key)
{
    int64_t i = find(map, key);
    return i < 0 ? NULL : map->value[i];
}

void hd__tree_set(struct hd__tree_node *map, const char *key, struct hd__tree_node *value, struct hd__arena *arena)
{
    int64_t i = find(map, key);
    if (i < 0) {
        grow(map, arena);
        i = map->count++;
        map->key[i] = hd__tree_scalar(arena, key, value->origin);
    }
    map->value[i] = value;
}

const char *hd__tree_kind_name(const struct hd__tree_node *node)
{
    return node->kind == HD__MAP ? "a mapping" : node->kind == HD__LIST ? "a list" : "a single value";
}

int hd__tree_is_null(const struct hd__tree_node *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < HD__COUNT(words); i++)
        if (node->kind == HD__SCALAR && !node->quoted && !strcmp(node->text, words[i]))
            return 1;
    return 0;
}

void hd__tree_text(const struct hd__tree_node *node, struct hd__text *out)
{
    if (node->kind == HD__SCALAR) {
        struct hd__arena scratch = {0};
        hd__text_add(out, "%s", hd__tree_is_null(node) ? "~" : hd__yaml_quote(node->text, &scratch));
        hd__arena_free(&scratch);
        return;
    }
    hd__text_add(out, node->kind == HD__MAP ? "{" : "[");
    for (uint32_t i = 0; i < node->count; i++) {
        hd__text_add(out, i ? ", " : "");
        if (node->kind == HD__MAP) {
            hd__tree_text(node->key[i], out);
            hd__text_add(out, ": ");
        }
        hd__tree_text(node->value[i], out);
    }
    hd__text_add(out, node->kind == HD__MAP ? "}" : "]");
}

/* ---- reading */

static int32_t fail_at(struct reader *r, size_t line, size_t column, const char *what)
{
    if (r->place)
        return hd_fail(r->err, HD_E_INVALID, "%s: %s", r->place, what);
    return hd_fail(r->err, HD_E_INVALID, "%s:%zu:%zu: %s", r->name, line, column, what);
}

static int32_t fail_event(struct reader *r, const char *what)
{
    return fail_at(r, r->event.start_mark.line + 1, r->event.start_mark.column + 1, what);
}

static int32_t fail_node(struct reader *r, const struct hd__tree_node *node, const char *what)
{
    return fail_at(r, node->line, node->column, what);
}

/* libyaml's own complaint, with the hint that people need most. */
static int32_t fail_yaml(struct reader *r)
{
    const yaml_parser_t *p = &r->yaml;
    const char *problem = p->problem ? p->problem : "not YAML";
    char text[320];
    if (p->error == YAML_READER_ERROR) { /* it knows the byte only */
        size_t line = 1, column = 1;
        for (const char *c = r->text; c < r->text + HD__MIN(p->problem_offset, r->bytes); c++) {
            line += *c == '\n';
            column = *c == '\n' ? 1 : column + ((*c & 0xc0) != 0x80);
        }
        snprintf(text, sizeof text, "not UTF-8 text (byte %zu: %s)%s", p->problem_offset, problem,
                 strstr(problem, "control") ? "" : ": save it as UTF-8");
        return fail_at(r, line, column, text);
    }
    const char *hint = "";
    char open[128];
    if (strstr(problem, "expected ',' or")) {
        snprintf(open, sizeof open,
                 "; it begins at line %zu: is its end left out, or behind a #? A value with { } [ ] needs quotes",
                 p->context_mark.line + 1);
        hint = r->place ? "; is its end left out? A value with { } [ ] needs quotes" : open;
    } else if (strstr(problem, "end of stream")) {
        snprintf(open, sizeof open, "; the quote at line %zu is not closed", p->context_mark.line + 1);
        hint = r->place ? "; a quote is not closed" : open;
    } else if (strstr(problem, "alphabetic or numeric"))
        hint = "; a value that begins with * or & needs quotes";
    else if (p->context && strstr(p->context, "quoted scalar"))
        hint = "; in double quotes \\ begins an escape: write 'single quotes'";
    else if (strstr(problem, "cannot start any token"))
        hint = "; a tab, or a character such as % @ `: indent with spaces, quote the value";
    else if (strstr(problem, "mapping values are not allowed"))
        hint = "; a value with ': ' in it needs quotes, {key: value} needs braces on one line; or is "
               "this line indented too far?";
    else if (strstr(problem, "could not find expected ':'"))
        hint = "; a key needs a colon and a space before its value";
    else if (strstr(problem, "'-' indicator"))
        hint = "; the items of a list begin with - in one column";
    else if (strstr(problem, "document start"))
        hint = "; a job is YAML: `section: {key: value}`";
    else if (strstr(problem, "did not find expected key") || strstr(problem, "block end"))
        hint = "; the keys of a mapping begin in one column: is a line indented too little, or a brace left open?";
    snprintf(text, sizeof text, "%s%s%s%s", p->context ? p->context : "", p->context ? ", " : "", problem, hint);
    return fail_at(r, p->problem_mark.line + 1, p->problem_mark.column + 1, text);
}

static int32_t next(struct reader *r)
{
    yaml_event_delete(&r->event);
    return yaml_parser_parse(&r->yaml, &r->event) ? HD_OK : fail_yaml(r);
}

static struct hd__tree_node *new_node(struct reader *r, uint32_t kind)
{
    struct hd__tree_node *node = hd__arena_alloc(r->arena, sizeof *node);
    node->kind = kind;
    node->line = (uint32_t)r->event.start_mark.line + 1;
    node->column = (uint32_t)r->event.start_mark.column + 1;
    node->origin = r->place ? r->place : hd__arena_format(r->arena, "%s:%u:%u", r->name, node->line, node->column);
    return node;
}

static int32_t read_value(struct reader *r, uint32_t depth, struct hd__tree_node **out);

/* Editors and web pages put these where a blank was meant, and no message would show it. */
static const char *find_odd_blank(const char *text)
{
    static const char *const rows[][2] = {{"\u00a0", "U+00A0"}, {"\u2009", "U+2009"}, {"\u200b", "U+200B"},
                                          {"\u202f", "U+202F"}, {"\u3000", "U+3000"}, {"\ufeff", "U+FEFF"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (strstr(text, rows[i][0]))
            return rows[i][1];
    return NULL;
}

static int32_t read_scalar(struct reader *r, struct hd__tree_node **out)
{
    const char *text = (const char *)r->event.data.scalar.value, *odd = find_odd_blank(text);
    char message[100];
    if (strlen(text) != r->event.data.scalar.length)
        return fail_event(r, "a value with a zero byte in it");
    if (odd && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        snprintf(message, sizeof message, "a blank of another kind, %s: type it anew, or quote the value", odd);
        return fail_event(r, message);
    }
    *out = new_node(r, HD__SCALAR);
    (*out)->text = hd__arena_strdup(r->arena, text);
    (*out)->quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return HD_OK;
}

static int32_t read_list(struct reader *r, uint32_t depth, struct hd__tree_node **out)
{
    *out = new_node(r, HD__LIST);
    for (;;) {
        struct hd__tree_node *item;
        int32_t rc = next(r);
        if (rc || r->event.type == YAML_SEQUENCE_END_EVENT)
            return rc;
        if ((rc = read_value(r, depth + 1, &item)))
            return rc;
        hd__tree_push(*out, item, r->arena);
    }
}

static int32_t read_key(struct reader *r, const struct hd__tree_node *map, struct hd__tree_node **key)
{
    char text[200];
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_event(r, "a key must be a single word");
    int32_t rc = read_scalar(r, key);
    if (rc)
        return rc;
    if (map->count >= HD__TREE_KEYS)
        return fail_node(r, *key, "too many keys in one mapping: this is no job file");
    if (!(*key)->quoted && !strcmp((*key)->text, "<<"))
        return fail_node(r, *key, "merge keys (<<) are not supported");
    int64_t before = find(map, (*key)->text);
    if (before < 0)
        return HD_OK;
    snprintf(text, sizeof text, "%.60s was already given at line %u", (*key)->text, map->key[before]->line);
    return fail_node(r, *key, text);
}

static int32_t read_map(struct reader *r, uint32_t depth, struct hd__tree_node **out)
{
    *out = new_node(r, HD__MAP);
    for (;;) {
        struct hd__tree_node *key, *value;
        int32_t rc = next(r);
        if (rc || r->event.type == YAML_MAPPING_END_EVENT)
            return rc;
        if ((rc = read_key(r, *out, &key)) || (rc = next(r)) || (rc = read_value(r, depth + 1, &value)))
            return rc;
        grow(*out, r->arena);
        (*out)->key[(*out)->count] = key;
        (*out)->value[(*out)->count++] = value;
    }
}

/* Anchors and tags sit in a different place of each event. */
static int32_t check_plain(struct reader *r)
{
    const yaml_event_t *e = &r->event;
    int scalar = e->type == YAML_SCALAR_EVENT, list = e->type == YAML_SEQUENCE_START_EVENT;
    const yaml_char_t *anchor = scalar ? e->data.scalar.anchor
                                : list ? e->data.sequence_start.anchor
                                       : e->data.mapping_start.anchor;
    const yaml_char_t *tag = scalar ? e->data.scalar.tag
                             : list ? e->data.sequence_start.tag
                                    : e->data.mapping_start.tag;
    if (anchor)
        return fail_event(r, "anchors (&name) are not supported: write the value out");
    if (tag)
        return fail_event(r, "tags (!name) are not supported: the key says the type");
    return HD_OK;
}

static int32_t read_value(struct reader *r, uint32_t depth, struct hd__tree_node **out)
{
    char text[100];
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail_event(r, "aliases (*name) are not supported: write the value out");
    int32_t rc = check_plain(r);
    if (rc)
        return rc;
    if (depth > HD__TREE_DEPTH) {
        snprintf(text, sizeof text, "nested more than %d deep", HD__TREE_DEPTH);
        return fail_event(r, text);
    }
    if (++r->nodes > HD__TREE_NODES) {
        snprintf(text, sizeof text, "more than %d values: this is no job file", HD__TREE_NODES);
        return fail_event(r, text);
    }
    if (r->event.type == YAML_SCALAR_EVENT)
        return read_scalar(r, out);
    return r->event.type == YAML_SEQUENCE_START_EVENT ? read_list(r, depth, out) : read_map(r, depth, out);
}

static int32_t read_document(struct reader *r, struct hd__tree_node **out)
{
    int32_t rc = next(r); /* stream start */
    if (rc || (rc = next(r)))
        return rc;
    if (r->event.type == YAML_STREAM_END_EVENT)
        return fail_at(r, 1, 1, "empty: a mapping of keys is wanted");
    if ((rc = next(r)) || (rc = read_value(r, 1, out)) || (rc = next(r)) || (rc = next(r)))
        return rc;
    return r->event.type == YAML_STREAM_END_EVENT ? HD_OK : fail_event(r, "a second document: a job is one document");
}

int32_t hd__tree_parse(const char *name, const char *text, size_t bytes, const char *place, struct hd__arena *arena,
                       struct hd__tree_node **root, struct hd_error *err)
{
    size_t mark = bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)
                      ? 3
                      : 0; /* a byte order mark: some editors begin UTF-8 with it */
    struct reader r = {
        .name = name, .place = place, .text = text + mark, .bytes = bytes - mark, .arena = arena, .err = err};
    struct hd__tree_node *out = NULL;
    if (bytes > HD__TREE_BYTES)
        return hd_fail(err, HD_E_INVALID, "%s: %zu bytes: a job file has at most 1 MiB", place ? place : name, bytes);
    if (!yaml_parser_initialize(&r.yaml))
        return hd_fail(err, HD_E_NOMEM, "%s: no memory to read it", name);
    yaml_parser_set_encoding(&r.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.yaml, (const unsigned char *)r.text, r.bytes);
    int32_t rc = read_document(&r, &out);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.yaml);
    if (!rc)
        *root = out;
    return rc;
}
