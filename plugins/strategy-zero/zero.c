/* The plugin: options, and the order of the rewriting. */
#include "zero.h"

#include <stddef.h>

static const struct hd_option options[] = {
    {.name = "stage", .type = HD_OPT_ENUM, .value = "0", .flags = HD_OPTION_GLOBAL,
     .choices = "0|1|2|3|NO_SHARD|SHARD_GRAD_OP|FULL_SHARD|HYBRID_SHARD", .aliases = "sharding_strategy",
     .help = "what is sharded: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters",
     .offset = offsetof(struct zero_settings, stage)},
    {.name = "bucket", .type = HD_OPT_SIZE, .value = "25MB", .unit = "bytes", .min = 0, .max = 1e12, .flags = HD_OPTION_GLOBAL,
     .aliases = "reduce_bucket_size|bucket_cap_mb", .level = HD_LEVEL_TUNER,
     .help = "stages 0-2: blocks are put together until their gradients reach this size; 0: a block each",
     .offset = offsetof(struct zero_settings, bucket)},
    {.name = "prefetch", .type = HD_OPT_INT, .value = "1", .unit = "blocks", .min = 0, .max = 64, .flags = HD_OPTION_GLOBAL,
     .aliases = "forward_prefetch", .level = HD_LEVEL_TUNER,
     .help = "stage 3: how many blocks ahead parameters are gathered", .offset = offsetof(struct zero_settings, prefetch)},
    {.name = "reshard_after_forward", .type = HD_OPT_BOOL, .value = "true", .flags = HD_OPTION_GLOBAL,
     .help = "stage 3: release a block's parameters after its forward pass and gather them again for the backward pass",
     .offset = offsetof(struct zero_settings, reshard_after_forward)},
};

static uint32_t stage_of(struct zero_settings *s)
{
    switch (s->stage) {
    case ZERO_NO_SHARD:
        return 0;
    case ZERO_SHARD_GRAD_OP: /* as FSDP has it: stage 3 that keeps the parameters until after the backward pass */
        s->reshard_after_forward = 0;
        return 3;
    case ZERO_FULL_SHARD:
    case ZERO_HYBRID:
        return 3;
    default:
        return (uint32_t)s->stage;
    }
}

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

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *program, struct hd_error *err)
{
    struct zero z = {.host = host, .api = host->pass, .p = program};
    uint32_t last = 0, ok;
    z.settings = *(const struct zero_settings *)settings;
    z.stage = stage_of(&z.settings);
    ok = (uint32_t)zero_plan(&z);
    for (uint32_t s = 0; ok && s < z.api->n_sections(program); s++)
        if (accumulates(&z, s))
            last = s;
    for (uint32_t s = 0; ok && s < z.api->n_sections(program); s++) {
        ok = (uint32_t)(zero_gradients(&z, s, s == last) && zero_params(&z, s));
    }
    if (ok)
        zero_update(&z);
    zero_free(&z);
    return ok ? HD_OK : hd_fail(err, HD_E_NOMEM, "strategy-zero: out of memory");
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .transform = transform};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_STRATEGY,
    .name = "zero",
    .summary = "data parallel: DDP and ZeRO stages 0 to 3 on flat buffers",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .option_size = sizeof *options,
    .settings_size = sizeof(struct zero_settings),
    .ops = &ops,
};

HD_PLUGIN_ONE("strategy-zero", "0.1.0", "Apache-2.0", component)
