/* Candidates in the order of their bounds, which are made tighter where they come first, and the best of them. */
#include "analysis/plan/search.h"

#include <math.h>
#include <stdlib.h>

#include "core/program/ops.h"

/* The sources of a candidate's bound: closed forms; its blocks, in a program of few layers; its first stage, which is
 * often the fullest, and its steps, in programs of few micro-batches. */
enum { BY_FORMS, BY_BLOCKS, BY_FIRST, BY_STEPS };

/* The shares of what short programs take that longer ones take at least. */
#define BLOCKS_SHARE 0.95
#define STEPS_SHARE 0.998
/* A variant that is faster by less is not worth another setting. */
#define VARIANT_SHARE 0.995

/* A micro-batch on the ranks of one stage, however many stages and data ranks there are. */
struct blocks {
    struct hd__candidate of;
    double layer, others; /* seconds of a layer, and of all else */
    double last;          /* of the last block, the head; part of the others */
    double kept;          /* bytes that a layer keeps for its gradients */
};

struct search {
    const struct hd__search_request *r;
    struct hd__search *out;
    struct hd__candidates candidates;
    HD__ARRAY(struct blocks) blocks;
    const struct hd__parts *memory; /* of the ranks; bounds are by the largest */
    double flops_per_token;
    double below;       /* seconds that a variant has to be faster than */
    int64_t least_peak; /* of those that were compiled and did not fit */
};

/* ---- jobs */

/* Compiles the job with more words; `words`: lines of them, or NULL; `batch`: 0 for the job's. The job outlives the
 * programs. */
static int32_t compile(const struct hd__search_request *r, const char *words, int64_t batch, uint32_t flags,
                       struct hd__job **job, struct hd__compiled **compiled, struct hd_error *err)
{
    const char **all = hd__alloc((r->n_overrides + 8) * sizeof *all);
    size_t n = r->n_overrides;
    char *lines = hd__strdup(words ? words : ""), *rest = lines, *line;
    char *device = hd__format("device.use=%s", r->device),
         *ranks = hd__format("launch.ranks=%lld", (long long)r->ranks);
    if (n)
        memcpy(all, r->overrides, n * sizeof *all);
    all[n++] = device;
    all[n++] = ranks;
    while ((line = strsep(&rest, "\n")))
        if (*line)
            all[n++] = line;
    int32_t rc = hd__job_load(r->file, all, n, job, err);
    if (!rc && (*job)->micro_batches.count)
        rc = hd__job_fail(*job, "data.micro_batches", err,
                          "data.micro_batches: shares of one mesh, and a search chooses among meshes: leave it out");
    if (!rc && batch)
        (*job)->batch = batch;
    if (!rc)
        rc = hd__job_resolve(*job, r->ranks, err);
    if (!rc)
        rc = hd__exec_compile_with(*job, r->plugins, flags, compiled, err);
    free(ranks);
    free(device);
    free(lines);
    free(all);
    return rc;
}

/* Seconds of a step of one stage without its update: compute, and waiting for transfers over tp, which no gradient's
 * sum takes. */
static double pass_seconds(const struct search *s, const struct hd__compiled *c, const struct hd__plan *plan)
{
    const struct hd_program *p = c->stage[0];
    double sum = 0;
    for (uint32_t k = 0; k < p->sections.count; k++)
        for (uint32_t n = 0; n < p->sections.at[k].code.count; n++)
            if (p->sections.at[k].code.at[n].phase != HD__PHASE_O && !hd__is_async(&p->sections.at[k].code.at[n]))
                sum += hd__section_runs_per_step(&p->sections.at[k], NULL) *
                       hd__plan_seconds(s->r->machine, s->r->assume, p, &p->sections.at[k].code.at[n]);
    return sum + plan->exposed[HD_AXIS_TP] + plan->exposed[HD_AXIS_TQ];
}

/* Seconds that the last block computes in a step, and its name, which is a layer's own where that has the head. */
static double last_block_seconds(const struct search *s, const struct hd_program *p, char name[32])
{
    uint16_t block = p->logical.at[p->forward - 1].block;
    double sum = 0;
    for (uint32_t k = 0; k < p->sections.count; k++)
        for (uint32_t n = 0; n < p->sections.at[k].code.count; n++) {
            const struct hd__instr *i = &p->sections.at[k].code.at[n];
            if (i->block == block && i->phase != HD__PHASE_O && !hd__is_async(i))
                sum += hd__section_runs_per_step(&p->sections.at[k], NULL) *
                       hd__plan_seconds(s->r->machine, s->r->assume, p, i);
        }
    snprintf(name, 32, "%s", p->blocks.at[block]);
    return sum;
}

