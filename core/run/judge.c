#include "core/run/judge.h"

#include <stdlib.h>

#include "core/comm/gather.h"

struct court {
    const json_t *report, *parts, *end;
    struct hd__seen_all seen;
    int32_t size;
    struct hd__verdict *v;
};

const char *hd__verdict_name(int32_t kind)
{
    static const char *const names[] = {
#define VERDICT_NAME(constant, name) name,
        HD__VERDICTS(VERDICT_NAME)
#undef VERDICT_NAME
    };
    return kind >= 0 && kind < (int32_t)HD__COUNT(names) ? names[kind] : "?";
}

static const json_t *part_of(const struct court *c, int32_t rank)
{
    const json_t *part;
    size_t i;
    json_array_foreach(c->parts, i, part)
        if (json_integer_value(json_object_get(part, "rank")) == rank)
            return part;
    return NULL;
}

static const char *state_of(const struct court *c, int32_t rank)
{
    const char *state = json_string_value(json_object_get(part_of(c, rank), "state"));
    return state ? state : "";
}

static const char *at_of(const struct court *c, int32_t rank)
{
    const char *at = json_string_value(json_object_get(part_of(c, rank), "at"));
    return at && *at ? at : "unknown";
}

/* What a rank waits for; NULL: it does not wait, or says nothing. */
static const struct hd__seen *wait_of(const struct court *c, int32_t rank)
{
    json_int_t number = json_integer_value(json_object_get(part_of(c, rank), "waiting"));
    for (uint32_t i = 0; i < c->seen.at.count && number; i++)
        if (c->seen.at.at[i].rank == rank && c->seen.at.at[i].number == number)
            return &c->seen.at.at[i];
    return NULL;
}

static void blame(struct court *c, int32_t kind, int32_t rank, const struct hd__seen *what)
{
    c->v->kind = kind;
    c->v->rank = rank;
    c->v->channel_rank = what ? what->rank : -1;
    c->v->number = what ? (uint64_t)what->number : 0;
    c->v->waited = what && what->waited > 0 ? what->waited : 0;
}

/* ---- a wrong turn: the first number of a channel at which members differ */

/* Entries [from, to) have one channel and number. Is there a difference, and whose? */
static int differ(const struct court *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = from + 1; i < to; i++)
        if (hd__seen_differ(&c->seen.at.at[from], &c->seen.at.at[i]))
            return 1;
    return 0;
}

static uint32_t alike(const struct court *c, uint32_t from, uint32_t to, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t k = from; k < to; k++)
        n += !hd__seen_differ(&c->seen.at.at[i], &c->seen.at.at[k]);
    return n;
}

