/* heddle data inspect */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/data/data.h"
#include "cli/text.h"
#include "core/base/file.h"
#include "service/text/indexed_copy.h"
#include "service/text/tokenize.h"

struct request {
    const char *tokenizer, *use, *document, *sample;
    int json;
};

struct lengths {
    uint64_t min, median, max;
};

/* ---- lengths. The median of as many as there are, without sorting them: the 16 upper bits first, then the lower. */

static uint64_t capped(const struct hd__indexed *x, uint64_t document)
{
    return HD__MIN(hd__indexed_document_tokens(x, document), UINT32_MAX);
}

/* Selection by radix, among the lengths whose upper 16 bits are `upper` (UINT64_MAX: among all): the 16 bits at `shift`
 * of the number *rank, and its rank among those that share them. */
static uint64_t select_bits(const struct hd__indexed *x, uint64_t upper, int shift, uint64_t *rank)
{
    uint64_t *counts = hd__alloc(65536 * sizeof *counts), bits = 0;
    for (uint64_t d = 0; d < x->documents; d++) {
        uint64_t n = capped(x, d);
        if (upper == UINT64_MAX || n >> 16 == upper)
            counts[n >> shift & 0xffff]++;
    }
    for (; *rank >= counts[bits]; bits++)
        *rank -= counts[bits];
    free(counts);
    return bits;
}

static struct lengths find_lengths(const struct hd__indexed *x)
{
    struct lengths l = {.min = x->documents ? UINT64_MAX : 0};
    for (uint64_t d = 0; d < x->documents; d++) {
        uint64_t n = hd__indexed_document_tokens(x, d);
        l.min = HD__MIN(l.min, n);
        l.max = HD__MAX(l.max, n);
    }
    if (x->documents) {
        uint64_t rank = (x->documents - 1) / 2, upper = select_bits(x, UINT64_MAX, 16, &rank);
        l.median = upper << 16 | select_bits(x, upper, 0, &rank);
    }
    return l;
}

static uint64_t count_loss(const struct hd__indexed *x)
{
    uint64_t n = 0;
    for (uint64_t i = 8; i < 8 + (x->tokens + 7) / 8; i++)
        n += (uint64_t)__builtin_popcount(x->loss[i]);
    return n;
}

/* ---- the sample */

static void warn_other(const struct hd__indexed *x, const json_t *meta, const struct hd__tokenizer *t)
{
    uint64_t theirs, hash;
    const char *by = hd__tokens_maker(meta, &theirs);
    if (!by || hd__file_hash(t->path, &hash, NULL) || hash == theirs)
        return;
    if (hd__same_path(t->path, by))
        hd__log(HD_LOG_WARN, NULL,
                "%s has changed since it made the tokens of %s: restore it, or tokenize the text again", by, x->prefix);
    else
        hd__log(HD_LOG_WARN, NULL, "--tokenizer: %s is not what made the tokens of %s: that was %s", t->path, x->prefix,
                by);
}

static int32_t decode_sample(const struct request *r, const struct hd__indexed *x, const json_t *meta, int64_t document,
                             int64_t tokens, struct hd__text *text, struct hd_error *err)
{
    const char *path = r->tokenizer ? r->tokenizer : json_string_value(json_object_get(meta, "tokenizer")),
               *use = json_string_value(json_object_get(json_object_get(meta, "arguments"), "--use"));
    struct hd__data_tokenizer t = {0};
    struct hd__ids ids = {0};
    if (!path)
        return HD_E_NOTFOUND;
    use = r->use ? r->use : r->tokenizer ? NULL : use;
    int32_t rc = hd__data_open_tokenizer(path, use, &t, err);
    if (!rc)
        warn_other(x, meta, &t.tokenizer);
    if (!rc && x->documents) {
        uint64_t s = hd__indexed_first_sequence(x, (uint64_t)document),
                 count = HD__MIN((uint64_t)tokens, hd__indexed_document_tokens(x, (uint64_t)document));
        ids.at = hd__alloc((size_t)count * sizeof *ids.at);
        if (count && !(rc = hd__indexed_read(x, hd__indexed_first_token(x, s), count, ids.at, err)))
            rc = hd__tokenizer_decode(&t.tokenizer, ids.at, (size_t)count, 0, text, err);
    }
    if (!rc)
        hd__text_add(text, "%s", "");
    free(ids.at);
    hd__data_close_tokenizer(&t);
    return rc;
}

/* ---- output */

static json_t *sources_json(const json_t *meta, uint64_t tokens)
{
    const json_t *sources = json_object_get(meta, "sources"), *row;
    json_t *all = json_array();
    size_t i;
    json_array_foreach(sources, i, row)
    {
        json_t *copy = json_copy((json_t *)row);
        double n = (double)json_integer_value(json_object_get(row, "tokens"));
        json_object_set_new(copy, "share", json_real(tokens ? n / (double)tokens : 0));
        json_array_append_new(all, copy);
    }
    return all;
}