/* Facts about a plan beside its own fields. */
struct passes {
    double seconds, last, flops_per_token;
    char last_name[32];
};

static int32_t plan(const struct search *s, const struct hd__search_request *r, const char *words, int64_t batch,
                    uint32_t flags, struct hd__plan *out, struct passes *passes)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__job *job = NULL;
    struct hd__compiled *compiled = NULL;
    int32_t rc = compile(r, words, batch, flags, &job, &compiled, &why);
    if (!rc)
        rc = hd__plan_make(compiled, s->r->machine, s->r->assume, out, &why);
    if (!rc && passes) {
        passes->seconds = pass_seconds(s, compiled, out);
        passes->last = last_block_seconds(s, compiled->stage[0], passes->last_name);
        passes->flops_per_token = hd__compiled_flops_per_token(compiled);
    }
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    return rc;
}

static int32_t read_job(struct search *s, struct hd_error *err)
{
    static const char words[] = "mesh={pp: 1, dp: 1, cp: 1, ep: 1, tp: 1}\nstrategies=[{use: zero, stage: 0}]\n"
                                "data.micro_batch=1\nrecompute=none";
    struct hd__search_request alone = *s->r;
    struct hd__job *job = NULL;
    struct hd__compiled *c = NULL;
    struct hd__plan plan;
    alone.ranks = 1;
    int32_t rc = compile(&alone, words, 0, 0, &job, &c, err);
    if (!rc)
        rc = hd__plan_make(c, s->r->machine, s->r->assume, &plan, err);
    if (!rc) {
        double n = (double)plan.parameters;
        s->flops_per_token = hd__compiled_flops_per_token(c);
        s->out->job = (struct hd__candidate_job){
            .parameters = n,
            .model_flops = plan.model_flops,
            .weights = (double)hd_dtype_size(job->precision.compute),
            .states = (double)(plan.memory.kind[HD__MEMORY_PARAMETERS] + plan.memory.kind[HD__MEMORY_OPTIMIZER]) / n,
            .gradients = (double)hd_dtype_size(job->precision.grad),
            .reduced = (double)HD__MIN(hd_dtype_size(job->precision.grad), hd_dtype_size(job->precision.reduce)),
            .batch = job->batch,
            .seq_len = job->seq_len,
            .layers = HD__MAX(1, c->info.layers),
            .experts = c->info.experts,
            .compute = job->precision.compute,
        };
        s->out->job.states = fmax(0, s->out->job.states - s->out->job.weights);
    }
    hd__exec_compiled_free(c);
    hd__job_free(job);
    return rc;
}

/* ---- bounds from short programs */

/* Plans one micro-batch, with so many layers (0: all). */
static int32_t plan_blocks(const struct search *s, const struct hd__candidate *c, int64_t layers, struct hd__plan *p,
                           struct passes *passes)
{
    struct hd__search_request alone = *s->r;
    struct hd__candidate one = *c;
    char *words, *all;
    one.pp = one.replicate = one.shard = one.chunks = 1;
    one.stage = 0;
    alone.ranks = (int64_t)c->tp * c->cp * c->ep;
    words = hd__candidate_words(&one, "\n");
    all = layers ? hd__format("%s\nmodel.layers=%lld", words, (long long)layers) : hd__strdup(words);
    int32_t rc = plan(s, &alone, all, c->micro * c->ep, 0, p, passes);
    free(all);
    free(words);
    return rc;
}

/* If all layers are alike, from programs of one and two; the update of all weights is left out. */
static struct blocks measure_blocks(const struct search *s, const struct hd__candidate *c)
{
    struct blocks b = {.of = *c};
    struct hd__plan one, two;
    struct passes of_one, of_two;
    int64_t layers = s->out->job.layers;
    if (layers > 2 && !plan_blocks(s, c, 1, &one, &of_one) && !plan_blocks(s, c, 2, &two, &of_two) &&
        fabs(of_one.flops_per_token + (double)(layers - 1) * (of_two.flops_per_token - of_one.flops_per_token) -
             s->flops_per_token) < 1e-6 * s->flops_per_token) {
        b.layer = of_two.seconds - of_one.seconds;
        b.others = fmax(0, of_one.seconds - b.layer);
        b.last = strcmp(of_one.last_name, of_two.last_name) ? 0 : fmin(of_one.last, b.others);
        b.kept = fmax(0, (double)(two.memory.activations - one.memory.activations));
    } else if (!plan_blocks(s, c, 0, &one, &of_one)) {
        b.others = of_one.seconds;
    }
    return b;
}

