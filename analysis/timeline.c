/* A step as text: a row per rank and stream, a letter per column. */
#include "analysis/timeline.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/print.h"
#include "core/program/ops.h"

/* ---- columns */

const struct hd__timeline_letter hd__timeline_letters[HD__TIMELINE_LETTERS] = {
    {'F', 0, "#56b4e9", "forward"},
    {'R', 0, "#cc79a7", "recompute"},
    {'B', 0, "#e69f00", "gradients of activations"},
    {'W', 0, "#009e73", "gradients of weights"},
    {'O', 0, "#8c8c8c", "the rest: optimizer, strategy"},
    {'g', HD_OP_ALL_GATHER, "#0072b2", "all_gather"},
    {'s', HD_OP_REDUCE_SCATTER, "#d55e00", "reduce_scatter"},
    {'a', HD_OP_ALL_REDUCE, "#a0468c", "all_reduce"},
    {'t', HD_OP_ALL_TO_ALL, "#7a7a00", "all_to_all"},
    {'b', HD_OP_BROADCAST, "#5a5a5a", "broadcast"},
    {'o', HD_OP_SHIFT, "#000000", "shift to the next around a ring"},
    {'>', HD_OP_SEND, "#222222", "send to another stage"},
    {'<', HD_OP_RECV, "#9a9a9a", "receive from another stage"}};

static char letter_of(const struct hd__instr *i)
{
    uint32_t n = hd__is_async(i) ? HD__PHASES : i->phase;
    while (n < HD__TIMELINE_LETTERS && hd__is_async(i) && hd__timeline_letters[n].op != i->op)
        n++;
    return n < HD__TIMELINE_LETTERS ? hd__timeline_letters[n].letter : '?';
}

struct column { /* seconds by letter, and the longest interval of each */
    double took[128], longest[128];
    const struct hd__sim_span *span[128];
};

static void add_span(struct column *c, const struct hd__sim_span *span, double from, double to)
{
    double part = fmin(to, span->end) - fmax(from, span->start);
    int letter = letter_of(span->instr);
    c->took[letter] += part;
    if (part > c->longest[letter]) {
        c->longest[letter] = part;
        c->span[letter] = span;
    }
}

static struct hd__timeline_cell winner(const struct column *c, double width, int any)
{
    double most = 0, all = 0;
    const struct hd__sim_span *span = NULL;
    for (int k = 0; k < 128; k++) {
        all += c->took[k];
        if (c->took[k] > most) {
            most = c->took[k];
            span = c->span[k];
        }
    }
    if (!span || (!any && width - all > all))
        return (struct hd__timeline_cell){.micro = -1};
    return (struct hd__timeline_cell){letter_of(span->instr), span->instr->phase, span->instr->op, span->micro,
                                      span->instr->chunk};
}

void hd__timeline_cells(const struct hd__timeline_lane *lane, double seconds, uint32_t n,
                        struct hd__timeline_cell *cells)
{
    double width = seconds / n;
    uint32_t at = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct column c = {0};
        double from = k * width, to = (k + 1) * width;
        while (at < lane->spans.count && lane->spans.at[at].end <= from)
            at++;
        for (uint32_t i = at; i < lane->spans.count && lane->spans.at[i].start < to; i++)
            add_span(&c, &lane->spans.at[i], from, to);
        cells[k] = winner(&c, width, lane->stream != HD__STREAM_COMPUTE);
    }
}

/* ---- words */

const char *hd__seconds_text(double seconds, char out[32])
{
    double s = fabs(seconds);
    if (s < 1e-3)
        snprintf(out, 32, "%.3g us", seconds * 1e6);
    else if (s < 1)
        snprintf(out, 32, "%.3g ms", seconds * 1e3);
    else
        snprintf(out, 32, "%.3g s", seconds);
    return out;
}

double hd__timeline_tick(double seconds, int32_t marks)
{
    double raw = seconds / HD__MAX(marks, 1), ten = pow(10, floor(log10(fmax(raw, 1e-12))));
    return raw <= ten ? ten : raw <= 2 * ten ? 2 * ten : raw <= 5 * ten ? 5 * ten : 10 * ten;
}

void hd__timeline_rank_label(const struct hd__timeline *t, const struct hd__rank_times *r, char out[32])
{
    uint32_t n = (uint32_t)(r - t->ranks);
    if (t->stages > 1 && n < (uint32_t)t->stages)
        snprintf(out, 32, "stage %u", n);
    else
        snprintf(out, 32, "rank %d", r->rank);
}

int hd__timeline_is_pp_lane(const struct hd__timeline_lane *lane)
{
    return lane->stream >= HD__STREAM_PP;
}

const char *hd__timeline_lane_label(const struct hd__timeline_lane *lane)
{
    static const char *const names[HD_AXIS_COUNT] = {"pp all", "dpr", "dp", "cp", "ep", "tp", "tq"};
    if (lane->stream == HD__STREAM_COMPUTE)
        return "compute";
    if (hd__timeline_is_pp_lane(lane))
        return "pp";
    return lane->stream < HD__STREAM_AXIS + HD_AXIS_COUNT ? names[lane->stream - HD__STREAM_AXIS] : "world";
}

int hd__timeline_is_shown(const struct hd__timeline *t, uint32_t n, int32_t only)
{
    return only < 0 ? n < (uint32_t)t->stages
                    : t->ranks[n].rank == only && (n < (uint32_t)t->stages || n + 1 == t->n_ranks);
}

/* ---- rows */

#define LABEL 17 /* "stage 12 compute " */

