#include "service/report/diagnose.h"

#include <stdlib.h>

#include "service/report/diagnose_internal.h"

const char *hd__verdict_name(int32_t kind)
{
    static const char *const names[] = {
#define VERDICT_NAME(constant, name) name,
        HD__VERDICTS(VERDICT_NAME)
#undef VERDICT_NAME
    };
    return kind >= 0 && kind < (int32_t)HD__COUNT(names) ? names[kind] : "?";
}

void hd__court_blame(struct hd__court *c, int32_t kind, int32_t rank, const struct hd__seen *what)
{
    c->v->kind = kind;
    c->v->rank = rank;
    c->v->channel_rank = what ? what->rank : -1;
    c->v->number = what ? (uint64_t)what->number : 0;
    c->v->waited = what && what->waited > 0 ? what->waited : 0;
}

/* ---- a wrong turn: the first number of a channel at which members differ */

/* Entries [from, to) have one channel and number. Is there a difference, and whose? */
static int differ(const struct hd__court *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = from + 1; i < to; i++)
        if (hd__seen_differ(&c->seen.at.at[from], &c->seen.at.at[i]))
            return 1;
    return 0;
}

/* Entries that do the same. */
struct alike {
    const struct hd__seen *first;
    uint32_t n;
};
enum { KINDS_MAX = 16 }; /* that are told apart; what is still another counts with the last */

static uint32_t sort_out(const struct hd__court *c, uint32_t from, uint32_t to, struct alike kinds[KINDS_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = from; i < to; i++) {
        const struct hd__seen *one = &c->seen.at.at[i];
        uint32_t k = 0;
        while (k < n && hd__seen_differ(kinds[k].first, one))
            k++;
        if (k == n && n < KINDS_MAX)
            kinds[n++] = (struct alike){.first = one};
        kinds[HD__MIN(k, n - 1)].n++;
    }
    return n;
}

static void say_difference(struct hd__court *c, uint32_t from, uint32_t to)
{
    struct alike kinds[KINDS_MAX] = {{0}};
    uint32_t n = sort_out(c, from, to, kinds), fewest = 0, tie = 0;
    char a[256], b[256];
    for (uint32_t k = 1; k < n; k++)
        if (kinds[k].n < kinds[fewest].n)
            fewest = k;
    for (uint32_t k = 0; k < n; k++)
        tie |= k != fewest && kinds[k].n == kinds[fewest].n;
    const struct hd__seen *odd = kinds[fewest].first, *other = kinds[fewest == 0].first;
    hd__court_blame(c, HD__VERDICT_MISMATCH, tie ? -1 : odd->rank, odd); /* of two, nobody knows which */
    hd__seen_text(odd, a);
    hd__seen_text(other, b);
    if (tie)
        snprintf(c->v->words, sizeof c->v->words, "ranks %d and %d do not do the same: operation %lld of %.*s is %s in section %.40s on "
                 "rank %d, and %s in section %.40s on rank %d", odd->rank, other->rank, (long long)odd->seq,
                 (int)strcspn(odd->channel, " "), odd->channel, a, odd->section, odd->rank, b, other->section, other->rank);
    else
        snprintf(c->v->words, sizeof c->v->words, "rank %d took a wrong turn: operation %lld of %.*s is %s in section %.40s there, and "
                 "%s in section %.40s on the others", odd->rank, (long long)odd->seq, (int)strcspn(odd->channel, " "), odd->channel, a,
                 odd->section, b, other->section);
}

static int find_difference(struct hd__court *c)
{
    const struct hd__seen *at = c->seen.at.at;
    uint32_t n = c->seen.at.count, first = 0, last = 0;
    double oldest = -1;
    for (uint32_t from = 0, to; from < n; from = to) {
        double age = 0;
        for (to = from + 1; to < n && at[to].seq == at[from].seq && !strcmp(at[to].channel, at[from].channel);)
            to++;
        for (uint32_t i = from; i < to; i++)
            age = HD__MAX(age, at[i].enqueued);
        if (to - from > 1 && age > oldest && differ(c, from, to)) {
            oldest = age;
            first = from;
            last = to;
        }
    }
    if (oldest >= 0)
        say_difference(c, first, last);
    return oldest >= 0;
}

/* ---- the whole */

static const char *end_text(const struct hd__court *c, const char *key)
{
    const char *text = json_string_value(json_object_get(c->end, key));
    return text ? text : "";
}

static void say_death(struct hd__court *c, int32_t rank)
{
    const struct hd__seen *op = NULL;
    char text[256];
    for (int32_t r = 0; r < c->size && !op; r++) {
        op = c->wait[r];
        op = op && hd__court_takes_part(op, rank) ? op : NULL;
    }
    hd__court_blame(c, HD__VERDICT_DEAD, rank, op);
    if (op)
        snprintf(c->v->words, sizeof c->v->words, "%.400s; rank %d waited for it at %s of section %.40s", end_text(c, "cause"), op->rank,
                 hd__seen_text(op, text), op->section);
    else
        snprintf(c->v->words, sizeof c->v->words, "%.400s", end_text(c, "cause"));
}

/* Did the rank that ended the job do so because of what another did, or did not? */
static int is_of_others(const char *code)
{
    return !strcmp(code, "timed out") || !strcmp(code, "mismatch") || !strcmp(code, "peer lost") || !strcmp(code, "cancelled") || !*code;
}

/* By rank: its part, and what it waits for. What claims to be of no rank of the job is left out. */
static void seat(struct hd__court *c)
{
    const json_t *parts = json_object_get(c->report, "rank"), *part;
    uint32_t kept = 0;
    size_t i;
    c->size = (int32_t)json_array_size(parts);
    c->part = hd__alloc(((size_t)c->size + 1) * sizeof *c->part);
    c->wait = hd__alloc(((size_t)c->size + 1) * sizeof *c->wait);
    json_array_foreach(parts, i, part) {
        json_int_t rank = json_integer_value(json_object_get(part, "rank"));
        if (rank >= 0 && rank < c->size && !c->part[rank])
            c->part[rank] = part;
    }
    hd__seen_read(c->report, &c->seen);
    for (uint32_t k = 0; k < c->seen.at.count; k++)
        if (c->seen.at.at[k].rank >= 0 && c->seen.at.at[k].rank < c->size)
            c->seen.at.at[kept++] = c->seen.at.at[k];
    c->seen.at.count = kept;
    for (uint32_t k = 0; k < kept; k++) {
        const struct hd__seen *op = &c->seen.at.at[k];
        if (op->number && op->number == json_integer_value(json_object_get(c->part[op->rank], "waiting")))
            c->wait[op->rank] = op;
    }
}

void hd__judge(const json_t *report, struct hd__verdict *v)
{
    struct hd__court c = {.report = report, .end = json_object_get(report, "end"), .v = v};
    int32_t rank = c.end ? (int32_t)json_integer_value(json_object_get(c.end, "rank")) : -1;
    *v = (struct hd__verdict){.rank = -1, .channel_rank = -1};
    seat(&c);
    if (find_difference(&c)) /* whatever came of it */
        ;
    else if (rank >= 0 && !strcmp(end_text(&c, "code"), "peer lost"))
        say_death(&c, rank);
    else if (!is_of_others(end_text(&c, "code")) || (!hd__court_waits(&c) && *end_text(&c, "cause"))) {
        hd__court_blame(&c, HD__VERDICT_FAILED, rank, NULL);
        snprintf(v->words, sizeof v->words, "%.1000s", end_text(&c, "cause"));
    }
    hd__seen_free(&c.seen);
    free(c.part);
    free(c.wait);
}
