/* heddle import: the job that another trainer's configuration describes: DeepSpeed's JSON, accelerate's YAML. Each key
 * of theirs becomes a key of the job, or a comment that says why not; one that changes what is trained, and that heddle
 * does not have, is refused. */
#include <stdlib.h>

#include "cli/job.h"
#include "core/base/file.h"
#include "core/base/option.h"
#include "core/base/yaml_tree.h"

enum { JOB, LAUNCH, MESH, STRATEGY, OPTIMIZER, SCHEDULE, DATA, PRECISION, METRICS, SECTIONS };
static const char *const names[SECTIONS] = {"job",      "launch", "mesh",      "strategies", "optimizer",
                                            "schedule", "data",   "precision", "metrics"};

struct import {
    struct hd__arena arena;
    struct hd__tree_node *root;
    struct hd__options zero;            /* strategy-zero knows many of DeepSpeed's keys by their names */
    struct hd__text section[SECTIONS];  /* "key: value, key: value" */
    struct hd__text comments, refusals; /* lines */
    int recompute, known, unknown;      /* keys of the root; unknown: no known one is spelled alike */
    int64_t ranks;                      /* data ranks, of --ranks; 0: not said */
};

enum { VALUE = 1, COMMENT, ONLY, OFF, HERE, PART }; /* HERE: a function below reads it; PART: the same, of a mapping */

struct rule {
    const char *key;
    int how, section;
    const char *words; /* VALUE: the job's key; ONLY: the one value that may stand there; else what to say */
    const char *why;   /* of ONLY */
};

__attribute__((format(printf, 4, 5))) static void say(struct hd__text *to, const struct hd__tree_node *node,
                                                      const char *path, const char *format, ...)
{
    char words[512];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    hd__text_add(to, "%s: %s: %s\n", node->origin, path, words);
}

static void put(struct import *m, int section, const char *key, const char *value)
{
    hd__text_add(&m->section[section], "%s%s: %s", m->section[section].length ? ", " : "", key, value);
}

/* As YAML. Python writes a whole number of JSON as 1000000000.0, which is none of the job's. */
static const char *text_of(struct import *m, const struct hd__tree_node *node)
{
    struct hd__text text = {0};
    hd__tree_text(node, &text);
    size_t n = strspn(text.at, "-0123456789");
    if (n && !strcmp(text.at + n, ".0"))
        text.at[n] = 0;
    const char *copy = hd__arena_strdup(&m->arena, text.at);
    hd__text_free(&text);
    return copy;
}

/* The text of a scalar below `map`; "" where there is none, it is null, or the Hugging Face Trainer's to fill in. */
static const char *word(const struct hd__tree_node *map, const char *key)
{
    const struct hd__tree_node *node = hd__tree_get(map, key);
    int none = !node || node->kind != HD__SCALAR || hd__tree_is_null(node) || !strcmp(node->text, "auto");
    return none ? "" : node->text;
}

static int has(const struct hd__tree_node *map, const char *key)
{
    const struct hd__tree_node *node = hd__tree_get(map, key);
    return node && !hd__tree_is_null(node);
}

static int is_true(const char *text)
{
    return !strcmp(text, "true") || !strcmp(text, "True") || !strcmp(text, "yes") || !strcmp(text, "1");
}

/* A feature that is off: false, none, or {enabled: false, ...}. */
static int is_off(const struct hd__tree_node *node)
{
    const struct hd__tree_node *enabled = hd__tree_get(node, "enabled");
    const char *text = node->kind == HD__SCALAR ? node->text : enabled ? enabled->text : "true";
    return !strcmp(text, "false") || !strcmp(text, "False") || !strcmp(text, "no") || !strcmp(text, "none") ||
           !strcmp(text, "0");
}

static int is_alike(const char *text, const char *wanted)
{
    char *a, *b;
    double x = strtod(text, &a), y = strtod(wanted, &b);
    int numbers = *text && !*a && !*b;
    return numbers ? !(x < y || x > y) : !strcasecmp(text, wanted);
}

/* auto: a value that the Trainer of Hugging Face fills in. The job has it too, which is refused until it is said. */
static void follow_auto(struct import *m, const struct rule *rule, const struct hd__tree_node *node, const char *path)
{
    if (rule->how == ONLY)
        say(&m->comments, node, path, "auto: there is only %s here: %s", rule->words, rule->why);
    else if (rule->how != VALUE && rule->how != HERE)
        say(&m->comments, node, path, "%s", rule->words);
    else
        say(&m->comments, node, path, "auto: say %s.%s", names[rule->section], rule->words);
    if (rule->how == VALUE)
        put(m, rule->section, rule->words, "auto");
}

static void follow(struct import *m, const struct rule *rule, const struct hd__tree_node *node, const char *path)
{
    const char *text = text_of(m, node);
    if (rule->how == PART) {
        if (node->kind != HD__MAP && !is_off(node))
            say(&m->refusals, node, path, "%.40s: a mapping is wanted there: {%s: ...}", text, rule->words);
    } else if (node->kind == HD__SCALAR && !strcmp(node->text, "auto"))
        follow_auto(m, rule, node, path);
    else if (rule->how == VALUE)
        put(m, rule->section, rule->words, text);
    else if (rule->how == COMMENT)
        say(&m->comments, node, path, "%s", rule->words);
    else if (rule->how == ONLY && !is_alike(text, rule->words))
        say(&m->refusals, node, path, "%.100s: there is only %s here: %s", text, rule->words, rule->why);
    else if (rule->how == OFF && !is_off(node))
        say(&m->refusals, node, path, "heddle does not have it: %s", rule->words);
}

