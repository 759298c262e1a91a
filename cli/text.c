/* Text of a model: by its tokenizer, as bytes, or as ids in digits. */
#include "cli/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/file.h"

enum { CONFIG_MOST = 1 << 20 };

static void push_id(struct hd__ids *ids, int64_t id)
{
    if (ids->count == ids->room) {
        ids->room = HD__MAX(2 * ids->room, 16);
        ids->at = hd__realloc(ids->at, ids->room * sizeof *ids->at);
    }
    ids->at[ids->count++] = (int32_t)id;
}

/* ---- opening */

static void add_end(struct hd__cli_text *text, int64_t id)
{
    for (size_t i = 0; i < text->ends.count; i++)
        if (text->ends.at[i] == id)
            return;
    if (id >= 0 && id < text->vocab)
        push_id(&text->ends, id);
}

/* generation_config.json: "eos_token_id" is a number, a list, or missing. */
static int32_t read_generation_config(struct hd__cli_text *text, const char *folder, struct hd_error *err)
{
    char *path = hd__format("%s/generation_config.json", folder);
    FILE *file = access(path, F_OK) ? NULL : hd__open_regular(path, "generation config", err);
    json_error_t why;
    json_t *root = file ? json_loadf(file, 0, &why) : NULL, *eos = json_object_get(root, "eos_token_id");
    int32_t rc = file && !root ? hd_fail(err, HD_E_INVALID, "%s:%d: %s", path, why.line, why.text) : HD_OK;
    if (json_is_integer(eos))
        add_end(text, json_integer_value(eos));
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (json_is_integer(json_array_get(eos, i)))
            add_end(text, json_integer_value(json_array_get(eos, i)));
    if (file)
        fclose(file);
    json_decref(root);
    free(path);
    return rc;
}

static int32_t open_chat(struct hd__cli_text *text, const char *name, struct hd_error *err)
{
    text->chat = hd__chat_find(name);
    if (!text->chat)
        return hd_fail(err, HD_E_INVALID, "--chat %s: " HD__CHAT_THERE_ARE, name);
    if (text->kind != HD__CLI_TEXT_TOKENIZER)
        return hd_fail(err, HD_E_INVALID, "--chat %s: a template needs a tokenizer: name one by --tokenizer", name);
    int32_t rc = hd__chat_check(&text->tokenizer, text->chat, err);
    if (!rc)
        add_end(text, hd__chat_stop(&text->tokenizer, text->chat));
    return rc;
}

struct hd__token_maker hd__cli_text_maker(const struct hd__cli_job *loaded, const struct hd__cli_text *text)
{
    return text->kind == HD__CLI_TEXT_TOKENIZER ? hd__train_tokenizer(loaded->compiled, text->tokenizer.path)
                                                : (struct hd__token_maker){0};
}

