/* Kind of a file, by its first bytes and its name. */
#include <strings.h>

#include "internal.h"

/* Bytes of these are noise to a model, whatever its vocabulary. Four bytes or more tell them from tokens. */
#define UNPACK "unpack it first"
#define UNPACKED UNPACK "; packed text is read with data.tokenizer"
#define TO_JSON "write JSON lines, by datasets.Dataset.from_file(IN).to_json(OUT), and name data.tokenizer"
#define EXTRACT "write its text, or tokens of it, to a file of their own (docs/data.md)"
static const struct {
    const char *magic;
    uint32_t length, at;
    const char *name, *remedy, *why; /* why: which is not read */
} containers[] = {
    {"\x1f\x8b\x08", 3, 0, "gzip", UNPACKED},
    {"PK\x03\x04", 4, 0, "a zip archive (as .npz and torch's .pt)", EXTRACT},
    {"\x28\xb5\x2f\xfd", 4, 0, "zstd", UNPACKED},
    {"\xfd\x37zXZ", 6, 0, "xz", UNPACK},
    {"1AY&SY", 6, 4, "bzip2", UNPACK},
    {"\x04\x22\x4d\x18", 4, 0, "lz4", UNPACK},
    {"7z\xbc\xaf\x27\x1c", 6, 0, "a 7z archive", UNPACK},
    {"ustar", 5, 257, "a tar archive", UNPACK},
    {"PAR1", 4, 0, "Parquet", EXTRACT},
    {"ARROW1", 6, 0, "Arrow", EXTRACT},
    {"\x10\0\0\0\0\0\x0a\0", 8, 8, "an Arrow stream, as datasets of Hugging Face write it", TO_JSON},
    {"FEA1", 4, 0, "Feather", EXTRACT},
    {"\x89HDF\r\n\x1a\n", 8, 0, "HDF5", EXTRACT},
    {"\x80\x02\x8a\x0a", 4, 0, "a file of torch.save", EXTRACT},
    {"SQLite format 3", 16, 0, "an SQLite database", EXTRACT},
    {"%PDF-", 5, 0, "PDF", EXTRACT},
    {"\x7f"
     "ELF",
     4, 0, "a program", EXTRACT},
    {"\x89PNG\r\n\x1a\n", 8, 0, "a PNG image", "images are no tokens"},
    {"\xff\xd8\xff\xe0", 4, 0, "a JPEG image", "images are no tokens"},
    {"\xff\xd8\xff\xe1", 4, 0, "a JPEG image", "images are no tokens"},
    {"\xff\xd8\xff\xdb", 4, 0, "a JPEG image", "images are no tokens"},
    {TOKENS_NPY_MAGIC, 6, 0, "a NumPy array", "leave it out", "and data.format says otherwise"},
    {"\x88\xd8\x34\x01\x01\x00\x00\x00", 8, 0, "a file of llm.c", "leave it out", "and data.format says otherwise"},
    {"\xa1\xd9\x34\x01\x07\x00\x00\x00", 8, 0, "a file of llm.c", "leave it out", "and data.format says otherwise"},
    {"MMIDIDX", 7, 0, "a Megatron index", "name the .bin beside it"},
    {"GGUF", 4, 0, "GGUF weights", "weights go into model.from"},
    {"version https://git-lfs.github.com/spec/v1", 42, 0, "a Git LFS pointer to a file", "fetch that: git lfs pull"},
};

static bool begins_with(const struct hd_data *f, const char *magic, uint32_t length, uint32_t at)
{
    return f->map_bytes >= at + length && !memcmp((const uint8_t *)f->map + at, magic, length);
}

int32_t tokens_refuse_container(const struct hd_data *f, struct hd_error *err)
{
    const uint8_t *p = f->map;
    for (size_t i = 0; i < COUNT(containers); i++)
        if (begins_with(f, containers[i].magic, containers[i].length, containers[i].at))
            return hd_fail(err, HD_E_UNSUPPORTED, "%s: is %s, %s: %s", f->path, containers[i].name,
                           containers[i].why ? containers[i].why : "which is not read", containers[i].remedy);
    if (f->map_bytes > 10 && read_le(p, 8) <= f->map_bytes - 8 && p[8] == '{' && p[9] == '"')
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: is safetensors: weights go into model.from", f->path);
    if (f->map_bytes > 2 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5 && !f->http && p[f->map_bytes - 1] == '.')
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: is a pickle, which is not read: " EXTRACT, f->path);
    return HD_OK;
}

