/* Meshes, ZeRO stages, chunks, micro-batches and recomputes; closed forms. */
#include "analysis/plan/candidates.h"

#include <math.h>

static int64_t data_ways(const struct hd__candidate *c)
{
    return (int64_t)c->replicate * c->shard * c->ep;
}

int64_t hd__candidate_micros(const struct hd__candidate *c, int64_t batch)
{
    return batch / (data_ways(c) * c->micro);
}

char *hd__candidate_words(const struct hd__candidate *c, const char *between)
{
    struct hd__text out = {0};
    int three = c->pp * c->tp * c->cp * c->ep > 1;
    hd__text_add(&out, "mesh={pp: %d, dp: ", c->pp);
    if (c->replicate > 1)
        hd__text_add(&out, "{replicate: %d, shard: %d}", c->replicate, c->shard);
    else
        hd__text_add(&out, "%d", c->shard);
    hd__text_add(&out, ", cp: %d, ep: %d, tp: %d}%sstrategies=[", c->cp, c->ep, c->tp, between);
    if (three)
        hd__text_add(&out, "{use: 3d%s", c->sequence_parallel ? ", sequence_parallel: true" : "");
    if (c->schedule)
        hd__text_add(&out, ", schedule: %s", c->schedule);
    else if (c->chunks > 1)
        hd__text_add(&out, ", schedule: interleaved, virtual: %d", c->chunks);
    hd__text_add(&out, "%s{use: zero, stage: %d", three ? "}, " : "", c->stage);
    if (c->prefetch)
        hd__text_add(&out, ", prefetch: %d, prefetch_backward: %d", c->prefetch, c->prefetch);
    hd__text_add(&out, "%s}]%sdata.micro_batch=%lld%srecompute=%s", c->offload ? ", offload: {optimizer: host}" : "",
                 between, (long long)c->micro, between, c->recompute);
    return out.at;
}

/* ---- bounds */

/* Weights and states alone, spread as evenly as can be; with gradients where these are added up over micro-batches. */
double hd__candidate_least_memory(const struct hd__candidate_job *j, const struct hd__candidate *c)
{
    double ways = (double)c->shard * c->cp, n = j->parameters / c->tp / c->pp / c->ep; /* as if all were experts' */
    double sums = hd__candidate_micros(c, j->batch) > 1 ? j->gradients : 0;
    double states = c->offload ? 0 : j->states;
    return n * (j->weights / (c->stage == 3 ? ways : 1) + states / (c->stage > 0 ? ways : 1) +
                sums / (c->stage > 1 ? ways : 1));
}

/* Micro-batches that are under way on the first stage before the first gradient comes back (Narayanan et al., arXiv
 * 2104.04473, figure 4), each with what a chunk keeps. */
double hd__candidate_kept(const struct hd__candidate_job *j, const struct hd__candidate *c, double layer)
{
    double chunk = floor((double)j->layers / c->pp / c->chunks) * layer,
           micros = (double)hd__candidate_micros(c, j->batch);
    double under_way = c->chunks > 1 ? 2 * (c->pp - 1) + (c->chunks - 1) * c->pp + 1 : c->pp;
    return chunk * fmin(micros * c->chunks, under_way);
}

/* Seconds of what ZeRO sends on the ring of its shards (plugins/strategy-zero/README.md), less a twentieth: small
 * parameters may stay whole. Experts have rings of their own: nothing is said of these. */
static double least_traffic_seconds(const struct hd__candidate_job *j, const struct hd__machine *m,
                                    const struct hd__candidate *c)
{
    const int32_t size[HD_AXIS_COUNT] = {c->pp, c->replicate, c->shard, c->cp, c->ep, c->tp, 1};
    const struct hd__mesh mesh = hd__mesh_make(size);
    double micros = (double)hd__candidate_micros(c, j->batch), n = j->parameters / c->tp / c->pp / c->ep;
    double ways = (double)c->shard * c->cp;
    double elements = c->stage == 3   ? micros * (j->reduced + 2 * j->weights)
                      : c->stage == 2 ? micros * j->reduced + j->weights
                      : c->stage == 1 ? j->reduced + j->weights
                                      : 2 * j->reduced;
    double rate = hd__ring_rate(m, &mesh, HD_AXIS_BIT(HD_AXIS_DP_SHARD) | HD_AXIS_BIT(HD_AXIS_CP));
    return c->ep > 1 ? 0 : 0.95 * n * elements * (ways - 1) / ways / rate;
}

/* All products at the best rate of the machine, and the pipeline's bubble. Of a block that is run again heddle leaves
 * out the last product, which is at most half of the forward pass. Gradients of weights, a third of all products, may
 * fill the bubble. */
