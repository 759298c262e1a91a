/* service/train/export: an open session's weights as a Hugging Face folder: config.json, model.safetensors, and files
 * of the tokenizer and of generation that go with them. */
#ifndef HD_SERVICE_TRAIN_EXPORT_H
#define HD_SERVICE_TRAIN_EXPORT_H

#include <jansson.h>

#include "service/train/session.h"

struct hd__train_export_config {
    const char *folder;
    uint32_t dtype;         /* HD_F32, HD_BF16, HD_F16; 0: that of model.from's weights, else HD_F32 */
    const char *sources[2]; /* folders or files to copy tokenizers and the like from, of each name the first; NULL:
                               none */
    const int32_t *ends;    /* tokens that end a text, for a generation_config.json where no source has one */
    size_t n_ends;
    int64_t stop; /* the token that ends an answer, which is added to a source's generation_config.json; -1: none */
    int64_t positions; /* that were trained; 0: it is not known */
    const char *turn;  /* that begins a turn: a chat_template without it gets a warning; NULL: it is not known */
};

/* Refuses a folder that cannot be made or written, or has one of the files that would be written. */
int32_t hd__train_export_check(const struct hd__train_export_config *config, struct hd_error *err);
/* The session has one rank and its weights are loaded. Creates the folder; a failure leaves no file of this export.
 * Appends the names of what was written: "config.json, model.safetensors (bf16) and tokenizer.json". */
int32_t hd__train_export(struct hd__train_session *session, const struct hd__train_export_config *config,
                         struct hd__text *written, struct hd_error *err);

/* A key of a config.json that says otherwise than info, and both numbers; NULL: there is none. */
const char *hd__train_export_differs(const json_t *config, const struct hd_model_info *info, int64_t *says,
                                     int64_t *is);

#endif
