/* Differences between a resumed job and the saved one. See resume_diff.h. */
#include "service/train/resume_diff.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "service/train/agreement.h"
#include "service/train/data/corpus.h"

/* Effects of a key: bits. A checkpoint that does not fit is refused by its tensors; the keys only explain why.
 * Otherwise another learning rate or longer sequences may be intended or an accident, so they are logged. */
enum {
    TRAINS = 1,  /* the training */
    SHAPES = 2,  /* the tensors */
    COMPUTES = 4 /* what the weights compute: matters wherever they are used */
};

/* The first match counts; a name that ends in a dot or an underscore begins others.
 * Keys not listed do not change the training. */
static const struct {
    const char *path;
    uint32_t effects;
} keys[] = {
    {"model.from", 0}, /* the weights come from the checkpoint; its fields are the model's tensors */
    {"model.rope_theta", TRAINS | COMPUTES},
    {"model.norm_eps", TRAINS | COMPUTES},
    {"model.sliding_window", TRAINS | COMPUTES},
    {"model.experts_per_token", TRAINS | COMPUTES},
    {"model.capacity", TRAINS | COMPUTES},
    {"model.router_aux_loss_coef", TRAINS | COMPUTES},
    {"model.router_z_loss_coef", TRAINS | COMPUTES},
    {"model.", TRAINS | SHAPES | COMPUTES},
    {"optimizer.", TRAINS | SHAPES},
    {"precision.compute", TRAINS | SHAPES | HD__DIFF_EVAL},
    {"precision.", TRAINS | SHAPES},
    {"schedule.", TRAINS},
    {"data.micro_", 0}, /* the same sequences, in other parts */
    {"data.pad_batch", 0},
    {"data.check_tokens", 0},
    {"data.cache", 0},
    {"data.read_ahead", 0},
    {"data.http_", 0},
    {"data.train", TRAINS | HD__DIFF_EVAL},
    {"data.val_fraction", TRAINS | HD__DIFF_EVAL},
    {"data.loss", TRAINS | HD__DIFF_EVAL},
    {"data.seq_len", TRAINS | HD__DIFF_EVAL},
    {"data.documents", TRAINS | HD__DIFF_EVAL},
    {"data.field", TRAINS | HD__DIFF_EVAL},
    {"data.chat_template", TRAINS | HD__DIFF_EVAL},
    {"data.append_eod", TRAINS | HD__DIFF_EVAL},
    {"data.", TRAINS},
    {"job.seed", TRAINS},
    {"strategies.localsgd.", TRAINS},
    {"strategies.ema.", TRAINS},
};

/* Bits that are the same on every mesh: the promise ends, or micro-batches cut its sums elsewhere. */
static int is_of_bits(const struct hd__job *job, const char *path)
{
    return !strcmp(path, job->deterministic == HD__DETERMINISTIC_EXACT ? "data.micro_batch" : "job.deterministic");
}

static uint32_t effects_of(const struct hd__job *job, const char *path)
{
    if (is_of_bits(job, path))
        return TRAINS;
    for (size_t k = 0; k < HD__COUNT(keys); k++) {
        size_t length = strlen(keys[k].path);
        if (strchr("._", keys[k].path[length - 1]) ? !strncmp(path, keys[k].path, length) : !strcmp(path, keys[k].path))
            return keys[k].effects;
    }
    if (!strncmp(path, "strategies.", 11) && strstr(path, ".compress.")) /* under any name of the strategy */
        return TRAINS;
    /* the schedule decays to its end */
    return !strcmp(path, "job.steps") && job->schedule.kind != HD__LR_CONSTANT ? TRAINS : 0;
}

/* ---- what has changed */

struct change {
    const char *path, *words;   /* of the key, and what the message calls it */
    const json_t *now, *before; /* NULL: not set */
};

struct changes {
    struct hd__job *job;
    const json_t *state; /* the checkpoint's state */
    json_t *config;      /* the model's now; owned */
    uint32_t effect;     /* keys that have it are listed */
    HD__ARRAY(struct change) list;
};

