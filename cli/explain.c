/* heddle explain: prints the step program of a rank. */
#include <jansson.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "analysis/comm_plan.h"
#include "analysis/print.h"
#include "analysis/sim/simulate.h"
#include "analysis/tp_span_warning.h"
#include "cli/warnings/warnings.h"
#include "core/base/file.h"
#include "core/program/ops.h"
#include "runtime/exec/roofline.h"

static int has_section(struct hd_program *p, const char *section)
{
    if (!section || hd__program_section(p, section))
        return 1;
    fprintf(stderr, "there is no section '%s'; there are", section);
    for (uint32_t s = 0; s < p->sections.count; s++)
        fprintf(stderr, "%s %s", s ? "," : "", p->sections.at[s].name);
    fputs(", decode\n", stderr); /* which is compiled where it is asked for */
    return 0;
}

static int print_program(const struct hd__compiled *c, int32_t rank, const struct hd__routes_options *how, int json)
{
    struct hd_program *p = hd__compiled_program(c, rank);
    struct hd__program_print_options options = {.rank = rank, .section = how->section};
    struct hd__routes routes = {0};
    if (!has_section(p, how->section))
        return HD__EXIT_REFUSED;
    hd__routes_find(c, rank, how, &routes);
    if (json) {
        json_t *object = hd__program_print_json(p, &options);
        json_object_set_new(object, "groups", hd__routes_json(&routes));
        hd__cli_print_json(object, JSON_INDENT(1));
    } else {
        struct hd__text text = {0};
        hd__program_print(p, &options, &text);
        if (routes.groups.count)
            hd__text_add(&text, "-- groups of this rank, and how operations of %s%s go\n",
                         how->section ? "section " : "one step", how->section ? how->section : "");
        if (routes.groups.count)
            hd__routes_text(&routes, &text);
        hd__text_print(&text, stdout);
    }
    hd__routes_free(&routes);
    return HD__EXIT_DONE;
}

/* ---- timeline */

/* A file name that is neither a job nor an override nor an option; its suffix is checked later. */
static int is_output_file(const char *word)
{
    const char *dot = strrchr(word, '.');
    return dot && dot[1] && !strchr(dot, '/') && !strchr(word, '=') && word[0] != '-' &&
           !hd__ends_with(word, ".yaml") && !hd__ends_with(word, ".yml");
}

/* "--timeline FILE.svg": removes the file, which is no job, from the words. */
static const char *take_timeline_file(int *argc, char **argv)
{
    for (int n = 1; n + 1 < *argc; n++)
        if (!strcmp(argv[n], "--timeline") && is_output_file(argv[n + 1])) {
            const char *file = argv[n + 1];
            memmove(argv + n + 1, argv + n + 2, (size_t)(*argc - n - 2) * sizeof *argv);
            --*argc;
            return file;
        }
    return NULL;
}

/* `begins`: the first bytes of text that only such a file has. */
static int write_file(const char *path, const char *begins, const char *text)
{
    struct hd_error err = HD_ERROR_INIT;
    FILE *f = hd__output_create(path, begins, &err);
    if (f)
        fputs(text, f);
    if (f && !hd__output_close(f, path, &err))
        return HD__EXIT_DONE;
    fprintf(stderr, "--timeline: %s\n", err.message);
    return f ? HD__EXIT_FAILED : HD__EXIT_REFUSED;
}

static int write_timeline(const struct hd__timeline *t, int32_t only, const char *file, const char *title)
{
    struct hd__text picture = {0};
    int code = HD__EXIT_DONE;
    if (!file) {
        struct winsize size;
        int wide = isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col;
        hd__timeline_text(t, only, wide ? size.ws_col : 120, &picture);
        fputs(picture.at, stdout);
    } else if (hd__ends_with(file, ".svg")) {
        hd__timeline_svg(t, only, title, &picture);
        code = write_file(file, HD__OUTPUT_MARK, picture.at);
    } else {
        json_t *trace = hd__timeline_trace(t, only);
        char *words = json_dumps(trace, JSON_COMPACT);
        code = write_file(file, HD__TIMELINE_TRACE_BEGINS, words);
        free(words);
        json_decref(trace);
    }
    hd__text_free(&picture);
    return code;
}

