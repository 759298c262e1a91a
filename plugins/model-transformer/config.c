/* Hugging Face's config.json -> struct tf_shape. What changes the numbers is honoured or refused by its name;
 * what does not (use_cache, token ids, initializer_range, ...) is left unread. */
#include "internal.h"

#include <math.h>
#include <stdlib.h>

#include "heddle/file.h"

enum { LONGEST_CONFIG = 16 << 20 };

/* Errors are sticky, as in hd_builder_api: after the first, the readers do nothing. */
struct reader {
    const json_t *root;
    const char *path;
    struct hd_error *err;
    int32_t rc;
};

#define REQUIRED (-1)
#define LARGEST_THETA 1e12 /* as of model.rope_theta */
#define LARGEST_FACTOR 1e6 /* below 1 positions would move apart, which no model is trained for */

/* The kinds of config.json that are read, and what their classes in transformers take for granted. */
static const struct kind {
    const char *model_type;
    enum tf_family family;
    int qkv_bias;
    int64_t kv_heads;       /* where num_key_value_heads is missing; 0: as many as heads */
    int64_t head_dim;       /* where head_dim is missing; 0: hidden / heads */
    int64_t sliding_window; /* where sliding_window is missing */
    int64_t longest;        /* where max_position_embeddings is missing */
    double theta, eps;      /* where rope_theta and rms_norm_eps are missing */
} kinds[] = {
    {"gpt2", TF_GPT2, 0, 0, 0, 0, 0, 0, 0},
    {"llama", TF_LLAMA, 0, 0, 0, 0, 2048, 1e4, 1e-6},
    {"mistral", TF_LLAMA, 0, REQUIRED, 0, 4096, 2048, 1e4, 1e-6},
    {"qwen2", TF_LLAMA, 1, REQUIRED, 0, 0, 2048, 1e4, 1e-6},
    {"qwen3", TF_QWEN3, 0, REQUIRED, 128, 0, 2048, 1e4, 1e-6},
    {"mixtral", TF_MIXTRAL, 0, REQUIRED, 0, 0, 131072, 1e6, 1e-5},
};

/* Keys that may be missing, or must have one of the values, as JSON, between the bars. */
struct demand {
    const char *key, *allowed;
};
static const struct demand demands_of_all[] = {
    {"is_causal", "true"},
    {"per_layer_config", "null|{}"},
    {"quantization_config", "null"},
    {"transformers_weights", "null|\"model.safetensors\"|\"model.safetensors.index.json\""},
    {NULL, NULL},
};
static const struct demand gpt2_demands[] = {
    {"activation_function", "\"gelu_new\"|\"gelu_pytorch_tanh\""},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {NULL, NULL},
};
static const struct demand llama_demands[] = {
    {"hidden_act", "\"silu\"|\"swish\""}, {"mlp_bias", "false"}, {"router_jitter_noise", "null|0|0.0"},
    {"use_sliding_window", "false"},      {NULL, NULL},
};
static const struct demand rope_demands[] = {
    {"partial_rotary_factor", "null|1|1.0"},
    {"attention_factor", "null|1|1.0"},
    {NULL, NULL},
};
/* Rates, and what GPT2Config takes for a missing one; the other classes take 0. */
static const struct {
    const char *key;
    double gpt2;
} dropouts[] = {
    {"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}, {"attention_dropout", 0}, {"hidden_dropout", 0},
};

#define refuse(r, code, format, ...)                                                    \
    do {                                                                                \
        if (!(r)->rc)                                                                   \
            (r)->rc = hd_fail((r)->err, code, "%s: " format, (r)->path, ##__VA_ARGS__); \
    } while (0)

/* NULL where the key is missing or null, which transformers takes as the same. */
static const json_t *value_of(const struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->root, key);
    return json_is_null(value) ? NULL : value;
}

static int64_t count_of(struct reader *r, const char *key, int64_t missing)
{
    const json_t *value = value_of(r, key);
    if (!value && missing == REQUIRED)
        refuse(r, HD_E_INVALID, "\"%s\" is missing", key);
    if (!value)
        return missing;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > INT32_MAX) {
        refuse(r, HD_E_INVALID, "\"%s\" must be a whole number from 1 to %d", key, INT32_MAX);
        return 1;
    }
    return json_integer_value(value);
}

