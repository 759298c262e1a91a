/* Token files: every format and type, what is refused, and damaged files. */
#include <sys/resource.h>
#include <unistd.h>

#include "core/plugin/plugin.h"
#include "heddle/file.h"
#include "plugins/data-tokens/internal.h"
#include "tests/support/scratch.h"

extern const struct hd_plugin *heddle_plugin_v1_tokens(void);

static struct hd_error err = HD_ERROR_INIT;

enum { TOKENS = 1000 };

static const struct hd_data_ops *ops_of(void)
{
    return heddle_plugin_v1_tokens()->components[0]->ops;
}

static int32_t open_with_vocab(const char *path, int32_t format, int32_t token_dtype, int64_t vocab, struct hd_data **f)
{
    const struct tokens_settings settings = {.format = format, .token_dtype = token_dtype};
    const struct hd_data_source source = {.struct_size = sizeof source, .path = path, .vocab = vocab};
    return ops_of()->open(NULL, &settings, &source, f, &err);
}

static int32_t open_file(const char *path, int32_t format, int32_t token_dtype, struct hd_data **f)
{
    return open_with_vocab(path, format, token_dtype, 0, f);
}

static uint64_t count_of(struct hd_data *f)
{
    struct hd_data_info info = {.struct_size = sizeof info};
    ck_ok(ops_of()->info(f, &info, &err));
    return info.tokens;
}

/* ---- formats: 1000 tokens 0, 7, 14, ... mod 251 in each of them */

static uint32_t token(uint32_t i)
{
    return i * 7 % 251;
}

static size_t put_tokens(uint8_t *out, uint32_t bytes)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint64_t t = token(i);
        memcpy(out + i * bytes, &t, bytes);
    }
    return TOKENS * bytes;
}

static const char *put_llmc(const struct scratch *s, const char *name, int32_t magic, int32_t version, uint32_t bytes)
{
    static uint8_t file[1024 + TOKENS * 4];
    int32_t header[256] = {magic, version, TOKENS};
    memcpy(file, header, sizeof header);
    return scratch_write(s, name, file, 1024 + put_tokens(file + 1024, bytes));
}

static const char *put_plain(const struct scratch *s, const char *name, uint32_t bytes)
{
    static uint8_t file[TOKENS * 8];
    return scratch_write(s, name, file, put_tokens(file, bytes));
}

/* Three documents of 1, 0 and 999 tokens; the layout of Megatron-LM's
 * megatron/core/datasets/indexed_dataset.py */
static const char *put_megatron(const struct scratch *s, uint8_t code, uint32_t bytes, uint8_t idx[128], size_t *n)
{
    const int32_t lengths[] = {1, 0, 999};
    const uint64_t head[] = {3, 4};
    const int64_t pointers[] = {0, bytes, bytes}, documents[] = {0, 1, 2, 3};
    const uint64_t version = 1;
    uint8_t *p = idx;
    memcpy(p, "MMIDIDX\0\0", 9), p += 9;
    memcpy(p, &version, 8), p += 8;
    *p++ = code;
    memcpy(p, head, 16), p += 16;
    memcpy(p, lengths, 12), p += 12;
    memcpy(p, pointers, 24), p += 24;
    memcpy(p, documents, 32), p += 32;
    *n = (size_t)(p - idx);
    scratch_write(s, "corpus.idx", idx, *n);
    return put_plain(s, "corpus.bin", bytes);
}

static void check_tokens(const char *path, int32_t format, int32_t token_dtype)
{
    struct hd_data *f;
    int64_t out[TOKENS];
    ck_ok(open_file(path, format, token_dtype, &f));
    ck_assert_uint_eq(count_of(f), TOKENS);
    ck_ok(ops_of()->read(f, 0, TOKENS, out, &err));
    for (uint32_t i = 0; i < TOKENS; i++)
        ck_assert_int_eq(out[i], token(i));
    ops_of()->close(f);
}

START_TEST(formats)
{
    struct scratch s;
    uint8_t idx[128];
    size_t n;
    scratch_init(&s);
    check_tokens(put_plain(&s, "a.txt", 1), TOKENS_AUTO, 0);
    check_tokens(put_plain(&s, "a.bin", 2), TOKENS_AUTO, 0);
    check_tokens(put_plain(&s, "b.bin", 4), TOKENS_NANOGPT, TOKENS_DTYPE_UINT32);
    check_tokens(put_llmc(&s, "c.bin", 20240520, 1, 2), TOKENS_AUTO, 0);
    check_tokens(put_llmc(&s, "d.tokens", 20240801, 7, 4), TOKENS_AUTO, 0);
    check_tokens(put_megatron(&s, 8, 2, idx, &n), TOKENS_AUTO, 0);
    check_tokens(put_megatron(&s, 4, 4, idx, &n), TOKENS_AUTO, 0);
    check_tokens(put_megatron(&s, 5, 8, idx, &n), TOKENS_MEGATRON, 0);
    check_tokens(put_megatron(&s, 1, 1, idx, &n), TOKENS_MEGATRON, 0);
    scratch_finish(&s);
}
END_TEST

