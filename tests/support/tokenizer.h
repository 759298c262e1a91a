/* Tokenizers against golden ids: tests/golden/tokenizer/make.py says how they were made and what the files have. */
#ifndef HD_TESTS_SUPPORT_TOKENIZER_H
#define HD_TESTS_SUPPORT_TOKENIZER_H

#include "core/base/base.h"
#include "heddle/tokenizer.h"

struct tokenizer_ids {
    int32_t *at;
    size_t count, room;
};

struct hd_tokenizer *tokenizer_open(const struct hd_tokenizer_ops *ops, const char *path);
struct tokenizer_ids tokenizer_encode(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t,
                                      const char *text, size_t bytes, uint32_t flags);
struct hd__text tokenizer_decode(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t,
                                 const struct tokenizer_ids *ids, uint32_t flags);
const char *tokenizer_golden_path(const char *name); /* of a file among the golden ones; lives until the next call */
/* All documents have the ids of NAME.ids, with special tokens and without; with `exact` they come back, too. */
void tokenizer_golden(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t, const char *name, int exact);

#endif
