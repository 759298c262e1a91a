/* model-decoder: a decoder with parallel residuals (GPT-J, PaLM: arXiv 2204.02311, section 2): attention and
 * feed-forward of a layer read the same norm, and both are added to the residual stream. RMSNorm, rotary positions,
 * SwiGLU, no biases. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/model.h"

struct settings {
    int64_t vocab, layers, hidden, heads, kv_heads, ffn;
    double theta, eps;
};

struct hd_model {
    const struct hd_host *host;
    const struct settings *s;
    double *frequencies; /* head_dim / 2 */
};

#define SIZE(field, text, what)                                                                    \
    {                                                                                              \
        .name = #field, .value = text, .type = HD_OPT_INT, .min = 1, .max = 1 << 24, .help = what, \
        .flags = HD_OPTION_GLOBAL, .offset = offsetof(struct settings, field),                     \
    }
#define NUMBER(field, text, what)                                                                     \
    {                                                                                                 \
        .name = #field, .value = text, .type = HD_OPT_FLOAT, .min = 1e-30, .max = 1e30, .help = what, \
        .flags = HD_OPTION_GLOBAL, .offset = offsetof(struct settings, field),                        \
    }

static const struct hd_option options[] = {
    SIZE(vocab, "256", "entries of the vocabulary"),
    SIZE(layers, "2", "layers"),
    SIZE(hidden, "64", "width of the residual stream"),
    SIZE(heads, "4", "heads of attention; hidden is a multiple"),
    SIZE(kv_heads, "2", "heads of keys and values; heads is a multiple"),
    SIZE(ffn, "128", "width of the feed-forward"),
    NUMBER(theta, "10000", "base of the rotary frequencies"),
    NUMBER(eps, "1e-5", "epsilon of the norms"),
};

static int64_t head_dim(const struct settings *s)
{
    return s->hidden / s->heads;
}

static int32_t open_model(const struct hd_host *host, const void *settings, struct hd_model **model,
                          struct hd_error *err)
{
    const struct settings *s = settings;
    if (s->hidden % s->heads || head_dim(s) % 2)
        return hd_fail(err, HD_E_INVALID, "model.hidden: %ld is no even multiple of model.heads, %ld", (long)s->hidden,
                       (long)s->heads);
    if (s->heads % s->kv_heads)
        return hd_fail(err, HD_E_INVALID, "model.kv_heads: model.heads, %ld, is no multiple of %ld", (long)s->heads,
                       (long)s->kv_heads);
    struct hd_model *m = calloc(1, sizeof *m);
    double *frequencies = malloc((size_t)(head_dim(s) / 2) * sizeof *frequencies);
    if (!m || !frequencies)
        return free(m), free(frequencies), hd_fail(err, HD_E_NOMEM, "model-decoder: no memory");
    for (int64_t i = 0; i < head_dim(s) / 2; i++)
        frequencies[i] = pow(s->theta, -2.0 * (double)i / (double)head_dim(s));
    *m = (struct hd_model){host, s, frequencies};
    *model = m;
    return HD_OK;
}

static void close_model(struct hd_model *m)
{
    if (m)
        free(m->frequencies);
    free(m);
}

/* What is said here has to be what `build` makes. */
static int32_t info(struct hd_model *m, struct hd_model_info *info, struct hd_error *err)
{
    (void)err;
    info->vocab = m->s->vocab;
    info->layers = m->s->layers;
    info->hidden = m->s->hidden;
    info->heads = m->s->heads;
    info->kv_heads = m->s->kv_heads;
    info->head_dim = head_dim(m->s);
    info->ffn = m->s->ffn;
    info->family = "decoder";
    return HD_OK;
}

/* ---- words for the program: a parameter of a layer, an op on up to three tensors */

struct emit {
    const struct hd_builder_api *api;
    struct hd_program *p;
    int64_t layer;
};

/* `pattern` has a %ld for the layer, or none. Norms begin as ones, what adds to the residual stream smaller. */
static hd_tensor param(struct emit *e, const char *pattern, const char *dims, uint32_t init, double std)
{
    char name[96];
    snprintf(name, sizeof name, pattern, (long)e->layer);
    const struct hd_param_desc desc = {
        .struct_size = sizeof desc, .name = name, .dims = dims, .init = init, .std = std};
    return e->api->param(e->p, &desc);
}

static hd_tensor op(struct emit *e, uint32_t op, const struct hd_attrs *attrs, const char *dims, hd_tensor a,
                    hd_tensor b, hd_tensor c)
{
    hd_tensor outs[HD_MAX_OUT] = {0};
    return e->api->emit(e->p, op, attrs, (hd_tensor[]){a, b, c}, c ? 3 : b ? 2 : 1, dims, outs);
}

static hd_tensor linear(struct emit *e, const char *dims, hd_tensor x, const char *name, const char *weight, double std)
{
    return op(e, HD_OP_EINSUM, NULL, dims, x, param(e, name, weight, HD_INIT_NORMAL, std), 0);
}