static void say_difference(struct court *c, uint32_t from, uint32_t to)
{
    const struct hd__seen *at = c->seen.at.at, *odd = &at[from], *other = NULL;
    uint32_t fewest = alike(c, from, to, from), tie = 0;
    char a[256], b[256];
    for (uint32_t i = from + 1; i < to; i++)
        if (alike(c, from, to, i) < fewest) {
            fewest = alike(c, from, to, i);
            odd = &at[i];
        }
    for (uint32_t i = from; i < to; i++) {
        tie |= &at[i] != odd && hd__seen_differ(odd, &at[i]) && alike(c, from, to, i) == fewest;
        if (!other && hd__seen_differ(odd, &at[i]))
            other = &at[i];
    }
    blame(c, HD__VERDICT_MISMATCH, odd->rank, odd);
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

static int find_difference(struct court *c)
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

/* ---- who waits for whom */

/* How many operations of the channel a rank has begun. */
static json_int_t begun(const struct court *c, int32_t rank, const char *channel)
{
    json_int_t most = 0;
    for (uint32_t i = 0; i < c->seen.at.count; i++)
        if (c->seen.at.at[i].rank == rank && !strcmp(c->seen.at.at[i].channel, channel))
            most = HD__MAX(most, c->seen.at.at[i].seq);
    return most;
}

static int is_member(const char *channel, int32_t rank)
{
    const char *at = strchr(channel, ' ');
    for (at = at ? at + 1 : ""; *at && *at != ' '; at += strspn(at, ","))
        if (strtol(at, (char **)&at, 10) == rank)
            return 1;
    return 0;
}

/* Of a message only the two ends count. */
static int takes_part(const struct hd__seen *op, int32_t rank)
{
    const char *ends = op->message ? strchr(strchr(op->channel, ' ') + 1, ' ') : NULL;
    int from, to;
    if (ends && sscanf(ends, " %d>%d", &from, &to) == 2)
        return rank == from || rank == to;
    return is_member(op->channel, rank);
}

/* A rank that `op` waits for, first of all one that waits for nobody itself; -1: all have come. */
static int32_t missing(const struct court *c, const struct hd__seen *op)
{
    int32_t found = -1;
    for (int32_t r = 0; r < c->size; r++) {
        if (r == op->rank || !takes_part(op, r) || (!strcmp(state_of(c, r), "answered") && begun(c, r, op->channel) >= op->seq))
            continue;
        if (!wait_of(c, r))
            return r;
        found = found < 0 ? r : found;
    }
    return found;
}

static void say_circle(struct court *c, int32_t rank, const struct hd__seen *op)
{
    const struct hd__seen *other = wait_of(c, rank);
    char a[256], b[256];
    snprintf(c->v->words, sizeof c->v->words, "ranks wait for each other: rank %d for %s in section %.40s, rank %d for %s in section "
             "%.40s", op->rank, hd__seen_text(op, a), op->section, rank, hd__seen_text(other, b), other->section);
}

/* The first and last number that every rank's part has. */
static void common_numbers(const struct court *c, json_int_t *first, json_int_t *last)
{
    const json_t *part, *channel;
    size_t i, k;
    *first = 1;
    *last = INT64_MAX;
    json_array_foreach(c->parts, i, part) {
        const json_t *ops = json_object_get(part, "ops");
        json_array_foreach(json_object_get(part, "channels"), k, channel)
            if (json_object_get(channel, "from")) /* pipeline stages: each has a program of its own */
                *last = 0;
        if (json_array_size(ops)) {
            *first = HD__MAX(*first, json_integer_value(json_object_get(json_array_get(ops, 0), "n")));
            *last = HD__MIN(*last, json_integer_value(json_object_get(part, "operations")));
        }
    }
}

static int same_step(const struct hd__seen *a, const struct hd__seen *b)
{
    return !strcmp(a->name, b->name) && !strncmp(a->channel, b->channel, strcspn(a->channel, " ") + 1);
}

/* The only one of `n` that is not like the others; NULL: there is none, or more than one. */
static const struct hd__seen *odd_one(const struct hd__seen *const *of, uint32_t n, const struct hd__seen **other)
{
    const struct hd__seen *odd = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < n; k++)
            same += same_step(of[i], of[k]);
        if (same < n - 1 && same > 1)
            return NULL;
        if (same == n - 1)
            *other = of[i];
        else if (same < n)
            odd = of[i];
    }
    return n > 2 ? odd : NULL;
}

/* Ranks of one program do the same things in the same order: who strayed from it has another operation by number. */
static int find_stray(struct court *c)
{
    const struct hd__seen **of = hd__alloc(((size_t)c->size + 1) * sizeof *of), *odd = NULL, *other = NULL;
    json_int_t first, last;
    char a[256], b[256];
    common_numbers(c, &first, &last);
    for (json_int_t number = first; number <= last && !odd && last < INT64_MAX; number++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < c->seen.at.count && n < (uint32_t)c->size; k++)
            if (c->seen.at.at[k].number == number)
                of[n++] = &c->seen.at.at[k];
        odd = odd_one(of, n, &other);
    }
    free(of);
    if (!odd || !other)
        return 0;
    blame(c, HD__VERDICT_MISMATCH, odd->rank, odd);
    snprintf(c->v->words, sizeof c->v->words, "rank %d took a wrong turn: its operation %lld is %s in section %.40s, and %s on the "
             "others", odd->rank, (long long)odd->number, hd__seen_text(odd, a), odd->section, hd__seen_text(other, b));
    return 1;
}

