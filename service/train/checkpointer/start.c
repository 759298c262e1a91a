/* The checkpoint that a job will go on from, looked at before it starts and without ranks. */
#include "service/train/checkpointer/internal.h"

#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

#include "service/train/data/batch_feed.h"
#include "service/train/data/corpus.h"

static int names_checkpoint(const struct hd__job *job)
{
    return strcmp(job->resume, "auto") && strcmp(job->resume, "never") && strcmp(job->resume, "overwrite");
}

const char *hd__checkpointer_no_checkpoint(struct hd__job *job, const char *path, const char *folder, const char *name)
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
    const char *name, *folder = hd__checkpointer_split_path(job, job->resume, &name);
    folder = *folder ? folder : job->checkpoint_dir;
    store.ops = &chosen->component->ops.ckpt;
    int32_t rc = hd__checkpointer_open_store(c, folder, &store.ckpt, err);
    if (!rc && (rc = hd__ckpt_open(&store, name, &ckpt, err)) == HD_E_NOTFOUND)
        hd_fail(err, rc, "%s", hd__checkpointer_no_checkpoint(job, job->resume, folder, name));
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

/* All of a checkpoint but the bytes of its tensors. */
static int32_t look_at(struct hd__train_checkpointer *k, const char *name, struct hd_error *err)
{
    struct hd__ckpt_train_state state = {0};
    struct hd__ckpt *ckpt = NULL;
    int32_t rc = hd__ckpt_open(&k->store, name, &ckpt, err);
    if (!rc)
        rc = hd__checkpointer_check_replicas(k, name, ckpt, err);
    if (!rc)
        rc = hd__ckpt_check_files(ckpt, err);
    if (!rc) {
        hd__ckpt_collect_train_state(&state, &k->training, 0, NULL);
        rc = hd__ckpt_check_tensors(ckpt, state.tensors.at, state.tensors.count, err);
    }
    if (rc == HD_E_MISMATCH)
        rc = hd__train_resume_diff_explain(k->s->compiled, hd__ckpt_state(ckpt), hd__checkpointer_misfit(ckpt, &state),
                                           0, err);
    if (!rc) {
        hd__train_resume_diff_log(k->s->compiled, name, hd__ckpt_state(ckpt), &k->data, 0, 0);
        hd__checkpointer_say_discarded(k, name, ckpt, &state);
        k->loaded.step = hd__ckpt_step(ckpt);
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
        again = hd__checkpointer_is_damage(rc) && n;
        if (again)
            hd__log(HD_LOG_WARN, NULL, "%s is passed over, since it is damaged: %s", name, err->message);
    }
    free(steps);
    if (!hd__checkpointer_is_damage(rc))
        return rc;
    struct hd_error last = *err;
    return hd_fail(err, HD_E_CORRUPT,
                   "%.700s; %s has no older one: checkpoint.resume=overwrite starts over, and moves it aside",
                   last.message, k->dir);
}

/* Tokens of data.train to compare with those of the checkpoint, unless they are still to be made of text. */
static void describe_data(struct hd__train_session *s, struct hd__train_data_mark *out)
{
    const struct hd__job *job = s->compiled->job;
    struct hd_error unused = HD_ERROR_INIT;
    int made = !job->on_error; /* else ranks have other files */
    for (uint64_t i = 0; i < job->train.count; i++)
        made &= !hd__train_corpus_is_text(s->compiled, job->train.at[i].path) ||
                hd__train_corpus_path(job, job->train.at[i].path) != job->train.at[i].path;
    if (made && hd__train_feed_open(s->compiled, 0, HD__FEED_TRAIN, &s->train_feed, &unused))
        s->train_feed = NULL;
    hd__train_data_describe(s, out);
    out->tokens = hd__train_token_maker(s->compiled);
    hd__train_feed_close(s->train_feed);
    s->train_feed = NULL;
}

int32_t hd__train_checkpointer_check_start(struct hd__compiled *c, int64_t *step, struct hd_error *err)
{
    static const int32_t first[HD_AXIS_COUNT];
    struct hd__job *job = c->job;
    struct hd__train_session s = {.compiled = c};
    struct hd__train_checkpointer k = {.s = &s, .dir = job->checkpoint_dir};
    const char *name = NULL;
    uint64_t *steps = NULL;
    uint32_t n = 0;
    if (!c->checkpoint_choice.component)
        return HD_OK;
    int named = names_checkpoint(job);
    const char *folder = named ? hd__checkpointer_split_path(job, job->resume, &name) : "";
    k.dir = *folder ? folder : k.dir;
    k.ops = &c->checkpoint_choice.component->ops.ckpt;
    if (hd__checkpointer_open_store(c, k.dir, &k.ckpt, err))
        return hd__job_locate_error(job, "checkpoint.dir", err);
    k.store = (struct hd__ckpt_store){.ops = k.ops, .ckpt = k.ckpt};
    k.training = (struct hd__ckpt_training){.program = c->stage[0],
                                            .stages = c->stage,
                                            .n_stages = c->n_stages,
                                            .coord = first,
                                            .arena = &k, /* where nobody looks */
                                            .state_names = c->optimizer.ops->state_names};
    describe_data(&s, &k.data);
    int32_t rc = named ? hd__checkpointer_mention_others(&k, name, look_at(&k, name, err), NULL, err)
                       : hd__checkpointer_check_others(&k, err);
    if (!rc && !strcmp(job->resume, "auto"))
        rc = look_for_newest(&k, err);
    *step = (int64_t)k.loaded.step;
    if (!rc && !strcmp(job->resume, "auto"))
        rc = hd__ckpt_list_steps(&k.store, &steps, &n, NULL, err);
    k.dir = job->checkpoint_dir;
    if (!rc && !strcmp(job->resume, "auto"))
        hd__train_checkpointer_warn_elsewhere(job, *step);
    if (!rc)
        hd__checkpointer_warn_space(&k, *step, n);
    free(steps);
    k.ops->close(k.ckpt);
    return rc;
}