/* Written by NumPy: 0, 5, 10, ... 245 */
START_TEST(numpy)
{
    static const char *const dtype[] = {"uint8", "uint16", "uint32", "int32", "int64"};
    for (size_t i = 0; i < HD__COUNT(dtype); i++) {
        char path[512];
        struct hd_data *f;
        int64_t out[50];
        snprintf(path, sizeof path, "%s/tokens-%s.npy", GOLDEN, dtype[i]);
        ck_ok(open_file(path, TOKENS_AUTO, 0, &f));
        ck_assert_uint_eq(count_of(f), 50);
        ck_ok(ops_of()->read(f, 0, 50, out, &err));
        for (int32_t k = 0; k < 50; k++)
            ck_assert_int_eq(out[k], k * 5);
        ops_of()->close(f);
    }
}
END_TEST

START_TEST(refusals)
{
    struct scratch s;
    struct hd_data *f;
    uint8_t idx[128];
    size_t n;
    scratch_init(&s);
    ck_refused(open_file("/nowhere/x.bin", 0, 0, &f), HD_E_NOTFOUND, "/nowhere/x.bin");
    ck_refused(open_file(s.dir, 0, 0, &f), HD_E_INVALID, "regular");
    ck_refused(open_file(scratch_write(&s, "empty", "", 0), 0, 0, &f), HD_E_INVALID, "empty");
    ck_refused(open_file(scratch_write(&s, "odd.bin", "abc", 3), 0, 0, &f), HD_E_CORRUPT, "odd.bin");
    ck_refused(open_file(put_llmc(&s, "l", 20240520, 3, 2), 0, 0, &f), HD_E_UNSUPPORTED, "version 3");
    ck_refused(open_file(put_llmc(&s, "l", 20240520, 1, 4), 0, 0, &f), HD_E_CORRUPT, "says 1000");
    ck_refused(open_file(put_llmc(&s, "l", 7, 1, 4), TOKENS_LLMC, 0, &f), HD_E_CORRUPT, "magic");
    ck_refused(open_file(scratch_write(&s, "x.npy", "abc", 3), 0, 0, &f), HD_E_CORRUPT, "x.npy");
    ck_refused(open_file(put_megatron(&s, 7, 4, idx, &n), 0, 0, &f), HD_E_UNSUPPORTED, "code 7");
    ck_refused(open_file(put_megatron(&s, 8, 2, idx, &n), TOKENS_BYTES, 0, &f), HD_E_INVALID,
               "is tokens, with an index beside it, and data.format says bytes: leave it out");
    ck_refused(open_file(put_megatron(&s, 4, 2, idx, &n), 0, 0, &f), HD_E_CORRUPT, "sequence 1");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these need the address space */
    struct rlimit before, few;
    const char *sparse = scratch_write(&s, "sparse.bin", "", 0);
    ck_assert(!truncate(sparse, (off_t)1 << 38) && !getrlimit(RLIMIT_AS, &before));
    few = (struct rlimit){.rlim_cur = (rlim_t)1 << 36, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &few), 0);
    ck_refused(open_file(sparse, 0, 0, &f), HD_E_NOMEM, "raise it, or have fewer, larger files");
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
#endif
    scratch_finish(&s);
}
END_TEST

/* Tokens are returned unchecked; the maximum of the type is reported. */
START_TEST(types)
{
    static const struct {
        uint32_t type, bytes;
        int64_t token, most;
    } rows[] = {{TOKENS_U8, 1, 250, 255},     {TOKENS_U16, 2, 65535, 65535}, {TOKENS_U32, 4, UINT32_MAX, UINT32_MAX},
                {TOKENS_I16, 2, -20000, 0},   {TOKENS_I32, 4, -1, 0},        {TOKENS_I64, 8, INT64_C(0x100000003), 0},
                {TOKENS_I64, 8, INT64_MIN, 0}};
    uint8_t tokens[40 * 8 + 1] = {0}; /* unaligned, as after a header */
    for (size_t r = 0; r < HD__COUNT(rows); r++) {
        struct hd_data f = {.path = (char *)"mem", .at = tokens + 1, .count = 40, .type = rows[r].type};
        struct hd_data_info info = {.struct_size = sizeof info};
        int64_t out[4];
        memset(tokens, 0, sizeof tokens);
        memcpy(tokens + 1 + 7 * rows[r].bytes, &rows[r].token, rows[r].bytes);
        ck_ok(ops_of()->read(&f, 6, 4, out, &err));
        ck_assert_int_eq(out[0], 0);
        ck_assert_int_eq(out[1], rows[r].token);
        ck_assert_int_eq(out[2], 0);
        ck_ok(ops_of()->info(&f, &info, &err));
        ck_assert_int_eq(info.max_token, rows[r].most);
        ck_refused(ops_of()->read(&f, 39, 2, out, &err), HD_E_INVALID, "mem: tokens 39 to 41 of 40");
    }
}
END_TEST

