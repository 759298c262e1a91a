/* The component: options, and settings -> a model that is fully said and checked. */
#include "internal.h"

#include <stdlib.h>

#define LARGEST 2147483647.0
#define LAYERS_MAX 4096 /* what is compiled and proved in seconds */
#define HEAD_DIM_MAX 65536
#define FIELD(field) offsetof(struct tf_settings, field)
#define COUNT(option, least, most, names, unit_, help_)                                               \
    {                                                                                                 \
        .name = #option, .unit = unit_, .help = help_, .type = HD_OPT_INT, .min = least, .max = most, \
        .flags = HD_OPTION_GLOBAL, .offset = FIELD(option), .aliases = names                          \
    }

static const struct hd_option options[] = {
    {.name = "family",
     .aliases = "model_type",
     .value = "auto",
     .choices = "auto|gpt2|llama|qwen3|mixtral",
     .type = HD_OPT_ENUM,
     .flags = HD_OPTION_GLOBAL,
     .help = "gpt2: LayerNorm, GELU, learned positions; llama: RMSNorm, SwiGLU, rotary; qwen3: llama with normalised "
             "queries and keys; mixtral: llama with experts; auto: as `from` says",
     .offset = FIELD(family)},
    COUNT(layers, 1, LAYERS_MAX, "num_hidden_layers|num_layers|n_layers|n_layer", "layers", "number of blocks"),
    COUNT(hidden, 1, LARGEST, "hidden_size|d_model|n_embd", NULL, "width of the residual stream"),
    COUNT(heads, 1, LARGEST, "num_attention_heads|num_heads|n_heads|n_head", "heads", "query heads"),
    COUNT(kv_heads, 0, LARGEST, "num_key_value_heads|num_query_groups|n_kv_heads", "heads",
          "key and value heads, each for heads / kv_heads query heads; 0: as heads"),
    COUNT(head_dim, 0, LARGEST, "kv_channels", NULL, "width of one head; 0: hidden / heads"),
    COUNT(ffn, 0, LARGEST, "intermediate_size|ffn_hidden_size|n_inner", NULL,
          "width of the feed-forward; 0: gpt2 4 hidden, llama 8/3 hidden up to a multiple of 64"),
    COUNT(vocab, 1, LARGEST, "vocab_size", "tokens", "size of the vocabulary; 256 for text as bytes"),
    COUNT(max_seq_len, 0, LARGEST, "max_position_embeddings|n_positions", "tokens",
          "longest sequence; 0: gpt2 1024 learned positions, llama any"),
    COUNT(sliding_window, 0, LARGEST, NULL, "tokens",
          "llama and mixtral: attention sees so many positions, its own the last; 0: all"),
    {.name = "tied",
     .value = "auto",
     .choices = "auto|true|false",
     .aliases = "tie_word_embeddings|tie_embeddings",
     .type = HD_OPT_ENUM,
     .flags = HD_OPTION_GLOBAL,
     .help = "does the head use the embedding's weights; auto: gpt2 true, llama false",
     .offset = FIELD(tied)},
    {.name = "experts",
     .help = "mixtral: number of experts",
     .type = HD_OPT_INT,
     .min = 0,
     .max = LARGEST,
     .aliases = "num_local_experts|num_experts",
     .unit = "experts",
     .flags = HD_OPTION_GLOBAL,
     .offset = FIELD(experts)},
    {.name = "experts_per_token",
     .help = "mixtral: how many experts the router chooses for a token; 0: 2",
     .type = HD_OPT_INT,
     .min = 0,
     .max = LARGEST,
     .aliases = "num_experts_per_tok|top_k",
     .unit = "experts",
     .flags = HD_OPTION_GLOBAL,
     .offset = FIELD(experts_per_token)},
    {.name = "capacity",
     .value = "dropless",
     .type = HD_OPT_STRING,
     .aliases = "capacity_factor",
     .flags = HD_OPTION_GLOBAL,
     .help = "mixtral: dropless, or slots of an expert in a sequence as a multiple of its fair share (1.25); tokens "
             "beyond are dropped",
     .offset = FIELD(capacity)},
    {.name = "router_aux_loss_coef",
     .value = "-1",
     .type = HD_OPT_FLOAT,
     .min = -1,
     .max = 1e6,
     .flags = HD_OPTION_GLOBAL,
     .help = "mixtral: weight of the loss that balances experts; -1: 0.001, or as `from` says",
     .offset = FIELD(aux_loss_coef)},
    {.name = "router_z_loss_coef",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e6,
     .flags = HD_OPTION_GLOBAL,
     .help = "mixtral: weight of the squared log sum exp of the router's logits",
     .offset = FIELD(z_loss_coef)},
    {.name = "rope_theta",
     .needs = "family!=gpt2",
     .aliases = "rotary_base",
     .type = HD_OPT_FLOAT,
     .min = 1,
     .max = 1e12,
     .flags = HD_OPTION_GLOBAL,
     .help = "llama: base of the rotary frequencies; 10000 if left out",
     .offset = FIELD(rope_theta)},
    {.name = "norm_eps",
     .aliases = "rms_norm_eps|layer_norm_epsilon|norm_epsilon",
     .type = HD_OPT_FLOAT,
     .min = 1e-30,
     .max = 1,
     .flags = HD_OPTION_GLOBAL,
     .help = "added to the variance in norms; 1e-5 if left out",
     .offset = FIELD(norm_eps)},
    {.name = "dropout",
     .value = "-1",
     .type = HD_OPT_FLOAT,
     .min = -1,
     .max = 1,
     .flags = HD_OPTION_GLOBAL,
     .help = "0 trains a model without the dropout that its config.json asks for; other rates are not offered; -1: as "
             "`from` says",
     .offset = FIELD(dropout)},
    {.name = "from",
     .type = HD_OPT_STRING,
     .flags = HD_OPTION_GLOBAL | HD_OPTION_PATH,
     .help = "a Hugging Face folder: config.json (gpt2, llama, mistral, qwen2, qwen3, mixtral) and, but to plan, "
             "safetensors "
             "weights",
     .offset = FIELD(from)},
};

