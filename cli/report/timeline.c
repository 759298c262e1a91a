/* The steps of a run's trace, drawn: a row for each rank and stream, cut into columns that show what took most of them.
 * All steps in one picture, and the longest in another. */
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "analysis/timeline.h"
#include "cli/plot.h"
#include "cli/report/report.h"
#include "core/base/file.h"
#include "core/program/ops.h"
#include "service/report/json_fields.h"

enum { WIDTH = 760, COLUMNS = 2 * WIDTH, LEFT = 130, ROW = 14, GAP = 6, TOP = 38, RANKS_MAX = 16, ROWS_MAX = 128 };
enum { RECTANGLES_MAX = 8000 };       /* of all pictures on a page */
#define BYTES_MAX (INT64_C(64) << 20) /* of a file that is read for it */

/* Kinds: rows of hd__timeline_letters, and these. */
enum { WAITS = HD__TIMELINE_LETTERS, FEEDS, OTHERS, KINDS };

struct row {
    int64_t rank, thread;
    char name[32];
    double (*took)[KINDS]; /* parts of each column */
};

struct span {
    int64_t step;
    double begin, end; /* microseconds, of all ranks */
};

struct picture {
    struct span span;
    HD__ARRAY(struct row) rows;
    HD__ARRAY(struct span) steps;
    int64_t ranks, instructions;  /* ranks: of the trace; instructions: that are drawn */
    uint32_t rows_left_out, each; /* each: columns that are merged into one */
    int seen[KINDS];
};

static const char *fill_of(int kind)
{
    static const char *const more[] = {"#c11c28", "#d9c300", "#b5b5b5"};
    return kind < WAITS ? hd__timeline_letters[kind].fill : more[kind - WAITS];
}

static const char *text_of(int kind)
{
    static const char *const more[] = {"compute waits for communication", "compute waits for data", "other transfers"};
    return kind < WAITS ? hd__timeline_letters[kind].text : more[kind - WAITS];
}

/* ---- the file */

struct found {
    char *path;
    int64_t at; /* modified, nanoseconds */
};
typedef HD__ARRAY(struct found) found_list;

static int newest_first(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return (x->at < y->at) - (x->at > y->at);
}

static void add_file(found_list *list, const char *path)
{
    struct stat st;
    if (!stat(path, &st))
        hd__push(list, ((struct found){hd__strdup(path), st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec}));
}

/* NAME.json, and NAME-A-B.json of a schedule. */
static void add_files(found_list *list, const char *name)
{
    const char *end = strrchr(name, '.');
    glob_t all = {0};
    if (!end || strchr(end, '/'))
        end = name + strlen(name);
    char *pattern = hd__format("%.*s-[0-9]*-[0-9]*%s", (int)(end - name), name, end);
    glob(pattern, 0, NULL, &all);
    for (size_t i = 0; i < all.gl_pathc; i++)
        add_file(list, all.gl_pathv[i]);
    add_file(list, name);
    globfree(&all);
    free(pattern);
}

/* The same where this command runs in another folder than the job did: that one's path is what the path of its metrics
 * begins with. */
static void add_files_from_job(found_list *list, const struct hd__report_run *run, const json_t *metrics,
                               const char *name)
{
    const char *jsonl = hd__json_word(metrics, "jsonl");
    char *path = realpath(run->path, NULL);
    size_t n = path ? strlen(path) : 0, last = strlen(jsonl);
    if (n > last && !strcmp(path + n - last, jsonl) && path[n - last - 1] == '/') {
        char *moved = hd__format("%.*s%s", (int)(n - last), path, name);
        add_files(list, moved);
        free(moved);
    }
    free(path);
}

