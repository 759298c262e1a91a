/* The writer: tokens, lengths and documents go to files of their own, of which the index is made at the end. */
#include "service/text/indexed.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "heddle/file.h"

enum { BUFFER = 1 << 20 };
enum { BIN, LENGTHS, DOCUMENTS, LOSS, IDX, META, FILES };
static const char *const suffixes[FILES] = {"bin", "lengths", "documents", "loss", "idx", "meta.json"};
static const char loss_magic[8] = {'H', 'D', 'L', 'O', 'S', 'S', '1', '\n'};

struct output {
    int fd; /* -1: not open */
    size_t used;
    char *buffer;
};

struct hd__indexed_writer {
    char *prefix;
    uint32_t type, width;
    int with_loss;
    uint8_t bits; /* the last byte of PREFIX.loss, where it is not full */
    struct hd__indexed_size size;
    struct output out[FILES];
};

static const struct {
    uint32_t type, width;
    const char *name;
} types[] = {
#define TYPE_ROW(constant, code, name, bytes) {code, bytes, name},
    HD__INDEXED_TYPES(TYPE_ROW)
#undef TYPE_ROW
};

const char *hd__indexed_type_name(uint32_t type)
{
    for (size_t i = 0; i < HD__COUNT(types); i++)
        if (types[i].type == type)
            return types[i].name;
    return NULL;
}

uint32_t hd__indexed_type_for(int64_t vocab)
{
    return vocab < 65500 ? HD__INDEXED_U16 : HD__INDEXED_I32;
}

char *hd__indexed_prefix(const char *path)
{
    size_t n = strlen(path);
    int named = n > 4 && (!strcmp(path + n - 4, ".bin") || !strcmp(path + n - 4, ".idx"));
    return hd__format("%.*s", (int)(named ? n - 4 : n), path);
}

int32_t hd__indexed_check_output(const char *prefix, int overwrite, struct hd_error *err)
{
    static const int left[] = {BIN, IDX, LOSS, META};
    const char *name = strrchr(prefix, '/');
    name = name ? name + 1 : prefix;
    if (!*name)
        return hd_fail(err, HD_E_INVALID, "--to %s: a folder: add the name that its files begin with", prefix);
    for (size_t i = 0; i < HD__COUNT(left); i++) {
        char *path = hd__format("%s.%s", prefix, suffixes[left[i]]);
        int there = !access(path, F_OK), why = there ? 0 : hd__can_write(path);
        if (there && !overwrite)
            hd_fail(err, HD_E_INVALID, "%s is there: name another prefix, or replace it by --overwrite", path);
        else if (why)
            hd_fail(err, HD_E_INVALID, "%s: %s", path, strerror(why));
        free(path);
        if (why || (there && !overwrite))
            return HD_E_INVALID;
    }
    return HD_OK;
}

/* ---- buffered files */

static char *part_path(const struct hd__indexed_writer *w, int file)
{
    return hd__format("%s.%s.part", w->prefix, suffixes[file]);
}

static int32_t fail(const struct hd__indexed_writer *w, int file, struct hd_error *err)
{
    return hd_fail(err, HD_E_IO, "%s.%s.part: cannot be written: %s", w->prefix, suffixes[file], strerror(errno));
}

static int32_t write_all(const struct hd__indexed_writer *w, int file, const char *at, size_t bytes,
                         struct hd_error *err)
{
    while (bytes) {
        ssize_t n = write(w->out[file].fd, at, bytes);
        if (n < 0 && errno != EINTR)
            return fail(w, file, err);
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return HD_OK;
}

static int32_t drain(struct hd__indexed_writer *w, int file, struct hd_error *err)
{
    struct output *o = &w->out[file];
    int32_t rc = write_all(w, file, o->buffer, o->used, err);
    o->used = 0;
    return rc;
}

static int32_t put(struct hd__indexed_writer *w, int file, const void *data, size_t bytes, struct hd_error *err)
{
    struct output *o = &w->out[file];
    int32_t rc = o->used + bytes > BUFFER ? drain(w, file, err) : HD_OK;
    if (rc)
        return rc;
    if (bytes > BUFFER)
        return write_all(w, file, data, bytes, err);
    memcpy(o->buffer + o->used, data, bytes);
    o->used += bytes;
    return HD_OK;
}

/* Opens to go on at `bytes`. */
static int32_t open_part(struct hd__indexed_writer *w, int file, uint64_t bytes, struct hd_error *err)
{
    struct output *o = &w->out[file];
    struct stat st = {0};
    char *path = part_path(w, file);
    o->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (bytes ? 0 : O_CREAT | O_TRUNC), 0666);
    int gone = bytes && o->fd < 0 && errno == ENOENT;
    int32_t rc = !gone && (o->fd < 0 || fstat(o->fd, &st)) ? fail(w, file, err) : HD_OK;
    if (!rc && (uint64_t)st.st_size < bytes)
        rc = hd_fail(err, HD_E_CORRUPT, "%s: %llu bytes, and %llu were written: begin anew with --overwrite", path,
                     (unsigned long long)st.st_size, (unsigned long long)bytes);
    if (!rc && (ftruncate(o->fd, (off_t)bytes) || lseek(o->fd, (off_t)bytes, SEEK_SET) < 0))
        rc = fail(w, file, err);
    o->buffer = hd__alloc(BUFFER);
    free(path);
    return rc;
}