/* Settings that a config.json says too. */
static const struct row {
    const char *name;
    size_t setting, shape;
} rows[] = {
#define ROW(field)                                             \
    {                                                          \
#field, FIELD(field), offsetof(struct tf_shape, field) \
    }
    ROW(layers), ROW(hidden),      ROW(heads),   ROW(kv_heads),          ROW(head_dim),       ROW(ffn),
    ROW(vocab),  ROW(max_seq_len), ROW(experts), ROW(experts_per_token), ROW(sliding_window),
};
#define N_ROWS (sizeof rows / sizeof rows[0])

static int64_t get(const void *base, size_t offset)
{
    int64_t value;
    memcpy(&value, (const char *)base + offset, sizeof value);
    return value;
}

const char *tf_family_name(enum tf_family family)
{
    static const char *const names[] = {"auto", "gpt2", "llama", "qwen3", "mixtral"};
    return names[family];
}

/* ---- settings alone */

static int32_t shape_from_settings(const struct tf_settings *set, struct tf_shape *shape, struct hd_error *err)
{
    if (set->family == TF_AUTO)
        return hd_fail(err, HD_E_INVALID,
                       "model.family is missing: say gpt2, llama, qwen3 or mixtral, or name a folder in model.from");
    shape->family = (enum tf_family)set->family;
    shape->qk_norm = shape->family == TF_QWEN3;
    shape->aux_loss_coef = shape->family == TF_MIXTRAL ? 0.001 : 0;
    for (size_t i = 0; i < N_ROWS; i++)
        memcpy((char *)shape + rows[i].shape, (const char *)set + rows[i].setting, sizeof(int64_t));
    shape->norm_eps = set->norm_eps > 0 ? set->norm_eps : 1e-5;
    shape->rope.theta = set->rope_theta > 0 ? set->rope_theta : 10000;
    shape->tied = set->tied ? set->tied == 1 : shape->family == TF_GPT2;
    if (!shape->ffn)
        shape->ffn = shape->family == TF_GPT2 ? 4 * shape->hidden : (8 * shape->hidden / 3 + 63) / 64 * 64;
    if (!shape->max_seq_len && shape->family == TF_GPT2)
        shape->max_seq_len = 1024;
    if (!shape->experts_per_token && shape->family == TF_MIXTRAL)
        shape->experts_per_token = 2;
    return HD_OK;
}

