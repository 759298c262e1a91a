/* Time and memory of a step. */
#include "analysis/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/program/cost.h"
#include "core/program/ops.h"
#include "service/checkpoint/memory_copy.h"

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
    double busy = 0, ranks = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        busy += t->ranks[r].weight * t->ranks[r].work;
        ranks += t->ranks[r].weight;
    }
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        busy += a == HD_AXIS_PP ? 0 : exposed[a] * ranks;
    return busy > 0 && t->stages > 1 ? fmax(0, t->span * ranks / busy - 1) : 0;
}

struct model {
    const struct hd__machine *machine;
    struct hd__assume assume;
    const struct hd__compiled *compiled;
    double *again; /* by stage: what recomputing takes, over what heddle's recomputing does */
    double chunks; /* of a stage */
    uint8_t *
        *ends; /* by stage and instruction: the last of a stage's forward pass or gradients, where these are given */
};

/* Marks the last compute instruction of each chunk, micro-batch and phase: before it all messages have come that the
 * others need, and no message goes that it does not make. */
static uint8_t *find_ends(const struct hd_program *p, int16_t *last_chunk)
{
    uint8_t *ends = hd__alloc((size_t)p->next_id + 1);
    HD__ARRAY(uint64_t) seen = {0};
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        uint32_t from = seen.count;
        for (uint32_t n = code->count; n-- > 0;) {
            const struct hd__instr *i = &code->at[n];
            uint64_t key = (uint64_t)(uint16_t)i->micro << 32 | (uint64_t)(uint16_t)i->chunk << 8 | i->phase;
            uint32_t k = seen.count;
            if (hd__is_async(i) || i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE || i->phase == HD__PHASE_O)
                continue;
            while (k > from && seen.at[k - 1] != key)
                k--;
            *last_chunk = HD__MAX(*last_chunk, i->chunk);
            if (k == from) {
                hd__push(&seen, key);
                ends[i->id] = 1;
            }
        }
    }
    hd__free_array(&seen);
    return ends;
}

static double seconds_of(const struct model *model, const struct hd_program *p, const struct hd__instr *i)
{
    return hd__plan_seconds(model->machine, &model->assume, p, i);
}

/* Seconds where stages were measured. */
static double given_seconds(const struct hd__assume *assume, const struct hd__instr *i, int ends, double chunks)
{
    if (hd__is_async(i))
        return i->op == HD_OP_SEND || i->op == HD_OP_RECV ? assume->stage_send : 0;
    double stage = i->phase == HD__PHASE_F   ? assume->stage_f
                   : i->phase == HD__PHASE_B ? assume->stage_b
                   : i->phase == HD__PHASE_W ? assume->stage_w
                                             : 0;
    return ends ? stage / chunks : 0;
}

static double simulated_seconds(const void *user, const struct hd_program *p, const struct hd__instr *i)
{
    const struct model *model = user;
    int32_t stage = 0;
    if (hd__assume_defers(&model->assume, i))
        return 0;
    if (!model->ends && (!model->again || i->phase != HD__PHASE_R))
        return seconds_of(model, p, i);
    while (model->compiled->stage[stage] != p)
        stage++;
    if (model->ends)
        return given_seconds(&model->assume, i, model->ends[stage][i->id], model->chunks);
    return seconds_of(model, p, i) * model->again[stage];
}

/* Seconds of a step's instructions of one phase, in blocks of which some are recomputed. */
static double phase_seconds(const struct model *model, const struct hd_program *p, uint8_t phase, const uint8_t *blocks)
{
    double sum = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        double runs = hd__section_runs_per_step(x, NULL);
        for (uint32_t n = 0; n < x->code.count && runs > 0; n++)
            if (x->code.at[n].phase == phase && blocks[x->code.at[n].block])
                sum += runs * seconds_of(model, p, &x->code.at[n]);
    }
    return sum;
}

static double whole_blocks(const struct model *model, const struct hd_program *p)
{
    uint8_t *blocks = hd__alloc(UINT16_MAX + 1);
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t n = 0; n < p->sections.at[s].code.count; n++)
            blocks[p->sections.at[s].code.at[n].block] |= p->sections.at[s].code.at[n].phase == HD__PHASE_R;
    double again = phase_seconds(model, p, HD__PHASE_R, blocks);
    double forward = again > 0 ? phase_seconds(model, p, HD__PHASE_F, blocks) : 0;
    free(blocks);
    return again > 0 ? fmax(forward / again, 1) : 1;
}