static void add_to(struct changes *c, const char *path, const char *words, const json_t *now, const json_t *before)
{
    hd__push(&c->list, ((struct change){path, words, now, before}));
}

static void free_changes(struct changes *c)
{
    json_decref(c->config);
    hd__free_array(&c->list);
}

/* The strategy of a list that has this name. */
static const json_t *find_strategy(const json_t *list, const char *use)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) if (!strcmp(json_string_value(json_object_get(one, "use")), use)) return one;
    return NULL;
}

/* Value in the checkpoint's job. */
static const json_t *saved_value(const json_t *state, const char *path)
{
    const json_t *at = json_object_get(state, "job");
    char key[64];
    for (const char *rest = path; at && *rest; rest += *rest == '.') {
        size_t length = strcspn(rest, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, rest);
        at = json_is_array(at) ? find_strategy(at, key) : json_object_get(at, key);
        rest += length;
    }
    return at;
}

/* A list of one is its element. */
static int is_equal(const json_t *a, const json_t *b)
{
    return json_equal(json_array_size(a) == 1 ? json_array_get(a, 0) : a,
                      json_array_size(b) == 1 ? json_array_get(b, 0) : b);
}

/* Another plugin has other keys. */
static int same_plugin(const struct changes *c, const char *path)
{
    const char *use = hd__arena_format(&c->job->arena, "%.*s.use", (int)strcspn(path, "."), path);
    const struct hd__job_value *now = hd__job_value_get(c->job, use);
    const json_t *before = saved_value(c->state, use);
    return !now || !before || json_equal(now->json, before);
}

/* A model's field that model.from says now: config.json is compared. */
static int is_of_from(const struct changes *c, const char *path)
{
    const struct hd__job_value *from = hd__job_value_get(c->job, "model.from");
    return from && from->text && *from->text && c->effect == TRAINS && !strncmp(path, "model.", 6) &&
           effects_of(c->job, path) & SHAPES && json_object_get(c->state, "config") &&
           !saved_value(c->state, "model.from");
}

/* A key that is a default now and missing in the checkpoint is new in this version. */
static void compare_value(struct changes *c, const struct hd__job_value *now)
{
    const json_t *before = saved_value(c->state, now->path);
    if (!before && !strncmp(now->path, "model.", 6)) /* its default, or what model.from said */
        before = json_object_get(json_object_get(c->state, "config"), now->path + 6);
    if (is_of_from(c, now->path) || !(effects_of(c->job, now->path) & c->effect) ||
        (before && is_equal(before, now->json)))
        return;
    if (!before && (!strcmp(now->origin, "default") || !same_plugin(c, now->path)))
        return;
    add_to(c, now->path, now->path, now->json, before);
}

/* Keys that were set and are not any more. */
static void find_removed_keys(struct changes *c, const char *path, json_t *before)
{
    const char *key;
    json_t *value;
    if (hd__job_value_get(c->job, path))
        return;
    if (!json_is_object(before)) {
        if (!is_of_from(c, path) && effects_of(c->job, path) & c->effect && same_plugin(c, path))
            add_to(c, path, path, NULL, before);
        return;
    }
    json_object_foreach(before, key, value) find_removed_keys(
        c, *path ? hd__arena_format(&c->job->arena, "%s.%s", path, key) : hd__arena_strdup(&c->job->arena, key), value);
}

/* ---- config.json */

json_t *hd__train_model_config(const struct hd__compiled *c)
{
    const struct hd_model_ops *ops = &c->model_choice.component->ops.model;
    struct hd_error unused = HD_ERROR_INIT;
    const char *text = NULL;
    return ops->config_json && !ops->config_json(c->model, &text, &unused) ? json_loads(text, 0, NULL) : NULL;
}