/* ---- settings beside a config.json: what both say must agree */

static int32_t check_against_config(const struct tf_settings *set, const struct tf_shape *shape, struct hd_error *err)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        int64_t said = get(set, rows[i].setting), read = get(shape, rows[i].shape);
        if (said && said != read)
            return hd_fail(err, HD_E_INVALID, "model.%s is %lld, but %s/config.json says %lld: leave it out",
                           rows[i].name, (long long)said, set->from, (long long)read);
    }
    if (set->family != TF_AUTO && set->family != (int32_t)shape->family)
        return hd_fail(err, HD_E_INVALID, "model.family does not agree with %s/config.json: leave it out", set->from);
    if (set->tied && (set->tied == 1) != shape->tied)
        return hd_fail(err, HD_E_INVALID, "model.tied does not agree with %s/config.json: leave it out", set->from);
    if (set->norm_eps > 0 && set->norm_eps != shape->norm_eps)
        return hd_fail(err, HD_E_INVALID, "model.norm_eps is %g, but %s/config.json says %g: leave it out",
                       set->norm_eps, set->from, shape->norm_eps);
    if (set->rope_theta > 0 && shape->family == TF_GPT2)
        return hd_fail(err, HD_E_INVALID, "model.rope_theta has no effect: %s/config.json says gpt2: leave it out",
                       set->from);
    if (set->rope_theta > 0 && set->rope_theta != shape->rope.theta)
        return hd_fail(err, HD_E_INVALID, "model.rope_theta is %g, but %s/config.json says %g: leave it out",
                       set->rope_theta, set->from, shape->rope.theta);
    return HD_OK;
}

/* ---- experts: sizes are the model's, the rest is a matter of training and may be said beside a config.json */

static int32_t set_training(const struct tf_settings *set, struct tf_shape *shape, struct hd_error *err)
{
    char *end;
    if (set->aux_loss_coef < 0 && set->aux_loss_coef > -1)
        return hd_fail(err, HD_E_INVALID,
                       "model.router_aux_loss_coef is %g: a loss has a weight of 0 or more; -1 is the default",
                       set->aux_loss_coef);
    if (set->aux_loss_coef >= 0)
        shape->aux_loss_coef = set->aux_loss_coef;
    shape->z_loss_coef = set->z_loss_coef;
    shape->capacity = 0;
    if (set->dropout > 0 || (set->dropout < 0 && set->dropout > -1))
        return hd_fail(err, HD_E_INVALID, "model.dropout is %g, but heddle has no dropout: only 0 is offered",
                       set->dropout);
    if (set->capacity && strcmp(set->capacity, "dropless")) {
        shape->capacity = strtod(set->capacity, &end);
        if (*end || end == set->capacity || !(shape->capacity > 0) || shape->capacity > 1e6)
            return hd_fail(err, HD_E_INVALID,
                           "model.capacity is \"%.40s\"; say dropless, or a number above 0 such as 1.25",
                           set->capacity);
    }
    if (shape->family != TF_MIXTRAL && (shape->experts || shape->experts_per_token || shape->capacity > 0 ||
                                        shape->z_loss_coef > 0 || set->aux_loss_coef > 0))
        return hd_fail(err, HD_E_INVALID, "model.%s is for mixtral; %s has no experts",
                       shape->experts             ? "experts"
                       : shape->experts_per_token ? "experts_per_token"
                       : shape->capacity > 0      ? "capacity"
                       : shape->z_loss_coef > 0   ? "router_z_loss_coef"
                                                  : "router_aux_loss_coef",
                       tf_family_name(shape->family));
    if (shape->experts && shape->experts_per_token > shape->experts)
        return hd_fail(err, HD_E_INVALID, "model.experts_per_token is %lld, but there are %lld experts",
                       (long long)shape->experts_per_token, (long long)shape->experts);
    return HD_OK;
}

static int is_optional(const struct tf_shape *shape, size_t field)
{
    int experts = field == offsetof(struct tf_shape, experts) || field == offsetof(struct tf_shape, experts_per_token);
    return field == offsetof(struct tf_shape, head_dim) || field == offsetof(struct tf_shape, max_seq_len) ||
           field == offsetof(struct tf_shape, sliding_window) || (experts && shape->family != TF_MIXTRAL);
}

