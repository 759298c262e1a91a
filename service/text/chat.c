/* Templates as rows of a table: special tokens by name and the text between them. The text between two special tokens
 * is encoded as one piece, as a tokenizer does that finds special tokens in a rendered text. */
#include "service/text/chat.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"

/* A message is  open ROLE close header CONTENT end tail.  With `turns`, roles are shown by the tokens alone: a question
 * is  open CONTENT close, an answer  CONTENT end, without blanks behind it; the system's text precedes the last
 * question. */
struct hd__chat_template {
    const char *name;
    const char *begin;              /* token of a conversation; NULL: none, as with the others */
    const char *open, *close, *end; /* tokens; a template without `end` has no messages */
    const char *header, *tail;      /* texts */
    int trim;                       /* white space around a content is left out, as Jinja's `trim` does */
    int turns;
};

static const struct hd__chat_template templates[] = {
    /* https://github.com/openai/openai-python/blob/v0.28.1/chatml.md, and Qwen's tokenizer_config.json */
    {.name = "chatml", .open = "<|im_start|>", .header = "\n", .end = "<|im_end|>", .tail = "\n"},
    /* https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py, ChatFormat */
    {.name = "llama3",
     .begin = "<|begin_of_text|>",
     .open = "<|start_header_id|>",
     .close = "<|end_header_id|>",
     .header = "\n\n",
     .end = "<|eot_id|>",
     .tail = "",
     .trim = 1},
    /* https://github.com/mistralai/mistral-common, InstructTokenizerV3: vocabularies with [INST] as a token. Where
     * their published templates have a blank after it, it is the one that SentencePiece adds to every piece. */
    {.name = "mistral", .begin = "<s>", .open = "[INST]", .close = "[/INST]", .end = "</s>", .turns = 1},
    {.name = "plain"},
};

const struct hd__chat_template *hd__chat_find(const char *name)
{
    for (size_t i = 0; i < HD__COUNT(templates); i++)
        if (!strcmp(templates[i].name, name))
            return &templates[i];
    return NULL;
}

int32_t hd__chat_check(const struct hd__tokenizer *t, const struct hd__chat_template *c, struct hd_error *err)
{
    const char *const tokens[] = {c->begin, c->open, c->close, c->end};
    for (size_t i = 0; i < HD__COUNT(tokens); i++)
        if (tokens[i] && hd__tokenizer_find(t, tokens[i]) < 0)
            return hd_fail(err, HD_E_INVALID,
                           "%s: its vocabulary lacks %s, a special token of the chat template %s: take another of the "
                           "templates (" HD__CHAT_NAMES "), or a tokenizer that was made for this one",
                           t->path, tokens[i], c->name);
    return HD_OK;
}

const char *hd__chat_open(const struct hd__chat_template *c)
{
    return c->open;
}

/* Has a chat_template, which may be several by name, this text? */
static int has_text(const json_t *chat_template, const char *text)
{
    const char *one = json_string_value(chat_template);
    int found = one && strstr(one, text);
    for (size_t i = 0; i < json_array_size(chat_template); i++)
        found |= has_text(json_object_get(json_array_get(chat_template, i), "template"), text);
    return found;
}

int hd__chat_file_lacks(const char *path, const char *text)
{
    struct hd_error unused = HD_ERROR_INIT;
    size_t bytes = 0;
    char *read = access(path, F_OK) ? NULL : hd__read_text(path, "chat template", 64 << 20, &bytes, &unused);
    json_t *root = !read                          ? NULL
                   : hd__ends_with(path, ".json") ? json_loadb(read, bytes, 0, NULL)
                                                  : json_pack("{s:s%}", "chat_template", read, bytes);
    const json_t *is = json_object_get(root, "chat_template");
    int lacks = is && !json_is_null(is) && !has_text(is, text);
    json_decref(root);
    free(read);
    return lacks;
}

int64_t hd__chat_stop(const struct hd__tokenizer *t, const struct hd__chat_template *c)
{
    return c->end ? hd__tokenizer_find(t, c->end) : hd__tokenizer_eod(t);
}

const char *hd__chat_find_written_token(const struct hd__tokenizer *t, const char *content, size_t bytes)
{
    static const char *const names[] = {
        "<|endoftext|>",       "<|im_end|>",      "<|im_start|>", "<|eot_id|>", "<|begin_of_text|>",
        "<|start_header_id|>", "<|end_of_text|>", "<|endofdoc|>", "[INST]",     "<end_of_turn>",
        "<start_of_turn>",     "<eos>",           "<bos>"};
    for (size_t i = 0; i < HD__COUNT(names); i++)
        if (memmem(content, bytes, names[i], strlen(names[i])) && hd__tokenizer_find(t, names[i]) >= 0)
            return names[i];
    return NULL;
}

