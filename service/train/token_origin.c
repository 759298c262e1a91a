/* Which tokenizer made the tokens of a job, as PREFIX.meta.json beside them says, and which one the job names. */
#include "service/train/token_origin.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "service/text/indexed.h"
#include "service/text/tokenize.h"
#include "service/train/corpus.h"

/* NULL: there is none, or one of other tokens. */
static json_t *read_meta(const char *path)
{
    char *prefix = hd__indexed_prefix(path), *bin = hd__format("%s.bin", prefix),
         *name = hd__format("%s.meta.json", prefix);
    struct stat st;
    json_t *meta = stat(bin, &st) || !S_ISREG(st.st_mode) ? NULL : json_load_file(name, 0, NULL);
    json_int_t tokens = json_integer_value(json_object_get(meta, "tokens"));
    if (meta && (tokens <= 0 || st.st_size % tokens || st.st_size / tokens > 8)) {
        json_decref(meta);
        meta = NULL;
    }
    free(prefix);
    free(bin);
    free(name);
    return meta;
}

struct origin {
    const char *tokenizer; /* of the job: a file or a folder */
    uint64_t hash;         /* of its file */
    int hashed;
    char *file, *made_by; /* tokens of another one, and the other one */
};

static int32_t hash_mine(struct origin *o, struct hd_error *err)
{
    char *file = NULL;
    int32_t rc = o->hashed ? HD_OK : hd__tokenizer_file(o->tokenizer, &file, err);
    if (!rc && file)
        rc = hd__file_hash(file, &o->hash, err);
    o->hashed |= !rc && file;
    free(file);
    return rc;
}

static int32_t compare(struct origin *o, const char *path, struct hd_error *err)
{
    json_t *meta = o->file ? NULL : read_meta(path);
    int32_t rc = json_object_get(meta, "tokenizer") ? hash_mine(o, err) : HD_OK;
    const char *by = !rc && o->hashed ? hd__tokens_made_by_other(meta, o->hash) : NULL;
    if (by) {
        o->file = hd__strdup(path);
        o->made_by = hd__strdup(by);
    }
    json_decref(meta);
    return rc;
}

static int32_t compare_all(struct origin *o, const struct hd__sources *sources, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t i = 0; i < sources->count && !rc; i++) {
        struct hd__corpus shards;
        hd__train_corpus_shards(sources->at[i].path, &shards, NULL);
        for (uint32_t k = 0; k < shards.files.count && !rc; k++)
            rc = compare(o, shards.files.at[k].path, err);
        if (!rc)
            rc = compare(o, sources->at[i].path, err);
        hd__corpus_free(&shards);
    }
    return rc;
}

static int is_folder(const char *path)
{
    struct stat st;
    return path && !stat(path, &st) && S_ISDIR(st.st_mode);
}

int32_t hd__train_token_origin(const struct hd__compiled *c, int warn, struct hd_error *err)
{
    struct hd__job *job = c->job;
    const struct {
        const char *key;
        const struct hd__sources *sources;
    } rows[] = {{"data.train", &job->train}, {"data.val", &job->val}, {"data.test", &job->test}};
    struct hd_error unread = HD_ERROR_INIT;
    int named = job->data_tokenizer != NULL;
    struct origin o = {.tokenizer = named ? job->data_tokenizer : c->info.weights};
    if (named ? warn : !warn || !is_folder(o.tokenizer))
        return HD_OK;
    for (size_t r = 0; r < HD__COUNT(rows) && !o.file; r++) {
        if (compare_all(&o, rows[r].sources, &unread)) /* a folder of weights may have no tokenizer */
            return named ? hd__job_fail(job, "data.tokenizer", err, "data.tokenizer: %s", unread.message) : HD_OK;
        if (o.file && named)
            hd__job_fail(job, "data.tokenizer", err,
                         "data.tokenizer: %s is not what made the tokens of %s, %s: that was %s (its .meta.json): name "
                         "that one, or tokenize the text again",
                         o.tokenizer, rows[r].key, o.file, o.made_by);
        else if (o.file)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: model.from: the tokenizer of %s is not what made the tokens of %s, %s: that was %s (its "
                    ".meta.json): where the ids differ, the weights read other words",
                    hd__job_where(job, "model.from"), o.tokenizer, rows[r].key, o.file, o.made_by);
    }
    free(o.file);
    free(o.made_by);
    return named && err->code ? err->code : HD_OK;
}
