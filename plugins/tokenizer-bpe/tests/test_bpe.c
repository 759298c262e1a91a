/* tokenizer-bpe: ids of Hugging Face's tokenizers and of tiktoken, and what is refused. */
#include "core/plugin/plugin.h"
#include "tests/support/scratch.h"
#include "tests/support/tokenizer.h"

extern const struct hd_plugin *heddle_plugin_v1_bpe(void);

static struct hd_error err = HD_ERROR_INIT;
static struct scratch folder;

static const struct hd_tokenizer_ops *ops_of(void)
{
    return heddle_plugin_v1_bpe()->components[0]->ops;
}

static struct hd_tokenizer *open_golden(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "%s.json", name);
    return tokenizer_open(ops_of(), tokenizer_golden_path(file));
}

/* ---- golden ids */

START_TEST(hugging_face)
{
    static const struct {
        const char *name;
        int exact;
    } files[] = {{"gpt2", 1},   {"llama3", 1}, {"qwen2", 0},    {"llama2", 1}, {"mistral", 0},  {"steps", 0},
                 {"falcon", 1}, {"bloom", 1},  {"deepseek", 1}, {"gemma", 1},  {"delimiter", 0}};
    for (size_t i = 0; i < HD__COUNT(files); i++) {
        struct hd_tokenizer *t = open_golden(files[i].name);
        tokenizer_golden(ops_of(), t, files[i].name, files[i].exact);
        ops_of()->close(t);
    }
}
END_TEST

/* As fill of make.py does: tokens that no text has, up to the number of ranks by which a file is known. */
static const char *write_ranks(uint32_t count, const char *name)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes, lines = 0;
    char *first = scratch_read(tokenizer_golden_path("tiktoken.ranks"), &bytes);
    FILE *file = fopen(scratch_path(&folder, name), "w");
    ck_assert(first && file && fwrite(first, 1, bytes, file) == bytes);
    for (size_t i = 0; i < bytes; i++)
        lines += first[i] == '\n';
    for (uint32_t i = (uint32_t)lines; i < count; i++) {
        uint64_t token = (UINT64_C(0xfffe) << 32 | i) << 0;
        char text[9] = "";
        for (int k = 0; k < 8; k++)
            text[k] = digits[token >> (42 - 6 * k) & 63];
        fprintf(file, "%s %u\n", text, i);
    }
    ck_assert(!fclose(file));
    free(first);
    return scratch_path(&folder, name);
}

START_TEST(tiktoken)
{
    static const struct {
        const char *name, *eos;
        uint32_t ranks;
        int64_t vocab;
    } files[] = {{"r50k", "<|endoftext|>", 50256, 50257},
                 {"cl100k", "<|endoftext|>", 100256, 100277},
                 {"o200k", "<|endoftext|>", 199998, 200019},
                 {"llama3", "<|end_of_text|>", 128000, 128256},
                 {"qwen", "<|endoftext|>", 151643, 151851}};
    scratch_init(&folder);
    for (size_t i = 0; i < HD__COUNT(files); i++) {
        char name[64];
        struct hd_tokenizer *t = tokenizer_open(ops_of(), write_ranks(files[i].ranks, files[i].name));
        struct hd_tokenizer_info info = {.struct_size = sizeof info};
        ops_of()->info(t, &info);
        ck_assert_int_eq(info.vocab, files[i].vocab);
        ck_assert_int_eq(info.eos, ops_of()->find(t, files[i].eos, strlen(files[i].eos)));
        ck_assert_int_eq(info.bos, i == 3 ? 128000 : -1);
        snprintf(name, sizeof name, "%s-ranks", files[i].name);
        tokenizer_golden(ops_of(), t, name, i < 4); /* Qwen's normalizes */
        ops_of()->close(t);
    }
    scratch_finish(&folder);
}
END_TEST

/* ---- what a file says */

static struct tokenizer_ids ids_of(const char *json, const char *text, size_t bytes, uint32_t flags)
{
    scratch_init(&folder);
    struct hd_tokenizer *t = tokenizer_open(ops_of(), scratch_write(&folder, "tokenizer.json", json, strlen(json)));
    struct tokenizer_ids ids = tokenizer_encode(ops_of(), t, text, bytes, flags);
    ops_of()->close(t);
    scratch_finish(&folder);
    return ids;
}