/* NULL: `why` says it. */
static json_t *load(const char *path, const struct hd__report_run *run, char why[128])
{
    struct hd_error unused = HD_ERROR_INIT;
    struct stat about = {0};
    FILE *file = stat(path, &about) || about.st_size > BYTES_MAX ? NULL : hd__open_regular(path, "trace", &unused);
    json_t *trace = file ? json_loadf(file, 0, NULL) : NULL;
    const json_t *other = json_object_get(trace, "otherData");
    if (file)
        fclose(file);
    if (about.st_size > BYTES_MAX)
        snprintf(why, 128, "is larger than 64 MiB: trace fewer steps or ranks");
    else if (!json_is_integer(json_object_get(other, "measured")) ||
             !json_is_array(json_object_get(trace, "traceEvents")))
        snprintf(why, 128, "is not a measured trace of heddle's");
    else if (*run->name && strcmp(hd__json_word(other, "job"), run->name) != 0)
        snprintf(why, 128, "is of the job %.60s", hd__json_word(other, "job"));
    else
        return trace;
    json_decref(trace);
    return NULL;
}

/* ---- steps and rows */

static int by_step(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

/* Merges each step over all ranks. Returns whether there are any. */
static int find_steps(struct picture *p, const json_t *events)
{
    size_t i;
    json_t *one;
    uint32_t n = 0;
    json_array_foreach(events, i, one)
    {
        double begin = hd__json_number(one, "ts"), end = begin + hd__json_number(one, "dur");
        if (!strcmp(hd__json_word(one, "cat"), "step") && isfinite(end - begin))
            hd__push(
                &p->steps,
                ((struct span){json_integer_value(json_object_get(json_object_get(one, "args"), "step")), begin, end}));
    }
    if (!p->steps.count)
        return 0;
    hd__sort(&p->steps, by_step);
    p->span = p->steps.at[0];
    for (uint32_t k = 0; k < p->steps.count; k++) {
        const struct span s = p->steps.at[k];
        struct span *last = n ? &p->steps.at[n - 1] : NULL;
        if (last && last->step == s.step)
            *last = (struct span){s.step, fmin(last->begin, s.begin), fmax(last->end, s.end)};
        else
            p->steps.at[n++] = s;
        p->span.begin = fmin(p->span.begin, s.begin);
        p->span.end = fmax(p->span.end, s.end);
    }
    p->steps.count = n;
    return p->span.end > p->span.begin && isfinite(p->span.end - p->span.begin);
}

static int by_place(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->thread > y->thread) - (x->thread < y->thread);
}

static int begins_rank(const struct picture *p, uint32_t k)
{
    return !k || p->rows.at[k].rank != p->rows.at[k - 1].rank;
}

/* Rows of the first ranks, as many as there is room for. */
static void add_rows(struct picture *p, const json_t *events)
{
    size_t i;
    json_t *one;
    uint32_t n = 0;
    json_array_foreach(events, i, one)
    {
        const char *name = hd__json_word(json_object_get(one, "args"), "name");
        struct row row = {.rank = json_integer_value(json_object_get(one, "pid")),
                          .thread = json_integer_value(json_object_get(one, "tid"))};
        snprintf(row.name, sizeof row.name, "%s", name);
        if (!strcmp(hd__json_word(one, "name"), "thread_name") && strcmp(name, "steps") != 0)
            hd__push(&p->rows, row);
    }
    hd__sort(&p->rows, by_place);
    for (uint32_t k = 0; k < p->rows.count; k++) {
        p->ranks += begins_rank(p, k);
        if (p->ranks <= RANKS_MAX && k < ROWS_MAX)
            p->rows.at[n++].took = hd__alloc(COLUMNS * sizeof *p->rows.at->took);
        else
            p->rows_left_out += p->ranks <= RANKS_MAX;
    }
    p->rows.count = n;
}

static int is_compute(const struct row *row)
{
    return !strcmp(row->name, "compute");
}

