/* All ranks go through the files in the same order: one that a rank cannot open or read it says to the others by its
 * number, and the lowest of those ranks says why. */
#include <stdlib.h>

#include "service/text/corpus.h"
#include "service/train/data/corpus.h"
#include "service/train/session.h"

/* ---- the files of a path */

static void add_file(struct hd__shards *shards, const struct hd__job *job, const char *path, double weight, int goes_on)
{
    struct hd__data_source file = {.path = hd__strdup(path), .weight = weight, .goes_on = goes_on};
    for (uint32_t i = 0; i < job->skipped.count; i++)
        if (!strcmp(job->skipped.at[i].path, path)) {
            file.skipped = 1;
            file.tokens = job->skipped.at[i].tokens;
        }
    hd__push(&shards->paths, (char *)file.path);
    hd__push(&shards->files, file);
}

int32_t hd__train_shards_find(const struct hd__job *job, const struct hd__sources *from, struct hd__shards *shards,
                              struct hd_error *err)
{
    int32_t rc = HD_OK;
    *shards = (struct hd__shards){0};
    for (uint32_t i = 0; from == &job->train && job->keeps_files && i < job->saved_files.count; i++)
        add_file(shards, job, job->saved_files.at[i].path, 1, 0);
    if (shards->files.count)
        return HD_OK;
    for (uint64_t i = 0; i < from->count && !rc; i++) {
        const char *path = hd__train_corpus_path(job, from->at[i].path);
        struct hd__corpus found = {0};
        if (!strcmp(job->data->use, "tokens")) /* other plug-ins know their paths */
            rc = hd__train_corpus_shards(path, &found, err);
        for (uint32_t k = 0; k < found.files.count; k++)
            add_file(shards, job, found.files.at[k].path, from->at[i].weight, k > 0);
        if (!rc && !found.files.count)
            add_file(shards, job, path, from->at[i].weight, 0);
        hd__corpus_free(&found);
    }
    return rc;
}

void hd__train_shards_free(struct hd__shards *shards)
{
    for (uint32_t i = 0; i < shards->paths.count; i++)
        free(shards->paths.at[i]);
    hd__free_array(&shards->paths);
    hd__free_array(&shards->files);
}

/* ---- skipping */

static void skip(struct hd__job *job, const char *path, uint64_t tokens)
{
    for (uint32_t i = 0; i < job->skipped.count; i++)
        if (!strcmp(job->skipped.at[i].path, path)) {
            job->skipped.at[i].tokens = tokens;
            return;
        }
    hd__push(&job->skipped, (struct hd__skipped_file){hd__arena_strdup(&job->arena, path), tokens});
}

/* Out of memory, or a rank that is gone, is no file's fault. */
static int is_of_file(int32_t code)
{
    return code == HD_E_IO || code == HD_E_NOTFOUND || code == HD_E_CORRUPT || code == HD_E_INVALID ||
           code == HD_E_UNSUPPORTED;
}

int32_t hd__train_shards_open(struct hd__job *job, struct hd__shards *shards, struct hd__data_config *config, int skips,
                              struct hd__data **data, struct hd_error *err)
{
    int32_t failed = -1, rc;
    config->sources = shards->files.at;
    config->n_sources = shards->files.count;
    config->failed = &failed;
    while ((rc = hd__data_open(config, data, err)) && skips && failed >= 0 && is_of_file(rc)) {
        struct hd__data_source *file = &shards->files.at[failed];
        hd__log(HD_LOG_WARN, NULL, "%s; skipped, as data.on_error says", err->message);
        skip(job, file->path, 0);
        file->skipped = 1;
        file->tokens = 0;
    }
    return rc;
}

int32_t hd__train_shards_scan(struct hd__job *job, struct hd__data *data, int skips, struct hd_error *err)
{
    int32_t rc, file;
    while ((rc = hd__data_scan(data, (uint64_t)job->check_tokens, err)) && skips && is_of_file(rc) &&
           (file = hd__data_failed(data)) >= 0) {
        uint64_t tokens;
        int skipped;
        hd__log(HD_LOG_WARN, NULL, "%s; skipped, as data.on_error says", err->message);
        skip(job, hd__data_file(data, (uint32_t)file, &tokens, &skipped), 0);
        if ((rc = hd__data_skip(data, (uint32_t)file, err)))
            return rc;
    }
    return rc;
}

static int32_t reopen(struct hd__train_session *s, struct hd_error *err)
{
    hd__train_feed_close(s->train_feed);
    s->train_feed = NULL;
    return hd__train_feed_open(s->compiled, s->env->rank, HD__FEED_TRAIN, &s->train_feed, err);
}

