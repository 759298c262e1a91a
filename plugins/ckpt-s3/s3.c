/* The slots of ckpt-s3, but for those of a checkpoint that is being written. */
#include <stdlib.h>

#include "internal.h"

#define OFFSET(field) .offset = offsetof(struct s3_settings, field)

static const struct hd_option options[] = {
    {.name = "endpoint",
     .type = HD_OPT_STRING,
     .help = "http://HOST:PORT or https://HOST of another server than Amazon's; AWS_ENDPOINT_URL if left out",
     OFFSET(endpoint)},
    {.name = "region",
     .type = HD_OPT_STRING,
     .help = "the bucket's; AWS_REGION if left out, us-east-1 where there is an endpoint",
     OFFSET(region)},
    {.name = "path_style",
     .value = "auto",
     .choices = "auto|true|false",
     .type = HD_OPT_ENUM,
     .help = "ENDPOINT/BUCKET/KEY instead of BUCKET.ENDPOINT/KEY; auto: with an endpoint, and for buckets with a dot",
     OFFSET(path_style)},
    {.name = "ca",
     .type = HD_OPT_STRING,
     .flags = HD_OPTION_PATH,
     .help = "file of the authorities' certificates that the server's is checked with; AWS_CA_BUNDLE if left out",
     OFFSET(ca)},
    {.name = "retries",
     .value = "10",
     .max = 1000,
     .type = HD_OPT_INT,
     .level = HD_LEVEL_TUNER,
     .help = "how often a request is tried again that failed for a cause which may pass",
     OFFSET(retries)},
    {.name = "timeout",
     .value = "300s",
     .min = 1,
     .max = 86400,
     .type = HD_OPT_DURATION,
     .level = HD_LEVEL_TUNER,
     .help = "for one request with all its retries",
     OFFSET(timeout)},
    {.name = "segment",
     .value = "64MiB",
     .min = 4096,
     .max = 1 << 30,
     .unit = "bytes",
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .help = "size of an object; a rank keeps one, and one for each thread that writes, in memory",
     OFFSET(segment)},
};

/* ---- open, close */

static void s3_close(struct hd_ckpt *ckpt)
{
    if (!ckpt)
        return;
    while (ckpt->commits)
        s3_commit_forget(ckpt, ckpt->commits->name);
    s3_handles_close(ckpt);
    pthread_mutex_destroy(&ckpt->lock);
    if (ckpt->secret)
        explicit_bzero(ckpt->secret, strlen(ckpt->secret));
    char *const all[] = {ckpt->location, ckpt->bucket, ckpt->prefix, ckpt->base,   ckpt->region,
                         ckpt->signing,  ckpt->ca,     ckpt->key_id, ckpt->secret, ckpt->session};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(ckpt);
}

static int32_t s3_open(const struct hd_host *host, const void *settings, const char *location, struct hd_ckpt **out,
                       struct hd_error *err)
{
    struct hd_ckpt *ckpt = calloc(1, sizeof *ckpt);
    if (!ckpt)
        return s3_no_memory(err);
    ckpt->host = host;
    ckpt->settings = settings;
    pthread_mutex_init(&ckpt->lock, NULL);
    int32_t rc = s3_locate(ckpt, location, err);
    if (rc)
        s3_close(ckpt);
    else
        *out = ckpt;
    return rc;
}

/* ---- commits that were read. With the ETag the server is asked whether one is still as it was. */

