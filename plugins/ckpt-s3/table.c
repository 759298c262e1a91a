/* The place of each byte of a file: extents of segments, as text of lines.
 *
 *     heddle-ckpt-s3 1 ATTEMPT
 *     file NAME                                         numbered from 0
 *     segment ATTEMPT/RANK-N                            numbered from 0
 *     extent FILE SEGMENT OFFSET BYTES POSITION
 *     sha256 HEX                                        of all lines before */
#include <openssl/evp.h>
#include <stdlib.h>

#include "internal.h"

enum { HEX_BYTES = 64, LAST_LINE = 7 + HEX_BYTES + 1 };

static void free_names(char **names, uint32_t n)
{
    while (n)
        free(names[--n]);
    free(names);
}

void s3_table_free(struct s3_table *t)
{
    free_names(t->files, t->n_files);
    free_names(t->segments, t->n_segments);
    free(t->extents);
    *t = (struct s3_table){0};
}

uint32_t s3_table_add_name(char ***names, uint32_t *n, const char *name)
{
    char **more = realloc(*names, (*n + (size_t)1) * sizeof *more);
    if (more)
        *names = more;
    if (!more || !(more[*n] = strdup(name)))
        return UINT32_MAX;
    return (*n)++;
}

uint32_t s3_table_file(struct s3_table *t, const char *name)
{
    for (uint32_t i = t->n_files; i-- > 0;)
        if (!strcmp(t->files[i], name))
            return i;
    return s3_table_add_name(&t->files, &t->n_files, name);
}

static int follows(const struct s3_extent *a, const struct s3_extent *b)
{
    return a->file == b->file && a->segment == b->segment && a->offset + a->bytes == b->offset &&
           a->position + a->bytes == b->position;
}

int32_t s3_table_add(struct s3_table *t, const struct s3_extent *e, struct hd_error *err)
{
    if (t->n && follows(&t->extents[t->n - 1], e)) {
        t->extents[t->n - 1].bytes += e->bytes;
        return HD_OK;
    }
    if (t->n == t->room) {
        uint64_t room = 2 * t->room + 16;
        struct s3_extent *more = realloc(t->extents, room * sizeof *more);
        if (!more)
            return s3_no_memory(err);
        t->extents = more;
        t->room = room;
    }
    t->extents[t->n++] = *e;
    return HD_OK;
}

/* ---- text */

static int checksum(const char *text, size_t bytes, char hex[HEX_BYTES + 1])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    if (!EVP_Digest(text, bytes, digest, &n, EVP_sha256(), NULL))
        return -1;
    for (unsigned int i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return 0;
}

int32_t s3_table_print(const struct s3_table *t, const char *attempt, char **text, size_t *bytes, struct hd_error *err)
{
    char hex[HEX_BYTES + 1];
    FILE *f = open_memstream(text, bytes);
    if (!f)
        return s3_no_memory(err);
    fprintf(f, "heddle-ckpt-s3 1 %s\n", attempt);
    for (uint32_t i = 0; i < t->n_files; i++)
        fprintf(f, "file %s\n", t->files[i]);
    for (uint32_t i = 0; i < t->n_segments; i++)
        fprintf(f, "segment %s\n", t->segments[i]);
    for (uint64_t i = 0; i < t->n; i++) {
        const struct s3_extent *e = &t->extents[i];
        fprintf(f, "extent %u %u %llu %llu %llu\n", e->file, e->segment, (unsigned long long)e->offset,
                (unsigned long long)e->bytes, (unsigned long long)e->position);
    }
    if (!fflush(f) && !checksum(*text, *bytes, hex)) {
        fprintf(f, "sha256 %s\n", hex);
        if (!fclose(f))
            return HD_OK;
    } else {
        fclose(f);
    }
    free(*text);
    *text = NULL;
    return s3_no_memory(err);
}

/* The numbers that the names of one text have in the table. */
struct numbers {
    uint32_t *at;
    uint32_t n, room;
};

static int add_number(struct numbers *all, uint32_t number)
{
    if (all->n == all->room) {
        uint32_t room = 2 * all->room + 16;
        uint32_t *more = realloc(all->at, room * sizeof *more);
        if (!more)
            return -1;
        all->at = more;
        all->room = room;
    }
    all->at[all->n++] = number;
    return number == UINT32_MAX ? -1 : 0;
}