static const struct blocks *find_blocks(struct search *s, const struct hd__candidate *c)
{
    for (uint32_t i = 0; i < s->blocks.count; i++) {
        const struct hd__candidate *x = &s->blocks.at[i].of;
        if (x->tp == c->tp && x->cp == c->cp && x->ep == c->ep && x->micro == c->micro &&
            x->sequence_parallel == c->sequence_parallel && x->recompute == c->recompute)
            return &s->blocks.at[i];
    }
    hd__push(&s->blocks, measure_blocks(s, c));
    return &s->blocks.at[s->blocks.count - 1];
}

/* 0: it does not fit. */
static int bound_by_blocks(struct search *s, struct hd__candidate *c)
{
    if (*c->recompute == '{') { /* its blocks are not alike */
        c->tier = BY_BLOCKS;
        return 1;
    }
    const struct blocks *b = find_blocks(s, c);
    double micros = (double)hd__candidate_micros(c, s->out->job.batch), layers = (double)s->out->job.layers;
    double stage = (layers * b->layer + b->others) / c->pp, fill = floor(layers / c->pp) * b->layer / c->chunks;
    double kept = hd__candidate_kept(&s->out->job, c, b->kept);
    stage = fmax(stage, ceil(layers / c->pp) * b->layer);
    stage = fmax(stage, floor(layers / c->pp / c->chunks) * c->chunks * b->layer + b->last); /* the last stage */
    c->bound = fmax(c->bound, BLOCKS_SHARE * (micros * stage + 2.0 / 3 * (c->pp - 1) * fill));
    c->tier = BY_BLOCKS;
    return hd__candidate_least_memory(&s->out->job, c) + BLOCKS_SHARE * kept <= (double)s->r->machine->memory;
}

/* Enough micro-batches that a pipeline's stages are all busy: of a step with many more, what it needs is seen in a
 * step of so few. 0: not many more. */
static int64_t few_micros(const struct search *s, const struct hd__candidate *c)
{
    return c->pp > 1 && hd__candidate_micros(c, s->out->job.batch) > 4 * c->pp ? 2 * c->pp : 0;
}

/* 0: it does not fit. */
static int bound_by_first_stage(struct search *s, struct hd__candidate *c)
{
    int64_t few = few_micros(s, c), limit = s->r->machine->memory, first = 0;
    struct hd_error why = HD_ERROR_INIT;
    struct hd__job *job = NULL;
    struct hd__compiled *compiled = NULL;
    char *words = hd__candidate_words(c, "\n");
    c->tier = BY_FIRST;
    if (c->pp > 1 && !compile(s->r, words, few * s->out->job.batch / hd__candidate_micros(c, s->out->job.batch),
                              HD__COMPILE_FIRST | HD__COMPILE_ESTIMATE, &job, &compiled, &why))
        first = compiled->stage[0]->arena_bytes;
    if (first > limit)
        s->least_peak = s->least_peak ? HD__MIN(s->least_peak, first) : first;
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    free(words);
    return first <= limit;
}

/* A pipeline's program writes out each micro-batch. Once all stages are busy each further one takes the same time, so
 * two short programs say what a long one takes. */
static void bound_by_steps(struct search *s, struct hd__candidate *c)
{
    int64_t few = few_micros(s, c), micros = hd__candidate_micros(c, s->out->job.batch),
            each = s->out->job.batch / micros;
    struct hd__plan one, two;
    char *words = hd__candidate_words(c, "\n");
    c->tier = BY_STEPS;
    if (few && !plan(s, s->r, words, each * few, HD__COMPILE_ESTIMATE, &one, NULL) &&
        !plan(s, s->r, words, each * (few + c->pp), HD__COMPILE_ESTIMATE, &two, NULL))
        c->bound = fmax(c->bound, STEPS_SHARE * (two.seconds +
                                                 (double)(micros - few - c->pp) / c->pp * (two.seconds - one.seconds)));
    free(words);
}

/* ---- trying them */

