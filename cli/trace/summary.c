/* Summing up the events of a trace. */
#include "cli/trace/summary.h"

#include <math.h>
#include <stdlib.h>

#include "service/metrics/watch.h"
#include "service/report/json_fields.h"

struct model_span { /* of one rank's step: from the first instruction of the model to the last */
    double first, last, work;
    int64_t rank, step;
};

struct sums {
    const json_t *kinds;
    struct hd__trace_summary *s;
    HD__ARRAY(struct model_span) spans;
};

static int64_t integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static struct hd__trace_rank_row *rank_row(struct hd__trace_summary *s, int64_t rank)
{
    for (uint32_t k = 0; k < s->ranks.count; k++)
        if (s->ranks.at[k].rank == rank)
            return &s->ranks.at[k];
    return NULL;
}

typedef HD__ARRAY(struct hd__trace_row) rows;

static struct hd__trace_row *row_of(void *array, const char *name)
{
    rows *all = array;
    struct hd__trace_row row = {.predicted = NAN};
    for (uint32_t k = 0; k < all->count; k++)
        if (!strcmp(all->at[k].name, name))
            return &all->at[k];
    snprintf(row.name, sizeof row.name, "%s", name);
    hd__push(all, row);
    return &all->at[all->count - 1];
}

/* ---- prediction */

/* The one whose rates count; -1: of none. */
static int32_t axis_of(const char *axes)
{
    int32_t axis = 0;
    while (axis < HD_AXIS_COUNT - 1 && (strncmp(axes, hd__axis_name(axis), strlen(hd__axis_name(axis))) != 0 ||
                                        !strchr(".", axes[strlen(hd__axis_name(axis))])))
        axis++;
    return *axes ? axis : -1;
}

/* Rates of axes along which nothing was sent; of dp both parts. */
static int32_t check_axes(const json_t *kinds, const struct hd__sim_rates *rates, struct hd_error *err)
{
    uint32_t used = 0, idle;
    size_t i;
    json_t *kind;
    json_array_foreach(kinds, i, kind)
    {
        int32_t axis = axis_of(hd__json_word(kind, "axes"));
        used |= axis < 0 ? 0 : HD_AXIS_BIT(axis);
    }
    idle = rates->named & ~(used & HD__DP_AXES ? used | HD__DP_AXES : used);
    return idle ? hd_fail(err, HD_E_INVALID, "--rates: nothing is sent along %s in this trace%s%s: leave its rates out",
                          hd__axes(idle), used ? ", but along " : "", used ? hd__axes(used) : "")
                : HD_OK;
}

/* As the timeline of `heddle explain`: analysis/sim/simulate.h. */
static double predict(const json_t *kind, const struct hd__sim_rates *r)
{
    int32_t axis = axis_of(hd__json_word(kind, "axes"));
    if (axis < 0)
        return r->kernel +
               HD__MAX(hd__json_number(kind, "flops") / r->flops, hd__json_number(kind, "bytes") / r->memory);
    return r->latency[axis] + hd__json_number(kind, "sent") / r->link[axis];
}

/* ---- events */

static void add_to_span(struct sums *all, int64_t rank, int64_t step, double at, double seconds)
{
    struct model_span *span = all->spans.count ? &all->spans.at[all->spans.count - 1] : NULL;
    if (!span || span->rank != rank || span->step != step) {
        hd__push(&all->spans, ((struct model_span){.first = at, .rank = rank, .step = step}));
        span = &all->spans.at[all->spans.count - 1];
    }
    span->last = at + seconds;
    span->work += seconds;
}

static void add_step(struct hd__trace_summary *s, struct hd__trace_rank_row *rank, int64_t step, double seconds)
{
    rank->step += seconds;
    s->first = s->first ? HD__MIN(s->first, step) : step;
    s->last = HD__MAX(s->last, step);
}

/* Waits are communication that compute waited for; a transfer itself runs beside it. */
static void add_instruction(struct sums *all, const json_t *event, struct hd__trace_rank_row *rank, double seconds)
{
    const json_t *args = json_object_get(event, "args");
    const json_t *kind = json_array_get(all->kinds, (size_t)integer(args, "kind"));
    const char *category = hd__json_word(event, "cat"), *axes = hd__json_word(kind, "axes");
    int is_compute = integer(event, "tid") == rank->thread, is_feed = !strcmp(hd__json_word(event, "name"), "feed");
    if (!strcmp(category, "start"))
        return;
    if (!strcmp(category, "wait")) {
        rank->exposed += *axes ? seconds : 0;
        row_of(&all->s->axes, *axes ? axes : "copies")->seconds += seconds;
        return;
    }
    struct hd__trace_row *row = row_of(&all->s->kinds, hd__json_word(kind, "name"));
    row->seconds += seconds;
    row->calls++;
    row->is_comm = !is_compute;
    row->predicted = isnan(row->predicted) ? 0 : row->predicted;
    if (!is_compute)
        return;
    *(is_feed ? &rank->feed : &rank->compute) += seconds;
    row_of(&all->s->blocks, *hd__json_word(args, "block") ? hd__json_word(args, "block") : "(no block)")->seconds +=
        seconds;
    if (strcmp(category, "O") != 0 && !is_feed)
        add_to_span(all, rank->rank, integer(args, "step"), 1e-6 * hd__json_number(event, "ts"), seconds);
}

