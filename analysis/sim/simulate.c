/* Rates -> costs -> the machine -> a timeline per rank. */
#include "analysis/sim/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "core/program/ops.h"

/* ---- rates */

/* One core of a server with fp32 vectors, its share of memory bandwidth, and copies through shared memory. Round
 * numbers, not measurements: output that depends on them says so. */
struct hd__sim_rates hd__sim_rates_default(void)
{
    struct hd__sim_rates r = {.flops = 100e9, .memory = 10e9, .kernel = 2e-6};
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        r.latency[a] = 5e-6;
        r.link[a] = 5e9;
    }
    return r;
}

struct pair {
    const char *key;
    size_t key_length;
    const char *name; /* the part after the axis' dot */
    uint32_t axes;
};

/* "tp.link": the named axes; all without a name; 0 for an unknown one. */
static struct pair split_key(const char *text, size_t length)
{
    const char *dot = memchr(text, '.', length);
    struct pair p = {.key = text, .key_length = length, .name = dot ? dot + 1 : text, .axes = (1 << HD_AXIS_COUNT) - 1};
    if (!dot)
        return p;
    p.axes = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        const char *axis = hd__axis_name(a);
        size_t n = (size_t)(dot - text);
        if ((strlen(axis) == n && !strncmp(axis, text, n)) ||
            (n == 2 && !strncmp(text, "dp", 2) && !strncmp(axis, "dp_", 3)))
            p.axes |= HD_AXIS_BIT(a);
    }
    return p;
}

static const struct {
    const char *name;
    size_t offset;
    uint8_t by_axis, seconds; /* seconds: 0 is allowed */
} rate_rows[] = {{"flops", offsetof(struct hd__sim_rates, flops), 0, 0},
                 {"memory", offsetof(struct hd__sim_rates, memory), 0, 0},
                 {"kernel", offsetof(struct hd__sim_rates, kernel), 0, 1},
                 {"latency", offsetof(struct hd__sim_rates, latency), 1, 1},
                 {"link", offsetof(struct hd__sim_rates, link), 1, 0}};

/* The row that a key names; HD__COUNT(rate_rows) if there is none. */
static size_t find_rate(const struct pair *p)
{
    size_t n = p->key_length - (size_t)(p->name - p->key), k = 0;
    while (k < HD__COUNT(rate_rows) && (strlen(rate_rows[k].name) != n || strncmp(p->name, rate_rows[k].name, n) != 0))
        k++;
    return k < HD__COUNT(rate_rows) && p->axes && (rate_rows[k].by_axis || p->name == p->key) ? k
                                                                                              : HD__COUNT(rate_rows);
}

int32_t hd__sim_rates_parse(struct hd__sim_rates *rates, const char *text, struct hd_error *err)
{
    struct hd__sim_rates r = *rates;
    while (*text) {
        size_t item = strcspn(text, ","), key = strcspn(text, "=,"), row;
        struct pair p = split_key(text, key);
        char *end = NULL;
        double value = key < item ? strtod(text + key + 1, &end) : 0;
        if ((row = find_rate(&p)) == HD__COUNT(rate_rows))
            return hd_fail(err, HD_E_INVALID,
                           "unknown rate '%.*s': flops, memory, kernel, latency, link, or an axis before one of the "
                           "last two, as in tp.link",
                           (int)key, text);
        if (end != text + item || !isfinite(value) || value < 0 || (value == 0 && !rate_rows[row].seconds))
            return hd_fail(err, HD_E_INVALID,
                           "'%.*s' is not a rate: write KEY=NUMBER, in FLOPs or bytes a second, or seconds, as in "
                           "flops=2e12,latency=3e-6",
                           (int)item, text);
        if (!rate_rows[row].seconds && value < 1e6)
            return hd_fail(err, HD_E_INVALID,
                           "'%.*s' is below a million: rates are FLOPs or bytes a second; a link of 10 Gbit/s is "
                           "link=1.25e9",
                           (int)item, text);
        if (rate_rows[row].seconds && value > 0.1) /* as in machine files */
            return hd_fail(err, HD_E_INVALID, "'%.*s' is more than 0.1 seconds: 2 us are 2e-6", (int)item, text);
        r.named |= p.name != p.key ? p.axes : 0;
        for (int32_t a = 0; a < (rate_rows[row].by_axis ? HD_AXIS_COUNT : 1); a++)
            if (!rate_rows[row].by_axis || p.axes & HD_AXIS_BIT(a))
                ((double *)((char *)&r + rate_rows[row].offset))[a] = value;
        text += item + (text[item] == ',');
    }
    *rates = r;
    return HD_OK;
}

