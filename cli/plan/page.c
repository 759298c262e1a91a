#include "cli/plan/page.h"

#include <math.h>

#include "analysis/plan/plan.h"
#include "cli/curves.h"
#include "core/base/file.h"
#include "service/report/json_fields.h"

enum { WIDE = 1056, EDGE = 16, TOP = 34, BAR = 220 };

static const char style[] = ".text{text-align:left;white-space:normal;max-width:34rem;overflow-wrap:break-word}\n"
                            ".bar svg{width:220px;min-width:0;height:12px;vertical-align:-1px}\n";

/* ---- tables */

/* SAMPLE: text behind a colour. From COUNT on 0 is not known. */
enum { TEXT, SAMPLE, WHOLE, BYTES, SECONDS, SHARE, COUNT, LONG, FAILURES, ENERGY };

struct column {
    const char *name, *key; /* "memory.peak": of an object in the row */
    int kind;
};

/* Figures of a plan, of --search, --sweep, --scaling: each has some of them. */
static const struct column plan_columns[] = {{"words", "words", TEXT},
                                             {"", "kind", TEXT},
                                             {"parameters", "parameters", COUNT},
                                             {"ranks", "ranks", WHOLE},
                                             {"batch", "batch", WHOLE},
                                             {"step", "step_s", SECONDS},
                                             {"tokens/s", "tokens_per_s", COUNT},
                                             {"efficiency", "efficiency", SHARE},
                                             {"MFU", "mfu", SHARE},
                                             {"HFU", "hfu", SHARE},
                                             {"bubble", "bubble", SHARE},
                                             {"exposed", "exposed_s", SECONDS},
                                             {"empty places", "empty", SHARE},
                                             {"memory", "memory", BYTES},
                                             {"memory", "memory.peak", BYTES},
                                             {"copies in host memory", "memory.copies", BYTES},
                                             {"bound by", "binds", TEXT},
                                             {"bound", "bound_s", SECONDS}};

/* NULL: the row has none. */
static const json_t *value_of(const json_t *row, const char *key)
{
    char first[32];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(key, "."), key);
    const json_t *value = json_object_get(row, first);
    value = key[strlen(first)] ? json_object_get(value, key + strlen(first) + 1) : value;
    return json_is_number(value) || json_is_string(value) ? value : NULL;
}

static const char *number_text(double value, int kind, char out[32])
{
    if (kind == BYTES)
        return hd__bytes_text((uint64_t)value, out);
    if (kind == SECONDS || kind == LONG)
        return kind == LONG ? hd__plan_long_text(value, out) : hd__seconds_text(value, out);
    if (kind == COUNT || kind == ENERGY)
        return hd__plan_count_text(kind == ENERGY ? value / 3.6e6 : value, out);
    snprintf(out, 32, kind == WHOLE ? "%.0f" : kind == SHARE ? "%.1f %%" : "%.1f", kind == SHARE ? 100 * value : value);
    return out;
}

/* The largest of a column; below 0: no row has a value, and the column is not shown. */
static double most_of(const json_t *rows, const struct column *c)
{
    double most = -1;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (value_of(row, c->key)) most =
        fmax(most, json_number_value(value_of(row, c->key)));
    return most > 0 || c->kind < COUNT ? most : -1;
}

static void put_bar(FILE *file, double share, int k)
{
    fprintf(file, "<td class=\"bar\"><svg class=\"chart\" viewBox=\"0 0 %d 12\" aria-hidden=\"true\">", BAR);
    hd__plot_box(file, 0, 1, BAR * share, 10, k);
    fputs("</svg></td>", file);
}

static void put_cell(FILE *file, const json_t *row, const struct column *c, int at)
{
    const json_t *value = value_of(row, c->key);
    int is_over = json_is_false(json_object_get(row, "fits")) && !strncmp(c->name, "memory", 6);
    char text[32];
    fprintf(file, "<td%s>", c->kind <= SAMPLE ? " class=\"text\"" : is_over ? " class=\"bad\"" : "");
    if (c->kind == SAMPLE) {
        fputs("<svg class=\"chart swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\">", file);
        hd__plot_box(file, 0, 0, 12, 12, json_is_true(json_object_get(row, "free")) ? -1 : at);
        fputs("</svg> ", file);
    }
    if (json_is_string(value))
        hd__plot_put_xml(file, json_string_value(value));
    else if (value)
        fprintf(file, "<data value=\"%.17g\">%s</data>%s", json_number_value(value),
                number_text(json_number_value(value), c->kind, text), is_over ? ", does not fit" : "");
    fputs("</td>", file);
}

