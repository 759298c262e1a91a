/* A session's checkpoints. Ranks talk through the rendezvous store, which the background save may use while training uses
 * the transports. */
#include "service/train/checkpointer.h"

#include <stdlib.h>

#include "service/checkpoint/checkpoint.h"
#include "service/checkpoint/train_state.h"
#include "service/train/resume_diff.h"

struct hd__keeper {
    struct hd__session *s;
    const struct hd_ckpt_ops *ops;
    struct hd_ckpt *ckpt;
    const char *dir;
    struct hd__ckpt_store store;
    struct hd__ckpt_saver *saver; /* checkpoint.async */
    struct hd__state saving;      /* what the saver reads */
    uint64_t exchanges;
    uint64_t last, last_bytes; /* the one before: its number, and what is still in the store of it */
};

#define PIECE 60000 /* bytes of one value in the rendezvous store */

static const char *key_of(uint64_t number, uint64_t at, int32_t rank, char out[96])
{
    snprintf(out, 96, "ckpt/%llu/%llu/%d", (unsigned long long)number, (unsigned long long)at, rank);
    return out;
}

/* All-gather through the store, under keys of its own each time. Whoever has put its keys of this time has read all of the
 * last: having read everybody's, a rank takes back its keys of the last time. */
static int32_t exchange(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *err)
{
    struct hd__keeper *k = user;
    struct hd_store *store = k->s->store;
    int32_t ranks = k->s->place->size, me = k->s->place->rank, rc = HD_OK;
    double deadline = hd__now() + k->s->compiled->job->comm_timeout;
    uint64_t number = k->exchanges++;
    char key[96];
    for (uint64_t at = 0; at < bytes && !rc; at += PIECE)
        rc = hd__store_put(store, key_of(number, at, me, key), (const char *)mine + at, HD__MIN(PIECE, bytes - at), err);
    for (int32_t r = 0; r < ranks; r++)
        for (uint64_t at = 0; at < bytes && !rc; at += PIECE) {
            size_t room = HD__MIN(PIECE, bytes - at);
            rc = hd__store_get(store, key_of(number, at, r, key), (char *)all + (uint64_t)r * bytes + at, &room, deadline, err);
        }
    if (!bytes) /* nobody has said anything */
        return HD_OK;
    for (uint64_t at = 0; at < k->last_bytes && !rc; at += PIECE)
        rc = hd__store_remove(store, key_of(k->last, at, me, key), err);
    k->last = number;
    k->last_bytes = bytes;
    return rc;
}

int32_t hd__keeper_open(struct hd__session *s, const char *dir, struct hd__keeper **keeper, struct hd_error *err)
{
    const struct hd__chosen *chosen = &s->compiled->checkpoint_choice;
    struct hd__keeper *k;
    int32_t rc;
    *keeper = NULL;
    if (!chosen->component)
        return HD_OK;
    k = hd__alloc(sizeof *k);
    k->s = s;
    k->ops = &chosen->component->ops.ckpt;
    k->dir = hd__arena_strdup(&s->compiled->job->arena, dir ? dir : s->compiled->job->checkpoint_dir);
    rc = k->ops->open(hd__host(), chosen->settings, k->dir, &k->ckpt, err);
    if (rc) {
        free(k);
        return rc;
    }
    k->store = (struct hd__ckpt_store){.ops = k->ops, .ckpt = k->ckpt,
                                       .peers = {.rank = s->place->rank, .ranks = s->place->size, .exchange = exchange, .user = k}};
    *keeper = k;
    return HD_OK;
}

void hd__keeper_close(struct hd__keeper *k)
{
    if (!k)
        return;
    hd__ckpt_saver_destroy(k->saver);
    hd__state_free(&k->saving);
    k->ops->close(k->ckpt);
    free(k);
}

static void collect(struct hd__keeper *k, struct hd__state *state, int owned, const char *weights)
{
    hd__state_collect(state, hd__exec_program(k->s->exec), hd__exec_coord(k->s->exec), hd__exec_arena(k->s->exec),
                      k->s->compiled->optimizer.ops->state_names, owned,
                      weights && strcmp(weights, "model") ? hd__arena_format(&k->s->compiled->job->arena, "strategy-%s", weights) : weights);
}

/* What ranks have of their own; behind what is there already. */
static void collect_ranks(struct hd__keeper *k, struct hd__state *state)
{
    hd__state_collect_ranks(state, k->s->compiled->stage, k->s->compiled->n_stages, hd__exec_coord(k->s->exec),
                            hd__exec_arena(k->s->exec));
}

