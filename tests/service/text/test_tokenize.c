/* Text into Megatron's indexed format: documents of files, the bytes that Megatron's own writer makes, restarts,
 * damage, and the cache of a job. The tokenizer is one of bytes. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HEDDLE_ZLIB
#include <zlib.h>
#endif
#ifdef HEDDLE_ZSTD
#include <zstd.h>
#endif

#include "service/text/indexed_copy.h"
#include "service/text/token_cache.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;
static struct scratch folder;
enum { BOS = 1, END = 256 };

/* ---- bytes as ids; 0xff cannot be written */

static const char *touched; /* a file whose time is set while text is encoded */

static void set_time(const char *file)
{
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    ck_assert(!utimensat(AT_FDCWD, file, times, 0));
}

static int32_t encode(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags,
                      void (*emit)(void *user, const int32_t *ids, size_t count), void *user, struct hd_error *why)
{
    const int32_t frame[] = {BOS, END};
    (void)t;
    if (touched)
        set_time(touched);
    if (flags & HD_TOKENIZER_FRAME)
        emit(user, frame, 1);
    for (size_t i = 0; i < bytes; i++) {
        const int32_t id = (uint8_t)text[i];
        if (id == 0xff)
            return hd_fail(why, HD_E_INVALID, "byte 255");
        emit(user, &id, 1);
    }
    if (flags & HD_TOKENIZER_FRAME)
        emit(user, frame + 1, 1);
    return HD_OK;
}

static int64_t find(const struct hd_tokenizer *t, const char *token, size_t bytes)
{
    (void)t;
    return bytes == strlen("</s>") && !memcmp(token, "</s>", bytes) ? END : -1;
}

static const struct hd_tokenizer_ops ops = {.struct_size = sizeof ops, .encode = encode, .find = find};
static struct hd__tokenizer tokenizer = {
    .ops = &ops, .plugin = "bytes", .info = {sizeof(struct hd_tokenizer_info), END + 1, -1, -1, -1, -1}};

static const char *path(const char *name)
{
    return scratch_path(&folder, name);
}

static const char *put(const char *name, const char *text)
{
    return scratch_write(&folder, name, text, strlen(text));
}

static void setup(void)
{
    scratch_init(&folder);
    tokenizer.path = (char *)put("tokenizer", "bytes");
}

static void teardown(void)
{
    scratch_finish(&folder);
}

/* ---- documents */

static void find_corpus(struct hd__corpus *corpus, const char *source)
{
    const char *const sources[] = {path(source)};
    ck_ok(hd__corpus_find(sources, 1, corpus, &err));
}

/* "NAME:LINE=TEXT|" of each document after `from`. */
static char *read_all(const struct hd__corpus *corpus, struct hd__documents_position from)
{
    struct hd__documents *d;
    struct hd__document doc;
    struct hd__text out = {0};
    int found = 1;
    ck_ok(hd__documents_open(corpus, from, &d, &err));
    for (hd__text_add(&out, "%s", ""); found;) {
        ck_ok(hd__documents_next(d, &doc, &found, &err));
        if (found)
            hd__text_add(&out, "%s:%d=%.*s|", strrchr(doc.path, '/') + 1, (int)doc.line, (int)doc.bytes, doc.text);
    }
    ck_assert_uint_eq(hd__documents_consumed(d), corpus->bytes);
    hd__documents_close(d);
    return out.at;
}

static void expect_documents(const char *source, const char *wanted)
{
    struct hd__corpus corpus;
    find_corpus(&corpus, source);
    char *all = read_all(&corpus, (struct hd__documents_position){0});
    ck_assert_str_eq(all, wanted);
    free(all);
    hd__corpus_free(&corpus);
}

START_TEST(documents)
{
    mkdir(path("c"), 0777);
    mkdir(path("c/deep"), 0777);
    put("c/b.txt", "two\nlines\n");
    put("c/a.jsonl", "{1}\n\n  \r\n{2}\r\n{3}");
    put("c/deep/x.txt", "");
    put("c/deep/y.json", "\xef\xbb\xbf{4}\n");
    put("c/.hidden.txt", "no");
    put("c/notes.odt", "no");
    expect_documents("c", "a.jsonl:1={1}|a.jsonl:4={2}\r|a.jsonl:5={3}|b.txt:0=two\nlines\n|x.txt:0=|y.json:1={4}|");
    expect_documents("c/*.odt", "notes.odt:0=no|");
    expect_documents("c/[ab].*", "a.jsonl:1={1}|a.jsonl:4={2}\r|a.jsonl:5={3}|b.txt:0=two\nlines\n|");
}
END_TEST

