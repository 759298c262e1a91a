/* Pre-tokenizers: each cuts a text, or changes it, and hands the pieces to the next one; behind the last they are
 * words. */
#include "internal.h"

/* Pieces of one pre-tokenizer, as its behavior joins them: one is kept back until the next is known. */
struct cut {
    struct bpe_context *c;
    const struct bpe_split *step;
    const char *text;
    size_t start, end; /* of the piece kept back */
    uint32_t index;    /* of the step */
    bool pending, was_match, joined, first;
};

static int32_t run_step(struct bpe_context *c, uint32_t index, const char *text, size_t bytes, bool first);

static int32_t give(struct cut *cut, size_t start, size_t end)
{
    if (start == end)
        return HD_OK;
    return run_step(cut->c, cut->index + 1, cut->text + start, end - start, cut->first && start == 0);
}

static int32_t give_pending(struct cut *cut)
{
    bool pending = cut->pending;
    cut->pending = false;
    return pending ? give(cut, cut->start, cut->end) : HD_OK;
}

/* Does the piece belong to the one kept back? */
static bool joins(struct cut *cut, bool match)
{
    bool before = cut->was_match;
    cut->was_match = match;
    switch (cut->step->behavior) {
    case BPE_CONTIGUOUS:
        return match == before;
    case BPE_MERGED_WITH_PREVIOUS:
        return match && !before;
    default: /* BPE_MERGED_WITH_NEXT: a match takes what follows, unless that is a match, too */
        return before && !match;
    }
}

static int32_t add_piece(struct cut *cut, size_t start, size_t end, bool match)
{
    int32_t rc;
    match ^= cut->step->invert;
    if (cut->step->behavior == BPE_ISOLATED)
        return give(cut, start, end);
    if (cut->step->behavior == BPE_REMOVED)
        return match ? HD_OK : give(cut, start, end);
    if (joins(cut, match) && cut->pending) {
        cut->end = end;
        return HD_OK;
    }
    if ((rc = give_pending(cut)))
        return rc;
    cut->pending = true;
    cut->start = start;
    cut->end = end;
    return HD_OK;
}

/* A text that is all valid, which begins at `base` of the cut's. */
static int32_t cut_valid(struct cut *cut, size_t base, size_t bytes)
{
    const char *text = cut->text + base;
    size_t last = SIZE_MAX, prev = 0, start, end;
    for (size_t from = 0;; from = last = prev = end) {
        int32_t rc = bpe_regex_next(cut->c, &cut->step->regex, cut->index, text, bytes, from, last, &start, &end);
        if (rc)
            return rc;
        size_t gap = start <= bytes ? start : bytes;
        if (gap > prev && (rc = add_piece(cut, base + prev, base + gap, false)))
            return rc;
        if (start > bytes)
            return HD_OK;
        if ((rc = add_piece(cut, base + start, base + end, true)))
            return rc;
    }
}

/* Bytes that are no UTF-8 match nothing, and a match ends where they begin. */
static int32_t cut_by_regex(struct cut *cut, size_t bytes)
{
    int32_t rc = HD_OK;
    for (size_t at = 0, n; !rc && at < bytes; at += n) {
        n = cut->c->valid ? bytes : bpe_utf8_valid(cut->text + at, bytes - at);
        if (n) {
            rc = cut_valid(cut, at, n);
        } else {
            n = bpe_utf8_invalid(cut->text + at, bytes - at);
            rc = add_piece(cut, at, at + n, false);
        }
    }
    return rc ? rc : give_pending(cut);
}

static int32_t step_split(struct bpe_context *c, uint32_t index, const char *text, size_t bytes, bool first)
{
    struct cut cut = {.c = c, .step = &c->t->splits[index], .text = text, .index = index, .first = first};
    return cut_by_regex(&cut, bytes);
}

static int32_t step_prefix(struct bpe_context *c, uint32_t index, const char *text, size_t bytes, bool first)
{
    struct bpe_text *out = &c->scratch[index];
    if (bytes && text[0] == ' ')
        return run_step(c, index + 1, text, bytes, first);
    bpe_text_clear(out);
    bpe_text_add(out, " ", 1);
    bpe_text_add(out, text, bytes);
    return bpe_text_failed(out) ? bpe_no_memory(c) : run_step(c, index + 1, out->at, out->length, first);
}

