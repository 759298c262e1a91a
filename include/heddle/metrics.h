/* heddle/metrics.h: a sink of metrics. It is told of the steps that a run logs, beside metrics.jsonl and the
 * console, which the core writes itself.
 *
 * Life: open (by rank 0, before the first step) -> write, write, ... -> close. The core calls `write` from a thread
 * of its own, so a slow sink holds no step up: records wait in a queue, and where it is full the newest is left out,
 * with a warning. What `open` refuses ends the job before its first step; an error of `write` is a warning, and the
 * sink is given the next record. */
#ifndef HEDDLE_METRICS_H
#define HEDDLE_METRICS_H

#include "heddle/plugin.h"

struct hd_metrics; /* the plugin's own */

struct hd_metrics_start {
    size_t struct_size;
    const char *job; /* job.name */
    /* The line of metrics.jsonl that a run begins with: a JSON object, with job, mesh, parameters and plan. */
    const char *record;
    int64_t step;  /* of the checkpoint that the run goes on from: what came after it is void. 0: a fresh run */
    int64_t steps; /* the last one */
    /* The run's id, 16 hexadecimal digits: a resumed run has that of the one it goes on from, and its curves belong to
     * the same run. NULL: unknown. */
    const char *run;
};

enum { HD_METRIC_INT = 1, HD_METRIC_FLOAT = 2 };

/* One key and its value. */
struct hd_metric {
    const char *name; /* as in metrics.jsonl: "loss", "tokens_per_s"; lives until close */
    uint32_t type;    /* HD_METRIC_... */
    uint32_t reserved;
    int64_t integer; /* of HD_METRIC_INT */
    double number;   /* of HD_METRIC_FLOAT, which may be infinite or NaN; of HD_METRIC_INT the same as a double */
};

/* A step. A metric that it has no value of is left out: val_loss where nothing was evaluated. */
struct hd_metrics_record {
    size_t struct_size;
    const struct hd_metric *metrics; /* read them with hd_metric_at */
    size_t count;
    size_t metric_size; /* bytes from one to the next: sizeof(struct hd_metric) of the core */
    int64_t step;       /* 1 = after the first update */
    double time;        /* seconds since 1970 */
};

static inline const struct hd_metric *hd_metric_at(const struct hd_metrics_record *record, size_t i)
{
    return (const struct hd_metric *)(const void *)((const char *)record->metrics + i * record->metric_size);
}

/* The sink is also opened in the first rank of each other machine, with `record` and `run` NULL: for what the machine
 * itself has. It gets no records there. */
#define HD_METRICS_EACH_MACHINE (UINT64_C(1) << 0)

struct hd_metrics_ops {
    size_t struct_size;
    uint64_t caps; /* HD_METRICS_... */
    /* [control] mandatory. */
    int32_t (*open)(const struct hd_host *host, const void *settings, const struct hd_metrics_start *start,
                    struct hd_metrics **metrics, struct hd_error *err);
    /* [any-thread] mandatory, one call at a time, steps in order. */
    int32_t (*write)(struct hd_metrics *metrics, const struct hd_metrics_record *record, struct hd_error *err);
    /* [any-thread] mandatory, after the last write: writes out what was held back. NULL is fine. */
    void (*close)(struct hd_metrics *metrics);
};

#endif
