/* tokenizer.json of Hugging Face: the model, added tokens, and the whole. steps.c reads the other parts. */
#include "internal.h"

static int32_t no_memory(const struct hd_tokenizer *t, struct hd_error *err)
{
    return hd_fail(err, HD_E_NOMEM, "%s: no memory for its vocabulary", t->path);
}

static const char *string_of(const json_t *value, size_t *bytes)
{
    *bytes = json_string_length(value);
    return json_string_value(value);
}

/* ---- the vocabulary */

static int32_t read_id(const struct hd_tokenizer *t, const json_t *value, const char *token, int32_t *id,
                       struct hd_error *err)
{
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
    if (n < 0 || n >= BPE_MOST_IDS)
        return hd_fail(err, HD_E_INVALID, "%s: the id of the token %.80s is no number from 0 to %d", t->path, token,
                       BPE_MOST_IDS - 1);
    *id = (int32_t)n;
    return HD_OK;
}

/* In byte-level BPE a token stands for the bytes of its characters; one that has others, no text can reach. */
static bool put_word(struct hd_tokenizer *t, const char *token, size_t bytes, int32_t id, char *buffer)
{
    size_t n = bytes;
    if (!t->model.byte_level)
        return bpe_map_put(&t->model.words, token, bytes, id);
    return !bpe_bytes_of(token, bytes, buffer, &n) || bpe_map_put(&t->model.words, buffer, n, id);
}

static int32_t read_vocab(struct hd_tokenizer *t, json_t *vocab, size_t more, struct hd_error *err)
{
    const char *token;
    json_t *value;
    size_t n = json_object_size(vocab), longest = 0;
    int32_t rc = HD_OK, id = 0;
    char *buffer;
    json_object_foreach(vocab, token, value) longest = strlen(token) > longest ? strlen(token) : longest;
    if (!bpe_map_reserve(&t->names, n + more) || !bpe_map_reserve(&t->model.words, n) ||
        !(buffer = malloc(longest + 1)))
        return no_memory(t, err);
    json_object_foreach(vocab, token, value)
    {
        size_t bytes = strlen(token);
        if ((rc = read_id(t, value, token, &id, err)))
            break;
        if (!bpe_map_put(&t->names, token, bytes, id) || !put_word(t, token, bytes, id, buffer)) {
            rc = no_memory(t, err);
            break;
        }
        t->vocab = id >= t->vocab ? id + 1 : t->vocab;
    }
    free(buffer);
    return rc;
}

/* No two tokens may have one id: decode could not tell them apart. */
int32_t bpe_check_unique(const struct hd_tokenizer *t, struct hd_error *err)
{
    uint8_t *seen = calloc((size_t)t->vocab + 1, 1);
    int32_t rc = seen ? HD_OK : no_memory(t, err);
    for (uint32_t i = 0; i < t->names.count && !rc; i++) {
        const struct bpe_entry *e = &t->names.entries[i];
        if (seen[e->id]++)
            rc = hd_fail(err, HD_E_INVALID, "%s: two tokens have the id %d, one is %.*s", t->path, e->id,
                         (int)(e->length < 80 ? e->length : 80), t->names.pool.at + e->at);
    }
    free(seen);
    return rc;
}

/* ---- merges */

/* The halves of a merge: "a b", or ["a", "b"]. */
static bool halves(const json_t *merge, const char *half[2], size_t bytes[2])
{
    const char *text = string_of(merge, &bytes[0]);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++)
            half[i] = string_of(json_array_get(merge, i), &bytes[i]);
        return half[0] && half[1];
    }
    if (!space || strchr(space + 1, ' '))
        return false;
    bytes[1] = bytes[0] - (size_t)(space - text) - 1;
    bytes[0] = (size_t)(space - text);
    half[0] = text;
    half[1] = space + 1;
    return true;
}

static int32_t read_merge(struct hd_tokenizer *t, const json_t *merge, uint32_t rank, struct bpe_text *both,
                          struct hd_error *err)
{
    const char *half[2];
    size_t bytes[2];
    int32_t id[3];
    if (!halves(merge, half, bytes))
        return hd_fail(err, HD_E_INVALID, "%s: model.merges[%u] is neither \"a b\" nor [\"a\", \"b\"]", t->path, rank);
    bpe_text_clear(both);
    for (size_t i = 0; i < 2; i++) {
        bpe_text_add(both, half[i], bytes[i]);
        id[i] = bpe_map_find(&t->names, half[i], bytes[i]);
    }
    if (bpe_text_failed(both))
        return no_memory(t, err);
    id[2] = bpe_map_find(&t->names, both->at, both->length);
    for (size_t i = 0; i < 3; i++)
        if (id[i] < 0)
            return hd_fail(err, HD_E_INVALID,
                           "%s: model.merges[%u] makes %.80s of %.*s and %.*s: one of the three is not in model.vocab",
                           t->path, rank, both->at, (int)(bytes[0] < 80 ? bytes[0] : 80), half[0],
                           (int)(bytes[1] < 80 ? bytes[1] : 80), half[1]);
    bpe_pairs_put(&t->model, id[0], id[1], rank, id[2]);
    return HD_OK;
}