/* From the end of every document on there are those that follow it. */
START_TEST(positions)
{
    struct hd__corpus corpus;
    struct hd__documents *d;
    struct hd__document doc;
    int found = 1;
    mkdir(path("c"), 0777);
    put("c/a.jsonl", "\xef\xbb\xbf{1}\n\n{2}\n");
    put("c/b.txt", "\xef\xbb\xbftext");
    put("c/c.txt", "");
    put("c/d.jsonl", "{3}\n{4}");
    find_corpus(&corpus, "c");
    char *all = read_all(&corpus, (struct hd__documents_position){0}), *rest = all;
    ck_ok(hd__documents_open(&corpus, (struct hd__documents_position){0}, &d, &err));
    for (;;) {
        ck_ok(hd__documents_next(d, &doc, &found, &err));
        if (!found)
            break;
        char *after = read_all(&corpus, hd__documents_position(d));
        rest = strchr(rest, '|') + 1;
        ck_assert_str_eq(after, rest);
        free(after);
    }
    ck_assert_str_eq(rest, "");
    hd__documents_close(d);
    free(all);
    hd__corpus_free(&corpus);
}
END_TEST

static int32_t read_one(const char *source)
{
    struct hd__corpus corpus;
    struct hd__documents *d = NULL;
    struct hd__document doc;
    const char *const sources[] = {path(source)};
    int found = 1;
    int32_t rc = hd__corpus_find(sources, 1, &corpus, &err);
    if (rc)
        return rc;
    rc = hd__documents_open(&corpus, (struct hd__documents_position){0}, &d, &err);
    while (!rc && found)
        rc = hd__documents_next(d, &doc, &found, &err);
    hd__documents_close(d);
    hd__corpus_free(&corpus);
    return rc;
}

START_TEST(refused_files)
{
    static const struct {
        const char *name, *text, *words;
        int32_t code;
    } rows[] = {
        {"a.parquet", "PAR1....", "is Parquet, which this build has no library for: write its text as JSON lines",
         HD_E_UNSUPPORTED},
        {"a.zip", "PK\003\004....", "is a zip archive: unpack it first", HD_E_UNSUPPORTED},
        {"utf16.txt", "\xff\xfeh", "is UTF-16: convert it", HD_E_UNSUPPORTED},
        {"ids.bin", "abcd", "its name says tokens, and not text", HD_E_UNSUPPORTED},
        {"ids.npy", "abcd", "its name says tokens, and not text", HD_E_UNSUPPORTED},
        {"a.csv", "text\n", "its name says a table", HD_E_UNSUPPORTED},
        {"b.TSV.gz", "text\n", "name the column by data.field", HD_E_UNSUPPORTED},
        {"lfs.txt", "version https://git-lfs.github.com/spec/v1\noid", "git lfs pull", HD_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        put(rows[i].name, rows[i].text);
        ck_refused(read_one(rows[i].name), rows[i].code, rows[i].words);
    }
    FILE *out = fopen(path("a.arrow"), "w");
    ck_assert_uint_eq(fwrite("\xff\xff\xff\xff\x70\0\0\0\x10\0\0\0\0\0\x0a", 1, 16, out), 16);
    ck_assert_int_eq(fclose(out), 0);
    ck_refused(read_one("a.arrow"), HD_E_UNSUPPORTED,
               "is an Arrow stream, as datasets of Hugging Face write it: write");
    mkdir(path("empty"), 0777);
    ck_refused(read_one("empty"), HD_E_NOTFOUND, "has no file of text or JSON lines");
    mkdir(path("ds"), 0777); /* as save_to_disk makes it */
    put("ds/data-00000-of-00001.arrow", "\xff\xff\xff\xff");
    put("ds/dataset_info.json", "{\n}");
    ck_assert_int_eq(read_one("ds"), HD_OK);
    put("ds/state.json", "{\n}");
    ck_refused(read_one("ds"), HD_E_UNSUPPORTED, "ds: is a folder of Hugging Face datasets in Arrow");
    ck_refused(read_one("d[s]"), HD_E_UNSUPPORTED, ").to_json('");
    ck_refused(read_one("*.none"), HD_E_NOTFOUND, "no file matches this pattern");
    ck_refused(read_one("**/a"), HD_E_UNSUPPORTED, "name the folder");
    ck_refused(read_one("absent"), HD_E_NOTFOUND, "No such file");
    ck_assert(!mkfifo(path("fifo.txt"), 0666));
    ck_refused(read_one("fifo.txt"), HD_E_INVALID, "not a regular file but a FIFO");
}
END_TEST

/* ---- compressed files: two members or frames, and cut short */

static const char lines[] = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";

static void check_packed(const char *name, const void *packed, size_t bytes)
{
    char *twice = hd__alloc(2 * bytes);
    memcpy(twice, packed, bytes);
    memcpy(twice + bytes, packed, bytes);
    scratch_write(&folder, name, twice, 2 * bytes);
    char *wanted = hd__format("%s:1={\"text\": \"one\"}|%s:2={\"text\": \"two\"}|%s:3={\"text\": \"one\"}|"
                              "%s:4={\"text\": \"two\"}|",
                              name, name, name, name);
    expect_documents(name, wanted);
    scratch_write(&folder, name, twice, 2 * bytes - 3);
    ck_refused(read_one(name), HD_E_CORRUPT, "cut short");
    free(wanted);
    free(twice);
}

START_TEST(compressed)
{
#ifdef HEDDLE_ZLIB
    size_t bytes;
    gzFile gz = gzopen(path("x"), "wb");
    gzputs(gz, lines);
    gzclose(gz);
    void *packed = scratch_read(path("x"), &bytes);
    check_packed("a.jsonl.gz", packed, bytes);
    free(packed);
#endif
#ifdef HEDDLE_ZSTD
    char out[512];
    check_packed("b.jsonl.zst", out, ZSTD_compress(out, sizeof out, lines, strlen(lines), 3));
    /* much more than a buffer, so that the decoder has output left when its input is used up */
    size_t room = 3 << 20, limit = ZSTD_compressBound(room);
    char *text = hd__alloc(room + 1), *big = hd__alloc(limit);
    memset(text, 'x', room);
    scratch_write(&folder, "big.txt.zst", big, ZSTD_compress(big, limit, text, room, 3));
    struct hd__corpus corpus;
    find_corpus(&corpus, "big.txt.zst");
    char *all = read_all(&corpus, (struct hd__documents_position){0});
    ck_assert_uint_eq(strlen(all), room + strlen("big.txt.zst:0=|"));
    hd__corpus_free(&corpus);
    free(all);
    free(text);
    free(big);
#endif
}
END_TEST

/* ---- tokenizing */

static struct hd__tokenize_config config_of(const struct hd__corpus *corpus, const char *prefix)
{
    return (struct hd__tokenize_config){
        .corpus = corpus, .tokenizer = &tokenizer, .prefix = prefix, .field = "text", .eod = END, .threads = 2};
}

static void expect_same_file(const char *a, const char *b)
{
    size_t n, m;
    void *x = scratch_read(a, &n), *y = scratch_read(b, &m);
    ck_assert_msg(n == m && !memcmp(x, y, n), "%s (%zu bytes) differs from %s (%zu bytes)", a, n, b, m);
    free(x);
    free(y);
}

static void expect_same(const char *prefix, const char *other, int loss)
{
    static const char *const suffixes[] = {"bin", "idx", "loss"};
    for (size_t i = 0; i < (loss ? 3 : 2); i++) {
        char *a = hd__format("%s.%s", prefix, suffixes[i]), *b = hd__format("%s.%s", other, suffixes[i]);
        expect_same_file(a, b);
        free(a);
        free(b);
    }
}

START_TEST(megatron)
{
    const char *const sources[] = {GOLDEN_DIR "/indexed/corpus.jsonl"};
    struct hd__corpus corpus;
    struct hd__tokenize_state state;
    ck_ok(hd__corpus_find(sources, 1, &corpus, &err));
    struct hd__tokenize_config config = config_of(&corpus, path("out/p"));
    ck_ok(hd__tokenize(&config, &state, &err));
    expect_same(path("out/p"), GOLDEN_DIR "/indexed/bytes", 0);
    ck_assert_uint_eq(state.documents, 46);
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_INVALID, "is there: name another prefix, or replace it");
    hd__corpus_free(&corpus);
}
END_TEST

