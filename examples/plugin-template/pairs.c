/* data-pairs: sequences with labels of their own: a folder with ids.npy and labels.npy, int32 of one shape, whose last
 * axis is data.seq_len. A label below 0 (-100) does not count. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heddle/data.h"
#include "heddle/host.h"

struct array {
    int fd;
    uint32_t at; /* where its numbers begin */
    uint64_t count;
};

struct hd_data {
    struct array ids, labels;
};

/* NumPy's format 1.0: 6 bytes of magic, the version, the length of a header in Python's words, the header. */
static int32_t open_array(const char *folder, const char *name, struct array *a, struct hd_error *err)
{
    char path[4096], head[10], text[512] = "";
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    a->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (a->fd < 0 || fstat(a->fd, &s))
        return hd_fail(err, HD_E_NOTFOUND, "%s: there is no such file: data-pairs wants ids.npy and labels.npy", path);
    if (read(a->fd, head, 10) != 10 || memcmp(head, "\x93NUMPY\x01", 7))
        return hd_fail(err, HD_E_CORRUPT, "%s: no .npy file of format 1.0", path);
    uint32_t length = (uint8_t)head[8] + 256u * (uint8_t)head[9];
    if (length >= sizeof text || read(a->fd, text, length) != (ssize_t)length)
        return hd_fail(err, HD_E_CORRUPT, "%s: its header of %u bytes is cut off, or longer than %zu", path, length,
                       sizeof text - 1);
    if (!strstr(text, "'descr': '<i4'") || !strstr(text, "'fortran_order': False"))
        return hd_fail(err, HD_E_INVALID, "%s: not int32 in C order: save it with a.astype('int32')", path);
    a->at = 10 + length;
    a->count = ((uint64_t)s.st_size - a->at) / 4;
    return HD_OK;
}

static void close_pairs(struct hd_data *d)
{
    if (!d)
        return;
    if (d->ids.fd >= 0)
        close(d->ids.fd);
    if (d->labels.fd >= 0)
        close(d->labels.fd);
    free(d);
}

static int32_t open_pairs(const struct hd_host *host, const void *settings, const struct hd_data_source *source,
                          struct hd_data **data, struct hd_error *err)
{
    struct hd_data *d = calloc(1, sizeof *d);
    (void)host, (void)settings;
    if (!d)
        return hd_fail(err, HD_E_NOMEM, "data-pairs: no memory");
    d->ids.fd = d->labels.fd = -1;
    int32_t rc = open_array(source->path, "ids.npy", &d->ids, err);
    if (!rc)
        rc = open_array(source->path, "labels.npy", &d->labels, err);
    if (!rc && d->ids.count != d->labels.count)
        rc = hd_fail(err, HD_E_INVALID, "%s: %llu ids and %llu labels: there must be one for each", source->path,
                     (unsigned long long)d->ids.count, (unsigned long long)d->labels.count);
    if (rc)
        close_pairs(d);
    else
        *data = d;
    return rc;
}

static int32_t info(struct hd_data *d, struct hd_data_info *info, struct hd_error *err)
{
    (void)err;
    info->tokens = d->ids.count;
    return HD_OK;
}

static int32_t read_array(const struct array *a, uint64_t first, uint64_t count, int64_t *out, struct hd_error *err)
{
    enum { SOME = 1024 };
    int32_t some[SOME];
    if (first > a->count || count > a->count - first)
        return hd_fail(err, HD_E_INVALID, "beyond the last of %llu tokens", (unsigned long long)a->count);
    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done < SOME ? count - done : SOME;
        if (pread(a->fd, some, n * 4, (off_t)(a->at + (first + done) * 4)) != (ssize_t)(n * 4))
            return hd_fail(err, HD_E_IO, "tokens %llu to %llu cannot be read", (unsigned long long)(first + done),
                           (unsigned long long)(first + done + n - 1));
        for (uint64_t i = 0; i < n; i++)
            out[done + i] = some[i];
    }
    return HD_OK;
}

static int32_t read_ids(struct hd_data *d, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err)
{
    return read_array(&d->ids, first, count, tokens, err);
}

static int32_t read_labels(struct hd_data *d, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *err)
{
    return read_array(&d->labels, first, count, labels, err);
}

static const struct hd_data_ops ops = {
    .struct_size = sizeof ops,
    .open = open_pairs,
    .close = close_pairs,
    .info = info,
    .read = read_ids,
    .labels = read_labels,
};

HD_PLUGIN("data-pairs", "0.1.0", "Apache-2.0", .kind = HD_KIND_DATA, .name = "pairs",
          .summary = "ids and labels, a folder of two .npy files", .ops = &ops)
