/* Promises of every tokenizer: a text has the same ids whoever encodes it, ids are those of the vocabulary, and decode
 * gives the text back. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/check.h"
#include "core/plugin/plugin.h"
#include "runtime/rendezvous/host_store.h"

enum { THREADS = 4, LONG_WORD = 1 << 20 };

static const char *path, *tokens[8];
static size_t n_tokens;
static int lossy;
static const struct hd_tokenizer_ops *ops;
static struct hd_error err = HD_ERROR_INIT;

int conf_tokenizer_word(const char *word)
{
    if (!strncmp(word, "path=", 5))
        return (path = realpath(word + 5, NULL)) || (path = word + 5);
    if (!strncmp(word, "token=", 6) && word[6] && n_tokens < HD__COUNT(tokens))
        return (tokens[n_tokens++] = word + 6) != NULL;
    return !strcmp(word, "lossy") && (lossy = 1);
}

/* ---- a tokenizer and its texts */

struct ids {
    int32_t *at;
    size_t count, room;
};

static void add_ids(void *user, const int32_t *ids, size_t count)
{
    struct ids *out = user;
    if (out->count + count > out->room)
        out->at = hd__realloc(out->at, (out->room = 2 * (out->count + count)) * sizeof *out->at);
    if (count)
        memcpy(out->at + out->count, ids, count * sizeof *ids);
    out->count += count;
}

static void add_text(void *user, const char *text, size_t bytes)
{
    struct hd__text *out = user;
    if (out->length + bytes + 1 > out->room)
        out->at = hd__realloc(out->at, out->room = 2 * (out->length + bytes) + 1);
    if (bytes)
        memcpy(out->at + out->length, text, bytes);
    out->at[out->length += bytes] = 0;
}

static int32_t open_path(const char *at, struct hd_tokenizer **t)
{
    err = (struct hd_error)HD_ERROR_INIT;
    *t = NULL;
    return ops->open(hd__store_host_table(), at, t, &err);
}

static struct hd_tokenizer *opened(void)
{
    struct hd_tokenizer *t;
    ck_assert_msg(open_path(path, &t) == HD_OK && t, "%s cannot be opened: %s", path, err.message);
    return t;
}

static struct hd_tokenizer_info info_of(const struct hd_tokenizer *t)
{
    struct hd_tokenizer_info info = {.struct_size = sizeof info};
    ops->info(t, &info);
    return info;
}

static struct ids encoded(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags)
{
    struct ids ids = {0};
    int32_t rc = ops->encode(t, text, bytes, flags, add_ids, &ids, &err);
    ck_assert_msg(!rc, "a text of %zu bytes, \"%.40s\", cannot be encoded: error %d: %s", bytes, text, rc, err.message);
    return ids;
}

static struct hd__text decoded(const struct hd_tokenizer *t, const int32_t *ids, size_t count, uint32_t flags)
{
    struct hd__text text = {0};
    int32_t rc = ops->decode(t, ids, count, flags, add_text, &text, &err);
    ck_assert_msg(!rc, "%zu ids cannot be decoded: error %d: %s", count, rc, err.message);
    add_text(&text, "", 0);
    return text;
}

