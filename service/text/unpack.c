/* Reading of plain, gzip and zstd files in pieces. */
#include "service/text/unpack.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef HEDDLE_ZLIB
#include <zlib.h>
#endif
#ifdef HEDDLE_ZSTD
#include <zstd.h>
#endif

#include "heddle/file.h"

enum { PACKED = 1 << 17 }; /* bytes of a compressed file that are read at once */
enum { PLAIN, GZIP, ZSTD };

struct hd__unpack {
    char *path;
    int fd;
    uint32_t kind;
    uint64_t consumed;
    int in_frame, pending; /* zstd: the frame goes on; the last call filled its output, so there may be more of it */
#ifdef HEDDLE_ZLIB
    gzFile gz;
#endif
#ifdef HEDDLE_ZSTD
    ZSTD_DStream *zstd;
    ZSTD_inBuffer in;
    char *packed;
#endif
};

/* ---- the kind of a file */

#define JSONL                                                               \
    "write its text as JSON lines first: python3 -c \"import pandas, sys; " \
    "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)\" IN.parquet OUT.jsonl"
#define TO_JSON "write JSON lines by datasets.Dataset.from_file(IN).to_json(OUT)"
#define UNPACK "unpack it first"
#define EXTRACT "write its text to a file of its own"
static const struct {
    const char *magic;
    uint32_t length, at;
    const char *name, *remedy;
} refused[] = {
    {"PAR1", 4, 0, "Parquet, which this build has no library for", JSONL},
    {"PK\x03\x04", 4, 0, "a zip archive", UNPACK},
    {"\xfd\x37zXZ", 6, 0, "xz", UNPACK},
    {"BZh", 3, 0, "bzip2", UNPACK},
    {"\x04\x22\x4d\x18", 4, 0, "lz4", UNPACK},
    {"7z\xbc\xaf\x27\x1c", 6, 0, "a 7z archive", UNPACK},
    {"ustar", 5, 257, "a tar archive", UNPACK},
    {"ARROW1", 6, 0, "Arrow", EXTRACT},
    {"\x10\0\0\0\0\0\x0a\0", 8, 8, "an Arrow stream, as datasets of Hugging Face write it", TO_JSON},
    {"\x89HDF\r\n\x1a\n", 8, 0, "HDF5", EXTRACT},
    {"SQLite format 3", 16, 0, "an SQLite database", EXTRACT},
    {"%PDF-", 5, 0, "PDF", EXTRACT},
    {"\x7f"
     "ELF",
     4, 0, "a program", EXTRACT},
    {"\x89PNG\r\n\x1a\n", 8, 0, "a PNG image", EXTRACT},
    {"\xff\xd8\xff", 3, 0, "a JPEG image", EXTRACT},
    {"\x93NUMPY", 6, 0, "a NumPy array", "tokens need no tokenizer: name it in data.train"},
    {"MMIDIDX", 7, 0, "a Megatron index", "tokens need no tokenizer: name the .bin beside it in data.train"},
    {"GGUF", 4, 0, "GGUF weights", EXTRACT},
    {"\xff\xfe", 2, 0, "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", 2, 0, "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"version https://git-lfs.github.com/spec/v1", 42, 0, "a Git LFS pointer to a file", "fetch that: git lfs pull"},
};

static int32_t find_kind(struct hd__unpack *u, struct hd_error *err)
{
    char first[512];
    ssize_t n = pread(u->fd, first, sizeof first, 0);
    if (n < 0)
        return hd_fail(err, HD_E_IO, "%s: %s", u->path, strerror(errno));
    for (size_t i = 0; i < HD__COUNT(refused); i++)
        if ((size_t)n >= refused[i].at + refused[i].length &&
            !memcmp(first + refused[i].at, refused[i].magic, refused[i].length))
            return hd_fail(err, HD_E_UNSUPPORTED, "%s: is %s: %s", u->path, refused[i].name, refused[i].remedy);
    if (n >= 3 && !memcmp(first, "\x1f\x8b\x08", 3))
        u->kind = GZIP;
    else if (n >= 4 && !memcmp(first, "\x28\xb5\x2f\xfd", 4))
        u->kind = ZSTD;
    return HD_OK;
}

/* ---- gzip */

#ifdef HEDDLE_ZLIB
static int32_t gzip_open(struct hd__unpack *u, struct hd_error *err)
{
    int fd = dup(u->fd);
    if (fd < 0 || !(u->gz = gzdopen(fd, "rb"))) {
        if (fd >= 0)
            close(fd);
        return hd_fail(err, HD_E_NOMEM, "%s: cannot be unpacked: %s", u->path, strerror(errno));
    }
    gzbuffer(u->gz, PACKED);
    return HD_OK;
}

static int32_t gzip_read(struct hd__unpack *u, char *out, size_t room, size_t *got, struct hd_error *err)
{
    int code, n = gzread(u->gz, out, (unsigned)HD__MIN(room, (size_t)1 << 30));
    const char *why = gzerror(u->gz, &code);
    if (n < 0 || (code != Z_OK && code != Z_STREAM_END))
        return hd_fail(err, code == Z_ERRNO ? HD_E_IO : HD_E_CORRUPT, "%s: cannot be unpacked: %s", u->path,
                       code == Z_BUF_ERROR ? "the gzip file is cut short" : why);
    *got = (size_t)n;
    u->consumed = (uint64_t)gzoffset(u->gz);
    return HD_OK;
}
#else
static int32_t gzip_open(struct hd__unpack *u, struct hd_error *err)
{
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "%s: is gzip, and heddle was built without zlib: gunzip it first, or install "
                   "zlib1g-dev and build again",
                   u->path);
}
#endif

