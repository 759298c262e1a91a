/* heddle data tokenize */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/data/data.h"
#include "heddle/file.h"
#include "service/text/tokenize.h"

struct request {
    const char *tokenizer, *to, *field, *eod, *threads, *use, *chat;
    int append_eod, no_special, skip_bad, overwrite, json;
};

/* A token of text, or one that begins it, beside the tokenizer's own end. */
static void warn_eod(const char *token, const struct hd__tokenizer *t, int32_t id)
{
    static const char *const begins[] = {"<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"};
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__text end = {0};
    const int32_t own = (int32_t)hd__tokenizer_eod(t);
    int begin = id == t->info.bos;
    for (size_t i = 0; i < HD__COUNT(begins); i++)
        begin |= !strcmp(token, begins[i]);
    if (own >= 0 && own != id && (begin || hd__tokenizer_is_word(t, id)) &&
        !hd__tokenizer_decode(t, &own, 1, 0, &end, &unused))
        hd__log(HD_LOG_WARN, NULL, "--eod %s: %s, and %s ends documents by %s: say --append-eod in place of --eod",
                token, begin ? "begins a text" : "is a part of words", t->path, end.length ? end.at : "its own token");
    hd__text_free(&end);
}

static int32_t find_chat(const struct request *r, struct hd__tokenize_config *c, struct hd_error *err)
{
    if (!r->chat)
        return HD_OK;
    c->chat = hd__chat_find(c->chat_name = r->chat);
    if (!c->chat)
        return hd_fail(err, HD_E_INVALID, "--chat-template %s: " HD__CHAT_THERE_ARE, r->chat);
    return hd__chat_check(c->tokenizer, c->chat, err);
}

static int32_t find_eod(const struct request *r, struct hd__tokenize_config *c, struct hd_error *err)
{
    const struct hd__tokenizer *t = c->tokenizer;
    c->eod = r->eod ? hd__tokenizer_find(t, r->eod) : r->append_eod ? hd__tokenizer_eod(t) : -1;
    if (!r->eod && !r->append_eod)
        return HD_OK;
    if (c->chat && c->eod != hd__chat_stop(t, c->chat))
        return hd_fail(err, HD_E_INVALID,
                       "%s has no effect with --chat-template %s, which has ends of its own: leave it out",
                       r->eod ? "--eod" : "--append-eod", r->chat);
    if (c->eod >= 0 && r->eod)
        warn_eod(r->eod, t, (int32_t)c->eod);
    if (c->eod >= 0)
        return HD_OK;
    if (r->eod)
        return hd_fail(err, HD_E_INVALID, "--eod %s: %s has no such token", r->eod, t->path);
    return hd_fail(err, HD_E_INVALID, "--append-eod: %s names no token that ends a document: say which by --eod TOKEN",
                   t->path);
}

static void print_result(const struct request *r, const struct hd__tokenize_state *s, uint32_t type, const char *prefix)
{
    const char *dtype = hd__indexed_type_name(type);
    if (r->json) {
        json_t *o = json_pack("{s:I, s:I, s:s, s:I, s:f}", "documents", (json_int_t)s->documents, "tokens",
                              (json_int_t)s->tokens, "dtype", dtype, "left_out", (json_int_t)s->left_out, "seconds",
                              s->seconds);
        hd__cli_print_json(o, JSON_INDENT(1));
        return;
    }
    printf("%s.bin, %s.idx: %" PRIu64 " documents, %" PRIu64 " tokens of %s", prefix, prefix, s->documents, s->tokens,
           dtype);
    if (s->left_out)
        printf("; %" PRIu64 " documents were left out", s->left_out);
    putchar('\n');
}

static int32_t write_tokens(const struct request *r, struct hd__tokenize_config *c, struct hd_error *err)
{
    struct hd__tokenize_print print = {.what = c->prefix};
    struct hd__tokenize_state state = {0};
    char holder[128];
    int lock;
    c->progress = hd__tokenize_print;
    c->progress_user = &print;
    int32_t rc = hd__indexed_check_output(c->prefix, c->overwrite, err);
    if (!rc)
        rc = hd__prefix_lock(c->prefix, &lock, holder, err);
    if (rc)
        return rc;
    if (lock == -1)
        return hd_fail(err, HD_E_INVALID, "%s.lock: %s writes these files: wait for its end, or name another --to",
                       c->prefix, holder);
    hd__tokenize_warn_of_files(c->corpus);
    rc = hd__tokenize(c, &state, err);
    hd__prefix_unlock(c->prefix, lock);
    hd__tokenize_print_end(&print);
    if (!rc && state.documents)
        print_result(r, &state, hd__indexed_type_for(c->tokenizer->info.vocab), c->prefix);
    if (!rc && !state.documents)
        rc = hd_fail(err, HD_E_IO, "%s has no documents: %" PRIu64 " could not be read (--skip-bad, --field %s)",
                     c->prefix, state.left_out, c->field);
    return rc;
}