/* 0; 1 where the line is none; -1 without memory. */
static int parse_line(struct s3_table *t, const char *line, struct numbers *files, struct numbers *segments)
{
    unsigned long long offset, bytes, position;
    struct s3_extent e;
    int end = 0;
    if (!strncmp(line, "file ", 5))
        return s3_check_name(line + 5, NULL) ? 1 : add_number(files, s3_table_file(t, line + 5));
    if (!strncmp(line, "segment ", 8))
        return strlen(line) > 100 || strstr(line, "..")
                   ? 1
                   : add_number(segments, s3_table_add_name(&t->segments, &t->n_segments, line + 8));
    if (sscanf(line, "extent %u %u %llu %llu %llu%n", &e.file, &e.segment, &offset, &bytes, &position, &end) != 5 ||
        line[end] || e.file >= files->n || e.segment >= segments->n || !bytes || offset + bytes < offset ||
        position + bytes < position)
        return 1;
    e = (struct s3_extent){offset, bytes, position, files->at[e.file], segments->at[e.segment]};
    return s3_table_add(t, &e, NULL) ? -1 : 0;
}

int32_t s3_table_parse(struct s3_table *t, const char *key, char *text, size_t bytes, char attempt[S3_TOKEN],
                       struct hd_error *err)
{
    struct numbers files = {0}, segments = {0};
    char hex[HEX_BYTES + 1], *rest = text, *line;
    int bad = bytes <= LAST_LINE || strlen(text) != bytes;
    if (!bad) {
        const char *last = text + bytes - LAST_LINE;
        bad = checksum(text, bytes - LAST_LINE, hex) || strncmp(last, "sha256 ", 7) != 0 ||
              strncmp(last + 7, hex, HEX_BYTES) != 0 || last[LAST_LINE - 1] != '\n';
    }
    if (!bad) {
        text[bytes - LAST_LINE] = 0;
        line = strsep(&rest, "\n");
        bad = strncmp(line, "heddle-ckpt-s3 1 ", 17) != 0 || strlen(line + 17) >= S3_TOKEN;
        if (!bad)
            snprintf(attempt, S3_TOKEN, "%s", line + 17);
    }
    while (!bad && rest && *rest)
        bad = parse_line(t, strsep(&rest, "\n"), &files, &segments);
    free(files.at);
    free(segments.at);
    if (bad < 0)
        return s3_no_memory(err);
    return bad ? hd_fail(err, HD_E_CORRUPT, "%s is no table of ckpt-s3, or not as it was written", key) : HD_OK;
}

/* ---- order */

static int by_place(const void *a, const void *b)
{
    const struct s3_extent *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

void s3_table_order(struct s3_table *t)
{
    if (t->n)
        qsort(t->extents, t->n, sizeof *t->extents, by_place);
    t->ordered = t->n;
}

int32_t s3_table_sort(struct s3_table *t, const char *name, struct hd_error *err)
{
    uint64_t n = t->n;
    s3_table_order(t);
    t->n = 0;
    for (uint64_t i = 0; i < n; i++) {
        const struct s3_extent e = t->extents[i], *before = i && t->n ? &t->extents[t->n - 1] : NULL;
        uint64_t end = before && before->file == e.file ? before->offset + before->bytes : 0;
        if (e.offset != end)
            return e.offset < end
                       ? hd_fail(err, HD_E_INVALID, "checkpoint %s: %s: byte %llu was written twice", name,
                                 t->files[e.file], (unsigned long long)e.offset)
                       : hd_fail(err, HD_E_CORRUPT, "checkpoint %s: %s: bytes %llu to %llu were not written", name,
                                 t->files[e.file], (unsigned long long)end, (unsigned long long)e.offset);
        s3_table_add(t, &e, NULL); /* there is room: it is no longer than before */
    }
    t->ordered = t->n;
    return HD_OK;
}

static uint32_t find_file(const struct s3_table *t, const char *file)
{
    uint32_t f = 0;
    while (f < t->n_files && strcmp(t->files[f], file) != 0)
        f++;
    return f;
}

/* The last in order that begins at this byte of the file or before; NULL. */
static const struct s3_extent *last_until(const struct s3_table *t, uint32_t file, uint64_t offset)
{
    const struct s3_extent byte = {.offset = offset, .file = file};
    uint64_t low = 0, high = t->ordered;
    while (low < high) { /* low: the first that begins behind the byte */
        uint64_t middle = low + (high - low) / 2;
        if (by_place(&t->extents[middle], &byte) > 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low && t->extents[low - 1].file == file ? &t->extents[low - 1] : NULL;
}

static int has_byte(const struct s3_extent *e, uint32_t file, uint64_t offset)
{
    return e->file == file && e->offset <= offset && offset - e->offset < e->bytes;
}

const struct s3_extent *s3_table_find(const struct s3_table *t, const char *file, uint64_t offset)
{
    uint32_t f = find_file(t, file);
    const struct s3_extent *e = last_until(t, f, offset);
    for (uint64_t i = t->ordered; i < t->n && !(e && has_byte(e, f, offset)); i++)
        e = &t->extents[i];
    return e && has_byte(e, f, offset) ? e : NULL;
}

uint64_t s3_table_bytes(const struct s3_table *t, const char *file)
{
    const struct s3_extent *e = last_until(t, find_file(t, file), UINT64_MAX);
    return e ? e->offset + e->bytes : 0;
}
