/* Time and memory of a step. */
#include "analysis/plan/plan.h"

#include <math.h>
#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/cost.h"
#include "core/program/ops.h"

/* ---- time of an instruction */

/* The share of the peak that [m k] x [k n] reaches. The sizes of the factors and the FLOPs say m, n and k. */
static double product_share(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i,
                            double flops)
{
    double a = (double)hd__numel(p, hd__tensor_const(p, i->in[0]));
    double b = (double)hd__numel(p, hd__tensor_const(p, i->in[1])), mnk = flops / 2;
    const double dims[] = {mnk / a, mnk / b, a * b / mnk};
    double share = m->product;
    for (size_t d = 0; d < HD__COUNT(dims); d++)
        share *= fmax(dims[d], 1) / (fmax(dims[d], 1) + m->half);
    return share;
}

static double compute_seconds(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i)
{
    double flops = hd__instr_flops(p, i), bytes = hd__instr_bytes(p, i), share = m->product;
    double peak = i->n_in ? hd__machine_peak(m, hd__tensor_const(p, i->in[0])->dtype) : m->peak_fp32;
    if (i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD)
        share = m->attention;
    else if (flops > 0 && i->n_in > 1)
        share = product_share(m, p, i, flops);
    if (i->op == HD_OP_EMBED) /* reads the rows that it looks up */
        bytes = 2 * (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[0]));
    return m->kernel + fmax(flops / (peak * share), bytes / (m->bandwidth * m->memory_share));
}

/* The first ranks of a group, and of those that are in one unit of `unit` ranks with the first: how many? */
static int64_t together(const int32_t *ranks, int32_t n, int64_t unit)
{
    int64_t k = 0;
    for (int32_t r = 0; r < n; r++)
        k += ranks[r] / unit == ranks[0] / unit;
    return k;
}

/* A ring over members that lie at one level of the network after another: each rank sends at its rate within the
 * innermost unit; the members of a unit share what it has to the outside, each by its own link. */
static double ring_rate(const struct hd__machine *m, const int32_t *ranks, int32_t n, double *latency)
{
    double rate = INFINITY;
    int64_t inside = 1; /* members in one unit of the level below */
    *latency = 0;
    for (uint32_t l = 0; l < m->n_levels && inside < n; l++) {
        int64_t here = l + 1 < m->n_levels ? together(ranks, n, m->level[l].ranks) : n;
        if (here > inside) {
            rate = fmin(rate, m->level[l].bandwidth * (double)inside);
            *latency = m->level[l].latency;
        }
        inside = here;
    }
    return rate * m->link_share;
}

static double transfer_seconds(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i)
{
    int32_t *ranks = hd__alloc(((size_t)p->mesh.ranks + 2) * sizeof *ranks), n = 2;
    double latency, steps = 1;
    if (hd__is_collective(i->op)) {
        n = hd__mesh_group(&p->mesh, 0, i->axes, i->members, ranks);
        steps = ceil(log2(fmax(n, 2))) * (hd__op_sums(i->op) && !hd__op_splits(i->op) ? 2 : 1);
    } else { /* between stages, whose ranks are neighbours in the mesh's slowest axis */
        ranks[1] = (int32_t)(p->mesh.ranks / p->mesh.size[HD_AXIS_PP]);
    }
    double rate = ring_rate(m, ranks, n, &latency);
    free(ranks);
    return steps * latency + hd__instr_traffic(p, i) / rate;
}

double hd__plan_seconds(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i)
{
    return hd__is_async(i) ? transfer_seconds(m, p, i) : compute_seconds(m, p, i);
}

static double simulated_seconds(const void *user, const struct hd_program *p, const struct hd__instr *i)
{
    return hd__plan_seconds(user, p, i);
}

/* ---- memory */

static uint8_t flat_kind(uint32_t role, int has_narrow_copy)
{
    switch (role) {
    case HD__FLAT_MASTER:
        return has_narrow_copy ? HD__PLAN_OPTIMIZER : HD__PLAN_PARAMETERS;
    case HD__FLAT_COMPUTE_COPY:
    case HD__FLAT_FULL:
        return HD__PLAN_PARAMETERS;
    case HD__FLAT_GRAD:
    case HD__FLAT_SHARD:
        return HD__PLAN_GRADIENTS;
    default:
        return HD__PLAN_OPTIMIZER;
    }
}

static int is_gradient_of_parameter(const struct hd_program *p, const struct hd__tensor *t)
{
    return t->role == HD__ROLE_GRAD && t->grad_of && hd__tensor_const(p, t->grad_of)->role == HD__ROLE_PARAM;
}

