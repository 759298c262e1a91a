/* strategy-lookahead: Lookahead (Zhang et al. 2019, arXiv 1907.08610): slow weights go a part of the way to the fast
 * ones every so many steps, and the fast ones begin there anew. It trains another model on one rank too, and the same
 * on every mesh. */
#include <string.h>

#include "heddle/host.h"
#include "heddle/strategy.h"

#define SLOW "slow"

struct pass {
    const struct hd_pass_api *api;
    struct hd_program *p;
};

static void put(const struct pass *x, uint32_t op, uint32_t block, hd_tensor out, uint32_t n, const hd_tensor *in,
                const struct hd_attrs *attrs, uint32_t axes)
{
    struct hd_pass_instr i = {.struct_size = sizeof i,
                              .op = op,
                              .block = block,
                              .phase = HD_PHASE_O,
                              .axes = axes,
                              .n_in = n,
                              .n_out = 1,
                              .out = {out},
                              .attrs = attrs};
    memcpy(i.in, in, n * sizeof *in);
    x->api->append(x->p, SLOW, &i);
}

static void follow(const struct pass *x, uint32_t flat)
{
    const struct hd_attrs half = {.struct_size = sizeof half, .table = (double[]){0.5, 0.5}, .n_table = 2};
    hd_tensor slow = x->api->flat_shard(x->p, flat, "S", x->api->dtype(x->p, "master"), HD_LIFE_PERSISTENT, 0), master;
    struct hd_pass_flat f;
    x->api->flat_get(x->p, flat, &f);
    x->api->keep(x->p, flat, slow, "slow");
    x->api->declare(x->p, slow, HD_FACT_AVERAGE, 0, SLOW);
    x->api->fetch(x->p, SLOW, flat, HD_PART_MASTER | HD_PART_LOW, HD_PART_MASTER, flat % 3);
    master = x->api->staged(x->p, SLOW, f.master);
    put(x, HD_OP_BLEND, f.block, slow, 2, (hd_tensor[]){slow, master}, &half, 0);
    put(x, HD_OP_COPY, f.block, master, 1, &slow, NULL, 0);
    if (f.low)
        put(x, HD_OP_COPY, f.block, x->api->staged(x->p, SLOW, f.low), 1, &master, NULL, 0);
    x->api->store(x->p, SLOW, flat, HD_PART_MASTER | HD_PART_LOW);
    if (f.whole && f.axes)
        put(x, HD_OP_ALL_GATHER, f.block, f.whole, 1, f.low ? &f.low : &f.master, NULL, f.axes);
}

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    struct pass x = {host->pass, p};
    uint32_t n = x.api->n_flats(p);
    (void)settings;
    if (!n)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.lookahead: it stands behind zero: [{use: zero}, {use: lookahead}]");
    x.api->section(p, SLOW, 2);
    x.api->declare(p, 0, HD_FACT_EQUAL, 0, SLOW);
    for (uint32_t flat = 1; flat <= n; flat++)
        follow(&x, flat);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .transform = transform};

HD_PLUGIN("strategy-lookahead", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "lookahead",
          .summary = "slow weights that follow the fast ones", .ops = &ops)
