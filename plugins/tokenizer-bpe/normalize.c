/* Normalizers: a text becomes another one, in two buffers by turns. */
#include <utf8proc.h>

#include "internal.h"

enum { NORMAL_RUN = 4096 };

/* ---- Unicode */

static bool is_ascii(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] & 0x80)
            return false;
    return true;
}

static utf8proc_option_t unicode_options(uint32_t kind)
{
    uint32_t form = kind == BPE_NFC || kind == BPE_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    return (utf8proc_option_t)(UTF8PROC_STABLE | form | (kind >= BPE_NFKC ? UTF8PROC_COMPAT : 0));
}

/* Marks behind a character in the order of their classes, each class as it stood. The library's own sort takes n squared
 * for n marks in a row; this one counts. */
static void order_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *room)
{
    size_t start[257] = {0};
    bool ordered = true;
    for (size_t i = 0; i < n; i++) {
        uint32_t class = (uint32_t)utf8proc_get_property(marks[i])->combining_class & 255;
        ordered &= i == 0 || (utf8proc_get_property(marks[i - 1])->combining_class & 255u) <= class;
        start[class + 1]++;
    }
    for (size_t k = 0; k < 256; k++)
        start[k + 1] += start[k];
    for (size_t i = 0; i < n && !ordered; i++)
        room[start[utf8proc_get_property(marks[i])->combining_class & 255]++] = marks[i];
    if (!ordered)
        memcpy(marks, room, n * sizeof *marks);
}

static void order_all(utf8proc_int32_t *text, size_t n, utf8proc_int32_t *room)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && utf8proc_get_property(text[end])->combining_class;)
            end++;
        if (end > i + 1)
            order_marks(text + i, end - i, room);
        end += end == i;
    }
}

/* Decomposed characters; their number. No character becomes more than MOST_OF_ONE. */
enum { MOST_OF_ONE = 18 };
static size_t decompose(const char *text, size_t bytes, utf8proc_option_t options, utf8proc_int32_t *out)
{
    size_t count = 0;
    for (size_t i = 0, n; i < bytes; i += n) {
        int boundary = 0;
        n = bpe_utf8_length((const uint8_t *)text + i, bytes - i);
        utf8proc_int32_t c = (utf8proc_int32_t)bpe_utf8_decode((const uint8_t *)text + i, n);
        count += (size_t)utf8proc_decompose_char(c, out + count, MOST_OF_ONE, options, &boundary);
    }
    return count;
}

/* A run of characters, of which no merge crosses the end: at most NORMAL_RUN bytes, but for what belongs together. */
static int32_t add_run(struct bpe_context *c, uint32_t kind, const char *text, size_t bytes, struct bpe_text *out)
{
    utf8proc_option_t options = unicode_options(kind);
    utf8proc_int32_t *at = malloc((bytes * 6 + MOST_OF_ONE) * sizeof *at), *room;
    if (!at)
        return bpe_no_memory(c);
    size_t n = decompose(text, bytes, options, at);
    if (!(room = malloc((n + 1) * sizeof *room))) {
        free(at);
        return bpe_no_memory(c);
    }
    order_all(at, n, room);
    utf8proc_ssize_t left = utf8proc_normalize_utf32(at, (utf8proc_ssize_t)n, options);
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        char character[4];
        bpe_text_add(out, character, bpe_utf8_encode((uint32_t)at[i], character));
    }
    free(room);
    free(at);
    return HD_OK;
}

/* Nothing is composed across an ASCII character that another one follows, so a long text is cut there. */
static int32_t add_unicode(struct bpe_context *c, uint32_t kind, const char *text, size_t bytes, struct bpe_text *out)
{
    int32_t rc = HD_OK;
    for (size_t at = 0, n; !rc && at < bytes; at += n) {
        for (n = NORMAL_RUN; n < bytes - at && ((text[at + n] | text[at + n - 1]) & 0x80);)
            n++;
        n = n < bytes - at ? n : bytes - at;
        if (is_ascii(text + at, n))
            bpe_text_add(out, text + at, n);
        else
            rc = add_run(c, kind, text + at, n, out);
    }
    return rc;
}

