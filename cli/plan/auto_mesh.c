/* mesh: auto and strategies: auto. */
#include <errno.h>
#include <stdlib.h>

#include "analysis/plan/search.h"
#include "cli/job.h"
#include "core/base/file.h"

/* A search sets the mesh anew, and strategies 3d and zero with the options below: other words would be lost. */
static int is_lost(const struct hd__job_value *v)
{
    return v->owner && v->owner->kind == HD_KIND_STRATEGY &&
           ((strcmp(v->owner->use, "3d") && strcmp(v->owner->use, "zero")) ||
            (strcmp(v->origin, "default") &&
             !strstr(".use.stage.schedule.virtual.sequence_parallel", strrchr(v->path, '.'))));
}

int hd__cli_refuse_lost(const struct hd__cli_job *loaded, const char *who)
{
    struct hd__job *job = loaded->job;
    const char *lost = job->unplaced.count ? job->unplaced.at[0] : NULL;
    struct hd_error err = HD_ERROR_INIT;
    struct hd__chosen unused;
    for (uint64_t i = 0; i < job->n_strategies; i++)
        if (hd__compile_choose(job, loaded->plugins, HD_KIND_STRATEGY, job->strategies[i], &unused, &err))
            return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    for (uint32_t i = 0; i < job->values.count && !lost; i++)
        lost = is_lost(&job->values.at[i]) ? job->values.at[i].path : NULL;
    if (lost)
        hd__job_fail(job, lost, &err, "%s: %s sets mesh and strategies anew: take it out, or %s", lost, who,
                     *who == '-' ? "plan this job without it" : "write mesh and strategies");
    return lost ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

/* ---- the choice of an earlier run */

static char *choice_path(struct hd__job *job)
{
    return hd__arena_format(&job->arena, "%s/mesh", hd__job_folder(job));
}

/* The overrides, where a run of as many ranks may go on from this one's checkpoints. The caller frees them. */
static char *read_choice(struct hd__job *job, int64_t ranks)
{
    enum { MOST = 1000 };
    int again = !job->checkpoint || !strcmp(job->resume, "never") || !strcmp(job->resume, "overwrite");
    FILE *in = again ? NULL : fopen(choice_path(job), "r");
    char *text = in ? hd__alloc(MOST + 1) : NULL, *end;
    if (!in)
        return NULL;
    text[fread(text, 1, MOST, in)] = 0;
    fclose(in);
    if (strtoll(text, &end, 10) == ranks && *end == '\n') {
        memmove(text, end + 1, strlen(end));
        return text;
    }
    free(text);
    return NULL;
}

int32_t hd__cli_keep_choice(const struct hd__cli_job *loaded, struct hd_error *err)
{
    const char *path = choice_path(loaded->job);
    if (!loaded->words)
        return HD_OK;
    FILE *out = hd__make_folders(path) ? NULL : fopen(path, "w");
    int bad = !out || fprintf(out, "%lld\n%s", (long long)loaded->job->ranks, loaded->words) < 0;
    bad |= out && fclose(out);
    return bad ? hd_fail(err, HD_E_IO, "%s: cannot be written: %s", path, strerror(errno)) : HD_OK;
}

/* ---- a new one */

static const char *chosen_key(const struct hd__job *job)
{
    return job->auto_mesh ? "mesh" : "strategies";
}

/* With a mesh of its own a job says how many ranks there are. */
static int32_t count_ranks(struct hd__job *job, int64_t *ranks, struct hd_error *err)
{
    enum { MOST_MACHINES = 2048 };
    int32_t least, most;
    if (job->auto_mesh && *ranks)
        return HD_OK;
    if (job->auto_mesh && job->launch_ranks && hd__range_parse(job->launch_nodes, MOST_MACHINES, &least, &most)) {
        *ranks = job->launch_ranks * most;
        return HD_OK;
    }
    if (job->auto_mesh)
        return hd__job_fail(job, "mesh", err, "mesh: auto: for how many ranks? Set launch.ranks, those of a machine");
    job->auto_strategies = 0;
    int32_t rc = hd__job_resolve(job, *ranks, err);
    job->auto_strategies = 1;
    *ranks = job->ranks;
    return rc;
}

static int32_t read_machine(struct hd__job *job, const char *name, struct hd__machine *m, struct hd_error *err)
{
    const char *key = chosen_key(job), *given = name ? name : job->launch_machine;
    if (!given && strcmp(job->device->use, "cpu"))
        return hd__job_fail(job, key, err,
                            "%s: auto: for which machine? Set launch.machine to NAME | FILE.yaml, as h100-8, or as "
                            "`heddle calibrate --device %s` prints it",
                            key, job->device->use);
    if (hd__machine_read(given ? given : "cpu", m, err))
        return hd__job_locate_error(job, name ? key : "launch.machine", err);
    if (strcmp(m->device, job->device->use))
        return hd__job_fail(job, key, err, "%s: auto: machine %s has device %s, and the job's device.use is %s", key,
                            m->name, m->device, job->device->use);
    return HD_OK;
}

static int32_t check_strategies(struct hd__job *job, struct hd_error *err)
{
    if (!job->auto_mesh || job->auto_strategies || !strcmp(job->strategies[0]->origin, "default"))
        return HD_OK;
    return hd__job_fail(job, "strategies", err,
                        "strategies: mesh: auto chooses strategies too: write strategies: auto, or leave them out, or "
                        "write the mesh");
}

/* Values of the job that the search has chosen anew: "; recompute=full of the job gives way". What was kept leaves a
 * micro-batch of the command line. */
static char *name_replaced(struct hd__job *job, const char *lines, int kept)
{
    static const char *const keys[] = {"recompute", "data.micro_batch"};
    struct hd__text out = {0};
    char *all = hd__format("\n%s\n", lines);
    for (size_t i = 0; i < HD__COUNT(keys); i++) {
        const struct hd__job_value *v = hd__job_value_get(job, keys[i]);
        char *line = v ? hd__format("\n%s=%s\n", v->path, v->text) : NULL;
        int stays = kept && i && v && !strcmp(v->origin, "command line");
        if (v && strcmp(v->origin, "default") && strcmp(v->text, "auto") && !stays && !strstr(all, line))
            hd__text_add(&out, "; the job's %s=%s gives way", v->path, v->text);
        free(line);
    }
    free(all);
    return out.length ? out.at : hd__strdup("");
}

/* The overrides of the fastest plan, and a line about it. */
static int32_t search(const struct hd__cli_job_arguments *arguments, int64_t ranks, const struct hd__machine *m,
                      struct hd__cli_job *loaded, struct hd_error *err)
{
    static const struct hd__assume as_it_is;
    struct hd__job *job = loaded->job;
    const struct hd__search_request request = {.file = arguments->file,
                                               .overrides = arguments->overrides,
                                               .n_overrides = arguments->n_overrides,
                                               .device = job->device->use,
                                               .machine = m,
                                               .assume = &as_it_is,
                                               .plugins = loaded->plugins,
                                               .ranks = ranks,
                                               .only = job->auto_mesh ? NULL : job->mesh};
    struct hd__search found;
    char step[32];
    int32_t rc = hd__search(&request, &found, err);
    if (rc)
        return hd__job_locate_error(job, chosen_key(job), err);
    const struct hd__search_plan *best = found.best, *next = found.n_best > 1 ? best + 1 : NULL;
    char *beaten = next ? hd__format(", %.1f %% less than the next of %u, %s",
                                     100 * (1 - best->plan.seconds / next->plan.seconds), found.candidates, next->words)
                        : hd__strdup(", the only one that fits"),
         *replaced = name_replaced(job, best->lines, 0);
    loaded->chosen =
        hd__format("%s: auto: %s: %s a step planned for %lld ranks of %s%s%s", chosen_key(job), best->words,
                   hd__seconds_text(best->plan.seconds, step), (long long)ranks, m->name, beaten, replaced);
    loaded->words = hd__strdup(best->lines);
    free(beaten);
    free(replaced);
    hd__search_free(&found);
    return HD_OK;
}

static int sets_micro_batch(const char *word)
{
    static const char key[] = "data.micro_batch=";
    return !strncmp(word, key, sizeof key - 1);
}

/* The job again, with the words behind those of the command line. A kept choice leaves a micro-batch that the command
 * asks for, as `heddle sample` does. */
static int32_t open_again(const struct hd__cli_job_arguments *arguments, int kept, struct hd__cli_job *loaded,
                          struct hd_error *err)
{
    int has_micro_batch = 0;
    for (size_t i = 0; i < arguments->n_overrides && kept; i++)
        has_micro_batch |= sets_micro_batch(arguments->overrides[i]);
    const char **all = hd__alloc((arguments->n_overrides + 8) * sizeof *all);
    size_t n = arguments->n_overrides;
    char *lines = hd__strdup(loaded->words), *rest = lines, *line;
    if (n)
        memcpy(all, arguments->overrides, n * sizeof *all);
    while ((line = strsep(&rest, "\n")) && n < arguments->n_overrides + 8)
        if (*line && !(has_micro_batch && sets_micro_batch(line)))
            all[n++] = line;
    hd__job_free(loaded->job);
    loaded->job = NULL;
    int32_t rc = hd__job_open(arguments->file, all, n, &loaded->job, err);
    free(lines);
    free(all);
    return rc;
}

int hd__cli_choose(const struct hd__cli_job_arguments *arguments, int64_t ranks, struct hd__cli_job *loaded)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__machine machine = {0};
    struct hd__job *job = loaded->job;
    int32_t rc = check_strategies(job, &err);
    int kept = 0;
    if (!rc && hd__cli_refuse_lost(loaded, job->auto_mesh ? "mesh: auto" : "strategies: auto"))
        return HD__EXIT_REFUSED;
    if (!rc)
        rc = count_ranks(job, &ranks, &err);
    if (!rc && job->auto_mesh && (kept = (loaded->words = read_choice(job, ranks)) != NULL)) {
        char *replaced = name_replaced(job, loaded->words, 1);
        loaded->chosen = hd__format("%s: auto: as this run began, by %s: remove that file to choose anew%s",
                                    chosen_key(job), choice_path(job), replaced);
        free(replaced);
    } else if (!rc && !(rc = read_machine(job, arguments->machine, &machine, &err)))
        rc = search(arguments, ranks, &machine, loaded, &err);
    hd__machine_free(&machine);
    if (!rc)
        rc = open_again(arguments, kept, loaded, &err);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}
