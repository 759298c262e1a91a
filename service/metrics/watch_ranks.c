/* Rules of all ranks: a straggler, waits, memory and descriptors that grow. */
#include <math.h>
#include <stdlib.h>

#include "service/metrics/internal.h"

enum { DATA, COMM, COMPUTE }; /* hd__watch.share */

/* ---- a straggler
 *
 * Page's cumulated sum (Biometrika 41, 1954) of how much longer a rank computes than the median of the others of
 * its stage, less 0.65 of the limit: that is 0 where it does not, and grows by 0.35 limits a row where it is slower
 * by the limit, and by no more than 0.65, so no moment raises an alarm: 3.5 limits do, 10 rows of a rank at the
 * limit. A walk with drift -d and deviation s gets above h with a probability of exp(-2 d h / s^2): e^-18 where the
 * limit is two deviations of a ratio from row to row. Where they are noisier, that is the limit, up to 0.3, and
 * above 0.5 less 0.2: a walk whose drift is half of what is looked for gets there soonest, and goes so far up that
 * it is e^-15. The mean of those rows has to be near the limit, too: a rank that is slower by less adds up in time. */

static int by_compute(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

/* Pairs (compute, rank) of a stage's ranks, sorted: the ratio of each to the median of the others. */
static void set_ratios(struct hd__watch *w, const double (*of)[2], int32_t n)
{
    for (int32_t k = 0; k < n; k++) {
        int32_t others = n - 1, low = (others - 1) / 2, high = others / 2; /* without k */
        double median = (of[low + (low >= k)][0] + of[high + (high >= k)][0]) / 2;
        w->ranks[(int32_t)of[k][1]].ratio = median > 0 ? of[k][0] / median - 1 : 0;
    }
}

static void find_ratios(struct hd__watch *w, const struct hd__metrics_row *row)
{
    double(*of)[2] = hd__alloc((size_t)row->n_ranks * sizeof *of);
    int32_t done = 0;
    for (int32_t stage = 0; done < row->n_ranks && stage < row->n_ranks; stage++) {
        int32_t n = 0;
        for (int32_t r = 0; r < row->n_ranks; r++)
            if ((int32_t)hd__metrics_of_rank(row, r, HD__RANK_STAGE) == stage) {
                of[n][0] = hd__metrics_of_rank(row, r, HD__RANK_COMPUTE);
                of[n++][1] = r;
            }
        qsort(of, (size_t)n, sizeof *of, by_compute);
        done += n;
        if (n > 1)
            set_ratios(w, (const double(*)[2])of, n);
        else if (n)
            w->ranks[(int32_t)of[0][1]].ratio = 0;
    }
    free(of);
}

/* The deviation of a ratio from row to row, of the median rank and row. */
static double noise(const struct hd__watch *w)
{
    double values[HD__WATCH_ROWS];
    size_t n = hd__watch_newest(w->change, w->rank_rows, 0, HD__WATCH_ROWS, values);
    return n ? 1.4826 * hd__watch_median(values, n) / sqrt(2) : 0;
}

/* `wide`: two deviations, or the limit. */
static void add_ratio(struct hd__watch_rank *r, double limit, double wide)
{
    r->excess = fmax(0, r->excess + fmin(0.65 * wide, fmax(-wide, r->ratio - 0.65 * limit)));
    r->sum = r->excess > 0 ? r->sum + r->ratio : 0;
    r->rows = r->excess > 0 ? r->rows + 1 : 0;
}

static uint32_t find_straggler(struct hd__watch *w, const struct hd__metrics_row *row, struct hd__alarm *alarm)
{
    /* wider while the noise is not known well */
    double wide = fmax(w->config.straggler, 2 * noise(w) * (1 + 4 / (double)w->rank_rows)),
           limit = fmin(wide, fmax(w->config.straggler, fmax(0.3, wide - 0.2))),
           most = fmax(3.5 * limit, 3 * wide * wide / limit);
    const struct hd__watch_rank *worst = NULL;
    for (int32_t k = 0; k < w->n_ranks; k++) {
        struct hd__watch_rank *r = &w->ranks[k];
        int beyond;
        add_ratio(r, limit, wide);
        r->excess = fmin(r->excess, 2 * most); /* to come back in time */
        beyond = r->excess > most && w->rank_rows >= HD__WATCH_FIRST && r->sum > 0.75 * limit * (double)r->rows;
        if (beyond && !r->raised && (!worst || r->excess > worst->excess))
            worst = r;
        r->raised = beyond || (r->raised && r->excess > most / 2);
    }
    if (!worst)
        return 0;
    *alarm = (struct hd__alarm){.rule = hd__watch_rule_name(HD__WATCH_STRAGGLER),
                                .step = row->step,
                                .rank = (int32_t)(worst - w->ranks),
                                .value = worst->sum / (double)worst->rows,
                                .limit = limit};
    w->total[HD__WATCH_STRAGGLER]++;
    snprintf(alarm->words, sizeof alarm->words,
             "rank %d computes %.0f%% longer than the median of the other ranks%s, waits left out: look at what "
             "else runs on its machine, and at clocks and temperatures; a machine that stays slower can have fewer "
             "micro-batches (data.micro_batches)",
             alarm->rank, 100 * alarm->value,
             hd__metrics_of_rank(row, alarm->rank, HD__RANK_STAGE) > 0 ? " of its stage" : "");
    return 1;
}

/* ---- parts of a step */

static double part_of(const struct hd__metrics_row *row, int32_t rank, int32_t number)
{
    double all = hd__metrics_of_rank(row, rank, HD__RANK_COMPUTE) + hd__metrics_of_rank(row, rank, HD__RANK_COMM_WAIT) +
                 hd__metrics_of_rank(row, rank, HD__RANK_DATA_WAIT);
    return all > 0 ? hd__metrics_of_rank(row, rank, number) / all : 0;
}

/* Data by the rank that waits longest, as all wait for that; the others by the mean rank. */
static int32_t add_shares(struct hd__watch *w, const struct hd__metrics_row *row)
{
    uint64_t at = w->rank_rows % HD__WATCH_ROWS;
    double most = -1;
    int32_t rank = 0;
    for (size_t k = 0; k < HD__COUNT(w->share); k++)
        w->share[k][at] = 0;
    for (int32_t r = 0; r < row->n_ranks; r++) {
        double data = part_of(row, r, HD__RANK_DATA_WAIT);
        w->share[COMM][at] += part_of(row, r, HD__RANK_COMM_WAIT) / row->n_ranks;
        w->share[COMPUTE][at] += part_of(row, r, HD__RANK_COMPUTE) / row->n_ranks;
        rank = data > most ? r : rank;
        most = fmax(data, most);
    }
    w->share[DATA][at] = most;
    return rank;
}

static uint32_t watch_shares(struct hd__watch *w, const struct hd__metrics_row *row, int32_t hungry,
                             struct hd__alarm *alarms)
{
    static const struct {
        int32_t rule, share, least; /* least: an alarm is below the limit */
        const char *words;
    } rules[] = {
        {HD__WATCH_DATA_WAIT, DATA, 0,
         "rank %d waits for data %.0f%% of its time, the median of %d rows: put the data on a faster disk, or tokenize "
         "it before"},
        {HD__WATCH_EXPOSED_COMM, COMM, 0,
         "ranks (%d and others) wait for communication %.0f%% of their time, the median of %d rows: `heddle trace` "
         "shows for which"},
        {HD__WATCH_UTILISATION, COMPUTE, 1,
         "ranks (%d and others) compute %.0f%% of their time, the median of %d rows: `heddle trace` shows the rest"}};
    uint32_t n = 0;
    for (size_t k = 0; k < HD__COUNT(rules); k++) {
        double values[HD__WATCH_ROWS], limit = hd__watch_limit(&w->config, rules[k].rule), now;
        size_t rows = hd__watch_newest(w->share[rules[k].share], w->rank_rows, 0, HD__WATCH_LEAST, values);
        struct hd__alarm *alarm;
        if (limit <= 0 || rows < HD__WATCH_LEAST)
            continue;
        now = hd__watch_median(values, rows);
        alarm = hd__watch_raise(w, rules[k].rule, rules[k].least ? now < limit : now > limit, row->step, now, limit,
                                &alarms[n]);
        if (!alarm)
            continue;
        alarm->rank = rules[k].share == DATA ? hungry : 0;
        snprintf(alarm->words, sizeof alarm->words, rules[k].words, alarm->rank, 100 * now, HD__WATCH_LEAST);
        n++;
    }
    return n;
}

/* ---- growth: the medians of the four quarters of the newest 128 rows grow, together by more than the limit, and each
 * by a share of it: buffers that are touched once, late, are no leak */

static int grows(const double *ring, uint64_t count, double *from, double *to)
{
    enum { LEAST_SHARE = 6 };
    double values[HD__WATCH_ROWS], quarter[4];
    for (uint64_t q = 0; q < 4; q++) {
        size_t n = hd__watch_newest(ring, count, (3 - q) * HD__WATCH_ROWS / 4, HD__WATCH_ROWS / 4, values);
        quarter[q] = hd__watch_median(values, n);
    }
    for (int q = 1; q < 4; q++)
        if (quarter[q] <= quarter[q - 1] || quarter[q] - quarter[q - 1] < (quarter[3] - quarter[0]) / LEAST_SHARE)
            return 0;
    *from = quarter[0];
    *to = quarter[3];
    return 1;
}

static uint32_t watch_growth(struct hd__watch *w, const struct hd__metrics_row *row, int32_t rule,
                             struct hd__alarm *alarm)
{
    enum { LITTLE = 16 << 20 }; /* bytes that no growth of memory is below */
    double limit = hd__watch_limit(&w->config, rule), most = 0, from = 0, to = 0, a, b;
    int memory = rule == HD__WATCH_MEMORY;
    int32_t rank = -1;
    char text[2][32];
    for (int32_t r = 0; r < w->n_ranks && limit > 0; r++) {
        const double *ring = memory ? w->ranks[r].memory : w->ranks[r].files;
        if (!grows(ring, w->rank_rows, &a, &b) || b - a <= (memory ? fmax(limit * a, LITTLE) : limit) || b - a <= most)
            continue;
        most = b - a;
        from = a;
        to = b;
        rank = r;
    }
    if (!hd__watch_raise(w, rule, rank >= 0, row->step, memory ? to / from - 1 : most, limit, alarm))
        return 0;
    alarm->rank = rank;
    if (memory)
        snprintf(
            alarm->words, sizeof alarm->words,
            "the memory of rank %d grew from %s to %s in %d rows: a plug-in or sink may keep something of each step; "
            "restart from a checkpoint before it is full",
            rank, hd__bytes_text((uint64_t)from, text[0]), hd__bytes_text((uint64_t)to, text[1]), HD__WATCH_ROWS);
    else
        snprintf(alarm->words, sizeof alarm->words,
                 "rank %d had %.0f open descriptors and has %.0f, %d rows later: ls -l /proc/PID/fd says of what", rank,
                 from, to, HD__WATCH_ROWS);
    return 1;
}

/* ---- a row */

static void remember(struct hd__watch *w, const struct hd__metrics_row *row)
{
    uint64_t at = w->rank_rows % HD__WATCH_ROWS;
    double *changes = hd__alloc((size_t)w->n_ranks * sizeof *changes);
    for (int32_t r = 0; r < w->n_ranks; r++) {
        changes[r] = w->ranks[r].ratio;
        w->ranks[r].memory[at] = hd__metrics_of_rank(row, r, HD__RANK_RSS);
        w->ranks[r].files[at] = hd__metrics_of_rank(row, r, HD__RANK_FILES);
    }
    find_ratios(w, row);
    for (int32_t r = 0; r < w->n_ranks; r++)
        changes[r] = fabs(w->ranks[r].ratio - changes[r]);
    w->change[at] = w->rank_rows ? hd__watch_median(changes, (size_t)w->n_ranks) : 0;
    free(changes);
}

uint32_t hd__watch_ranks(struct hd__watch *w, const struct hd__metrics_row *row, struct hd__alarm *alarms)
{
    uint32_t n = 0;
    if (!row->ranks || (w->ranks && row->n_ranks != w->n_ranks)) /* the last row of a job that fails */
        return 0;
    if (!w->ranks)
        w->ranks = hd__alloc((size_t)row->n_ranks * sizeof *w->ranks);
    w->n_ranks = row->n_ranks;
    remember(w, row);
    int32_t hungry = add_shares(w, row);
    w->rank_rows++;
    if (w->config.straggler > 0)
        n += find_straggler(w, row, &alarms[n]);
    n += watch_shares(w, row, hungry, &alarms[n]);
    if (w->rank_rows < HD__WATCH_ROWS || w->rank_rows % (HD__WATCH_ROWS / 8)) /* it changes slowly */
        return n;
    n += watch_growth(w, row, HD__WATCH_MEMORY, &alarms[n]);
    return n + watch_growth(w, row, HD__WATCH_DESCRIPTORS, &alarms[n]);
}
