/* The text of all ids is made anew with every token, since a tokenizer may write an id differently behind another;
 * bytes that may begin a stop text or a character wait for the next token. */
#include "cli/sample_output.h"

#include <stdlib.h>

/* ---- what ends it */

static void add_id(struct hd__ids *ids, int32_t id)
{
    if (ids->count == ids->room) {
        ids->room = HD__MAX(2 * ids->room, 64);
        ids->at = hd__realloc(ids->at, ids->room * sizeof *ids->at);
    }
    ids->at[ids->count++] = id;
}

static int has_id(const struct hd__ids *ids, int32_t id)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->at[i] == id)
            return 1;
    return 0;
}

/* Digits are an id, unless tokens are bytes; else a text, and the token that the vocabulary has by this name. */
static int32_t add_stop(struct hd__sample_output *out, const char *stop, struct hd_error *err)
{
    int digits = *stop && strspn(stop, "0123456789") == strlen(stop), kind = out->text->kind;
    if (digits && kind != HD__CLI_TEXT_BYTES) {
        int64_t id = strlen(stop) < 12 ? strtoll(stop, NULL, 10) : INT64_MAX;
        if (id >= out->text->vocab)
            return hd_fail(err, HD_E_INVALID, "--stop %s: the model's vocabulary is %lld", stop,
                           (long long)out->text->vocab);
        add_id(&out->stop_ids, (int32_t)id);
        return HD_OK;
    }
    if (!*stop || kind == HD__CLI_TEXT_IDS)
        return hd_fail(err, HD_E_INVALID, "--stop '%s': wanted %s", stop,
                       *stop ? "an id, since this model has no tokenizer" : "a text or an id");
    int64_t id = kind == HD__CLI_TEXT_TOKENIZER ? hd__tokenizer_find(&out->text->tokenizer, stop) : -1;
    if (id >= 0 && id < out->text->vocab)
        add_id(&out->stop_ids, (int32_t)id);
    out->stop_text[out->n_stop_texts++] = stop;
    return HD_OK;
}

int32_t hd__sample_output_open(struct hd__sample_output *out, struct hd_error *err)
{
    int32_t rc = HD_OK;
    out->stop_text = hd__alloc((out->n_stops + 1) * sizeof *out->stop_text);
    for (uint32_t i = 0; i < out->n_stops && !rc; i++)
        rc = add_stop(out, out->stop[i], err);
    return rc;
}

void hd__sample_output_close(struct hd__sample_output *out)
{
    free(out->stop_ids.at);
    free(out->ids.at);
    free(out->stop_text);
    hd__text_free(&out->before);
    hd__text_free(&out->now);
}

/* ---- text that is known, and of it what may be printed */

static int32_t make_text(struct hd__sample_output *out, struct hd_error *err)
{
    out->now.length = 0;
    int32_t rc = hd__cli_text_decode(out->text, out->ids.at, out->n_text_ids, &out->now, err);
    size_t n = out->before.length;
    if (!rc && (out->now.length < n || memcmp(out->now.at, out->before.at, n))) { /* the prompt reads differently now */
        out->now.length = 0;
        hd__text_add(&out->now, "%s", "");
        rc = hd__cli_text_decode(out->text, out->ids.at + out->n_prompt, out->n_text_ids - out->n_prompt, &out->now,
                                 err);
        out->before.length = 0;
        out->printed = HD__MIN(out->printed > n ? out->printed - n : 0, out->now.length);
    }
    out->end = out->now.length;
    return rc;
}

/* Cuts the text before the first stop text. */
static int find_stop(struct hd__sample_output *out)
{
    int found = 0;
    for (uint32_t i = 0; i < out->n_stop_texts; i++) {
        const char *from = out->now.at + out->before.length,
                   *at = memmem(from, out->now.at + out->end - from, out->stop_text[i], strlen(out->stop_text[i]));
        if (at)
            out->end = (size_t)(at - out->now.at);
        found |= at != NULL;
    }
    return found;
}