static void prepare_model(struct model *model)
{
    const struct hd__compiled *c = model->compiled;
    if (model->assume.stage_f > 0) {
        model->ends = hd__alloc((size_t)c->n_stages * sizeof *model->ends);
        int16_t last_chunk = 0;
        for (int32_t s = 0; s < c->n_stages; s++)
            model->ends[s] = find_ends(c->stage[s], &last_chunk);
        model->chunks = (double)(last_chunk + 1) / c->n_stages;
    } else if (model->assume.whole_recompute && c->job->recompute != HD__RECOMPUTE_SELECTIVE) {
        double *again = hd__alloc((size_t)c->n_stages * sizeof *again);
        for (int32_t s = 0; s < c->n_stages; s++)
            again[s] = whole_blocks(model, c->stage[s]);
        model->again = again;
    }
}

/* Transfers that follow after the last micro-batch: the longest of any stage. */
static void add_deferred(const struct model *model, struct hd__plan *plan)
{
    double longest = 0;
    for (int32_t k = 0; k < model->compiled->n_stages; k++) {
        const struct hd_program *p = model->compiled->stage[k];
        double sum = 0;
        for (uint32_t s = 0; s < p->sections.count; s++) {
            const struct hd__code_section *x = &p->sections.at[s];
            for (uint32_t n = 0; n < x->code.count; n++)
                if (hd__assume_defers(&model->assume, &x->code.at[n]))
                    sum += hd__section_runs_per_step(x, NULL) * seconds_of(model, p, &x->code.at[n]);
        }
        longest = fmax(longest, sum);
    }
    plan->seconds += longest;
    plan->exposed[HD_AXIS_DP_SHARD] += longest;
}

static int blocks(const void *user, const struct hd__instr *i)
{
    return hd__assume_blocks(&((const struct model *)user)->assume, i);
}

/* A transfer begins when its last rank comes. The others' time until then is exposed: they wait for a slower one. */
static void add_waits(const struct hd__timeline *t, const struct hd__mesh *mesh, struct hd__plan *plan)
{
    double exposed = plan->copy_exposed;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        exposed += plan->exposed[a];
    int32_t axis = mesh->size[HD_AXIS_DP_REPLICATE] > 1 ? HD_AXIS_DP_REPLICATE : HD_AXIS_DP_SHARD;
    plan->exposed[axis] += fmax(0, t->seconds * (1 - t->busy) - exposed);
}

static int is_copies(const struct hd__timeline_lane *lane)
{
    return lane->stream == HD__STREAM_IN || lane->stream == HD__STREAM_OUT;
}

/* Copies in and out may run at the same time. */
static double copies_exposed(const struct hd__rank_times *r)
{
    struct hd__timeline_lane both = {0};
    uint32_t *at = hd__alloc(r->n_lanes * sizeof *at), next;
    do {
        next = 0;
        for (uint32_t l = 1; l < r->n_lanes; l++)
            if (is_copies(&r->lane[l]) && at[l] < r->lane[l].spans.count &&
                (!next || r->lane[l].spans.at[at[l]].start < r->lane[next].spans.at[at[next]].start))
                next = l;
        if (next)
            hd__push(&both.spans, r->lane[next].spans.at[at[next]++]);
    } while (next);
    double exposed = exposed_seconds(&r->lane[0], &both);
    hd__free_array(&both.spans);
    free(at);
    return exposed;
}

static void read_timeline(struct hd__timeline *t, const struct model *model, struct hd__plan *plan)
{
    double ranks = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++)
        ranks += t->ranks[r].weight;
    plan->seconds = t->seconds;
    plan->compute = t->busy * t->seconds;
    for (uint32_t n = 0; n < t->n_periodic; n++)
        plan->seconds += t->periodic[n].seconds / t->periodic[n].every;
    for (uint32_t n = 0; n < t->n_ranks; n++) {
        const struct hd__rank_times *r = &t->ranks[n];
        for (uint32_t l = 1; l < r->n_lanes; l++)
            if (!is_copies(&r->lane[l]))
                plan->exposed[axis_of_stream(r->lane[l].stream)] +=
                    r->weight / ranks * exposed_seconds(&r->lane[0], &r->lane[l]);
        plan->copy_exposed += r->weight / ranks * copies_exposed(r);
    }
    plan->bubble = bubble(t, plan->exposed);
    if (t->stages == 1 && t->n_ranks > 1) /* of several stages idle time is the bubble */
        add_waits(t, &model->compiled->mesh, plan);
    hd__timeline_free(t);
    add_deferred(model, plan);
}

