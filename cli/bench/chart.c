/* Drawing a chart: scales, axes, lines, the legend. */
#include "cli/bench/chart.h"

#include <math.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "core/base/base.h"

enum { PANEL = HD__BENCH_CHART_WIDTH / 2, LEFT = 62, RIGHT = 12, TOP = 62, BOTTOM = 46 };

const char hd__bench_chart_style[] =
    ".chart{--ink:#1d2430;--soft:#57606f;--grid:#e1e5ea;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#"
    "b07d00;"
    "--c5:#2f8fc4;--c6:#1d2430;--c7:#7a6a00}\n"
    "@media(prefers-color-scheme:dark){.chart{--ink:#e6e8ec;--soft:#a3adba;--grid:#2b3340;--c0:#56b4e9;--c1:#f0833a;"
    "--c2:#2fc79c;--c3:#e39ac4;--c4:#e69f00;--c5:#9ad4f5;--c6:#e6e8ec;--c7:#f0e442}}\n"
    ".chart text{font:13px system-ui,sans-serif;fill:var(--soft)}.chart .head{fill:var(--ink);font-weight:600}\n"
    ".chart .grid{stroke:var(--grid)}.chart .axis{stroke:var(--soft)}.chart .line{fill:none;stroke-width:2}\n"
    ".chart .hit{fill:transparent}.chart .point:hover .mark{stroke:var(--ink);stroke-width:2}\n";

static const char *const dashes[HD__BENCH_CHART_COMMS] = {"none", "7 3", "2 3", "10 3 2 3",
                                                          "none", "7 3", "2 3", "10 3 2 3"};

/* Markers, centred at (0, 0). */
static const char *const marks[HD__BENCH_CHART_COMMS] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
                                                         "M-4 -4H4V4H-4Z",
                                                         "M0 -5L5 4H-5Z",
                                                         "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
                                                         "M0 5L5 -4H-5Z",
                                                         "M-5 -2H5V2H-5Z",
                                                         "M-2 -5H2V5H-2Z",
                                                         "M-5 -5L5 5M5 -5L-5 5"};

struct panel {
    FILE *file;
    const json_t *rows;
    const char *op, *key, *title, *unit;
    const char *const *comm;
    int n, in_place, left, top;
    double x0, x1, y0, y1; /* log2 bytes, log10 of the value */
};

static int drawn(const struct panel *p, const json_t *row, const char *comm)
{
    return !strcmp(hd__bench_word(row, "op"), p->op) && (!comm || !strcmp(hd__bench_word(row, "comm"), comm)) &&
           json_is_true(json_object_get(row, "in_place")) == p->in_place && hd__bench_number(row, "bytes") > 0 &&
           hd__bench_number(row, p->key) > 0;
}

static double x_of(const struct panel *p, double bytes)
{
    return p->left + LEFT + (log2(bytes) - p->x0) / (p->x1 - p->x0) * (PANEL - LEFT - RIGHT);
}

static double y_of(const struct panel *p, double value)
{
    double share = (log10(value) - p->y0) / (p->y1 - p->y0);
    return p->top + HD__BENCH_CHART_HEIGHT - BOTTOM - share * (HD__BENCH_CHART_HEIGHT - TOP - BOTTOM);
}

static void size_text(double bytes, char out[16])
{
    static const char units[] = " KMGT";
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    snprintf(out, 16, "%g%.*s", bytes, u > 0, units + u);
}

/* ---- axes */

/* The x axis spans the sizes, the y axis from half the minimum to twice the maximum. 0: no data. */
static int scale(struct panel *p)
{
    double lo = INFINITY, hi = 0, least = INFINITY, most = 0;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)p->rows, i, row)
    {
        if (!drawn(p, row, NULL))
            continue;
        lo = fmin(lo, hd__bench_number(row, "bytes"));
        hi = fmax(hi, hd__bench_number(row, "bytes"));
        least = fmin(least, hd__bench_number(row, p->key));
        most = fmax(most, hd__bench_number(row, p->key));
    }
    if (!hi)
        return 0;
    p->x0 = log2(lo) - (hi > lo ? 0.2 : 1);
    p->x1 = log2(hi) + (hi > lo ? 0.2 : 1);
    p->y0 = log10(least) - 0.15;
    p->y1 = log10(most) + 0.15;
    return 1;
}

static void x_axis(const struct panel *p)
{
    double y0 = p->top + TOP, y1 = p->top + HD__BENCH_CHART_HEIGHT - BOTTOM;
    int span = (int)(p->x1 - p->x0), step = span > 21 ? 4 : span > 14 ? 3 : span > 7 ? 2 : 1;
    char text[16];
    for (int e = (int)ceil(p->x0); e <= p->x1; e += step) {
        double x = x_of(p, exp2(e));
        size_text(exp2(e), text);
        fprintf(p->file, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x, y0, y1);
        fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x, y1 + 18, text);
    }
    fprintf(p->file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"middle\">size (bytes; K = 1024)</text>\n",
            p->left + LEFT + (PANEL - LEFT - RIGHT) / 2, y1 + 38);
}