static void expect_ids(const char *json, const char *text, const char *want)
{
    struct tokenizer_ids ids = ids_of(json, text, strlen(text), HD_TOKENIZER_SPECIAL);
    struct hd__text got = {0};
    for (size_t i = 0; i < ids.count; i++)
        hd__text_add(&got, "%s%d", i ? " " : "", ids.at[i]);
    ck_assert_msg(!strcmp(got.at ? got.at : "", want), "%s of %s: %s instead of %s", text, json, got.at, want);
    hd__text_free(&got);
    free(ids.at);
}

#define MODEL "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4, \"bc\": 5, \"?\": 6}"

START_TEST(models)
{
    expect_ids("{\"model\": {" MODEL ", \"merges\": [\"a b\", \"ab c\"]}}", "abcab", "4 3");
    expect_ids("{\"model\": {" MODEL ", \"merges\": [[\"b\", \"c\"], [\"a\", \"b\"]]}}", "abcab", "0 5 3");
    expect_ids("{\"model\": {" MODEL ", \"merges\": [\"#version: 0.2\", \"a b\"]}}", "abc", "3 2");
    expect_ids("{\"model\": {" MODEL ", \"merges\": []}}", "abc", "0 1 2");
    expect_ids("{\"model\": {" MODEL ", \"merges\": [], \"ignore_merges\": true}}", "abc", "4");
    expect_ids("{\"model\": {" MODEL ", \"merges\": [], \"unk_token\": \"?\"}}", "axyb", "0 6 6 1");
    expect_ids("{\"model\": {" MODEL ", \"merges\": [], \"unk_token\": \"?\", \"fuse_unk\": true}}", "axyb", "0 6 1");
}
END_TEST

START_TEST(frames)
{
    struct hd_tokenizer *t = open_golden("llama3");
    struct hd_tokenizer_info info = {.struct_size = sizeof info};
    struct tokenizer_ids ids = tokenizer_encode(ops_of(), t, "a text", 6, HD_TOKENIZER_FRAME);
    ops_of()->info(t, &info);
    ck_assert_int_eq(info.bos, ops_of()->find(t, "<|begin_of_text|>", 17));
    ck_assert_int_eq(info.eos, -1);
    ck_assert_int_eq(ids.at[0], info.bos);
    struct hd__text text = tokenizer_decode(ops_of(), t, &ids, HD_TOKENIZER_SKIP_SPECIAL);
    ck_assert_str_eq(text.at, "a text");
    hd__text_free(&text);
    text = tokenizer_decode(ops_of(), t, &ids, 0);
    ck_assert_str_eq(text.at, "<|begin_of_text|>a text");
    hd__text_free(&text);
    free(ids.at);
    ops_of()->close(t);
}
END_TEST

START_TEST(padding)
{
    static const char json[] =
        "{\"padding\": {\"pad_id\": 2}, \"model\": {" MODEL ", \"merges\": [], \"unk_token\": \"?\"}}";
    struct hd_tokenizer_info info = {.struct_size = sizeof info};
    struct hd_tokenizer *t;
    scratch_init(&folder);
    t = tokenizer_open(ops_of(), scratch_write(&folder, "tokenizer.json", json, strlen(json)));
    ops_of()->info(t, &info);
    ck_assert(info.vocab == 7 && info.pad == 2 && info.unk == 6 && info.bos == -1 && info.eos == -1);
    ops_of()->close(t);
    scratch_finish(&folder);
}
END_TEST

START_TEST(hostile_texts)
{
    static const char *const names[] = {"gpt2", "llama3", "llama2"};
    uint64_t state = 5;
    for (size_t k = 0; k < HD__COUNT(names); k++) {
        struct hd_tokenizer *t = open_golden(names[k]);
        for (int i = 0; i < 2000; i++) {
            char text[200];
            size_t n = scratch_random(&state) % sizeof text;
            for (size_t b = 0; b < n; b++) /* starts of characters, ends of others, and ASCII between */
                text[b] = scratch_random(&state) % 3 ? (char)scratch_random(&state) : (b % 2 ? 'a' : ' ');
            struct tokenizer_ids ids = tokenizer_encode(ops_of(), t, text, n, i % 2);
            struct hd__text back = tokenizer_decode(ops_of(), t, &ids, 0);
            ck_assert_msg(back.length == n && !memcmp(back.at, text, n), "%s: text %d does not come back", names[k], i);
            free(ids.at);
            hd__text_free(&back);
        }
        ops_of()->close(t);
    }
}
END_TEST

