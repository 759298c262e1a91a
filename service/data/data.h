/* service/data/data: tokens as sequences.
 *
 * One or more sources, opened by a plug-in (heddle/data.h), become an endless stream of numbered sequences. Sequence
 * `number` is a pure function of the configuration: there is no state between reads, so any rank can read any
 * sequence in any order, the global batch is the same for any number of ranks, and the position in the data is one
 * integer.
 *
 * - Within a source, sequence i has the tokens [i * seq_len, (i + 1) * seq_len) as inputs and the same
 *   shifted by one as labels: (tokens - 1) / seq_len sequences. Where a source has labels of its own, these:
 *   tokens / seq_len sequences. Listed files are read as if they were one.
 * - Epoch e = number / sequences. With shuffle, each epoch has its own permutation, drawn from the seed. With a
 *   shuffle_buffer of n sequences it is one of windows: runs of HD__DATA_SHUFFLE_RUN neighbours are permuted, and the
 *   sequences of about n / HD__DATA_SHUFFLE_RUN runs among each other, so that what is read lies in few places.
 * - With HD__DATA_MASK the same, but what a sequence has of each document is apart: positions count from 0, and the
 *   label of a document's last token does not count.
 * - With HD__DATA_PACK a sequence has whole documents (packing.h), those longer than seq_len in pieces, and behind them
 *   padding: a document of zeros without labels.
 * - In a weighted mix every file (or run of them, goes_on) is a source of its own, with its own epochs. The source of a
 *   position depends on the weights alone: turns are interleaved evenly, HD__DATA_MIX_SLOTS in a round, so that every
 *   part of the stream has the requested mixture.
 * - A file may be skipped: it keeps its place, so that all other sequences keep their numbers, and those that would
 *   have a token of it are others of the same source, drawn by their number.
 * - val_fraction v holds out the tail of each source: floor(tokens * (1 - v)) tokens are trained on.
 *
 * Token ids are checked against the vocabulary as they are read; hd__data_scan checks them in advance. */
#ifndef HD_SERVICE_DATA_DATA_H
#define HD_SERVICE_DATA_DATA_H

#include "core/base/base.h"
#include "heddle/data.h"

#define HD__DATA_MIX_SLOTS 65536 /* positions in a round of a weighted mix */
#define HD__DATA_SHUFFLE_RUN 64  /* neighbours that a shuffle_buffer keeps in one window */

enum { HD__DATA_CONTINUE = 0, HD__DATA_MASK, HD__DATA_PACK };

struct hd__data_source {
    const char *path;
    double weight;    /* only in a mix */
    int32_t goes_on;  /* only in a mix: this file and the one before it are one source */
    uint32_t skipped; /* it is not opened */
    uint64_t tokens;  /* of a file that is skipped: how many it had, 0 where that was never known */
};

struct hd__data_config {
    const struct hd__data_source *sources;
    const struct hd_data_ops *ops; /* the plug-in that opens them; these three outlive the data */
    const void *settings;
    const struct hd_host *host;
    uint32_t n_sources;
    int32_t mix;      /* the sources' weights count; else they are concatenated */
    int32_t held_out; /* read the held-out tail instead of the part to train on */
    int32_t shuffle;
    int32_t documents; /* HD__DATA_CONTINUE, ... */
    int32_t reserved;
    double val_fraction;    /* 0 <= v < 1 */
    int64_t shuffle_buffer; /* sequences; 0: all of an epoch */
    int64_t seq_len;
    int64_t vocab; /* ids are 0 .. vocab - 1 */
    uint64_t seed;
    int32_t *failed; /* of hd__data_open: the number of the file that cannot be opened, else -1; may be NULL */
};

struct hd__data;

/* Opens all files. The plug-in's error, or HD_E_INVALID (too short, unusable weights). */
int32_t hd__data_open(const struct hd__data_config *config, struct hd__data **data, struct hd_error *err);
void hd__data_close(struct hd__data *data); /* NULL is fine */

/* The files, in the order of the sources. */
uint32_t hd__data_files(const struct hd__data *data);
const char *hd__data_file(const struct hd__data *data, uint32_t file, uint64_t *tokens, int *skipped);
/* The file that the last failure of hd__data_read or hd__data_scan is of; -1: it is of none. */
int32_t hd__data_failed(const struct hd__data *data);
/* From now on the file is skipped. Nothing is read meanwhile. HD_E_INVALID where no sequence is left without it. */
int32_t hd__data_skip(struct hd__data *data, uint32_t file, struct hd_error *err);