static void comes_back(const struct hd_tokenizer *t, const char *text, size_t bytes)
{
    struct ids ids = encoded(t, text, bytes, 0);
    struct hd_tokenizer_info info = info_of(t);
    for (size_t i = 0; i < ids.count; i++)
        ck_assert_msg(ids.at[i] >= 0 && ids.at[i] < info.vocab, "id %d of \"%.40s\" is outside the vocabulary of %lld",
                      ids.at[i], text, (long long)info.vocab);
    struct hd__text back = decoded(t, ids.at, ids.count, 0);
    size_t same = 0;
    while (same < bytes && same < back.length && text[same] == back.at[same])
        same++;
    ck_assert_msg(same == bytes && back.length == bytes,
                  "of a text of %zu bytes, \"%.40s\", %zu came back; byte %zu is the first that differs%s", bytes, text,
                  back.length, same, lossy ? "" : " (`lossy`, where it normalizes text)");
    free(ids.at);
    hd__text_free(&back);
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

/* Words of small letters with a space between, which no tokenizer changes; or any bytes. */
static size_t draw_text(uint64_t *state, char *text, size_t most)
{
    size_t n = draw(state, most);
    uint64_t kind = lossy ? 0 : draw(state, 3);
    for (size_t i = 0; i < n; i++) {
        uint64_t any = draw(state, 256), letter = 'a' + any % 26;
        text[i] = (char)(kind == 2 ? any : kind == 1 ? any % 128 : any < 40 && i && text[i - 1] != ' ' ? ' ' : letter);
    }
    while (kind == 0 && n && text[n - 1] == ' ')
        n--;
    return n;
}

/* ---- what is promised */

START_TEST(info_is_of_the_vocabulary)
{
    struct hd_tokenizer *t = opened();
    struct hd_tokenizer_info info = info_of(t),
                             old = {.struct_size = offsetof(struct hd_tokenizer_info, unk), .unk = -77};
    const int64_t special[] = {info.bos, info.eos, info.pad, info.unk};
    ck_assert_msg(info.vocab > 0 && info.vocab <= INT32_MAX, "the vocabulary has %lld ids", (long long)info.vocab);
    for (size_t i = 0; i < HD__COUNT(special); i++)
        ck_assert_msg(special[i] >= -1 && special[i] < info.vocab,
                      "bos, eos, pad or unk is %lld, of a vocabulary of %lld", (long long)special[i],
                      (long long)info.vocab);
    for (size_t i = 0; i < 3; i++) { /* an unknown token may be seen in the text */
        const int32_t id = (int32_t)special[i];
        struct hd__text left = {0};
        if (id >= 0)
            left = decoded(t, &id, 1, HD_TOKENIZER_SKIP_SPECIAL);
        ck_assert_msg(
            !left.length,
            "info says that id %d is %s, which HD_TOKENIZER_SKIP_SPECIAL leaves out, and it decodes to \"%s\"; "
            "-1 is for what the file does not name",
            id,
            i == 0   ? "bos"
            : i == 1 ? "eos"
                     : "pad",
            left.at);
        hd__text_free(&left);
    }
    ops->info(t, &old);
    ck_assert_msg(old.unk == -77 && old.vocab == info.vocab, "info wrote beyond the struct_size of an older caller");
    ops->close(t);
    ops->close(NULL);
}
END_TEST

START_TEST(texts_come_back)
{
    static const char *const texts[] = {"", "a", "the quick brown fox", "a b c d e f"};
    static const char *const exact[] = {
        " ",
        "  two  spaces ",
        "tabs\tand\r\nlines\n\n\n",
        "caf\xc3\xa9, \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e, \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
        "'s don't 12345 \xef\xbb\xbf\xef\xbf\xbd",
        "<0x41><s></s><unk><|endoftext|>"};
    struct hd_tokenizer *t = opened();
    uint64_t state = 3;
    char text[700];
    for (size_t i = 0; i < HD__COUNT(texts); i++)
        comes_back(t, texts[i], strlen(texts[i]));
    for (size_t i = 0; i < HD__COUNT(exact) && !lossy; i++)
        comes_back(t, exact[i], strlen(exact[i]));
    for (int i = 0; i < 1000; i++)
        comes_back(t, text, draw_text(&state, text, 1 + (uint64_t)i % sizeof text));
    ops->close(t);
}
END_TEST

START_TEST(any_bytes_come_back)
{
    struct hd_tokenizer *t = opened();
    for (uint32_t b = 0; b < 256 && !lossy; b++)
        for (uint32_t a = 0; a < 256; a += b % 7 ? 51 : 1) {
            const char text[] = {(char)b, (char)a, 'x', (char)b};
            comes_back(t, text, 1);
            comes_back(t, text, 4);
        }
    struct ids none = encoded(t, "", 0, 0);
    ck_assert_msg(none.count == 0, "a text of no bytes has %zu ids", none.count);
    ops->close(t);
}
END_TEST

/* 60 s are enough for n log n, and not for n squared. */
START_TEST(a_long_word_comes_back)
{
    struct hd_tokenizer *t = opened();
    char *word = hd__alloc(LONG_WORD + 1);
    uint64_t state = 11;
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < LONG_WORD; i++)
            word[i] = (char)(kind == 0 ? 'a' : kind == 1 ? 'a' + draw(&state, 26) : lossy ? 'b' : ' ');
        comes_back(t, word, LONG_WORD);
    }
    free(word);
    ops->close(t);
}
END_TEST

