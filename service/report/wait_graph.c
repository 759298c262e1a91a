/* The wait-for graph: from the rank that has waited longest to the rank that it waits for, and on from there. */
#include <stdlib.h>

#include "runtime/rendezvous/dump_collect.h"
#include "service/report/diagnose_internal.h"

/* ---- members of a channel: "dp 0,1,2", "dp 0-8160/32+0-3", "pp 0,2 0>2 stream 1" */

struct members {
    const char *at; /* the text that is still to be read */
    int64_t i, n;   /* of the members of the sum of runs that stands before it */
    int32_t runs, size;
    struct {
        int64_t first, count, step;
    } run[HD__REPORT_RUNS];
};

/* Messages have two members: the ends. */
static struct members members_of(const struct hd__report_context *c, const struct hd__report_op_record *op)
{
    const char *at = strchr(op->channel, ' ');
    if (at && op->p2p)
        at = strchr(at + 1, ' ');
    return (struct members){.at = at ? at + 1 : "", .size = c->size};
}

static int64_t read_number(const char **at) /* -1: there is none */
{
    char *end;
    long n = **at >= '0' && **at <= '9' ? strtol(*at, &end, 10) : -1;
    if (n >= 0)
        *at = end;
    return n > INT32_MAX ? -1 : n;
}

/* 0: no more, or not as rank_dump.c writes it: a group has at most all ranks. */
static int read_runs(struct members *m)
{
    m->i = m->runs = 0;
    m->n = 1;
    do {
        int64_t first = read_number(&m->at), last = first, step = 1;
        if (*m->at == '-' && m->at++)
            last = read_number(&m->at);
        if (*m->at == '/' && m->at++)
            step = read_number(&m->at);
        if (first < 0 || last < first || step < 1 || m->runs == HD__REPORT_RUNS)
            return 0;
        m->run[m->runs].first = first;
        m->run[m->runs].count = (last - first) / step + 1;
        m->run[m->runs].step = step;
        m->n *= m->run[m->runs++].count;
        if (m->n > m->size)
            return 0;
    } while (*m->at == '+' && m->at++);
    m->at += *m->at == ',' || *m->at == '>';
    return 1;
}

static int32_t next_member(struct members *m) /* its rank, or -1 */
{
    int64_t rank = 0;
    if (m->i == m->n && !read_runs(m))
        return -1;
    int64_t rest = m->i++;
    for (int32_t k = m->runs; k-- > 0; rest /= m->run[k].count)
        rank += m->run[k].first + rest % m->run[k].count * m->run[k].step;
    return (int32_t)HD__MIN(rank, INT32_MAX);
}

int hd__report_is_member(const struct hd__report_context *c, const struct hd__report_op_record *op, int32_t rank)
{
    struct members members = members_of(c, op);
    for (int32_t member; (member = next_member(&members)) >= 0;)
        if (member == rank)
            return 1;
    return 0;
}

/* Operations are sorted by channel, number and rank: index of the first that is not smaller. */
static uint32_t lower_bound(const struct hd__report_context *c, const char *channel, json_int_t seq)
{
    uint32_t low = 0, high = c->ops.list.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(c->ops.list.at[middle].channel, channel);
        if (order < 0 || (!order && c->ops.list.at[middle].seq < seq))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* By rank: bit 0 if it has begun `op`, bit 1 if it has completed it; a later operation implies both. The caller
 * frees it. */
static uint8_t *member_progress(const struct hd__report_context *c, const struct hd__report_op_record *op)
{
    uint8_t *done = hd__alloc((size_t)c->size + 1);
    const struct hd__report_op_record *at = c->ops.list.at;
    for (uint32_t i = lower_bound(c, op->channel, op->seq);
         i < c->ops.list.count && !strcmp(at[i].channel, op->channel); i++)
        if (at[i].seq > op->seq)
            done[at[i].rank] |= 1;
        else
            done[at[i].rank] |= at[i].completed >= 0 ? 3 : 1;
    return done;
}

/* A rank that `op` waits for, preferably one that waits for none itself; -1: all have begun it, and wait. A rank
 * that has begun it and computes meanwhile counts too, if its transport makes progress only when called. */
static int32_t find_missing_member(const struct hd__report_context *c, const struct hd__report_op_record *op)
{
    uint8_t *done = member_progress(c, op);
    struct members members = members_of(c, op);
    int32_t busy = -1, waits = -1, found = -1, r;
    while (found < 0 && (r = next_member(&members)) >= 0) {
        if (r >= c->size || r == op->rank)
            continue;
        if (!hd__report_rank_answered(c, r) || !done[r])
            *(c->waits_for[r] ? &waits : &found) = c->waits_for[r] && waits >= 0 ? waits : r;
        else if (!(done[r] & 2) && !c->waits_for[r] && busy < 0)
            busy = r;
    }
    free(done);
    return found >= 0 ? found : waits >= 0 ? waits : busy;
}

static void describe_cycle(struct hd__report_context *c, int32_t rank, const struct hd__report_op_record *op)
{
    const struct hd__report_op_record *other = c->waits_for[rank];
    char a[256], b[256];
    snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
             "ranks wait for each other: rank %d for %s in section %.40s, rank %d for %s in section %.40s", op->rank,
             hd__report_op_record_text(op, a), op->section, rank, hd__report_op_record_text(other, b), other->section);
}

/* ---- who strayed */

