/* service/text/chat: conversations and prompts with completions as token ids, and which of them the loss counts.
 *
 * A line of jsonl is {"messages": [{"role", "content"}, ...]}, rendered by a template, or {"prompt", "completion"},
 * which has no template. The loss counts what the model has to say: an assistant's content with the token that ends it,
 * and a completion with the end of document. "weight": 0 in a message (as OpenAI's and Mistral's fine-tuning files have
 * it) leaves it out. Content is never searched for special tokens: "<|im_end|>" in a content is those ten
 * characters. */
#ifndef HD_SERVICE_TEXT_CHAT_H
#define HD_SERVICE_TEXT_CHAT_H

#include <jansson.h>

#include "service/text/tokenizer.h"

struct hd__chat_template;

/* NULL: no template has this name. */
const struct hd__chat_template *hd__chat_find(const char *name);
#define HD__CHAT_NAMES "chatml, llama3, mistral, plain"
#define HD__CHAT_THERE_ARE "there are " HD__CHAT_NAMES ", and Jinja is not read"
/* Has the vocabulary the template's special tokens? HD_E_INVALID names the first that it lacks. */
int32_t hd__chat_check(const struct hd__tokenizer *tokenizer, const struct hd__chat_template *chat,
                       struct hd_error *err);
/* The first known special token of the vocabulary that stands as letters in a content; NULL: none does. */
const char *hd__chat_find_written_token(const struct hd__tokenizer *tokenizer, const char *content, size_t bytes);
/* The first turn marker of a known template that the text has and the vocabulary lacks; NULL: none.
 * [INST] is text to its first tokenizers. */
const char *hd__chat_find_lacking(const struct hd__tokenizer *tokenizer, const char *text, size_t bytes);

/* Tokens, and of each whether the loss counts its prediction. Init by {0}; may be used again and again. */
struct hd__chat_ids {
    struct hd__ids ids;
    uint8_t *counts; /* [ids.count], 0 or 1 */
    size_t room;
    int32_t bare, reserved; /* bare: prompt and completion, which no template renders */
    const char *letters;    /* hd__chat_find_written_token of any content */
};
void hd__chat_ids_free(struct hd__chat_ids *ids);

/* Replaces what is in `ids` by a line of jsonl; any thread. HD_E_INVALID: "messages[2].role: ..."; the caller knows
 * the line's place. */
int32_t hd__chat_encode(const struct hd__tokenizer *tokenizer, const struct hd__chat_template *chat, const json_t *line,
                        struct hd__chat_ids *ids, struct hd_error *err);

/* Advice for a line of another trainer's form, as ShareGPT's; NULL: it is none that is known. */
const char *hd__chat_other_form(const json_t *line);

/* Refuses what a line says and no template renders here: tools, and a system prompt beside the messages. */
int32_t hd__chat_check_line(const json_t *line, struct hd_error *err);

/* Appends messages and what begins the assistant's answer to them. */
int32_t hd__chat_prompt(const struct hd__tokenizer *tokenizer, const struct hd__chat_template *chat,
                        const json_t *messages, struct hd__ids *ids, struct hd_error *err);
/* The token that begins a turn; NULL: the template has none. */
const char *hd__chat_open(const struct hd__chat_template *chat);
/* Lacks the chat_template of this tokenizer_config.json, or file of its own, a text? 0 where there is none. */
int hd__chat_file_lacks(const char *path, const char *text);
/* The token that ends an answer; -1: the vocabulary has none. */
int64_t hd__chat_stop(const struct hd__tokenizer *tokenizer, const struct hd__chat_template *chat);

#endif
