/* Charts of runs: a field against steps, tokens or time. */
#include <math.h>
#include <stdlib.h>

#include "cli/plot.h"
#include "cli/report/report.h"
#include "service/metrics/watch.h"

enum { LEFT = 64, RIGHT = 14, TOP = 34, BOTTOM = 46, WIDE = 1056, HALF = 520, TALL = 360, LOW = 240 };
enum { OVER_STEP, OVER_TOKENS, OVER_TIME };
enum { SMOOTH_FROM = 80, MARKS_MAX = 300 };

struct report_chart {
    const char *field, *also; /* also: drawn with marks, "val_loss" */
    const char *title;
    int unit, from_zero, over, wide, exact; /* exact: without a mean */
};

struct report_drawing {
    const struct hd__report *r;
    const struct report_chart *c;
    struct hd__plot plot;
    double scale, x_scale; /* unit of the axis over that of the field */
    const char *unit, *x_name;
    double beyond; /* the largest value, where it is above the axis; 0: none is */
};

static const double *x_values(const struct hd__report_run *run, int over)
{
    return over == OVER_STEP ? run->step : over == OVER_TOKENS ? run->tokens : run->seconds;
}

/* ---- scales */

struct values {
    HD__ARRAY(double) list;
};

static void collect(const struct hd__report *r, const char *field, struct values *out)
{
    for (uint32_t k = 0; k < r->n && field; k++) {
        const double *values = hd__report_values(&r->runs[k], field);
        for (uint32_t i = 0; values && i < r->runs[k].n_rows; i++)
            if (isfinite(values[i]))
                hd__push(&out->list, values[i]);
    }
}

/* The y axis spans the values; where a few are far above the others it ends at those, and these are said. */
static int scale_y(struct report_drawing *d)
{
    struct values v = {0};
    collect(d->r, d->c->field, &v);
    collect(d->r, d->c->also, &v);
    uint32_t n = v.list.count, any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= v.list.at[i] != 0;
    if (!n || (d->c->from_zero && !any)) { /* as communication of one rank */
        hd__free_array(&v.list);
        return 0;
    }
    double middle = hd__watch_median(v.list.at, n); /* sorts them */
    double lo = v.list.at[0], hi = v.list.at[n - 1], most = v.list.at[n - 1 - n / 50];
    if (n >= 50 && hi - middle > 4 * (most - middle) && most > middle) {
        d->beyond = hi;
        hi = most + 0.3 * (most - lo);
    }
    if (d->c->from_zero)
        lo = fmin(lo, 0);
    d->scale = hd__plot_unit(d->c->unit, fmax(fabs(hi), fabs(lo)), &d->unit);
    double room = hi > lo ? 0.06 * (hi - lo) : fmax(fabs(hi) * 0.1, 1e-9);
    d->plot.y0 = (lo == 0 && d->c->from_zero ? 0 : lo - room) / d->scale;
    d->plot.y1 = (hi + room) / d->scale;
    hd__free_array(&v.list);
    return 1;
}

static int scale_x(struct report_drawing *d)
{
    double hi = 0, lo = INFINITY;
    for (uint32_t k = 0; k < d->r->n; k++) {
        const struct hd__report_run *run = &d->r->runs[k];
        const double *x = x_values(run, d->c->over);
        if (!run->n_rows)
            continue;
        lo = fmin(lo, x[0]);
        hi = fmax(hi, x[run->n_rows - 1]);
    }
    d->x_scale = 1;
    d->x_name = d->c->over == OVER_STEP ? "step" : d->c->over == OVER_TOKENS ? "tokens" : "training time (s)";
    if (d->c->over == OVER_TIME && hi >= 7200) {
        d->x_scale = 3600;
        d->x_name = "training time (h)";
    } else if (d->c->over == OVER_TIME && hi >= 300) {
        d->x_scale = 60;
        d->x_name = "training time (min)";
    }
    lo = lo < hi / 4 ? 0 : lo;
    d->plot.x0 = lo / d->x_scale;
    d->plot.x1 = (hi > lo ? hi : lo + 1) / d->x_scale;
    return hi > 0;
}