/* By buffer. What holds weights or gradients only for a while is of their kind where a flat says so, else a buffer. */
static uint8_t *classify_buffers(const struct hd_program *p)
{
    uint8_t *kind = hd__alloc(p->buffers.count);
    for (uint32_t b = 0; b < p->buffers.count; b++)
        kind[b] = p->buffers.at[b].life == HD__LIFE_PERSISTENT ? HD__PLAN_BUFFERS : HD__PLAN_ACTIVATIONS;
    for (uint32_t t = 1; t < p->tensors.count; t++) {
        const struct hd__tensor *x = hd__tensor_const(p, t);
        if (x->buffer && x->role == HD__ROLE_PARAM)
            kind[x->buffer] =
                p->buffers.at[x->buffer].life == HD__LIFE_PERSISTENT ? HD__PLAN_PARAMETERS : HD__PLAN_BUFFERS;
        else if (x->buffer && is_gradient_of_parameter(p, x))
            kind[x->buffer] = HD__PLAN_GRADIENTS;
    }
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t role = 0; role < HD__FLAT_ROLES; role++) {
            hd_tensor t = p->flats.at[f].tensor[role];
            const struct hd__tensor *x = t ? hd__tensor_const(p, t) : NULL;
            const hd_tensor *all = p->flats.at[f].tensor;
            hd_tensor full = all[HD__FLAT_COMPUTE_COPY] ? all[HD__FLAT_COMPUTE_COPY] : all[HD__FLAT_FULL];
            if (!x || !x->buffer)
                continue;
            kind[x->buffer] = flat_kind(role, full && hd__tensor_const(p, full)->dtype != x->dtype);
            if (p->buffers.at[x->buffer].life != HD__LIFE_PERSISTENT && kind[x->buffer] == HD__PLAN_PARAMETERS)
                kind[x->buffer] = HD__PLAN_BUFFERS; /* gathered */
        }
    return kind;
}

/* A temporary's life, in positions of all sections of a step one behind another. */
struct life {
    uint32_t first, last; /* from 1; first 0: not of a step */
    uint32_t next;        /* another buffer that begins where this one does */
};

static struct life *find_lives(const struct hd_program *p, uint32_t *positions)
{
    struct life *lives = hd__alloc(p->buffers.count * sizeof *lives);
    uint32_t *position = hd__instr_positions(p), base = 1;
    struct hd__access t[HD__MAX_ACCESSES];
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        for (uint32_t n = 0; n < code->count && p->sections.at[s].repeat > 0; n++, base++)
            for (uint32_t k = hd__live_accesses(p, code, position, n, t); k-- > 0;) {
                struct life *life = &lives[t[k].buffer];
                life->first = life->first ? life->first : base;
                life->last = base;
            }
    }
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life == HD__LIFE_STEP)
            lives[b].last = base;
        else if (p->buffers.at[b].life == HD__LIFE_PERSISTENT || p->buffers.at[b].memory != HD__MEM_MAIN)
            lives[b].first = 0;
    free(position);
    *positions = base;
    return lives;
}

/* Bytes of temporaries by kind where a step needs the most. */
static void measure_peak(const struct hd_program *p, const uint8_t *kind, int64_t peak[HD__PLAN_KINDS])
{
    uint32_t positions;
    struct life *lives = find_lives(p, &positions);
    int64_t live[HD__PLAN_KINDS] = {0}, sum = 0, most = 0;
    uint32_t *begins = hd__alloc((positions + 1) * sizeof *begins), *ends = hd__alloc((positions + 1) * sizeof *ends);
    uint32_t *next_end = hd__alloc(p->buffers.count * sizeof *next_end);
    for (uint32_t b = 1; b < p->buffers.count; b++) {
        if (!lives[b].first)
            continue;
        lives[b].next = begins[lives[b].first];
        begins[lives[b].first] = b;
        next_end[b] = ends[lives[b].last];
        ends[lives[b].last] = b;
    }
    for (uint32_t n = 1; n <= positions; n++) {
        for (uint32_t b = begins[n]; b; b = lives[b].next) {
            live[kind[b]] += p->buffers.at[b].bytes;
            sum += p->buffers.at[b].bytes;
        }
        if (sum > most) {
            most = sum;
            memcpy(peak, live, sizeof live);
        }
        for (uint32_t b = ends[n]; b; b = next_end[b]) {
            live[kind[b]] -= p->buffers.at[b].bytes;
            sum -= p->buffers.at[b].bytes;
        }
    }
    free(next_end);
    free(ends);
    free(begins);
    free(lives);
}

/* Persistent memory, and the temporaries at their peak; what the plan needs beyond both, to align and to fit, is
 * added to the buffers. */
static void measure_memory(const struct hd_program *p, int64_t memory[HD__PLAN_KINDS])
{
    uint8_t *kind = classify_buffers(p);
    int64_t peak[HD__PLAN_KINDS] = {0}, sum = 0;
    memset(memory, 0, HD__PLAN_KINDS * sizeof *memory);
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life == HD__LIFE_PERSISTENT && p->buffers.at[b].memory == HD__MEM_MAIN &&
            p->buffers.at[b].offset >= 0)
            memory[kind[b]] += p->buffers.at[b].bytes;
    measure_peak(p, kind, peak);
    for (uint32_t k = 0; k < HD__PLAN_KINDS; k++)
        sum += memory[k] += peak[k];
    memory[HD__PLAN_BUFFERS] += p->arena_bytes - sum;
    free(kind);
}