const char *hd__chat_find_lacking(const struct hd__tokenizer *t, const char *text, size_t bytes)
{
    static const char *const names[] = {"<|im_start|>", "<|start_header_id|>", "<start_of_turn>"};
    for (size_t i = 0; i < HD__COUNT(names); i++)
        if (memmem(text, bytes, names[i], strlen(names[i])) && hd__tokenizer_find(t, names[i]) < 0)
            return names[i];
    return NULL;
}

void hd__chat_ids_free(struct hd__chat_ids *out)
{
    free(out->ids.at);
    free(out->counts);
    *out = (struct hd__chat_ids){0};
}

/* ---- pieces */

/* The ids that were appended since the last call get their marks. */
static void mark(struct hd__chat_ids *out, size_t from, int counts)
{
    if (out->room < out->ids.count) {
        out->room = HD__MAX(2 * out->room, out->ids.count);
        out->counts = hd__realloc(out->counts, out->room);
    }
    memset(out->counts + from, counts, out->ids.count - from);
}

static void put_id(struct hd__chat_ids *out, int64_t id, int counts)
{
    struct hd__ids *ids = &out->ids;
    if (ids->count == ids->room) {
        ids->room = HD__MAX(2 * ids->room, 64);
        ids->at = hd__realloc(ids->at, ids->room * sizeof *ids->at);
    }
    ids->at[ids->count++] = (int32_t)id;
    mark(out, ids->count - 1, counts);
}

static void put_token(const struct hd__tokenizer *t, struct hd__chat_ids *out, const char *token, int counts)
{
    if (token)
        put_id(out, hd__tokenizer_find(t, token), counts);
}

static int32_t put_text(const struct hd__tokenizer *t, struct hd__chat_ids *out, const char *text, size_t bytes,
                        int counts, struct hd_error *err)
{
    size_t from = out->ids.count;
    int32_t rc = bytes ? hd__tokenizer_encode(t, text, bytes, 0, &out->ids, err) : HD_OK;
    mark(out, from, counts);
    return rc;
}

/* Text of which `head` bytes are given and the rest is the model's. In one piece where its ids then begin with those of
 * the head, as a prompt has them; else in two, so that what is trained on follows what a prompt ends with. */
static int32_t put_answer(const struct hd__tokenizer *t, struct hd__chat_ids *out, const struct hd__text *text,
                          size_t head, int counts, struct hd_error *err)
{
    struct hd__ids given = {0};
    size_t from = out->ids.count;
    int32_t rc = head ? hd__tokenizer_encode(t, text->at, head, 0, &given, err) : HD_OK;
    if (!rc)
        rc = put_text(t, out, text->at, text->length, counts, err);
    int whole = !rc && given.count <= out->ids.count - from &&
                (!given.count || !memcmp(out->ids.at + from, given.at, given.count * sizeof *given.at));
    if (!rc && whole)
        memset(out->counts + from, 0, given.count);
    if (!rc && !whole) {
        out->ids.count = from;
        rc = put_text(t, out, text->at, head, 0, err);
        if (!rc)
            rc = put_text(t, out, text->at + head, text->length - head, counts, err);
    }
    free(given.at);
    return rc;
}

/* ---- messages */

enum role { SYSTEM, USER, ASSISTANT };
static const char *const roles[] = {[SYSTEM] = "system", [USER] = "user", [ASSISTANT] = "assistant"};

struct message {
    enum role role;
    const char *content;
    size_t bytes;
    int counts; /* as an assistant's */
};

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void trim(const struct hd__chat_template *c, struct message *m)
{
    for (; c->trim && m->bytes && is_space(*m->content); m->bytes--)
        m->content++;
    while (m->bytes && (c->trim ? is_space(m->content[m->bytes - 1])
                                : c->turns && m->role == ASSISTANT && m->content[m->bytes - 1] == ' '))
        m->bytes--;
}

static int32_t read_role(const json_t *value, size_t i, enum role *role, struct hd_error *err)
{
    const char *name = json_string_value(value);
    for (*role = SYSTEM; name && *role <= ASSISTANT; ++*role)
        if (!strcmp(name, roles[*role]))
            return HD_OK;
    return hd_fail(err, HD_E_INVALID, "messages[%zu].role: %.40s%s: the roles are system, user and assistant", i,
                   name ? name : "no string", name ? " is not known" : "");
}

