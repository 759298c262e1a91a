/* config.json in and out: what is honoured, what is refused and in which words; fields of the job. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "load.h"
#include "mock.h"
#include "tests/suite.h"

static char folder[64];

static void write_file(const char *name, const void *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void write_weights(const char *header)
{
    char data[512] = {(char)strlen(header)};
    ck_assert_uint_lt(strlen(header), 128);
    strcpy(data + 8, header);
    write_file("model.safetensors", data, 8 + strlen(header));
}

static void begin(void)
{
    model_load();
    strcpy(folder, "/tmp/heddle-config-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_weights("{}");
}

static void end(void)
{
    static const char *const names[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                        "adapter_config.json"};
    char path[128];
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* Opens the folder with this config.json; NULL where it is refused. */
static struct hd_model *open_config(const char *text, struct hd_error *err)
{
    write_file("config.json", text, strlen(text));
    return model_open(err, model_settings("from", folder, NULL));
}

#define GPT2                                                                                        \
    "\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_embd\": 12, \"n_layer\": 2, \"n_head\": 3, " \
    "\"n_positions\": 16"
#define LLAMA                                                                                        \
    "\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 16, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"intermediate_size\": 24"
#define MISTRAL                                                                                        \
    "\"model_type\": \"mistral\", \"vocab_size\": 64, \"hidden_size\": 16, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"intermediate_size\": 24, \"num_key_value_heads\": 2"

#define QWEN3                                                                                        \
    "\"model_type\": \"qwen3\", \"vocab_size\": 64, \"hidden_size\": 16, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"intermediate_size\": 24, \"num_key_value_heads\": 2"

#define MIXTRAL                                                                                        \
    "\"model_type\": \"mixtral\", \"vocab_size\": 64, \"hidden_size\": 16, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"intermediate_size\": 24, \"num_key_value_heads\": 2"

/* ---- refusals */

