/* strategy-dp: data parallel. Every rank has all parameters, computes gradients of its part of the batch, and they are
 * added up over the ranks, once a step. docs/data-parallel.md goes through it. */
#include "heddle/host.h"
#include "heddle/strategy.h"

/* out <- in, in a section of the step; either may be 0. */
static void add(struct hd_program *p, const struct hd_pass_api *api, const char *section, uint32_t op, hd_tensor in,
                hd_tensor out, const struct hd_attrs *attrs)
{
    struct hd_pass_instr i = {.struct_size = sizeof i, .op = op, .phase = HD_PHASE_O, .redop = HD_SUM, .attrs = attrs};
    i.n_in = in != 0, i.in[0] = in;
    i.n_out = out != 0, i.out[0] = out;
    i.axes = op == HD_OP_ALL_REDUCE ? api->live_axes(p) : 0;
    api->append(p, section, &i);
}

/* Instructions read and add to windows of the flat instead of tensors of their own. */
static void use_flat(struct hd_program *p, const struct hd_pass_api *api, uint32_t flat, hd_tensor whole,
                     hd_tensor grad)
{
    struct hd_pass_instr i;
    uint32_t param;
    for (uint32_t s = 0; s < api->n_sections(p); s++)
        for (uint32_t k = 0; k < api->n_instr(p, s); k++) {
            api->instr(p, s, k, &i);
            for (uint32_t n = 0; n < i.n_in; n++)
                if ((param = api->param_of(p, i.in[n])))
                    api->replace_in(p, s, k, n, api->flat_view(p, flat, whole, param - 1));
            if (i.op == HD_OP_ACCUM && (param = api->param_of(p, i.out[0])))
                api->replace_out(p, s, k, 0, api->flat_view(p, flat, grad, param - 1));
        }
}

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    const struct hd_pass_api *api = host->pass;
    uint32_t n = api->n_params(p), dp = HD_AXIS_BIT(HD_AXIS_DP_REPLICATE) | HD_AXIS_BIT(HD_AXIS_DP_SHARD);
    uint32_t compute = api->dtype(p, "compute"), *all = host->alloc(n * sizeof *all);
    struct hd_range *ranges = host->alloc(n * sizeof *ranges); /* of parameters in the flat: between them is padding */
    (void)settings;                                            /* it has no options */
    if (!all || !ranges || api->live_axes(p) & ~dp || api->axis_size(p, HD_AXIS_PP) > 1)
        return host->free(all), host->free(ranges),
               hd_fail(err, HD_E_UNSUPPORTED, "strategies.dp: it is for mesh.dp alone: use 3d and zero");
    for (uint32_t k = 0; k < n; k++)
        all[k] = k;

    uint32_t flat = api->flat(p, "0", 0, 0, all, n, 0);
    hd_tensor master = api->flat_whole(p, flat, "P", api->dtype(p, "master"), HD_LIFE_PERSISTENT), low = 0;
    hd_tensor grad = api->flat_whole(p, flat, "G", api->dtype(p, "grad"), HD_LIFE_STEP);
    if (compute != api->dtype(p, "master")) /* compute reads a copy in its own dtype, which the update writes as well */
        low = api->flat_whole(p, flat, "Q", compute, HD_LIFE_PERSISTENT);
    const hd_tensor roles[] = {[HD_FLAT_WHOLE] = low ? low : master, master, grad, [HD_FLAT_SHARD] = grad, low};
    for (uint32_t role = HD_FLAT_WHOLE; role <= HD_FLAT_LOW; role++)
        api->flat_role(p, flat, role, roles[role]); /* a shard that is not cut is all of it */

    struct hd_pass_flat f;
    struct hd_pass_param param;
    api->flat_get(p, flat, &f);
    for (uint32_t k = 0; k < n; k++) {
        api->param(p, f.params[k], &param);
        ranges[k] = (struct hd_range){f.offset[k], param.count, 1}; /* each counts once in the norm */
    }
    const struct hd_attrs counted = {.struct_size = sizeof counted, .ranges = ranges, .n_ranges = n};
    use_flat(p, api, flat, roles[HD_FLAT_WHOLE], grad);
    add(p, api, "begin", HD_OP_FILL0, 0, grad, NULL);
    if (api->live_axes(p))
        add(p, api, "update", HD_OP_ALL_REDUCE, grad, grad, NULL);
    add(p, api, "update", HD_OP_SUMSQ, grad, api->norm2(p), &counted);
    api->update(p, flat, low);
    if (low) /* a checkpoint was loaded into the master weights */
        add(p, api, "restore", HD_OP_COPY, master, low, NULL);
    host->free(all);
    host->free(ranges);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .transform = transform};

HD_PLUGIN("strategy-dp", "1.0.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "dp",
          .summary = "data parallel: all parameters on every rank, gradients added up", .ops = &ops)
