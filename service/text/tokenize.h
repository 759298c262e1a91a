/* service/text/tokenize: a corpus as token ids in Megatron's indexed format (service/text/indexed.h).
 *
 * One thread reads documents and writes ids, in order; others encode in between. What is written does not depend on how
 * many they are. At intervals PREFIX.progress says how far it is: after an interruption the same call goes on from
 * there and writes the same bytes as an uninterrupted one. */
#ifndef HD_SERVICE_TEXT_TOKENIZE_H
#define HD_SERVICE_TEXT_TOKENIZE_H

#include <jansson.h>

#include "service/text/chat.h"
#include "service/text/documents.h"
#include "service/text/tokenizer.h"

struct hd__tokenize_state {
    double seconds;            /* since it began, or went on */
    uint64_t bytes, all_bytes; /* of the files */
    uint64_t begun_at;         /* bytes: where it went on */
    uint64_t documents, tokens, left_out;
};

struct hd__tokenize_config {
    const struct hd__corpus *corpus;
    const struct hd__tokenizer *tokenizer;
    const char *prefix; /* of the output */
    const char *field;  /* of a line of JSON lines */
    int64_t eod;        /* appended to every document that is not empty; -1: nothing is */
    int32_t endless;    /* that is meant, and gets no warning */
    uint32_t flags;     /* of encode: HD_TOKENIZER_... */
    int32_t skip_bad;   /* documents that cannot be read are left out and counted */
    int32_t overwrite;  /* an older output, or one that was begun otherwise, is replaced */
    int32_t threads;    /* that encode; 0: one for each core */
    /* PREFIX.progress stays when all is written, and the same call returns at once, until hd__tokenize_progress_remove:
     * for a caller that has more to do before its work is done. */
    int32_t keeps_progress;
    /* Lines are conversations, or prompts with completions, as hd__chat_encode reads them, and PREFIX.loss says which
     * tokens count; NULL: they are the text of their field. */
    const struct hd__chat_template *chat;
    const char *chat_name;
    const char *skip_hint; /* added to the message of a bad document: "--skip-bad leaves ..."; NULL: nothing */
    /* Called often, from the caller's thread; a failure is returned, and the output can be continued. May be NULL. */
    int32_t (*progress)(void *user, const struct hd__tokenize_state *state, struct hd_error *err);
    void *progress_user;
    size_t batch_bytes;    /* of text that is encoded at once; 0: 1 MiB */
    uint64_t flush_tokens; /* PREFIX.progress is written after so many, or ten seconds; 0: 64 Mi */
};

/* Is each file text, by its beginning, or its first line a document? The failure is the one that hd__tokenize would
 * come to. */
int32_t hd__tokenize_look(const struct hd__tokenize_config *config, struct hd_error *err);
/* Warns of files of text that are HTML pages, by their beginning, where their names do not say so; of those that a
 * folder has packed, too; and of its README.md among JSON lines. */
void hd__tokenize_warn_of_files(const struct hd__corpus *corpus);
/* The caller has the prefix's lock. HD_E_INVALID: a bad document, a mismatch with what was begun. *state (may be NULL)
 * is what was done in all. No documents are no files (with overwrite: where all were left out). */
int32_t hd__tokenize(const struct hd__tokenize_config *config, struct hd__tokenize_state *state, struct hd_error *err);

void hd__tokenize_progress_remove(const struct hd__tokenize_config *config);

/* The right to write this prefix: a lock on PREFIX.lock. *fd is -1 where another process has it, `holder` (128 bytes)
 * is then "process 12 on HOST"; and -2 where the file system has no locks, which is said in the log. */
int32_t hd__prefix_lock(const char *prefix, int *fd, char *holder, struct hd_error *err);
void hd__prefix_unlock(const char *prefix, int fd);

/* For `progress`: says how far it is and when it will be done, on a terminal in one line that is written again, else in
 * the log every ten seconds. Begin with zeros but for `what`; print_end ends the line. */
struct hd__tokenize_print {
    const char *what; /* "tokenizing corpus" */
    double last;
    int on_line;
};
int32_t hd__tokenize_print(void *print, const struct hd__tokenize_state *state, struct hd_error *err);
void hd__tokenize_print_end(struct hd__tokenize_print *print);

/* Hash of a file's bytes. `each` is called for every block of a large one, and ends it by a failure. */
int32_t hd__file_hash(const char *path, uint64_t *hash, struct hd_error *err);
int32_t hd__file_hash_blocks(const char *path, int32_t (*each)(void *user, struct hd_error *err), void *user,
                             uint64_t *hash, struct hd_error *err);
/* By PREFIX.meta.json, the tokenizer that made the tokens, and its file's hash. NULL: it does not say. */
const char *hd__tokens_maker(const json_t *meta, uint64_t *hash);
/* The chat template that rendered them, "plain" where it found prompts and completions alone. NULL: none, or it does
 * not say. */
const char *hd__tokens_template(const json_t *meta);

#endif