static int kind_of(const struct row *row, const json_t *event)
{
    const char *category = hd__json_word(event, "cat"), *name = hd__json_word(event, "name");
    int compute = is_compute(row);
    if (compute && (!strcmp(category, "wait") || !strcmp(category, "start")))
        return WAITS;
    if (compute && !strcmp(name, "feed"))
        return FEEDS;
    for (int k = 0; k < HD__TIMELINE_LETTERS; k++) {
        const struct hd__timeline_letter *letter = &hd__timeline_letters[k];
        if (compute ? k < HD__PHASES && category[0] == letter->letter && !category[1]
                    : k >= HD__PHASES && !strcmp(hd__op(letter->op)->name, name))
            return k;
    }
    return OTHERS;
}

static void add_event(struct picture *p, const json_t *event)
{
    struct row key = {.rank = json_integer_value(json_object_get(event, "pid")),
                      .thread = json_integer_value(json_object_get(event, "tid"))};
    struct row *row = p->rows.count ? bsearch(&key, p->rows.at, p->rows.count, sizeof key, by_place) : NULL;
    double length = p->span.end - p->span.begin,
           from = (hd__json_number(event, "ts") - p->span.begin) / length * COLUMNS,
           to = from + hd__json_number(event, "dur") / length * COLUMNS;
    if (!row || !(from < COLUMNS && to > 0))
        return;
    int kind = kind_of(row, event);
    p->seen[kind] = 1;
    p->instructions++;
    for (int c = (int)fmax(from, 0); c < COLUMNS && c < to; c++)
        row->took[c][kind] += fmin(to, c + 1) - fmax(from, c);
}

/* ---- drawing */

/* The kind that took most of some columns; -1: none did half of it, or on another stream than compute anything. */
static int winner(const struct picture *p, const struct row *row, uint32_t column)
{
    int best = -1;
    double took[KINDS] = {0}, most = 0, all = 0;
    for (uint32_t c = column; c < column + p->each && c < COLUMNS; c++)
        for (int k = 0; k < KINDS; k++)
            took[k] += row->took[c][k];
    for (int k = 0; k < KINDS; k++) {
        all += took[k];
        best = took[k] > most ? k : best;
        most = fmax(most, took[k]);
    }
    return all >= p->each * (is_compute(row) ? 0.5 : 0.05) ? best : -1;
}

/* The end of the rectangle that begins at a column. */
static uint32_t end_of(const struct picture *p, const struct row *row, uint32_t column, int kind)
{
    do
        column += p->each;
    while (column < COLUMNS && winner(p, row, column) == kind);
    return HD__MIN(column, (uint32_t)COLUMNS);
}

static uint32_t count_rectangles(const struct picture *p)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < p->rows.count; k++)
        for (uint32_t c = 0; c < COLUMNS;) {
            int kind = winner(p, &p->rows.at[k], c);
            n += kind >= 0;
            c = end_of(p, &p->rows.at[k], c, kind);
        }
    return n;
}

static void draw_row(FILE *file, const struct picture *p, const struct row *row, double y)
{
    fprintf(file, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"#f2f2f2\"/>\n", LEFT, y, WIDTH, ROW - 2);
    for (uint32_t c = 0, end; c < COLUMNS; c = end) {
        int kind = winner(p, row, c);
        end = end_of(p, row, c, kind);
        if (kind >= 0)
            fprintf(file, "<rect x=\"%g\" y=\"%.0f\" width=\"%g\" height=\"%d\" fill=\"%s\"/>\n",
                    LEFT + (double)c * WIDTH / COLUMNS, y, (double)(end - c) * WIDTH / COLUMNS, ROW - 2, fill_of(kind));
    }
}

static void draw_rows(FILE *file, const struct picture *p)
{
    double y = TOP;
    char label[64];
    for (uint32_t k = 0; k < p->rows.count; k++) {
        const struct row *row = &p->rows.at[k];
        y += begins_rank(p, k) && k ? GAP : 0;
        if (begins_rank(p, k))
            snprintf(label, sizeof label, "rank %lld %s", (long long)row->rank, row->name);
        else
            snprintf(label, sizeof label, "%s", row->name);
        hd__plot_text(file, LEFT - 6, y + ROW - 4, "end", 0, label);
        draw_row(file, p, row, y);
        y += ROW;
    }
}

