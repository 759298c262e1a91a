/* Files cut into documents. */
#include "service/text/documents.h"

#include <stdlib.h>

#include "service/text/unpack.h"

enum { READ = 1 << 18 };

struct hd__documents {
    const struct hd__corpus *corpus;
    struct hd__documents_position at;
    struct hd__unpack *open; /* the file at.file; NULL: not opened yet */
    char *buffer;
    size_t begin, end, room; /* bytes of the buffer that are read and not yet given out */
    size_t searched;         /* of these, how many have no newline */
    int at_end;              /* of the file */
    uint64_t before;         /* bytes of the files before this one */
};

static const struct hd__corpus_file *this_file(const struct hd__documents *d)
{
    return &d->corpus->files.at[d->at.file];
}

static int32_t fill(struct hd__documents *d, struct hd_error *err)
{
    size_t got;
    if (d->begin && (d->begin == d->end || d->end + READ > d->room)) {
        memmove(d->buffer, d->buffer + d->begin, d->end - d->begin);
        d->end -= d->begin;
        d->begin = 0;
    }
    if (d->end > HD__DOCUMENT_BYTES)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s%s: a document of more than 1 GiB, which is held in memory as a whole: "
                       "cut it into several files, or into JSON lines",
                       this_file(d)->path, this_file(d)->lines ? ": a line" : "");
    if (d->end + READ > d->room) {
        d->room = HD__MAX(2 * d->room, d->end + READ);
        d->buffer = hd__realloc(d->buffer, d->room);
    }
    int32_t rc = hd__unpack_read(d->open, d->buffer + d->end, d->room - d->end, &got, err);
    d->end += rc ? 0 : got;
    d->at_end = !rc && !got;
    return rc;
}

/* A byte order mark is no text. */
static int32_t skip_mark(struct hd__documents *d, struct hd_error *err)
{
    int32_t rc = HD_OK;
    while (!rc && !d->at_end && d->end - d->begin < 3)
        rc = fill(d, err);
    if (!rc && d->end - d->begin >= 3 && !memcmp(d->buffer + d->begin, "\xef\xbb\xbf", 3)) {
        d->begin += 3;
        d->at.offset += 3;
    }
    return rc;
}

/* Passes over what was given out before a restart. */
static int32_t skip_to(struct hd__documents *d, uint64_t offset, struct hd_error *err)
{
    int32_t rc = HD_OK;
    while (!rc && d->at.offset < offset) {
        size_t n = (size_t)HD__MIN(offset - d->at.offset, d->end - d->begin);
        d->begin += n;
        d->at.offset += n;
        if (d->at.offset < offset && d->at_end)
            rc = hd_fail(err, HD_E_CORRUPT, "%s: ends before byte %llu, which was read before: it has changed",
                         this_file(d)->path, (unsigned long long)offset);
        else if (d->at.offset < offset)
            rc = fill(d, err);
    }
    return rc;
}

static int32_t open_file(struct hd__documents *d, uint64_t offset, uint64_t line, struct hd_error *err)
{
    d->begin = d->end = d->searched = 0;
    d->at_end = 0;
    d->at.offset = 0;
    d->at.line = line;
    int32_t rc = hd__unpack_open(this_file(d)->path, &d->open, err);
    if (!rc)
        rc = skip_mark(d, err);
    return rc ? rc : skip_to(d, offset, err);
}

static void close_file(struct hd__documents *d)
{
    hd__unpack_close(d->open);
    d->open = NULL;
    d->before += this_file(d)->bytes;
    d->at = (struct hd__documents_position){.file = d->at.file + 1};
}

static void give(struct hd__documents *d, size_t bytes, size_t with_end, struct hd__document *out)
{
    *out = (struct hd__document){.path = this_file(d)->path,
                                 .line = d->at.line,
                                 .source = this_file(d)->source,
                                 .text = d->buffer + d->begin,
                                 .bytes = bytes};
    d->begin += with_end;
    d->at.offset += with_end;
    d->searched = 0;
}

static int is_blank(const char *text, size_t bytes)
{
    while (bytes && memchr(" \t\r\n", text[bytes - 1], 4))
        bytes--;
    return !bytes;
}

static int32_t next_line(struct hd__documents *d, struct hd__document *out, int *found, struct hd_error *err)
{
    for (;;) {
        size_t have = d->end - d->begin;
        const char *from = d->buffer + d->begin,
                   *newline = have > d->searched ? memchr(from + d->searched, '\n', have - d->searched) : NULL;
        if (!newline && !d->at_end) {
            d->searched = have;
            int32_t rc = fill(d, err);
            if (rc)
                return rc;
        } else if (!have) {
            return HD_OK;
        } else {
            size_t bytes = newline ? (size_t)(newline - from) : have;
            d->at.line++;
            give(d, bytes, bytes + (newline != NULL), out);
            if (!is_blank(out->text, out->bytes)) {
                *found = 1;
                return HD_OK;
            }
        }
    }
}

static int32_t next_whole(struct hd__documents *d, struct hd__document *out, int *found, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (d->at.line) /* given out */
        return HD_OK;
    while (!rc && !d->at_end)
        rc = fill(d, err);
    if (rc)
        return rc;
    uint32_t skipped = (uint32_t)d->at.offset;
    give(d, d->end - d->begin, d->end - d->begin, out);
    out->skipped = skipped;
    if (out->bytes > 2 && !memcmp(out->text, "{\"", 2))
        hd__log(HD_LOG_WARN, NULL,
                "%s: is JSON, and its name says text: keys and quotes become tokens, too: call it .jsonl, and a field "
                "of each line is read",
                out->path);
    d->at.line = 1;
    *found = 1;
    return HD_OK;
}

int32_t hd__documents_next(struct hd__documents *d, struct hd__document *out, int *found, struct hd_error *err)
{
    int32_t rc = HD_OK;
    *found = 0;
    while (!rc && !*found && d->at.file < d->corpus->files.count) {
        if (!d->open)
            rc = open_file(d, 0, 0, err);
        if (!rc)
            rc = this_file(d)->lines ? next_line(d, out, found, err) : next_whole(d, out, found, err);
        if (!rc && !*found)
            close_file(d);
    }
    return rc;
}

int32_t hd__documents_open(const struct hd__corpus *corpus, struct hd__documents_position from,
                           struct hd__documents **documents, struct hd_error *err)
{
    struct hd__documents *d = hd__alloc(sizeof *d);
    int32_t rc = HD_OK;
    d->corpus = corpus;
    d->at.file = HD__MIN(from.file, corpus->files.count);
    for (uint32_t i = 0; i < d->at.file; i++)
        d->before += corpus->files.at[i].bytes;
    if (d->at.file < corpus->files.count && (from.offset || from.line))
        rc = open_file(d, from.offset, from.line, err);
    if (rc)
        hd__documents_close(d);
    else
        *documents = d;
    return rc;
}

struct hd__documents_position hd__documents_position(const struct hd__documents *d)
{
    return d->at;
}

uint64_t hd__documents_consumed(const struct hd__documents *d)
{
    return d->before + (d->open ? hd__unpack_consumed(d->open) : 0);
}

void hd__documents_close(struct hd__documents *d)
{
    if (!d)
        return;
    hd__unpack_close(d->open);
    free(d->buffer);
    free(d);
}