static const struct {
    const char *config, *words;
} refused[] = {
    {"", "config.json:1:0"},
    {"{\"model_type\": \"gpt2\",\n \"vocab_size\": }", "config.json:2:"},
    {"[1]", "not a JSON object"},
    {"{}", "\"model_type\" is missing, and says whose weights these are; this model reads gpt2, llama,"},
    {"{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"llama\", \"vocab_size\": 64}}",
     "\"model_type\" is \"llava\", and the language model is inside it, in \"text_config\""},
    {"{\"model_type\": \"mistral\", \"text_config\": {\"vocab_size\": 64}}", "inside it, in \"text_config\""},
    {"{\"model_type\": \"bert\"}", "\"model_type\" is \"bert\""},
    {"{\"model_type\": \"gpt2\", \"model_type\": \"llama\"}", "duplicate"},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 64}", "\"n_layer\" is missing"},
    {"{" GPT2 ", \"n_inner\": -4}", "\"n_inner\" must be a whole number"},
    {"{" GPT2 ", \"n_inner\": 99999999999}", "\"n_inner\" must be a whole number"},
    {"{" GPT2 ", \"n_inner\": \"48\"}", "\"n_inner\" must be a whole number"},
    {"{" GPT2 ", \"activation_function\": \"gelu\"}", "\"activation_function\" is \"gelu\""},
    {"{" GPT2 ", \"activation_function\": \"gelu_new|\"}", "\"activation_function\" is"},
    {"{" GPT2 ", \"scale_attn_by_inverse_layer_idx\": true}", "\"scale_attn_by_inverse_layer_idx\" is true"},
    {"{" GPT2 ", \"scale_attn_weights\": false}", "\"scale_attn_weights\" is false"},
    {"{" GPT2 ", \"add_cross_attention\": true}", "\"add_cross_attention\" is true"},
    {"{" GPT2 ", \"num_attention_heads\": 6}", "\"n_head\" and \"num_attention_heads\" are two names of one size"},
    {"{" GPT2 ", \"is_causal\": false}", "\"is_causal\" is false"},
    {"{" GPT2 ", \"transformers_weights\": \"b.safetensors\"}", "\"transformers_weights\" is \"b.safetensors\""},
    {"{" LLAMA ", \"per_layer_config\": {\"1\": {}}}", "\"per_layer_config\" is {\"1\":{}}"},
    {"{" LLAMA ", \"sliding_window\": 32}", "\"sliding_window\" is 32, but transformers' llama has none"},
    {"{" LLAMA ", \"rope_scaling\": {\"factor\": 2}}", "\"rope_type\" is missing"},
    {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\"}}", "\"factor\" is missing"},
    {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
     "\"high_freq_factor\": 4}}",
     "\"original_max_position_embeddings\" is missing"},
    {"{" LLAMA ", \"original_max_position_embeddings\": 64, \"rope_parameters\": {\"rope_type\": \"llama3\", "
     "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}}",
     "\"original_max_position_embeddings\" is not that of the rotary positions, 32"},
    {"{" LLAMA ", \"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 5e5}}",
     "\"rope_theta\" is 10000, and 500000 in \"rope_parameters\": leave one out"},
    {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_theta\": 1e4}}",
     "\"rope_scaling\" and \"rope_parameters\" differ"},
    {"{" LLAMA ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}}",
     "\"rope_parameters\" has a \"full_attention\" of its own"},
    {"{" GPT2 ", \"tie_word_embeddings\": 1}", "\"tie_word_embeddings\" must be true or false"},
    {"{" GPT2 ", \"layer_norm_epsilon\": 0}", "\"layer_norm_epsilon\" must be a number above 0"},
    {"{" LLAMA ", \"hidden_act\": \"relu\"}", "\"hidden_act\" is \"relu\""},
    {"{" LLAMA ", \"mlp_bias\": true}", "\"mlp_bias\" is true"},
    {"{" LLAMA ", \"num_key_value_heads\": 3}", "model.heads (4) is not a multiple of model.kv_heads (3)"},
    {"{" LLAMA ", \"head_dim\": 5}", "model.head_dim (5) must be even"},
    {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}", "rope_scaling of type \"yarn\""},
    {"{" LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", "rope_scaling of type \"dynamic\""},
    {"{" LLAMA ", \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [2]}}", "rope_scaling of type \"mrope\""},
    {"{" LLAMA ", \"rope_scaling\": [2]}", "\"rope_scaling\" must be an object"},
    {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}",
     "\"factor\" must be a number above 0"},
    {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.25}}",
     "\"factor\" is 0.25: 1 to 1e+06 are possible"},
    {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 1e9}}", "\"factor\" is 1e+09"},
    {"{" LLAMA ", \"rope_parameters\": {\"rope_theta\": 1e30}}", "\"rope_theta\" is 1e+30: 1 to 1e+12 are possible"},
    {"{" LLAMA ", \"rope_theta\": 0.5}", "\"rope_theta\" is 0.5"},
    {"{" LLAMA ", \"rms_norm_eps\": 1e5}", "\"rms_norm_eps\" is 100000: 0 to 1 are possible"},
    {"{" GPT2 ", \"layer_norm_epsilon\": 1e5}", "\"layer_norm_epsilon\" is 100000"},
    {"{" LLAMA ", \"rope_parameters\": {\"rope_theta\": \"x\"}}", "\"rope_theta\" must be a number above 0"},
    {"{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}}",
     "\"partial_rotary_factor\" is 0.5"},
    {"{" LLAMA ", \"quantization_config\": {\"bits\": 4}}", "\"quantization_config\" is {\"bits\":4}"},
    {"{" LLAMA ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     "\"layer_types\" has \"sliding_attention\""},
    {"{\"model_type\": \"qwen2\", \"vocab_size\": 64, \"hidden_size\": 16, \"num_hidden_layers\": 2, "
     "\"num_attention_heads\": 4, \"intermediate_size\": 24, \"num_key_value_heads\": 2, "
     "\"use_sliding_window\": true}",
     "\"use_sliding_window\" is true"},
    {"{\"model_type\": \"mistral\", \"vocab_size\": 64, \"hidden_size\": 16, \"num_hidden_layers\": 2, "
     "\"num_attention_heads\": 4, \"intermediate_size\": 24}",
     "\"num_key_value_heads\" is missing"},
    {"{" LLAMA ", \"attention_dropout\": \"0.1\"}", "\"attention_dropout\" must be a number from 0 to 1"},
    {"{" GPT2 ", \"attn_pdrop\": 1.5}", "\"attn_pdrop\" must be a number from 0 to 1"},
    {"{" MIXTRAL ", \"router_jitter_noise\": 0.1}", "\"router_jitter_noise\" is 0.1"},
    {"{" MIXTRAL ", \"num_local_experts\": 0}", "\"num_local_experts\" must be a whole number"},
    {"{" MIXTRAL ", \"num_local_experts\": 4, \"num_experts_per_tok\": 5}", "there are 4 experts"},
    {"{" MIXTRAL ", \"router_aux_loss_coef\": -1}", "\"router_aux_loss_coef\" must be a number of 0 or more"},
};