/* ---- time of a step */

/* Seconds of a lane in which the rank computes nothing. Both lanes are sorted by start. */
static double exposed_seconds(const struct hd__timeline_lane *compute, const struct hd__timeline_lane *lane)
{
    double exposed = 0, until = 0;
    uint32_t at = 0;
    for (uint32_t n = 0; n < lane->spans.count; n++) {
        double from = fmax(lane->spans.at[n].start, until), to = lane->spans.at[n].end;
        if (to <= from)
            continue;
        exposed += to - from;
        while (at < compute->spans.count && compute->spans.at[at].end <= from)
            at++;
        for (uint32_t k = at; k < compute->spans.count && compute->spans.at[k].start < to; k++)
            exposed -= fmin(to, compute->spans.at[k].end) - fmax(from, compute->spans.at[k].start);
        until = to;
    }
    return exposed;
}

static int32_t axis_of_stream(uint16_t stream)
{
    return stream >= HD__STREAM_AXIS && stream < HD__STREAM_AXIS + HD_AXIS_COUNT ? stream - HD__STREAM_AXIS
                                                                                 : HD_AXIS_PP;
}

/* Time in which stages wait for each other, over that in which they do not: they compute, or communicate within the
 * stage, and nobody computes meanwhile. */
static double bubble(const struct hd__timeline *t, const double exposed[HD_AXIS_COUNT])
{
    double busy = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++)
        busy += t->ranks[r].work;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        busy += a == HD_AXIS_PP ? 0 : exposed[a] * t->n_ranks;
    return busy > 0 && t->stages > 1 ? fmax(0, t->span * t->stages / busy - 1) : 0;
}

static int32_t simulate(const struct hd__compiled *c, const struct hd__machine *m, struct hd__plan *plan,
                        struct hd_error *err)
{
    int32_t size[HD_AXIS_COUNT];
    const struct hd__sim_rates rates = {.cost = simulated_seconds, .user = m};
    struct hd__timeline t = {0};
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = a == HD_AXIS_PP ? c->mesh.size[a] : 1;
    struct hd__mesh stages = hd__mesh_make(size);
    int32_t rc = hd__sim_timeline(&stages, (const struct hd_program *const *)c->stage, &rates, -1, &t, err);
    if (rc)
        return rc;
    plan->seconds = t.seconds;
    for (uint32_t n = 0; n < t.n_periodic; n++)
        plan->seconds += t.periodic[n].seconds / t.periodic[n].every;
    for (uint32_t r = 0; r < t.n_ranks; r++)
        for (uint32_t l = 1; l < t.ranks[r].n_lanes; l++)
            if (t.ranks[r].lane[l].stream != HD__STREAM_IN && t.ranks[r].lane[l].stream != HD__STREAM_OUT)
                plan->exposed[axis_of_stream(t.ranks[r].lane[l].stream)] +=
                    exposed_seconds(&t.ranks[r].lane[0], &t.ranks[r].lane[l]) / t.n_ranks;
    plan->bubble = bubble(&t, plan->exposed);
    hd__timeline_free(&t);
    return HD_OK;
}

/* A collective over several axes counts for the outermost, as its stream does. */
static void add_traffic(const struct hd__compiled *c, int32_t stage, struct hd__plan *plan)
{
    struct hd__cost_totals totals;
    double sent[HD_AXIS_COUNT] = {0};
    hd__cost_totals(c->stage[stage], NULL, &totals);
    plan->flops += totals.flops * (double)(c->mesh.ranks / c->n_stages);
    for (uint32_t axes = 1; axes < HD__COUNT(totals.sent); axes++)
        sent[__builtin_ctz(axes)] += totals.sent[axes];
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        plan->traffic[a] = fmax(plan->traffic[a], sent[a]);
}

int32_t hd__plan_make(const struct hd__compiled *c, const struct hd__machine *m, struct hd__plan *plan,
                      struct hd_error *err)
{
    *plan = (struct hd__plan){.parameters = hd__compiled_parameter_count(c),
                              .ranks = c->mesh.ranks,
                              .tokens = c->job->batch * c->job->seq_len,
                              .limit = m->memory,
                              .device = c->device_choice.component->name,
                              .peak_flops = hd__machine_peak(m, c->job->precision.compute) * c->mesh.ranks};
    plan->model_flops = hd__compiled_flops_per_token(c) * (double)plan->tokens;
    for (int32_t s = 0; s < c->n_stages; s++) {
        int64_t memory[HD__PLAN_KINDS];
        add_traffic(c, s, plan);
        if (c->stage[s]->arena_bytes <= plan->peak)
            continue;
        measure_memory(c->stage[s], memory);
        memcpy(plan->memory, memory, sizeof memory);
        plan->peak = c->stage[s]->arena_bytes;
        plan->stage = s;
    }
    return simulate(c, m, plan, err);
}
