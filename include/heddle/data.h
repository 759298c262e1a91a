/* heddle/data.h: a source of token sequences. It makes of a path of `data.train` (a file, a folder, or a word that only
 * the source knows) tokens that are numbered from 0. Epochs, mixtures, shuffling, what is held out, the vocabulary and
 * reading ahead are the core's business.
 *
 * Life: open (every path of data.train and data.val, on every rank) -> info -> read, read, ... -> close. All ranks that
 * open a path must find the same tokens in it. */
#ifndef HEDDLE_DATA_H
#define HEDDLE_DATA_H

#include "heddle/plugin.h"

struct hd_data; /* the plugin's own: one open path */

/* Hints: what is read follows what was read before, so that reading ahead pays. */
#define HD_DATA_IN_ORDER (UINT32_C(1) << 0)

struct hd_data_source {
    size_t struct_size;
    const char *path; /* as the job file has it */
    uint32_t hints;   /* HD_DATA_...; unknown ones are ignored */
    uint32_t reserved;
    int64_t vocab; /* the model's vocabulary: a source that has to guess how tokens lie may go by it. 0: not known */
};

/* The caller sets struct_size and zeroes the rest; the source writes nothing beyond that size. */
struct hd_data_info {
    size_t struct_size;
    uint64_t tokens;
    int64_t max_token; /* no token is below 0 or above this: 65535 in a file of uint16. 0: not known */
};

struct hd_data_ops {
    size_t struct_size;
    uint64_t caps;
    /* [control] mandatory. HD_E_NOTFOUND, HD_E_IO, HD_E_CORRUPT, HD_E_INVALID; the message begins with the path. */
    int32_t (*open)(const struct hd_host *host, const void *settings, const struct hd_data_source *source,
                    struct hd_data **data, struct hd_error *err);
    void (*close)(struct hd_data *data); /* [control] mandatory; NULL is fine */
    int32_t (*info)(struct hd_data *data, struct hd_data_info *info, struct hd_error *err); /* [control] mandatory */
    /* [any-thread] mandatory, by several threads at once. Exactly `count` tokens from number `first` on, as they are:
     * the core refuses an id outside the vocabulary. HD_E_INVALID beyond the last token. */
    int32_t (*read)(struct hd_data *data, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err);
    /* [control] Are the settings right together? Called when the job is read; a message that begins with a key, as
     * "data.token_dtype: ...", is printed with its place. NULL: always. */
    int32_t (*check)(const void *settings, struct hd_error *err);
    /* [any-thread] As read, the labels of the same tokens: below 0 (-100) where none is asked for, else below the
     * vocabulary. Sequences are then seq_len tokens each, and the loss is the mean over the labels of a step, of all
     * ranks, that are not below 0. NULL: the label of a token is the token after it. */
    int32_t (*labels)(struct hd_data *data, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *err);
    /* [control] With these settings, are there labels? Where not, `labels` is not called. NULL: always. */
    int32_t (*labeled)(const void *settings);
    /* [any-thread] The end of the document that token `token` belongs to: the number of the first token behind it, at
     * most `limit`, which is above `token`. Fails where the data does not tell, with a message that begins with the
     * path. NULL: this source knows no documents. */
    int32_t (*document_end)(struct hd_data *data, uint64_t token, uint64_t limit, uint64_t *end, struct hd_error *err);
};

#endif