/* Any key but these may shape what a model computes. */
static int is_idle_in_config(const char *key)
{
    static const char *const idle[] = {"_name_or_path", "architectures",        "bos_token_id",
                                       "eos_token_id",  "initializer_range",    "max_position_embeddings",
                                       "pad_token_id",  "transformers_version", "use_cache"};
    for (size_t i = 0; i < HD__COUNT(idle); i++)
        if (!strcmp(idle[i], key))
            return 1;
    return 0;
}

/* Classes in transformers mostly take no, none or 0 for a missing key. */
static int is_unset(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

static int is_same(const json_t *a, const json_t *b)
{
    return json_equal(a, b) || (is_unset(a) && is_unset(b)) ||
           (json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b));
}

static void compare_config(struct changes *c, const char *key, const json_t *now, const json_t *before)
{
    if (!is_idle_in_config(key) && !is_same(now, before))
        add_to(c, "model.from", hd__arena_format(&c->job->arena, "%s in the model's config.json", key), now, before);
}

/* A model of the job's keys alone has no other config than they say. */
static void find_config_changes(struct changes *c, const struct hd__compiled *compiled)
{
    static const char length[] = "max_position_embeddings";
    json_t *before = json_object_get(c->state, "config"), *value;
    const char *key;
    c->config = before ? hd__train_model_config(compiled) : NULL;
    if (c->effect & HD__DIFF_EXPORT && c->job->seq_len != hd__train_resume_saved_int(c->state, "data", "seq_len", 0) &&
        !is_same(json_object_get(c->config, length), json_object_get(before, length)))
        add_to(c, "data.seq_len", length, json_object_get(c->config, length), json_object_get(before, length));
    if (!compiled->info.weights && !saved_value(c->state, "model.from"))
        return;
    json_object_foreach(c->config, key, value) compare_config(c, key, value, json_object_get(before, key));
    json_object_foreach(before, key, value) if (c->config && !json_object_get(c->config, key))
        compare_config(c, key, NULL, value);
}

static struct changes find_changes(const struct hd__compiled *compiled, const json_t *state, uint32_t effect)
{
    struct hd__job *job = compiled->job;
    struct changes c = {.job = job, .state = state, .effect = effect};
    json_t *before = json_object_get(state, "job");
    for (uint32_t i = 0; before && i < job->values.count; i++)
        compare_value(&c, &job->values.at[i]);
    if (before)
        find_removed_keys(&c, "", before);
    find_config_changes(&c, compiled);
    return c;
}

/* ---- words */

static void add_value(struct hd__text *text, const json_t *value)
{
    char *json = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    hd__text_add(text, "%s", json ? json : json_is_string(value) ? json_string_value(value) : "not set");
    free(json);
}

/* "data.seq_len is 256 and was 128" */
static void add_change(struct hd__text *text, const struct change *x)
{
    hd__text_add(text, "%s%s is ", text->length ? ", " : "", x->words);
    add_value(text, x->now);
    hd__text_add(text, " and was ");
    add_value(text, x->before);
}

/* Other files behind a key that names the same ones. */
static void log_files(struct hd__job *job, const char *name, const json_t *state, const struct hd__train_marks *files,
                      int mark, const char *consequence)
{
    const char *key = hd__train_mark_key(mark), *now = files->of[mark],
               *before = json_string_value(json_object_get(json_object_get(state, "files_of"), key));
    const struct hd__job_value *value = hd__job_value_get(job, key);
    if (*now && before && strcmp(now, before) != 0 && value && is_equal(value->json, saved_value(state, key)))
        hd__log(HD_LOG_WARN, NULL, "%s: %s is not what it was when checkpoint %s was saved: it has %s, and had %s%s",
                hd__job_where(job, key), key, name, now, before, consequence);
}

