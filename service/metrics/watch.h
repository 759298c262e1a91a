/* service/metrics/watch: alarms of a run, from the rows that rank 0 logs.
 *
 * A rule compares a row with those before it, by medians: a single slow or odd step moves none of them. It raises an
 * alarm where its limit is passed, and again only after a row within the limit. Rules of ranks (watch_ranks.c) read the
 * numbers of all of them. */
#ifndef HD_SERVICE_METRICS_WATCH_H
#define HD_SERVICE_METRICS_WATCH_H

#include "service/metrics/metrics.h"

/* X(constant, name): the name is that of the key in `watch`, and of the limit in struct hd__watch_config */
#define HD__WATCH_RULES(X)                  \
    X(HD__WATCH_LOSS_SPIKE, loss_spike)     \
    X(HD__WATCH_GRAD_NORM, grad_norm)       \
    X(HD__WATCH_THROUGHPUT, throughput)     \
    X(HD__WATCH_STRAGGLER, straggler)       \
    X(HD__WATCH_DATA_WAIT, data_wait)       \
    X(HD__WATCH_EXPOSED_COMM, exposed_comm) \
    X(HD__WATCH_UTILISATION, utilisation)   \
    X(HD__WATCH_MEMORY, memory)             \
    X(HD__WATCH_DESCRIPTORS, descriptors)
enum {
#define HD__WATCH_ENUM(constant, name) constant,
    HD__WATCH_RULES(HD__WATCH_ENUM)
#undef HD__WATCH_ENUM
        HD__WATCH_RULE_COUNT
};

/* Rows before the one that is looked at: as few as WATCH_LEAST, and the newest WATCH_ROWS. Throughput compares the
 * newest WATCH_RECENT with as many as there are before them, at least WATCH_LEAST. */
enum { HD__WATCH_ROWS = 128, HD__WATCH_LEAST = 32, HD__WATCH_RECENT = 16 };
/* Rows before a straggler may be named. */
enum { HD__WATCH_FIRST = 8 };

struct hd__alarm {
    const char *rule;
    int64_t step;
    int32_t rank, reserved;
    double value, limit;
    char words[256];
};

struct hd__watch_rank {
    double ratio;  /* its compute over the median of the others of its stage, less 1 */
    double excess; /* a cumulated sum of these: watch_ranks.c */
    double sum;    /* of the ratios since the excess was 0, */
    uint64_t rows; /* and how many */
    int32_t raised, reserved;
    double memory[HD__WATCH_ROWS], files[HD__WATCH_ROWS]; /* rings */
};

struct hd__watch {
    struct hd__watch_config config;
    double loss[HD__WATCH_ROWS], norm[HD__WATCH_ROWS], rate[HD__WATCH_ROWS]; /* rings; norm: finite ones alone */
    double share[3][HD__WATCH_ROWS]; /* parts of a step: data_wait, exposed_comm, compute */
    double change[HD__WATCH_ROWS];   /* median change of a ratio from row to row */
    uint64_t rows, norms, rank_rows;
    int32_t raised[HD__WATCH_RULE_COUNT]; /* the last row was beyond the limit */
    int64_t total[HD__WATCH_RULE_COUNT];  /* alarms so far */
    struct hd__watch_rank *ranks;         /* NULL: no row had numbers of ranks yet */
    int32_t n_ranks, reserved;
};

/* Alarms of one row, at most: of a straggler one, however many there are. */
enum { HD__WATCH_ALARMS = HD__WATCH_RULE_COUNT };

const char *hd__watch_rule_name(int32_t rule);
double hd__watch_limit(const struct hd__watch_config *config, int32_t rule); /* 0: the rule is off */
/* Looks at a row, then remembers it. Returns the alarms. */
uint32_t hd__watch_step(struct hd__watch *watch, const struct hd__metrics_row *row,
                        struct hd__alarm alarms[HD__WATCH_ALARMS]);
void hd__watch_finish(struct hd__watch *watch);

/* ---- between watch.c and watch_ranks.c */

/* The alarm where the limit is newly passed; NULL: there is none. */
struct hd__alarm *hd__watch_raise(struct hd__watch *watch, int32_t rule, int beyond, int64_t step, double value,
                                  double limit, struct hd__alarm *alarm);
double hd__watch_median(double *values, size_t n); /* sorts them */
/* The newest `n` values but the newest `skip`, of a ring that has had `count`; at most as many as there are. */
size_t hd__watch_newest(const double *ring, uint64_t count, uint64_t skip, uint64_t n, double *out);
uint32_t hd__watch_ranks(struct hd__watch *watch, const struct hd__metrics_row *row, struct hd__alarm *alarms);

#endif
