/* Loading and compiling the job that a command names. */
#include "cli/job.h"

#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>

#include "analysis/plan/machine_file.h"
#include "core/base/file.h"
#include "core/base/yaml_tree.h"
#include "service/checkpoint/param_init.h"
#include "service/report/speaker.h"
#include "service/train/checkpointer/checkpointer.h"

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

int hd__cli_check_batch(const struct hd__command *command, const struct hd__cli_job_arguments *arguments,
                        const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    struct hd_error err = HD_ERROR_INIT;
    if (!c->checkpoint_choice.component)
        return hd__cli_usage_error(command,
                                   "%s has no checkpoint section, so there is nothing to go on from: add "
                                   "`checkpoint: {}`",
                                   arguments->file);
    if (!strcmp(job->resume, "auto"))
        return HD__EXIT_DONE;
    int never = !strcmp(job->resume, "never"), over = !strcmp(job->resume, "overwrite");
    hd__job_fail(job, "checkpoint.resume", &err,
                 "checkpoint.resume is %s, and what is printed starts the job again after whatever ends it: %s: leave "
                 "it out%s",
                 job->resume, never ? "the second start would be refused" : "each start would begin there anew",
                 never || over ? ""
                               : hd__arena_format(&job->arena,
                                                  ", and copy that checkpoint to %s, where auto goes on "
                                                  "from it",
                                                  job->checkpoint_dir));
    if (over) /* it would lose steps for certain */
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    hd__log(HD_LOG_WARN, NULL, "%s", err.message);
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

int hd__cli_check_machines(const struct hd__cli_job_arguments *arguments, int64_t machines, int32_t per_machine,
                           struct hd__cli_job *all)
{
    hd__cli_unload_job(all);
    int code = hd__cli_load_job(arguments, machines * per_machine, all);
    return code ? code : hd__cli_check_transports(all->compiled, per_machine);
}

void hd__cli_warn_machine(const struct hd__job *job, const struct hd__machine *m)
{
    const struct hd__job_value *threads = hd__job_value_get(job, "device.threads"),
                               *isa = hd__job_value_get(job, "device.isa");
    if (m->threads && threads && threads->plain && json_integer_value(threads->json) != m->threads)
        hd__log(HD_LOG_WARN, NULL,
                "%s: device.threads is %s, and %s was measured with %lld: planned times are for these", threads->origin,
                threads->text, m->path, (long long)m->threads);
    if (m->threads && isa && isa->plain)
        hd__log(HD_LOG_WARN, NULL, "%s: device.isa is %s, and %s was measured with all that its processor has",
                isa->origin, isa->text, m->path);
}

int hd__cli_print_error(const struct hd_error *err, int code)
{
    struct hd__text text = {0};
    hd__text_add(&text, "%s%s%s", err->message, err->where[0] ? "; at " : "", err->where);
    hd__speaker_print(text.at);
    hd__text_free(&text);
    return code;
}

/* All mistakes of keys and values at once. */
static int print_mistakes(struct hd__cli_job *loaded)
{
    struct hd__text text = {0};
    hd__compile_mistakes(loaded->job, loaded->plugins);
    hd__job_mistakes_text(loaded->job, &text);
    if (loaded->chosen) /* a key that the message names may be of its */
        hd__text_add(&text, "\n%s", loaded->chosen);
    hd__speaker_print(text.at);
    hd__text_free(&text);
    return HD__EXIT_REFUSED;
}

/* The kind of a file that is no job; NULL: not known. */
static const char *name_other(const char *file)
{
    struct hd_error unused = HD_ERROR_INIT;
    size_t bytes;
    char *text = hd__read_text(file, "job file", HD__TREE_BYTES, &bytes, &unused);
    const char *what = NULL;
    if (text && strstr(text, "\n# its job file\n"))
        what = "is what `heddle plan` prints of a search: the job is what follows `# its job file`: "
               "sed '1,/^# its job file/d' FILE > job.yaml";
    else if (text && strstr(text, "\nbandwidth:") && strstr(text, "\nlevels:"))
        what = "is a machine file, not a job: name a job, and this by --machine";
    free(text);
    return what;
}

/* Keys and values are answered one by one, but where all of the file is something else. */
static int32_t open_job(const struct hd__cli_job_arguments *arguments, struct hd__job **job, struct hd_error *err)
{
    int32_t rc = hd__job_open(arguments->file, arguments->overrides, arguments->n_overrides, job, err);
    const char *other = rc || (*job)->mistakes.count ? name_other(arguments->file) : NULL;
    return other ? hd_fail(err, HD_E_INVALID, "%s %s", arguments->file, other) : rc;
}

/* Machines may go until the least of launch.nodes is left, which has to hold all but the data-parallel axis. */
static int32_t check_least(struct hd__cli_job *loaded, struct hd_error *err)
{
    struct hd__job *job = loaded->job;
    const int64_t *asked = job->mesh_asked;
    int dp = !asked[HD_AXIS_DP_SHARD] || asked[HD_AXIS_DP_REPLICATE] == 1 ? HD_AXIS_DP_SHARD : HD_AXIS_DP_REPLICATE;
    struct hd__text mesh = {0};
    if (job->nodes_min == job->nodes_max)
        return HD_OK;
    int64_t whole = job->ranks / job->mesh[dp], least = (whole + job->ranks_each - 1) / job->ranks_each;
    if (job->nodes_min >= least)
        return HD_OK;
    for (int a = 0; a < HD_AXIS_TQ; a++)
        if (a != dp && job->mesh[a] > 1)
            hd__text_add(&mesh, "%s%s %lld", mesh.length ? " x " : "", hd__axis_name(a), (long long)job->mesh[a]);
    int32_t rc = hd__job_fail(job, "launch.nodes", err,
                              "launch.nodes: %d machine%s of %lld rank%s cannot hold %s: the least is %lld",
                              job->nodes_min, job->nodes_min > 1 ? "s" : "", (long long)job->ranks_each,
                              job->ranks_each > 1 ? "s" : "", mesh.at, (long long)least);
    hd__text_free(&mesh);
    loaded->too_few_nodes = 1;
    return rc;
}

int hd__cli_resolve_job(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *out)
{
    struct hd_error err = HD_ERROR_INIT;
    *out = (struct hd__cli_job){0};
    out->plugins = hd__plugins_create(hd__exec_host_table());
    if (open_job(arguments, &out->job, &err))
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
         hd__job_resolve(out->job, ranks, &err) || (!out->chosen && check_least(out, &err))))
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
                                        "data.micro_batches=auto", "strategies=[{use: zero}]"};
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
               *near = job->checkpoint ? hd__train_checkpointer_find_near(job) : "",
               *none = job->checkpoint
                           ? hd__arena_format(&job->arena, "no checkpoint in %s%s", job->checkpoint_dir, near)
                           : "the job has no checkpoint section";
    if (!leader && (w->random || (from && !strcmp(w->name, "model"))))
        return HD_OK;
    if (w->random)
        fprintf(stderr, "randomly initialised weights (job.seed %" PRId64 ")\n", job->seed);
    else if (from && !strcmp(w->name, "model"))
        fprintf(stderr, "the weights of model.from, %s: %s\n", from, none);
    else
        return hd__job_fail(
            job, "checkpoint.dir", err, "%s%s", none,
            *near ? ""
            : !job->checkpoint
                ? ": add checkpoint: {} and train, or name one by --checkpoint; --random-weights goes without"
            : from ? ": --weights needs one: train first, or name one by --checkpoint"
                   : ": train first, or name one by --checkpoint; --random-weights goes without");
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
    struct hd__token_maker made = hd__train_checkpointer_loaded(checkpointer)->tokens;
    int64_t trained = hd__train_checkpointer_loaded(checkpointer)->positions;
    if (!rc && (!env || !env->rank) && trained && w->positions > trained)
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.seq_len: sequences of %" PRId64 " tokens are computed, and it was %" PRId64 " when the "
                "checkpoint of step %" PRId64 " was saved: positions behind that may never have been trained",
                hd__job_where(loaded->job, "data.seq_len"), w->positions, trained, at.step);
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

void hd__cli_unload_job(struct hd__cli_job *loaded)
{
    hd__exec_compiled_free(loaded->compiled);
    hd__plugins_destroy(loaded->plugins);
    hd__job_free(loaded->job);
    free(loaded->chosen);
    free(loaded->words);
    *loaded = (struct hd__cli_job){0};
}
