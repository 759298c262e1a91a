/* service/text/documents: the documents of a corpus, one after another: a text file is one, a line of JSON lines is
 * one. Lines are not parsed here; blank ones are passed over. */
#ifndef HD_SERVICE_TEXT_DOCUMENTS_H
#define HD_SERVICE_TEXT_DOCUMENTS_H

#include "service/text/corpus.h"

#define HD__DOCUMENT_BYTES ((size_t)1 << 30) /* a longer one is refused: it is held in memory */

struct hd__document {
    const char *path;
    uint64_t line;    /* of JSON lines, from 1; 0: the whole file is the document */
    uint32_t source;  /* number of its source in the corpus */
    uint32_t skipped; /* bytes of its file before the text: a byte order mark */
    const char *text; /* not terminated */
    size_t bytes;
};

/* End of a document: reading goes on from there. */
struct hd__documents_position {
    uint32_t file, reserved;
    uint64_t offset, line; /* in the unpacked file: bytes, and lines that were read */
};

struct hd__documents;

/* The corpus outlives it. From a position other than the first, what lies before it is unpacked again. */
int32_t hd__documents_open(const struct hd__corpus *corpus, struct hd__documents_position from,
                           struct hd__documents **documents, struct hd_error *err);
void hd__documents_close(struct hd__documents *documents); /* NULL is fine */
/* *found is 0 after the last. The text is valid until the next call. */
int32_t hd__documents_next(struct hd__documents *documents, struct hd__document *out, int *found, struct hd_error *err);
/* After the document that next returned last. */
struct hd__documents_position hd__documents_position(const struct hd__documents *documents);
/* Bytes of the files that were read, of corpus.bytes. */
uint64_t hd__documents_consumed(const struct hd__documents *documents);

#endif