START_TEST(settings)
{
    static const struct {
        struct tokens_settings settings;
        int32_t refused;
    } rows[] = {{{TOKENS_AUTO, TOKENS_DTYPE_UINT32}, 0},
                {{TOKENS_NANOGPT, TOKENS_DTYPE_UINT32}, 0},
                {{TOKENS_BYTES, TOKENS_DTYPE_UINT16}, 0},
                {{TOKENS_BYTES, TOKENS_DTYPE_UINT32}, 1},
                {{TOKENS_MEGATRON, TOKENS_DTYPE_UINT32}, 1}};
    for (size_t r = 0; r < HD__COUNT(rows); r++)
        ck_assert_int_eq(ops_of()->check(&rows[r].settings, &err), rows[r].refused ? HD_E_INVALID : HD_OK);
    ck_assert_str_eq(err.message, "data.token_dtype: only nanogpt files need it; the others say it");
}
END_TEST

/* ---- hostile files: every damaged file is refused with its name, or read without harm */

static void try_file(const char *path, int32_t format)
{
    struct hd_data *f;
    int64_t out[64];
    int32_t rc = open_file(path, format, 0, &f);
    if (rc) {
        ck_assert_ptr_nonnull(strstr(err.message, "/tmp/heddle-test-"));
        return;
    }
    for (uint64_t at = 0; at < count_of(f); at += 64)
        ops_of()->read(f, at, HD__MIN(64, count_of(f) - at), out, &err);
    ck_assert_int_eq(ops_of()->read(f, count_of(f), 1, out, &err), HD_E_INVALID);
    ck_assert_int_eq(ops_of()->read(f, UINT64_MAX, 2, out, &err), HD_E_INVALID);
    ops_of()->close(f);
}

START_TEST(hostile)
{
    struct scratch s;
    uint64_t state = 42;
    uint8_t idx[128], copy[2048];
    size_t n, idx_bytes, npy_bytes;
    scratch_init(&s);
    uint8_t *npy = scratch_read(GOLDEN "/tokens-uint16.npy", &npy_bytes);
    const char *bin = put_megatron(&s, 8, 2, idx, &idx_bytes);
    int32_t llmc[512] = {20240520, 1, 512};
    for (int k = 0; k < 1000; k++) {
        memcpy(copy, npy, npy_bytes);
        n = scratch_damage(&state, copy, npy_bytes);
        try_file(scratch_write(&s, "h.npy", copy, n), TOKENS_NPY);
        memcpy(copy, idx, idx_bytes);
        n = scratch_damage(&state, copy, idx_bytes);
        scratch_write(&s, "corpus.idx", copy, n);
        try_file(bin, TOKENS_MEGATRON);
        memcpy(copy, llmc, sizeof llmc);
        n = scratch_damage(&state, copy, k % 2 ? 12 : sizeof llmc);
        try_file(scratch_write(&s, "h.llmc", copy, n < 12 ? n : sizeof llmc), TOKENS_LLMC);
    }
    free(npy);
    scratch_finish(&s);
}
END_TEST

/* ---- what is no file of tokens */

static void expect_opens(const char *path, int32_t format, int64_t vocab)
{
    struct hd_data *f;
    ck_ok(open_with_vocab(path, format, 0, vocab, &f));
    ops_of()->close(f);
}

