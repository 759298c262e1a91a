/* The options, with the names that FSDP and DeepSpeed have for them, and what is refused. */
#include <stddef.h>
#include <string.h>

#include "internal.h"

#define AT(field) offsetof(struct zero_settings, field)
#define BIT(axis) HD_AXIS_BIT(axis)
#define GLOBAL .flags = HD_OPTION_GLOBAL
/* The value there is, and why: struct hd_option, HD_OPTION_FIXED. */
#define ALWAYS(name_, type_, value_, names, why)                                               \
    {                                                                                          \
        .name = name_, .type = HD_OPT_##type_, .value = value_, .aliases = names, .help = why, \
        .flags = HD_OPTION_FIXED, .offset = AT(always)                                         \
    }
#define TUNER .flags = HD_OPTION_GLOBAL, .level = HD_LEVEL_TUNER

/* Sizes are bytes and need a unit (25MB). DeepSpeed counts elements: so do the options that count parameters here. */
const struct hd_option zero_options[ZERO_OPTIONS] = {
    {.name = "stage",
     .needs = "data_ranks!=1",
     .type = HD_OPT_ENUM,
     .value = "0",
     GLOBAL,
     .offset = AT(stage),
     .choices = "0|1|2|3|NO_SHARD|SHARD_GRAD_OP|FULL_SHARD|HYBRID_SHARD",
     .aliases = "sharding_strategy|fsdp_sharding_strategy|zero_stage",
     .words = "sharding_strategy:1=FULL_SHARD|sharding_strategy:2=SHARD_GRAD_OP|sharding_strategy:3=NO_SHARD|"
              "sharding_strategy:4=HYBRID_SHARD|fsdp_sharding_strategy:1=FULL_SHARD|"
              "fsdp_sharding_strategy:2=SHARD_GRAD_OP|fsdp_sharding_strategy:3=NO_SHARD|"
              "fsdp_sharding_strategy:4=HYBRID_SHARD",
     .help = "what is sharded: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters; FSDP's names: NO_SHARD "
             "= 0, "
             "FULL_SHARD = 3, SHARD_GRAD_OP = 3 with reshard_after_forward: false, HYBRID_SHARD = 3 on mesh.dp: "
             "{replicate, shard}"},
    {.name = "axes",
     .needs = "stage!=0|NO_SHARD&data_ranks!=1",
     .type = HD_OPT_LIST,
     .value = "[dp_shard, cp, ep]",
     GLOBAL,
     .offset = AT(axes),
     .help = "mesh axes to shard over, where a parameter is replicated on them; of dp_replicate, dp_shard, cp, ep"},
    {.name = "bucket",
     .needs = "stage=0|1|2|NO_SHARD",
     .type = HD_OPT_SIZE,
     .value = "25MB",
     .unit = "bytes",
     .min = 0,
     .max = 1e12,
     TUNER,
     .offset = AT(bucket),
     .aliases = "reduce_bucket_size|bucket_cap_mb",
     .words = "auto=25MB|bucket_cap_mb:25=25MB",
     .help = "stages 0-2: blocks are put together until their gradients reach this size: one reduction, and after the "
             "update "
             "one gather, for them all; the first and the last ones are smaller; 0: a block each. In bytes: write 25MB "
             "(DeepSpeed counts elements, DDP megabytes)"},
    {.name = "gather_bucket",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP",
     .type = HD_OPT_SIZE,
     .value = "0",
     .unit = "bytes",
     .min = 0,
     .max = 1e12,
     TUNER,
     .offset = AT(gather_bucket),
     .aliases = "allgather_bucket_size",
     .words = "auto=0",
     .help = "stage 3: blocks are put together until their parameters reach this size: one gather and one reduction "
             "for them "
             "all; 0: a block each. In bytes"},
    {.name = "prefetch",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP&overlap=true&data_ranks!=1",
     .type = HD_OPT_INT,
     .value = "1",
     .unit = "blocks",
     .min = 0,
     .max = 64,
     TUNER,
     .offset = AT(prefetch),
     .aliases = "forward_prefetch|fsdp_forward_prefetch",
     .words = "true=1|false=0",
     .help = "stage 3, forward pass: how many blocks ahead parameters are gathered"},
    {.name = "prefetch_backward",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD&reshard_after_forward=auto|true&overlap=true&data_ranks!=1",
     .type = HD_OPT_INT,
     .value = "1",
     .unit = "blocks",
     .min = 0,
     .max = 64,
     TUNER,
     .offset = AT(prefetch_backward),
     .aliases = "backward_prefetch|fsdp_backward_prefetch",
     .words = "BACKWARD_PRE=1|BACKWARD_POST=0|NO_PREFETCH=0",
     .help = "stage 3: the same for the backward pass"},
    {.name = "prefetch_size",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP&overlap=true&data_ranks!=1",
     .type = HD_OPT_INT,
     .value = "0",
     .unit = "parameters",
     .min = 0,
     .max = 1e15,
     TUNER,
     .offset = AT(prefetch_size),
     .aliases = "stage3_prefetch_bucket_size",
     .words = "auto=0",
     .help = "stage 3: further blocks are gathered ahead while together they have no more parameters than this"},
    {.name = "max_inflight",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP&overlap=true&data_ranks!=1",
     .type = HD_OPT_INT,
     .value = "0",
     .unit = "gathers",
     .min = 0,
     .max = 1024,
     TUNER,
     .offset = AT(max_inflight),
     .aliases = "limit_all_gathers",
     .words = "true=2|false=0",
     .help =
         "stage 3: how many gathers may be under way ahead of their use, however far prefetching reaches; 0: no limit"},
    {.name = "persist_below",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP&data_ranks!=1",
     .type = HD_OPT_INT,
     .value = "0",
     .unit = "parameters",
     .min = 0,
     .max = 1e15,
     TUNER,
     .offset = AT(persist_below),
     .aliases = "stage3_param_persistence_threshold",
     .words = "auto=0",
     .help = "stage 3: a parameter with fewer elements than this (norms, biases) stays whole, as at stage 2"},
    {.name = "max_live",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP&data_ranks!=1",
     .type = HD_OPT_INT,
     .value = "0",
     .unit = "parameters",
     .min = 0,
     .max = 1e15,
     TUNER,
     .offset = AT(max_live),
     .aliases = "stage3_max_live_parameters",
     .help = "stage 3: gather ahead, or keep after the forward pass, only while no more parameters than this are "
             "whole; 0: no "
             "limit. What a block needs at once is gathered in any case"},
    {.name = "reshard_after_forward",
     .needs = "stage=3|FULL_SHARD|HYBRID_SHARD|SHARD_GRAD_OP&data_ranks!=1",
     .type = HD_OPT_ENUM,
     .value = "auto",
     .choices = "false|true|auto",
     GLOBAL,
     .offset = AT(reshard_after_forward),
     .aliases = "fsdp_reshard_after_forward",
     .words = "always=true|never=false|default=auto",
     .help = "stage 3: release a block's parameters after its forward pass and gather them again for the backward "
             "pass; auto: true, but for SHARD_GRAD_OP"},
    {.name = "overlap",
     .needs = "data_ranks!=1",
     .type = HD_OPT_BOOL,
     .value = "true",
     TUNER,
     .offset = AT(overlap),
     .aliases = "overlap_comm",
     .help = "false: every collective of this strategy is waited for where it starts, and nothing is gathered or "
             "fetched ahead"},
    {.name = "gather_in_forward",
     .needs = "stage=1|2&data_ranks!=1",
     .type = HD_OPT_BOOL,
     .value = "true",
     TUNER,
     .offset = AT(gather_in_forward),
     .aliases = "overlap_param_gather",
     .help = "stages 1 and 2: updated parameters are gathered when the next step begins, behind the forward pass of "
             "the blocks before "
             "them; only those that it needs first are gathered behind the update of the others. false: all behind the "
             "update"},
    {.name = "offload.optimizer",
     .type = HD_OPT_ENUM,
     .value = "none",
     .choices = "none|host|file",
     GLOBAL,
     .offset = AT(offload_optimizer),
     .aliases = "offload_optimizer|offload_optimizer.device",
     .words = "cpu=host|nvme=file",
     .help = "where the optimizer's states, and the master weights where they are a copy of their own, lie between "
             "updates: in "
             "host memory, or in a file; the update of one flat buffer overlaps the copies of its neighbours"},
    {.name = "offload.params",
     .type = HD_OPT_ENUM,
     .value = "none",
     .choices = "none|host",
     GLOBAL,
     .offset = AT(offload_params),
     .aliases = "offload_param|offload_param.device",
     .words = "cpu=host|nvme=?parameters lie in memory: say host, or leave them on the device",
     .help = "stage 3: where parameter shards lie while they are not gathered"},
    {.name = "offload.path",
     .type = HD_OPT_STRING,
     .offset = AT(path),
     .aliases = "nvme_path|offload_optimizer.nvme_path",
     .help = "offload.optimizer: file: the folder, on each machine, best on NVMe, in which every rank makes a file "
             "without a name"},
    {.name = "compress.kind",
     .needs = "data_ranks!=1",
     .type = HD_OPT_ENUM,
     .value = "none",
     .choices = "none|fp16|bf16|int8|int4|powersgd",
     GLOBAL,
     .offset = AT(compress_kind),
     .help = "how gradients travel: fp16 and bf16 at all stages; int8 and int4 in blocks with a scale each, and "
             "powersgd, matrices "
             "as products of two thin ones, with error feedback, at stages 0 and 1"},
    {.name = "compress.block",
     .needs = "compress.kind=int8|int4",
     .type = HD_OPT_INT,
     .value = "256",
     .unit = "elements",
     .min = 16,
     .max = 65536,
     TUNER,
     .offset = AT(compress_block),
     .help = "int8, int4: elements that share a scale; a multiple of 16"},
    {.name = "compress.rank",
     .needs = "compress.kind=powersgd",
     .type = HD_OPT_INT,
     .value = "4",
     .unit = "columns",
     .min = 1,
     .max = 65536,
     TUNER,
     .offset = AT(compress_rank),
     .aliases = "matrix_approximation_rank",
     .help =
         "powersgd: columns of the two matrices that a gradient is the product of; where a matrix has fewer rows or "
         "columns, these"},
    {.name = "compress.warmup",
     .needs = "compress.kind=int8|int4|powersgd",
     .type = HD_OPT_INT,
     .value = "0",
     .unit = "steps",
     .min = 0,
     .max = 1e12,
     TUNER,
     .offset = AT(compress_warmup),
     .aliases = "start_powerSGD_iter",
     .help = "int8, int4, powersgd: the first steps of a run, in which gradients travel whole"},

    /* Keys of DeepSpeed, FSDP and DDP for what heddle has no choice of. */
    ALWAYS("contiguous_gradients", BOOL, "true", "gradient_as_bucket_view", "gradients lie in flat buffers"),
    ALWAYS("reduce_scatter", BOOL, "true", NULL, "gradients of sharded parameters travel by reduce_scatter"),
    ALWAYS("allgather_partitions", BOOL, "true", NULL, "updated parameters travel by all_gather"),
    ALWAYS("round_robin_gradients", BOOL, "false", NULL, "every rank owns one run of each flat buffer"),
    ALWAYS("load_from_fp32_weights", BOOL, "true", NULL, "checkpoints have the master weights"),
    ALWAYS("ignore_unused_parameters", BOOL, "true", NULL, "models have no unused parameters"),
    ALWAYS("find_unused_parameters", BOOL, "false", NULL, "models have no unused parameters"),
    ALWAYS("static_graph", BOOL, "true", NULL, "a job is compiled into one static program"),
    ALWAYS("sub_group_size", INT, "1000000000", NULL, "the update takes one flat buffer after another"),
    ALWAYS("stage3_max_reuse_distance", INT, "1000000000", NULL,
           "every reuse is known beforehand; max_live bounds what stays whole"),
    ALWAYS("stage3_gather_16bit_weights_on_model_save", BOOL, "true", "stage3_gather_fp16_weights_on_model_save",
           "checkpoints are whole on any mesh, and `heddle ckpt export` makes a folder of them"),
    ALWAYS("zero_hpz_partition_size", INT, "1", NULL,
           "there is no second shard; mesh.dp: {replicate, shard} shards "
           "inside groups of ranks"),
    ALWAYS("zero_quantized_weights", BOOL, "false", NULL, "parameters are gathered as precision.compute says"),
    ALWAYS("zero_quantized_gradients", BOOL, "false", NULL, "compress.kind says how gradients travel"),
    ALWAYS("cpu_offload", BOOL, "false", "fsdp_offload_params",
           "offload: {optimizer: host, params: host} says what lies in host memory"),
    ALWAYS("offload_optimizer.pin_memory", BOOL, "true", "offload_param.pin_memory",
           "a device with memory of its own copies from pinned memory"),
    ALWAYS("offload_optimizer.pipeline_read", BOOL, "true", "offload_optimizer.pipeline_write",
           "copies of a flat buffer overlap the update of its neighbours"),
    ALWAYS("offload_optimizer.ratio", FLOAT, "1", NULL, "all of the optimizer's state lies there"),
    ALWAYS("offload_optimizer.fast_init", BOOL, "false", NULL, "memory is planned before the start"),
    ALWAYS("use_orig_params", BOOL, "true", "fsdp_use_orig_params", "parameters stay tensors of their own"),
    ALWAYS("sync_module_states", BOOL, "true", "fsdp_sync_module_states", "all ranks begin with the same weights"),
    ALWAYS("cpu_ram_efficient_loading", BOOL, "true", "fsdp_cpu_ram_efficient_loading",
           "a rank reads the part of the weights that it keeps"),
    ALWAYS("auto_wrap_policy", STRING, "TRANSFORMER_BASED_WRAP", "fsdp_auto_wrap_policy",
           "the unit is a block of the model; gather_bucket joins blocks"),
    ALWAYS("transformer_layer_cls_to_wrap", STRING, "auto", "fsdp_transformer_layer_cls_to_wrap",
           "the model says what its blocks are"),
    ALWAYS("state_dict_type", STRING, "SHARDED_STATE_DICT", "fsdp_state_dict_type",
           "ranks write their shards; `heddle ckpt export` makes one folder of them"),
    ALWAYS("activation_checkpointing", BOOL, "false", "fsdp_activation_checkpointing",
           "recompute: full is a section of the job"),
    ALWAYS("mixed_precision", STRING, "no", NULL, "precision.compute and precision.reduce are keys of the job"),
};

