/* service/metrics/internal: declarations shared by this room's files. */
#ifndef HD_SERVICE_METRICS_INTERNAL_H
#define HD_SERVICE_METRICS_INTERNAL_H

#include "service/metrics/metrics.h"
#include "service/metrics/watch.h"

#define HD__METRICS_MAX                                                                  \
    (18 + HD__METRICS_SETS + HD__WATCH_RULE_COUNT + HD_AXIS_COUNT + HD__RANK_STATS * 4 + \
     HD__METRICS_RANKS) /* per step */

/* ---- rank_stats.c: what the ranks of a row have in common, and apart. */
enum { HD__RANK_STATS = 3 }; /* compute, wait, memory: four metrics each */
/* Returns how many; `own`: what follows the first *own are the ranks' own, for sinks alone. */
size_t hd__metrics_of_ranks(const struct hd__metrics_row *row, struct hd_metric *out, size_t *own);

static inline double hd__metrics_of_rank(const struct hd__metrics_row *row, int32_t rank, int32_t number)
{
    return row->ranks[(size_t)rank * (size_t)row->stride + (size_t)number];
}

/* ---- sinks.c. Names of metrics live as long as the process. */
struct hd__metrics_sink;
int32_t hd__metrics_sink_open(const struct hd__metrics_sink_config *config, const struct hd_metrics_start *start,
                              struct hd__metrics_sink **sink, struct hd_error *err);
/* Queues a record of at most HD__METRICS_MAX metrics; never waits for the sink. */
void hd__metrics_sink_put(struct hd__metrics_sink *sink, const struct hd_metrics_record *record);
/* Waits, at most its patience, until the sink has written the queue. */
void hd__metrics_sink_close(struct hd__metrics_sink *sink);

#endif
