/* heddle bench --html: one self-contained page: for each operation its charts and a table of the numbers, the fastest
 * of each size in bold. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/curves.h"
#include "core/base/file.h"

struct page {
    FILE *file;
    const json_t *rows;
    const char *comm[HD__PLOT_SERIES];
    int n;
};

/* Whether this is the first row with its value of `key`. */
static int first_of(const json_t *rows, size_t at, const char *key)
{
    const char *value = hd__json_word(json_array_get(rows, at), key);
    for (size_t i = 0; i < at; i++)
        if (!strcmp(hd__json_word(json_array_get(rows, i), key), value))
            return 0;
    return 1;
}

/* ---- a table */

static void table_head(const struct page *p, int in_place)
{
    fprintf(p->file,
            "<div class=\"wide\"><table><caption>%s; times in us, bandwidths in GB/s; bold: the fastest</caption>\n"
            "<thead><tr><th></th>",
            in_place ? "in place" : "out of place");
    for (int k = 0; k < p->n; k++) {
        fputs("<th class=\"first group\" colspan=\"4\">", p->file);
        hd__plot_put_xml(p->file, p->comm[k]);
        fputs("</th>", p->file);
    }
    fputs("</tr><tr><th>size (B)</th>", p->file);
    for (int k = 0; k < p->n; k++)
        fputs("<th class=\"first\">time</th><th>p50</th><th>p99</th><th>busbw</th>", p->file);
    fputs("</tr></thead><tbody>\n", p->file);
}

/* At least three significant digits. */
static int decimals(double value)
{
    return value < 100 ? 2 : value < 1000 ? 1 : 0;
}

static void cell(const struct page *p, const json_t *row, int best)
{
    if (!row) {
        fputs("<td class=\"first\" colspan=\"4\"></td>", p->file);
        return;
    }
    if (hd__json_number(row, "errors") > 0) {
        fprintf(p->file, "<td class=\"first bad\" colspan=\"4\">%.0f elements wrong</td>",
                hd__json_number(row, "errors"));
        return;
    }
    static const char *const times[] = {"time_us", "p50_us", "p99_us"};
    for (int k = 0; k < 3; k++) {
        double value = hd__json_number(row, times[k]);
        fprintf(p->file, "<td%s>%.*f</td>",
                k      ? ""
                : best ? " class=\"first best\""
                       : " class=\"first\"",
                decimals(value), value);
    }
    fprintf(p->file, "<td>%.3f</td>", hd__json_number(row, "busbw_gbs"));
}

static void table(const struct page *p, const char *op, int in_place)
{
    size_t i;
    json_t *row;
    int seen = 0;
    json_array_foreach((json_t *)p->rows, i, row)
    {
        uint64_t bytes = (uint64_t)hd__json_number(row, "bytes");
        if (hd__bench_find_row(p->rows, p->comm[0], op, in_place, bytes) != row)
            continue;
        if (!seen++)
            table_head(p, in_place);
        int best = hd__bench_fastest(p->rows, p->comm, p->n, op, in_place, bytes);
        fprintf(p->file, "<tr><td>%llu</td>", (unsigned long long)bytes);
        for (int k = 0; k < p->n; k++)
            cell(p, hd__bench_find_row(p->rows, p->comm[k], op, in_place, bytes), p->n > 1 && best == k);
        fputs("</tr>\n", p->file);
    }
    if (seen)
        fputs("</tbody></table></div>\n", p->file);
}

/* ---- the page */

static int has(const struct page *p, const char *op, int in_place)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)p->rows, i,
                       row) if (!strcmp(hd__json_word(row, "op"), op) &&
                                json_is_true(json_object_get(row, "in_place")) == in_place) return 1;
    return 0;
}

