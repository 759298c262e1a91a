/* service/train/token_origin: are the job's tokens those of the tokenizer that it names? */
#ifndef HD_SERVICE_TRAIN_TOKEN_ORIGIN_H
#define HD_SERVICE_TRAIN_TOKEN_ORIGIN_H

#include "core/compile/compile.h"

/* Compares the tokenizer's file with the hash that `heddle data tokenize` left beside the tokens. Without `warn` a
 * data.tokenizer that is another one is refused; with it a warning names that of model.from, whose file may differ and
 * mean the same. */
int32_t hd__train_token_origin(const struct hd__compiled *compiled, int warn, struct hd_error *err);

#endif