static struct s3_commit **find_commit(struct hd_ckpt *ckpt, const char *name)
{
    struct s3_commit **at = &ckpt->commits;
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

static void commit_free(struct s3_commit *c)
{
    if (!c)
        return;
    s3_table_free(&c->table);
    free(c->name);
    free(c);
}

void s3_commit_forget(struct hd_ckpt *ckpt, const char *name)
{
    pthread_mutex_lock(&ckpt->lock);
    struct s3_commit **at = find_commit(ckpt, name), *c = *at;
    if (c)
        *at = c->next;
    pthread_mutex_unlock(&ckpt->lock);
    commit_free(c);
}

static int32_t keep_commit(struct hd_ckpt *ckpt, const char *name, const char *key, struct s3_answer *a,
                           struct hd_error *err)
{
    struct s3_commit *c = calloc(1, sizeof *c);
    if (!c || !(c->name = strdup(name))) {
        free(c);
        return s3_no_memory(err);
    }
    snprintf(c->etag, sizeof c->etag, "%s", a->etag);
    int32_t rc = s3_table_parse(&c->table, key, a->text ? a->text : "", a->bytes, c->attempt, err);
    s3_commit_forget(ckpt, name);
    if (rc) {
        commit_free(c);
        return rc;
    }
    s3_table_order(&c->table);
    pthread_mutex_lock(&ckpt->lock);
    c->next = ckpt->commits;
    ckpt->commits = c;
    pthread_mutex_unlock(&ckpt->lock);
    return HD_OK;
}

int32_t s3_commit_read(struct hd_ckpt *ckpt, const char *name, int fresh, struct hd_error *err)
{
    char header[96] = "", *key;
    struct s3_answer a = {0};
    int32_t rc = s3_check_name(name, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&ckpt->lock);
    const struct s3_commit *c = *find_commit(ckpt, name);
    int known = c != NULL;
    if (known && *c->etag)
        snprintf(header, sizeof header, "If-None-Match: %s", c->etag);
    pthread_mutex_unlock(&ckpt->lock);
    if (known && !fresh)
        return HD_OK;
    key = s3_format("commits/%s", name);
    const struct s3_request r = {.method = "GET", .key = key, .header = *header ? header : NULL};
    rc = key ? s3_send(ckpt, &r, &a, err) : s3_no_memory(err);
    if (rc == HD_E_NOTFOUND)
        hd_fail(err, rc, "%s has no checkpoint %s", ckpt->location, name);
    if (rc)
        s3_commit_forget(ckpt, name);
    else if (a.status != 304)
        rc = keep_commit(ckpt, name, key, &a, err);
    free(a.text);
    free(key);
    return rc;
}

/* ---- complete checkpoints */

static int by_version(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

static int32_t s3_list(struct hd_ckpt *ckpt, void (*visit)(void *user, const char *name), void *user,
                       struct hd_error *err)
{
    char **keys = NULL;
    size_t n = 0;
    int32_t rc = s3_keys(ckpt, "commits/", &keys, &n, err);
    if (rc)
        return rc;
    if (n)
        qsort(keys, n, sizeof *keys, by_version);
    for (size_t i = 0; i < n; i++)
        if (!s3_check_name(keys[i] + 8, NULL))
            visit(user, keys[i] + 8);
    s3_keys_free(keys, n);
    return HD_OK;
}

static int32_t no_file(const struct hd_ckpt *ckpt, const char *name, const char *file, struct hd_error *err)
{
    return hd_fail(err, HD_E_NOTFOUND, "%s: checkpoint %s has no file %s", ckpt->location, name, file);
}

static int32_t s3_size(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t *bytes, struct hd_error *err)
{
    int32_t rc = s3_commit_read(ckpt, name, 1, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&ckpt->lock);
    const struct s3_commit *c = *find_commit(ckpt, name);
    uint64_t end = c ? s3_table_bytes(&c->table, file) : 0;
    pthread_mutex_unlock(&ckpt->lock);
    if (!end)
        return no_file(ckpt, name, file, err);
    *bytes = end;
    return HD_OK;
}

/* HD_E_NOTFOUND also where a segment is gone. */
static int32_t read_known(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t offset, char *data,
                          uint64_t bytes, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t n; bytes && !rc; data += n, offset += n, bytes -= n) {
        char *key = NULL;
        uint64_t position = 0;
        pthread_mutex_lock(&ckpt->lock);
        const struct s3_commit *c = *find_commit(ckpt, name);
        const struct s3_extent *e = c ? s3_table_find(&c->table, file, offset) : NULL;
        n = e && bytes > e->bytes - (offset - e->offset) ? e->bytes - (offset - e->offset) : bytes;
        if (e) {
            position = e->position + (offset - e->offset);
            key = s3_format("segments/%s/%s", name, c->table.segments[e->segment]);
        }
        pthread_mutex_unlock(&ckpt->lock);
        if (!e)
            return hd_fail(err, HD_E_CORRUPT, "%s: %s of checkpoint %s has no byte %llu", ckpt->location, file, name,
                           (unsigned long long)offset);
        rc = key ? s3_get_range(ckpt, key, position, data, n, err) : s3_no_memory(err);
        free(key);
    }
    return rc;
}

/* A table that was kept may be of a checkpoint that was removed or replaced since: then its segments are gone. */
static int32_t s3_read(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t offset, void *data,
                       uint64_t bytes, struct hd_error *err)
{
    int32_t rc = s3_check_name(file, err);
    rc = rc ? rc : s3_commit_read(ckpt, name, 0, err);
    rc = rc ? rc : read_known(ckpt, name, file, offset, data, bytes, err);
    if (rc != HD_E_NOTFOUND)
        return rc;
    rc = s3_commit_read(ckpt, name, 1, err);
    rc = rc ? rc : read_known(ckpt, name, file, offset, data, bytes, err);
    pthread_mutex_lock(&ckpt->lock);
    int torn = rc == HD_E_NOTFOUND && *find_commit(ckpt, name);
    pthread_mutex_unlock(&ckpt->lock);
    return torn ? hd_fail(err, HD_E_CORRUPT, "%s: checkpoint %s lacks a segment of %s that it had when it was saved",
                          ckpt->location, name, file)
                : rc;
}

/* ---- removal */

/* Keys of a store, and what is not to be removed of them: those that begin with `ours`, but for tables. */
struct keys {
    struct hd_ckpt *ckpt;
    char **at;
    const char *ours;
};

static int32_t clean_one(void *user, size_t i, struct hd_error *err)
{
    const struct keys *k = user;
    size_t end = strlen(k->at[i]);
    int is_table = end > 6 && !strcmp(k->at[i] + end - 6, ".table");
    int stays = k->ours && !strncmp(k->at[i], k->ours, strlen(k->ours)) && !is_table;
    return stays ? HD_OK : s3_delete(k->ckpt, k->at[i], err);
}

int32_t s3_clean(struct hd_ckpt *ckpt, const char *name, struct hd_error *err)
{
    char **keys = NULL, *pending = s3_format("pending/%s", name), *under = s3_format("segments/%s/", name),
         *ours = NULL;
    size_t n = 0;
    int32_t rc = pending && under ? s3_commit_read(ckpt, name, 1, err) : s3_no_memory(err);
    if (!rc) {
        pthread_mutex_lock(&ckpt->lock);
        const struct s3_commit *c = *find_commit(ckpt, name);
        ours = c ? s3_format("%s%s/", under, c->attempt) : NULL;
        pthread_mutex_unlock(&ckpt->lock);
        rc = ours ? HD_OK : s3_no_memory(err);
    }
    rc = rc == HD_E_NOTFOUND ? HD_OK : rc;
    rc = rc ? rc : s3_keys(ckpt, under, &keys, &n, err);
    rc = rc ? rc : s3_each(n, clean_one, &(struct keys){ckpt, keys, ours}, err);
    rc = rc ? rc : s3_delete(ckpt, pending, err);
    s3_keys_free(keys, n);
    free(pending);
    free(under);
    free(ours);
    return rc;
}

/* The mark in pending/ first: where this is interrupted, the next save finishes it. */
static int32_t s3_remove(struct hd_ckpt *ckpt, const char *name, struct hd_error *err)
{
    char *pending = s3_format("pending/%s", name), *commit = s3_format("commits/%s", name);
    int32_t rc = pending && commit ? s3_commit_read(ckpt, name, 1, err) : s3_no_memory(err);
    rc = rc == HD_E_CORRUPT ? HD_OK : rc;
    rc = rc ? rc : s3_put(ckpt, pending, "removed", 7, err);
    rc = rc ? rc : s3_delete(ckpt, commit, err);
    rc = rc ? rc : s3_clean(ckpt, name, err);
    free(pending);
    free(commit);
    return rc;
}

/* ---- moving: the server copies, and what was copied is removed */

static int32_t copy(struct hd_ckpt *from, struct hd_ckpt *to, const char *key, struct hd_error *err)
{
    char *header = s3_format("x-amz-copy-source: /%s/%s%s", from->bucket, from->prefix, key), code[64], message[200];
    struct s3_request r = {.method = "PUT", .key = key, .header = header, .body = "", .bytes = 0};
    struct s3_answer a = {0};
    int32_t rc = header ? s3_send(to, &r, &a, err) : s3_no_memory(err);
    if (!rc) { /* a copy that fails late says so behind a 200 */
        s3_error_read(&a, code, message);
        rc = *code ? hd_fail(err, HD_E_IO, "%s: copying %s: %s: %s", from->location, key, code, message) : HD_OK;
    }
    free(a.text);
    free(header);
    return rc;
}

/* A checkpoint's way to another store: those of its segments that an interrupted move has brought there stay. */
struct move {
    struct hd_ckpt *from, *to;
    const struct s3_commit *commit;
    char **there;
    size_t n_there;
};

static int32_t copy_one(void *user, size_t i, struct hd_error *err)
{
    const struct move *m = user;
    char *key = s3_format("segments/%s/%s", m->commit->name, m->commit->table.segments[i]);
    int32_t rc = !key                                      ? s3_no_memory(err)
                 : s3_keys_have(m->there, m->n_there, key) ? HD_OK
                                                           : copy(m->from, m->to, key, err);
    free(key);
    return rc;
}

static int32_t copy_all(struct hd_ckpt *ckpt, struct hd_ckpt *to, const char *name, struct hd_error *err)
{
    struct move m = {.from = ckpt, .to = to};
    char *pending = s3_format("pending/%s", name), *commit = s3_format("commits/%s", name),
         *under = s3_format("segments/%s/", name);
    int32_t rc = pending && commit && under ? s3_commit_read(to, name, 1, err) : s3_no_memory(err);
    if (!rc)
        rc = hd_fail(err, HD_E_IO, "%s/%s cannot be moved: %s has one already", ckpt->location, name, to->location);
    else if (rc == HD_E_NOTFOUND)
        rc = s3_commit_read(ckpt, name, 1, err);
    rc = rc ? rc : s3_put(to, pending, "moved", 5, err);
    rc = rc ? rc : s3_keys(to, under, &m.there, &m.n_there, err);
    m.commit = rc ? NULL : *find_commit(ckpt, name);
    rc = rc ? rc : s3_each(m.commit->table.n_segments, copy_one, &m, err);
    rc = rc ? rc : copy(ckpt, to, commit, err);
    rc = rc ? rc : s3_delete(to, pending, err);
    s3_keys_free(m.there, m.n_there);
    free(under);
    free(pending);
    free(commit);
    return rc;
}

static int32_t s3_move(struct hd_ckpt *ckpt, const char *name, const char *location, struct hd_error *err)
{
    struct hd_ckpt *to = NULL;
    int32_t rc = s3_check_name(name, err);
    rc = rc ? rc : s3_open(ckpt->host, ckpt->settings, location, &to, err);
    rc = rc ? rc : copy_all(ckpt, to, name, err);
    rc = rc ? rc : s3_remove(ckpt, name, err);
    s3_close(to);
    return rc;
}

static const struct hd_ckpt_ops ops = {
    .struct_size = sizeof ops,
    .open = s3_open,
    .close = s3_close,
    .begin = s3_begin,
    .write = s3_write,
    .flush = s3_flush,
    .commit = s3_commit,
    .cancel = s3_cancel,
    .list = s3_list,
    .size = s3_size,
    .read = s3_read,
    .remove = s3_remove,
    .read_back = s3_read_back,
    .move = s3_move,
};

HD_PLUGIN("ckpt-s3", "0.1.0", "Apache-2.0", .kind = HD_KIND_CKPT, .name = "s3",
          .summary = "checkpoints as objects of a bucket (Amazon S3, MinIO, R2 and others that speak its protocol)",
          HD_OPTIONS(options, struct s3_settings), .ops = &ops)
