/* A session's checkpoints. */
#include "service/train/checkpointer.h"

#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "service/checkpoint/checkpoint.h"
#include "service/checkpoint/param_init.h"
#include "service/checkpoint/survivors.h"
#include "service/checkpoint/train_state.h"
#include "service/train/resume_diff.h"
#include "service/train/save/emergency.h"
#include "service/train/save/peer_copies.h"
#include "service/train/save/shared_place.h"
#include "service/train/save/store_gather.h"

struct hd__train_checkpointer {
    struct hd__train_session *s;
    const struct hd_ckpt_ops *ops;
    struct hd_ckpt *ckpt;
    const char *dir;
    struct hd__ckpt_store store;
    struct hd__ckpt_training training;
    struct hd__ckpt_async_writer *async_writer;   /* checkpoint.async; NULL without it */
    struct hd__ckpt_train_state saving;           /* borrowed by the async writer */
    struct hd__ckpt_train_state left;             /* after a fault */
    char saved_on[160];                           /* ", saved on" and the mesh of it, where it is another */
    char loaded_run[HD__RUN_ID], run[HD__RUN_ID]; /* of the checkpoint that was loaded, "" for none; of this run */
    const char *loaded_dir;                       /* where it lies; NULL: nothing was loaded */
    uint64_t loaded_step;
    const char *only_run; /* "auto" is one of this run; NULL: of any */
    struct hd__train_data_mark data;
    struct hd__token_maker loaded_tokens;
    int falls_back; /* what is damaged is passed over, and the caller says so */
    int fell_back;  /* a newer one was damaged, of run damaged_run where its index could be read */
    char damaged_run[HD__RUN_ID];
    struct hd__train_saved saved; /* the last save; step 0: none that was not told */
    uint64_t *aside;              /* steps that are another run's from now on, or torn */
    uint32_t n_aside;
    const char *aside_are;
    struct hd__store_gather gather, gather_left;
    struct hd__shared_place place;
    struct hd__peer_copies *copies; /* checkpoint.peers; NULL without it */
    int in_memory;                  /* what was loaded was one of them */
};

static int32_t open_copies(struct hd__train_checkpointer *k, struct hd_error *err)
{
    const struct hd__launch_env *env = k->s->env;
    struct hd__job *job = k->s->compiled->job;
    if (env->copies)
        return hd__peer_copies_open(k->s, &k->copies, err);
    if (!env->progress && env->rank == 0 && (env->size > 1 || job->launch_restarts))
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint.peers is for ranks that heddle itself starts, and another launcher started these: no "
                "copies are made",
                hd__job_where(job, "checkpoint.peers"));
    return HD_OK;
}

int32_t hd__train_checkpointer_open(struct hd__train_session *s, const char *dir,
                                    struct hd__train_checkpointer **checkpointer, struct hd_error *err)
{
    const struct hd__chosen *chosen = &s->compiled->checkpoint_choice;
    struct hd__train_checkpointer *k;
    *checkpointer = NULL;
    if (!chosen->component)
        return HD_OK;
    k = hd__alloc(sizeof *k);
    k->s = s;
    k->ops = &chosen->component->ops.ckpt;
    k->dir = hd__arena_strdup(&s->compiled->job->arena, dir ? dir : s->compiled->job->checkpoint_dir);
    int32_t rc = k->ops->open(hd__exec_host_table(), chosen->settings, k->dir, &k->ckpt, err);
    if (rc) {
        free(k);
        return dir ? rc : hd__job_locate_error(s->compiled->job, "checkpoint.dir", err);
    }
    k->gather = (struct hd__store_gather){.session = s, .name = "ckpt", .n = s->env->size};
    k->store = (struct hd__ckpt_store){.ops = k->ops, .ckpt = k->ckpt, .peers = hd__store_gather_peers(&k->gather)};
    k->training = (struct hd__ckpt_training){.program = hd__exec_program(s->exec),
                                             .stages = s->compiled->stage,
                                             .n_stages = s->compiled->n_stages,
                                             .coord = hd__exec_coord(s->exec),
                                             .arena = hd__exec_host_arena(s->exec),
                                             .state_names = s->compiled->optimizer.ops->state_names};
    if (s->env->rank == 0) {
        hd__train_data_describe(s, &k->data);
        hd__train_emergency_tell_data(s, &k->data);
    }
    k->place = (struct hd__shared_place){s, k->dir, k->ops, k->ckpt, NULL};
    if (s->compiled->job->checkpoint_async)
        k->async_writer = hd__ckpt_async_writer_create(&k->store);
    *checkpointer = k;
    return !dir && s->compiled->job->checkpoint_peers ? open_copies(k, err) : HD_OK;
}

void hd__train_checkpointer_close(struct hd__train_checkpointer *k)
{
    if (!k)
        return;
    hd__shared_place_end(&k->place);
    hd__peer_copies_close(k->copies);
    hd__ckpt_async_writer_destroy(k->async_writer);
    hd__ckpt_train_state_free(&k->saving);
    hd__ckpt_train_state_free(&k->left);
    free(k->aside);
    k->ops->close(k->ckpt);
    free(k);
}

/* ---- the checkpoints of other runs. A folder has those of one run, and what it branched off from. */

/* The first folder DIR.1, DIR.2, ... without checkpoints: another store of this kind. */
static int32_t find_free_folder(struct hd__train_checkpointer *k, const char **folder, struct hd_error *err)
{
    uint32_t found = 1, torn = 0;
    int32_t rc = HD_OK;
    for (int n = 1; found + torn && !rc; n++) {
        struct hd__ckpt_store store = {.ops = k->ops};
        uint64_t *steps = NULL;
        *folder = hd__arena_format(&k->s->compiled->job->arena, "%s.%d", k->dir, n);
        rc = k->ops->open(hd__exec_host_table(), k->s->compiled->checkpoint_choice.settings, *folder, &store.ckpt, err);
        if (rc)
            return rc;
        rc = hd__ckpt_list_steps(&store, &steps, &found, &torn, err);
        k->ops->close(store.ckpt);
        free(steps);
    }
    return rc;
}

