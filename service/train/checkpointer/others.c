/* Checkpoints of other runs: a folder has those of one run, and what it branched off from. */
#include "service/train/checkpointer/internal.h"

#include <stdlib.h>

#include "core/job/job.h"
#include "runtime/rendezvous/store.h"

#define ASIDE "checkpoints/aside/%u" /* so many has rank 0 moved: struct aside */

struct aside {
    uint32_t left, reserved;
    double seconds; /* that the next may take */
};

enum { FOLDERS = 1000 };

/* The first folder DIR.1, DIR.2, ... without checkpoints: another store of this kind. */
static int32_t find_free_folder(struct hd__train_checkpointer *k, const char **folder, struct hd_error *err)
{
    uint32_t found = 1, torn = 0;
    int32_t rc = HD_OK;
    for (int n = 1; found + torn && !rc; n++) {
        struct hd__ckpt_store store = {.ops = k->ops};
        uint64_t *steps = NULL;
        *folder = hd__arena_format(&k->s->compiled->job->arena, "%s.%d", k->dir, n);
        rc = hd__checkpointer_open_store(k->s->compiled, *folder, &store.ckpt, err);
        if (rc)
            return rc;
        rc = hd__ckpt_list_steps(&store, &steps, &found, &torn, err);
        k->ops->close(store.ckpt);
        free(steps);
        if (!rc && found + torn && n == FOLDERS)
            return hd_fail(err, HD_E_INVALID,
                           "%s.1 to %s all have checkpoints: move them away; if they are not there, %s ignores the "
                           "location that its `open` is given",
                           k->dir, *folder, k->s->compiled->checkpoint_choice.component->label);
    }
    return rc;
}

int32_t hd__checkpointer_check_others(struct hd__train_checkpointer *k, struct hd_error *err)
{
    struct hd__job *job = k->s->compiled->job;
    char newest[32], why[HD__TORN_REASON] = "";
    const char *folder;
    uint64_t *steps = NULL;
    uint32_t n = 0, torn = 0;
    int32_t rc = hd__ckpt_list_steps(&k->store, &steps, &n, &torn, err);
    if (!rc && n + torn)
        hd__ckpt_step_name(steps[(n ? n : torn) - 1], newest);
    if (!rc && !n && torn)
        hd__ckpt_torn_reason(&k->store, steps[torn - 1], why);
    free(steps);
    if (rc || !(n + torn) || (rc = find_free_folder(k, &folder, err)))
        return rc;
    if (!n && !strcmp(job->resume, "auto"))
        return hd__job_fail(
            job, "checkpoint.resume", err,
            "checkpoint.resume: %s/%s has no index.json that can be read%s, so it is no checkpoint, and "
            "there is no other: copy it whole, or checkpoint.resume=overwrite starts over and moves "
            "it to %s",
            k->dir, newest, why, folder);
    if (strcmp(job->resume, "never") != 0)
        return HD_OK;
    return hd__job_fail(job, "checkpoint.resume", err,
                        "checkpoint.resume is never, and %s has checkpoints of another run, to %s: take another "
                        "job.name, or checkpoint.resume=overwrite, which moves them to %s",
                        k->dir, newest, folder);
}

int32_t hd__train_checkpointer_check_dir(struct hd__train_checkpointer *k, struct hd_error *err)
{
    struct hd__job *job = k->s->compiled->job;
    const char *whose = hd__arena_format(&job->arena, "%s:", k->s->compiled->checkpoint_choice.component->label);
    struct hd_ckpt_tx *tx = NULL;
    int32_t rc =
        hd__slot_handle(k->ops->begin(k->ckpt, "step-00000000", 1, &tx, err), whose, "begin", (void **)&tx, err);
    if (rc)
        return hd__job_fail(job, "checkpoint.dir", err, "checkpoint.dir: %s", err->message);
    k->ops->cancel(tx);
    return hd__checkpointer_check_others(k, err);
}

struct hd__shared_place *hd__train_checkpointer_place(struct hd__train_checkpointer *k)
{
    return &k->place;
}

/* One without an index has at most what this job would save, or what the largest has. */
static uint64_t aside_bytes(const struct hd__train_checkpointer *k, uint64_t step)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__ckpt *ckpt = NULL;
    char name[32];
    hd__ckpt_step_name(step, name);
    uint64_t bytes = hd__ckpt_open(&k->store, name, &ckpt, &unused) ? 0 : hd__ckpt_total_bytes(ckpt);
    hd__ckpt_close(ckpt);
    return HD__MAX(bytes, 16 * (uint64_t)hd__compiled_parameter_count(k->s->compiled));
}

static int32_t tell_aside(const struct hd__train_checkpointer *k, uint32_t moved, struct hd_error *err)
{
    struct aside aside = {.left = k->n_aside - moved};
    char key[32];
    if (k->s->env->size == 1)
        return HD_OK;
    if (aside.left)
        aside.seconds = hd__store_gather_seconds(aside_bytes(k, k->aside[moved]));
    snprintf(key, sizeof key, ASIDE, moved);
    return hd__store_put(k->s->store, key, &aside, sizeof aside, err);
}

