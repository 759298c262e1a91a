/* tokenizer-sentencepiece: ids of SentencePiece's own Python package, and what is refused. */
#include "core/plugin/plugin.h"
#include "tests/support/scratch.h"
#include "tests/support/tokenizer.h"

extern const struct hd_plugin *heddle_plugin_v1_sentencepiece(void);

static struct hd_error err = HD_ERROR_INIT;

static const struct hd_tokenizer_ops *ops_of(void)
{
    return heddle_plugin_v1_sentencepiece()->components[0]->ops;
}

START_TEST(golden_ids)
{
    struct hd_tokenizer *t = tokenizer_open(ops_of(), tokenizer_golden_path("sentencepiece.model"));
    struct hd_tokenizer_info info = {.struct_size = sizeof info};
    ops_of()->info(t, &info);
    ck_assert(info.vocab == 700 && info.unk == 0 && info.bos == 1 && info.eos == 2 && info.pad == -1);
    tokenizer_golden(ops_of(), t, "sentencepiece", 1);
    ops_of()->close(t);
}
END_TEST

START_TEST(frame_and_names)
{
    struct hd_tokenizer *t = tokenizer_open(ops_of(), tokenizer_golden_path("sentencepiece.model"));
    struct tokenizer_ids ids = tokenizer_encode(ops_of(), t, "a<s>b", 5, HD_TOKENIZER_FRAME | HD_TOKENIZER_SPECIAL);
    struct hd__text text = tokenizer_decode(ops_of(), t, &ids, 0);
    ck_assert_int_eq(ids.at[0], 1);
    ck_assert_str_eq(text.at, "<s>a<s>b");
    hd__text_free(&text);
    text = tokenizer_decode(ops_of(), t, &ids, HD_TOKENIZER_SKIP_SPECIAL);
    ck_assert_str_eq(text.at, "ab");
    hd__text_free(&text);
    free(ids.at);
    ck_assert_int_eq(ops_of()->find(t, "<unk>", 5), 0);
    ck_assert_int_eq(ops_of()->find(t, "<0x0A>", 6), 13);
    ops_of()->close(t);
}
END_TEST

START_TEST(refused)
{
    struct scratch s;
    struct hd_tokenizer *t;
    size_t bytes;
    char *model = scratch_read(tokenizer_golden_path("sentencepiece.model"), &bytes);
    scratch_init(&s);
    ck_refused(ops_of()->open(NULL, scratch_write(&s, "a", "text", 4), &t, &err), HD_E_UNSUPPORTED,
               "no model of SentencePiece");
    ck_refused(ops_of()->open(NULL, scratch_write(&s, "cut", model, bytes / 2), &t, &err), HD_E_UNSUPPORTED,
               "cut: no model of SentencePiece");
    ck_refused(ops_of()->open(NULL, "/no/such/model", &t, &err), HD_E_NOTFOUND, "/no/such/model: No such file");
    scratch_finish(&s);
    free(model);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"golden_ids", golden_ids}, {"frame_and_names", frame_and_names}, {"refused", refused}, {NULL, NULL}};
    return scratch_run("tokenizer-sentencepiece", tests);
}
