/* service/data/data: token sources.
 *
 * One or more files of tokens become an endless stream of numbered sequences. Sequence `number` is a pure
 * function of the configuration: nothing is kept between reads, so any rank can read any sequence in any
 * order, the global batch is the same whatever the number of ranks, and the position in the data is one
 * integer.
 *
 * - Within a source, sequence i has the tokens [i * seq_len, (i + 1) * seq_len) as inputs and the same
 *   shifted by one as labels: (tokens - 1) / seq_len sequences. Listed files are read as if they were one.
 * - Epoch e = number / sequences. With shuffle, each epoch has its own permutation, drawn from the seed.
 * - In a weighted mix every file is a source of its own, with its own epochs. Which source serves a position
 *   is fixed by the weights alone: turns are dealt as evenly as they go, HD__DATA_MIX_SLOTS in a round, so that
 *   every stretch of the stream has the mixture asked for.
 * - val_fraction v holds out the tail of each source: floor(tokens * (1 - v)) tokens are trained on.
 *
 * Files are memory-mapped; a file that is cut short while it is mapped ends the process with SIGBUS, as for
 * any mapped file. Token ids are checked against the vocabulary as they are read; hd__data_scan looks before. */
#ifndef HD_SERVICE_DATA_DATA_H
#define HD_SERVICE_DATA_DATA_H

#include "core/base/base.h"

/* X(constant, value, name): the values of data.format */
#define HD__DATA_FORMATS(X)             \
    X(HD__DATA_AUTO, 0, "auto")         \
    X(HD__DATA_BYTES, 1, "bytes")       \
    X(HD__DATA_LLMC, 2, "llmc")         \
    X(HD__DATA_NANOGPT, 3, "nanogpt")   \
    X(HD__DATA_MEGATRON, 4, "megatron") \
    X(HD__DATA_NPY, 5, "npy")

enum {
#define HD__DATA_FORMAT_ENUM(constant, value, name) constant = value,
    HD__DATA_FORMATS(HD__DATA_FORMAT_ENUM)
#undef HD__DATA_FORMAT_ENUM
};

#define HD__DATA_MIX_SLOTS 65536 /* positions in a round of a weighted mix */

struct hd__data_source {
    const char *path;
    double weight; /* only in a mix */
};

struct hd__data_config {
    const struct hd__data_source *sources;
    uint32_t n_sources;
    uint32_t format;      /* HD__DATA_... */
    uint32_t token_bytes; /* of nanogpt files: 2 or 4; 0 means 2 */
    int32_t mix;          /* the sources' weights count; else they are one after the other */
    int32_t held_out;     /* read the held-out tail instead of the part to train on */
    int32_t shuffle;
    double val_fraction; /* 0 <= v < 1 */
    int64_t seq_len;
    int64_t vocab; /* ids are 0 .. vocab - 1 */
    uint64_t seed;
};

struct hd__data;

/* Opens and checks all files. HD_E_NOTFOUND, HD_E_IO, HD_E_CORRUPT, HD_E_INVALID (too short, unusable
 * weights). */
int32_t hd__data_open(const struct hd__data_config *config, struct hd__data **data, struct hd_error *err);
void hd__data_close(struct hd__data *data); /* NULL is fine */

/* Looks at the ids of what will be read, at most `tokens` of them, shared among the files: HD_E_INVALID names file and
 * position of the first outside the vocabulary. Costs a pass over memory; nothing where a type cannot hold such an id. */
int32_t hd__data_scan(const struct hd__data *data, uint64_t tokens, struct hd_error *err);

/* Sequences of one epoch (of all sources together), and tokens of the part that is read. */
uint64_t hd__data_sequences(const struct hd__data *data);
uint64_t hd__data_tokens(const struct hd__data *data);

/* Positions [s_first, s_first + s_count) of sequence `number` of the endless stream. Thread-safe.
 * HD_E_INVALID names file and position of a token that is outside the vocabulary. */
int32_t hd__data_read(const struct hd__data *data, uint64_t number, int32_t *ids, int32_t *labels, int64_t s_first,
                      int64_t s_count, struct hd_error *err);

/* Item i of a permutation of 0 .. n-1 that `key` chooses; no memory. i < n. */
uint64_t hd__data_permute(uint64_t i, uint64_t n, uint64_t key);

/* ---- one file (token_files.c) */
struct hd__data_token_file {
    char *path;
    const void *map; /* the whole file */
    uint64_t map_bytes;
    const uint8_t *at; /* the first token */
    uint64_t count;
    uint32_t type; /* HD__TOKEN_... */
};

/* Opens, maps and checks one file. `file` is written only on success. */
int32_t hd__data_token_file_open(const char *path, uint32_t format, uint32_t token_bytes,
                                 struct hd__data_token_file *file, struct hd_error *err);
void hd__data_token_file_close(struct hd__data_token_file *file);
/* Tokens [first, first + count) into out; ids outside 0 .. vocab-1 are refused. */
int32_t hd__data_token_file_read(const struct hd__data_token_file *file, uint64_t first, uint64_t count, int64_t vocab,
                                 int32_t *out, struct hd_error *err);
/* The same refusal, without reading. */
int32_t hd__data_token_file_scan(const struct hd__data_token_file *file, uint64_t first, uint64_t count, int64_t vocab,
                                 struct hd_error *err);

/* ---- reading ahead: a thread keeps the next requests ready, so that reading is off the critical path.
 * A request is `rows` sequences; `number` says which one row j of request r is. */
struct hd__data_range {
    int64_t first, count;
};

struct hd__data_prefetch_config {
    const struct hd__data *data; /* outlives the prefetch */
    uint64_t (*number)(void *user, uint64_t request, uint32_t row);
    void *user;
    uint64_t first; /* the first request */
    uint32_t rows;
    uint32_t depth;                  /* requests kept ready; 0 means 2 */
    struct hd__data_range ranges[2]; /* positions of each sequence, one run after the other; the second may be empty */
};

struct hd__data_prefetch;
/* Starts a thread that reads ahead. Caller stops it; on failure there is nothing to stop. */
int32_t hd__data_prefetch_start(const struct hd__data_prefetch_config *config, struct hd__data_prefetch **prefetch,
                                struct hd_error *err);
/* The next request, [rows][s_count] each; valid until the next call of next or stop. An error in reading is
 * returned here, by the call whose request it was, and by all later ones. */
int32_t hd__data_prefetch_next(struct hd__data_prefetch *prefetch, const int32_t **ids, const int32_t **labels,
                               struct hd_error *err);
void hd__data_prefetch_stop(struct hd__data_prefetch *prefetch); /* NULL is fine */

#endif
