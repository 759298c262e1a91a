/* heddle/tokenizer.h: text as token ids, and back. The file that is opened says everything, so a tokenizer has no
 * options.
 *
 * Life: open -> info -> encode, decode, ... by several threads at once -> close. */
#ifndef HEDDLE_TOKENIZER_H
#define HEDDLE_TOKENIZER_H

#include "heddle/plugin.h"

struct hd_tokenizer; /* the plug-in's own: one open file */

/* The caller sets struct_size and zeroes the rest; the tokenizer writes nothing beyond that size. */
struct hd_tokenizer_info {
    size_t struct_size;
    int64_t vocab; /* ids are 0 .. vocab - 1, added tokens too */
    /* Special tokens that the file itself names as such; -1: it does not. */
    int64_t bos, eos, pad, unk;
};

/* Flags of encode. */
#define HD_TOKENIZER_SPECIAL (UINT32_C(1) << 0) /* special tokens that stand in the text become their ids, not text */
#define HD_TOKENIZER_FRAME (UINT32_C(1) << 1)   /* with what the file puts around a text, such as BOS */
/* Flags of decode. */
#define HD_TOKENIZER_SKIP_SPECIAL (UINT32_C(1) << 0) /* special tokens are left out */

struct hd_tokenizer_ops {
    size_t struct_size;
    uint64_t caps;
    /* [control] mandatory. HD_E_UNSUPPORTED: not a file of this tokenizer's, another may be asked; otherwise
     * HD_E_NOTFOUND, HD_E_IO, HD_E_CORRUPT, HD_E_INVALID. The message begins with the path. */
    int32_t (*open)(const struct hd_host *host, const char *path, struct hd_tokenizer **tokenizer,
                    struct hd_error *err);
    void (*close)(struct hd_tokenizer *tokenizer);                                      /* [control] NULL is fine */
    void (*info)(const struct hd_tokenizer *tokenizer, struct hd_tokenizer_info *info); /* [control] mandatory */
    /* [any-thread] mandatory. `emit` is called with the ids in order, any number at a time, on the caller's thread.
     * The text may have any bytes, zeros and invalid UTF-8 too; HD_E_INVALID where it cannot be written in ids. */
    int32_t (*encode)(const struct hd_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags,
                      void (*emit)(void *user, const int32_t *ids, size_t count), void *user, struct hd_error *err);
    /* [any-thread] mandatory. The bytes of the ids, which need not be valid UTF-8 where an id is part of a
     * character. HD_E_INVALID of an id outside the vocabulary. */
    int32_t (*decode)(const struct hd_tokenizer *tokenizer, const int32_t *ids, size_t count, uint32_t flags,
                      void (*emit)(void *user, const char *text, size_t bytes), void *user, struct hd_error *err);
    /* [any-thread] mandatory. The id of a token by its text as the vocabulary has it ("<|im_end|>"); -1: there is
     * none. */
    int64_t (*find)(const struct hd_tokenizer *tokenizer, const char *token, size_t bytes);
};

#endif
