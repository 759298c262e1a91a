/* Candidates, their bounds, and the best of them. */
#include "analysis/plan/search.h"

#include <math.h>
#include <stdlib.h>

struct candidate {
    int32_t tp, pp, dp, stage, virtual;
    int64_t micro;
    const char *recompute;
    double bound;
};

struct search {
    const struct hd__search_request *r;
    struct hd__search *out;
    HD__ARRAY(struct candidate) candidates;
    /* The job as it is: */
    double parameters, model_flops;
    int64_t batch, layers;
    uint32_t compute;   /* dtype */
    int64_t least_peak; /* of those that were compiled and did not fit */
};

/* ---- jobs */

static char *words_of(const struct candidate *c, const char *between)
{
    char zero[64] = "", schedule[64] = "";
    if (c->pp > 1 && c->virtual > 1)
        snprintf(schedule, sizeof schedule, ", schedule: interleaved, virtual: %d", c->virtual);
    if (c->dp > 1)
        snprintf(zero, sizeof zero, "{use: zero, stage: %d}", c->stage);
    return hd__format("mesh={pp: %d, dp: %d, tp: %d}%sstrategies=[%s%s%s%s%s]%sdata.micro_batch=%lld%srecompute=%s",
                      c->pp, c->dp, c->tp, between, c->tp * c->pp > 1 ? "{use: 3d" : "",
                      c->tp * c->pp > 1 ? schedule : "", c->tp * c->pp > 1 ? (c->dp > 1 ? "}, " : "}") : "", zero,
                      c->tp * c->pp > 1 || c->dp > 1 ? "" : "{use: zero}", between, (long long)c->micro, between,
                      c->recompute);
}

/* Compiles the job with more words; `words`: lines of them, or NULL. The job outlives the programs. */
static int32_t compile(const struct hd__search_request *r, const char *words, struct hd__job **job,
                       struct hd__compiled **compiled, struct hd_error *err)
{
    const char **all = hd__alloc((r->n_overrides + 8) * sizeof *all);
    size_t n = r->n_overrides;
    char *lines = hd__strdup(words ? words : ""), *rest = lines, *line;
    char *device = hd__format("device.use=%s", r->device),
         *ranks = hd__format("launch.ranks=%lld", (long long)r->ranks);
    memcpy(all, r->overrides, n * sizeof *all);
    all[n++] = device;
    all[n++] = ranks;
    while ((line = strsep(&rest, "\n")))
        if (*line)
            all[n++] = line;
    int32_t rc = hd__job_load(r->file, all, n, job, err);
    if (!rc)
        rc = hd__job_resolve(*job, r->ranks, err);
    if (!rc)
        rc = hd__exec_compile(*job, r->plugins, compiled, err);
    free(ranks);
    free(device);
    free(lines);
    free(all);
    return rc;
}

/* ---- bounds */

/* Weights and states alone, spread as evenly as can be: 2 bytes a weight in 16 bits and 12 of master and moments, 12 in
 * fp32. */
static double least_memory(const struct search *s, const struct candidate *c)
{
    double n = s->parameters / c->tp / c->pp, wide = hd_dtype_size(s->compute) >= 4;
    double weights = (wide ? 4 : 2) * n / (c->stage == 3 ? c->dp : 1), states = (wide ? 8 : 12) * n;
    return weights + states / (c->stage > 0 ? c->dp : 1);
}

/* All products at the best rate of the machine, and the pipeline's bubble. Of a block that is run again heddle leaves
 * out the last product, which is at most half of the forward pass. */
static double least_seconds(const struct search *s, const struct candidate *c)
{
    const struct hd__machine *m = s->r->machine;
    double share = fmax(m->product, fmax(m->attention, m->attention_grad));
    double rate = hd__machine_peak(m, s->compute) * share * (double)s->r->ranks;
    double micros = (double)(s->batch / (c->dp * c->micro)), again = strcmp(c->recompute, "full") ? 1 : 7.0 / 6;
    return s->model_flops * again / rate * (1 + (c->pp - 1) / micros / c->virtual);
}

/* ---- candidates */

static void add_candidate(struct search *s, struct candidate c)
{
    s->out->candidates++;
    if (least_memory(s, &c) > (double)s->r->machine->memory) {
        s->out->too_large++;
        return;
    }
    c.bound = least_seconds(s, &c);
    hd__push(&s->candidates, c);
}