static void y_axis(const struct panel *p)
{
    static const double parts[] = {1, 2, 5};
    int few = p->y1 - p->y0 < 2.3, x0 = p->left + LEFT, x1 = p->left + PANEL - RIGHT;
    for (int e = (int)floor(p->y0); e <= p->y1; e++)
        for (int k = 0; k < (few ? 3 : 1); k++) {
            double value = parts[k] * pow(10, e), y = y_of(p, value);
            char text[32];
            if (log10(value) < p->y0 || log10(value) > p->y1)
                continue;
            snprintf(text, sizeof text, value < 1 ? "%g" : "%.0f", value);
            fprintf(p->file, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", x0, x1, y, y);
            fprintf(p->file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", x0 - 7, y + 4, text);
        }
    fprintf(p->file, "<text class=\"head\" x=\"%d\" y=\"%d\">%s (%s)</text>\n", x0, p->top + TOP - 12, p->title,
            p->unit);
}

/* ---- lines */

static void mark(FILE *file, double x, double y, int k)
{
    fprintf(
        file,
        "<path class=\"mark\" transform=\"translate(%.1f %.1f)\" d=\"%s\" fill=\"var(--c%d)\" stroke=\"var(--c%d)\"/>",
        x, y, marks[k % HD__BENCH_CHART_COMMS], k % HD__BENCH_CHART_COMMS, k % HD__BENCH_CHART_COMMS);
}

static void point(const struct panel *p, const json_t *row, int k)
{
    double x = x_of(p, hd__bench_number(row, "bytes")), y = y_of(p, hd__bench_number(row, p->key));
    char size[16];
    size_text(hd__bench_number(row, "bytes"), size);
    fprintf(p->file, "<g class=\"point\"><circle class=\"hit\" cx=\"%.1f\" cy=\"%.1f\" r=\"9\"/>", x, y);
    mark(p->file, x, y, k);
    fputs("<title>", p->file);
    hd__bench_put_xml(p->file, p->comm[k]);
    fprintf(p->file, ", %s: %.2f us, p99 %.2f us, busbw %.3f GB/s</title></g>\n", size,
            hd__bench_number(row, "time_us"), hd__bench_number(row, "p99_us"), hd__bench_number(row, "busbw_gbs"));
}

static void line(const struct panel *p, int k)
{
    size_t i;
    json_t *row;
    fprintf(p->file, "<polyline class=\"line\" stroke=\"var(--c%d)\" stroke-dasharray=\"%s\" points=\"",
            k % HD__BENCH_CHART_COMMS, dashes[k % HD__BENCH_CHART_COMMS]);
    json_array_foreach((json_t *)p->rows, i, row) if (drawn(p, row, p->comm[k]))
        fprintf(p->file, "%.1f,%.1f ", x_of(p, hd__bench_number(row, "bytes")), y_of(p, hd__bench_number(row, p->key)));
    fputs("\"/>\n", p->file);
    json_array_foreach((json_t *)p->rows, i, row) if (drawn(p, row, p->comm[k])) point(p, row, k);
}

static int panel(struct panel *p)
{
    if (!scale(p))
        return 0;
    x_axis(p);
    y_axis(p);
    fprintf(p->file, "<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", p->left + LEFT, p->top + TOP,
            p->top + HD__BENCH_CHART_HEIGHT - BOTTOM, p->left + PANEL - RIGHT);
    for (int k = 0; k < p->n; k++)
        line(p, k);
    return 1;
}

static void legend(const struct panel *p)
{
    double x = LEFT, y = p->top + 22;
    for (int k = 0; k < p->n; k++) {
        fprintf(p->file,
                "<line class=\"line\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"var(--c%d)\""
                " stroke-dasharray=\"%s\"/>",
                x, x + 34, y, y, k % HD__BENCH_CHART_COMMS, dashes[k % HD__BENCH_CHART_COMMS]);
        mark(p->file, x + 17, y, k);
        fprintf(p->file, "<text class=\"head\" x=\"%.0f\" y=\"%.0f\">", x + 42, y + 4);
        hd__bench_put_xml(p->file, p->comm[k]);
        fputs("</text>\n", p->file);
        x += 68 + 7.6 * (double)strlen(p->comm[k]);
    }
}

void hd__bench_put_xml(FILE *file, const char *plain)
{
    struct hd__text text = {0};
    hd__text_add_xml(&text, plain);
    fputs(text.at ? text.at : "", file);
    hd__text_free(&text);
}

int hd__bench_write_chart(FILE *file, const json_t *rows, const char *const *comm, int n, const char *op, int in_place,
                          int top)
{
    struct panel p = {.file = file, .rows = rows, .comm = comm, .n = n, .op = op, .in_place = in_place, .top = top};
    p.key = "time_us";
    p.title = "time";
    p.unit = "us; lower is better";
    if (!panel(&p))
        return 0;
    p.left = PANEL;
    p.key = "busbw_gbs";
    p.title = "bus bandwidth";
    p.unit = "GB/s; higher is better";
    panel(&p);
    legend(&p);
    return 1;
}
