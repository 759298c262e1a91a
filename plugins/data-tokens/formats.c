/* Mapping a file, and validation of its header. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heddle/file.h"
#include "internal.h"

static const struct {
    uint32_t bytes, megatron;
    const char *descr;
} token_types[] = {
#define TOKEN_ROW(constant, value, type, descr, code) [constant] = {sizeof(type), code, descr},
    TOKENS_TYPES(TOKEN_ROW)
#undef TOKEN_ROW
};

static int32_t no_memory(struct hd_error *err)
{
    return hd_fail(err, HD_E_NOMEM, "data-tokens: no memory");
}

uint64_t tokens_width(uint32_t type)
{
    return token_types[type].bytes;
}

/* ---- mapping */

static int32_t map_file(const char *path, const uint8_t **at, uint64_t *bytes, struct hd_error *err)
{
    int fd = -1;
    int32_t rc = hd_open_regular(path, &fd, bytes, err);
    if (rc)
        return rc;
    void *map = *bytes ? mmap(NULL, (size_t)*bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    int why = errno;
    close(fd);
    if (map == MAP_FAILED && why == ENOMEM)
        return hd_fail(
            err, HD_E_NOMEM,
            "%s: cannot be mapped: this process has as many mappings as vm.max_map_count allows, or as much "
            "address space as ulimit -v: raise it, or have fewer, larger files (`heddle data merge` of those of "
            "`heddle data tokenize`)",
            path);
    if (map == MAP_FAILED)
        return hd_fail(err, HD_E_IO, "%s: cannot be mapped: %s", path, strerror(why));
    if (!map)
        return hd_fail(err, HD_E_INVALID, "%s: the file is empty", path);
    *at = map;
    return HD_OK;
}

/* The first `most` bytes of an open file behind HTTP, in new memory. */
static int32_t read_head(const char *name, struct http_file *http, uint64_t most, const uint8_t **at,
                         struct hd_error *err)
{
    uint64_t n = http_bytes(http) < most ? http_bytes(http) : most;
    void *head = malloc(n);
    int32_t rc = head ? http_read(http, 0, n, head, err)
                      : hd_fail(err, HD_E_NOMEM, "%s: no memory for %lu bytes", name, (unsigned long)n);
    if (rc)
        free(head);
    else
        *at = head;
    return rc;
}

int32_t tokens_map(struct hd_data *f, const struct hd_host *host, const struct tokens_settings *settings,
                   const struct hd_data_source *source, struct hd_error *err)
{
    if (!http_is_url(source->path) && strstr(source->path, "://"))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "'%.100s' is a URL, and only http:// and https:// are read: name a file, which may be on a "
                       "mounted store",
                       source->path);
    const uint8_t *map = NULL;
    int32_t rc;
    if (!http_is_url(source->path)) {
        rc = map_file(f->path, &map, &f->map_bytes, err);
        f->map = map;
        return rc;
    }
    rc = http_open(host, &settings->http, source->path, source->hints & HD_DATA_IN_ORDER, &f->http, err);
    if (rc)
        return rc;
    f->map_bytes = http_bytes(f->http);
    rc = read_head(f->path, f->http, TOKENS_HEAD, &map, err);
    f->map = map;
    return rc;
}

/* ---- formats. Each sets at, count and type of a mapped file. */

static int32_t set_tokens(struct hd_data *f, uint64_t skip, uint32_t type, struct hd_error *err)
{
    uint64_t bytes = f->map_bytes - skip, size = token_types[type].bytes;
    if (bytes % size)
        return hd_fail(err, HD_E_CORRUPT,
                       "%s: %lu bytes of tokens are not a multiple of %lu: truncated, or tokens of another type "
                       "(data.token_dtype; of one byte: data.format: bytes)",
                       f->path, (unsigned long)bytes, (unsigned long)size);
    f->at = (const uint8_t *)f->map + skip;
    f->count = bytes / size;
    f->type = type;
    return HD_OK;
}