/* The first rank's step against its roofline by the same rates, kernels' constant and bubbles aside. */
static void add_roofline(const struct hd__timeline *t, const struct hd__sim_rates *rates, struct hd__text *out)
{
    const struct hd__rank_times *first = &t->ranks[0];
    const struct hd__roofline_rates of = {rates->flops, rates->memory, hd__instr_bytes, "of the estimate"};
    struct hd__roofline r = hd__roofline_of(t->programs[first->rank], &of, first->comm - first->overlapped);
    hd__roofline_text(&r, &of, t->seconds, out);
    hd__text_add(out, "\n");
}

/* Rates of axes along which nothing is sent; of dp both parts. */
static void warn_of_rates(const struct hd__compiled *c, const struct hd__sim_rates *rates)
{
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        uint32_t with = HD_AXIS_BIT(a) & HD__DP_AXES ? HD__DP_AXES & rates->named : HD_AXIS_BIT(a);
        if (rates->named & HD_AXIS_BIT(a) && hd__mesh_ways(&c->mesh, with) == 1)
            hd__log(HD_LOG_WARN, NULL, "--rates: %s. has no effect: this axis of the mesh is 1", hd__axis_name(a));
    }
}

static int print_timeline(const struct hd__compiled *c, int32_t only, const struct hd__sim_rates *rates,
                          const char *file)
{
    const struct hd_program **programs = hd__alloc((size_t)c->mesh.ranks * sizeof *programs);
    struct hd_error err = HD_ERROR_INIT;
    struct hd__timeline t = {0};
    struct hd__text words = {0};
    for (int32_t r = 0; r < c->mesh.ranks; r++)
        programs[r] = hd__compiled_program(c, r);
    if (hd__sim_timeline(&c->mesh, programs, rates, only, &t, &err)) {
        free(programs);
        return hd__cli_print_error(&err, HD__EXIT_FAILED);
    }
    int code = write_timeline(&t, only, file, c->job->name);
    hd__timeline_summary(&t, &words);
    add_roofline(&t, rates, &words);
    hd__text_add(&words, "estimated, not measured, for ");
    hd__sim_rates_text(rates, &words);
    if (!code)
        printf("%s (--rates changes them)\n", words.at);
    hd__text_free(&words);
    hd__timeline_free(&t);
    free(programs);
    return code;
}

/* ---- the command */

/* The section `decode` is no part of training: `sample` compiles it. */
static int load(const struct hd__cli_job_arguments *arguments, const char *section, struct hd__cli_job *loaded)
{
    int decode = section && hd__section_kind(section) == HD__SECTION_DECODE;
    int code = hd__cli_load_with(arguments, 0, decode ? HD__COMPILE_LOGITS | HD__COMPILE_DECODE : 0, NULL, 0, loaded);
    const char *why = code || !decode ? NULL : loaded->compiled->stage[0]->no_cache;
    struct hd_error err = HD_ERROR_INIT;
    if (why && hd_fail(&err, HD_E_UNSUPPORTED, "--section decode: keys and values are not kept: %s", why))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    return code;
}

