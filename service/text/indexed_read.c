/* The reader: both files mapped, and everything that the index says held against them. */
#include "service/text/indexed.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heddle/file.h"

enum { HEADER = 9 + 8 + 1 + 8 + 8, LOSS_HEADER = 8, LOSS_ENDS = 8 };

static uint64_t read_le(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

static int32_t map_file(const struct hd__indexed *x, const char *suffix, const uint8_t **at, uint64_t *bytes,
                        struct hd_error *err)
{
    char *path = hd__format("%s.%s", x->prefix, suffix);
    int fd = -1;
    int32_t rc = hd_open_regular(path, &fd, bytes, err);
    void *map = !rc && *bytes ? mmap(NULL, (size_t)*bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    if (map == MAP_FAILED)
        rc = hd_fail(err, HD_E_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    else
        *at = map;
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}

static int32_t fail(const struct hd__indexed *x, struct hd_error *err, const char *what, uint64_t is, uint64_t of)
{
    return hd_fail(err, HD_E_CORRUPT, "%s.idx: %s: %llu and %llu", x->prefix, what, (unsigned long long)is,
                   (unsigned long long)of);
}

uint64_t hd__indexed_length(const struct hd__indexed *x, uint64_t sequence)
{
    return read_le(x->idx + HEADER + sequence * 4, 4);
}

uint64_t hd__indexed_first_token(const struct hd__indexed *x, uint64_t sequence)
{
    return read_le(x->idx + HEADER + x->sequences * 4 + sequence * 8, 8) / x->width;
}

uint64_t hd__indexed_first_sequence(const struct hd__indexed *x, uint64_t document)
{
    return read_le(x->idx + HEADER + x->sequences * 12 + document * 8, 8);
}

uint64_t hd__indexed_document_tokens(const struct hd__indexed *x, uint64_t document)
{
    uint64_t tokens = 0;
    for (uint64_t s = hd__indexed_first_sequence(x, document); s < hd__indexed_first_sequence(x, document + 1); s++)
        tokens += hd__indexed_length(x, s);
    return tokens;
}

static int32_t read_header(struct hd__indexed *x, struct hd_error *err)
{
    if (x->idx_bytes < HEADER + 8 || memcmp(x->idx, "MMIDIDX\0\0", 9) || read_le(x->idx + 9, 8) != 1)
        return hd_fail(err, HD_E_CORRUPT, "%s.idx: is no Megatron index of version 1", x->prefix);
    x->type = x->idx[17];
#define WIDTH(constant, code, name, bytes) \
    if (x->type == (code))                 \
        x->width = (bytes);
    HD__INDEXED_TYPES(WIDTH)
#undef WIDTH
    if (!x->width)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s.idx: tokens of type %u, which is none of whole numbers", x->prefix,
                       x->type);
    x->sequences = read_le(x->idx + 18, 8);
    x->documents = read_le(x->idx + 26, 8);
    x->tokens = x->bin_bytes / x->width;
    uint64_t body = x->idx_bytes - HEADER;
    if (!x->documents || x->sequences > body / 12 || x->documents > body / 8 ||
        x->sequences * 12 + x->documents * 8 != body)
        return fail(x, err, "sequences and documents of the header do not fit the file's size", x->sequences,
                    x->documents);
    x->documents--;
    return HD_OK;
}

/* Sequences follow one another without gaps, documents cover all sequences. */
static int32_t check_index(const struct hd__indexed *x, struct hd_error *err)
{
    const uint8_t *places = x->idx + HEADER + x->sequences * 4;
    uint64_t tokens = 0, before = 0;
    for (uint64_t i = 0; i < x->sequences; i++) {
        uint64_t length = hd__indexed_length(x, i);
        if (length > INT32_MAX || read_le(places + i * 8, 8) != tokens * x->width || length > x->tokens - tokens)
            return fail(x, err, "a sequence's number and place do not follow those before it", i,
                        read_le(places + i * 8, 8));
        tokens += length;
    }
    for (uint64_t i = 0; i <= x->documents; i++) {
        uint64_t at = hd__indexed_first_sequence(x, i);
        if (at < before || at > x->sequences || (!i && at) || (i == x->documents && at != x->sequences))
            return fail(x, err, "a document's number and first sequence do not follow those before it", i, at);
        before = at;
    }
    if (tokens * x->width != x->bin_bytes)
        return hd_fail(err, HD_E_CORRUPT, "%s.bin: %llu bytes, and its index says %llu", x->prefix,
                       (unsigned long long)x->bin_bytes, (unsigned long long)(tokens * x->width));
    return HD_OK;
}

static int32_t open_loss(struct hd__indexed *x, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = map_file(x, "loss", &x->loss, &x->loss_bytes, &why);
    if (rc == HD_E_NOTFOUND)
        return HD_OK;
    if (rc) {
        *err = why;
        return rc;
    }
    uint64_t bits = LOSS_HEADER + (x->tokens + 7) / 8, bytes;
    int knows = x->loss_bytes == bits + LOSS_ENDS;
    if ((x->loss_bytes != bits && !knows) || memcmp(x->loss, "HDLOSS1\n", LOSS_HEADER))
        return hd_fail(err, HD_E_CORRUPT, "%s.loss: is no bitmap of %llu tokens", x->prefix,
                       (unsigned long long)x->tokens);
    char *bin = hd__format("%s.bin", x->prefix);
    if (knows && read_le(x->loss + bits, LOSS_ENDS) != hd_file_ends(bin, &bytes))
        rc = hd_fail(err, HD_E_CORRUPT,
                     "%s.loss: marks the tokens of another file than this %s: copy both together, or write both again",
                     x->prefix, bin);
    free(bin);
    return rc;
}

int32_t hd__indexed_open(const char *path, struct hd__indexed *indexed, struct hd_error *err)
{
    struct hd__indexed x = {.prefix = hd__indexed_prefix(path)};
    int32_t rc = map_file(&x, "idx", &x.idx, &x.idx_bytes, err);
    if (rc == HD_E_NOTFOUND && !access(path, F_OK))
        hd_fail(err, rc,
                "%s: has no %s.idx beside it, which says where documents end, as `heddle data tokenize` writes it of "
                "text; tokens without one go into data.train as they are, and data.val_fraction holds some out",
                path, x.prefix);
    else if (rc == HD_E_NOTFOUND)
        hd_fail(err, rc,
                "%s.idx: No such file or directory; name the PREFIX of a .bin and its .idx, as `heddle data tokenize "
                "--to PREFIX` writes them",
                x.prefix);
    if (!rc)
        rc = map_file(&x, "bin", &x.bin, &x.bin_bytes, err);
    if (!rc)
        rc = read_header(&x, err);
    if (!rc)
        rc = check_index(&x, err);
    if (!rc)
        rc = open_loss(&x, err);
    if (rc)
        hd__indexed_close(&x);
    else
        *indexed = x;
    return rc;
}

void hd__indexed_close(struct hd__indexed *x)
{
    const struct {
        const uint8_t *at;
        uint64_t bytes;
    } maps[] = {{x->idx, x->idx_bytes}, {x->bin, x->bin_bytes}, {x->loss, x->loss_bytes}};
    for (size_t i = 0; i < HD__COUNT(maps); i++)
        if (maps[i].at)
            munmap((void *)maps[i].at, (size_t)maps[i].bytes);
    free(x->prefix);
    *x = (struct hd__indexed){0};
}

int32_t hd__indexed_read(const struct hd__indexed *x, uint64_t first, uint64_t count, int32_t *ids,
                         struct hd_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t raw = read_le(x->bin + (first + i) * x->width, x->width);
        uint64_t top = x->type == HD__INDEXED_I8    ? INT8_MAX
                       : x->type == HD__INDEXED_I16 ? INT16_MAX
                       : x->width >= 4              ? INT32_MAX
                                                    : UINT16_MAX;
        if (raw > top)
            return hd_fail(err, HD_E_INVALID, "%s.bin: token %llu is no id: %llx in %s", x->prefix,
                           (unsigned long long)(first + i), (unsigned long long)raw, hd__indexed_type_name(x->type));
        ids[i] = (int32_t)raw;
    }
    return HD_OK;
}

void hd__indexed_read_loss(const struct hd__indexed *x, uint64_t first, uint64_t count, uint8_t *out)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = x->loss[LOSS_HEADER + (first + i) / 8] >> (first + i) % 8 & 1;
}