/* Are they the other way round: is each a multiple of 256? Small ids of big-endian files are. */
static bool are_swapped(const struct hd_data *f)
{
    uint64_t n = f->count < TOKENS_SAMPLE ? f->count : TOKENS_SAMPLE, all = 0;
    for (uint64_t i = 0; i < n; i++)
        all |= read_le(f->at + 2 * i, 2);
    return n >= TOKENS_SAMPLE_LEAST && all && !(all & 255);
}

/* Are `bytes`-wide tokens the lower halves of wider ones, all of whose upper halves are 0? */
static bool is_wider(const struct hd_data *f, uint32_t bytes)
{
    uint64_t n = f->map_bytes / bytes, low = 0, high = 0;
    n = n < TOKENS_SAMPLE ? n : TOKENS_SAMPLE;
    for (uint64_t i = 0; i + 1 < n; i += 2) {
        low |= read_le(f->at + bytes * i, bytes);
        high |= read_le(f->at + bytes * (i + 1), bytes);
    }
    return n >= TOKENS_SAMPLE_LEAST && low && !high;
}

/* Are they floats of `bytes`, whole ones, as arrays of ids become that nobody gave a type? Ids themselves are none. */
static bool are_floats(const struct hd_data *f, uint32_t bytes)
{
    uint64_t n = f->map_bytes / bytes, whole = 0;
    n = n < TOKENS_SAMPLE ? n : TOKENS_SAMPLE;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *at = f->at + i * bytes;
        float single;
        double value;
        memcpy(&single, at, sizeof single);
        if (bytes == sizeof value)
            memcpy(&value, at, sizeof value);
        else
            value = (double)single;
        if (!(value >= 0 && value <= INT32_MAX) || (double)(int64_t)value != value)
            return false;
        whole += value > 0;
    }
    return n >= TOKENS_SAMPLE_LEAST && whole > n / 2;
}

/* Are they tokens of one byte, as those of characters are? Then bytes at even and at odd places are alike, and there
 * are few; the lower bytes of wider tokens are nearly all there are, or the higher ones 0. Two zero bytes say nothing:
 * id 0 is padding in many files. */
static bool are_bytes(const struct hd_data *f)
{
    enum { LEAST = 512, MOST_VALUES = 200 };
    uint64_t n = f->map_bytes / 2, pairs = 0, apart = 0;
    int32_t even[256] = {0}, odd[256] = {0}, values = 0;
    n = n < TOKENS_SAMPLE ? n : TOKENS_SAMPLE;
    for (uint64_t i = 0; i < n; i++) {
        int some = f->at[2 * i] || f->at[2 * i + 1];
        pairs += (uint64_t)some;
        even[f->at[2 * i]] += some;
        odd[f->at[2 * i + 1]] += some;
    }
    for (int32_t v = 0; v < 256; v++) {
        values += even[v] || odd[v];
        apart += (uint64_t)abs(even[v] - odd[v]);
    }
    return pairs >= LEAST && values > 2 && values <= MOST_VALUES && apart < pairs / 2;
}

/* uint16 read as uint32: two ids in one number, which is larger than the ids of any tokenizer. */
static bool is_narrower(const struct hd_data *f)
{
    uint64_t n = f->map_bytes / 2, large = 0;
    n = n < TOKENS_SAMPLE ? n : TOKENS_SAMPLE;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id = read_le(f->at + 2 * i, 2);
        if (id >= (uint64_t)f->vocab)
            return false;
        large += i % 2 && id >= 1 << 5;
    }
    return n >= TOKENS_SAMPLE_LEAST && large > n / 4;
}

static int32_t parse_bytes(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err)
{
    (void)settings;
    bool has_index = false;
    size_t n = strlen(f->path);
    int32_t rc = tokens_refuse_container(f, err);
    if (!rc && !f->http && n > 4 && !strcmp(f->path + n - 4, ".bin"))
        rc = tokens_has_index(f, &has_index, err);
    if (!rc && has_index)
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: is tokens, with an index beside it, and data.format says bytes: leave it out", f->path);
    if (!rc)
        rc = set_tokens(f, 0, TOKENS_U8, err);
    if (!rc && (is_wider(f, 1) || (f->count > 1 && (!memcmp(f->map, "\xff\xfe", 2) || !memcmp(f->map, "\xfe\xff", 2)))))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: every second byte is 0, or it begins as UTF-16: convert text (iconv -t UTF-8); for tokens of "
                     "16 bits say data.format: nanogpt",
                     f->path);
    return rc;
}