/* The first and last number that every rank's dump has. */
static void common_range(const struct hd__report_context *c, json_int_t *first, json_int_t *last)
{
    *first = 1;
    *last = INT64_MAX;
    for (int32_t r = 0; r < c->size; r++) {
        const json_t *ops = json_object_get(c->dump[r], "ops"), *channel;
        size_t k;
        json_array_foreach(json_object_get(c->dump[r], "channels"), k,
                           channel) if (json_object_get(channel, "from")) /* pipeline stages have different programs */
            *last = 0;
        if (json_array_size(ops)) {
            *first = HD__MAX(*first, json_integer_value(json_object_get(json_array_get(ops, 0), "n")));
            *last = HD__MIN(*last, json_integer_value(json_object_get(c->dump[r], "operations")));
        }
    }
}

static int same_op(const struct hd__report_op_record *a, const struct hd__report_op_record *b)
{
    return !strcmp(a->name, b->name) && !strncmp(a->channel, b->channel, strcspn(a->channel, " ") + 1);
}

/* The only one of `n` that differs from the others; NULL: none, or more than one. */
static const struct hd__report_op_record *find_outlier(const struct hd__report_op_record *const *of, uint32_t n,
                                                       const struct hd__report_op_record **other)
{
    const struct hd__report_op_record *most, *odd = NULL;
    if (n < 3)
        return NULL;
    most = same_op(of[0], of[1]) || same_op(of[0], of[2]) ? of[0] : of[1];
    for (uint32_t i = 0; i < n; i++) {
        if (same_op(most, of[i]))
            continue;
        if (odd)
            return NULL;
        odd = of[i];
    }
    *other = most;
    return odd;
}

static int by_number(const void *a, const void *b)
{
    const struct hd__report_op_record *x = *(const struct hd__report_op_record *const *)a,
                                      *y = *(const struct hd__report_op_record *const *)b;
    int order = (x->number > y->number) - (x->number < y->number);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Ranks of one program issue the same operations in the same order: a rank that diverged has another operation at
 * some number. */
static int find_divergent_rank(struct hd__report_context *c)
{
    uint32_t all = c->ops.list.count;
    const struct hd__report_op_record **of = hd__alloc(((size_t)all + 1) * sizeof *of), *odd = NULL, *other = NULL;
    json_int_t first, last;
    char a[256], b[256];
    common_range(c, &first, &last);
    for (uint32_t i = 0; i < all; i++)
        of[i] = &c->ops.list.at[i];
    if (all)
        qsort(of, all, sizeof *of, by_number);
    for (uint32_t from = 0, to; from < all && !odd; from = to) {
        for (to = from + 1; to < all && of[to]->number == of[from]->number;)
            to++;
        if (of[from]->number >= first && of[from]->number <= last && last < INT64_MAX)
            odd = find_outlier(of + from, to - from, &other);
    }
    free(of);
    if (!odd || !other)
        return 0;
    hd__report_attribute(c, HD__DIAGNOSIS_MISMATCH, odd->rank, odd);
    snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
             "rank %d diverged: collective mismatch: its operation %lld is %s in section %.40s, and %s on the others",
             odd->rank, (long long)odd->number, hd__report_op_record_text(odd, a), odd->section,
             hd__report_op_record_text(other, b));
    return 1;
}

/* ---- the walk */

static void describe_straggler(struct hd__report_context *c, int32_t rank, const struct hd__report_op_record *op)
{
    int silent = !hd__report_rank_answered(c, rank);
    const char *at = json_string_value(json_object_get(c->dump[rank], "at"));
    char text[256];
    hd__report_attribute(c, silent ? HD__DIAGNOSIS_SILENT : HD__DIAGNOSIS_LATE, rank, op);
    hd__report_op_record_text(op, text);
    if (silent)
        snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
                 "rank %d does not answer; rank %d has waited %.1f s for it at %s of section %.40s", rank, op->rank,
                 op->waited, text, op->section);
    else
        snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
                 "rank %d is %.1f s late at %s of section %.40s, for which rank %d waits; it is at: %s", rank,
                 op->waited, text, op->section, op->rank, at && *at ? at : "unknown");
}

int hd__report_walk_wait_graph(struct hd__report_context *c)
{
    const struct hd__report_op_record *op = NULL;
    uint8_t *visited = hd__alloc((size_t)c->size + 1);
    double least = 1e300;
    int32_t rank;
    char text[256];
    for (int32_t r = 0; r < c->size; r++) {
        const struct hd__report_op_record *its = c->waits_for[r];
        if (its && (!op || its->waited > op->waited))
            op = its;
    }
    for (const struct hd__report_op_record *next = op; next; next = c->waits_for[rank]) {
        visited[next->rank] = 1;
        least = HD__MIN(least, next->waited);
        rank = find_missing_member(c, next);
        if (rank < 0 && next->waited < HD__DUMP_SECONDS && !json_is_null(c->end)) {
            op = NULL; /* it had just begun when the job ended for another reason */
            break;
        }
        if (rank < 0) {
            hd__report_attribute(c, HD__DIAGNOSIS_STUCK, -1, next);
            snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
                     "rank %d has waited %.1f s for %s of section %.40s, which all members have begun: the transport "
                     "does not finish it",
                     next->rank, next->waited, hd__report_op_record_text(next, text), next->section);
            break;
        }
        if (!c->waits_for[rank]) {
            op = next;
            describe_straggler(c, rank, next);
            break;
        }
        if (visited[rank]) {
            hd__report_attribute(c, HD__DIAGNOSIS_CYCLE, rank, next);
            c->diagnosis->waited = least;
            describe_cycle(c, rank, next);
            if (least > HD__DUMP_SECONDS ||
                !json_is_null(c->end)) /* else it may not be a cycle: dumps are taken at different times */
                find_divergent_rank(c);
            break;
        }
    }
    free(visited);
    return op != NULL;
}
