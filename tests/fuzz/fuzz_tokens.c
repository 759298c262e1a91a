/* libFuzzer over the token files of data-tokens: the first byte chooses the format, the rest is the file (of
 * megatron: its index). tests/fuzz/run builds and runs it. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/data-tokens/internal.h"

extern const struct hd_plugin *heddle_plugin_v1_tokens(void);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char folder[] = "/tmp/heddle-fuzz-XXXXXX", file[64], idx[64];

static void clean(void)
{
    unlink(file);
    unlink(idx);
    rmdir(folder);
}

static void put(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    close(fd);
}

/* Every token can be read, those of an unsigned type are within what `info` promises, and nothing can be read
 * beyond. Documents follow each other. */
static void read_all(const struct hd_data_ops *ops, struct hd_data *f)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_data_info info = {.struct_size = sizeof info};
    int64_t out[64];
    if (ops->info(f, &info, &err))
        abort();
    for (uint64_t at = 0, n; at < info.tokens; at += n) {
        n = info.tokens - at < 64 ? info.tokens - at : 64;
        if (ops->read(f, at, n, out, &err))
            abort();
        for (uint64_t i = 0; i < n && info.max_token; i++)
            if (out[i] < 0 || out[i] > info.max_token)
                abort();
    }
    if (!ops->read(f, info.tokens, 1, out, &err))
        abort();
    for (uint64_t at = 0, end; at < info.tokens && !ops->document_end(f, at, info.tokens, &end, &err); at = end)
        if (end <= at || end > info.tokens)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct hd_data_ops *ops = heddle_plugin_v1_tokens()->components[0]->ops;
    const struct hd_data_source source = {.struct_size = sizeof source, .path = file};
    struct hd_error err = HD_ERROR_INIT;
    struct tokens_settings settings;
    struct hd_data *f;
    uint8_t tokens[64];
    if (!file[0]) {
        if (!mkdtemp(folder))
            abort();
        snprintf(file, sizeof file, "%s/x.bin", folder);
        snprintf(idx, sizeof idx, "%s/x.idx", folder);
        atexit(clean);
    }
    if (bytes < 1)
        return 0;
    settings = (struct tokens_settings){data[0] % 6, data[0] & 64 ? TOKENS_DTYPE_UINT32 : TOKENS_DTYPE_UINT16,
                                        data[0] & 128 ? 7 : -1};
    memset(tokens, 7, sizeof tokens);
    unlink(idx);
    put(settings.format == TOKENS_MEGATRON ? idx : file, data + 1, bytes - 1);
    if (settings.format == TOKENS_MEGATRON)
        put(file, tokens, sizeof tokens);
    if (ops->open(NULL, &settings, &source, &f, &err)) {
        if (!strstr(err.message, folder))
            abort();
        return 0;
    }
    read_all(ops, f);
    ops->close(f);
    return 0;
}
