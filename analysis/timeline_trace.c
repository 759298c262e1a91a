/* A step as a self-contained SVG, and as a trace for Chrome's viewer. */
#include <math.h>
#include <stdlib.h>

#include "analysis/print.h"
#include "analysis/timeline.h"
#include "core/base/file.h"
#include "core/program/ops.h"

enum { LEFT = 130, PLOT = 1200, RIGHT = 30, TALL = 30, LOW = 10, GAP = 12, PER_PIXEL = 2 };

struct drawing {
    const struct hd__timeline *t;
    struct hd__text *out;
    struct hd__timeline_cell *cells;
    double y;
    uint8_t seen[128];
};

static const char *fill_of(char letter)
{
    for (size_t n = 0; n < HD__TIMELINE_LETTERS; n++)
        if (hd__timeline_letters[n].letter == letter)
            return hd__timeline_letters[n].fill;
    return "#000000";
}

/* One uninterrupted pass of a micro-batch through a chunk, forward or backward: it gets one label. */
static int same_action(const struct hd__timeline_cell *a, const struct hd__timeline_cell *b)
{
    return a->letter && b->letter && (a->letter == 'F') == (b->letter == 'F') && a->phase != HD__PHASE_O &&
           b->phase != HD__PHASE_O && a->micro == b->micro && a->chunk == b->chunk;
}

static double x_of(uint32_t column)
{
    return LEFT + (double)column / PER_PIXEL;
}

static void add_boxes(struct drawing *d, double height)
{
    uint32_t n = PLOT * PER_PIXEL;
    for (uint32_t from = 0, to; from < n; from = to) {
        const struct hd__timeline_cell *c = &d->cells[from];
        for (to = from + 1; to < n && d->cells[to].letter == c->letter && d->cells[to].micro == c->micro &&
                            d->cells[to].chunk == c->chunk;)
            to++;
        /* two shades that alternate: by the stage's chunk where there are chunks, else by micro-batch */
        int32_t shade = d->t->stages > 1 ? c->chunk / d->t->stages : c->micro;
        d->seen[(int)c->letter & 127] = 1;
        if (c->letter)
            hd__text_add(d->out, "<rect x='%.1f' y='%.1f' width='%.1f' height='%.0f' fill='%s' fill-opacity='%.2g'/>\n",
                         x_of(from), d->y, x_of(to) - x_of(from), height, fill_of(c->letter),
                         shade > 0 && shade % 2 ? 0.6 : 1.0);
    }
}

/* Numbers of micro-batches, if they fit, and a white line at each end. */
static void add_numbers(struct drawing *d)
{
    uint32_t n = PLOT * PER_PIXEL;
    for (uint32_t from = 0, to; from < n; from = to) {
        const struct hd__timeline_cell *c = &d->cells[from];
        for (to = from + 1; to < n && same_action(c, &d->cells[to]);)
            to++;
        if (!c->letter || c->micro < 0 || c->phase == HD__PHASE_O || to - from < 3 * PER_PIXEL)
            continue;
        hd__text_add(d->out, "<rect x='%.1f' y='%.1f' width='1' height='%d' fill='#fff'/>\n", x_of(from) - 0.5, d->y,
                     TALL);
        if (to - from >= 9 * PER_PIXEL)
            hd__text_add(d->out, "<text class='n' x='%.1f' y='%.1f'>%d</text>\n", (x_of(from) + x_of(to)) / 2,
                         d->y + TALL / 2 + 4, c->micro);
    }
}

static void add_label(struct drawing *d, const char *text, double height, const char *class)
{
    hd__text_add(d->out, "<text class='%s' x='%d' y='%.1f'>%s</text>\n", class, LEFT - 8, d->y + height / 2 + 4, text);
}

static void add_lane(struct drawing *d, const struct hd__timeline_lane *lane)
{
    int compute = lane->stream == HD__STREAM_COMPUTE;
    double height = compute ? TALL : LOW;
    char name[32];
    hd__text_add(d->out, "<rect x='%d' y='%.1f' width='%d' height='%.0f' fill='#f2f2f2'/>\n", LEFT, d->y, PLOT, height);
    hd__timeline_cells(lane, d->t->seconds, PLOT * PER_PIXEL, d->cells);
    add_boxes(d, height);
    if (compute) {
        add_numbers(d);
    } else if (hd__timeline_is_pp_lane(lane)) {
        const struct hd__instr *i = lane->spans.at[0].instr;
        snprintf(name, sizeof name, "%s %d", i->op == HD_OP_SEND ? "to" : "from", i->peer);
        add_label(d, name, height, "s");
    } else {
        add_label(d, hd__timeline_lane_label(lane), height, "s");
    }
    d->y += height + 2;
}

static void add_rank(struct drawing *d, const struct hd__rank_times *r)
{
    char label[32];
    hd__timeline_rank_label(d->t, r, label);
    add_label(d, label, TALL, "l");
    for (uint32_t n = 0; n < r->n_lanes; n++)
        add_lane(d, &r->lane[n]);
    d->y += GAP;
}

static void add_axis(struct drawing *d, double top)
{
    double tick = hd__timeline_tick(d->t->seconds, 12);
    char text[32];
    for (uint32_t n = 0; n * tick <= d->t->seconds; n++) {
        double x = LEFT + n * tick / d->t->seconds * PLOT;
        hd__text_add(d->out, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#000' stroke-opacity='.12'/>\n", x,
                     top, x, d->y);
        hd__text_add(d->out, "<text class='t' x='%.1f' y='%.1f'>%s</text>\n", x, d->y + 14,
                     n ? hd__seconds_text(n * tick, text) : "0");
    }
    d->y += 34;
}