static int32_t read_weight(const json_t *value, size_t i, int *counts, struct hd_error *err)
{
    double weight = value ? json_number_value(value) : 1;
    if (value && (!json_is_number(value) || (weight != 0 && weight != 1)))
        return hd_fail(err, HD_E_INVALID, "messages[%zu].weight: is neither 0 nor 1", i);
    *counts = weight > 0;
    return HD_OK;
}

#define REASONING "reasoning is not rendered: write it"

/* Flags of other trainers, whose word for it "weight" is here. */
static int32_t check_flags(const json_t *value, size_t i, int counts, struct hd_error *err)
{
    static const char *const flags[] = {"train", "training", "trainable", "loss", "loss_scale"}; /* ms-swift's */
    for (size_t k = 0; k < HD__COUNT(flags); k++) {
        const json_t *flag = json_object_get(value, flags[k]);
        int off = json_is_false(flag) || (json_is_number(flag) && json_number_value(flag) == 0);
        if ((off && counts) || (k < 2 && json_is_true(flag) && !counts))
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "messages[%zu].%s: is not read: the loss counts each message of an assistant, but for one "
                           "with \"weight\": 0: write that instead",
                           i, flags[k]);
    }
    return HD_OK;
}

static int32_t read_message(const struct hd__chat_template *c, const json_t *value, size_t i, struct message *m,
                            struct hd_error *err)
{
    static const char *const refused[][2] = {{"tool_calls", "calls of tools are not rendered: write them"},
                                             {"reasoning_content", REASONING},
                                             {"reasoning", REASONING},
                                             {"thinking", REASONING}};
    const json_t *content = json_object_get(value, "content"), *other;
    if (!json_is_object(value))
        return hd_fail(err, HD_E_INVALID, "messages[%zu]: is no object {\"role\", \"content\"}", i);
    int32_t rc = read_role(json_object_get(value, "role"), i, &m->role, err);
    if (!rc)
        rc = read_weight(json_object_get(value, "weight"), i, &m->counts, err);
    if (rc)
        return rc;
    for (size_t k = 0; k < HD__COUNT(refused); k++)
        if ((other = json_object_get(value, refused[k][0])) &&
            json_string_length(other) + json_array_size(other) + json_object_size(other))
            return hd_fail(err, HD_E_UNSUPPORTED, "messages[%zu].%s: %s into content as the model is to say it", i,
                           refused[k][0], refused[k][1]);
    if (!json_is_string(content))
        return hd_fail(err, HD_E_INVALID, "messages[%zu].content: is no string", i);
    m->content = json_string_value(content);
    m->bytes = json_string_length(content);
    m->counts = m->counts && m->role == ASSISTANT;
    trim(c, m);
    return HD_OK;
}

/* [system] user assistant user assistant ... */
static int32_t check_turns(const struct hd__chat_template *c, const struct message *m, size_t n, struct hd_error *err)
{
    size_t first = n && m[0].role == SYSTEM;
    for (size_t i = first; i < n; i++)
        if (m[i].role != ((i - first) % 2 ? ASSISTANT : USER))
            return hd_fail(err, HD_E_INVALID,
                           "messages[%zu].role: is %s: with the template %s, user and assistant take turns, after at "
                           "most one message of the system",
                           i, roles[m[i].role], c->name);
    return n > first ? HD_OK : hd_fail(err, HD_E_INVALID, "messages: there is no message of a user");
}

static int32_t read_messages(const struct hd__chat_template *c, const json_t *list, struct message **messages,
                             size_t *n, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!c->end)
        return hd_fail(err, HD_E_INVALID,
                       "messages: the template %s has prompt and completion alone: name another (" HD__CHAT_NAMES ")",
                       c->name);
    *n = json_array_size(list);
    if (!*n)
        return hd_fail(err, HD_E_INVALID, "messages: is no list of at least one message");
    *messages = hd__alloc(*n * sizeof **messages);
    for (size_t i = 0; i < *n && !rc; i++)
        rc = read_message(c, json_array_get(list, i), i, &(*messages)[i], err);
    if (!rc && c->turns)
        rc = check_turns(c, *messages, *n, err);
    if (rc)
        free(*messages);
    return rc;
}

/* ---- rendering */