/* What the tokenizer puts around a text, and no token of it twice; an empty document has none. */
START_TEST(framed)
{
    static const uint16_t wanted[] = {BOS, 'a', 'b', END, BOS, 'c', END};
    struct hd__corpus corpus;
    size_t bytes;
    put("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"\\u0001c\"}\n");
    find_corpus(&corpus, "a.jsonl");
    struct hd__tokenize_config config = config_of(&corpus, path("p"));
    config.flags = HD_TOKENIZER_FRAME;
    tokenizer.info.bos = BOS;
    ck_ok(hd__tokenize(&config, NULL, &err));
    tokenizer.info.bos = -1;
    void *ids = scratch_read(path("p.bin"), &bytes);
    ck_assert(bytes == sizeof wanted && !memcmp(ids, wanted, bytes));
    free(ids);
    hd__corpus_free(&corpus);
}
END_TEST

/* Any number of threads and any batches make the same bytes. */
START_TEST(threads)
{
    const char *const sources[] = {GOLDEN_DIR "/indexed/corpus.jsonl"};
    struct hd__corpus corpus;
    ck_ok(hd__corpus_find(sources, 1, &corpus, &err));
    for (int threads = 1; threads <= 9; threads += 4)
        for (size_t batch = 1; batch < 10000; batch *= 40) {
            struct hd__tokenize_config config = config_of(&corpus, path("p"));
            config.threads = threads;
            config.batch_bytes = batch;
            config.overwrite = 1;
            ck_ok(hd__tokenize(&config, NULL, &err));
            expect_same(path("p"), GOLDEN_DIR "/indexed/bytes", 0);
        }
    hd__corpus_free(&corpus);
}
END_TEST

static int32_t stop_after(void *user, const struct hd__tokenize_state *state, struct hd_error *why)
{
    int *left = user;
    (void)state;
    return (*left)-- > 0 ? HD_OK : hd_fail(why, HD_E_CANCELLED, "stopped");
}