/* Plug-ins of others, which may compute something else under the same name. */
static void log_plugins(const struct hd__compiled *c, const char *name, const json_t *state, int weights_only)
{
    json_t *plugins = hd__train_plugins_json(c), *now;
    const char *label;
    json_object_foreach(plugins, label, now)
    {
        const json_t *before = json_object_get(json_object_get(state, "plugins"), label);
        if (json_is_string(before) && !json_equal(now, before) && (!weights_only || !strncmp(label, "model-", 6)))
            hd__log(HD_LOG_WARN, NULL, "%s is %s, and was %s when checkpoint %s was saved", label,
                    json_string_value(now), json_string_value(before), name);
    }
    json_decref(plugins);
}

/* The folder that a run began from is read for its config alone. */
static void log_from(struct hd__job *job, const char *name, const json_t *state, const struct hd__train_marks *files,
                     int weights_only)
{
    const struct hd__job_value *value = hd__job_value_get(job, "model.from");
    const char *now = value ? json_string_value(value->json) : NULL,
               *before = json_string_value(saved_value(state, "model.from"));
    if (!weights_only)
        log_files(job, name, state, files, HD__MARK_FROM,
                  "; these weights were not loaded: for a run from them take another job.name, or "
                  "checkpoint.resume=overwrite");
    if (!now || !*now || !json_object_get(state, "job") || (before && !strcmp(before, now)))
        return;
    hd__log(HD_LOG_WARN, NULL, "%s: checkpoint %s is of a run that %s%s; model.from=%s was not loaded%s",
            hd__job_where(job, "model.from"), name, before ? "began from model.from=" : "had no model.from",
            before ? before : "", now,
            weights_only ? "" : ": for a run from there take another job.name, or checkpoint.resume=overwrite");
}

/* Two jobs of one folder; whoever names a checkpoint means it. */
static void log_other_job(struct hd__job *job, const char *name, const json_t *state, int weights_only)
{
    const char *saver = json_string_value(saved_value(state, "job.name"));
    int64_t left = job->steps - json_integer_value(json_object_get(state, "step"));
    if (!weights_only && saver && strcmp(saver, job->name) != 0 && !strcmp(job->resume, "auto"))
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint %s of %s was saved by job %s, and this is %s%s: take another checkpoint.dir, or "
                "checkpoint.resume=overwrite; a branch of it says checkpoint.resume=%s/%s",
                hd__job_where(job, "job.name"), name, job->checkpoint_dir, saver, job->name,
                job->steps && left <= 0 ? ", which has nothing left to train then" : "", job->checkpoint_dir, name);
}

/* ---- the data */

enum { SAMPLES = 16 };

/* Sequences spread over an epoch, which lie anywhere in the files. What cannot be read counts as nothing. */
static uint64_t hash_samples(const struct hd__data *data, int32_t *ids, size_t n)
{
    uint64_t hash = 0, sequences = hd__data_sequences(data);
    for (uint64_t k = 1; k <= SAMPLES; k++) {
        struct hd_error unused = HD_ERROR_INIT;
        if (!hd__data_read(data, k * sequences / (SAMPLES + 1), ids, ids + n, 0, (int64_t)n, &unused))
            hash = hd__hash(ids, n * sizeof *ids, hash);
    }
    return hash;
}

/* Data are told from others under the same name, as those of another tokenizer, by their number, the first sequence and
 * some more, unless files may be skipped. */
