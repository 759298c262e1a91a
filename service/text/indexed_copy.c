#include "service/text/indexed_copy.h"

#include <stdlib.h>

#include "core/base/file.h"
#include "service/text/lineage.h"

json_t *hd__indexed_meta(const struct hd__indexed *x)
{
    char *path = hd__format("%s.meta.json", x->prefix);
    json_t *meta = json_load_file(path, 0, NULL);
    free(path);
    if (json_is_object(meta) && json_integer_value(json_object_get(meta, "tokens")) == (json_int_t)x->tokens &&
        json_integer_value(json_object_get(meta, "documents")) == (json_int_t)x->documents)
        return meta;
    json_int_t tokens = json_integer_value(json_object_get(meta, "tokens"));
    if (tokens > 0)
        hd__log(HD_LOG_WARN, NULL,
                "%s.bin: its .meta.json is of %lld tokens in %lld documents, and this file has %llu in %llu: so it is "
                "not known which tokenizer made the tokens: write both again, or remove that",
                x->prefix, (long long)tokens, (long long)json_integer_value(json_object_get(meta, "documents")),
                (unsigned long long)x->tokens, (unsigned long long)x->documents);
    json_decref(meta);
    return NULL;
}

int hd__indexed_is_same(const char *a, const char *b)
{
    char *prefix[2] = {hd__indexed_prefix(a), hd__indexed_prefix(b)}, *path[2];
    for (int i = 0; i < 2; i++)
        path[i] = hd__format("%s.bin", prefix[i]);
    int same = !strcmp(prefix[0], prefix[1]) || hd__same_file(path[0], path[1]);
    for (int i = 0; i < 2; i++) {
        free(path[i]);
        free(prefix[i]);
    }
    return same;
}

int32_t hd__indexed_copy_open(const char *prefix, const struct hd__indexed *like, int overwrite,
                              struct hd__indexed_copy *copy, struct hd_error *err)
{
    *copy = (struct hd__indexed_copy){.prefix = hd__indexed_prefix(prefix),
                                      .type = like->type,
                                      .with_loss = like->loss != NULL,
                                      .sources = json_array(),
                                      .by_path = json_object(),
                                      .inputs = json_object()};
    int32_t rc = hd__indexed_is_same(copy->prefix, like->prefix)
                     ? hd_fail(err, HD_E_INVALID, "%s: is what is read: name another --to", copy->prefix)
                     : hd__indexed_check_output(copy->prefix, overwrite, err);
    if (!rc)
        rc = hd__indexed_create(copy->prefix, copy->type, copy->with_loss, (struct hd__indexed_size){0}, &copy->writer,
                                err);
    return rc;
}

static int32_t copy_sequence(struct hd__indexed_copy *c, const struct hd__indexed *from, uint64_t sequence,
                             struct hd_error *err)
{
    uint64_t n = hd__indexed_length(from, sequence), first = hd__indexed_first_token(from, sequence);
    if (n > c->room) {
        c->room = HD__MAX(n, 2 * c->room);
        c->ids = hd__realloc(c->ids, (size_t)c->room * sizeof *c->ids);
        c->counts = hd__realloc(c->counts, (size_t)c->room);
    }
    int32_t rc = hd__indexed_read(from, first, n, c->ids, err);
    if (!rc && c->with_loss)
        hd__indexed_read_loss(from, first, n, c->counts);
    if (!rc)
        rc = hd__indexed_add(c->writer, c->ids, n, c->with_loss ? c->counts : NULL, err);
    c->tokens += rc ? 0 : n;
    return rc;
}

int32_t hd__indexed_copy_document(struct hd__indexed_copy *c, const struct hd__indexed *from, uint64_t document,
                                  struct hd_error *err)
{
    uint64_t s = hd__indexed_first_sequence(from, document), end = hd__indexed_first_sequence(from, document + 1);
    int32_t rc = HD_OK;
    for (; s < end && !rc; s++)
        rc = copy_sequence(c, from, s, err);
    c->documents += !rc;
    return rc ? rc : hd__indexed_end_document(c->writer, err);
}

static void add_to(json_t *row, const char *key, uint64_t n)
{
    json_t *sum = json_object_get(row, key);
    json_integer_set(sum, json_integer_value(sum) + (json_int_t)n);
}

void hd__indexed_copy_count(struct hd__indexed_copy *c, const char *source, uint64_t documents, uint64_t tokens)
{
    char *path = hd__printable(hd__strdup(source));
    json_t *row = json_object_get(c->by_path, path);
    if (!row) {
        row = json_pack("{s:s, s:i, s:i}", "path", path, "documents", 0, "tokens", 0);
        json_array_append(c->sources, row);
        json_object_set_new(c->by_path, path, row);
    }
    free(path);
    add_to(row, "documents", documents);
    add_to(row, "tokens", tokens);
}

int32_t hd__indexed_copy_finish(struct hd__indexed_copy *c, const json_t *meta, struct hd_error *err)
{
    json_t *out = meta ? json_copy((json_t *)meta) : json_object();
    json_object_set_new(out, "documents", json_integer((json_int_t)c->documents));
    json_object_set_new(out, "tokens", json_integer((json_int_t)c->tokens));
    json_object_set_new(out, "dtype", json_string(hd__indexed_type_name(c->type)));
    json_object_set(out, "sources", c->sources);
    json_object_set_new(out, "shuffled", json_boolean(c->mixed));
    json_object_set_new(out, HD__LINEAGE_KEY, json_stringn(c->made_of.at, c->made_of.length));
    json_object_set(out, HD__LINEAGE_INPUTS, c->inputs);
    char *text = json_dumps(out, JSON_INDENT(1));
    int32_t rc = hd__indexed_finish(c->writer, text, err);
    c->writer = NULL;
    free(text);
    json_decref(out);
    return rc;
}

void hd__indexed_copy_close(struct hd__indexed_copy *c)
{
    hd__indexed_abandon(c->writer, 0);
    json_decref(c->sources);
    json_decref(c->by_path);
    json_decref(c->inputs);
    free(c->ids);
    free(c->counts);
    free(c->prefix);
    hd__text_free(&c->made_of);
    *c = (struct hd__indexed_copy){0};
}
