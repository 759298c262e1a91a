/* service/train/token_origin: which tokenizer made the tokens of a job, and is it the one that the job names, its
 * weights were trained with, and all its files have in common? */
#ifndef HD_SERVICE_TRAIN_TOKEN_ORIGIN_H
#define HD_SERVICE_TRAIN_TOKEN_ORIGIN_H

#include <jansson.h>

#include "core/compile/compile.h"

struct hd__token_maker {
    const char *name; /* the tokenizer's file, in the job's arena; NULL: not known */
    uint64_t hash;    /* of its bytes */
};

/* The tokenizer of this file or folder; NULL: that of the job's text, data.tokenizer or model.from's own. */
struct hd__token_maker hd__train_tokenizer(const struct hd__compiled *compiled, const char *path);
/* The tokenizer of the job's tokens: of its text, or by what `heddle data tokenize` left beside a file. */
struct hd__token_maker hd__train_token_maker(const struct hd__compiled *compiled);
/* By the .meta.json beside a file of tokens. */
struct hd__token_file hd__train_token_file(const struct hd__compiled *compiled, const char *path);
/* The token that ends a document by what made these tokens, else by the job's tokenizer; -1: it is not known. */
int64_t hd__train_eod(const struct hd__compiled *compiled, const char *path);
/* The chat template of data.train, as the job or what lies beside the tokens says: "plain" where its lines are prompts
 * and completions. NULL: none, or not known. */
const char *hd__train_chat_template(const struct hd__compiled *compiled);
/* The chat_template of model.from's folder, where it does not begin turns as this one does; NULL: it does, or there is
 * none. */
const char *hd__train_other_chat_template(const struct hd__compiled *compiled, const char *chat);
int hd__token_makers_differ(struct hd__token_maker a, struct hd__token_maker b); /* 0 where one is not known */

/* A checkpoint's "tokenizer". NULL: not known. */
json_t *hd__token_maker_json(struct hd__token_maker maker);
struct hd__token_maker hd__token_maker_saved(struct hd__job *job, const json_t *state);
/* "the tokens are of A (hash) and were of B (hash)" */
const char *hd__token_makers_words(struct hd__job *job, struct hd__token_maker now, struct hd__token_maker before);

/* Compares the tokens' makers with data.tokenizer where the job names it; where there is no tokenizer at all, with each
 * other: what differs is refused. For every command that opens the job's data. */
int32_t hd__train_token_origin(const struct hd__compiled *compiled, struct hd_error *err);
/* Warns where the tokenizer of model.from is another one: its file may differ and mean the same; where the model has
 * more than twice the ids, where chat templates or ends of documents differ, and where data.eod is another token than
 * the tokenizer's. */
void hd__train_token_origin_warn(const struct hd__compiled *compiled);

#endif
