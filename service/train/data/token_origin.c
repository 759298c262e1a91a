/* Which tokenizer made the tokens of a job, as PREFIX.meta.json beside them says, and which one the job names. */
#include "service/train/data/token_origin.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/option.h"
#include "heddle/file.h"
#include "service/text/chat.h"
#include "service/text/indexed.h"
#include "service/text/lineage.h"
#include "service/text/tokenize.h"
#include "service/text/tokenizer.h"
#include "service/train/data/corpus.h"

/* ---- makers */

static int32_t open_maker(struct hd__job *job, const char *path, struct hd__token_maker *maker, struct hd_error *err)
{
    char *file = NULL;
    int32_t rc = hd__tokenizer_file(path, &file, err);
    if (!rc)
        rc = hd__file_hash(file, &maker->hash, err);
    if (!rc)
        maker->name = hd__arena_strdup(&job->arena, file);
    free(file);
    return rc;
}

struct hd__token_maker hd__train_tokenizer(const struct hd__compiled *c, const char *path)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__token_maker maker = {0};
    if (!path)
        path = c->job->data_tokenizer           ? c->job->data_tokenizer
               : hd__is_folder(c->info.weights) ? c->info.weights
                                                : NULL;
    if (path)
        open_maker(c->job, path, &maker, &unused);
    return maker;
}

int hd__token_makers_differ(struct hd__token_maker a, struct hd__token_maker b)
{
    return a.name && b.name && a.hash != b.hash;
}

json_t *hd__token_maker_json(struct hd__token_maker maker)
{
    return maker.name ? json_pack("{s:o, s:o}", "path", json_string(maker.name), "hash",
                                  json_sprintf("%016" PRIx64, maker.hash))
                      : NULL;
}

struct hd__token_maker hd__token_maker_saved(struct hd__job *job, const json_t *state)
{
    const json_t *saved = json_object_get(state, "tokenizer");
    const char *name = json_string_value(json_object_get(saved, "path")),
               *hash = json_string_value(json_object_get(saved, "hash"));
    return name && hash ? (struct hd__token_maker){hd__arena_strdup(&job->arena, name), strtoull(hash, NULL, 16)}
                        : (struct hd__token_maker){0};
}

const char *hd__token_makers_words(struct hd__job *job, struct hd__token_maker now, struct hd__token_maker before)
{
    return hd__arena_format(&job->arena, "the tokens are of %s (%08x) and were of %s (%08x)", now.name,
                            (uint32_t)(now.hash >> 32), before.name, (uint32_t)(before.hash >> 32));
}

/* ---- what lies beside a file of tokens */

/* Without what may be secret in a URL. */
static const char *printable(struct hd__job *job, const char *path)
{
    const char *host = strstr(path, "://");
    size_t n = host ? strcspn(host + 3, "/?#") : 0;
    const char *at = n ? memchr(host + 3, '@', n) : NULL, *rest = at ? at + 1 : host ? host + 3 : path;
    return !host
               ? hd__arena_strdup(&job->arena, path)
               : hd__arena_format(&job->arena, "%.*s://%.*s", (int)(host - path), path, (int)strcspn(rest, "?#"), rest);
}

/* A file as the data plug-in opens it; its tokens are counted. */
static int32_t open_data(const struct hd__compiled *c, const void *settings, const char *path, struct hd_data **data,
                         uint64_t *count, struct hd_error *err)
{
    const struct hd_data_ops *ops = &c->data_choice.component->ops.data;
    const struct hd_data_source source = {.struct_size = sizeof source, .path = path};
    struct hd_data_info info = {.struct_size = sizeof info};
    int32_t rc = ops->open(c->host, settings, &source, data, err);
    if (!rc)
        rc = ops->info(*data, &info, err);
    *count = info.tokens;
    return rc;
}