/* ---- what is refused */

static const struct refusal {
    const char *file;
    int32_t code;
    const char *words;
} refusals[] = {
    {"", HD_E_UNSUPPORTED, "neither a tokenizer.json nor a tiktoken file"},
    {"{\"a\": 1}", HD_E_UNSUPPORTED, "it has no `model`"},
    {"{\"model\": {", HD_E_CORRUPT, "tokenizer.json:1:11: "},
    {"{\"model\": {\"type\": \"Unigram\"}}", HD_E_INVALID, "model.type is Unigram: only BPE is supported"},
    {"{\"model\": {\"type\": \"BPE\"}}", HD_E_INVALID, "has model.vocab, a mapping, and model.merges, a list"},
    {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", HD_E_INVALID, "the id of the token a is no number"},
    {"{\"model\": {\"vocab\": {\"a\": 4294967296}, \"merges\": []}}", HD_E_INVALID,
     "the id of the token a is no number"},
    {"{\"model\": {\"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}", HD_E_INVALID, "two tokens have the id 1"},
    {"{\"model\": {" MODEL ", \"merges\": [\"a d\"]}}", HD_E_INVALID, "model.merges[0] makes ad of a and d"},
    {"{\"model\": {" MODEL ", \"merges\": [\"a\"]}}", HD_E_INVALID, "model.merges[0] is neither \"a b\" nor"},
    {"{\"model\": {" MODEL ", \"merges\": [[\"a\", 1]]}}", HD_E_INVALID, "model.merges[0] is neither \"a b\" nor"},
    {"{\"model\": {" MODEL ", \"merges\": [], \"dropout\": 0.1}}", HD_E_INVALID, "model.dropout is not null"},
    {"{\"model\": {" MODEL ", \"merges\": [], \"end_of_word_suffix\": \"</w>\"}}", HD_E_INVALID,
     "model.end_of_word_suffix is \"</w>\", which is not supported"},
    {"{\"model\": {" MODEL ", \"merges\": [], \"continuing_subword_prefix\": \"##\"}}", HD_E_INVALID,
     "model.continuing_subword_prefix is \"##\""},
    {"{\"model\": {" MODEL ", \"merges\": [], \"unk_token\": \"<unk>\"}}", HD_E_INVALID, "model.unk_token is <unk>"},
    {"{\"model\": {" MODEL ", \"merges\": [], \"fuse_unk\": 1}}", HD_E_INVALID,
     "model.fuse_unk is neither true nor false"},
    {"{\"model\": {}, \"normalizer\": {\"type\": \"Precompiled\"}}", HD_E_INVALID,
     "normalizer: the normalizer Precompiled is not supported; these are: NFC, "},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, "
     "{\"type\": \"Metaspace\", \"replacement\": \"_\"}]}}",
     HD_E_INVALID, "pre_tokenizer.pretokenizers[1]: behind ByteLevel only pre-tokenizers that cut"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, "
     "{\"type\": \"ByteLevel\"}]}}",
     HD_E_INVALID, "pre_tokenizer.pretokenizers[1]: a second ByteLevel is not supported"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Punctuation\", \"behavior\": \"Alone\"}}", HD_E_INVALID,
     "behavior Alone is none of Removed, Isolated"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"CharDelimiterSplit\"}}", HD_E_INVALID,
     "`delimiter` is not one character"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[^bc]]\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "a class in a class of this form at its byte 2 is not supported"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[b[c]]]\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "a class in a class of this form at its byte 4 is not supported"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[bc]-e]\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "a hyphen beside a class in a class at its byte 5 is not supported"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a{1,3}+\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "}+ at its byte 5 is not supported"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\ba\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "this escape at its byte 0 is not supported"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "missing closing parenthesis"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"\"}, \"behavior\": "
     "\"Isolated\"}}",
     HD_E_INVALID, "an empty pattern"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": "
     "\"Isolate\"}}",
     HD_E_INVALID, "behavior Isolate is none of Removed, Isolated"},
    {"{\"model\": {}, \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"ab\"}}", HD_E_INVALID,
     "`replacement` is not one character"},
    {"{\"model\": {}, \"decoder\": {\"type\": \"WordPiece\"}}", HD_E_INVALID, "the decoder WordPiece is not supported"},
    {"{\"model\": {}, \"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}}", HD_E_INVALID,
     "only one Strip behind Fuse"},
    {"{\"model\": {" MODEL ", \"merges\": []}, \"added_tokens\": [{\"id\": 5, \"content\": \"a\"}]}", HD_E_INVALID,
     "the token a has the id 5 in added_tokens, and 0 before"},
    {"{\"model\": {" MODEL ", \"merges\": []}, \"added_tokens\": [{\"id\": 5, \"content\": \"z\"}]}", HD_E_INVALID,
     "two tokens have the id 5"},
    {"{\"model\": {" MODEL ", \"merges\": []}, \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
     "[{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {}}}",
     HD_E_INVALID, "special_tokens has no ids of <s>"},
    {"{\"model\": {\"vocab\": {\"a\": 2}, \"merges\": []}, \"post_processor\": {\"type\": \"TemplateProcessing\", "
     "\"single\": "
     "[{\"SpecialToken\": {\"id\": \"s\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"s\": {\"ids\": "
     "[1]}}}}",
     HD_E_INVALID, "post_processor puts the id 1 around a text, which is no token"},
    {"YQ== 0\nYg== 1\n", HD_E_INVALID, "a tiktoken file with 2 tokens, which says neither its regex nor"},
    {"YQ== 0\nYg== x\n", HD_E_CORRUPT, "token 2 is not base64, a space and a rank"},
    {"YQ== 0\nY?== 1\n", HD_E_CORRUPT, "token 2 is not base64"},
    {"YQ== 0\nYQ== 1\n", HD_E_CORRUPT, "token 2 is not base64, a space and a rank that no other has"},
    {"YQ== 0\nYg== 0\n", HD_E_INVALID, "two tokens have the id 0"},
};