static void axes(const struct report_drawing *d)
{
    const struct hd__plot *p = &d->plot;
    char text[64], of[32];
    hd__plot_ticks(p, d->c->wide ? 10 : 5, d->c->wide ? 7 : 4);
    snprintf(text, sizeof text, "%s", d->unit);
    if (d->beyond) {
        snprintf(of, sizeof of, "%.3g", d->beyond / d->scale);
        snprintf(text, sizeof text, "%s%speaks up to %s not shown", d->unit, *d->unit ? "; " : "", of);
    }
    hd__plot_axes(p, d->c->title, text, d->x_name);
}

/* ---- lines */

static void put_point(const struct report_drawing *d, double x, double y)
{
    double at = hd__plot_y(&d->plot, y / d->scale);
    fprintf(d->plot.file, "%.1f,%.1f ", hd__plot_x(&d->plot, x / d->x_scale), fmax(at, d->plot.top));
}

/* At most two points a pixel: the least and the largest of the rows that fall on it, in their order. */
static void put_all(const struct report_drawing *d, const double *x, const double *y, uint32_t n)
{
    for (uint32_t i = 0; i < n;) {
        uint32_t least = i, most = i, to = i;
        double pixel = floor(hd__plot_x(&d->plot, x[i] / d->x_scale));
        for (; to < n && floor(hd__plot_x(&d->plot, x[to] / d->x_scale)) == pixel; to++) {
            if (!isfinite(y[to]))
                continue;
            least = !isfinite(y[least]) || y[to] < y[least] ? to : least;
            most = !isfinite(y[most]) || y[to] > y[most] ? to : most;
        }
        if (isfinite(y[least]))
            put_point(d, x[HD__MIN(least, most)], y[HD__MIN(least, most)]);
        if (least != most)
            put_point(d, x[HD__MAX(least, most)], y[HD__MAX(least, most)]);
        i = to;
    }
}

/* Sum of the finite rows [from, to), and their number: by blocks, where whole ones are inside. No running sum, in which
 * one huge row would cost the others their digits. */
enum { SMOOTH_BLOCK = 256 };
struct block_sum {
    double sum;
    uint32_t count, reserved;
};

static struct block_sum sum_of(const double *y, uint32_t from, uint32_t to, const struct block_sum *blocks)
{
    struct block_sum all = {0};
    while (from < to) {
        int whole = blocks && from % SMOOTH_BLOCK == 0 && to - from >= SMOOTH_BLOCK;
        if (whole) {
            all.sum += blocks[from / SMOOTH_BLOCK].sum;
            all.count += blocks[from / SMOOTH_BLOCK].count;
        } else if (isfinite(y[from])) {
            all.sum += y[from];
            all.count++;
        }
        from += whole ? SMOOTH_BLOCK : 1;
    }
    return all;
}

/* Mean of the rows around each, at most `half` on either side, as many on both: a curve that neither lags nor leads. */
static double *smooth(const double *y, uint32_t n, uint32_t half)
{
    struct block_sum *blocks = hd__alloc((n / SMOOTH_BLOCK + 1) * sizeof *blocks);
    double *out = hd__alloc((n + 1) * sizeof *out);
    for (uint32_t b = 0; b < n / SMOOTH_BLOCK; b++)
        blocks[b] = sum_of(y, b * SMOOTH_BLOCK, (b + 1) * SMOOTH_BLOCK, NULL);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t reach = HD__MIN(HD__MIN(i, n - 1 - i), half);
        struct block_sum around = sum_of(y, i - reach, i + reach + 1, blocks);
        out[i] = around.count ? around.sum / around.count : NAN;
    }
    free(blocks);
    return out;
}

static void draw_line(const struct report_drawing *d, const struct hd__report_run *run, int k)
{
    const double *y = hd__report_values(run, d->c->field), *x = x_values(run, d->c->over);
    int is_noisy = run->n_rows >= SMOOTH_FROM && !d->c->exact;
    if (!y)
        return;
    hd__plot_line(d->plot.file, k, is_noisy ? 1 : 2, is_noisy ? 0.35 : 1, 0);
    put_all(d, x, y, run->n_rows);
    fputs("\"/>\n", d->plot.file);
    if (!is_noisy)
        return;
    double *mean = smooth(y, run->n_rows, run->n_rows / 80);
    hd__plot_line(d->plot.file, k, 2, 1, 0);
    put_all(d, x, mean, run->n_rows);
    fputs("\"/>\n", d->plot.file);
    free(mean);
}

