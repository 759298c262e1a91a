#include "service/report/diagnose.h"

#include <stdlib.h>

#include "service/report/diagnose_internal.h"
#include "service/report/speaker.h"

const char *hd__report_diagnosis_name(int32_t kind)
{
    static const char *const names[] = {
#define DIAGNOSIS_NAME(constant, name) name,
        HD__DIAGNOSES(DIAGNOSIS_NAME)
#undef DIAGNOSIS_NAME
    };
    return kind >= 0 && kind < (int32_t)HD__COUNT(names) ? names[kind] : "?";
}

void hd__report_attribute(struct hd__report_context *c, int32_t kind, int32_t rank,
                          const struct hd__report_op_record *what)
{
    c->diagnosis->kind = kind;
    c->diagnosis->rank = rank;
    c->diagnosis->op_rank = what ? what->rank : -1;
    c->diagnosis->op_number = what ? (uint64_t)what->number : 0;
    c->diagnosis->waited = what && what->waited > 0 ? what->waited : 0;
}

/* ---- collective mismatch: the first number of a channel at which members differ */

/* Entries [from, to) have one channel and number. Is there a difference, and whose? */
static int any_differ(const struct hd__report_context *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = from + 1; i < to; i++)
        if (hd__report_op_records_differ(&c->ops.list.at[from], &c->ops.list.at[i]))
            return 1;
    return 0;
}

/* Entries that do the same. */
struct op_variant {
    const struct hd__report_op_record *first;
    uint32_t n;
};
enum { VARIANTS_MAX = 16 }; /* that are told apart; what is still another counts with the last */

static uint32_t group_variants(const struct hd__report_context *c, uint32_t from, uint32_t to,
                               struct op_variant variants[VARIANTS_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = from; i < to; i++) {
        const struct hd__report_op_record *one = &c->ops.list.at[i];
        uint32_t k = 0;
        while (k < n && hd__report_op_records_differ(variants[k].first, one))
            k++;
        if (k == n && n < VARIANTS_MAX)
            variants[n++] = (struct op_variant){.first = one};
        variants[HD__MIN(k, n - 1)].n++;
    }
    return n;
}

static void describe_mismatch(struct hd__report_context *c, uint32_t from, uint32_t to)
{
    struct op_variant variants[VARIANTS_MAX] = {{0}};
    uint32_t n = group_variants(c, from, to, variants), fewest = 0, tie = 0;
    char a[256], b[256];
    for (uint32_t k = 1; k < n; k++)
        if (variants[k].n < variants[fewest].n)
            fewest = k;
    for (uint32_t k = 0; k < n; k++)
        tie |= k != fewest && variants[k].n == variants[fewest].n;
    const struct hd__report_op_record *odd = variants[fewest].first, *other = variants[fewest == 0].first;
    hd__report_attribute(c, HD__DIAGNOSIS_MISMATCH, tie ? -1 : odd->rank, odd); /* of two, nobody knows which */
    hd__report_op_record_text(odd, a);
    hd__report_op_record_text(other, b);
    if (tie)
        snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
                 "ranks %d and %d do not do the same: operation %lld of %.*s is %s in section %.40s on rank %d, and %s "
                 "in section %.40s on rank %d",
                 odd->rank, other->rank, (long long)odd->seq, (int)strcspn(odd->channel, " "), odd->channel, a,
                 odd->section, odd->rank, b, other->section, other->rank);
    else
        snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
                 "rank %d diverged: collective mismatch: operation %lld of %.*s is %s in section %.40s there, and %s "
                 "in section %.40s on the others",
                 odd->rank, (long long)odd->seq, (int)strcspn(odd->channel, " "), odd->channel, a, odd->section, b,
                 other->section);
}

static int find_mismatch(struct hd__report_context *c)
{
    const struct hd__report_op_record *at = c->ops.list.at;
    uint32_t n = c->ops.list.count, first = 0, last = 0;
    double oldest = -1;
    for (uint32_t from = 0, to; from < n; from = to) {
        double age = 0;
        for (to = from + 1; to < n && at[to].seq == at[from].seq && !strcmp(at[to].channel, at[from].channel);)
            to++;
        for (uint32_t i = from; i < to; i++)
            age = HD__MAX(age, at[i].enqueued);
        if (to - from > 1 && age > oldest && any_differ(c, from, to)) {
            oldest = age;
            first = from;
            last = to;
        }
    }
    if (oldest >= 0)
        describe_mismatch(c, first, last);
    return oldest >= 0;
}

/* ---- the whole */

static const char *end_text(const struct hd__report_context *c, const char *key)
{
    const char *text = json_string_value(json_object_get(c->end, key));
    return text ? text : "";
}

static void describe_dead_rank(struct hd__report_context *c, int32_t rank)
{
    const struct hd__report_op_record *op = NULL;
    char text[256];
    for (int32_t r = 0; r < c->size && !op; r++) {
        op = c->waits_for[r];
        op = op && hd__report_is_member(c, op, rank) ? op : NULL;
    }
    hd__report_attribute(c, HD__DIAGNOSIS_DEAD, rank, op);
    if (op)
        snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
                 "%.400s; rank %d waited for it at %s of section %.40s", end_text(c, "cause"), op->rank,
                 hd__report_op_record_text(op, text), op->section);
    else
        snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary, "%.400s", end_text(c, "cause"));
}