/* By the first bytes that the tools write, and what gzip, zip, zstd, xz, bzip2, tar and Python 3 wrote for "hello". */
START_TEST(containers)
{
#define BYTES(text) text, sizeof text - 1
    static const struct {
        const char *bytes;
        size_t n;
        const char *name;
    } rows[] = {
        {BYTES("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\xc9\xc9\x07\x00"),
         "is gzip, which is not read: unpack it first; packed text is read with data.tokenizer"},
        {BYTES("PK\x03\x04\x0a\x00\x00\x00"), "is a zip archive"},
        {BYTES("\x28\xb5\x2f\xfd\x04\x58\x29\x00\x00hello"), "is zstd"},
        {BYTES("\xfd\x37zXZ\x00\x00\x04"), "is xz"},
        {BYTES("BZh91AY&SY\x19\x31"), "is bzip2"},
        {BYTES("\x04\x22\x4d\x18\x64\x40"), "is lz4"},
        {BYTES("PAR1\x15\x04\x15\x10PAR1"), "is Parquet"},
        {BYTES("ARROW1\x00\x00\xff\xff\xff\xff"), "is Arrow"},
        {BYTES("\xff\xff\xff\xff\x70\x00\x00\x00\x10\x00\x00\x00\x00\x00\x0a\x00"),
         "is an Arrow stream, as datasets of Hugging Face write it"},
        {BYTES("\x89HDF\r\n\x1a\n\x00"), "is HDF5"},
        {BYTES("\x89PNG\r\n\x1a\n\x00"), "is a PNG image"},
        {BYTES("\x7f"
               "ELF\x02\x01\x01"),
         "is a program"},
        {BYTES("\xff\xd8\xff\xe0\x00\x10JFIF"), "is a JPEG image"},
        {BYTES("\x80\x04\x95\x09\x00\x00\x00\x00\x00\x00\x00\x8c\x05hello\x94."), "is a pickle"},
        {BYTES("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), "is a file of torch.save"},
        {BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:"),
         "is a Git LFS pointer to a file, which is not "
         "read: fetch that: git lfs pull"},
        {BYTES("\x11\x00\x00\x00\x00\x00\x00\x00{\"__metadata__\":{}"), "is safetensors"},
    };
    struct scratch s;
    struct hd_data *f;
    char tar[512] = "hello.txt";
    scratch_init(&s);
    memcpy(tar + 257, "ustar", 5);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        const char *plain = scratch_write(&s, "corpus", rows[i].bytes, rows[i].n);
        const char *bin = scratch_write(&s, "corpus.bin", rows[i].bytes, rows[i].n);
        ck_refused(open_with_vocab(plain, TOKENS_AUTO, 0, 256, &f), HD_E_UNSUPPORTED, rows[i].name);
        ck_refused(open_with_vocab(plain, TOKENS_AUTO, 0, 32000, &f), HD_E_UNSUPPORTED, rows[i].name);
        ck_refused(open_with_vocab(plain, TOKENS_BYTES, 0, 256, &f), HD_E_UNSUPPORTED, rows[i].name);
        ck_refused(open_with_vocab(bin, TOKENS_AUTO, 0, 32000, &f), HD_E_UNSUPPORTED, rows[i].name);
        ck_refused(open_with_vocab(bin, TOKENS_NANOGPT, 0, 32000, &f), HD_E_UNSUPPORTED, rows[i].name);
        /* a letter less is something else */
        expect_opens(scratch_write(&s, "corpus", rows[i].bytes + 1, rows[i].n - 2), TOKENS_BYTES, 256);
    }
    ck_refused(open_file(scratch_write(&s, "tar", tar, sizeof tar), TOKENS_BYTES, 0, &f), HD_E_UNSUPPORTED,
               "is a tar archive");
    ck_refused(open_file(scratch_write(&s, "corpus.idx", "MMIDIDX\0\0", 9), TOKENS_AUTO, 0, &f), HD_E_UNSUPPORTED,
               "Megatron index");
    const char *npy = scratch_write(&s, "ids", BYTES("\x93NUMPY\x01\x00\x06\x00{'descr"));
    for (uint32_t format = TOKENS_BYTES; format <= TOKENS_NANOGPT; format += TOKENS_NANOGPT - TOKENS_BYTES) {
        ck_refused(open_with_vocab(npy, format, 0, 65536, &f), HD_E_UNSUPPORTED,
                   "ids: is a NumPy array, and data.format says otherwise: leave it out");
        ck_refused(open_with_vocab(put_llmc(&s, "l", 20240520, 1, 2), format, 0, 65536, &f), HD_E_UNSUPPORTED,
                   "is a file of llm.c, and data.format says otherwise");
        ck_refused(open_with_vocab(put_llmc(&s, "l", 20240801, 7, 4), format, 0, 65536, &f), HD_E_UNSUPPORTED,
                   "is a file of llm.c, and data.format says otherwise");
    }
    scratch_finish(&s);
}
END_TEST

static const char prose[] = "It was the best of times, it was the worst of times, it was the age of wisdom, ...\n";

START_TEST(text)
{
    struct scratch s;
    uint8_t wide[600];
    struct hd_data *f;
    scratch_init(&s);
    const char *txt = scratch_write(&s, "a.txt", prose, sizeof prose - 1);
    const char *bin = scratch_write(&s, "a.bin", prose, sizeof prose - 1);
    expect_opens(txt, TOKENS_AUTO, 256);
    expect_opens(txt, TOKENS_AUTO, 0);
    expect_opens(txt, TOKENS_BYTES, 32000);
    expect_opens(bin, TOKENS_BYTES, 32000);
    ck_refused(open_with_vocab(txt, TOKENS_AUTO, TOKENS_DTYPE_UINT32, 256, &f), HD_E_INVALID,
               "a.txt: would be read as bytes, which have no data.token_dtype");
    ck_refused(open_with_vocab(txt, TOKENS_AUTO, 0, 32000, &f), HD_E_INVALID, "data.format: bytes");
    ck_refused(open_with_vocab(txt, TOKENS_AUTO, 0, 255, &f), HD_E_INVALID, "a model of 255 token ids");
    ck_refused(open_with_vocab(bin, TOKENS_AUTO, 0, 32000, &f), HD_E_INVALID, "a.bin: begins with text");
    ck_refused(open_with_vocab(bin, TOKENS_NANOGPT, 0, 32000, &f), HD_E_INVALID, "begins with text");
    for (size_t i = 0; i < sizeof wide; i++)
        wide[i] = i % 2 ? 0 : (uint8_t)prose[i % (sizeof prose - 1)];
    ck_refused(open_with_vocab(scratch_write(&s, "wide.dat", wide, sizeof wide), TOKENS_AUTO, 0, 256, &f), HD_E_INVALID,
               "wide.dat: every second byte is 0, or it begins as UTF-16");
    ck_refused(open_with_vocab(scratch_write(&s, "bom.txt", "\xfe\xff\0a", 4), TOKENS_BYTES, 0, 256, &f), HD_E_INVALID,
               "bom.txt: every second byte is 0, or it begins as UTF-16");
    const char *rows[] = {"{\"text\": \"hello\"}\n{\"text\": \"there\"}\n", "[\n {\"text\": 1}]", " { \"a\": 1}"};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        const char *path = scratch_write(&s, "data", rows[i], strlen(rows[i]));
        ck_refused(open_with_vocab(path, TOKENS_AUTO, 0, 256, &f), HD_E_INVALID, "data: is JSON");
        expect_opens(path, TOKENS_BYTES, 256);
    }
    ck_refused(open_with_vocab(scratch_write(&s, "a.jsonl", "abc", 3), TOKENS_AUTO, 0, 256, &f), HD_E_INVALID, "JSON");
    const char *csv = scratch_write(&s, "a.csv", "text\nhello\n", 11);
    ck_refused(open_with_vocab(csv, TOKENS_AUTO, 0, 256, &f), HD_E_INVALID, "a.csv: is a table, of which no column");
    expect_opens(csv, TOKENS_BYTES, 256);
    expect_opens(scratch_write(&s, "a.c", "{ return 1; }", 13), TOKENS_AUTO, 256);
    const char *pages[] = {"<!DOCTYPE html>\n<p>", "\xef\xbb\xbf\n<HTML lang=en>"};
    for (size_t i = 0; i < HD__COUNT(pages); i++) {
        const char *path = scratch_write(&s, "page.txt", pages[i], strlen(pages[i]));
        ck_refused(open_with_vocab(path, TOKENS_AUTO, 0, 256, &f), HD_E_INVALID, "page.txt: is an HTML page: fetch");
        expect_opens(path, TOKENS_BYTES, 256);
        expect_opens(scratch_write(&s, "page.html", pages[i], strlen(pages[i])), TOKENS_AUTO, 256);
    }
    expect_opens(scratch_write(&s, "a.txt", "<htm", 4), TOKENS_AUTO, 256);
    scratch_finish(&s);
}
END_TEST

