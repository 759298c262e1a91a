#include "service/train/data/corpus.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "service/text/documents.h"
#include "service/text/token_cache.h"
#include "service/train/data/batch_feed.h"
#include "service/train/data/frequencies.h"
#include "service/train/data/token_origin.h"

#define BEAT "data/tokens/beat"
#define HASH "data/tokens/hash"
enum { BEAT_SECONDS = 5 };

struct corpus {
    const struct hd__compiled *compiled;
    struct hd__job *job;
    struct hd__tokenizer tokenizer;
    int64_t eod;
    const struct hd__chat_template *chat;
    const char *key; /* that says the tokenizer: "data.tokenizer", "model.from" */
    int how, met;    /* met: the first rank of this machine has them */
    int32_t missing;
    struct hd_store *store; /* gets beats; may be NULL */
    double beaten;
    uint64_t beats;
};

/* ---- which of the paths are text */

static int is_value(struct hd__job *job, const char *key, const char *value)
{
    const struct hd__job_value *v = hd__job_value_get(job, key);
    return v && !strcmp(v->text, value);
}

static const struct hd__tokenized *find_tokenized(const struct hd__job *job, const char *path)
{
    for (uint32_t i = 0; i < job->tokenized.count; i++)
        if (!strcmp(job->tokenized.at[i].path, path))
            return &job->tokenized.at[i];
    return NULL;
}

const char *hd__train_corpus_path(const struct hd__job *job, const char *path)
{
    const struct hd__tokenized *t = find_tokenized(job, path);
    return t ? t->tokens : path;
}

static int is_pattern(const char *path)
{
    struct stat st;
    return stat(path, &st) && strpbrk(path, "*?[") && !strstr(path, "://");
}

int32_t hd__train_corpus_shards(const char *path, struct hd__corpus *shards, struct hd_error *err)
{
    struct stat st;
    *shards = (struct hd__corpus){0};
    if (is_pattern(path) ? hd__corpus_is_tokens_name(path) : !stat(path, &st) && S_ISDIR(st.st_mode))
        return hd__corpus_find_tokens(path, shards, err);
    return HD_OK;
}

static int holds_shards(const char *path)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__corpus shards;
    int found = !hd__train_corpus_shards(path, &shards, &unused) && shards.files.count;
    hd__corpus_free(&shards);
    return found;
}

static int is_folder_or_pattern(const char *path)
{
    struct stat st;
    return stat(path, &st) ? strpbrk(path, "*?[") != NULL : S_ISDIR(st.st_mode);
}

/* Without data.tokenizer a model of bytes reads text as it is, and other data plug-ins know their paths. */
int hd__train_corpus_is_text(const struct hd__compiled *c, const char *path)
{
    struct hd__job *job = c->job;
    if (hd__corpus_is_tokens_name(path) || strstr(path, "://") || holds_shards(path)) /* behind a URL: as they are */
        return 0;
    if (job->data_tokenizer)
        return 1;
    if (strcmp(job->data->use, "tokens") != 0 || !is_value(job, "data.format", "auto"))
        return 0;
    return is_folder_or_pattern(path) || (c->info.weights && c->info.vocab != 256 && hd__corpus_is_text_name(path));
}

int hd__train_corpus_has_text(const struct hd__compiled *c)
{
    const struct hd__sources *both[] = {&c->job->train, &c->job->val};
    int found = 0;
    for (size_t k = 0; k < HD__COUNT(both); k++)
        for (uint64_t i = 0; i < both[k]->count; i++)
            found |= hd__train_corpus_is_text(c, both[k]->at[i].path);
    return found;
}

/* Counts the prompts with completions among the first lines of a source. */
static void count_bare(const char *path, uint64_t *bare, uint64_t *lines)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__corpus files = {0};
    struct hd__documents *documents = NULL;
    struct hd__document d;
    int more = !hd__corpus_list(path, &files, &unused) &&
               !hd__documents_open(&files, (struct hd__documents_position){0}, &documents, &unused);
    for (size_t i = 0; i < 1024 && more && !hd__documents_next(documents, &d, &more, &unused) && more; i++) {
        json_t *line = json_loadb(d.text, d.bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        *bare += json_object_get(line, "completion") != NULL;
        ++*lines;
        json_decref(line);
    }
    hd__documents_close(documents);
    hd__corpus_free(&files);
}