void hd__sim_rates_text(const struct hd__sim_rates *r, struct hd__text *out)
{
    hd__text_add(out, "flops=%g,memory=%g,kernel=%g,latency=%g,link=%g", r->flops, r->memory, r->kernel, r->latency[0],
                 r->link[0]);
    for (int32_t a = 1; a < HD_AXIS_COUNT; a++) {
        if (r->latency[a] != r->latency[0])
            hd__text_add(out, ",%s.latency=%g", hd__axis_name(a), r->latency[a]);
        if (r->link[a] != r->link[0])
            hd__text_add(out, ",%s.link=%g", hd__axis_name(a), r->link[a]);
    }
}

/* ---- the run */

struct recorder {
    const struct hd__sim_rates *rates;
    struct hd__timeline *t;
    int32_t *slot;           /* by rank: index into t->ranks, -1: not recorded */
    int32_t extra, extra_as; /* the rank asked for, -1: none; the rank that is walked for it */
    int32_t off, reserved;   /* recording is off */
};

static double seconds_of(void *user, const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__sim_rates *r = ((const struct recorder *)user)->rates;
    if (r->cost)
        return r->cost(r->user, p, i);
    if (r->seconds)
        return r->seconds(p, i);
    return r->kernel + fmax(hd__instr_flops(p, i) / r->flops, hd__instr_bytes(p, i) / r->memory);
}

static int blocks(void *user, const struct hd__instr *i)
{
    const struct hd__sim_rates *r = ((const struct recorder *)user)->rates;
    return r->blocks && r->blocks(r->user, i);
}

static struct hd__timeline_lane *lane_of(struct hd__rank_times *r, uint16_t stream)
{
    for (uint32_t n = 0; n < r->n_lanes; n++)
        if (r->lane[n].stream == stream)
            return &r->lane[n];
    r->lane = hd__realloc(r->lane, (r->n_lanes + 1) * sizeof *r->lane);
    r->lane[r->n_lanes] = (struct hd__timeline_lane){.stream = stream};
    return &r->lane[r->n_lanes++];
}

static void record_rank(const struct recorder *w, int32_t rank, const struct hd__sim_span *span)
{
    struct hd__rank_times *r = w->slot[rank] < 0 ? NULL : &w->t->ranks[w->slot[rank]];
    if (!r || w->off)
        return;
    hd__push(&lane_of(r, span->instr->stream)->spans, *span);
    if (hd__is_async(span->instr) || span->instr->phase == HD__PHASE_O)
        return;
    r->first = r->work > 0 ? fmin(r->first, span->start) : span->start;
    r->last = fmax(r->last, span->end);
    r->work += span->end - span->start;
}

static void record(void *user, int32_t rank, const struct hd__sim_span *span)
{
    const struct recorder *w = user;
    record_rank(w, rank, span);
    if (w->extra >= 0 && w->extra != rank && w->extra_as == rank)
        record_rank(w, w->extra, span);
}

/* ---- what follows */