/* Arrays of ids that are floats; ids are none, whatever their width, nor are a few among zeros. */
START_TEST(floats)
{
    struct scratch s;
    struct hd_data *f;
    float single[200];
    double wide[200];
    uint16_t ids[400] = {0};
    scratch_init(&s);
    for (int i = 0; i < 200; i++)
        wide[i] = single[i] = (float)(i * 250);
    const char *paths[] = {scratch_write(&s, "f.bin", single, sizeof single),
                           scratch_write(&s, "d.bin", wide, sizeof wide)};
    for (size_t i = 0; i < HD__COUNT(paths); i++) {
        ck_refused(open_with_vocab(paths[i], TOKENS_AUTO, 0, 65536, &f), HD_E_INVALID, "whole as floats");
        ck_refused(open_with_vocab(paths[i], TOKENS_NANOGPT, TOKENS_DTYPE_UINT32, 65536, &f), HD_E_INVALID,
                   "as floats");
    }
    for (int i = 0; i < 40; i++)
        ids[i] = i % 2 ? 0x4000 : 0;
    ids[200] = 7;
    expect_opens(scratch_write(&s, "few.bin", ids, sizeof ids), TOKENS_AUTO, 0);
    single[199] = 0.5f;
    expect_opens(scratch_write(&s, "any.bin", single, sizeof single), TOKENS_AUTO, 0);
    scratch_finish(&s);
}
END_TEST

/* uint32 read as uint16: every second token is 0. */
START_TEST(width)
{
    struct scratch s;
    struct hd_data *f;
    uint16_t tokens[1000] = {0};
    scratch_init(&s);
    ck_refused(open_file(put_plain(&s, "w.bin", 4), TOKENS_AUTO, 0, &f), HD_E_INVALID, "data.token_dtype: uint32");
    ck_refused(open_file(put_plain(&s, "w.bin", 4), TOKENS_NANOGPT, 0, &f), HD_E_INVALID, "every second token is 0");
    check_tokens(put_plain(&s, "w.bin", 4), TOKENS_AUTO, TOKENS_DTYPE_UINT32);
    ck_refused(open_file(put_plain(&s, "w.bin", 8), TOKENS_AUTO, 0, &f), HD_E_INVALID, "these are int64");
    ck_refused(open_file(put_plain(&s, "w.bin", 8), TOKENS_AUTO, TOKENS_DTYPE_UINT32, &f), HD_E_INVALID,
               "these are int64");
    ck_refused(open_with_vocab(put_plain(&s, "w.bin", 2), TOKENS_AUTO, TOKENS_DTYPE_UINT32, 65536, &f), HD_E_INVALID,
               "w.bin: as uint32 its tokens are too large, and as uint16 within the model's vocabulary of 65536: leave "
               "data.token_dtype out");
    expect_opens(scratch_write(&s, "zero.bin", tokens, sizeof tokens), TOKENS_AUTO, 0);
    tokens[501] = 7; /* one is not */
    for (int i = 0; i < 1000; i += 2)
        tokens[i] = 5;
    expect_opens(scratch_write(&s, "z.bin", tokens, sizeof tokens), TOKENS_AUTO, 0);
    ck_refused(open_with_vocab(put_plain(&s, "v.bin", 2), TOKENS_AUTO, 0, 65537, &f), HD_E_INVALID,
               "a vocabulary of 65537 does not fit into uint16");
    expect_opens(put_plain(&s, "v.bin", 2), TOKENS_AUTO, 65536);
    scratch_finish(&s);
}
END_TEST

