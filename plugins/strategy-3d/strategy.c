/* strategy-3d: tensor, sequence and context parallelism, as marks. The core's layout rules insert the
 * collectives (Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198). Pipelines: pipeline.c.
 *
 * Sharded on tp: the heads (k, or g where kv heads are too few), the feed-forward (f) and the vocabulary (v) of every
 * weight, and the experts (e) on ep. With sequence_parallel the residual stream is cut along the sequence too. */
#include <stddef.h>

#include "pipeline.h"

struct settings {
    struct pipe_settings pipe;
    int32_t sequence_parallel;
    int32_t vocab_parallel;
    int32_t context;
    int32_t reserved;
};

enum { CONTEXT_AUTO, CONTEXT_ULYSSES, CONTEXT_RING };

static const struct hd_option options[] = {
    {.name = "sequence_parallel",
     .needs = "mesh.tp!=1",
     .type = HD_OPT_BOOL,
     .value = "false",
     .flags = HD_OPTION_GLOBAL,
     .help = "cut the residual stream along the sequence over tp: less memory, the same bytes moved",
     .offset = offsetof(struct settings, sequence_parallel)},
    {.name = "vocab_parallel",
     .needs = "mesh.tp!=1",
     .type = HD_OPT_BOOL,
     .value = "true",
     .flags = HD_OPTION_GLOBAL,
     .level = HD_LEVEL_TUNER,
     .help = "cut embedding, head and cross-entropy along the vocabulary over tp",
     .offset = offsetof(struct settings, vocab_parallel)},
    {.name = "context",
     .needs = "mesh.cp!=1",
     .type = HD_OPT_ENUM,
     .value = "auto",
     .choices = "auto|ulysses|ring",
     .flags = HD_OPTION_GLOBAL,
     .help = "attention over mesh.cp: ulysses moves heads (all_to_all), ring moves keys and values; auto: ulysses "
             "where heads divide",
     .offset = offsetof(struct settings, context)},
    {.name = "schedule",
     .needs = "mesh.pp!=1",
     .type = HD_OPT_STRING,
     .value = "1f1b",
     .flags = HD_OPTION_GLOBAL | HD_OPTION_PATH,
     .help = "with mesh.pp above 1, the order of micro-batches: gpipe, 1f1b, interleaved, zb-h1, zb-v, or FILE.csv",
     .offset = offsetof(struct settings, pipe.schedule)},
    {.name = "virtual",
     .needs = "mesh.pp!=1",
     .type = HD_OPT_INT,
     .value = "0",
     .unit = "chunks",
     .max = 65536,
     .flags = HD_OPTION_GLOBAL,
     .aliases = "virtual_stages|num_virtual_stages",
     .help = "parts of the model that a stage has; 0: what suits the schedule (interleaved and zb-v: 2, others: 1)",
     .offset = offsetof(struct settings, pipe.virtual)},
    {.name = "split",
     .needs = "mesh.pp!=1",
     .type = HD_OPT_LIST,
     .value = "layers",
     .flags = HD_OPTION_GLOBAL | HD_OPTION_PATH,
     .help = "layers to chunks: evenly by layers, balanced by params, by an estimate of time, or by FILE.csv that "
             "metrics.blocks"
             " wrote; or a list: layers of each chunk",
     .offset = offsetof(struct settings, pipe.split)},
    {.name = "split_intensity",
     .needs = "split=[time]",
     .type = HD_OPT_FLOAT,
     .value = "20",
     .unit = "FLOPs a byte",
     .min = 1e-3,
     .max = 1e6,
     .flags = HD_OPTION_GLOBAL,
     .level = HD_LEVEL_TUNER,
     .help = "split: time takes so many FLOPs to last as long as a byte read or written",
     .offset = offsetof(struct settings, pipe.intensity)},
};

/* mesh.tp: tq is a part of it. */
static int64_t tensor_ranks(const struct hd_pass_api *api, const struct hd_program *p)
{
    return (int64_t)api->axis_size(p, HD_AXIS_TP) * api->axis_size(p, HD_AXIS_TQ);
}