/* The others cannot be past the rendezvous then, whatever they say that they are in. */
static int find_absent(struct hd__report_context *c)
{
    int32_t first = -1, n = 0;
    for (int32_t r = c->size; r-- > 0;) {
        const char *state = json_string_value(json_object_get(c->dump[r], "state"));
        if (state && !strcmp(state, HD__REPORT_NEVER_CAME)) {
            first = r;
            n++;
        }
    }
    if (!n)
        return 0;
    hd__report_attribute(c, HD__DIAGNOSIS_SILENT, first, NULL);
    snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary,
             "rank %d%s never came to the rendezvous, where the others wait: was it started, and can it reach rank 0?",
             first, n > 1 ? hd__arena_format(&c->ops.arena, ", and %d more,", n - 1) : "");
    return 1;
}

/* Nobody waits for an operation: a rank that has been opening or closing something for longest, of itself as far as is
 * known, keeps the others waiting. */
static int find_long_call(struct hd__report_context *c)
{
    double longest = 0;
    int32_t found = -1, others = -1;
    for (int32_t r = 0; r < c->size; r++) {
        double call = json_number_value(json_object_get(c->dump[r], "call"));
        if (call > longest) {
            longest = call;
            found = r;
        }
        others += call > 0;
    }
    if (found < 0)
        return 0;
    hd__report_attribute(c, HD__DIAGNOSIS_LATE, found, NULL);
    c->diagnosis->waited = longest;
    const char *at = json_string_value(json_object_get(c->dump[found], "at"));
    snprintf(c->diagnosis->summary, sizeof c->diagnosis->summary, "rank %d has been %.100s for %.1f s", found,
             at ? at : "inside a call", longest);
    if (others)
        snprintf(strchr(c->diagnosis->summary, 0), 64, ", and %d other%s inside such a call", others,
                 others > 1 ? "s are" : " is");
    return 1;
}

/* HD_OK where the report has none, or one of a later version. */
static int32_t end_code(const struct hd__report_context *c)
{
    static const int32_t codes[] = {
#define DIAGNOSIS_CODE(constant, value, name) constant,
        HD_CODES(DIAGNOSIS_CODE)
#undef DIAGNOSIS_CODE
    };
    size_t i = HD__COUNT(codes);
    while (--i && strcmp(hd_code_name(codes[i]), end_text(c, "code")))
        continue;
    return codes[i];
}

/* By rank: its part, and what it waits for. What claims to be of no rank of the job is left out. */
static void index_ranks(struct hd__report_context *c)
{
    const json_t *dumps = json_object_get(c->report, "rank"), *dump;
    uint32_t kept = 0;
    size_t i;
    c->size = (int32_t)json_array_size(dumps);
    c->dump = hd__alloc(((size_t)c->size + 1) * sizeof *c->dump);
    c->waits_for = hd__alloc(((size_t)c->size + 1) * sizeof *c->waits_for);
    json_array_foreach(dumps, i, dump)
    {
        json_int_t rank = json_integer_value(json_object_get(dump, "rank"));
        if (rank >= 0 && rank < c->size && !c->dump[rank])
            c->dump[rank] = dump;
    }
    hd__report_op_records_read(c->report, &c->ops);
    for (uint32_t k = 0; k < c->ops.list.count; k++)
        if (c->ops.list.at[k].rank >= 0 && c->ops.list.at[k].rank < c->size)
            c->ops.list.at[kept++] = c->ops.list.at[k];
    c->ops.list.count = kept;
    for (uint32_t k = 0; k < kept; k++) {
        const struct hd__report_op_record *op = &c->ops.list.at[k];
        if (op->number && op->number == json_integer_value(json_object_get(c->dump[op->rank], "waiting")))
            c->waits_for[op->rank] = op;
    }
}

void hd__report_diagnose(const json_t *report, struct hd__report_diagnosis *diagnosis)
{
    struct hd__report_context c = {.report = report, .end = json_object_get(report, "end"), .diagnosis = diagnosis};
    int32_t rank = c.end ? (int32_t)json_integer_value(json_object_get(c.end, "rank")) : -1, code = end_code(&c);
    *diagnosis = (struct hd__report_diagnosis){.rank = -1, .op_rank = -1};
    index_ranks(&c);
    if (find_mismatch(&c)) /* whatever came of it */
        ;
    else if (rank >= 0 && code == HD_E_PEER)
        describe_dead_rank(&c, rank);
    else if ((code == HD_OK || code == HD_E_TIMEOUT) && find_absent(&c)) /* nor does it wait for anything */
        ;
    else if ((code != HD_OK && !hd__speaker_blames_another(code)) || code == HD_E_PEER ||
             (!hd__report_walk_wait_graph(&c) && !((code == HD_OK || code == HD_E_TIMEOUT) && find_long_call(&c)) &&
              *end_text(&c, "cause"))) {
        hd__report_attribute(&c, HD__DIAGNOSIS_FAILED, rank, NULL);
        snprintf(diagnosis->summary, sizeof diagnosis->summary, "%.1000s", end_text(&c, "cause"));
    }
    hd__report_op_records_free(&c.ops);
    free(c.dump);
    free(c.waits_for);
}