/* Does the feed skip what the job does? */
static int is_current(const struct hd__job *job, const struct hd__data *data)
{
    int current = 1;
    for (uint32_t k = 0; k < hd__data_files(data); k++) {
        uint64_t tokens;
        int skipped, wanted = 0;
        const char *path = hd__data_file(data, k, &tokens, &skipped);
        for (uint32_t i = 0; i < job->skipped.count; i++)
            if (!strcmp(job->skipped.at[i].path, path)) {
                wanted = 1;
                current &= job->skipped.at[i].tokens == tokens;
            }
        current &= wanted == skipped;
    }
    return current;
}

/* The first file from *at on that any rank skips; 0: there is none. */
static int32_t next_skipped(struct hd__train_session *s, uint32_t *at, int *mine, int32_t *found, struct hd_error *err)
{
    const struct hd__data *data = hd__train_feed_data(s->train_feed);
    uint32_t n = hd__data_files(data), k;
    uint64_t tokens;
    int32_t rc;
    for (k = *at, *mine = 0; k < n && !*mine; k += !*mine)
        hd__data_file(data, k, &tokens, mine);
    rc = hd__exec_all_reduce_max(s->exec, *mine ? (int32_t)(n - k) : 0, found, err);
    *mine &= *found == (int32_t)(n - k);
    *at = n - (uint32_t)*found;
    return rc;
}

/* Are the files of all ranks the same? Numbers of 31 bits, of which the highest is the lowest. */
static int32_t compare_files(struct hd__train_session *s, int with_tokens, struct hd_error *err)
{
    const struct hd__data *data = hd__train_feed_data(s->train_feed);
    uint64_t hash = hd__data_files(data);
    int32_t high, low, rc;
    for (uint32_t k = 0; k < hd__data_files(data); k++) {
        uint64_t tokens;
        int skipped;
        const char *path = hd__data_file(data, k, &tokens, &skipped);
        hash = hd__hash(path, strlen(path), hash);
        if (with_tokens)
            hash = hd__hash(&tokens, sizeof tokens, hash);
    }
    int32_t mine = (int32_t)(hash & INT32_MAX);
    if ((rc = hd__exec_all_reduce_max(s->exec, mine, &high, err)) ||
        (rc = hd__exec_all_reduce_max(s->exec, -mine, &low, err)) || high == -low)
        return rc;
    return hd__job_fail(s->compiled->job, "data.train", err,
                        with_tokens ? "data.train: the files of this rank have other tokens than those of another rank"
                                    : "data.train: this rank has other files than another rank");
}

static int is_saved(const struct hd__job *job, const char *path)
{
    for (uint32_t i = 0; i < job->saved_files.count; i++)
        if (!strcmp(job->saved_files.at[i].path, path))
            return 1;
    return !job->saved_files.count;
}

static int has_file(const struct hd__data *data, const char *path)
{
    uint64_t tokens;
    int skipped;
    for (uint32_t k = 0; k < hd__data_files(data); k++)
        if (!strcmp(hd__data_file(data, k, &tokens, &skipped), path))
            return 1;
    return 0;
}

/* A folder or a pattern may have other files than when the checkpoint was made. A file that is gone keeps its place
 * where it may be skipped; else sequences have other numbers. 1: the feed has to be opened again. */
static int compare_with_saved(struct hd__train_session *s)
{
    struct hd__job *job = s->compiled->job;
    const struct hd__data *data = hd__train_feed_data(s->train_feed);
    const char *gone = NULL, *added = NULL;
    uint64_t tokens;
    int skipped;
    for (uint32_t i = 0; i < job->saved_files.count; i++)
        if (!has_file(data, job->saved_files.at[i].path))
            gone = job->saved_files.at[i].path;
    for (uint32_t k = 0; k < hd__data_files(data); k++)
        if (!is_saved(job, hd__data_file(data, k, &tokens, &skipped)))
            added = hd__data_file(data, k, &tokens, &skipped);
    if (!gone && !added)
        return 0;
    if (added || job->train.weighted || job->on_error != HD__ON_ERROR_SKIP) {
        if (!s->env->rank)
            hd__log(HD_LOG_WARN, NULL,
                    "data.train has other files than when the checkpoint was made (%u, and now %u): %s is %s, so "
                    "sequences are not those that would have followed",
                    job->saved_files.count, hd__data_files(data), added ? added : gone, added ? "new" : "not there");
        return 0;
    }
    job->keeps_files = 1;
    for (uint32_t i = 0; i < job->saved_files.count; i++)
        if (!has_file(data, job->saved_files.at[i].path)) {
            if (!s->env->rank)
                hd__log(HD_LOG_WARN, NULL, "%s: is not there; skipped, as data.on_error says",
                        job->saved_files.at[i].path);
            skip(job, job->saved_files.at[i].path, job->saved_files.at[i].tokens);
        }
    return 1;
}

