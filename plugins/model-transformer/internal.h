/* model-transformer: decoder-only transformers: gpt2, and llama with its relatives.
 *
 *     settings --+
 *                +-> struct tf_shape (plugin.c, config.c) -> forward program (gpt2.c, llama.c through emit.c)
 *     config.json+                                        -> config.json for export (export.c) */
#ifndef HD_MODEL_TRANSFORMER_INTERNAL_H
#define HD_MODEL_TRANSFORMER_INTERNAL_H

#include <jansson.h>

#include "heddle/host.h"
#include "heddle/model.h"

/* Only structs that cross the ABI must be free of padding; these are our own. */
#pragma GCC diagnostic ignored "-Wpadded"

enum tf_family { TF_AUTO = 0, TF_GPT2 = 1, TF_LLAMA = 2, TF_QWEN3 = 3, TF_MIXTRAL = 4 };

/* Options of the job file; 0 and NULL: not given. Offsets stand in the option table of plugin.c. */
struct tf_settings {
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_seq_len, experts, experts_per_token,
        sliding_window;
    double rope_theta, norm_eps, aux_loss_coef, z_loss_coef, dropout;
    const char *from, *capacity;
    int32_t family; /* enum tf_family */
    int32_t tied;   /* 0 auto, 1 true, 2 false */
};

/* How inverse frequencies are changed for long contexts; the words of Hugging Face's rope_scaling. */
enum tf_rope_kind { TF_ROPE_DEFAULT = 0, TF_ROPE_LINEAR, TF_ROPE_LLAMA3 };

struct tf_rope {
    enum tf_rope_kind kind;
    double theta, factor, low_freq_factor, high_freq_factor, original_length;
};

/* A model, fully said. */
struct tf_shape {
    enum tf_family family;
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, experts, experts_per_token; /* experts: 0 none */
    int64_t max_seq_len;                                                                       /* 0: any */
    int64_t sliding_window; /* positions that attention sees, the query's own one among them; 0: all */
    double norm_eps;
    struct tf_rope rope;
    int tied;
    int qkv_bias, out_bias; /* llama: biases of the attention's projections */
    double capacity;        /* slots of an expert, as a multiple of its fair share of a sequence; 0: dropless */
    double aux_loss_coef, z_loss_coef;
    int fused_experts; /* the files hold experts.gate_up_proj, not a tensor an expert */
    double dropout;    /* the rate that config.json asks for at dropout_key; 0 and NULL: none */
    const char *dropout_key;
    int qk_norm; /* RMSNorm over each head's query and key before they are turned */
};

struct hd_model {
    const struct hd_host *host;
    struct tf_shape shape;
    double *frequencies;  /* head_dim / 2; NULL for gpt2 */
    char *from;           /* NULL: initialise */
    char *untrainable;    /* why training it is refused; NULL: nothing */
    char *config_text;    /* from's config.json, or made on demand by export.c */
    int unprefixed;       /* from's tensors lack "transformer." or "model.", as in the first published GPT-2 */
    int64_t longest_seen; /* the longest sequence that a program was built for */
};

/* ---- plugin.c */
const char *tf_family_name(enum tf_family family);

/* ---- config.c */
/* Fills `shape` from FOLDER/config.json and returns its text (the caller's, by free()) in *text. */
int32_t tf_config_read(const char *folder, struct tf_shape *shape, char **text, struct hd_error *err);

/* Opens a regular file for reading. */
int32_t tf_open_file(const char *path, FILE **file, struct hd_error *err);

/* ---- export.c */
/* A config.json that transformers loads; the caller's, by free(). NULL: no memory. */
char *tf_config_write(const struct hd_model *model);

/* ---- weights.c */
/* Sets *found: does a safetensors file of `folder` hold a tensor of this name? A folder without weights, which planning
 * does not need, holds none. */
int32_t tf_weights_have(const char *folder, const char *tensor, int *found, struct hd_error *err);

/* ---- rope.c: head_dim / 2 inverse frequencies */
void tf_rope_table(const struct tf_rope *rope, int64_t head_dim, double *table);

/* ---- emit.c: the words in which the families are written */
struct tf_emit {
    struct hd_model *model;
    const struct hd_builder_api *api;
    struct hd_program *program;
    struct hd_attrs norm, rope, attention; /* filled by tf_emit_begin */
    char slots;                            /* the dim of an expert's slots: s, or c with a capacity */
    int64_t layer;
};

/* How a parameter starts. */
enum tf_init { TF_NORMAL, TF_RESIDUAL, TF_ZEROS, TF_ONES };

/* One row of a family's table of parameters. In names, * stands for the layer. */
struct tf_param {
    const char *name;
    const char *dims;
    const char *file_axes;
    enum tf_init init;
    const char *file; /* NULL: as name */
    uint32_t part, parts, part_axis;
    uint32_t flags; /* HD_PARAM_... */
};

void tf_emit_begin(struct tf_emit *e, struct hd_model *model, struct hd_program *program);
void tf_block(struct tf_emit *e, const char *name);    /* "embed", "head" */
void tf_layer_block(struct tf_emit *e, int64_t layer); /* "L3" */
hd_tensor tf_param(struct tf_emit *e, const struct tf_param *row);
hd_tensor tf_op(struct tf_emit *e, uint32_t op, const struct hd_attrs *attrs, const char *dims, const hd_tensor *ins,
                uint32_t n_in);
/* The same, with the inputs as arguments. */
#define TF_OP(e, op, attrs, dims, ...)                          \
    tf_op(e, op, attrs, dims, (const hd_tensor[]){__VA_ARGS__}, \
          sizeof((const hd_tensor[]){__VA_ARGS__}) / sizeof(hd_tensor))
hd_tensor tf_residual(struct tf_emit *e, hd_tensor x);
hd_tensor tf_attention(struct tf_emit *e, hd_tensor q, hd_tensor k, hd_tensor v);
/* Logits from the normalised residual stream x and w[vh], then the mean cross-entropy as the loss. */
void tf_head(struct tf_emit *e, hd_tensor x, hd_tensor w);

/* ---- experts.c: the feed-forward of a mixture of experts, x and y [bsh] */
void tf_experts_begin(struct tf_emit *e);
hd_tensor tf_experts(struct tf_emit *e, hd_tensor x);

/* ---- gpt2.c, llama.c: the forward program */
void tf_gpt2_build(struct tf_emit *e);
void tf_llama_build(struct tf_emit *e);

#endif