START_TEST(refused)
{
    struct hd_tokenizer *t;
    scratch_init(&folder);
    for (size_t i = 0; i < HD__COUNT(refusals); i++) {
        const char *path = scratch_write(&folder, "tokenizer.json", refusals[i].file, strlen(refusals[i].file));
        ck_refused(ops_of()->open(NULL, path, &t, &err), refusals[i].code, refusals[i].words);
        ck_assert_msg(!strncmp(err.message, path, strlen(path)), "%s: does not begin with its path", err.message);
    }
    scratch_finish(&folder);
}
END_TEST

static void no_ids(void *user, const int32_t *ids, size_t count)
{
    (void)user, (void)ids, (void)count;
}

START_TEST(texts_without_tokens)
{
    static const char json[] = "{\"model\": {" MODEL ", \"merges\": []}}";
    struct hd_tokenizer *t;
    scratch_init(&folder);
    t = tokenizer_open(ops_of(), scratch_write(&folder, "tokenizer.json", json, strlen(json)));
    ck_refused(ops_of()->encode(t, "ab\xc3\xa9", 4, 0, no_ids, NULL, &err), HD_E_INVALID,
               "the bytes c3 a9 of the text have no token, and the file has no unk_token");
    ck_refused(ops_of()->encode(t, "ab\xff", 3, 0, no_ids, NULL, &err), HD_E_INVALID, "the bytes ff of the text");
    ops_of()->close(t);
    scratch_finish(&folder);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"hugging_face", hugging_face},
        {"tiktoken", tiktoken},
        {"models", models},
        {"frames", frames},
        {"refused", refused},
        {"texts_without_tokens", texts_without_tokens},
        {"hostile_texts", hostile_texts},
        {"padding", padding},
        {NULL, NULL},
    };
    return scratch_run("tokenizer-bpe", tests);
}
