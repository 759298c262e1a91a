/* service/metrics/watch: alarms of a run, from the rows that rank 0 logs.
 *
 * A rule compares a row with those before it, by medians: a single slow or odd step moves none of them. It raises an
 * alarm where its limit is passed, and again only after a row within the limit. */
#ifndef HD_SERVICE_METRICS_WATCH_H
#define HD_SERVICE_METRICS_WATCH_H

#include "service/metrics/metrics.h"

/* X(constant, name): the name is that of the key in `watch` */
#define HD__WATCH_RULES(X)                \
    X(HD__WATCH_LOSS_SPIKE, "loss_spike") \
    X(HD__WATCH_GRAD_NORM, "grad_norm")   \
    X(HD__WATCH_THROUGHPUT, "throughput")
enum {
#define HD__WATCH_ENUM(constant, name) constant,
    HD__WATCH_RULES(HD__WATCH_ENUM)
#undef HD__WATCH_ENUM
        HD__WATCH_RULE_COUNT
};

/* Rows before the one that is looked at: as few as WATCH_LEAST, and the newest WATCH_ROWS. Throughput compares the
 * newest WATCH_RECENT with as many as there are before them, at least WATCH_LEAST. */
enum { HD__WATCH_ROWS = 128, HD__WATCH_LEAST = 32, HD__WATCH_RECENT = 16 };

struct hd__alarm {
    const char *rule;
    int64_t step;
    double value, limit;
    char words[160];
};

struct hd__watch {
    struct hd__watch_config config;
    double loss[HD__WATCH_ROWS], norm[HD__WATCH_ROWS], rate[HD__WATCH_ROWS]; /* rings; norm: finite ones alone */
    uint64_t rows, norms;
    int32_t raised[HD__WATCH_RULE_COUNT]; /* the last row was beyond the limit */
    int64_t total[HD__WATCH_RULE_COUNT];  /* alarms so far */
};

const char *hd__watch_rule_name(int32_t rule);
/* Looks at a row, then remembers it. Returns the alarms. */
uint32_t hd__watch_step(struct hd__watch *watch, const struct hd__metrics_row *row,
                        struct hd__alarm alarms[HD__WATCH_RULE_COUNT]);

#endif
