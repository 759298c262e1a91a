#include "service/train/agreement.h"

#include <dirent.h>
#include <stdlib.h>

#include "core/base/version.h" /* from meson */
#include "core/plugin/search.h"
#include "heddle/file.h"
#include "runtime/exec/select.h"
#include "service/text/tokenize.h"
#include "service/train/data/corpus.h"

#define DIGEST "job/digest"
#define DETAILS "job/details/%u"
enum { PIECE = 65536 }; /* bytes: the store takes no more under one key */

struct digest {
    uint64_t options, programs, plugins, bytes; /* bytes: of the details as text */
};

/* ---- this rank's own */

static void add_build(json_t *builds, const char *name, const char *version, const char *path)
{
    uint64_t hash = 0;
    hd__file_hash(path, &hash, NULL);
    json_object_set_new(builds, name, json_sprintf("%s, file %08x", version, (uint32_t)hash));
}

static void add_plugin(json_t *builds, const struct hd__chosen *chosen)
{
    add_build(builds, chosen->component->label, chosen->component->version, chosen->component->path);
}

/* One of heddle's own lies in its folder, and is as new as heddle. */
static void add_foreign(json_t *builds, const struct hd__chosen *chosen)
{
    const struct hd__component *c = chosen->component;
    char *own = hd__plugin_own_folder();
    if (c && (strcmp(c->version, HD__VERSION) != 0 || !own || strncmp(c->path, own, strlen(own)) != 0))
        add_plugin(builds, chosen);
    free(own);
}

json_t *hd__train_plugins_json(const struct hd__compiled *c)
{
    json_t *builds = json_object();
    add_foreign(builds, &c->model_choice);
    add_foreign(builds, &c->optimizer_choice);
    add_foreign(builds, &c->data_choice);
    for (uint64_t s = 0; s < c->n_strategies; s++)
        add_foreign(builds, &c->strategies[s]);
    return builds;
}

/* As above, and heddle's version. */
static json_t *plugins_json(const struct hd__compiled *c)
{
    json_t *builds = hd__train_plugins_json(c);
    json_object_set_new(builds, "heddle", json_string(HD__VERSION));
    return builds;
}

/* All that has a part in making a program. */
static json_t *builds_json(const struct hd__compiled *c)
{
    json_t *builds = json_object();
    add_build(builds, "heddle", HD__VERSION " (" HD__BUILD ")", "/proc/self/exe");
    add_plugin(builds, &c->model_choice);
    add_plugin(builds, &c->optimizer_choice);
    add_plugin(builds, &c->device_choice);
    for (uint64_t s = 0; s < c->n_strategies; s++)
        add_plugin(builds, &c->strategies[s]);
    return builds;
}

uint64_t hd__train_hash_programs(const struct hd__compiled *c)
{
    uint64_t hash = 0;
    for (int32_t s = 0; s < c->n_stages; s++) {
        uint64_t both[] = {hash, hd__program_hash(c->stage[s])};
        hash = hd__hash(both, sizeof both, 0);
    }
    return hash;
}

/* A source that is no regular file is up to its plug-in. Takes over both texts. */
static void add_file(json_t *options, char *label, char *path)
{
    uint64_t bytes, hash = hd_file_ends(path, &bytes);
    if (hash)
        json_object_set_new(options, label,
                            json_sprintf("%lu bytes, %016lx", (unsigned long)bytes, (unsigned long)hash));
    free(label);
    free(path);
}

static void add_source(json_t *options, const char *key, uint64_t i, const char *path)
{
    struct hd__corpus shards;
    if (hd__train_corpus_shards(path, &shards, NULL) || !shards.files.count)
        add_file(options, hd__format("data.%s[%lu]", key, (unsigned long)i), hd__strdup(path));
    for (uint32_t k = 0; k < shards.files.count; k++)
        add_file(options, hd__format("data.%s[%lu]/%s", key, (unsigned long)i, shards.files.at[k].path),
                 hd__strdup(shards.files.at[k].path));
    hd__corpus_free(&shards);
}

/* With data.on_error: skip the ranks may have other files of data.train, and agree on them later. */
static void add_files(json_t *options, const struct hd__compiled *c)
{
    static const char *const names[] = {"train", "val", "test"};
    const struct hd__sources *sources[] = {&c->job->train, &c->job->val, &c->job->test};
    DIR *dir = c->info.weights ? opendir(c->info.weights) : NULL;
    for (size_t k = c->job->on_error == HD__ON_ERROR_SKIP; k < HD__COUNT(names); k++)
        for (uint64_t i = 0; i < sources[k]->count; i++)
            add_source(options, names[k], i, sources[k]->at[i].path);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (strstr(e->d_name, ".safetensors") || !strcmp(e->d_name, "config.json"))
            add_file(options, hd__format("model.from/%s", e->d_name), hd__format("%s/%s", c->info.weights, e->d_name));
    if (dir)
        closedir(dir);
}

static uint64_t hash_json(const json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t hash = hd__hash(text, strlen(text), 0);
    free(text);
    return hash;
}

/* ---- through the store */

static int32_t put_details(struct hd_store *store, json_t *options, const struct hd__compiled *c, struct digest *digest,
                           struct hd_error *err)
{
    json_t *all =
        json_pack("{s:O, s:o, s:o}", "options", options, "builds", builds_json(c), "plugins", plugins_json(c));
    char *text = json_dumps(all, JSON_COMPACT), key[32];
    int32_t rc = HD_OK;
    digest->bytes = strlen(text);
    for (uint32_t i = 0; (uint64_t)i * PIECE < digest->bytes && !rc; i++) {
        snprintf(key, sizeof key, DETAILS, i);
        rc =
            hd__store_put(store, key, text + (size_t)i * PIECE, HD__MIN(digest->bytes - (size_t)i * PIECE, PIECE), err);
    }
    free(text);
    json_decref(all);
    return rc;
}

