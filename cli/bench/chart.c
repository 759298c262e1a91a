/* Drawing a chart: scales, axes, lines, the legend. */
#include "cli/bench/chart.h"

#include <math.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/plot.h"

enum { PANEL = HD__BENCH_CHART_WIDTH / 2, LEFT = 62, RIGHT = 12, TOP = 62, BOTTOM = 46 };

struct panel {
    struct hd__plot plot; /* log2 bytes, log10 of the value */
    const json_t *rows;
    const char *op, *key, *title, *unit;
    const char *const *comm;
    int n, in_place;
};

static int drawn(const struct panel *p, const json_t *row, const char *comm)
{
    return !strcmp(hd__json_word(row, "op"), p->op) && (!comm || !strcmp(hd__json_word(row, "comm"), comm)) &&
           json_is_true(json_object_get(row, "in_place")) == p->in_place && hd__json_number(row, "bytes") > 0 &&
           hd__json_number(row, p->key) > 0;
}

static double x_of(const struct panel *p, const json_t *row)
{
    return hd__plot_x(&p->plot, log2(hd__json_number(row, "bytes")));
}

static double y_of(const struct panel *p, const json_t *row)
{
    return hd__plot_y(&p->plot, log10(hd__json_number(row, p->key)));
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
        lo = fmin(lo, hd__json_number(row, "bytes"));
        hi = fmax(hi, hd__json_number(row, "bytes"));
        least = fmin(least, hd__json_number(row, p->key));
        most = fmax(most, hd__json_number(row, p->key));
    }
    if (!hi)
        return 0;
    p->plot.x0 = log2(lo) - (hi > lo ? 0.2 : 1);
    p->plot.x1 = log2(hi) + (hi > lo ? 0.2 : 1);
    p->plot.y0 = log10(least) - 0.15;
    p->plot.y1 = log10(most) + 0.15;
    return 1;
}

static void x_axis(const struct panel *p)
{
    int span = (int)(p->plot.x1 - p->plot.x0), step = span > 21 ? 4 : span > 14 ? 3 : span > 7 ? 2 : 1;
    char text[16];
    for (int e = (int)ceil(p->plot.x0); e <= p->plot.x1; e += step) {
        size_text(exp2(e), text);
        hd__plot_tick_x(&p->plot, e, text);
    }
}

static void y_axis(const struct panel *p)
{
    static const double parts[] = {1, 2, 5};
    int few = p->plot.y1 - p->plot.y0 < 2.3;
    for (int e = (int)floor(p->plot.y0); e <= p->plot.y1; e++)
        for (int k = 0; k < (few ? 3 : 1); k++) {
            double value = parts[k] * pow(10, e);
            char text[32];
            if (log10(value) < p->plot.y0 || log10(value) > p->plot.y1)
                continue;
            snprintf(text, sizeof text, value < 1 ? "%g" : "%.0f", value);
            hd__plot_tick_y(&p->plot, log10(value), text);
        }
}

/* ---- lines */

static void point(const struct panel *p, const json_t *row, int k)
{
    FILE *file = p->plot.file;
    char size[16];
    size_text(hd__json_number(row, "bytes"), size);
    fprintf(file, "<g class=\"point\"><circle cx=\"%.1f\" cy=\"%.1f\" r=\"9\" fill=\"none\" pointer-events=\"all\"/>",
            x_of(p, row), y_of(p, row));
    hd__plot_mark(file, x_of(p, row), y_of(p, row), k);
    fputs("<title>", file);
    hd__plot_put_xml(file, p->comm[k]);
    fprintf(file, ", %s: %.2f us, p99 %.2f us, busbw %.3f GB/s</title></g>\n", size, hd__json_number(row, "time_us"),
            hd__json_number(row, "p99_us"), hd__json_number(row, "busbw_gbs"));
}

static void line(const struct panel *p, int k)
{
    size_t i;
    json_t *row;
    hd__plot_line(p->plot.file, k, 2, 1, 1);
    json_array_foreach((json_t *)p->rows, i, row) if (drawn(p, row, p->comm[k]))
        fprintf(p->plot.file, "%.1f,%.1f ", x_of(p, row), y_of(p, row));
    fputs("\"/>\n", p->plot.file);
    json_array_foreach((json_t *)p->rows, i, row) if (drawn(p, row, p->comm[k])) point(p, row, k);
}

static int panel(struct panel *p)
{
    if (!scale(p))
        return 0;
    x_axis(p);
    y_axis(p);
    hd__plot_axes(&p->plot, p->title, p->unit, "size (bytes; K = 1024)");
    for (int k = 0; k < p->n; k++)
        line(p, k);
    return 1;
}

int hd__bench_write_chart(FILE *file, const json_t *rows, const char *const *comm, int n, const char *op, int in_place,
                          int top)
{
    struct panel p = {.plot = {.file = file,
                               .left = LEFT,
                               .right = PANEL - RIGHT,
                               .top = top + TOP,
                               .bottom = top + HD__BENCH_CHART_HEIGHT - BOTTOM},
                      .rows = rows,
                      .comm = comm,
                      .n = n,
                      .op = op,
                      .in_place = in_place};
    double x = LEFT;
    p.key = "time_us";
    p.title = "time";
    p.unit = "us; lower is better";
    if (!panel(&p))
        return 0;
    p.plot.left += PANEL;
    p.plot.right += PANEL;
    p.key = "busbw_gbs";
    p.title = "bus bandwidth";
    p.unit = "GB/s; higher is better";
    panel(&p);
    for (int k = 0; k < n; k++)
        x = hd__plot_legend(file, x, top + 22, k, comm[k]);
    return 1;
}