/* Every key of a mapping by its rule. */
static void walk(struct import *m, const struct hd__tree_node *map, const char *path, const struct rule *rules,
                 size_t n)
{
    for (uint32_t i = 0; map && map->kind == HD__MAP && i < map->count; i++) {
        const struct hd__tree_node *node = map->value[i];
        const char *key = map->key[i]->text, *nearest, *keys[64];
        const char *at = hd__arena_format(&m->arena, "%s%s%s", path, *path ? "." : "", key);
        size_t k = 0;
        while (k < n && strcmp(rules[k].key, key) != 0)
            keys[k] = rules[k].key, k++;
        if (k < n && hd__tree_is_null(node))
            continue;
        nearest = k == n ? hd__nearest(key, keys, n) : NULL;
        m->known += !*path && k < n;
        m->unknown += !*path && k == n && !nearest;
        if (k < n)
            follow(m, &rules[k], node, at);
        else
            say(&m->refusals, map->key[i], at, "no key that `heddle import` knows%s%s%s",
                nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    }
}
#define WALK(m, map, path, rules) walk(m, map, path, rules, HD__COUNT(rules))

/* A whole number from 1 up; `missing` where there is none, 0 where it is refused. */
static int64_t count_of(struct import *m, const char *key, int64_t missing, int64_t most)
{
    const char *text = word(m->root, key);
    char *end;
    double value = *text ? strtod(text, &end) : 1;
    if (!*text)
        return missing;
    if (!*end && value >= 1 && value <= (double)most && (double)(int64_t)value >= value)
        return (int64_t)value;
    say(&m->refusals, hd__tree_get(m->root, key), key, "%.60s: a number from 1 to %lld is wanted", text,
        (long long)most);
    return 0;
}

/* ---- optimizers and schedules of DeepSpeed, with its defaults */

static const struct rule adam_keys[] = {
    {"lr", HERE, OPTIMIZER, "lr"},
    {"betas", VALUE, OPTIMIZER, "betas"},
    {"eps", VALUE, OPTIMIZER, "eps"},
    {"weight_decay", VALUE, OPTIMIZER, "weight_decay"},
    {"adam_w_mode", ONLY, OPTIMIZER, "true", "weight decay is decoupled"},
    {"bias_correction", ONLY, OPTIMIZER, "true", "the means are corrected"},
    {"amsgrad", ONLY, OPTIMIZER, "false", "there is no AMSGrad"},
    {"torch_adam", COMMENT, OPTIMIZER, "AdamW computes as PyTorch's"},
    {"fused", COMMENT, OPTIMIZER, "the update of a flat buffer is one instruction"},
};
static const struct rule sgd_keys[] = {
    {"lr", HERE, OPTIMIZER, "lr"},
    {"momentum", VALUE, OPTIMIZER, "momentum"},
    {"weight_decay", VALUE, OPTIMIZER, "weight_decay"},
    {"dampening", ONLY, OPTIMIZER, "0", "momentum is not damped"},
    {"nesterov", ONLY, OPTIMIZER, "false", "muon alone has Nesterov momentum"},
};
static const struct rule lion_keys[] = {
    {"lr", HERE, OPTIMIZER, "lr"},
    {"betas", VALUE, OPTIMIZER, "betas"},
    {"weight_decay", VALUE, OPTIMIZER, "weight_decay"},
};

static const struct optimizer {
    const char *type, *use;
    const struct rule *keys;
    size_t n_keys;
    const char *lr;
    const char *defaults[4][2];
} optimizers[] = {
    {"Adam",
     "adamw",
     adam_keys,
     HD__COUNT(adam_keys),
     "1e-3",
     {{"betas", "[0.9, 0.999]"}, {"eps", "1e-8"}, {"weight_decay", "0"}}},
    {"AdamW",
     "adamw",
     adam_keys,
     HD__COUNT(adam_keys),
     "1e-3",
     {{"betas", "[0.9, 0.999]"}, {"eps", "1e-8"}, {"weight_decay", "0"}}},
    {"SGD", "sgd", sgd_keys, HD__COUNT(sgd_keys), "1e-3", {{"momentum", "0"}, {"weight_decay", "0"}}},
    {"Lion", "lion", lion_keys, HD__COUNT(lion_keys), "1e-3", {{"betas", "[0.9, 0.99]"}, {"weight_decay", "0"}}},
};

static const struct rule typed_keys[] = {
    {"type", HERE, OPTIMIZER, ""},
    {"params", PART, OPTIMIZER, "lr"},
    {"legacy_fusion", COMMENT, OPTIMIZER, "the update of a flat buffer is one instruction"}};
static const struct rule scheduler_keys[] = {
    {"warmup_min_lr", ONLY, SCHEDULE, "0", "the rate rises from 0"},
    {"warmup_min_ratio", ONLY, SCHEDULE, "0", "the rate rises from 0"},
    {"warmup_max_lr", HERE, OPTIMIZER, "lr"},
    {"warmup_num_steps", VALUE, SCHEDULE, "warmup"},
    {"warmup_type", HERE, SCHEDULE, "kind"},
    {"total_num_steps", VALUE, JOB, "steps"},
    {"cos_min_ratio", HERE, SCHEDULE, "min_lr"},
};

/* The peak rate: a schedule's, where it has one. */
static const char *peak_rate(const struct import *m, const char *otherwise)
{
    const struct hd__tree_node *scheduler = hd__tree_get(m->root, "scheduler"),
                               *optimizer = hd__tree_get(m->root, "optimizer");
    const char *peak = word(hd__tree_get(scheduler, "params"), "warmup_max_lr"),
               *lr = word(hd__tree_get(optimizer, "params"), "lr");
    int cosine = !strcmp(word(scheduler, "type"), "WarmupCosineLR");
    return !cosine && *peak ? peak : *lr ? lr : otherwise;
}

static void read_optimizer(struct import *m)
{
    const struct hd__tree_node *node = hd__tree_get(m->root, "optimizer"), *params = hd__tree_get(node, "params");
    const struct optimizer *o = NULL;
    for (size_t k = 0; k < HD__COUNT(optimizers); k++)
        o = !strcasecmp(word(node, "type"), optimizers[k].type) ? &optimizers[k] : o;
    if (!node || node->kind != HD__MAP)
        return;
    WALK(m, node, "optimizer", typed_keys);
    if (!o) {
        say(&m->refusals, node, "optimizer.type", "%.100s: there is Adam, AdamW, SGD, Lion: heddle plugins lists more",
            word(node, "type"));
        return;
    }
    put(m, OPTIMIZER, "use", o->use);
    put(m, OPTIMIZER, "lr", peak_rate(m, has(params, "lr") ? "auto" : o->lr));
    walk(m, params, "optimizer.params", o->keys, o->n_keys);
    for (size_t k = 0; k < HD__COUNT(o->defaults) && o->defaults[k][0]; k++)
        if (!has(params, o->defaults[k][0]))
            put(m, OPTIMIZER, o->defaults[k][0],
                !strcmp(o->defaults[k][0], "weight_decay") && is_true(word(params, "torch_adam")) ? "0.01"
                                                                                                  : o->defaults[k][1]);
    put(m, OPTIMIZER, "decay", "all");
    if (!has(m->root, "gradient_clipping"))
        put(m, OPTIMIZER, "clip", "0");
}

static void read_scheduler(struct import *m)
{
    static const char *const types[][2] = {
        {"WarmupLR", "constant"}, {"WarmupDecayLR", "linear"}, {"WarmupCosineLR", "cosine"}};
    const struct hd__tree_node *node = hd__tree_get(m->root, "scheduler"), *params = hd__tree_get(node, "params");
    const char *kind = NULL, *ratio = word(params, "cos_min_ratio");
    for (size_t k = 0; k < HD__COUNT(types); k++)
        kind = !strcmp(word(node, "type"), types[k][0]) ? types[k][1] : kind;
    if (!node || node->kind != HD__MAP)
        return;
    WALK(m, node, "scheduler", typed_keys);
    if (!kind) {
        say(&m->refusals, node, "scheduler.type", "%.100s: there is WarmupLR, WarmupDecayLR, WarmupCosineLR",
            word(node, "type"));
        return;
    }
    put(m, SCHEDULE, "kind", kind);
    WALK(m, params, "scheduler.params", scheduler_keys);
    if (!has(params, "warmup_num_steps"))
        put(m, SCHEDULE, "warmup", "1000");
    const char *peak =
        peak_rate(m, has(hd__tree_get(hd__tree_get(m->root, "optimizer"), "params"), "lr") ? "" : "1e-3");
    int known = *peak && (*ratio || !has(params, "cos_min_ratio"));
    if (!strcmp(kind, "cosine"))
        put(m, SCHEDULE, "min_lr",
            known ? hd__arena_format(&m->arena, "%.9g", atof(peak) * (*ratio ? atof(ratio) : 1e-4)) : "auto");
    if (!strcmp(kind, "cosine") && !*peak)
        say(&m->comments, node, "scheduler.params.cos_min_ratio",
            "the rate is auto, and its lowest is %s of it: say schedule.min_lr", *ratio ? ratio : "1e-4");
    if (strcmp(word(params, "warmup_type"), "linear") != 0)
        say(&m->refusals, node, "scheduler.params.warmup_type",
            "%s: DeepSpeed's rate rises with the logarithm of the step, heddle's in proportion to it: say linear there",
            has(params, "warmup_type") ? word(params, "warmup_type") : "log (its default)");
}

/* ---- precision, batches, ZeRO */

#define SCALER "loss_scale: dynamic begins at 65536, halves at an overflow and doubles after 2000 good steps"
static const struct rule fp16_keys[] = {
    {"enabled", HERE, PRECISION, ""},
    {"loss_scale", HERE, PRECISION, ""},
    {"auto_cast", COMMENT, PRECISION, "inputs are token ids"},
    {"initial_scale_power", COMMENT, PRECISION, SCALER},
    {"loss_scale_window", COMMENT, PRECISION, SCALER},
    {"hysteresis", COMMENT, PRECISION, SCALER},
    {"consecutive_hysteresis", COMMENT, PRECISION, SCALER},
    {"min_loss_scale", COMMENT, PRECISION, "a run whose loss scale falls below 1 ends: it has diverged"},
    {"fp16_master_weights_and_grads", ONLY, PRECISION, "false", "precision.master and precision.grad say it"},
};
static const struct rule bf16_keys[] = {
    {"enabled", HERE, PRECISION, ""},
    {"immediate_grad_update", COMMENT, PRECISION, "gradients are added as they are made"},
    {"check_grad_overflow", COMMENT, PRECISION, "the first step that is not finite ends the run"},
    {"bf16_master_weights_and_grads", ONLY, PRECISION, "false", "precision.master and precision.grad say it"},
    {"bf16_optimizer_states", ONLY, PRECISION, "false", "precision.optimizer: bf16 says it"},
};
static const struct rule data_type_keys[] = {{"grad_accum_dtype", VALUE, PRECISION, "grad"}};
static const struct rule tensor_parallel_keys[] = {
    {"autotp_size", VALUE, MESH, "tp"},
    {"tp_size", VALUE, MESH, "tp"},
};

static void read_precision(struct import *m)
{
    const struct hd__tree_node *fp16 = hd__tree_get(m->root, "fp16"), *bf16 = hd__tree_get(m->root, "bf16");
    const char *scale = word(fp16, "loss_scale");
    int half = is_true(word(fp16, "enabled")), brain = is_true(word(bf16, "enabled"));
    if (half && brain)
        say(&m->refusals, bf16, "bf16.enabled", "fp16 is enabled as well: leave one of them out");
    const struct hd__tree_node *enabled = hd__tree_get(half || brain ? NULL : fp16 ? fp16 : bf16, "enabled");
    if (half || brain)
        put(m, PRECISION, "compute", half ? "fp16" : "bf16");
    else if (enabled && !strcmp(text_of(m, enabled), "auto"))
        follow_auto(m, &(struct rule){"enabled", VALUE, PRECISION, "compute", NULL}, enabled,
                    fp16 ? "fp16.enabled" : "bf16.enabled");
    if (half)
        put(m, PRECISION, "loss_scale", *scale && atof(scale) > 0 ? scale : "dynamic");
    if (half || !has(fp16, "enabled"))
        WALK(m, fp16, "fp16", fp16_keys);
    if (brain || !has(bf16, "enabled"))
        WALK(m, bf16, "bf16", bf16_keys);
    WALK(m, hd__tree_get(m->root, "data_types"), "data_types", data_type_keys);
    WALK(m, hd__tree_get(m->root, "tensor_parallel"), "tensor_parallel", tensor_parallel_keys);
}

/* batch = micro-batch x accumulation x data ranks. */
static void read_batches(struct import *m)
{
    const int64_t most = 1 << 20; /* of either: their product with the ranks fits */
    uint64_t refused = m->refusals.length;
    int64_t batch = count_of(m, "train_batch_size", 0, most << 10), ranks = m->ranks,
            micro = count_of(m, "train_micro_batch_size_per_gpu", 0, most),
            steps = count_of(m, "gradient_accumulation_steps", 0, most);
    if (m->refusals.length > refused)
        return;
    if (!ranks && batch && micro && steps && batch % (micro * steps) == 0)
        ranks = batch / (micro * steps);
    if (ranks && !steps && batch && micro)
        steps = batch / (micro * ranks);
    steps = steps ? steps : 1;
    if (ranks && !batch)
        batch = micro * steps * ranks;
    if (ranks && !micro)
        micro = batch / (steps * ranks);
    if (batch && micro && (batch % (micro * steps) || (ranks && batch != micro * steps * ranks)))
        say(&m->refusals, m->root, "train_batch_size",
            ranks ? "%lld is not %lld x %lld on %lld data ranks" : "%lld is not a multiple of %lld x %lld",
            (long long)batch, (long long)micro, (long long)steps, (long long)ranks);
    else if (!ranks && (!batch || (steps > 1 && !micro)) && (batch || micro))
        say(&m->refusals, m->root, "train_batch_size", "it follows from how many data ranks there are: say --ranks N");
    if (batch || has(m->root, "train_batch_size"))
        put(m, DATA, "batch", batch ? hd__arena_format(&m->arena, "%lld", (long long)batch) : "auto");
    if (micro || has(m->root, "train_micro_batch_size_per_gpu"))
        put(m, DATA, "micro_batch", micro ? hd__arena_format(&m->arena, "%lld", (long long)micro) : "auto");
    if (ranks)
        put(m, MESH, "dp", hd__arena_format(&m->arena, "%lld", (long long)ranks));
}

/* Keys that strategy-zero has by DeepSpeed's names go there; it refuses values of theirs that it cannot do. */
static void read_zero(struct import *m, const struct hd__tree_node *map, const char *path, const char *prefix)
{
    for (uint32_t i = 0; map && map->kind == HD__MAP && i < map->count; i++) {
        const char *key = hd__arena_format(&m->arena, "%s%s", prefix, map->key[i]->text);
        const char *at = hd__arena_format(&m->arena, "%s%s", path, key);
        if (hd__tree_is_null(map->value[i]))
            continue;
        if (map->value[i]->kind == HD__MAP)
            read_zero(m, map->value[i], path, hd__arena_format(&m->arena, "%s.", key));
        else if (hd__option_find(&m->zero, key) >= 0)
            put(m, STRATEGY, key, text_of(m, map->value[i]));
        else if (hd__nearest(key, (const char *[]){"stage"}, 1))
            say(&m->refusals, map->key[i], at, "no key that `heddle import` knows: did you mean stage?");
        else
            say(&m->comments, map->value[i], at, "strategy zero has no such key");
    }
}

/* ---- the files */

#define SCRIPT "the training script's, not the job's"
static const struct rule deepspeed_keys[] = {
    {"train_batch_size", HERE, DATA, "batch"},
    {"train_micro_batch_size_per_gpu", HERE, DATA, "micro_batch"},
    {"gradient_accumulation_steps", HERE, DATA, "batch"},
    {"gradient_clipping", VALUE, OPTIMIZER, "clip"},
    {"optimizer", PART, OPTIMIZER, "type"},
    {"scheduler", PART, SCHEDULE, "type"},
    {"fp16", PART, PRECISION, "enabled"},
    {"bf16", PART, PRECISION, "enabled"},
    {"data_types", PART, PRECISION, "grad_accum_dtype"},
    {"tensor_parallel", PART, MESH, "autotp_size"},
    {"zero_optimization", PART, STRATEGY, "stage"},
    {"communication_data_type", VALUE, PRECISION, "reduce"},
    {"sequence_parallel_size", VALUE, MESH, "cp"},
    {"steps_per_print", VALUE, METRICS, "every"},
    {"amp", OFF, PRECISION, "use bf16 or fp16"},
    {"sparse_gradients", OFF, STRATEGY, "gradients of embeddings are dense"},
    {"sparse_attention", OFF, STRATEGY, "attention is dense, or has a sliding window (model.sliding_window)"},
    {"progressive_layer_drop", OFF, STRATEGY, "all layers train in every step"},
    {"curriculum_learning", OFF, DATA, "sequences have one length"},
    {"data_efficiency", OFF, DATA, "no sampling by difficulty, and no token is dropped"},
    {"compression_training", OFF, STRATEGY, "weights are neither pruned nor quantised"},
    {"quantize_training", OFF, STRATEGY, "weights are neither pruned nor quantised"},
    {"eigenvalue", OFF, STRATEGY, "weights are neither pruned nor quantised"},
    {"elasticity", OFF, DATA, "the batch is data.batch, whatever the number of ranks"},
    {"hybrid_engine", OFF, STRATEGY, "a job trains; heddle sample generates"},
    {"activation_checkpointing", COMMENT, STRATEGY,
     "recompute: full, or selective, where the model's code asks for it"},
    {"prescale_gradients", COMMENT, STRATEGY,
     "the loss is the mean over all tokens, and gradients are sums of its parts"},
    {"gradient_predivide_factor", COMMENT, STRATEGY, "the loss is the mean over all tokens, and gradients are sums"},
    {"wall_clock_breakdown", COMMENT, METRICS, "metrics.profile: true times every instruction"},
    {"flops_profiler", COMMENT, METRICS, "heddle explain prints FLOPs; metrics.profile: true times them"},
    {"comms_logger", COMMENT, METRICS, "comm.hooks: [perf] prints what a transport did"},
    {"tensorboard", COMMENT, METRICS, "metrics.tensorboard: FOLDER"},
    {"csv_monitor", COMMENT, METRICS, "metrics.jsonl has every step"},
    {"wandb", COMMENT, METRICS, "a plugin of kind metrics sends steps elsewhere"},
    {"comet", COMMENT, METRICS, "a plugin of kind metrics sends steps elsewhere"},
    {"pipeline", COMMENT, MESH, "mesh.pp, and {use: 3d} among the strategies"},
    {"checkpoint", COMMENT, JOB, "checkpoint: {dir: FOLDER, every: N}"},
    {"load_universal_checkpoint", COMMENT, JOB, "checkpoints load on any mesh"},
    {"aio", COMMENT, STRATEGY, "offload: {optimizer: file} reads and writes by io_uring"},
    {"autotuning", COMMENT, STRATEGY, "heddle bench --tune, and heddle explain for memory"},
    {"dump_state", COMMENT, METRICS, "heddle train --print-config"},
    {"memory_breakdown", COMMENT, METRICS, "heddle explain has the exact size of the arena"},
    {"zero_allow_untested_optimizer", COMMENT, OPTIMIZER, "every optimizer trains under every stage"},
    {"zero_force_ds_cpu_optimizer", COMMENT, OPTIMIZER, "offload: {optimizer: host} says where states lie"},
    {"disable_allgather", COMMENT, STRATEGY, "updated parameters travel by all_gather"},
};

static void import_deepspeed(struct import *m)
{
    read_optimizer(m);
    WALK(m, m->root, "", deepspeed_keys);
    read_scheduler(m);
    read_precision(m);
    read_batches(m);
    put(m, STRATEGY, "use", "zero");
    read_zero(m, hd__tree_get(m->root, "zero_optimization"), "zero_optimization.", "");
}

static const struct rule accelerate_keys[] = {
    {"distributed_type", HERE, STRATEGY, ""},
    {"mixed_precision", HERE, PRECISION, "compute"},
    {"num_processes", HERE, LAUNCH, "ranks"},
    {"fsdp_config", PART, STRATEGY, "fsdp_sharding_strategy"},
    {"deepspeed_config", PART, STRATEGY, "zero_stage"},
    {"megatron_lm_config", OFF, STRATEGY, "say mesh and {use: 3d} in the job: docs/coming-from.md"},
    {"fp8_config", OFF, PRECISION, "device.fp8, where the device's plugin has it"},
    {"downcast_bf16", ONLY, PRECISION, "no", "precision.compute: bf16 says it"},
    {"num_machines", HERE, LAUNCH, "nodes"},
    {"machine_rank", COMMENT, LAUNCH, "that is `heddle train --node-rank`, on each machine"},
    {"main_process_ip", HERE, LAUNCH, "rendezvous"},
    {"main_process_port", HERE, LAUNCH, "rendezvous"},
    {"rdzv_backend", COMMENT, LAUNCH, "machines meet at launch.rendezvous"},
    {"same_network", COMMENT, LAUNCH, "machines meet at launch.rendezvous"},
    {"use_cpu", COMMENT, LAUNCH, "device: {use: cpu} is the default"},
    {"gpu_ids", COMMENT, LAUNCH, "device: {use: cuda} takes the local rank's"},
    {"enable_cpu_affinity", COMMENT, LAUNCH, "ranks have cores of their own where there are enough"},
    {"compute_environment", COMMENT, LAUNCH, SCRIPT},
    {"main_training_function", COMMENT, LAUNCH, SCRIPT},
    {"debug", COMMENT, LAUNCH, "comm.hooks: [check] compares every operation"},
    {"dynamo_config", COMMENT, LAUNCH, "a job is compiled"},
    {"tpu_env", COMMENT, LAUNCH, "of TPUs"},
    {"tpu_use_cluster", COMMENT, LAUNCH, "of TPUs"},
    {"tpu_use_sudo", COMMENT, LAUNCH, "of TPUs"},
};
static const struct rule fsdp_keys[] = {
    {"fsdp_sharding_strategy", HERE, STRATEGY, "fsdp_sharding_strategy"},
    {"fsdp_backward_prefetch", VALUE, STRATEGY, "fsdp_backward_prefetch"},
    {"fsdp_backward_prefetch_policy", VALUE, STRATEGY, "fsdp_backward_prefetch"}, /* of accelerate before 0.27 */
    {"fsdp_forward_prefetch", VALUE, STRATEGY, "fsdp_forward_prefetch"},
    {"fsdp_reshard_after_forward", HERE, STRATEGY, "fsdp_reshard_after_forward"},
    {"fsdp_offload_params", HERE, STRATEGY, ""},
    {"fsdp_activation_checkpointing", HERE, STRATEGY, ""},
    {"fsdp_auto_wrap_policy", COMMENT, STRATEGY, "the unit is a block of the model"},
    {"fsdp_transformer_layer_cls_to_wrap", COMMENT, STRATEGY, "the model says what its blocks are"},
    {"fsdp_min_num_params", COMMENT, STRATEGY, "the unit is a block of the model; gather_bucket joins blocks"},
    {"fsdp_state_dict_type", COMMENT, STRATEGY,
     "ranks write their shards; heddle ckpt export makes one folder of them"},
    {"fsdp_use_orig_params", COMMENT, STRATEGY, "parameters stay tensors of their own"},
    {"fsdp_sync_module_states", COMMENT, STRATEGY, "all ranks begin with the same weights"},
    {"fsdp_cpu_ram_efficient_loading", COMMENT, STRATEGY, "a rank reads the part of the weights that it keeps"},
    {"fsdp_version", COMMENT, STRATEGY, "there is one"},
};
static const struct rule accelerate_deepspeed_keys[] = {
    {"zero_stage", VALUE, STRATEGY, "stage"},
    {"gradient_clipping", VALUE, OPTIMIZER, "clip"},
    {"offload_optimizer_device", VALUE, STRATEGY, "offload_optimizer.device"},
    {"offload_param_device", VALUE, STRATEGY, "offload_param.device"},
    {"offload_optimizer_nvme_path", VALUE, STRATEGY, "offload_optimizer.nvme_path"},
    {"deepspeed_config_file", OFF, STRATEGY, "import that file"},
    {"gradient_accumulation_steps", COMMENT, DATA, "follows from data.batch / (data.micro_batch x data ranks)"},
    {"zero3_init_flag", COMMENT, STRATEGY, "a rank makes the part of the weights that it keeps"},
    {"zero3_save_16bit_model", COMMENT, STRATEGY, "heddle ckpt export makes a folder of a checkpoint"},
};

/* The place where they meet has accelerate's port where none is said. */
static void read_machines(struct import *m, int64_t machines)
{
    const char *ip = word(m->root, "main_process_ip"), *port = word(m->root, "main_process_port");
    if (machines < 2)
        return;
    put(m, LAUNCH, "nodes", hd__arena_format(&m->arena, "%lld", (long long)machines));
    if (*ip)
        put(m, LAUNCH, "rendezvous",
            hd__arena_format(&m->arena, strchr(ip, ':') ? "'[%s]:%s'" : "'%s:%s'", ip, *port ? port : "29500"));
    else
        say(&m->comments, hd__tree_get(m->root, "num_machines"), "num_machines",
            "launch.rendezvous (--rendezvous) is to say where they meet: HOST:PORT of the first");
}

/* num_processes are those of all machines, and launch.ranks those of one. */
static void read_processes(struct import *m)
{
    int64_t all = count_of(m, "num_processes", m->ranks, 65536), each = count_of(m, "num_machines", 1, 65536);
    if (m->ranks && all && all != m->ranks)
        say(&m->refusals, hd__tree_get(m->root, "num_processes"), "num_processes",
            "%lld, and --ranks is %lld: leave --ranks out, or correct one of them", (long long)all,
            (long long)m->ranks);
    if (all && each && all % each)
        say(&m->refusals, hd__tree_get(m->root, "num_machines"), "num_machines",
            "%lld machines do not divide %lld processes, and each has as many ranks", (long long)each, (long long)all);
    else if (all && each)
        put(m, LAUNCH, "ranks", hd__arena_format(&m->arena, "%lld", (long long)(all / each)));
    read_machines(m, each);
}

/* FSDP1 has a strategy, also under the later name; FSDP2 has only whether to reshard. */
static void read_sharding(struct import *m, const struct hd__tree_node *fsdp)
{
    const struct hd__tree_node *strategy = hd__tree_get(fsdp, "fsdp_sharding_strategy"),
                               *reshard = hd__tree_get(fsdp, "fsdp_reshard_after_forward");
    const char *again = word(fsdp, "fsdp_reshard_after_forward");
    int second = !strcmp(word(fsdp, "fsdp_version"), "2"), named = *again && !is_off(reshard) && !is_true(again);
    if (second && has(fsdp, "fsdp_sharding_strategy"))
        say(&m->comments, strategy, "fsdp_config.fsdp_sharding_strategy",
            "fsdp_version 2 does not read it: fsdp_reshard_after_forward says what is sharded");
    else if (has(fsdp, "fsdp_sharding_strategy") && !named)
        put(m, STRATEGY, "fsdp_sharding_strategy", text_of(m, strategy));
    if (*again)
        put(m, STRATEGY, named ? "fsdp_sharding_strategy" : "fsdp_reshard_after_forward",
            named             ? again
            : is_off(reshard) ? "false"
                              : "true");
}

static void import_accelerate(struct import *m)
{
    static const char *const data_parallel[] = {"NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED"};
    const struct hd__tree_node *fsdp = hd__tree_get(m->root, "fsdp_config"),
                               *zero = hd__tree_get(m->root, "deepspeed_config");
    const char *type = word(m->root, "distributed_type"), *mixed = word(m->root, "mixed_precision");
    const struct {
        const char *type, *key;
    } parts[] = {{"FSDP", "fsdp_config"}, {"DEEPSPEED", "deepspeed_config"}};
    int known = 0;
    for (size_t k = 0; k < HD__COUNT(data_parallel); k++)
        known |= !strcasecmp(type, data_parallel[k]);
    for (size_t k = 0; k < HD__COUNT(parts); k++)
        if (known && has(m->root, parts[k].key) && strcasecmp(type, parts[k].type) != 0)
            say(&m->comments, hd__tree_get(m->root, parts[k].key), parts[k].key,
                "accelerate reads it with distributed_type: %s, and that is %s", parts[k].type, type);
    WALK(m, m->root, "", accelerate_keys);
    read_processes(m);
    if (!known)
        say(&m->refusals, m->root, "distributed_type", "%.100s: there is NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED",
            type);
    if (!strcmp(mixed, "bf16") || !strcmp(mixed, "fp16"))
        put(m, PRECISION, "compute", mixed);
    else if (*mixed && strcmp(mixed, "no") != 0)
        say(&m->refusals, m->root, "mixed_precision", "%.100s: there is no, bf16, fp16", mixed);
    put(m, STRATEGY, "use", !strcasecmp(type, "FSDP") ? "fsdp" : "zero");
    if (!strcasecmp(type, "FSDP")) {
        WALK(m, fsdp, "fsdp_config", fsdp_keys);
        read_sharding(m, fsdp);
        if (is_true(word(fsdp, "fsdp_offload_params")))
            put(m, STRATEGY, "offload.optimizer", "host, offload.params: host");
        m->recompute = is_true(word(fsdp, "fsdp_activation_checkpointing"));
    }
    if (!strcasecmp(type, "FSDP") && (!strcmp(mixed, "bf16") || !strcmp(mixed, "fp16")))
        say(&m->comments, hd__tree_get(m->root, "mixed_precision"), "mixed_precision",
            "FSDP sums gradients in %s then; here precision.reduce says it, and is fp32", mixed);
    if (!strcasecmp(type, "DEEPSPEED"))
        WALK(m, zero, "deepspeed_config", accelerate_deepspeed_keys);
}

static int32_t read_tree(struct import *m, const char *path, struct hd_error *err)
{
    const char *end = strrchr(path, '.');
    if (end && !strcmp(end, ".toml"))
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: TOML is not read: docs/coming-from.md has torchtitan's keys", path);
    size_t bytes;
    char *text = hd__read_text(path, "configuration", HD__TREE_BYTES, &bytes, err);
    int32_t rc = text ? hd__tree_parse(path, text, bytes, NULL, &m->arena, &m->root, err) : err->code;
    free(text);
    if (!rc && m->root->kind == HD__MAP && has(m->root, "model_type"))
        rc = hd_fail(err, HD_E_INVALID, "%s: a model's config.json, and no trainer's: model.from: FOLDER reads it",
                     path);
    else if (!rc && m->root->kind == HD__MAP &&
             (has(m->root, "num_train_epochs") || has(m->root, "per_device_train_batch_size")))
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "%s: TrainingArguments of transformers are not read: docs/coming-from.md has their keys", path);
    else if (!rc && m->root->kind == HD__MAP && has(m->root, "model") && has(m->root, "data"))
        rc = hd_fail(err, HD_E_INVALID, "%s: it is a job already: heddle train takes it as it is", path);
    else if (!rc && m->root->kind != HD__MAP)
        rc = hd_fail(err, HD_E_INVALID, "%s: a mapping is wanted, DeepSpeed's or accelerate's", path);
    return rc;
}

