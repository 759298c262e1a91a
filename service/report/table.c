/* A report for people. */
#include <stdlib.h>

#include "service/report/diagnose.h"
#include "service/report/report.h"

enum { WORDS_RANKS = 16, COLUMN = 42 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* ---- in words */

static void rank_words(const json_t *part, struct hd__text *out)
{
    const json_t *step = json_object_get(part, "step");
    const char *at = *text_of(part, "at") ? text_of(part, "at") : "unknown";
    hd__text_add(out, "  rank %lld", (long long)json_integer_value(json_object_get(part, "rank")));
    if (strcmp(text_of(part, "state"), "answered"))
        hd__text_add(out, " %s\n", !strcmp(text_of(part, "state"), "silent") ? "does not answer" : text_of(part, "state"));
    else if (json_integer_value(step) >= 0)
        hd__text_add(out, " at step %lld, %s\n", (long long)json_integer_value(step), at);
    else
        hd__text_add(out, " at %s\n", at);
}

void hd__report_words(const json_t *report, struct hd__text *out)
{
    const json_t *ranks = json_object_get(report, "rank"), *part;
    size_t i, n = json_array_size(ranks);
    hd__text_add(out, "%s\n", text_of(json_object_get(report, "verdict"), "words"));
    json_array_foreach(ranks, i, part)
        if (i < WORDS_RANKS || strcmp(text_of(part, "state"), "answered"))
            rank_words(part, out);
    if (n > WORDS_RANKS)
        hd__text_add(out, "  (%zu ranks; those that answered are shown up to rank %d)\n", n, WORDS_RANKS - 1);
}

/* ---- side by side */

struct table {
    struct hd__seen_all seen;
    struct hd__text *out;
    int32_t *ranks, n; /* columns: ranks that have operations */
    int marked;
};

/* "#49 reduce_scatter", and how it stands: done, in flight, waited for. */
static void cell(struct table *t, const struct hd__seen *s)
{
    char text[64], state[24] = "";
    if (!s) {
        hd__text_add(t->out, "  %-*s", COLUMN, "-");
        return;
    }
    if (s->completed >= 0 && !*s->code)
        snprintf(state, sizeof state, "done");
    else if (*s->code)
        snprintf(state, sizeof state, "%s", s->code);
    else if (s->waited >= 0)
        snprintf(state, sizeof state, "waits %.1f s", s->waited);
    else
        snprintf(state, sizeof state, "in flight");
    snprintf(text, sizeof text, "%-14.14s #%-4lld %.10s", s->name, (long long)s->instr, s->section);
    hd__text_add(t->out, "  %-*.*s %-10.10s", COLUMN - 11, COLUMN - 11, text, state);
}

static const struct hd__seen *find(const struct table *t, uint32_t from, uint32_t to, int32_t rank)
{
    for (uint32_t i = from; i < to; i++)
        if (t->seen.at.at[i].rank == rank)
            return &t->seen.at.at[i];
    return NULL;
}

/* A row: one number of a channel. The mark stands before the first in which members differ, or did not come. */
static void row(struct table *t, uint32_t from, uint32_t to)
{
    const struct hd__seen *at = t->seen.at.at;
    const char *why = NULL;
    for (uint32_t i = from + 1; i < to && !why; i++)
        why = hd__seen_differ(&at[from], &at[i]) ? "differs" : NULL;
    for (uint32_t i = from; i < to && !why; i++)
        why = at[i].waited >= 0 && (at[i].completed < 0 || *at[i].code) ? "waits" : NULL;
    hd__text_add(t->out, "%c%7lld", why && !t->marked ? '>' : ' ', (long long)at[from].seq);
    for (int32_t c = 0; c < t->n; c++)
        cell(t, find(t, from, to, t->ranks[c]));
    hd__text_add(t->out, "\n");
    if (why && !strcmp(why, "differs")) {
        char text[256];
        for (uint32_t i = from; i < to; i++)
            hd__text_add(t->out, "          rank %d: %s, tag %lld\n", at[i].rank, hd__seen_text(&at[i], text), (long long)at[i].tag);
    }
    t->marked |= why != NULL;
}

static void channel(struct table *t, uint32_t from, uint32_t to)
{
    uint32_t next, rows = 0, skip;
    const struct hd__seen *at = t->seen.at.at;
    for (uint32_t i = from; i < to; i = next, rows++)
        for (next = i + 1; next < to && at[next].seq == at[i].seq;)
            next++;
    skip = rows > HD__REPORT_OPS ? rows - HD__REPORT_OPS : 0;
    hd__text_add(t->out, "\n%s of group %.*s, ranks%s\n", at[from].message ? "messages" : "operations",
                 (int)strcspn(at[from].channel, " "), at[from].channel, at[from].channel + strcspn(at[from].channel, " "));
    hd__text_add(t->out, "  number");
    for (int32_t c = 0; c < t->n; c++) {
        char name[32];
        snprintf(name, sizeof name, "rank %d", t->ranks[c]);
        hd__text_add(t->out, "  %-*s", COLUMN, name);
    }
    hd__text_add(t->out, "\n");
    t->marked = 0;
    for (uint32_t i = from; i < to; i = next) {
        for (next = i + 1; next < to && at[next].seq == at[i].seq;)
            next++;
        if (skip)
            skip--;
        else
            row(t, i, next);
    }
}

void hd__report_table(const json_t *report, struct hd__text *out)
{
    struct table t = {.out = out};
    const json_t *part;
    uint32_t to;
    size_t i;
    hd__seen_read(report, &t.seen);
    t.ranks = hd__alloc((json_array_size(json_object_get(report, "rank")) + 1) * sizeof *t.ranks);
    for (uint32_t from = 0; from < t.seen.at.count; from = to) {
        for (to = from + 1; to < t.seen.at.count && !strcmp(t.seen.at.at[to].channel, t.seen.at.at[from].channel);)
            to++;
        t.n = 0;
        json_array_foreach(json_object_get(report, "rank"), i, part)
            if (find(&t, from, to, (int32_t)json_integer_value(json_object_get(part, "rank"))))
                t.ranks[t.n++] = (int32_t)json_integer_value(json_object_get(part, "rank"));
        channel(&t, from, to);
    }
    free(t.ranks);
    hd__seen_free(&t.seen);
}
