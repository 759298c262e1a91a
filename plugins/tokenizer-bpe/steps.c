/* The parts of tokenizer.json around the model: normalizers, pre-tokenizers, decoders and post-processors. A part is a
 * step or a Sequence of steps; a step that is not in the tables here is refused by its name. */
#include "internal.h"

typedef int32_t (*read_step)(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err);

struct reader {
    const char *type;
    read_step read;
};

/* ---- steps and sequences */

struct part {
    const char *name, *sequence; /* "pre_tokenizer", and the key of a Sequence's list */
    const struct reader *readers;
    size_t count;
};

static int32_t read_part(struct hd_tokenizer *t, const struct part *part, const json_t *step, const char *where,
                         uint32_t depth, struct hd_error *err);

static int32_t read_sequence(struct hd_tokenizer *t, const struct part *part, const json_t *step, const char *where,
                             uint32_t depth, struct hd_error *err)
{
    const json_t *list = json_object_get(step, part->sequence);
    int32_t rc = HD_OK;
    if (!json_is_array(list) || depth > 4)
        return hd_fail(err, HD_E_INVALID, "%s: a Sequence has a list `%s`, at most four deep", where, part->sequence);
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        char at[4400];
        snprintf(at, sizeof at, "%.4200s.%s[%zu]", where, part->sequence, i);
        rc = read_part(t, part, json_array_get(list, i), at, depth + 1, err);
    }
    return rc;
}

static int32_t read_part(struct hd_tokenizer *t, const struct part *part, const json_t *step, const char *where,
                         uint32_t depth, struct hd_error *err)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    char known[400];
    size_t n = 0;
    if (!type)
        return hd_fail(err, HD_E_INVALID, "%s: has no `type`", where);
    if (!strcmp(type, "Sequence"))
        return read_sequence(t, part, step, where, depth, err);
    for (size_t i = 0; i < part->count; i++) {
        if (!strcmp(type, part->readers[i].type))
            return part->readers[i].read(t, step, where, err);
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", part->readers[i].type);
    }
    return hd_fail(err, HD_E_INVALID, "%s: the %s %.40s is not supported; these are: %s", where, part->name, type,
                   known);
}

static int32_t read_top(struct hd_tokenizer *t, const struct part *part, const json_t *step, struct hd_error *err)
{
    char where[4300];
    snprintf(where, sizeof where, "%.4096s: %s", t->path, part->name);
    return !step || json_is_null(step) ? HD_OK : read_part(t, part, step, where, 0, err);
}

static int32_t too_many(const char *where, struct hd_error *err)
{
    return hd_fail(err, HD_E_INVALID, "%s: more than %d steps are not supported", where, BPE_MOST_STEPS);
}

/* ---- values */

