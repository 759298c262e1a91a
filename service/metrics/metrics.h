/* service/metrics/metrics: metrics of a run: metrics.jsonl, plain lines or one live line on the terminal, and sinks.
 *
 * metrics.jsonl: one object a line, one write() a line, each with the run's id. First {"event": "start", ...}, then one
 * object for each step that is logged, and other events: "resume", "checkpoint", "restart". A resumed run cuts a torn
 * last line and every step after its checkpoint, which it trains again, but no restart and no alarm of silent
 * corruption, then appends; so does one that was restarted before its first checkpoint. The file of another run is set
 * aside as metrics.jsonl.1, .2, ...; what is not a file of metrics is refused. Only rank 0 has metrics.
 *
 * Plug-ins of kind metrics (heddle/metrics.h), the sinks, get the same steps, each on its own thread. */
#ifndef HD_SERVICE_METRICS_METRICS_H
#define HD_SERVICE_METRICS_METRICS_H

#include <jansson.h>

#include "core/base/base.h"
#include "heddle/metrics.h"

struct hd__metrics;

/* Numbers of a rank, seconds as means of the steps since the row before. Of its time what is neither wait is
 * compute. */
enum {
    HD__RANK_COMPUTE = 0,
    HD__RANK_COMM_WAIT, /* for communication, */
    HD__RANK_DATA_WAIT, /* for reading */
    HD__RANK_RSS,       /* bytes */
    HD__RANK_FILES,     /* open descriptors */
    HD__RANK_STAGE,     /* of the pipeline */
    HD__RANK_COMM_AXIS, /* and the next: wait for communication, by axis */
    HD__RANK_NUMBERS = HD__RANK_COMM_AXIS + HD_AXIS_COUNT
};
enum { HD__METRICS_RANKS = 256 }; /* ranks that sinks get a number each of */

struct hd__metrics_row {
    int64_t step;             /* 1 = after the first update */
    int64_t steps;            /* the last */
    double loss;              /* mean over the global batch's tokens, natural logarithm */
    double val_loss;          /* NaN where not evaluated */
    const double *val_losses; /* of each set of hd__metrics_add_set; NULL: none */
    double epoch;             /* passes over the data so far */
    double grad_norm, lr;     /* before clipping, not finite where the step was skipped; of this step */
    double loss_scale;        /* of this step; 0 without loss scaling */
    int64_t skipped;          /* steps of the run that overflowed and updated nothing */
    int64_t tokens;           /* so far */
    double tokens_per_s, step_s;
    double comm_s;      /* communication that compute waited for, in this step */
    double data_wait_s; /* reading that it waited for, in this step */
    double tokens_per_s_per_rank, samples_per_s;
    double exposed_comm_s; /* of the mean rank, since the row before */
    const double *ranks;   /* `stride` numbers of each, HD__RANK_... first; NULL: none */
    int32_t n_ranks, stride;
    uint32_t axes, reserved; /* mesh axes of more than one rank */
    double mfu;              /* 0 where the peak is unknown */
    int64_t arena_bytes, rss_bytes;
};

/* Before a job starts: refuses a file that is there and none of metrics. */
int32_t hd__metrics_check(const char *path, struct hd_error *err);
/* The folder of the last checkpoint that the file says, owned, and its *step, 0: of none. NULL: it says none. */
char *hd__metrics_saved_in(const char *path, int64_t *step);
/* `path` of metrics.jsonl; its folders are created, and what is there stays as it is. `resumed`: the step of the
 * checkpoint, 0 for a fresh run. `start` is the first line's object (borrowed), with the run's id. */
int32_t hd__metrics_open(const char *path, int64_t resumed, json_t *start, struct hd__metrics **metrics,
                         struct hd_error *err);

/* The next set of validation data: its loss is val_loss_NAME. Before any sink; at most HD__METRICS_SETS. */
enum { HD__METRICS_SETS = 16 };
void hd__metrics_add_set(struct hd__metrics *metrics, const char *name);

/* Alarms (service/metrics/watch.h): limits of rules, 0 for none. An alarm is a line of the file, a warning in the log,
 * and a count alarms_RULE in the records of sinks. */
struct hd__watch_config {
    double loss_spike;   /* standard deviations above the median */
    double grad_norm;    /* times the median */
    double throughput;   /* part of the median that may be lost */
    double straggler;    /* part of the median that a rank's compute may be above it */
    double data_wait;    /* part of a step */
    double exposed_comm; /* part of a step */
    double utilisation;  /* part of a step that is compute, at least */
    double memory;       /* part that a rank's may grow by in 128 rows */
    double descriptors;  /* how many more of them */
    /* Run by sh for each alarm, with rule, step and words as $1, $2, $3; borrowed; NULL: none. */
    const char *command;
};
void hd__metrics_set_watch(struct hd__metrics *metrics, const struct hd__watch_config *config);

/* For sinks of a machine whose ranks log nothing (HD_METRICS_EACH_MACHINE): without a file, and without rows. */
struct hd__metrics *hd__metrics_open_machine(int64_t resumed);

struct hd__metrics_sink_config {
    const char *name; /* for messages; copied */
    const struct hd_metrics_ops *ops;
    const void *settings;
    const struct hd_host *host;
    const char *job;
    int64_t steps;   /* the last step */
    double patience; /* timeout in seconds of closing it; 0 means 10 */
};

/* Opens a sink, which gets every step from then on. Returns the plug-in's error. */
int32_t hd__metrics_add_sink(struct hd__metrics *metrics, const struct hd__metrics_sink_config *config,
                             struct hd_error *err);
/* After all sinks: cuts the file or sets it aside, and writes the first line. */
int32_t hd__metrics_begin(struct hd__metrics *metrics, struct hd_error *err);

/* Appends a line to the file, prints the step (one live line on a terminal, a plain line elsewhere), queues it to
 * the sinks. */
void hd__metrics_log_step(struct hd__metrics *metrics, const struct hd__metrics_row *row);
/* Appends an object with "event" and "step"; the run's id is added. Takes the reference; no metrics: dropped. */
void hd__metrics_log_event(struct hd__metrics *metrics, json_t *event);
void hd__metrics_close(struct hd__metrics *metrics); /* NULL is fine */

int64_t hd__metrics_resident_bytes(void); /* of this process */
int64_t hd__metrics_open_files(void);     /* its descriptors */

/* Said of an MFU above HD__MFU_DOUBTED. */
#define HD__MFU_DOUBTED 1.05
#define HD__MFU_WORDS                                                                             \
    "mfu is above 100 %: the device does more than what is taken for its peak, which device cpu " \
    "measures at the start, too low where other programs run then: compare tokens/s instead"

#endif
