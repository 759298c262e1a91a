/* heddle report without --html: a table and lines of characters. */
#include <math.h>
#include <stdlib.h>

#include "cli/report/report.h"

enum { COLUMNS = 56, CELL = 34, EVENTS_MAX = 10 };

/* Nine heights of plain characters. */
static const char heights[] = "_.,-~=+*#";

static void add_cell(const char *text, int width, struct hd__text *out)
{
    hd__text_add(out, "  %-*.*s", width, width, text);
}

static int cell_width(const struct hd__report *r)
{
    return r->n == 1 ? 60 : CELL;
}

static void end_line(struct hd__text *out)
{
    while (out->length && out->at[out->length - 1] == ' ')
        out->at[--out->length] = 0;
    hd__text_add(out, "\n");
}

static void add_head(const struct hd__report *r, int width, struct hd__text *out)
{
    hd__text_add(out, "%-*s", width, "");
    for (uint32_t k = 0; k < r->n; k++)
        add_cell(r->runs[k].label, cell_width(r), out);
    end_line(out);
}

static void add_facts(const struct hd__report *r, struct hd__text *out)
{
    add_head(r, 22, out);
    for (size_t k = 0; hd__report_fact_name(k); k++) {
        hd__text_add(out, "%-22s", hd__report_fact_name(k));
        for (uint32_t i = 0; i < r->n; i++) {
            struct hd__text text = {0};
            hd__report_fact(&r->runs[i], k, &text);
            add_cell(text.at, cell_width(r), out);
            hd__text_free(&text);
        }
        end_line(out);
    }
}

/* ---- sparklines */

/* Means of the rows that fall into each column; NaN: none do. */
static void columns_of(const struct hd__report_run *run, const double *values, double out[COLUMNS])
{
    double sum[COLUMNS] = {0}, n[COLUMNS] = {0}, last = run->step[run->n_rows - 1];
    for (uint32_t i = 0; i < run->n_rows; i++) {
        int c = (int)fmin((run->step[i] - 0.5) / last * COLUMNS, COLUMNS - 1);
        if (isfinite(values[i]) && c >= 0) {
            sum[c] += values[i];
            n[c]++;
        }
    }
    for (int c = 0; c < COLUMNS; c++)
        out[c] = n[c] ? sum[c] / n[c] : NAN;
}

static void add_line(const struct hd__report_run *run, const char *field, int width, struct hd__text *out)
{
    const double *values = hd__report_values(run, field);
    double column[COLUMNS], lo = INFINITY, hi = -INFINITY, last = NAN, first = NAN;
    if (!values)
        return;
    columns_of(run, values, column);
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (isfinite(values[i])) {
            first = isnan(first) ? values[i] : first;
            last = values[i];
        }
    for (int c = 0; c < COLUMNS; c++) {
        lo = fmin(lo, isnan(column[c]) ? lo : column[c]);
        hi = fmax(hi, isnan(column[c]) ? hi : column[c]);
    }
    hd__text_add(out, "%-14.14s %-*.*s ", field, width, width, run->label);
    for (int c = 0; c < COLUMNS; c++)
        hd__text_add(out, "%c",
                     isnan(column[c]) ? ' ' : heights[(int)(hi > lo ? (column[c] - lo) / (hi - lo) * 8 + 0.5 : 4)]);
    hd__text_add(out, "  %.4g -> %.4g\n", first, last);
}

static void add_lines(const struct hd__report *r, struct hd__text *out)
{
    static const char *const fields[] = {"loss",   "val_loss", "tokens_per_s", "step_s",    "exposed_comm_s",
                                         "comm_s", "mfu",      "data_wait_s",  "rss_bytes", "grad_norm",
                                         "lr"};
    int width = 4;
    for (uint32_t k = 0; k < r->n; k++)
        width = HD__MAX(width, HD__MIN((int)strlen(r->runs[k].label), 20));
    hd__text_add(out, "\nby step, low to high %s; first -> last\n", heights);
    for (size_t f = 0; f < HD__COUNT(fields); f++)
        for (uint32_t k = 0; k < r->n; k++)
            if (r->runs[k].n_rows)
                add_line(&r->runs[k], fields[f], width, out);
}

/* ---- the page */

/* Bytes at which cells of so many columns begin to show that values differ: not 0 where these begin alike. */
static size_t alike(const json_t *values, size_t columns)
{
    const char *first = NULL;
    size_t same = SIZE_MAX, i;
    json_t *value;
    json_array_foreach(values, i, value)
    {
        const char *text = json_is_string(value) ? json_string_value(value) : "-";
        size_t n = 0;
        first = first ? first : text;
        while (text[n] && text[n] == first[n])
            n++;
        same = i ? HD__MIN(same, n) : same;
    }
    size_t from = same < columns - 4 || same == SIZE_MAX ? 0 : same - columns / 2;
    while (from && (first[from] & 0xC0) == 0x80) /* within a character of UTF-8 */
        from--;
    return from;
}

static void add_differences(const struct hd__report *r, struct hd__text *out)
{
    json_t *rows = hd__report_differences(r), *row, *value;
    size_t i, k;
    hd__text_add(out, "\nkeys that differ%s\n", json_array_size(rows) ? "" : ": none");
    json_array_foreach(rows, i, row)
    {
        const json_t *values = json_object_get(row, "values");
        size_t from = alike(values, CELL);
        hd__text_add(out, "%-22s", json_string_value(json_object_get(row, "key")));
        json_array_foreach(values, k, value)
        {
            char *cell =
                hd__format("%s%s", from ? "..." : "", json_is_string(value) ? json_string_value(value) + from : "-");
            add_cell(cell, CELL, out);
            free(cell);
        }
        end_line(out);
    }
    json_decref(rows);
}

static void add_events(const struct hd__report_run *run, struct hd__text *out)
{
    size_t i, n = json_array_size(run->events), from = n > EVENTS_MAX ? n - EVENTS_MAX : 0;
    json_t *event, *report;
    if (n)
        hd__text_add(out, "\n%s: events%s\n", run->label, from ? ", the newest ten" : "");
    json_array_foreach(run->events, i, event)
    {
        if (i < from)
            continue;
        hd__text_add(out, "  step %-8.0f ", hd__report_event_step(event));
        hd__report_event_words(event, out);
        hd__text_add(out, "\n");
    }
    json_array_foreach(run->reports, i, report)
        hd__text_add(out, "  failed: %s (`heddle debug %s`)\n", json_string_value(json_object_get(report, "words")),
                     json_string_value(json_object_get(report, "file")));
}

void hd__report_text(const struct hd__report *r, struct hd__text *out)
{
    add_facts(r, out);
    if (r->n > 1)
        add_differences(r, out);
    add_lines(r, out);
    for (uint32_t k = 0; k < r->n; k++)
        add_events(&r->runs[k], out);
}