/* Falcon's tokenizer cuts behind ByteLevel, where what it looks for are digits among these characters. */
static int32_t step_spell(struct bpe_context *c, uint32_t index, const char *text, size_t bytes, bool first)
{
    struct bpe_text *out = &c->scratch[index];
    bpe_text_clear(out);
    for (size_t i = 0; i < bytes; i++) {
        char character[4];
        bpe_text_add(out, character, bpe_utf8_encode(bpe_byte_character((uint8_t)text[i]), character));
    }
    return bpe_text_failed(out) ? bpe_no_memory(c) : run_step(c, index + 1, out->at, out->length, first);
}

/* A word of such characters is the bytes that they stand for. */
static int32_t spelled_word(struct bpe_context *c, const char *text, size_t bytes)
{
    struct bpe_text *out = &c->scratch[BPE_MOST_STEPS];
    bpe_text_clear(out);
    bpe_text_add(out, text, bytes);
    if (bpe_text_failed(out) || !bpe_bytes_of(text, bytes, out->at, &out->length))
        return bpe_no_memory(c);
    return bpe_word(c, out->at, out->length);
}

static bool begins(const char *text, size_t bytes, const struct bpe_split *step)
{
    return bytes >= step->replacement_length && !memcmp(text, step->replacement, step->replacement_length);
}

static int32_t step_metaspace(struct bpe_context *c, uint32_t index, const char *text, size_t bytes, bool first)
{
    const struct bpe_split *step = &c->t->splits[index];
    struct bpe_text *out = &c->scratch[index];
    bool wanted = step->scheme == BPE_PREPEND_ALWAYS || (step->scheme == BPE_PREPEND_FIRST && first);
    bpe_text_clear(out);
    if (wanted && !begins(text, bytes, step) && !(bytes && text[0] == ' '))
        bpe_text_add(out, step->replacement, step->replacement_length);
    for (size_t i = 0, n; i < bytes; i += n) {
        const char *space = memchr(text + i, ' ', bytes - i);
        n = space ? (size_t)(space - text) - i : bytes - i;
        bpe_text_add(out, text + i, n);
        if (space) {
            bpe_text_add(out, step->replacement, step->replacement_length);
            n++;
        }
    }
    if (bpe_text_failed(out))
        return bpe_no_memory(c);
    if (!step->cut)
        return run_step(c, index + 1, out->at, out->length, first);
    struct cut cut = {.c = c, .step = step, .text = out->at, .index = index, .first = first};
    return cut_by_regex(&cut, out->length);
}

/* Without a pre-tokenizer that cuts a text is one word. Where no token has the replacement of spaces behind another
 * character, no merge crosses the place before it, and the words there are as good, and in the cache. */
static int32_t cut_at_spaces(struct bpe_context *c, const char *text, size_t bytes)
{
    static const char space[] = "\xe2\x96\x81";
    size_t from = 0;
    int32_t rc = HD_OK;
    for (size_t at = 0; !rc && at < bytes; at++) {
        const char *found = memmem(text + at, bytes - at, space, 3);
        if (!found)
            break;
        at = (size_t)(found - text);
        bool after_space = at >= from + 3 && !memcmp(text + at - 3, space, 3);
        if (at > from && !after_space) {
            rc = bpe_word(c, text + from, at - from);
            from = at;
        }
        at += 2;
    }
    return rc ? rc : bpe_word(c, text + from, bytes - from);
}

static int32_t run_step(struct bpe_context *c, uint32_t index, const char *text, size_t bytes, bool first)
{
    if (index == c->t->n_splits && c->t->spelled)
        return spelled_word(c, text, bytes);
    if (index == c->t->n_splits)
        return c->t->model.cut_at_space ? cut_at_spaces(c, text, bytes) : bpe_word(c, text, bytes);
    switch (c->t->splits[index].kind) {
    case BPE_PREFIX:
        return step_prefix(c, index, text, bytes, first);
    case BPE_METASPACE:
        return step_metaspace(c, index, text, bytes, first);
    case BPE_SPELL:
        return step_spell(c, index, text, bytes, first);
    default:
        return step_split(c, index, text, bytes, first);
    }
}

int32_t bpe_pre_tokenize(struct bpe_context *c, const char *text, size_t bytes, bool first)
{
    return bytes ? run_step(c, 0, text, bytes, first) : HD_OK;
}
