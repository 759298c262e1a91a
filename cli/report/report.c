/* heddle report: runs as a page. */
#include <stdlib.h>

#include "cli/command.h"
#include "cli/report/report.h"
#include "core/base/file.h"
#include "service/report/speaker.h"

/* Runs are told apart: by their folders' names, or by the paths that were given. */
static int32_t name_apart(struct hd__report *r, const struct hd__cli_words *runs, struct hd_error *err)
{
    for (uint32_t i = 0; i < r->n; i++)
        for (uint32_t k = 0; k < i; k++) {
            char *x = realpath(r->runs[i].path, NULL), *y = realpath(r->runs[k].path, NULL);
            int same = x && y && !strcmp(x, y);
            free(x);
            free(y);
            if (same)
                return hd_fail(err, HD_E_INVALID, "%s and %s are one run: name each once", runs->at[k], runs->at[i]);
            if (strcmp(r->runs[i].label, r->runs[k].label))
                continue;
            for (uint32_t both = 0; both < 2; both++) {
                uint32_t at = both ? i : k;
                free(r->runs[at].label);
                r->runs[at].label = hd__strdup(runs->at[at]);
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

static int32_t report(struct hd__report *r, const struct hd__cli_words *runs, const char *html, char **argv, int *began,
                      struct hd_error *err)
{
    struct hd__text text = {0};
    int32_t rc = html ? hd__output_check(html, HD__OUTPUT_MARK, err) : HD_OK;
    for (; r->n < runs->count && !rc; r->n++)
        rc = hd__report_read(runs->at[r->n], &r->runs[r->n], err);
    rc = rc ? rc : name_apart(r, runs, err);
    if (!rc)
        hd__report_doubt_mfu(r);
    for (uint32_t k = 0; k < r->n && !rc; k++)
        for (uint32_t f = 0; f < r->runs[k].faults.count; f++)
            hd__speaker_print(r->runs[k].faults.at[f]);
    if (rc)
        return rc;
    if (html)
        return write_page(r, html, argv, began, err);
    hd__report_text(r, &text);
    hd__text_print(&text, stdout);
    return HD_OK;
}

static int run(int argc, char **argv)
{
    struct hd__cli_words runs;
    struct hd__report r = {.n = 0};
    struct hd_error err = HD_ERROR_INIT;
    const char *html = NULL;
    const struct hd__cli_flag flags[] = {{"--html", &html, NULL}};
    int began = 0, code = hd__cli_split(&hd__command_report, argc, argv, flags, HD__COUNT(flags), &runs);
    if (!code && html && *html == '-')
        code = hd__cli_usage_error(&hd__command_report, "--html wants a file");
    if (!code && !runs.count)
        code = hd__cli_usage_error(&hd__command_report, "no run given: name its folder, as runs/NAME");
    if (!code && runs.count > HD__REPORT_RUNS)
        code =
            hd__cli_usage_error(&hd__command_report, "more runs than fit on a page: name at most %d", HD__REPORT_RUNS);
    if (!code && report(&r, &runs, html, argv, &began, &err)) {
        hd__speaker_print(err.message);
        code = began ? HD__EXIT_FAILED : HD__EXIT_REFUSED;
    }
    for (uint32_t k = 0; k < HD__REPORT_RUNS; k++)
        hd__report_free(&r.runs[k]);
    free(runs.at);
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