/* Refuses a folder with checkpoints that the job does not go on from. */
static int32_t check_others(struct hd__train_checkpointer *k, struct hd_error *err)
{
    struct hd__job *job = k->s->compiled->job;
    char newest[32];
    const char *folder;
    uint64_t *steps = NULL;
    uint32_t n = 0, torn = 0;
    int32_t rc = hd__ckpt_list_steps(&k->store, &steps, &n, &torn, err);
    if (!rc && n + torn)
        hd__ckpt_step_name(steps[(n ? n : torn) - 1], newest);
    free(steps);
    if (rc || !(n + torn) || (rc = find_free_folder(k, &folder, err)))
        return rc;
    if (!n && !strcmp(job->resume, "auto"))
        return hd__job_fail(job, "checkpoint.resume", err,
                            "checkpoint.resume: %s/%s has no index.json that can be read, so it is no checkpoint, and "
                            "there is no other: copy it whole, or checkpoint.resume=overwrite starts over and moves "
                            "it to %s",
                            k->dir, newest, folder);
    if (strcmp(job->resume, "never") != 0)
        return HD_OK;
    return hd__job_fail(job, "checkpoint.resume", err,
                        "checkpoint.resume is never, and %s has checkpoints of another run, to %s: take another "
                        "job.name, or checkpoint.resume=overwrite, which moves them to %s",
                        k->dir, newest, folder);
}

int32_t hd__train_checkpointer_check_dir(struct hd__train_checkpointer *k, struct hd_error *err)
{
    struct hd_ckpt_tx *tx;
    int32_t rc = k->ops->begin(k->ckpt, "step-00000000", 1, &tx, err);
    if (rc)
        return hd__job_fail(k->s->compiled->job, "checkpoint.dir", err, "checkpoint.dir: %s", err->message);
    k->ops->cancel(tx);
    return check_others(k, err);
}

struct hd__shared_place *hd__train_checkpointer_place(struct hd__train_checkpointer *k)
{
    return &k->place;
}

int32_t hd__train_checkpointer_begin(struct hd__train_checkpointer *k, char run[HD__RUN_ID], struct hd_error *err)
{
    uint32_t n = 0, torn = 0, others = 0;
    int here = k->loaded_dir && !strcmp(k->loaded_dir, k->dir);
    int32_t rc = hd__ckpt_list_steps(&k->store, &k->aside, &n, &torn, err);
    for (uint32_t i = 0; i < n + torn && !rc; i++)
        if (!here || k->aside[i] > k->loaded_step) {
            others += i < n && !k->fell_back && !k->only_run; /* torn ones may be copied whole some day */
            k->aside[k->n_aside++] = k->aside[i];
        }
    k->aside_are = others ? "of another run" : k->fell_back ? "that cannot be read" : "without an index.json";
    if (k->only_run)
        snprintf(run, HD__RUN_ID, "%s", k->only_run);
    else if (here && !others && *k->loaded_run)
        memcpy(run, k->fell_back && *k->damaged_run ? k->damaged_run : k->loaded_run, HD__RUN_ID);
    memcpy(k->run, run, HD__RUN_ID);
    if (!rc && k->n_aside && !k->ops->move)
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "%s has checkpoints of another run, and ckpt-%s cannot move them: take another job.name", k->dir,
                     k->s->compiled->checkpoint_choice.component->name);
    return rc;
}

/* Oldest first: if it is interrupted, the newest are still there. */
int32_t hd__train_checkpointer_set_aside(struct hd__train_checkpointer *k, struct hd_error *err)
{
    const char *folder;
    char name[32];
    int32_t rc = k->n_aside ? find_free_folder(k, &folder, err) : HD_OK;
    for (uint32_t i = 0; i < k->n_aside && !rc; i++) {
        hd__ckpt_step_name(k->aside[i], name);
        rc = k->ops->move(k->ckpt, name, folder, err);
    }
    int over = !strcmp(k->s->compiled->job->resume, "overwrite") && !k->loaded_dir;
    if (!rc && k->n_aside)
        hd__log(over ? HD_LOG_WARN : HD_LOG_INFO, NULL, "%s%s: %u checkpoint%s %s moved to %s%s",
                over ? hd__arena_format(&k->s->compiled->job->arena, "%s: checkpoint.resume is overwrite: ",
                                        hd__job_where(k->s->compiled->job, "checkpoint.resume"))
                     : "",
                k->dir, k->n_aside, k->n_aside > 1 ? "s" : "", k->aside_are, folder,
                over ? ", and training begins at step 0; auto would have gone on from them" : "");
    return rc;
}

const char *hd__train_checkpointer_loaded(const struct hd__train_checkpointer *k)
{
    return k ? k->loaded_dir : NULL;
}

int hd__train_checkpointer_loaded_in_memory(const struct hd__train_checkpointer *k)
{
    return k && k->in_memory;
}

struct hd__token_maker hd__train_checkpointer_tokens(const struct hd__train_checkpointer *k)
{
    return k ? k->loaded_tokens : (struct hd__token_maker){0};
}

const char *hd__train_checkpointer_saved_on(const struct hd__train_checkpointer *k)
{
    return k->saved_on;
}

/* ---- saving */

