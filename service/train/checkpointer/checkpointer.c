/* A session's checkpoints. */
#include "service/train/checkpointer/internal.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/base/process.h"
#include "service/checkpoint/survivors.h"
#include "service/train/save/emergency.h"
#include "service/train/save/peer_copies.h"

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

int32_t hd__checkpointer_open_store(const struct hd__compiled *c, const char *dir, struct hd_ckpt **store,
                                    struct hd_error *err)
{
    const struct hd_ckpt_ops *ops = &c->checkpoint_choice.component->ops.ckpt;
    struct hd__process process;
    *store = NULL;
    hd__process_note(&process);
    int32_t rc = hd__slot_result(ops->open(hd__exec_host_table(), c->checkpoint_choice.settings, dir, store, err),
                                 "the storage's", "open", err);
    hd__process_restore_after(&process, (uintptr_t)ops->open);
    return rc;
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
    int32_t rc = hd__checkpointer_open_store(s->compiled, k->dir, &k->ckpt, err);
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

const struct hd__train_marks *hd__train_checkpointer_marks(const struct hd__train_checkpointer *k)
{
    return &k->data.files;
}

const struct hd__train_loaded *hd__train_checkpointer_loaded(const struct hd__train_checkpointer *k)
{
    static const struct hd__train_loaded nothing = {.saved_on = ""};
    return k ? &k->loaded : &nothing;
}

/* ---- saving */

/* A save of the tensors and runs in `of`. The caller releases its `state`. */
static struct hd__ckpt_save make_save(const struct hd__train_checkpointer *k, const struct hd__ckpt_train_state *of,
                                      const struct hd__train_progress *progress)
{
    const struct hd__compiled *c = k->s->compiled;
    const struct hd__job *job = c->job;
    const struct hd_program *p = k->training.program;
    json_t *model = json_pack("{s:s,s:I,s:I,s:I,s:I}", "family", c->info.family ? c->info.family : "", "layers",
                              (json_int_t)c->info.layers, "hidden", (json_int_t)c->info.hidden, "vocab",
                              (json_int_t)c->info.vocab, "parameters", (json_int_t)hd__compiled_parameter_count(c));
    json_t *mesh = json_object();
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        json_object_set_new(mesh, hd__axis_name(a), json_integer(p->mesh.size[a]));
    json_t *state = json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:o,s:o,s:I,s:o,s:o,s:o*,s:o*}", "step", (json_int_t)progress->step, "sequence",
        (json_int_t)progress->sequence, "tokens", (json_int_t)progress->tokens, "replicas",
        (json_int_t)hd__mesh_ways(&p->mesh, p->independent_axes), "seed", (json_int_t)job->seed, "optimizer",
        c->optimizer_choice.component->name, "lr", hd__job_lr(job, progress->step), "model", model, "loss_scale",
        hd__train_loss_scaler_json(&progress->scaler), "time", (json_int_t)time(NULL), "mesh", mesh, "job",
        hd__job_json(job), "config", hd__train_model_config(c), "files", hd__train_shards_json(k->s));
    json_t *data = hd__train_data_json(&k->data);
    json_object_update(state, data);
    json_decref(data);
    if (isfinite(progress->val_loss))
        json_object_set_new(state, "val_loss", json_real(progress->val_loss));
    return (struct hd__ckpt_save){.step = (uint64_t)progress->step,
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
    int32_t rc = hd__ckpt_async_writer_join(k->async_writer, err); /* it still reads k->saving */
    if (!rc)
        rc = hd__exec_copy_tensors(k->s->exec, HD__D2H, NULL, 0, err);
    if (rc)
        return rc;
    hd__ckpt_collect_train_state(&k->saving, &k->training, 1, NULL);
    hd__ckpt_collect_rank_state(&k->saving, &k->training);
    save = make_save(k, &k->saving, progress);
    rc = k->async_writer ? hd__ckpt_async_writer_start(k->async_writer, &save, err)
                         : hd__ckpt_save(&k->store, &save, err);
    hd__exec_drop_mirror(k->s->exec);
    json_decref(save.state);
    /* One that was committed is on disk, also where the others do not hear of that any more. */
    k->saved =
        (struct hd__train_saved){.step = rc && atomic_load(&k->gather.committed) != progress->step ? 0 : progress->step,
                                 .exposed = hd__now() - start,
                                 .val_loss = progress->val_loss};
    for (uint32_t i = 0; i < k->saving.tensors.count; i++)
        k->saved.bytes +=
            (int64_t)(hd__ckpt_tensor_numel(&k->saving.tensors.at[i]) * hd_dtype_size(k->saving.tensors.at[i].dtype));
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
    const struct hd__ckpt_save save = make_save(k, &of, progress);
    rc = hd__peer_copies_save(k->copies, &save, err);
    hd__exec_drop_mirror(k->s->exec);
    json_decref(save.state);
    hd__ckpt_train_state_free(&of);
    return rc;
}

