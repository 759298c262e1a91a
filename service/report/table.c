/* A report as text. */
#include <stdlib.h>

#include "service/report/diagnose.h"
#include "service/report/json_fields.h"
#include "service/report/report.h"

enum { SUMMARY_RANKS = 16, COLUMN = 42 };

/* ---- in words */

/* `more` ranks after it are as it is. */
static void rank_summary(const json_t *dump, size_t more, struct hd__text *out)
{
    const json_t *step = json_object_get(dump, "step");
    const char *at = *hd__json_word(dump, "at") ? hd__json_word(dump, "at") : "unknown";
    long long rank = json_integer_value(json_object_get(dump, "rank"));
    hd__text_add(out, more ? "  ranks %lld to %lld" : "  rank %lld", rank, rank + (long long)more);
    if (strcmp(hd__json_word(dump, "state"), "answered"))
        hd__text_add(out, " %s\n",
                     !strcmp(hd__json_word(dump, "state"), "silent") ? "does not answer"
                                                                     : hd__json_word(dump, "state"));
    else if (json_integer_value(step) >= 0)
        hd__text_add(out, " at step %lld, %s\n", (long long)json_integer_value(step), at);
    else
        hd__text_add(out, " at %s\n", at);
}

void hd__report_summary(const json_t *report, struct hd__text *out)
{
    const json_t *ranks = json_object_get(report, "rank"), *dump;
    size_t i, n = json_array_size(ranks);
    hd__text_add(out, "%s\n", hd__json_word(json_object_get(report, "verdict"), "words"));
    json_array_foreach(ranks, i, dump)
    {
        const char *state = hd__json_word(dump, "state");
        int answered = !strcmp(state, "answered");
        size_t more = 0;
        while (!answered && i >= SUMMARY_RANKS && i + more + 1 < n &&
               !strcmp(hd__json_word(json_array_get(ranks, i + more + 1), "state"), state))
            more++;
        if (i < SUMMARY_RANKS || !answered)
            rank_summary(dump, more, out);
        i += more;
    }
    if (n > SUMMARY_RANKS)
        hd__text_add(out, "  (%zu ranks; those that answered are shown up to rank %d)\n", n, SUMMARY_RANKS - 1);
}

/* ---- side by side */

struct op_table {
    struct hd__report_op_records ops;
    struct hd__text *out;
    int32_t *ranks, n; /* columns: ranks that have operations */
    int marked;
};

/* "#49 reduce_scatter", and its state: done, in flight, waited for. */
static void add_cell(struct op_table *t, const struct hd__report_op_record *s)
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

static const struct hd__report_op_record *find_record(const struct op_table *t, uint32_t from, uint32_t to,
                                                      int32_t rank)
{
    for (uint32_t i = from; i < to; i++)
        if (t->ops.list.at[i].rank == rank)
            return &t->ops.list.at[i];
    return NULL;
}

/* A row: one number of a channel. The first in which members differ, or are missing, is marked. */
static void add_row(struct op_table *t, uint32_t from, uint32_t to)
{
    const struct hd__report_op_record *at = t->ops.list.at;
    const char *why = NULL;
    for (uint32_t i = from + 1; i < to && !why; i++)
        why = hd__report_op_records_differ(&at[from], &at[i]) ? "differs" : NULL;
    for (uint32_t i = from; i < to && !why; i++)
        why = at[i].waited >= 0 && (at[i].completed < 0 || *at[i].code) ? "waits" : NULL;
    hd__text_add(t->out, "%c%7lld", why && !t->marked ? '>' : ' ', (long long)at[from].seq);
    for (int32_t c = 0; c < t->n; c++)
        add_cell(t, find_record(t, from, to, t->ranks[c]));
    hd__text_add(t->out, "\n");
    if (why && !strcmp(why, "differs")) {
        char text[256];
        for (uint32_t i = from; i < to; i++)
            hd__text_add(t->out, "          rank %d: %s, tag %lld\n", at[i].rank,
                         hd__report_op_record_text(&at[i], text), (long long)at[i].tag);
    }
    t->marked |= why != NULL;
}

static void add_channel(struct op_table *t, uint32_t from, uint32_t to)
{
    uint32_t next, rows = 0, skip;
    const struct hd__report_op_record *at = t->ops.list.at;
    for (uint32_t i = from; i < to; i = next, rows++)
        for (next = i + 1; next < to && at[next].seq == at[i].seq;)
            next++;
    skip = rows > HD__REPORT_OPS_SHOWN ? rows - HD__REPORT_OPS_SHOWN : 0;
    hd__text_add(t->out, "\n%s of group %.*s, ranks%s\n", at[from].p2p ? "messages" : "operations",
                 (int)strcspn(at[from].channel, " "), at[from].channel,
                 at[from].channel + strcspn(at[from].channel, " "));
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
            add_row(t, i, next);
    }
}

void hd__report_table(const json_t *report, struct hd__text *out)
{
    struct op_table t = {.out = out};
    const json_t *dump;
    uint32_t to;
    size_t i;
    hd__report_op_records_read(report, &t.ops);
    t.ranks = hd__alloc((json_array_size(json_object_get(report, "rank")) + 1) * sizeof *t.ranks);
    for (uint32_t from = 0; from < t.ops.list.count; from = to) {
        for (to = from + 1; to < t.ops.list.count && !strcmp(t.ops.list.at[to].channel, t.ops.list.at[from].channel);)
            to++;
        t.n = 0;
        json_array_foreach(
            json_object_get(report, "rank"), i,
            dump) if (find_record(&t, from, to, (int32_t)json_integer_value(json_object_get(dump, "rank"))))
            t.ranks[t.n++] = (int32_t)json_integer_value(json_object_get(dump, "rank"));
        add_channel(&t, from, to);
    }
    free(t.ranks);
    hd__report_op_records_free(&t.ops);
}
