/* Normalizers: a text becomes another one, in two buffers by turns. */
#include <utf8proc.h>

#include "internal.h"

/* ---- Unicode */

static bool is_ascii(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] & 0x80)
            return false;
    return true;
}

static int32_t unicode_options(uint32_t kind)
{
    static const int32_t options[] = {
        [BPE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [BPE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [BPE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [BPE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    return options[kind];
}

static int32_t add_unicode(struct bpe_context *c, uint32_t kind, const char *text, size_t bytes, struct bpe_text *out)
{
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &mapped,
                                      (utf8proc_option_t)unicode_options(kind));
    if (n == UTF8PROC_ERROR_NOMEM)
        return bpe_no_memory(c);
    if (n < 0)
        return hd_fail(c->err, HD_E_INVALID, "%s: Unicode normalization: %s", c->t->path, utf8proc_errmsg(n));
    bpe_text_add(out, mapped, (size_t)n);
    free(mapped);
    return HD_OK;
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
    for (uint32_t i = 0; i < c->t->n_normalizers; i++) {
        const struct bpe_normalizer *step = &c->t->normalizers[i];
        struct bpe_text *out = &c->normal[i % 2];
        int32_t rc = HD_OK;
        if (step->kind == BPE_STRIP) {
            strip(step, text, bytes);
            continue;
        }
        if (*bytes == 0 || (step->kind <= BPE_NFKD && is_ascii(*text, *bytes)))
            continue;
        out = *text == out->at ? &c->normal[1 - i % 2] : out;
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