void hd__train_data_describe(const struct hd__train_session *s, struct hd__train_data_mark *out)
{
    const struct hd__job *job = s->compiled->job;
    size_t n = (size_t)job->seq_len;
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__train_feed *feed = s->train_feed, *opened = NULL;
    int counts =
        !feed && job->documents == HD__DOCUMENTS_PACK; /* it is not packed to be compared: tokens are counted */
    if (!feed && s->weights_for & HD__DIFF_EVAL &&
        hd__train_data_files_split(s->compiled, !!(s->weights_for & HD__DIFF_TEST)) &&
        !hd__train_feed_open(s->compiled, s->env->rank, counts ? HD__FEED_UNPACKED : HD__FEED_TRAIN, &opened, &unused))
        feed = opened;
    const struct hd__data *data = feed && !job->on_error ? hd__train_feed_data(feed) : NULL;
    int32_t *ids = data && !counts ? hd__alloc(2 * n * sizeof *ids) : NULL;
    if (data && counts)
        snprintf(out->text, sizeof out->text, "%llu tokens", (unsigned long long)hd__data_tokens(data));
    else if (data && !hd__data_read(data, 0, ids, ids + n, 0, job->seq_len, &unused)) {
        snprintf(out->text, sizeof out->text, "%llu tokens, checksum of the first sequence %08x",
                 (unsigned long long)hd__data_tokens(data), (uint32_t)hd__hash(ids, n * sizeof *ids, 0));
        snprintf(out->samples, sizeof out->samples, "%016llx", (unsigned long long)hash_samples(data, ids, n));
    }
    json_t *plugins = hd__train_plugins_json(s->compiled);
    char *text = json_dumps(plugins, JSON_COMPACT);
    out->plugins = hd__arena_strdup(&s->compiled->job->arena, text);
    free(text);
    json_decref(plugins);
    if (s->train_feed)
        out->tokens = hd__train_token_maker(s->compiled);
    hd__train_marks_make(s->compiled, &out->files);
    hd__train_feed_close(opened);
    free(ids);
}

json_t *hd__train_data_json(const struct hd__train_data_mark *data)
{
    json_t *o = json_object(), *tokenizer = hd__token_maker_json(data->tokens);
    if (*data->text) {
        json_object_set_new(o, "data", json_string(data->text));
        json_object_set_new(o, "data_samples", json_string(data->samples));
    }
    if (tokenizer)
        json_object_set_new(o, "tokenizer", tokenizer);
    json_object_set_new(o, "files_of", hd__train_marks_json(&data->files));
    if (data->plugins)
        json_object_set_new(o, "plugins", json_loads(data->plugins, 0, NULL));
    return o;
}

/* Keys that decide which tokens a mark is of, so that it differs where one of them does. */
static int is_of_mark(const struct hd__compiled *c, const char *path)
{
    static const char *const idle[] = {"data.batch",    "data.micro_batch", "data.loss",
                                       "data.on_error", "data.val",         "data.test"},
                             *const of_text[] = {"data.field", "data.chat_template", "data.append_eod"};
    for (size_t i = 0; i < HD__COUNT(idle); i++)
        if (!strcmp(path, idle[i]))
            return 0;
    for (size_t i = 0; i < HD__COUNT(of_text); i++)
        if (!strcmp(path, of_text[i]))
            return hd__train_corpus_has_text(c);
    return (!strncmp(path, "data.", 5) && strncmp(path, "data.val.", 9) != 0) || !strcmp(path, "job.seed");
}

/* The files behind data.train may have changed where no key of the job has. Older checkpoints have no samples. */
static void log_data(struct hd__job *job, const char *name, const json_t *state, const struct hd__train_data_mark *data,
                     const char *consequence)
{
    const char *before = json_string_value(json_object_get(state, "data")),
               *sampled = json_string_value(json_object_get(state, "data_samples"));
    int counted =
        !*data->samples && !strncmp(data->text, before, strlen(data->text)) && before[strlen(data->text)] == ',';
    int same = counted || !strcmp(data->text, before);
    if (!same || (sampled && !counted && strcmp(data->samples, sampled) != 0))
        hd__log(HD_LOG_WARN, NULL, "%s: data.train is not what it was when checkpoint %s was saved: %s%s",
                hd__job_where(job, "data.train"), name,
                same ? "as many tokens and the same first sequence, and other ones between"
                     : hd__arena_format(&job->arena, "it is %s, and was %s", data->text, before),
                consequence);
}

#define TRAINED_ON ": what is evaluated here may have been trained on"
#define OTHER_LOSS ": this loss and those of its run are not comparable"
#define ROUNDED ": this loss is rounded otherwise than those of its run"