static int by_start(const void *a, const void *b)
{
    const struct hd__sim_span *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Spans of one lane mostly come in this order. */
static void sort_spans(struct hd__sim_span *at, uint32_t n)
{
    uint32_t k = 1;
    while (k < n && at[k - 1].start <= at[k].start)
        k++;
    if (k < n)
        qsort(at, n, sizeof *at, by_start);
}

static int by_stream(const void *a, const void *b)
{
    return (int)((const struct hd__timeline_lane *)a)->stream - (int)((const struct hd__timeline_lane *)b)->stream;
}

/* Seconds of [from, to) in which the rank computed. `at` is a cursor into the compute lane that only advances. */
static double computed(const struct hd__timeline_lane *compute, double from, double to, uint32_t *at)
{
    double sum = 0;
    while (*at < compute->spans.count && compute->spans.at[*at].end <= from)
        ++*at;
    for (uint32_t n = *at; n < compute->spans.count && compute->spans.at[n].start < to; n++)
        sum += fmin(to, compute->spans.at[n].end) - fmax(from, compute->spans.at[n].start);
    return sum;
}

/* All transfers of a rank as one sorted list; overlaps count once. */
static void measure_comm(struct hd__rank_times *r)
{
    HD__ARRAY(struct hd__sim_span) all = {0};
    uint32_t at = 0;
    double until = 0;
    for (uint32_t n = 1; n < r->n_lanes; n++)
        hd__append(&all, r->lane[n].spans.at, r->lane[n].spans.count);
    sort_spans(all.at, all.count);
    for (uint32_t n = 0; n < all.count; n++) {
        double from = fmax(all.at[n].start, until), to = all.at[n].end;
        if (to <= from)
            continue;
        r->comm += to - from;
        r->overlapped += computed(&r->lane[0], from, to, &at);
        until = to;
    }
    hd__free_array(&all);
}

static void finish_rank(struct hd__rank_times *r)
{
    lane_of(r, HD__STREAM_COMPUTE);
    qsort(r->lane, r->n_lanes, sizeof *r->lane, by_stream);
    for (uint32_t n = 0; n < r->n_lanes; n++)
        sort_spans(r->lane[n].spans.at, r->lane[n].spans.count);
    measure_comm(r);
}

static void sum_up(struct hd__timeline *t, const struct hd__sim *m)
{
    double work = 0, busy = 0, ranks = 0;
    for (uint32_t n = 0; n < t->n_ranks; n++) {
        struct hd__rank_times *r = &t->ranks[n];
        finish_rank(r);
        r->finish = hd__sim_finish_time(m, r->rank);
        for (uint32_t k = 0; k < r->lane[0].spans.count; k++)
            busy += r->weight * (r->lane[0].spans.at[k].end - r->lane[0].spans.at[k].start);
        t->comm += r->weight * r->comm;
        t->overlapped += r->weight * r->overlapped;
        t->span = r->weight > 0 ? fmax(t->span, r->last - r->first) : t->span;
        work += r->weight * r->work;
        ranks += r->weight;
    }
    t->seconds = hd__sim_stats(m).seconds;
    t->busy = t->seconds > 0 ? busy / (t->seconds * ranks) : 0;
    t->bubble_of_work = work > 0 ? (t->span * ranks - work) / work : 0;
    t->bubble_of_span = t->span > 0 ? 1 - work / (t->span * ranks) : 0;
}

/* The first rank of each stage, or of each kind of ranks; and the one asked for. */
static int32_t *choose_ranks(const struct hd__sim *m, const struct hd__mesh *mesh, int32_t rank, struct hd__timeline *t)
{
    int32_t *slot = hd__alloc((size_t)mesh->ranks * sizeof *slot), per_stage = mesh->ranks / mesh->size[HD_AXIS_PP];
    t->stages = mesh->size[HD_AXIS_PP];
    t->ranks = hd__alloc(((size_t)mesh->ranks + 1) * sizeof *t->ranks);
    for (int32_t r = 0; r < mesh->ranks; r++) {
        int32_t like = rank == HD__SIM_KINDS ? hd__sim_alike(m, r) : r % per_stage ? -1 : r;
        slot[r] = like == r ? (int32_t)t->n_ranks : -1;
        if (like == r)
            t->ranks[t->n_ranks++].rank = r;
        if (like >= 0)
            t->ranks[slot[like]].weight++;
    }
    if (rank >= 0 && slot[rank] < 0) {
        slot[rank] = (int32_t)t->n_ranks;
        t->ranks[t->n_ranks++].rank = rank;
    }
    return slot;
}

static int is_periodic(const struct hd__code_section *s)
{
    return s->repeat > 0 && s->every > 1 && !s->last;
}

/* A typical step: after the first ones, and without the sections that run every N steps. It exists: after a multiple
 * of all N. */
static int64_t typical_step(const struct hd_program *p)
{
    int64_t step = hd__steady_step(p);
    for (uint32_t s = 0; s < p->sections.count;) {
        int due = is_periodic(&p->sections.at[s]) && hd__section_due(&p->sections.at[s], step);
        step += due;
        s = due ? 0 : s + 1;
    }
    return step;
}

/* Simulates each periodic section alone; only its length is kept. */
static int32_t simulate_periodic(struct hd__sim *m, struct recorder *w, const struct hd_program *p,
                                 struct hd_error *err)
{
    struct hd__timeline *t = w->t;
    w->off = 1;
    for (uint32_t s = 0; s < p->sections.count && t->n_periodic < HD__TIMELINE_MAX_PERIODIC; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        int32_t rc;
        if (!is_periodic(x))
            continue;
        if ((rc = hd__sim_run(m, x, 1, err)))
            return rc;
        t->periodic[t->n_periodic].name = x->name;
        t->periodic[t->n_periodic].every = x->every;
        t->periodic[t->n_periodic++].seconds = hd__sim_stats(m).seconds;
    }
    return HD_OK;
}

int32_t hd__sim_timeline(const struct hd__mesh *mesh, const struct hd_program *const *programs,
                         const struct hd__sim_rates *rates, int32_t rank, struct hd__timeline *out,
                         struct hd_error *err)
{
    struct recorder w = {.rates = rates, .t = out, .extra = rank};
    struct hd__sim_costs costs = {.user = &w,
                                  .span = record,
                                  .seconds = seconds_of,
                                  .transfer = rates->cost ? seconds_of : NULL,
                                  .blocks = blocks,
                                  .speed = rates->speed,
                                  .slowed = rates->slowed};
    *out = (struct hd__timeline){.programs = programs};
    for (int32_t k = HD__MEM_MAIN; k < HD__MEM_COUNT; k++)
        costs.copy_bandwidth[k] = rates->memory;
    memcpy(costs.latency, rates->latency, sizeof costs.latency);
    memcpy(costs.bandwidth, rates->link, sizeof costs.bandwidth);
    struct hd__sim *m = hd__sim_create(mesh, programs, &(struct hd__sim_options){.costs = &costs});
    w.slot = choose_ranks(m, mesh, rank, out);
    w.extra_as = rank < 0 ? -1 : hd__sim_alike(m, rank);
    int32_t rc = hd__sim_run(m, NULL, typical_step(programs[0]), err);
    if (!rc) {
        sum_up(out, m);
        rc = simulate_periodic(m, &w, programs[0], err);
    }
    if (rc)
        hd__timeline_free(out);
    hd__sim_destroy(m);
    free(w.slot);
    return rc;
}

void hd__timeline_free(struct hd__timeline *t)
{
    for (uint32_t n = 0; n < t->n_ranks; n++) {
        for (uint32_t k = 0; k < t->ranks[n].n_lanes; k++)
            hd__free_array(&t->ranks[n].lane[k].spans);
        free(t->ranks[n].lane);
    }
    free(t->ranks);
    *t = (struct hd__timeline){0};
}
