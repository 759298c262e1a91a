#include "service/text/token_cache.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heddle/comm.h"

static const char *const outputs[] = {"bin", "idx", "loss"};

/* ---- names */

/* "corpus" of "/data/corpus/", "web" of "web*.jsonl.gz": for people who look into the folder. */
static void short_name(const char *source, char out[33])
{
    size_t end = strlen(source), n = 0;
    while (end > 1 && source[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin && source[begin - 1] != '/')
        begin--;
    for (; begin < end && n < 32 && source[begin] != '.'; begin++)
        if (isalnum((unsigned char)source[begin]) || strchr("-_", source[begin]))
            out[n++] = source[begin];
    out[n] = 0;
    if (!n)
        strcpy(out, "text");
}

static int32_t make_prefix(struct hd__token_cache *c, struct hd_error *err)
{
    const struct hd__tokenize_config *t = &c->config;
    char name[33], *here = c->source[0] == '/' ? NULL : getcwd(NULL, 0);
    uint64_t tokenizer;
    int32_t rc = hd__file_hash(t->tokenizer->path, &tokenizer, err);
    if (!rc) {
        char *text = hd__format("%s|%s|%s|%s|%" PRId64 "|%u|%s", here ? here : "", c->source, t->tokenizer->plugin,
                                t->field, t->eod, t->flags, t->chat ? t->chat_name : "");
        short_name(c->source, name);
        c->prefix = hd__format("%s/%s-%016" PRIx64, c->folder, name, hd__hash(text, strlen(text), tokenizer));
        free(text);
    }
    free(here);
    return rc;
}

/* Those who wait watch the lock's time. */
static int32_t get_on(void *user, struct hd_error *err)
{
    struct hd__token_cache *c = user;
    double now = hd__now();
    if (c->lock > 0 && now - c->touched >= 1) {
        c->touched = now;
        futimens(c->lock, NULL);
    }
    return c->beat ? c->beat(c->user, err) : HD_OK;
}

/* ---- rows of PREFIX.cache.json */

static json_int_t time_of(const struct stat *st)
{
    return (json_int_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static json_t *row_json(const char *path, const struct stat *st, uint64_t hash)
{
    return json_pack("{s:s, s:I, s:I, s:o}", "path", path, "bytes", (json_int_t)st->st_size, "mtime", time_of(st),
                     "hash", json_sprintf("%016" PRIx64, hash));
}

static int32_t make_row(struct hd__token_cache *c, const char *path, json_t **row, struct hd_error *err)
{
    struct stat before, after;
    uint64_t hash;
    int32_t rc = stat(path, &before) ? hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno))
                                     : hd__file_hash_blocks(path, get_on, c, &hash, err);
    if (rc)
        return rc;
    if (stat(path, &after) || before.st_size != after.st_size || time_of(&before) != time_of(&after))
        return hd_fail(err, HD_E_INVALID, "%s: it changes while it is read", path);
    *row = row_json(path, &before, hash);
    return *row ? HD_OK : hd_fail(err, HD_E_INVALID, "%s: a name that is not UTF-8: rename it", path);
}

static int32_t write_all(const struct hd__token_cache *c, const json_t *all, struct hd_error *err)
{
    char *path = hd__format("%s.cache.json", c->prefix), *part = hd__format("%s.part", path);
    int32_t rc = HD_OK;
    if (json_dump_file(all, part, JSON_INDENT(1)) || rename(part, path))
        rc = hd_fail(err, HD_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    free(part);
    free(path);
    return rc;
}

/* ---- is it there? */

struct looking {
    struct hd__token_cache *cache;
    int compare, hashed;
    int32_t rc; /* of a beat */
    struct hd_error *err;
};

static int32_t look_on(void *user, struct hd_error *err)
{
    struct looking *l = user;
    (void)err;
    return l->rc = get_on(l->cache, l->err);
}

/* Is the file at `path` the one of the row? Its time is noted where its hash says so. */
static int is_same(struct looking *l, json_t *row, const char *path)
{
    struct stat st;
    uint64_t hash;
    if (stat(path, &st) || json_integer_value(json_object_get(row, "bytes")) != (json_int_t)st.st_size)
        return 0;
    if (l->compare == HD__TOKEN_CACHE_SIZES || json_integer_value(json_object_get(row, "mtime")) == time_of(&st))
        return 1;
    const char *was = json_string_value(json_object_get(row, "hash"));
    if (l->compare == HD__TOKEN_CACHE_TIMES || !was || hd__file_hash_blocks(path, look_on, l, &hash, NULL) ||
        strtoull(was, NULL, 16) != hash)
        return 0;
    l->hashed = 1;
    json_object_set_new(row, "mtime", json_integer(time_of(&st)));
    return 1;
}

static int sources_are_same(struct looking *l, const json_t *all)
{
    const struct hd__token_cache *c = l->cache;
    const json_t *files = json_object_get(all, "files");
    if (json_array_size(files) != c->corpus.files.count)
        return 0;
    for (uint32_t i = 0; i < c->corpus.files.count; i++) {
        json_t *row = json_array_get(files, i);
        const char *path = json_string_value(json_object_get(row, "path"));
        if (!path || strcmp(path, c->corpus.files.at[i].path) || !is_same(l, row, path))
            return 0;
    }
    return 1;
}

/* The first output that is not what was written; NULL: all are. */
static const char *find_damage(struct looking *l, const json_t *all)
{
    struct hd__token_cache *c = l->cache;
    const char *bad = NULL;
    c->hash = 0;
    for (size_t i = 0; i < HD__COUNT(outputs) && !bad; i++) {
        json_t *row = json_object_get(all, outputs[i]);
        char *path = hd__format("%s.%s", c->prefix, outputs[i]);
        const char *hash = json_string_value(json_object_get(row, "hash"));
        if (row ? !is_same(l, row, path) : !access(path, F_OK) || strcmp(outputs[i], "loss") != 0)
            bad = outputs[i];
        if (hash)
            c->hash = hd__hash(hash, strlen(hash), c->hash);
        free(path);
    }
    return bad;
}

int32_t hd__token_cache_look(struct hd__token_cache *c, int compare, int *valid, struct hd_error *err)
{
    struct looking l = {.cache = c, .compare = compare, .err = err};
    struct hd_error why = HD_ERROR_INIT;
    char *path = hd__format("%s.cache.json", c->prefix);
    json_t *all = json_load_file(path, 0, NULL);
    const char *bad = NULL;
    int same = all && sources_are_same(&l, all), say = compare == HD__TOKEN_CACHE_HASHES;
    if (same)
        bad = find_damage(&l, all);
    if (all && !same && !l.rc && say)
        hd__log(HD_LOG_INFO, NULL, "%s: the files of %s have changed since %s was written", c->key, c->source,
                c->prefix);
    if (bad && !l.rc && say)
        hd__log(HD_LOG_WARN, NULL, "%s: %s.%s is not what was written there", c->key, c->prefix, bad);
    *valid = same && !bad && !l.rc;
    if (*valid && l.hashed && c->lock > 0 && write_all(c, all, &why))
        hd__log(HD_LOG_WARN, NULL, "%s; the next start has to hash the files again", why.message);
    json_decref(all);
    free(path);
    return l.rc;
}

int32_t hd__token_cache_open(struct hd__token_cache *c, struct hd_error *err)
{
    int32_t rc = hd__corpus_find(&c->source, 1, &c->corpus, err);
    c->config.corpus = &c->corpus;
    return rc ? rc : make_prefix(c, err);
}

void hd__token_cache_close(struct hd__token_cache *c)
{
    hd__corpus_free(&c->corpus);
    free(c->prefix);
    c->prefix = NULL;
}

/* ---- making it */

static int32_t write_rows(struct hd__token_cache *c, struct hd_error *err)
{
    json_t *all = json_object(), *files = json_array(), *row;
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < c->corpus.files.count && !rc; i++) {
        struct hd__corpus_file *f = &c->corpus.files.at[i];
        rc = make_row(c, f->path, &row, err);
        if (!rc && (json_integer_value(json_object_get(row, "mtime")) != f->mtime ||
                    json_integer_value(json_object_get(row, "bytes")) != (json_int_t)f->bytes))
            rc = hd_fail(err, HD_E_INVALID, "%s: it has changed while it was tokenized", f->path);
        if (!rc)
            json_array_append_new(files, row);
    }
    json_object_set_new(all, "files", files);
    for (size_t i = 0; i < HD__COUNT(outputs) && !rc; i++) {
        char *file = hd__format("%s.%s", c->prefix, outputs[i]);
        if (!access(file, F_OK) && !(rc = make_row(c, file, &row, err)))
            json_object_set_new(all, outputs[i], row);
        free(file);
    }
    if (!rc)
        rc = write_all(c, all, err);
    json_decref(all);
    return rc;
}

struct making {
    struct hd__token_cache *cache;
    struct hd__tokenize_print print;
};

static int32_t on_progress(void *user, const struct hd__tokenize_state *state, struct hd_error *err)
{
    struct making *m = user;
    hd__tokenize_print(&m->print, state, err);
    return get_on(m->cache, err);
}

/* Hashes that are newer than it say that its work came to its end: files that are others by now are not its own. */
static void forget_old_progress(const struct hd__token_cache *c)
{
    struct stat all, begun;
    char *hashes = hd__format("%s.cache.json", c->prefix), *progress = hd__format("%s.progress", c->prefix);
    if (!stat(hashes, &all) && !stat(progress, &begun) && time_of(&all) >= time_of(&begun))
        hd__tokenize_progress_remove(&c->config);
    free(hashes);
    free(progress);
}

static int32_t make(struct hd__token_cache *c, struct hd_error *err)
{
    struct hd__tokenize_state state = {0};
    char *what = hd__format("%s: tokenizing %s", c->key, c->source);
    struct making m = {.cache = c, .print = {.what = what}};
    c->config.prefix = c->prefix;
    c->config.overwrite = 1; /* the folder's names are the cache's own */
    c->config.keeps_progress = 1;
    c->config.progress = on_progress;
    c->config.progress_user = &m;
    hd__log(HD_LOG_INFO, NULL, "%s: %u file%s into %s", what, c->corpus.files.count,
            c->corpus.files.count > 1 ? "s" : "", c->prefix);
    forget_old_progress(c);
    int32_t rc = hd__tokenize(&c->config, &state, err);
    hd__tokenize_print_end(&m.print);
    if (!rc && !state.tokens)
        rc = hd_fail(err, HD_E_INVALID, "%s: has no token in %" PRIu64 " documents: name files with text", c->source,
                     state.documents);
    if (!rc)
        rc = write_rows(c, err);
    if (!rc)
        hd__tokenize_progress_remove(&c->config);
    if (!rc)
        hd__log(HD_LOG_INFO, NULL, "%s: %" PRIu64 " documents, %" PRIu64 " tokens in %.1f s", what, state.documents,
                state.tokens, state.seconds);
    free(what);
    return rc;
}

/* ---- waiting for another process: as long as it gets on */

/* Another one each time that the other process gets on. */
static uint64_t sign_of_life(const struct hd__token_cache *c)
{
    struct stat st;
    char *part = hd__format("%s.bin.part", c->prefix), *lock = hd__format("%s.lock", c->prefix);
    int64_t sign[] = {stat(part, &st) ? -1 : (int64_t)st.st_size, stat(lock, &st) ? -1 : (int64_t)time_of(&st)};
    free(part);
    free(lock);
    return hd__hash(sign, sizeof sign, 0);
}

static int32_t wait_for_lock(struct hd__token_cache *c, int *lock, struct hd_error *err)
{
    char holder[128];
    double since = 0, looked = hd__now(), said = -10;
    uint64_t sign = sign_of_life(c);
    int32_t rc = hd__prefix_lock(c->prefix, lock, holder, err);
    while (!rc && *lock == -1) {
        double now = hd__now();
        uint64_t is = sign_of_life(c);
        since = is == sign ? since : 0;
        sign = is;
        if (hd_wait_is_late(&since, looked, c->timeout, now))
            rc = hd_fail(err, HD_E_TIMEOUT,
                         "%s: %s has the lock on %s.lock, and has written nothing for %.0f s: end it, or name another "
                         "data.cache",
                         c->source, holder, c->prefix, c->timeout);
        if (now - said >= 10) {
            hd__log(HD_LOG_INFO, NULL, "%s: waiting for %s, which tokenizes %s into %s", c->key, holder, c->source,
                    c->prefix);
            said = now;
        }
        if (!rc && c->beat)
            rc = c->beat(c->user, err);
        looked = now;
        if (!rc)
            usleep(200000);
        if (!rc)
            rc = hd__prefix_lock(c->prefix, lock, holder, err);
    }
    return rc;
}

int32_t hd__token_cache_make(struct hd__token_cache *c, struct hd_error *err)
{
    int lock = -1, valid = 0;
    int32_t rc = wait_for_lock(c, &lock, err);
    c->lock = lock;
    if (!rc)
        rc = hd__token_cache_look(c, HD__TOKEN_CACHE_HASHES, &valid, err);
    if (!rc && !valid) {
        rc = make(c, err);
        if (!rc)
            rc = hd__token_cache_look(c, HD__TOKEN_CACHE_HASHES, &valid, err);
    }
    c->lock = 0;
    if (!rc && !valid)
        rc = hd_fail(err, HD_E_IO, "%s: what was just written there is not there: does another job write it?",
                     c->prefix);
    if (lock != -1)
        hd__prefix_unlock(c->prefix, lock);
    return rc;
}