static void add_mesh(struct search *s, int32_t tp, int32_t pp, int32_t dp)
{
    static const char *const recomputes[] = {"none", "selective", "full"};
    for (int32_t stage = 0; stage <= (dp > 1 ? 3 : 0); stage++)
        for (int64_t micro = 1; micro <= 16 && s->batch % (dp * micro) == 0; micro *= 2)
            for (int32_t v = 1; v <= (pp > 1 ? 4 : 1); v *= 2)
                for (size_t r = 0; r < HD__COUNT(recomputes); r++)
                    if (v == 1 || (s->layers % (pp * v) == 0 && s->batch / (dp * micro) % pp == 0))
                        add_candidate(s, (struct candidate){.tp = tp,
                                                            .pp = pp,
                                                            .dp = dp,
                                                            .stage = stage,
                                                            .virtual = v,
                                                            .micro = micro,
                                                            .recompute = recomputes[r]});
}

static void add_candidates(struct search *s)
{
    int64_t ranks = s->r->ranks, inside = HD__MIN(s->r->machine->ranks, ranks);
    for (int32_t tp = 1; tp <= inside; tp *= 2)
        for (int32_t pp = 1; pp <= s->layers && ranks % tp == 0 && pp <= ranks / tp; pp++)
            if (ranks / tp % pp == 0 && s->batch % (ranks / tp / pp) == 0)
                add_mesh(s, tp, pp, (int32_t)(ranks / tp / pp));
}

static int by_bound(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->bound != y->bound)
        return x->bound < y->bound ? -1 : 1;
    return (x->tp * x->pp > y->tp * y->pp) - (x->tp * x->pp < y->tp * y->pp);
}

/* ---- trying them */

const char *hd__plan_binds(const struct hd__plan *p, const struct hd__machine *m)
{
    double busy = p->flops / p->peak_flops, reached = busy / m->product;
    double most = p->seconds - reached, waits = p->bubble / (1 + p->bubble) * p->seconds;
    const char *binds = reached > p->seconds / 2 ? "products" : "what is no product";
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        most -= p->exposed[a];
    most = fmax(most - waits, 0);
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
    return binds;
}

static void keep(struct search *s, const struct candidate *c, const struct hd__job *job, const struct hd__plan *plan)
{
    struct hd__search *out = s->out;
    struct hd__text yaml = {0};
    uint32_t at = out->n_best;
    while (at > 0 && out->best[at - 1].plan.seconds > plan->seconds)
        at--;
    if (at == HD__SEARCH_BEST)
        return;
    if (out->n_best == HD__SEARCH_BEST) {
        free(out->best[--out->n_best].words);
        free(out->best[out->n_best].job);
    }
    memmove(&out->best[at + 1], &out->best[at], (out->n_best - at) * sizeof out->best[0]);
    out->n_best++;
    hd__job_print(job, &yaml);
    out->best[at] = (struct hd__search_plan){.words = words_of(c, "' '"),
                                             .job = yaml.at,
                                             .plan = *plan,
                                             .bound = c->bound,
                                             .binds = hd__plan_binds(plan, s->r->machine)};
}

/* A candidate that the job's strategies refuse is none. */
static void try_candidate(struct search *s, const struct candidate *c)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__job *job = NULL;
    struct hd__compiled *compiled = NULL;
    struct hd__plan plan;
    char *words = words_of(c, "\n");
    int32_t rc = compile(s->r, words, &job, &compiled, &why);
    int64_t peak = 0;
    for (int32_t k = 0; !rc && k < compiled->n_stages; k++)
        peak = HD__MAX(peak, compiled->stage[k]->arena_bytes);
    s->out->tried++;
    if (rc) {
        s->out->refused++;
        hd__log(HD_LOG_DEBUG, "plan", "%s: %s", words, why.message);
    } else if (peak > s->r->machine->memory) {
        s->out->too_large++;
        s->least_peak = s->least_peak ? HD__MIN(s->least_peak, peak) : peak;
    } else if (!hd__plan_make(compiled, s->r->machine, s->r->assume, &plan, &why)) {
        keep(s, c, job, &plan);
    }
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    free(words);
}

