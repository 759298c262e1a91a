/* strategy-localsgd: replicas train independently and synchronize every `every` steps (local SGD, Stich, arXiv
 * 1805.09767; DiLoCo, Douillard et al., arXiv 2311.08105, algorithm 1).
 *
 * Between syncs every replica takes the job's optimizer steps on its own part of the batch. At a sync, with o the
 * parameters of the last one, p_i those of replica i, m the momentum, and R replicas:
 *
 *     d = (1/R) sum_i (o - p_i)           the outer gradient (pseudo-gradient)
 *     m = momentum m + d
 *     o = o - outer_lr (d + momentum m)   Nesterov's step, as torch.optim.SGD has it; without nesterov: o - outer_lr m
 *     p_i = o
 *
 * How a replica holds and updates its parameters is left to another strategy, zero, which precedes this one. This one
 * declares that replicas are independent, keeps o and m beside each flat's master weights, and appends the sync section
 * to the step. */
#include <stddef.h>
#include <string.h>

#include "heddle/host.h"
#include "heddle/strategy.h"

struct settings {
    int64_t every;
    double outer_lr, momentum;
    struct hd_list axes;
    int32_t nesterov, reserved;
};

#define GLOBAL .flags = HD_OPTION_GLOBAL
#define AT(field) offsetof(struct settings, field)

/* clang-format off */
static const struct hd_option options[] = {
    {.name = "every", .type = HD_OPT_INT, .value = "20", .unit = "steps", .min = 1, .max = 1e9, GLOBAL,
     .offset = AT(every),
     .help = "local steps between two synchronisations of the replicas; DiLoCo's H"},
    {.name = "outer_lr", .type = HD_OPT_FLOAT, .value = "0.7", .min = 1e-9, .max = 1e6, GLOBAL, .offset = AT(outer_lr),
     .help = "learning rate of the outer step; 1 with momentum: 0 averages parameters (local SGD)"},
    {.name = "momentum", .type = HD_OPT_FLOAT, .value = "0.9", .min = 0, .max = 0.9999, GLOBAL, .offset = AT(momentum),
     .help = "of the outer step; 0 keeps no state for it"},
    {.name = "nesterov", .needs = "momentum!=0", .type = HD_OPT_BOOL, .value = "true", GLOBAL, .offset = AT(nesterov),
     .help = "the outer step looks ahead along its momentum"},
    {.name = "axes", .type = HD_OPT_LIST, .value = "[dp_replicate, dp_shard]", GLOBAL, .offset = AT(axes),
     .help = "mesh axes along which ranks are replicas: [dp_replicate] leaves dp_shard to zero, inside a replica"},
};
/* clang-format on */

/* One flat's tensors. All are sharded as its master weights are. */
struct outer {
    hd_tensor common, momentum, delta, target; /* target: the master, where the section computes with it */
};

struct pass {
    const struct hd_pass_api *api;
    struct hd_program *p;
    const struct settings *s;
    uint32_t axes; /* larger than 1 */
    uint32_t reserved;
};

#define SECTION "outer"

static int32_t read_axes(struct pass *x, struct hd_error *err)
{
    static const char *const names[] = {[HD_AXIS_DP_REPLICATE] = "dp_replicate", [HD_AXIS_DP_SHARD] = "dp_shard"};
    for (uint64_t n = 0; n < x->s->axes.count; n++) {
        uint32_t a = HD_AXIS_DP_REPLICATE;
        while (a <= HD_AXIS_DP_SHARD && strcmp(x->s->axes.text[n], names[a]) != 0)
            a++;
        if (a > HD_AXIS_DP_SHARD)
            return hd_fail(err, HD_E_INVALID,
                           "strategies.localsgd.axes: '%.40s' is no axis of replicas: along cp, ep and tp ranks "
                           "share one model, along pp they have parts of it; choose of dp_replicate, dp_shard",
                           x->s->axes.text[n]);
        if (x->api->axis_size(x->p, a) > 1)
            x->axes |= HD_AXIS_BIT(a);
    }
    return HD_OK;
}