/* ---- what any shape must hold */

static int32_t complete(struct tf_shape *shape, struct hd_error *err)
{
    if (!shape->kv_heads)
        shape->kv_heads = shape->heads;
    for (size_t i = 0; i < N_ROWS; i++)
        if (!get(shape, rows[i].shape) && !is_optional(shape, rows[i].shape))
            return hd_fail(err, HD_E_INVALID, "model.%s is missing", rows[i].name);
    if (shape->layers > LAYERS_MAX)
        return hd_fail(err, HD_E_INVALID, "model.layers is %lld; at most %d", (long long)shape->layers, LAYERS_MAX);
    if (shape->heads % shape->kv_heads)
        return hd_fail(err, HD_E_INVALID, "model.heads (%lld) is not a multiple of model.kv_heads (%lld)",
                       (long long)shape->heads, (long long)shape->kv_heads);
    if (shape->family == TF_GPT2 && shape->kv_heads != shape->heads)
        return hd_fail(err, HD_E_INVALID, "model.kv_heads is for llama; gpt2 has as many as heads");
    if (!shape->head_dim && shape->hidden % shape->heads)
        return hd_fail(err, HD_E_INVALID, "model.hidden (%lld) is not a multiple of model.heads (%lld)",
                       (long long)shape->hidden, (long long)shape->heads);
    if (!shape->head_dim)
        shape->head_dim = shape->hidden / shape->heads;
    if (shape->head_dim > HEAD_DIM_MAX)
        return hd_fail(err, HD_E_INVALID, "model.head_dim is %lld; at most %d: use more heads",
                       (long long)shape->head_dim, HEAD_DIM_MAX);
    if (shape->family == TF_GPT2 && shape->head_dim * shape->heads != shape->hidden)
        return hd_fail(err, HD_E_INVALID, "model.head_dim must be hidden / heads for gpt2");
    if (shape->sliding_window && shape->family != TF_LLAMA && shape->family != TF_MIXTRAL)
        return hd_fail(err, HD_E_INVALID, "model.sliding_window is for llama and mixtral; %s has none",
                       tf_family_name(shape->family));
    if (shape->family != TF_GPT2 && shape->head_dim % 2 && shape->head_dim * shape->heads == shape->hidden)
        return hd_fail(err, HD_E_INVALID,
                       "model.heads: %lld heads of model.hidden %lld are %lld wide each, which must be even, as rotary "
                       "positions turn pairs: other heads, or model.head_dim",
                       (long long)shape->heads, (long long)shape->hidden, (long long)shape->head_dim);
    if (shape->family != TF_GPT2 && shape->head_dim % 2)
        return hd_fail(err, HD_E_INVALID, "model.head_dim (%lld) must be even: rotary positions turn pairs",
                       (long long)shape->head_dim);
    return HD_OK;
}

/* ---- the component's slots */

static void model_close(struct hd_model *model)
{
    if (!model)
        return;
    const struct hd_host *host = model->host;
    free(model->config_text);
    free(model->untrainable);
    free(model->from);
    host->free(model->frequencies);
    host->free(model);
}

static int32_t read_folder(struct hd_model *model, const char *from, struct hd_error *err)
{
    struct tf_shape *shape = &model->shape;
    int found = 0;
    int32_t rc = tf_config_read(from, shape, &model->config_text, err);
    if (!rc)
        rc = complete(shape, err);
    if (!rc)
        rc = tf_weights_have(from, shape->family == TF_GPT2 ? "wte.weight" : "embed_tokens.weight", &found, err);
    model->unprefixed = found;
    if (!rc && shape->experts)
        rc = tf_weights_have(from, "model.layers.0.mlp.experts.gate_up_proj", &shape->fused_experts, err);
    return rc;
}

static int32_t open_folder(struct hd_model *model, const struct tf_settings *set, struct hd_error *err)
{
    const struct tf_shape *shape = &model->shape;
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = read_folder(model, set->from, &why);
    if (rc)
        return hd_fail(err, rc, "model.from: %.1000s", why.message);
    if ((rc = check_against_config(set, shape, err)))
        return rc;
    if (shape->dropout > 0 && set->dropout < 0 &&
        asprintf(&model->untrainable,
                 "model.from: %s/config.json: \"%s\" is %g, but heddle has no dropout: say model.dropout: 0 to "
                 "train without",
                 set->from, shape->dropout_key, shape->dropout) < 0)
        model->untrainable = NULL;
    model->from = strdup(set->from);
    return model->from ? HD_OK : hd_fail(err, HD_E_NOMEM, "no memory for a model");
}

