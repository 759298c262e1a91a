/* tiktoken files: a line a token, its bytes in base64 and its rank, which is its id. */
#include "internal.h"

int32_t bpe_read_tiktoken(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err)
{
    (void)text, (void)bytes;
    return hd_fail(err, HD_E_UNSUPPORTED, "%s: neither a tokenizer.json nor a tiktoken file", t->path);
}