int32_t hd__train_checkpointer_wait(struct hd__train_checkpointer *k, struct hd_error *err)
{
    double start = hd__now();
    int32_t rc = k ? hd__ckpt_async_writer_join(k->async_writer, err) : HD_OK;
    if (k)
        k->saved.exposed += hd__now() - start;
    if (k && rc && atomic_load(&k->gather.committed) != k->saved.step)
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
    if (saved->seconds < 0) /* the next join fails with it */
        return 0;
    k->saved.step = 0;
    return 1;
}

/* ---- saving what is left after a fault */

/* Reads back what was saved. */
static int32_t verify_saved(struct hd__train_checkpointer *k, int64_t step, struct hd_error *err)
{
    struct hd__ckpt *ckpt = NULL;
    char name[32];
    hd__ckpt_step_name((uint64_t)step, name);
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    rc = rc ? rc : hd__ckpt_verify(ckpt, err);
    hd__ckpt_close(ckpt);
    return rc;
}

int64_t hd__train_checkpointer_end(struct hd__train_checkpointer *k, int64_t saved)
{
    struct hd_error unused = HD_ERROR_INIT;
    atomic_store(&k->gather.ended, 1);
    int failed = hd__train_checkpointer_busy(k) || hd__train_checkpointer_wait(k, &unused);
    int64_t committed = atomic_load(&k->gather.committed);
    return failed ? committed : HD__MAX(saved, committed);
}

int32_t hd__train_checkpointer_collect_left(struct hd__train_checkpointer *k, const int32_t *ranks, int32_t n,
                                            struct hd_error *err)
{
    uint64_t most;
    int32_t rc = hd__ckpt_collect_survivors(&k->left, &k->training, k->s->env->rank, ranks, (uint32_t)n, &most,
                                            &k->left_bytes, err);
    k->gather_left = (struct hd__store_gather){.session = k->s, .name = "ckpt-left", .ranks = ranks, .n = n};
    if (!rc) /* also those that store nothing: the others need what their machines serve and run */
        hd__store_gather_busy(&k->gather_left, most);
    return rc;
}

int32_t hd__train_checkpointer_save_left(struct hd__train_checkpointer *k, const struct hd__train_progress *progress,
                                         const int32_t *ranks, const char run[HD__RUN_ID], json_t *emergency,
                                         struct hd_error *err)
{
    json_t *data = ranks[0] && ranks[0] == k->s->env->rank ? hd__train_emergency_find_data(k->s) : NULL;
    hd__train_checkpointer_wait(k, NULL); /* one that was under way is no save */
    int32_t rc = hd__exec_copy_tensors(k->s->exec, HD__D2H, NULL, 0, err);
    memcpy(k->run, run, HD__RUN_ID);
    k->store.peers = hd__store_gather_peers(&k->gather_left);
    const struct hd__ckpt_save save = make_save(k, &k->left, progress);
    json_object_update(save.state, data);
    json_object_set_new(save.state, "emergency", emergency);
    json_decref(data);
    rc = rc ? rc : hd__ckpt_save(&k->store, &save, err);
    if (!rc) /* what one reads back */
        hd__store_gather_busy(&k->gather_left, k->left_bytes);
    if (!rc && ranks[0] == k->s->env->rank)
        rc = verify_saved(k, progress->step, err);
    json_decref(save.state);
    return rc;
}
