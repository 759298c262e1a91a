/* A checkpoint into a session. */
#include "service/train/checkpointer/internal.h"

#include <math.h>
#include <stdlib.h>

static int64_t integer_or(const json_t *value, int64_t otherwise)
{
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static void note_mesh(struct hd__train_checkpointer *k, const json_t *saved)
{
    const struct hd__mesh *mesh = &k->s->compiled->mesh;
    struct hd__text axes = {0};
    int differ = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        int64_t size = integer_or(json_object_get(saved, hd__axis_name(a)), 1);
        differ |= size != mesh->size[a];
        if (size > 1)
            hd__text_add(&axes, "%s %s %lld", axes.length ? "," : ", saved on", hd__axis_name(a), (long long)size);
    }
    if (saved && differ) /* one of an older heddle may not say */
        snprintf(k->loaded.saved_on, sizeof k->loaded.saved_on, "%s", axes.length ? axes.at : ", saved on 1 rank");
    hd__text_free(&axes);
}

void hd__checkpointer_use_state(struct hd__train_checkpointer *k, const json_t *state, uint64_t step,
                                struct hd__train_progress *progress)
{
    struct hd__job *job = k->s->compiled->job;
    int64_t length = hd__train_resume_saved_int(state, "data", "seq_len", job->seq_len),
            batch = hd__train_resume_saved_int(state, "data", "batch", job->batch);
    progress->step = (int64_t)step;
    hd__train_shards_load(job, json_object_get(state, "files"));
    hd__train_loss_scaler_load(&progress->scaler, json_object_get(state, "loss_scale"));
    /* The first sequence of which no token was read, in case seq_len has changed. */
    progress->sequence = (integer_or(json_object_get(state, "sequence"), 0) * length + job->seq_len - 1) / job->seq_len;
    progress->tokens = integer_or(json_object_get(state, "tokens"), progress->step * batch * length);
    k->loaded.dir = k->dir;
    k->loaded.step = step;
    note_mesh(k, json_object_get(state, "mesh"));
}

int32_t hd__checkpointer_check_replicas(const struct hd__train_checkpointer *k, const char *name,
                                        const struct hd__ckpt *ckpt, struct hd_error *err)
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

int32_t hd__checkpointer_mention_others(const struct hd__train_checkpointer *k, const char *name, int32_t rc,
                                        const char *weights, struct hd_error *err)
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

void hd__checkpointer_say_discarded(const struct hd__train_checkpointer *k, const char *name,
                                    const struct hd__ckpt *ckpt, const struct hd__ckpt_train_state *state)
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

