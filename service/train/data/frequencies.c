#include "service/train/data/frequencies.h"

#include <math.h>
#include <stdlib.h>

#include "service/train/data/corpus.h"
#include "service/train/data/passages.h"
#include "service/train/data/token_origin.h"

/* Tokens of a sample, and of each of its places. */
enum { SAMPLE = 1 << 16, PLACE = 1 << 10 };

/* A sample that is smaller says nothing of what it lacks. */
enum { ENOUGH = 1 << 13 };

struct frequencies {
    uint32_t *counts; /* [vocab] */
    int64_t vocab, total;
};

/* total 0: they cannot be had. */
static struct frequencies count_tokens(const struct hd__compiled *c, const struct hd__data *data)
{
    struct frequencies f = {.vocab = c->info.vocab};
    const int64_t length = HD__MIN(c->job->seq_len, PLACE);
    const uint64_t sequences = hd__data_sequences(data), places = HD__MIN(sequences, (uint64_t)(SAMPLE / length));
    int32_t *ids = hd__alloc((size_t)(2 * length) * sizeof *ids), *labels = ids + length;
    struct hd_error unused = HD_ERROR_INIT;
    f.counts = hd__alloc((size_t)f.vocab * sizeof *f.counts);
    for (uint64_t k = 0; k < places; k++) {
        if (hd__data_read(data, k * sequences / places, ids, labels, 0, length, &unused))
            break;
        for (int64_t i = 0; i < length; i++)
            if (labels[i] >= 0) {
                f.counts[labels[i]]++;
                f.total++;
            }
    }
    free(ids);
    return f;
}

static double share(const struct frequencies *f, int64_t id)
{
    return (double)f->counts[id] / (double)f->total;
}

/* The token that is most of `a`, a hundredth or more, and none of `b`; -1: there is none. */
static int64_t find_lacking(const struct frequencies *a, const struct frequencies *b)
{
    int64_t most = -1;
    for (int64_t id = 0; id < a->vocab && b->total >= ENOUGH; id++)
        if (a->counts[id] >= 64 && share(a, id) >= 0.01 && !b->counts[id] &&
            (most < 0 || a->counts[id] > a->counts[most]))
            most = id;
    return most;
}

/* The overlap of two distributions, sum of the lesser over sum of the larger, 0 to 1, among tokens that are frequent in
 * either: of rarer ones a sample has too few. */
static double overlap(const struct frequencies *a, const struct frequencies *b)
{
    double lesser = 0, larger = 0;
    for (int64_t id = 0; id < a->vocab; id++)
        if (share(a, id) >= 0.002 || share(b, id) >= 0.002) {
            lesser += fmin(share(a, id), share(b, id));
            larger += fmax(share(a, id), share(b, id));
        }
    return larger > 0.1 ? lesser / larger : 1;
}

static void compare(const struct frequencies *train, const struct frequencies *val, const struct hd__train_feed *feed)
{
    int64_t more = find_lacking(val, train), fewer = find_lacking(train, val), one = more >= 0 ? more : fewer;
    const char *where = hd__train_feed_where(feed), *key = hd__train_feed_key(feed);
    if (train->total < ENOUGH || !val->total)
        return;
    if (val->total >= ENOUGH && overlap(train, val) < 1.0 / 3)
        hd__log(HD_LOG_WARN, NULL,
                "%s: %s: its frequent tokens overlap with those of data.train by only %.0f%% (in samples of 65536): do "
                "both have the same tokenizer and the same kind of text? If not, val_loss says little about what is "
                "learned",
                where, key, 100 * overlap(train, val));
    else if (one >= 0)
        hd__log(HD_LOG_WARN, NULL,
                "%s: %s: token %lld is %.1f%% of %s and none of %s (of samples of 65536): are both of one tokenizer, "
                "with the same ends of lines and documents?",
                where, key, (long long)one, 100 * share(more >= 0 ? val : train, one), more >= 0 ? key : "data.train",
                more >= 0 ? "data.train" : key);
}

/* Passages of so many tokens are compared; fewer than LEAST say nothing. */
enum { COMPARED = 1 << 22, LEAST = 16 };

/* Documents that are also trained on: drawn of the same lines, say, and left there. */
static void compare_passages(const struct hd__passages *train, const struct hd__passages *val,
                             const struct hd__train_feed *feed)
{
    uint64_t common = hd__passages_common(val, train);
    if (val->hashes.count >= LEAST && 10 * common >= val->hashes.count)
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: %s: %.0f%% of its passages of 64 tokens are in data.train, too (in the first %d tokens): documents "
            "that are trained on are not held out: take them out of one of the two",
            hd__train_feed_where(feed), hd__train_feed_key(feed), 100 * (double)common / val->hashes.count, COMPARED);
}