/* The settings with which a file is its bytes, asked for once. */
static void *settings_of_bytes(const struct hd__compiled *c)
{
    static const char *const words[][2] = {
        {"format", "bytes"}, {"token_dtype", "uint16"}, {"loss", "all"}, {"http_retries", "0"}};
    const struct hd__component *component = c->data_choice.component;
    const struct hd__options table = {component->options, component->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_copy(&c->job->arena, c->data_choice.settings, component->settings_size);
    for (size_t i = 0; i < HD__COUNT(words); i++) {
        struct hd_error unused = HD_ERROR_INIT;
        int64_t at = hd__option_find(&table, words[i][0]);
        const struct hd_option option = at < 0 ? (struct hd_option){0} : hd__option_at(&table, (size_t)at);
        if (at < 0 || hd__option_parse(&option, words[i][1], settings, &c->job->arena, &unused))
            return NULL;
    }
    return settings;
}

#define UNKNOWN_MAKER "so it is not known which tokenizer made the tokens"

/* A file behind HTTP, by the plug-in that reads tokens there. */
static json_t *fetch_json(const struct hd__compiled *c, const char *url)
{
    enum { LONGEST = 4 << 20 };
    const struct hd_data_ops *ops = &c->data_choice.component->ops.data;
    const void *settings = settings_of_bytes(c);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_data *data = NULL;
    int64_t *bytes = NULL;
    uint64_t n = 0;
    json_t *json = NULL;
    int32_t rc = settings ? open_data(c, settings, url, &data, &n, &err) : HD_E_UNSUPPORTED;
    if (!rc && n <= LONGEST) {
        char *text = hd__alloc(n + 1);
        bytes = hd__alloc((n + 1) * sizeof *bytes);
        rc = ops->read(data, 0, n, bytes, &err);
        for (uint64_t i = 0; i < n && !rc; i++)
            text[i] = (char)bytes[i];
        json = rc ? NULL : json_loadb(text, n, 0, NULL);
        free(text);
    }
    if (rc == HD_E_IO)
        hd__log(HD_LOG_WARN, NULL, "%s: " UNKNOWN_MAKER, err.message);
    free(bytes);
    if (data)
        ops->close(data);
    return json;
}

/* The meta beside a file behind HTTP, and how many tokens that has. */
static json_t *fetch_meta(const struct hd__compiled *c, const char *url, uint64_t *tokens)
{
    size_t name = strcspn(url, "?#");
    struct hd_error unused = HD_ERROR_INIT;
    struct hd_data *data = NULL;
    if (strcmp(c->job->data->use, "tokens") != 0 || name < 4 || strncmp(url + name - 4, ".bin", 4) != 0)
        return NULL;
    json_t *meta = fetch_json(c, hd__arena_format(&c->job->arena, "%.*s.meta.json%s", (int)name - 4, url, url + name));
    if (meta && !open_data(c, c->data_choice.settings, url, &data, tokens, &unused))
        c->data_choice.component->ops.data.close(data);
    return meta;
}

static json_t *load_meta(const char *name)
{
    json_error_t why;
    json_t *meta = json_load_file(name, 0, &why);
    if (!meta && !access(name, F_OK))
        hd__log(HD_LOG_WARN, NULL, "%s: %s: " UNKNOWN_MAKER ": write them again, or remove it", name, why.text);
    return meta;
}

/* NULL: there is none, or one of other tokens. */
static json_t *read_meta(const struct hd__compiled *c, const char *path)
{
    char *prefix = hd__indexed_prefix(path), *bin = hd__format("%s.bin", prefix),
         *name = hd__format("%s.meta.json", prefix);
    struct stat st;
    uint64_t found = 0;
    json_t *meta = strstr(path, "://")                      ? fetch_meta(c, path, &found)
                   : stat(bin, &st) || !S_ISREG(st.st_mode) ? NULL
                                                            : load_meta(name);
    json_int_t tokens = json_integer_value(json_object_get(meta, "tokens"));
    int matches = strstr(path, "://") ? found == (uint64_t)tokens
                                      : meta && tokens > 0 && st.st_size % tokens == 0 && st.st_size / tokens <= 8;
    if (meta && !matches) {
        if (tokens > 0 && (found || !strstr(path, "://")))
            hd__log(HD_LOG_WARN, NULL,
                    "%s: its .meta.json is of %lld tokens, and this file has others: " UNKNOWN_MAKER
                    ": write both again, or remove that",
                    printable(c->job, path), (long long)tokens);
        json_decref(meta);
        meta = NULL;
    }
    free(prefix);
    free(bin);
    free(name);
    return meta;
}

/* Does a file, by its meta, have what the first source of another gave? */
static int has_source(const json_t *meta, const json_t *other)
{
    const json_t *path = json_object_get(json_array_get(json_object_get(other, "sources"), 0), "path"), *row;
    size_t i;
    int found = 0;
    json_array_foreach(json_object_get(meta, "sources"), i, row) found |=
        json_equal(json_object_get(row, "path"), path);
    return found;
}

/* A file that was read for this one, and was tokenized again since: of the same text by the same tokenizer, or the name
 * alone was used again, also for what was made of it; NULL: none. */
static const char *find_stale(struct hd__job *job, const char *path, const json_t *meta)
{
    json_t *inputs = json_object_get(meta, HD__LINEAGE_INPUTS), *ends;
    const int few = !strstr(path, "://") && json_object_size(inputs) <= 64;
    const char *from, *found = NULL;
    json_object_foreach(inputs, from, ends)
    {
        uint64_t bytes, hash, own,
            now = few && json_is_string(ends) && hd__ends_with(from, ".bin") ? hd_file_ends(from, &bytes) : 0;
        if (!now || now == strtoull(json_string_value(ends), NULL, 16))
            continue;
        const char *name = hd__arena_format(&job->arena, "%.*s.meta.json", (int)strlen(from) - 4, from);
        json_t *other = json_load_file(name, 0, NULL);
        if (!json_object_get(other, HD__LINEAGE_KEY) && hd__tokens_maker(other, &hash) &&
            hd__tokens_maker(meta, &own) && hash == own && has_source(meta, other))
            found = hd__arena_strdup(&job->arena, from);
        json_decref(other);
    }
    return found;
}

/* ---- all files of a job */

struct made {
    const char *key, *path;
    struct hd__token_maker by;
    int64_t vocab, eod, documents; /* as in hd__token_file */
    const char *chat;
};

struct made_files {
    HD__ARRAY(struct made) list;
};

/* A meta is read once a process, and asked for once behind HTTP: ranks inherit what the launcher found. */
struct hd__token_file hd__train_token_file(const struct hd__compiled *c, const char *path)
{
    struct hd__job *job = c->job;
    uint64_t hash = hd__hash(path, strlen(path), 0);
    for (uint32_t i = 0; i < job->token_files.count; i++)
        if (job->token_files.at[i].path_hash == hash && !strcmp(job->token_files.at[i].path, path))
            return job->token_files.at[i];
    struct hd__token_file file = {.path = hd__arena_strdup(&job->arena, path), .path_hash = hash, .eod = -1};
    json_t *meta = read_meta(c, path);
    file.stale = find_stale(job, path, meta);
    const char *name = hd__tokens_maker(meta, &file.hash), *chat = hd__tokens_template(meta);
    const json_t *eod = json_object_get(meta, "eod");
    if (name) {
        file.tokenizer = hd__arena_strdup(&job->arena, name);
        file.vocab = json_integer_value(json_object_get(meta, "vocab"));
        file.eod = json_is_integer(eod) ? json_integer_value(eod) : -1;
        file.documents = json_integer_value(json_object_get(meta, "documents"));
        file.chat = chat ? hd__arena_strdup(&job->arena, chat) : NULL;
    }
    const char *made_of = json_string_value(json_object_get(meta, HD__LINEAGE_KEY)),
               *split_of = json_string_value(json_object_get(meta, "split_of")); /* of files made before the key */
    file.made_of = made_of    ? hd__arena_strdup(&job->arena, made_of)
                   : split_of ? hd__arena_format(&job->arena, "%s 0:0-0", split_of)
                              : NULL;
    json_decref(meta);
    hd__push(&job->token_files, file);
    return file;
}

static void add_file(const struct hd__compiled *c, struct made_files *to, const char *key, const char *path)
{
    struct hd__token_file file = hd__train_token_file(c, path);
    if (file.tokenizer)
        hd__push(&to->list, ((struct made){key,
                                           printable(c->job, path),
                                           {file.tokenizer, file.hash},
                                           file.vocab,
                                           file.eod,
                                           file.documents,
                                           file.chat}));
}

static void add_source(const struct hd__compiled *c, struct made_files *to, const char *key, const char *source)
{
    const char *path = hd__train_corpus_path(c->job, source);
    struct hd__corpus shards;
    hd__train_corpus_shards(path, &shards, NULL);
    for (uint32_t k = 0; k < shards.files.count; k++)
        add_file(c, to, key, shards.files.at[k].path);
    if (!shards.files.count)
        add_file(c, to, key, path);
    hd__corpus_free(&shards);
}

/* Those of which a meta says what made their tokens. */
static struct made_files list_files(const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    const struct {
        const char *key;
        const struct hd__sources *sources;
    } rows[] = {{"data.train", &job->train}, {"data.val", &job->val}, {"data.test", &job->test}};
    struct made_files all = {0};
    for (size_t r = 0; r < HD__COUNT(rows); r++)
        for (uint64_t i = 0; i < rows[r].sources->count; i++)
            add_source(c, &all, rows[r].key, rows[r].sources->at[i].path);
    return all;
}

static const struct made *find_other(const struct made_files *files, struct hd__token_maker than)
{
    for (uint32_t i = 0; i < files->list.count; i++)
        if (hd__token_makers_differ(files->list.at[i].by, than))
            return &files->list.at[i];
    return NULL;
}

struct hd__token_maker hd__train_token_maker(const struct hd__compiled *c)
{
    if (c->job->data_tokenizer || hd__train_corpus_has_text(c))
        return hd__train_tokenizer(c, NULL);
    struct made_files files = list_files(c);
    struct hd__token_maker maker = files.list.count ? files.list.at[0].by : (struct hd__token_maker){0};
    hd__free_array(&files.list);
    return maker;
}

const char *hd__train_chat_template(const struct hd__compiled *c)
{
    const char *asked = c->job->data_chat_template, *found = asked ? "plain" : NULL;
    if (asked && !hd__train_corpus_is_bare(c))
        return asked;
    struct made_files files = {0};
    for (uint64_t i = 0; i < c->job->train.count; i++)
        if (!strstr(c->job->train.at[i].path, "://")) /* a server may be away */
            add_source(c, &files, "data.train", c->job->train.at[i].path);
    for (uint32_t i = 0; i < files.list.count; i++)
        if (files.list.at[i].chat && (!found || !strcmp(found, "plain")))
            found = files.list.at[i].chat;
    hd__free_array(&files.list);
    return found;
}

const char *hd__train_other_chat_template(const struct hd__compiled *c, const char *chat)
{
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json"};
    const struct hd__chat_template *t = chat ? hd__chat_find(chat) : NULL;
    const char *folder = hd__is_folder(c->info.weights) ? c->info.weights : NULL, *path;
    for (size_t i = 0; i < HD__COUNT(names) && folder && t && hd__chat_open(t); i++)
        if (!access(path = hd__arena_format(&c->job->arena, "%s/%s", folder, names[i]), F_OK))
            return hd__chat_file_lacks(path, hd__chat_open(t)) ? path : NULL; /* the first counts */
    return NULL;
}

/* ---- checks */

static int32_t compare_files(const struct hd__compiled *c, const struct made_files *files, struct hd_error *err)
{
    struct hd__job *job = c->job;
    struct hd__token_maker mine = {0};
    struct hd_error unread = HD_ERROR_INIT;
    if (job->data_tokenizer && open_maker(job, job->data_tokenizer, &mine, &unread))
        return hd__job_fail(job, "data.tokenizer", err, "data.tokenizer: %s", unread.message);
    if (!job->data_tokenizer && hd__train_tokenizer(c, NULL).name) /* of model.from: a warning */
        return HD_OK;
    const struct made *first = &files->list.at[0], *other = find_other(files, mine.name ? mine : first->by);
    if (!other)
        return HD_OK;
    if (mine.name && hd__same_path(mine.name, other->by.name))
        return hd__job_fail(job, "data.tokenizer", err,
                            "data.tokenizer: %s has changed since it made the tokens of %s, %s: restore it, or "
                            "tokenize the text again",
                            job->data_tokenizer, other->key, other->path);
    if (mine.name)
        return hd__job_fail(job, "data.tokenizer", err,
                            "data.tokenizer: %s is not what made the tokens of %s, %s: that was %s (its .meta.json): "
                            "name that one, or tokenize the text again",
                            job->data_tokenizer, other->key, other->path, other->by.name);
    return hd__job_fail(job, other->key, err,
                        "%s: the tokens of %s are by %s (its .meta.json), and those of %s, %s, by %s: their ids "
                        "differ: tokenize the text of one of them again",
                        other->key, other->path, other->by.name, first->key, first->path, first->by.name);
}

/* Megatron-LM names tokens by their prefix. */
static int32_t check_prefixes(struct hd__job *job, const char *key, const struct hd__sources *sources,
                              struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t i = 0; i < sources->count && !rc; i++) {
        const char *path = sources->at[i].path, *bin = hd__arena_format(&job->arena, "%s.bin", path);
        struct stat st;
        if (!strcmp(job->data->use, "tokens") && stat(path, &st) && !stat(bin, &st))
            rc = hd__job_fail(job, key, err, "%s: %s: there is no such file; say %s, which is there", key, path, bin);
    }
    return rc;
}

