/* Loading and compiling the job that a command names. */
#include "cli/job.h"

#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/comm_plan.h"
#include "core/plugin/search.h"
#include "service/checkpoint/param_init.h"
#include "service/report/speaker.h"
#include "service/train/checkpointer.h"

int hd__cli_job_arguments(const struct hd__command *command, int argc, char **argv, const struct hd__cli_flag *flags,
                          size_t n_flags, struct hd__cli_job_arguments *out)
{
    static struct hd__cli_words words;
    struct hd_error err = HD_ERROR_INIT;
    const char *open = NULL; /* a word with a bracket that it does not close */
    int code = hd__cli_split(command, argc, argv, flags, n_flags, &words);
    *out = (struct hd__cli_job_arguments){.overrides = words.at};
    for (size_t i = 0; i < words.count && !code; i++) {
        const char *value = strchr(words.at[i], '='), *word = words.at[i];
        open = value && strchr("[{", value[1]) && value[1] && !strchr("]}", word[strlen(word) - 1]) ? word : open;
        if (value)
            words.at[out->n_overrides++] = word;
        else if (out->file && open)
            code = hd__cli_usage_error(command, "'%s' ends inside of brackets: write quotes around it, '%s ...'", open,
                                       open);
        else if (out->file)
            code = hd__cli_usage_error(command, "two job files: %s and %s (an override is written key=value)",
                                       out->file, word);
        else
            out->file = word;
    }
    if (code)
        return code;
    if (!out->file)
        return hd__cli_usage_error(command, "which %s?", command == &hd__command_import ? "configuration" : "job file");
    if (hd__job_overrides_check(words.at, out->n_overrides, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    return HD__EXIT_DONE;
}

int hd__cli_parse_per_machine(const struct hd__command *command, const char *text, int32_t ranks, int32_t *n)
{
    char *end = "";
    long value = text ? strtol(text, &end, 10) : 0;
    *n = 0;
    if (text && (*end || end == text || value < 1 || value > ranks))
        return hd__cli_usage_error(command, "--per-machine %s: a number from 1 to the job's %d ranks is wanted", text,
                                   ranks);
    *n = (int32_t)value;
    return HD__EXIT_DONE;
}

/* Does a group along these axes lie on several machines? */
static int spans_machines(const struct hd__mesh *mesh, uint32_t axes, int32_t per_machine)
{
    int32_t *ranks = hd__alloc((size_t)mesh->ranks * sizeof *ranks), found = 0;
    for (int32_t r = 0; r < mesh->ranks && !found; r++)
        for (int32_t i = hd__mesh_group(mesh, r, axes, 0, ranks); i-- > 0;)
            found |= ranks[i] / per_machine != r / per_machine;
    free(ranks);
    return found;
}

int hd__cli_check_transports(const struct hd__compiled *c, int32_t per_machine)
{
    struct hd_error err = HD_ERROR_INIT;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        const struct hd__job_section *section = c->job->comm_axis[a];
        if (c->mesh.size[a] < 2 || !spans_machines(&c->mesh, HD_AXIS_BIT(a), per_machine) ||
            !(hd__exec_chosen_comm(c, section)->component->ops.comm.caps & HD_COMM_LOCAL_ONLY))
            continue;
        hd__job_fail(c->job, section->path, &err,
                     "comm-%s works inside one machine only, and %s connects machines: take another, as comm={use: "
                     "libfabric, provider: tcp, inside: shm}",
                     section->use, hd__axis_name(a));
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    return HD__EXIT_DONE;
}

int hd__cli_check_machines(const struct hd__cli_job_arguments *arguments, int64_t machines, int32_t per_machine)
{
    struct hd__cli_job loaded = {0};
    int code = hd__cli_load_job(arguments, machines * per_machine, &loaded);
    if (!code)
        code = hd__cli_check_transports(loaded.compiled, per_machine);
    hd__cli_unload_job(&loaded);
    return code;
}

int hd__cli_print_error(const struct hd_error *err, int code)
{
    struct hd__text text = {0};
    hd__text_add(&text, "%s%s%s", err->message, err->where[0] ? "; at " : "", err->where);
    hd__speaker_print(text.at);
    hd__text_free(&text);
    return code;
}

int hd__cli_print_load_error(const struct hd_error *err)
{
    int refused = err->code == HD_E_NOTFOUND || err->code == HD_E_INVALID || err->code == HD_E_MISMATCH;
    return hd__cli_print_error(err, refused ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
}

/* All mistakes of keys and values at once. */
static int print_mistakes(struct hd__cli_job *loaded)
{
    struct hd__text text = {0};
    hd__compile_mistakes(loaded->job, loaded->plugins);
    hd__job_mistakes_text(loaded->job, &text);
    hd__speaker_print(text.at);
    hd__text_free(&text);
    return HD__EXIT_REFUSED;
}

int hd__cli_resolve_job(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *out)
{
    struct hd_error err = HD_ERROR_INIT;
    *out = (struct hd__cli_job){0};
    out->plugins = hd__plugins_create(hd__exec_host_table());
    if (hd__job_open(arguments->file, arguments->overrides, arguments->n_overrides, &out->job, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    for (uint64_t i = 0; i < out->job->plugin_path.count; i++)
        if (hd__plugins_add_folder(out->plugins, out->job->plugin_path.text[i], &err)) {
            hd__job_locate_error(out->job, "plugins.path", &err);
            return hd__cli_print_error(&err, HD__EXIT_REFUSED);
        }
    if (hd__plugins_add_default_folders(out->plugins, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (arguments->unchosen)
        out->job->auto_mesh = out->job->auto_strategies = 0;
    if (!out->job->mistakes.count && (out->job->auto_mesh || out->job->auto_strategies)) {
        int code = hd__cli_choose(arguments, ranks, out);
        if (code)
            return code;
    }
    if (!out->job->mistakes.count &&
        ((arguments->before_resolve && arguments->before_resolve(arguments->user, out->job, &err)) ||
         hd__job_resolve(out->job, ranks, &err)))
        hd__job_mistake(out->job, HD_OK, &err, NULL);
    return out->job->mistakes.count ? print_mistakes(out) : HD__EXIT_DONE;
}

static int compile(struct hd__cli_job *loaded, uint32_t flags)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc = hd__exec_compile_with(loaded->job, loaded->plugins, flags, &loaded->compiled, &err);
    if (rc) /* a program that the proof rejects is a fault of a strategy, not of the job */
        return loaded->job->mistakes.count
                   ? print_mistakes(loaded)
                   : hd__cli_print_error(&err, rc == HD_E_INTERNAL ? HD__EXIT_FAILED : HD__EXIT_REFUSED);
    return HD__EXIT_DONE;
}

void hd__cli_keep_freed(void)
{
#ifdef M_TRIM_THRESHOLD /* not in every C library */
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_MMAP_THRESHOLD, 16 << 20);
#endif
}

int hd__cli_compile_job(struct hd__cli_job *loaded)
{
    return compile(loaded, 0);
}

int hd__cli_load_job(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *out)
{
    int code = hd__cli_resolve_job(arguments, ranks, out);
    return code ? code : hd__cli_compile_job(out);
}

int hd__cli_load_with(const struct hd__cli_job_arguments *arguments, int64_t ranks, uint32_t flags,
                      const char *const *more, size_t n_more, struct hd__cli_job *out)
{
    size_t n = arguments->n_overrides;
    struct hd__cli_job_arguments all = *arguments;
    const char **words = hd__alloc((n + n_more + 1) * sizeof *words);
    memcpy(words, arguments->overrides, n * sizeof *words);
    if (n_more)
        memcpy(words + n, more, n_more * sizeof *words);
    all.overrides = words;
    all.n_overrides += n_more;
    int code = hd__cli_resolve_job(&all, ranks, out);
    if (!code)
        code = compile(out, flags);
    free(words);
    return code;
}

int hd__cli_load_single_rank(const struct hd__cli_job_arguments *arguments, uint32_t flags, const char *const *more,
                             size_t n_more, struct hd__cli_job *out)
{
    static const char *const alone[] = {"mesh={pp: 1, dp: 1, cp: 1, ep: 1, tp: 1}", "launch.ranks=1", "launch.nodes=1",
                                        "strategies=[{use: zero}]"};
    const char **words = hd__alloc((HD__COUNT(alone) + n_more) * sizeof *words);
    memcpy(words, alone, sizeof alone);
    if (n_more)
        memcpy(words + HD__COUNT(alone), more, n_more * sizeof *words);
    int code = hd__cli_load_with(arguments, 1, flags, words, HD__COUNT(alone) + n_more, out);
    free(words);
    return code;
}

int hd__cli_check_weights(struct hd__cli_job *loaded, const struct hd__cli_weights *w)
{
    struct hd_error err = HD_ERROR_INIT;
    int named = strcmp(w->checkpoint, "auto") != 0;
    const char *from = loaded->compiled->info.weights;
    if (w->random && (named || from || strcmp(w->name, "model") != 0))
        hd_fail(&err, HD_E_INVALID, "--random-weights does not go with %s: leave one out",
                named  ? "--checkpoint"
                : from ? "model.from"
                       : "--weights");
    else if (named && !loaded->job->checkpoint)
        hd__job_fail(loaded->job, "checkpoint", &err,
                     "the job has no checkpoint section, so --checkpoint %s cannot be read: add "
                     "`checkpoint: {dir: ...}`",
                     w->checkpoint);
    return err.code ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

/* No checkpoint was read: is there something else to work on? */
static int32_t check_initial_weights(const struct hd__cli_job *loaded, const struct hd__cli_weights *w, int leader,
                                     struct hd_error *err)
{
    struct hd__job *job = loaded->job;
    const char *from = loaded->compiled->info.weights,
               *none = job->checkpoint ? hd__arena_format(&job->arena, "no checkpoint in %s", job->checkpoint_dir)
                                       : "the job has no checkpoint section";
    if (!leader && (w->random || (from && !strcmp(w->name, "model"))))
        return HD_OK;
    if (w->random)
        fprintf(stderr, "randomly initialised weights (job.seed %" PRId64 ")\n", job->seed);
    else if (from && !strcmp(w->name, "model"))
        fprintf(stderr, "the weights of model.from, %s: %s\n", from, none);
    else
        return hd__job_fail(job, "checkpoint.dir", err, "%s: %s", none,
                            from ? "--weights needs one: train first, or name one by --checkpoint"
                                 : "train first, or name one by --checkpoint; --random-weights goes without");
    return HD_OK;
}

int32_t hd__cli_check_from(const struct hd__compiled *c, int says, struct hd_error *err)
{
    struct hd__text zeros = {0};
    int32_t rc = c->info.weights
                     ? hd__ckpt_check_safetensors(c->stage, c->n_stages, c->info.weights, says ? &zeros : NULL, err)
                     : HD_OK;
    if (zeros.length)
        hd__log(HD_LOG_WARN, NULL, "%s: model.from: %s: weights are all 0 (%s): were they made, and never written?",
                hd__job_where(c->job, "model.from"), c->info.weights, zeros.at);
    hd__text_free(&zeros);
    return rc ? hd__job_fail(c->job, "model.from", err, "model.from: %s", err->message) : HD_OK;
}

int32_t hd__cli_open_weights(const struct hd__cli_job *loaded, const struct hd__cli_weights *w,
                             const struct hd__launch_env *env, struct hd__train_session *session, int64_t *step,
                             struct hd_error *err)
{
    static const struct hd__launch_env alone = {.size = 1, .local_size = 1};
    struct hd__train_checkpointer *checkpointer = NULL;
    struct hd__train_progress at = {0};
    int32_t rc = hd__train_session_open(session, loaded->compiled, env ? env : &alone, err);
    session->weights_for = w->used_for;
    if (!rc)
        rc = hd__cli_check_from(loaded->compiled, !env || !env->rank, err);
    if (!rc && !w->random)
        rc = hd__train_checkpointer_open(session, NULL, &checkpointer, err);
    if (!rc && checkpointer)
        rc = hd__train_checkpointer_load(checkpointer, w->checkpoint, w->name, &at, err);
    if (!rc && !at.step)
        rc = hd__train_session_init_params(session, err);
    const struct hd__job_value *resume = hd__job_value_get(loaded->job, "checkpoint.resume");
    if (!rc && (!env || !env->rank) && resume && !strcmp(resume->origin, "command line"))
        hd__log(HD_LOG_WARN, NULL, "checkpoint.resume has no effect but on training: --checkpoint names what is read");
    struct hd__token_maker made = hd__train_checkpointer_tokens(checkpointer);
    if (!rc && (!env || !env->rank) && hd__token_makers_differ(made, w->tokens))
        hd__log(HD_LOG_WARN, NULL, "%s: %s when the checkpoint of step %lld was saved",
                hd__job_where(loaded->job, "data.tokenizer"), hd__token_makers_words(loaded->job, w->tokens, made),
                (long long)at.step);
    if (!rc && !at.step)
        rc = check_initial_weights(loaded, w, !env || !env->rank, err);
    hd__train_checkpointer_close(checkpointer);
    *step = at.step;
    return rc;
}

/* Stages of 1F1B idle (stages - 1) / micro-batches times as long as they work (Narayanan et al., arXiv 2104.04473,
 * section 2.2); 4 micro-batches a stage, the usual advice, leave a fifth to a quarter. */
static void note_bubble(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *schedule = hd__job_value_get(job, "strategies.3d.schedule");
    const char *name = schedule ? schedule->text : "1f1b";
    int64_t stages = job->mesh[HD_AXIS_PP], micros = job->accumulation, few = micros * job->micro_batch < 4 * stages;
    if (micros < 1 || micros >= stages)
        return;
    hd__text_add(out,
                 "%s: warning: mesh.pp: %lld micro-batch%s a step for %lld stages: with %s these idle %s%.0f %% of the "
                 "time that they work, with %lld micro-batches %.0f %%; %s%s%s makes more of them\n",
                 hd__job_where(job, "mesh.pp"), (long long)micros, micros > 1 ? "es" : "", (long long)stages, name,
                 !strcmp(name, "1f1b") || !strcmp(name, "gpipe") ? "" : "up to ",
                 100.0 * (double)(stages - 1) / (double)micros, (long long)(4 * stages),
                 25.0 * (double)(stages - 1) / (double)stages, job->micro_batch > 1 ? "a smaller data.micro_batch" : "",
                 job->micro_batch > 1 && few ? " with " : "", few ? "a larger data.batch" : "");
}

/* The key of a strategy whose value a section has as its interval or warm-up; "strategies" where none is found. */
static const char *key_of_section(const struct hd__job *job, const struct hd__code_section *x)
{
    int64_t steps = x->every ? (int64_t)x->every : x->after;
    const char *end = x->every ? ".every" : ".warmup", *found = "strategies";
    for (uint32_t i = 0; i < job->values.count; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        if (!strncmp(v->path, "strategies.", 11) && hd__ends_with(v->path, end) && json_integer_value(v->json) == steps)
            found = v->path;
    }
    return found;
}

/* Replicas of local SGD are unequal between the steps that make them equal. */
static void note_between(struct hd__job *job, const struct hd__code_section *x, const char *key, const char *where,
                         struct hd__text *out)
{
    long long every = x->every, steps = job->steps;
    const struct {
        int64_t steps;
        const char *key, *why;
    } rows[] = {
        {job->eval_every, "eval.every",
         "in between, val_loss is the mean over replicas that differ, and no saved model has their parameters"},
        {job->checkpoint_every, "checkpoint.every",
         "a checkpoint saved in between holds the model as it was when replicas were last equal"},
    };
    if (steps % every)
        hd__text_add(out,
                     "%s: warning: %s: replicas are made equal every %lld steps, and the job has %lld: its "
                     "last %lld steps are in no model that is saved\n",
                     where, key, every, steps, steps % every);
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (rows[i].steps % every && rows[i].steps <= steps)
            hd__text_add(out, "%s: warning: %s is no multiple of %s, %lld, after which replicas are equal: %s\n",
                         hd__job_where(job, rows[i].key), rows[i].key, key, every, rows[i].why);
}

/* An average that hardly moves away from the weights that it begins with. */
static void note_average(struct hd__job *job, struct hd__text *out)
{
    const struct hd__job_value *decay = hd__job_value_get(job, "strategies.ema.decay"),
                               *every = hd__job_value_get(job, "strategies.ema.every");
    if (decay && !job->checkpoint)
        hd__text_add(out,
                     "%s: warning: strategies.ema: the average is lost with the run, which saves nothing: add "
                     "checkpoint: {}, or leave ema out\n",
                     hd__job_where(job, "strategies.ema.use"));
    double times = every ? floor((double)job->steps / json_number_value(every->json)) : 0;
    double left = times < 1 ? 0 : pow(json_number_value(decay->json), times);
    if (left > 0.5)
        hd__text_add(out,
                     "%s: warning: strategies.ema.decay: after the %lld steps of the job %.0f %% of the average are "
                     "still the initial weights: lower it; %.3g leaves 1 %% of them\n",
                     hd__job_where(job, "strategies.ema.decay"), (long long)job->steps, 100 * left,
                     pow(0.01, 1 / times));
}

/* A strategy of the job that would cut axes of the mesh, which are 1; context parallelism has no axis in `cuts`. */
static void note_uncut(const struct hd__compiled *c, struct hd__text *out)
{
    for (uint64_t s = 0; c && s < c->n_strategies; s++) {
        const struct hd__job_section *section = c->strategies[s].section;
        uint64_t cuts = c->strategies[s].component->ops.strategy.cuts | HD_AXIS_BIT(HD_AXIS_CP);
        if (cuts == HD_AXIS_BIT(HD_AXIS_CP) || section->because || cuts & hd__mesh_axes(&c->mesh))
            continue;
        hd__text_add(out, "%s: warning: %s has no effect where", section->origin, section->path);
        for (int32_t a = 0, n = 0; a < HD_AXIS_COUNT; a++)
            if (cuts & HD_AXIS_BIT(a))
                hd__text_add(out, "%s mesh.%s", n++ ? "," : "", hd__axis_name(a));
        hd__text_add(out, " are 1: raise one of them, or leave it out\n");
    }
}

/* Folders of plugins.path that have none, as one of sources. */
static void count_plugin(void *user, const char *label, const char *path)
{
    (void)label, (void)path;
    ++*(int *)user;
}

/* One that only has a name; others may differ in their options. */
static void note_hooks(struct hd__job *job, struct hd__text *out)
{
    for (uint64_t i = 1; i < job->n_hooks; i++)
        for (uint64_t k = 0; k < i; k++)
            if (!job->hooks[i]->node && !job->hooks[k]->node && !strcmp(job->hooks[i]->use, job->hooks[k]->use))
                hd__text_add(out,
                             "%s: warning: comm.hooks: %s is there twice, and does the same twice: leave one out\n",
                             job->hooks[i]->origin, job->hooks[i]->use);
}

static void note_folders(struct hd__job *job, struct hd__text *out)
{
    for (uint64_t i = 0; i < job->plugin_path.count; i++) {
        struct hd__plugin_folders one = {.at = (char **)&job->plugin_path.text[i], .count = 1};
        int n = 0;
        hd__plugin_search_all(&one, count_plugin, &n);
        if (!n)
            hd__text_add(out, "%s: warning: plugins.path: %s has no heddle-*.so: name the folder of a built plugin\n",
                         hd__job_where(job, "plugins.path"), job->plugin_path.text[i]);
    }
}

/* Parts of a strategy that are due after the job's last step, or last due before it. */
static void note_late_sections(const struct hd__cli_job *loaded, struct hd__text *out)
{
    const struct hd_program *p = loaded->compiled ? loaded->compiled->stage[0] : NULL;
    long long steps = loaded->job->steps;
    const char *said = NULL; /* several sections follow one key */
    for (uint32_t s = 0; p && steps && s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        const char *key = key_of_section(loaded->job, x), *where = hd__job_where(loaded->job, key);
        long long first = HD__MAX((long long)x->every, x->after + 1);
        if (x->repeat > 0 && first > steps && said != key)
            hd__text_add(out,
                         "%s: warning: %s: section %s (`heddle explain --section %s`) runs from step %lld on, "
                         "and the job has %lld steps: it never runs%s: lower %s, or train longer\n",
                         where, said = key, x->name, x->name, first, steps,
                         strstr(key, ".compress.") ? ", and nothing is ever compressed" : "",
                         strcmp(key, "strategies") ? key : "its interval");
        else if (x->every && x->equal_axes && first <= steps)
            note_between(loaded->job, x, key, where, out);
    }
    note_average(loaded->job, out);
}

/* A single segment is there again as a whole before any of it is read. Stages of a pipeline keep several micro-batches,
 * so they gain all the same. */
static void note_recompute(const struct hd__cli_job *loaded, struct hd__text *out)
{
    const struct hd__compiled *c = loaded->compiled;
    struct hd__job *job = loaded->job;
    int64_t every = job->recompute == HD__RECOMPUTE_EVERY ? job->recompute_every : job->recompute == HD__RECOMPUTE_FULL;
    if (c && c->n_stages == 1 && every && c->info.layers && every >= c->info.layers)
        hd__text_add(
            out,
            "%s: warning: recompute: one segment of %lld blocks is the whole model (%lld blocks): recomputing it costs "
            "a forward pass and saves no memory: say {every: N} with a smaller N, or none\n",
            hd__job_where(job, "recompute"), (long long)every, (long long)c->info.layers);
}

/* An optimizer that keeps large matrices alone in codes, and a model without such. */
static void note_codes(const struct hd__cli_job *loaded, struct hd__text *out)
{
    const struct hd__job_value *least = hd__job_value_get(loaded->job, "optimizer.min_8bit_size");
    int64_t largest = 0, codes = !least;
    for (int32_t s = 0; !codes && loaded->compiled && s < loaded->compiled->n_stages; s++)
        for (uint32_t k = 0; k < loaded->compiled->stage[s]->params.count; k++) {
            const struct hd__param *x = &loaded->compiled->stage[s]->params.at[k];
            codes |= x->state[0].dtype == HD_U8;
            largest = HD__MAX(largest, x->optim.all_rows * x->optim.all_cols);
        }
    if (!codes && largest)
        hd__text_add(
            out,
            "%s: warning: optimizer.min_8bit_size: no matrix of this model has so many elements in whole "
            "blocks of optimizer.block_size (largest %lld): all states are in fp32: lower them, or use adamw\n",
            hd__job_where(loaded->job, "optimizer.min_8bit_size"), (long long)largest);
}

void hd__cli_say_late(const struct hd__cli_job *loaded)
{
    struct hd__text text = {0};
    if (loaded->job->epochs <= 0)
        return;
    hd__job_notes_late(loaded->job, &text);
    note_late_sections(loaded, &text);
    hd__text_print(&text, stderr);
}

void hd__cli_say_notes(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded)
{
    struct hd__text text = {0};
    if (loaded->chosen)
        hd__text_add(&text, "%s\n", loaded->chosen);
    else if (loaded->job->launch_machine && !loaded->words)
        hd__text_add(&text, "%s: warning: launch.machine has no effect where neither mesh nor strategies is auto\n",
                     hd__job_where(loaded->job, "launch.machine"));
    if (loaded->job->trace.ends)
        hd__text_add(
            &text, "trains in %s until %s is written; the job's own checkpoints, metrics and sinks stay as they are\n",
            hd__job_folder(loaded->job), loaded->job->trace.file);
    hd__job_notes(loaded->job, &text);
    hd__job_notes_late(loaded->job, &text);
    note_late_sections(loaded, &text);
    note_bubble(loaded->job, &text);
    note_uncut(loaded->compiled, &text);
    note_folders(loaded->job, &text);
    note_hooks(loaded->job, &text);
    note_recompute(loaded, &text);
    note_codes(loaded, &text);
    if (loaded->compiled) {
        hd__cli_note_idle_options(arguments, loaded, &text);
        hd__routes_notes(loaded->compiled, &text);
    }
    hd__text_print(&text, stderr);
}

void hd__cli_unload_job(struct hd__cli_job *loaded)
{
    hd__exec_compiled_free(loaded->compiled);
    hd__plugins_destroy(loaded->plugins);
    hd__job_free(loaded->job);
    free(loaded->chosen);
    free(loaded->words);
    *loaded = (struct hd__cli_job){0};
}