static void draw_marked(const struct report_drawing *d, const struct hd__report_run *run, int k)
{
    FILE *file = d->plot.file;
    const double *y = d->c->also ? hd__report_values(run, d->c->also) : NULL, *x = x_values(run, d->c->over);
    uint32_t n = 0, step;
    for (uint32_t i = 0; y && i < run->n_rows; i++)
        n += isfinite(y[i]);
    step = n / 60 + 1; /* markers apart */
    if (!n)
        return;
    hd__plot_line(file, k, 1.5, 1, 0);
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (isfinite(y[i]))
            put_point(d, x[i], y[i]);
    fputs("\"/>\n", file);
    n = 0;
    for (uint32_t i = 0; i < run->n_rows; i++) {
        if (!isfinite(y[i]) || n++ % step)
            continue;
        fputs("<g class=\"point\">", file);
        hd__plot_mark(file, hd__plot_x(&d->plot, x[i] / d->x_scale),
                      fmax(hd__plot_y(&d->plot, y[i] / d->scale), d->plot.top), k);
        fprintf(file, "<title>%s %.4f at step %.0f</title></g>\n", d->c->also, y[i], run->step[i]);
    }
}

/* ---- events */

static double x_of_step(const struct report_drawing *d, const struct hd__report_run *run, double step)
{
    const double *x = x_values(run, d->c->over);
    uint32_t i = 0;
    while (i + 1 < run->n_rows && run->step[i] < step)
        i++;
    double at = d->c->over == OVER_STEP ? step : run->n_rows ? x[i] : 0;
    return fmin(fmax(hd__plot_x(&d->plot, at / d->x_scale), d->plot.left), d->plot.right);
}

static void draw_event(const struct report_drawing *d, const struct hd__report_run *run, const json_t *event)
{
    const char *is = json_string_value(json_object_get(event, "event"));
    double step = hd__report_event_step(event), x = x_of_step(d, run, step);
    FILE *file = d->plot.file;
    struct hd__text words = {0};
    fputs("<g class=\"point\">", file);
    if (!strcmp(is, "alarm"))
        fprintf(file,
                "<path class=\"alarm\" d=\"M%.1f %.1fV%.1f\" stroke=\"#c11c28\" stroke-opacity=\"0.35\"/>"
                "<path class=\"mark alarm\" d=\"M%.1f %.1fl5 -9h-10z\" fill=\"#c11c28\"/>",
                x, d->plot.top, d->plot.bottom, x, d->plot.top + 9);
    else if (!strcmp(is, "checkpoint"))
        fprintf(file, "<path class=\"mark save\" d=\"M%.1f %.1fl4 5l-4 5l-4 -5z\" fill=\"#009e73\"/>", x,
                d->plot.bottom - 10);
    else
        fprintf(file,
                "<path class=\"mark restart\" d=\"M%.1f %.1fV%.1f\" stroke=\"#57606f\" stroke-width=\"2\""
                " stroke-dasharray=\"4 3\"/>",
                x, d->plot.top, d->plot.bottom);
    hd__text_add(&words, "%s, step %.0f: ", run->label, step);
    hd__report_event_words(event, &words);
    fputs("<title>", file);
    hd__plot_put_xml(file, words.at);
    fputs("</title></g>\n", file);
    hd__text_free(&words);
}

static void draw_events(const struct report_drawing *d, const struct hd__report_run *run)
{
    size_t i, n = json_array_size(run->events);
    json_t *event;
    json_array_foreach(run->events, i, event) if (n <= MARKS_MAX || i % (n / MARKS_MAX + 1) == 0)
        draw_event(d, run, event);
}

/* ---- charts */

static int has_field(const struct hd__report *r, const char *field)
{
    for (uint32_t k = 0; k < r->n; k++)
        if (hd__report_values(&r->runs[k], field))
            return 1;
    return 0;
}

static void draw(FILE *file, const struct hd__report *r, const struct report_chart *c)
{
    double width = c->wide ? WIDE : HALF, height = c->wide ? TALL : LOW;
    struct report_drawing d = {.r = r, .c = c};
    d.plot =
        (struct hd__plot){.file = file, .left = LEFT, .right = width - RIGHT, .top = TOP, .bottom = height - BOTTOM};
    if (!scale_x(&d) || !scale_y(&d))
        return;
    hd__plot_open(file, width, height, c->title);
    axes(&d);
    for (uint32_t k = 0; k < r->n; k++) {
        draw_line(&d, &r->runs[k], (int)k);
        draw_marked(&d, &r->runs[k], r->n == 1 ? 1 : (int)k);
        if (c->also)
            draw_events(&d, &r->runs[k]);
    }
    fputs("</svg>\n", file);
}

