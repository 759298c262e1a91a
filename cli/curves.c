/* Drawing curves: scales, axes, lines, the legend. */
#include "cli/curves.h"

#include <math.h>
#include <string.h>

#include "core/base/base.h"
#include "service/report/json_fields.h"

enum { PANEL = HD__CURVES_WIDTH / 2, LEFT = 62, RIGHT = 12, TOP = 62, BOTTOM = 46 };

struct panel {
    struct hd__plot plot; /* log2 of x, log10 of the value */
    const struct hd__curves *c;
    const char *key;
};

static int drawn(const struct panel *p, const json_t *row, const char *name)
{
    return (!name || !strcmp(hd__json_word(row, p->c->series), name)) && hd__json_number(row, p->c->x) > 0 &&
           hd__json_number(row, p->key) > 0;
}

static double x_of(const struct panel *p, const json_t *row)
{
    return hd__plot_x(&p->plot, log2(hd__json_number(row, p->c->x)));
}

static double y_of(const struct panel *p, const json_t *row)
{
    return hd__plot_y(&p->plot, log10(hd__json_number(row, p->key)));
}

static void x_text(const struct panel *p, double x, char out[16])
{
    static const char units[] = " KMGT";
    int u = 0;
    for (; p->c->is_bytes && x >= 1024 && u < 4; u++)
        x /= 1024;
    snprintf(out, 16, "%.7g%.*s", x, u > 0, units + u);
}

/* ---- axes */

/* The x axis spans the rows, the y axis from half the minimum to twice the maximum. 0: no data. */
static int scale(struct panel *p)
{
    double lo = INFINITY, hi = 0, least = INFINITY, most = 0;
    size_t i;
    json_t *row;
    json_array_foreach(p->c->rows, i, row)
    {
        if (!drawn(p, row, NULL))
            continue;
        lo = fmin(lo, hd__json_number(row, p->c->x));
        hi = fmax(hi, hd__json_number(row, p->c->x));
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
        x_text(p, exp2(e), text);
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
    char at[16];
    x_text(p, hd__json_number(row, p->c->x), at);
    fprintf(file, "<g class=\"point\"><circle cx=\"%.1f\" cy=\"%.1f\" r=\"9\" fill=\"none\" pointer-events=\"all\"/>",
            x_of(p, row), y_of(p, row));
    hd__plot_mark(file, x_of(p, row), y_of(p, row), k);
    fputs("<title>", file);
    hd__plot_put_xml(file, p->c->name[k]);
    fprintf(file, ", %s", at);
    for (size_t v = 0; v < HD__COUNT(p->c->value); v++) {
        double value = hd__json_number(row, p->c->value[v].key);
        const char *unit = p->c->value[v].unit;
        fprintf(file, value < 1000 ? "%s %s %.3g%s%s" : "%s %s %.0f%s%s", v ? "," : ":", p->c->value[v].title, value,
                *unit ? " " : "", unit);
    }
    fputs("</title></g>\n", file);
}

static void line(const struct panel *p, int k)
{
    const char *name = p->c->name[k];
    size_t i;
    json_t *row;
    hd__plot_line(p->plot.file, k, 2, 1, 1);
    json_array_foreach(p->c->rows, i, row) if (drawn(p, row, name))
        fprintf(p->plot.file, "%.1f,%.1f ", x_of(p, row), y_of(p, row));
    fputs("\"/>\n", p->plot.file);
    json_array_foreach(p->c->rows, i, row) if (drawn(p, row, name)) point(p, row, k);
}

int hd__curves_write(FILE *file, const struct hd__curves *c, int top)
{
    double x = LEFT;
    for (int k = 0; k < 2; k++) {
        struct panel p = {.plot = {.file = file,
                                   .left = LEFT + k * PANEL,
                                   .right = (k + 1) * PANEL - RIGHT,
                                   .top = top + TOP,
                                   .bottom = top + HD__CURVES_HEIGHT - BOTTOM},
                          .c = c,
                          .key = c->value[k].key};
        char unit[64];
        if (!scale(&p))
            return 0;
        x_axis(&p);
        y_axis(&p);
        snprintf(unit, sizeof unit, "%s%s", c->value[k].unit, c->value[k].better);
        hd__plot_axes(&p.plot, c->value[k].title, unit, c->x_name);
        for (int s = 0; s < c->n; s++)
            line(&p, s);
    }
    for (int k = 0; k < c->n; k++)
        x = hd__plot_legend(file, x, top + 22, k, c->name[k]);
    return 1;
}
