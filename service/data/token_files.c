/* One file of tokens: which format it is, what its header promises, and the ids as int32. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/data/data.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read as they lie"
#endif

/* ---- token types: X(constant, value, C type, NumPy descr, code of Megatron's index; 0: none) */
#define HD__DATA_TOKEN_TYPES(X)                  \
    X(HD__DATA_TOKEN_U8, 0, uint8_t, "|u1", 1)   \
    X(HD__DATA_TOKEN_U16, 1, uint16_t, "<u2", 8) \
    X(HD__DATA_TOKEN_U32, 2, uint32_t, "<u4", 0) \
    X(HD__DATA_TOKEN_I16, 3, int16_t, "<i2", 3)  \
    X(HD__DATA_TOKEN_I32, 4, int32_t, "<i4", 4)  \
    X(HD__DATA_TOKEN_I64, 5, int64_t, "<i8", 5)

enum {
#define TOKEN_ENUM(constant, value, type, descr, code) constant = value,
    HD__DATA_TOKEN_TYPES(TOKEN_ENUM)
#undef TOKEN_ENUM
};

static const struct {
    uint32_t bytes, megatron;
    const char *descr;
} token_types[] = {
#define TOKEN_ROW(constant, value, type, descr, code) [constant] = {sizeof(type), code, descr},
    HD__DATA_TOKEN_TYPES(TOKEN_ROW)
#undef TOKEN_ROW
};

/* Unaligned little-endian fields of headers. */
static uint64_t read_le(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

/* ---- mapping */

static int32_t map_file(const char *path, const uint8_t **at, uint64_t *bytes, struct hd_error *err)
{
    struct stat st;
    void *map = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hd_fail(err, errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path, strerror(errno));
    int rc = fstat(fd, &st);
    if (!rc && S_ISREG(st.st_mode) && st.st_size > 0)
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int why = errno;
    close(fd);
    if (rc || map == MAP_FAILED)
        return hd_fail(err, HD_E_IO, "%s: cannot be mapped: %s", path, strerror(why));
    if (!S_ISREG(st.st_mode))
        return hd_fail(err, HD_E_INVALID, "%s: not a regular file", path);
    if (!map)
        return hd_fail(err, HD_E_INVALID, "%s: the file is empty", path);
    *at = map;
    *bytes = (uint64_t)st.st_size;
    return HD_OK;
}

/* ---- formats. Each sets at, count and type of a file whose map is there. */

static int32_t set_tokens(struct hd__data_token_file *f, uint64_t skip, uint32_t type, struct hd_error *err)
{
    uint64_t bytes = f->map_bytes - skip, size = token_types[type].bytes;
    if (bytes % size)
        return hd_fail(err, HD_E_CORRUPT,
                       "%s: %lu bytes of tokens are no multiple of %lu: cut short, or another "
                       "token_dtype",
                       f->path, (unsigned long)bytes, (unsigned long)size);
    f->at = (const uint8_t *)f->map + skip;
    f->count = bytes / size;
    f->type = type;
    return HD_OK;
}

static int32_t open_bytes(struct hd__data_token_file *f, uint32_t token_bytes, struct hd_error *err)
{
    (void)token_bytes;
    return set_tokens(f, 0, HD__DATA_TOKEN_U8, err);
}

static int32_t open_nanogpt(struct hd__data_token_file *f, uint32_t token_bytes, struct hd_error *err)
{
    return set_tokens(f, 0, token_bytes == 4 ? HD__DATA_TOKEN_U32 : HD__DATA_TOKEN_U16, err);
}

/* llm.c: 256 int32 of header (magic, version, number of tokens), then the tokens. Its GPT-2 files are version
 * 1 with uint16, its Llama 3 files version 7 with uint32. */
enum { LLMC_MAGIC = 20240520, LLMC_MAGIC_LLAMA3 = 20240801, LLMC_HEADER = 256 * 4 };

static int32_t open_llmc(struct hd__data_token_file *f, uint32_t token_bytes, struct hd_error *err)
{
    (void)token_bytes;
    if (f->map_bytes < LLMC_HEADER)
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu bytes are less than llm.c's header of 1024", f->path,
                       (unsigned long)f->map_bytes);
    uint64_t magic = read_le(f->map, 4), version = read_le((const uint8_t *)f->map + 4, 4);
    uint64_t count = read_le((const uint8_t *)f->map + 8, 4);
    if (magic != LLMC_MAGIC && magic != LLMC_MAGIC_LLAMA3)
        return hd_fail(err, HD_E_CORRUPT, "%s: magic number %lu is not llm.c's 20240520 or 20240801", f->path,
                       (unsigned long)magic);
    if (version != 1 && version != 7)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: llm.c version %lu; known are 1 (uint16) and 7 (uint32)", f->path,
                       (unsigned long)version);
    int32_t rc = set_tokens(f, LLMC_HEADER, version == 7 ? HD__DATA_TOKEN_U32 : HD__DATA_TOKEN_U16, err);
    if (!rc && f->count != count)
        return hd_fail(err, HD_E_CORRUPT, "%s: the header promises %lu tokens, the file has %lu", f->path,
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

static bool npy_type(const char *descr, uint32_t *type)
{
    for (uint32_t i = 0; i < HD__COUNT(token_types); i++) {
        const char *d = token_types[i].descr;
        if (descr[0] == '\'' && !strncmp(descr + 1, d, 3) && descr[4] == '\'') {
            *type = i;
            return true;
        }
    }
    return false;
}

static int32_t npy_dict(struct hd__data_token_file *f, const char *header, uint32_t *type, uint64_t *count,
                        struct hd_error *err)
{
    const char *descr = npy_value(header, "'descr'"), *shape = npy_value(header, "'shape'");
    const char *order = npy_value(header, "'fortran_order'");
    char *end;
    if (!descr || !shape || !order)
        return hd_fail(err, HD_E_CORRUPT, "%s: the npy header lacks descr, shape or fortran_order", f->path);
    if (!npy_type(descr, type))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: npy dtype %.8s; token arrays are uint8, uint16, uint32, int16, int32 "
                       "or int64, little-endian",
                       f->path, descr);
    errno = 0;
    *count = shape[0] == '(' && shape[1] >= '0' && shape[1] <= '9' ? strtoull(shape + 1, &end, 10) : 0;
    if (shape[0] != '(' || shape[1] < '0' || shape[1] > '9' || errno || strncmp(end, ",)", 2))
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: npy shape %.24s; a token array has one dimension", f->path, shape);
    return HD_OK;
}