int hd__train_corpus_is_bare(const struct hd__compiled *c)
{
    uint64_t bare = 0, lines = 0;
    for (uint64_t i = 0; i < c->job->train.count; i++)
        if (hd__train_corpus_is_text(c, c->job->train.at[i].path))
            count_bare(c->job->train.at[i].path, &bare, &lines);
    return bare && bare == lines;
}

int hd__train_corpus_has_url(const struct hd__job *job)
{
    const struct hd__sources *all[] = {&job->train, &job->val, &job->test};
    int found = 0;
    for (size_t k = 0; k < HD__COUNT(all); k++)
        for (uint64_t i = 0; i < all[k]->count; i++)
            found |= strstr(all[k]->at[i].path, "://") != NULL;
    return found;
}

const char *hd__train_corpus_bytes(const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    int all = is_value(job, "data.format", "bytes"),
        some = is_value(job, "data.format", "auto") && c->info.vocab == 256;
    for (uint64_t i = 0; i < job->train.count && !strcmp(job->data->use, "tokens"); i++) {
        const char *path = job->train.at[i].path;
        if (all || (some && !hd__corpus_is_tokens_name(path) && !strstr(path, "://") && !is_folder_or_pattern(path)))
            return path;
    }
    return NULL;
}

/* ---- the tokenizer */

/* Does the plug-in read what the cache has? */
static int32_t check_plugin(struct hd__job *job, struct hd_error *err)
{
    if (strcmp(job->data->use, "tokens") != 0)
        return hd__job_fail(job, "data.tokenizer", err,
                            "data.tokenizer: data.use is %s, which reads its paths itself: leave one of them out",
                            job->data->use);
    if (!is_value(job, "data.format", "auto") && !is_value(job, "data.format", "megatron"))
        return hd__job_fail(job, "data.format", err,
                            "data.format: with data.tokenizer the files are text, and what is made of them is "
                            "megatron: leave it out");
    return HD_OK;
}

/* Before hours of tokenizing: what the plug-in would refuse then of the tokens. */
static int32_t check_reading(struct hd__job *job, struct hd_error *err)
{
    const struct hd__job_value *type = hd__job_value_get(job, "data.token_dtype");
    if (type && strcmp(type->origin, "default") != 0)
        return hd__job_fail(job, "data.token_dtype", err,
                            "data.token_dtype: what is made of text says its type itself: leave it out");
    if (is_value(job, "data.loss", "completion") && !job->data_chat_template)
        return hd__job_fail(job, "data.loss", err,
                            "data.loss: completion counts what data.chat_template says of text: set that, or say all");
    return HD_OK;
}

enum { ALWAYS = 1, NEVER = 2 }; /* data.append_eod */

static int32_t find_eod(struct corpus *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    c->eod = job->data_append_eod == NEVER ? -1 : hd__tokenizer_eod(&c->tokenizer);
    if (c->eod >= 0 || job->data_append_eod != ALWAYS)
        return HD_OK;
    return hd__job_fail(job, "data.append_eod", err,
                        "data.append_eod: %s names no token that ends a document: say which by `heddle data tokenize "
                        "--eod TOKEN`, and name its tokens in data.train",
                        c->tokenizer.path);
}

static int32_t check_vocab(struct corpus *c, struct hd_error *err)
{
    int64_t has = c->tokenizer.info.vocab, model = c->compiled->info.vocab;
    const char *from = c->compiled->info.weights;
    if (has <= model)
        return HD_OK;
    if (from)
        return hd__job_fail(c->job, c->key, err,
                            "%s: %s has %lld ids, and the model of %s has rows for %lld: enlarge it in transformers "
                            "(resize_token_embeddings, save_pretrained)%s",
                            c->key, c->tokenizer.path, (long long)has, from, (long long)model,
                            c->job->data_tokenizer ? ", or take its own tokenizer" : "");
    return hd__job_fail(c->job, hd__job_value_get(c->job, "model.vocab") ? "model.vocab" : c->key, err,
                        "model.vocab: %lld, and %s has %lld ids: say model.vocab: %lld, or more", (long long)model,
                        c->tokenizer.path, (long long)has, (long long)has);
}