int32_t hd__cli_text_open(const struct hd__cli_job *loaded, const struct hd__cli_text_flags *flags,
                          struct hd__cli_text *text, struct hd_error *err)
{
    const struct hd__compiled *c = loaded->compiled;
    const char *from = c->info.weights, *named = flags->tokenizer ? flags->tokenizer : loaded->job->data_tokenizer,
               *path = named ? named : from;
    int none = !path || (flags->tokenizer && !strcmp(path, "none"));
    *text = (struct hd__cli_text){.vocab = c->info.vocab};
    text->kind = c->info.vocab == 256 && (!none || !path) ? HD__CLI_TEXT_BYTES : HD__CLI_TEXT_IDS;
    int32_t rc =
        none ? HD_E_NOTFOUND : hd__tokenizer_open(loaded->plugins, c->host, flags->use, path, &text->tokenizer, err);
    if (rc == HD_E_NOTFOUND && (none || !named)) {
        *err = (struct hd_error)HD_ERROR_INIT;
        rc = HD_OK;
    } else if (rc && !named) {
        struct hd_error why = *err;
        hd_fail(err, rc, "%s; `--tokenizer none` goes on in token ids", why.message);
    } else if (!rc && text->tokenizer.info.vocab > text->vocab) {
        rc = hd_fail(err, HD_E_INVALID,
                     "%s has %lld ids, and the model's vocabulary is %lld: name the tokenizer that it was trained with "
                     "by --tokenizer, or go on in token ids by `--tokenizer none`",
                     text->tokenizer.path, (long long)text->tokenizer.info.vocab, (long long)text->vocab);
    } else if (!rc) {
        text->kind = HD__CLI_TEXT_TOKENIZER;
        add_end(text, hd__tokenizer_eod(&text->tokenizer));
    }
    if (!rc && flags->use && text->kind != HD__CLI_TEXT_TOKENIZER)
        return hd_fail(err, HD_E_INVALID, "--use %s: there is no tokenizer for it to read: name a file by --tokenizer",
                       flags->use);
    if (!rc && from && !hd__token_makers_differ(hd__cli_text_maker(loaded, text), hd__train_tokenizer(c, from)))
        rc = read_generation_config(text, from, err); /* its ids are of its own tokenizer */
    return rc || !flags->chat ? rc : open_chat(text, flags->chat, err);
}

void hd__cli_text_close(struct hd__cli_text *text)
{
    hd__tokenizer_close(&text->tokenizer);
    free(text->ends.at);
    *text = (struct hd__cli_text){0};
}

/* ---- ids of a text */

static int32_t parse_ids(const struct hd__cli_text *text, const char *at, size_t count, struct hd__ids *ids,
                         struct hd_error *err)
{
    const char *end = at + count;
    for (;;) {
        int64_t id = 0;
        while (at < end && isspace((unsigned char)*at))
            at++;
        if (at == end)
            return HD_OK;
        const char *digits = at;
        while (at < end && isdigit((unsigned char)*at) && id < text->vocab)
            id = 10 * id + *at++ - '0';
        if (at == digits || id >= text->vocab || (at < end && !isspace((unsigned char)*at)))
            return hd_fail(err, HD_E_INVALID,
                           "there is no tokenizer: wanted token ids from 0 to %lld with blanks between them, or "
                           "--tokenizer",
                           (long long)text->vocab - 1);
        push_id(ids, id);
    }
}

int32_t hd__cli_text_encode(const struct hd__cli_text *text, const char *bytes, size_t count, int frame,
                            struct hd__ids *ids, struct hd_error *err)
{
    if (text->kind == HD__CLI_TEXT_IDS)
        return parse_ids(text, bytes, count, ids, err);
    if (text->kind == HD__CLI_TEXT_BYTES) {
        for (size_t i = 0; i < count; i++)
            push_id(ids, (unsigned char)bytes[i]);
        return HD_OK;
    }
    uint32_t flags = HD_TOKENIZER_SPECIAL | (frame ? HD_TOKENIZER_FRAME : 0);
    size_t before = ids->count;
    int32_t rc = hd__tokenizer_encode(&text->tokenizer, bytes, count, flags, ids, err);
    for (size_t i = before; i < ids->count && !rc; i++)
        if (ids->at[i] >= text->vocab)
            rc = hd_fail(err, HD_E_INVALID, "%s makes id %d of this text, but the model's vocabulary is %lld",
                         text->tokenizer.path, ids->at[i], (long long)text->vocab);
    return rc;
}

void hd__cli_text_add_first(const struct hd__cli_text *text, struct hd__ids *ids)
{
    const struct hd__tokenizer *t = &text->tokenizer;
    if (text->kind != HD__CLI_TEXT_TOKENIZER)
        push_id(ids, text->kind == HD__CLI_TEXT_BYTES ? '\n' : 0);
    else
        push_id(ids, t->info.bos >= 0 ? t->info.bos : HD__MAX(hd__tokenizer_eod(t), 0));
}