static int32_t find_zero(struct import *m, struct hd__plugins *plugins, struct hd_error *err)
{
    const struct hd__component *zero = NULL;
    int32_t rc = hd__plugins_add_default_folders(plugins, err);
    rc = rc ? rc : hd__plugin_find(plugins, HD_KIND_STRATEGY, "zero", &zero, err);
    if (!rc)
        m->zero = (struct hd__options){zero->options, zero->n_options, sizeof(struct hd_option)};
    return rc;
}

static void print_comments(const char *before, char *lines)
{
    for (char *rest = lines, *line; rest && (line = strtok_r(rest, "\n", &rest));)
        printf("# %s%s\n", before, line);
}

/* Keys that every job needs, and that the configuration does not have. */
static void print_missing(const struct import *m, const char *path)
{
    static const struct {
        int section;
        const char *key;
    } wanted[] = {{JOB, "steps"}, {OPTIMIZER, "use"}, {OPTIMIZER, "lr"}, {DATA, "batch"}};
    printf("# The job of %s, by `heddle import`; to be said yet: model, data.train, data.seq_len", path);
    for (size_t k = 0; k < HD__COUNT(wanted); k++) {
        const struct hd__text *text = &m->section[wanted[k].section];
        char begins[16];
        snprintf(begins, sizeof begins, "%s: ", wanted[k].key);
        const char *at = text->length ? strstr(text->at, begins) : NULL;
        if (!at || !strncmp(at + strlen(begins), "auto", 4))
            printf(", %s.%s", names[wanted[k].section], wanted[k].key);
    }
    puts(".");
}