/* One byte a token, as characters are often saved; the same as uint16, and ids of a large vocabulary, are none. */
START_TEST(one_byte)
{
    struct scratch s;
    struct hd_data *f;
    static uint8_t narrow[4000];
    static uint16_t wide[4000], ids[4000], padded[4000];
    static uint32_t wider[4000];
    uint64_t state = 1;
    scratch_init(&s);
    for (int i = 0; i < 4000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        narrow[i] = (uint8_t)(1 + (state >> 40) % 64);
        wide[i] = narrow[i];
        ids[i] = (uint16_t)((state >> 33) % 50257);
    }
    const char *path = scratch_write(&s, "u.bin", narrow, sizeof narrow);
    ck_refused(open_with_vocab(path, TOKENS_AUTO, 0, 50304, &f), HD_E_INVALID,
               "u.bin: its even and its odd bytes are alike, so these are tokens of one byte (uint8): say data.format: "
               "bytes");
    ck_refused(open_with_vocab(path, TOKENS_NANOGPT, TOKENS_DTYPE_UINT32, 50304, &f), HD_E_INVALID, "of one byte");
    ck_refused(open_with_vocab(scratch_write(&s, "o.bin", narrow, 3999), TOKENS_AUTO, 0, 50304, &f), HD_E_CORRUPT,
               "o.bin: 3999 bytes of tokens are not a multiple of 2: truncated, or tokens of another type "
               "(data.token_dtype; of one byte: data.format: bytes)");
    expect_opens(path, TOKENS_BYTES, 256);
    expect_opens(scratch_write(&s, "w.bin", wide, sizeof wide), TOKENS_AUTO, 256);
    for (int i = 0; i < 4000; i++) { /* padding by id 0 */
        padded[i] = i % 5 ? 0 : narrow[i];
        wider[i] = padded[i];
    }
    expect_opens(scratch_write(&s, "p.bin", padded, sizeof padded), TOKENS_AUTO, 256);
    ck_assert(!open_with_vocab(scratch_write(&s, "q.bin", wider, sizeof wider), TOKENS_NANOGPT, TOKENS_DTYPE_UINT32,
                               70000, &f));
    ops_of()->close(f);
    for (int i = 0; i < 4000; i++)
        wide[i] = (uint16_t)(wide[i] << 8);
    ck_refused(open_with_vocab(scratch_write(&s, "b.bin", wide, sizeof wide), TOKENS_AUTO, 0, 50304, &f), HD_E_INVALID,
               "b.bin: every token is a multiple of 256, so these are big-endian");
    expect_opens(scratch_write(&s, "i.bin", ids, sizeof ids), TOKENS_AUTO, 50304);
    scratch_finish(&s);
}
END_TEST

static const char *put_npy(const struct scratch *s, const char *dict)
{
    char file[512] = "\x93NUMPY\x01";
    size_t n = strlen(dict);
    file[8] = (char)n;
    memcpy(file + 10, dict, n);
    return scratch_write(s, "h.npy", file, 10 + n + 160);
}