int32_t hd__train_token_origin(const struct hd__compiled *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    if (check_prefixes(job, "data.train", &job->train, err) || check_prefixes(job, "data.val", &job->val, err) ||
        check_prefixes(job, "data.test", &job->test, err))
        return err->code;
    struct made_files files = list_files(c);
    int32_t rc = files.list.count ? compare_files(c, &files, err) : HD_OK;
    hd__free_array(&files.list);
    return rc;
}

#define OTHER_WORDS "where the ids differ, the weights read other words"

/* Padding is of some ids; more are another tokenizer's. */
static void warn_vocab(const struct hd__compiled *c, const struct made_files *files)
{
    for (uint32_t i = 0; i < files->list.count; i++) {
        const struct made *m = &files->list.at[i];
        if (m->vocab <= 0 || c->info.vocab <= 2 * m->vocab)
            continue;
        hd__log(HD_LOG_WARN, NULL,
                "%s: model.vocab: %lld, and %s, which made the tokens of %s, has %lld ids: the others are never seen",
                hd__job_where(c->job, "model.vocab"), (long long)c->info.vocab, m->by.name, m->key,
                (long long)m->vocab);
        return;
    }
    const char *bytes = c->info.weights ? NULL : hd__train_corpus_bytes(c);
    if (bytes && c->info.vocab > 2 * 256)
        hd__log(HD_LOG_WARN, NULL,
                "%s: model.vocab: %lld, and %s is read as bytes, of which there are 256: the other ids are never seen",
                hd__job_where(c->job, "model.vocab"), (long long)c->info.vocab, bytes);
}