static void say_waited_for(struct court *c, int32_t rank, const struct hd__seen *op)
{
    int silent = strcmp(state_of(c, rank), "answered") != 0;
    char text[256];
    blame(c, silent ? HD__VERDICT_SILENT : HD__VERDICT_LATE, rank, op);
    hd__seen_text(op, text);
    if (silent)
        snprintf(c->v->words, sizeof c->v->words, "rank %d does not answer; rank %d has waited %.1f s for it at %s of section %.40s",
                 rank, op->rank, op->waited, text, op->section);
    else
        snprintf(c->v->words, sizeof c->v->words, "rank %d is %.1f s late at %s of section %.40s, for which rank %d waits; its place: %s",
                 rank, op->waited, text, op->section, op->rank, at_of(c, rank));
}

static int find_waits(struct court *c)
{
    const struct hd__seen *op = NULL;
    uint8_t *met = hd__alloc((size_t)c->size + 1);
    double least = 1e300;
    int32_t rank;
    char text[256];
    for (int32_t r = 0; r < c->size; r++) {
        const struct hd__seen *its = wait_of(c, r);
        if (its && (!op || its->waited > op->waited))
            op = its;
    }
    for (const struct hd__seen *next = op; next; next = wait_of(c, rank)) {
        met[next->rank] = 1;
        least = HD__MIN(least, next->waited);
        rank = missing(c, next);
        if (rank < 0) {
            blame(c, HD__VERDICT_STUCK, -1, next);
            snprintf(c->v->words, sizeof c->v->words, "rank %d has waited %.1f s for %s of section %.40s, which all members have begun: the "
                     "transport does not finish it", next->rank, next->waited, hd__seen_text(next, text), next->section);
            break;
        }
        if (!wait_of(c, rank)) {
            op = next;
            say_waited_for(c, rank, next);
            break;
        }
        if (met[rank]) {
            blame(c, HD__VERDICT_CYCLE, rank, next);
            c->v->waited = least;
            say_circle(c, rank, next);
            if (least > HD__GATHER_SECONDS || !json_is_null(c->end)) /* else it may not be one: parts are not of one moment */
                find_stray(c);
            break;
        }
    }
    free(met);
    return op != NULL;
}

/* ---- the whole */

static const char *end_text(const struct court *c, const char *key)
{
    const char *text = json_string_value(json_object_get(c->end, key));
    return text ? text : "";
}

static void say_death(struct court *c, int32_t rank)
{
    const struct hd__seen *op = NULL;
    char text[256];
    for (int32_t r = 0; r < c->size && !op; r++) {
        op = wait_of(c, r);
        op = op && takes_part(op, rank) ? op : NULL;
    }
    blame(c, HD__VERDICT_DEAD, rank, op);
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

void hd__judge(const json_t *report, struct hd__verdict *v)
{
    struct court c = {.report = report, .parts = json_object_get(report, "rank"), .end = json_object_get(report, "end"), .v = v};
    int32_t rank = c.end ? (int32_t)json_integer_value(json_object_get(c.end, "rank")) : -1;
    *v = (struct hd__verdict){.rank = -1, .channel_rank = -1};
    c.size = (int32_t)json_array_size(c.parts);
    hd__seen_read(report, &c.seen);
    if (find_difference(&c)) /* whatever came of it */
        ;
    else if (rank >= 0 && !strcmp(end_text(&c, "code"), "peer lost"))
        say_death(&c, rank);
    else if (!is_of_others(end_text(&c, "code")) || (!find_waits(&c) && *end_text(&c, "cause"))) {
        blame(&c, HD__VERDICT_FAILED, rank, NULL);
        snprintf(v->words, sizeof v->words, "%.1000s", end_text(&c, "cause"));
    }
    hd__seen_free(&c.seen);
}