static int32_t get_details(struct hd_store *store, uint64_t bytes, double deadline, json_t **all, struct hd_error *err)
{
    char *text = hd__alloc(bytes + 1), key[32];
    int32_t rc = HD_OK;
    for (uint64_t at = 0; at < bytes && !rc; at += PIECE) {
        size_t room = (size_t)HD__MIN(bytes - at, PIECE);
        snprintf(key, sizeof key, DETAILS, (uint32_t)(at / PIECE));
        rc = hd__store_get(store, key, text + at, &room, deadline, err);
    }
    *all = rc ? NULL : json_loads(text, 0, NULL);
    free(text);
    return rc || *all ? rc : hd_fail(err, HD_E_CORRUPT, "what rank 0 says of its job cannot be read");
}

/* ---- words */

static void add_value(struct hd__text *text, const json_t *value)
{
    char *json = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
    hd__text_add(text, "%s", json ? json : value ? json_string_value(value) : "not set");
    free(json);
}

/* "optimizer.lr is 0.05 on rank 1 and 0.001 on rank 0"; of further keys only the names. */
static void add_difference(struct hd__text *text, const char *key, const json_t *mine, int32_t rank,
                           const json_t *rank0)
{
    if (text->length) {
        hd__text_add(text, ", %s", key);
        return;
    }
    hd__text_add(text, "%s is ", key);
    add_value(text, mine);
    hd__text_add(text, " on rank %d and ", rank);
    add_value(text, rank0);
    hd__text_add(text, " on rank 0");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Words for what differs between two objects, in the order of names, and the first of them; returns how many. */
static size_t compare_objects(json_t *mine, int32_t rank, json_t *rank0, struct hd__text *text, char first[128])
{
    json_t *all = json_copy(mine), *value;
    const char **keys, *key;
    size_t n = 0;
    json_object_update_missing(all, rank0);
    keys = hd__alloc((json_object_size(all) + 1) * sizeof *keys);
    json_object_foreach(all, key, value) if (!json_equal(json_object_get(mine, key), json_object_get(rank0, key)))
        keys[n++] = key;
    qsort(keys, n, sizeof *keys, by_name);
    for (size_t i = 0; i < n; i++)
        add_difference(text, keys[i], json_object_get(mine, keys[i]), rank, json_object_get(rank0, keys[i]));
    snprintf(first, 128, "%s", n ? keys[0] : "");
    free(keys);
    json_decref(all);
    return n;
}

static int32_t refuse(struct hd__compiled *c, int32_t rank, json_t *options, json_t *rank0, struct hd_error *err)
{
    struct hd__text text = {0};
    char key[128];
    if (compare_objects(options, rank, json_object_get(rank0, "options"), &text, key)) {
        key[strcspn(key, "[/")] = 0; /* data.train[0]: a file of the key's */
        hd__job_fail(c->job, key, err,
                     "%.700s: all ranks train with the same values; start each with the same job file, the same "
                     "key=value words and the same files",
                     text.at);
    } else {
        json_t *builds = builds_json(c);
        compare_objects(builds, rank, json_object_get(rank0, "builds"), &text, key);
        hd_fail(err, HD_E_INVALID,
                "rank %d has another program than rank 0, though all options agree: %.700s; start all ranks with the "
                "same build of heddle and the same plug-ins",
                rank,
                text.at ? text.at : "heddle and plug-ins are the same files, so their machines or devices differ");
        json_decref(builds);
    }
    hd__text_free(&text);
    return err ? err->code : HD_E_INVALID;
}

/* The same programs, of plug-ins whose code may compute something else. */
static void warn_plugins(int32_t rank, json_t *mine, json_t *rank0)
{
    struct hd__text text = {0};
    char first[128];
    if (compare_objects(mine, rank, json_object_get(rank0, "plugins"), &text, first))
        hd__log(HD_LOG_WARN, NULL,
                "rank %d has another build of a plug-in than rank 0: %.700s; start all ranks with the same", rank,
                text.at);
    hd__text_free(&text);
}

int32_t hd__train_agree(struct hd__compiled *c, int32_t rank, struct hd_store *store, struct hd_error *err)
{
    double deadline = hd__now() + c->job->comm_timeout;
    struct digest mine, rank0;
    size_t bytes = sizeof rank0;
    json_t *options, *details, *plugins;
    int32_t rc;
    if (!store)
        return HD_OK;
    options = hd__job_global_json(c->job);
    plugins = plugins_json(c);
    add_files(options, c);
    mine = (struct digest){hash_json(options), hd__train_hash_programs(c), hash_json(plugins), 0};
    if (rank == 0) {
        rc = put_details(store, options, c, &mine, err);
        if (!rc)
            rc = hd__store_put(store, DIGEST, &mine, sizeof mine, err);
    } else {
        rc = hd__store_get(store, DIGEST, &rank0, &bytes, deadline, err);
        int differs = !rc && (rank0.options != mine.options || rank0.programs != mine.programs);
        if (!rc && (differs || rank0.plugins != mine.plugins) &&
            !(rc = get_details(store, rank0.bytes, deadline, &details, err))) {
            if (differs)
                rc = refuse(c, rank, options, details, err);
            else
                warn_plugins(rank, plugins, details);
            json_decref(details);
        }
    }
    json_decref(plugins);
    json_decref(options);
    return rc;
}
