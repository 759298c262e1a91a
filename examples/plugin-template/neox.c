/* model-neox: GPT-NeoX (Black et al., arXiv 2204.06745; Pythia): attention and feed-forward side by side, rotary
 * positions on a part of each head, exact GELU. Weights lie as in transformers' GPTNeoXForCausalLM, whose
 * query_key_value is [heads, 3, head size] merged. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/model.h"

struct settings {
    int64_t layers, hidden, heads, ffn, vocab;
    double rotary, eps;
    const char *from;
};

struct hd_model {
    const struct hd_host *host;
    const struct settings *settings;
    int64_t n_table;
    double table[512];
    char config[1024];
};

#define COUNT(field, what)                                                                                 \
    {                                                                                                      \
        .name = #field, .type = HD_OPT_INT, .min = 1, .max = 1e6, .help = what, .flags = HD_OPTION_GLOBAL, \
        .offset = offsetof(struct settings, field),                                                        \
    }
#define REAL(field, text, most, what)                                                             \
    {                                                                                             \
        .name = #field, .value = text, .type = HD_OPT_FLOAT, .min = 0, .max = most, .help = what, \
        .flags = HD_OPTION_GLOBAL, .offset = offsetof(struct settings, field),                    \
    }

static const struct hd_option options[] = {
    COUNT(layers, "number of blocks"),
    COUNT(hidden, "width of the residual stream"),
    COUNT(heads, "heads, of hidden / heads elements"),
    COUNT(ffn, "width of the feed-forward"),
    COUNT(vocab, "size of the vocabulary"),
    REAL(rotary, "0.25", 1, "the share of a head's elements that are rotated (rotary_pct)"),
    REAL(eps, "1e-5", 1, "layer_norm_eps"),
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
    int64_t d = s->hidden / s->heads, n = (int64_t)(s->rotary * (double)d) / 2;
    if (s->hidden % s->heads)
        return hd_fail(err, HD_E_INVALID, "model.heads: %lld does not divide model.hidden, %lld", (long long)s->heads,
                       (long long)s->hidden);
    if (n < 1 || n > 512)
        return hd_fail(err, HD_E_INVALID, "model.rotary: %g of a head of %lld elements are no 1 to 512 pairs",
                       s->rotary, (long long)d);
    struct hd_model *m = calloc(1, sizeof *m);
    if (!m)
        return hd_fail(err, HD_E_NOMEM, "model-neox: no memory");
    m->host = host;
    m->settings = s;
    m->n_table = n;
    for (int64_t i = 0; i < n; i++)
        m->table[i] = pow(10000, -(double)i / (double)n);
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
    info->family = "gpt_neox";
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

enum { WHOLE = 0, QUERIES = 0, KEYS = 1, VALUES = 2 };

/* gpt_neox.NAME, or that of the layer if it begins with a dot. `third`: which of query_key_value. */
static hd_tensor param(const struct emit *e, const char *name, const char *dims, const char *axes, uint32_t init,
                       int fused, uint32_t third)
{
    char file[96], own[112];
    struct hd_param_desc desc = {.struct_size = sizeof desc,
                                 .name = own,
                                 .dims = dims,
                                 .init = init,
                                 .std = 0.02,
                                 .file_name = file,
                                 .file_axes = axes,
                                 .parts = 1};
    if (*name == '.')
        snprintf(file, sizeof file, "gpt_neox.layers.%lld%s", e->layer, name);
    else
        snprintf(file, sizeof file, "%s", name);
    snprintf(own, sizeof own, "%s%s%.1s", file, fused ? "." : "", fused ? &"qkv"[third] : "");
    if (fused) { /* thirds of each head: they come before the head's elements, the last dim but h */
        desc.part = third;
        desc.parts = 3;
        desc.part_dim = (uint32_t)(strchr(dims, 'd') - dims) + 1;
    }
    return e->api->param(e->p, &desc);
}

static hd_tensor op(const struct emit *e, uint32_t op, const struct hd_attrs *attrs, const char *dims, hd_tensor a,
                    hd_tensor b, hd_tensor c)
{
    hd_tensor ins[] = {a, b, c}, outs[HD_MAX_OUT];
    return e->api->emit(e->p, op, attrs, ins, c ? 3 : b ? 2 : 1, dims, outs);
}

static hd_tensor norm(const struct emit *e, hd_tensor x, const char *weight, const char *bias)
{
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .eps = e->model->settings->eps};
    return op(e, HD_OP_LAYERNORM, &attrs, "bsh", x, param(e, weight, "h", "0", HD_INIT_ONES, WHOLE, 0),
              param(e, bias, "h", "0", HD_INIT_ZEROS, WHOLE, 0));
}

static hd_tensor heads(const struct emit *e, hd_tensor x, const char *dims, uint32_t third)
{
    const char *w = third ? "kdh" : "kgdh", *axes = third ? "001" : "0001", *b = third ? "kd" : "kgd";
    hd_tensor y = op(e, HD_OP_EINSUM, NULL, dims, x,
                     param(e, ".attention.query_key_value.weight", w, axes, HD_INIT_NORMAL, 1, third), 0);
    return op(e, HD_OP_BIAS, NULL, dims, y,
              param(e, ".attention.query_key_value.bias", b, third ? "00" : "000", HD_INIT_ZEROS, 1, third), 0);
}