/* The text without an end that may begin a stop text. */
static size_t safe_end(const struct hd__sample_output *out)
{
    size_t safe = out->end;
    for (uint32_t i = 0; i < out->n_stop_texts; i++) {
        size_t length = strlen(out->stop_text[i]);
        for (size_t n = HD__MIN(length - 1, out->end - out->before.length); n; n--)
            if (!memcmp(out->now.at + out->end - n, out->stop_text[i], n)) {
                safe = HD__MIN(safe, out->end - n);
                break;
            }
    }
    return hd__cli_utf8_complete(out->now.at, safe);
}

static void print_up_to(struct hd__sample_output *out, size_t end)
{
    if (!out->json && !out->silent && end > out->printed) {
        hd__cli_print_bytes(out->now.at + out->printed, end - out->printed);
        out->printed = end;
    }
}

/* ---- one answer */

int32_t hd__sample_output_begin(struct hd__sample_output *out, const struct hd__sample_prompt *prompt, uint32_t number,
                                int64_t sample, struct hd_error *err)
{
    out->ids.count = 0;
    for (size_t i = 0; i < prompt->ids.count; i++)
        add_id(&out->ids, prompt->ids.at[i]);
    out->n_prompt = out->n_text_ids = out->ids.count;
    out->prompt_number = number;
    out->sample = sample;
    out->finish = "length";
    out->failed = (struct hd_error)HD_ERROR_INIT;
    out->before.length = 0;
    int32_t rc = hd__cli_text_decode(out->text, out->ids.at, out->n_prompt, &out->before, err);
    out->printed = out->before.length;
    if (rc || out->json || out->silent)
        return rc;
    if (out->several && out->count)
        hd__cli_print_bytes("----\n", 5);
    out->count++;
    if (out->text->kind != HD__CLI_TEXT_IDS)
        hd__cli_print_bytes(prompt->text, prompt->bytes);
    return HD_OK;
}

int hd__sample_output_token(void *user, int32_t token)
{
    struct hd__sample_output *out = user;
    int eos = !out->ignore_eos && has_id(&out->text->ends, token), stop = has_id(&out->stop_ids, token);
    add_id(&out->ids, token);
    out->n_text_ids += !(eos || stop);
    if (make_text(out, &out->failed))
        return 1;
    if (find_stop(out) || eos || stop) {
        out->finish = eos && !stop ? "eos" : "stop";
        return 1;
    }
    print_up_to(out, safe_end(out));
    return 0;
}

static json_t *ids_json(const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static int32_t print_json(struct hd__sample_output *out, struct hd_error *err)
{
    struct hd__text text = {0};
    size_t first = out->n_prompt, count = out->ids.count - first;
    int32_t rc = hd__cli_text_decode(out->text, out->ids.at + first, out->n_text_ids - first, &text, err);
    if (!rc && out->end < out->now.length) /* without the stop text, and what may stand behind it */
        text.length -= HD__MIN(text.length, out->now.length - out->end);
    json_t *o = json_pack("{s:I, s:I, s:o, s:o, s:o, s:s}", "prompt", (json_int_t)out->prompt_number, "sample",
                          (json_int_t)out->sample, "prompt_ids", ids_json(out->ids.at, first), "ids",
                          ids_json(out->ids.at + first, count), "text",
                          out->text->kind == HD__CLI_TEXT_IDS ? json_null() : hd__cli_json_text(text.at, text.length),
                          "finish", out->finish);
    if (!rc) {
        json_dumpf(o, stdout, 0);
        putchar('\n');
        fflush(stdout);
    }
    json_decref(o);
    hd__text_free(&text);
    return rc;
}

int32_t hd__sample_output_end(struct hd__sample_output *out, struct hd_error *err)
{
    if (out->failed.code) {
        *err = out->failed;
        return err->code;
    }
    if (out->silent)
        return HD_OK;
    if (out->json)
        return print_json(out, err);
    print_up_to(out, out->end);
    hd__cli_print_bytes("\n", 1);
    return HD_OK;
}