/* Before the numbers of the column `bar` (NULL: of none) are bars, from 0. Of a row with an error its first cell and
 * that are shown. */
static void put_table(FILE *file, const json_t *rows, const char *caption, const char *bar, const struct column *c,
                      size_t n)
{
    size_t i, shown = 0;
    json_t *row;
    fprintf(file, "<div class=\"wide\"><table><caption>%s</caption><thead><tr>", caption);
    for (size_t k = 0; k < n; k++)
        if (most_of(rows, &c[k]) >= 0) {
            int is_drawn = bar && !strcmp(c[k].key, bar);
            fprintf(file, "<th scope=\"col\"%s colspan=\"%d\">%s</th>", c[k].kind <= SAMPLE ? " class=\"text\"" : "",
                    is_drawn + 1, c[k].name);
            shown += (size_t)is_drawn + 1;
        }
    fputs("</tr></thead><tbody>\n", file);
    json_array_foreach(rows, i, row)
    {
        const char *error = hd__json_word(row, "error");
        fputs("<tr>", file);
        for (size_t k = 0; k < (*error ? 1 : n); k++) {
            double most = most_of(rows, &c[k]);
            if (most >= 0 && bar && !strcmp(c[k].key, bar))
                put_bar(file, most > 0 ? hd__json_number(row, bar) / most : 0,
                        json_is_false(json_object_get(row, "fits")));
            if (most >= 0)
                put_cell(file, row, &c[k], (int)i);
        }
        if (*error) {
            fprintf(file, "<td class=\"text\" colspan=\"%zu\">refused: ", shown - 1);
            hd__plot_put_xml(file, error);
            fputs("</td>", file);
        }
        fputs("</tr>\n", file);
    }
    fputs("</tbody></table></div>\n", file);
}

static void put_one(FILE *file, const json_t *row, const char *caption, const struct column *c, size_t n)
{
    json_t *rows = json_pack("[O]", row);
    put_table(file, rows, caption, NULL, c, n);
    json_decref(rows);
}

/* ---- a bar of parts */

struct parts {
    json_t *rows; /* {"name", "value", "share", "free": nothing is there} */
    double whole, sum;
};

static void add_part(struct parts *p, const char *name, double value, int is_free)
{
    json_array_append_new(p->rows, json_pack("{s:s, s:f, s:f, s:b}", "name", name, "value", value, "share",
                                             value / p->whole, "free", is_free));
    p->sum += value;
}

/* Draws the parts side by side, and a line at `whole`; frees them. */
static void put_parts(FILE *file, struct parts *parts, const char *title, int kind, const char *whole)
{
    const struct column columns[] = {{"", "name", SAMPLE},
                                     {title, "value", kind},
                                     {kind == BYTES ? "of the machine's" : "of the step", "share", SHARE}};
    struct hd__plot p = {.file = file, .left = EDGE, .right = WIDE - EDGE, .top = TOP, .bottom = TOP + 40, .y1 = 1};
    double at = 0, most = fmax(parts->sum, parts->whole), scale;
    const char *unit;
    char text[32];
    size_t i;
    json_t *row;
    scale = hd__plot_unit(kind == BYTES ? HD__PLOT_BYTES : HD__PLOT_SECONDS, most, &unit);
    p.x1 = most / scale;
    fputs("<div class=\"wide\">", file);
    hd__plot_open(file, WIDE, p.bottom + 28, title);
    hd__plot_ticks(&p, 10, 0);
    hd__plot_axes(&p, title, unit, "");
    json_array_foreach(parts->rows, i, row)
    {
        double value = hd__json_number(row, "value"), x = hd__plot_x(&p, at / scale);
        fputs("<g class=\"point\">", file);
        hd__plot_box(file, x, TOP + 8, hd__plot_x(&p, (at + value) / scale) - x, 32,
                     json_is_true(json_object_get(row, "free")) ? -1 : (int)i);
        fprintf(file, "<title>%s: %s</title></g>\n", hd__json_word(row, "name"), number_text(value, kind, text));
        at += value;
    }
    hd__plot_line(file, 6, 2, 1, 0);
    at = hd__plot_x(&p, parts->whole / scale);
    fprintf(file, "%.1f,%d %.1f,%.1f\"/>", at, TOP - 6, at, p.bottom);
    hd__plot_text(file, p.right, TOP - 12, "end", 1, whole);
    fputs("</svg></div>\n", file);
    put_table(file, parts->rows, "", NULL, columns, HD__COUNT(columns));
    json_decref(parts->rows);
}

/* ---- one plan */

