/* Promises of every source of tokens: a path has the same tokens whoever opens it, in whatever ranges, order and thread
 * they are read. */
#include <pthread.h>
#include <stdlib.h>

#include "conformance/check.h"
#include "core/plugin/plugin.h"
#include "runtime/rendezvous/host_store.h"

enum { MOST = 1 << 18, THREADS = 4, CANARY = -77 };

static const char *path;
static const struct hd_data_ops *ops;
static struct hd_error err = HD_ERROR_INIT;

#define OK(call)                                                                      \
    do {                                                                              \
        int32_t ok_rc = (call);                                                       \
        ck_assert_msg(ok_rc == HD_OK, "%s: error %d: %s", #call, ok_rc, err.message); \
    } while (0)

int conf_data_word(const char *word)
{
    if (!strncmp(word, "path=", 5))
        return (path = realpath(word + 5, NULL)) || (path = word + 5);
    return !strncmp(word, "set:", 4) && strchr(word, '=');
}

static struct hd_data *open_path(const char *at)
{
    const struct hd_data_source source = {.struct_size = sizeof source, .path = at, .vocab = INT64_C(1) << 20};
    struct hd_data *data = NULL;
    ops = &conf_target.component->ops.data;
    return ops->open(hd__store_host_table(), conf_settings(&err), &source, &data, &err) ? NULL : data;
}

static struct hd_data *opened(struct hd_data_info *info)
{
    struct hd_data *data = open_path(path);
    ck_assert_msg(data, "%s cannot be opened: %s", path, err.message);
    *info = (struct hd_data_info){.struct_size = sizeof *info};
    OK(ops->info(data, info, &err));
    ck_assert_msg(info->tokens > 0, "info says that there are no tokens");
    return data;
}

/* The first tokens, at most MOST, in one call. */
static int64_t *first_tokens(struct hd_data *data, const struct hd_data_info *info, uint64_t *n)
{
    *n = HD__MIN(info->tokens, MOST);
    int64_t *tokens = hd__alloc((*n + 1) * sizeof *tokens);
    tokens[*n] = CANARY;
    OK(ops->read(data, 0, *n, tokens, &err));
    ck_assert_msg(tokens[*n] == CANARY, "read wrote more tokens than it was asked for");
    return tokens;
}

START_TEST(tokens_are_within_what_info_says)
{
    struct hd_data_info info;
    uint64_t n;
    struct hd_data *data = opened(&info);
    int64_t *tokens = first_tokens(data, &info, &n), last;
    for (uint64_t i = 0; i < n; i++)
        ck_assert_msg(tokens[i] >= 0 && (!info.max_token || tokens[i] <= info.max_token),
                      "token %llu is %lld; info.max_token is %lld", (unsigned long long)i, (long long)tokens[i],
                      (long long)info.max_token);
    OK(ops->read(data, info.tokens - 1, 1, &last, &err));
    ops->close(data);
    ops->close(NULL);
}
END_TEST

START_TEST(ranges_give_the_same_tokens)
{
    struct hd_data_info info, again;
    uint64_t n, state = 5;
    struct hd_data *data = opened(&info), *other = opened(&again);
    int64_t *want = first_tokens(data, &info, &n), *got = hd__alloc((n + 1) * sizeof *got);
    ck_assert_msg(again.tokens == info.tokens && again.max_token == info.max_token, "opened twice, info differs");
    for (int k = 0; k < 300; k++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t first = (state >> 33) % n, count = k % 3 ? 1 + (state >> 13) % HD__MIN(n - first, 100) : n - first;
        got[count] = CANARY;
        OK(ops->read(k % 2 ? other : data, first, count, got, &err));
        ck_assert_msg(!memcmp(got, want + first, count * sizeof *got) && got[count] == CANARY,
                      "tokens %llu to %llu are others than when all were read at once", (unsigned long long)first,
                      (unsigned long long)(first + count - 1));
    }
    ops->close(other);
    OK(ops->read(data, 0, 1, got, &err));
    ops->close(data);
}
END_TEST

static struct reader {
    struct hd_data *data;
    const int64_t *want;
    uint64_t n, seed, wrong;
} readers[THREADS];

static void *read_much(void *arg)
{
    struct reader *r = arg;
    struct hd_error own = HD_ERROR_INIT;
    int64_t got[257];
    for (int k = 0; k < 2000; k++) {
        r->seed = r->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t first = (r->seed >> 33) % r->n, count = HD__MIN(r->n - first, 1 + (r->seed >> 13) % 256);
        if (ops->read(r->data, first, count, got, &own) || memcmp(got, r->want + first, count * sizeof *got))
            r->wrong++;
    }
    return NULL;
}

START_TEST(threads_read_at_once)
{
    struct hd_data_info info;
    uint64_t n;
    struct hd_data *data = opened(&info);
    const int64_t *want = first_tokens(data, &info, &n);
    pthread_t threads[THREADS];
    for (uint64_t k = 0; k < THREADS; k++) {
        readers[k] = (struct reader){data, want, n, k + 1, 0};
        ck_assert(!pthread_create(&threads[k], NULL, read_much, &readers[k]));
    }
    for (int k = 0; k < THREADS; k++) {
        pthread_join(threads[k], NULL);
        ck_assert_msg(!readers[k].wrong, "%llu of 2000 reads of a thread were wrong beside %d others",
                      (unsigned long long)readers[k].wrong, THREADS - 1);
    }
}
END_TEST

START_TEST(reads_behind_the_end_are_refused)
{
    struct hd_data_info info;
    struct hd_data *data = opened(&info);
    const uint64_t wrong[][2] = {
        {info.tokens, 1}, {info.tokens - 1, 2}, {UINT64_MAX, 1}, {UINT64_MAX - 1, 4}, {1, UINT64_MAX}};
    for (size_t k = 0; k < HD__COUNT(wrong); k++) {
        int64_t tokens[4] = {CANARY, CANARY, CANARY, CANARY};
        err = (struct hd_error)HD_ERROR_INIT;
        int32_t rc = ops->read(data, wrong[k][0], wrong[k][1], tokens, &err);
        ck_assert_msg(rc == HD_E_INVALID && err.message[0], "%llu tokens from %llu of %llu: %d, \"%s\"",
                      (unsigned long long)wrong[k][1], (unsigned long long)wrong[k][0], (unsigned long long)info.tokens,
                      rc, err.message);
    }
    ops->close(data);
}
END_TEST

/* Where the settings say so: the same in any range, and one for each token. */
START_TEST(labels_belong_to_their_tokens)
{
    struct hd_data_info info;
    uint64_t n, counted = 0;
    struct hd_data *data = opened(&info);
    int64_t *labels = first_tokens(data, &info, &n), got[64];
    if (ops->labels && (!ops->labeled || ops->labeled(conf_settings(&err)))) {
        OK(ops->labels(data, 0, n, labels, &err));
        ck_assert_msg(labels[n] == CANARY, "labels wrote more than it was asked for");
        for (uint64_t i = 0; i < n; i++) {
            counted += labels[i] >= 0;
            ck_assert_msg(!info.max_token || labels[i] <= info.max_token, "the label of token %llu is %lld",
                          (unsigned long long)i, (long long)labels[i]);
        }
        ck_assert_msg(counted > 0, "no label of the first %llu tokens counts", (unsigned long long)n);
        for (uint64_t first = 0, count; first < n; first += count) {
            count = HD__MIN(n - first, 1 + first % 61);
            OK(ops->labels(data, first, count, got, &err));
            ck_assert_msg(!memcmp(got, labels + first, count * sizeof *got),
                          "labels %llu to %llu are others than when all were read at once", (unsigned long long)first,
                          (unsigned long long)(first + count - 1));
        }
        ck_assert_msg(ops->labels(data, info.tokens, 1, got, &err), "labels behind the last token are not refused");
    }
    free(labels);
    ops->close(data);
}
END_TEST

/* Each token of a document has the same end, unless the limit that was asked for comes before it. A source need not
 * have document_end. */
START_TEST(documents_have_one_end)
{
    struct hd_data_info info;
    struct hd_data *data = opened(&info);
    uint64_t n = HD__MIN(info.tokens, MOST), end = 0, got = 0;
    int32_t rc = ops->document_end ? ops->document_end(data, 0, n, &end, &err) : HD_E_UNSUPPORTED;
    ck_assert_msg(!rc || !ops->document_end || !strncmp(err.message, path, strlen(path)),
                  "document_end fails, and its message does not begin with the path: \"%s\"", err.message);
    for (uint64_t at = 0; at < n && !rc; at = end) {
        OK(ops->document_end(data, at, n, &end, &err));
        ck_assert_msg(end > at && end <= n, "up to token %llu, the document of token %llu ends at %llu",
                      (unsigned long long)n, (unsigned long long)at, (unsigned long long)end);
        const uint64_t asked[][2] = {
            {end - 1, n}, {at, at + 1}, {at, end}, {at + (end - at) / 2, end - (end - at) / 4}};
        for (size_t k = 0; k < HD__COUNT(asked); k++) {
            OK(ops->document_end(data, asked[k][0], asked[k][1], &got, &err));
            ck_assert_msg(
                got == HD__MIN(end, asked[k][1]),
                "up to token %llu, the document of token %llu ends at %llu; it is that of tokens %llu to %llu",
                (unsigned long long)asked[k][1], (unsigned long long)asked[k][0], (unsigned long long)got,
                (unsigned long long)at, (unsigned long long)end - 1);
        }
    }
    ops->close(data);
}
END_TEST

START_TEST(what_is_no_data_is_refused_by_its_path)
{
    static const char nowhere[] = "/no/such/path-of-tokens";
    err = (struct hd_error)HD_ERROR_INIT;
    struct hd_data *data = open_path(nowhere);
    ck_assert_msg(data || !strncmp(err.message, nowhere, strlen(nowhere)),
                  "the message does not begin with the path: \"%s\"", err.message);
    ck_assert_msg(!data, "%s is opened; a word that is none of its own has to be refused", nowhere);
}
END_TEST

START_TEST(ranks_train_on_it)
{
    struct hd_data_info info;
    struct hd__text use = {0}, one = {0}, two = {0}, job = {0};
    char want[128], got[128];
    ops->close(opened(&info));
    for (size_t i = 0; i < conf_target.n_set; i++)
        hd__text_add(&use, ", %.*s: %s", (int)strcspn(conf_target.set[i], "="), conf_target.set[i],
                     strchr(conf_target.set[i], '=') + 1);
    hd__text_add(&job,
                 "job: {name: data, steps: 4, seed: 3, deterministic: exact}\n"
                 "optimizer: {use: adamw, lr: 1e-2}\n"
                 "model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: %lld}\n"
                 "data: {use: %s, train: '%s'%s, seq_len: 8, batch: 4, micro_batch: 2}\n",
                 (long long)(info.max_token ? info.max_token + 1 : 256), conf_target.name, path, use.at ? use.at : "");
    int code = conf_train(conf_folder(), job.at, "launch.ranks=1", &one);
    ck_assert_msg(!code, "exit code %d: %s\n%s", code, one.at, job.at);
    ck_assert_msg(!conf_train(conf_folder(), job.at, "launch.ranks=2", &two), "%s", two.at);
    conf_end(&one, want);
    conf_end(&two, got);
    ck_assert_msg(!strcmp(want, got), "one rank ends with %s, two with %s", want, got);
}
END_TEST

void conf_data(void)
{
    if (!path) {
        fprintf(stderr, "heddle test: say path=PATH, something that %s opens\n", conf_target.label);
        exit(2);
    }
    ops = &conf_target.component->ops.data;
    RUN_TEST(tokens_are_within_what_info_says);
    RUN_TEST(ranges_give_the_same_tokens);
    RUN_TEST(threads_read_at_once);
    RUN_TEST(reads_behind_the_end_are_refused);
    RUN_TEST(labels_belong_to_their_tokens);
    RUN_TEST(documents_have_one_end);
    RUN_TEST(what_is_no_data_is_refused_by_its_path);
    RUN_TEST(ranks_train_on_it);
}