const char *hd__checkpointer_misfit(const struct hd__ckpt *ckpt, const struct hd__ckpt_train_state *state)
{
    struct hd_error unused = HD_ERROR_INIT;
    uint32_t n = 0; /* of parameters, which come first: where they fit, it is the rest that does not */
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

/* Weights of model.from may know more of them. */
static int64_t trained_positions(const json_t *state)
{
    const json_t *model = json_object_get(json_object_get(state, "job"), "model");
    const char *from = json_string_value(json_object_get(model, "from"));
    return from && *from ? 0 : hd__train_resume_saved_int(state, "data", "seq_len", 0);
}

int32_t hd__checkpointer_read(struct hd__train_checkpointer *k, const char *name, const char *weights,
                              struct hd__train_progress *progress, struct hd_error *err)
{
    struct hd__job *job = k->s->compiled->job;
    struct hd__ckpt_train_state state = {0};
    struct hd__ckpt *ckpt;
    const char *group = weights;
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    if (rc == HD_E_NOTFOUND)
        return hd_fail(
            err, rc, "%s",
            hd__checkpointer_no_checkpoint(job, hd__arena_format(&job->arena, "%s/%s", k->dir, name), k->dir, name));
    if (rc)
        return hd__checkpointer_mention_others(k, name, rc, weights, err);
    rc = weights ? HD_OK : hd__checkpointer_check_replicas(k, name, ckpt, err);
    if (weights && strcmp(weights, "model") != 0)
        group = hd__arena_format(&job->arena, "strategy-%s", weights);
    hd__ckpt_collect_train_state(&state, &k->training, 0, group);
    if (!rc && weights)
        rc = check_weights(k, name, ckpt, weights, group, err);
    if (!rc)
        rc = hd__ckpt_load(ckpt, state.tensors.at, state.tensors.count, state.runs.at, state.runs.count, err);
    rc = hd__checkpointer_mention_others(k, name, rc, weights, err);
    if (rc == HD_E_MISMATCH)
        rc = hd__train_resume_diff_explain(k->s->compiled, hd__ckpt_state(ckpt), hd__checkpointer_misfit(ckpt, &state),
                                           weights != NULL, err);
    if (!rc && !weights)
        rc = load_rank_state(k, name, ckpt, err);
    if (!rc && k->s->env->rank == 0)
        hd__train_resume_diff_log(k->s->compiled, name, hd__ckpt_state(ckpt), &k->data, weights != NULL,
                                  k->s->weights_for);
    if (!rc && k->s->env->rank == 0 && !weights)
        hd__checkpointer_say_discarded(k, name, ckpt, &state);
    hd__ckpt_train_state_free(&state);
    if (!rc)
        hd__checkpointer_use_state(k, hd__ckpt_state(ckpt), hd__ckpt_step(ckpt), progress);
    snprintf(k->loaded.run, sizeof k->loaded.run, "%s", hd__ckpt_run_id(ckpt));
    k->loaded.tokens = hd__token_maker_saved(k->s->compiled->job, hd__ckpt_state(ckpt));
    k->loaded.positions = trained_positions(hd__ckpt_state(ckpt));
    hd__ckpt_close(ckpt);
    return rc;
}

int32_t hd__checkpointer_use_read(struct hd__train_checkpointer *k, int32_t rc, struct hd_error *err)
{
    if (!rc)
        rc = hd__exec_copy_tensors(k->s->exec, HD__H2D, NULL, 0, err);
    hd__exec_drop_mirror(k->s->exec);
    return rc ? rc : hd__exec_run_section(k->s->exec, HD__SECTION_RESTORE, err);
}

static int32_t load_named(struct hd__train_checkpointer *k, const char *name, const char *weights,
                          struct hd__train_progress *progress, struct hd_error *err)
{
    return hd__checkpointer_use_read(k, hd__checkpointer_read(k, name, weights, progress, err), err);
}

const char *hd__checkpointer_split_path(struct hd__job *job, const char *path, const char **name)
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
    const char *name, *folder = hd__checkpointer_split_path(k->s->compiled->job, path, &name);
    if (!*folder)
        return load_named(k, name, weights, progress, err);
    char *there = realpath(folder, NULL), *here = realpath(k->dir, NULL);
    int32_t rc = hd__train_checkpointer_open(k->s, folder, &other, err);
    if (!rc)
        rc = load_named(other, name, weights, progress, err);
    if (!rc) {
        k->loaded = other->loaded;
        k->loaded.dir = (there && here && !strcmp(there, here)) || !strcmp(folder, k->dir) ? k->dir : other->dir;
    }
    free(there);
    free(here);
    hd__train_checkpointer_close(other);
    return rc;
}