static void put_memory(FILE *file, const struct hd__plan_page *page, const json_t *plan)
{
    const json_t *memory = json_object_get(plan, "memory");
    struct parts p = {.rows = json_array(), .whole = hd__json_number(plan, "memory_limit")};
    char text[128], bytes[32];
    for (uint32_t k = 0; k < HD__MEMORY_KINDS; k++)
        add_part(&p, hd__memory_kind_name(k), hd__json_number(memory, hd__memory_kind_name(k)), 0);
    if (p.sum < p.whole)
        add_part(&p, "headroom", p.whole - p.sum, 1);
    snprintf(text, sizeof text, "a rank of %.60s: %s", page->machine->name, hd__bytes_text((uint64_t)p.whole, bytes));
    fputs("<h2>Memory of the fullest rank</h2>\n", file);
    put_parts(file, &p, "memory", BYTES, text);
    fputs("<p>At the moment when it is fullest: parameters are the weights that it keeps, optimizer master weights and "
          "moments, gradients their sums, buffers gathered weights, staging and what aligning adds, activations all "
          "else. The workspaces of libraries are taken from the headroom: of CUDA, cuBLAS and NCCL 1 to 2 GB.</p>\n",
          file);
}

static void put_step(FILE *file, const json_t *plan)
{
    static const struct column columns[] = {
        {"axis", "axis", TEXT}, {"sent a step by a rank", "sent", BYTES}, {"exposed", "exposed", SECONDS}};
    struct parts p = {.rows = json_array(), .whole = hd__json_number(plan, "step_s")};
    json_t *traffic = json_array();
    char text[64], seconds[32];
    add_part(&p, "compute", hd__json_number(plan, "compute_s"), 0);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        const char *axis = hd__axis_name(a);
        double sent = hd__json_number(json_object_get(plan, "traffic"), axis);
        double exposed = hd__json_number(json_object_get(plan, "exposed_s"), axis);
        if (sent > 0 || exposed > 0)
            json_array_append_new(traffic,
                                  json_pack("{s:s, s:f, s:f}", "axis", axis, "sent", sent, "exposed", exposed));
        snprintf(text, sizeof text, "exposed: %s", axis);
        if (exposed > 0 && a != HD_AXIS_PP) /* that of pp is part of the bubble */
            add_part(&p, text, exposed, 0);
    }
    add_part(&p, hd__json_number(plan, "bubble") > 0 ? "bubble" : "idle", fmax(0, p.whole - p.sum), 1);
    snprintf(text, sizeof text, "step: %s", hd__seconds_text(p.whole, seconds));
    fputs("<h2>Time of a step</h2>\n", file);
    put_parts(file, &p, "time of a rank, mean over stages", SECONDS, text);
    fputs("<p>Exposed is communication during which a rank computes nothing; axes that are exposed at once count each. "
          "The rest, bubble or idle, is waiting for other stages (pp) and for offloaded memory, and sections that run "
          "every N steps.</p>\n",
          file);
    if (json_array_size(traffic)) {
        fputs("<h2>Traffic</h2>\n", file);
        put_table(file, traffic, "", "sent", columns, HD__COUNT(columns));
    }
    json_decref(traffic);
}

static void put_plan(FILE *file, const struct hd__plan_page *page, const json_t *plan)
{
    static const struct column training[] = {{"tokens", "tokens", COUNT},
                                             {"time", "seconds", LONG},
                                             {"rank-hours", "rank_hours", COUNT},
                                             {"dollars", "dollars", COUNT},
                                             {"energy, kWh", "joules", ENERGY},
                                             {"failures to expect", "failures", FAILURES},
                                             {"best save interval", "checkpoint_every_s", LONG}},
                               assumed[] = {{"states", "states", BYTES}, {"activations", "activations", BYTES}};
    const json_t *all = json_object_get(plan, "training"), *forms = json_object_get(plan, "assumed_memory");
    put_one(file, plan,
            "MFU: the model's FLOPs, of the peak; HFU: with what is computed again; bubble: of the stages' work",
            plan_columns, HD__COUNT(plan_columns));
    put_memory(file, page, plan);
    if (forms)
        put_one(file, forms, "as assumed, blocks of stage 0", assumed, HD__COUNT(assumed));
    put_step(file, plan);
    if (json_is_object(all)) {
        fputs("<h2>Training</h2>\n", file);
        put_one(file, all, "time: without failures; interval: that which loses least (Daly 2006)", training,
                HD__COUNT(training));
    }
}

/* ---- several */

