/* The numbers of all ranks -> metrics. */
#include <stdlib.h>

#include "service/metrics/internal.h"

/* Names live as long as the process: a sink may have them after the run was closed. */
static char axis_names[HD_AXIS_COUNT][32], rank_names[HD__METRICS_RANKS][24];

static const struct {
    int32_t number, type; /* HD__RANK_..., HD_METRIC_... */
    const char *min, *median, *max, *rank;
} stats[HD__RANK_STATS] = {
    {HD__RANK_COMPUTE, HD_METRIC_FLOAT, "compute_min_s", "compute_median_s", "compute_max_s", "compute_max_rank"},
    {HD__RANK_COMM_WAIT, HD_METRIC_FLOAT, "wait_min_s", "wait_median_s", "wait_max_s", "wait_max_rank"},
    {HD__RANK_RSS, HD_METRIC_INT, "rss_min_bytes", "rss_median_bytes", "rss_max_bytes", "rss_max_rank"},
};

static struct hd_metric metric(const char *name, int32_t type, double value)
{
    return (struct hd_metric){.name = name, .type = (uint32_t)type, .integer = (int64_t)value, .number = value};
}

static size_t add_stats(const struct hd__metrics_row *row, double *values, struct hd_metric *out)
{
    size_t n = 0;
    for (size_t k = 0; k < HD__RANK_STATS; k++) {
        int32_t longest = 0;
        for (int32_t r = 0; r < row->n_ranks; r++) {
            values[r] = hd__metrics_of_rank(row, r, stats[k].number);
            longest = values[r] > values[longest] ? r : longest;
        }
        hd__watch_median(values, (size_t)row->n_ranks); /* sorts them */
        out[n++] = metric(stats[k].min, stats[k].type, values[0]);
        out[n++] = metric(stats[k].median, stats[k].type, values[(row->n_ranks - 1) / 2]);
        out[n++] = metric(stats[k].max, stats[k].type, values[row->n_ranks - 1]);
        out[n++] = metric(stats[k].rank, HD_METRIC_INT, longest);
    }
    return n;
}

size_t hd__metrics_of_ranks(const struct hd__metrics_row *row, struct hd_metric *out, size_t *own)
{
    size_t n = 0;
    *own = 0;
    if (!row->ranks)
        return 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        double sum = 0;
        if (!(row->axes & HD_AXIS_BIT(a)))
            continue;
        for (int32_t r = 0; r < row->n_ranks; r++)
            sum += hd__metrics_of_rank(row, r, HD__RANK_COMM_AXIS + a);
        if (!*axis_names[a]) /* once: sinks read the names of earlier rows in their threads */
            snprintf(axis_names[a], sizeof axis_names[a], "comm_s_%s", hd__axis_name(a));
        out[n++] = metric(axis_names[a], HD_METRIC_FLOAT, sum / row->n_ranks);
    }
    double *values = hd__alloc((size_t)row->n_ranks * sizeof *values);
    n += add_stats(row, values, out + n);
    free(values);
    *own = n;
    for (int32_t r = 0; r < row->n_ranks && row->n_ranks <= HD__METRICS_RANKS; r++) {
        if (!*rank_names[r])
            snprintf(rank_names[r], sizeof rank_names[r], "compute_s_%d", r);
        out[n++] = metric(rank_names[r], HD_METRIC_FLOAT, hd__metrics_of_rank(row, r, HD__RANK_COMPUTE));
    }
    return n;
}
