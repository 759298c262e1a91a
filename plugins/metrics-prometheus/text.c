#include "text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const double step_bounds[STEP_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                          1,     2.5,    5,     10,   25,    50,   100, 250,  500};

enum { COUNTER, GAUGE, HISTOGRAM };
enum { STEP, STEP_SECONDS = 5 };

/* A metric called `metric`, or with a label `metric` and the label's value, is a sample of the family. */
static const struct family {
    const char *name, *metric, *label, *help;
    int32_t type, positive; /* positive: 0 says that the value is unknown */
} families[FAMILIES] = {
    {"heddle_step", NULL, NULL, "Last step of the run that was logged.", GAUGE, 0},
    {"heddle_loss", "loss", NULL, "Mean loss over the tokens of the last logged step, in nats.", GAUGE, 0},
    {"heddle_tokens_total", "tokens", NULL, "Tokens trained on since the run began, over all resumptions.", COUNTER, 0},
    {"heddle_tokens_per_second", "tokens_per_s", NULL, "Throughput of the last logged step, over all ranks.", GAUGE, 0},
    {"heddle_mfu_ratio", "mfu", NULL, "Model FLOPs utilization of the last logged step, 0 to 1.", GAUGE, 1},
    {"heddle_step_seconds", "step_s", NULL, "Duration of the logged steps of this process.", HISTOGRAM, 0},
    {"heddle_exposed_comm_seconds", "comm_s_", "axis", "Communication that compute waited for, a step: the mean rank.",
     GAUGE, 0},
    {"heddle_rank_compute_seconds", "compute_s_", "rank", "Seconds that a rank computed, a step.", GAUGE, 0},
    {"heddle_alarms_total", "alarms_", "rule", "Alarms that this process has raised.", COUNTER, 0},
};

static void add_sample(struct values *v, int32_t family, const char *label, double value)
{
    int32_t at = 0;
    while (at < v->n_samples && (v->samples[at].family != family || strcmp(v->samples[at].label, label)))
        at++;
    if (at == SAMPLES_MAX)
        return;
    v->n_samples += at == v->n_samples;
    v->samples[at].family = family;
    v->samples[at].value = value;
    snprintf(v->samples[at].label, sizeof v->samples[at].label, "%s", label);
}

static void observe_step(struct values *v, double seconds)
{
    int32_t at = 0;
    if (!isfinite(seconds))
        return;
    while (at < STEP_BUCKETS && seconds > step_bounds[at])
        at++;
    v->step_count[at]++;
    v->step_sum += seconds;
}

void values_start(struct values *v, int64_t step)
{
    add_sample(v, STEP, "", (double)step);
}

void values_set(struct values *v, const struct hd_metrics_record *record)
{
    add_sample(v, STEP, "", (double)record->step);
    for (size_t i = 0; i < record->count; i++) {
        const struct hd_metric *x = hd_metric_at(record, i);
        for (int32_t f = 1; f < FAMILIES; f++) {
            const struct family *family = &families[f];
            size_t n = strlen(family->metric);
            if (family->label ? strncmp(x->name, family->metric, n) || !x->name[n] : strcmp(x->name, family->metric))
                continue;
            if (family->type == HISTOGRAM)
                observe_step(v, x->number);
            else if (!family->positive || x->number > 0)
                add_sample(v, f, family->label ? x->name + n : "", x->number);
        }
    }
}

/* The format's own words for what is not finite. */
static void print_number(FILE *out, double x)
{
    if (isnan(x))
        fprintf(out, "NaN\n");
    else if (isinf(x))
        fprintf(out, x > 0 ? "+Inf\n" : "-Inf\n");
    else
        fprintf(out, "%.15g\n", x);
}

static void print_head(FILE *out, const struct family *family)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name, types[family->type]);
}

static void print_steps(FILE *out, const struct values *v)
{
    const char *name = families[STEP_SECONDS].name;
    uint64_t count = 0;
    print_head(out, &families[STEP_SECONDS]);
    for (int i = 0; i < STEP_BUCKETS; i++)
        fprintf(out, "%s_bucket{le=\"%g\"} %llu\n", name, step_bounds[i],
                (unsigned long long)(count += v->step_count[i]));
    count += v->step_count[STEP_BUCKETS];
    fprintf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum ", name, (unsigned long long)count, name);
    print_number(out, v->step_sum);
    fprintf(out, "%s_count %llu\n", name, (unsigned long long)count);
}

char *values_text(const struct values *v, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (!out)
        return NULL;
    for (int32_t f = 0; f < FAMILIES; f++) {
        int32_t printed = 0;
        if (f == STEP_SECONDS)
            print_steps(out, v);
        for (int32_t i = 0; i < v->n_samples; i++) {
            if (v->samples[i].family != f)
                continue;
            if (!printed++)
                print_head(out, &families[f]);
            fprintf(out, "%s", families[f].name);
            if (families[f].label)
                fprintf(out, "{%s=\"%s\"}", families[f].label, v->samples[i].label);
            fputc(' ', out);
            print_number(out, v->samples[i].value);
        }
    }
    if (!fclose(out))
        return text;
    free(text);
    return NULL;
}