static int32_t parse_nanogpt(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err)
{
    int is_u16 = settings->token_dtype == TOKENS_DTYPE_UINT16;
    int32_t rc = tokens_refuse_container(f, err);
    if (!rc && tokens_is_text(f))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: begins with text, not with tokens: tokenize it (docs/data.md), or say "
                     "data.format: bytes",
                     f->path);
    if (!rc && is_u16 && f->vocab > UINT16_MAX + 1)
        rc =
            hd_fail(err, HD_E_INVALID, "%s: a vocabulary of %ld does not fit into uint16: say data.token_dtype: uint32",
                    f->path, (long)f->vocab);
    if (!rc)
        rc = set_tokens(f, 0, is_u16 ? TOKENS_U16 : TOKENS_U32, err);
    if (!rc && (are_floats(f, 4) || are_floats(f, 8)))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: its numbers are whole as floats, and no ids as integers: save them as such, by "
                     "ids.astype(numpy.uint16).tofile(...)",
                     f->path);
    if (!rc && is_wider(f, 4))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: every second number of 32 bits is 0, so these are int64: convert them to uint16, to uint32 "
                     "(with data.token_dtype: uint32), or to .npy",
                     f->path);
    if (!rc && is_u16 && is_wider(f, 2))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: every second token is 0, so these are uint32: say data.token_dtype: uint32", f->path);
    if (!rc && is_u16 && are_swapped(f))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: every token is a multiple of 256, so these are big-endian: save them as little-endian, by "
                     "ids.astype('<u2').tofile(...)",
                     f->path);
    if (!rc && !is_u16 && f->vocab <= UINT16_MAX + 1 && !are_bytes(f) && is_narrower(f))
        rc =
            hd_fail(err, HD_E_INVALID,
                    "%s: as uint32 its tokens are too large, and as uint16 within the model's vocabulary of %ld: leave "
                    "data.token_dtype out",
                    f->path, (long)f->vocab);
    if (!rc && are_bytes(f))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: its even and its odd bytes are alike, so these are tokens of one byte (uint8): say "
                     "data.format: bytes, or convert them to uint16",
                     f->path);
    return rc;
}

/* llm.c: 256 int32 of header (magic, version, number of tokens), then the tokens. Its GPT-2 files are version
 * 1 with uint16, its Llama 3 files version 7 with uint32. */
enum { LLMC_HEADER = 256 * 4 };

static int32_t parse_llmc(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err)
{
    (void)settings;
    if (f->map_bytes < LLMC_HEADER)
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu bytes are less than llm.c's header of 1024", f->path,
                       (unsigned long)f->map_bytes);
    uint64_t magic = read_le(f->map, 4), version = read_le((const uint8_t *)f->map + 4, 4);
    uint64_t count = read_le((const uint8_t *)f->map + 8, 4);
    if (magic == TOKENS_LLMC_MAGIC ? version == 7 : version == 1)
        return hd_fail(err, HD_E_CORRUPT, "%s: magic number %lu does not go with version %lu", f->path,
                       (unsigned long)magic, (unsigned long)version);
    if (magic != TOKENS_LLMC_MAGIC && magic != TOKENS_LLMC_MAGIC_LLAMA3)
        return hd_fail(err, HD_E_CORRUPT, "%s: magic number %lu is not llm.c's 20240520 or 20240801", f->path,
                       (unsigned long)magic);
    if (version != 1 && version != 7)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: llm.c version %lu; known are 1 (uint16) and 7 (uint32)", f->path,
                       (unsigned long)version);
    int32_t rc = set_tokens(f, LLMC_HEADER, version == 7 ? TOKENS_U32 : TOKENS_U16, err);
    if (!rc && f->count != count)
        return hd_fail(err, HD_E_CORRUPT, "%s: the header says %lu tokens, the file has %lu", f->path,
                       (unsigned long)count, (unsigned long)f->count);
    return rc;
}

/* ---- NumPy: "\x93NUMPY", version, header length, a Python dict as text. */