static void print_job(struct import *m, const char *path)
{
    print_missing(m, path);
    for (int s = 0; s < SECTIONS; s++)
        if (m->section[s].length)
            printf(s == STRATEGY ? "%s: [{%s}]\n" : "%s: {%s}\n", names[s], m->section[s].at); // NOLINT
    if (m->recompute)
        puts("recompute: full");
    print_comments("not the same: ", m->refusals.at);
    print_comments("", m->comments.at);
}

static int run(int argc, char **argv)
{
    static struct import m;
    const char *ranks = NULL;
    int anyway = 0;
    const struct hd__cli_flag flags[] = {{"--ranks", &ranks, NULL}, {"--anyway", NULL, &anyway}};
    struct hd__cli_job_arguments arguments;
    struct hd_error err = HD_ERROR_INIT;
    char *end = "";
    int code = hd__cli_job_arguments(&hd__command_import, argc, argv, flags, HD__COUNT(flags), &arguments);
    m.ranks = ranks ? strtoll(ranks, &end, 10) : 0;
    if (!code && (arguments.n_overrides || *end || (ranks && (m.ranks < 1 || m.ranks > 65536))))
        return arguments.n_overrides
                   ? hd__cli_usage_error(&hd__command_import, "%s: the job is printed, and takes keys afterwards",
                                         arguments.overrides[0])
                   : hd__cli_usage_error(&hd__command_import, "--ranks %s: a number from 1 to 65536 is wanted", ranks);
    if (code)
        return code;
    struct hd__plugins *plugins = hd__plugins_create(hd__exec_host_table());
    if (read_tree(&m, arguments.file, &err) || find_zero(&m, plugins, &err)) {
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    } else {
        (has(m.root, "distributed_type") || has(m.root, "fsdp_config") ? import_accelerate : import_deepspeed)(&m);
        int foreign = m.unknown > m.known && !has(m.root, "zero_optimization") && !has(m.root, "train_batch_size");
        code = (m.refusals.length && !anyway) || foreign ? HD__EXIT_REFUSED : HD__EXIT_DONE;
        if (foreign)
            fprintf(stderr,
                    "%s: is neither DeepSpeed's nor accelerate's, which lack most of its keys: "
                    "docs/coming-from.md has those of other trainers\n",
                    arguments.file);
        else if (code)
            fprintf(stderr, "%sheddle import: no job is printed: correct these, or --anyway makes comments of them\n",
                    m.refusals.at);
        else
            print_job(&m, arguments.file);
    }
    for (int s = 0; s < SECTIONS; s++)
        hd__text_free(&m.section[s]);
    hd__text_free(&m.comments);
    hd__text_free(&m.refusals);
    hd__plugins_destroy(plugins);
    hd__arena_free(&m.arena);
    return code;
}

const struct hd__command hd__command_import = {
    .name = "import",
    .usage = "FILE [--ranks N] [--anyway]",
    .summary = "a job file of DeepSpeed's or accelerate's configuration",
    .help = "Prints the job that a ds_config.json, or a YAML file of `accelerate config`, describes, with the values\n"
            "that DeepSpeed takes where the file has none. Keys without a counterpart are comments of the job; those\n"
            "that change what is trained are refused, all at once. docs/coming-from.md has the keys of others.\n\n"
            "  --ranks N    data ranks, where the batch follows from them; of accelerate: of all machines\n"
            "  --anyway     what is refused becomes comments, that begin with \"not the same\"\n",
    .example = "  heddle import ds_config.json --ranks 8 > job.yaml\n"
               "  heddle train job.yaml model.use=transformer model.from=FOLDER data.train=text data.seq_len=1024\n",
    .run = run,
};
