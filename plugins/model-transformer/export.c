/* struct tf_shape -> Hugging Face's config.json, with the keys that transformers reads. */
#include "internal.h"

static json_t *gpt2_config(const struct tf_shape *s)
{
    return json_pack("{ss s[s] sI sI sI sI sI sI ss sf sb sf sf sf s:n s:n}", "model_type", "gpt2", "architectures",
                     "GPT2LMHeadModel", "vocab_size", (json_int_t)s->vocab, "n_positions", (json_int_t)s->max_seq_len,
                     "n_embd", (json_int_t)s->hidden, "n_layer", (json_int_t)s->layers, "n_head", (json_int_t)s->heads,
                     "n_inner", (json_int_t)s->ffn, "activation_function", "gelu_new", "layer_norm_epsilon",
                     s->norm_eps, "tie_word_embeddings", s->tied, "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop",
                     0.0, "bos_token_id", "eos_token_id");
}

/* rope_theta stands twice: where transformers 4 reads it, and where 5 does. */
static json_t *llama_config(const struct tf_shape *s, int64_t longest)
{
    int qwen3 = s->family == TF_QWEN3;
    json_t *root =
        json_pack("{ss s[s] sI sI sI sI sI sI sI sI ss sf sf s{ss sf} sb sb sb s:n s:n}", "model_type",
                  qwen3 ? "qwen3" : "llama", "architectures", qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM",
                  "vocab_size", (json_int_t)s->vocab, "hidden_size", (json_int_t)s->hidden, "num_hidden_layers",
                  (json_int_t)s->layers, "num_attention_heads", (json_int_t)s->heads, "num_key_value_heads",
                  (json_int_t)s->kv_heads, "head_dim", (json_int_t)s->head_dim, "intermediate_size", (json_int_t)s->ffn,
                  "max_position_embeddings", (json_int_t)longest, "hidden_act", "silu", "rms_norm_eps", s->norm_eps,
                  "rope_theta", s->rope.theta, "rope_parameters", "rope_type", "default", "rope_theta", s->rope.theta,
                  "tie_word_embeddings", s->tied, "attention_bias", 0, "mlp_bias", 0, "bos_token_id", "eos_token_id");
    if (root && s->sliding_window) { /* LlamaConfig has none */
        json_object_set_new(root, "model_type", json_string("mistral"));
        json_object_set_new(root, "architectures", json_pack("[s]", "MistralForCausalLM"));
        json_object_set_new(root, "sliding_window", json_integer(s->sliding_window));
    }
    if (root && s->family == TF_MIXTRAL) {
        json_object_del(root, "mlp_bias");
        json_object_set_new(root, "model_type", json_string("mixtral"));
        json_object_set_new(root, "architectures", json_pack("[s]", "MixtralForCausalLM"));
        json_object_set_new(root, "num_local_experts", json_integer(s->experts));
        json_object_set_new(root, "num_experts_per_tok", json_integer(s->experts_per_token));
        json_object_set_new(root, "router_aux_loss_coef", json_real(s->aux_loss_coef));
        json_object_set_new(root, "output_router_logits", json_boolean(s->aux_loss_coef > 0));
        json_object_set_new(root, "router_jitter_noise", json_real(0));
    }
    return root;
}

char *tf_config_write(const struct hd_model *model)
{
    const struct tf_shape *shape = &model->shape;
    int64_t longest = shape->max_seq_len ? shape->max_seq_len : model->longest_seen ? model->longest_seen : 2048;
    json_t *root = shape->family == TF_GPT2 ? gpt2_config(shape) : llama_config(shape, longest);
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}