static json_t *state_json(const struct hd__train_checkpointer *k, const struct hd__train_progress *progress)
{
    const struct hd__compiled *c = k->s->compiled;
    const struct hd_program *p = k->training.program;
    json_t *model = json_pack("{s:s,s:I,s:I,s:I,s:I}", "family", c->info.family ? c->info.family : "", "layers",
                              (json_int_t)c->info.layers, "hidden", (json_int_t)c->info.hidden, "vocab",
                              (json_int_t)c->info.vocab, "parameters", (json_int_t)hd__compiled_parameter_count(c));
    json_t *mesh = json_object(), *state;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        json_object_set_new(mesh, hd__axis_name(a), json_integer(p->mesh.size[a]));
    state = json_pack("{s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:o,s:o,s:I,s:o,s:o}", "step", (json_int_t)progress->step,
                      "sequence", (json_int_t)progress->sequence, "tokens", (json_int_t)progress->tokens, "replicas",
                      (json_int_t)hd__mesh_ways(&p->mesh, p->independent_axes), "seed", (json_int_t)c->job->seed,
                      "optimizer", c->optimizer_choice.component->name, "lr", hd__job_lr(c->job, progress->step),
                      "model", model, "loss_scale", hd__train_loss_scaler_json(&progress->scaler), "time",
                      (json_int_t)time(NULL), "mesh", mesh, "job", hd__job_json(c->job));
    json_t *files = hd__train_shards_json(k->s), *config = hd__train_model_config(c);
    json_t *data = hd__train_data_json(&k->data);
    json_object_update(state, data);
    json_decref(data);
    if (config)
        json_object_set_new(state, "config", config);
    if (files)
        json_object_set_new(state, "files", files);
    if (isfinite(progress->val_loss))
        json_object_set_new(state, "val_loss", json_real(progress->val_loss));
    return state;
}

static int64_t state_bytes(const struct hd__ckpt_train_state *state)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < state->tensors.count; i++) {
        const struct hd__ckpt_tensor *t = &state->tensors.at[i];
        int64_t n = (int64_t)hd_dtype_size(t->dtype);
        for (uint32_t d = 0; d < t->ndim; d++)
            n *= t->shape[d];
        bytes += n;
    }
    return bytes;
}

static struct hd__ckpt_save make_save(const struct hd__train_checkpointer *k, const struct hd__ckpt_train_state *of,
                                      int64_t step, const json_t *state)
{
    const struct hd__job *job = k->s->compiled->job;
    return (struct hd__ckpt_save){.step = (uint64_t)step,
                                  .tensors = of->tensors.at,
                                  .n_tensors = of->tensors.count,
                                  .runs = of->runs.at,
                                  .n_runs = of->runs.count,
                                  .state = state,
                                  .version = HEDDLE_VERSION,
                                  .run = k->run,
                                  .keep = (uint32_t)job->checkpoint_keep,
                                  .keep_best = (uint32_t)job->checkpoint_keep_best,
                                  .keep_every = (uint64_t)job->checkpoint_keep_every};
}

int32_t hd__train_checkpointer_save(struct hd__train_checkpointer *k, const struct hd__train_progress *progress,
                                    struct hd_error *err)
{
    struct hd__ckpt_save save;
    double start = hd__now();
    json_t *state;
    int32_t rc = hd__ckpt_async_writer_join(k->async_writer, err); /* it still reads k->saving */
    if (!rc)
        rc = hd__exec_copy_tensors(k->s->exec, HD__D2H, NULL, 0, err);
    if (rc)
        return rc;
    hd__ckpt_collect_train_state(&k->saving, &k->training, 1, NULL);
    hd__ckpt_collect_rank_state(&k->saving, &k->training);
    state = state_json(k, progress);
    save = make_save(k, &k->saving, progress->step, state);
    rc = k->async_writer ? hd__ckpt_async_writer_start(k->async_writer, &save, err)
                         : hd__ckpt_save(&k->store, &save, err);
    hd__exec_drop_mirror(k->s->exec);
    json_decref(state);
    k->saved = (struct hd__train_saved){.step = rc ? 0 : progress->step,
                                        .bytes = state_bytes(&k->saving),
                                        .exposed = hd__now() - start,
                                        .val_loss = progress->val_loss};
    return rc;
}

struct hd__peer_copies *hd__train_checkpointer_copies(const struct hd__train_checkpointer *k)
{
    return k ? k->copies : NULL;
}

int32_t hd__train_checkpointer_copy(struct hd__train_checkpointer *k, const struct hd__train_progress *progress,
                                    struct hd_error *err)
{
    struct hd__ckpt_train_state of = {0};
    int32_t rc = *k->run ? HD_OK : hd__train_emergency_find_run(k->s, k->run, err);
    if (!rc)
        rc = hd__exec_copy_tensors(k->s->exec, HD__D2H, NULL, 0, err);
    if (rc)
        return rc;
    hd__ckpt_collect_train_state(&of, &k->training, 1, NULL);
    hd__ckpt_collect_rank_state(&of, &k->training);
    json_t *state = state_json(k, progress);
    const struct hd__ckpt_save save = make_save(k, &of, progress->step, state);
    rc = hd__peer_copies_save(k->copies, &save, err);
    hd__exec_drop_mirror(k->s->exec);
    json_decref(state);
    hd__ckpt_train_state_free(&of);
    return rc;
}

int32_t hd__train_checkpointer_wait(struct hd__train_checkpointer *k, struct hd_error *err)
{
    double start = hd__now();
    int32_t rc = k ? hd__ckpt_async_writer_join(k->async_writer, err) : HD_OK;
    if (k)
        k->saved.exposed += hd__now() - start;
    if (k && rc)
        k->saved.step = 0;
    return rc;
}

int hd__train_checkpointer_busy(const struct hd__train_checkpointer *k)
{
    return k && hd__ckpt_async_writer_busy(k->async_writer);
}

int hd__train_checkpointer_finished(struct hd__train_checkpointer *k, struct hd__train_saved *saved)
{
    if (!k || !k->saved.step || hd__train_checkpointer_busy(k))
        return 0;
    *saved = k->saved;
    saved->seconds = k->async_writer ? hd__ckpt_async_writer_seconds(k->async_writer) : saved->exposed;
    k->saved.step = 0;
    return saved->seconds >= 0; /* the next join fails with it */
}

/* ---- saving what is left after a fault */