/* The outer step of one replica is another algorithm: a step that looks ahead of the one optimizer there is. With
 * outer_lr 1 and no momentum it changes nothing: so one rank may be compared with replicas that meet in every step. */
static int32_t check_replicas(const struct pass *x, struct hd_error *err)
{
    int32_t replicas = x->api->axis_size(x->p, HD_AXIS_DP_REPLICATE),
            shards = x->api->axis_size(x->p, HD_AXIS_DP_SHARD);
    const struct hd_list *axes = &x->s->axes;
    if (x->axes || (!x->api->live_axes(x->p) && x->s->outer_lr == 1 && x->s->momentum == 0))
        return HD_OK;
    if (replicas * shards == 1)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.localsgd: the job has one replica, since mesh.dp is 1, and nothing to synchronise: "
                       "say mesh: {dp: N} for N replicas, on N times as many ranks, or remove localsgd");
    return hd_fail(err, HD_E_INVALID,
                   "strategies.localsgd.axes: the job has one replica, and nothing to synchronise: mesh.dp is "
                   "{replicate: %d, shard: %d}, and axes is [%s%s%s]; say mesh: {dp: {replicate: N, shard: M}} for N "
                   "replicas of M ranks each, with axes: [dp_replicate]",
                   replicas, shards, axes->count ? axes->text[0] : "", axes->count > 1 ? ", " : "",
                   axes->count > 1 ? axes->text[1] : "");
}

static int32_t layout(const struct hd_host *host, const void *settings, struct hd_program *program,
                      struct hd_error *err)
{
    struct pass x = {host->pass, program, settings, 0, 0};
    int32_t rc = read_axes(&x, err);
    if (!rc)
        rc = check_replicas(&x, err);
    if (!rc)
        x.api->apart(program, x.axes);
    return rc;
}

/* ---- the sync section */

static struct hd_pass_instr instr(uint32_t op, uint32_t block, hd_tensor in, hd_tensor out, uint32_t axes)
{
    return (struct hd_pass_instr){.struct_size = sizeof(struct hd_pass_instr),
                                  .op = op,
                                  .block = block,
                                  .phase = HD_PHASE_O,
                                  .axes = axes,
                                  .redop = HD_SUM,
                                  .n_in = 1,
                                  .n_out = 1,
                                  .in = {in},
                                  .out = {out}};
}

static void add(const struct pass *x, uint32_t op, uint32_t block, hd_tensor in, hd_tensor out, uint32_t axes)
{
    struct hd_pass_instr i = instr(op, block, in, out, axes);
    x->api->append(x->p, SECTION, &i);
}

/* out = a in[0] + b in[1] + c in[2]; the last may be 0 */
static void blend(const struct pass *x, uint32_t block, hd_tensor out, const hd_tensor in[3], const double factor[3],
                  uint32_t axes)
{
    struct hd_pass_instr i = instr(HD_OP_BLEND, block, in[0], out, axes);
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .table = factor};
    i.n_in = in[2] ? 3 : 2;
    memcpy(i.in, in, i.n_in * sizeof *in);
    attrs.n_table = i.n_in;
    i.attrs = &attrs;
    x->api->append(x->p, SECTION, &i);
}

static hd_tensor persistent(const struct pass *x, uint32_t flat, const char *name)
{
    return x->api->flat_shard(x->p, flat, name, x->api->dtype(x->p, "master"), HD_LIFE_PERSISTENT, 0);
}