/* ---- zstd */

#ifdef HEDDLE_ZSTD
static int32_t zstd_open(struct hd__unpack *u, struct hd_error *err)
{
    u->zstd = ZSTD_createDStream();
    u->packed = hd__alloc(PACKED);
    u->in.src = u->packed;
    return u->zstd ? HD_OK : hd_fail(err, HD_E_NOMEM, "%s: no memory to unpack it", u->path);
}

static int32_t zstd_fill(struct hd__unpack *u, struct hd_error *err)
{
    ssize_t n = read(u->fd, u->packed, PACKED);
    if (n < 0)
        return hd_fail(err, HD_E_IO, "%s: %s", u->path, strerror(errno));
    if (!n && u->in_frame)
        return hd_fail(err, HD_E_CORRUPT, "%s: cannot be unpacked: the zstd file is cut short", u->path);
    u->in.size = (size_t)n;
    u->in.pos = 0;
    u->consumed += (uint64_t)n;
    return HD_OK;
}

static int32_t zstd_read(struct hd__unpack *u, char *out, size_t room, size_t *got, struct hd_error *err)
{
    ZSTD_outBuffer to = {.dst = out, .size = room};
    while (!to.pos) {
        int32_t rc = u->in.pos == u->in.size && !u->pending ? zstd_fill(u, err) : HD_OK;
        if (rc || (!u->in.size && !u->pending))
            return rc;
        size_t left = ZSTD_decompressStream(u->zstd, &to, &u->in);
        if (ZSTD_isError(left))
            return hd_fail(err, HD_E_CORRUPT, "%s: cannot be unpacked: %s", u->path, ZSTD_getErrorName(left));
        u->in_frame = left != 0;
        u->pending = to.pos == to.size;
    }
    *got = to.pos;
    return HD_OK;
}
#else
static int32_t zstd_open(struct hd__unpack *u, struct hd_error *err)
{
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "%s: is zstd, and heddle was built without libzstd: unpack it with unzstd "
                   "first, or install libzstd-dev and build again",
                   u->path);
}
#endif

/* ---- all of them */

static int32_t plain_read(struct hd__unpack *u, char *out, size_t room, size_t *got, struct hd_error *err)
{
    ssize_t n = read(u->fd, out, room);
    if (n < 0)
        return hd_fail(err, HD_E_IO, "%s: %s", u->path, strerror(errno));
    *got = (size_t)n;
    u->consumed += (uint64_t)n;
    return HD_OK;
}

int32_t hd__unpack_open(const char *path, struct hd__unpack **unpack, struct hd_error *err)
{
    uint64_t bytes;
    struct hd__unpack *u = hd__alloc(sizeof *u);
    u->path = hd__strdup(path);
    u->fd = -1;
    int32_t rc = hd_open_regular(path, &u->fd, &bytes, err);
    if (!rc)
        rc = find_kind(u, err);
    if (!rc && u->kind == GZIP)
        rc = gzip_open(u, err);
    if (!rc && u->kind == ZSTD)
        rc = zstd_open(u, err);
    if (rc)
        hd__unpack_close(u);
    else
        *unpack = u;
    return rc;
}

int32_t hd__unpack_read(struct hd__unpack *u, char *out, size_t room, size_t *got, struct hd_error *err)
{
    *got = 0;
#ifdef HEDDLE_ZLIB
    if (u->kind == GZIP)
        return gzip_read(u, out, room, got, err);
#endif
#ifdef HEDDLE_ZSTD
    if (u->kind == ZSTD)
        return zstd_read(u, out, room, got, err);
#endif
    return plain_read(u, out, room, got, err);
}

uint64_t hd__unpack_consumed(const struct hd__unpack *u)
{
    return u->consumed;
}

void hd__unpack_close(struct hd__unpack *u)
{
    if (!u)
        return;
#ifdef HEDDLE_ZLIB
    if (u->gz)
        gzclose(u->gz);
#endif
#ifdef HEDDLE_ZSTD
    ZSTD_freeDStream(u->zstd);
    free(u->packed);
#endif
    if (u->fd >= 0)
        close(u->fd);
    free(u->path);
    free(u);
}
