/* A plan as one page, and as JSON. */
#include <math.h>

#include "analysis/plan/plan.h"
#include "core/program/cost.h"

/* Figures that follow from a plan. */
struct derived {
    double tokens_per_s, mfu, hfu;
    double training;                    /* seconds for all tokens, without failures */
    double checkpoint_s, failures;      /* best interval between saves (Daly); failures to expect; 0: mtbf not known */
    double rank_hours, dollars, joules; /* 0: not known */
};

double hd__plan_save_seconds(const struct hd__plan *p)
{
    return (double)(p->memory.kind[HD__MEMORY_PARAMETERS] + p->memory.kind[HD__MEMORY_OPTIMIZER]) / 1e9;
}

static struct derived derive(const struct hd__plan *p, const struct hd__machine *m, double tokens)
{
    struct derived d = {.tokens_per_s = (double)p->tokens / p->seconds};
    d.mfu = p->model_flops / p->seconds / p->peak_flops;
    d.hfu = p->flops / p->seconds / p->peak_flops;
    d.training = tokens / d.tokens_per_s;
    d.rank_hours = d.training / 3600 * (double)p->ranks;
    d.dollars = d.rank_hours * m->price;
    d.joules = d.training * m->power * (double)p->ranks;
    if (m->mtbf > 0 && tokens > 0) {
        double between = m->mtbf / (double)p->ranks, save = hd__plan_save_seconds(p);
        /* J. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, eq. 37 */
        double root = sqrt(2 * save * between);
        d.failures = d.training / between;
        d.checkpoint_s =
            save < 2 * between ? root * (1 + sqrt(save / (2 * between)) / 3 + save / (18 * between)) - save : between;
    }
    return d;
}

const char *hd__plan_count_text(double n, char out[32])
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    size_t u = 0;
    while (n >= 1000 && u + 1 < HD__COUNT(units)) {
        n /= 1000;
        u++;
    }
    snprintf(out, 32, u || n < 100 ? "%.3g%s" : "%.0f%s", n, units[u]);
    return out;
}

const char *hd__plan_long_text(double seconds, char out[32])
{
    if (seconds < 120)
        return hd__seconds_text(seconds, out);
    snprintf(out, 32,
             seconds < 7200     ? "%.0f min"
             : seconds < 172800 ? "%.1f h"
                                : "%.1f days",
             seconds < 7200     ? seconds / 60
             : seconds < 172800 ? seconds / 3600
                                : seconds / 86400);
    return out;
}

static void add_memory(const struct hd__plan *p, struct hd__text *out)
{
    char bytes[2][32];
    double share = (double)p->peak / (double)p->limit;
    hd__text_add(out, "memory of the fullest rank (stage %d)\n", p->stage);
    for (uint32_t k = 0; k < HD__MEMORY_KINDS; k++)
        hd__text_add(out, "  %-14s %12s  %5.1f %%\n", hd__memory_kind_name(k),
                     hd__bytes_text((uint64_t)p->memory.kind[k], bytes[0]),
                     100 * (double)p->memory.kind[k] / (double)p->peak);
    hd__text_add(out, "  %-14s %12s  of %s: %.0f %%%s\n", "peak", hd__bytes_text((uint64_t)p->peak, bytes[0]),
                 hd__bytes_text((uint64_t)p->limit, bytes[1]), 100 * share, share > 1 ? ", DOES NOT FIT" : "");
    if (p->offloaded[HD__MEM_HOST])
        hd__text_add(out, "  %-14s %12s  offloaded by a rank, of %s of the host's memory%s\n", "host",
                     hd__bytes_text((uint64_t)p->offloaded[HD__MEM_HOST], bytes[0]),
                     p->host_limit ? hd__bytes_text((uint64_t)p->host_limit, bytes[1]) : "an unknown share",
                     p->host_limit && p->offloaded[HD__MEM_HOST] > p->host_limit ? ", DOES NOT FIT" : "");
    if (p->offloaded[HD__MEM_FILE])
        hd__text_add(out, "  %-14s %12s  offloaded by a rank; the disk's time is not in the step\n", "file",
                     hd__bytes_text((uint64_t)p->offloaded[HD__MEM_FILE], bytes[0]));
    if (p->copies)
        hd__text_add(out, "  %-14s %12s  of its state in host memory, by checkpoint.peers; on several machines twice\n",
                     "copies", hd__bytes_text((uint64_t)p->copies, bytes[0]));
}

static void add_assumed(const struct hd__plan *p, struct hd__text *out)
{
    char bytes[2][32];
    if (p->assumed_states > 0)
        hd__text_add(out, "as assumed, blocks of stage 0: states %s, activations %s\n",
                     hd__bytes_text((uint64_t)p->assumed_states, bytes[0]),
                     hd__bytes_text((uint64_t)p->assumed_activations, bytes[1]));
}

static void add_traffic(const struct hd__plan *p, struct hd__text *out)
{
    char bytes[32], seconds[32];
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (p->traffic[a] > 0)
            hd__text_add(out, "  %-14s %12s sent a step by a rank, %s exposed\n", hd__axis_name(a),
                         hd__bytes_text((uint64_t)p->traffic[a], bytes), hd__seconds_text(p->exposed[a], seconds));
    if (p->copied > 0)
        hd__text_add(out, "  %-14s %12s copied in and out a step by a rank, %s exposed\n", "host",
                     hd__bytes_text((uint64_t)p->copied, bytes), hd__seconds_text(p->copy_exposed, seconds));
}