/* The outer gradient: its reduction is in flight while the flat before is updated. */
static void begin_flat(const struct pass *x, uint32_t flat, struct outer *o)
{
    struct hd_pass_flat f;
    x->api->flat_get(x->p, flat, &f);
    *o = (struct outer){.common = persistent(x, flat, "O")};
    x->api->flat_role(x->p, flat, HD_FLAT_COMMON, o->common);
    x->api->declare(x->p, o->common, HD_FACT_AVERAGE | HD_FACT_EQUAL, x->axes, SECTION);
    if (x->s->momentum > 0) {
        o->momentum = persistent(x, flat, "OM");
        x->api->keep(x->p, flat, o->momentum, "outer_momentum");
        x->api->declare(x->p, o->momentum, HD_FACT_ZERO_SUM | HD_FACT_EQUAL, x->axes, SECTION);
    }
    x->api->fetch(x->p, SECTION, flat, HD_PART_MASTER | HD_PART_LOW, HD_PART_MASTER, flat % 3);
    o->target = x->api->staged(x->p, SECTION, f.master);
    o->delta = x->api->flat_shard(x->p, flat, "D", x->api->dtype(x->p, "reduce"), HD_LIFE_TEMP, 0);
    blend(x, f.block, o->delta, (hd_tensor[]){o->common, o->target, 0}, (double[]){1, -1, 0}, x->axes);
    if (x->axes)
        add(x, HD_OP_ALL_REDUCE, f.block, o->delta, o->delta, x->axes);
}

static void step(const struct pass *x, uint32_t block, const struct outer *o)
{
    double lr = x->s->outer_lr, momentum = x->s->momentum;
    if (!o->momentum) {
        blend(x, block, o->common, (hd_tensor[]){o->common, o->delta, 0}, (double[]){1, -lr, 0}, 0);
        return;
    }
    blend(x, block, o->momentum, (hd_tensor[]){o->momentum, o->delta, 0}, (double[]){momentum, 1, 0}, 0);
    if (x->s->nesterov)
        blend(x, block, o->common, (hd_tensor[]){o->common, o->delta, o->momentum}, (double[]){1, -lr, -lr * momentum},
              0);
    else
        blend(x, block, o->common, (hd_tensor[]){o->common, o->momentum, 0}, (double[]){1, -lr, 0}, 0);
}

/* The outer step, and the copies of its result that compute reads. */
static void end_flat(const struct pass *x, uint32_t flat, const struct outer *o)
{
    struct hd_pass_flat f;
    x->api->flat_get(x->p, flat, &f);
    step(x, f.block, o);
    add(x, HD_OP_COPY, f.block, o->common, o->target, 0);
    if (f.low)
        add(x, HD_OP_COPY, f.block, o->target, x->api->staged(x->p, SECTION, f.low), 0);
    x->api->store(x->p, SECTION, flat, HD_PART_MASTER | HD_PART_LOW);
    if (f.whole && f.axes)
        add(x, HD_OP_ALL_GATHER, f.block, f.low ? f.low : f.master, f.whole, f.axes);
}

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *program,
                         struct hd_error *err)
{
    struct pass x = {host->pass, program, settings, 0, 0};
    struct outer outer[2];
    uint32_t n = x.api->n_flats(program);
    int32_t rc = read_axes(&x, err);
    if (rc)
        return rc;
    if (!n)
        return hd_fail(
            err, HD_E_INVALID,
            "localsgd has nothing to bring together: a strategy that holds and updates a replica's parameters "
            "must stand before it in `strategies`: [{use: zero}, {use: localsgd}]");
    x.api->section(program, SECTION, (uint32_t)x.s->every);
    x.api->declare(program, 0, HD_FACT_EQUAL, x.axes, SECTION);
    for (uint32_t flat = 1; flat <= n; flat++) {
        begin_flat(&x, flat, &outer[flat % 2]);
        if (flat > 1)
            end_flat(&x, flat - 1, &outer[(flat - 1) % 2]);
    }
    end_flat(&x, n, &outer[n % 2]);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {
    .struct_size = sizeof ops, .api = HD_STRATEGY_API, .layout = layout, .transform = transform};

HD_PLUGIN("strategy-localsgd", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "localsgd",
          .summary = "local SGD and DiLoCo: replicas take local steps and synchronise every so many",
          HD_OPTIONS(options, struct settings), .ops = &ops)