static const uint32_t data_axes = BIT(HD_AXIS_DP_REPLICATE) | BIT(HD_AXIS_DP_SHARD) | BIT(HD_AXIS_CP) | BIT(HD_AXIS_EP);

static int32_t read_axes(struct zero *z, struct hd_error *err)
{
    static const char *const name[HD_AXIS_COUNT] = {
#define AXIS_NAME(constant, value, text) [value] = text,
        HD_AXES(AXIS_NAME)
#undef AXIS_NAME
    };
    const struct hd_list *list = &z->settings.axes;
    for (uint64_t n = 0; n < list->count; n++) {
        uint32_t a = 0;
        while (a < HD_AXIS_COUNT && strcmp(name[a], list->text[n]) != 0)
            a++;
        if (a == HD_AXIS_COUNT || !(data_axes & BIT(a)))
            return hd_fail(err, HD_E_INVALID,
                           "strategies.zero.axes: '%.40s' is no axis that parameters are replicated on by data "
                           "parallelism; choose of dp_replicate, dp_shard, cp, ep",
                           list->text[n]);
        z->shard_axes |= BIT(a);
    }
    z->outer_axes = data_axes & ~z->shard_axes;
    return HD_OK;
}

enum { RESHARD_AUTO = 2 }; /* index into the choices of reshard_after_forward: false, true, auto */

