/* service/text/indexed: Megatron's indexed format, written and read: PREFIX.bin has the tokens of all sequences one
 * after another, PREFIX.idx their type, lengths and places and the documents, each of one or more sequences.
 *
 *     idx   "MMIDIDX\0\0", version u64 1, type u8, sequences u64, documents + 1 u64, then of each sequence its length
 *           (i32) and its first byte in PREFIX.bin (i64), then the first sequence of each document and the end (i64)
 *     loss  PREFIX.loss, ours: "HDLOSS1\n", then a bitmap: bit i % 8 of byte i / 8 is 1 where the loss counts token i;
 *           then hd_file_ends of PREFIX.bin (u64), which files of others and older ones may lack
 *
 * A writer's files are PREFIX.*.part until hd__indexed_finish renames them: it is either all there or not at all.
 * Memory does not grow with the number of documents. */
#ifndef HD_SERVICE_TEXT_INDEXED_H
#define HD_SERVICE_TEXT_INDEXED_H

#include "core/base/base.h"

/* X(constant, Megatron's code, name, bytes): the types of tokens that are read; U16 and I32 are written. */
#define HD__INDEXED_TYPES(X)          \
    X(HD__INDEXED_U8, 1, "uint8", 1)  \
    X(HD__INDEXED_I8, 2, "int8", 1)   \
    X(HD__INDEXED_I16, 3, "int16", 2) \
    X(HD__INDEXED_I32, 4, "int32", 4) \
    X(HD__INDEXED_I64, 5, "int64", 8) \
    X(HD__INDEXED_U16, 8, "uint16", 2)
enum {
#define HD__INDEXED_ENUM(constant, code, name, bytes) constant = code,
    HD__INDEXED_TYPES(HD__INDEXED_ENUM)
#undef HD__INDEXED_ENUM
};
const char *hd__indexed_type_name(uint32_t type); /* NULL: unknown */
/* As Megatron chooses: uint16 where every id is below 65500, else int32. */
uint32_t hd__indexed_type_for(int64_t vocab);

/* "DIR/corpus" of "DIR/corpus", "DIR/corpus.bin" and "DIR/corpus.idx". The caller frees it. */
char *hd__indexed_prefix(const char *path);
/* "a", "b" and "c" of a.bin ...: what a finished writer leaves; refused unless `overwrite`. */
int32_t hd__indexed_check_output(const char *prefix, int overwrite, struct hd_error *err);

/* ---- writing */

struct hd__indexed_size {
    uint64_t sequences, documents, tokens;
};

struct hd__indexed_writer;
/* `from` is all zeros, or a size that hd__indexed_flush has returned: what was written after it is cut off.
 * HD_E_CORRUPT: less than that is there. */
int32_t hd__indexed_create(const char *prefix, uint32_t type, int loss, struct hd__indexed_size from,
                           struct hd__indexed_writer **writer, struct hd_error *err);
/* A sequence of the current document. `loss`: a byte a token, 0 where it does not count; NULL: all of them do. */
int32_t hd__indexed_add(struct hd__indexed_writer *writer, const int32_t *ids, uint64_t count, const uint8_t *loss,
                        struct hd_error *err);
int32_t hd__indexed_end_document(struct hd__indexed_writer *writer, struct hd_error *err);
/* Everything that was added is on the disk when this returns. */
int32_t hd__indexed_flush(struct hd__indexed_writer *writer, struct hd__indexed_size *size, struct hd_error *err);
/* Writes the index and gives the files their names; `meta` (may be NULL) becomes PREFIX.meta.json. Closes the writer in
 * any case. */
int32_t hd__indexed_finish(struct hd__indexed_writer *writer, const char *meta, struct hd_error *err);
/* Closes; keep: the files stay for a later create with a size. NULL is fine. */
void hd__indexed_abandon(struct hd__indexed_writer *writer, int keep);

/* ---- reading */

struct hd__indexed {
    char *prefix;
    const uint8_t *idx, *bin, *loss; /* mapped; loss is NULL where there is none */
    uint64_t idx_bytes, bin_bytes, loss_bytes;
    uint64_t sequences, documents, tokens;
    uint32_t type, width;
};
/* Every length and place of the index is held against the files. */
int32_t hd__indexed_open(const char *path, struct hd__indexed *indexed, struct hd_error *err);
void hd__indexed_close(struct hd__indexed *indexed);
uint64_t hd__indexed_length(const struct hd__indexed *indexed, uint64_t sequence);
uint64_t hd__indexed_first_token(const struct hd__indexed *indexed, uint64_t sequence);
/* First sequence of a document; of `documents`: all of them. */
uint64_t hd__indexed_first_sequence(const struct hd__indexed *indexed, uint64_t document);
uint64_t hd__indexed_document_tokens(const struct hd__indexed *indexed, uint64_t document);
/* HD_E_INVALID of a token that is no id of 31 bits. */
int32_t hd__indexed_read(const struct hd__indexed *indexed, uint64_t first, uint64_t count, int32_t *ids,
                         struct hd_error *err);
/* Bits [first, first + count) of PREFIX.loss, a byte each. */
void hd__indexed_read_loss(const struct hd__indexed *indexed, uint64_t first, uint64_t count, uint8_t *out);

#endif