static void warn_from(const struct hd__compiled *c, const struct made_files *files)
{
    struct hd__job *job = c->job;
    const char *from = c->info.weights, *where = hd__job_where(job, "model.from"), *bytes;
    struct hd__token_maker theirs = {0};
    if (hd__is_folder(from))
        theirs = hd__train_tokenizer(c, from);
    if (!theirs.name)
        return;
    if (job->data_tokenizer && hd__token_makers_differ(theirs, hd__train_tokenizer(c, NULL)))
        hd__log(HD_LOG_WARN, NULL,
                "%s: model.from: the tokenizer of %s is another one than data.tokenizer, %s: " OTHER_WORDS, where, from,
                job->data_tokenizer);
    if (job->data_tokenizer)
        return;
    const struct made *other = find_other(files, theirs);
    if (other)
        hd__log(HD_LOG_WARN, NULL,
                "%s: model.from: the tokenizer of %s is not what made the tokens of %s, %s: that was %s (its "
                ".meta.json): " OTHER_WORDS,
                where, from, other->key, other->path, other->by.name);
    else if ((bytes = hd__train_corpus_bytes(c)))
        hd__log(HD_LOG_WARN, NULL,
                "%s: model.from: %s has a tokenizer, and %s is read as bytes, without it: " OTHER_WORDS, where, from,
                bytes);
}