int32_t hd__cli_text_encode_line(const struct hd__cli_text *text, const json_t *line, struct hd__ids *ids,
                                 struct hd_error *err)
{
    const json_t *prompt = json_object_get(line, "prompt"), *messages = json_object_get(line, "messages");
    if (hd__chat_check_line(line, err))
        return err->code;
    if (messages && !text->chat)
        return hd_fail(err, HD_E_INVALID, "\"messages\" need a template: --chat NAME (" HD__CHAT_NAMES ")");
    if (messages)
        return hd__chat_prompt(&text->tokenizer, text->chat, messages, ids, err);
    if (!json_is_string(prompt))
        return hd_fail(err, HD_E_INVALID, "wanted {\"prompt\": TEXT} or {\"messages\": [...]}");
    if (!text->chat)
        return hd__cli_text_encode(text, json_string_value(prompt), json_string_length(prompt), 1, ids, err);
    json_t *turns = json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
    int32_t rc = hd__chat_prompt(&text->tokenizer, text->chat, turns, ids, err);
    json_decref(turns);
    return rc;
}

/* ---- text of ids */

int32_t hd__cli_text_decode(const struct hd__cli_text *text, const int32_t *ids, size_t count, struct hd__text *out,
                            struct hd_error *err)
{
    hd__text_add_bytes(out, "", 0);
    if (text->kind != HD__CLI_TEXT_TOKENIZER) {
        for (size_t i = 0; i < count; i++)
            if (text->kind == HD__CLI_TEXT_BYTES)
                hd__text_add_bytes(out, (char[]){(char)ids[i]}, 1);
            else
                hd__text_add(out, " %d", ids[i]);
        return HD_OK;
    }
    int32_t *known = hd__alloc((count + 1) * sizeof *known), rc;
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < text->tokenizer.info.vocab)
            known[n++] = ids[i];
    rc = hd__tokenizer_decode(&text->tokenizer, known, n, HD_TOKENIZER_SKIP_SPECIAL, out, err);
    free(known);
    return rc;
}

/* ---- UTF-8 */

/* Length of the character at `at`, or of what is valid of it; *whole: 1: all of it, 0: never, -1: more bytes are
 * wanted (Unicode 15, table 3-7). */
static size_t character(const unsigned char *at, size_t left, int *whole)
{
    unsigned char first = *at, low = 0x80, high = 0xbf;
    size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : low;
    high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : high;
    *whole = length > 0;
    for (size_t n = 1; n < length; n++, low = 0x80, high = 0xbf)
        if (n == left || at[n] < low || at[n] > high) {
            *whole = n == left ? -1 : 0;
            return n;
        }
    return HD__MAX(length, 1);
}

size_t hd__cli_utf8_complete(const char *text, size_t bytes)
{
    for (size_t back = 1; back < 4 && back <= bytes; back++) {
        int whole;
        character((const unsigned char *)text + bytes - back, back, &whole);
        if (whole < 0)
            return bytes - back;
    }
    return bytes;
}

json_t *hd__cli_json_text(const char *text, size_t bytes)
{
    struct hd__text out = {0};
    hd__text_add_bytes(&out, "", 0);
    for (size_t at = 0, n; at < bytes; at += n) {
        int whole;
        n = character((const unsigned char *)text + at, bytes - at, &whole);
        hd__text_add_bytes(&out, whole > 0 ? text + at : "\xef\xbf\xbd", whole > 0 ? n : 3);
    }
    json_t *string = json_stringn(out.at, out.length);
    hd__text_free(&out);
    return string;
}

void hd__cli_print_bytes(const char *text, size_t bytes)
{
    if (hd__output_is_terminal()) {
        char *copy = hd__alloc(bytes + 1);
        for (size_t i = 0; i < bytes; i++)
            copy[i] = text[i] ? text[i] : '?';
        fputs(hd__printable(copy), stdout);
        free(copy);
    } else {
        fwrite(text, 1, bytes, stdout);
    }
    fflush(stdout);
}