static uint64_t ends_of(const struct hd__corpus *corpus, uint32_t file, uint64_t *ends)
{
    uint64_t size;
    return ends[file] ? ends[file] : (ends[file] = hd_file_ends(corpus->files.at[file].path, &size));
}

/* The file before it that is a copy of this one; NULL: none. `ends`: of each, once read. */
static const char *find_copy(const struct hd__corpus *corpus, uint32_t file, uint64_t *ends)
{
    const struct hd__corpus_file *all = corpus->files.at, *f = &all[file];
    for (uint32_t i = 0; i < file && f->bytes; i++)
        if (all[i].bytes == f->bytes && strcmp(all[i].path, f->path) != 0 &&
            ends_of(corpus, file, ends) == ends_of(corpus, i, ends))
            return all[i].path;
    return NULL;
}

/* A file that two of the words name, or a copy of one; a field where there are none. */
static void warn_of_files(const struct request *r, const struct hd__corpus *corpus)
{
    json_t *seen = json_object();
    uint64_t *ends = hd__alloc((corpus->files.count + 1) * sizeof *ends);
    const char *copy = NULL;
    int lines = 0;
    for (uint32_t i = 0; i < corpus->files.count; i++) {
        const char *path = corpus->files.at[i].path;
        if (json_object_get(seen, path))
            hd__log(HD_LOG_WARN, NULL, "%s is named more than once: so often its documents are written", path);
        else if (!copy && corpus->files.count <= 256 && (copy = find_copy(corpus, i, ends))) /* each is read */
            hd__log(HD_LOG_WARN, NULL, "%s is a copy of %s: its documents are written twice", path, copy);
        json_object_set_new(seen, path, json_true());
        lines |= strstr(path, ".json") != NULL;
    }
    if (r->field && !lines)
        hd__log(HD_LOG_WARN, NULL, "--field %s has no effect: no file is of JSON lines (.jsonl, .json)", r->field);
    json_decref(seen);
    free(ends);
}

static int32_t tokenize(const struct request *r, const struct hd__cli_words *files, int64_t threads,
                        struct hd_error *err)
{
    struct hd__data_tokenizer t = {0};
    struct hd__corpus corpus = {0};
    char *prefix = hd__indexed_prefix(r->to);
    struct hd__tokenize_config config = {.corpus = &corpus,
                                         .tokenizer = &t.tokenizer,
                                         .prefix = prefix,
                                         .field = r->field ? r->field : "text",
                                         .flags = HD_TOKENIZER_FRAME | (r->no_special ? 0 : HD_TOKENIZER_SPECIAL),
                                         .skip_bad = r->skip_bad,
                                         .skip_hint = r->skip_bad ? NULL : "--skip-bad leaves such documents out",
                                         .overwrite = r->overwrite,
                                         .threads = (int32_t)threads};
    int32_t rc = hd__data_open_tokenizer(r->tokenizer, r->use, &t, err);
    if (!rc)
        rc = find_chat(r, &config, err);
    if (!rc)
        rc = find_eod(r, &config, err);
    if (!rc)
        rc = hd__corpus_find(files->at, files->count, &corpus, err);
    if (!rc)
        warn_of_files(r, &corpus);
    if (!rc)
        rc = write_tokens(r, &config, err);
    hd__corpus_free(&corpus);
    hd__data_close_tokenizer(&t);
    free(prefix);
    return rc;
}

int hd__data_tokenize(int argc, char **argv)
{
    struct request r = {0};
    struct hd__cli_words files;
    struct hd_error err = HD_ERROR_INIT;
    int64_t threads = 0;
    const struct hd__cli_flag flags[] = {{"--tokenizer", &r.tokenizer, NULL},   {"--to", &r.to, NULL},
                                         {"--field", &r.field, NULL},           {"--eod", &r.eod, NULL},
                                         {"--threads", &r.threads, NULL},       {"--use", &r.use, NULL},
                                         {"--chat-template", &r.chat, NULL},    {"--append-eod", NULL, &r.append_eod},
                                         {"--no-special", NULL, &r.no_special}, {"--skip-bad", NULL, &r.skip_bad},
                                         {"--overwrite", NULL, &r.overwrite},   {"--json", NULL, &r.json}};
    int code = hd__cli_split(&hd__command_data, argc, argv, flags, HD__COUNT(flags), &files);
    if (!code && !r.tokenizer)
        code = hd__cli_usage_error(&hd__command_data, "--tokenizer FILE is missing");
    if (!code && !r.to)
        code = hd__cli_usage_error(&hd__command_data, "--to PREFIX is missing");
    if (!code && r.chat && (r.field || r.no_special))
        code = hd__cli_usage_error(&hd__command_data, "%s has no effect with --chat-template: leave it out",
                                   r.field ? "--field" : "--no-special");
    if (!code && !files.count)
        code = hd__cli_usage_error(&hd__command_data, "which files of text?");
    if (!code && r.threads)
        code = hd__cli_parse_whole(&hd__command_data, "--threads", r.threads, 1, 256, &threads);
    if (!code && tokenize(&r, &files, threads, &err))
        code = hd__data_print_error(&err);
    free(files.at);
    return code;
}