const char *hd__plan_binds(const struct hd__plan *p, const struct hd__machine *m)
{
    double busy = p->flops / p->peak_flops, reached = busy / m->product;
    double most = p->seconds - reached, waits = p->bubble / (1 + p->bubble) * p->seconds;
    const char *binds = reached > p->seconds / 2 ? "products" : "what is no product";
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        most -= a == HD_AXIS_PP ? 0 : p->exposed[a]; /* waiting for another stage is part of the bubble */
    most = fmax(most - p->copy_exposed - waits, 0);
    if (reached > p->seconds / 2)
        most = fmax(most, 0.1 * p->seconds); /* a loss below a tenth of the step binds nothing */
    if (waits > most) {
        most = waits;
        binds = "the pipeline's bubble";
    }
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (p->exposed[a] > most && a != HD_AXIS_PP) {
            most = p->exposed[a];
            binds = hd__axis_name(a);
        }
    if (p->copy_exposed > most)
        binds = "copies of offloaded state";
    return binds;
}

/* If two take the same time, the one of the smaller lines is first, in whatever order they were tried. */
static int is_faster(const struct hd__plan *plan, const char *lines, const struct hd__search_plan *than)
{
    return plan->seconds != than->plan.seconds ? plan->seconds < than->plan.seconds : strcmp(lines, than->lines) < 0;
}

/* Its place among the best, or behind them. */
static uint32_t place_of(const struct hd__search *out, const struct hd__candidate *c, const struct hd__plan *plan)
{
    char *lines = hd__candidate_words(c, "\n");
    uint32_t at = out->n_best;
    while (at > 0 && is_faster(plan, lines, &out->best[at - 1]))
        at--;
    free(lines);
    return at;
}

static void keep(struct search *s, const struct hd__candidate *c, const struct hd__job *job,
                 const struct hd__plan *plan, uint32_t at)
{
    struct hd__search *out = s->out;
    struct hd__text yaml = {0};
    char *words = hd__candidate_words(c, "' '");
    if (out->n_best == HD__SEARCH_BEST) {
        free(out->best[--out->n_best].words);
        free(out->best[out->n_best].lines);
        free(out->best[out->n_best].job);
    }
    memmove(&out->best[at + 1], &out->best[at], (out->n_best - at) * sizeof out->best[0]);
    out->n_best++;
    hd__job_print(job, &yaml);
    out->best[at] = (struct hd__search_plan){.words = hd__format("'%s'", words),
                                             .lines = hd__candidate_words(c, "\n"),
                                             .job = yaml.at,
                                             .plan = *plan,
                                             .of = *c,
                                             .bound = c->bound,
                                             .binds = hd__plan_binds(plan, s->r->machine)};
    free(words);
}

/* Counts one that is too large, and keeps what the smallest of these needs. */
static int count_too_large(struct search *s, const struct hd__compiled *compiled)
{
    struct hd__plan of = {0};
    hd__plan_fit(compiled, s->r->machine, s->memory, &of);
    if (of.fits)
        return 0;
    s->least_peak = s->least_peak ? HD__MIN(s->least_peak, of.peak) : of.peak;
    s->out->too_large++;
    return 1;
}

/* A candidate that the job's strategies refuse is none. Most are too large or too slow before any offsets: these are
 * made for those that are neither. */
static void try_candidate(struct search *s, const struct hd__candidate *c)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__job *job = NULL;
    struct hd__compiled *compiled = NULL;
    struct hd__plan plan;
    uint32_t at;
    char *words = hd__candidate_words(c, "\n");
    int32_t rc = compile(s->r, words, 0, HD__COMPILE_ESTIMATE, &job, &compiled, &why);
    s->out->tried++;
    if (rc) {
        s->out->refused++;
        hd__log(HD_LOG_DEBUG, "plan", "%s: %s", words, why.message);
    } else if (!count_too_large(s, compiled) && !hd__plan_make(compiled, s->r->machine, s->r->assume, &plan, &why) &&
               plan.seconds < s->below && (at = place_of(s->out, c, &plan)) < HD__SEARCH_BEST &&
               !hd__compile_offsets(compiled, &why) && !count_too_large(s, compiled)) {
        hd__plan_fit(compiled, s->r->machine, s->memory, &plan);
        plan.memory = hd__memory_use(compiled->stage[plan.stage]);
        keep(s, c, job, &plan, at);
    }
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    free(words);
}