/* Reads back what was saved. */
static int32_t verify_saved(struct hd__train_checkpointer *k, int64_t step, struct hd_error *err)
{
    struct hd__ckpt *ckpt = NULL;
    char name[32];
    hd__ckpt_step_name((uint64_t)step, name);
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    if (!rc)
        k->store.peers.busy(k->store.peers.user, hd__ckpt_total_bytes(ckpt));
    rc = rc ? rc : hd__ckpt_verify(ckpt, err);
    hd__ckpt_close(ckpt);
    return rc;
}

int64_t hd__train_checkpointer_end(struct hd__train_checkpointer *k, int64_t saved)
{
    struct hd_error unused = HD_ERROR_INIT;
    atomic_store(&k->gather.ended, 1);
    return hd__train_checkpointer_busy(k) || hd__train_checkpointer_wait(k, &unused) ? 0 : saved;
}

int32_t hd__train_checkpointer_collect_left(struct hd__train_checkpointer *k, const int32_t *ranks, int32_t n,
                                            struct hd_error *err)
{
    return hd__ckpt_collect_survivors(&k->left, &k->training, k->s->env->rank, ranks, (uint32_t)n, err);
}

int32_t hd__train_checkpointer_save_left(struct hd__train_checkpointer *k, const struct hd__train_progress *progress,
                                         const int32_t *ranks, int32_t n, const char run[HD__RUN_ID], json_t *emergency,
                                         struct hd_error *err)
{
    json_t *state = state_json(k, progress);
    json_t *data = ranks[0] && ranks[0] == k->s->env->rank ? hd__train_emergency_find_data(k->s) : NULL;
    struct hd__ckpt_save save;
    json_object_update(state, data);
    json_decref(data);
    hd__ckpt_async_writer_join(k->async_writer, NULL);
    int32_t rc = hd__exec_copy_tensors(k->s->exec, HD__D2H, NULL, 0, err);
    json_object_set_new(state, "emergency", emergency);
    memcpy(k->run, run, HD__RUN_ID);
    k->gather_left = (struct hd__store_gather){.session = k->s, .name = "ckpt-left", .ranks = ranks, .n = n};
    k->store.peers = hd__store_gather_peers(&k->gather_left);
    save = make_save(k, &k->left, progress->step, state);
    rc = rc ? rc : hd__ckpt_save(&k->store, &save, err);
    if (!rc && ranks[0] == k->s->env->rank)
        rc = verify_saved(k, progress->step, err);
    json_decref(state);
    return rc;
}

/* ---- loading */

static int64_t integer_or(const json_t *value, int64_t otherwise)
{
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/* A checkpoint of an older heddle may not say. */
static void note_mesh(struct hd__train_checkpointer *k, const json_t *saved)
{
    const struct hd__mesh *mesh = &k->s->compiled->mesh;
    int64_t ranks = 1;
    int differ = 0, n = 0;
    char axes[sizeof k->saved_on] = "";
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        int64_t size = integer_or(json_object_get(saved, hd__axis_name(a)), 1);
        ranks *= size;
        differ |= size != mesh->size[a];
        if (size > 1 && n < (int)sizeof axes - 1)
            n += snprintf(axes + n, sizeof axes - (size_t)n, "%s %s %lld", n ? "," : ", saved on", hd__axis_name(a),
                          (long long)size);
    }
    snprintf(k->saved_on, sizeof k->saved_on, "%s", !saved || !differ ? "" : ranks == 1 ? ", saved on 1 rank" : axes);
}

/* If the sequence length has changed, the position in the data is kept: the first sequence of which no token was
 * read. */
static void read_progress(struct hd__job *job, const json_t *state, uint64_t step, struct hd__train_progress *progress)
{
    int64_t length = hd__train_resume_saved_int(state, "data", "seq_len", job->seq_len),
            batch = hd__train_resume_saved_int(state, "data", "batch", job->batch);
    progress->step = (int64_t)step;
    hd__train_shards_load(job, json_object_get(state, "files"));
    hd__train_loss_scaler_load(&progress->scaler, json_object_get(state, "loss_scale"));
    progress->sequence = (integer_or(json_object_get(state, "sequence"), 0) * length + job->seq_len - 1) / job->seq_len;
    progress->tokens = integer_or(json_object_get(state, "tokens"), progress->step * batch * length);
}

/* Each local-SGD replica has its own model. */
static int32_t check_replicas(const struct hd__train_checkpointer *k, const char *name, const struct hd__ckpt *ckpt,
                              struct hd_error *err)
{
    const struct hd_program *p = k->training.program;
    long long has = integer_or(json_object_get(hd__ckpt_state(ckpt), "replicas"), 1),
              here = (long long)hd__mesh_ways(&p->mesh, p->independent_axes);
    if (has == here)
        return HD_OK;
    return hd_fail(err, HD_E_MISMATCH,
                   "checkpoint %s has the state of %lld local-SGD replica%s, this job has %lld: resume with the same "
                   "number, or start over from its model: `heddle ckpt export`, then model.from",
                   name, has, has == 1 ? "" : "s", here);
}

/* Missing state is not fatal, but the run is not bit-identical then. */
static int32_t load_rank_state(struct hd__train_checkpointer *k, const char *name, const struct hd__ckpt *ckpt,
                               struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__ckpt_train_state state = {0};
    int32_t rc = HD_OK, other;
    hd__ckpt_collect_rank_state(&state, &k->training);
    other = state.tensors.count ? hd__ckpt_check_tensors(ckpt, state.tensors.at, state.tensors.count, &why) : HD_OK;
    if (other && k->s->env->rank == 0)
        hd__log(
            HD_LOG_WARN, NULL,
            "checkpoint %s lacks the per-rank state of this job (errors of compressed gradients): it begins as zeros",
            name);
    if (!other && state.tensors.count)
        rc = hd__ckpt_load(ckpt, state.tensors.at, state.tensors.count, state.runs.at, state.runs.count, err);
    hd__ckpt_train_state_free(&state);
    return rc;
}

