/* heddle trace: records steps of a job, and sums up a measured trace. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/trace/summary.h"
#include "cli/train.h"
#include "core/base/file.h"

static int32_t load(const char *path, json_t **trace, struct hd_error *err)
{
    json_error_t why;
    FILE *file = hd__open_regular(path, "trace", err);
    if (!file)
        return err->code;
    *trace = json_loadf(file, 0, &why);
    fclose(file);
    if (!*trace && strstr(path, ".jsonl"))
        return hd_fail(err, HD_E_INVALID, "%s: metrics, which `heddle report` reads: name a job or a trace.json", path);
    return *trace ? HD_OK : hd_fail(err, HD_E_INVALID, "%s:%d: not a trace: %s", path, why.line, why.text);
}

struct summing {
    struct hd__sim_rates rates;
    int json;
};

/* Takes the reference. */
static int print_summary(const struct summing *s, const char *path, json_t *trace)
{
    struct hd__trace_summary summary = {0};
    struct hd_error err = HD_ERROR_INIT, no = HD_ERROR_INIT;
    struct hd__text text = {0};
    int32_t rc = HD_OK;
    if (hd__trace_sum_up(trace, &s->rates, &summary, &no))
        rc = hd_fail(&err, no.code, "%s: %s", path, no.message);
    if (!rc && s->json) {
        hd__cli_print_json(hd__trace_summary_json(&summary), JSON_INDENT(1));
    } else if (!rc) {
        hd__trace_summary_text(&summary, &text);
        hd__text_add(&text, "\npredicted by ");
        hd__sim_rates_text(&s->rates, &text);
        hd__text_add(&text, " (--rates changes them)\n");
        hd__text_print(&text, stdout);
    }
    hd__trace_summary_free(&summary);
    json_decref(trace);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

/* ---- of a job that is to be trained first */

struct recording {
    struct hd__cli_training training;
    const char *steps, *out; /* options */
    int64_t first, last;     /* of --steps; 0: not given */
    char *file, *metrics;    /* the trace, and rows that nobody looks at once it is there */
};

static const char in_folder[] = "trace.json in the run's folder"; /* a file of metrics.trace that nobody has named */

/* Steps alone, in a folder inside the job's own: nothing is saved, evaluated, shown or begun again. */
static int32_t strip_job(void *user, struct hd__job *job, struct hd_error *err)
{
    struct recording *r = user;
    const char *folder = hd__arena_format(&job->arena, "%s/trace", hd__job_folder(job));
    if (r->first && !(job->epochs > 0) && r->last > job->steps)
        return hd__job_fail(job, "job.steps", err,
                            "--steps %s: step %" PRId64 " is after the job's last, %" PRId64 ": name earlier steps",
                            r->steps, r->last, job->steps);
    job->checkpoint = NULL;
    job->checkpoint_dir = NULL;
    job->checkpoint_every = job->checkpoint_peers = 0;
    job->checkpoint_seconds = 0;
    job->resume = "never";
    job->launch_restarts = 0;
    job->launch_time_limit = 0;
    job->n_sinks = 0;
    job->metrics_profile = job->metrics_roofline = 0;
    job->metrics_blocks = NULL;
    job->metrics_jsonl = hd__arena_format(&job->arena, "%s/metrics.jsonl", folder);
    job->watch.command = NULL;
    if (!job->trace.file || !strcmp(job->trace.file, in_folder)) /* metrics={} takes it away */
        job->trace.file = hd__arena_format(&job->arena, "%s/trace.json", folder);
    if (r->first) {
        job->trace.first = r->first;
        job->trace.last = r->last;
    } else if (job->trace.active) { /* the first cycle of its schedule */
        job->trace.first = job->trace.skip_first + job->trace.wait + job->trace.warmup + 1;
        job->trace.last = job->trace.first + job->trace.active - 1;
    }
    job->trace.active = 0;
    job->trace.ends = 1;
    free(r->file);
    free(r->metrics);
    r->file = hd__strdup(job->trace.file);
    r->metrics = hd__strdup(job->metrics_jsonl);
    return HD_OK;
}

static int record(struct recording *r, const struct summing *s, int argc, char **argv)
{
    struct hd__cli_job_arguments *arguments = &r->training.arguments;
    struct hd_error err = HD_ERROR_INIT;
    size_t n = arguments->n_overrides, k = 0;
    const char **words = hd__alloc((n + 2) * sizeof *words);
    char *unnamed = hd__format("metrics.trace.file=%s", in_folder),
         *named = r->out ? hd__format("metrics.trace.file=%s", r->out) : NULL;
    json_t *trace = NULL;
    words[k++] = unnamed;
    for (size_t i = 0; i < n; i++)
        words[k++] = arguments->overrides[i];
    if (named)
        words[k++] = named;
    arguments->overrides = words;
    arguments->n_overrides = k;
    arguments->before_resolve = strip_job;
    arguments->user = r;
    int code = hd__cli_train(&r->training, argc, argv);
    if (!code && r->training.leads)
        remove(r->metrics);
    if (!code && r->training.leads)
        code =
            load(r->file, &trace, &err) ? hd__cli_print_error(&err, HD__EXIT_FAILED) : print_summary(s, r->file, trace);
    free(r->metrics);
    free(r->file);
    free(named);
    free(unnamed);
    free(words);
    return code;
}

/* ---- the command line */

/* A job may be JSON, too. `trains`: the command line has what only a job takes. */
static int is_trace(const char *path, const json_t *content, int trains)
{
    const char *end = strrchr(path, '.');
    if (json_object_get(content, "traceEvents") || (end && !strcmp(end, ".jsonl")))
        return 1;
    return !trains && (content ? !json_object_get(content, "data") : end && !strcmp(end, ".json"));
}

static int trace(int argc, char **argv)
{
    struct recording r = {0};
    struct summing s = {.rates = hd__sim_rates_default()};
    struct hd_error err = HD_ERROR_INIT, no_trace = HD_ERROR_INIT;
    const char *rates = NULL;
    const struct hd__cli_flag flags[] = {{"--steps", &r.steps, NULL},
                                         {"--out", &r.out, NULL},
                                         {"--rates", &rates, NULL},
                                         {"--json", NULL, &s.json},
                                         HD__CLI_NODE_FLAGS(r.training)};
    const struct hd__cli_job_arguments *arguments = &r.training.arguments;
    int code = hd__cli_job_arguments(&hd__command_trace, argc, argv, flags, HD__COUNT(flags), &r.training.arguments);
    if (code)
        return code;
    if (rates && hd__sim_rates_parse(&s.rates, rates, &err))
        return hd__cli_usage_error(&hd__command_trace, "--rates: %s", err.message);
    const char *end = r.out ? strrchr(r.out, '.') : NULL;
    if (end && end[1] && !strchr(end, '/') && strcmp(end, ".json") != 0)
        return hd__cli_usage_error(&hd__command_trace, "--out %s: it writes FILE.json", r.out);
    if (r.steps && hd__job_steps_parse(r.steps, &r.first, &r.last))
        return hd__cli_usage_error(&hd__command_trace,
                                   "--steps: '%.40s' is neither a step nor a range of steps: write the first and the "
                                   "last, counted from 1, as in 20-24",
                                   r.steps);
    int trains = arguments->n_overrides || r.steps || r.out;
    for (size_t i = 0; i < HD__COUNT(r.training.options); i++)
        trains |= r.training.options[i] != NULL;
    json_t *content = NULL;
    load(arguments->file, &content, &no_trace);
    if (!is_trace(arguments->file, content, trains)) {
        json_decref(content);
        return record(&r, &s, argc, argv);
    }
    if (!trains || !content)
        return content ? print_summary(&s, arguments->file, content) : hd__cli_print_error(&no_trace, HD__EXIT_REFUSED);
    json_decref(content);
    return hd__cli_usage_error(&hd__command_trace,
                               "%s is a trace already: leave out all but --rates and --json, or name a job",
                               arguments->file);
}

static int run(int argc, char **argv)
{
    return hd__cli_as_rank(trace, argc, argv);
}

const struct hd__command hd__command_trace = {
    .name = "trace",
    .usage = "JOB [key=value ...] [--steps A-B] [--out FILE.json] [--nodes N] [--node-rank I] [--rendezvous HOST:PORT] "
             "[--rates LIST] [--json]\n"
             "       heddle trace FILE.json [--rates LIST] [--json]",
    .summary = "record some steps of a job on all ranks, and sum them up",
    .help =
        "Trains a job as `heddle train` does, on all of its ranks, until some steps are recorded: when every\n"
        "instruction of them ran. Perfetto shows the file as it is. The job's own run has no part in it: training\n"
        "begins at step 1 in a folder `trace` inside the run folder, nothing is saved, resumed or evaluated, and the\n"
        "job's metrics and sinks get no rows. What training prints goes to standard error.\n\n"
        "Then, or of a file that was recorded before, by this command or metrics.trace of a job, it prints of each\n"
        "rank the time that it computed, waited for communication (exposed) and for data, the bubble (the part "
        "between\n"
        "the model's first instruction of a step and the last in which it computed nothing of the model), and how\n"
        "often all others had come to a collective before it; then time by axis, block and kind of instruction. "
        "Beside\n"
        "each kind stands what the estimated timeline of `heddle explain` takes for it.\n\n"
        "  --steps A-B       the steps, from 1; those of metrics.trace, or the third to fifth, if left out\n"
        "  --out FILE.json   the file; trace.json in that folder if left out\n"
        "  --nodes N, --node-rank I, --rendezvous HOST:PORT\n"
        "                    of several machines, as of `heddle train`: once on each\n"
        "  --rates LIST      of the estimate: flops=, memory=, link= (a second), kernel=, latency= (seconds), and by\n"
        "                    axis tp.link=, dp.latency=, ...\n"
        "  --json            for machines\n",
    .example = "  heddle trace examples/kjv.yaml --steps 20-24 --out step.json\n"
               "  heddle trace step.json --rates flops=2e10,memory=1e10\n",
    .run = run};