/* Printable ASCII alone: tokens of 16 bits have high bytes below 0x20 among the first few. */
bool tokens_is_text(const struct hd_data *f)
{
    const uint8_t *p = f->map;
    uint64_t n = f->map_bytes < TOKENS_SAMPLE ? f->map_bytes : TOKENS_SAMPLE, i = 0;
    while (i < n && ((p[i] >= 0x20 && p[i] < 0x7f) || p[i] == '\n' || p[i] == '\r' || p[i] == '\t'))
        i++;
    return i == n && n >= TOKENS_SAMPLE_LEAST;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

/* `{"` or `[{`, or a name that says so. */
static bool is_json(const struct hd_data *f)
{
    const uint8_t *p = f->map;
    char first[2] = "";
    uint64_t n = f->map_bytes < TOKENS_SAMPLE ? f->map_bytes : TOKENS_SAMPLE;
    for (uint64_t i = 0, k = 0; i < n && k < 2; i++)
        if (!memchr(" \t\r\n", p[i], 4))
            first[k++] = (char)p[i];
    return !memcmp(first, "{\"", 2) || !memcmp(first, "[{", 2) || ends_with(f->path, ".json") ||
           ends_with(f->path, ".jsonl") || ends_with(f->path, ".ndjson");
}

/* A page around a file, as a link to it in a browser leads to. */
static bool is_page(const struct hd_data *f)
{
    static const char *const begins[] = {"<!doctype html", "<html"};
    const char *text = f->map;
    uint64_t at = 0;
    while (at < f->map_bytes && at < TOKENS_SAMPLE && text[at] && strchr(" \t\r\n\xef\xbb\xbf", text[at]))
        at++;
    for (size_t i = 0; i < COUNT(begins); i++)
        if (f->map_bytes - at >= strlen(begins[i]) && !strncasecmp(text + at, begins[i], strlen(begins[i])))
            return !ends_with(f->path, ".html") && !ends_with(f->path, ".htm");
    return false;
}

#define NO_URL "text is read of files, not of URLs: download it first"

/* Bytes for a model of bytes alone: in another one each would be some token's id. */
static int32_t guess_bytes(const struct hd_data *f, uint32_t *format, struct hd_error *err)
{
    int32_t rc = tokens_refuse_container(f, err); /* it says more */
    *format = TOKENS_BYTES;
    if (!rc && is_json(f))
        rc = hd_fail(err, HD_E_INVALID, "%s: is JSON: %s; or say data.format: bytes to train on it as it is", f->path,
                     f->http ? NO_URL : "its text is read with data.tokenizer: FILE (docs/data.md)");
    if (!rc && (ends_with(f->path, ".csv") || ends_with(f->path, ".tsv")))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: is a table, of which no column is read as text: write the text to a file of its own, a "
                     "document a line (docs/data.md); or say data.format: bytes to train on it as it is",
                     f->path);
    if (!rc && is_page(f))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: is an HTML page: fetch the file itself (from GitHub its raw link), or write its text to a "
                     "file; or say data.format: bytes to train on it as it is",
                     f->path);
    if (!rc && f->vocab && f->vocab != 256)
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: text, or other bytes, for a model of %ld token ids; only a vocabulary of 256 is read as "
                     "bytes: %s, or say data.format: bytes",
                     f->path, (long)f->vocab, f->http ? NO_URL : "name its tokenizer by data.tokenizer");
    return rc;
}

int32_t tokens_guess(const struct hd_data *f, uint32_t *format, struct hd_error *err)
{
    uint64_t magic = f->map_bytes >= 8 ? read_le(f->map, 4) : 0;
    if (magic == TOKENS_LLMC_MAGIC || magic == TOKENS_LLMC_MAGIC_LLAMA3) {
        *format = TOKENS_LLMC;
    } else if (begins_with(f, TOKENS_NPY_MAGIC, 6, 0) || ends_with(f->path, ".npy")) {
        *format = TOKENS_NPY;
    } else if (ends_with(f->path, ".bin")) {
        bool has_index;
        int32_t rc = tokens_has_index(f, &has_index, err);
        *format = !rc && has_index ? TOKENS_MEGATRON : TOKENS_NANOGPT;
        return rc;
    } else {
        return guess_bytes(f, format, err);
    }
    return HD_OK;
}