START_TEST(headers)
{
    struct scratch s;
    struct hd_data *f;
    uint8_t idx[128];
    size_t n;
    scratch_init(&s);
    expect_opens(put_npy(&s, "{'descr': '<u2', 'fortran_order': False, 'shape': (80,), }"), TOKENS_AUTO, 0);
    ck_refused(open_file(put_npy(&s, "{'descr': '<u2', 'fortran_order': False, 'shape': (80,), }"), TOKENS_AUTO,
                         TOKENS_DTYPE_UINT32, &f),
               HD_E_INVALID, "h.npy: says of itself that its tokens have 16 bits, and data.token_dtype is uint32");
    ck_refused(
        open_with_vocab(put_npy(&s, "{'descr': '<u2', 'fortran_order': False, 'shape': (80,), }"), 0, 0, 65537, &f),
        HD_E_INVALID, "h.npy: a vocabulary of 65537 does not fit into uint16, and larger ids are cut where they");
    ck_refused(open_file(scratch_write(&s, "none.npy",
                                       "\x93NUMPY\x01\0\x38\0{'descr': '<u2', 'fortran_order': False, "
                                       "'shape': (0,)}",
                                       10 + 56),
                         0, 0, &f),
               HD_E_INVALID, "none.npy: has no token: leave it out, or write it again");
    ck_refused(open_file(put_npy(&s, "{'descr': '<u2', 'fortran_order': False, 'shape': (10, 8), }   \n"), 0, 0, &f),
               HD_E_UNSUPPORTED, "npy shape (10, 8); a token array has one dimension: save it flat");
    ck_refused(open_file(put_npy(&s, "{'descr': '<f4', 'fortran_order': False, 'shape': (40,), }"), 0, 0, &f),
               HD_E_UNSUPPORTED, "npy dtype '<f4'; token");
    ck_refused(open_file(put_npy(&s, "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (80,), }"), 0, 0, &f),
               HD_E_UNSUPPORTED, "npy dtype [('a', '<u2')]; token");
    ck_refused(open_file(put_npy(&s, "{'descr': '<u2', 'fortran_order': False, 'shape': (81,), }"), 0, 0, &f),
               HD_E_CORRUPT, "says 81 tokens, the file has 80");
    ck_refused(open_file(put_llmc(&s, "l", 20240801, 1, 2), 0, 0, &f), HD_E_CORRUPT, "does not go with version 1");
    ck_refused(open_file(put_llmc(&s, "l", 20240520, 7, 4), 0, 0, &f), HD_E_CORRUPT, "does not go with version 7");
    const int32_t cut[] = {20240520, 1, 1000};
    ck_refused(open_file(scratch_write(&s, "cut.bin", cut, sizeof cut), 0, 0, &f), HD_E_CORRUPT, "header of 1024");
    /* documents are at 34 + 3 * 12: 0, 1, 2, 3 */
    const char *bin = put_megatron(&s, 8, 2, idx, &n);
    idx[34 + 36 + 3 * 8] = 4;
    scratch_write(&s, "corpus.idx", idx, n);
    ck_refused(open_file(bin, 0, 0, &f), HD_E_CORRUPT, "document 3 begins at sequence 4 of 3");
    idx[34 + 36 + 3 * 8] = 1;
    scratch_write(&s, "corpus.idx", idx, n);
    ck_refused(open_file(bin, 0, 0, &f), HD_E_CORRUPT, "document 3 begins at sequence 1 of 3");
    idx[34 + 36 + 3 * 8] = 3;
    scratch_write(&s, "corpus.idx", idx, n + 3); /* a mode of each sequence */
    expect_opens(bin, TOKENS_AUTO, 0);
    scratch_write(&s, "corpus.idx", idx, n + 1);
    ck_refused(open_file(bin, 0, 0, &f), HD_E_CORRUPT, "are not what");
    scratch_finish(&s);
}
END_TEST

/* ---- data.loss: completion */

static int32_t open_completions(const char *path, struct hd_data **f)
{
    const struct tokens_settings settings = {.loss = TOKENS_LOSS_COMPLETION};
    const struct hd_data_source source = {.struct_size = sizeof source, .path = path};
    ck_assert_int_eq(ops_of()->labeled(&settings), 1);
    return ops_of()->open(NULL, &settings, &source, f, &err);
}

/* Marks of every third token, and of the 20 from 40 on. */
static int is_marked(uint32_t i)
{
    return i % 3 == 0 || (i >= 40 && i < 60);
}

static const char *put_marks(const struct scratch *s, size_t bytes, int any)
{
    uint8_t marks[8 + TOKENS / 8 + 8] = "HDLOSS1\n";
    for (uint32_t i = 0; i < TOKENS && any; i++)
        marks[8 + i / 8] |= (uint8_t)(is_marked(i) << i % 8);
    return scratch_write(s, "corpus.loss", marks, bytes);
}

/* The label of a token is the token after it, where that is marked. */
START_TEST(completions)
{
    struct scratch s;
    struct hd_data *f;
    uint8_t idx[128];
    size_t n;
    int64_t labels[TOKENS];
    scratch_init(&s);
    const char *bin = put_megatron(&s, 8, 2, idx, &n);
    put_marks(&s, 8 + TOKENS / 8, 1);
    ck_ok(open_completions(bin, &f));
    for (uint32_t first = 0; first < TOKENS; first += 250) {
        ck_ok(ops_of()->labels(f, first, 250, labels, &err));
        for (uint32_t i = 0; i < 250; i++)
            ck_assert_int_eq(labels[i],
                             first + i + 1 < TOKENS && is_marked(first + i + 1) ? (int64_t)token(first + i + 1) : -100);
    }
    ck_ok(ops_of()->labels(f, TOKENS - 1, 1, labels, &err));
    ck_assert_int_eq(labels[0], -100);
    ck_ok(ops_of()->labels(f, TOKENS, 0, labels, &err));
    ck_refused(ops_of()->labels(f, TOKENS, 1, labels, &err), HD_E_INVALID, "labels 1000 to 1001 of 1000");
    ops_of()->close(f);
    const struct tokens_settings all = {0};
    ck_assert_int_eq(ops_of()->labeled(&all), 0);
    scratch_finish(&s);
}
END_TEST

