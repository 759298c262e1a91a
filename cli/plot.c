#include "cli/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/file.h"

#define INK "#1d2430"
#define SOFT "#57606f"
#define GRID "#e1e5ea"

const char *const hd__plot_colours[HD__PLOT_SERIES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#b07d00", "#2f8fc4", INK,       "#7a6a00"};
static const char *const on_dark[HD__PLOT_SERIES] = {"#56b4e9", "#f0833a", "#2fc79c", "#e39ac4",
                                                     "#e69f00", "#9ad4f5", "#e6e8ec", "#f0e442"};
static const char *const dashes[HD__PLOT_SERIES] = {"none", "7 3", "2 3", "10 3 2 3", "none", "7 3", "2 3", "10 3 2 3"};

/* Markers, centred at (0, 0). */
static const char *const markers[HD__PLOT_SERIES] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
                                                     "M-4 -4H4V4H-4Z",
                                                     "M0 -5L5 4H-5Z",
                                                     "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
                                                     "M0 5L5 -4H-5Z",
                                                     "M-5 -2H5V2H-5Z",
                                                     "M-2 -5H2V5H-2Z",
                                                     "M-5 -5L5 5M5 -5L-5 5"};

static const char page_style[] =
    ":root{color-scheme:light dark;--text:" INK ";--dim:" SOFT ";--edge:" GRID ";--back:#fff;--best:#e8f3fb;"
    "--bad:#c11c28}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);margin:2rem auto;"
    "max-width:1080px;padding:0 1rem}\n"
    "h1{font-size:1.35rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2.2rem 0 0}p{color:var(--dim);margin:.2rem "
    "0}\n"
    "svg{width:100%;min-width:720px;height:auto}.wide{overflow-x:auto}code{overflow-wrap:anywhere}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px;margin:.6rem 0}\n"
    "caption{text-align:left;color:var(--dim)}td,th{padding:1px 7px;text-align:right;white-space:nowrap}\n"
    "th{color:var(--dim);font-weight:500}thead tr:last-child th{border-bottom:1px solid var(--edge)}\n"
    "tbody tr:hover{background:var(--edge)}.first{border-left:1px solid var(--edge)}.best{font-weight:700;"
    "background:var(--best)}.group{text-align:center}.bad{color:var(--bad);font-weight:700}\n"
    ".point:hover .mark{stroke:var(--text);stroke-width:2}summary{cursor:pointer}\n"
    ".swatch{width:12px;min-width:0;height:12px;vertical-align:-1px}\n"
    "pre{font-size:12px;line-height:1.45;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}\n";

static const char dark_style[] = "@media(prefers-color-scheme:dark){"
                                 ":root{--text:#e6e8ec;--dim:#a3adba;--edge:#2b3340;--back:#12161d;--best:#16324a;"
                                 "--bad:#ff7b72}\n"
                                 ".chart{fill:#a3adba}.ink{fill:#e6e8ec}.grid{stroke:#2b3340}.axis{stroke:#a3adba}\n";

void hd__plot_page(FILE *file, const char *title, const char *more)
{
    fputs(HD__OUTPUT_MARK "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\""
                          " content=\"width=device-width\">\n<title>",
          file);
    hd__plot_put_xml(file, title);
    fprintf(file, "</title>\n<style>\n%s%s%s", page_style, more, dark_style);
    for (int k = 0; k < HD__PLOT_SERIES; k++)
        fprintf(file, ".s%d{stroke:%s}.f%d{fill:%s}", k, on_dark[k], k, on_dark[k]);
    fputs("}\n</style>\n", file);
}

/* ---- elements */

static const char text_defaults[] = "font-family=\"system-ui,sans-serif\" font-size=\"13\" fill=\"" SOFT "\"";

void hd__plot_open(FILE *file, double width, double height, const char *label)
{
    char *text = hd__strdup(label);
    for (char *at = text; (at = strchr(at, '"'));) /* of an attribute */
        *at = '\'';
    fprintf(file, "<svg class=\"chart\" viewBox=\"0 0 %g %g\" %s role=\"img\" aria-label=\"", width, height,
            text_defaults);
    hd__plot_put_xml(file, text);
    fputs("\">\n", file);
    free(text);
}

void hd__plot_open_file(FILE *file, double width, double height)
{
    fprintf(file,
            HD__OUTPUT_MARK "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\""
                            " %s>\n<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n",
            width, height, width, height, text_defaults, width, height);
}

double hd__plot_x(const struct hd__plot *p, double x)
{
    return p->left + (x - p->x0) / (p->x1 - p->x0) * (p->right - p->left);
}

double hd__plot_y(const struct hd__plot *p, double y)
{
    return p->bottom - (y - p->y0) / (p->y1 - p->y0) * (p->bottom - p->top);
}

static void grid(FILE *file, double x1, double y1, double x2, double y2)
{
    fprintf(file, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"" GRID "\"/>", x1, y1,
            x2, y2);
}

void hd__plot_tick_x(const struct hd__plot *p, double x, const char *label)
{
    double at = hd__plot_x(p, x);
    grid(p->file, at, p->top, at, p->bottom);
    if (label)
        hd__plot_text(p->file, at, p->bottom + 18, "middle", 0, label);
}

void hd__plot_tick_y(const struct hd__plot *p, double y, const char *label)
{
    double at = hd__plot_y(p, y);
    grid(p->file, p->left, at, p->right, at);
    if (label)
        hd__plot_text(p->file, p->left - 7, at + 4, "end", 0, label);
}