static bool flag_of(const json_t *step, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(step, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static int32_t text_of(const json_t *step, const char *key, struct bpe_text *text, const char *where,
                       struct hd_error *err)
{
    const json_t *value = json_object_get(step, key);
    if (!json_is_string(value))
        return hd_fail(err, HD_E_INVALID, "%s: has no text `%s`", where, key);
    bpe_text_add(text, json_string_value(value), json_string_length(value));
    return bpe_text_failed(text) ? hd_fail(err, HD_E_NOMEM, "%s: no memory", where) : HD_OK;
}

/* {"Regex": ...} or {"String": ...} */
static int32_t pattern_of(const json_t *step, struct bpe_regex *regex, const char *where, struct hd_error *err)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *text = json_object_get(pattern, "String"), *expression = json_object_get(pattern, "Regex");
    if (json_is_string(text))
        return bpe_regex_compile_text(regex, json_string_value(text), json_string_length(text), where, err);
    if (json_is_string(expression))
        return bpe_regex_compile(regex, json_string_value(expression), json_string_length(expression),
                                 BPE_REGEX_ONIGURUMA, where, err);
    return hd_fail(err, HD_E_INVALID, "%s: `pattern` is neither {\"Regex\": ...} nor {\"String\": ...}", where);
}

/* One character, of `key`. */
static int32_t character_of(const json_t *step, const char *key, char out[8], size_t *length, const char *where,
                            struct hd_error *err)
{
    const json_t *value = json_object_get(step, key);
    size_t bytes = json_string_length(value);
    if (!bytes || bytes > 4 || bpe_utf8_length((const uint8_t *)json_string_value(value), bytes) != bytes)
        return hd_fail(err, HD_E_INVALID, "%s: `%s` is not one character", where, key);
    memcpy(out, json_string_value(value), bytes);
    *length = bytes;
    return HD_OK;
}

/* ---- normalizers */

static struct bpe_normalizer *new_normalizer(struct hd_tokenizer *t, uint32_t kind)
{
    if (t->n_normalizers == BPE_MOST_STEPS)
        return NULL;
    t->normalizers[t->n_normalizers] = (struct bpe_normalizer){.kind = kind};
    return &t->normalizers[t->n_normalizers++];
}

static int32_t read_unicode(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"};
    for (uint32_t i = 0; i < COUNT(names); i++)
        if (!strcmp(json_string_value(json_object_get(step, "type")), names[i]))
            return new_normalizer(t, i) ? HD_OK : too_many(where, err);
    return HD_E_INTERNAL;
}

static int32_t read_prepend(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_normalizer *n = new_normalizer(t, BPE_PREPEND);
    return n ? text_of(step, "prepend", &n->content, where, err) : too_many(where, err);
}

static int32_t read_replace(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_normalizer *n = new_normalizer(t, BPE_REPLACE);
    int32_t rc = n ? text_of(step, "content", &n->content, where, err) : too_many(where, err);
    return rc ? rc : pattern_of(step, &n->regex, where, err);
}

static int32_t read_strip(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_normalizer *n = new_normalizer(t, BPE_STRIP);
    if (!n)
        return too_many(where, err);
    n->left = flag_of(step, "strip_left", true);
    n->right = flag_of(step, "strip_right", true);
    return HD_OK;
}

int32_t bpe_read_normalizer(struct hd_tokenizer *t, json_t *step, struct hd_error *err)
{
    static const struct reader readers[] = {
        {"NFC", read_unicode},       {"NFD", read_unicode},     {"NFKC", read_unicode},    {"NFKD", read_unicode},
        {"Lowercase", read_unicode}, {"Prepend", read_prepend}, {"Replace", read_replace}, {"Strip", read_strip}};
    static const struct part part = {"normalizer", "normalizers", readers, COUNT(readers)};
    return read_top(t, &part, step, err);
}

/* ---- pre-tokenizers */

static int32_t new_split(struct hd_tokenizer *t, uint32_t kind, uint32_t behavior, const char *where,
                         struct bpe_split **split, struct hd_error *err)
{
    if (t->n_splits == BPE_MOST_STEPS)
        return too_many(where, err);
    if (t->model.byte_level && kind != BPE_SPLIT)
        return hd_fail(err, HD_E_INVALID, "%s: behind ByteLevel only pre-tokenizers that cut are supported", where);
    if (t->model.byte_level && !t->spelled) { /* what they see are the characters that stand for bytes */
        t->spelled = true;
        t->splits[t->n_splits++] = (struct bpe_split){.kind = BPE_SPELL};
        return new_split(t, kind, behavior, where, split, err);
    }
    *split = &t->splits[t->n_splits++];
    **split = (struct bpe_split){.kind = kind, .behavior = behavior};
    return HD_OK;
}

/* By a regex of the crate `regex`, or what is the same. */
static int32_t split_by(struct hd_tokenizer *t, const char *regex, uint32_t behavior, bool invert, const char *where,
                        struct hd_error *err)
{
    struct bpe_split *split = NULL;
    int32_t rc = new_split(t, BPE_SPLIT, behavior, where, &split, err);
    if (rc)
        return rc;
    split->invert = invert;
    return bpe_regex_compile(&split->regex, regex, strlen(regex), BPE_REGEX_RUST, where, err);
}

static int32_t behavior_of(const json_t *step, uint32_t *behavior, const char *where, struct hd_error *err)
{
    static const char *const names[] = {[BPE_REMOVED] = "Removed",
                                        [BPE_ISOLATED] = "Isolated",
                                        [BPE_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [BPE_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [BPE_CONTIGUOUS] = "Contiguous"};
    const char *name = json_string_value(json_object_get(step, "behavior"));
    for (*behavior = 0; name && *behavior < COUNT(names); ++*behavior)
        if (!strcmp(name, names[*behavior]))
            return HD_OK;
    return hd_fail(err, HD_E_INVALID,
                   "%s: behavior %.40s is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                   where, name ? name : "(none)");
}

static int32_t read_split(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_split *split = NULL;
    uint32_t behavior;
    int32_t rc = behavior_of(step, &behavior, where, err);
    if (rc || (rc = new_split(t, BPE_SPLIT, behavior, where, &split, err)))
        return rc;
    split->invert = flag_of(step, "invert", false);
    return pattern_of(step, &split->regex, where, err);
}

/* GPT-2's; bytes become characters only behind it, so that what is split here are the characters of the text. */
static int32_t read_byte_level(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    if (t->model.byte_level)
        return hd_fail(err, HD_E_INVALID, "%s: a second ByteLevel is not supported", where);
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    struct bpe_split *split = NULL;
    int32_t rc = HD_OK;
    if (flag_of(step, "add_prefix_space", true))
        rc = new_split(t, BPE_PREFIX, 0, where, &split, err);
    if (!rc && flag_of(step, "use_regex", true))
        rc = split_by(t, gpt2, BPE_ISOLATED, false, where, err);
    t->model.byte_level = true;
    return rc;
}

static int32_t read_digits(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    return split_by(t, "\\p{N}", flag_of(step, "individual_digits", false) ? BPE_ISOLATED : BPE_CONTIGUOUS, false,
                    where, err);
}

/* Unicode's, and what ASCII calls so besides: $ + < = > ^ ` | ~ */
static int32_t read_punctuation(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    uint32_t behavior = BPE_ISOLATED;
    int32_t rc = json_object_get(step, "behavior") ? behavior_of(step, &behavior, where, err) : HD_OK;
    return rc ? rc : split_by(t, "[\\p{P}$+<=>^`|~]", behavior, false, where, err);
}

static int32_t read_delimiter(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_split *split = NULL;
    char delimiter[8];
    size_t length;
    int32_t rc = character_of(step, "delimiter", delimiter, &length, where, err);
    if (rc || (rc = new_split(t, BPE_SPLIT, BPE_REMOVED, where, &split, err)))
        return rc;
    return bpe_regex_compile_text(&split->regex, delimiter, length, where, err);
}

static int32_t read_whitespace(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    (void)step;
    return split_by(t, "\\w+|[^\\w\\s]+", BPE_REMOVED, true, where, err);
}

static int32_t read_whitespace_split(struct hd_tokenizer *t, const json_t *step, const char *where,
                                     struct hd_error *err)
{
    (void)step;
    return split_by(t, "\\s", BPE_REMOVED, false, where, err);
}

/* `add_prefix_space` is what files had before `prepend_scheme`. */
static int32_t scheme_of(const json_t *step, uint32_t *scheme, const char *where, struct hd_error *err)
{
    static const char *const names[] = {
        [BPE_PREPEND_NEVER] = "never", [BPE_PREPEND_ALWAYS] = "always", [BPE_PREPEND_FIRST] = "first"};
    const char *name = json_string_value(json_object_get(step, "prepend_scheme"));
    *scheme = BPE_PREPEND_ALWAYS;
    for (uint32_t i = 0; name && i < COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *scheme = i;
            name = NULL;
        }
    if (name)
        return hd_fail(err, HD_E_INVALID, "%s: prepend_scheme %.40s is none of always, first, never", where, name);
    if (!flag_of(step, "add_prefix_space", true)) {
        if (*scheme != BPE_PREPEND_NEVER && json_object_get(step, "prepend_scheme"))
            return hd_fail(err, HD_E_INVALID, "%s: add_prefix_space is false, and prepend_scheme is not never", where);
        *scheme = BPE_PREPEND_NEVER;
    }
    return HD_OK;
}

static int32_t read_metaspace(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_split *split = NULL;
    int32_t rc = new_split(t, BPE_METASPACE, BPE_MERGED_WITH_NEXT, where, &split, err);
    if (rc || (rc = scheme_of(step, &split->scheme, where, err)) ||
        (rc = character_of(step, "replacement", split->replacement, &split->replacement_length, where, err)))
        return rc;
    split->cut = flag_of(step, "split", true);
    return bpe_regex_compile_text(&split->regex, split->replacement, split->replacement_length, where, err);
}

int32_t bpe_read_pre_tokenizer(struct hd_tokenizer *t, json_t *step, struct hd_error *err)
{
    static const struct reader readers[] = {{"ByteLevel", read_byte_level},
                                            {"Split", read_split},
                                            {"Digits", read_digits},
                                            {"Punctuation", read_punctuation},
                                            {"Metaspace", read_metaspace},
                                            {"Whitespace", read_whitespace},
                                            {"WhitespaceSplit", read_whitespace_split},
                                            {"CharDelimiterSplit", read_delimiter}};
    static const struct part part = {"pre_tokenizer", "pretokenizers", readers, COUNT(readers)};
    return read_top(t, &part, step, err);
}

/* ---- decoders */

static int32_t new_decoder(struct hd_tokenizer *t, uint32_t kind, const char *where, struct bpe_decoder **decoder,
                           struct hd_error *err)
{
    if (t->n_decoders == BPE_MOST_STEPS)
        return too_many(where, err);
    if (t->fused)
        return hd_fail(err, HD_E_INVALID, "%s: behind Fuse only Strip is supported", where);
    *decoder = &t->decoders[t->n_decoders++];
    **decoder = (struct bpe_decoder){.kind = kind};
    return HD_OK;
}

static int32_t decode_byte_level(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_decoder *d = NULL;
    int32_t rc = new_decoder(t, BPE_DECODE_BYTE_LEVEL, where, &d, err);
    (void)step;
    t->fused = true; /* all tokens become one */
    return rc;
}

static int32_t decode_byte_fallback(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_decoder *d = NULL;
    (void)step;
    return new_decoder(t, BPE_DECODE_BYTE_FALLBACK, where, &d, err);
}

static int32_t decode_replace(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_decoder *d = NULL;
    int32_t rc = new_decoder(t, BPE_DECODE_REPLACE, where, &d, err);
    if (rc || (rc = text_of(step, "content", &d->to, where, err)))
        return rc;
    if (!json_string_length(json_object_get(json_object_get(step, "pattern"), "String")))
        return hd_fail(err, HD_E_INVALID, "%s: only a `pattern` of the form {\"String\": ...} is supported", where);
    return text_of(json_object_get(step, "pattern"), "String", &d->from, where, err);
}

static int32_t decode_metaspace(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    struct bpe_decoder *d = NULL;
    char replacement[8];
    size_t length;
    uint32_t scheme;
    int32_t rc = new_decoder(t, BPE_DECODE_METASPACE, where, &d, err);
    if (rc || (rc = scheme_of(step, &scheme, where, err)) ||
        (rc = character_of(step, "replacement", replacement, &length, where, err)))
        return rc;
    d->drop_first = scheme != BPE_PREPEND_NEVER;
    bpe_text_add(&d->from, replacement, length);
    bpe_text_add(&d->to, " ", 1);
    return bpe_text_failed(&d->from) || bpe_text_failed(&d->to) ? hd_fail(err, HD_E_NOMEM, "%s: no memory", where)
                                                                : HD_OK;
}

static int32_t decode_fuse(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    (void)step, (void)where, (void)err;
    t->fused = true;
    return HD_OK;
}

static int32_t decode_strip(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    size_t length;
    json_int_t start = json_integer_value(json_object_get(step, "start"));
    int32_t rc = character_of(step, "content", t->strip, &length, where, err);
    if (rc)
        return rc;
    if (!t->fused || t->strip_most || json_integer_value(json_object_get(step, "stop")) || start < 0 || start > 1000)
        return hd_fail(err, HD_E_INVALID,
                       "%s: only one Strip behind Fuse, which takes characters off the start, is supported", where);
    t->strip_length = (uint32_t)length;
    t->strip_most = (uint32_t)start;
    return HD_OK;
}

int32_t bpe_read_decoder(struct hd_tokenizer *t, json_t *step, struct hd_error *err)
{
    static const struct reader readers[] = {{"ByteLevel", decode_byte_level},
                                            {"ByteFallback", decode_byte_fallback},
                                            {"Replace", decode_replace},
                                            {"Metaspace", decode_metaspace},
                                            {"Fuse", decode_fuse},
                                            {"Strip", decode_strip}};
    static const struct part part = {"decoder", "decoders", readers, COUNT(readers)};
    t->join = !step || json_is_null(step);
    return read_top(t, &part, step, err);
}

/* ---- post-processors */

static int32_t put_frame(struct hd_tokenizer *t, bool behind, const char *token, const char *where,
                         struct hd_error *err)
{
    int32_t id = token ? bpe_map_find(&t->names, token, strlen(token)) : -1;
    uint32_t *n = behind ? &t->n_suffix : &t->n_prefix;
    if (id < 0)
        return hd_fail(err, HD_E_INVALID, "%s: the special token %.80s is not in the vocabulary", where,
                       token ? token : "(none)");
    if (*n == BPE_MOST_FRAME)
        return hd_fail(err, HD_E_INVALID, "%s: more than %d tokens around a text", where, BPE_MOST_FRAME);
    (behind ? t->suffix : t->prefix)[(*n)++] = id;
    return HD_OK;
}

/* A special token of a template: its name is a key of special_tokens, which says its ids. */
static int32_t put_special(struct hd_tokenizer *t, const json_t *step, const json_t *item, bool behind,
                           const char *where, struct hd_error *err)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(step, "special_tokens"), name ? name : ""), "ids");
    uint32_t *n = behind ? &t->n_suffix : &t->n_prefix;
    if (!json_array_size(ids))
        return hd_fail(err, HD_E_INVALID, "%s: special_tokens has no ids of %.80s", where, name ? name : "(none)");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id < 0 || id >= t->vocab || *n == BPE_MOST_FRAME)
            return hd_fail(err, HD_E_INVALID, "%s: the id %lld of %.80s is outside the vocabulary, or one too many",
                           where, (long long)id, name);
        (behind ? t->suffix : t->prefix)[(*n)++] = (int32_t)id;
    }
    return HD_OK;
}