/* The newest before it whose files are all there, without reading them. */
static int find_older(const struct hd__train_checkpointer *k, const char *name, char older[32])
{
    struct hd_error unused = HD_ERROR_INIT;
    uint64_t *steps = NULL, step = strncmp(name, "step-", 5) ? 0 : strtoull(name + 5, NULL, 10);
    uint32_t n = 0;
    int found = 0;
    if (hd__ckpt_list_steps(&k->store, &steps, &n, NULL, &unused))
        return 0;
    while (!found && n--) {
        struct hd__ckpt *ckpt = NULL;
        hd__ckpt_step_name(steps[n], older);
        found =
            steps[n] < step && !hd__ckpt_open(&k->store, older, &ckpt, &unused) && !hd__ckpt_check_files(ckpt, &unused);
        hd__ckpt_close(ckpt);
    }
    free(steps);
    return found;
}

/* A damaged or incomplete checkpoint is kept; the message names another. */
static int32_t mention_others(const struct hd__train_checkpointer *k, const char *name, int32_t rc, const char *weights,
                              struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    char older[32];
    if ((rc != HD_E_CORRUPT && rc != HD_E_NOTFOUND) || k->falls_back)
        return rc;
    hd_error_copy(&why, err);
    if (!find_older(k, name, older))
        return hd_fail(err, HD_E_CORRUPT, "%.700s; %s has no older one%s", why.message, k->dir,
                       weights ? "" : ": checkpoint.resume=overwrite starts over, and moves it aside");
    return hd_fail(err, HD_E_CORRUPT,
                   "%.700s; the newest before it is %s: `heddle ckpt verify --checkpoint %s` reads it whole, %s%s/%s "
                   "takes it",
                   why.message, older, older, weights ? "--checkpoint " : "checkpoint.resume=", k->dir, older);
}

/* The group of a strategy's average, as "ema"; NULL for another. */
static const char *average_of(const char *group)
{
    return !strncmp(group, "strategy-", 9) && strcmp(group + 9, "ranks") != 0 ? group + 9 : NULL;
}

/* State that this job's optimizer and strategies have no use for. */
static void say_discarded(const struct hd__train_checkpointer *k, const char *name, const struct hd__ckpt *ckpt,
                          const struct hd__ckpt_train_state *state)
{
    struct hd__text groups = {0};
    uint32_t n;
    const struct hd__ckpt_tensor *saved = hd__ckpt_tensors(ckpt, &n);
    for (uint32_t i = 0; i < n; i++) {
        const char *optim = strstr(saved[i].group, "optim-"), *average = average_of(saved[i].group);
        uint32_t t = 0;
        if ((!optim && !average) || (i && !strcmp(saved[i].group, saved[i - 1].group)))
            continue;
        while (t < state->tensors.count && strcmp(state->tensors.at[t].group, saved[i].group) != 0)
            t++;
        if (t == state->tensors.count && optim)
            hd__text_add(&groups, "%s%s", groups.length ? ", " : "", optim + 6);
        else if (t == state->tensors.count)
            hd__log(HD_LOG_WARN, NULL, "%s: the state of strategy %s of checkpoint %s is discarded: this job has none",
                    hd__job_where(k->s->compiled->job, "strategies"), average, name);
    }
    if (groups.length)
        hd__log(HD_LOG_WARN, NULL, "%s: the optimizer state of checkpoint %s is discarded (%s): optimizer.use was %s",
                hd__job_where(k->s->compiled->job, "optimizer.use"), name, groups.at,
                json_string_value(json_object_get(hd__ckpt_state(ckpt), "optimizer")));
    hd__text_free(&groups);
}

/* The parameters come first. Where they fit, it is the rest that does not. */
static const char *misfit(const struct hd__ckpt *ckpt, const struct hd__ckpt_train_state *state)
{
    struct hd_error unused = HD_ERROR_INIT;
    uint32_t n = 0;
    while (n < state->tensors.count && !strcmp(state->tensors.at[n].group, state->tensors.at[0].group))
        n++;
    return hd__ckpt_check_tensors(ckpt, state->tensors.at, n, &unused) ? "model." : "optimizer.";
}

static int32_t check_weights(const struct hd__train_checkpointer *k, const char *name, const struct hd__ckpt *ckpt,
                             const char *weights, const char *group, struct hd_error *err)
{
    struct hd__text has = {0};
    uint32_t n;
    const struct hd__ckpt_tensor *saved = hd__ckpt_tensors(ckpt, &n);
    for (uint32_t i = 0; i < n; i++) {
        const char *average = average_of(saved[i].group);
        if (!strcmp(saved[i].group, group)) {
            hd__text_free(&has);
            return HD_OK;
        }
        if ((average || !strcmp(saved[i].group, "model")) && (!i || strcmp(saved[i].group, saved[i - 1].group)))
            hd__text_add(&has, "%s%s", has.length ? ", " : "", average ? average : saved[i].group);
    }
    hd_fail(err, HD_E_INVALID, "--weights %s: checkpoint %s of %s has no such weights; it has %s", weights, name,
            k->dir, has.at);
    hd__text_free(&has);
    return HD_E_INVALID;
}