static void judge_repeated(const struct hd__passages *train, const struct hd__train_feed *feed)
{
    if (train->hashes.count >= LEAST && 4 * train->repeated >= train->hashes.count)
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: data.train: %.0f%% of its passages of 64 tokens occur more than once (in the first %d tokens): are "
            "documents there several times?",
            hd__train_feed_where(feed), 100 * (double)train->repeated / train->hashes.count, COMPARED);
}

/* Ends inside of documents, as where an index has a file of many as one. The turns of a conversation may end alike, so
 * a few a document are no sign. */
static void judge_ends(const struct hd__compiled *c, const struct hd__train_feed *feed)
{
    struct hd__job *job = c->job;
    const struct hd__job_value *asked = hd__job_value_get(job, "data.eod"),
                               *documents = hd__job_value_get(job, "data.documents");
    const struct hd__data *data = hd__train_feed_data(feed);
    const char *chat = hd__train_chat_template(c);
    const int64_t length = job->seq_len;
    const uint64_t sequences = HD__MIN(hd__data_sequences(data), (uint64_t)(4 * SAMPLE / length + 1));
    struct hd_error unused = HD_ERROR_INIT;
    long long inside = 0, between = 0, id;
    if (!job->documents || (asked && strtoll(asked->text, NULL, 10) >= 0) || (chat && strcmp(chat, "plain") != 0) ||
        (id = hd__train_eod(c, job->train.at[0].path)) < 0)
        return;
    int32_t *ids = hd__alloc((size_t)(3 * length) * sizeof *ids), *labels = ids + length, *at = labels + length;
    for (uint64_t k = 0; k < sequences; k++) {
        if (hd__data_read(data, k, ids, labels, 0, length, &unused) || hd__data_positions(data, k, at, &unused))
            break;
        for (int64_t i = 1; i < length; i++) {
            inside += at[i] > 1 && ids[i - 1] == id; /* the first of a document may be a BOS */
            between += !at[i];
        }
    }
    free(ids);
    if (inside >= 8 && inside > 20 * between)
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: data.documents is %s: token %lld ends a document, but in a sample %lld of them lie inside documents, "
            "and %lld documents end: attention crosses them: set data.eod: %lld, unless they only end turns",
            documents->origin, documents->text, id, inside, between, id);
}

void hd__train_frequencies_check(const struct hd__compiled *c, int evaluates)
{
    struct hd__train_feed *train = NULL, *val = NULL;
    struct hd_error unused = HD_ERROR_INIT;
    if (!c->job->check_tokens || hd__train_corpus_has_url(c->job) ||
        hd__train_feed_open(c, 0, HD__FEED_UNPACKED, &train, &unused))
        return;
    struct frequencies of_train = count_tokens(c, hd__train_feed_data(train)), of_val;
    struct hd__passages passages = hd__passages_of(hd__train_feed_data(train), c->job->seq_len, COMPARED, 0), held_out;
    judge_ends(c, train);
    if (!c->job->train.weighted) /* a mix reads some more often than others */
        judge_repeated(&passages, train);
    for (int32_t k = 0; k < hd__train_feed_sets(c->job) && evaluates; k++) {
        if (hd__train_feed_open(c, 0, HD__FEED_VAL + k, &val, &unused))
            break;
        of_val = count_tokens(c, hd__train_feed_data(val));
        held_out = hd__passages_of(hd__train_feed_data(val), c->job->seq_len, COMPARED, 1);
        if (!c->job->n_val_sets) /* sets with names may be of other kinds of text */
            compare(&of_train, &of_val, val);
        compare_passages(&passages, &held_out, val);
        free(of_val.counts);
        hd__passages_free(&held_out);
        hd__train_feed_close(val);
    }
    free(of_train.counts);
    hd__passages_free(&passages);
    hd__train_feed_close(train);
}

static double entropy(const struct frequencies *f)
{
    double sum = 0;
    for (int64_t id = 0; id < f->vocab; id++)
        sum -= f->counts[id] ? share(f, id) * log(share(f, id)) : 0;
    return sum;
}

void hd__train_frequencies_judge(const struct hd__compiled *c, const struct hd__train_feed *feed, double loss,
                                 const char *when)
{
    /* Good weights may be surprised by labels of few kinds, as of a classification. */
    if (!c->info.weights || !c->job->check_tokens || hd__train_corpus_has_url(c->job) ||
        !(loss > 0.6 * log((double)c->info.vocab)))
        return;
    struct frequencies f = count_tokens(c, hd__train_feed_data(feed));
    if (f.total >= ENOUGH && loss > entropy(&f))
        hd__log(HD_LOG_WARN, NULL,
                "%s: the weights of %s have a loss of %.2f, and the tokens' frequencies alone give %.2f: do they match "
                "its config.json (heads, norms, order of layers), and did its tokenizer make these tokens?",
                when, c->info.weights, loss, entropy(&f));
    free(f.counts);
}