static int32_t to_lower(struct bpe_text *out, const char *text, size_t bytes)
{
    for (size_t i = 0, n; i < bytes; i += n) {
        char lower[4];
        n = bpe_utf8_length((const uint8_t *)text + i, bytes - i);
        uint32_t character = bpe_utf8_decode((const uint8_t *)text + i, n);
        if (character == 0x130) /* the one whose lower case has two characters */
            bpe_text_add(out, "i\xcc\x87", 3);
        else
            bpe_text_add(out, lower, bpe_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)character), lower));
    }
    return HD_OK;
}

/* ---- the others */

static int32_t replace(struct bpe_context *c, const struct bpe_normalizer *step, const char *text, size_t bytes,
                       struct bpe_text *out)
{
    size_t start, end, last = SIZE_MAX;
    for (size_t from = 0;; from = last = end) {
        int32_t rc = bpe_regex_next(c, &step->regex, BPE_MOST_STEPS, text, bytes, from, last, &start, &end);
        if (rc)
            return rc;
        bpe_text_add(out, text + from, (start <= bytes ? start : bytes) - from);
        if (start > bytes)
            return HD_OK;
        bpe_text_add(out, step->content.at, step->content.length);
    }
}

static int32_t normalize_valid(struct bpe_context *c, const struct bpe_normalizer *step, const char *text, size_t bytes,
                               struct bpe_text *out)
{
    switch (step->kind) {
    case BPE_REPLACE:
        return replace(c, step, text, bytes, out);
    case BPE_LOWERCASE:
        return to_lower(out, text, bytes);
    default:
        if (!is_ascii(text, bytes))
            return add_unicode(c, step->kind, text, bytes, out);
        bpe_text_add(out, text, bytes);
        return HD_OK;
    }
}

/* Bytes that are no UTF-8 stay as they are. */
static int32_t normalize_runs(struct bpe_context *c, const struct bpe_normalizer *step, const char *text, size_t bytes,
                              struct bpe_text *out)
{
    int32_t rc = HD_OK;
    for (size_t at = 0, n; !rc && at < bytes; at += n) {
        n = c->valid ? bytes : bpe_utf8_valid(text + at, bytes - at);
        if (n)
            rc = normalize_valid(c, step, text + at, n, out);
        else
            bpe_text_add(out, text + at, n = bpe_utf8_invalid(text + at, bytes - at));
    }
    return rc;
}

static size_t space_at_end(const char *text, size_t bytes)
{
    size_t n = 1;
    while (n < 4 && n < bytes && ((uint8_t)text[bytes - n] & 0xc0) == 0x80)
        n++;
    return bytes && bpe_is_space(text + bytes - n, n) == n ? n : 0;
}

static void strip(const struct bpe_normalizer *step, const char **text, size_t *bytes)
{
    for (size_t n; step->left && (n = bpe_is_space(*text, *bytes)); *bytes -= n)
        *text += n;
    for (size_t n; step->right && (n = space_at_end(*text, *bytes));)
        *bytes -= n;
}

int32_t bpe_normalize_text(struct bpe_context *c, const char **text, size_t *bytes)
{
    uint32_t turn = 0; /* the buffer that the text does not lie in */
    for (uint32_t i = 0; i < c->t->n_normalizers; i++) {
        const struct bpe_normalizer *step = &c->t->normalizers[i];
        struct bpe_text *out = &c->normal[turn];
        int32_t rc = HD_OK;
        if (step->kind == BPE_STRIP) {
            strip(step, text, bytes);
            continue;
        }
        if (*bytes == 0 || (step->kind <= BPE_NFKD && is_ascii(*text, *bytes)))
            continue;
        turn = 1 - turn;
        bpe_text_clear(out);
        if (step->kind == BPE_PREPEND) {
            bpe_text_add(out, step->content.at, step->content.length);
            bpe_text_add(out, *text, *bytes);
        } else {
            rc = normalize_runs(c, step, *text, *bytes, out);
        }
        if (rc)
            return rc;
        if (bpe_text_failed(out))
            return bpe_no_memory(c);
        *text = out->at ? out->at : "";
        *bytes = out->length;
    }
    return HD_OK;
}

int32_t bpe_normalize(struct bpe_context *c, const char *text, size_t bytes, bool first)
{
    int32_t rc = bpe_normalize_text(c, &text, &bytes);
    return rc ? rc : bpe_cut_added(c, &c->t->normalized, text, bytes, first, bpe_pre_tokenize);
}
