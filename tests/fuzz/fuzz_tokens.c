/* libFuzzer over the token files: the first byte chooses the format, the rest is the file (of megatron: its
 * index).
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. -Iinclude tests/fuzz/fuzz_tokens.c \
 *       service/data/token_files.c core/base/base.c core/base/log.c -lxxhash -lm -o fuzz
 *   mkdir -p corpus; for f in tests/golden/run/tokens-*.npy; do (printf '\5'; cat $f) > corpus/$(basename
 * $f); done
 *   ./fuzz -max_total_time=600 -max_len=2048 corpus */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/data/data.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__data_token_file f;
    uint8_t tokens[64];
    int32_t out[64];
    if (!file[0]) {
        if (!mkdtemp(folder))
            abort();
        snprintf(file, sizeof file, "%s/x.bin", folder);
        snprintf(idx, sizeof idx, "%s/x.idx", folder);
        atexit(clean);
    }
    if (bytes < 1)
        return 0;
    uint32_t format = data[0] % 6;
    memset(tokens, 7, sizeof tokens);
    unlink(idx);
    put(format == HD__DATA_MEGATRON ? idx : file, data + 1, bytes - 1);
    if (format == HD__DATA_MEGATRON)
        put(file, tokens, sizeof tokens);
    if (hd__data_token_file_open(file, format, data[0] & 64 ? 4 : 2, &f, &err)) {
        if (!strstr(err.message, folder))
            abort();
        return 0;
    }
    for (uint64_t at = 0; at < f.count; at += 64) {
        uint64_t n = HD__MIN(64, f.count - at);
        int64_t vocab = data[0] & 128 ? 40000 : 256;
        if (!hd__data_token_file_read(&f, at, n, vocab, out, &err) != !hd__data_token_file_scan(&f, at, n, vocab, &err))
            abort();
    }
    if (!hd__data_token_file_read(&f, f.count, 1, 256, out, &err))
        abort();
    hd__data_token_file_close(&f);
    return 0;
}