int32_t hd__keeper_try(struct hd__keeper *k, struct hd_error *err)
{
    struct hd_ckpt_tx *tx;
    int32_t rc = k->ops->begin(k->ckpt, "step-00000000", 1, &tx, err);
    if (rc)
        return hd__job_fail(k->s->compiled->job, "checkpoint.dir", err, "checkpoint.dir: %s", err->message);
    k->ops->cancel(tx);
    return HD_OK;
}

/* ---- saving */

static long long replicas(const struct hd__keeper *k)
{
    const struct hd_program *p = hd__exec_program(k->s->exec);
    return (long long)hd__mesh_ways(&p->mesh, p->apart);
}

static json_t *describe(const struct hd__keeper *k, const struct hd__progress *progress)
{
    const struct hd__compiled *c = k->s->compiled;
    json_t *model = json_pack("{s:s,s:I,s:I,s:I,s:I}", "family", c->info.family ? c->info.family : "", "layers",
                              (json_int_t)c->info.layers, "hidden", (json_int_t)c->info.hidden, "vocab", (json_int_t)c->info.vocab,
                              "parameters", (json_int_t)hd__parameter_count(c));
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:o,s:o,s:o}", "step", (json_int_t)progress->step, "sequence",
                     (json_int_t)progress->sequence, "tokens", (json_int_t)progress->tokens, "replicas", (json_int_t)replicas(k), "seed",
                     (json_int_t)c->job->seed, "optimizer", c->optimizer_choice.component->name, "lr",
                     hd__lr(&c->job->schedule, progress->step, c->job->steps), "model", model, "loss_scale",
                     hd__scaler_json(&progress->scaler), "job", hd__job_json(c->job));
}

int32_t hd__keeper_save(struct hd__keeper *k, const struct hd__progress *progress, struct hd_error *err)
{
    const struct hd__job *job = k->s->compiled->job;
    struct hd__ckpt_save save = {.step = (uint64_t)progress->step, .version = HEDDLE_VERSION, .keep = (uint32_t)job->checkpoint_keep};
    json_t *state;
    int32_t rc = hd__keeper_finish(k, err); /* the saver still reads k->saving */
    if (rc)
        return rc;
    rc = hd__exec_pull_state(k->s->exec, err);
    if (rc)
        return rc;
    hd__state_free(&k->saving);
    collect(k, &k->saving, 1, NULL);
    collect_ranks(k, &k->saving);
    save.tensors = k->saving.tensors.at;
    save.n_tensors = k->saving.tensors.count;
    save.runs = k->saving.runs.at;
    save.n_runs = k->saving.runs.count;
    save.state = state = describe(k, progress);
    if (job->checkpoint_async) {
        if (!k->saver)
            k->saver = hd__ckpt_saver_create(&k->store);
        rc = hd__ckpt_saver_start(k->saver, &save, err);
    } else {
        rc = hd__ckpt_save(&k->store, &save, err);
    }
    hd__exec_forget(k->s->exec);
    json_decref(state);
    return rc;
}

int32_t hd__keeper_finish(struct hd__keeper *k, struct hd_error *err)
{
    return k && k->saver ? hd__ckpt_saver_join(k->saver, err) : HD_OK;
}

/* ---- loading */

