/* model-encoder: a masked language model, as transformers' DistilBertForMaskedLM (arXiv 1910.01108; BERT without token
 * types): attention without a mask, norms behind the residual add, exact GELU, a head with a norm. Its source of data
 * says which tokens were masked: data-pairs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/model.h"

struct settings {
    int64_t layers, hidden, heads, ffn, vocab, positions;
    const char *from;
};

struct hd_model {
    const struct hd_host *host;
    const struct settings *settings;
    char config[512];
};

#define COUNT(field, what)                                                                                 \
    {                                                                                                      \
        .name = #field, .type = HD_OPT_INT, .min = 1, .max = 1e6, .help = what, .flags = HD_OPTION_GLOBAL, \
        .offset = offsetof(struct settings, field),                                                        \
    }

static const struct hd_option options[] = {
    COUNT(layers, "number of blocks"),
    COUNT(hidden, "width of the residual stream"),
    COUNT(heads, "heads, of hidden / heads elements"),
    COUNT(ffn, "width of the feed-forward"),
    COUNT(vocab, "size of the vocabulary"),
    COUNT(positions, "longest sequence"),
    {.name = "from",
     .type = HD_OPT_STRING,
     .value = "",
     .help = "folder with *.safetensors to start from",
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct settings, from)},
};

static int32_t open_model(const struct hd_host *host, const void *settings, struct hd_model **model,
                          struct hd_error *err)
{
    const struct settings *s = settings;
    if (s->hidden % s->heads)
        return hd_fail(err, HD_E_INVALID, "model.heads: %lld does not divide model.hidden, %lld", (long long)s->heads,
                       (long long)s->hidden);
    struct hd_model *m = calloc(1, sizeof *m);
    if (!m)
        return hd_fail(err, HD_E_NOMEM, "model-encoder: no memory");
    m->host = host;
    m->settings = s;
    *model = m;
    return HD_OK;
}

static void close_model(struct hd_model *m)
{
    free(m);
}

static int32_t info(struct hd_model *m, struct hd_model_info *info, struct hd_error *err)
{
    const struct settings *s = m->settings;
    (void)err;
    info->vocab = s->vocab;
    info->layers = s->layers;
    info->hidden = s->hidden;
    info->heads = info->kv_heads = s->heads;
    info->head_dim = s->hidden / s->heads;
    info->ffn = s->ffn;
    info->max_seq_len = s->positions;
    info->family = "distilbert";
    info->weights = *s->from ? s->from : NULL;
    return HD_OK;
}

/* ---- the program. k: heads, each with the one query head that dim g counts. */

struct emit {
    const struct hd_builder_api *api;
    struct hd_program *p;
    const struct hd_model *model;
    long long layer;
};

/* distilbert.NAME, or that of the layer if it begins with a dot; names of the head stand alone. */
static hd_tensor param(const struct emit *e, const char *name, const char *part, const char *dims, const char *axes,
                       uint32_t init)
{
    char full[128];
    struct hd_param_desc desc = {.struct_size = sizeof desc,
                                 .name = full,
                                 .dims = dims,
                                 .init = init,
                                 .std = 0.02,
                                 .file_name = full,
                                 .file_axes = axes,
                                 .parts = 1};
    if (*name == '.')
        snprintf(full, sizeof full, "distilbert.transformer.layer.%lld%s.%s", e->layer, name, part);
    else
        snprintf(full, sizeof full, "%s%s.%s", strncmp(name, "embed", 5) ? "" : "distilbert.", name, part);
    return e->api->param(e->p, &desc);
}

static hd_tensor op(const struct emit *e, uint32_t op, const struct hd_attrs *attrs, const char *dims, hd_tensor a,
                    hd_tensor b, hd_tensor c)
{
    hd_tensor ins[] = {a, b, c}, outs[HD_MAX_OUT];
    return e->api->emit(e->p, op, attrs, ins, c ? 3 : b ? 2 : 1, dims, outs);
}

static hd_tensor norm(const struct emit *e, const char *dims, hd_tensor x, const char *name)
{
    const char *width = dims + 2;
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .eps = 1e-12};
    return op(e, HD_OP_LAYERNORM, &attrs, dims, x, param(e, name, "weight", width, "0", HD_INIT_ONES),
              param(e, name, "bias", width, "0", HD_INIT_ZEROS));
}

/* x w + c; `bias`: the output's dims that the bias has, all on one axis of its file. */
static hd_tensor linear(const struct emit *e, hd_tensor x, const char *name, const char *out, const char *dims,
                        const char *axes, const char *bias)
{
    hd_tensor y = op(e, HD_OP_EINSUM, NULL, out, x, param(e, name, "weight", dims, axes, HD_INIT_NORMAL), 0);
    return op(e, HD_OP_BIAS, NULL, out, y, param(e, name, "bias", bias, &"000"[3 - strlen(bias)], HD_INIT_ZEROS), 0);
}

static hd_tensor attention(const struct emit *e, hd_tensor x)
{
    const struct settings *s = e->model->settings;
    struct hd_attrs attrs = {
        .struct_size = sizeof attrs, .scale = 1 / sqrt((double)(s->hidden / s->heads)), .flags = HD_ATTR_NOT_CAUSAL};
    hd_tensor q = linear(e, x, ".attention.q_lin", "bskgd", "kgdh", "0001", "kgd");
    hd_tensor k = linear(e, x, ".attention.k_lin", "bskd", "kdh", "001", "kd");
    hd_tensor v = linear(e, x, ".attention.v_lin", "bskd", "kdh", "001", "kd");
    hd_tensor o = op(e, HD_OP_ATTENTION, &attrs, "bskgd,bskg", q, k, v);
    return linear(e, o, ".attention.out_lin", "bsh", "hkgd", "0111", "h");
}

