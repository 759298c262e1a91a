/* heddle data split, shuffle, merge: documents of files of tokens, in other files. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/data/data.h"
#include "cli/text.h"
#include "service/data/data.h"
#include "service/text/indexed_copy.h"
#include "service/text/lineage.h"
#include "service/text/tokenize.h"

struct request {
    const char *to, *seed_text, *part_text[3];
    int overwrite, json, warned;
    int64_t seed;
    const struct hd__cli_words *words;
};

static json_t *result(const struct hd__indexed_copy *c)
{
    return json_pack("{s:o, s:I, s:I, s:s}", "prefix", hd__cli_json_text(c->prefix, strlen(c->prefix)), "documents",
                     (json_int_t)c->documents, "tokens", (json_int_t)c->tokens, "dtype",
                     hd__indexed_type_name(c->type));
}

static void print_results(const struct request *r, json_t *all)
{
    json_t *row;
    size_t i;
    if (r->json) {
        json_dumpf(all, stdout, JSON_INDENT(1));
        putchar('\n');
    }
    json_array_foreach(all, i, row) if (!r->json)
        printf("%s: %lld documents, %lld tokens of %s\n", json_string_value(json_object_get(row, "prefix")),
               (long long)json_integer_value(json_object_get(row, "documents")),
               (long long)json_integer_value(json_object_get(row, "tokens")),
               json_string_value(json_object_get(row, "dtype")));
    json_decref(all);
}

/* ---- sources: documents of a file that was not shuffled lie in the order of its sources */

struct source_walk {
    const json_t *sources; /* NULL: not known */
    size_t at;
    uint64_t end; /* the first document behind this source */
};

static struct source_walk begin_sources(const json_t *meta)
{
    const json_t *sources = json_object_get(meta, "sources");
    int known = json_array_size(sources) && !json_is_true(json_object_get(meta, "shuffled"));
    return (struct source_walk){.sources = known ? sources : NULL};
}

/* The source of a document; documents are asked for in order. NULL: not known. */
static const char *source_of(struct source_walk *w, uint64_t document)
{
    if (!w->sources)
        return NULL;
    if (!w->end)
        w->end = (uint64_t)json_integer_value(json_object_get(json_array_get(w->sources, 0), "documents"));
    while (document >= w->end && w->at + 1 < json_array_size(w->sources))
        w->end += (uint64_t)json_integer_value(json_object_get(json_array_get(w->sources, ++w->at), "documents"));
    return json_string_value(json_object_get(json_array_get(w->sources, w->at), "path"));
}

static void copy_sources(struct hd__indexed_copy *c, const struct hd__indexed *x, const json_t *meta)
{
    const json_t *sources = json_object_get(meta, "sources"), *row;
    size_t i;
    c->mixed |= c->documents != x->documents || json_is_true(json_object_get(meta, "shuffled"));
    json_array_foreach(sources, i, row) if (json_is_string(json_object_get(row, "path")))
        hd__indexed_copy_count(c, json_string_value(json_object_get(row, "path")),
                               (uint64_t)json_integer_value(json_object_get(row, "documents")),
                               (uint64_t)json_integer_value(json_object_get(row, "tokens")));
    if (!json_array_size(sources))
        hd__indexed_copy_count(c, x->prefix, x->documents, x->tokens);
    hd__lineage_add(&c->made_of, c->inputs, x, meta, 0, 0, 0);
}

/* ---- shuffle */

static int32_t shuffle(struct request *r, struct hd_error *err)
{
    struct hd__indexed x;
    struct hd__indexed_copy c = {0};
    int32_t rc = hd__indexed_open(r->words->at[0], &x, err);
    if (rc)
        return rc;
    json_t *meta = hd__indexed_meta(&x);
    rc = hd__indexed_copy_open(r->to, &x, r->overwrite, &c, err);
    if (!rc && x.documents == 1)
        hd__log(HD_LOG_WARN, NULL, "%s has one document, so %s is a copy: its order changes by documents", x.prefix,
                r->to);
    for (uint64_t d = 0; d < x.documents && !rc; d++)
        rc = hd__indexed_copy_document(&c, &x, hd__data_permute(d, x.documents, (uint64_t)r->seed), err);
    if (!rc)
        copy_sources(&c, &x, meta);
    c.mixed = 1;
    if (!rc && !(rc = hd__indexed_copy_finish(&c, meta, err)))
        print_results(r, json_pack("[o]", result(&c)));
    hd__indexed_copy_close(&c);
    json_decref(meta);
    hd__indexed_close(&x);
    return rc;
}

/* ---- split */

enum { TRAIN, VALIDATION, TEST, PARTS };
static const char *const part_names[PARTS] = {"train", "validation", "test"};

