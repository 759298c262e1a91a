/* The slots of tokenizer-bpe. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { MOST_BYTES = 1 << 30 }; /* of a file */

/* ---- files */

static int32_t read_all(int fd, const char *path, char *text, size_t bytes, struct hd_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, text + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hd_fail(err, HD_E_IO, "%s: %s", path, n ? strerror(errno) : "it became shorter while it was read");
        done += (size_t)n;
    }
    return HD_OK;
}

static int32_t read_file(const char *path, char **text, size_t *bytes, struct hd_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int32_t rc = HD_OK;
    if (fd < 0 || fstat(fd, &st))
        rc = hd_fail(err, fd < 0 && errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES)
        rc = hd_fail(err, HD_E_INVALID, "%s: not a file of at most 1 GiB", path);
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        rc = hd_fail(err, HD_E_NOMEM, "%s: no memory for its %lld bytes", path, (long long)st.st_size);
    if (!rc && (rc = read_all(fd, path, *text, *bytes = (size_t)st.st_size, err)))
        free(*text);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int32_t parse(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err)
{
    size_t at = bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* a byte order mark */
    while (at < bytes && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    return at < bytes && text[at] == '{' ? bpe_read_json(t, text + at, bytes - at, err)
                                         : bpe_read_tiktoken(t, text, bytes, err);
}

/* ---- slots */

static void bpe_close(struct hd_tokenizer *t)
{
    if (!t)
        return;
    for (struct bpe_context *c = t->idle, *next; c; c = next) {
        next = c->next;
        bpe_context_free(c);
    }
    for (uint32_t i = 0; i < t->n_added; i++)
        free(t->added[i].content.at);
    for (uint32_t i = 0; i < BPE_MOST_STEPS; i++) {
        bpe_regex_free(&t->normalizers[i].regex);
        free(t->normalizers[i].content.at);
        bpe_regex_free(&t->splits[i].regex);
        free(t->decoders[i].from.at);
        free(t->decoders[i].to.at);
    }
    bpe_model_free(&t->model);
    bpe_map_free(&t->names);
    free(t->raw.nodes);
    free(t->normalized.nodes);
    free(t->added);
    free(t->decoded);
    free(t->decoded_first);
    free(t->decoded_pool.at);
    free(t->special);
    free(t->path);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int32_t bpe_open(const struct hd_host *host, const char *path, struct hd_tokenizer **tokenizer,
                        struct hd_error *err)
{
    struct hd_tokenizer *t = calloc(1, sizeof *t);
    char *text = NULL;
    size_t bytes = 0;
    int32_t rc;
    if (!t || !(t->path = strdup(path))) {
        free(t);
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    }
    t->host = host;
    t->bos = t->eos = t->pad = t->model.unk = -1;
    pthread_mutex_init(&t->lock, NULL);
    bpe_trie_init(&t->raw);
    bpe_trie_init(&t->normalized);
    rc = read_file(path, &text, &bytes, err);
    if (!rc) {
        rc = parse(t, text, bytes, err);
        free(text);
    }
    if (rc || (rc = bpe_decode_table(t, err))) {
        bpe_close(t);
        return rc;
    }
    *tokenizer = t;
    return HD_OK;
}

static void bpe_info(const struct hd_tokenizer *t, struct hd_tokenizer_info *info)
{
    const struct hd_tokenizer_info all = {info->struct_size, t->vocab, t->bos, t->eos, t->pad, t->model.unk};
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
}

static int32_t bpe_encode(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags,
                          void (*emit)(void *user, const int32_t *ids, size_t count), void *user, struct hd_error *err)
{
    struct bpe_context *c = bpe_context_get(t);
    int32_t rc;
    if (!c)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory for a text", t->path);
    c->emit = emit;
    c->user = user;
    c->err = err;
    c->flags = flags;
    c->valid = bpe_utf8_valid(text, bytes) == bytes;
    if (flags & HD_TOKENIZER_FRAME)
        bpe_emit_ids(c, t->prefix, t->n_prefix);
    rc = bytes ? bpe_cut_added(c, &t->raw, text, bytes, true, bpe_normalize) : HD_OK;
    if (!rc && (flags & HD_TOKENIZER_FRAME))
        bpe_emit_ids(c, t->suffix, t->n_suffix);
    bpe_flush(c);
    bpe_context_put(c);
    return rc;
}

static int64_t bpe_find(const struct hd_tokenizer *t, const char *token, size_t bytes)
{
    return bpe_map_find(&t->names, token, bytes);
}

static const struct hd_tokenizer_ops ops = {
    .struct_size = sizeof ops,
    .open = bpe_open,
    .close = bpe_close,
    .info = bpe_info,
    .encode = bpe_encode,
    .decode = bpe_decode,
    .find = bpe_find,
};

HD_PLUGIN("tokenizer-bpe", "0.1.0", "Apache-2.0", .kind = HD_KIND_TOKENIZER, .name = "bpe",
          .summary = "byte pair encoding: tokenizer.json of Hugging Face, tiktoken files", .ops = &ops)
