/* heddle explain: prints the step program of a rank. */
#include <jansson.h>
#include <stdlib.h>

#include "cli/job.h"
#include "core/program/print.h"

static int print_program(struct hd_program *p, int32_t rank, const char *section, int json)
{
    struct hd__print_options options = {.rank = rank, .section = section};
    if (section && !hd__section(p, section)) {
        fprintf(stderr, "there is no section '%s'; there are", section);
        for (uint32_t s = 0; s < p->sections.count; s++)
            fprintf(stderr, "%s %s", s ? "," : "", p->sections.at[s].name);
        fputc('\n', stderr);
        return HD__EXIT_REFUSED;
    }
    if (json) {
        json_t *object = hd__print_json(p, &options);
        json_dumpf(object, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(object);
    } else {
        struct hd__text text = {0};
        hd__print(p, &options, &text);
        fputs(text.at, stdout);
        hd__text_free(&text);
    }
    return HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    const char *rank_text = "0", *section = NULL;
    int json = 0, code;
    const struct hd__flag flags[] = {{"--rank", &rank_text, NULL}, {"--section", &section, NULL}, {"--json", NULL, &json}};
    struct hd__job_arguments arguments;
    struct hd__loaded loaded = {0};
    char *end;
    long rank;
    code = hd__job_arguments(&hd__command_explain, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (code)
        return code;
    code = hd__load_job(&arguments, 0, &loaded);
    rank = strtol(rank_text, &end, 10);
    if (!code && (*end || end == rank_text || rank < 0 || rank >= loaded.compiled->mesh.ranks))
        code = hd__refuse_usage(&hd__command_explain, "--rank %s: the job has ranks 0 to %d", rank_text, loaded.compiled->mesh.ranks - 1);
    if (!code)
        code = print_program(hd__program_of(loaded.compiled, (int32_t)rank), (int32_t)rank, section, json);
    hd__unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_explain = {
    .name = "explain",
    .usage = "JOB [key=value ...] [--rank R] [--section NAME] [--json]",
    .summary = "print the step program",
    .help = "Compiles the job and prints one rank's program, one instruction a line: number, stream, block, micro-batch,\n"
            "phase, operation and its mesh axes, outputs <- inputs with dtype, local shape and placement, arena bytes.\n"
            "Nothing is run; no data file is needed.\n\n"
            "  --rank R          whose program (default 0)\n"
            "  --section NAME    only begin, micro, micro_last, update, eval, ...\n"
            "  --json            for machines; the fields are described in docs/explain-json.md\n",
    .example = "  heddle explain examples/kjv.yaml --section update\n",
    .run = run,
};