static int32_t find_chat(struct corpus *c, struct hd_error *err)
{
    const char *name = c->job->data_chat_template;
    c->chat = name ? hd__chat_find(name) : NULL;
    if (!name)
        return HD_OK;
    if (!c->chat)
        return hd__job_fail(c->job, "data.chat_template", err, "data.chat_template: %s: " HD__CHAT_THERE_ARE, name);
    if (hd__chat_check(&c->tokenizer, c->chat, err))
        return hd__job_fail(c->job, "data.chat_template", err, "data.chat_template: %s", err->message);
    return HD_OK;
}

static int32_t open_tokenizer(struct corpus *c, const char *key, const char *source, struct hd_error *err)
{
    struct hd__job *job = c->job;
    const char *path = job->data_tokenizer ? job->data_tokenizer : c->compiled->info.weights;
    c->key = job->data_tokenizer ? "data.tokenizer" : "model.from";
    int32_t rc = job->data_tokenizer ? check_plugin(job, err) : HD_OK;
    rc = rc ? rc : check_reading(job, err);
    if (rc)
        return rc;
    struct hd__corpus files = {0};
    if (!path && hd__corpus_list(source, &files, err))
        return hd__job_fail(job, key, err, "%s: %s", key, err->message);
    hd__corpus_free(&files);
    if (!path)
        return hd__job_fail(
            job, key, err,
            "%s: %s: a folder or a pattern that is not of token files alone (.bin, .npy) is read as text, "
            "and text needs a tokenizer: set data.tokenizer: FILE (tokenizer.json, tokenizer.model), "
            "or name files of tokens",
            key, source);
    if ((rc = hd__tokenizer_open(c->compiled->plugins, c->compiled->host, NULL, path, &c->tokenizer, err))) {
        hd__job_fail(job, c->key, err, "%s: %s%s", c->key, err->message,
                     job->data_tokenizer ? "" : "; data.tokenizer names another, for text");
        return err->code = rc == HD_E_IO || rc == HD_E_NOMEM ? rc : HD_E_INVALID;
    }
    rc = check_vocab(c, err);
    if (!rc)
        rc = find_chat(c, err);
    return rc ? rc : find_eod(c, err);
}

/* ---- one source */

static int32_t beat(void *user, struct hd_error *err)
{
    struct corpus *c = user;
    double now = hd__now();
    if (!c->store || now - c->beaten < BEAT_SECONDS)
        return HD_OK;
    c->beaten = now;
    c->beats++;
    return hd__store_put(c->store, BEAT, &c->beats, sizeof c->beats, err);
}

static void say(const struct corpus *c, const struct hd__token_cache *cache)
{
    char bytes[32];
    printf("%s: %s: %u file%s of %s would be tokenized by %s into %s\n", cache->key, cache->source,
           cache->corpus.files.count, cache->corpus.files.count > 1 ? "s" : "",
           hd__bytes_text(cache->corpus.bytes, bytes), c->tokenizer.path, cache->prefix);
}