static int32_t open_npy(struct hd__data_token_file *f, uint32_t token_bytes, struct hd_error *err)
{
    (void)token_bytes;
    const uint8_t *p = f->map;
    uint64_t count = 0, length;
    uint32_t type = 0, wide;
    if (f->map_bytes < 12 || memcmp(p, "\x93NUMPY", 6) || p[6] < 1 || p[6] > 3)
        return hd_fail(err, HD_E_CORRUPT, "%s: not an npy file of version 1, 2 or 3", f->path);
    wide = p[6] == 1 ? 2 : 4;
    length = read_le(p + 8, wide);
    if (length > f->map_bytes - 8 - wide || length > 65536)
        return hd_fail(err, HD_E_CORRUPT, "%s: npy header of %lu bytes in a file of %lu", f->path,
                       (unsigned long)length, (unsigned long)f->map_bytes);
    char *header = hd__alloc(length + 1);
    memcpy(header, p + 8 + wide, length);
    int32_t rc = npy_dict(f, header, &type, &count, err);
    free(header);
    if (!rc)
        rc = set_tokens(f, 8 + wide + length, type, err);
    if (!rc && f->count != count)
        return hd_fail(err, HD_E_CORRUPT, "%s: the npy header promises %lu tokens, the file has %lu", f->path,
                       (unsigned long)count, (unsigned long)f->count);
    return rc;
}

/* ---- Megatron: NAME.bin has the tokens, NAME.idx says their type and the documents. The documents follow
 * each other without gaps and are read as one stream: Megatron marks their ends with tokens where it was
 * asked to. */
enum { IDX_HEADER = 9 + 8 + 1 + 8 + 8 };

static int32_t megatron_documents(const char *idx, const uint8_t *p, uint64_t n, uint64_t size, uint64_t tokens,
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
        return hd_fail(err, HD_E_CORRUPT, "%s: promises %lu tokens, its .bin has %lu", idx, (unsigned long)at,
                       (unsigned long)tokens);
    return HD_OK;
}

