/* strategy-ema: an exponential moving average of the weights. Every `every` steps, with p the parameters:
 *
 *     e = decay e + (1 - decay) p
 *
 * It begins as the parameters, so nothing has to be corrected later. The average is a companion of each flat's master
 * weights, with their shards: where those are sharded, it is. Training does not read it. */
#include <stddef.h>

#include "heddle/host.h"
#include "heddle/strategy.h"

struct settings {
    double decay;
    int64_t every;
};

#define AT(field) offsetof(struct settings, field)
#define SECTION "ema"

/* clang-format off */
static const struct hd_option options[] = {
    {.name = "decay", .type = HD_OPT_FLOAT, .value = "0.999", .min = 0, .max = 1, .flags = HD_OPTION_GLOBAL,
     .offset = AT(decay), .help = "of the average, each time: about the last every / (1 - decay) steps are in it"},
    {.name = "every", .type = HD_OPT_INT, .value = "1", .unit = "steps", .min = 1, .max = 1e9,
     .flags = HD_OPTION_GLOBAL, .offset = AT(every), .help = "how often the weights are taken into it"},
};
/* clang-format on */

static void average(const struct hd_pass_api *api, struct hd_program *p, uint32_t flat, double decay)
{
    const double factor[] = {decay, 1 - decay};
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .table = factor, .n_table = 2};
    struct hd_pass_instr i = {
        .struct_size = sizeof i, .op = HD_OP_BLEND, .phase = HD_PHASE_O, .n_in = 2, .n_out = 1, .attrs = &attrs};
    struct hd_pass_flat f;
    hd_tensor e = api->flat_shard(p, flat, "E", api->dtype(p, "master"), HD_LIFE_PERSISTENT, 0);
    api->flat_get(p, flat, &f);
    api->keep(p, flat, e, "ema");
    api->declare(p, e, HD_FACT_AVERAGE, 0, SECTION);
    api->fetch(p, SECTION, flat, HD_PART_MASTER, HD_PART_MASTER, flat % 3);
    i.block = f.block;
    i.in[0] = i.out[0] = e;
    i.in[1] = api->staged(p, SECTION, f.master);
    api->append(p, SECTION, &i);
}

/* Why there is no average of this job's weights; NULL: there is one. */
static const char *obstacle(const struct hd_pass_api *api, const struct hd_program *p)
{
    struct hd_pass_flat first;
    uint32_t master = api->dtype(p, "master");
    int replicas = 0;
    if (!api->n_flats(p))
        return "a strategy that holds and updates parameters must stand before it in `strategies`: [{use: zero}, {use: "
               "ema}]";
    api->flat_get(p, 1, &first);
    for (uint32_t a = HD_AXIS_DP_REPLICATE; a <= HD_AXIS_DP_SHARD; a++) /* wherever local SGD stands in the list */
        replicas |= api->axis_size(p, a) > 1 && !(api->live_axes(p) & HD_AXIS_BIT(a));
    if (first.common || replicas)
        return "local-SGD replicas have no common weights to average between synchronisations; leave one of the two "
               "strategies out";
    if (master != HD_F32 && master != HD_F64)
        return "what a step adds to an average is lost in 16 bits: use precision.master fp32";
    return NULL;
}

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *program,
                         struct hd_error *err)
{
    const struct settings *s = settings;
    const char *why = obstacle(host->pass, program);
    uint32_t n = host->pass->n_flats(program);
    if (why)
        return hd_fail(err, HD_E_INVALID, "strategies.ema: %s", why);
    if (s->decay >= 1)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.ema.decay is 1: the average would stay at the initial weights: use less, as 0.999");
    if (s->decay < 0.5 && host->pass->stage(program) == 0)
        host->log(
            HD_LOG_WARN, "strategy-ema",
            "strategies.ema.decay is %g: the average %s the weights: raise it, as 0.999, or leave ema out", s->decay,
            s->decay == 0 ? "is a copy of" : "keeps less than half of itself at each update, and hardly differs from");
    host->pass->section(program, SECTION, (uint32_t)s->every);
    for (uint32_t flat = 1; flat <= n; flat++)
        average(host->pass, program, flat, s->decay);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .transform = transform};

HD_PLUGIN("strategy-ema", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "ema",
          .summary = "an exponential moving average of the weights, for evaluation and export",
          HD_OPTIONS(options, struct settings), .ops = &ops)