/* Prompts and completions alone go with any template. */
static void warn_chats(const struct hd__compiled *c, const struct made_files *files)
{
    struct hd__job *job = c->job;
    const char *trained = hd__train_chat_template(c), *theirs = hd__train_other_chat_template(c, trained),
               *asked = job->data_chat_template && hd__train_corpus_has_text(c) ? trained : NULL;
    struct made first = {.key = "the text", .chat = asked};
    if (theirs)
        hd__log(HD_LOG_WARN, NULL,
                "%s: model.from: data.train uses chat template %s, but the weights may know only that of %s, which "
                "starts turns differently: use a matching one",
                hd__job_where(job, "model.from"), trained, theirs);
    for (uint32_t i = 0; i < files->list.count; i++) {
        const struct made *m = &files->list.at[i];
        if (!m->chat || !strcmp(m->chat, "plain"))
            continue;
        if (!first.chat || !strcmp(first.chat, "plain"))
            first = *m;
        if (!strcmp(first.chat, m->chat))
            continue;
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: %s: the tokens of %s are rendered by the chat template %s (its .meta.json), and those of %s%s%s by "
            "%s: the model reads two formats: tokenize the text of one of them again",
            hd__job_where(job, m->key), m->key, m->path, m->chat, first.key, first.path ? ", " : "",
            first.path ? hd__arena_format(&job->arena, "%s,", first.path) : "", first.chat);
        return;
    }
}

