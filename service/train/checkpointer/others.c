/* Checkpoints of other runs: a folder has those of one run, and what it branched off from. */
#include "service/train/checkpointer/internal.h"

#include <stdlib.h>

#include "core/job/job.h"
#include "runtime/rendezvous/store.h"

#define ASIDE "checkpoints/aside" /* how many rank 0 is about to move */
#define MOVED "checkpoints/moved" /* it has */

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

int32_t hd__checkpointer_check_others(struct hd__train_checkpointer *k, struct hd_error *err)
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
    return hd__checkpointer_check_others(k, err);
}

struct hd__shared_place *hd__train_checkpointer_place(struct hd__train_checkpointer *k)
{
    return &k->place;
}

int32_t hd__train_checkpointer_begin(struct hd__train_checkpointer *k, char run[HD__RUN_ID], struct hd_error *err)
{
    uint32_t n = 0, torn = 0, others = 0;
    int here = k->loaded.dir && !strcmp(k->loaded.dir, k->dir);
    int32_t rc = hd__ckpt_list_steps(&k->store, &k->aside, &n, &torn, err);
    for (uint32_t i = 0; i < n + torn && !rc; i++)
        if (!here || k->aside[i] > k->loaded.step) {
            others += i < n && !k->fell_back && !k->only_run; /* torn ones may be copied whole some day */
            k->aside[k->n_aside++] = k->aside[i];
        }
    k->aside_are = others ? "of another run" : k->fell_back ? "that cannot be read" : "without an index.json";
    if (k->only_run)
        snprintf(run, HD__RUN_ID, "%s", k->only_run);
    else if (here && !others && *k->loaded.run)
        memcpy(run, k->fell_back && *k->damaged_run ? k->damaged_run : k->loaded.run, HD__RUN_ID);
    memcpy(k->run, run, HD__RUN_ID);
    if (!rc && k->n_aside && !k->ops->move)
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "%s has checkpoints of another run, and ckpt-%s cannot move them: take another job.name", k->dir,
                     k->s->compiled->checkpoint_choice.component->name);
    if (!rc && k->s->env->size > 1)
        rc = hd__store_put(k->s->store, ASIDE, &k->n_aside, sizeof k->n_aside, err);
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
    if (!rc && k->n_aside && k->s->env->size > 1)
        rc = hd__store_put(k->s->store, MOVED, &k->n_aside, sizeof k->n_aside, err);
    int over = !strcmp(k->s->compiled->job->resume, "overwrite") && !k->loaded.dir;
    if (!rc && k->n_aside)
        hd__log(over ? HD_LOG_WARN : HD_LOG_INFO, NULL, "%s%s: %u checkpoint%s %s moved to %s%s",
                over ? hd__arena_format(&k->s->compiled->job->arena, "%s: checkpoint.resume is overwrite: ",
                                        hd__job_where(k->s->compiled->job, "checkpoint.resume"))
                     : "",
                k->dir, k->n_aside, k->n_aside > 1 ? "s" : "", k->aside_are, folder,
                over ? ", and training begins at step 0; auto would have gone on from them" : "");
    return rc;
}

/* Errors are those of the barrier that follows: it says who is late, or gone. */
void hd__train_checkpointer_wait_aside(struct hd__train_checkpointer *k)
{
    struct hd_store *store = k->s->store;
    double timeout = k->s->compiled->job->comm_timeout;
    struct hd_error unused = HD_ERROR_INIT;
    uint32_t n = 0;
    size_t bytes = sizeof n;
    int32_t rc = hd__store_get(store, ASIDE, &n, &bytes, hd__now() + timeout, &unused);
    while (!rc && n && hd__store_get(store, MOVED, &n, &bytes, hd__now() + timeout, &unused) == HD_E_TIMEOUT)
        if (k->s->env->rank == 1)
            hd__log(HD_LOG_WARN, NULL, "rank 0 still moves %u checkpoint%s of %s aside", n, n > 1 ? "s" : "", k->dir);
}