/* "250k", "1.5M", "0.02" */
static void number_text(double value, char out[32])
{
    static const char units[] = "kMGT";
    double v = fabs(value);
    int u = -1;
    for (; v >= 1000 * (1 - 1e-12) && u < 3; u++) {
        v /= 1000;
        value /= 1000;
    }
    snprintf(out, 32, "%.6g%.*s", fabs(value) < 1e-12 ? 0 : value, u >= 0, units + (u >= 0 ? u : 0));
}

static void ticks(const struct hd__plot *p, double from, double to, int marks,
                  void (*put)(const struct hd__plot *, double, const char *))
{
    double raw = (to - from) / marks, ten = pow(10, floor(log10(raw)));
    double tick = raw <= ten ? ten : raw <= 2 * ten ? 2 * ten : raw <= 5 * ten ? 5 * ten : 10 * ten;
    char text[32];
    for (double n = ceil(from / tick); n * tick <= to * (1 + 1e-9); n++) {
        number_text(n * tick, text);
        put(p, n * tick, text);
    }
}

void hd__plot_ticks(const struct hd__plot *p, int marks_x, int marks_y)
{
    ticks(p, p->x0, p->x1, marks_x, hd__plot_tick_x);
    if (marks_y)
        ticks(p, p->y0, p->y1, marks_y, hd__plot_tick_y);
}

double hd__plot_unit(int values, double most, const char **name)
{
    static const struct {
        double at;
        const char *name;
    } units[][4] = {[HD__PLOT_PLAIN] = {{1, ""}},
                    [HD__PLOT_SECONDS] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}},
                    [HD__PLOT_BYTES] = {{1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024, "KiB"}, {1, "bytes"}},
                    [HD__PLOT_PARTS] = {{0.01, "%"}}};
    size_t k = 0;
    while (k + 1 < HD__COUNT(units[0]) && units[values][k + 1].name && most < units[values][k].at)
        k++;
    *name = units[values][k].name;
    return units[values][k].at;
}

void hd__plot_axes(const struct hd__plot *p, const char *title, const char *unit, const char *x_name)
{
    struct hd__text text = {0};
    hd__text_add(&text, "%s (%s)", title, unit);
    hd__plot_text(p->file, p->left, p->top - 12, "start", 1, *unit ? text.at : title);
    hd__plot_text(p->file, (p->left + p->right) / 2, p->bottom + 38, "middle", 0, x_name);
    fprintf(p->file, "<path class=\"axis\" fill=\"none\" stroke=\"" SOFT "\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", p->left,
            p->top, p->bottom, p->right);
    hd__text_free(&text);
}

void hd__plot_line(FILE *file, int k, double width, double opacity, int dashed)
{
    k %= HD__PLOT_SERIES;
    fprintf(file, "<polyline class=\"s%d\" fill=\"none\" stroke=\"%s\" stroke-width=\"%g\"", k, hd__plot_colours[k],
            width);
    if (opacity < 1)
        fprintf(file, " stroke-opacity=\"%g\"", opacity);
    if (dashed)
        fprintf(file, " stroke-dasharray=\"%s\"", dashes[k]);
    fputs(" points=\"", file);
}

void hd__plot_box(FILE *file, double x, double y, double width, double height, int k)
{
    fprintf(file, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"", x, y, width, height);
    if (k < 0)
        fputs(" class=\"axis\" fill=\"none\" stroke=\"" SOFT "\" stroke-dasharray=\"2 3\"/>", file);
    else
        fprintf(file, " class=\"f%d\" fill=\"%s\"/>", k % HD__PLOT_SERIES, hd__plot_colours[k % HD__PLOT_SERIES]);
}

void hd__plot_mark(FILE *file, double x, double y, int k)
{
    k %= HD__PLOT_SERIES;
    fprintf(file,
            "<path class=\"mark s%d f%d\" transform=\"translate(%.1f %.1f)\" d=\"%s\" fill=\"%s\" stroke=\"%s\"/>", k,
            k, x, y, markers[k], hd__plot_colours[k], hd__plot_colours[k]);
}

void hd__plot_text(FILE *file, double x, double y, const char *anchor, int is_head, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor,
            is_head ? " class=\"ink\" font-weight=\"600\" fill=\"" INK "\"" : "");
    hd__plot_put_xml(file, text);
    fputs("</text>\n", file);
}

double hd__plot_legend(FILE *file, double x, double y, int k, const char *name)
{
    k %= HD__PLOT_SERIES;
    fprintf(file,
            "<path class=\"s%d\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\""
            " d=\"M%.1f %.1fh34\"/>",
            k, hd__plot_colours[k], dashes[k], x, y);
    hd__plot_mark(file, x + 17, y, k);
    hd__plot_text(file, x + 42, y + 4, "start", 1, name);
    return x + 68 + 7.6 * (double)strlen(name);
}

void hd__plot_put_xml(FILE *file, const char *plain)
{
    struct hd__text text = {0};
    hd__text_add_xml(&text, plain);
    fputs(text.at ? text.at : "", file);
    hd__text_free(&text);
}

void hd__plot_put(FILE *file, const char *tag, const char *plain)
{
    fprintf(file, "<%s>", tag);
    hd__plot_put_xml(file, plain);
    fprintf(file, "</%s>", tag);
}

void hd__plot_put_command(FILE *file, const char *const *words)
{
    char day[16];
    time_t now = time(NULL);
    struct tm local;
    strftime(day, sizeof day, "%Y-%m-%d", localtime_r(&now, &local));
    fprintf(file, "<p>%s: <code>heddle", day);
    for (; *words; words++) {
        putc(' ', file);
        hd__plot_put_xml(file, *words);
    }
    fputs("</code></p>\n", file);
}
