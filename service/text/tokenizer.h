/* service/text/tokenizer: a tokenizer's file, opened by the plug-in that can read it. */
#ifndef HD_SERVICE_TEXT_TOKENIZER_H
#define HD_SERVICE_TEXT_TOKENIZER_H

#include "core/base/base.h"
#include "core/plugin/plugin.h"

struct hd__tokenizer {
    const struct hd_tokenizer_ops *ops;
    const char *plugin; /* "bpe" */
    char *path;         /* of the file, not of its folder */
    struct hd_tokenizer *handle;
    struct hd_tokenizer_info info;
};

struct hd__ids {
    int32_t *at;
    size_t count, room;
};

/* The file itself, or that of a folder; the caller frees it. */
int32_t hd__tokenizer_file(const char *path, char **file, struct hd_error *err);
/* Opens a tokenizer's file, or that of a folder: tokenizer.json, tokenizer.model, *.tiktoken. `use` names the plug-in;
 * NULL: the first that can read the file. HD_E_NOTFOUND, HD_E_UNSUPPORTED (no plug-in reads it) or the plug-in's
 * error; messages begin with the path. */
int32_t hd__tokenizer_open(struct hd__plugins *plugins, const struct hd_host *host, const char *use, const char *path,
                           struct hd__tokenizer *tokenizer, struct hd_error *err);
void hd__tokenizer_close(struct hd__tokenizer *tokenizer); /* of zeros is fine */

/* Appends; any thread. `flags` are those of heddle/tokenizer.h; a text that begins with BOS gets no other before it. */
int32_t hd__tokenizer_encode(const struct hd__tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags,
                             struct hd__ids *ids, struct hd_error *err);
int32_t hd__tokenizer_decode(const struct hd__tokenizer *tokenizer, const int32_t *ids, size_t count, uint32_t flags,
                             struct hd__text *text, struct hd_error *err);
int64_t hd__tokenizer_find(const struct hd__tokenizer *tokenizer, const char *token); /* -1: there is none */

/* The id that ends a document: the file's EOS, or a token that is known to be one by its name ("<|endoftext|>",
 * "<|end_of_text|>", "</s>", "<|endofdoc|>"); -1: there is none. */
int64_t hd__tokenizer_eod(const struct hd__tokenizer *tokenizer);
/* Is it one of text, neither a special token nor blanks alone? */
int hd__tokenizer_is_word(const struct hd__tokenizer *tokenizer, int32_t id);

#endif