/* Checks the ids that will be read, at most `tokens` of them, shared among the files: HD_E_INVALID names file and
 * position of the first outside the vocabulary. Skipped for types that cannot hold such an id. Says how many labels
 * count, and warns of what looks like padding. */
int32_t hd__data_scan(const struct hd__data *data, uint64_t tokens, struct hd_error *err);

/* Sequences of one epoch (of all sources together), and tokens of the part that is read. */
uint64_t hd__data_sequences(const struct hd__data *data);
uint64_t hd__data_tokens(const struct hd__data *data);
/* Documents, or pieces of them, that HD__DATA_PACK put into these sequences. *cut: documents that are in pieces;
 * *whole: those that are not. */
uint64_t hd__data_pieces(const struct hd__data *data, uint64_t *cut, uint64_t *whole);
/* Documents, at most `most`, all of them longer than seq_len. 0: one is not, or the source knows none. */
uint64_t hd__data_all_longer(const struct hd__data *data, uint64_t most);

/* A source of a mix, by its number (0: all, without one): its share of the stream, 0 to 1; how often it is read. */
struct hd__data_repeats {
    uint64_t source;
    double share, times;
};
/* The n sources, or fewer, that `sequences` of the stream read most often, that first; `out` has room for n + 1. */
uint32_t hd__data_most_repeated(const struct hd__data *data, double sequences, struct hd__data_repeats *out,
                                uint32_t n);

/* Positions [s_first, s_first + s_count) of sequence `number` of the endless stream. Thread-safe.
 * HD_E_INVALID names file and position of a token that is outside the vocabulary. */
int32_t hd__data_read(const struct hd__data *data, uint64_t number, int32_t *ids, int32_t *labels, int64_t s_first,
                      int64_t s_count, struct hd_error *err);

/* Indices of the tokens of sequence `number` in their documents: seq_len numbers. Thread-safe. */
int32_t hd__data_positions(const struct hd__data *data, uint64_t number, int32_t *positions, struct hd_error *err);

/* Item i of a permutation of 0 .. n-1 that `key` chooses, without memory. i < n. */
uint64_t hd__data_permute(uint64_t i, uint64_t n, uint64_t key);

/* The same, of windows of about `window` items: neighbours of the result lie in window / HD__DATA_SHUFFLE_RUN runs of
 * the file. What is left of n behind the last whole run comes last. */
uint64_t hd__data_permute_windows(uint64_t i, uint64_t n, uint64_t window, uint64_t key);

/* ---- prefetching: a thread keeps the next requests ready, so that reading is off the critical path. A request is
 * `rows` sequences; `number` returns the sequence of row j of request r. */
struct hd__data_range {
    int64_t first, count;
};

#define HD__NO_SEQUENCE UINT64_MAX

struct hd__data_prefetch_config {
    const struct hd__data *data;                                    /* outlives the prefetch */
    uint64_t (*number)(void *user, uint64_t request, uint32_t row); /* HD__NO_SEQUENCE: zeros, and no label counts */
    void *user;
    uint64_t first; /* the first request */
    uint32_t rows;
    uint32_t depth;                  /* requests kept ready; 0 means 2 */
    struct hd__data_range ranges[2]; /* positions of each sequence, one run after the other; the second may be empty */
};

struct hd__data_prefetch;
/* Starts a thread that reads ahead. The caller stops it; after a failure there is none. */
int32_t hd__data_prefetch_start(const struct hd__data_prefetch_config *config, struct hd__data_prefetch **prefetch,
                                struct hd_error *err);
/* The next request, [rows][s_count] each; valid until the next call of next or stop. An error in reading is
 * returned here, by the call whose request it was, and by all later ones. */
int32_t hd__data_prefetch_next(struct hd__data_prefetch *prefetch, const int32_t **ids, const int32_t **labels,
                               struct hd_error *err);
/* How many labels of the next n requests count, those that are not below 0; n is at most the depth. Waits until they
 * are read; an error in reading one of them is returned. */
int32_t hd__data_prefetch_count(struct hd__data_prefetch *prefetch, uint32_t n, int64_t *count, struct hd_error *err);
void hd__data_prefetch_stop(struct hd__data_prefetch *prefetch); /* NULL is fine */

#endif