static const char *id_words(struct hd__job *job, int64_t id)
{
    return id < 0 ? "no id" : hd__arena_format(&job->arena, "id %lld", (long long)id);
}

/* Its first ids, or its last; returns how many. */
static uint64_t read_ids(const struct hd__compiled *c, const char *path, int last, int64_t *ids, uint64_t most)
{
    const struct hd_data_ops *ops = &c->data_choice.component->ops.data;
    struct hd_error unused = HD_ERROR_INIT;
    struct hd_data *data = NULL;
    uint64_t all = 0, n = 0;
    if (!open_data(c, c->data_choice.settings, path, &data, &all, &unused))
        n = HD__MIN(all, most);
    if (n && ops->read(data, last ? all - n : 0, n, ids, &unused))
        n = 0;
    if (data)
        ops->close(data);
    return n;
}

/* Chat templates have ends of their own, and so may the text: then its last id says it. */
static void warn_ends(const struct hd__compiled *c, const struct made_files *files)
{
    const struct made *first = NULL;
    for (uint32_t i = 0; i < files->list.count; i++) {
        const struct made *m = &files->list.at[i];
        if (m->chat || m->documents < 2)
            continue;
        first = first ? first : m;
        int64_t last[2] = {-1, -1};
        if (m->eod == first->eod ||
            (read_ids(c, m->path, 1, &last[0], 1) && read_ids(c, first->path, 1, &last[1], 1) && last[0] == last[1]))
            continue;
        hd__log(HD_LOG_WARN, NULL,
                "%s: %s: documents of %s have %s appended, and those of %s, %s, have %s (--append-eod): tokenize the "
                "text of one of them again",
                hd__job_where(c->job, m->key), m->key, m->path, id_words(c->job, m->eod), first->key, first->path,
                id_words(c->job, first->eod));
        return;
    }
}