static int32_t prepare_source(struct corpus *c, const char *key, const char *source, struct hd_error *err)
{
    struct hd__job *job = c->job;
    struct hd__token_cache cache = {.config = {.tokenizer = &c->tokenizer,
                                               .field = job->data_field,
                                               .eod = c->eod,
                                               .endless = job->data_append_eod == NEVER,
                                               .chat = c->chat,
                                               .chat_name = job->data_chat_template,
                                               .flags = HD_TOKENIZER_SPECIAL | HD_TOKENIZER_FRAME},
                                    .source = source,
                                    .folder = job->data_cache,
                                    .key = key,
                                    .timeout = job->comm_timeout,
                                    .beat = beat,
                                    .user = c};
    const int compare = c->met                     ? HD__TOKEN_CACHE_SIZES
                        : c->how == HD__CORPUS_SAY ? HD__TOKEN_CACHE_HASHES
                                                   : HD__TOKEN_CACHE_TIMES;
    int valid = 0, why = 0;
    int32_t rc = hd__token_cache_open(&cache, err);
    if (!rc)
        rc = hd__token_cache_look(&cache, compare, &valid, err);
    if (!rc && !valid && c->how != HD__CORPUS_LOOK)
        why = hd__can_write(hd__arena_format(&job->arena, "%s.lock", cache.prefix));
    if (why && c->how == HD__CORPUS_MAKE) /* a folder that is read alone */
        rc = hd__token_cache_look(&cache, HD__TOKEN_CACHE_HASHES, &valid, err);
    if (!rc && !valid && why) {
        hd__token_cache_close(&cache);
        return hd__job_fail(job, "data.cache", err, "data.cache: %s: %s", job->data_cache, strerror(why));
    }
    for (uint32_t i = 0; i < cache.corpus.files.count && !rc && !valid && c->chat; i++)
        if (!cache.corpus.files.at[i].lines)
            rc = hd_fail(err, HD_E_INVALID, "%s: is no file of JSON lines, and a chat template is for these alone",
                         cache.corpus.files.at[i].path);
    if (!rc && !valid && c->how != HD__CORPUS_LOOK)
        rc = hd__tokenize_look(&cache.config, err);
    if (!rc && !valid && c->how != HD__CORPUS_LOOK)
        hd__tokenize_warn_of_files(&cache.corpus);
    if (!rc && !valid && c->how == HD__CORPUS_MAKE) {
        rc = hd__token_cache_make(&cache, err);
        valid = !rc;
    }
    if (!rc && !valid && c->how == HD__CORPUS_SAY)
        say(c, &cache);
    if (valid)
        hd__push(&job->tokenized,
                 (struct hd__tokenized){.path = source,
                                        .tokens = hd__arena_format(&job->arena, "%s.bin", cache.prefix),
                                        .hash = cache.hash});
    c->missing += !valid;
    hd__token_cache_close(&cache);
    if (!rc)
        return HD_OK;
    int32_t code = rc == HD_E_IO || rc == HD_E_NOMEM || rc == HD_E_TIMEOUT || rc == HD_E_PEER ? rc : HD_E_INVALID;
    hd__job_fail(job, key, err, "%s: %s", key, err->message);
    return err->code = code;
}

static int32_t prepare_sources(struct corpus *c, const char *key, const struct hd__sources *sources,
                               struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t i = 0; i < sources->count && !rc; i++) {
        const char *path = sources->at[i].path;
        if (!hd__train_corpus_is_text(c->compiled, path) || find_tokenized(c->job, path))
            continue;
        if (!c->tokenizer.handle)
            rc = open_tokenizer(c, key, path, err);
        if (!rc)
            rc = prepare_source(c, key, path, err);
    }
    return rc;
}

/* data.train and all sets of data.val. */
static int32_t prepare(struct corpus *c, struct hd_error *err)
{
    int32_t rc = prepare_sources(c, "data.train", &c->job->train, err);
    if (!rc)
        rc = prepare_sources(c, "data.val", &c->job->val, err);
    hd__tokenizer_close(&c->tokenizer);
    return rc;
}

int32_t hd__train_corpus_prepare(const struct hd__compiled *compiled, int how, int32_t *missing, struct hd_error *err)
{
    struct corpus c = {.compiled = compiled, .job = compiled->job, .how = how};
    int32_t rc = hd__train_token_origin(compiled, err);
    if (!rc)
        rc = prepare(&c, err);
    *missing = c.missing;
    return rc;
}