/* Into the host's arena. */
static int32_t read_named(struct hd__train_checkpointer *k, const char *name, const char *weights,
                          struct hd__train_progress *progress, struct hd_error *err)
{
    struct hd__ckpt_train_state state = {0};
    struct hd__ckpt *ckpt;
    const char *group = weights;
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    if (rc == HD_E_NOTFOUND)
        return hd_fail(err, rc, "%s has no checkpoint %s: `heddle ckpt ls` lists them", k->dir, name);
    if (rc)
        return mention_others(k, name, rc, weights, err);
    rc = weights ? HD_OK : check_replicas(k, name, ckpt, err);
    if (weights && strcmp(weights, "model") != 0)
        group = hd__arena_format(&k->s->compiled->job->arena, "strategy-%s", weights);
    hd__ckpt_collect_train_state(&state, &k->training, 0, group);
    if (!rc && weights)
        rc = check_weights(k, name, ckpt, weights, group, err);
    if (!rc)
        rc = hd__ckpt_load(ckpt, state.tensors.at, state.tensors.count, state.runs.at, state.runs.count, err);
    rc = mention_others(k, name, rc, weights, err);
    if (rc == HD_E_MISMATCH)
        rc = hd__train_resume_diff_explain(k->s->compiled, hd__ckpt_state(ckpt), misfit(ckpt, &state), weights != NULL,
                                           err);
    if (!rc && !weights)
        rc = load_rank_state(k, name, ckpt, err);
    if (!rc && k->s->env->rank == 0)
        hd__train_resume_diff_log(k->s->compiled, name, hd__ckpt_state(ckpt), &k->data, weights != NULL,
                                  k->s->weights_for);
    if (!rc && k->s->env->rank == 0 && !weights)
        say_discarded(k, name, ckpt, &state);
    hd__ckpt_train_state_free(&state);
    if (!rc)
        read_progress(k->s->compiled->job, hd__ckpt_state(ckpt), hd__ckpt_step(ckpt), progress);
    k->loaded_dir = k->dir;
    k->loaded_step = hd__ckpt_step(ckpt);
    note_mesh(k, json_object_get(hd__ckpt_state(ckpt), "mesh"));
    snprintf(k->loaded_run, sizeof k->loaded_run, "%s", hd__ckpt_run_id(ckpt));
    k->loaded_tokens = hd__token_maker_saved(k->s->compiled->job, hd__ckpt_state(ckpt));
    hd__ckpt_close(ckpt);
    return rc;
}

static int32_t use_loaded(struct hd__train_checkpointer *k, int32_t rc, struct hd_error *err)
{
    if (!rc)
        rc = hd__exec_copy_tensors(k->s->exec, HD__H2D, NULL, 0, err);
    hd__exec_drop_mirror(k->s->exec);
    return rc ? rc : hd__exec_run_section(k->s->exec, HD__SECTION_RESTORE, err);
}

static int32_t load_named(struct hd__train_checkpointer *k, const char *name, const char *weights,
                          struct hd__train_progress *progress, struct hd_error *err)
{
    return use_loaded(k, read_named(k, name, weights, progress, err), err);
}

/* A path: its folder is the storage, "" for the job's own, and its last component the name. */
static const char *split_path(struct hd__job *job, const char *path, const char **name)
{
    char *folder = hd__arena_strdup(&job->arena, path), *slash;
    while (strlen(folder) > 1 && folder[strlen(folder) - 1] == '/')
        folder[strlen(folder) - 1] = 0;
    slash = strrchr(folder, '/');
    *name = slash ? slash + 1 : folder;
    if (slash)
        *slash = 0;
    return !slash ? "" : *folder ? folder : "/";
}

static int32_t load_path(struct hd__train_checkpointer *k, const char *path, const char *weights,
                         struct hd__train_progress *progress, struct hd_error *err)
{
    struct hd__train_checkpointer *other = NULL;
    const char *name, *folder = split_path(k->s->compiled->job, path, &name);
    if (!*folder)
        return load_named(k, name, weights, progress, err);
    char *there = realpath(folder, NULL), *here = realpath(k->dir, NULL);
    int32_t rc = hd__train_checkpointer_open(k->s, folder, &other, err);
    if (!rc)
        rc = load_named(other, name, weights, progress, err);
    if (!rc) {
        k->loaded_dir = (there && here && !strcmp(there, here)) || !strcmp(folder, k->dir) ? k->dir : other->dir;
        k->loaded_step = other->loaded_step;
        k->loaded_tokens = other->loaded_tokens;
        memcpy(k->saved_on, other->saved_on, sizeof k->saved_on);
        memcpy(k->loaded_run, other->loaded_run, sizeof k->loaded_run);
    }
    free(there);
    free(here);
    hd__train_checkpointer_close(other);
    return rc;
}

/* ---- the newest that all ranks can read */

/* The result of a rank's reading, as all exchange it. */
struct verdict {
    uint64_t step; /* 0: there is no other */
    int32_t code, reserved;
};

static int is_damage(int32_t code)
{
    return code == HD_E_CORRUPT || code == HD_E_NOTFOUND;
}

/* The code that all go by: damage that any has found, with its words, which travel only then; else this rank's own. */
static int32_t agree_on_damage(struct hd__train_checkpointer *k, uint64_t step, int32_t rc, struct hd_error *err)
{
    const struct hd__ckpt_peers *peers = &k->store.peers;
    struct verdict mine = {.step = step, .code = rc}, *all;
    int32_t ranks = k->s->env->size, result, damaged = 0;
    char words[512], (*of)[sizeof words];
    if (ranks == 1)
        return rc;
    snprintf(words, sizeof words, "%.511s", rc ? err->message : "");
    all = hd__alloc((size_t)ranks * (sizeof *all + sizeof words));
    of = (void *)(all + ranks);
    struct hd_error why = HD_ERROR_INIT;
    result = peers->all_gather(peers->user, &mine, sizeof mine, all, &why);
    while (!result && damaged < ranks && !is_damage(all[damaged].code))
        damaged++;
    if (!result && damaged < ranks && (result = peers->all_gather(peers->user, words, sizeof words, (void *)of, &why)))
        damaged = ranks; /* unheard */
    if (result && !rc)
        *err = why;
    result = rc ? rc : result;
    for (int32_t r = 0; r < ranks && !result; r++)
        if (all[r].step != step)
            result = hd_fail(err, HD_E_MISMATCH,
                             "%s: the newest checkpoint is of step %" PRIu64 " for rank %d and of step %" PRIu64
                             " for this one: do all machines have the same folder?",
                             k->dir, all[r].step, r, step);
    if (damaged < ranks && (!result || result == rc) && !is_damage(result))
        result = hd_fail(err, HD_E_CORRUPT, "%.511s", of[damaged]);
    free(all);
    return result;
}

static int is_candidate(const struct hd__train_checkpointer *k, const char *name)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__ckpt *ckpt = NULL;
    int other = k->only_run && !hd__ckpt_open(&k->store, name, &ckpt, &unused) &&
                strcmp(hd__ckpt_run_id(ckpt), k->only_run) != 0;
    hd__ckpt_close(ckpt);
    return !other;
}