/* Steps of other data count as this job's. */
static const char *goes_on(struct hd__job *job, int64_t step)
{
    const char *of = job->steps ? hd__arena_format(&job->arena, " of %" PRId64, job->steps) : "";
    return hd__arena_format(&job->arena,
                            "; training goes on at the same place in it: %" PRId64 "%s steps count as done", step, of);
}

/* Why a change matters, where its key alone does not say it. */
static const char *consequence(struct hd__job *job, const json_t *state, const char *path, int weights_only,
                               uint32_t used_for)
{
    int64_t step = json_integer_value(json_object_get(state, "step")),
            length = hd__train_resume_saved_int(state, "data", "seq_len", job->seq_len);
    double before = json_number_value(json_object_get(state, "lr")), now = hd__job_lr(job, step);
    if (used_for & effects_of(job, path))
        return !strcmp(path, "data.loss")           ? ": its loss counted other tokens than this one"
               : !strcmp(path, "precision.compute") ? ROUNDED
               : !strcmp(path, "data.train") || !strcmp(path, "data.val_fraction") ? TRAINED_ON
               : strcmp(path, "data.seq_len") || job->seq_len <= length
                   ? OTHER_LOSS
                   : hd__arena_format(&job->arena, ": its run did not train positions from %" PRId64 " on", length);
    if (weights_only && effects_of(job, path) & COMPUTES)
        return ": these weights were not trained with it";
    if (!weights_only && !strcmp(path, "data.train"))
        return goes_on(job, step);
    if (is_of_bits(job, path))
        return ": job.deterministic: exact is not kept, so the bits from here on are those of neither job";
    if (!strcmp(path, "job.steps") && before > 0 && fabs(now - before) > 0.1 * before)
        return hd__arena_format(&job->arena,
                                ": the schedule now ends there, so the learning rate at step %" PRId64
                                " is %.3g, and was %.3g",
                                step, now, before);
    return "";
}

static int64_t value_now(struct hd__job *job, const char *path, int64_t otherwise)
{
    const struct hd__job_value *value = hd__job_value_get(job, path);
    return value && json_is_integer(value->json) ? json_integer_value(value->json) : otherwise;
}

/* As many as a run takes for val_loss, or another number: fewer are not the first of them alone. */
static void log_sequences(struct hd__job *job, const char *name, const json_t *state, int trains)
{
    int64_t now = value_now(job, "eval.batches", 1) * value_now(job, "data.batch", 1),
            before = hd__train_resume_saved_int(state, "eval", "batches", 1) *
                     hd__train_resume_saved_int(state, "data", "batch", 1);
    if (!hd__train_resume_saved_int(state, "eval", "every", 0) || now == before)
        return;
    if (trains)
        hd__log(HD_LOG_WARN, NULL,
                "%s: val_loss is of %" PRId64 " sequences (eval.batches x data.batch), and until checkpoint %s of "
                "%" PRId64 ": a lower one is no better model, though checkpoint.keep's best and `heddle ckpt export` "
                "compare them",
                hd__job_where(job, "eval.batches"), now, name, before);
    else
        hd__log(HD_LOG_INFO, NULL,
                "this loss is of %" PRId64 " sequences (eval.batches x data.batch), and val_loss of the run of "
                "checkpoint %s of %" PRId64,
                now, name, before);
}