/* The begin of a message; in `text` what is encoded together with the content. */
static int32_t put_header(const struct hd__tokenizer *t, const struct hd__chat_template *c, const char *role,
                          struct hd__chat_ids *out, struct hd__text *text, struct hd_error *err)
{
    int32_t rc = HD_OK;
    text->length = 0;
    put_token(t, out, c->open, 0);
    hd__text_add_bytes(text, role, strlen(role));
    if (c->close) {
        rc = put_text(t, out, text->at, text->length, 0, err);
        put_token(t, out, c->close, 0);
        text->length = 0;
    }
    hd__text_add_bytes(text, c->header, strlen(c->header));
    return rc;
}

static int32_t put_message(const struct hd__tokenizer *t, const struct hd__chat_template *c, const struct message *m,
                           struct hd__chat_ids *out, struct hd__text *text, struct hd_error *err)
{
    int32_t rc = put_header(t, c, roles[m->role], out, text, err);
    size_t head = text->length;
    hd__text_add_bytes(text, m->content, m->bytes);
    if (!rc)
        rc = m->role == ASSISTANT ? put_answer(t, out, text, head, m->counts, err)
                                  : put_text(t, out, text->at, text->length, 0, err);
    put_token(t, out, c->end, m->counts);
    return rc ? rc : put_text(t, out, c->tail, strlen(c->tail), 0, err);
}

/* `system`: what precedes the question; NULL: nothing. */
static int32_t put_turn(const struct hd__tokenizer *t, const struct hd__chat_template *c, const struct message *m,
                        const struct message *system, struct hd__chat_ids *out, struct hd__text *text,
                        struct hd_error *err)
{
    text->length = 0;
    if (system) {
        hd__text_add_bytes(text, system->content, system->bytes);
        hd__text_add_bytes(text, "\n\n", 2);
    }
    hd__text_add_bytes(text, m->content, m->bytes);
    put_token(t, out, m->role == USER ? c->open : NULL, 0);
    int32_t rc = put_text(t, out, text->at, text->length, m->counts, err);
    put_token(t, out, m->role == USER ? c->close : c->end, m->counts);
    return rc;
}

static int32_t put_turns(const struct hd__tokenizer *t, const struct hd__chat_template *c, const struct message *m,
                         size_t n, struct hd__chat_ids *out, struct hd__text *text, struct hd_error *err)
{
    size_t first = m[0].role == SYSTEM, last = n - 1 - (m[n - 1].role == ASSISTANT);
    int32_t rc = HD_OK;
    for (size_t i = first; i < n && !rc; i++)
        rc = put_turn(t, c, &m[i], first && i == last ? m : NULL, out, text, err);
    return rc;
}