/* A launcher starts the ranks again after a failure: each of its starts would begin at step 0. */
static int32_t check_first_start(const struct hd__train_checkpointer *k, struct hd_error *err)
{
    static const char *const counts[] = {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"};
    struct hd__job *job = k->s->compiled->job;
    for (size_t i = 0; i < HD__COUNT(counts); i++) {
        const char *count = getenv(counts[i]);
        if (count && strtol(count, NULL, 10) > 0 && !strcmp(job->resume, "overwrite"))
            return hd__job_fail(job, "checkpoint.resume", err,
                                "checkpoint.resume is overwrite, and this is a start again (%s is %s), which would "
                                "move the checkpoints in %s aside and begin at step 0: leave it out, to go on from "
                                "them, or unset %s",
                                counts[i], count, k->dir, counts[i]);
    }
    return HD_OK;
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
    if (!rc && others)
        rc = check_first_start(k, err);
    k->aside_are = others ? "of another run" : k->fell_back ? "that cannot be read" : "without an index.json";
    if (k->only_run)
        snprintf(run, HD__RUN_ID, "%s", k->only_run);
    else if (here && !others && *k->loaded.run)
        memcpy(run, k->fell_back && *k->damaged_run ? k->damaged_run : k->loaded.run, HD__RUN_ID);
    memcpy(k->run, run, HD__RUN_ID);
    if (!rc && !k->only_run)
        hd__checkpointer_warn_space(k, (int64_t)k->loaded.step, here ? (int64_t)n - others : 0);
    if (!rc && k->n_aside && !k->ops->move)
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "%s has checkpoints of another run, and ckpt-%s cannot move them: take another job.name", k->dir,
                     k->s->compiled->checkpoint_choice.component->name);
    return rc ? rc : tell_aside(k, 0, err);
}

/* The same command again would train them once more: auto alone goes on from them. */
static void say_aside(const struct hd__train_checkpointer *k, const char *folder)
{
    struct hd__job *job = k->s->compiled->job;
    int over = strcmp(job->resume, "auto") && !strcmp(k->aside_are, "of another run");
    const char *why =
        over ? hd__arena_format(&job->arena, "%s: checkpoint.resume is %s: ", hd__job_where(job, "checkpoint.resume"),
                                job->resume)
             : "";
    const char *then =
        over ? hd__arena_format(&job->arena, ", and training begins at step %llu; auto would have gone on from %s",
                                (unsigned long long)k->loaded.step, k->n_aside > 1 ? "them" : "it")
             : "";
    hd__log(over ? HD_LOG_WARN : HD_LOG_INFO, NULL, "%s%s: %u checkpoint%s %s moved to %s%s", why, k->dir, k->n_aside,
            k->n_aside > 1 ? "s" : "", k->aside_are, folder, then);
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
        rc = rc ? rc : tell_aside(k, i + 1, err);
    }
    if (!rc && k->n_aside)
        say_aside(k, folder);
    return rc;
}

static int32_t hear_aside(const struct hd__train_checkpointer *k, uint32_t moved, struct aside *aside)
{
    struct hd_error unused = HD_ERROR_INIT;
    size_t bytes = sizeof *aside;
    char key[32];
    snprintf(key, sizeof key, ASIDE, moved);
    return hd__store_get(k->s->store, key, aside, &bytes, hd__now() + k->s->compiled->job->comm_timeout, &unused);
}

/* Other errors are those of the barrier that follows: it says who is late, or gone. */
int32_t hd__train_checkpointer_wait_aside(struct hd__train_checkpointer *k, struct hd_error *err)
{
    double timeout = k->s->compiled->job->comm_timeout;
    struct aside aside = {0};
    int32_t rc = hear_aside(k, 0, &aside);
    for (uint32_t moved = 1; !rc && aside.left; moved++) {
        double waited = 0, patience = timeout + aside.seconds;
        uint32_t left = aside.left;
        while ((rc = hear_aside(k, moved, &aside)) == HD_E_TIMEOUT && (waited += timeout) < patience)
            if (k->s->env->rank == 1)
                hd__log(HD_LOG_WARN, NULL, "rank 0 still moves %u checkpoint%s of %s aside", left, left > 1 ? "s" : "",
                        k->dir);
        if (rc != HD_E_TIMEOUT)
            continue;
        k->s->speaker.barrier_failed = 1;
        err->origin = hd__speaker_shared(&k->s->speaker, moved);
        err->peer = 0;
        return hd_fail(
            err, rc,
            "rank 0 moves checkpoints of %s aside, and has not moved one of the %u that are left for %.3g s: "
            "see whether the storage answers there, or name another checkpoint.dir",
            k->dir, left, waited);
    }
    return HD_OK;
}
