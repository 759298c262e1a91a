/* cli/trace/summary: what a measured trace says: time by instruction, block and axis, ranks that are slow. */
#ifndef HD_CLI_TRACE_SUMMARY_H
#define HD_CLI_TRACE_SUMMARY_H

#include <jansson.h>

#include "analysis/sim/simulate.h"

/* Seconds are of the mean rank and step, but where a rank is named. */
struct hd__trace_row {
    char name[96];                    /* of a kind of instruction, a block, axes */
    double seconds, calls, predicted; /* predicted: of all calls; NaN: by no rate */
    int is_comm;
};

struct hd__trace_rank_row {
    int64_t rank, stage, thread;                 /* thread: of compute, in the file */
    double compute, exposed, feed, step, bubble; /* seconds a step; bubble: part of model compute's span */
    int64_t last;                                /* collectives that it came last to */
    int straggles;                               /* more than a tenth above the median of the others of its stage */
};

struct hd__trace_summary {
    const char *job; /* borrowed of the trace */
    HD__ARRAY(struct hd__trace_row) kinds, blocks, axes;
    HD__ARRAY(struct hd__trace_rank_row) ranks;
    int64_t first, last, stages, collectives;
    double step, steps; /* seconds of a step; how many */
};

/* The trace outlives it. HD_E_INVALID: it is not the trace of a measured run. */
int32_t hd__trace_sum_up(const json_t *trace, const struct hd__sim_rates *rates, struct hd__trace_summary *out,
                         struct hd_error *err);
void hd__trace_summary_free(struct hd__trace_summary *s);
void hd__trace_summary_text(const struct hd__trace_summary *s, struct hd__text *out);
json_t *hd__trace_summary_json(const struct hd__trace_summary *s);

#endif