int32_t hd__train_corpus_make(const struct hd__compiled *compiled, const char *key, const struct hd__sources *sources,
                              struct hd_error *err)
{
    struct corpus c = {.compiled = compiled, .job = compiled->job, .how = HD__CORPUS_MAKE};
    int32_t rc = prepare_sources(&c, key, sources, err);
    hd__tokenizer_close(&c.tokenizer);
    return rc;
}

/* ---- ranks */

/* Until all are here, as long as one that still writes gets on: a rank that dies ends the wait by itself. */
static int32_t wait_for_all(struct hd_store *store, double timeout, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    uint64_t before = 0, beats = 0;
    for (;;) {
        int32_t rc = hd__store_barrier(store, "tokens of data.train", hd__now() + timeout, &why);
        size_t bytes = sizeof beats;
        if (rc == HD_E_TIMEOUT && !hd__store_get(store, BEAT, &beats, &bytes, hd__now() + 1, NULL) && beats != before) {
            before = beats;
            continue;
        }
        if (rc)
            *err = why;
        return rc;
    }
}

/* Every machine has made its own: of the same files? job->tokenized has them as they were found, which may differ. */
static int32_t compare_hash(struct hd__job *job, const struct hd__launch_env *env, struct hd_store *store,
                            struct hd_error *err)
{
    const struct hd__sources *both[] = {&job->train, &job->val};
    uint64_t mine = 0, rank0 = 0;
    size_t bytes = sizeof rank0;
    const struct hd__tokenized *t;
    for (size_t k = 0; k < HD__COUNT(both); k++)
        for (uint64_t i = 0; i < both[k]->count; i++)
            if ((t = find_tokenized(job, both[k]->at[i].path)))
                mine = hd__hash(&t->hash, sizeof mine, mine);
    if (!env->rank)
        return hd__store_put(store, HASH, &mine, sizeof mine, err);
    int32_t rc = hd__store_get(store, HASH, &rank0, &bytes, hd__now() + job->comm_timeout, err);
    if (rc || mine == rank0)
        return rc;
    return hd__job_fail(
        job, "data.train", err,
        "data.train: rank %d has other tokens than rank 0: all machines need the same text and the same "
        "tokenizer",
        env->rank);
}

int32_t hd__train_corpus_meet(const struct hd__compiled *compiled, const struct hd__launch_env *env,
                              struct hd_store *store, struct hd_error *err)
{
    struct hd__job *job = compiled->job;
    struct corpus c = {.compiled = compiled, .job = job, .how = HD__CORPUS_LOOK, .store = store};
    int32_t rc = HD_OK, leads = env->local_rank == 0;
    if (!store || !hd__train_corpus_has_text(compiled))
        return HD_OK;
    if (leads) {
        uint32_t before = job->tokenized.count;
        c.how = HD__CORPUS_MAKE;
        rc = prepare(&c, err);
        if (!rc && job->tokenized.count != before) /* they could not be looked at before the start */
            rc = hd__train_feed_check(compiled, HD__FEED_TRAIN, 1, err);
        if (!rc && job->tokenized.count != before && job->eval_every)
            rc = hd__train_feed_check_sets(compiled, 1, err);
        if (!rc && job->tokenized.count != before)
            hd__train_frequencies_check(compiled, job->eval_every > 0);
    } else if (env->local_rank == 1) {
        rc = prepare(&c, err);
        if (!rc && c.missing)
            hd__log(HD_LOG_INFO, NULL,
                    "waiting for the first rank of this machine, which makes the tokens of %s or finds them",
                    job->train.at[0].path);
    }
    if (!rc)
        rc = wait_for_all(store, job->comm_timeout, err);
    c.missing = 0;
    c.how = HD__CORPUS_LOOK;
    c.met = 1;
    if (!rc)
        rc = prepare(&c, err);
    if (!rc && c.missing)
        rc = hd__job_fail(job, "data.cache", err,
                          "data.cache: %s: rank %d does not find there what the first rank of its machine has written: "
                          "name a folder that both see",
                          job->data_cache, env->rank);
    return rc ? rc : compare_hash(job, env, store, err);
}