/* A key that transformers knows by two names. */
static int64_t count_of_either(struct reader *r, const char *key, const char *other, int64_t missing)
{
    const json_t *value = value_of(r, key), *also = value_of(r, other);
    if (value && also && !json_equal(value, also))
        refuse(r, HD_E_INVALID, "\"%s\" and \"%s\" are two names of one size, and differ", key, other);
    return count_of(r, also && !value ? other : key, missing);
}

static double number_within(struct reader *r, const char *key, double missing, double least, double most)
{
    const json_t *value = value_of(r, key);
    if (!value && missing == REQUIRED)
        refuse(r, HD_E_INVALID, "\"%s\" is missing", key);
    if (!value)
        return missing;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number > 0) || !isfinite(number))
        refuse(r, HD_E_INVALID, "\"%s\" must be a number above 0", key);
    else if (number < least || number > most)
        refuse(r, HD_E_INVALID, "\"%s\" is %g: %g to %g are possible", key, number, least, most);
    return number;
}

static double number_of(struct reader *r, const char *key, double missing)
{
    return number_within(r, key, missing, 0, HUGE_VAL);
}

static int flag_of(struct reader *r, const char *key, int missing)
{
    const json_t *value = value_of(r, key);
    if (value && !json_is_boolean(value))
        refuse(r, HD_E_INVALID, "\"%s\" must be true or false", key);
    return value ? json_is_true(value) : missing;
}

/* "" where there is no such text. */
static const char *text_of(const struct reader *r, const char *key)
{
    const char *text = json_string_value(json_object_get(r->root, key));
    return text ? text : "";
}

