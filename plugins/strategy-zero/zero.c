/* The plugin: the order of the rewriting. */
#include "internal.h"

#define NONE UINT32_MAX /* no section */

static int accumulates(const struct zero *z, uint32_t section)
{
    for (uint32_t k = 0; k < z->api->n_instr(z->p, section); k++) {
        struct hd_pass_instr i;
        z->api->instr(z->p, section, k, &i);
        if (i.op == HD_OP_ACCUM && z->api->param_of(z->p, i.out[0]))
            return 1;
    }
    return 0;
}

#define MANY_MICRO_BATCHES 4

/* Without a pipeline a block is gathered twice for each micro-batch as well, but there one can do with fewer of
 * them. */
static void warn_of_gathers(const struct zero *z)
{
    double item = (double)hd_dtype_size(z->api->dtype(z->p, "compute")), all = (double)z->gathered * item, once = 0;
    uint32_t micros = z->api->micro_batches(z->p);
    for (uint32_t f = 0; f < z->n_flats; f++)
        once += (double)(z->flats[f].count * (z->flats[f].ways - 1) / z->flats[f].ways) * item;
    if (z->stage == 3 && z->gathered && z->api->axis_size(z->p, HD_AXIS_PP) > 1 && z->api->stage(z->p) == 0 &&
        micros >= MANY_MICRO_BATCHES)
        z->host->log(HD_LOG_WARN, "strategy-zero",
                     "stage 3 under a pipeline gathers a stage's parameters for each of %u micro-batches: "
                     "a rank of pipeline stage 0 receives %.4g MB a step, with stage 1 or 2 it would be %.4g MB",
                     micros, all / 1e6, once / 1e6);
}

/* `heddle check --numerics` takes the largest rank, with which products lose nothing. */
static void warn_of_factors(const struct zero *z)
{
    if (z->matrices && z->factors >= z->matrices && z->rank < 65536 && z->api->stage(z->p) == 0)
        z->host->log(HD_LOG_WARN, "strategy-zero",
                     "compress.rank %u: the factors that travel have %.4g million elements, no fewer than the %.4g "
                     "million of the matrices they replace: lower strategies.zero.compress.rank, or leave compress out",
                     z->rank, (double)z->factors / 1e6, (double)z->matrices / 1e6);
}

static void warn_of_whole(const struct zero *z)
{
    uint32_t sharded = z->stage < 3 || !z->settings.persist_below;
    for (uint32_t f = 0; f < z->n_flats; f++)
        sharded |= z->flats[f].stage == 3;
    if (!sharded && z->api->stage(z->p) == 0)
        z->host->log(HD_LOG_WARN, "strategy-zero",
                     "persist_below %lld: every parameter has fewer elements and stays whole, as at stage 2: lower "
                     "strategies.zero.persist_below",
                     (long long)z->settings.persist_below);
    int64_t bytes = 0, blocks = 0;
    for (uint32_t n = 0; n < z->n_params; n++) {
        bytes += z->params[n].count * (int64_t)hd_dtype_size(z->api->dtype(z->p, "compute"));
        blocks = z->params[n].block > blocks ? z->params[n].block : blocks;
    }
    if (z->stage == 3 && z->settings.reshard_after_forward && blocks > 1 && z->settings.gather_bucket >= bytes &&
        z->api->stage(z->p) == 0)
        z->host->log(
            HD_LOG_WARN, "strategy-zero",
            "gather_bucket %.4g MB holds all %.4g MB of parameters: they are gathered at once, which takes more "
            "memory than stage 2 and overlaps nothing: lower strategies.zero.gather_bucket, or leave it out",
            (double)z->settings.gather_bucket / 1e6, (double)bytes / 1e6);
}

/* Parameters are gathered where a step begins, in a section that runs once in it. Returns its index, or NONE. */
static uint32_t find_first(const struct zero *z)
{
    uint32_t first = 0, gathers = 0;
    for (uint32_t f = 0; f < z->n_flats; f++)
        gathers += (uint32_t)zero_gathers(&z->flats[f]);
    if (!gathers || !z->settings.gather_in_forward || !z->settings.overlap)
        return NONE;
    while (first < z->api->n_sections(z->p) && !accumulates(z, first))
        first++;
    z->api->first_round(z->p, first);
    return first;
}

/* The section in which gradients are reduced. Where some steps begin uncompressed there are two: `warm`, then
 * `last`. */
static void find_last(struct zero *z, uint32_t *warm, uint32_t *last)
{
    int smaller = (z->bits || z->rank) && zero_ways(z, z->shard_axes | z->outer_axes) > 1;
    *last = 0;
    for (uint32_t s = 0; s < z->api->n_sections(z->p); s++)
        if (accumulates(z, s))
            *last = s;
    *warm = NONE;
    if (!smaller || !z->settings.compress_warmup)
        return;
    z->api->split_section(z->p, *last, z->settings.compress_warmup);
    *warm = (*last)++;
}

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *program,
                         struct hd_error *err)
{
    struct zero z = {.host = host, .api = host->pass, .p = program};
    uint32_t first = NONE, last, warm, ok;
    z.settings = *(const struct zero_settings *)settings;
    if (zero_configure(&z, err))
        return err->code;
    ok = (uint32_t)zero_plan(&z);
    if (ok)
        first = find_first(&z);
    find_last(&z, &warm, &last);
    for (uint32_t s = 0; ok && s < z.api->n_sections(program); s++) {
        z.warm = s == warm;
        z.begins = s == first || (s == last && first == warm && first != NONE);
        ok = (uint32_t)(zero_gradients(&z, s, s == last || s == warm) && zero_params(&z, s));
        if (ok && s == last)
            warn_of_gathers(&z);
    }
    if (ok)
        zero_update(&z);
    warn_of_factors(&z);
    warn_of_whole(&z);
    zero_free(&z);
    return ok ? HD_OK : hd_fail(err, HD_E_NOMEM, "strategy-zero: out of memory");
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .transform = transform};

static const struct hd_alias aliases[] = {
    {.name = "ddp", .preset = "{stage: 0}", .summary = "whole parameters on every rank, gradients summed"},
    {.name = "fsdp", .preset = "{stage: FULL_SHARD}", .summary = "parameters, gradients and optimizer state sharded"},
};

HD_PLUGIN("strategy-zero", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "zero",
          .summary = "data parallel: DDP and ZeRO stages 0 to 3 on flat buffers",
          HD_OPTIONS(zero_options, struct zero_settings), .ops = &ops, HD_ALIASES(aliases))