void hd__train_resume_diff_log(const struct hd__compiled *compiled, const char *name, const json_t *state,
                               const struct hd__train_data_mark *data, int weights_only, uint32_t used_for)
{
    struct hd__job *job = compiled->job;
    const char *before = json_string_value(json_object_get(state, "data"));
    const int64_t step = json_integer_value(json_object_get(state, "step"));
    uint32_t said_of = weights_only ? COMPUTES | used_for : TRAINS, evaluates = used_for & HD__DIFF_EVAL;
    struct changes c = find_changes(compiled, state, evaluates ? said_of | TRAINS : said_of);
    struct hd__token_maker made = hd__token_maker_saved(job, state);
    int said = !*data->text || !before, made_known = !weights_only && made.name && data->tokens.name;
    for (uint32_t i = 0; i < c.list.count; i++) {
        struct hd__text text = {0};
        const char *path = c.list.at[i].path;
        if (made_known && !strcmp(path, "data.tokenizer")) /* its bytes decide, not its path */
            continue;
        said |= is_of_mark(compiled, path);
        if (evaluates && !(effects_of(job, path) & said_of) && strcmp(path, "model.from"))
            continue;
        add_change(&text, &c.list.at[i]);
        hd__log(HD_LOG_WARN, NULL, "%s: %s when checkpoint %s was saved%s", hd__job_where(job, path), text.at, name,
                consequence(job, state, path, weights_only, used_for));
        hd__text_free(&text);
    }
    free_changes(&c);
    if (made_known && hd__token_makers_differ(made, data->tokens)) {
        said = 1;
        hd__log(HD_LOG_WARN, NULL, "%s: %s when checkpoint %s was saved", hd__job_where(job, "data.tokenizer"),
                hd__token_makers_words(job, data->tokens, made), name);
    }
    if (!said)
        log_data(job, name, state, data, evaluates ? TRAINED_ON : goes_on(job, step));
    if ((evaluates && !(used_for & HD__DIFF_TEST)) || (!weights_only && job->eval_every)) {
        log_sequences(job, name, state, !weights_only);
        log_files(job, name, state, &data->files, HD__MARK_VAL,
                  evaluates ? OTHER_LOSS : "; val_loss goes on with other data");
    }
    log_plugins(compiled, name, state, weights_only);
    log_from(job, name, state, &data->files, weights_only);
    log_other_job(job, name, state, weights_only);
    const int64_t every = json_integer_value(saved_value(state, "strategies.localsgd.every"));
    if (weights_only && every > 0 && step % every)
        hd__log(HD_LOG_INFO, NULL,
                "the weights of checkpoint %s are as of step %" PRId64
                ": strategies.localsgd makes replicas equal every %" PRId64 " steps",
                name, step - step % every, every);
}

/* Keeps the changes that this misfit comes from: another plugin, else keys of its section, else precision. */
static void keep_causes(struct changes *c, const char *section)
{
    const char *use = hd__arena_format(&c->job->arena, "%suse", section);
    const char *const prefixes[] = {use, section, "precision."};
    for (size_t k = 0; k < HD__COUNT(prefixes); k++) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < c->list.count; i++)
            if (!strncmp(c->list.at[i].path, prefixes[k], strlen(prefixes[k])) ||
                (k == 1 && !strcmp(c->list.at[i].path, "optimizer.use")))
                c->list.at[kept++] = c->list.at[i];
        if (kept) {
            c->list.count = kept;
            return;
        }
    }
}

int32_t hd__train_resume_diff_explain(const struct hd__compiled *compiled, const json_t *state, const char *section,
                                      int weights_only, struct hd_error *err)
{
    struct hd__job *job = compiled->job;
    struct changes c = find_changes(compiled, state, SHAPES);
    struct hd_error why = HD_ERROR_INIT;
    struct hd__text text = {0};
    hd_error_copy(&why, err);
    keep_causes(&c, section);
    for (uint32_t i = 0; i < c.list.count; i++)
        add_change(&text, &c.list.at[i]);
    if (c.list.count)
        hd__job_fail(job, c.list.at[0].path, err, "%.300s when this was saved: %.500s%s", text.at, why.message,
                     weights_only ? ""
                                  : "; restore what was, or take another job.name, or checkpoint.resume=overwrite");
    hd__text_free(&text);
    free_changes(&c);
    return err->code = why.code;
}

int64_t hd__train_resume_saved_int(const json_t *state, const char *section, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(json_object_get(json_object_get(state, "job"), section), key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}
