/* libFuzzer over JSON lines: the first byte chooses the chat template, or none, the rest is the file, which may be
 * compressed. Documents are read, and read again from each position; each becomes ids. tests/fuzz/run builds and runs
 * it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "service/text/tokenize.c" /* for encode_document */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { SPECIAL = 256 };
static char file[] = "/dev/shm/heddle-fuzz-XXXXXX";
static const char *const templates[] = {NULL, "chatml", "llama3", "mistral", "plain"};

/* ---- a tokenizer of bytes: the chat templates' tokens come behind them */

static int32_t bytes_encode(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags,
                            void (*emit)(void *user, const int32_t *ids, size_t count), void *user,
                            struct hd_error *err)
{
    (void)t, (void)flags, (void)err;
    for (size_t i = 0; i < bytes; i++)
        emit(user, &(int32_t){(uint8_t)text[i]}, 1);
    return HD_OK;
}

static int64_t bytes_find(const struct hd_tokenizer *t, const char *token, size_t bytes)
{
    (void)t;
    return SPECIAL + (bytes ? token[bytes / 2] & 63 : 0);
}

static const struct hd_tokenizer_ops bytes_ops = {
    .struct_size = sizeof bytes_ops, .encode = bytes_encode, .find = bytes_find};

/* No plug-in is looked for. */
int32_t hd__plugin_find(struct hd__plugins *plugins, uint32_t kind, const char *name,
                        const struct hd__component **found, struct hd_error *err)
{
    (void)plugins, (void)kind, (void)name, (void)found, (void)err;
    return HD_E_NOTFOUND;
}

/* ---- the file */

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

/* A document by itself gives ids of the tokenizer, or a message with the file's name. */
static void encode(const struct hd__tokenize_config *config, const struct hd__document *document)
{
    struct batch b = {.err = HD_ERROR_INIT};
    int32_t rc = encode_document(config, document, &b, &b.err);
    if (rc && rc != HD_E_INVALID && rc != HD_E_UNSUPPORTED)
        abort();
    if (rc)
        locate(config, document, &b.err);
    if (rc && strncmp(b.err.message, file, strlen(file)))
        abort();
    for (size_t i = 0; i < b.ids.count; i++)
        if (b.ids.at[i] < 0 || b.ids.at[i] >= SPECIAL + 64)
            abort();
    for (size_t i = 0; config->chat && !rc && i < b.ids.count; i++)
        if (b.counts[i] > 1)
            abort();
    free(b.ids.at);
    free(b.counts);
    hd__chat_ids_free(&b.chat);
}

/* From each position the documents that follow are the same. */
static void again(const struct hd__corpus *corpus, struct hd__documents_position at, const struct hd__document *next)
{
    struct hd__documents *d;
    struct hd__document other;
    struct hd_error err = HD_ERROR_INIT;
    int found;
    if (hd__documents_open(corpus, at, &d, &err))
        abort();
    if (hd__documents_next(d, &other, &found, &err) || !found || other.bytes != next->bytes ||
        other.line != next->line || memcmp(other.text, next->text, next->bytes))
        abort();
    hd__documents_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hd__corpus_file one = {.path = file, .lines = 1, .bytes = bytes};
    struct hd__corpus corpus = {.files = {.at = &one, .count = 1}, .bytes = bytes};
    struct hd__tokenizer tokenizer = {.ops = &bytes_ops, .path = file, .info = {.vocab = SPECIAL + 64, .eos = -1}};
    struct hd__tokenize_config config = {.tokenizer = &tokenizer, .field = "text", .eod = SPECIAL};
    struct hd__documents_position at = {0};
    struct hd__documents *d;
    struct hd__document document;
    struct hd_error err = HD_ERROR_INIT;
    int found = 1;
    if (!bytes)
        return 0;
    config.chat_name = templates[data[0] % HD__COUNT(templates)];
    config.chat = config.chat_name ? hd__chat_find(config.chat_name) : NULL;
    one.lines = data[0] < 250;
    put(data + 1, bytes - 1);
    if (hd__documents_open(&corpus, at, &d, &err))
        abort();
    while (!hd__documents_next(d, &document, &found, &err) && found) {
        if (at.line < 8)
            again(&corpus, at, &document);
        at = hd__documents_position(d);
        encode(&config, &document);
    }
    if (err.message[0] && strncmp(err.message, file, strlen(file)))
        abort();
    hd__documents_close(d);
    return 0;
}
