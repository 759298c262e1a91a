/* metrics-prometheus: what a scrape gets, in Prometheus' text format 0.0.4
 * (https://prometheus.io/docs/instrumenting/exposition_formats/). */
#ifndef METRICS_PROMETHEUS_TEXT_H
#define METRICS_PROMETHEUS_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "heddle/metrics.h"

enum { STEP_BUCKETS = 18, FAMILIES = 9, SAMPLES_MAX = 512 };

/* Upper bounds of heddle_step_seconds; the one without a bound comes last. */
extern const double step_bounds[STEP_BUCKETS];

/* A value that a record had, of the family with this number in the table; label "": none. */
struct sample {
    double value;
    char label[56];
    int32_t family;
    int32_t reserved;
};

struct values {
    uint64_t step_count[STEP_BUCKETS + 1]; /* step_seconds, not cumulative */
    double step_sum;
    struct sample samples[SAMPLES_MAX];
    int32_t n_samples;
    int32_t reserved;
};

void values_set(struct values *values, const struct hd_metrics_record *record);
/* The step that the run begins after: there is a sample before the first record. */
void values_start(struct values *values, int64_t step);
/* NULL: no memory. The caller frees it. */
char *values_text(const struct values *values, size_t *bytes);

#endif
