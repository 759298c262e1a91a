/* cli/report: declarations shared by the parts of `heddle report`. */
#ifndef HD_CLI_REPORT_REPORT_H
#define HD_CLI_REPORT_REPORT_H

#include <stdio.h>

#include "cli/report/run.h"

struct hd__report {
    struct hd__report_run runs[HD__REPORT_RUNS];
    uint32_t n, reserved;
};

/* ---- summary.c: both kinds of page have these */

/* Row k of the table of runs: its name, NULL after the last; what it says of a run. */
const char *hd__report_fact_name(size_t k);
void hd__report_fact(const struct hd__report_run *run, size_t k, struct hd__text *out);
/* "optimizer.lr" -> "0.001": every value of the resolved job, by key. The caller owns it. */
json_t *hd__report_settings(const struct hd__report_run *run);
/* Keys of which runs have different values: an array of {"key", "values": one a run, null where it has none}. The run's
 * own name and paths do not count. */
json_t *hd__report_differences(const struct hd__report *r);
/* Adds faults: an MFU above 100 %, and one of another peak than the first run's of the same device. */
void hd__report_doubt_mfu(struct hd__report *r);
double hd__report_event_step(const json_t *event);
/* An event in words, without its step. */
void hd__report_event_words(const json_t *event, struct hd__text *out);

/* ---- charts.c, page.c: HTML. text.c: a page for the terminal. */

/* Charts of what the runs have: of the loss, then a grid of the others. */
void hd__report_charts(FILE *file, const struct hd__report *r);
/* timeline.c: the steps of each run's trace, where it has one; else how to get it. */
void hd__report_timelines(FILE *file, const struct hd__report *r);
void hd__report_page(FILE *file, const struct hd__report *r, const char *const *words);
void hd__report_text(const struct hd__report *r, struct hd__text *out);

#endif
