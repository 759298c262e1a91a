/* libFuzzer over Megatron's index: the input is PREFIX.idx, beside tokens that do not change. What service/text/indexed
 * takes data-tokens takes too, with the same tokens and documents. tests/fuzz/run builds and runs it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "plugins/data-tokens/internal.h"
#include "service/text/indexed.h"

extern const struct hd_plugin *heddle_plugin_v1_tokens(void);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { TOKENS = 64 };
static char folder[] = "/dev/shm/heddle-fuzz-XXXXXX", bin[64], idx[64];

static void clean(void)
{
    unlink(bin);
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

static void prepare(void)
{
    uint8_t tokens[TOKENS];
    if (bin[0])
        return;
    if (!mkdtemp(folder))
        abort();
    snprintf(bin, sizeof bin, "%s/x.bin", folder);
    snprintf(idx, sizeof idx, "%s/x.idx", folder);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i % 8 ? 0 : (uint8_t)(i + 1); /* ids of any width */
    put(bin, tokens, sizeof tokens);
    atexit(clean);
}

/* Documents cover all sequences, and these all tokens. */
static void read_documents(const struct hd__indexed *x, const struct hd_data_ops *ops, struct hd_data *f)
{
    struct hd_error err = HD_ERROR_INIT;
    uint64_t at = 0, end;
    for (uint64_t i = 0; i < x->documents; i++) {
        uint64_t tokens = hd__indexed_document_tokens(x, i);
        if (f && tokens && (ops->document_end(f, at, x->tokens, &end, &err) || end != at + tokens))
            abort();
        at += tokens;
    }
    if (at != x->tokens)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct hd_data_ops *ops = heddle_plugin_v1_tokens()->components[0]->ops;
    const struct hd_data_source source = {.struct_size = sizeof source, .path = bin};
    struct tokens_settings settings = {.format = TOKENS_MEGATRON, .eod = -1};
    struct hd_error err = HD_ERROR_INIT, ours = HD_ERROR_INIT;
    struct hd__indexed x;
    struct hd_data *f = NULL;
    int32_t ids[TOKENS];
    int64_t tokens[TOKENS];
    prepare();
    put(idx, data, bytes);
    int32_t plugin = ops->open(NULL, &settings, &source, &f, &err), rc = hd__indexed_open(bin, &x, &ours);
    if (plugin && !strstr(err.message, folder))
        abort();
    if (rc && !strstr(ours.message, folder))
        abort();
    if (!rc && plugin && x.type != HD__INDEXED_I8)
        abort();
    if (!rc) {
        read_documents(&x, ops, f);
        for (uint64_t i = 0; f && i < x.tokens; i++)
            if (!hd__indexed_read(&x, i, 1, ids, &ours) && (ops->read(f, i, 1, tokens, &err) || tokens[0] != ids[0]))
                abort();
        hd__indexed_close(&x);
    }
    if (!plugin)
        ops->close(f);
    return 0;
}