static int32_t read_merges(struct hd_tokenizer *t, const json_t *merges, struct hd_error *err)
{
    struct bpe_text both = {0};
    size_t n = json_array_size(merges);
    int32_t rc = HD_OK;
    uint32_t skipped = 0; /* a line "#version: 0.2", as merges.txt has it */
    const char *first = json_string_value(json_array_get(merges, 0));
    if (first && !strncmp(first, "#version", 8))
        skipped = 1;
    if (n >= BPE_MOST_IDS * 4 || !bpe_pairs_reserve(&t->model, n, n))
        return no_memory(t, err);
    for (uint32_t i = skipped; i < n && !rc; i++)
        rc = read_merge(t, json_array_get(merges, i), i - skipped, &both, err);
    free(both.at);
    return rc;
}

/* ---- what the model needs besides */

static int32_t read_flag(const struct hd_tokenizer *t, const json_t *model, const char *key, bool *flag,
                         struct hd_error *err)
{
    const json_t *value = json_object_get(model, key);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return hd_fail(err, HD_E_INVALID, "%s: model.%s is neither true nor false", t->path, key);
    *flag = json_is_true(value);
    return HD_OK;
}

static int32_t read_unk(struct hd_tokenizer *t, const json_t *value, struct hd_error *err)
{
    size_t bytes;
    const char *token = string_of(value, &bytes);
    t->model.unk = -1;
    if (!value || json_is_null(value))
        return HD_OK;
    if (!token || (t->model.unk = bpe_map_find(&t->names, token, bytes)) < 0)
        return hd_fail(err, HD_E_INVALID, "%s: model.unk_token is %.80s, which is not in model.vocab", t->path,
                       token ? token : "no string");
    return HD_OK;
}

static int32_t refuse_unsupported(const struct hd_tokenizer *t, const json_t *model, struct hd_error *err)
{
    static const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (json_string_length(json_object_get(model, keys[i])))
            return hd_fail(err, HD_E_INVALID, "%s: model.%s is \"%.40s\", which is not supported: only \"\" or null is",
                           t->path, keys[i], json_string_value(json_object_get(model, keys[i])));
    if (json_number_value(json_object_get(model, "dropout")) > 0)
        return hd_fail(err, HD_E_INVALID,
                       "%s: model.dropout is not null: ids would be drawn at random, which is not supported; set it to "
                       "null",
                       t->path);
    return HD_OK;
}

static void find_bytes(struct hd_tokenizer *t)
{
    for (uint32_t b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        t->model.byte_id[b] =
            t->model.byte_level ? bpe_map_find(&t->model.words, &(char){(char)b}, 1) : bpe_map_find(&t->names, name, 6);
    }
}

/* Does a token have the replacement of spaces behind another character? */
static bool crosses_space(const char *token, size_t bytes)
{
    static const char space[] = "\xe2\x96\x81";
    bool other = false;
    for (size_t i = 0; i < bytes;) {
        bool is_space = bytes - i >= 3 && !memcmp(token + i, space, 3);
        if (is_space && other)
            return true;
        other |= !is_space;
        i += is_space ? 3 : 1;
    }
    return false;
}

static bool can_cut_at_space(const struct hd_tokenizer *t)
{
    const struct bpe_model *m = &t->model;
    if (m->byte_level || m->ignore_merges || bpe_map_find(&m->words, "\xe2\x96\x81", 3) < 0)
        return false;
    for (uint32_t i = 0; i < m->words.count; i++)
        if (crosses_space(m->words.pool.at + m->words.entries[i].at, m->words.entries[i].length))
            return false;
    return true;
}

static int32_t read_model(struct hd_tokenizer *t, json_t *model, size_t added, struct hd_error *err)
{
    json_t *type = json_object_get(model, "type"), *vocab = json_object_get(model, "vocab");
    json_t *merges = json_object_get(model, "merges");
    const char *name = json_string_value(type);
    struct bpe_model *m = &t->model;
    int32_t rc;
    if (type && (!name || strcmp(name, "BPE")))
        return hd_fail(
            err, HD_E_INVALID, "%s: model.type is %.40s: only BPE is supported%s", t->path, name ? name : "no string",
            name && !strcmp(name, "Unigram") ? "; name the tokenizer.model (SentencePiece) that it was made of" : "");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return hd_fail(err, HD_E_INVALID, "%s: a BPE model has model.vocab, a mapping, and model.merges, a list",
                       t->path);
    if ((rc = refuse_unsupported(t, model, err)) ||
        (rc = read_flag(t, model, "byte_fallback", &m->byte_fallback, err)) ||
        (rc = read_flag(t, model, "fuse_unk", &m->fuse_unk, err)) ||
        (rc = read_flag(t, model, "ignore_merges", &m->ignore_merges, err)) ||
        (rc = read_vocab(t, vocab, added, err)) || (rc = bpe_check_unique(t, err)) ||
        (rc = read_merges(t, merges, err)) || (rc = read_unk(t, json_object_get(model, "unk_token"), err)))
        return rc;
    find_bytes(t);
    m->cut_at_space = can_cut_at_space(t);
    return HD_OK;
}