/* A line and a label at the beginning of each step, as far as there is room. */
static void draw_steps(const struct hd__plot *plot, const struct picture *p)
{
    double room = -1;
    char label[32];
    for (uint32_t k = 0; k < p->steps.count; k++) {
        double x = plot->left + (p->steps.at[k].begin - p->span.begin) / (p->span.end - p->span.begin) * WIDTH;
        if (x < room)
            continue;
        room = x + 64;
        snprintf(label, sizeof label, "step %lld", (long long)p->steps.at[k].step);
        hd__plot_text(plot->file, x, TOP - 8, "start", 1, label);
        fprintf(plot->file, "<line class=\"axis\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#57606f\"/>\n",
                x, TOP - 5, x, plot->bottom);
    }
}

static void draw(FILE *file, struct picture *p, uint32_t rectangles)
{
    struct hd__plot plot = {
        .file = file, .left = LEFT, .right = LEFT + WIDTH, .top = TOP - 4, .x1 = 1e-6 * (p->span.end - p->span.begin)};
    double tick = hd__timeline_tick(plot.x1, 6);
    uint32_t n;
    char text[32], column[32];
    for (p->each = 1; (n = count_rectangles(p)) > rectangles && p->each < COLUMNS;)
        p->each *= 2;
    plot.bottom = TOP;
    for (uint32_t k = 0; k < p->rows.count; k++)
        plot.bottom += ROW + (k && begins_rank(p, k) ? GAP : 0);
    fputs("<div class=\"wide\">", file);
    hd__plot_open(file, LEFT + WIDTH + 20, plot.bottom + 26, "what ranks did, by rank and stream");
    for (int k = 0; k * tick <= plot.x1; k++)
        hd__plot_tick_x(&plot, k * tick, k ? hd__seconds_text(k * tick, text) : "0");
    draw_rows(file, p);
    draw_steps(&plot, p);
    fprintf(file,
            "</svg></div>\n<p>%lld instructions and transfers in %u rectangle%s: columns of %s show what took most of "
            "them.",
            (long long)p->instructions, n, n == 1 ? "" : "s",
            hd__seconds_text(plot.x1 * fmin(p->each, COLUMNS) / COLUMNS, column));
    if (p->ranks > RANKS_MAX)
        fprintf(file, " The first %d of %lld ranks are drawn.", RANKS_MAX, (long long)p->ranks);
    if (p->rows_left_out)
        fprintf(file, " %u more streams are left out.", p->rows_left_out);
    fputs("</p>\n", file);
}

static void draw_legend(FILE *file, const struct picture *p)
{
    fputs("<p>", file);
    for (int k = 0; k < KINDS; k++) {
        if (!p->seen[k])
            continue;
        fprintf(file,
                "<span style=\"white-space:nowrap\"><svg class=\"chart swatch\" viewBox=\"0 0 12 12\" "
                "aria-hidden=\"true\"><rect width=\"12\" height=\"12\" fill=\"%s\"/></svg> ",
                fill_of(k));
        hd__plot_put_xml(file, text_of(k));
        fputs("</span> &nbsp; ", file);
    }
    fputs("</p>\n", file);
}

static void free_picture(struct picture *p)
{
    for (uint32_t k = 0; k < p->rows.count; k++)
        free(p->rows.at[k].took);
    hd__free_array(&p->rows);
    hd__free_array(&p->steps);
}

/* Adds rows, and the events between the span's two times. */
static void fill(struct picture *p, const json_t *events)
{
    size_t i;
    json_t *one;
    add_rows(p, events);
    json_array_foreach(events, i, one) if (!strcmp(hd__json_word(one, "ph"), "X")) add_event(p, one);
}