/* A fraction, or a number of documents. */
static int32_t read_part(const char *name, const char *text, double *value, int *number, struct hd_error *err)
{
    char *end;
    *value = strtod(text, &end);
    if (end == text || *end || !(*value >= 0) || *value > 1e18 || (*value > 1 && *value != floor(*value)))
        return hd_fail(err, HD_E_INVALID, "--%s %s: a fraction from 0 to 1 is wanted, or a number of documents", name,
                       text);
    *number = *value > 1 || (*value == 1 && !strchr(text, '.'));
    return HD_OK;
}

/* Fractions that are 1 together have all documents: there not each part is rounded, but where it begins. */
static int32_t read_parts(const struct request *r, uint64_t documents, uint64_t part[PARTS], struct hd_error *err)
{
    double value[PARTS] = {0}, all = (double)documents, together = 0, before = 0;
    int number[PARTS] = {0}, numbers = 0;
    uint64_t sum = 0;
    for (int p = 0; p < PARTS; p++) {
        if (r->part_text[p] && read_part(part_names[p], r->part_text[p], &value[p], &number[p], err))
            return err->code;
        numbers += number[p];
        together += value[p];
    }
    for (int p = 0; p < PARTS; p++) {
        double begin = numbers || fabs(together - 1) > 1e-9 ? 0 : before;
        before += value[p];
        part[p] =
            number[p] ? (uint64_t)value[p] : (uint64_t)((begin + value[p]) * all + 0.5) - (uint64_t)(begin * all + 0.5);
        if (value[p] > 0 && !part[p] && documents == 1)
            return hd_fail(err, HD_E_INVALID,
                           "--%s %s: there is one document, and documents are not cut: make each a line of JSON, or "
                           "set data.val_fraction in the job",
                           part_names[p], r->part_text[p]);
        if (value[p] > 0 && !part[p])
            return hd_fail(err, HD_E_INVALID, "--%s %s: of %" PRIu64 " documents that is none: raise it", part_names[p],
                           r->part_text[p], documents);
        sum += part[p];
    }
    if (sum > documents)
        return hd_fail(err, HD_E_INVALID,
                       "--train, --validation and --test: %" PRIu64 " documents together, and there are %" PRIu64
                       ": lower one",
                       sum, documents);
    if (!r->part_text[TRAIN])
        part[TRAIN] = documents - sum;
    else if (sum < documents)
        hd__log(HD_LOG_WARN, NULL,
                "%" PRIu64 " of %" PRIu64 " documents are in no part: without --train it is all that --validation and "
                "--test leave",
                documents - sum, documents);
    return HD_OK;
}

/* The part of a document: the seed gives each a place of its own in 0 .. documents - 1, and the parts follow one
 * another there. PARTS: none. */
static int part_of(uint64_t place, const uint64_t part[PARTS])
{
    int p = 0;
    for (; p < PARTS && place >= part[p]; p++)
        place -= part[p];
    return p;
}

static int32_t copy_parts(const struct request *r, const struct hd__indexed *x, const json_t *meta,
                          const uint64_t part[PARTS], struct hd__indexed_copy copies[PARTS], struct hd_error *err)
{
    struct source_walk walk = begin_sources(meta);
    int32_t rc = HD_OK;
    for (uint64_t d = 0; d < x->documents && !rc; d++) {
        int p = part_of(hd__data_permute(d, x->documents, (uint64_t)r->seed), part);
        const char *source = source_of(&walk, d);
        if (p == PARTS)
            continue;
        rc = hd__indexed_copy_document(&copies[p], x, d, err);
        if (source)
            hd__indexed_copy_count(&copies[p], source, 1, hd__indexed_document_tokens(x, d));
    }
    return rc;
}

/* A part without documents is not written, and an older one would have documents of the others. */
static int32_t check_empty(const char *name, int wanted, struct hd_error *err)
{
    char *path = hd__format("%s.bin", name);
    int32_t rc = access(path, F_OK) ? HD_OK
                                    : hd_fail(err, HD_E_INVALID,
                                              "%s is left from an older split, and this split has no documents for "
                                              "it: remove it (and its .idx), or name another --to",
                                              path);
    if (!rc && wanted)
        hd__log(HD_LOG_WARN, NULL, "%s: no documents are left for this part: it is not written", name);
    free(path);
    return rc;
}

