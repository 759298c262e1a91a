/* libFuzzer over the files of tokenizer-bpe: what stands before the last zero is the file, tokenizer.json or a tiktoken
 * file, what follows a text. tests/fuzz/run builds and runs it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "heddle/plugin.h"
#include "heddle/tokenizer.h"

extern const struct hd_plugin *heddle_plugin_v1_bpe(void);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char file[] = "/dev/shm/heddle-fuzz-XXXXXX";
static const struct hd_tokenizer_ops *ops;
static struct hd_tokenizer *t;

static void clean(void)
{
    unlink(file);
}

static void put(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    if (fd < 0) {
        if ((fd = mkstemp(file)) < 0)
            abort();
        atexit(clean);
    }
    if (ftruncate(fd, 0) || pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
}

static void no_text(void *user, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        *(unsigned *)user += (uint8_t)text[i];
}

/* Every id that encode gives, decode takes. */
static void check_ids(void *user, const int32_t *ids, size_t count)
{
    struct hd_error err = HD_ERROR_INIT;
    if (ops->decode(t, ids, count, 0, no_text, user, &err) ||
        ops->decode(t, ids, count, HD_TOKENIZER_SKIP_SPECIAL, no_text, user, &err))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t n = bytes;
    unsigned sum = 0;
    while (n && data[n - 1])
        n--;
    put(data, n ? n - 1 : bytes);
    ops = heddle_plugin_v1_bpe()->components[0]->ops;
    if (ops->open(NULL, file, &t, &err)) {
        if (strncmp(err.message, file, strlen(file)))
            abort();
        return 0;
    }
    struct hd_tokenizer_info info = {.struct_size = sizeof info};
    ops->info(t, &info);
    if (info.vocab < 0 || info.bos >= info.vocab || info.eos >= info.vocab || info.unk >= info.vocab)
        abort();
    for (uint32_t flags = 0; flags < 4; flags++)
        if (ops->encode(t, (const char *)data + n, n ? bytes - n : 0, flags, check_ids, &sum, &err) && !err.message[0])
            abort();
    ops->find(t, (const char *)data, bytes);
    ops->close(t);
    return 0;
}