/* The value of a key of the dict, or NULL. */
static const char *npy_value(const char *header, const char *key)
{
    const char *p = strstr(header, key);
    if (!p)
        return NULL;
    p += strlen(key);
    p += strspn(p, " ");
    if (*p++ != ':')
        return NULL;
    return p + strspn(p, " ");
}

/* Length of a value of the dict with the character that ends it; at most 40. */
static int quoted_length(const char *value, const char *end)
{
    size_t n = *value ? 1 + strcspn(value + 1, end) + 1 : 0;
    return (int)(n < 40 ? n : 40);
}

static int32_t npy_dict(struct hd_data *f, const char *header, uint32_t *type, uint64_t *count, struct hd_error *err)
{
    const char *descr = npy_value(header, "'descr'"), *shape = npy_value(header, "'shape'");
    const char *order = npy_value(header, "'fortran_order'");
    char *end;
    if (!descr || !shape || !order)
        return hd_fail(err, HD_E_CORRUPT, "%s: the npy header lacks descr, shape or fortran_order", f->path);
    for (*type = 0; *type < COUNT(token_types); ++*type)
        if (descr[0] == '\'' && !strncmp(descr + 1, token_types[*type].descr, 3) && descr[4] == '\'')
            break;
    if (*type == COUNT(token_types))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: npy dtype %.*s; token arrays are uint8, uint16, uint32, int16, int32 "
                       "or int64, little-endian",
                       f->path, quoted_length(descr, *descr == '\'' ? "'" : "]"), descr);
    errno = 0;
    *count = shape[0] == '(' && shape[1] >= '0' && shape[1] <= '9' ? strtoull(shape + 1, &end, 10) : 0;
    if (shape[0] != '(' || shape[1] < '0' || shape[1] > '9' || errno || strncmp(end, ",)", 2))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: npy shape %.*s; a token array has one dimension: save it flat, as "
                       "array.reshape(-1)",
                       f->path, quoted_length(shape, ")"), shape);
    return HD_OK;
}

static int32_t parse_npy(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err)
{
    (void)settings;
    const uint8_t *p = f->map;
    uint64_t count = 0, length;
    uint32_t type = 0, wide;
    if (f->map_bytes < 12 || memcmp(p, TOKENS_NPY_MAGIC, 6) || p[6] < 1 || p[6] > 3 || p[7])
        return hd_fail(err, HD_E_CORRUPT, "%s: not an npy file of version 1, 2 or 3", f->path);
    wide = p[6] == 1 ? 2 : 4;
    length = read_le(p + 8, wide);
    if (length > f->map_bytes - 8 - wide || length > 65536)
        return hd_fail(err, HD_E_CORRUPT, "%s: npy header of %lu bytes in a file of %lu", f->path,
                       (unsigned long)length, (unsigned long)f->map_bytes);
    char *header = calloc(1, length + 1);
    if (!header)
        return no_memory(err);
    memcpy(header, p + 8 + wide, length);
    int32_t rc = npy_dict(f, header, &type, &count, err);
    free(header);
    if (!rc)
        rc = set_tokens(f, 8 + wide + length, type, err);
    if (!rc && f->count != count)
        return hd_fail(err, HD_E_CORRUPT, "%s: the npy header says %lu tokens, the file has %lu", f->path,
                       (unsigned long)count, (unsigned long)f->count);
    return rc;
}

/* ---- Megatron: NAME.bin has the tokens, NAME.idx their type and the documents. The documents follow each other
 * without gaps. */
enum { IDX_HEADER = 9 + 8 + 1 + 8 + 8 };

static int32_t megatron_sequences(const char *idx, const uint8_t *p, uint64_t n, uint64_t size, uint64_t tokens,
                                  struct hd_error *err)
{
    const uint8_t *lengths = p, *pointers = p + n * 4;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        int32_t length = (int32_t)read_le(lengths + i * 4, 4);
        if (length < 0 || read_le(pointers + i * 8, 8) != at * size)
            return hd_fail(err, HD_E_CORRUPT, "%s: sequence %lu does not follow the one before", idx, (unsigned long)i);
        at += (uint64_t)length;
    }
    if (at != tokens)
        return hd_fail(err, HD_E_CORRUPT, "%s: says %lu tokens, its .bin has %lu", idx, (unsigned long)at,
                       (unsigned long)tokens);
    return HD_OK;
}