static int run(int argc, char **argv)
{
    const char *rank_text = NULL, *rates_text = NULL, *machine_text = NULL, *file = take_timeline_file(&argc, argv);
    struct hd__routes_options how = {0};
    int json = 0, timeline = 0, code;
    const struct hd__cli_flag flags[] = {{"--rank", &rank_text, NULL},           {"--section", &how.section, NULL},
                                         {"--per-machine", &machine_text, NULL}, {"--json", NULL, &json},
                                         {"--timeline", NULL, &timeline},        {"--rates", &rates_text, NULL}};
    struct hd__sim_rates rates = hd__sim_rates_default();
    struct hd_error err = HD_ERROR_INIT;
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    char *end = "";
    code = hd__cli_job_arguments(&hd__command_explain, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code && ((timeline && (json || how.section)) || (rates_text && !timeline)))
        code = hd__cli_usage_error(
            &hd__command_explain, "%s",
            timeline ? "--timeline is of a whole step, as text, FILE.svg or FILE.json: no --section, no --json"
                     : "--rates is for --timeline");
    if (!code && file && !hd__ends_with(file, ".svg") && !hd__ends_with(file, ".json"))
        code = hd__cli_usage_error(&hd__command_explain, "--timeline %s: it writes FILE.svg or FILE.json", file);
    if (!code && rates_text && hd__sim_rates_parse(&rates, rates_text, &err))
        code = hd__cli_usage_error(&hd__command_explain, "--rates: %s", err.message);
    if (code)
        return code;
    code = load(&arguments, how.section, &loaded);
    long rank = rank_text ? strtol(rank_text, &end, 10) : 0;
    if (!code && (*end || end == rank_text || rank < 0 || rank >= loaded.compiled->mesh.ranks))
        code = hd__cli_usage_error(&hd__command_explain, "--rank %s: the job has ranks 0 to %d", rank_text,
                                   loaded.compiled->mesh.ranks - 1);
    if (!code &&
        hd__cli_parse_per_machine(&hd__command_explain, machine_text, loaded.compiled->mesh.ranks, &how.per_machine))
        code = HD__EXIT_REFUSED;
    if (!code)
        hd__cli_print_warnings(&arguments, &loaded);
    if (!code)
        hd__warn_tp_span(loaded.compiled, how.per_machine);
    if (!code)
        warn_of_rates(loaded.compiled, &rates);
    if (!code && timeline)
        code = print_timeline(loaded.compiled, rank_text ? (int32_t)rank : -1, &rates, file);
    else if (!code)
        code = print_program(loaded.compiled, (int32_t)rank, &how, json);
    hd__cli_unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_explain = {
    .name = "explain",
    .usage = "JOB [key=value ...] [--rank R] [--section NAME] [--per-machine N] [--json] [--timeline [FILE.svg | "
             "FILE.json]] [--rates ...]",
    .summary = "print the step program, or draw its timeline",
    .help =
        "Compiles the job and prints one rank's program, one instruction a line: number, stream, block, micro-batch,\n"
        "phase, operation and its mesh axes, outputs <- inputs with dtype, local shape and placement, arena bytes.\n"
        "At the end totals, and for each group of ranks the transport, the levels and the algorithm of its "
        "operations.\n"
        "Nothing is run; no data file is needed.\n\n"
        "  --rank R          whose program (default 0)\n"
        "  --section NAME    only begin, micro, micro_last, update, eval, ...; decode: a step of `heddle sample`\n"
        "  --per-machine N   for the groups at the end, where comm.inside is set: as if each machine had N ranks, one\n"
        "                    machine after the other (default: all ranks on one)\n"
        "  --json            for machines; the fields are described in docs/explain-json.md\n"
        "  --timeline        instead of the program, when each stage (or rank R) computes and communicates in one\n"
        "                    step, estimated: as text, or with a file's name after it as a picture (FILE.svg) or as\n"
        "                    a trace for chrome://tracing and Perfetto (FILE.json)\n"
        "  --rates LIST      what the estimate takes: flops=, memory=, link= (a second), kernel=, latency=\n"
        "                    (seconds), and by axis tp.link=, dp.latency=, ...\n",
    .example = "  heddle explain examples/kjv.yaml --section update\n"
               "  heddle explain examples/kjv.yaml --timeline step.svg --rates flops=2e12,memory=1e11,link=1e10\n",
    .run = run};
