/* heddle/model.h: a model is a function that builds a logical forward program, and a mapping to other people's
 * files. */
#ifndef HEDDLE_MODEL_H
#define HEDDLE_MODEL_H

#include "heddle/plugin.h"
#include "heddle/program.h"

struct hd_model; /* the plugin's own: settings, resolved (config.json read) */

struct hd_model_info {
    size_t struct_size;
    int64_t vocab, layers, hidden, heads, kv_heads, head_dim, ffn, max_seq_len; /* max_seq_len in tokens, 0: any */
    const char *family;                                                         /* strings live as long as the model */
    /* Folder with *.safetensors to start from, which may be without them until they are needed; NULL: initialise. */
    const char *weights;
    int64_t experts,
        experts_per_token; /* 0: no experts. A parameter with dim e that is not HD_PARAM_WHOLE is one of each expert */
    /* Why `heddle train` has to refuse it, though it may be evaluated; begins with a key: "model.from: ...". NULL:
     * nothing. */
    const char *untrainable;
};

struct hd_model_ops {
    size_t struct_size;
    uint64_t caps;
    /* [control] mandatory. Reads settings (and config.json where `from` is set) and checks them. `settings_sha` must
     * not be needed: two models with equal info and equal parameters are the same model. */
    int32_t (*open)(const struct hd_host *host, const void *settings, struct hd_model **model, struct hd_error *err);
    void (*close)(struct hd_model *model); /* [control] mandatory; NULL is fine */
    int32_t (*info)(struct hd_model *model, struct hd_model_info *info, struct hd_error *err); /* [control] mandatory */
    /* [control] mandatory. Emits the forward program of one micro-batch through host->build. */
    int32_t (*build)(struct hd_model *model, struct hd_program *program, struct hd_error *err);
    /* [control] The Hugging Face config.json of this model, as text, for export. The string lives as long as the
     * model. */
    int32_t (*config_json)(struct hd_model *model, const char **text, struct hd_error *err);
};

#endif
