/* One step of a run's trace, drawn: a row for each rank and stream. */
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "analysis/timeline.h"
#include "cli/plot.h"
#include "cli/report/report.h"
#include "core/base/file.h"
#include "core/program/ops.h"

enum { COLUMNS = 760, LEFT = 130, ROW = 14, GAP = 6, TOP = 24, RANKS_MAX = 16, KINDS = HD__TIMELINE_LETTERS + 1 };
#define BYTES_MAX (64 << 20) /* of a file that is read for it */

static const struct {
    const char *fill, *text;
} waits = {"#c11c28", "compute waits for communication"};

struct row {
    int64_t rank, thread;
    char name[32];
    double (*took)[KINDS]; /* seconds in each column */
};

struct picture {
    HD__ARRAY(struct row) rows;
    double begin, end; /* of the step, microseconds */
    int64_t step, ranks;
    int seen[KINDS];
};

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* ---- the file */

/* The newest of NAME-A-B.json, by a schedule, or NAME.json. The caller frees it; NULL: there is none. */
static char *find_file(const char *name)
{
    const char *end = strrchr(name, '.');
    struct stat one;
    int64_t newest = 0;
    char *found = NULL;
    glob_t all = {0};
    if (!end || strchr(end, '/'))
        end = name + strlen(name);
    char *pattern = hd__format("%.*s-[0-9]*-[0-9]*%s", (int)(end - name), name, end);
    glob(pattern, 0, NULL, &all);
    for (size_t i = 0; i <= all.gl_pathc; i++) {
        const char *path = i < all.gl_pathc ? all.gl_pathv[i] : name;
        int64_t at = stat(path, &one) ? -1 : one.st_mtim.tv_sec * 1000000000 + one.st_mtim.tv_nsec;
        if (at < newest)
            continue;
        free(found);
        found = hd__strdup(path);
        newest = at;
    }
    globfree(&all);
    free(pattern);
    return found;
}

static json_t *load(const char *path)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct stat about;
    FILE *file = stat(path, &about) || about.st_size > BYTES_MAX ? NULL : hd__open_regular(path, "trace", &unused);
    json_t *trace = file ? json_loadf(file, 0, NULL) : NULL;
    if (file)
        fclose(file);
    if (json_is_integer(json_object_get(json_object_get(trace, "otherData"), "measured")) &&
        json_is_array(json_object_get(trace, "traceEvents")))
        return trace;
    json_decref(trace);
    return NULL;
}

/* ---- columns */

/* The first whole step in it, on all ranks. */
static int find_step(struct picture *p, const json_t *events)
{
    size_t i;
    json_t *one;
    p->step = -1;
    json_array_foreach(events, i, one)
    {
        int64_t step = json_integer_value(json_object_get(json_object_get(one, "args"), "step"));
        if (!strcmp(word(one, "cat"), "step") && (p->step < 0 || step < p->step))
            p->step = step;
    }
    p->begin = INFINITY;
    json_array_foreach(events, i, one)
    {
        if (strcmp(word(one, "cat"), "step") != 0 ||
            json_integer_value(json_object_get(json_object_get(one, "args"), "step")) != p->step)
            continue;
        p->begin = fmin(p->begin, number(one, "ts"));
        p->end = fmax(p->end, number(one, "ts") + number(one, "dur"));
    }
    return p->end > p->begin;
}

static int by_place(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->thread > y->thread) - (x->thread < y->thread);
}

static void add_rows(struct picture *p, const json_t *events)
{
    size_t i;
    json_t *one;
    json_array_foreach(events, i, one)
    {
        const char *name = word(json_object_get(one, "args"), "name");
        struct row row = {.rank = json_integer_value(json_object_get(one, "pid")),
                          .thread = json_integer_value(json_object_get(one, "tid"))};
        if (strcmp(word(one, "name"), "thread_name") != 0 || !strcmp(name, "steps"))
            continue;
        p->ranks = HD__MAX(p->ranks, row.rank + 1);
        if (row.rank >= RANKS_MAX)
            continue;
        snprintf(row.name, sizeof row.name, "%s", name);
        row.took = hd__alloc(COLUMNS * sizeof *row.took);
        hd__push(&p->rows, row);
    }
    if (p->rows.count)
        qsort(p->rows.at, p->rows.count, sizeof *p->rows.at, by_place);
}

/* A row of hd__timeline_letters, HD__TIMELINE_LETTERS for a wait; -1: not drawn. */
static int kind_of(const struct row *row, const json_t *event)
{
    const char *category = word(event, "cat"), *name = word(event, "name");
    int is_compute = !strcmp(row->name, "compute");
    if (is_compute && !strcmp(category, "wait"))
        return HD__TIMELINE_LETTERS;
    for (int k = 0; k < HD__TIMELINE_LETTERS; k++) {
        const struct hd__timeline_letter *letter = &hd__timeline_letters[k];
        if (is_compute ? k < HD__PHASES && category[0] == letter->letter && !category[1]
                       : k >= HD__PHASES && !strcmp(hd__op(letter->op)->name, name))
            return k;
    }
    return -1;
}

static void add_event(struct picture *p, const json_t *event)
{
    struct row key = {.rank = json_integer_value(json_object_get(event, "pid")),
                      .thread = json_integer_value(json_object_get(event, "tid"))};
    struct row *row = bsearch(&key, p->rows.at, p->rows.count, sizeof key, by_place);
    double from = (number(event, "ts") - p->begin) / (p->end - p->begin) * COLUMNS,
           to = from + number(event, "dur") / (p->end - p->begin) * COLUMNS;
    int kind = row ? kind_of(row, event) : -1;
    if (kind < 0 || from >= COLUMNS || to <= 0)
        return;
    p->seen[kind] = 1;
    for (int c = (int)fmax(from, 0); c < COLUMNS && c < to; c++)
        row->took[c][kind] += fmin(to, c + 1) - fmax(from, c);
}