static hd_tensor feed_forward(const struct emit *e, hd_tensor x)
{
    hd_tensor y = op(e, HD_OP_GELU_ERF, NULL, "bsf", linear(e, x, ".ffn.lin1", "bsf", "fh", "01", "f"), 0, 0);
    return linear(e, y, ".ffn.lin2", "bsh", "hf", "01", "h");
}

static hd_tensor add_norm(const struct emit *e, hd_tensor x, hd_tensor y, const char *name)
{
    return e->api->residual(e->p, norm(e, "bsh", op(e, HD_OP_ADD, NULL, "bsh", x, y, 0), name));
}

/* The mean of -log softmax(z)[label]: over all tokens here; heddle makes it one over those whose label counts. */
static hd_tensor cross_entropy(const struct emit *e, hd_tensor z)
{
    struct hd_attrs mean = {.struct_size = sizeof mean, .scale = e->api->loss_scale(e->p)};
    hd_tensor labels = e->api->input(e->p, "labels"), sums[HD_MAX_OUT];
    hd_tensor max = e->api->tokenwise(e->p, op(e, HD_OP_ROWMAX, NULL, "bs", z, 0, 0));
    e->api->emit(e->p, HD_OP_XENT_LOCAL, NULL, (hd_tensor[]){z, max, labels}, 3, "bs,bs", sums);
    hd_tensor nll =
        op(e, HD_OP_NLL, NULL, "bs", e->api->tokenwise(e->p, sums[0]), max, e->api->tokenwise(e->p, sums[1]));
    return op(e, HD_OP_TOTAL, &mean, "", e->api->tokenwise(e->p, nll), 0, 0);
}

static int32_t build(struct hd_model *m, struct hd_program *p, struct hd_error *err)
{
    const struct settings *s = m->settings;
    struct emit e = {.api = m->host->build, .p = p, .model = m};
    (void)err; /* the builder keeps the first */
    e.api->dim(p, 'h', "hidden", s->hidden);
    e.api->dim(p, 'k', "heads", s->heads);
    e.api->dim(p, 'g', "queries a head", 1);
    e.api->dim(p, 'd', "head size", s->hidden / s->heads);
    e.api->dim(p, 'f', "ffn", s->ffn);
    e.api->dim(p, 'v', "vocab", s->vocab);
    e.api->dim(p, 'p', "positions", s->positions);

    e.api->block(p, "embed");
    hd_tensor words = param(&e, "embeddings.word_embeddings", "weight", "vh", "01", HD_INIT_NORMAL);
    hd_tensor places = param(&e, "embeddings.position_embeddings", "weight", "ph", "01", HD_INIT_NORMAL);
    hd_tensor x = e.api->residual(p, op(&e, HD_OP_EMBED, NULL, "bsh", e.api->input(p, "ids"), words, 0));
    x = e.api->residual(p, norm(&e, "bsh", op(&e, HD_OP_POSITION, NULL, "bsh", x, places, 0), "embeddings.LayerNorm"));
    for (e.layer = 0; e.layer < s->layers; e.layer++) {
        char block[32];
        snprintf(block, sizeof block, "L%lld", e.layer);
        e.api->block(p, block);
        x = add_norm(&e, x, attention(&e, x), ".sa_layer_norm");
        x = add_norm(&e, x, feed_forward(&e, x), ".output_layer_norm");
    }
    e.api->block(p, "head");
    e.api->dim(p, 'w', "head width", s->hidden); /* a square matrix: its two dims have letters of their own */
    x = linear(&e, x, "vocab_transform", "bsw", "wh", "01", "w");
    x = norm(&e, "bsw", op(&e, HD_OP_GELU_ERF, NULL, "bsw", x, 0, 0), "vocab_layer_norm");
    hd_tensor projector = param(&e, "vocab_projector", "weight", "vw", "01", HD_INIT_NORMAL);
    hd_tensor logits = op(&e, HD_OP_EINSUM, NULL, "bsv", x, projector, 0);
    logits = op(&e, HD_OP_BIAS, NULL, "bsv", logits, param(&e, "vocab_projector", "bias", "v", "0", HD_INIT_ZEROS), 0);
    e.api->logits(p, logits);
    e.api->loss(p, cross_entropy(&e, logits));
    return HD_OK;
}

static int32_t config_json(struct hd_model *m, const char **text, struct hd_error *err)
{
    const struct settings *s = m->settings;
    (void)err;
    snprintf(m->config, sizeof m->config,
             "{\"model_type\": \"distilbert\", \"architectures\": [\"DistilBertForMaskedLM\"], \"dim\": %lld, "
             "\"n_layers\": %lld, \"n_heads\": %lld, \"hidden_dim\": %lld, \"vocab_size\": %lld, "
             "\"max_position_embeddings\": %lld, \"activation\": \"gelu\", \"tie_word_embeddings\": false}\n",
             (long long)s->hidden, (long long)s->layers, (long long)s->heads, (long long)s->ffn, (long long)s->vocab,
             (long long)s->positions);
    *text = m->config;
    return HD_OK;
}

static const struct hd_model_ops ops = {
    .struct_size = sizeof ops,
    .open = open_model,
    .close = close_model,
    .info = info,
    .build = build,
    .config_json = config_json,
};

HD_PLUGIN("model-encoder", "0.1.0", "Apache-2.0", .kind = HD_KIND_MODEL, .name = "encoder",
          .summary = "DistilBERT: attention without a mask, a masked loss", HD_OPTIONS(options, struct settings),
          .ops = &ops)
