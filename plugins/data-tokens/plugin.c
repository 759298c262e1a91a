/* The slots of data-tokens: a file, decoded by type. */
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

/* Files up to this size are prefetched whole, for random reads. */
#define READ_WHOLE (UINT64_C(256) << 20)

static const struct hd_option options[] = {
    {.name = "format",
     .value = "auto",
     .type = HD_OPT_ENUM,
     .choices = "auto|bytes|llmc|nanogpt|megatron|npy",
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct tokens_settings, format),
     .help = "format of the files; auto: by their first bytes and names, and bytes for a vocabulary of 256 alone"},
    {.name = "token_dtype",
     .needs = "format=auto|nanogpt",
     .value = "uint16",
     .type = HD_OPT_ENUM,
     .choices = "uint16|uint32",
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct tokens_settings, token_dtype),
     .help = "width of a token in nanogpt files"},
    {.name = "http_block",
     .value = "1MiB",
     .type = HD_OPT_SIZE,
     .min = 1 << 17,
     .max = 1 << 30,
     .offset = offsetof(struct tokens_settings, http.block),
     .help = "size of one request for a file behind HTTP"},
    {.name = "http_cache",
     .value = "256MiB",
     .type = HD_OPT_SIZE,
     .min = 1 << 20,
     .max = 1e15,
     .offset = offsetof(struct tokens_settings, http.cache),
     .help = "bytes of files behind HTTP that a rank keeps in memory, of all of them together"},
    {.name = "http_read_ahead",
     .value = "8",
     .type = HD_OPT_INT,
     .unit = "blocks",
     .min = 0,
     .max = 1024,
     .offset = offsetof(struct tokens_settings, http.read_ahead),
     .help = "how far files behind HTTP are fetched ahead of what is read, with shuffle: false; 0: not at all"},
    {.name = "http_retries",
     .value = "6",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 1000,
     .offset = offsetof(struct tokens_settings, http.retries),
     .help = "how often a failed request is sent again, after 0.5, 1, 2 ... 30 s, before the run ends"},
    {.name = "http_timeout",
     .value = "30s",
     .type = HD_OPT_DURATION,
     .min = 1,
     .max = 86400,
     .offset = offsetof(struct tokens_settings, http.timeout),
     .help = "how long a request may go without a byte before it counts as failed"},
};

static int32_t tokens_check(const void *settings, struct hd_error *err)
{
    const struct tokens_settings *s = settings;
    if (s->token_dtype && s->format != TOKENS_NANOGPT && s->format != TOKENS_AUTO)
        return hd_fail(err, HD_E_INVALID, "data.token_dtype: only nanogpt files need it; the others say it");
    return HD_OK;
}

static void tokens_close(struct hd_data *f)
{
    if (!f)
        return;
    if (f->http) {
        http_close(f->http);
        free((void *)f->map);
    } else if (f->map) {
        munmap((void *)f->map, f->map_bytes);
    }
    free(f->path);
    free(f);
}

static int32_t tokens_open(const struct hd_host *host, const void *settings, const struct hd_data_source *source,
                           struct hd_data **data, struct hd_error *err)
{
    struct hd_data *f = calloc(1, sizeof *f);
    int32_t rc;
    if (!f || !(f->path = http_is_url(source->path) ? http_printable(source->path) : strdup(source->path))) {
        free(f);
        return hd_fail(err, HD_E_NOMEM, "data-tokens: no memory");
    }
    f->vocab = source->struct_size > offsetof(struct hd_data_source, vocab) ? source->vocab : 0;
    if ((rc = tokens_map(f, host, settings, source, err)) || (rc = tokens_parse(f, settings, err))) {
        tokens_close(f);
        return rc;
    }
    if (host && tokens_are_unwritten(f))
        host->log(HD_LOG_WARN, "data-tokens", "%s: its first tokens are all 0: was it made, and never written?",
                  f->path);
    if (f->http)
        ; /* reads ahead by itself */
    else if (f->map_bytes <= READ_WHOLE)
        madvise((void *)f->map, f->map_bytes, MADV_WILLNEED);
    else if (source->hints & HD_DATA_IN_ORDER)
        madvise((void *)f->map, f->map_bytes, MADV_SEQUENTIAL);
    *data = f;
    return HD_OK;
}

/* Maximum of each type; unknown for a signed one, whose tokens may be negative. */
static int32_t tokens_info(struct hd_data *f, struct hd_data_info *info, struct hd_error *err)
{
    static const int64_t most[] = {[TOKENS_U8] = UINT8_MAX, [TOKENS_U16] = UINT16_MAX, [TOKENS_U32] = UINT32_MAX};
    (void)err;
    info->tokens = f->count;
    info->max_token = f->type < sizeof most / sizeof most[0] ? most[f->type] : 0;
    return HD_OK;
}

#define DECODE_TOKENS(constant, value, type, descr, code) \
    case constant:                                        \
        for (uint64_t i = 0; i < count; i++) {            \
            type t;                                       \
            memcpy(&t, from + i * sizeof t, sizeof t);    \
            tokens[i] = (int64_t)t;                       \
        }                                                 \
        break;

static void decode(uint32_t type, const uint8_t *from, uint64_t count, int64_t *tokens)
{
    switch (type) {
        TOKENS_TYPES(DECODE_TOKENS)
    default:
        break;
    }
}

static int32_t read_http(struct hd_data *f, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err)
{
    enum { PIECE = 8192 };
    uint8_t piece[PIECE];
    uint64_t width = tokens_width(f->type), at = (uint64_t)(f->at - (const uint8_t *)f->map) + first * width;
    int32_t rc = HD_OK;
    for (uint64_t n; count && !rc; count -= n, tokens += n, at += n * width) {
        n = count < PIECE / width ? count : PIECE / width;
        if (!(rc = http_read(f->http, at, n * width, piece, err)))
            decode(f->type, piece, n, tokens);
    }
    return rc;
}

static int32_t tokens_read(struct hd_data *f, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err)
{
    if (first > f->count || count > f->count - first)
        return hd_fail(err, HD_E_INVALID, "%s: tokens %lu to %lu of %lu were asked for", f->path, (unsigned long)first,
                       (unsigned long)(first + count), (unsigned long)f->count);
    if (f->http)
        return read_http(f, first, count, tokens, err);
    decode(f->type, f->at + first * tokens_width(f->type), count, tokens);
    return HD_OK;
}

static const struct hd_data_ops ops = {
    .struct_size = sizeof ops,
    .open = tokens_open,
    .close = tokens_close,
    .info = tokens_info,
    .read = tokens_read,
    .check = tokens_check,
};

static const struct hd_component tokens_component = {
    .struct_size = sizeof tokens_component,
    .kind = HD_KIND_DATA,
    .name = "tokens",
    .summary = "files of tokens: bytes, llm.c, nanoGPT, Megatron, NumPy",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct tokens_settings),
    .ops = &ops,
};

HD_PLUGIN_ONE("data-tokens", "0.1.0", "Apache-2.0", tokens_component)
