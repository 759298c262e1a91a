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
    {.name = "loss",
     .value = "all",
     .type = HD_OPT_ENUM,
     .choices = "all|completion",
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct tokens_settings, loss),
     .help =
         "which tokens the loss counts: all, or those that NAME.loss marks beside NAME.bin, as `heddle data tokenize "
         "--chat-template` writes it"},
    {.name = "eod",
     .needs = "data.documents=mask|pack",
     .value = "-1",
     .type = HD_OPT_INT,
     .min = -1,
     .max = INT32_MAX,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct tokens_settings, eod),
     .help = "id of the token that ends a document, for data.documents; -1: where Megatron's index says so"},
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
     .help = "how long a request may go without a byte before it counts as failed; one that takes longer in all is "
             "named, and "
             "has failed after ten times so long"},
};

static int32_t tokens_check(const void *settings, struct hd_error *err)
{
    const struct tokens_settings *s = settings;
    if (s->token_dtype && s->format != TOKENS_NANOGPT && s->format != TOKENS_AUTO)
        return hd_fail(err, HD_E_INVALID, "data.token_dtype: only nanogpt files need it; the others say it");
    return HD_OK;
}

static int32_t tokens_labeled(const void *settings)
{
    return ((const struct tokens_settings *)settings)->loss == TOKENS_LOSS_COMPLETION;
}

static void tokens_close(struct hd_data *f)
{
    if (!f)
        return;
    tokens_unload(f, f->loss, f->loss_bytes);
    tokens_unload(f, f->idx, f->idx_bytes);
    if (f->http) {
        http_close(f->http);
        free((void *)f->map);
    } else if (f->map) {
        munmap((void *)f->map, f->map_bytes);
    }
    free(f->path);
    free(f);
}

static int32_t tokens_document_end(struct hd_data *f, uint64_t token, uint64_t limit, uint64_t *end,
                                   struct hd_error *err)
{
    enum { BLOCK = 512 };
    int64_t block[BLOCK];
    if (token >= f->count || limit <= token || limit > f->count)
        return hd_fail(err, HD_E_INVALID, "%s: the document of token %lu of %lu was asked for, up to %lu", f->path,
                       (unsigned long)token, (unsigned long)f->count, (unsigned long)limit);
    if (f->eod < 0 && f->idx) {
        *end = tokens_indexed_end(f, token, limit);
        return HD_OK;
    }
    if (f->eod < 0)
        return hd_fail(err, HD_E_INVALID,
                       "%s: does not say where its documents end: say data.eod, the id of the token that ends one, or "
                       "write it in Megatron's format",
                       f->path);
    for (uint64_t n; token < limit; token += n) {
        n = limit - token < BLOCK ? limit - token : BLOCK;
        int32_t rc = tokens_read(f, token, n, block, err);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < n; i++)
            if (block[i] == f->eod) {
                *end = token + i + 1;
                return HD_OK;
            }
    }
    *end = limit;
    return HD_OK;
}

enum { LOOKED_AT = 1 << 20 };

/* Does a document end among the first tokens? */
static bool has_end(struct hd_data *f)
{
    struct hd_error err = HD_ERROR_INIT;
    uint64_t end = 0, most = f->count < LOOKED_AT ? f->count : LOOKED_AT;
    int64_t last = -1;
    return !most ||
           (!tokens_document_end(f, 0, most, &end, &err) && !tokens_read(f, end - 1, 1, &last, &err) && last == f->eod);
}

/* A file is opened for a check and again to train, by ranks that this process forks: it is said once. */
static bool is_new(const char *path)
{
    static uint64_t said[256], n;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *c = path; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    for (uint64_t i = 0; i < n && i < sizeof said / sizeof said[0]; i++)
        if (said[i] == hash)
            return false;
    said[n++ % (sizeof said / sizeof said[0])] = hash;
    return true;
}

static void warn(const struct hd_host *host, struct hd_data *f)
{
    bool endless = f->eod >= 0 && !f->http && !has_end(f);
    const char *unwritten = tokens_unwritten(f);
    if ((!endless && !unwritten) || !is_new(f->path))
        return;
    if (endless)
        host->log(HD_LOG_WARN, "data-tokens",
                  "%s: data.eod is %ld, and its first %lu tokens have none: no document ends", f->path, (long)f->eod,
                  (unsigned long)(f->count < LOOKED_AT ? f->count : LOOKED_AT));
    if (unwritten)
        host->log(HD_LOG_WARN, "data-tokens", "%s: its %s tokens are all 0: was it made, and never written%s?", f->path,
                  unwritten, *unwritten == 'l' ? " to its end" : "");
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
    f->eod = ((const struct tokens_settings *)settings)->eod;
    f->vocab = source->struct_size > offsetof(struct hd_data_source, vocab) ? source->vocab : 0;
    if ((rc = tokens_map(f, host, settings, source, err)) || (rc = tokens_parse(f, settings, err)) ||
        (tokens_labeled(settings) && (rc = tokens_open_loss(f, err)))) {
        tokens_close(f);
        return rc;
    }
    if (f->eod >= 0 && f->vocab && f->eod >= f->vocab) {
        rc = hd_fail(err, HD_E_INVALID, "%s: data.eod is %ld, outside the model's vocabulary of %ld", f->path,
                     (long)f->eod, (long)f->vocab);
        tokens_close(f);
        return rc;
    }
    if (host)
        warn(host, f);
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

int32_t tokens_read(struct hd_data *f, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err)
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
    .labels = tokens_labels,
    .labeled = tokens_labeled,
    .document_end = tokens_document_end,
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