static int32_t read_template(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    const json_t *single = json_object_get(step, "single");
    bool behind = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken");
        int32_t rc = special ? put_special(t, step, special, behind, where, err) : HD_OK;
        if (rc)
            return rc;
        behind |= json_object_get(item, "Sequence") != NULL;
    }
    return behind ? HD_OK : hd_fail(err, HD_E_INVALID, "%s: `single` has no Sequence", where);
}

/* BERT's and RoBERTa's: ["[CLS]", 101]. */
static int32_t read_cls_sep(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    int32_t rc = put_frame(t, false, json_string_value(json_array_get(json_object_get(step, "cls"), 0)), where, err);
    return rc ? rc : put_frame(t, true, json_string_value(json_array_get(json_object_get(step, "sep"), 0)), where, err);
}

static int32_t read_offsets(struct hd_tokenizer *t, const json_t *step, const char *where, struct hd_error *err)
{
    (void)t, (void)step, (void)where, (void)err;
    return HD_OK;
}

int32_t bpe_read_post_processor(struct hd_tokenizer *t, json_t *step, struct hd_error *err)
{
    static const struct reader readers[] = {{"TemplateProcessing", read_template},
                                            {"ByteLevel", read_offsets},
                                            {"RobertaProcessing", read_cls_sep},
                                            {"BertProcessing", read_cls_sep}};
    static const struct part part = {"post_processor", "processors", readers, COUNT(readers)};
    int32_t rc = read_top(t, &part, step, err);
    t->bos = t->n_prefix ? t->prefix[0] : -1;
    t->eos = t->n_suffix ? t->suffix[t->n_suffix - 1] : -1;
    return rc;
}