static hd_tensor layer(struct emit *e, const struct hd_model *m, hd_tensor x)
{
    const struct hd_attrs norm = {.struct_size = sizeof norm, .eps = m->s->eps};
    const struct hd_attrs rope = {
        .struct_size = sizeof rope, .sign = 1, .table = m->frequencies, .n_table = (uint64_t)(head_dim(m->s) / 2)};
    const struct hd_attrs attention = {.struct_size = sizeof attention, .scale = 1 / sqrt((double)head_dim(m->s))};
    double small = 0.02 / sqrt(2.0 * (double)m->s->layers);

    hd_tensor y = op(e, HD_OP_RMSNORM, &norm, "bsh", x, param(e, "layers.%ld.norm", "h", HD_INIT_ONES, 0), 0);
    hd_tensor q = linear(e, "bskgd", y, "layers.%ld.wq", "kgdh", 0.02);
    hd_tensor k = linear(e, "bskd", y, "layers.%ld.wk", "kdh", 0.02);
    hd_tensor v = linear(e, "bskd", y, "layers.%ld.wv", "kdh", 0.02);
    q = op(e, HD_OP_ROPE, &rope, "bskgd", q, 0, 0);
    k = op(e, HD_OP_ROPE, &rope, "bskd", k, 0, 0);
    hd_tensor heads = op(e, HD_OP_ATTENTION, &attention, "bskgd,bskg", q, k, v);
    hd_tensor a = linear(e, "bsh", heads, "layers.%ld.wo", "hkgd", small);

    hd_tensor gate = linear(e, "bsf", y, "layers.%ld.gate", "fh", 0.02);
    hd_tensor up = linear(e, "bsf", y, "layers.%ld.up", "fh", 0.02);
    hd_tensor f = linear(e, "bsh", op(e, HD_OP_SWIGLU, NULL, "bsf", gate, up, 0), "layers.%ld.down", "hf", small);
    return e->api->residual(e->p, op(e, HD_OP_ADD, NULL, "bsh", x, a, f));
}

/* The mean of the cross-entropy, in steps that work on shards of the vocabulary. */
static void loss(struct emit *e, hd_tensor logits)
{
    const struct hd_builder_api *api = e->api;
    const struct hd_attrs mean = {.struct_size = sizeof mean, .scale = api->loss_scale(e->p)};
    hd_tensor labels = api->input(e->p, "labels"), sums[HD_MAX_OUT] = {0};
    hd_tensor max = api->tokenwise(e->p, op(e, HD_OP_ROWMAX, NULL, "bs", logits, 0, 0));
    api->emit(e->p, HD_OP_XENT_LOCAL, NULL, (hd_tensor[]){logits, max, labels}, 3, "bs,bs", sums);
    hd_tensor sum = api->tokenwise(e->p, sums[0]), correct = api->tokenwise(e->p, sums[1]);
    hd_tensor nll = api->tokenwise(e->p, op(e, HD_OP_NLL, NULL, "bs", sum, max, correct));
    api->loss(e->p, op(e, HD_OP_TOTAL, &mean, "", nll, 0, 0));
}

static int32_t build(struct hd_model *m, struct hd_program *p, struct hd_error *err)
{
    const struct hd_builder_api *api = m->host->build;
    const struct hd_attrs norm = {.struct_size = sizeof norm, .eps = m->s->eps};
    struct emit e = {.api = api, .p = p};
    char name[24];
    (void)err; /* faults of calls are sticky in the program */
    api->dim(p, 'h', "hidden", m->s->hidden);
    api->dim(p, 'k', "kv_heads", m->s->kv_heads);
    api->dim(p, 'g', "heads_per_kv", m->s->heads / m->s->kv_heads);
    api->dim(p, 'd', "head_dim", head_dim(m->s));
    api->dim(p, 'f', "ffn", m->s->ffn);
    api->dim(p, 'v', "vocab", m->s->vocab);

    api->block(p, "embed");
    hd_tensor table = param(&e, "embed", "vh", HD_INIT_NORMAL, 0.02);
    hd_tensor x = api->residual(p, op(&e, HD_OP_EMBED, NULL, "bsh", api->input(p, "ids"), table, 0));
    for (e.layer = 0; e.layer < m->s->layers; e.layer++) {
        snprintf(name, sizeof name, "L%ld", (long)e.layer); /* blocks are what is gathered, recomputed and cut at */
        api->block(p, name);
        x = layer(&e, m, x);
    }
    api->block(p, "head");
    x = op(&e, HD_OP_RMSNORM, &norm, "bsh", x, param(&e, "norm", "h", HD_INIT_ONES, 0), 0);
    hd_tensor logits = linear(&e, "bsv", x, "head", "vh", 0.02);
    api->logits(p, logits);
    loss(&e, logits);
    return HD_OK;
}

static const struct hd_model_ops ops = {
    .struct_size = sizeof ops, .open = open_model, .close = close_model, .info = info, .build = build};

HD_PLUGIN("model-decoder", "1.0.0", "Apache-2.0", .kind = HD_KIND_MODEL, .name = "decoder",
          .summary = "a decoder with parallel residuals", HD_OPTIONS(options, struct settings), .ops = &ops)