START_TEST(a_start_of_ids_is_a_start_of_the_text)
{
    struct hd_tokenizer *t = opened();
    uint64_t state = 9;
    char text[300];
    for (int i = 0; i < 200; i++) {
        struct ids ids = encoded(t, text, draw_text(&state, text, sizeof text), 0);
        struct hd__text whole = decoded(t, ids.at, ids.count, 0);
        struct hd__text start = decoded(t, ids.at, draw(&state, ids.count + 1), 0);
        ck_assert_msg(start.length <= whole.length && !memcmp(start.at, whole.at, start.length),
                      "the first ids of \"%.40s\" decode to other bytes than all of them begin with", text);
        free(ids.at);
        hd__text_free(&whole);
        hd__text_free(&start);
    }
    ops->close(t);
}
END_TEST

static struct worker {
    const struct hd_tokenizer *t;
    uint64_t seed, wrong;
} workers[THREADS];

static const struct hd_tokenizer *alone;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *arg)
{
    struct worker *w = arg;
    struct hd_error own = HD_ERROR_INIT;
    char text[400];
    for (int i = 0; i < 500; i++) {
        size_t n = draw_text(&w->seed, text, sizeof text);
        struct ids want = {0}, got = {0};
        struct hd__text back = {0};
        int32_t rc = ops->encode(w->t, text, n, 0, add_ids, &got, &own);
        pthread_mutex_lock(&lock);
        rc = rc ? rc : ops->encode(alone, text, n, 0, add_ids, &want, &own);
        pthread_mutex_unlock(&lock);
        rc = rc ? rc : ops->decode(w->t, got.at, got.count, 0, add_text, &back, &own);
        w->wrong += rc || got.count != want.count || back.length != n || (n && memcmp(back.at, text, n)) ||
                    (n && memcmp(got.at, want.at, got.count * sizeof *got.at));
        free(want.at);
        free(got.at);
        hd__text_free(&back);
    }
    return NULL;
}

/* `alone` is another one of the same file, which one thread uses at a time. */
START_TEST(threads_encode_at_once)
{
    struct hd_tokenizer *t = opened();
    pthread_t threads[THREADS];
    alone = opened();
    for (uint64_t k = 0; k < THREADS; k++) {
        workers[k] = (struct worker){t, k + 1, 0};
        ck_assert(!pthread_create(&threads[k], NULL, work, &workers[k]));
    }
    for (int k = 0; k < THREADS; k++) {
        pthread_join(threads[k], NULL);
        ck_assert_msg(!workers[k].wrong, "%llu of 500 texts of a thread were wrong beside %d others",
                      (unsigned long long)workers[k].wrong, THREADS - 1);
    }
    ops->close(t);
}
END_TEST

START_TEST(ids_outside_are_refused)
{
    struct hd_tokenizer *t = opened();
    struct hd_tokenizer_info info = info_of(t);
    const int64_t wrong[] = {-1, info.vocab, INT32_MAX, INT32_MIN};
    uint64_t good = 0;
    struct hd__text text = {0};
    for (size_t k = 0; k < HD__COUNT(wrong); k++) {
        const int32_t ids[] = {0, (int32_t)wrong[k]};
        err = (struct hd_error)HD_ERROR_INIT;
        int32_t rc = ops->decode(t, ids, 2, 0, add_text, &text, &err);
        ck_assert_msg(rc == HD_E_INVALID && err.message[0], "id %lld: %d, \"%s\"", (long long)wrong[k], rc,
                      err.message);
    }
    for (int32_t id = 0; id < info.vocab; id++) { /* a vocabulary may have holes */
        int32_t rc = ops->decode(t, &id, 1, 0, add_text, &text, &err);
        ck_assert_msg(rc == HD_OK || rc == HD_E_INVALID, "id %d: error %d", id, rc);
        good += rc == HD_OK;
    }
    ck_assert_msg(good > 0, "no id can be decoded");
    hd__text_free(&text);
    ops->close(t);
}
END_TEST

static size_t count_of(const struct ids *ids, int64_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->count; i++)
        n += ids->at[i] == id;
    return n;
}