static int32_t megatron_index(struct hd_data *f, const char *idx, const uint8_t *p, uint64_t bytes,
                              struct hd_error *err)
{
    uint32_t type = 0;
    if (bytes < IDX_HEADER || memcmp(p, "MMIDIDX\0\0", 9))
        return hd_fail(err, HD_E_CORRUPT, "%s: does not begin with MMIDIDX", idx);
    if (read_le(p + 9, 8) != 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: version %lu; known is 1", idx, (unsigned long)read_le(p + 9, 8));
    while (type < COUNT(token_types) && (!p[17] || token_types[type].megatron != p[17]))
        type++;
    if (type == COUNT(token_types))
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: dtype code %u is not an integer type", idx, p[17]);
    uint64_t sequences = read_le(p + 18, 8), documents = read_le(p + 26, 8), rest = bytes - IDX_HEADER;
    uint64_t left = sequences <= rest / 12 ? rest - sequences * 12 : 0;
    /* A multimodal index ends with a mode of each sequence. */
    if (sequences > rest / 12 || documents > left / 8 || (left != documents * 8 && left != documents * 8 + sequences))
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu sequences and %lu documents are not what %lu bytes hold", idx,
                       (unsigned long)sequences, (unsigned long)documents, (unsigned long)bytes);
    for (uint64_t i = 0, before = 0, at; i < documents; i++, before = at) {
        at = read_le(p + IDX_HEADER + sequences * 12 + i * 8, 8);
        if (at < before || at > sequences)
            return hd_fail(err, HD_E_CORRUPT, "%s: document %lu begins at sequence %lu of %lu", idx, (unsigned long)i,
                           (unsigned long)at, (unsigned long)sequences);
    }
    int32_t rc = set_tokens(f, 0, type, err);
    return rc ? rc : megatron_sequences(idx, p + IDX_HEADER, sequences, token_types[type].bytes, f->count, err);
}

char *tokens_beside(const char *path, const char *suffix)
{
    size_t n = strlen(path);
    char *out;
    n -= n > 4 && !strcmp(path + n - 4, ".bin") ? 4 : 0;
    return asprintf(&out, "%.*s.%s", (int)n, path, suffix) < 0 ? NULL : out;
}

int32_t tokens_has_index(const struct hd_data *f, bool *has, struct hd_error *err)
{
    struct hd_error absent = HD_ERROR_INIT;
    struct http_file *http = NULL;
    char *idx = f->http ? NULL : tokens_beside(f->path, "idx");
    int32_t rc = f->http ? http_open_sibling(f->http, ".bin", ".idx", &http, &absent) : HD_OK;
    *has = f->http ? !rc : idx && !access(idx, F_OK);
    http_close(http);
    free(idx);
    if (!rc || rc == HD_E_NOTFOUND)
        return HD_OK;
    *err = absent;
    return rc;
}

int32_t tokens_load_beside(const struct hd_data *f, const char *suffix, const uint8_t **at, uint64_t *bytes,
                           struct hd_error *err)
{
    struct http_file *http = NULL;
    char ending[16], *path = tokens_beside(f->path, suffix);
    snprintf(ending, sizeof ending, ".%s", suffix);
    int32_t rc = path ? HD_OK : no_memory(err);
    if (!rc && !f->http)
        rc = map_file(path, at, bytes, err);
    else if (!rc && !(rc = http_open_sibling(f->http, ".bin", ending, &http, err)))
        rc = read_head(path, http, *bytes = http_bytes(http), at, err);
    http_close(http);
    free(path);
    return rc;
}

void tokens_unload(const struct hd_data *f, const uint8_t *at, uint64_t bytes)
{
    if (f->http)
        free((void *)at);
    else if (at)
        munmap((void *)at, bytes);
}