/* ---- loss bits: a byte that is not full yet is kept back */

static int32_t open_loss(struct hd__indexed_writer *w, struct hd_error *err)
{
    uint64_t full = w->size.tokens / 8;
    int32_t rc = open_part(w, LOSS, w->size.documents ? sizeof loss_magic + (w->size.tokens + 7) / 8 : 0, err);
    if (!rc && !w->size.documents)
        return put(w, LOSS, loss_magic, sizeof loss_magic, err);
    if (!rc && w->size.tokens % 8 && pread(w->out[LOSS].fd, &w->bits, 1, (off_t)(sizeof loss_magic + full)) != 1)
        rc = fail(w, LOSS, err);
    w->bits &= (uint8_t)((1u << w->size.tokens % 8) - 1);
    if (!rc && lseek(w->out[LOSS].fd, (off_t)(sizeof loss_magic + full), SEEK_SET) < 0)
        rc = fail(w, LOSS, err);
    return rc;
}

static int32_t add_loss(struct hd__indexed_writer *w, uint64_t count, const uint8_t *loss, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t i = 0; i < count && !rc; i++) {
        uint64_t at = w->size.tokens + i;
        int bit = !loss || loss[i];
        w->bits |= (uint8_t)(bit << at % 8);
        if (at % 8 == 7) {
            rc = put(w, LOSS, &w->bits, 1, err);
            w->bits = 0;
        }
    }
    return rc;
}

/* The byte that is not full, at the end of the file; more of it may follow. */
static int32_t write_last_bits(const struct hd__indexed_writer *w, struct hd_error *err)
{
    off_t at = (off_t)(sizeof loss_magic + w->size.tokens / 8);
    return w->size.tokens % 8 && pwrite(w->out[LOSS].fd, &w->bits, 1, at) != 1 ? fail(w, LOSS, err) : HD_OK;
}

/* Behind the bits: of which .bin they are. */
static int32_t write_ends(const struct hd__indexed_writer *w, struct hd_error *err)
{
    char *bin = part_path(w, BIN);
    uint64_t bytes, ends = htole64(hd_file_ends(bin, &bytes));
    off_t at = (off_t)(sizeof loss_magic + (w->size.tokens + 7) / 8);
    free(bin);
    return pwrite(w->out[LOSS].fd, &ends, sizeof ends, at) != (ssize_t)sizeof ends ? fail(w, LOSS, err) : HD_OK;
}

/* ---- the writer */

int32_t hd__indexed_create(const char *prefix, uint32_t type, int loss, struct hd__indexed_size from,
                           struct hd__indexed_writer **writer, struct hd_error *err)
{
    struct hd__indexed_writer *w = hd__alloc(sizeof *w);
    w->prefix = hd__strdup(prefix);
    w->type = type;
    w->with_loss = loss;
    w->size = from;
    for (int i = 0; i < FILES; i++)
        w->out[i].fd = -1;
    for (size_t i = 0; i < HD__COUNT(types); i++)
        if (types[i].type == type)
            w->width = types[i].width;
    int why = hd__make_folders(prefix);
    int32_t rc =
        why ? hd_fail(err, HD_E_IO, "%s: %s", prefix, strerror(why)) : open_part(w, BIN, from.tokens * w->width, err);
    if (!rc)
        rc = open_part(w, LENGTHS, from.sequences * 4, err);
    if (!rc)
        rc = open_part(w, DOCUMENTS, from.documents * 8, err);
    if (!rc && loss)
        rc = open_loss(w, err);
    if (rc)
        hd__indexed_abandon(w, 1);
    else
        *writer = w;
    return rc;
}

int32_t hd__indexed_add(struct hd__indexed_writer *w, const int32_t *ids, uint64_t count, const uint8_t *loss,
                        struct hd_error *err)
{
    int32_t length = (int32_t)count, rc;
    uint64_t top = w->width == 2 ? UINT16_MAX : w->width == 1 ? UINT8_MAX : INT32_MAX;
    if (count > INT32_MAX)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: a document of %llu tokens; the format has room for 2147483647",
                       w->prefix, (unsigned long long)count);
    for (uint64_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint64_t)ids[i] > top)
            return hd_fail(err, HD_E_INVALID, "%s: token %d does not fit into %s", w->prefix, ids[i],
                           hd__indexed_type_name(w->type));
    rc = put(w, LENGTHS, &length, 4, err);
    for (uint64_t i = 0; i < count && !rc; i++) {
        int64_t id = ids[i]; /* little-endian, as the format */
        rc = put(w, BIN, &id, w->width, err);
    }
    if (!rc && w->with_loss)
        rc = add_loss(w, count, loss, err);
    w->size.sequences += !rc;
    w->size.tokens += rc ? 0 : count;
    return rc;
}