/* The kind that took most of a column; -1: none did half of it, or on another stream than compute anything. */
static int winner(const struct row *row, int column)
{
    int best = -1;
    double most = 0, all = 0;
    for (int k = 0; k < KINDS; k++) {
        all += row->took[column][k];
        if (row->took[column][k] > most) {
            most = row->took[column][k];
            best = k;
        }
    }
    return all >= (strcmp(row->name, "compute") ? 0.05 : 0.5) ? best : -1;
}

/* ---- drawing */

static void put_code(FILE *file, const char *text)
{
    fputs("<code>", file);
    hd__plot_put_xml(file, text);
    fputs("</code>", file);
}

static void draw_row(FILE *file, const struct row *row, double y)
{
    for (int c = 0; c < COLUMNS;) {
        int kind = winner(row, c), begin = c;
        while (c < COLUMNS && winner(row, c) == kind)
            c++;
        if (kind >= 0)
            fprintf(file, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", LEFT + begin, y,
                    c - begin, ROW - 2, kind < HD__TIMELINE_LETTERS ? hd__timeline_letters[kind].fill : waits.fill);
    }
}

static double draw_rows(FILE *file, const struct picture *p)
{
    double y = TOP;
    char label[64];
    for (uint32_t k = 0; k < p->rows.count; k++) {
        const struct row *row = &p->rows.at[k];
        int first = !k || row->rank != p->rows.at[k - 1].rank;
        y += first && k ? GAP : 0;
        if (first)
            snprintf(label, sizeof label, "rank %lld %s", (long long)row->rank, row->name);
        else
            snprintf(label, sizeof label, "%s", row->name);
        hd__plot_text(file, LEFT - 6, y + ROW - 4, "end", 0, label);
        draw_row(file, row, y);
        y += ROW;
    }
    return y;
}

static void draw_legend(FILE *file, const struct picture *p)
{
    fputs("<p>", file);
    for (int k = 0; k < KINDS; k++) {
        if (!p->seen[k])
            continue;
        fprintf(file,
                "<span style=\"white-space:nowrap\"><svg class=\"chart\" viewBox=\"0 0 12 12\" "
                "style=\"width:12px;min-width:0;height:12px;"
                "vertical-align:-1px\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" fill=\"%s\"/></svg> ",
                k < HD__TIMELINE_LETTERS ? hd__timeline_letters[k].fill : waits.fill);
        hd__plot_put_xml(file, k < HD__TIMELINE_LETTERS ? hd__timeline_letters[k].text : waits.text);
        fputs("</span> &nbsp; ", file);
    }
    fputs("</p>\n", file);
}

static void draw(FILE *file, const struct hd__report_run *run, const char *path, const struct picture *p)
{
    struct hd__plot plot = {
        .file = file, .left = LEFT, .right = LEFT + COLUMNS, .top = TOP - 4, .x1 = 1e-6 * (p->end - p->begin)};
    double tick = hd__timeline_tick(plot.x1, 6), height = TOP + GAP;
    char text[32];
    for (uint32_t k = 0; k < p->rows.count; k++)
        height += ROW + (k && p->rows.at[k].rank != p->rows.at[k - 1].rank ? GAP : 0);
    plot.bottom = height - GAP;
    fputs("<p>", file);
    hd__plot_put_xml(file, run->label);
    fprintf(file, ": step %lld, %s, of ", (long long)p->step, hd__seconds_text(plot.x1, text));
    hd__plot_put_xml(file, path);
    if (p->ranks > RANKS_MAX)
        fprintf(file, "; the first %d of %lld ranks", RANKS_MAX, (long long)p->ranks);
    fputs("</p>\n<div class=\"wide\">", file);
    hd__plot_open(file, LEFT + COLUMNS + 20, height + 20, "a step, by rank and stream");
    draw_rows(file, p);
    for (int n = 0; n * tick <= plot.x1; n++)
        hd__plot_tick_x(&plot, n * tick, n ? hd__seconds_text(n * tick, text) : "0");
    fputs("</svg></div>\n", file);
    draw_legend(file, p);
}

void hd__report_timeline(FILE *file, const struct hd__report_run *run)
{
    const json_t *metrics = json_object_get(json_object_get(run->start, "job"), "metrics"),
                 *trace = json_object_get(metrics, "trace");
    const char *name = json_is_string(trace) ? json_string_value(trace) : word(trace, "file");
    char *path = *name ? find_file(name) : NULL;
    json_t *root = path ? load(path) : NULL;
    const json_t *events = json_object_get(root, "traceEvents");
    struct picture p = {0};
    size_t i;
    json_t *one;
    if (root && find_step(&p, events)) {
        add_rows(&p, events);
        json_array_foreach(events, i, one) if (!strcmp(word(one, "ph"), "X")) add_event(&p, one);
        draw(file, run, path, &p);
    } else {
        fputs("<p>", file);
        hd__plot_put_xml(file, run->label);
        if (*name) {
            fputs(": no trace of at most 64 MiB with a whole step is at ", file);
            put_code(file, name);
        } else {
            fputs(": no step was traced; ", file);
            put_code(file, "metrics.trace={file: step.json, steps: 20-24}");
            fputs(" draws one here", file);
        }
        fputs("</p>\n", file);
    }
    for (uint32_t k = 0; k < p.rows.count; k++)
        free(p.rows.at[k].took);
    hd__free_array(&p.rows);
    json_decref(root);
    free(path);
}