static uint32_t stage_of(struct zero_settings *s)
{
    switch (s->stage) {
    case ZERO_NO_SHARD:
        return 0;
    case ZERO_SHARD_GRAD_OP: /* as FSDP has it: stage 3 that keeps the parameters until after the backward pass */
        if (s->reshard_after_forward == RESHARD_AUTO)
            s->reshard_after_forward = 0;
        return 3;
    case ZERO_FULL_SHARD:
    case ZERO_HYBRID:
        return 3;
    default:
        return (uint32_t)s->stage;
    }
}

/* On one rank all is allowed: the same job is compared with itself there. */
static int32_t check_mesh(const struct zero *z, struct hd_error *err)
{
    int32_t replicas = z->api->axis_size(z->p, HD_AXIS_DP_REPLICATE),
            shards = z->api->axis_size(z->p, HD_AXIS_DP_SHARD);
    int64_t data = zero_ways(z, data_axes);
    if (z->settings.stage == ZERO_SHARD_GRAD_OP && z->settings.reshard_after_forward)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.reshard_after_forward is true, and stage SHARD_GRAD_OP keeps parameters whole "
                       "until the backward pass: say stage: FULL_SHARD, or leave reshard_after_forward out");
    if (z->settings.stage == ZERO_HYBRID && z->api->live_axes(z->p) && (replicas == 1 || shards == 1))
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.stage HYBRID_SHARD shards inside a group of ranks and replicates across "
                       "groups, but mesh.dp is {replicate: %d, shard: %d}: make both larger than 1, or say FULL_SHARD",
                       replicas, shards);
    if (z->settings.stage == ZERO_FULL_SHARD && replicas > 1 && !(z->shard_axes & BIT(HD_AXIS_DP_REPLICATE)))
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.stage FULL_SHARD shards over all data ranks, but mesh.dp replicates %d "
                       "times: say HYBRID_SHARD (or 3), or mesh.dp: %d",
                       replicas, replicas * shards);
    if (z->stage && zero_ways(z, z->shard_axes) > 1 && zero_ways(z, z->shard_axes & z->api->live_axes(z->p)) == 1)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.zero.stage %u shards parameters over axes along which another strategy of the job makes every "
            "rank a local-SGD replica with its own: use stage: 0, or shard inside each replica: mesh.dp: {replicate, "
            "shard} with local SGD over dp_replicate alone",
            z->stage);
    if (z->settings.compress_kind && data > 1 && zero_ways(z, data_axes & z->api->live_axes(z->p)) == 1)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.zero.compress: no gradient is reduced, since another strategy of the job makes all data "
            "ranks local-SGD replicas: leave it out");
    if (z->stage && data > 1 && zero_ways(z, z->shard_axes) == 1)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.stage %u would shard nothing: none of its axes is larger than 1, and the "
                       "%lld data ranks lie on others; let mesh.dp shard, name another axis in strategies.zero.axes, "
                       "or use stage: 0",
                       z->stage, (long long)data);
    return HD_OK;
}

