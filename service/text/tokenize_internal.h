/* service/text/tokenize_internal: how far a corpus is tokenized, on the disk. */
#ifndef HD_SERVICE_TEXT_TOKENIZE_INTERNAL_H
#define HD_SERVICE_TEXT_TOKENIZE_INTERNAL_H

#include "service/text/indexed.h"
#include "service/text/tokenize.h"

struct hd__tokenize_share {
    uint64_t documents, tokens;
    uint64_t bare;     /* documents of a prompt and its completion, under a chat template */
    uint64_t letters;  /* documents with the text of a special token in a content, or (no chat) in their text */
    const char *token; /* of the last of them; NULL: there are none */
};

struct hd__tokenize_progress {
    struct hd__documents_position at; /* everything before it is written */
    struct hd__indexed_size size;
    uint64_t left_out;
    struct hd__tokenize_share *shares; /* of each source of the corpus */
};

/* PREFIX.progress. Reading: all zeros where there is none; one that was begun with other arguments or other files is
 * refused by name, or passed over where the config says `overwrite`. */
int32_t hd__tokenize_progress_read(const struct hd__tokenize_config *config, struct hd__tokenize_progress *progress,
                                   struct hd_error *err);
int32_t hd__tokenize_progress_write(const struct hd__tokenize_config *config,
                                    const struct hd__tokenize_progress *progress, struct hd_error *err);
/* The text of PREFIX.meta.json; the caller frees it. */
char *hd__tokenize_meta(const struct hd__tokenize_config *config, const struct hd__tokenize_progress *progress);

#endif
