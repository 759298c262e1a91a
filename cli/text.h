/* cli/text: text and ids of the job's model, for sample and eval. */
#ifndef HD_CLI_TEXT_H
#define HD_CLI_TEXT_H

#include "cli/job.h"
#include "service/text/chat.h"
#include "service/text/tokenizer.h"

/* Without a tokenizer a vocabulary of 256 is bytes, any other is ids in digits. */
enum { HD__CLI_TEXT_IDS, HD__CLI_TEXT_BYTES, HD__CLI_TEXT_TOKENIZER };

struct hd__cli_text {
    int kind;
    int64_t vocab; /* of the model */
    struct hd__tokenizer tokenizer;
    const struct hd__chat_template *chat;
    struct hd__ids ends; /* tokens at which generation ends: EOS, and those of generation_config.json */
};

struct hd__cli_text_flags {
    const char *tokenizer, *use, *chat; /* a file or folder, or "none"; its plug-in; a template's name */
};

/* The tokenizer that was asked for, else data.tokenizer, else that of model.from's folder where it has one. */
int32_t hd__cli_text_open(const struct hd__cli_job *loaded, const struct hd__cli_text_flags *flags,
                          struct hd__cli_text *text, struct hd_error *err);
struct hd__token_maker hd__cli_text_maker(const struct hd__cli_job *loaded, const struct hd__cli_text *text);
void hd__cli_text_close(struct hd__cli_text *text); /* of zeros is fine */

/* Appends the ids of a text, with the special tokens in it and what the tokenizer puts around it where `frame` is
 * set. HD_E_INVALID of an id that the model does not have. */
int32_t hd__cli_text_encode(const struct hd__cli_text *text, const char *bytes, size_t count, int frame,
                            struct hd__ids *ids, struct hd_error *err);
/* Appends the token before a text that has none: BOS, the end of a document, a newline of bytes. */
void hd__cli_text_add_first(const struct hd__cli_text *text, struct hd__ids *ids);
/* {"prompt": TEXT} or, with a chat template, {"messages": [...]}. */
int32_t hd__cli_text_encode_line(const struct hd__cli_text *text, const json_t *line, struct hd__ids *ids,
                                 struct hd_error *err);
/* Appends the text of ids without special tokens; an id that the tokenizer does not have (of a vocabulary that is
 * padded) has none. */
int32_t hd__cli_text_decode(const struct hd__cli_text *text, const int32_t *ids, size_t count, struct hd__text *out,
                            struct hd_error *err);

/* Bytes of a text up to a character that is not complete yet. */
size_t hd__cli_utf8_complete(const char *text, size_t bytes);
/* A JSON string; U+FFFD for bytes that are not UTF-8, as Python's errors="replace". */
json_t *hd__cli_json_text(const char *text, size_t bytes);
/* Writes text as it is, or printable where the output is a terminal. */
void hd__cli_print_bytes(const char *text, size_t bytes);

#endif