static void add_legend(struct drawing *d)
{
    double x = LEFT;
    for (const struct hd__timeline_letter *l = hd__timeline_letters; l < hd__timeline_letters + HD__TIMELINE_LETTERS;
         l++) {
        if (!d->seen[(int)l->letter])
            continue;
        if (x + 30 + 7 * (double)strlen(l->text) > LEFT + PLOT) {
            x = LEFT;
            d->y += 20;
        }
        hd__text_add(d->out, "<rect x='%.0f' y='%.1f' width='12' height='12' fill='%s'/>\n", x, d->y - 10, l->fill);
        hd__text_add(d->out, "<text class='g' x='%.0f' y='%.1f'>%s</text>\n", x + 17, d->y, l->text);
        x += 34 + 6.6 * (double)strlen(l->text);
    }
    hd__text_add(
        d->out,
        "<text class='g' x='%d' y='%.1f'>numbers: micro-batches; shades: %s; columns that were mostly idle are "
        "grey</text>\n",
        LEFT, d->y + 20, d->t->stages > 1 ? "the stage's first, second, ... chunk" : "micro-batches");
    d->y += 44;
}

static void add_summary(struct drawing *d)
{
    struct hd__text text = {0};
    hd__timeline_summary(d->t, &text);
    for (char *line = strtok(text.at, "\n"); line; line = strtok(NULL, "\n")) {
        hd__text_add(d->out, "<text class='g' x='%d' y='%.1f'>", LEFT, d->y);
        hd__text_add_xml(d->out, line);
        hd__text_add(d->out, "</text>\n");
        d->y += 18;
    }
    hd__text_free(&text);
}

void hd__timeline_svg(const struct hd__timeline *t, int32_t only, const char *title, struct hd__text *out)
{
    struct hd__text body = {0};
    struct drawing d = {.t = t, .out = &body, .y = 62, .cells = hd__alloc(PLOT * PER_PIXEL * sizeof *d.cells)};
    for (uint32_t n = 0; n < t->n_ranks; n++)
        if (hd__timeline_is_shown(t, n, only))
            add_rank(&d, &t->ranks[n]);
    add_axis(&d, 56);
    add_legend(&d);
    add_summary(&d);
    hd__text_add(out,
                 HD__OUTPUT_MARK
                 "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%.0f' viewBox='0 0 %d %.0f'>\n<style>"
                 "text{font:12px sans-serif;fill:#222} .h{font-size:18px} .l{text-anchor:end;font-size:13px} "
                 ".s{text-anchor:end;font-size:9px;fill:#555} .n{text-anchor:middle;font-size:11px} "
                 ".t{text-anchor:middle;font-size:10px}"
                 "</style>\n<rect width='100%%' height='100%%' fill='#fff'/>\n<text class='h' x='%d' y='34'>",
                 LEFT + PLOT + RIGHT, d.y + 8, LEFT + PLOT + RIGHT, d.y + 8, LEFT);
    hd__text_add_xml(out, title);
    hd__text_add(out, "</text>\n%s</svg>\n", body.at);
    hd__text_free(&body);
    free(d.cells);
}

/* ---- trace */

/* Threads are numbers in this format, from 1: Perfetto takes thread 0 of a process for the one whose number is that of
 * the process, which may be another stream's. The stream's name is an event of its own. */
static void name_thread(json_t *events, int32_t rank, uint32_t lane, const char *name)
{
    json_array_append_new(events, json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", "thread_name", "ph", "M", "pid", rank,
                                            "tid", (int)lane, "args", "name", name));
    json_array_append_new(events, json_pack("{s:s,s:s,s:i,s:i,s:{s:i}}", "name", "thread_sort_index", "ph", "M", "pid",
                                            rank, "tid", (int)lane, "args", "sort_index", (int)lane));
}

/* In whole nanoseconds, which Perfetto counts in: it drops an event that begins before the one before it on its thread
 * has ended, were it by rounding. */
static double micros(double seconds)
{
    return round(seconds * 1e9) / 1e3;
}

static void add_events(json_t *events, const struct hd__rank_times *r, const struct hd_program *p)
{
    char stream[32];
    for (uint32_t n = 0; n < r->n_lanes; n++) {
        if (r->lane[n].spans.count)
            name_thread(events, r->rank, n + 1, hd__stream_text(r->lane[n].spans.at[0].instr, stream));
        for (uint32_t k = 0; k < r->lane[n].spans.count; k++) {
            const struct hd__sim_span *s = &r->lane[n].spans.at[k];
            json_array_append_new(
                events, json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:i,s:{s:s,s:i,s:i,s:s}}", "name", hd__instr_name(s->instr),
                                  "cat", hd__phase_name(s->instr->phase), "ph", "X", "ts", micros(s->start), "dur",
                                  micros(s->end) - micros(s->start), "pid", r->rank, "tid", (int)n + 1, "args", "block",
                                  p->blocks.at[s->instr->block], "micro", s->micro, "chunk", s->instr->chunk, "section",
                                  p->sections.at[s->section].name));
        }
    }
}

json_t *hd__timeline_trace(const struct hd__timeline *t, int32_t only)
{
    json_t *events = json_array();
    char label[32];
    for (uint32_t n = 0; n < t->n_ranks; n++) {
        if (!hd__timeline_is_shown(t, n, only))
            continue;
        hd__timeline_rank_label(t, &t->ranks[n], label);
        json_array_append_new(events, json_pack("{s:s,s:s,s:i,s:{s:s}}", "name", "process_name", "ph", "M", "pid",
                                                t->ranks[n].rank, "args", "name", label));
        add_events(events, &t->ranks[n], t->programs[t->ranks[n].rank]);
    }
    return json_pack("{s:{s:s},s:o,s:s}", "otherData", "by", "heddle", "traceEvents", events, "displayTimeUnit", "ms");
}
