/* Decoding: what each id stands for is worked out when the file is opened. */
#include "internal.h"

/* ---- one token through the decoders */

static void replace(const struct bpe_text *in, const struct bpe_text *from, const struct bpe_text *to,
                    struct bpe_text *out)
{
    for (size_t i = 0, n; i < in->length; i += n) {
        const char *found = memmem(in->at + i, in->length - i, from->at, from->length);
        n = found ? (size_t)(found - in->at) - i : in->length - i;
        bpe_text_add(out, in->at + i, n);
        if (found) {
            bpe_text_add(out, to->at, to->length);
            n += from->length;
        }
    }
}

static int32_t hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int32_t bpe_byte_of_token(const char *at, size_t length)
{
    if (length != 6 || memcmp(at, "<0x", 3) || at[5] != '>' || hex_digit(at[3]) < 0 || hex_digit(at[4]) < 0)
        return -1;
    return hex_digit(at[3]) * 16 + hex_digit(at[4]);
}

static void run_decoder(const struct bpe_decoder *d, const struct bpe_text *in, bool first, bool added,
                        struct bpe_text *out)
{
    static const struct bpe_text nothing = {0};
    int32_t byte = bpe_byte_of_token(in->at, in->length);
    size_t n = 0;
    switch (d->kind) {
    case BPE_DECODE_REPLACE:
        replace(in, &d->from, &d->to, out);
        return;
    case BPE_DECODE_METASPACE:
        replace(in, &d->from, first && d->drop_first ? &nothing : &d->to, out);
        return;
    case BPE_DECODE_BYTE_FALLBACK:
        bpe_text_add(out, in->at, byte < 0 ? in->length : 0);
        if (byte >= 0)
            bpe_text_add(out, &(char){(char)byte}, 1);
        return;
    default: /* an added token stands for its own text */
        bpe_text_add(out, in->at, in->length);
        if (!added && !bpe_text_failed(out) && bpe_bytes_of(in->at, in->length, out->at, &n))
            out->length = n;
    }
}

static bool decode_name(struct hd_tokenizer *t, const char *name, size_t length, bool first, bool added,
                        struct bpe_text two[2], struct bpe_slice *out)
{
    struct bpe_text *in = &two[0], *to = &two[1];
    bpe_text_clear(in);
    bpe_text_add(in, name, length);
    for (uint32_t i = 0; i < t->n_decoders; i++) {
        struct bpe_text *was = in;
        bpe_text_clear(to);
        if (in->length)
            run_decoder(&t->decoders[i], in, first, added, to);
        in = to;
        to = was;
    }
    *out = (struct bpe_slice){t->decoded_pool.length, in->length};
    bpe_text_add(&t->decoded_pool, in->at, in->length);
    return !bpe_text_failed(&two[0]) && !bpe_text_failed(&two[1]) && !bpe_text_failed(&t->decoded_pool);
}

static bool decode_names(struct hd_tokenizer *t, bool first, struct bpe_slice *out)
{
    struct bpe_text two[2] = {0};
    bool done = true;
    for (int64_t i = 0; i < t->vocab; i++)
        out[i] = (struct bpe_slice){SIZE_MAX, 0};
    for (uint32_t i = 0; i < t->names.count && done; i++) {
        const struct bpe_entry *e = &t->names.entries[i];
        done = decode_name(t, t->names.pool.at + e->at, e->length, first, false, two, &out[e->id]);
    }
    for (uint32_t i = 0; i < t->n_added && done; i++)
        done =
            decode_name(t, t->added[i].content.at, t->added[i].content.length, first, true, two, &out[t->added[i].id]);
    free(two[0].at);
    free(two[1].at);
    return done;
}

/* Ids that the file puts around a text have to be those of tokens: a vocabulary may have holes. */
static int32_t check_frame(const struct hd_tokenizer *t, const int32_t *ids, uint32_t count, struct hd_error *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (t->decoded[ids[i]].at == SIZE_MAX)
            return hd_fail(err, HD_E_INVALID, "%s: post_processor puts the id %d around a text, which is no token",
                           t->path, ids[i]);
    return HD_OK;
}

int32_t bpe_decode_table(struct hd_tokenizer *t, struct hd_error *err)
{
    bool two = false;
    for (uint32_t i = 0; i < t->n_decoders; i++)
        two |= t->decoders[i].drop_first;
    t->decoded = malloc(((size_t)t->vocab + 1) * sizeof *t->decoded);
    t->special = calloc((size_t)t->vocab + 1, 1);
    t->decoded_first = two ? malloc(((size_t)t->vocab + 1) * sizeof *t->decoded) : NULL;
    if (!t->decoded || !t->special || (two && !t->decoded_first) || !decode_names(t, false, t->decoded) ||
        (two && !decode_names(t, true, t->decoded_first)))
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", t->path);
    for (uint32_t i = 0; i < t->n_added; i++)
        t->special[t->added[i].id] |= t->added[i].special;
    int32_t rc = check_frame(t, t->prefix, t->n_prefix, err);
    return rc ? rc : check_frame(t, t->suffix, t->n_suffix, err);
}

/* ---- ids */

/* The Strip behind Fuse: the first characters of the whole text. */
static void strip(const struct hd_tokenizer *t, uint32_t *left, const char **text, size_t *bytes)
{
    for (; *left && *bytes; --*left) {
        if (*bytes < t->strip_length || memcmp(*text, t->strip, t->strip_length)) {
            *left = 0;
            return;
        }
        *text += t->strip_length;
        *bytes -= t->strip_length;
    }
}

int32_t bpe_decode(const struct hd_tokenizer *t, const int32_t *ids, size_t count, uint32_t flags,
                   void (*emit)(void *user, const char *text, size_t bytes), void *user, struct hd_error *err)
{
    uint32_t left = t->strip_most;
    bool first = true;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab || t->decoded[ids[i]].at == SIZE_MAX)
            return hd_fail(err, HD_E_INVALID, "%s: id %d, number %zu of %zu, is no token: the vocabulary has 0 to %lld",
                           t->path, ids[i], i, count, (long long)t->vocab - 1);
    for (size_t i = 0; i < count; i++) {
        if ((flags & HD_TOKENIZER_SKIP_SPECIAL) && t->special[ids[i]])
            continue;
        const struct bpe_slice *s = first && t->decoded_first ? &t->decoded_first[ids[i]] : &t->decoded[ids[i]];
        const char *text = t->decoded_pool.at + s->at;
        size_t bytes = s->length;
        if (t->join && !first)
            emit(user, " ", 1);
        first = false;
        strip(t, &left, &text, &bytes);
        if (bytes)
            emit(user, text, bytes);
    }
    return HD_OK;
}
