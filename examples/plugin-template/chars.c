/* tokenizer-chars: a token a byte, those that a file lists: "chars", a newline, and each byte that texts may have.
 * Behind them is one special token, "<|end|>". */
#include <errno.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/tokenizer.h"

#define END "<|end|>"

struct hd_tokenizer {
    int32_t ids[256]; /* of a byte; -1: it has none */
    char bytes[256];  /* of an id */
    int32_t count, reserved;
};

static int32_t open_chars(const struct hd_host *host, const char *path, struct hd_tokenizer **tokenizer,
                          struct hd_error *err)
{
    char magic[6] = "";
    struct hd_tokenizer *t = malloc(sizeof *t);
    FILE *file = fopen(path, "rb");
    int32_t rc = HD_OK;
    (void)host;
    if (!t)
        rc = hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    else if (!file)
        rc = hd_fail(err, errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path, strerror(errno));
    else if (fread(magic, 1, 6, file) != 6 || memcmp(magic, "chars\n", 6))
        rc = hd_fail(err, HD_E_UNSUPPORTED, "%s: no list of characters: its first line is not \"chars\"", path);
    if (!rc) {
        t->count = 0;
        memset(t->ids, -1, sizeof t->ids);
        for (int c; (c = fgetc(file)) != EOF;)
            if (t->ids[c] < 0)
                t->bytes[t->ids[c] = t->count++] = (char)c;
        *tokenizer = t;
    } else {
        free(t);
    }
    if (file)
        fclose(file);
    return rc;
}

static void close_chars(struct hd_tokenizer *t)
{
    free(t);
}

/* Field by field: an older caller's struct may end before a later field. */
static void info(const struct hd_tokenizer *t, struct hd_tokenizer_info *info)
{
    const struct hd_tokenizer_info all = {info->struct_size, t->count + 1, -1, t->count, -1, -1};
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
}

static int32_t encode(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags,
                      void (*emit)(void *user, const int32_t *ids, size_t count), void *user, struct hd_error *err)
{
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = t->ids[(uint8_t)text[i]];
        if ((flags & HD_TOKENIZER_SPECIAL) && bytes - i >= strlen(END) && !memcmp(text + i, END, strlen(END))) {
            id = t->count;
            i += strlen(END) - 1;
        }
        if (id < 0)
            return hd_fail(err, HD_E_INVALID, "byte %zu of the text, %02x, is none of the file's", i, (uint8_t)text[i]);
        emit(user, &id, 1);
    }
    return HD_OK;
}

static int32_t decode(const struct hd_tokenizer *t, const int32_t *ids, size_t count, uint32_t flags,
                      void (*emit)(void *user, const char *text, size_t bytes), void *user, struct hd_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] > t->count)
            return hd_fail(err, HD_E_INVALID, "id %d is none of the %d", ids[i], t->count + 1);
        if (ids[i] < t->count)
            emit(user, &t->bytes[ids[i]], 1);
        else if (!(flags & HD_TOKENIZER_SKIP_SPECIAL))
            emit(user, END, strlen(END));
    }
    return HD_OK;
}

static int64_t find(const struct hd_tokenizer *t, const char *token, size_t bytes)
{
    if (bytes == strlen(END) && !memcmp(token, END, bytes))
        return t->count;
    return bytes == 1 ? t->ids[(uint8_t)token[0]] : -1;
}

static const struct hd_tokenizer_ops ops = {
    .struct_size = sizeof ops,
    .open = open_chars,
    .close = close_chars,
    .info = info,
    .encode = encode,
    .decode = decode,
    .find = find,
};

HD_PLUGIN("tokenizer-chars", "0.1.0", "Apache-2.0", .kind = HD_KIND_TOKENIZER, .name = "chars",
          .summary = "a token a byte, those that a file lists", .ops = &ops)