/* The newest checkpoint of the run that may be loaded; 0: there is none. */
static int64_t newest_step(const struct hd__train_checkpointer *k)
{
    struct hd_error unused = HD_ERROR_INIT;
    uint64_t *steps = NULL, newest = 0;
    uint32_t n = 0;
    char name[32];
    if (hd__ckpt_list_steps(&k->store, &steps, &n, NULL, &unused))
        return 0;
    while (n && !newest) {
        hd__ckpt_step_name(steps[--n], name);
        newest = is_candidate(k, name) ? steps[n] : 0;
    }
    free(steps);
    return (int64_t)newest;
}

/* The copies of the rounds before, where they are newer than what is on disk. */
static int32_t load_copies(struct hd__train_checkpointer *k, struct hd__train_progress *progress, int *loaded,
                           struct hd_error *err)
{
    struct hd__ckpt_train_state of = {0};
    json_t *state = NULL;
    int64_t step;
    int rank_state = 1;
    hd__ckpt_collect_train_state(&of, &k->training, 0, NULL);
    uint32_t n_own_runs = of.runs.count;
    hd__ckpt_collect_rank_state(&of, &k->training);
    const struct hd__peer_wanted wanted = {.tensors = of.tensors.at,
                                           .runs = of.runs.at,
                                           .n_tensors = of.tensors.count,
                                           .n_runs = of.runs.count,
                                           .n_own_runs = n_own_runs,
                                           .run = k->only_run,
                                           .step = newest_step(k)};
    int32_t rc = hd__peer_copies_load(k->copies, &wanted, &step, &state, &rank_state, err);
    *loaded = !rc && step >= 0;
    hd__ckpt_train_state_free(&of);
    if (!*loaded) {
        hd__ckpt_init_zeros(hd__exec_program(k->s->exec), k->training.coord, k->training.arena);
        return rc;
    }
    if (!rank_state && k->s->env->rank == 0)
        hd__log(HD_LOG_WARN, NULL,
                "the copies in memory are of another mesh: errors of compressed gradients, which are "
                "of single ranks, begin as zeros");
    read_progress(k->s->compiled->job, state, (uint64_t)step, progress);
    note_mesh(k, json_object_get(state, "mesh"));
    json_decref(state);
    k->in_memory = 1;
    k->loaded_dir = k->dir;
    k->loaded_step = (uint64_t)step;
    snprintf(k->loaded_run, sizeof k->loaded_run, "%s", k->only_run);
    return use_loaded(k, rc, err);
}

/* Tries one after the other, on all ranks at once; progress is unchanged where there is none. */
static int32_t load_newest(struct hd__train_checkpointer *k, struct hd__train_progress *progress, struct hd_error *err)
{
    uint64_t *steps = NULL;
    uint32_t n = 0;
    int32_t rc = hd__ckpt_list_steps(&k->store, &steps, &n, NULL, err);
    char name[32];
    k->falls_back = 1;
    for (int again = !rc; again;) {
        *name = 0;
        while (n && !*name) {
            hd__ckpt_step_name(steps[--n], name);
            if (!is_candidate(k, name))
                *name = 0;
        }
        if (!*name && k->fell_back) {
            struct hd_error last = *err;
            rc = hd_fail(err, HD_E_CORRUPT, "%.800s; %s has no older one", last.message, k->dir);
            break;
        }
        *k->loaded_run = 0;
        rc = *name ? read_named(k, name, NULL, progress, err) : HD_OK;
        rc = agree_on_damage(k, *name ? steps[n] : 0, rc, err);
        again = *name && is_damage(rc);
        if (!again)
            break;
        if (k->s->env->rank == 0)
            hd__log(HD_LOG_WARN, NULL, "%s is passed over, since it is damaged: %s", name, err->message);
        if (!*k->damaged_run)
            memcpy(k->damaged_run, k->loaded_run, sizeof k->damaged_run);
        k->fell_back = 1;
        hd__ckpt_init_zeros(hd__exec_program(k->s->exec), k->training.coord, k->training.arena);
    }
    k->falls_back = 0;
    free(steps);
    return rc || !*name ? rc : use_loaded(k, rc, err);
}

void hd__train_checkpointer_continue(struct hd__train_checkpointer *k, const char *run)
{
    k->only_run = run;
}

int32_t hd__train_checkpointer_load(struct hd__train_checkpointer *k, const char *which, const char *weights,
                                    struct hd__train_progress *progress, struct hd_error *err)
{
    char name[32];
    if (!strcmp(which, "never") || !strcmp(which, "overwrite"))
        return HD_OK;
    if (strcmp(which, "auto"))
        return load_path(k, which, weights, progress, err);
    int loaded = 0;
    int32_t rc = k->copies && k->only_run ? load_copies(k, progress, &loaded, err) : HD_OK;
    if (rc || loaded)
        return rc;
    rc = hd__ckpt_latest(&k->store, name, err);
    if (!weights && (!rc || rc == HD_E_NOTFOUND))
        return load_newest(k, progress, err);
    if (rc == HD_E_NOTFOUND)
        return HD_OK;
    return rc ? rc : load_named(k, name, weights, progress, err);
}

static int names_checkpoint(const struct hd__job *job)
{
    return strcmp(job->resume, "auto") && strcmp(job->resume, "never") && strcmp(job->resume, "overwrite");
}