int32_t hd__train_shards_agree(struct hd__train_session *s, struct hd_error *err)
{
    struct hd__job *job = s->compiled->job;
    int32_t rc = HD_OK, again = 1, found, stale = compare_with_saved(s);
    if (job->on_error != HD__ON_ERROR_SKIP && is_current(job, hd__train_feed_data(s->train_feed)))
        return HD_OK;
    while (!rc && again) {
        if (stale || !is_current(job, hd__train_feed_data(s->train_feed)))
            rc = reopen(s, err);
        stale = 0;
        if (!rc)
            rc = compare_files(s, 0, err);
        for (uint32_t at = 0, mine = 1; !rc && mine; at++) {
            int is_mine;
            rc = next_skipped(s, &at, &is_mine, &found, err);
            mine = found > 0;
            if (!rc && found && !is_mine) {
                uint64_t tokens;
                int skipped;
                const char *path = hd__data_file(hd__train_feed_data(s->train_feed), at, &tokens, &skipped);
                hd__log(HD_LOG_WARN, NULL, "%s: skipped, as another rank cannot open it", path);
                skip(job, path, 0);
            }
        }
        if (!rc)
            rc = hd__exec_all_reduce_max(s->exec, !is_current(job, hd__train_feed_data(s->train_feed)), &again, err);
    }
    return rc ? rc : compare_files(s, 1, err);
}

/* ---- while it trains */

/* File `number` is skipped from here on; `why`: what this rank has met there, or NULL. */
static int32_t skip_read(struct hd__train_session *s, int32_t number, const char *why, int64_t sequence,
                         struct hd_error *err)
{
    struct hd__job *job = s->compiled->job;
    uint64_t tokens;
    int skipped;
    int32_t speaker, rc, mine = why ? s->env->size - s->env->rank : 0;
    const char *path = hd__data_file(hd__train_feed_data(s->train_feed), (uint32_t)number, &tokens, &skipped);
    if ((rc = hd__exec_all_reduce_max(s->exec, mine, &speaker, err)))
        return rc;
    if (why && mine == speaker)
        hd__log(HD_LOG_WARN, NULL, "%s; skipped from sequence %lld on, as data.on_error says", why,
                (long long)sequence);
    skip(job, path, tokens);
    return hd__train_feed_skip(s->train_feed, (uint32_t)number, sequence, err);
}

int32_t hd__train_shards_ready(struct hd__train_session *s, int64_t sequence, struct hd_error *err)
{
    int32_t rc = HD_OK, failed = 0;
    if (s->compiled->job->on_error != HD__ON_ERROR_SKIP)
        return HD_OK;
    do {
        struct hd_error why = HD_ERROR_INIT;
        int32_t mine = hd__train_feed_wait(s->train_feed, &why), file = -1;
        if (mine && is_of_file(mine))
            file = hd__data_failed(hd__train_feed_data(s->train_feed));
        if (mine && file < 0) {
            *err = why;
            return mine;
        }
        rc = hd__exec_all_reduce_max(s->exec, file + 1, &failed, err);
        if (!rc && failed)
            rc = skip_read(s, failed - 1, file + 1 == failed ? why.message : NULL, sequence, err);
    } while (!rc && failed);
    return rc;
}

/* ---- checkpoints */

json_t *hd__train_shards_json(const struct hd__train_session *s)
{
    const struct hd__job *job = s->compiled->job;
    const struct hd__data *data = hd__train_feed_data(s->train_feed);
    json_t *files = job->on_error == HD__ON_ERROR_SKIP || hd__data_files(data) > 1 ? json_array() : NULL;
    for (uint32_t k = 0; files && k < hd__data_files(data); k++) {
        uint64_t tokens;
        int skipped;
        const char *path = hd__data_file(data, k, &tokens, &skipped);
        json_array_append_new(
            files, json_pack("{s:s,s:I,s:b}", "path", path, "tokens", (json_int_t)tokens, "skipped", skipped));
    }
    return files;
}

void hd__train_shards_load(struct hd__job *job, const json_t *files)
{
    size_t i;
    json_t *file;
    job->saved_files.count = 0;
    json_array_foreach(files, i, file)
    {
        const char *path = json_string_value(json_object_get(file, "path"));
        json_int_t tokens = json_integer_value(json_object_get(file, "tokens"));
        int skipped = json_is_true(json_object_get(file, "skipped"));
        if (path && tokens >= 0)
            hd__push(&job->saved_files,
                     (struct hd__skipped_file){hd__arena_strdup(&job->arena, path), (uint64_t)tokens});
        for (uint32_t k = 0; path && k < job->skipped.count && !skipped; k++)
            skipped = !strcmp(job->skipped.at[k].path, path);
        if (path && tokens >= 0 && skipped)
            skip(job, path, (uint64_t)tokens);
    }
}