/* Interrupted again and again, the output has the bytes of one run; with other arguments it is refused. */
START_TEST(restart)
{
    const struct hd__chat_template *plain = hd__chat_find("plain");
    struct hd__corpus corpus;
    struct hd__text text = {0};
    int stops = 0;
    mkdir(path("c"), 0777);
    for (int i = 0; i < 20; i++)
        hd__text_add(&text, "{\"prompt\": \"%.*s\", \"completion\": \"%d\"}\n", i % 13, "what comes then", i);
    put("c/a.jsonl", text.at);
    put("c/b.jsonl", text.at);
    find_corpus(&corpus, "c");
    struct hd__tokenize_config config = config_of(&corpus, path("whole"));
    config.chat = plain;
    config.chat_name = "plain";
    config.batch_bytes = 40;
    ck_ok(hd__tokenize(&config, NULL, &err));
    config.prefix = path("parts");
    config.flush_tokens = 1;
    for (int32_t rc = 1, left; rc; stops++) {
        left = 2;
        config.progress = stop_after;
        config.progress_user = &left;
        rc = hd__tokenize(&config, NULL, &err);
        ck_assert_int_eq(rc, rc ? HD_E_CANCELLED : HD_OK);
        ck_assert_int_eq(access(path("parts.bin"), F_OK), rc ? -1 : 0);
        if (stops == 3) {
            struct hd__tokenize_config other = config;
            other.field = "body";
            ck_refused(hd__tokenize(&other, NULL, &err), HD_E_MISMATCH, "was begun with another --field");
            other = config;
            other.eod = -1;
            ck_refused(hd__tokenize(&other, NULL, &err), HD_E_MISMATCH, "was begun with another --append-eod");
        }
    }
    ck_assert_int_gt(stops, 8);
    expect_same(path("parts"), path("whole"), 1);
    ck_assert(access(path("parts.progress"), F_OK) && access(path("parts.bin.part"), F_OK));
    hd__corpus_free(&corpus);
    hd__text_free(&text);
}
END_TEST

/* A file that has changed since: refused, or begun anew. */
START_TEST(restart_of_other_files)
{
    struct hd__corpus corpus;
    int left = 1;
    put("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
    find_corpus(&corpus, "a.jsonl");
    struct hd__tokenize_config config = config_of(&corpus, path("p"));
    config.batch_bytes = config.flush_tokens = 1;
    config.progress = stop_after;
    config.progress_user = &left;
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_CANCELLED, "stopped");
    hd__corpus_free(&corpus);
    put("a.jsonl", "{\"text\": \"four\"}\n");
    find_corpus(&corpus, "a.jsonl");
    config.progress = NULL;
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_MISMATCH, "another FILES (or they have changed)");
    config.overwrite = 1;
    struct hd__tokenize_state state;
    ck_ok(hd__tokenize(&config, &state, &err));
    ck_assert_uint_eq(state.tokens, 5);
    hd__corpus_free(&corpus);
}
END_TEST

/* Part of what was written is not there any more: refused, or begun anew. Of other arguments nothing is left to go on
 * from. */
START_TEST(restart_without_parts)
{
    struct hd__corpus corpus;
    int left = 1;
    put("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
    find_corpus(&corpus, "a.jsonl");
    struct hd__tokenize_config config = config_of(&corpus, path("whole")), other;
    ck_ok(hd__tokenize(&config, NULL, &err));
    config.prefix = path("p");
    config.batch_bytes = config.flush_tokens = 1;
    config.progress = stop_after;
    config.progress_user = &left;
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_CANCELLED, "stopped");
    ck_assert_int_eq(access(path("p.progress"), F_OK), 0);
    other = config;
    other.field = "body";
    other.overwrite = 1;
    ck_assert_int_eq(hd__tokenize(&other, NULL, &err), HD_E_INVALID);
    ck_assert_int_eq(access(path("p.progress"), F_OK), -1);
    left = 1;
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_CANCELLED, "stopped");
    ck_assert_int_eq(unlink(path("p.bin.part")), 0);
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_CORRUPT, "begin anew with --overwrite");
    ck_assert_int_eq(access(path("p.bin.part"), F_OK), -1);
    config.overwrite = 1;
    left = 100;
    ck_ok(hd__tokenize(&config, NULL, &err));
    expect_same(path("p"), path("whole"), 0);
    hd__corpus_free(&corpus);
}
END_TEST