static int32_t read_job(struct search *s, struct hd_error *err)
{
    struct hd__job *job = NULL;
    struct hd__compiled *c = NULL;
    char *words = hd__format("mesh={pp: 1, dp: %lld, tp: 1}\nstrategies=[{use: zero, stage: 3}]\ndata.micro_batch=1",
                             (long long)s->r->ranks);
    int32_t rc = compile(s->r, words, &job, &c, err);
    if (rc &&
        s->r->ranks > 1) { /* a batch that so many data ranks cannot divide: what the job is does not depend on them */
        struct hd__search_request alone = *s->r;
        hd__job_free(job);
        job = NULL;
        *err = (struct hd_error)HD_ERROR_INIT;
        alone.ranks = 1;
        rc = compile(&alone, "mesh={pp: 1, dp: 1, tp: 1}\nstrategies=[{use: zero}]\ndata.micro_batch=1", &job, &c, err);
    }
    if (!rc) {
        s->parameters = (double)hd__compiled_parameter_count(c);
        s->batch = job->batch;
        s->layers = HD__MAX(1, c->info.layers);
        s->compute = job->precision.compute;
        s->model_flops = hd__compiled_flops_per_token(c) * (double)(job->batch * job->seq_len);
    }
    hd__exec_compiled_free(c);
    hd__job_free(job);
    free(words);
    return rc;
}

int32_t hd__search(const struct hd__search_request *r, struct hd__search *out, struct hd_error *err)
{
    struct search s = {.r = r, .out = out};
    char bytes[2][32];
    *out = (struct hd__search){0};
    int32_t rc = hd__machine_reaches(r->machine, r->ranks, err);
    if (rc || (rc = read_job(&s, err)))
        return rc;
    add_candidates(&s);
    if (s.candidates.count)
        qsort(s.candidates.at, s.candidates.count, sizeof *s.candidates.at, by_bound);
    for (uint32_t i = 0; i < s.candidates.count; i++) {
        if (out->n_best == HD__SEARCH_BEST && s.candidates.at[i].bound > out->best[out->n_best - 1].plan.seconds) {
            out->slower = s.candidates.count - i;
            break;
        }
        try_candidate(&s, &s.candidates.at[i]);
    }
    hd__free_array(&s.candidates);
    if (out->n_best)
        return HD_OK;
    return hd_fail(err, HD_E_NOTFOUND,
                   "none of %u ways to run this job fits on %lld ranks of %s with %s each%s%s: take more ranks, or a "
                   "smaller batch",
                   out->candidates, (long long)r->ranks, r->machine->name,
                   hd__bytes_text((uint64_t)r->machine->memory, bytes[0]),
                   s.least_peak ? "; the smallest needs " : "; weights and optimizer states alone need more",
                   s.least_peak ? hd__bytes_text((uint64_t)s.least_peak, bytes[1]) : "");
}

void hd__search_free(struct hd__search *s)
{
    for (uint32_t i = 0; i < s->n_best; i++) {
        free(s->best[i].words);
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
        hd__text_add(out, "%-4u %-9s %4.1f %% %5.1f %% %-10s %-22s '%s'\n", i + 1,
                     hd__seconds_text(b->plan.seconds, seconds), 100 * mfu, 100 * b->plan.bubble,
                     hd__bytes_text((uint64_t)b->plan.peak, bytes), b->binds, b->words);
    }
    hd__text_add(
        out,
        "%u candidates: %u tried, of which %u are not possible; %u do not fit; %u were not tried, because even "
        "their products at the machine's best rate take longer than the last of these\n",
        s->candidates, s->tried, s->refused, s->too_large, s->slower);
    hd__text_add(out, "the fastest is %.2f x its bound\n\n# its job file\n%s",
                 s->best[0].plan.seconds / s->best[0].bound, s->best[0].job);
}

json_t *hd__search_json(const struct hd__search *s)
{
    json_t *plans = json_array();
    for (uint32_t i = 0; i < s->n_best; i++) {
        const struct hd__search_plan *b = &s->best[i];
        json_array_append_new(plans, json_pack("{s:s, s:s, s:f, s:I, s:s, s:f, s:f, s:f}", "job", b->job, "words",
                                               b->words, "step_s", b->plan.seconds, "memory", (json_int_t)b->plan.peak,
                                               "binds", b->binds, "bound_s", b->bound, "mfu",
                                               b->plan.model_flops / b->plan.seconds / b->plan.peak_flops, "bubble",
                                               b->plan.bubble));
    }
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I}", "plans", plans, "candidates", (json_int_t)s->candidates, "tried",
                     (json_int_t)s->tried, "refused", (json_int_t)s->refused, "too_large", (json_int_t)s->too_large,
                     "slower", (json_int_t)s->slower);
}