static int32_t simulate(const struct hd__compiled *c, const struct model *model, struct hd__plan *plan,
                        struct hd_error *err)
{
    const struct hd__parts *speeds = &model->assume.speeds;
    int32_t size[HD_AXIS_COUNT];
    int uneven = c->stage[0]->micro_batches || (speeds->count && c->n_stages % (int32_t)speeds->count);
    struct hd__sim_rates rates = {
        .cost = simulated_seconds, .blocks = blocks, .slowed = model->machine->slowed, .user = model};
    struct hd__timeline t = {0};
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        uint32_t differ = HD_AXIS_BIT(HD_AXIS_PP) | (uneven ? HD__DP_AXES : 0);
        size[a] = HD_AXIS_BIT(a) & differ ? c->mesh.size[a] : 1;
    }
    struct hd__mesh walked = hd__mesh_make(size);
    int32_t each = walked.ranks / c->n_stages;
    const struct hd_program **programs = hd__alloc((size_t)walked.ranks * sizeof *programs);
    double *speed = hd__alloc((size_t)walked.ranks * sizeof *speed);
    for (int32_t r = 0; r < walked.ranks; r++) {
        programs[r] = c->stage[r / each];
        speed[r] = hd__parts_least(speeds, r, 1, walked.ranks, 1);
    }
    rates.speed = speed;
    int32_t rc = hd__sim_timeline(&walked, programs, &rates, uneven ? HD__SIM_KINDS : HD__SIM_STAGES, &t, err);
    if (!rc)
        read_timeline(&t, model, plan);
    free(programs);
    free(speed);
    return rc;
}

/* FLOPs of micro-batches that some ranks have fewer of than others. */
static double spared_flops(const struct hd__compiled *c, int32_t stage)
{
    const struct hd_program *p = c->stage[stage];
    double flops = 0;
    for (uint32_t s = 0; p->micro_batches && s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        double once = 0;
        int64_t spared = 0;
        for (uint32_t k = 0; k < x->code.count; k++)
            once += hd__instr_flops(p, &x->code.at[k]);
        for (int32_t r = 0; r < c->mesh.ranks; r++)
            spared += x->repeat - hd__section_rounds(p, x, r);
        flops += once * (double)spared;
    }
    return flops;
}

/* A collective over several axes counts for the outermost, as its stream does. */
static void add_traffic(const struct hd__compiled *c, int32_t stage, struct hd__plan *plan)
{
    struct hd__cost_totals totals;
    double sent[HD_AXIS_COUNT] = {0};
    hd__cost_totals(c->stage[stage], NULL, &totals);
    plan->flops += totals.flops * (double)(c->mesh.ranks / c->n_stages) - spared_flops(c, stage);
    for (uint32_t axes = 1; axes < HD__COUNT(totals.sent); axes++)
        sent[__builtin_ctz(axes)] += totals.sent[axes];
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        plan->traffic[a] = fmax(plan->traffic[a], sent[a]);
    plan->copied = fmax(plan->copied, totals.copied[HD__MEM_HOST] + totals.copied[HD__MEM_FILE]);
}

void hd__plan_fit(const struct hd__compiled *c, const struct hd__machine *m, const struct hd__parts *parts,
                  struct hd__plan *plan)
{
    int32_t each = c->mesh.ranks / c->n_stages;
    double fullest = 0;
    for (int32_t s = 0; s < c->n_stages; s++) {
        double limit = hd__parts_least(parts, s * each, each, c->mesh.ranks, (double)m->memory);
        double peak = (double)c->stage[s]->arena_bytes;
        if (peak / limit > fullest || !s) {
            fullest = peak / limit;
            plan->stage = s;
            plan->limit = (int64_t)limit;
        }
    }
    plan->peak = c->stage[plan->stage]->arena_bytes;
    for (int32_t s = 0; s < c->n_stages; s++)
        for (int32_t k = HD__MEM_HOST; k < HD__MEM_COUNT; k++)
            plan->offloaded[k] = HD__MAX(s ? plan->offloaded[k] : 0, c->stage[s]->bytes[k]);
    plan->host_limit = m->host_memory / m->ranks;
    plan->fits = plan->peak <= plan->limit && (!plan->host_limit || plan->offloaded[HD__MEM_HOST] <= plan->host_limit);
}