static void print_json(const struct hd__indexed *x, const struct lengths *l, const json_t *meta, struct hd__text *text)
{
    json_t *o = json_pack("{s:I, s:I, s:I, s:s, s:{s:I, s:I, s:f, s:I}, s:o}", "documents", (json_int_t)x->documents,
                          "sequences", (json_int_t)x->sequences, "tokens", (json_int_t)x->tokens, "dtype",
                          hd__indexed_type_name(x->type), "lengths", "min", (json_int_t)l->min, "median",
                          (json_int_t)l->median, "mean", x->documents ? (double)x->tokens / (double)x->documents : 0.0,
                          "max", (json_int_t)l->max, "sources", sources_json(meta, x->tokens));
    if (x->loss)
        json_object_set_new(o, "loss_tokens", json_integer((json_int_t)count_loss(x)));
    if (text->at)
        json_object_set_new(o, "sample", hd__cli_json_text(text->at, text->length));
    hd__cli_print_json(o, JSON_INDENT(1));
}

static void print_text(const struct hd__indexed *x, const struct lengths *l, const json_t *meta,
                       struct hd__text *sample, int64_t document)
{
    struct hd__text text = {0};
    json_t *sources = sources_json(meta, x->tokens);
    const json_t *row;
    size_t i;
    hd__text_add(&text, "%s: %" PRIu64 " documents, %" PRIu64 " tokens of %s\n", x->prefix, x->documents, x->tokens,
                 hd__indexed_type_name(x->type));
    hd__text_add(&text,
                 "tokens of a document: shortest %" PRIu64 ", median %" PRIu64 ", mean %.1f, longest %" PRIu64 "\n",
                 l->min, l->median, x->documents ? (double)x->tokens / (double)x->documents : 0.0, l->max);
    if (x->loss)
        hd__text_add(&text, "%" PRIu64 " tokens count in the loss\n", count_loss(x));
    json_array_foreach(sources, i, row) hd__text_add(&text, "%5.1f %%  %s: %" PRId64 " documents, %" PRId64 " tokens\n",
                                                     100 * json_real_value(json_object_get(row, "share")),
                                                     json_string_value(json_object_get(row, "path")),
                                                     (int64_t)json_integer_value(json_object_get(row, "documents")),
                                                     (int64_t)json_integer_value(json_object_get(row, "tokens")));
    for (size_t at = 0; at < sample->length; at++)
        sample->at[at] = sample->at[at] ? sample->at[at] : '?';
    if (sample->at)
        hd__text_add(&text, "document %" PRId64 " begins:\n%s\n", document, sample->at);
    hd__text_print(&text, stdout);
    json_decref(sources);
}

static int32_t inspect(const struct request *r, const char *path, int64_t document, int64_t tokens,
                       struct hd_error *err)
{
    struct hd__indexed x;
    struct hd__text text = {0};
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = hd__indexed_open(path, &x, err);
    if (rc)
        return rc;
    json_t *meta = hd__indexed_meta(&x);
    if (x.documents && (uint64_t)document >= x.documents)
        rc = hd_fail(err, HD_E_INVALID, "--document %" PRId64 ": %s has %" PRIu64, document, x.prefix, x.documents);
    if (!rc && decode_sample(r, &x, meta, document, tokens, &text, &why) && r->tokenizer) {
        *err = why;
        rc = why.code;
    }
    if (!rc) {
        struct lengths l = find_lengths(&x);
        if (r->json)
            print_json(&x, &l, meta, &text);
        else
            print_text(&x, &l, meta, &text, document);
    }
    hd__text_free(&text);
    json_decref(meta);
    hd__indexed_close(&x);
    return rc;
}

int hd__data_inspect(int argc, char **argv)
{
    struct request r = {.document = "0", .sample = "64"};
    struct hd__cli_words words;
    struct hd_error err = HD_ERROR_INIT;
    int64_t document = 0, tokens = 0;
    const struct hd__cli_flag flags[] = {{"--tokenizer", &r.tokenizer, NULL},
                                         {"--use", &r.use, NULL},
                                         {"--document", &r.document, NULL},
                                         {"--sample", &r.sample, NULL},
                                         {"--json", NULL, &r.json}};
    int code = hd__cli_split(&hd__command_data, argc, argv, flags, HD__COUNT(flags), &words);
    if (!code && words.count != 1)
        code = hd__cli_usage_error(&hd__command_data, words.count ? "inspect looks at one PREFIX" : "which PREFIX?");
    if (!code)
        code = hd__cli_parse_whole(&hd__command_data, "--document", r.document, 0, INT64_MAX, &document);
    if (!code)
        code = hd__cli_parse_whole(&hd__command_data, "--sample", r.sample, 0, 1000000, &tokens);
    if (!code && inspect(&r, words.at[0], document, tokens, &err))
        code = hd__data_print_error(&err);
    free(words.at);
    return code;
}
