/* heddle report --html: one page that needs nothing beside it. */
#include <math.h>
#include <stdlib.h>

#include "cli/plot.h"
#include "cli/report/report.h"

enum { EVENTS_MAX = 200 };

static const char style[] =
    ".grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:.4rem 1rem}"
    ".grid2 svg{min-width:0}\n"
    ".legend{position:sticky;top:0;background:var(--back);padding:.4rem 0;z-index:1}.legend span{white-space:nowrap;"
    "margin-right:1.4rem;color:var(--text)}.legend svg{width:34px;min-width:0;height:12px;vertical-align:-1px;"
    "margin-right:.4rem}\n"
    ".facts td,.facts thead th{text-align:left;padding:2px 14px 2px 0}.facts th{text-align:left;padding-right:1.4rem}\n"
    ".facts td{white-space:normal;max-width:36rem;overflow-wrap:anywhere}\n"
    ".fault{color:var(--bad);margin:.1rem 0}pre{columns:2;column-gap:2rem}\n";

static void put_head(const struct hd__report *r, FILE *file)
{
    fputs("<thead><tr><th></th>", file);
    for (uint32_t k = 0; k < r->n; k++)
        hd__plot_put(file, "th", r->runs[k].label);
    fputs("</tr></thead><tbody>\n", file);
}

/* ---- legend */

static void put_sample(FILE *file, int k, int with_mark, const char *name)
{
    fputs("<span>", file);
    fputs("<svg class=\"chart\" viewBox=\"0 0 34 12\" aria-hidden=\"true\">", file);
    hd__plot_line(file, k, 2, 1, 0);
    fputs("0,6 34,6\"/>", file);
    if (with_mark)
        hd__plot_mark(file, 17, 6, k);
    fputs("</svg>", file);
    hd__plot_put_xml(file, name);
    fputs("</span>\n", file);
}

static void put_sign(FILE *file, const char *path, const char *name)
{
    fprintf(file, "<span><svg class=\"chart\" viewBox=\"0 0 34 12\" aria-hidden=\"true\">%s</svg>%s</span>\n", path,
            name);
}

static void put_legend(FILE *file, const struct hd__report *r)
{
    fputs("<p class=\"legend\">", file);
    if (r->n == 1) {
        put_sample(file, 0, 0, "loss (training)");
        if (hd__report_values(&r->runs[0], "val_loss"))
            put_sample(file, 1, 1, "val_loss");
    }
    for (uint32_t k = 0; k < r->n && r->n > 1; k++)
        put_sample(file, (int)k, 1, r->runs[k].label);
    put_sign(file, "<path d=\"M17 11l5 -9h-10z\" fill=\"#c11c28\" class=\"alarm\"/>", "alarm");
    put_sign(file, "<path d=\"M17 1l4 5l-4 5l-4 -5z\" fill=\"#009e73\"/>", "save");
    put_sign(file, "<path d=\"M17 0V12\" stroke=\"#57606f\" stroke-width=\"2\" stroke-dasharray=\"4 3\"/>",
             "restart, resume");
    fputs("</p>\n", file);
}

/* ---- tables */

static void put_facts(FILE *file, const struct hd__report *r)
{
    fputs("<div class=\"wide\"><table class=\"facts\">", file);
    put_head(r, file);
    for (size_t k = 0; hd__report_fact_name(k); k++) {
        fputs("<tr>", file);
        hd__plot_put(file, "th", hd__report_fact_name(k));
        for (uint32_t i = 0; i < r->n; i++) {
            struct hd__text text = {0};
            hd__report_fact(&r->runs[i], k, &text);
            hd__plot_put(file, "td", text.at);
            hd__text_free(&text);
        }
        fputs("</tr>\n", file);
    }
    fputs("</tbody></table></div>\n", file);
}