/* The candidate of the lowest bound; one that was tried has none. */
static struct hd__candidate *next_candidate(struct search *s, uint32_t *left)
{
    struct hd__candidate *first = NULL;
    *left = 0;
    for (uint32_t i = 0; i < s->candidates.list.count; i++) {
        struct hd__candidate *c = &s->candidates.list.at[i];
        *left += c->bound < INFINITY;
        if (c->bound < INFINITY && (!first || c->bound < first->bound))
            first = c;
    }
    return first;
}

/* ---- variants of the fastest */

static void try_variant(struct search *s, struct hd__candidate c)
{
    c.bound = hd__candidate_least_seconds(&s->out->job, s->r->machine, s->r->ranks, &c);
    s->out->candidates++;
    try_candidate(s, &c);
}

/* One setting changed, of those that a plan is not searched over. */
static void try_variants(struct search *s, const struct hd__candidate *of)
{
    static const char *const schedules[] = {"zb-h1", "zb-v"};
    struct hd__candidate c = *of;
    for (size_t k = 0; k < HD__COUNT(schedules) && of->pp > 1; k++, c = *of) {
        c.schedule = schedules[k];
        c.chunks = (int32_t)k + 1;
        if (of->schedule != schedules[k])
            try_variant(s, c);
    }
    for (c.prefetch = 2; c.prefetch <= 4 && of->stage == 3; c.prefetch *= 2)
        if (of->prefetch != c.prefetch)
            try_variant(s, c);
}

/* From the fastest on, for as long as a variant of it is faster still. */
static void refine(struct search *s)
{
    double fastest;
    do {
        struct hd__candidate c = s->out->best[0].of;
        fastest = s->out->best[0].plan.seconds;
        s->below = VARIANT_SHARE * fastest;
        try_variants(s, &c);
    } while (s->out->best[0].plan.seconds < fastest);
}

/* ---- the search */

/* A bound comes first: makes it tighter, or, of the last tier, tries the candidate. */
static void advance(struct search *s, struct hd__candidate *c)
{
    int fits = 1, last = c->tier == BY_STEPS;
    if (c->tier == BY_FORMS)
        fits = bound_by_blocks(s, c);
    else if (c->tier == BY_BLOCKS)
        fits = bound_by_first_stage(s, c);
    else if (c->tier == BY_FIRST)
        bound_by_steps(s, c);
    else
        try_candidate(s, c);
    s->out->too_large += !fits;
    if (!fits || last)
        c->bound = INFINITY;
}

static void search_all(struct search *s, int32_t saving)
{
    struct hd__search *out = s->out;
    struct hd__candidate *c;
    uint32_t left;
    hd__candidates_list(&s->out->job, s->r->machine, s->r->ranks, s->r->only, saving, &s->candidates);
    out->candidates += s->candidates.all;
    out->too_large += s->candidates.too_large;
    while ((c = next_candidate(s, &left))) {
        if (out->n_best == HD__SEARCH_BEST && c->bound > out->best[out->n_best - 1].plan.seconds) {
            out->slower = left;
            break;
        }
        advance(s, c);
    }
    hd__free_array(&s->blocks);
    hd__free_array(&s->candidates.list);
    s->candidates = (struct hd__candidates){0};
}

int32_t hd__search(const struct hd__search_request *request, struct hd__search *out, struct hd_error *err)
{
    struct hd__assume alike = *request->assume;
    struct hd__machine largest = *request->machine;
    struct hd__search_request of_largest = *request, *r = &of_largest;
    struct search s = {.r = r, .out = out, .below = INFINITY, .memory = &request->assume->memory};
    char bytes[2][32];
    *out = (struct hd__search){.ranks = r->ranks, .inside = r->machine->ranks};
    int32_t rc = hd__machine_reaches(r->machine, r->ranks, err);
    if (!rc)
        rc = hd__assume_fits(&alike, r->ranks, err);
    alike.memory.count = 0;
    r->assume = &alike;
    r->machine = &largest;
    for (uint32_t k = 0; k < s.memory->count; k++)
        largest.memory = k ? HD__MAX(largest.memory, (int64_t)s.memory->at[k]) : (int64_t)s.memory->at[k];
    if (rc || (rc = read_job(&s, err)))
        return rc;
    search_all(&s, HD__SAVE_NOTHING);
    int is_tight = out->n_best < HD__SEARCH_BEST && out->too_large;
    for (int32_t saving = HD__SAVE_INPUTS; is_tight && saving < HD__SAVE_COUNT; saving++)
        if (saving != HD__SAVE_STATES || (largest.host_link > 0 && !r->without_offload))
            search_all(&s, saving);
    if (out->n_best) {
        refine(&s);
        return HD_OK;
    }
    if (!out->candidates)
        return hd_fail(err, HD_E_NOTFOUND,
                       "there is no way to cut this job over %lld ranks: their data ranks do not divide data.batch "
                       "%lld, or there are more of them than layers, heads and sequences can use: take another number",
                       (long long)r->ranks, (long long)out->job.batch);
    return hd_fail(err, HD_E_NOTFOUND,
                   "none of %u ways to run this job fits on %lld ranks of %s with %s%s each%s%s: take more ranks, or a "
                   "smaller batch",
                   out->candidates, (long long)r->ranks, largest.name, s.memory->count ? "at most " : "",
                   hd__bytes_text((uint64_t)largest.memory, bytes[0]),
                   s.least_peak ? "; the smallest needs "
                                : "; weights, states and what gradients need of a step need more",
                   s.least_peak ? hd__bytes_text((uint64_t)s.least_peak, bytes[1]) : "");
}