/* Is `word` one of the alternatives between the bars? */
static int listed(const char *word, const char *allowed)
{
    size_t length = strlen(word);
    for (const char *at = allowed; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (!strncmp(at, word, length) && (at[length] == '|' || at[length] == '\0'))
            return 1;
    return 0;
}

static void check_demands(struct reader *r, const struct demand *demands)
{
    for (; demands->key; demands++) {
        const json_t *value = json_object_get(r->root, demands->key);
        char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        if (text && !listed(text, demands->allowed))
            refuse(r, HD_E_UNSUPPORTED, "\"%s\" is %.80s; this model offers only %s", demands->key, text,
                   demands->allowed);
        free(text);
    }
}

/* The first rate above 0. */
static void find_dropout(struct reader *r, struct tf_shape *shape)
{
    for (size_t i = 0; i < sizeof dropouts / sizeof dropouts[0]; i++) {
        const json_t *value = json_object_get(r->root, dropouts[i].key);
        double rate = value ? json_number_value(value) : shape->family == TF_GPT2 ? dropouts[i].gpt2 : 0;
        if ((value && !json_is_number(value)) || !(rate >= 0 && rate < 1))
            refuse(r, HD_E_INVALID, "\"%s\" must be a number from 0 to 1", dropouts[i].key);
        if (rate > 0 && !shape->dropout_key) {
            shape->dropout = rate;
            shape->dropout_key = dropouts[i].key;
        }
    }
}

/* ---- rotary positions: rope_theta and rope_scaling at the top, or both in the newer rope_parameters */

/* `r` reads the object that holds rope_type and its numbers. */
static void read_rope_kind(struct reader *r, struct tf_rope *rope)
{
    const char *type = text_of(r, "rope_type");
    if (!*type)
        type = text_of(r, "type");
    check_demands(r, rope_demands);
    if (!*type && value_of(r, "factor"))
        refuse(r, HD_E_INVALID, "\"factor\" is there, and \"rope_type\" is missing");
    if (!*type || !strcmp(type, "default"))
        return;
    if (strcmp(type, "linear") != 0 && strcmp(type, "llama3") != 0) {
        refuse(r, HD_E_UNSUPPORTED, "rope_scaling of type \"%.40s\" is not offered (default, linear, llama3)", type);
        return;
    }
    rope->factor = number_within(r, "factor", REQUIRED, 1, LARGEST_FACTOR);
    if (!strcmp(type, "linear")) {
        rope->kind = TF_ROPE_LINEAR;
    } else {
        rope->kind = TF_ROPE_LLAMA3;
        rope->low_freq_factor = number_of(r, "low_freq_factor", REQUIRED);
        rope->high_freq_factor = number_of(r, "high_freq_factor", REQUIRED);
        rope->original_length = number_of(r, "original_max_position_embeddings", REQUIRED);
        if (rope->high_freq_factor <= rope->low_freq_factor)
            refuse(r, HD_E_INVALID, "\"high_freq_factor\" must be above \"low_freq_factor\"");
    }
}

static int same_rope(const struct tf_rope *a, const struct tf_rope *b)
{
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_length == b->original_length;
}

/* rope_theta of rope_parameters is where transformers 5 reads it, that at the top where 4 does. */
static void read_rope(struct reader *r, struct tf_rope *rope, double theta)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    struct tf_rope read[2] = {{0}};
    int n = 0;
    rope->theta = number_within(r, "rope_theta", theta, 1, LARGEST_THETA);
    check_demands(r, rope_demands);
    for (int i = 0; i < 2; i++) {
        struct reader inner = {value_of(r, keys[i]), r->path, r->err, r->rc};
        const char *key;
        json_t *value;
        if (!inner.root || r->rc || (json_is_object(inner.root) && !json_object_size(inner.root)))
            continue;
        if (!json_is_object(inner.root))
            refuse(r, HD_E_INVALID, "\"%s\" must be an object", keys[i]);
        json_object_foreach((json_t *)inner.root, key, value) if (json_is_object(value))
            refuse(r, HD_E_UNSUPPORTED, "\"%s\" has a \"%.40s\" of its own; this model offers one for all layers",
                   keys[i], key);
        if (r->rc)
            return;
        read[n].theta = number_within(&inner, "rope_theta", rope->theta, 1, LARGEST_THETA);
        read_rope_kind(&inner, &read[n]);
        r->rc = inner.rc;
        if (value_of(r, "rope_theta") && read[n].theta != rope->theta)
            refuse(r, HD_E_INVALID, "\"rope_theta\" is %g, and %g in \"%s\": leave one out", rope->theta, read[n].theta,
                   keys[i]);
        n++;
    }
    if (n == 2 && !same_rope(&read[0], &read[1]))
        refuse(r, HD_E_INVALID, "\"rope_scaling\" and \"rope_parameters\" differ: leave one out");
    if (n)
        *rope = read[0];
    if (rope->kind == TF_ROPE_LLAMA3 &&
        number_of(r, "original_max_position_embeddings", rope->original_length) != rope->original_length)
        refuse(r, HD_E_INVALID, "\"original_max_position_embeddings\" is not that of the rotary positions, %g",
               rope->original_length);
}

/* ---- the two families */

static void read_gpt2(struct reader *r, struct tf_shape *shape)
{
    shape->layers = count_of_either(r, "n_layer", "num_hidden_layers", REQUIRED);
    shape->hidden = count_of_either(r, "n_embd", "hidden_size", REQUIRED);
    shape->heads = shape->kv_heads = count_of_either(r, "n_head", "num_attention_heads", REQUIRED);
    shape->ffn = count_of(r, "n_inner", 4 * shape->hidden);
    shape->max_seq_len = count_of_either(r, "n_positions", "max_position_embeddings", REQUIRED);
    shape->norm_eps = number_within(r, "layer_norm_epsilon", 1e-5, 0, 1);
    shape->tied = flag_of(r, "tie_word_embeddings", 1);
    check_demands(r, gpt2_demands);
}

/* Every layer must look at the whole past. */
static void check_layer_types(struct reader *r)
{
    const json_t *types = value_of(r, "layer_types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, "full_attention"))
            refuse(r, HD_E_UNSUPPORTED, "\"layer_types\" has \"%.40s\"; this model offers only \"full_attention\"",
                   type ? type : "?");
    }
}