/* A size without a unit is bytes; 25 is nobody's bucket. */
static int32_t check_sizes(const struct zero *z, struct hd_error *err)
{
    const struct {
        const char *name;
        int64_t bytes;
    } sizes[] = {{"bucket", z->settings.bucket}, {"gather_bucket", z->settings.gather_bucket}};
    for (uint32_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        if (sizes[n].bytes > 0 && sizes[n].bytes < 1000)
            return hd_fail(err, HD_E_INVALID,
                           "strategies.zero.%s is %lld bytes: a size without a unit is bytes; write %lldMB for "
                           "megabytes, or 0 for a block each",
                           sizes[n].name, (long long)sizes[n].bytes, (long long)sizes[n].bytes);
    return HD_OK;
}

static int32_t check_offload(const struct zero *z, struct hd_error *err)
{
    const struct zero_settings *s = &z->settings;
    if (s->offload_params && z->stage != 3)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.offload.params: host needs stage: 3; at stage %u every rank computes with "
                       "its whole parameters all the time",
                       z->stage);
    if (s->offload_optimizer == HD_MEMORY_FILE && !s->path)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.offload.optimizer: file needs strategies.zero.offload.path, a folder");
    if (s->path && s->offload_optimizer != HD_MEMORY_FILE)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.offload.path is used by offload.optimizer: file alone; leave it out");
    return HD_OK;
}

int32_t zero_configure(struct zero *z, struct hd_error *err)
{
    int32_t rc = read_axes(z, err);
    z->stage = stage_of(&z->settings);
    if (!rc)
        rc = check_mesh(z, err);
    if (!rc)
        rc = check_offload(z, err);
    if (!rc)
        rc = zero_configure_compression(z, err);
    return rc ? rc : check_sizes(z, err);
}
