/* Event files: TFRecord framing and the few protobuf fields that scalars need.
 *
 *     Event     { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
 * SessionLog session_log = 7; } Summary   { repeated Value value = 1; }   Value { string tag = 1; float
 * simple_value = 2; } SessionLog{ enum status = 1; }   START = 1 */
#include "service/metrics/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct hd__metrics_event_writer {
    char *path;
    int fd;
    int failed;
};

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 }; /* protobuf's wire types */

/* ---- CRC-32C (Castagnoli), reflected */

static uint32_t crc_of_byte(uint32_t c)
{
    for (int k = 0; k < 8; k++)
        c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
    return c;
}

uint32_t hd__metrics_crc32c(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < bytes; i++)
        c = c >> 8 ^ crc_of_byte((c ^ p[i]) & 0xff); /* a few hundred bytes a step: no table */
    return ~c;
}

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t c = hd__metrics_crc32c(data, bytes);
    return (c >> 15 | c << 17) + 0xa282ead8;
}

/* ---- bytes */

static void put(struct hd__text *out, const void *data, size_t n)
{
    if (out->length + n + 1 > out->room) {
        out->room = HD__MAX(out->room * 2, out->length + n + 1);
        out->at = hd__realloc(out->at, out->room);
    }
    memcpy(out->at + out->length, data, n);
    out->length += n;
    out->at[out->length] = '\0';
}

static void put_varint(struct hd__text *out, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; v > 127; v >>= 7)
        bytes[n++] = (uint8_t)(v | 128);
    bytes[n++] = (uint8_t)v;
    put(out, bytes, n);
}

static void put_key(struct hd__text *out, uint32_t field, uint32_t type)
{
    put_varint(out, field << 3 | type);
}

static void put_bytes(struct hd__text *out, uint32_t field, const void *data, size_t n)
{
    put_key(out, field, LENGTH);
    put_varint(out, n);
    put(out, data, n);
}

static void put_record(struct hd__text *out, struct hd__text *event)
{
    uint64_t length = event->length;
    uint32_t crc = masked_crc(&length, sizeof length);
    put(out, &length, sizeof length);
    put(out, &crc, sizeof crc);
    crc = masked_crc(event->at, event->length);
    put(out, event->at, event->length);
    put(out, &crc, sizeof crc);
    hd__text_free(event);
}

/* ---- events */

static void put_event_header(struct hd__text *event, double wall, int64_t step)
{
    put_key(event, 1, FIXED64);
    put(event, &wall, sizeof wall);
    if (!step) /* protobuf leaves out zeros */
        return;
    put_key(event, 2, VARINT);
    put_varint(event, (uint64_t)step);
}

void hd__metrics_event_version(struct hd__text *out, double wall)
{
    struct hd__text event = {0};
    put_event_header(&event, wall, 0);
    put_bytes(&event, 3, "brain.Event:2", 13);
    put_record(out, &event);
}

void hd__metrics_event_restart(struct hd__text *out, double wall, int64_t step)
{
    static const uint8_t start[] = {1 << 3 | VARINT, 1};
    struct hd__text event = {0};
    put_event_header(&event, wall, step);
    put_bytes(&event, 7, start, sizeof start);
    put_record(out, &event);
}

static void put_scalar(struct hd__text *summary, const struct hd__metrics_scalar *scalar)
{
    struct hd__text value = {0};
    float x = (float)scalar->value;
    put_bytes(&value, 1, scalar->tag, strlen(scalar->tag));
    put_key(&value, 2, FIXED32);
    put(&value, &x, sizeof x);
    put_bytes(summary, 1, value.at, value.length);
    hd__text_free(&value);
}

void hd__metrics_event_scalars(struct hd__text *out, double wall, int64_t step,
                               const struct hd__metrics_scalar *scalars, uint32_t n)
{
    struct hd__text event = {0}, summary = {0};
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(scalars[i].value))
            put_scalar(&summary, &scalars[i]);
    if (summary.length) {
        put_event_header(&event, wall, step);
        put_bytes(&event, 5, summary.at, summary.length);
        put_record(out, &event);
    }
    hd__text_free(&summary);
}

/* ---- the file */

static int make_folders(const char *path)
{
    char *copy = hd__format("%s/", path);
    int rc = 0;
    for (char *slash = strchr(copy + 1, '/'); slash && !rc; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        rc = mkdir(copy, 0777) && errno != EEXIST ? -1 : 0;
        *slash = '/';
    }
    free(copy);
    return rc;
}

static void write_out(struct hd__metrics_event_writer *b, struct hd__text *text)
{
    ssize_t n = text->length ? write(b->fd, text->at, text->length) : 0;
    if (n != (ssize_t)text->length && !b->failed) {
        b->failed = 1;
        hd__log(HD_LOG_WARN, "tensorboard", "%s: cannot be written: %s", b->path,
                n < 0 ? strerror(errno) : "disk full?");
    }
    hd__text_free(text);
}

int32_t hd__metrics_event_writer_open(const char *folder, int64_t resumed, struct hd__metrics_event_writer **writer,
                                      struct hd_error *err)
{
    struct timespec now;
    struct hd__text first = {0};
    char host[65] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    gethostname(host, sizeof host - 1);
    double wall = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    if (make_folders(folder))
        return hd_fail(err, HD_E_IO, "metrics.tensorboard: %s: %s", folder, strerror(errno));
    /* TensorBoard reads the files of a folder in the order of their names. */
    char *path = hd__format("%s/events.out.tfevents.%010lld.%s.%d.%09ld", folder, (long long)now.tv_sec, host,
                            (int)getpid(), now.tv_nsec);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        hd_fail(err, HD_E_IO, "metrics.tensorboard: %s: %s", path, strerror(errno));
        free(path);
        return HD_E_IO;
    }
    struct hd__metrics_event_writer *b = hd__alloc(sizeof *b);
    b->path = path;
    b->fd = fd;
    hd__metrics_event_version(&first, wall);
    hd__metrics_event_restart(&first, wall, resumed + 1);
    write_out(b, &first);
    *writer = b;
    return HD_OK;
}

void hd__metrics_event_writer_write(struct hd__metrics_event_writer *b, double wall, int64_t step,
                                    const struct hd__metrics_scalar *scalars, uint32_t n)
{
    struct hd__text text = {0};
    hd__metrics_event_scalars(&text, wall, step, scalars, n);
    write_out(b, &text);
}

void hd__metrics_event_writer_close(struct hd__metrics_event_writer *b)
{
    if (!b)
        return;
    close(b->fd);
    free(b->path);
    free(b);
}