static void put_found(FILE *file, const json_t *plan, const json_t *plans, int is_fewest)
{
    fprintf(file, "<h2>The %s</h2>\n", is_fewest ? "fewest ranks" : "fastest");
    put_table(file, plans,
              is_fewest ? "bound by: what one rank less lacks" : "bound: none of this mesh and recompute is faster",
              "step_s", plan_columns, HD__COUNT(plan_columns));
    if (!is_fewest)
        fprintf(file,
                "<p>%.0f candidates: %.0f tried, of which %.0f are not possible; %.0f do not fit; %.0f were not tried, "
                "because their bounds are above the last of these</p>\n",
                hd__json_number(plan, "candidates"), hd__json_number(plan, "tried"), hd__json_number(plan, "refused"),
                hd__json_number(plan, "too_large"), hd__json_number(plan, "slower"));
}

static void put_scaling(FILE *file, const json_t *rows)
{
    static const char *const kinds[] = {"strong", "weak"};
    const struct hd__curves c = {.rows = rows,
                                 .series = "kind",
                                 .name = kinds,
                                 .n = HD__COUNT(kinds),
                                 .x = "ranks",
                                 .x_name = "ranks",
                                 .value = {{"step_s", "step", "s", "; lower is better"},
                                           {"tokens_per_s", "tokens/s", "", "higher is better"},
                                           {"efficiency", "efficiency", "", ""}}};
    fputs("<h2>Scaling</h2>\n<div class=\"wide\">", file);
    hd__plot_open(file, HD__CURVES_WIDTH, HD__CURVES_HEIGHT, "step and tokens/s by ranks, strong and weak");
    hd__curves_write(file, &c, 0);
    fputs("</svg></div>\n", file);
    put_table(file, rows, "strong: the job's batch on all ranks; weak: a batch that grows with them", NULL,
              plan_columns, HD__COUNT(plan_columns));
}

/* ---- the page */

/* With the machine's file, whose comments have the source of each figure. */
static void put_assumptions(FILE *file, const struct hd__plan_page *page)
{
    char line[512];
    struct hd_error err = HD_ERROR_INIT;
    FILE *in = hd__open_regular(page->machine->path, "machine", &err);
    fputs("<h2>Assumptions</h2>\n<p>Memory is exact: that of the job's own programs. Times are estimates from the "
          "figures below, by a simulation of one rank a pipeline stage. Not modelled: collectives and messages that "
          "share a link, variation between machines, the input of data.</p>\n",
          file);
    if (page->assumed) {
        fputs("<p>As another system runs it: ", file);
        hd__plot_put(file, "code", page->assumed);
        fputs("</p>\n", file);
    }
    fputs("<details>", file);
    hd__plot_put(file, "summary", page->machine->path);
    fputs("<pre>", file);
    while (in && fgets(line, sizeof line, in))
        hd__plot_put_xml(file, line);
    fputs("</pre></details>\n", file);
    if (in)
        fclose(in);
}

static void put_title(FILE *file, const struct hd__plan_page *page)
{
    struct hd__text title = {0};
    hd__text_add(&title, "%s on ", page->name);
    if (page->ranks)
        hd__text_add(&title, "%lld rank%s of ", (long long)page->ranks, page->ranks > 1 ? "s" : "");
    hd__text_add(&title, "%s", page->machine->name);
    hd__plot_page(file, title.at, style);
    hd__plot_put(file, "h1", title.at);
    hd__text_free(&title);
    hd__plot_put_command(file, page->words);
}

int32_t hd__plan_write_page(const char *path, const struct hd__plan_page *page, const json_t *plan,
                            struct hd_error *err)
{
    json_t *fewest = json_object_get(plan, "fewest"), *scaling = json_object_get(plan, "scaling");
    json_t *plans = fewest ? json_pack("[O]", fewest) : json_incref(json_object_get(plan, "plans"));
    const char *best = hd__json_word(json_array_get(plans, 0), "job");
    FILE *file = hd__output_create(path, HD__OUTPUT_MARK, err);
    if (file) {
        put_title(file, page);
        if (scaling)
            put_scaling(file, scaling);
        else if (*best)
            put_found(file, plan, plans, fewest != NULL);
        else if (plans)
            put_table(file, plans, "", "tokens_per_s", plan_columns, HD__COUNT(plan_columns));
        else
            put_plan(file, page, plan);
        put_assumptions(file, page);
        if (page->job || *best) {
            fprintf(file, "<h2>%s</h2>\n", page->job ? "Job" : "Job file of the fastest");
            hd__plot_put(file, "pre", page->job ? page->job : best);
        }
        fputs("</html>\n", file);
    }
    json_decref(plans);
    return file ? hd__output_close(file, path, err) : err->code;
}
