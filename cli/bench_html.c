/* heddle bench --html: one page that needs nothing else: a chart an operation, bus bandwidth over size, both axes
 * logarithmic, a line a transport; below it the numbers. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"

enum { WIDTH = 720, HEIGHT = 360, LEFT = 64, RIGHT = 96, TOP = 16, BOTTOM = 44, COLOURS = 8 };

struct page {
    FILE *file;
    const json_t *rows;
    double x0, x1, y0, y1; /* log2 bytes, log10 GB/s */
};

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n"
    "<title>heddle bench</title>\n<style>\n"
    ":root{--ink:#1d2430;--soft:#667085;--grid:#e4e7ec;--back:#fff;--c0:#2563eb;--c1:#d9480f;--c2:#2b8a3e;--c3:#862e9c;--c4:#0b7285;"
    "--c5:#c2255c;--c6:#846358;--c7:#5c5f66}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#98a2b3;--grid:#2b3340;--back:#12161d;--c0:#74a9ff;--c1:#ff922b;"
    "--c2:#69db7c;--c3:#da77f2;--c4:#3bc9db;--c5:#faa2c1;--c6:#c9ada7;--c7:#adb5bd}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);margin:2rem auto;max-width:760px;padding:0 1rem}\n"
    "h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}p,caption{color:var(--soft)}svg{width:100%;height:auto}\n"
    "svg text{font-size:12px;fill:var(--soft)}.grid{stroke:var(--grid)}.line{fill:none;stroke-width:2}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}td,th{padding:1px 10px;text-align:right}"
    "th{color:var(--soft);font-weight:500}\n</style>\n";

static const char *word(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

/* What a chart can show: a barrier moves nothing. */
static int drawn(const json_t *row, const char *op)
{
    return !strcmp(word(row, "op"), op) && number(row, "bytes") > 0 && number(row, "busbw_gbs") > 0;
}

static double x_of(const struct page *p, double bytes)
{
    return LEFT + (log2(bytes) - p->x0) / (p->x1 - p->x0) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct page *p, double rate)
{
    return HEIGHT - BOTTOM - (log10(rate) - p->y0) / (p->y1 - p->y0) * (HEIGHT - TOP - BOTTOM);
}

static void size_text(double bytes, char out[16])
{
    static const char units[] = " KMGT";
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    snprintf(out, 16, "%g%.*s", bytes, u > 0, units + u);
}

/* Axes reach from power to power, at least one. 0: there is nothing to draw. */
static int scale(struct page *p, const char *op)
{
    double lo = INFINITY, hi = 0, least = INFINITY, most = 0;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)p->rows, i, row) {
        if (!drawn(row, op))
            continue;
        lo = fmin(lo, number(row, "bytes"));
        hi = fmax(hi, number(row, "bytes"));
        least = fmin(least, number(row, "busbw_gbs"));
        most = fmax(most, number(row, "busbw_gbs"));
    }
    if (!hi)
        return 0;
    p->x0 = floor(log2(lo));
    p->x1 = fmax(p->x0 + 1, ceil(log2(hi)));
    p->y0 = floor(log10(least));
    p->y1 = fmax(p->y0 + 1, ceil(log10(most)));
    return 1;
}

static void axes(const struct page *p)
{
    int step = p->x1 - p->x0 > 14 ? 3 : p->x1 - p->x0 > 7 ? 2 : 1;
    char text[16];
    for (int e = (int)p->x0; e <= (int)p->x1; e += step) {
        double x = x_of(p, exp2(e));
        size_text(exp2(e), text);
        fprintf(p->file, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s"
                "</text>\n", x, x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 18, text);
    }
    for (int e = (int)p->y0; e <= (int)p->y1; e++) {
        double y = y_of(p, pow(10, e));
        fprintf(p->file, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g"
                "</text>\n", LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, pow(10, e));
    }
    fprintf(p->file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">size (B)</text><text x=\"14\" y=\"%d\" text-anchor=\"middle\" "
            "transform=\"rotate(-90 14 %d)\">bus bandwidth (GB/s)</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6,
            (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
}

static void line(const struct page *p, const char *op, const char *comm, int colour)
{
    double x = 0, y = 0;
    size_t i;
    json_t *row;
    fprintf(p->file, "<polyline class=\"line\" stroke=\"var(--c%d)\" points=\"", colour % COLOURS);
    json_array_foreach((json_t *)p->rows, i, row)
        if (drawn(row, op) && !strcmp(word(row, "comm"), comm)) {
            x = x_of(p, number(row, "bytes"));
            y = y_of(p, number(row, "busbw_gbs"));
            fprintf(p->file, "%.1f,%.1f ", x, y);
        }
    fprintf(p->file, "\"/><text x=\"%.1f\" y=\"%.1f\" style=\"fill:var(--c%d)\">%s</text>\n", x + 8, y + 4, colour % COLOURS, comm);
}

static void table(const struct page *p, const char *op)
{
    size_t i;
    json_t *row;
    fputs("<table><tr><th>transport</th><th>size (B)</th><th>time (us)</th><th>p99 (us)</th><th>algbw (GB/s)</th><th>busbw (GB/s)</th>"
          "<th>wrong</th></tr>\n", p->file);
    json_array_foreach((json_t *)p->rows, i, row)
        if (!strcmp(word(row, "op"), op))
            fprintf(p->file, "<tr><td>%s</td><td>%.0f</td><td>%.2f</td><td>%.2f</td><td>%.3f</td><td>%.3f</td><td>%.0f</td></tr>\n",
                    word(row, "comm"), number(row, "bytes"), number(row, "time_us"), number(row, "p99_us"),
                    number(row, "algbw_gbs"), number(row, "busbw_gbs"), number(row, "errors"));
    fputs("</table>\n", p->file);
}

/* Is this the first row with its value of `key`, among those with `op` where that is given? */
static int first_of(const json_t *rows, size_t at, const char *key, const char *op)
{
    const char *value = word(json_array_get(rows, at), key);
    for (size_t i = 0; i < at; i++)
        if (!strcmp(word(json_array_get(rows, i), key), value) && (!op || !strcmp(word(json_array_get(rows, i), "op"), op)))
            return 0;
    return 1;
}

static void chart(struct page *p, const char *op)
{
    int colour = 0;
    fprintf(p->file, "<h2>%s</h2>\n", op);
    if (scale(p, op)) {
        fprintf(p->file, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s: bus bandwidth over size\">\n", WIDTH, HEIGHT, op);
        axes(p);
        for (size_t i = 0; i < json_array_size(p->rows); i++)
            if (!strcmp(word(json_array_get(p->rows, i), "op"), op) && first_of(p->rows, i, "comm", op))
                line(p, op, word(json_array_get(p->rows, i), "comm"), colour++);
        fputs("</svg>\n", p->file);
    }
    table(p, op);
}

int32_t hd__bench_html(const char *path, const char *title, const json_t *rows, struct hd_error *err)
{
    struct page p = {.file = fopen(path, "w"), .rows = rows};
    int bad;
    if (!p.file)
        return hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    fputs(head, p.file);
    fprintf(p.file, "<h1>heddle bench</h1>\n<p>%s</p>\n", title);
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (first_of(rows, i, "op", NULL))
            chart(&p, word(json_array_get(rows, i), "op"));
    fputs("</html>\n", p.file);
    bad = ferror(p.file);
    return fclose(p.file) || bad ? hd_fail(err, HD_E_IO, "%s: cannot be written", path) : HD_OK;
}