void hd__plan_text(const struct hd__plan *p, const struct hd__machine *m, double tokens, struct hd__text *out)
{
    struct derived d = derive(p, m, tokens);
    char a[32], b[32], c[32];
    hd__text_add(out, "%s parameters on %lld rank%s of %s, %s tokens a step\n\n",
                 hd__plan_count_text((double)p->parameters, a), (long long)p->ranks, p->ranks > 1 ? "s" : "", m->name,
                 hd__plan_count_text((double)p->tokens, b));
    add_memory(p, out);
    add_assumed(p, out);
    hd__text_add(out, "\nstep\n  %-14s %12s\n  %-14s %12s\n", "time", hd__seconds_text(p->seconds, a), "tokens/s",
                 hd__plan_count_text(d.tokens_per_s, b));
    hd__text_add(out, "  %-14s %11.1f %%  of the peak, counting the model's FLOPs\n", "MFU", 100 * d.mfu);
    hd__text_add(out, "  %-14s %11.1f %%  counting what is computed again too\n", "HFU", 100 * d.hfu);
    hd__text_add(out, "  %-14s %11.1f %%  of the stages' work\n", "bubble", 100 * p->bubble);
    add_traffic(p, out);
    for (uint32_t r = 0; r < p->n_shares; r++)
        hd__text_add(out, "%s%lld%s", r ? ", " : "most even at these speeds: data.micro_batches=[",
                     (long long)p->shares[r], r + 1 < p->n_shares ? "" : "]\n");
    if (tokens > 0)
        hd__text_add(out, "\ntraining on %s tokens\n  %-14s %12s\n  %-14s %12s\n", hd__plan_count_text(tokens, a),
                     "time", hd__plan_long_text(d.training, b), "rank-hours", hd__plan_count_text(d.rank_hours, c));
    if (d.dollars > 0)
        hd__text_add(out, "  %-14s %12s  at $%.2f a rank and hour%s\n", "dollars", hd__plan_count_text(d.dollars, a),
                     m->price, m->spot_share > 0 ? ", a mean of on-demand and spot" : "");
    if (d.joules > 0)
        hd__text_add(out, "  %-14s %9s kWh  at %.0f W a rank\n", "energy", hd__plan_count_text(d.joules / 3.6e6, a),
                     m->power);
    if (d.checkpoint_s > 0 && m->mtbf / (double)p->ranks > p->seconds)
        hd__text_add(out, "  %-14s %12.1f  to expect; saving every %s loses least (Daly 2006)\n", "failures",
                     d.failures, hd__plan_long_text(d.checkpoint_s, a));
    else if (d.checkpoint_s > 0)
        hd__text_add(out,
                     "  %-14s %12s  one every %s, so hardly a step would end: mtbf is of one rank, not of all %lld\n",
                     "failures", "", hd__seconds_text(m->mtbf / (double)p->ranks, a), (long long)p->ranks);
    hd__text_add(out, "\nmemory is exact; times are estimates from %s\n", m->path);
}

static json_t *by_axis(const double values[HD_AXIS_COUNT], double host, int offloads)
{
    json_t *object = json_object();
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (values[a] > 0)
            json_object_set_new(object, hd__axis_name(a), json_real(values[a]));
    if (offloads)
        json_object_set_new(object, "host", json_real(host));
    return object;
}

json_t *hd__plan_json(const struct hd__plan *p, const struct hd__machine *m, double tokens)
{
    struct derived d = derive(p, m, tokens);
    json_t *memory = json_object(), *training = json_null(), *shares = p->n_shares ? json_array() : NULL;
    for (uint32_t k = 0; k < HD__MEMORY_KINDS; k++)
        json_object_set_new(memory, hd__memory_kind_name(k), json_integer(p->memory.kind[k]));
    json_object_set_new(memory, "peak", json_integer(p->peak));
    for (uint32_t k = HD__MEM_HOST; k < HD__MEM_COUNT; k++)
        if (p->offloaded[k])
            json_object_set_new(memory, hd__memory_name(k), json_integer(p->offloaded[k]));
    if (p->copies)
        json_object_set_new(memory, "copies", json_integer(p->copies));
    if (tokens > 0)
        training = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "tokens", tokens, "seconds", d.training,
                             "rank_hours", d.rank_hours, "dollars", d.dollars, "joules", d.joules, "failures",
                             d.failures, "checkpoint_every_s", d.checkpoint_s);
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:o, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "machine",
        m->name, "device", p->device, "parameters", (json_int_t)p->parameters, "ranks", (json_int_t)p->ranks, "memory",
        memory, "memory_limit", (json_int_t)p->limit, "fits", p->fits, "flops", p->model_flops, "flops_with_recompute",
        p->flops, "step_s", p->seconds, "compute_s", p->compute, "tokens_per_s", d.tokens_per_s, "mfu", d.mfu, "hfu",
        d.hfu, "bubble", p->bubble, "traffic", by_axis(p->traffic, p->copied, p->copied > 0), "exposed_s",
        by_axis(p->exposed, p->copy_exposed, p->copied > 0), "training", training);
    if (p->assumed_states > 0)
        json_object_set_new(
            object, "assumed_memory",
            json_pack("{s:f, s:f}", "states", p->assumed_states, "activations", p->assumed_activations));
    for (uint32_t r = 0; r < p->n_shares; r++)
        json_array_append_new(shares, json_integer(p->shares[r]));
    json_object_set_new(object, "micro_batches", shares); /* nothing where there are none */
    return object;
}
