#include "service/metrics/watch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double hd__watch_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

size_t hd__watch_newest(const double *ring, uint64_t count, uint64_t skip, uint64_t n, double *out)
{
    uint64_t kept = HD__MIN(count, (uint64_t)HD__WATCH_ROWS);
    n = kept > skip ? HD__MIN(n, kept - skip) : 0;
    for (uint64_t i = 0; i < n; i++)
        out[i] = ring[(count - skip - 1 - i) % HD__WATCH_ROWS];
    return (size_t)n;
}

const char *hd__watch_rule_name(int32_t rule)
{
    static const char *const names[] = {
#define RULE_NAME(constant, name) #name,
        HD__WATCH_RULES(RULE_NAME)
#undef RULE_NAME
    };
    return names[rule];
}

double hd__watch_limit(const struct hd__watch_config *config, int32_t rule)
{
    static const size_t at[] = {
#define RULE_AT(constant, name) offsetof(struct hd__watch_config, name),
        HD__WATCH_RULES(RULE_AT)
#undef RULE_AT
    };
    return *(const double *)((const char *)config + at[rule]);
}

/* Median and standard deviation of the losses before this one; the deviation by the median of the distances, 1.4826 of
 * which are one of a normal distribution, and not below a hundredth of the loss. */
static int loss_limit(const struct hd__watch *w, double *limit)
{
    double values[HD__WATCH_ROWS], middle;
    size_t n = hd__watch_newest(w->loss, w->rows, 0, HD__WATCH_ROWS, values);
    if (n < HD__WATCH_LEAST)
        return 0;
    middle = hd__watch_median(values, n);
    for (size_t i = 0; i < n; i++)
        values[i] = fabs(values[i] - middle);
    *limit = middle + w->config.loss_spike * HD__MAX(1.4826 * hd__watch_median(values, n), 0.01 * fabs(middle));
    return 1;
}

static int norm_limit(const struct hd__watch *w, double *limit)
{
    double values[HD__WATCH_ROWS];
    size_t n = hd__watch_newest(w->norm, w->norms, 0, HD__WATCH_ROWS, values);
    if (n < HD__WATCH_LEAST)
        return 0;
    *limit = w->config.grad_norm * hd__watch_median(values, n);
    return 1;
}

static int rate_limit(const struct hd__watch *w, double *now, double *limit)
{
    double values[HD__WATCH_ROWS];
    size_t n = hd__watch_newest(w->rate, w->rows, HD__WATCH_RECENT, HD__WATCH_ROWS, values);
    if (n < HD__WATCH_LEAST)
        return 0;
    *limit = (1 - w->config.throughput) * hd__watch_median(values, n);
    *now = hd__watch_median(values, hd__watch_newest(w->rate, w->rows, 0, HD__WATCH_RECENT, values));
    return 1;
}

struct hd__alarm *hd__watch_raise(struct hd__watch *w, int32_t rule, int beyond, int64_t step, double value,
                                  double limit, struct hd__alarm *alarm)
{
    int is_new = beyond && !w->raised[rule];
    w->raised[rule] = beyond;
    if (!is_new)
        return NULL;
    w->total[rule]++;
    *alarm = (struct hd__alarm){.rule = hd__watch_rule_name(rule), .step = step, .value = value, .limit = limit};
    return alarm;
}

uint32_t hd__watch_step(struct hd__watch *w, const struct hd__metrics_row *r, struct hd__alarm alarms[HD__WATCH_ALARMS])
{
    const struct hd__watch_config *c = &w->config;
    struct hd__alarm *alarm;
    double limit, now;
    uint32_t n = 0;
    if (c->loss_spike > 0 && loss_limit(w, &limit) &&
        (alarm = hd__watch_raise(w, HD__WATCH_LOSS_SPIKE, r->loss > limit, r->step, r->loss, limit, &alarms[n]))) {
        snprintf(alarm->words, sizeof alarm->words,
                 "the loss is %.4g, above %.4g, the limit by the rows before: look at the data of this step, or lower "
                 "optimizer.lr",
                 r->loss, limit);
        n++;
    }
    if (c->grad_norm > 0 && isfinite(r->grad_norm) && norm_limit(w, &limit) &&
        (alarm =
             hd__watch_raise(w, HD__WATCH_GRAD_NORM, r->grad_norm > limit, r->step, r->grad_norm, limit, &alarms[n]))) {
        snprintf(alarm->words, sizeof alarm->words,
                 "the gradient norm is %.4g, above %.4g, %g times the median: look at the data of this step; "
                 "optimizer.clip bounds it",
                 r->grad_norm, limit, c->grad_norm);
        n++;
    }
    w->loss[w->rows % HD__WATCH_ROWS] = r->loss;
    w->rate[w->rows++ % HD__WATCH_ROWS] = r->tokens_per_s;
    if (isfinite(r->grad_norm))
        w->norm[w->norms++ % HD__WATCH_ROWS] = r->grad_norm;
    if (c->throughput > 0 && rate_limit(w, &now, &limit) &&
        (alarm = hd__watch_raise(w, HD__WATCH_THROUGHPUT, now < limit, r->step, now, limit, &alarms[n]))) {
        snprintf(
            alarm->words, sizeof alarm->words,
            "the median of %d rows is %.0f tokens/s, more than %g%% below that of the rows before: look at what else "
            "runs there, and at clocks and temperatures",
            HD__WATCH_RECENT, now, 100 * c->throughput);
        n++;
    }
    return n + hd__watch_ranks(w, r, alarms + n);
}

void hd__watch_finish(struct hd__watch *w)
{
    free(w->ranks);
    w->ranks = NULL;
}