/* `ordinary`: whether the id is one of text. */
static int64_t find_eod(const struct hd__compiled *c, int32_t id, int *ordinary)
{
    const char *name = hd__train_tokenizer(c, NULL).name;
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__tokenizer t = {0};
    int64_t own = -1;
    if (name && !hd__tokenizer_open(c->plugins, c->host, NULL, name, &t, &unused))
        own = hd__tokenizer_eod(&t);
    if (own >= 0 && id >= 0 && id < t.info.vocab)
        *ordinary = hd__tokenizer_is_word(&t, id);
    hd__tokenizer_close(&t);
    return own;
}

int64_t hd__train_eod(const struct hd__compiled *c, const char *path)
{
    struct hd__token_file file = hd__train_token_file(c, hd__train_corpus_path(c->job, path));
    return file.eod >= 0 ? file.eod : find_eod(c, -1, NULL);
}

/* An index says where documents end, as what is made of text has it, until data.eod is set. */
static void warn_eod(const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    const struct hd__job_value *asked = hd__job_value_get(job, "data.eod"),
                               *documents = hd__job_value_get(job, "data.documents");
    const int64_t id = asked ? strtoll(asked->text, NULL, 10) : -1;
    int ordinary = 0;
    if (id < 0 || !documents || !strcmp(documents->text, "continue"))
        return;
    const char *name = hd__train_tokenizer(c, NULL).name;
    const int64_t own = find_eod(c, (int32_t)id, &ordinary);
    for (uint64_t i = 0, said = 0; i < job->train.count && !said; i++) {
        const char *path = job->train.at[i].path;
        struct hd__token_file file = hd__train_token_file(c, hd__train_corpus_path(job, path));
        char *prefix = hd__indexed_prefix(path), *index = hd__format("%s.idx", prefix);
        const int64_t end = file.eod >= 0 ? file.eod : own;
        const int indexed = !access(index, F_OK) || hd__train_corpus_is_text(c, path);
        said = end >= 0 && end != id && (indexed || ordinary);
        if (said)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: data.eod: %lld is not the end-of-document token of %s, %lld: documents of %s would end at "
                    "every %lld%s",
                    asked->origin, (long long)id, file.eod >= 0 ? file.tokenizer : name, (long long)end,
                    printable(job, path), (long long)id,
                    indexed ? " instead of where its index says: leave data.eod out"
                            : ", a part of words: name the tokenizer's");
        free(prefix);
        free(index);
    }
}

/* Ids of characters, as nanoGPT's shakespeare_char has them, are counted from 0, where text has no bytes. */
static void warn_characters(const struct hd__compiled *c)
{
    const struct hd__sources *train = &c->job->train;
    const char *bytes = hd__train_corpus_bytes(c);
    for (uint64_t i = 0, n; bytes && i < train->count; i++) {
        int64_t ids[4096], low = 0, high = 0;
        n = hd__ends_with(train->at[i].path, ".npy") ? read_ids(c, train->at[i].path, 0, ids, HD__COUNT(ids)) : 0;
        for (uint64_t k = 0; k < n; k++) {
            low += ids[k] < 9;
            high += ids[k] > 126;
        }
        if (low && !high)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: data.train: %s is read as bytes, and the ids of %s begin at 0 and end below 127, as those of "
                    "characters do: are they bytes, too?",
                    hd__job_where(c->job, "data.train"), bytes, train->at[i].path);
    }
}

void hd__train_token_origin_warn(const struct hd__compiled *c)
{
    struct made_files files = list_files(c);
    warn_from(c, &files);
    warn_vocab(c, &files);
    warn_chats(c, &files);
    warn_ends(c, &files);
    warn_eod(c);
    warn_characters(c);
    if (c->job->data_tokenizer && access(c->job->data_tokenizer, F_OK)) /* of text, it is refused */
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.tokenizer: there is no file %s: training on tokens does not need it, but `heddle sample` and "
                "`heddle ckpt export` do",
                hd__job_where(c->job, "data.tokenizer"), c->job->data_tokenizer);
    for (uint32_t i = 0; i < c->job->token_files.count; i++)
        if (c->job->token_files.at[i].stale)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %s was written anew since this file was made of it: split, shuffle or merge it again",
                    printable(c->job, c->job->token_files.at[i].path), c->job->token_files.at[i].stale);
    hd__free_array(&files.list);
}