static int64_t integer_or(const json_t *value, int64_t otherwise)
{
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/* Where sequences have another length now, the position in the data stays: it is the first sequence of which nothing was read. */
static void read_progress(const struct hd__job *job, const struct hd__ckpt *ckpt, struct hd__progress *progress)
{
    const json_t *state = hd__ckpt_state(ckpt);
    int64_t length = hd__changed_was(state, "data", "seq_len", job->seq_len), batch = hd__changed_was(state, "data", "batch", job->batch);
    progress->step = (int64_t)hd__ckpt_step(ckpt);
    hd__scaler_load(&progress->scaler, json_object_get(state, "loss_scale"));
    progress->sequence = (integer_or(json_object_get(state, "sequence"), 0) * length + job->seq_len - 1) / job->seq_len;
    progress->tokens = integer_or(json_object_get(state, "tokens"), progress->step * batch * length);
}

/* Ranks that are apart have a model each. */
static int32_t check_replicas(const struct hd__keeper *k, const char *name, const struct hd__ckpt *ckpt, struct hd_error *err)
{
    long long has = integer_or(json_object_get(hd__ckpt_state(ckpt), "replicas"), 1), here = replicas(k);
    if (has == here)
        return HD_OK;
    return hd_fail(err, HD_E_MISMATCH, "checkpoint %s has the state of %lld replica%s that train apart, this job has %lld: go on with as "
                   "many, or begin anew from its model: `heddle ckpt export`, then model.from", name, has, has == 1 ? "" : "s", here);
}

/* Without it a run goes on as well, and not to the same bits. */
static int32_t load_ranks(struct hd__keeper *k, const char *name, const struct hd__ckpt *ckpt, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__state state = {0};
    int32_t rc = HD_OK, other;
    collect_ranks(k, &state);
    other = state.tensors.count ? hd__ckpt_check(ckpt, state.tensors.at, state.tensors.count, &why) : HD_OK;
    if (other && k->s->place->rank == 0)
        hd__log(HD_LOG_WARN, NULL, "checkpoint %s does not have what each rank of this job keeps of its own (errors of compressed "
                "gradients): it begins as zeros", name);
    if (!other && state.tensors.count)
        rc = hd__ckpt_load(ckpt, state.tensors.at, state.tensors.count, state.runs.at, state.runs.count, err);
    hd__state_free(&state);
    return rc;
}

/* What is damaged, or lacks a file, stays as it is: another one may be whole. */
static int32_t name_others(int32_t rc, const char *weights, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    if (rc != HD_E_CORRUPT && rc != HD_E_NOTFOUND)
        return rc;
    hd_error_copy(&why, err);
    return hd_fail(err, HD_E_CORRUPT, "%.800s; `heddle ckpt ls` lists the others: %s", why.message,
                   weights ? "--checkpoint NAME takes one" : "checkpoint.resume=NAME goes on from one");
}

static int32_t load(struct hd__keeper *k, const char *name, const char *weights, struct hd__progress *progress, struct hd_error *err)
{
    struct hd__state state;
    struct hd__ckpt *ckpt;
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    if (rc == HD_E_NOTFOUND)
        return hd_fail(err, rc, "%s has no checkpoint %s: `heddle ckpt ls` lists them", k->dir, name);
    if (rc)
        return name_others(rc, weights, err);
    rc = weights ? HD_OK : check_replicas(k, name, ckpt, err);
    collect(k, &state, 0, weights);
    if (!rc)
        rc = hd__ckpt_load(ckpt, state.tensors.at, state.tensors.count, state.runs.at, state.runs.count, err);
    hd__state_free(&state);
    rc = name_others(rc, weights, err);
    if (rc == HD_E_MISMATCH)
        rc = hd__changed_blame(k->s->compiled->job, hd__ckpt_state(ckpt), weights != NULL, err);
    if (!rc && !weights)
        rc = load_ranks(k, name, ckpt, err);
    if (!rc && k->s->place->rank == 0)
        hd__changed_say(k->s->compiled->job, name, hd__ckpt_state(ckpt), weights != NULL);
    if (!rc)
        read_progress(k->s->compiled->job, ckpt, progress);
    hd__ckpt_close(ckpt);
    if (!rc)
        rc = hd__exec_push_state(k->s->exec, err);
    hd__exec_forget(k->s->exec);
    return rc ? rc : hd__exec_section(k->s->exec, "restore", err);
}

/* A path: its folder is the storage, its last part the name. */
static int32_t load_path(struct hd__keeper *k, const char *path, const char *weights, struct hd__progress *progress, struct hd_error *err)
{
    char *folder = hd__strdup(path), *slash;
    struct hd__keeper *other = NULL;
    int32_t rc;
    while (strlen(folder) > 1 && folder[strlen(folder) - 1] == '/')
        folder[strlen(folder) - 1] = 0;
    slash = strrchr(folder, '/');
    if (!slash) {
        rc = load(k, folder, weights, progress, err);
    } else {
        *slash = 0;
        rc = hd__keeper_open(k->s, *folder ? folder : "/", &other, err);
        if (!rc)
            rc = load(other, slash + 1, weights, progress, err);
        hd__keeper_close(other);
    }
    free(folder);
    return rc;
}

int32_t hd__keeper_load(struct hd__keeper *k, const char *which, const char *weights, struct hd__progress *progress, struct hd_error *err)
{
    char name[32];
    int32_t rc;
    if (!strcmp(which, "never"))
        return HD_OK;
    if (strcmp(which, "auto"))
        return load_path(k, which, weights, progress, err);
    rc = hd__ckpt_latest(&k->store, name, err);
    if (rc == HD_E_NOTFOUND)
        return HD_OK;
    return rc ? rc : load(k, name, weights, progress, err);
}
