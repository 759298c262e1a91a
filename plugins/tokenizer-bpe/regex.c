/* The regexes of tokenizers: those of tokenizer.json have Oniguruma's Ruby syntax, those of tiktoken Rust's. PCRE2 runs
 * them. The three agree in what tokenizers use, but for what is translated here; what else differs is refused. */
#include <strings.h>

#include "internal.h"

struct translation {
    const char *pattern, *where;
    size_t bytes, at;
    struct bpe_text out;
    struct hd_error *err;
    int32_t dialect;
    bool in_class, inner; /* inner: in a class in a class */
    uint8_t reserved[2];
};

static int32_t refuse(struct translation *t, const char *what)
{
    return hd_fail(t->err, HD_E_INVALID, "%s: the regex %.*s%s: %s at its byte %zu is not supported", t->where,
                   (int)(t->bytes < 200 ? t->bytes : 200), t->pattern, t->bytes < 200 ? "" : "...", what, t->at);
}

static void add(struct translation *t, const char *text)
{
    bpe_text_add(&t->out, text, strlen(text));
}

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* \s is Unicode's White_Space to both; PCRE2's has U+180E too, and its \w lacks marks. */
static int32_t translate_escape(struct translation *t)
{
    static const char word[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    char c = t->at + 1 < t->bytes ? t->pattern[t->at + 1] : 0;
    if (!c)
        return refuse(t, "a backslash");
    if (c == 's' || c == 'S') {
        add(t, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    } else if (c == 'w' || (c == 'W' && !t->in_class)) {
        add(t, t->in_class ? "" : c == 'w' ? "[" : "[^");
        add(t, word);
        add(t, t->dialect == BPE_REGEX_RUST ? "\\p{Join_Control}" : "\\p{N}");
        add(t, t->in_class ? "" : "]");
    } else if (c == 'v') { /* a vertical tab; to PCRE2 all vertical space */
        add(t, "\\x0b");
    } else if (strchr("pPx", c)) { /* with what is in braces */
        const char *from = t->pattern + t->at, *end = memchr(from, '}', t->bytes - t->at);
        if (t->at + 2 >= t->bytes || from[2] != '{' || !end)
            return refuse(t, "\\p or \\x without braces");
        bpe_text_add(&t->out, from, (size_t)(end - from) + 1);
        t->at += (size_t)(end - from) - 1;
    } else if (strchr("dDnrtf", c) || !is_alphanumeric(c)) {
        bpe_text_add(&t->out, t->pattern + t->at, 2);
    } else {
        return refuse(t, "this escape");
    }
    t->at += 2;
    return HD_OK;
}

/* A class in a class: to Ruby [a[bc]] is [abc]. A hyphen beside an inner bracket would become a range. */
static int32_t open_inner_class(struct translation *t)
{
    const char *p = t->pattern + t->at;
    size_t left = t->bytes - t->at;
    if (t->dialect != BPE_REGEX_ONIGURUMA || t->inner || left < 3 || strchr("^:-]", p[1]) || p[-1] == '-')
        return refuse(t, "a class in a class of this form");
    t->inner = true;
    t->at++;
    return HD_OK;
}

static int32_t close_inner_class(struct translation *t)
{
    char next = t->at + 1 < t->bytes ? t->pattern[t->at + 1] : 0;
    if (t->pattern[t->at - 1] == '-' || next == '-')
        return refuse(t, "a hyphen beside a class in a class");
    t->inner = false;
    t->at++;
    return HD_OK;
}

static int32_t translate_in_class(struct translation *t)
{
    char c = t->pattern[t->at];
    if (c == '[')
        return open_inner_class(t);
    if (c == ']' && t->inner)
        return close_inner_class(t);
    if (c == '&' && t->at + 1 < t->bytes && t->pattern[t->at + 1] == '&')
        return refuse(t, "&&");
    if (c == ']')
        t->in_class = false;
    bpe_text_add(&t->out, &c, 1);
    t->at++;
    return HD_OK;
}

/* In Ruby's syntax a{1,3}+ is greedy and repeated, to PCRE2 and Rust possessive; (?m) lets . match newlines. */
static int32_t translate_outside(struct translation *t)
{
    char c = t->pattern[t->at], next = t->at + 1 < t->bytes ? t->pattern[t->at + 1] : 0;
    if (c == '}' && next == '+' && t->dialect == BPE_REGEX_ONIGURUMA)
        return refuse(t, "}+");
    if (c == '(' && next == '?') {
        char kind = t->at + 2 < t->bytes ? t->pattern[t->at + 2] : 0;
        if (!kind || !strchr(":=!<>i", kind))
            return refuse(t, "this group");
    }
    bpe_text_add(&t->out, &c, 1);
    t->at++;
    if (c == '[') {
        t->in_class = true;
        if (next == '^') {
            bpe_text_add(&t->out, "^", 1);
            t->at++;
        }
        if (t->at < t->bytes && t->pattern[t->at] == ']')
            return refuse(t, "] first in a class");
    }
    return HD_OK;
}

/* Oniguruma folds one character to several: (?i:ss) matches a sharp s, (?i:ff) a ligature. */
static int32_t refuse_folding(struct translation *t)
{
    static const char *const folds[] = {"ss", "ff", "fi", "fl", "st"};
    for (; t->at + 1 < t->bytes; t->at++)
        for (size_t i = 0; i < COUNT(folds); i++)
            if (!strncasecmp(t->pattern + t->at, folds[i], 2))
                return refuse(t, "(?i) with ss, ff, fi, fl or st");
    t->at = 0;
    return HD_OK;
}

static int32_t translate(struct translation *t)
{
    int32_t rc =
        t->dialect == BPE_REGEX_ONIGURUMA && memmem(t->pattern, t->bytes, "(?i", 3) ? refuse_folding(t) : HD_OK;
    while (!rc && t->at < t->bytes) {
        if (t->pattern[t->at] == '\\')
            rc = translate_escape(t);
        else
            rc = t->in_class ? translate_in_class(t) : translate_outside(t);
    }
    if (!rc && bpe_text_failed(&t->out))
        rc = hd_fail(t->err, HD_E_NOMEM, "%s: no memory", t->where);
    if (!rc && !t->out.length)
        rc = hd_fail(t->err, HD_E_INVALID, "%s: an empty regex", t->where);
    return rc;
}

static int32_t compile(struct bpe_regex *regex, const struct bpe_text *pattern, uint32_t options, const char *where,
                       struct hd_error *err)
{
    int code;
    PCRE2_SIZE at;
    regex->code = pcre2_compile((PCRE2_SPTR)pattern->at, pattern->length, options, &code, &at, NULL);
    if (!regex->code) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return hd_fail(err, HD_E_INVALID, "%s: the regex %.200s: %s at byte %zu", where, pattern->at, (char *)why,
                       (size_t)at);
    }
    regex->jit = !pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    return HD_OK;
}

int32_t bpe_regex_compile(struct bpe_regex *regex, const char *pattern, size_t bytes, int dialect, const char *where,
                          struct hd_error *err)
{
    struct translation t = {.pattern = pattern, .bytes = bytes, .where = where, .err = err, .dialect = dialect};
    int32_t rc = translate(&t);
    if (!rc) /* $ of Ruby is the end of a line, that of Rust the end of the text */
        rc = compile(regex, &t.out,
                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                         (dialect == BPE_REGEX_ONIGURUMA ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY),
                     where, err);
    free(t.out.at);
    return rc;
}

int32_t bpe_regex_compile_text(struct bpe_regex *regex, const char *text, size_t bytes, const char *where,
                               struct hd_error *err)
{
    const struct bpe_text pattern = {(char *)text, bytes, 0};
    return bytes ? compile(regex, &pattern, PCRE2_UTF | PCRE2_LITERAL, where, err)
                 : hd_fail(err, HD_E_INVALID, "%s: an empty pattern", where);
}

void bpe_regex_free(struct bpe_regex *regex)
{
    pcre2_code_free(regex->code);
    regex->code = NULL;
}

static int32_t match_failed(struct bpe_context *c, int code, size_t from)
{
    PCRE2_UCHAR why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    return hd_fail(c->err, HD_E_INVALID, "%s: its regex fails on this text from byte %zu of a piece: %s", c->t->path,
                   from, (char *)why);
}

static int match_at(struct bpe_context *c, const struct bpe_regex *regex, uint32_t slot, const char *text, size_t bytes,
                    size_t from)
{
    return regex->jit ? pcre2_jit_match(regex->code, (PCRE2_SPTR)text, bytes, from, 0, c->match[slot], c->match_context)
                      : pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, c->match[slot],
                                    c->match_context);
}

int32_t bpe_regex_next(struct bpe_context *c, const struct bpe_regex *regex, uint32_t slot, const char *text,
                       size_t bytes, size_t from, size_t last, size_t *start, size_t *end)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(c->match[slot]);
    for (; from <= bytes; from += from < bytes ? bpe_utf8_length((const uint8_t *)text + from, bytes - from) : 1) {
        int code = match_at(c, regex, slot, text, bytes, from);
        if (code == PCRE2_ERROR_NOMATCH)
            break;
        if (code < 0)
            return match_failed(c, code, from);
        *start = found[0];
        *end = found[1];
        if (*end > *start || *end != last)
            return HD_OK;
        from = *end; /* an empty match behind the one before */
    }
    *start = *end = bytes + 1;
    return HD_OK;
}