/* ---- added tokens */

static int32_t read_added_one(struct hd_tokenizer *t, const json_t *value, struct hd_error *err)
{
    struct bpe_added *a = &t->added[t->n_added];
    size_t bytes;
    const char *content = string_of(json_object_get(value, "content"), &bytes);
    int32_t rc, id;
    if (!content || !bytes)
        return content ? HD_OK : hd_fail(err, HD_E_INVALID, "%s: added_tokens[%u] has no content", t->path, t->n_added);
    if ((rc = read_id(t, json_object_get(value, "id"), content, &a->id, err)))
        return rc;
    if ((id = bpe_map_find(&t->names, content, bytes)) >= 0 && id != a->id)
        return hd_fail(err, HD_E_INVALID, "%s: the token %.80s has the id %d in added_tokens, and %d before", t->path,
                       content, a->id, id);
    a->special = json_is_true(json_object_get(value, "special"));
    a->normalized = json_is_true(json_object_get(value, "normalized"));
    a->single_word = json_is_true(json_object_get(value, "single_word"));
    a->lstrip = json_is_true(json_object_get(value, "lstrip"));
    a->rstrip = json_is_true(json_object_get(value, "rstrip"));
    bpe_text_add(&a->content, content, bytes);
    t->n_added++;
    t->vocab = a->id >= t->vocab ? a->id + 1 : t->vocab;
    return !bpe_text_failed(&a->content) && bpe_map_put(&t->names, content, bytes, a->id) ? HD_OK : no_memory(t, err);
}

static int32_t read_added(struct hd_tokenizer *t, const json_t *added, struct hd_error *err)
{
    size_t n = json_array_size(added);
    int32_t rc = HD_OK;
    if (added && !json_is_null(added) && !json_is_array(added))
        return hd_fail(err, HD_E_INVALID, "%s: added_tokens is no list", t->path);
    if (!(t->added = calloc(n + 1, sizeof *t->added)))
        return no_memory(t, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = read_added_one(t, json_array_get(added, i), err);
    return rc ? rc : bpe_check_unique(t, err);
}

static int32_t normalize_added(struct hd_tokenizer *t, struct bpe_added *a, struct hd_error *err)
{
    struct bpe_context *c = bpe_context_get(t);
    const char *text = a->content.at;
    size_t bytes = a->content.length;
    if (!c)
        return no_memory(t, err);
    c->err = err;
    c->valid = bpe_utf8_valid(text, bytes) == bytes;
    int32_t rc = bpe_normalize_text(c, &text, &bytes);
    if (!rc && (text != a->content.at || bytes != a->content.length)) {
        struct bpe_text new = {0};
        bpe_text_add(&new, text, bytes);
        free(a->content.at);
        a->content = new;
        rc = bpe_text_failed(&new) ? no_memory(t, err) : HD_OK;
    }
    bpe_context_put(c);
    return rc;
}

int32_t bpe_index_added(struct hd_tokenizer *t, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < t->n_added && !rc; i++) {
        struct bpe_added *a = &t->added[i];
        if (a->normalized && (rc = normalize_added(t, a, err)))
            break;
        if (!bpe_trie_add(a->normalized ? &t->normalized : &t->raw, &a->content, (int32_t)i))
            rc = no_memory(t, err);
    }
    return rc;
}

/* ---- the whole */

static int32_t read_parts(struct hd_tokenizer *t, json_t *root, struct hd_error *err)
{
    json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    int32_t rc;
    if (!json_is_object(model))
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: JSON, but no tokenizer.json: it has no `model`", t->path);
    if ((rc = bpe_read_normalizer(t, json_object_get(root, "normalizer"), err)) ||
        (rc = bpe_read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), err)) ||
        (rc = bpe_read_decoder(t, json_object_get(root, "decoder"), err)) ||
        (rc = read_model(t, model, json_array_size(added), err)) || (rc = read_added(t, added, err)) ||
        (rc = bpe_read_post_processor(t, json_object_get(root, "post_processor"), err)) ||
        (rc = bpe_index_added(t, err)))
        return rc;
    json_int_t pad = json_integer_value(json_object_get(json_object_get(root, "padding"), "pad_id"));
    t->pad = json_is_object(json_object_get(root, "padding")) && pad >= 0 && pad < t->vocab ? pad : -1;
    if (!json_is_null(json_object_get(root, "truncation")) && json_object_get(root, "truncation") && t->host)
        t->host->log(HD_LOG_WARN, "tokenizer-bpe", "%s: its `truncation` is left alone: texts are encoded whole",
                     t->path);
    return HD_OK;
}

int32_t bpe_read_json(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, &why);
    if (!root)
        return hd_fail(err, HD_E_CORRUPT, "%s:%d:%d: %s", t->path, why.line, why.column, why.text);
    int32_t rc = read_parts(t, root, err);
    json_decref(root);
    return rc;
}