static void put_differences(FILE *file, const struct hd__report *r)
{
    json_t *rows = hd__report_differences(r), *row, *value;
    size_t i, k;
    fputs("<h2>Keys that differ</h2>\n", file);
    if (!json_array_size(rows))
        fputs("<p>none: the runs have the same job</p>\n", file);
    else {
        fputs("<div class=\"wide\"><table class=\"facts\">", file);
        put_head(r, file);
        json_array_foreach(rows, i, row)
        {
            fputs("<tr>", file);
            hd__plot_put(file, "th", json_string_value(json_object_get(row, "key")));
            json_array_foreach(json_object_get(row, "values"), k, value)
                hd__plot_put(file, "td", json_is_string(value) ? json_string_value(value) : "-");
            fputs("</tr>\n", file);
        }
        fputs("</tbody></table></div>\n", file);
    }
    json_decref(rows);
}

static void put_faults(FILE *file, const struct hd__report *r)
{
    size_t i;
    json_t *report;
    for (uint32_t k = 0; k < r->n; k++) {
        for (uint32_t f = 0; f < r->runs[k].faults.count; f++) {
            fputs("<p class=\"fault\">", file);
            hd__plot_put_xml(file, r->runs[k].faults.at[f]);
            fputs("</p>\n", file);
        }
        json_array_foreach(r->runs[k].reports, i, report)
        {
            fputs("<p class=\"fault\">failed: ", file);
            hd__plot_put_xml(file, json_string_value(json_object_get(report, "words")));
            hd__plot_put(file, "code", json_string_value(json_object_get(report, "file")));
            fputs("</p>\n", file);
        }
    }
}

static void put_events(FILE *file, const struct hd__report_run *run)
{
    size_t i, n = json_array_size(run->events), from = n > EVENTS_MAX ? n - EVENTS_MAX : 0;
    json_t *event;
    if (!n)
        return;
    fputs("<details><summary>", file);
    hd__plot_put_xml(file, run->label);
    fprintf(file,
            ": %zu events%s</summary><table class=\"facts\"><thead><tr><th>step</th><th></th></tr></thead><tbody>\n", n,
            from ? ", the newest 200 of them" : "");
    json_array_foreach(run->events, i, event)
    {
        struct hd__text words = {0};
        if (i < from)
            continue;
        hd__report_event_words(event, &words);
        fprintf(file, "<tr><td>%.0f</td>", hd__report_event_step(event));
        hd__plot_put(file, "td", words.at);
        fputs("</tr>\n", file);
        hd__text_free(&words);
    }
    fputs("</tbody></table></details>\n", file);
}

static void put_settings(FILE *file, const struct hd__report_run *run, int open)
{
    json_t *all = hd__report_settings(run), *value;
    const char *key;
    fprintf(file, "<details%s><summary>", open ? " open" : "");
    hd__plot_put_xml(file, run->label);
    fputs(": every key, as words of a command line</summary><pre>", file);
    json_object_foreach(all, key, value)
    {
        hd__plot_put_xml(file, key);
        putc('=', file);
        hd__plot_put_xml(file, json_string_value(value));
        putc('\n', file);
    }
    fputs("</pre></details>\n", file);
    json_decref(all);
}

void hd__report_page(FILE *file, const struct hd__report *r, const char *const *words)
{
    struct hd__text title = {0};
    for (uint32_t k = 0; k < r->n; k++)
        hd__text_add(&title, "%s%s", k ? ", " : "", r->runs[k].label);
    hd__plot_page(file, title.at, style);
    hd__plot_put(file, "h1", title.at);
    hd__text_free(&title);
    hd__plot_put_command(file, words);
    put_faults(file, r);
    put_facts(file, r);
    if (r->n > 1)
        put_differences(file, r);
    fputs("<h2>Curves</h2>\n", file);
    put_legend(file, r);
    hd__report_charts(file, r);
    fputs("<p>Thick lines are means over a fortieth of the rows around, thin ones the rows. Training time is the sum "
          "of step "
          "times, without evaluations and saves.</p>\n",
          file);
    hd__report_timelines(file, r);
    fputs("<h2>Events</h2>\n", file);
    for (uint32_t k = 0; k < r->n; k++)
        put_events(file, &r->runs[k]);
    fputs("<h2>Job</h2>\n", file);
    for (uint32_t k = 0; k < r->n; k++)
        put_settings(file, &r->runs[k], r->n == 1);
    fputs("</html>\n", file);
}