struct sheet {
    const struct hd__timeline *t;
    struct hd__text *out;
    struct hd__timeline_cell *cells;
    uint32_t columns;
    uint8_t seen[128];
};

static void add_row(struct sheet *w, const char *rank, const char *lane, char idle)
{
    hd__text_add(w->out, "%-8s %-7s ", rank, lane);
    for (uint32_t k = 0; k < w->columns; k++) {
        char letter = w->cells[k].letter;
        w->seen[(int)letter & 127] = 1;
        if (letter && isupper((unsigned char)letter) && w->cells[k].micro >= 0 && w->cells[k].micro % 2)
            letter = (char)tolower((unsigned char)letter);
        hd__text_add(w->out, "%c", letter ? letter : idle);
    }
    while (w->out->length && w->out->at[w->out->length - 1] == ' ')
        w->out->at[--w->out->length] = 0;
    hd__text_add(w->out, "\n");
}

/* All streams to and from other stages merged into one row: per column the first that is busy. */
static void add_messages(struct sheet *w, const struct hd__rank_times *r)
{
    struct hd__timeline_cell *one = hd__alloc(w->columns * sizeof *one);
    int any = 0;
    memset(w->cells, 0, w->columns * sizeof *w->cells);
    for (uint32_t n = 0; n < r->n_lanes; n++) {
        if (!hd__timeline_is_pp_lane(&r->lane[n]))
            continue;
        any = 1;
        hd__timeline_cells(&r->lane[n], w->t->seconds, w->columns, one);
        for (uint32_t k = 0; k < w->columns; k++)
            if (!w->cells[k].letter)
                w->cells[k] = one[k];
    }
    if (any)
        add_row(w, "", "pp", ' ');
    free(one);
}

static void add_rank(struct sheet *w, const struct hd__rank_times *r)
{
    char label[32];
    hd__timeline_rank_label(w->t, r, label);
    for (uint32_t n = 0; n < r->n_lanes; n++) {
        if (hd__timeline_is_pp_lane(&r->lane[n]))
            continue;
        hd__timeline_cells(&r->lane[n], w->t->seconds, w->columns, w->cells);
        add_row(w, n ? "" : label, hd__timeline_lane_label(&r->lane[n]), n ? ' ' : '.');
    }
    add_messages(w, r);
}

/* "0        2 ms      4 ms": the scale under the columns. */
static void add_marks(struct sheet *w)
{
    double tick = hd__timeline_tick(w->t->seconds, (int32_t)w->columns / 16);
    uint32_t at = 0;
    char text[32];
    hd__text_add(w->out, "%*s", LABEL, "");
    for (uint32_t n = 0; n * tick <= w->t->seconds; n++) {
        uint32_t column = (uint32_t)(n * tick / w->t->seconds * w->columns);
        hd__seconds_text(n * tick, text);
        if (column < at || column + strlen(text) > w->columns + 8)
            continue;
        hd__text_add(w->out, "%*s|%s", (int)(column - at), "", n ? text : "0");
        at = column + 1 + (uint32_t)strlen(n ? text : "0");
    }
    hd__text_add(w->out, "\n");
}

static void add_legend(struct sheet *w)
{
    const char *between = "";
    for (size_t n = 0; n < HD__TIMELINE_LETTERS; n++) {
        const struct hd__timeline_letter *row = &hd__timeline_letters[n];
        if (n == HD__PHASES)
            hd__text_add(w->out, "; . idle\nsmall letters: odd micro-batches");
        if (w->seen[(int)row->letter])
            hd__text_add(w->out, "%s%c %s", between, row->letter, row->text);
        between = w->seen[(int)row->letter] || n >= HD__PHASES - 1 ? "; " : between;
    }
    hd__text_add(w->out, "\n");
}

void hd__timeline_summary(const struct hd__timeline *t, struct hd__text *out)
{
    char text[3][32];
    hd__text_add(out, "step %s, computing %.1f %% of it\n", hd__seconds_text(t->seconds, text[0]), 100 * t->busy);
    if (t->stages > 1)
        hd__text_add(out,
                     "bubble: of %s, first forward to last backward, idle %.2f %% of the work (idle over ideal), %.2f "
                     "%% of the whole\n",
                     hd__seconds_text(t->span, text[1]), 100 * t->bubble_of_work, 100 * t->bubble_of_span);
    if (t->comm > 0)
        hd__text_add(out, "communication %s%s, %.1f %% of it hidden behind computing\n",
                     hd__seconds_text(t->comm, text[2]), t->stages > 1 ? " (sum over stages)" : "",
                     100 * t->overlapped / t->comm);
    for (uint32_t n = 0; n < t->n_periodic; n++)
        hd__text_add(out, "section %s, every %u steps: %s more, %s a step on average\n", t->periodic[n].name,
                     t->periodic[n].every, hd__seconds_text(t->periodic[n].seconds, text[0]),
                     hd__seconds_text(t->periodic[n].seconds / t->periodic[n].every, text[1]));
}

void hd__timeline_text(const struct hd__timeline *t, int32_t only, int32_t columns, struct hd__text *out)
{
    struct sheet w = {.t = t, .out = out, .columns = (uint32_t)HD__MAX(columns - LABEL, 20)};
    w.cells = hd__alloc(w.columns * sizeof *w.cells);
    for (uint32_t n = 0; n < t->n_ranks; n++)
        if (hd__timeline_is_shown(t, n, only))
            add_rank(&w, &t->ranks[n]);
    add_marks(&w);
    add_legend(&w);
    free(w.cells);
}