static int32_t megatron_index(struct hd__data_token_file *f, const char *idx, const uint8_t *p, uint64_t bytes,
                              struct hd_error *err)
{
    uint32_t type = 0;
    if (bytes < IDX_HEADER || memcmp(p, "MMIDIDX\0\0", 9))
        return hd_fail(err, HD_E_CORRUPT, "%s: does not begin with MMIDIDX", idx);
    if (read_le(p + 9, 8) != 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: version %lu; known is 1", idx, (unsigned long)read_le(p + 9, 8));
    while (type < HD__COUNT(token_types) && (!p[17] || token_types[type].megatron != p[17]))
        type++;
    if (type == HD__COUNT(token_types))
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: dtype code %u is none of whole numbers", idx, p[17]);
    uint64_t sequences = read_le(p + 18, 8), documents = read_le(p + 26, 8), rest = bytes - IDX_HEADER;
    if (sequences > rest / 12 || documents > (rest - sequences * 12) / 8)
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu sequences and %lu documents do not fit into %lu bytes", idx,
                       (unsigned long)sequences, (unsigned long)documents, (unsigned long)bytes);
    int32_t rc = set_tokens(f, 0, type, err);
    return rc ? rc : megatron_documents(idx, p + IDX_HEADER, sequences, token_types[type].bytes, f->count, err);
}

static char *idx_path(const char *path)
{
    size_t n = strlen(path);
    return hd__format("%.*s.idx", (int)(n > 4 && !strcmp(path + n - 4, ".bin") ? n - 4 : n), path);
}

static int32_t open_megatron(struct hd__data_token_file *f, uint32_t token_bytes, struct hd_error *err)
{
    (void)token_bytes;
    const uint8_t *p;
    uint64_t bytes;
    char *idx = idx_path(f->path);
    int32_t rc = map_file(idx, &p, &bytes, err);
    if (!rc) {
        rc = megatron_index(f, idx, p, bytes, err);
        munmap((void *)p, bytes);
    }
    free(idx);
    return rc;
}

/* ---- choosing and opening */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

static uint32_t guess_format(const struct hd__data_token_file *f)
{
    uint64_t magic = f->map_bytes >= LLMC_HEADER ? read_le(f->map, 4) : 0;
    if (magic == LLMC_MAGIC || magic == LLMC_MAGIC_LLAMA3)
        return HD__DATA_LLMC;
    if (ends_with(f->path, ".bin")) {
        char *idx = idx_path(f->path);
        bool there = !access(idx, F_OK);
        free(idx);
        return there ? HD__DATA_MEGATRON : HD__DATA_NANOGPT;
    }
    return ends_with(f->path, ".npy") ? HD__DATA_NPY : HD__DATA_BYTES;
}

int32_t hd__data_token_file_open(const char *path, uint32_t format, uint32_t token_bytes,
                                 struct hd__data_token_file *file, struct hd_error *err)
{
    static int32_t (*const opener[])(struct hd__data_token_file *, uint32_t, struct hd_error *) = {
        [HD__DATA_BYTES] = open_bytes,       [HD__DATA_LLMC] = open_llmc, [HD__DATA_NANOGPT] = open_nanogpt,
        [HD__DATA_MEGATRON] = open_megatron, [HD__DATA_NPY] = open_npy,
    };
    struct hd__data_token_file f = {0};
    const uint8_t *map = NULL;
    if (format >= HD__COUNT(opener))
        return hd_fail(err, HD_E_INVALID, "%s: unknown data format %u", path, format);
    int32_t rc = map_file(path, &map, &f.map_bytes, err);
    if (rc)
        return rc;
    f.map = map;
    f.path = hd__strdup(path);
    rc = opener[format ? format : guess_format(&f)](&f, token_bytes, err);
    if (rc) {
        hd__data_token_file_close(&f);
        return rc;
    }
    *file = f;
    return HD_OK;
}

void hd__data_token_file_close(struct hd__data_token_file *file)
{
    if (file->map)
        munmap((void *)file->map, file->map_bytes);
    free(file->path);
    *file = (struct hd__data_token_file){0};
}

