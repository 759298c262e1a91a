/* All warnings of a job, in the order in which they are printed. */
#include <stdlib.h>

#include "analysis/comm_plan.h"
#include "cli/warnings/warnings.h"
#include "core/plugin/search.h"

/* Folders of plugins.path that have none, as one of sources. */
static void count_plugin(void *user, const char *label, const char *path)
{
    (void)label, (void)path;
    ++*(int *)user;
}

/* One that only has a name; others may differ in their options. */
static void warn_hooks(struct hd__job *job, struct hd__text *out)
{
    for (uint64_t i = 1; i < job->n_hooks; i++)
        for (uint64_t k = 0; k < i; k++)
            if (!job->hooks[i]->node && !job->hooks[k]->node && !strcmp(job->hooks[i]->use, job->hooks[k]->use))
                hd__text_add(out,
                             "%s: warning: comm.hooks: %s is there twice, and does the same twice: leave one out\n",
                             job->hooks[i]->origin, job->hooks[i]->use);
}

static void warn_folders(struct hd__job *job, struct hd__text *out)
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

/* A model of others that reads its fields from there, and forgets to say where the weights are. */
static void warn_from(const struct hd__compiled *c, struct hd__text *out)
{
    const struct hd__job_value *from = hd__job_value_get(c->job, "model.from");
    if (from && json_string_length(from->json) && !c->info.weights)
        hd__text_add(out,
                     "%s: warning: model.from: %s names no weights (hd_model_info.weights), so training begins from "
                     "scratch\n",
                     from->origin, c->model_choice.component->label);
}

void hd__cli_print_late_warnings(const struct hd__cli_job *loaded)
{
    struct hd__text text = {0};
    if (loaded->job->epochs <= 0)
        return;
    hd__warn_intervals(loaded->job, &text);
    hd__warn_sections(loaded, &text);
    hd__text_print(&text, stderr);
}

void hd__cli_print_warnings(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded)
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
    hd__warn_values(loaded->job, &text);
    hd__warn_intervals(loaded->job, &text);
    hd__warn_sections(loaded, &text);
    hd__warn_strategies(loaded, &text);
    warn_folders(loaded->job, &text);
    warn_hooks(loaded->job, &text);
    if (loaded->compiled) {
        warn_from(loaded->compiled, &text);
        hd__warn_unusual_config(loaded->compiled, &text);
        hd__warn_idle_options(arguments, loaded, &text);
        hd__routes_notes(loaded->compiled, &text);
    }
    hd__text_print(&text, stderr);
}
