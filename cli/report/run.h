/* cli/report/run: a run as its folder tells it: the rows and events of metrics.jsonl, checkpoints, failure reports. */
#ifndef HD_CLI_REPORT_RUN_H
#define HD_CLI_REPORT_RUN_H

#include <jansson.h>

#include "core/base/base.h"

enum { HD__REPORT_RUNS = 8, HD__REPORT_FIELDS = 96 }; /* at most: runs on a page, numeric fields of a run */

/* A field of the rows: "loss"; of an object in a row "exposed_comm_s.dp_shard". */
struct hd__report_field {
    char *name;
    double *values; /* a row each; NaN: it has none */
};

struct hd__report_run {
    char *label;           /* its folder's name; the path where two runs have the same */
    char *path;            /* of metrics.jsonl */
    char *folder;          /* of the run */
    const char *id, *name; /* "": unknown */
    json_t *start;         /* the newest line that starts or resumes it; NULL: none */
    json_t *copies;        /* of checkpoint.peers, in order: there are many */
    json_t *events;        /* the others, in order */
    json_t *reports;       /* of failures: {"file", "words"} */
    uint32_t n_rows, n_fields;
    uint32_t dropped; /* fields beyond the limit */
    double *step, *tokens,
        *seconds; /* a row each; seconds: step times so far, as if the steps between rows took as long */
    struct hd__report_field fields[HD__REPORT_FIELDS];
    HD__ARRAY(uint64_t) checkpoints; /* steps of those that are there */
    HD__ARRAY(char *) faults;        /* of the file: damaged lines and the like, said in both kinds of page */
};

/* A run's folder, or its metrics.jsonl. */
int32_t hd__report_read(const char *path, struct hd__report_run *run, struct hd_error *err);
void hd__report_free(struct hd__report_run *run); /* {0} is fine */
/* NULL: no row has it */
const double *hd__report_values(const struct hd__report_run *run, const char *field);

#endif