/* transformers adds the loss to that of the model only where output_router_logits is set. */
static void read_experts(struct reader *r, struct tf_shape *shape)
{
    const json_t *coef = value_of(r, "router_aux_loss_coef");
    shape->experts = count_of_either(r, "num_local_experts", "num_experts", 8);
    shape->experts_per_token = count_of(r, "num_experts_per_tok", 2);
    if (coef && (!json_is_number(coef) || !(json_number_value(coef) >= 0)))
        refuse(r, HD_E_INVALID, "\"router_aux_loss_coef\" must be a number of 0 or more");
    if (flag_of(r, "output_router_logits", 0))
        shape->aux_loss_coef = coef ? json_number_value(coef) : 0.001;
}

static void read_llama(struct reader *r, struct tf_shape *shape, const struct kind *kind)
{
    int llama = !strcmp(kind->model_type, "llama");
    shape->layers = count_of(r, "num_hidden_layers", REQUIRED);
    shape->hidden = count_of(r, "hidden_size", REQUIRED);
    shape->heads = count_of(r, "num_attention_heads", REQUIRED);
    shape->kv_heads = count_of(r, "num_key_value_heads", kind->kv_heads ? kind->kv_heads : shape->heads);
    shape->head_dim = count_of(r, "head_dim", kind->head_dim);
    shape->ffn = count_of(r, "intermediate_size", REQUIRED);
    shape->max_seq_len = count_of(r, "max_position_embeddings", kind->longest);
    shape->norm_eps = number_within(r, "rms_norm_eps", kind->eps, 0, 1);
    shape->tied = flag_of(r, "tie_word_embeddings", 0);
    /* The other classes do not read it. */
    shape->out_bias = (llama || kind->family == TF_QWEN3) && flag_of(r, "attention_bias", 0);
    shape->qkv_bias = shape->out_bias || kind->qkv_bias;
    shape->qk_norm = kind->family == TF_QWEN3;
    if (kind->family == TF_MIXTRAL)
        read_experts(r, shape);
    /* A null sliding_window means none; only a missing one takes the class's default. Qwen's is behind a
     * switch. */
    int missing = !json_object_get(r->root, "sliding_window");
    shape->sliding_window = missing ? kind->sliding_window : count_of(r, "sliding_window", 0);
    if (!strncmp(kind->model_type, "qwen", 4))
        shape->sliding_window = 0;
    if (llama && shape->sliding_window && shape->sliding_window < shape->max_seq_len)
        refuse(r, HD_E_INVALID,
               "\"sliding_window\" is %lld, but transformers' llama has none: leave it out, or say \"model_type\": "
               "\"mistral\"",
               (long long)shape->sliding_window);
    check_layer_types(r);
    read_rope(r, &shape->rope, kind->theta);
    check_demands(r, llama_demands);
}

static const struct kind *kind_of(struct reader *r)
{
    const char *type = text_of(r, "model_type");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kinds[i].model_type, type))
            return &kinds[i];
    refuse(r, HD_E_UNSUPPORTED,
           "\"model_type\" is %s%.40s%s; this model reads gpt2, llama, mistral, qwen2, qwen3 and mixtral",
           *type ? "\"" : "missing, and says whose weights these are", type, *type ? "\"" : "");
    return NULL;
}

static void read_shape(struct reader *r, struct tf_shape *shape)
{
    if (value_of(r, "text_config") && !value_of(r, "vocab_size"))
        refuse(r, HD_E_UNSUPPORTED,
               "\"model_type\" is \"%.40s\", and the language model is inside it, in \"text_config\"; this model reads "
               "language models alone: save that one by itself, in transformers by "
               "model.language_model.save_pretrained(DIR), and name DIR",
               text_of(r, "model_type"));
    const struct kind *kind = kind_of(r);
    if (!kind)
        return;
    shape->family = kind->family;
    shape->vocab = count_of(r, "vocab_size", REQUIRED);
    if (kind->family == TF_GPT2)
        read_gpt2(r, shape);
    else
        read_llama(r, shape, kind);
    check_demands(r, demands_of_all);
}