static void add_event(struct sums *all, const json_t *event, const struct hd__sim_rates *rates)
{
    const char *phase = hd__json_word(event, "ph");
    const json_t *args = json_object_get(event, "args");
    struct hd__trace_rank_row *rank = rank_row(all->s, integer(event, "pid"));
    double seconds = 1e-6 * hd__json_number(event, "dur");
    if (!rank)
        return;
    if (!strcmp(phase, "s") && strcmp(hd__json_word(event, "name"), "send") != 0) {
        rank->last++;
        all->s->collectives++;
    }
    if (!strcmp(hd__json_word(event, "name"), "thread_name") && !strcmp(hd__json_word(args, "name"), "compute"))
        rank->thread = integer(event, "tid");
    if (strcmp(phase, "X") != 0)
        return;
    if (!strcmp(hd__json_word(event, "cat"), "step")) {
        add_step(all->s, rank, integer(args, "step"), seconds);
        return;
    }
    add_instruction(all, event, rank, seconds);
    const json_t *kind = json_array_get(all->kinds, (size_t)integer(args, "kind"));
    if (strcmp(hd__json_word(event, "cat"), "wait") != 0 && strcmp(hd__json_word(event, "cat"), "start") != 0)
        row_of(&all->s->kinds, hd__json_word(kind, "name"))->predicted += predict(kind, rates);
}

/* ---- the whole */

static void find_stragglers(struct hd__trace_summary *s)
{
    double *others = hd__alloc((s->ranks.count + 1) * sizeof *others);
    for (uint32_t k = 0; k < s->ranks.count; k++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < s->ranks.count; j++)
            if (j != k && s->ranks.at[j].stage == s->ranks.at[k].stage)
                others[n++] = s->ranks.at[j].compute;
        s->ranks.at[k].straggles = n && s->ranks.at[k].compute > 1.1 * hd__watch_median(others, n);
    }
    free(others);
}

static int slower_first(const void *a, const void *b)
{
    double x = ((const struct hd__trace_row *)a)->seconds, y = ((const struct hd__trace_row *)b)->seconds;
    return (x < y) - (x > y);
}

static void per_step(void *array, double n)
{
    rows *all = array;
    for (uint32_t k = 0; k < all->count; k++) {
        all->at[k].seconds /= n;
        all->at[k].calls /= n;
        all->at[k].predicted /= n;
    }
    hd__sort(all, slower_first);
}

static void finish(struct sums *all)
{
    struct hd__trace_summary *s = all->s;
    double ranks = (double)s->ranks.count;
    s->steps = (double)(s->last - s->first + 1);
    for (uint32_t k = 0; k < s->ranks.count; k++) {
        struct hd__trace_rank_row *r = &s->ranks.at[k];
        double span = 0, work = 0;
        for (uint32_t j = 0; j < all->spans.count; j++)
            if (all->spans.at[j].rank == r->rank) {
                span += all->spans.at[j].last - all->spans.at[j].first;
                work += all->spans.at[j].work;
            }
        r->bubble = span > 0 ? 1 - work / span : 0;
        r->compute /= s->steps;
        r->exposed /= s->steps;
        r->feed /= s->steps;
        r->step /= s->steps;
        s->step += r->step / ranks;
    }
    per_step(&s->kinds, s->steps * ranks);
    per_step(&s->blocks, s->steps * ranks);
    per_step(&s->axes, s->steps * ranks);
    find_stragglers(s);
}

int32_t hd__trace_sum_up(const json_t *trace, const struct hd__sim_rates *rates, struct hd__trace_summary *out,
                         struct hd_error *err)
{
    const json_t *about = json_object_get(trace, "otherData"), *events = json_object_get(trace, "traceEvents"), *one;
    struct sums all = {.kinds = json_object_get(about, "kinds"), .s = out};
    size_t i;
    *out = (struct hd__trace_summary){.job = hd__json_word(about, "job"), .stages = integer(about, "stages")};
    if (!integer(about, "measured") || !json_is_array(events) || !json_is_array(all.kinds))
        return hd_fail(err, HD_E_INVALID, "not a trace that metrics.trace of a job wrote");
    if (check_axes(all.kinds, rates, err))
        return err->code;
    json_array_foreach(json_object_get(about, "ranks"), i, one) hd__push(
        &out->ranks, ((struct hd__trace_rank_row){.rank = integer(one, "rank"), .stage = integer(one, "stage")}));
    json_array_foreach(events, i, one) add_event(&all, one, rates);
    if (!out->ranks.count || !out->first)
        return hd_fail(err, HD_E_INVALID, "there is no whole step in it");
    finish(&all);
    hd__free_array(&all.spans);
    return HD_OK;
}

