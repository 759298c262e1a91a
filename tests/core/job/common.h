/* What the suites of the job room share: a whole job, a plugin's table, short ways to load. */
#ifndef HD_TESTS_CORE_JOB_COMMON_H
#define HD_TESTS_CORE_JOB_COMMON_H

#include <check.h>
#include <stdlib.h>

#include "core/job/job.h"

extern struct hd_error err;

/* Every section, most of them in one line. */
extern const char full_job[];
/* The least that is a job. */
extern const char small_job[];

/* A made-up plugin. */
struct plugin_settings {
    double lr;
    struct hd_list betas;
    int64_t stage, bucket;
    int32_t order, overlap, graph, reserved;
    const char *path;
};
extern const struct hd_option plugin_options[];
extern const size_t plugin_option_count;

/* Loads `text` as job.yaml with up to three overrides (NULL where there are fewer); fails the test on an
 * error. */
struct hd__job *load(const char *text, const char *a, const char *b, const char *c);
/* Loads and resolves what must be refused; returns the message. */
const char *refusal(const char *text, const char *override, int64_t ranks);
/* Parses a section through the made-up plugin's table. */
int32_t parse_section(struct hd__job *job, struct hd__job_section *section, struct plugin_settings *out);

#endif