int32_t hd__search_fewest(const struct hd__search_request *r, int64_t *ranks, struct hd__search *out,
                          struct hd_error *below, struct hd_error *err)
{
    struct hd__search_request n = *r;
    int32_t rc = HD_E_NOTFOUND;
    n.without_offload = 1;
    *below = (struct hd_error)HD_ERROR_INIT;
    for (n.ranks = 1; n.ranks <= r->ranks && rc == HD_E_NOTFOUND; n.ranks++) {
        *below = *err;
        *err = (struct hd_error)HD_ERROR_INIT;
        rc = hd__search(&n, out, err);
        *ranks = n.ranks;
    }
    return rc;
}

void hd__search_free(struct hd__search *s)
{
    for (uint32_t i = 0; i < s->n_best; i++) {
        free(s->best[i].words);
        free(s->best[i].lines);
        free(s->best[i].job);
    }
    *s = (struct hd__search){0};
}

/* ---- printing */

void hd__search_text(const struct hd__search *s, struct hd__text *out)
{
    char seconds[32], bytes[32];
    hd__text_add(out, "%-4s %-9s %-6s %-7s %-10s %-22s %s\n", "", "step", "MFU", "bubble", "memory", "bound by",
                 "words");
    for (uint32_t i = 0; i < s->n_best; i++) {
        const struct hd__search_plan *b = &s->best[i];
        double mfu = b->plan.model_flops / b->plan.seconds / b->plan.peak_flops;
        hd__text_add(out, "%-4u %-9s %4.1f %% %5.1f %% %-10s %-22s %s\n", i + 1,
                     hd__seconds_text(b->plan.seconds, seconds), 100 * mfu, 100 * b->plan.bubble,
                     hd__bytes_text((uint64_t)b->plan.peak, bytes), b->binds, b->words);
    }
    hd__text_add(out,
                 "%u candidates: %u tried, of which %u are not possible; %u do not fit; %u were not tried, because "
                 "their bounds are above the last of these\n",
                 s->candidates, s->tried, s->refused, s->too_large, s->slower);
    hd__text_add(out, "the fastest is %.2f x its bound\n", s->best[0].plan.seconds / s->best[0].bound);
    json_decref(hd__search_rules(s, out));
    hd__text_add(out, "\n# its job file\n%s", s->best[0].job);
}

json_t *hd__search_json(const struct hd__search *s)
{
    json_t *plans = json_array();
    struct hd__text text = {0};
    json_t *rules = hd__search_rules(s, &text);
    hd__text_free(&text);
    for (uint32_t i = 0; i < s->n_best; i++) {
        const struct hd__search_plan *b = &s->best[i];
        json_array_append_new(plans, json_pack("{s:s, s:s, s:f, s:I, s:s, s:f, s:f, s:f}", "job", b->job, "words",
                                               b->words, "step_s", b->plan.seconds, "memory", (json_int_t)b->plan.peak,
                                               "binds", b->binds, "bound_s", b->bound, "mfu",
                                               b->plan.model_flops / b->plan.seconds / b->plan.peak_flops, "bubble",
                                               b->plan.bubble));
    }
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I}", "plans", plans, "rules", rules, "candidates",
                     (json_int_t)s->candidates, "tried", (json_int_t)s->tried, "refused", (json_int_t)s->refused,
                     "too_large", (json_int_t)s->too_large, "slower", (json_int_t)s->slower);
}