static int32_t put_messages(const struct hd__tokenizer *t, const struct hd__chat_template *c, const struct message *m,
                            size_t n, struct hd__chat_ids *out, struct hd__text *text, struct hd_error *err)
{
    int32_t rc = HD_OK;
    put_token(t, out, c->begin, 0);
    if (c->turns)
        return put_turns(t, c, m, n, out, text, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = put_message(t, c, &m[i], out, text, err);
    return rc;
}

static int32_t encode_messages(const struct hd__tokenizer *t, const struct hd__chat_template *c, const json_t *list,
                               int prompt, struct hd__chat_ids *out, struct hd_error *err)
{
    struct message *m = NULL;
    struct hd__text text = {0};
    size_t n = 0;
    int32_t rc = read_messages(c, list, &m, &n, err);
    if (rc)
        return rc;
    if (prompt && m[n - 1].role != USER)
        rc = hd_fail(err, HD_E_INVALID, "messages: the last is of the %s: an answer follows a user's",
                     roles[m[n - 1].role]);
    for (size_t i = 0; i < n && !rc && !prompt; i++)
        rc = check_flags(json_array_get(list, i), i, m[i].counts, err);
    for (size_t i = 0; i < n && !out->letters; i++)
        out->letters = hd__chat_find_written_token(t, m[i].content, m[i].bytes);
    if (!rc)
        rc = put_messages(t, c, m, n, out, &text, err);
    if (!rc && prompt && !c->turns && !(rc = put_header(t, c, roles[ASSISTANT], out, &text, err)))
        rc = put_text(t, out, text.at, text.length, 0, err);
    hd__text_free(&text);
    free(m);
    return rc;
}

/* ---- prompt and completion */

/* BOS, where the tokenizer's file puts it before a text. */
static int32_t put_bos(const struct hd__tokenizer *t, struct hd__chat_ids *out, struct hd_error *err)
{
    struct hd__ids frame = {0};
    int32_t rc = t->info.bos < 0 ? HD_OK : hd__tokenizer_encode(t, "", 0, HD_TOKENIZER_FRAME, &frame, err);
    if (!rc && frame.count && frame.at[0] == t->info.bos)
        put_id(out, t->info.bos, 0);
    free(frame.at);
    return rc;
}

static int32_t encode_completion(const struct hd__tokenizer *t, const json_t *prompt, const json_t *completion,
                                 struct hd__chat_ids *out, struct hd_error *err)
{
    struct hd__text text = {0};
    int64_t end = hd__tokenizer_eod(t);
    if (!json_is_string(prompt) || !json_is_string(completion))
        return hd_fail(err, HD_E_INVALID, "%s: is no string; conversations are \"messages\"",
                       json_is_string(prompt) ? "completion" : "prompt");
    if (end < 0)
        return hd_fail(err, HD_E_INVALID, "%s: its vocabulary has no token that ends a document, to end a completion",
                       t->path);
    int32_t rc = put_bos(t, out, err);
    hd__text_add_bytes(&text, json_string_value(prompt), json_string_length(prompt));
    hd__text_add_bytes(&text, json_string_value(completion), json_string_length(completion));
    out->letters = hd__chat_find_written_token(t, text.at, text.length);
    if (!rc)
        rc = put_answer(t, out, &text, json_string_length(prompt), 1, err);
    put_id(out, end, 1);
    hd__text_free(&text);
    return rc;
}

const char *hd__chat_other_form(const json_t *line)
{
    static const struct {
        const char *key, *with, *words; /* with: another key of this form */
    } forms[] = {
        {"conversations", NULL,
         "\"conversations\" are ShareGPT's: rename it to messages, from to role (human to user, gpt to assistant), and "
         "value to content"},
        {"instruction", "output",
         "\"instruction\" and \"output\" are Alpaca's: make them prompt (with what \"input\" has) and completion"},
        {"chosen", "rejected",
         "\"chosen\" and \"rejected\" are of preferences (DPO), which are not trained: to train on what was chosen "
         "alone, make it completion, or messages where it is a list"},
        {"input_ids", NULL,
         "\"input_ids\" are tokens: these go into a .npy, a sequence behind another (docs/data.md), and data.train "
         "names that"},
    };
    for (size_t i = 0; i < HD__COUNT(forms); i++)
        if (json_object_get(line, forms[i].key) && (!forms[i].with || json_object_get(line, forms[i].with)))
            return forms[i].words;
    return NULL;
}

int32_t hd__chat_check_line(const json_t *line, struct hd_error *err)
{
    const json_t *tools = json_object_get(line, "tools");
    if (json_string_length(json_object_get(line, "system")))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "system: is not rendered: make it the first of messages, {\"role\": \"system\", \"content\": "
                       "...}");
    if (tools && !json_is_null(tools) && json_array_size(tools))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "tools: tools are not rendered: describe them in a message of the system");
    return HD_OK;
}

int32_t hd__chat_encode(const struct hd__tokenizer *t, const struct hd__chat_template *c, const json_t *line,
                        struct hd__chat_ids *out, struct hd_error *err)
{
    const json_t *messages = json_object_get(line, "messages");
    const json_t *prompt = json_object_get(line, "prompt"), *completion = json_object_get(line, "completion");
    const char *other = hd__chat_other_form(line);
    out->ids.count = 0;
    out->letters = NULL;
    out->bare = !messages;
    if (!messages == !(prompt && completion) || (messages && (prompt || completion)))
        return hd_fail(err, HD_E_INVALID,
                       "the line has neither \"messages\" alone nor \"prompt\" with \"completion\"%s%s",
                       other ? "; " : "", other ? other : "");
    int32_t rc = messages ? hd__chat_check(t, c, err) : HD_OK;
    rc = rc ? rc : hd__chat_check_line(line, err);
    if (rc)
        return rc;
    return messages ? encode_messages(t, c, messages, 0, out, err) : encode_completion(t, prompt, completion, out, err);
}

int32_t hd__chat_prompt(const struct hd__tokenizer *t, const struct hd__chat_template *c, const json_t *messages,
                        struct hd__ids *ids, struct hd_error *err)
{
    struct hd__chat_ids out = {.ids = *ids};
    int32_t rc = hd__chat_check(t, c, err);
    if (!rc)
        rc = encode_messages(t, c, messages, 1, &out, err);
    *ids = out.ids;
    free(out.counts);
    return rc;
}