static int32_t parse_megatron(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err)
{
    (void)settings;
    char *idx = tokens_beside(f->path, "idx");
    int32_t rc = !idx ? no_memory(err)
                 : !f->http && access(idx, F_OK)
                     ? hd_fail(err, HD_E_NOTFOUND,
                               "%s is not there: format: megatron needs the index beside the .bin (tokens without one "
                               "are format: nanogpt)",
                               idx)
                     : tokens_load_beside(f, "idx", &f->idx, &f->idx_bytes, err);
    if (!rc)
        rc = megatron_index(f, idx, f->idx, f->idx_bytes, err);
    free(idx);
    return rc;
}

/* Documents begin at the sequences that the index lists. One that lists none but the first has a document in each
 * sequence. */
static uint64_t indexed_documents(const uint8_t *idx)
{
    uint64_t sequences = read_le(idx + 18, 8), documents = read_le(idx + 26, 8);
    return documents > 1 ? documents : sequences;
}

/* The first token of document i. */
static uint64_t indexed_begin(const struct hd_data *f, uint64_t i)
{
    const uint8_t *idx = f->idx, *pointers;
    uint64_t sequences = read_le(idx + 18, 8), at = i;
    pointers = idx + IDX_HEADER + sequences * 4;
    if (read_le(idx + 26, 8) > 1)
        at = read_le(pointers + (sequences + i) * 8, 8);
    return at < sequences ? read_le(pointers + at * 8, 8) / token_types[f->type].bytes : f->count;
}

uint64_t tokens_indexed_end(const struct hd_data *f, uint64_t token, uint64_t limit)
{
    uint64_t low = 0, high = indexed_documents(f->idx), end;
    while (low < high) { /* the first document that begins behind the token */
        uint64_t middle = low + (high - low) / 2;
        if (indexed_begin(f, middle) > token)
            high = middle;
        else
            low = middle + 1;
    }
    end = low < indexed_documents(f->idx) ? indexed_begin(f, low) : f->count;
    return end < limit ? end : limit;
}

/* ---- opening */

int32_t tokens_parse(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err)
{
    static int32_t (*const parser[])(struct hd_data *, const struct tokens_settings *, struct hd_error *) = {
        [TOKENS_BYTES] = parse_bytes,       [TOKENS_LLMC] = parse_llmc, [TOKENS_NANOGPT] = parse_nanogpt,
        [TOKENS_MEGATRON] = parse_megatron, [TOKENS_NPY] = parse_npy,
    };
    uint32_t format = (uint32_t)settings->format;
    int32_t rc = format ? HD_OK : tokens_guess(f, &format, err);
    if (!rc && format == TOKENS_BYTES && settings->token_dtype)
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: would be read as bytes, which have no data.token_dtype: say data.format: nanogpt for a file "
                     "of tokens, or leave data.token_dtype out",
                     f->path);
    if (!rc)
        rc = parser[format](f, settings, err);
    if (!rc && !f->count)
        rc = hd_fail(err, HD_E_INVALID, "%s: has no token: leave it out, or write it again", f->path);
    if (!rc && (format == TOKENS_NPY || format == TOKENS_LLMC) && f->type == TOKENS_U16 && f->vocab > UINT16_MAX + 1)
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: a vocabulary of %ld does not fit into uint16, and larger ids are cut where they are written "
                     "in it: write them as uint32",
                     f->path, (long)f->vocab);
    if (!rc && settings->token_dtype && token_types[f->type].bytes != sizeof(uint32_t))
        rc =
            hd_fail(err, HD_E_INVALID,
                    "%s: says of itself that its tokens have %lu bits, and data.token_dtype is uint32: leave that out, "
                    "or convert the file",
                    f->path, 8 * (unsigned long)token_types[f->type].bytes);
    return rc;
}

static bool are_zeros(const struct hd_data *f, uint64_t first, uint64_t n)
{
    uint32_t bytes = token_types[f->type].bytes;
    for (uint64_t i = first; i < first + n; i++)
        if (read_le(f->at + i * bytes, bytes))
            return false;
    return n >= TOKENS_SAMPLE_LEAST;
}

const char *tokens_unwritten(const struct hd_data *f)
{
    uint64_t most = TOKENS_SAMPLE, n = f->count < most ? f->count : most,
             end = f->count / 4 < most ? f->count / 4 : most;
    return are_zeros(f, 0, n) ? "first" : !f->http && are_zeros(f, f->count - end, end) ? "last" : NULL;
}