int32_t hd__indexed_end_document(struct hd__indexed_writer *w, struct hd_error *err)
{
    int32_t rc = put(w, DOCUMENTS, &w->size.sequences, 8, err);
    w->size.documents += !rc;
    return rc;
}

int32_t hd__indexed_flush(struct hd__indexed_writer *w, struct hd__indexed_size *size, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int i = 0; i < IDX && !rc; i++)
        if (w->out[i].fd >= 0 && !(rc = drain(w, i, err)) && i == LOSS)
            rc = write_last_bits(w, err);
    for (int i = 0; i < IDX && !rc; i++)
        if (w->out[i].fd >= 0 && fdatasync(w->out[i].fd))
            rc = fail(w, i, err);
    if (!rc)
        *size = w->size;
    return rc;
}

/* ---- the index */

static int32_t copy_part(struct hd__indexed_writer *w, int file, uint64_t bytes, struct hd_error *err)
{
    char *block = hd__alloc(BUFFER);
    int32_t rc = HD_OK;
    for (uint64_t at = 0; at < bytes && !rc;) {
        ssize_t n = pread(w->out[file].fd, block, (size_t)HD__MIN(bytes - at, BUFFER), (off_t)at);
        rc = n <= 0 ? fail(w, file, err) : put(w, IDX, block, (size_t)n, err);
        at += n > 0 ? (uint64_t)n : 0;
    }
    free(block);
    return rc;
}

static int32_t write_places(struct hd__indexed_writer *w, struct hd_error *err)
{
    int32_t *lengths = hd__alloc(BUFFER), rc = HD_OK;
    int64_t place = 0;
    for (uint64_t at = 0; at < w->size.sequences && !rc;) {
        uint64_t n = HD__MIN(w->size.sequences - at, BUFFER / 4);
        if (pread(w->out[LENGTHS].fd, lengths, n * 4, (off_t)at * 4) != (ssize_t)(n * 4))
            rc = fail(w, LENGTHS, err);
        for (uint64_t i = 0; i < n && !rc; i++) {
            rc = put(w, IDX, &place, 8, err);
            place += (int64_t)lengths[i] * w->width;
        }
        at += n;
    }
    free(lengths);
    return rc;
}

static int32_t write_index(struct hd__indexed_writer *w, struct hd_error *err)
{
    uint8_t header[9 + 8 + 1 + 8 + 8] = "MMIDIDX";
    uint64_t version = 1, documents = w->size.documents + 1, first = 0;
    memcpy(header + 9, &version, 8);
    header[17] = (uint8_t)w->type;
    memcpy(header + 18, &w->size.sequences, 8);
    memcpy(header + 26, &documents, 8);
    int32_t rc = open_part(w, IDX, 0, err);
    if (!rc)
        rc = put(w, IDX, header, sizeof header, err);
    if (!rc)
        rc = copy_part(w, LENGTHS, w->size.sequences * 4, err);
    if (!rc)
        rc = write_places(w, err);
    if (!rc)
        rc = put(w, IDX, &first, 8, err);
    if (!rc)
        rc = copy_part(w, DOCUMENTS, w->size.documents * 8, err);
    return rc ? rc : drain(w, IDX, err);
}

/* ---- the end */

/* The .bin comes last: without an .idx beside it, it would be taken for a file of another format. */
static int32_t rename_parts(struct hd__indexed_writer *w, struct hd_error *err)
{
    static const int order[] = {META, LOSS, IDX, BIN};
    int32_t rc = HD_OK;
    for (size_t i = 0; i < HD__COUNT(order) && !rc; i++) {
        int file = order[i];
        char *part = part_path(w, file), *path = hd__format("%s.%s", w->prefix, suffixes[file]);
        if (w->out[file].fd < 0)
            unlink(path); /* of an older one */
        else if (fsync(w->out[file].fd) || rename(part, path))
            rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
        free(part);
        free(path);
    }
    return rc;
}

static void sync_folder(const char *prefix)
{
    char *folder = hd__strdup(prefix), *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

int32_t hd__indexed_finish(struct hd__indexed_writer *w, const char *meta, struct hd_error *err)
{
    struct hd__indexed_size size;
    int32_t rc = hd__indexed_flush(w, &size, err);
    if (!rc && w->with_loss)
        rc = write_ends(w, err);
    if (!rc)
        rc = write_index(w, err);
    if (!rc && meta && !(rc = open_part(w, META, 0, err)) && !(rc = put(w, META, meta, strlen(meta), err)))
        rc = drain(w, META, err);
    if (!rc)
        rc = rename_parts(w, err);
    if (!rc)
        sync_folder(w->prefix);
    hd__indexed_abandon(w, rc != HD_OK);
    return rc;
}

void hd__indexed_abandon(struct hd__indexed_writer *w, int keep)
{
    if (!w)
        return;
    for (int i = 0; i < FILES; i++) {
        char *part = part_path(w, i);
        if (w->out[i].fd >= 0)
            close(w->out[i].fd);
        if (!keep)
            unlink(part);
        free(w->out[i].buffer);
        free(part);
    }
    free(w->prefix);
    free(w);
}