/* With ranks of one stage: what its data parallel coordinates would do in the same time. */
static void set_shares(const struct hd__compiled *c, const struct hd__parts *speeds, struct hd__plan *plan)
{
    int32_t dp = (int32_t)hd__mesh_ways(&c->mesh, HD__DP_AXES), each = c->mesh.ranks / dp;
    double speed[HD__COUNT(plan->shares)];
    if (!speeds->count || c->n_stages > 1 || dp == 1 || dp > (int32_t)HD__COUNT(speed))
        return;
    for (int32_t d = 0; d < dp; d++)
        speed[d] = hd__parts_least(speeds, d * each, each, c->mesh.ranks, 1);
    plan->n_shares = (uint32_t)dp;
    hd__assume_shares(speed, plan->n_shares, c->job->batch / c->job->micro_batch / c->mesh.size[HD_AXIS_EP],
                      plan->shares);
}

int32_t hd__plan_make(const struct hd__compiled *c, const struct hd__machine *m, const struct hd__assume *assume,
                      struct hd__plan *plan, struct hd_error *err)
{
    struct model model = {.machine = m, .assume = *assume, .compiled = c};
    const uint32_t compute = c->job->precision.compute;
    static int said, said_link, said_ideal;
    if (m->product >= 1 && m->half <= 0 && m->units <= 0 && !said_ideal++)
        hd__log(HD_LOG_WARN, NULL,
                "%s has neither product, half nor units: products of any shape are planned at the peak, which none "
                "reaches; take them from a file of machines/ of a like device, or measure them (heddle calibrate)",
                m->path);
    if (hd_dtype_size(compute) == 2 && m->peak_16 <= 0 && !said++)
        hd__log(HD_LOG_WARN, NULL,
                "%s has no peak_16, and the job computes in %s: its products are planned at peak_fp32; add peak_16",
                m->path, hd_dtype_name(compute));
    if (strcmp(m->device, "cpu") != 0 && m->host_link <= 0 && c->stage[0]->offloaded.count && !said_link++)
        hd__log(HD_LOG_WARN, NULL,
                "%s has no host_link, and the job offloads: its copies are planned at the memory's bandwidth; add "
                "host_link",
                m->path);
    model.assume.recomputed_scores = c->job->recompute == HD__RECOMPUTE_SELECTIVE;
    *plan = (struct hd__plan){.parameters = hd__compiled_parameter_count(c),
                              .ranks = c->mesh.ranks,
                              .tokens = c->job->batch * c->job->seq_len,
                              .device = c->device_choice.component->name,
                              .peak_flops = hd__machine_peak(m, c->job->precision.compute) * c->mesh.ranks};
    plan->model_flops = hd__compiled_flops_per_token(c) * (double)plan->tokens;
    for (int32_t s = 0; s < c->n_stages; s++) {
        add_traffic(c, s, plan);
        if (c->job->checkpoint_peers) /* the first of a stage stores what others have too; two copies */
            plan->copies = HD__MAX(
                plan->copies, 2 * (int64_t)hd__copy_planned_bytes(c->stage, c->n_stages, c->optimizer.ops->state_names,
                                                                  s * (c->mesh.ranks / c->n_stages)));
    }
    int32_t rc = hd__machine_reaches(m, plan->ranks, err);
    if (!rc)
        rc = hd__assume_fits(assume, plan->ranks, err);
    if (!rc && assume->states > 0)
        rc = hd__plan_closed_form(c, assume, plan, err);
    if (!rc)
        hd__plan_fit(c, m, &assume->memory, plan);
    if (!rc)
        set_shares(c, &assume->speeds, plan);
    plan->memory = hd__memory_use(c->stage[plan->stage]);
    prepare_model(&model);
    if (!rc)
        rc = simulate(c, &model, plan, err);
    for (int32_t s = 0; s < c->n_stages && model.ends; s++)
        free(model.ends[s]);
    free(model.ends);
    free(model.again);
    return rc;
}