/* The newest may not be the one that checkpoint.keep.best kept. */
static void say_better(const struct hd__train_checkpointer *k, const char *newest)
{
    struct hd_error unused = HD_ERROR_INIT;
    uint64_t *steps = NULL;
    uint32_t n = 0;
    char name[32], best[32] = "", run[HD__RUN_ID] = "";
    double least = INFINITY, of_newest = NAN;
    if (!k->s->compiled->job->checkpoint_keep_best || k->s->env->rank || !k->s->weights_for ||
        hd__ckpt_list_steps(&k->store, &steps, &n, NULL, &unused))
        return;
    while (n--) { /* the newest first, so of equal losses that */
        struct hd__ckpt *ckpt = NULL;
        hd__ckpt_step_name(steps[n], name);
        int is_newest = !strcmp(name, newest);
        if (hd__ckpt_open(&k->store, name, &ckpt, &unused))
            continue;
        const json_t *loss = json_object_get(hd__ckpt_state(ckpt), "val_loss");
        if (is_newest) {
            snprintf(run, sizeof run, "%s", hd__ckpt_run_id(ckpt));
            of_newest = json_is_number(loss) ? json_number_value(loss) : NAN;
        }
        if (json_is_number(loss) && json_number_value(loss) < least && !strcmp(run, hd__ckpt_run_id(ckpt))) {
            least = json_number_value(loss);
            memcpy(best, name, sizeof best);
        }
        hd__ckpt_close(ckpt);
    }
    free(steps);
    if (*best && strcmp(best, newest) != 0)
        hd__log(HD_LOG_INFO, NULL,
                "%s is the newest checkpoint, and of those of its run %s has the best val_loss, %.4f%s: --checkpoint "
                "%s takes it",
                newest, best, least,
                isnan(of_newest) ? "" : hd__arena_format(&k->s->compiled->job->arena, " against %.4f", of_newest),
                best);
}

static const char *saver_of(const struct hd__ckpt *ckpt)
{
    const json_t *job = json_object_get(json_object_get(hd__ckpt_state(ckpt), "job"), "job");
    const char *name = json_string_value(json_object_get(job, "name"));
    return name ? name : "";
}

/* A checkpoint that was copied from another job's folder may be newer than this job's own, or checkpoint.dir may be
 * copied from its file. Few are looked at. */
static void say_other_job(const struct hd__train_checkpointer *k, const char *newest)
{
    struct hd__job *job = k->s->compiled->job;
    struct hd_error unused = HD_ERROR_INIT;
    const char *saver = NULL;
    uint64_t *steps = NULL;
    uint32_t n = 0, looks = 8;
    char name[32];
    int own = 0;
    if (k->s->env->rank || hd__ckpt_list_steps(&k->store, &steps, &n, NULL, &unused))
        return;
    for (int more = 1; n-- && looks-- && more;) {
        struct hd__ckpt *ckpt = NULL;
        hd__ckpt_step_name(steps[n], name);
        if (hd__ckpt_open(&k->store, name, &ckpt, &unused)) {
            more = saver != NULL; /* that the newest is damaged is said where it is read */
            continue;
        }
        const int mine = !strcmp(saver_of(ckpt), job->name);
        own |= mine;
        if (!strcmp(name, newest))
            saver = hd__arena_strdup(&job->arena, saver_of(ckpt));
        more = saver && *saver && strcmp(saver, job->name) != 0 && !mine;
        if (mine && saver && strcmp(name, newest) != 0)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %s is the newest checkpoint of %s, and job %s saved it; the newest of job %s is %s: "
                    "--checkpoint %s takes it",
                    hd__job_where(job, "job.name"), newest, k->dir, saver, job->name, name, name);
        hd__ckpt_close(ckpt);
    }
    free(steps);
    if (!own && saver && *saver && strcmp(hd__job_value_get(job, "checkpoint.dir")->origin, "command line"))
        hd__log(HD_LOG_INFO, NULL, "%s: %s of %s was saved by job %s, and this is job %s",
                hd__job_where(job, "checkpoint.dir"), newest, k->dir, saver, job->name);
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
    int32_t rc = k->copies && k->only_run ? hd__checkpointer_load_copies(k, progress, &loaded, err) : HD_OK;
    if (rc || loaded)
        return rc;
    rc = hd__ckpt_latest(&k->store, name, err);
    if (!weights && (!rc || rc == HD_E_NOTFOUND))
        return hd__checkpointer_load_newest(k, progress, err);
    if (rc == HD_E_NOTFOUND)
        return HD_OK;
    if (!rc) {
        say_better(k, name);
        say_other_job(k, name);
        if (!k->s->env->rank)
            hd__train_checkpointer_warn_elsewhere(k->s->compiled->job, strtoll(name + strlen("step-"), NULL, 10));
    }
    return rc ? rc : load_named(k, name, weights, progress, err);
}
