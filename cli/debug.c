/* heddle debug: prints the report of a failed job. */
#include <stdlib.h>

#include "cli/job.h"
#include "service/report/report.h"

/* The cause and each rank's position, without the operations. */
static json_t *summary_json(const json_t *report)
{
    json_t *out = json_object(), *ranks = json_array();
    const json_t *dump;
    static const char *const keys[] = {"job", "time", "ranks", "end", "verdict"};
    static const char *const of[] = {"rank", "state", "step", "at", "waited", "operations"};
    size_t i;
    for (size_t k = 0; k < HD__COUNT(keys); k++)
        json_object_set(out, keys[k], json_object_get(report, keys[k]));
    json_array_foreach(json_object_get(report, "rank"), i, dump)
    {
        json_t *one = json_object();
        for (size_t k = 0; k < HD__COUNT(of); k++)
            if (json_object_get(dump, of[k]))
                json_object_set(one, of[k], json_object_get(dump, of[k]));
        json_array_append_new(ranks, one);
    }
    json_object_set_new(out, "rank", ranks);
    return out;
}

static void print_report(const json_t *report, int json)
{
    struct hd__text text = {0};
    if (json) {
        hd__cli_print_json(summary_json(report), JSON_INDENT(1));
        return;
    }
    hd__report_summary(report, &text);
    hd__report_table(report, &text);
    hd__text_print(&text, stdout);
}

static int run(int argc, char **argv)
{
    struct hd__cli_words files;
    struct hd_error err = HD_ERROR_INIT;
    json_t *report = NULL;
    int json = 0;
    const struct hd__cli_flag flags[] = {{"--json", NULL, &json}};
    int code = hd__cli_split(&hd__command_debug, argc, argv, flags, HD__COUNT(flags), &files);
    if (!code && !files.count)
        code = hd__cli_usage_error(&hd__command_debug, "no report given: a failed job prints the path of its report");
    else if (!code && hd__report_load(files.at, files.count, &report, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (report)
        print_report(report, json);
    json_decref(report);
    free(files.at);
    return code;
}

const struct hd__command hd__command_debug = {
    .name = "debug",
    .usage = "REPORT ... [--json]",
    .summary = "read the report of a job that failed",
    .help =
        "A job that ends because a rank died, hung or did something else than the others leaves a report beside\n"
        "its metrics, and says where. This command shows it: the cause, where each rank was, and the last\n"
        "operations of all ranks side by side, by their number in their group. '>' stands before the first in which\n"
        "ranks differ, or for which one still waits. Where rank 0 served the rendezvous and died, each rank wrote a\n"
        "report of its own: give all.\n\n"
        "  --json    the cause and where each rank was, for machines; the report itself is JSON with the rest\n",
    .example = "  heddle debug runs/kjv/report-20260301-101500.json\n",
    .run = run};