/* ---- reading: one loop a type. A bad id is looked for again afterwards, so that the loop has no branch. */

#define READ_TOKENS(constant, value, type, descr, code)     \
    case constant: {                                        \
        const uint8_t *from = f->at + first * sizeof(type); \
        for (uint64_t i = 0; i < count; i++) {              \
            type t;                                         \
            memcpy(&t, from + i * sizeof t, sizeof t);      \
            bad |= (uint64_t)(int64_t)t >= (uint64_t)vocab; \
            out[i] = (int32_t)t;                            \
        }                                                   \
        break;                                              \
    }

#define ONE_TOKEN(constant, value, type, descr, code) \
    case constant: {                                  \
        type t;                                       \
        memcpy(&t, f->at + at * sizeof t, sizeof t);  \
        return (int64_t)t;                            \
    }

static int64_t token_at(const struct hd__data_token_file *f, uint64_t at)
{
    switch (f->type) {
        HD__DATA_TOKEN_TYPES(ONE_TOKEN)
    default:
        return -1;
    }
}

static int32_t fail_bad_token(const struct hd__data_token_file *f, uint64_t at, int64_t vocab, struct hd_error *err)
{
    int64_t t;
    while (t = token_at(f, at), t >= 0 && t < vocab)
        at++;
    return hd_fail(err, HD_E_INVALID, "%s: token %lu is %ld, outside the model's vocabulary of %ld", f->path,
                   (unsigned long)at, (long)t, (long)vocab);
}

int32_t hd__data_token_file_read(const struct hd__data_token_file *f, uint64_t first, uint64_t count, int64_t vocab,
                                 int32_t *out, struct hd_error *err)
{
    int bad = 0;
    if (first > f->count || count > f->count - first)
        return hd_fail(err, HD_E_INVALID, "%s: tokens %lu to %lu of %lu were asked for", f->path, (unsigned long)first,
                       (unsigned long)(first + count), (unsigned long)f->count);
    switch (f->type) {
        HD__DATA_TOKEN_TYPES(READ_TOKENS)
    default:
        return hd_fail(err, HD_E_INTERNAL, "%s: unknown token type %u", f->path, f->type);
    }
    return bad ? fail_bad_token(f, first, vocab, err) : HD_OK;
}

/* ---- scanning: the largest of a block, as unsigned numbers, so that what is negative is large. A block is of fixed length:
 * compilers vectorise it. */

enum { SCAN_BLOCK = 2048 };

#define SCAN_TOKENS(type)                             \
    {                                                 \
        type block[SCAN_BLOCK] = {0}, most = 0;       \
        memcpy(block, from, count * sizeof(type));    \
        for (int i = 0; i < SCAN_BLOCK; i++)          \
            most = block[i] > most ? block[i] : most; \
        return most;                                  \
    }

static uint64_t block_max(const uint8_t *from, uint64_t count, uint32_t bytes)
{
    switch (bytes) {
    case 1:
        SCAN_TOKENS(uint8_t)
    case 2:
        SCAN_TOKENS(uint16_t)
    case 4:
        SCAN_TOKENS(uint32_t)
    default:
        SCAN_TOKENS(uint64_t)
    }
}

/* The largest id that a token of this type can be. */
static uint64_t type_limit(uint32_t type)
{
    uint32_t bits = 8 * token_types[type].bytes - (type >= HD__DATA_TOKEN_I16);
    return (UINT64_C(1) << bits) - 1;
}

int32_t hd__data_token_file_scan(const struct hd__data_token_file *f, uint64_t first, uint64_t count, int64_t vocab,
                                 struct hd_error *err)
{
    uint32_t size = token_types[f->type].bytes;
    uint64_t most = HD__MIN(type_limit(f->type), (uint64_t)vocab - 1), end;
    if (f->type < HD__DATA_TOKEN_I16 && most == type_limit(f->type))
        return HD_OK;
    if (first > f->count || count > f->count - first)
        return hd_fail(err, HD_E_INTERNAL, "%s: a scan beyond its end", f->path);
    for (end = first + count; first < end; first += SCAN_BLOCK)
        if (block_max(f->at + first * size, HD__MIN(SCAN_BLOCK, end - first), size) > most)
            return fail_bad_token(f, first, vocab, err);
    return HD_OK;
}