static void is_special(const struct hd_tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    int64_t id = ops->find(t, token, n);
    struct hd__text text = {0};
    hd__text_add(&text, "a%sb%s", token, token);
    ck_assert_msg(id >= 0, "the token %s is not found", token);
    struct ids as_token = encoded(t, text.at, text.length, HD_TOKENIZER_SPECIAL),
               as_text = encoded(t, text.at, text.length, 0);
    ck_assert_msg(count_of(&as_token, id) == 2 && !count_of(&as_text, id),
                  "\"%s\" has the id %lld %zu times with HD_TOKENIZER_SPECIAL and %zu times without; 2 and 0 are right",
                  text.at, (long long)id, count_of(&as_token, id), count_of(&as_text, id));
    const int32_t one = (int32_t)id;
    struct hd__text shown = decoded(t, &one, 1, 0), left_out = decoded(t, &one, 1, HD_TOKENIZER_SKIP_SPECIAL);
    ck_assert_msg(lossy || !strcmp(shown.at, token), "the id of %s decodes to %s", token, shown.at);
    ck_assert_msg(left_out.length == 0, "with HD_TOKENIZER_SKIP_SPECIAL %s decodes to %s", token, left_out.at);
}

START_TEST(special_tokens_are_found)
{
    struct hd_tokenizer *t = opened();
    ck_assert_msg(ops->find(t, "no such token, surely", 21) == -1, "a token that is none is found");
    ck_assert_msg(ops->find(t, "a\0b\0c\0d", 7) == -1, "a token with zeros is found");
    for (size_t i = 0; i < n_tokens; i++)
        is_special(t, tokens[i]);
    ops->close(t);
}
END_TEST

START_TEST(a_frame_stands_around_the_text)
{
    static const char text[] = "a frame around a text";
    struct hd_tokenizer *t = opened();
    struct ids bare = encoded(t, text, strlen(text), 0), framed = encoded(t, text, strlen(text), HD_TOKENIZER_FRAME);
    size_t at = 0;
    while (at + bare.count <= framed.count && memcmp(framed.at + at, bare.at, bare.count * sizeof *bare.at))
        at++;
    ck_assert_msg(at + bare.count <= framed.count, "the ids with HD_TOKENIZER_FRAME do not have those without in them");
    ops->close(t);
}
END_TEST

static void is_refused(const char *at, int32_t want)
{
    struct hd_tokenizer *t;
    int32_t rc = open_path(at, &t);
    ck_assert_msg(rc && !strncmp(err.message, at, strlen(at)) && (!want || rc == want),
                  "%s: error %d instead of %d, and the message has to begin with the path: \"%s\"", at, rc, want,
                  err.message);
}

START_TEST(what_is_no_tokenizer_is_refused_by_its_path)
{
    static const char *const texts[] = {"", "\n", "some text, and no tokenizer\n", "{}", "[1, 2]", "\x80\x02}q\x01"};
    char file[4200];
    is_refused("/no/such/file-of-tokens", HD_E_NOTFOUND);
    is_refused(conf_folder(), 0);
    snprintf(file, sizeof file, "%s/file", conf_folder());
    for (size_t i = 0; i < HD__COUNT(texts); i++) {
        FILE *f = fopen(file, "w");
        ck_assert(f && fputs(texts[i], f) >= 0 && !fclose(f));
        is_refused(file, HD_E_UNSUPPORTED);
    }
}
END_TEST

void conf_tokenizer(void)
{
    if (!path) {
        fprintf(stderr, "heddle test: say path=PATH, a file that %s opens\n", conf_target.label);
        exit(2);
    }
    ops = &conf_target.component->ops.tokenizer;
    RUN_TEST(info_is_of_the_vocabulary);
    RUN_TEST(texts_come_back);
    RUN_TEST(any_bytes_come_back);
    RUN_TEST(a_long_word_comes_back);
    RUN_TEST(a_start_of_ids_is_a_start_of_the_text);
    RUN_TEST(threads_encode_at_once);
    RUN_TEST(ids_outside_are_refused);
    RUN_TEST(special_tokens_are_found);
    RUN_TEST(a_frame_stands_around_the_text);
    RUN_TEST(what_is_no_tokenizer_is_refused_by_its_path);
}