/* A chart's elements: of the rows of one operation. */
static void curves(const struct page *p, const char *op, int in_place, int top)
{
    json_t *drawn = json_array(), *row;
    struct hd__curves c = {.rows = drawn,
                           .series = "comm",
                           .name = p->comm,
                           .n = p->n,
                           .is_bytes = 1,
                           .x = "bytes",
                           .x_name = "size (bytes; K = 1024)",
                           .value = {{"time_us", "time", "us", "; lower is better"},
                                     {"busbw_gbs", "bus bandwidth", "GB/s", "; higher is better"},
                                     {"p99_us", "p99", "us", ""}}};
    size_t i;
    json_array_foreach(p->rows, i, row) if (!strcmp(hd__json_word(row, "op"), op) &&
                                            json_is_true(json_object_get(row, "in_place")) == in_place)
        json_array_append(drawn, row);
    hd__curves_write(p->file, &c, top);
    json_decref(drawn);
}

static void chart(const struct page *p, const char *op, int in_place)
{
    char label[96];
    snprintf(label, sizeof label, "%s: time and bus bandwidth over size", op);
    fputs("<div class=\"wide\">", p->file);
    hd__plot_open(p->file, HD__CURVES_WIDTH, HD__CURVES_HEIGHT, label);
    curves(p, op, in_place, 0);
    fputs("</svg></div>\n", p->file);
}

static void operation(const struct page *p, const json_t *row)
{
    const char *op = hd__json_word(row, "op");
    int in_place = !has(p, op, 0);
    fprintf(p->file, "<h2>%s</h2>\n<p>%s, %s</p>\n", op, hd__json_word(row, "dtype"),
            in_place ? "in place" : "out of place");
    if (hd__json_number(row, "bytes") > 0)
        chart(p, op, in_place);
    table(p, op, 0);
    table(p, op, 1);
}

static struct page page_of(const char *path, const json_t *rows, struct hd_error *err)
{
    struct page p = {.file = hd__output_create(path, HD__OUTPUT_MARK, err), .rows = rows};
    for (size_t i = 0; i < json_array_size(rows) && p.n < HD__PLOT_SERIES; i++)
        if (first_of(rows, i, "comm"))
            p.comm[p.n++] = hd__json_word(json_array_get(rows, i), "comm");
    return p;
}

int32_t hd__bench_write_svg(const char *path, const char *title, const json_t *rows, struct hd_error *err)
{
    enum { HEAD = 36, STEP = HD__CURVES_HEIGHT + HEAD };
    struct page p = page_of(path, rows, err);
    int top = HEAD, charts = 0;
    if (!p.file)
        return err->code;
    for (size_t i = 0; i < json_array_size(rows); i++)
        charts += first_of(rows, i, "op") && hd__json_number(json_array_get(rows, i), "bytes") > 0;
    hd__plot_open_file(p.file, HD__CURVES_WIDTH, HEAD + charts * STEP);
    hd__plot_text(p.file, 12, 24, "start", 0, title);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *op = hd__json_word(row, "op");
        if (!first_of(rows, i, "op") || hd__json_number(row, "bytes") <= 0)
            continue;
        char head[96];
        snprintf(head, sizeof head, "%s, %s", op, hd__json_word(row, "dtype"));
        hd__plot_text(p.file, 12, top + 18, "start", 1, head);
        curves(&p, op, !has(&p, op, 0), top + HEAD - 16);
        top += STEP;
    }
    fputs("</svg>\n", p.file);
    return hd__output_close(p.file, path, err);
}

int32_t hd__bench_write_html(const char *path, const char *title, const char *const *words, const json_t *rows,
                             struct hd_error *err)
{
    struct page p = page_of(path, rows, err);
    if (!p.file)
        return err->code;
    hd__plot_page(p.file, "heddle bench: transports", "");
    fprintf(p.file,
            "<h1>Transports side by side</h1>\n<p>%s</p>\n<p>time: the median over batches of the mean of calls back to"
            " back, of the slowest rank; p50, p99: of single calls; busbw: as nccl-tests defines it</p>\n",
            title);
    hd__plot_put_command(p.file, words);
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (first_of(rows, i, "op"))
            operation(&p, json_array_get(rows, i));
    fputs("</html>\n", p.file);
    return hd__output_close(p.file, path, err);
}