static int32_t split_open(const struct request *r, const struct hd__indexed *x, const json_t *meta,
                          struct hd_error *err)
{
    struct hd__indexed_copy copies[PARTS] = {0};
    uint64_t part[PARTS], first = 0;
    char *prefix = hd__indexed_prefix(r->to);
    json_t *all = json_array();
    int32_t rc = read_parts(r, x->documents, part, err);
    for (int p = 0; p < PARTS && !rc; p++) {
        char *name = hd__format("%s-%s", prefix, part_names[p]);
        rc = part[p] ? hd__indexed_copy_open(name, x, r->overwrite, &copies[p], err)
                     : check_empty(name, p == TRAIN || r->part_text[p], err);
        if (!rc && part[p])
            hd__lineage_add(&copies[p].made_of, copies[p].inputs, x, meta, r->seed, first, first + part[p]);
        first += part[p];
        free(name);
    }
    if (!rc)
        rc = copy_parts(r, x, meta, part, copies, err);
    for (int p = 0; p < PARTS; p++) {
        if (!rc && part[p] && !(rc = hd__indexed_copy_finish(&copies[p], meta, err)))
            json_array_append_new(all, result(&copies[p]));
        hd__indexed_copy_close(&copies[p]);
    }
    if (rc)
        json_decref(all);
    else
        print_results(r, all);
    free(prefix);
    return rc;
}

static int32_t split(struct request *r, struct hd_error *err)
{
    struct hd__indexed x;
    int32_t rc = hd__indexed_open(r->words->at[0], &x, err);
    if (rc)
        return rc;
    json_t *meta = hd__indexed_meta(&x);
    rc = split_open(r, &x, meta, err);
    json_decref(meta);
    hd__indexed_close(&x);
    return rc;
}

/* ---- merge */

static const char *tokenizer_hash(const json_t *meta)
{
    return json_string_value(json_object_get(json_object_get(meta, "arguments"), "--tokenizer"));
}

static int32_t check_alike(const struct hd__indexed *a, const json_t *a_meta, const struct hd__indexed *b,
                           const json_t *b_meta, struct hd_error *err)
{
    const char *x = tokenizer_hash(a_meta), *y = tokenizer_hash(b_meta);
    if (a->type != b->type)
        return hd_fail(err, HD_E_INVALID, "%s has tokens of %s, %s of %s: tokenize both with one tokenizer", a->prefix,
                       hd__indexed_type_name(a->type), b->prefix, hd__indexed_type_name(b->type));
    if (x && y && strcmp(x, y) != 0)
        return hd_fail(err, HD_E_INVALID, "%s and %s were made by different tokenizers (%s, %s): their ids differ",
                       a->prefix, b->prefix, json_string_value(json_object_get(a_meta, "tokenizer")),
                       json_string_value(json_object_get(b_meta, "tokenizer")));
    const char *chat = hd__tokens_template(a_meta), *other = hd__tokens_template(b_meta);
    if (chat && other && strcmp(chat, other) != 0 && strcmp(chat, "plain") != 0 && strcmp(other, "plain") != 0)
        return hd_fail(err, HD_E_INVALID,
                       "%s is rendered by the chat template %s, and %s by %s: a model would read two formats: tokenize "
                       "the text of one of them again",
                       a->prefix, chat, b->prefix, other);
    if (!a->loss != !b->loss)
        return hd_fail(err, HD_E_INVALID,
                       "%s.loss is there and %s.loss is not: which tokens count in the loss has to be "
                       "known of all",
                       a->loss ? a->prefix : b->prefix, a->loss ? b->prefix : a->prefix);
    return HD_OK;
}

/* Metas say what was appended to documents. Chat templates have ends of their own, and so may the text. */
static int warn_of_ends(const struct hd__indexed *a, const json_t *a_meta, const struct hd__indexed *b,
                        const json_t *b_meta)
{
    const struct hd__indexed *x[] = {a, b};
    const json_t *meta[] = {a_meta, b_meta}, *eod[2];
    struct hd_error unused = HD_ERROR_INIT;
    char words[2][32];
    int32_t last[2];
    for (int i = 0; i < 2; i++) {
        eod[i] = json_object_get(json_object_get(meta[i], "arguments"), "--append-eod");
        if (!eod[i] || hd__tokens_template(meta[i]) || x[i]->documents < 2 || !x[i]->tokens ||
            hd__indexed_read(x[i], x[i]->tokens - 1, 1, &last[i], &unused))
            return 0;
        snprintf(words[i], sizeof words[i], json_integer_value(eod[i]) < 0 ? "no id" : "id %lld",
                 (long long)json_integer_value(eod[i]));
    }
    if (json_equal(eod[0], eod[1]) || last[0] == last[1])
        return 0;
    hd__log(HD_LOG_WARN, NULL,
            "documents of %s have %s appended, and those of %s have %s (--append-eod): tokenize the text of one of "
            "them again",
            a->prefix, words[0], b->prefix, words[1]);
    return 1;
}