void hd__trace_summary_free(struct hd__trace_summary *s)
{
    hd__free_array(&s->kinds);
    hd__free_array(&s->blocks);
    hd__free_array(&s->axes);
    hd__free_array(&s->ranks);
}

/* ---- printing */

static void add_ranks(const struct hd__trace_summary *s, struct hd__text *out)
{
    hd__text_add(out, "\n%5s %5s %11s %11s %9s %9s %7s  %s\n", "rank", "stage", "compute ms", "exposed ms", "feed ms",
                 "step ms", "bubble", "came last");
    for (uint32_t k = 0; k < s->ranks.count; k++) {
        const struct hd__trace_rank_row *r = &s->ranks.at[k];
        hd__text_add(out, "%5lld %5lld %11.3f %11.3f %9.3f %9.3f %6.1f%%  %lld of %lld%s\n", (long long)r->rank,
                     (long long)r->stage, 1e3 * r->compute, 1e3 * r->exposed, 1e3 * r->feed, 1e3 * r->step,
                     100 * r->bubble, (long long)r->last, (long long)s->collectives,
                     r->straggles ? "  straggler: computes more than 10% longer than the others of its stage" : "");
    }
}

static void add_kinds(const struct hd__trace_summary *s, int is_comm, struct hd__text *out)
{
    hd__text_add(out, "\n%7s %9s %8s %10s %12s %6s  %s\n", "share", "ms/step", "calls", "us/call", "predicted us",
                 "ratio", is_comm ? "transfers, beside compute" : "instructions");
    for (uint32_t k = 0; k < s->kinds.count; k++) {
        const struct hd__trace_row *r = &s->kinds.at[k];
        if (r->is_comm == is_comm)
            hd__text_add(out, "%6.1f%% %9.3f %8.1f %10.2f %12.2f %6.2f  %s\n", 100 * r->seconds / s->step,
                         1e3 * r->seconds, r->calls, 1e6 * r->seconds / r->calls, 1e6 * r->predicted / r->calls,
                         r->seconds / r->predicted, r->name);
    }
}

void hd__trace_summary_text(const struct hd__trace_summary *s, struct hd__text *out)
{
    hd__text_add(out, "trace of %s: steps %lld to %lld on %u rank%s, %.3f ms a step\n", s->job, (long long)s->first,
                 (long long)s->last, s->ranks.count, s->ranks.count == 1 ? "" : "s", 1e3 * s->step);
    add_ranks(s, out);
    hd__text_add(out, "\nexposed communication by axis, of the mean rank\n");
    for (uint32_t k = 0; k < s->axes.count; k++)
        hd__text_add(out, "%6.1f%% %9.3f ms  %s\n", 100 * s->axes.at[k].seconds / s->step, 1e3 * s->axes.at[k].seconds,
                     s->axes.at[k].name);
    hd__text_add(out, "%s\nblocks\n", s->axes.count ? "" : "   none\n");
    for (uint32_t k = 0; k < s->blocks.count; k++)
        hd__text_add(out, "%6.1f%% %9.3f ms  %s\n", 100 * s->blocks.at[k].seconds / s->step,
                     1e3 * s->blocks.at[k].seconds, s->blocks.at[k].name);
    add_kinds(s, 0, out);
    for (uint32_t k = 0; k < s->kinds.count; k++)
        if (s->kinds.at[k].is_comm) {
            add_kinds(s, 1, out);
            break;
        }
}

static json_t *rows_json(const void *array, double step)
{
    const rows *all = array;
    json_t *out = json_array();
    for (uint32_t k = 0; k < all->count; k++) {
        const struct hd__trace_row *r = &all->at[k];
        json_t *row = json_pack("{s:s,s:f,s:f}", "name", r->name, "seconds", r->seconds, "share", r->seconds / step);
        if (r->calls > 0)
            json_object_update_new(row, json_pack("{s:f,s:f,s:b}", "calls", r->calls, "predicted_seconds", r->predicted,
                                                  "transfer", r->is_comm));
        json_array_append_new(out, row);
    }
    return out;
}

json_t *hd__trace_summary_json(const struct hd__trace_summary *s)
{
    json_t *ranks = json_array();
    for (uint32_t k = 0; k < s->ranks.count; k++) {
        const struct hd__trace_rank_row *r = &s->ranks.at[k];
        json_array_append_new(ranks, json_pack("{s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:b}", "rank", (json_int_t)r->rank,
                                               "stage", (json_int_t)r->stage, "compute_s", r->compute, "exposed_comm_s",
                                               r->exposed, "feed_s", r->feed, "step_s", r->step, "bubble", r->bubble,
                                               "came_last", (json_int_t)r->last, "straggler", r->straggles));
    }
    return json_pack("{s:s,s:I,s:I,s:f,s:I,s:o,s:o,s:o,s:o}", "job", s->job, "first", (json_int_t)s->first, "last",
                     (json_int_t)s->last, "step_s", s->step, "collectives", (json_int_t)s->collectives, "ranks", ranks,
                     "axes", rows_json(&s->axes, s->step), "blocks", rows_json(&s->blocks, s->step), "instructions",
                     rows_json(&s->kinds, s->step));
}