START_TEST(refusals)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = open_config(refused[_i].config, &err);
    ck_assert_msg(!model, "accepted: %s", refused[_i].config);
    ck_assert_msg(strstr(err.message, refused[_i].words), "\"%s\" does not say %s", err.message, refused[_i].words);
    ck_assert_msg(strstr(err.message, "config.json") || strstr(err.message, "model."), "no place in: %s", err.message);
}
END_TEST

START_TEST(missing_files)
{
    struct hd_error err = HD_ERROR_INIT;
    write_file("adapter_config.json", "{}", 2);
    ck_assert_ptr_null(open_config("{" GPT2 "}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "/adapter_config.json: is of an adapter"));
    end();
    begin();
    char path[128];
    ck_assert_ptr_null(model_open(&err, model_settings("from", folder, NULL)));
    ck_assert_ptr_nonnull(strstr(err.message, "has no config.json; name a folder with a Hugging Face model"));
    snprintf(path, sizeof path, "%s/snapshots", folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_ptr_null(model_open(&err, model_settings("from", folder, NULL)));
    ck_assert_ptr_nonnull(strstr(err.message, "one of the models in its folder snapshots/"));
    ck_assert_int_eq(rmdir(path), 0);
    write_file("index.json", "{}", 2);
    ck_assert_ptr_null(model_open(&err, model_settings("from", folder, NULL)));
    ck_assert_ptr_nonnull(strstr(err.message, ": is a checkpoint of heddle: checkpoint.resume goes on from it, and"));
    write_weights("{\"a\"");
    ck_assert_ptr_null(open_config("{" GPT2 "}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "model.safetensors: bad safetensors header"));
    write_file("model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    ck_assert_ptr_null(open_config("{" GPT2 "}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "not a safetensors file"));
    write_file("model.safetensors", "\x09\0\0\0\0\0\0\0{}", 10);
    ck_assert_ptr_null(open_config("{" GPT2 "}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "cut off"));
    end();
    begin();
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* which would block */
    ck_assert_ptr_null(open_config("{" GPT2 "}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "model.safetensors: not a regular file but a FIFO"));
    unlink(path);
    model_ops->close(open_config("{" GPT2 "}", &err)); /* planning needs no weights */
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_ptr_null(model_open(&err, model_settings("from", folder, NULL)));
    ck_assert_ptr_nonnull(strstr(err.message, "config.json: not a regular file but a FIFO"));
}
END_TEST

START_TEST(missing_folders)
{
    static const struct {
        const char *from, *words;
        int is_hub;
    } rows[] = {
        {"meta-llama/Llama-3.2-1B", "hf download meta-llama/Llama-3.2-1B --local-dir DIR", 1},
        {"gpt2-none", "`hf download gpt2-none ", 1},
        {"./none", "model.from: ./none/config.json: No such file or directory", 0},
        {"/none/none", "/none/none/config.json: No such file", 0},
        {"none/none/none", "none/none/none/config.json: No such file", 0},
        {"~/none", "~, * and $ are not expanded", 0},
        {"none*", "~, * and $ are not expanded", 0},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct hd_error err = HD_ERROR_INIT;
        ck_assert_ptr_null(model_open(&err, model_settings("from", rows[i].from, NULL)));
        ck_assert_int_eq(err.code, HD_E_NOTFOUND);
        ck_assert_msg(strstr(err.message, rows[i].words) && !strncmp(err.message, "model.from: ", 12) &&
                          !strstr(err.message, "hf download") == !rows[i].is_hub,
                      "%s", err.message);
    }
}
END_TEST

/* ---- what is read */

static struct hd_model_info info_of(struct hd_model *model)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model_info info = {.struct_size = sizeof info};
    ck_assert_int_eq(model_ops->info(model, &info, &err), HD_OK);
    return info;
}

START_TEST(fields_of_gpt2)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = open_config("{" GPT2 ", \"n_inner\": null, \"attn_pdrop\": 0.1}", &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_model_info info = info_of(model);
    ck_assert_str_eq(info.family, "gpt2");
    ck_assert_str_eq(info.weights, folder);
    ck_assert_int_eq(info.ffn, 48);
    ck_assert_int_eq(info.max_seq_len, 16);
    ck_assert_int_eq(info.head_dim, 4);
    ck_assert_int_eq(info.kv_heads, 3);
    ck_assert_str_eq(model_warnings, "");
    model_ops->close(model);
}
END_TEST

#define NO_PDROP ", \"attn_pdrop\": 0.0, \"resid_pdrop\": 0, \"embd_pdrop\": 0.0"

/* Defaults of GPT2Config and LlamaConfig for a missing rate: 0.1 and 0. */
START_TEST(dropout)
{
    static const struct {
        const char *config, *words; /* NULL: may be trained */
    } rows[] = {
        {"{" LLAMA "}", NULL},
        {"{" LLAMA ", \"attention_dropout\": 0.0}", NULL},
        {"{" LLAMA ", \"attention_dropout\": 0.25}", "config.json: \"attention_dropout\" is 0.25"},
        {"{" GPT2 "}", "\"attn_pdrop\" is 0.1"},
        {"{" GPT2 NO_PDROP "}", NULL},
        {"{" GPT2 ", \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"resid_pdrop\": 0.2}", "\"resid_pdrop\" is 0.2"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd_model *model = open_config(rows[i].config, &err);
        ck_assert_msg(model != NULL, "%s", err.message);
        const char *why = info_of(model).untrainable;
        ck_assert_msg(!why == !rows[i].words, "%s: %s", rows[i].config, why ? why : "nothing");
        ck_assert_msg(!why || (strstr(why, rows[i].words) && strstr(why, "say model.dropout: 0")), "%s", why);
        model_ops->close(model);
        model = model_open(&err, model_settings("from", folder, "dropout", "0", NULL));
        ck_assert_msg(model && !info_of(model).untrainable, "%s", err.message);
        model_ops->close(model);
    }
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_ptr_null(model_open(&err, model_settings("from", folder, "dropout", "0.1", NULL)));
    ck_assert_ptr_nonnull(strstr(err.message, "model.dropout is 0.1, but heddle has no dropout"));
}
END_TEST

static struct hd_program *build(struct hd_model *model, int64_t seq)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_program *p = mock_new(1, seq);
    ck_assert_msg(model_ops->build(model, p, &err) == HD_OK, "%s", err.message);
    return p;
}

/* The inverse frequencies that the program's rope reads. */
static void check_frequencies(const char *config, const json_t *expected)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = open_config(config, &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_program *p = build(model, 4);
    uint32_t i = 0;
    while (p->instrs[i].op != HD_OP_ROPE)
        i++;
    ck_assert_uint_eq(p->instrs[i].attrs.n_table, json_array_size(expected));
    for (size_t n = 0; n < json_array_size(expected); n++) {
        double want = json_number_value(json_array_get(expected, n)); /* transformers computes them in fp32 */
        ck_assert_double_eq_tol(p->instrs[i].attrs.table[n], want, 1e-6 * want);
    }
    mock_free(p);
    model_ops->close(model);
}

/* Against transformers' tables, in both spellings of the keys. */
START_TEST(rope_tables)
{
    json_error_t where;
    json_t *cases = json_load_file(GOLDEN_DIR "/rope.json", 0, &where), *row;
    const char *name;
    ck_assert_msg(cases != NULL, "%s", where.text);
    ck_assert_uint_eq(json_object_size(cases), 3);
    json_object_foreach(cases, name, row)
    {
        json_t *rope = json_object_get(row, "rope_parameters");
        char config[1024], *newer = json_dumps(rope, 0);
        int head_dim = (int)json_integer_value(json_object_get(row, "head_dim"));
        double theta = json_number_value(json_object_get(rope, "rope_theta"));
        snprintf(config, sizeof config, "{" LLAMA ", \"head_dim\": %d, \"rope_parameters\": %s}", head_dim, newer);
        check_frequencies(config, json_object_get(row, "frequencies"));
        json_object_del(rope, "rope_theta");
        char *older = json_dumps(rope, 0);
        snprintf(config, sizeof config, "{" LLAMA ", \"head_dim\": %d, \"rope_theta\": %.17g, \"rope_scaling\": %s}",
                 head_dim, theta, older);
        check_frequencies(config, json_object_get(row, "frequencies"));
        free(newer);
        free(older);
    }
    json_decref(cases);
}
END_TEST

/* Qwen3Config's head_dim is 128 where config.json does not say it. */
START_TEST(heads_of_qwen3)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = open_config("{" QWEN3 "}", &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_model_info info = info_of(model);
    ck_assert_str_eq(info.family, "qwen3");
    ck_assert_int_eq(info.head_dim, 128);
    model_ops->close(model);
    model = open_config("{" QWEN3 ", \"head_dim\": 6, \"sliding_window\": 4, \"use_sliding_window\": false}", &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_program *p = build(model, 8);
    ck_assert_str_eq(mock_param(p, "model.layers.1.self_attn.k_norm.weight")->dims, "d");
    mock_free(p);
    model_ops->close(model);
    ck_assert_ptr_null(open_config("{" QWEN3 ", \"use_sliding_window\": true}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "\"use_sliding_window\" is true"));
}
END_TEST

static uint32_t count_ops(const struct hd_program *p, uint32_t op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        n += p->instrs[i].op == op;
    return n;
}

/* As transformers: the router's loss counts only where output_router_logits is set. The job may say otherwise.
 * Dropless. */
START_TEST(experts_of_mixtral)
{
    static const struct {
        const char *config, *coef;
        uint32_t losses;
    } rows[] = {{"{" MIXTRAL "}", NULL, 0},
                {"{" MIXTRAL ", \"output_router_logits\": true}", NULL, 2},
                {"{" MIXTRAL ", \"output_router_logits\": true, \"router_aux_loss_coef\": 0}", NULL, 0},
                {"{" MIXTRAL "}", "0.5", 2},
                {"{" MIXTRAL ", \"output_router_logits\": true}", "0", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_error err = HD_ERROR_INIT;
        write_file("config.json", rows[i].config, strlen(rows[i].config));
        struct hd_model *model =
            model_open(&err, rows[i].coef ? model_settings("from", folder, "router_aux_loss_coef", rows[i].coef, NULL)
                                          : model_settings("from", folder, NULL));
        ck_assert_msg(model != NULL, "%s", err.message);
        struct hd_model_info info = info_of(model);
        struct hd_program *p = build(model, 8);
        ck_assert_str_eq(info.family, "mixtral");
        ck_assert_int_eq(info.experts, 8);
        ck_assert_int_eq(info.experts_per_token, 2);
        ck_assert_uint_eq(p->n_auxiliary, rows[i].losses);
        ck_assert_uint_eq(count_ops(p, HD_OP_ROUTER_LOSS), rows[i].losses);
        ck_assert_uint_eq(count_ops(p, HD_OP_GROUPED), 6);
        mock_free(p);
        model_ops->close(model);
    }
}
END_TEST

static int64_t window_of_model(struct hd_model *model, int64_t length)
{
    struct hd_program *p = build(model, length);
    int64_t window = -1;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instrs[i].op == HD_OP_ATTENTION)
            window = p->instrs[i].attrs.window;
    mock_free(p);
    return window;
}

static int64_t window_of(const char *config, int64_t length)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = open_config(config, &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    int64_t window = window_of_model(model, length);
    model_ops->close(model);
    return window;
}

START_TEST(sliding_window_only_above_it)
{
    ck_assert_int_eq(window_of("{" MISTRAL ", \"sliding_window\": 32}", 32), 0);
    ck_assert_int_eq(window_of("{" MISTRAL ", \"sliding_window\": 32}", 33), 32);
    ck_assert_int_eq(window_of("{" MISTRAL ", \"sliding_window\": null, \"max_position_embeddings\": 9000}", 8192), 0);
    /* Missing is 4096 in transformers. */
    ck_assert_int_eq(window_of("{" MISTRAL ", \"max_position_embeddings\": 9000}", 4097), 4096);
}
END_TEST

START_TEST(longer_than_max_seq_len)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = open_config("{" GPT2 "}", &err);
    struct hd_program *p = mock_new(1, 17);
    ck_assert_int_eq(model_ops->build(model, p, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "data.seq_len is 17, but this model has 16 positions"));
    mock_free(p);
    model_ops->close(model);
}
END_TEST

START_TEST(biases_of_attention)
{
    static const struct {
        const char *config;
        const char *has, *has_not;
    } rows[] = {
        {"{" LLAMA "}", NULL, "model.layers.0.self_attn.q_proj.bias"},
        {"{" LLAMA ", \"attention_bias\": true}", "model.layers.0.self_attn.o_proj.bias", NULL},
        {"{" LLAMA ", \"attention_bias\": true}", "model.layers.1.self_attn.v_proj.bias", NULL},
        {"{" MISTRAL ", \"attention_bias\": true}", NULL, "model.layers.1.self_attn.v_proj.bias"}, /* not read there */
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd_model *model = open_config(rows[i].config, &err);
        struct hd_program *p = build(model, 4);
        if (rows[i].has)
            ck_assert_uint_eq(mock_param(p, rows[i].has)->init, HD_INIT_ZEROS);
        for (uint32_t n = 0; rows[i].has_not && n < p->n_params; n++)
            ck_assert_str_ne(p->params[n].name, rows[i].has_not);
        mock_free(p);
        model_ops->close(model);
    }
}
END_TEST

/* The first published GPT-2 has "wte.weight" where transformers writes "transformer.wte.weight". */
START_TEST(names_without_prefix)
{
    static const char *const headers[] = {"{\"wte.weight\": {}}", "{\"transformer.wte.weight\": {}}"};
    for (int i = 0; i < 2; i++) {
        struct hd_error err = HD_ERROR_INIT;
        write_weights(headers[i]);
        struct hd_model *model = open_config("{" GPT2 ", \"tie_word_embeddings\": false}", &err);
        struct hd_program *p = build(model, 4);
        const struct mock_param *param = mock_param(p, "transformer.h.1.mlp.c_fc.weight");
        ck_assert_str_eq(param->file, i ? "transformer.h.1.mlp.c_fc.weight" : "h.1.mlp.c_fc.weight");
        ck_assert_str_eq(mock_param(p, "lm_head.weight")->file, "lm_head.weight");
        mock_free(p);
        model_ops->close(model);
    }
}
END_TEST

/* As transformers, an index is read only where model.safetensors is not there. */
START_TEST(names_in_an_index)
{
    struct hd_error err = HD_ERROR_INIT;
    const char *index = "{\"weight_map\": {\"wte.weight\": \"model-00001-of-00002.safetensors\"}}";
    char path[128];
    write_file("model.safetensors.index.json", index, strlen(index));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (int alone = 0; alone < 2; alone++) {
        struct hd_model *model = open_config("{" GPT2 "}", &err);
        struct hd_program *p = build(model, 4);
        ck_assert_str_eq(mock_param(p, "transformer.wte.weight")->file,
                         alone ? "wte.weight" : "transformer.wte.weight");
        mock_free(p);
        model_ops->close(model);
        ck_assert(alone || !unlink(path));
    }
    write_file("model.safetensors.index.json", "{", 1);
    ck_assert_ptr_null(open_config("{" GPT2 "}", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "index.json:1:1"));
}
END_TEST

/* ---- the job's own fields */

static const struct {
    const char *words[12];
    const char *says;
} bad_fields[] = {
    {{"layers", "2"}, "model.family is missing"},
    {{"family", "llama", "hidden", "64", "heads", "4", "vocab", "256"}, "model.layers is missing"},
    {{"family", "llama", "layers", "2", "hidden", "64", "heads", "4"}, "model.vocab is missing"},
    {{"family", "llama", "layers", "2", "hidden", "66", "heads", "4", "vocab", "256"}, "not a multiple of model.heads"},
    {{"family", "llama", "layers", "2", "hidden", "60", "heads", "4", "vocab", "256"}, "must be even"},
    {{"family", "gpt2", "layers", "2", "hidden", "64", "heads", "4", "vocab", "256", "kv_heads", "2"}, "is for llama"},
    {{"family", "gpt2", "layers", "2", "hidden", "64", "heads", "4", "vocab", "256", "head_dim", "8"},
     "must be hidden / heads"},
    {{"family", "mixtral", "layers", "2", "hidden", "64", "heads", "4", "vocab", "256"}, "model.experts is missing"},
    {{"family", "llama", "layers", "2", "hidden", "64", "heads", "4", "vocab", "256", "experts", "4"},
     "model.experts is for mixtral"},
    {{"family", "llama", "layers", "2", "hidden", "64", "heads", "4", "vocab", "256", "capacity", "2"},
     "model.capacity is for mixtral"},
    {{"family", "llama", "layers", "200000", "hidden", "64", "heads", "4", "vocab", "256"}, "at most 4096"},
};

START_TEST(fields)
{
    struct hd_error err = HD_ERROR_INIT;
    const char *const *w = bad_fields[_i].words;
    struct hd_model *model = model_open(
        &err, model_settings(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], NULL));
    ck_assert_ptr_null(model);
    ck_assert_msg(strstr(err.message, bad_fields[_i].says), "\"%s\" does not say %s", err.message, bad_fields[_i].says);
}
END_TEST

START_TEST(fields_beside_from_must_agree)
{
    static const char *const rows[][3] = {
        {"layers", "2", NULL},
        {"layers", "3", "model.layers is 3"},
        {"family", "gpt2", NULL},
        {"family", "llama", "model.family does not agree"},
        {"tied", "true", NULL},
        {"tied", "false", "model.tied does not agree"},
        {"norm_eps", "1e-3", "model.norm_eps is 0.001"},
        {"rope_theta", "1e6", "model.rope_theta has no effect: "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_error err = HD_ERROR_INIT;
        write_file("config.json", "{" GPT2 "}", strlen("{" GPT2 "}"));
        struct hd_model *model = model_open(&err, model_settings("from", folder, rows[i][0], rows[i][1], NULL));
        ck_assert_int_eq(model == NULL, rows[i][2] != NULL);
        ck_assert_msg(model || strstr(err.message, rows[i][2]), "%s", err.message);
        model_ops->close(model);
    }
}
END_TEST

/* ---- export: what is written is read again as the same model */

static void check_round_trip(const void *settings)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = model_open(&err, settings);
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_model_info before = info_of(model);
    struct hd_program *p = build(model, 8);
    int64_t parameters = mock_parameters(p);
    const char *text, *again;
    mock_free(p);
    ck_assert_int_eq(model_ops->config_json(model, &text, &err), HD_OK);
    struct hd_model *copy = open_config(text, &err);
    ck_assert_msg(copy != NULL, "%s", err.message);
    struct hd_model_info after = info_of(copy);
    ck_assert_str_eq(before.family, after.family);
    ck_assert_mem_eq(&before.vocab, &after.vocab, 7 * sizeof(int64_t));
    p = build(copy, 8);
    ck_assert_int_eq(mock_parameters(p), parameters);
    mock_free(p);
    ck_assert_int_eq(window_of(text, 8), window_of_model(model, 8));
    /* And a model that came from a folder gives that folder's config.json back. */
    ck_assert_int_eq(model_ops->config_json(copy, &again, &err), HD_OK);
    ck_assert_str_eq(text, again);
    model_ops->close(copy);
    model_ops->close(model);
}

START_TEST(round_trips)
{
    check_round_trip(model_settings("family", "gpt2", "layers", "2", "hidden", "12", "heads", "3", "ffn", "20", "vocab",
                                    "64", NULL));
    check_round_trip(model_settings("family", "llama", "layers", "2", "hidden", "16", "heads", "4", "kv_heads", "2",
                                    "vocab", "64", "tied", "true", "head_dim", "6", "norm_eps", "1e-6", NULL));
    check_round_trip(model_settings("family", "mixtral", "layers", "2", "hidden", "16", "heads", "4", "kv_heads", "2",
                                    "vocab", "64", "experts", "6", NULL));
    check_round_trip(model_settings("family", "llama", "layers", "2", "hidden", "16", "heads", "4", "vocab", "64",
                                    "sliding_window", "5", NULL));
    check_round_trip(model_settings("family", "qwen3", "layers", "2", "hidden", "16", "heads", "4", "kv_heads", "2",
                                    "vocab", "64", "head_dim", "6", NULL));
}
END_TEST

/* The file that an export writes has the usual name, and a dtype of its own. */
START_TEST(exported_names)
{
    struct hd_error err = HD_ERROR_INIT;
    const char *text;
    struct hd_model *model = open_config("{" LLAMA ", \"dtype\": \"float16\", \"transformers_weights\": "
                                         "\"model.safetensors.index.json\"}",
                                         &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    ck_assert_int_eq(model_ops->config_json(model, &text, &err), HD_OK);
    ck_assert(!strstr(text, "transformers_weights") && !strstr(text, "float16"));
    model_ops->close(model);
}
END_TEST

/* ---- hostile files: cut, flipped and spliced; opened or refused with a place, never a crash */

static uint32_t next_random(uint32_t *state) /* Numerical Recipes */
{
    return (*state = *state * 1664525 + 1013904223) >> 8;
}

static size_t read_golden(const char *name, char *text, size_t room)
{
    char path[600];
    snprintf(path, sizeof path, GOLDEN_DIR "/%s", name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, room, file);
    fclose(file);
    return length;
}

/* Some words that mean something to the readers, put over what was there. */
static size_t mutate(char *text, size_t length, size_t range, uint32_t *random)
{
    static const char *const words[] = {"null", "-1",   "1e999", "99999999999999999999", "{", "]", "\"",
                                        "0.5",  "true", ":"};
    uint32_t kind = next_random(random) % 3, at = next_random(random) % (uint32_t)HD__MIN(length, range);
    if (kind == 0)
        return at + 1;
    if (kind == 1) {
        text[at] = (char)next_random(random);
        return length;
    }
    const char *word = words[next_random(random) % (sizeof words / sizeof words[0])];
    size_t n = strlen(word) < length - at ? strlen(word) : length - at;
    memcpy(text + at, word, n);
    return length;
}

START_TEST(hostile_files)
{
    static const char *const files[][2] = {{"llama-tied/config.json", "config.json"},
                                           {"gpt2/config.json", "config.json"},
                                           {"gpt2/model.safetensors", "model.safetensors"}};
    static char text[32768];
    uint32_t random = 1337;
    int opened = 0, refusals_seen = 0;
    size_t length = read_golden("gpt2/config.json", text, sizeof text);
    write_file("config.json", text, length);
    for (int round = 0; round < 2000; round++) {
        length = read_golden(files[_i][0], text, sizeof text);
        for (uint32_t n = 1 + next_random(&random) % 3; n; n--)
            length = mutate(text, length, 4096, &random); /* the rest of weights is not read */
        write_file(files[_i][1], text, length);
        struct hd_error err = HD_ERROR_INIT;
        struct hd_model *model = model_open(&err, model_settings("from", folder, NULL));
        ck_assert_msg(model || strstr(err.message, files[_i][1]) || strstr(err.message, "model."), "no place in: %s",
                      err.message);
        opened += model != NULL;
        refusals_seen += model == NULL;
        model_ops->close(model);
        model_warnings[0] = '\0';
    }
    ck_assert_int_gt(refusals_seen, 0);
    ck_assert_int_gt(opened, 0);
}
END_TEST

START_TEST(close_accepts_null)
{
    model_ops->close(NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("config");
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_loop_test(tests, refusals, 0, (int)(sizeof refused / sizeof refused[0]));
    tcase_add_loop_test(tests, fields, 0, (int)(sizeof bad_fields / sizeof bad_fields[0]));
    tcase_add_test(tests, missing_files);
    tcase_add_test(tests, missing_folders);
    tcase_add_test(tests, dropout);
    tcase_add_test(tests, fields_of_gpt2);
    tcase_add_test(tests, rope_tables);
    tcase_add_test(tests, heads_of_qwen3);
    tcase_add_test(tests, experts_of_mixtral);
    tcase_add_test(tests, sliding_window_only_above_it);
    tcase_add_test(tests, longer_than_max_seq_len);
    tcase_add_test(tests, biases_of_attention);
    tcase_add_test(tests, names_without_prefix);
    tcase_add_test(tests, names_in_an_index);
    tcase_add_test(tests, fields_beside_from_must_agree);
    tcase_add_test(tests, round_trips);
    tcase_add_test(tests, exported_names);
    tcase_add_loop_test(tests, hostile_files, 0, 3);
    tcase_add_test(tests, close_accepts_null);
    return suite_run_case("model_config", tests);
}