/* The output is opened with the first input, which is held open for what the others are compared with. */
static int32_t append(struct request *r, const char *path, const struct hd__indexed *first, const json_t *first_meta,
                      struct hd__indexed_copy *c, struct hd_error *err)
{
    struct hd__indexed x;
    int32_t rc = hd__indexed_open(path, &x, err);
    if (rc)
        return rc;
    json_t *meta = hd__indexed_is_same(path, first->prefix) ? json_incref((json_t *)first_meta) : hd__indexed_meta(&x);
    char *to = hd__indexed_prefix(r->to);
    rc = hd__indexed_is_same(to, x.prefix) ? hd_fail(err, HD_E_INVALID, "%s: is what is read: name another --to", to)
                                           : check_alike(first, first_meta, &x, meta, err);
    r->warned = r->warned || (!rc && warn_of_ends(first, first_meta, &x, meta));
    for (uint64_t d = 0; d < x.documents && !rc; d++)
        rc = hd__indexed_copy_document(c, &x, d, err);
    if (!rc)
        copy_sources(c, &x, meta);
    free(to);
    json_decref(meta);
    hd__indexed_close(&x);
    return rc;
}

/* One .bin that two of the words name, or lead to. */
static void warn_of_repeats(const struct hd__cli_words *words)
{
    json_t *seen = json_object();
    for (size_t i = 0; i < words->count; i++) {
        char *prefix = hd__indexed_prefix(words->at[i]), *bin = hd__format("%s.bin", prefix), *key;
        struct stat st;
        key = stat(bin, &st) ? hd__strdup(bin) : hd__format("%ju %ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
        if (json_object_get(seen, key))
            hd__log(HD_LOG_WARN, NULL, "%s is named more than once: so often its documents are written", words->at[i]);
        json_object_set_new(seen, key, json_true());
        free(key);
        free(bin);
        free(prefix);
    }
    json_decref(seen);
}

static int32_t merge(struct request *r, struct hd_error *err)
{
    struct hd__indexed first;
    struct hd__indexed_copy c = {0};
    int32_t rc = hd__indexed_open(r->words->at[0], &first, err);
    if (rc)
        return rc;
    json_t *meta = hd__indexed_meta(&first);
    rc = hd__indexed_copy_open(r->to, &first, r->overwrite, &c, err);
    if (!rc)
        warn_of_repeats(r->words);
    for (size_t i = 0; i < r->words->count && !rc; i++)
        rc = append(r, r->words->at[i], &first, meta, &c, err);
    if (!rc && !(rc = hd__indexed_copy_finish(&c, meta, err)))
        print_results(r, json_pack("[o]", result(&c)));
    hd__indexed_copy_close(&c);
    json_decref(meta);
    hd__indexed_close(&first);
    return rc;
}

/* ---- arguments */

static int run(int argc, char **argv, size_t least, size_t most, int32_t (*verb)(struct request *, struct hd_error *))
{
    struct request r = {.seed_text = "1337"};
    struct hd__cli_words words;
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__cli_flag flags[] = {{"--to", &r.to, NULL},
                                         {"--overwrite", NULL, &r.overwrite},
                                         {"--json", NULL, &r.json},
                                         {"--seed", &r.seed_text, NULL},
                                         {"--train", &r.part_text[TRAIN], NULL},
                                         {"--validation", &r.part_text[VALIDATION], NULL},
                                         {"--test", &r.part_text[TEST], NULL}};
    size_t n_flags = verb == merge ? 3 : verb == shuffle ? 4 : HD__COUNT(flags);
    int code = hd__cli_split(&hd__command_data, argc, argv, flags, n_flags, &words);
    r.words = &words;
    if (!code && !r.to)
        code = hd__cli_usage_error(&hd__command_data, "--to PREFIX is missing");
    if (!code && (words.count < least || words.count > most))
        code = hd__cli_usage_error(&hd__command_data, "%s takes %s", argv[0],
                                   most == 1 ? "one PREFIX" : "two PREFIXes or more");
    if (!code && verb == split && !r.part_text[TRAIN] && !r.part_text[VALIDATION] && !r.part_text[TEST])
        code = hd__cli_usage_error(&hd__command_data, "split needs --validation, --test or --train");
    if (!code)
        code = hd__cli_parse_whole(&hd__command_data, "--seed", r.seed_text, 0, INT64_MAX, &r.seed);
    if (!code && verb(&r, &err))
        code = hd__data_print_error(&err);
    free(words.at);
    return code;
}

int hd__data_split(int argc, char **argv)
{
    return run(argc, argv, 1, 1, split);
}

int hd__data_shuffle(int argc, char **argv)
{
    return run(argc, argv, 1, 1, shuffle);
}

int hd__data_merge(int argc, char **argv)
{
    return run(argc, argv, 2, SIZE_MAX, merge);
}