double hd__candidate_least_seconds(const struct hd__candidate_job *j, const struct hd__machine *m, int64_t ranks,
                                   const struct hd__candidate *c)
{
    double share = fmax(m->product, fmax(m->attention, m->attention_grad));
    double rate = hd__machine_peak(m, j->compute) * share * (double)ranks;
    double micros = (double)hd__candidate_micros(c, j->batch), again = strcmp(c->recompute, "full") ? 1 : 7.0 / 6;
    double bubble = c->schedule ? 0 : 2.0 / 3 * (c->pp - 1) / micros / c->chunks;
    return fmax(j->model_flops * again / rate * (1 + bubble), least_traffic_seconds(j, m, c));
}

/* ---- the list */

struct lister {
    const struct hd__candidate_job *job;
    const struct hd__machine *machine;
    int64_t ranks;
    const int64_t *only;
    int32_t saving, reserved;
    struct hd__candidates *out;
};

static int is_wanted(const int64_t *only, const struct hd__candidate *c)
{
    return !only || (only[HD_AXIS_PP] == c->pp && only[HD_AXIS_DP_REPLICATE] == c->replicate &&
                     only[HD_AXIS_DP_SHARD] == c->shard && only[HD_AXIS_CP] == c->cp && only[HD_AXIS_EP] == c->ep &&
                     only[HD_AXIS_TP] == c->tp);
}

static void add(const struct lister *l, struct hd__candidate c)
{
    if (!is_wanted(l->only, &c))
        return;
    l->out->all++;
    if (hd__candidate_least_memory(l->job, &c) > (double)l->machine->memory) {
        l->out->too_large++;
        return;
    }
    c.bound = hd__candidate_least_seconds(l->job, l->machine, l->ranks, &c);
    hd__push(&l->out->list, c);
}

static void add_recomputes(const struct lister *l, struct hd__candidate c)
{
    static const char *const recomputes[2][3] = {{"none", "selective", "full"},
                                                 {"{every: 2}", "{every: 4}", "{every: 8}"}};
    int inputs = l->saving == HD__SAVE_INPUTS;
    c.sequence_parallel =
        c.tp > 1 && l->job->seq_len / c.cp % c.tp == 0; /* the same bytes are sent, and less is kept */
    for (size_t r = 0; r < HD__COUNT(recomputes[inputs]); r++) {
        c.recompute = recomputes[inputs][r];
        add(l, c);
    }
}

static void add_schedules(const struct lister *l, struct hd__candidate c)
{
    int64_t batch = l->job->batch, layers = l->job->layers;
    int sharded = c.shard * c.cp * c.ep > 1;
    for (c.stage = c.replicate > 1; c.stage <= (sharded ? 3 : 0); c.stage++)
        for (c.micro = 1; c.micro <= 16 && batch % (data_ways(&c) * c.micro) == 0; c.micro *= 2)
            for (c.chunks = 1; c.chunks <= (c.pp > 1 ? 8 : 1); c.chunks *= 2)
                if (c.chunks == 1 || (layers % (c.pp * c.chunks) == 0 && hd__candidate_micros(&c, batch) % c.pp == 0))
                    add_recomputes(l, c);
}

/* All data ranks shard; or, as FSDP's HYBRID_SHARD, those of one machine, and the machines are replicas. */
static void add_data(const struct lister *l, struct hd__candidate c, int32_t dp)
{
    int64_t inside = l->machine->ranks / ((int64_t)c.tp * c.cp * c.ep);
    c.replicate = 1;
    c.shard = dp;
    add_schedules(l, c);
    if (inside < 2 || inside >= dp || dp % inside)
        return;
    c.shard = (int32_t)inside;
    c.replicate = dp / c.shard;
    add_schedules(l, c);
}

static void add_meshes(const struct lister *l, struct hd__candidate c, int64_t left)
{
    for (c.pp = 1; c.pp <= HD__MIN(l->job->layers, left); c.pp++)
        if (left % c.pp == 0 && l->job->batch % (left / c.pp * c.ep) == 0)
            add_data(l, c, (int32_t)(left / c.pp));
}

void hd__candidates_list(const struct hd__candidate_job *job, const struct hd__machine *m, int64_t ranks,
                         const int64_t *only, int32_t saving, struct hd__candidates *out)
{
    const struct lister l = {.job = job, .machine = m, .ranks = ranks, .only = only, .saving = saving, .out = out};
    struct hd__candidate c = {.offload = saving == HD__SAVE_STATES};
    for (c.tp = 1; c.tp <= HD__MIN(m->ranks, ranks); c.tp *= 2)
        for (c.cp = 1; (int64_t)c.tp * c.cp <= ranks; c.cp *= 2)
            for (c.ep = 1; c.ep <= HD__MAX(1, job->experts); c.ep++)
                if (ranks % ((int64_t)c.tp * c.cp * c.ep) == 0 && job->seq_len % c.cp == 0 &&
                    (c.ep == 1 || job->experts % c.ep == 0))
                    add_meshes(&l, c, ranks / ((int64_t)c.tp * c.cp * c.ep));
}