static const struct report_chart charts[] = {
    {"loss", "val_loss", "loss by tokens", HD__PLOT_PLAIN, 0, OVER_TOKENS, 0},
    {"loss", "val_loss", "loss by time", HD__PLOT_PLAIN, 0, OVER_TIME, 0},
    {"tokens_per_s", NULL, "throughput, tokens/s", HD__PLOT_PLAIN, 1, OVER_STEP, 0},
    {"step_s", NULL, "step time", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"exposed_comm_s", NULL, "exposed communication, mean rank", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"comm_s", NULL, "exposed communication of rank 0", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"wait_max_s", NULL, "exposed communication, most of a rank", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"compute_median_s", NULL, "compute, median rank", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"compute_max_s", NULL, "compute, slowest rank", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"data_wait_s", NULL, "waiting for data", HD__PLOT_SECONDS, 1, OVER_STEP, 0},
    {"mfu", NULL, "MFU", HD__PLOT_PARTS, 1, OVER_STEP, 0},
    {"rss_max_bytes", NULL, "memory, most of a rank", HD__PLOT_BYTES, 1, OVER_STEP, 0, 1},
    {"rss_bytes", NULL, "memory of rank 0", HD__PLOT_BYTES, 1, OVER_STEP, 0, 1},
    {"grad_norm", NULL, "gradient norm", HD__PLOT_PLAIN, 1, OVER_STEP, 0},
    {"lr", NULL, "learning rate", HD__PLOT_PLAIN, 1, OVER_STEP, 0, 1}};
/* In the charts above already, or another form of what is. */
static const char *const without_chart[] = {
    "val_loss",         "epoch",      "arena_bytes",   "tokens_per_s_per_rank", "samples_per_s", "compute_min_s",
    "compute_max_rank", "wait_min_s", "wait_median_s", "wait_max_rank",         "rss_min_bytes", "rss_median_bytes",
    "rss_max_rank"};

static int has_chart(const char *field)
{
    for (size_t k = 0; k < HD__COUNT(charts); k++)
        if (!strcmp(field, charts[k].field))
            return 1;
    for (size_t k = 0; k < HD__COUNT(without_chart); k++)
        if (!strcmp(field, without_chart[k]))
            return 1;
    return 0;
}

/* Fields that this version does not know: of sinks, of a later heddle. */
static void draw_others(FILE *file, const struct hd__report *r)
{
    for (uint32_t k = 0; k < r->n; k++)
        for (uint32_t f = 0; f < r->runs[k].n_fields; f++) {
            const char *field = r->runs[k].fields[f].name;
            struct report_chart c = {.field = field, .title = field};
            int is_first = 1;
            for (uint32_t before = 0; before < k; before++)
                is_first &= !hd__report_values(&r->runs[before], field);
            int is_rate = strstr(field, "_per_s") != NULL;
            c.unit = !is_rate && (hd__ends_with(field, "_s") || strstr(field, "_s.") || strstr(field, "_s_"))
                         ? HD__PLOT_SECONDS
                     : hd__ends_with(field, "_bytes") ? HD__PLOT_BYTES
                                                      : HD__PLOT_PLAIN;
            c.from_zero = c.unit != HD__PLOT_PLAIN;
            if (is_first && !has_chart(field))
                draw(file, r, &c);
        }
}

void hd__report_charts(FILE *file, const struct hd__report *r)
{
    static const struct report_chart loss = {"loss", "val_loss", "loss", HD__PLOT_PLAIN, 0, OVER_STEP, 1};
    fputs("<div class=\"wide\">", file);
    draw(file, r, &loss);
    fputs("</div>\n<div class=\"grid2\">\n", file);
    for (size_t k = 0; k < HD__COUNT(charts); k++)
        if (has_field(r, charts[k].field))
            draw(file, r, &charts[k]);
    draw_others(file, r);
    fputs("</div>\n", file);
}