static int32_t shard(const struct hd_pass_api *api, struct hd_program *p, char dim, const char *what,
                     struct hd_error *err)
{
    int64_t tp = tensor_ranks(api, p), n = api->extent(p, dim);
    /* The core pads a vocabulary, if that leaves some of it to the last rank. */
    if (n && n % tp && (dim != 'v' || (n + tp - 1) / tp * (tp - 1) >= n))
        return hd_fail(err, HD_E_INVALID, "%s = %lld must be a multiple of mesh.tp = %lld%s", what, (long long)n,
                       (long long)tp, dim == 'v' ? ", being so small, or say vocab_parallel: false in {use: 3d}" : "");
    api->shard_params(p, dim, HD_AXIS_TP);
    api->shard_params(p, dim, HD_AXIS_TQ);
    return HD_OK;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Kv heads over tp, or where they are too few the query heads of each. Between the two, kv heads over as many ranks as
 * divide them, and the query heads over the others, tq: these have the same kv heads, whose gradients are summed over
 * tq. */
static int32_t shard_heads(const struct hd_pass_api *api, struct hd_program *p, struct hd_error *err)
{
    int64_t tp = api->axis_size(p, HD_AXIS_TP), kv = api->extent(p, 'k'), g = api->extent(p, 'g');
    int64_t few = common_divisor(kv, tp);
    if (kv % tp && g % tp == 0) {
        api->shard_params(p, 'g', HD_AXIS_TP);
        return HD_OK;
    }
    if (g % (tp / few))
        return hd_fail(err, HD_E_INVALID,
                       "mesh.tp = %lld must divide the kv heads (%lld), or what is left of it after them (%lld) the "
                       "query heads of each (%lld)",
                       (long long)tp, (long long)kv, (long long)(tp / few), (long long)g);
    api->split_tp(p, (int32_t)(tp / few));
    api->shard_params(p, 'k', HD_AXIS_TP);
    api->shard_params(p, 'g', HD_AXIS_TQ);
    return HD_OK;
}

/* Ulysses (Jacobs et al., arXiv 2309.14509) cuts the heads that tp left; a ring (Liu et al., arXiv 2310.01889) cuts
 * none. */
static int32_t context_parallel(const struct hd_pass_api *api, const struct settings *s, struct hd_program *p,
                                struct hd_error *err)
{
    int64_t cp = api->axis_size(p, HD_AXIS_CP), tp = api->axis_size(p, HD_AXIS_TP), tq = api->axis_size(p, HD_AXIS_TQ);
    int64_t kv = api->extent(p, 'k'), g = api->extent(p, 'g');
    int divides = kv % tp ? kv % cp == 0 || g % (tp * cp) == 0 : kv % (tp * cp) == 0 || g % (tq * cp) == 0;
    if (s->context == CONTEXT_ULYSSES && cp > 1 && !divides)
        return hd_fail(
            err, HD_E_INVALID,
            "strategies.3d.context: ulysses needs heads that divide: kv heads (%lld) or the query heads of each (%lld) "
            "over mesh.cp = %lld, after mesh.tp = %lld; use context: ring",
            (long long)kv, (long long)g, (long long)cp, (long long)(tp * tq));
    if (s->context == CONTEXT_RING || (s->context == CONTEXT_AUTO && !divides))
        api->ring_attention(p, HD_AXIS_CP);
    return HD_OK;
}

/* The nearest number of equal parts below and above. */
static void parts_around(int64_t n, int64_t want, int64_t *below, int64_t *above)
{
    *below = *above = want;
    while (*below > 1 && n % *below)
        --*below;
    while (*above < n && n % *above)
        ++*above;
}

static int32_t shard_experts(const struct hd_pass_api *api, struct hd_program *p, struct hd_error *err)
{
    int64_t ep = api->axis_size(p, HD_AXIS_EP), n = api->extent(p, 'e'), below, above;
    if (ep == 1)
        return HD_OK;
    if (!n)
        return hd_fail(err, HD_E_INVALID, "mesh.ep = %lld, but the model has no experts: use ep: 1 and a larger dp",
                       (long long)ep);
    parts_around(n, ep, &below, &above);
    if (n % ep && ep > n)
        return hd_fail(err, HD_E_INVALID, "mesh.ep = %lld does not divide model.experts = %lld; ep: %lld does",
                       (long long)ep, (long long)n, (long long)n);
    if (n % ep)
        return hd_fail(err, HD_E_INVALID,
                       "mesh.ep = %lld does not divide model.experts = %lld; ep: %lld and ep: %lld do", (long long)ep,
                       (long long)n, (long long)below, (long long)above);
    api->shard_params(p, 'e', HD_AXIS_EP);
    return HD_OK;
}

static int32_t tensor_parallel(const struct hd_pass_api *api, const struct settings *s, struct hd_program *p,
                               struct hd_error *err)
{
    int32_t rc = shard_heads(api, p, err);
    if (!rc)
        rc = shard(api, p, 'f', "model.ffn", err);
    if (!rc && s->vocab_parallel)
        rc = shard(api, p, 'v', "model.vocab", err);
    if (!rc && s->sequence_parallel)
        for (uint32_t axis = HD_AXIS_TP; axis <= HD_AXIS_TQ; axis++)
            api->shard_residual(p, 's', axis);
    return rc;
}

static int32_t layout(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    const struct hd_pass_api *api = host->pass;
    int32_t rc = api->axis_size(p, HD_AXIS_TP) > 1 ? tensor_parallel(api, settings, p, err) : HD_OK;
    if (!rc)
        rc = context_parallel(api, settings, p, err);
    return rc ? rc : shard_experts(api, p, err);
}

static int32_t partition(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    const struct settings *s = settings;
    return pipe_partition(host, &s->pipe, p, err);
}

static const struct hd_strategy_ops ops = {
    .struct_size = sizeof ops,
    .api = HD_STRATEGY_API,
    .layout = layout,
    .partition = partition,
    /* not cp: the batch is cut along it without a strategy, and attention moves heads */
    .cuts = HD_AXIS_BIT(HD_AXIS_PP) | HD_AXIS_BIT(HD_AXIS_EP) | HD_AXIS_BIT(HD_AXIS_TP),
};

static const struct hd_alias aliases[] = {
    {.name = "megatron", .summary = "Megatron-LM's tensor, sequence, expert and pipeline parallelism"},
};

HD_PLUGIN("strategy-3d", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "3d",
          .summary = "tensor, sequence, context, expert and pipeline parallel", HD_OPTIONS(options, struct settings),
          .ops = &ops, HD_ALIASES(aliases))