/* ---- the file */

int32_t tf_open_file(const char *path, FILE **file, struct hd_error *err)
{
    uint64_t bytes;
    int fd = -1;
    int32_t rc = hd_open_regular(path, &fd, &bytes, err);
    if (!rc && !(*file = fdopen(fd, "rb"))) {
        close(fd);
        rc = hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    }
    return rc;
}

static int32_t load(const char *path, json_t **root, struct hd_error *err)
{
    FILE *file;
    int32_t rc = tf_open_file(path, &file, err);
    if (rc)
        return rc;
    char *text = malloc(LONGEST_CONFIG + 1);
    size_t length = text ? fread(text, 1, LONGEST_CONFIG + 1, file) : 0;
    int broken = ferror(file);
    json_error_t where;
    fclose(file);
    *root =
        text && !broken && length <= LONGEST_CONFIG ? json_loadb(text, length, JSON_REJECT_DUPLICATES, &where) : NULL;
    free(text);
    if (!text)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    if (broken)
        return hd_fail(err, HD_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    if (length > LONGEST_CONFIG)
        return hd_fail(err, HD_E_INVALID, "%s: longer than %d bytes, so no config.json", path, LONGEST_CONFIG);
    if (!*root)
        return hd_fail(err, HD_E_INVALID, "%s:%d:%d: %s", path, where.line, where.column, where.text);
    if (!json_is_object(*root)) {
        json_decref(*root);
        return hd_fail(err, HD_E_INVALID, "%s: not a JSON object", path);
    }
    return HD_OK;
}

/* A folder that is not there: a relative path of at most two parts may be meant for the Hugging Face hub. */
static int32_t fail_missing(const char *folder, struct hd_error *err)
{
    const char *slash = strchr(folder, '/');
    struct stat st;
    char snapshots[4096], index[4096];
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", folder);
    snprintf(index, sizeof index, "%s/index.json", folder);
    if (!stat(index, &st))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: is a checkpoint of heddle: checkpoint.resume goes on from it, and `heddle ckpt export JOB "
                       "--to FOLDER` makes a folder for model.from",
                       folder);
    if (!stat(folder, &st))
        return hd_fail(err, HD_E_NOTFOUND, "%s: has no config.json; name %s", folder,
                       stat(snapshots, &st)
                           ? "a folder with a Hugging Face model"
                           : "one of the models in its folder snapshots/, as the hub's cache has them");
    if (strspn(folder, "./~") || strpbrk(folder, "*?[") || (slash && (!slash[1] || strchr(slash + 1, '/'))))
        return HD_E_NOTFOUND;
    return hd_fail(err, HD_E_NOTFOUND,
                   "%s: there is no such folder; a name on the hub? `hf download %s --local-dir DIR`, then from: DIR",
                   folder, folder);
}

/* transformers would add it to the weights. */
static int32_t refuse_adapter(const char *folder, struct hd_error *err)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    if (stat(path, &st))
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "%s: is of an adapter (LoRA), which is not read: merge it into the model (peft's merge_and_unload) "
                   "and save that, or move the adapter away to train without it",
                   path);
}

int32_t tf_config_read(const char *folder, struct tf_shape *shape, char **text, struct hd_error *err)
{
    char path[4096];
    json_t *root = NULL;
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
        return hd_fail(err, HD_E_INVALID, "the path is too long: %.200s...", folder);
    int32_t rc = refuse_adapter(folder, err);
    if (!rc)
        rc = load(path, &root, err);
    if (rc)
        return rc == HD_E_NOTFOUND ? fail_missing(folder, err) : rc;
    struct reader r = {root, path, err, HD_OK};
    read_shape(&r, shape);
    find_dropout(&r, shape);
    /* For export. The dtype and the name are the exported file's own. */
    json_object_del(root, "transformers_weights");
    json_object_del(root, "torch_dtype");
    json_object_del(root, "dtype");
    *text = r.rc ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (!r.rc && !*text)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    return r.rc;
}