START_TEST(marks_that_do_not_fit)
{
    struct scratch s;
    struct hd_data *f;
    uint8_t idx[128];
    size_t n;
    scratch_init(&s);
    const char *bin = put_megatron(&s, 8, 2, idx, &n);
    ck_refused(open_completions(bin, &f), HD_E_NOTFOUND, "corpus.loss: there is no such file");
    ck_refused(open_completions(bin, &f), HD_E_NOTFOUND, "write both by `heddle data tokenize --chat-template NAME`");
    put_marks(&s, 8 + TOKENS / 8 - 1, 1);
    ck_refused(open_completions(bin, &f), HD_E_CORRUPT, "132 bytes; the marks of the 1000 tokens of");
    put_marks(&s, 8 + TOKENS / 8 + 1, 1);
    ck_refused(open_completions(bin, &f), HD_E_CORRUPT, "134 bytes; the marks of the 1000 tokens of");
    put_marks(&s, 7, 1);
    ck_refused(open_completions(bin, &f), HD_E_CORRUPT, "corpus.loss: does not begin with HDLOSS1");
    put_marks(&s, 8 + TOKENS / 8 + 8, 1); /* the last 8 bytes are of another .bin */
    ck_refused(open_completions(bin, &f), HD_E_CORRUPT, "corpus.loss: marks the tokens of another file than this ");
    put_marks(&s, 8 + TOKENS / 8, 0);
    ck_refused(open_completions(bin, &f), HD_E_INVALID, "corpus.loss: marks no token");
    scratch_finish(&s);
}
END_TEST

static uint64_t end_of(struct hd_data *f, uint64_t token, uint64_t limit)
{
    uint64_t end;
    ck_ok(ops_of()->document_end(f, token, limit, &end, &err));
    return end;
}

/* Where documents end: by the index, by a token, or nobody knows. */
START_TEST(documents)
{
    struct scratch s;
    uint8_t idx[128];
    size_t n;
    uint64_t end;
    struct tokens_settings settings = {.eod = -1};
    struct hd_data_source source = {.struct_size = sizeof source};
    struct hd_data *f;
    scratch_init(&s);
    source.path = put_megatron(&s, 8, 2, idx, &n);
    for (int listed = 1; listed >= 0; listed--) { /* the second time each sequence is one */
        ck_ok(ops_of()->open(NULL, &settings, &source, &f, &err));
        ck_assert_uint_eq(end_of(f, 0, 1000), 1);
        ck_assert_uint_eq(end_of(f, 1, 1000), 1000);
        ck_assert_uint_eq(end_of(f, 999, 1000), 1000);
        ck_assert_uint_eq(end_of(f, 5, 40), 40);
        ck_refused(ops_of()->document_end(f, 5, 1001, &end, &err), HD_E_INVALID, "up to 1001");
        ops_of()->close(f);
        idx[26] = 1;
        scratch_write(&s, "corpus.idx", idx, n - 24);
    }
    settings.eod = 14; /* token 2, and 253: 7 (2 + 251) */
    ck_ok(ops_of()->open(NULL, &settings, &source, &f, &err));
    ck_assert_uint_eq(end_of(f, 0, 1000), 3);
    ck_assert_uint_eq(end_of(f, 2, 1000), 3);
    ck_assert_uint_eq(end_of(f, 3, 1000), 254);
    ck_assert_uint_eq(end_of(f, 3, 253), 253);
    ck_assert_uint_eq(end_of(f, 254, 1000), 505);
    ck_assert_uint_eq(end_of(f, 756, 1000), 1000);
    ops_of()->close(f);
    source.vocab = 256;
    settings.eod = 256;
    ck_refused(ops_of()->open(NULL, &settings, &source, &f, &err), HD_E_INVALID, "outside the model's vocabulary");
    settings.eod = -1;
    source.path = put_plain(&s, "plain.bin", 2);
    ck_ok(ops_of()->open(NULL, &settings, &source, &f, &err));
    ck_refused(ops_of()->document_end(f, 0, 10, &end, &err), HD_E_INVALID, "say data.eod");
    ops_of()->close(f);
    scratch_finish(&s);
}
END_TEST

/* FNV-1a of both blocks, computed by ten lines of Python: it stands in files, so it is what it is. */
START_TEST(ends)
{
    struct scratch s;
    static uint8_t data[200000];
    uint64_t bytes;
    scratch_init(&s);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i % 251);
    ck_assert_uint_eq(hd_file_ends(scratch_write(&s, "a", "heddle", 6), &bytes), 0xed1a9906a36e9125);
    ck_assert_uint_eq(bytes, 6);
    ck_assert_uint_eq(hd_file_ends(scratch_write(&s, "b", data, sizeof data), &bytes), 0x6d0a691d7ea44080);
    ck_assert_uint_eq(bytes, sizeof data);
    ck_assert_uint_eq(hd_file_ends("/dev/null", &bytes), 0);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"formats", formats},
        {"numpy", numpy},
        {"refusals", refusals},
        {"types", types},
        {"settings", settings},
        {"hostile", hostile},
        {"containers", containers},
        {"text", text},
        {"width", width},
        {"one byte", one_byte},
        {"floats", floats},
        {"headers", headers},
        {"completions", completions},
        {"marks", marks_that_do_not_fit},
        {"documents", documents},
        {"ends", ends},
        {NULL, NULL},
    };
    return scratch_run("tokens", tests);
}
