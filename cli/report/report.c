/* heddle report: runs as a page. */
#include <stdlib.h>

#include "cli/command.h"
#include "cli/report/report.h"
#include "core/base/file.h"
#include "service/report/speaker.h"

struct report_arguments {
    const char *html;
    const char *paths[HD__REPORT_RUNS];
    uint32_t n;
};

static int parse(int argc, char **argv, struct report_arguments *a)
{
    const struct hd__command *command = &hd__command_report;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--html")) {
            if (a->html)
                return hd__cli_usage_error(command, "--html is given twice");
            if (++i == argc || argv[i][0] == '-' || !*argv[i])
                return hd__cli_usage_error(command, "--html wants a file");
            a->html = argv[i];
        } else if (argv[i][0] == '-') {
            return hd__cli_usage_error(command, "there is no option %s", argv[i]);
        } else if (!*argv[i]) {
            return hd__cli_usage_error(command, "a run's name is empty");
        } else if (a->n == HD__REPORT_RUNS) {
            return hd__cli_usage_error(command, "more runs than fit on a page: name at most %d", HD__REPORT_RUNS);
        } else {
            a->paths[a->n++] = argv[i];
        }
    }
    return a->n ? HD__EXIT_DONE : hd__cli_usage_error(command, "no run given: name its folder, as runs/NAME");
}

/* Runs are told apart: by their folders' names, or by the paths that were given. */
static int32_t name_apart(struct hd__report *r, const struct report_arguments *a, struct hd_error *err)
{
    for (uint32_t i = 0; i < r->n; i++)
        for (uint32_t k = 0; k < i; k++) {
            char *x = realpath(r->runs[i].path, NULL), *y = realpath(r->runs[k].path, NULL);
            int same = x && y && !strcmp(x, y);
            free(x);
            free(y);
            if (same)
                return hd_fail(err, HD_E_INVALID, "%s and %s are one run: name each once", a->paths[k], a->paths[i]);
            if (strcmp(r->runs[i].label, r->runs[k].label))
                continue;
            for (uint32_t both = 0; both < 2; both++) {
                uint32_t at = both ? i : k;
                free(r->runs[at].label);
                r->runs[at].label = hd__strdup(a->paths[at]);
            }
        }
    return HD_OK;
}

/* *began: writing has begun; a failure from then on is not one of the arguments. */
static int32_t write_page(const struct hd__report *r, const char *path, char **argv, int *began, struct hd_error *err)
{
    FILE *file = hd__output_create(path, HD__OUTPUT_MARK, err);
    if (!file)
        return err->code;
    *began = 1;
    hd__report_page(file, r, (const char *const *)argv);
    return hd__output_close(file, path, err);
}

static int32_t report(struct hd__report *r, const struct report_arguments *a, char **argv, int *began,
                      struct hd_error *err)
{
    struct hd__text text = {0};
    int32_t rc = a->html ? hd__output_check(a->html, HD__OUTPUT_MARK, err) : HD_OK;
    for (; r->n < a->n && !rc; r->n++)
        rc = hd__report_read(a->paths[r->n], &r->runs[r->n], err);
    rc = rc ? rc : name_apart(r, a, err);
    for (uint32_t k = 0; k < r->n && !rc; k++)
        for (uint32_t f = 0; f < r->runs[k].faults.count; f++)
            hd__speaker_print(r->runs[k].faults.at[f]);
    if (rc)
        return rc;
    if (a->html)
        return write_page(r, a->html, argv, began, err);
    hd__report_text(r, &text);
    hd__text_print(&text, stdout);
    return HD_OK;
}

static int run(int argc, char **argv)
{
    struct report_arguments a = {0};
    struct hd__report r = {.n = 0};
    struct hd_error err = HD_ERROR_INIT;
    int began = 0, code = parse(argc, argv, &a);
    if (code == HD__EXIT_DONE && report(&r, &a, argv, &began, &err)) {
        hd__speaker_print(err.message);
        code = began ? HD__EXIT_FAILED : HD__EXIT_REFUSED;
    }
    for (uint32_t k = 0; k < HD__REPORT_RUNS; k++)
        hd__report_free(&r.runs[k]);
    return code;
}

const struct hd__command hd__command_report = {
    .name = "report",
    .usage = "RUN ... [--html FILE]",
    .summary = "show runs: curves, events, what differs",
    .help =
        "RUN is a run's folder, runs/NAME, or its metrics.jsonl; up to 8 are compared. The page has each run in "
        "numbers,\n"
        "keys that differ, loss against steps, tokens and time, throughput, memory, communication that compute waited\n"
        "for, every other number of the rows, the steps that were traced, alarms, saves and restarts, and the "
        "resolved\n"
        "job. Lines that are damaged are left out, and listed on standard error and in the page.\n\n"
        "  --html FILE    writes the page as HTML that needs nothing beside it, instead of text to standard output;\n"
        "                 FILE replaces nothing but an older page of heddle's\n",
    .example = "  heddle report runs/kjv runs/kjv-lr --html kjv.html\n",
    .run = run};