/* A path that is no checkpoint: does it hold some, lie in one, or is it another's? */
static const char *not_a_checkpoint(struct hd__job *job, const char *path, const char *folder, const char *name)
{
    const char *inside = hd__arena_format(&job->arena, "%s/{,checkpoints/}step-*", path);
    glob_t found = {0};
    int holds = !glob(inside, GLOB_BRACE, NULL, &found) && found.gl_pathc;
    const char *one = holds ? hd__arena_strdup(&job->arena, found.gl_pathv[found.gl_pathc - 1]) : NULL;
    globfree(&found);
    if (holds)
        return hd__arena_format(&job->arena, "%s is a folder of %s: name one of them, as %s", path,
                                strncmp(one + strlen(path), "/step-", 6) ? "a run, with checkpoints" : "checkpoints",
                                one);
    if (!access(hd__arena_format(&job->arena, "%s/index.json", folder), F_OK))
        return hd__arena_format(&job->arena, "%s is in a checkpoint: name that, %s", path, folder);
    return hd__arena_format(&job->arena, "%s has no checkpoint %s: `heddle ckpt ls` lists them%s", folder, name,
                            access(hd__arena_format(&job->arena, "%s/config.json", path), F_OK)
                                ? ""
                                : "; it is a folder of Hugging Face's, whose weights model.from begins with");
}

int32_t hd__train_checkpointer_check_resume(const struct hd__compiled *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    const struct hd__chosen *chosen = &c->checkpoint_choice;
    struct hd__ckpt_store store = {0};
    struct hd__ckpt *ckpt = NULL;
    if (!chosen->component || !names_checkpoint(job))
        return HD_OK;
    const char *name, *folder = split_path(job, job->resume, &name);
    folder = *folder ? folder : job->checkpoint_dir;
    store.ops = &chosen->component->ops.ckpt;
    int32_t rc = store.ops->open(hd__exec_host_table(), chosen->settings, folder, &store.ckpt, err);
    if (!rc && (rc = hd__ckpt_open(&store, name, &ckpt, err)) == HD_E_NOTFOUND)
        hd_fail(err, rc, "%s", not_a_checkpoint(job, job->resume, folder, name));
    else if (rc == HD_E_INVALID && !strstr(folder, "://") && /* a store of objects names the cause */
             access(hd__arena_format(&job->arena, "%s/%s/index.json", folder, name), F_OK))
        hd_fail(err, rc, "%s is no checkpoint: name its folder, as %s/step-00000100", job->resume, job->checkpoint_dir);
    hd__ckpt_close(ckpt);
    if (store.ckpt)
        store.ops->close(store.ckpt);
    if (!rc || rc == HD_E_CORRUPT) /* who loads it names an older one */
        return HD_OK;
    return hd__job_fail(job, "checkpoint.resume", err, "checkpoint.resume: %s", err->message);
}

/* ---- before a job starts, without ranks */

/* All of a checkpoint but the bytes of its tensors. */
static int32_t look_at(struct hd__train_checkpointer *k, const char *name, struct hd_error *err)
{
    struct hd__ckpt_train_state state = {0};
    struct hd__ckpt *ckpt = NULL;
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    if (!rc)
        rc = check_replicas(k, name, ckpt, err);
    if (!rc)
        rc = hd__ckpt_check_files(ckpt, err);
    if (!rc) {
        hd__ckpt_collect_train_state(&state, &k->training, 0, NULL);
        rc = hd__ckpt_check_tensors(ckpt, state.tensors.at, state.tensors.count, err);
    }
    if (rc == HD_E_MISMATCH)
        rc = hd__train_resume_diff_explain(k->s->compiled, hd__ckpt_state(ckpt), misfit(ckpt, &state), 0, err);
    if (!rc) {
        hd__train_resume_diff_log(k->s->compiled, name, hd__ckpt_state(ckpt), &k->data, 0, 0);
        k->loaded_step = hd__ckpt_step(ckpt);
    }
    hd__ckpt_train_state_free(&state);
    hd__ckpt_close(ckpt);
    return rc;
}

/* As load_newest, of one process. */
static int32_t look_for_newest(struct hd__train_checkpointer *k, struct hd_error *err)
{
    uint64_t *steps = NULL;
    uint32_t n = 0;
    char name[32];
    int32_t rc = hd__ckpt_list_steps(&k->store, &steps, &n, NULL, err);
    for (int again = !rc && n; again;) {
        hd__ckpt_step_name(steps[--n], name);
        rc = look_at(k, name, err);
        again = is_damage(rc) && n;
        if (again)
            hd__log(HD_LOG_WARN, NULL, "%s is passed over, since it is damaged: %s", name, err->message);
    }
    free(steps);
    if (!is_damage(rc))
        return rc;
    struct hd_error last = *err;
    return hd_fail(err, HD_E_CORRUPT, "%.800s; %s has no older one", last.message, k->dir);
}

int32_t hd__train_checkpointer_check_start(struct hd__compiled *c, int64_t *step, struct hd_error *err)
{
    static const int32_t first[HD_AXIS_COUNT];
    struct hd__job *job = c->job;
    struct hd__train_session s = {.compiled = c};
    struct hd__train_checkpointer k = {.s = &s, .dir = job->checkpoint_dir};
    const char *name = NULL;
    if (!c->checkpoint_choice.component)
        return HD_OK;
    int named = names_checkpoint(job);
    const char *folder = named ? split_path(job, job->resume, &name) : "";
    k.dir = *folder ? folder : k.dir;
    k.ops = &c->checkpoint_choice.component->ops.ckpt;
    if (k.ops->open(hd__exec_host_table(), c->checkpoint_choice.settings, k.dir, &k.ckpt, err))
        return hd__job_locate_error(job, "checkpoint.dir", err);
    k.store = (struct hd__ckpt_store){.ops = k.ops, .ckpt = k.ckpt};
    k.training = (struct hd__ckpt_training){.program = c->stage[0],
                                            .stages = c->stage,
                                            .n_stages = c->n_stages,
                                            .coord = first,
                                            .arena = &k, /* where nobody looks */
                                            .state_names = c->optimizer.ops->state_names};
    int32_t rc = named ? mention_others(&k, name, look_at(&k, name, err), NULL, err) : check_others(&k, err);
    if (!rc && !strcmp(job->resume, "auto"))
        rc = look_for_newest(&k, err);
    *step = (int64_t)k.loaded_step;
    k.ops->close(k.ckpt);
    return rc;
}