static hd_tensor linear(const struct emit *e, hd_tensor x, const char *out, const char *weight, const char *dims,
                        const char *axes, const char *bias, const char *bias_dims)
{
    hd_tensor y = op(e, HD_OP_EINSUM, NULL, out, x, param(e, weight, dims, axes, HD_INIT_NORMAL, WHOLE, 0), 0);
    return op(e, HD_OP_BIAS, NULL, out, y, param(e, bias, bias_dims, "0", HD_INIT_ZEROS, WHOLE, 0), 0);
}

static hd_tensor attention(const struct emit *e, hd_tensor x)
{
    const struct settings *s = e->model->settings;
    struct hd_attrs rope = {
        .struct_size = sizeof rope, .sign = 1, .table = e->model->table, .n_table = (uint64_t)e->model->n_table};
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .scale = 1 / sqrt((double)(s->hidden / s->heads))};
    hd_tensor q = op(e, HD_OP_ROPE, &rope, "bskgd", heads(e, x, "bskgd", QUERIES), 0, 0);
    hd_tensor k = op(e, HD_OP_ROPE, &rope, "bskd", heads(e, x, "bskd", KEYS), 0, 0);
    hd_tensor o = op(e, HD_OP_ATTENTION, &attrs, "bskgd,bskg", q, k, heads(e, x, "bskd", VALUES));
    return linear(e, o, "bsh", ".attention.dense.weight", "hkgd", "0111", ".attention.dense.bias", "h");
}

static hd_tensor feed_forward(const struct emit *e, hd_tensor x)
{
    hd_tensor y = linear(e, x, "bsf", ".mlp.dense_h_to_4h.weight", "fh", "01", ".mlp.dense_h_to_4h.bias", "f");
    y = op(e, HD_OP_GELU_ERF, NULL, "bsf", y, 0, 0);
    return linear(e, y, "bsh", ".mlp.dense_4h_to_h.weight", "hf", "01", ".mlp.dense_4h_to_h.bias", "h");
}

/* The mean over tokens of -log softmax(z)[label]. */
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

    e.api->block(p, "embed");
    hd_tensor words = param(&e, "gpt_neox.embed_in.weight", "vh", "01", HD_INIT_NORMAL, WHOLE, 0);
    hd_tensor x = e.api->residual(p, op(&e, HD_OP_EMBED, NULL, "bsh", e.api->input(p, "ids"), words, 0));
    for (e.layer = 0; e.layer < s->layers; e.layer++) {
        char block[32];
        snprintf(block, sizeof block, "L%lld", e.layer);
        e.api->block(p, block);
        hd_tensor a = attention(&e, norm(&e, x, ".input_layernorm.weight", ".input_layernorm.bias"));
        hd_tensor f =
            feed_forward(&e, norm(&e, x, ".post_attention_layernorm.weight", ".post_attention_layernorm.bias"));
        x = e.api->residual(p, op(&e, HD_OP_ADD, NULL, "bsh", x, a, f));
    }
    e.api->block(p, "head");
    x = norm(&e, x, "gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias");
    hd_tensor logits =
        op(&e, HD_OP_EINSUM, NULL, "bsv", x, param(&e, "embed_out.weight", "vh", "01", HD_INIT_NORMAL, WHOLE, 0), 0);
    e.api->logits(p, logits);
    e.api->loss(p, cross_entropy(&e, logits));
    return HD_OK;
}

static int32_t config_json(struct hd_model *m, const char **text, struct hd_error *err)
{
    const struct settings *s = m->settings;
    (void)err;
    snprintf(m->config, sizeof m->config,
             "{\"model_type\": \"gpt_neox\", \"architectures\": [\"GPTNeoXForCausalLM\"], \"hidden_size\": %lld, "
             "\"num_hidden_layers\": %lld, \"num_attention_heads\": %lld, \"intermediate_size\": %lld, \"vocab_size\": "
             "%lld, \"rotary_pct\": %.17g, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000, "
             "\"partial_rotary_factor\": %.17g}, \"layer_norm_eps\": %.17g, \"hidden_act\": \"gelu\", "
             "\"use_parallel_residual\": true, \"tie_word_embeddings\": false, \"bos_token_id\": null, "
             "\"eos_token_id\": null}\n",
             (long long)s->hidden, (long long)s->layers, (long long)s->heads, (long long)s->ffn, (long long)s->vocab,
             s->rotary, s->rotary, s->eps);
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

HD_PLUGIN("model-neox", "0.1.0", "Apache-2.0", .kind = HD_KIND_MODEL, .name = "neox",
          .summary = "GPT-NeoX: parallel residual, partial rotary, fused query_key_value",
          HD_OPTIONS(options, struct settings), .ops = &ops)