static int32_t make_frequencies(struct hd_model *model, struct hd_error *err)
{
    const struct tf_shape *shape = &model->shape;
    if (shape->family == TF_GPT2)
        return HD_OK;
    model->frequencies = model->host->alloc((size_t)shape->head_dim / 2 * sizeof(double));
    if (!model->frequencies)
        return hd_fail(err, HD_E_NOMEM, "no memory for %lld rotary frequencies", (long long)shape->head_dim / 2);
    tf_rope_table(&shape->rope, shape->head_dim, model->frequencies);
    return HD_OK;
}

static int32_t model_open(const struct hd_host *host, const void *settings, struct hd_model **out, struct hd_error *err)
{
    const struct tf_settings *set = settings;
    struct hd_model *model = host->alloc(sizeof *model);
    if (!model)
        return hd_fail(err, HD_E_NOMEM, "no memory for a model");
    model->host = host;
    int32_t rc;
    if (set->from && *set->from) {
        rc = open_folder(model, set, err);
    } else {
        rc = shape_from_settings(set, &model->shape, err);
        if (!rc)
            rc = complete(&model->shape, err);
    }
    if (!rc)
        rc = set_training(set, &model->shape, err);
    if (!rc)
        rc = make_frequencies(model, err);
    if (rc) {
        model_close(model);
        return rc;
    }
    *out = model;
    return HD_OK;
}

static int32_t model_info(struct hd_model *model, struct hd_model_info *info, struct hd_error *err)
{
    const struct tf_shape *s = &model->shape;
    (void)err;
    struct hd_model_info all = {
        .struct_size = info->struct_size,
        .vocab = s->vocab,
        .layers = s->layers,
        .hidden = s->hidden,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .ffn = s->ffn,
        .max_seq_len = s->max_seq_len,
        .family = tf_family_name(s->family),
        .weights = model->from,
        .experts = s->experts,
        .experts_per_token = s->experts_per_token,
        .untrainable = model->untrainable,
    };
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
    return HD_OK;
}

static int32_t model_build(struct hd_model *model, struct hd_program *program, struct hd_error *err)
{
    const struct tf_shape *shape = &model->shape;
    const struct hd_builder_api *api = model->host->build;
    int64_t length = api->extent(program, 's');
    struct tf_emit e;
    if (shape->max_seq_len && length > shape->max_seq_len)
        return hd_fail(err, HD_E_INVALID,
                       "data.seq_len is %lld, but this model has %lld positions (%s): use at most %lld",
                       (long long)length, (long long)shape->max_seq_len,
                       !model->from               ? "model.max_seq_len"
                       : shape->family == TF_GPT2 ? "n_positions in the config.json of model.from"
                                                  : "max_position_embeddings in the config.json of model.from",
                       (long long)shape->max_seq_len);
    if (length > model->longest_seen)
        model->longest_seen = length;
    tf_emit_begin(&e, model, program);
    if (shape->family == TF_GPT2)
        tf_gpt2_build(&e);
    else
        tf_llama_build(&e);
    return HD_OK;
}

static int32_t model_config_json(struct hd_model *model, const char **text, struct hd_error *err)
{
    if (!model->config_text)
        model->config_text = tf_config_write(model);
    if (!model->config_text)
        return hd_fail(err, HD_E_NOMEM, "no memory for a config.json");
    *text = model->config_text;
    return HD_OK;
}

static const struct hd_model_ops ops = {
    .struct_size = sizeof ops,
    .open = model_open,
    .close = model_close,
    .info = model_info,
    .build = model_build,
    .config_json = model_config_json,
};

HD_PLUGIN(
    "model-transformer", "0.1.0", "Apache-2.0", .kind = HD_KIND_MODEL, .name = "transformer",
    .summary = "decoder-only transformers: gpt2, llama, qwen3 and mixtral, by fields or from a Hugging Face folder",
    HD_OPTIONS(options, struct tf_settings), .ops = &ops)
