/* service/text/indexed_copy: documents of indexed files, copied into others in any order. */
#ifndef HD_SERVICE_TEXT_INDEXED_COPY_H
#define HD_SERVICE_TEXT_INDEXED_COPY_H

#include <jansson.h>

#include "service/text/indexed.h"

/* PREFIX.meta.json of an open file; NULL: it has none, or one of other tokens. The caller owns the reference. */
json_t *hd__indexed_meta(const struct hd__indexed *indexed);

/* Are the tokens of two prefixes one file, whatever they are called? */
int hd__indexed_is_same(const char *a, const char *b);

/* An output that is being filled. Init by {0}. */
struct hd__indexed_copy {
    struct hd__indexed_writer *writer;
    char *prefix;
    uint32_t type;
    int with_loss;
    uint64_t documents, tokens;
    json_t *sources;         /* as in PREFIX.meta.json */
    json_t *by_path;         /* the same rows */
    struct hd__text made_of; /* lineage.h */
    json_t *inputs;
    int mixed; /* documents do not lie in the order of the sources */
    int32_t *ids;
    uint8_t *counts;
    uint64_t room;
};

/* The output has dtype, loss and the like of `like`. An older one is replaced where `overwrite` says so. */
int32_t hd__indexed_copy_open(const char *prefix, const struct hd__indexed *like, int overwrite,
                              struct hd__indexed_copy *copy, struct hd_error *err);
int32_t hd__indexed_copy_document(struct hd__indexed_copy *copy, const struct hd__indexed *from, uint64_t document,
                                  struct hd_error *err);
/* Counts `tokens` of a document for the source of this path. */
void hd__indexed_copy_count(struct hd__indexed_copy *copy, const char *path, uint64_t documents, uint64_t tokens);
/* `meta` (may be NULL) is that of the input: what it says of the tokenizer stays true. */
int32_t hd__indexed_copy_finish(struct hd__indexed_copy *copy, const json_t *meta, struct hd_error *err);
/* After a finish, or without one: then nothing is left of the output. */
void hd__indexed_copy_close(struct hd__indexed_copy *copy);

#endif