static void put_title(FILE *file, const char *label, const struct picture *all, const struct span *longest,
                      const char *path)
{
    const struct span *first = all->steps.at, *last = first + all->steps.count - 1;
    char whole[32], one[32];
    fputs("<p style=\"margin-top:1rem\">", file);
    hd__plot_put_xml(file, label);
    hd__seconds_text(1e-6 * (all->span.end - all->span.begin), whole);
    if (first == last)
        fprintf(file, ": step %lld, %s, of ", (long long)first->step, whole);
    else
        fprintf(file, ": steps %lld to %lld, %s, and the longest of them, step %lld, %s, of ", (long long)first->step,
                (long long)last->step, whole, (long long)longest->step,
                hd__seconds_text(1e-6 * (longest->end - longest->begin), one));
    hd__plot_put_xml(file, path);
    fputs("</p>\n", file);
}

/* Whether there was a whole step in it. */
static int draw_trace(FILE *file, const json_t *events, const char *label, const char *path, uint32_t rectangles)
{
    struct picture all = {0}, one = {0};
    int ok = find_steps(&all, events);
    if (ok) {
        one.span = all.steps.at[0];
        for (uint32_t k = 1; k < all.steps.count; k++)
            if (all.steps.at[k].end - all.steps.at[k].begin > one.span.end - one.span.begin)
                one.span = all.steps.at[k];
        put_title(file, label, &all, &one.span, path);
        fill(&all, events);
        draw(file, &all, rectangles / 2);
        if (all.steps.count > 1 && one.span.end > one.span.begin) {
            hd__push(&one.steps, one.span);
            fill(&one, events);
            draw(file, &one, rectangles / 2);
        }
        draw_legend(file, &all);
    }
    free_picture(&all);
    free_picture(&one);
    return ok;
}

static void put_run(FILE *file, const struct hd__report_run *run, uint32_t rectangles)
{
    const json_t *metrics = json_object_get(json_object_get(run->start, "job"), "metrics"),
                 *trace = json_object_get(metrics, "trace");
    const char *name = json_is_string(trace) ? json_string_value(trace) : hd__json_word(trace, "file");
    char *recorded = hd__format("%s/trace/trace.json", run->folder), why[128] = "", first[128] = "";
    found_list list = {0};
    int drawn = 0;
    if (*name)
        add_files(&list, name);
    if (*name && *name != '/' && !list.count)
        add_files_from_job(&list, run, metrics, name);
    add_file(&list, recorded);
    hd__sort(&list, newest_first);
    for (uint32_t k = 0; k < list.count && !drawn; k++) {
        json_t *root = load(list.at[k].path, run, why);
        drawn = root && draw_trace(file, json_object_get(root, "traceEvents"), run->label, list.at[k].path, rectangles);
        if (root && !drawn)
            snprintf(why, sizeof why, "has no whole step");
        if (!k)
            memcpy(first, why, sizeof first);
        json_decref(root);
    }
    if (!drawn) {
        fputs("<p>", file);
        hd__plot_put_xml(file, run->label);
        fputs(list.count ? ": " : *name ? ": there is no " : ": no step was traced", file);
        hd__plot_put_xml(file, list.count ? list.at[0].path : name);
        fprintf(file, "%s", list.count ? " " : "");
        hd__plot_put_xml(file, first);
        fputs("; <code>heddle trace JOB --steps 20-24</code> traces some</p>\n", file);
    }
    for (uint32_t k = 0; k < list.count; k++)
        free(list.at[k].path);
    hd__free_array(&list);
    free(recorded);
}

void hd__report_timelines(FILE *file, const struct hd__report *r)
{
    fputs("<h2>Timeline</h2>\n", file);
    for (uint32_t k = 0; k < r->n; k++)
        put_run(file, &r->runs[k], RECTANGLES_MAX / r->n);
}
