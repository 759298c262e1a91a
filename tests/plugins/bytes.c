/* tokenizer-bytes: bytes as ids, and 256 for "<|endoftext|>". A file of it begins with "bytes"; "bytes N" has a
 * vocabulary of N. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "heddle/file.h"
#include "heddle/tokenizer.h"

#define END "<|endoftext|>"
enum { END_ID = 256 };

struct hd_tokenizer {
    int64_t vocab;
};

static int32_t bytes_open(const struct hd_host *host, const char *path, struct hd_tokenizer **tokenizer,
                          struct hd_error *err)
{
    char text[64] = "";
    uint64_t size;
    int fd = -1;
    int32_t rc = hd_open_regular(path, &fd, &size, err);
    (void)host;
    if (rc)
        return rc;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 5 || strncmp(text, "bytes", 5))
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: does not begin with \"bytes\"", path);
    struct hd_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    t->vocab = n > 6 ? strtoll(text + 6, NULL, 10) : 0;
    t->vocab = t->vocab ? t->vocab : END_ID + 1;
    *tokenizer = t;
    return HD_OK;
}

static void bytes_close(struct hd_tokenizer *t)
{
    free(t);
}

static void bytes_info(const struct hd_tokenizer *t, struct hd_tokenizer_info *info)
{
    info->vocab = t->vocab;
    info->bos = info->eos = info->pad = info->unk = -1;
}

static int32_t bytes_encode(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags,
                            void (*emit)(void *user, const int32_t *ids, size_t count), void *user,
                            struct hd_error *err)
{
    (void)t, (void)err;
    for (size_t i = 0; i < bytes;) {
        int special = flags & HD_TOKENIZER_SPECIAL && bytes - i >= strlen(END) && !memcmp(text + i, END, strlen(END));
        const int32_t id = special ? END_ID : (uint8_t)text[i];
        emit(user, &id, 1);
        i += special ? strlen(END) : 1;
    }
    return HD_OK;
}

static int32_t bytes_decode(const struct hd_tokenizer *t, const int32_t *ids, size_t count, uint32_t flags,
                            void (*emit)(void *user, const char *text, size_t bytes), void *user, struct hd_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const char byte = (char)ids[i];
        if (ids[i] < 0 || ids[i] >= t->vocab)
            return hd_fail(err, HD_E_INVALID, "id %d is outside the vocabulary", ids[i]);
        if (ids[i] == END_ID && !(flags & HD_TOKENIZER_SKIP_SPECIAL))
            emit(user, END, strlen(END));
        else if (ids[i] < END_ID)
            emit(user, &byte, 1);
    }
    return HD_OK;
}

static int64_t bytes_find(const struct hd_tokenizer *t, const char *token, size_t bytes)
{
    (void)t;
    return bytes == strlen(END) && !memcmp(token, END, bytes) ? END_ID : bytes == 1 ? (uint8_t)*token : -1;
}

static const struct hd_tokenizer_ops ops = {.struct_size = sizeof ops,
                                            .open = bytes_open,
                                            .close = bytes_close,
                                            .info = bytes_info,
                                            .encode = bytes_encode,
                                            .decode = bytes_decode,
                                            .find = bytes_find};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_TOKENIZER,
    .name = "bytes",
    .summary = "bytes as ids, for tests",
    .ops = &ops,
};

HD_PLUGIN_ONE("tokenizer-bytes", "1.0", "Apache-2.0", component)