START_TEST(bad_lines)
{
    static const struct {
        const char *line, *words;
    } rows[] = {
        {"{\"text\": \"a\"", "a.jsonl:2: is no JSON object: "},
        {"[1]", "a.jsonl:2: is no JSON object but an array: a line is {\"text\": \"...\"}"},
        {"3", "a.jsonl:2: is no JSON object"},
        {"{\"body\": \"a\"}", "a.jsonl:2: has no field \"text\"; --field names another"},
        {"{\"text\": 3}", "a.jsonl:2: field \"text\" is no string"},
        {"{\"text\": [3]}", "a.jsonl:2: field \"text\" is no string but a list of numbers: token ids go into a .npy"},
        {"{\"text\": \"\\ud800\"}", "a.jsonl:2: is no JSON object: "},
        {"{\"text\": \"\xff\"}", "a.jsonl:2: is no JSON object: "},
        {"{\"messages\": []}", "a conversation: name its template by --chat-template"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct hd__corpus corpus;
        struct hd__tokenize_state state;
        char *text =
            hd__format("{\"text\": \"good\\u0000\", \"n\": 1%040d}\n%s\n{\"text\": \"better\"}\n", 0, rows[i].line);
        put("a.jsonl", text);
        find_corpus(&corpus, "a.jsonl");
        struct hd__tokenize_config config = config_of(&corpus, path("p"));
        config.skip_hint = "leave it out";
        config.overwrite = 1;
        ck_refused(hd__tokenize(&config, NULL, &err), HD_E_INVALID, rows[i].words);
        ck_assert(strstr(err.message, "; leave it out"));
        config.skip_bad = 1;
        ck_ok(hd__tokenize(&config, &state, &err));
        ck_assert_uint_eq(state.left_out, 1);
        ck_assert_uint_eq(state.documents, 2);
        ck_assert_uint_eq(state.tokens, 6 + 7);
        hd__corpus_free(&corpus);
        free(text);
    }
}
END_TEST

/* A file that is one array has no lines to leave out. */
START_TEST(arrays)
{
    static const char *const texts[] = {"[\n {\"text\": \"a\"},\n {\"text\": \"b\"}\n]\n", " [{\"text\": \"a\"}]"};
    for (size_t i = 0; i < HD__COUNT(texts); i++) {
        struct hd__corpus corpus;
        put("a.json", texts[i]);
        find_corpus(&corpus, "a.json");
        struct hd__tokenize_config config = config_of(&corpus, path("p"));
        config.skip_bad = 1;
        ck_refused(hd__tokenize(&config, NULL, &err), HD_E_UNSUPPORTED,
                   "a.json:1: is one JSON array, and an object a line is read");
        ck_assert(strstr(err.message, "jq -c '.[]' ") && !strstr(err.message, "; leave it out"));
        hd__corpus_free(&corpus);
    }
}
END_TEST

/* Text of another encoding, and what is no text, with the place. */
START_TEST(bad_text)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *words;
    } rows[] = {
        {"caf\xe9 ole", 8,
         "a.txt: is not UTF-8: its byte 3 is 0xe9: convert it, where it is Latin-1 by iconv -f LATIN1"},
        {"\xef\xbb\xbf"
         "caf\xe9",
         7, "its byte 6 is 0xe9"},                                    /* behind a byte order mark */
        {"caf\xc3", 4, "its byte 3 is 0xc3"},                         /* cut within a character */
        {"\xed\xa0\x80", 3, "its byte 0 is 0xed"},                    /* half of a surrogate pair */
        {"\1\0\2\0\3\0", 6, "a.txt: is no text: its byte 1 is zero"}, /* tokens of 16 bits */
        {"a\0\xe9", 3, "its byte 1 is zero"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct hd__corpus corpus;
        struct hd__tokenize_state state;
        scratch_write(&folder, "a.txt", rows[i].text, rows[i].bytes);
        put("b.txt", "na\xc3\xafve \xf0\x9f\x99\x82");
        find_corpus(&corpus, "[ab].txt");
        struct hd__tokenize_config config = config_of(&corpus, path("p"));
        config.skip_hint = "leave it out";
        config.overwrite = 1;
        ck_refused(hd__tokenize(&config, NULL, &err), HD_E_INVALID, rows[i].words);
        ck_assert(strstr(err.message, "; leave it out"));
        config.skip_bad = 1;
        ck_ok(hd__tokenize(&config, &state, &err));
        ck_assert_uint_eq(state.left_out, 1);
        ck_assert_uint_eq(state.documents, 1);
        hd__corpus_free(&corpus);
    }
    /* A long one, the mistake in the last byte: pieces are put together. */
    char *text = hd__alloc(100001);
    for (int i = 0; i < 100000; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    text[100000] = (char)0xff;
    struct hd__corpus corpus;
    scratch_write(&folder, "a.txt", text, 100001);
    find_corpus(&corpus, "a.txt");
    struct hd__tokenize_config config = config_of(&corpus, path("p"));
    config.overwrite = 1;
    ck_refused(hd__tokenize(&config, NULL, &err), HD_E_INVALID, "its byte 100000 is 0xff");
    hd__corpus_free(&corpus);
    scratch_write(&folder, "a.txt", text, 100000);
    find_corpus(&corpus, "a.txt");
    ck_ok(hd__tokenize(&config, NULL, &err));
    hd__corpus_free(&corpus);
    free(text);
}
END_TEST

/* ---- the indexed format */

/* A damaged file is refused or reads within its bounds; the sanitizers see the rest. */
START_TEST(damage)
{
    uint64_t state = 99;
    size_t bytes, bin_bytes;
    uint8_t *idx = scratch_read(GOLDEN_DIR "/indexed/bytes.idx", &bytes), *copy = hd__alloc(2 * bytes);
    void *bin = scratch_read(GOLDEN_DIR "/indexed/bytes.bin", &bin_bytes);
    int refused = 0;
    scratch_write(&folder, "x.bin", bin, bin_bytes);
    for (int i = 0; i < 2000; i++) {
        struct hd__indexed x;
        memcpy(copy, idx, bytes);
        scratch_write(&folder, "x.idx", copy, scratch_damage(&state, copy, bytes));
        if (hd__indexed_open(path("x"), &x, &err)) {
            refused++;
            continue;
        }
        for (uint64_t d = 0, n = 0; d < x.documents; d++) {
            n += hd__indexed_document_tokens(&x, d);
            ck_assert_uint_le(n, x.tokens);
        }
        hd__indexed_close(&x);
    }
    ck_assert_int_gt(refused, 1500);
    scratch_write(&folder, "x.idx", idx, bytes);
    scratch_write(&folder, "x.bin", bin, bin_bytes - 2);
    struct hd__indexed x;
    ck_refused(hd__indexed_open(path("x.bin"), &x, &err), HD_E_CORRUPT, "do not follow those before it");
    scratch_write(&folder, "x.bin", bin, bin_bytes);
    put("x.loss", "HDLOSS1\n...");
    ck_refused(hd__indexed_open(path("x.bin"), &x, &err), HD_E_CORRUPT, "is no bitmap of");
    free(idx);
    free(copy);
    free(bin);
}
END_TEST

/* Copies keep documents of several sequences, and the bits of the loss. */
START_TEST(copies)
{
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const uint8_t counts[] = {1, 0, 1, 1, 0, 0, 0, 1, 1, 0};
    struct hd__indexed_writer *w;
    struct hd__indexed x, y;
    struct hd__indexed_copy c;
    int32_t read[10];
    uint8_t bits[10];
    ck_ok(hd__indexed_create(path("a"), HD__INDEXED_I32, 1, (struct hd__indexed_size){0}, &w, &err));
    ck_ok(hd__indexed_add(w, ids, 3, counts, &err));
    ck_ok(hd__indexed_add(w, ids + 3, 4, counts + 3, &err));
    ck_ok(hd__indexed_end_document(w, &err));
    ck_ok(hd__indexed_end_document(w, &err));
    ck_ok(hd__indexed_add(w, ids + 7, 3, counts + 7, &err));
    ck_ok(hd__indexed_end_document(w, &err));
    ck_ok(hd__indexed_finish(w, NULL, &err));
    ck_ok(hd__indexed_open(path("a"), &x, &err));
    ck_refused(hd__indexed_copy_open(path("a.bin"), &x, 1, &c, &err), HD_E_INVALID, "is what is read");
    hd__indexed_copy_close(&c);
    ck_ok(hd__indexed_copy_open(path("b"), &x, 0, &c, &err));
    for (uint64_t d = 3; d--;)
        ck_ok(hd__indexed_copy_document(&c, &x, d, &err));
    ck_ok(hd__indexed_copy_finish(&c, NULL, &err));
    hd__indexed_copy_close(&c);
    ck_ok(hd__indexed_open(path("b"), &y, &err));
    ck_assert(y.documents == 3 && y.sequences == 3 && y.tokens == 10 && y.type == HD__INDEXED_I32 && y.loss);
    ck_assert(hd__indexed_document_tokens(&y, 0) == 3 && hd__indexed_document_tokens(&y, 1) == 0 &&
              hd__indexed_document_tokens(&y, 2) == 7);
    ck_ok(hd__indexed_read(&y, 0, 10, read, &err));
    hd__indexed_read_loss(&y, 0, 10, bits);
    for (int i = 0; i < 10; i++)
        ck_assert(read[i] == ids[(i + 7) % 10] && bits[i] == counts[(i + 7) % 10]);
    hd__indexed_close(&x);
    hd__indexed_close(&y);
    put("a.bin", "1234123412341234123412341234123412341234"); /* as many tokens, others */
    ck_refused(hd__indexed_open(path("a"), &x, &err), HD_E_CORRUPT, "a.loss: marks the tokens of another file than");
}
END_TEST

/* ---- the cache of a job */

static struct hd__token_cache cache_of(const char *source)
{
    return (struct hd__token_cache){.config = {.tokenizer = &tokenizer, .field = "text", .eod = -1},
                                    .source = source,
                                    .folder = path("cache"),
                                    .key = "data.train",
                                    .timeout = 60};
}

static int found(const char *source, int compare)
{
    struct hd__token_cache c = cache_of(source);
    int valid;
    ck_ok(hd__token_cache_open(&c, &err));
    ck_ok(hd__token_cache_look(&c, compare, &valid, &err));
    hd__token_cache_close(&c);
    return valid;
}

static int is_valid(const char *source)
{
    return found(source, HD__TOKEN_CACHE_HASHES);
}

static char *make(const char *source)
{
    struct hd__token_cache c = cache_of(source);
    ck_ok(hd__token_cache_open(&c, &err));
    ck_ok(hd__token_cache_make(&c, &err));
    char *prefix = hd__strdup(c.prefix);
    hd__token_cache_close(&c);
    return prefix;
}

START_TEST(cache)
{
    struct stat st;
    const char *text = put("a.txt", "one two");
    ck_assert(!is_valid(text));
    char *prefix = make(text), *bin = hd__format("%s.bin", prefix);
    ck_assert(is_valid(text));
    set_time(text); /* the same bytes at another time: the hash says so */
    ck_assert(is_valid(text));
    ck_assert(found(text, HD__TOKEN_CACHE_SIZES) && !found(text, HD__TOKEN_CACHE_TIMES));
    set_time(bin);
    free(make(text)); /* notes the times, and writes nothing else */
    ck_assert(found(text, HD__TOKEN_CACHE_TIMES) && !stat(bin, &st) && st.st_mtim.tv_sec == 1000);
    put("a.txt", "one 2wo");
    ck_assert(!is_valid(text));
    free(make(text));
    ck_assert(is_valid(text));
    set_time(bin);
    ck_assert(is_valid(text));
    int fd = open(bin, O_WRONLY);
    ck_assert(pwrite(fd, "x", 1, 4) == 1);
    close(fd);
    set_time(text);
    ck_assert(!is_valid(text));
    free(make(text));
    ck_assert(is_valid(text));
    put("tokenizer", "other");
    ck_assert(!is_valid(text));
    free(bin);
    free(prefix);
}
END_TEST

/* A writer that holds the lock and writes nothing is named. */
START_TEST(cache_lock)
{
    const char *text = put("a.txt", "one two");
    struct hd__token_cache c = cache_of(text);
    char holder[128];
    int lock;
    c.timeout = 0.01;
    ck_ok(hd__token_cache_open(&c, &err));
    ck_ok(hd__prefix_lock(c.prefix, &lock, holder, &err));
    ck_refused(hd__token_cache_make(&c, &err), HD_E_TIMEOUT, "has written nothing for");
    char *process = hd__format("process %d on ", (int)getpid());
    ck_assert_msg(strstr(err.message, process) != NULL, "%s", err.message);
    hd__prefix_unlock(c.prefix, lock);
    ck_ok(hd__token_cache_make(&c, &err));
    hd__token_cache_close(&c);
    free(process);
}
END_TEST

struct beats {
    char *prefix;
    int lock, n, fails;
};

/* The holder and the one that waits are stopped; then it is through. */
static int32_t beat_of_stopped(void *user, struct hd_error *why)
{
    struct beats *b = user;
    (void)why;
    if (!b->n++)
        usleep(2200000);
    else if (b->n == 2)
        hd__prefix_unlock(b->prefix, b->lock);
    return HD_OK;
}

START_TEST(cache_lock_of_stopped)
{
    struct hd__token_cache c = cache_of(put("a.txt", "one two"));
    struct beats b = {0};
    char holder[128];
    c.timeout = 1.5;
    ck_ok(hd__token_cache_open(&c, &err));
    b.prefix = c.prefix;
    ck_ok(hd__prefix_lock(c.prefix, &b.lock, holder, &err));
    c.user = &b;
    c.beat = beat_of_stopped;
    ck_ok(hd__token_cache_make(&c, &err));
    hd__token_cache_close(&c);
}
END_TEST

/* The beat of a process that holds the lock and hashes: it makes progress three times. */
static int32_t beat_of_waiting(void *user, struct hd_error *why)
{
    struct beats *b = user;
    (void)why;
    const struct timespec times[2] = {{.tv_sec = ++b->n}, {.tv_sec = b->n}};
    ck_assert(b->n > 3 || !futimens(b->lock, times));
    if (b->n == 3)
        hd__prefix_unlock(b->prefix, b->lock);
    return HD_OK;
}

/* The lock is younger than what `encode` made of it, and files are hashed behind the last token. */
static int32_t beat_of_hashing(void *user, struct hd_error *why)
{
    struct beats *b = user;
    char *lock = hd__format("%s.lock", b->prefix), *bin = hd__format("%s.bin", b->prefix);
    struct stat st;
    ck_assert(!stat(lock, &st) && st.st_mtim.tv_sec > 1000);
    b->n += !access(bin, F_OK);
    free(lock);
    free(bin);
    return b->n && b->fails ? hd_fail(why, HD_E_PEER, "gone") : HD_OK;
}

START_TEST(cache_beats)
{
    const char *text = put("a.txt", "one two");
    struct hd__token_cache c = cache_of(text);
    struct beats b = {0};
    char holder[128];
    ck_ok(hd__token_cache_open(&c, &err));
    c.user = &b;
    b.prefix = c.prefix;
    c.beat = beat_of_hashing;
    char *lock = hd__format("%s.lock", c.prefix);
    touched = lock;
    ck_ok(hd__token_cache_make(&c, &err));
    touched = NULL;
    ck_assert_int_ge(b.n, 3); /* of the text, .bin and .idx */
    hd__corpus_free(&c.corpus);
    put("a.txt", "one 2wo");
    ck_ok(hd__corpus_find(&text, 1, &c.corpus, &err));
    b.fails = 1;
    b.n = 0;
    ck_assert_int_eq(hd__token_cache_make(&c, &err), HD_E_PEER);
    ck_assert_int_eq(b.n, 1);
    c.beat = beat_of_waiting;
    c.timeout = 0.01;
    b.n = 0;
    ck_ok(hd__prefix_lock(c.prefix, &b.lock, holder, &err));
    ck_ok(hd__token_cache_make(&c, &err));
    ck_assert_int_ge(b.n, 3);
    hd__token_cache_close(&c);
    free(lock);
}
END_TEST

static void make_until_hashing(struct hd__token_cache *c, struct beats *b)
{
    ck_ok(hd__token_cache_open(c, &err));
    *b = (struct beats){.prefix = c->prefix, .fails = 1};
    c->user = b;
    c->beat = beat_of_hashing;
    ck_assert_int_eq(hd__token_cache_make(c, &err), HD_E_PEER);
    c->beat = NULL;
}

/* Ended behind the last token, before its rows were written: what was tokenized is not tokenized again, unless its text
 * or its files are others now. */
START_TEST(cache_ended_while_hashing)
{
    static const char *const names[] = {"same.txt", "text.txt", "files.txt"};
    for (int i = 0; i < 3; i++) {
        const char *text = put(names[i], "one two"), *mark = put("mark", "");
        struct hd__token_cache c = cache_of(text);
        struct beats b;
        struct stat st;
        make_until_hashing(&c, &b);
        char *progress = hd__format("%s.progress", c.prefix), *bin = hd__format("%s.bin", c.prefix);
        ck_assert(!access(bin, F_OK) && !access(progress, F_OK));
        if (i == 1)
            put(names[i], "one 2wo");
        ck_assert(i != 2 || !truncate(bin, 4));
        hd__token_cache_close(&c);
        touched = mark;
        free(make(text));
        touched = NULL;
        ck_assert(!stat(mark, &st));
        ck_assert_int_eq(st.st_mtim.tv_sec == 1000, i != 0);
        ck_assert(is_valid(text) && access(progress, F_OK));
        free(progress);
        free(bin);
    }
}
END_TEST

/* Ended with its rows written, before its progress went: files that are damaged later are made anew. */
START_TEST(cache_ended_behind_its_hashes)
{
    const char *text = put("ended.txt", "one two");
    struct hd__token_cache c = cache_of(text);
    struct beats b;
    size_t n, m;
    make_until_hashing(&c, &b);
    char *progress = hd__format("%s.progress", c.prefix), *bin = hd__format("%s.bin", c.prefix);
    ck_assert(!link(progress, path("kept")));
    hd__token_cache_close(&c);
    free(make(text));
    ck_assert(!rename(path("kept"), progress));
    char *good = scratch_read(bin, &n);
    *good ^= 1;
    scratch_write(&folder, bin + strlen(folder.dir) + 1, good, n);
    *good ^= 1;
    free(make(text));
    char *now = scratch_read(bin, &m);
    ck_assert(m == n && !memcmp(good, now, n) && is_valid(text) && access(progress, F_OK));
    free(good);
    free(now);
    free(progress);
    free(bin);
}
END_TEST

int main(void)
{
    const struct {
        const char *name;
        const TTest *test;
    } tests[] = {{"documents", documents},
                 {"positions", positions},
                 {"refused files", refused_files},
                 {"compressed", compressed},
                 {"megatron", megatron},
                 {"framed", framed},
                 {"threads", threads},
                 {"restart", restart},
                 {"restart of other files", restart_of_other_files},
                 {"restart without parts", restart_without_parts},
                 {"bad lines", bad_lines},
                 {"arrays", arrays},
                 {"bad text", bad_text},
                 {"damage", damage},
                 {"copies", copies},
                 {"cache", cache},
                 {"cache lock", cache_lock},
                 {"cache lock of stopped", cache_lock_of_stopped},
                 {"cache beats", cache_beats},
                 {"cache ended while hashing", cache_ended_while_hashing},
                 {"cache ended behind its hashes", cache_ended_behind_its_hashes}};
    Suite *suite = suite_create("tokenize");
    SRunner *runner = srunner_create(suite);
    for (size_t i = 0; i < HD__COUNT(tests); i++) {
        TCase *tc = tcase_create(tests[i].name);
        tcase_add_checked_fixture(tc, setup, teardown);
        tcase_add_test(tc, tests[i].test);
        suite_add_tcase(suite, tc);
    }
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
