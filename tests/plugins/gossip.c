/* strategy-gossip: decentralised parallel SGD (D-PSGD, Lian et al., arXiv 1705.09056). Along the axes of dp every rank
 * trains parameters of its own, and after each step takes a mean of them and its two neighbours' on a ring:
 *
 *     x_i = w x_i + (1 - w) / 2 (x_(i-1) + x_(i+1))
 *
 * With two axes, on the ring of one and then on that of the other. The ranks never become equal. What evaluations and
 * exports of checkpoints get is the mean over all ranks, which is taken every `mean` steps.
 *
 * How a rank holds and updates its parameters is left to the strategy in front of this one. */
#include <stddef.h>
#include <string.h>

#include "heddle/host.h"
#include "heddle/strategy.h"

struct settings {
    double self;
    int64_t mean;
};

#define AT(field) offsetof(struct settings, field)
#define MIX "gossip"
#define MEAN "mean"

/* clang-format off */
static const struct hd_option options[] = {
    {.name = "self", .type = HD_OPT_FLOAT, .value = "0.5", .min = 0, .max = 1, .flags = HD_OPTION_GLOBAL,
     .offset = AT(self), .help = "a rank's own weight; its neighbours share the rest"},
    {.name = "mean", .type = HD_OPT_INT, .value = "10", .unit = "steps", .min = 1, .max = 1e9,
     .flags = HD_OPTION_GLOBAL, .offset = AT(mean), .help = "how often the mean over all ranks is taken"},
};
/* clang-format on */

struct pass {
    const struct hd_pass_api *api;
    struct hd_program *p;
    const struct settings *s;
    uint32_t axes;
    uint32_t reserved;
};

/* Axes of dp larger than 1. */
static uint32_t ring_axes(const struct hd_pass_api *api, const struct hd_program *p)
{
    uint32_t axes = 0;
    for (uint32_t a = HD_AXIS_DP_REPLICATE; a <= HD_AXIS_DP_SHARD; a++)
        axes |= api->axis_size(p, a) > 1 ? HD_AXIS_BIT(a) : 0;
    return axes;
}

static int32_t layout(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    (void)settings, (void)err;
    host->pass->apart(p, ring_axes(host->pass, p));
    return HD_OK;
}

/* out <- n inputs, with these weights where it is a blend */
static void put(const struct pass *x, const char *section, uint32_t op, uint32_t block, hd_tensor out, uint32_t n,
                const hd_tensor *in, const struct hd_attrs *attrs, uint32_t axes)
{
    struct hd_pass_instr i = {.struct_size = sizeof i,
                              .op = op,
                              .block = block,
                              .phase = HD_PHASE_O,
                              .axes = axes,
                              .redop = HD_SUM,
                              .n_in = n,
                              .n_out = 1,
                              .out = {out},
                              .attrs = attrs};
    memcpy(i.in, in, n * sizeof *in);
    x->api->append(x->p, section, &i);
}

static void blend(const struct pass *x, const char *section, uint32_t block, hd_tensor out, uint32_t n,
                  const hd_tensor *in, const double *weight, uint32_t axes)
{
    const struct hd_attrs attrs = {.struct_size = sizeof attrs, .table = weight, .n_table = n};
    put(x, section, HD_OP_BLEND, block, out, n, in, &attrs, axes);
}

/* The master of one rank and of its neighbours on the ring of an axis, of which there is one on a ring of two. */
static void mix(const struct pass *x, uint32_t flat, uint32_t block, hd_tensor master, uint32_t axis)
{
    static const char *const names[] = {"before", "behind"};
    uint32_t n = (uint32_t)x->api->axis_size(x->p, axis), neighbours = n > 2 ? 2 : 1;
    hd_tensor in[3] = {master};
    double weight[3] = {x->s->self};
    for (uint32_t k = 0; k < neighbours; k++) {
        const struct hd_attrs attrs = {.struct_size = sizeof attrs, .index = k ? n - 1 : 1};
        in[k + 1] = x->api->flat_shard(x->p, flat, names[k], x->api->dtype(x->p, "master"), HD_LIFE_TEMP, 0);
        weight[k + 1] = (1 - x->s->self) / neighbours;
        put(x, MIX, HD_OP_SHIFT, block, in[k + 1], 1, &master, &attrs, HD_AXIS_BIT(axis));
    }
    blend(x, MIX, block, master, 1 + neighbours, in, weight, 0);
}

static void gossip(const struct pass *x, uint32_t flat)
{
    struct hd_pass_flat f;
    hd_tensor master;
    x->api->flat_get(x->p, flat, &f);
    x->api->fetch(x->p, MIX, flat, HD_PART_MASTER | HD_PART_LOW, HD_PART_MASTER, flat % 3);
    master = x->api->staged(x->p, MIX, f.master);
    for (uint32_t a = HD_AXIS_DP_REPLICATE; a <= HD_AXIS_DP_SHARD; a++)
        if (x->axes & HD_AXIS_BIT(a))
            mix(x, flat, f.block, master, a);
    if (f.low)
        put(x, MIX, HD_OP_COPY, f.block, x->api->staged(x->p, MIX, f.low), 1, &master, NULL, 0);
    x->api->store(x->p, MIX, flat, HD_PART_MASTER | HD_PART_LOW);
    if (f.whole && f.axes)
        put(x, MIX, HD_OP_ALL_GATHER, f.block, f.whole, 1, f.low ? &f.low : &f.master, NULL, f.axes);
}

static void mean(const struct pass *x, uint32_t flat)
{
    struct hd_pass_flat f;
    hd_tensor common = x->api->flat_shard(x->p, flat, "O", x->api->dtype(x->p, "master"), HD_LIFE_PERSISTENT, 0);
    x->api->flat_role(x->p, flat, HD_FLAT_COMMON, common);
    x->api->declare(x->p, common, HD_FACT_AVERAGE | HD_FACT_EQUAL, x->axes, MEAN);
    x->api->flat_get(x->p, flat, &f);
    x->api->fetch(x->p, MEAN, flat, HD_PART_MASTER, HD_PART_MASTER, flat % 3);
    f.master = x->api->staged(x->p, MEAN, f.master);
    blend(x, MEAN, f.block, common, 1, &f.master, (double[]){1}, x->axes);
    if (x->axes)
        put(x, MEAN, HD_OP_ALL_REDUCE, f.block, common, 1, &common, NULL, x->axes);
}

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    struct pass x = {host->pass, p, settings, ring_axes(host->pass, p), 0};
    uint32_t n = x.api->n_flats(p);
    if (!n)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.gossip: a strategy that holds and updates a rank's parameters must stand before it "
                       "in `strategies`: [{use: zero}, {use: gossip}]");
    if (x.s->self <= 0 || x.s->self >= 1)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.gossip.self is %g: a rank and its neighbours have parts in each other between 0 "
                       "and 1",
                       x.s->self);
    if (x.axes) {
        x.api->section(p, MIX, 1);
        x.api->declare(p, 0, HD_FACT_MIX, x.axes, MIX);
        for (uint32_t flat = 1; flat <= n; flat++)
            gossip(&x, flat);
    }
    x.api->section(p, MEAN, (uint32_t)x.s->mean);
    for (uint32_t flat = 1; flat <= n; flat++)
        mean(&x, flat);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {
    .struct_size = sizeof ops, .api = HD_STRATEGY_API, .layout = layout, .transform = transform};

HD_PLUGIN("strategy-gossip", "1.0.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "gossip",
          .summary = "decentralised SGD: ranks average with their neighbours alone",
          HD_OPTIONS(options, struct settings), .ops = &ops)
